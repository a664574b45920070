"""Every shipped recipe, scaled down, trains, evaluates and generates."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.errors import UsageError
from lmtool.model import LanguageModel
from lmtool.recipe.load import Setting, load, parse_settings, shipped_recipes
from lmtool.runs import load as loading
from lmtool.runs.load import build_model, load_run
from lmtool.training.optimizer import Optimizers
from lmtool.training.plan import plan_pretraining
from lmtool.training.train import train
from tests.support.cases import nightly_but
from tests.support.shipped import TABLES, kind_of_objective, small, table_for
from tests.support.training import Work, ended, metrics, no_report


@pytest.fixture
def without_gradient(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of the parameters without a gradient in some step."""
    found: set[str] = set()
    genuine = Optimizers.clip_and_step

    def update(self: Optimizers, *arguments: Any) -> float:
        found.update(key for p, key in self._names.items() if p.grad is None or not bool(p.grad.any()))
        return genuine(self, *arguments)

    monkeypatch.setattr(Optimizers, "clip_and_step", update)
    return found


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The models that sessions train."""
    models: list[Any] = []

    def remember(*arguments: Any) -> Any:
        models.append(build_model(*arguments))
        return models[-1]

    monkeypatch.setattr(loading, "build_model", remember)
    return models


def assert_loads(run: Path, model: Any) -> LanguageModel:
    """A run's loaded weights are those of the trained model."""
    loaded = load_run(str(run))
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.model.state_dict()[key])
    return loaded.model


@pytest.mark.parametrize(
    "name",
    nightly_but(
        [name for name in sorted(shipped_recipes()) if kind_of_objective(name) in TABLES], "bilstm", "seq2seq-luong"
    ),
)
def test_a_shipped_recipe_for_tables_trains_and_answers(
    name: str, work: Work, without_gradient: set[str], built: list[Any]
) -> None:
    table = table_for(name, work.folder)
    events = work.learn_table(name, table, *small(name), "training.epochs=null")
    assert ended(events).step == 2
    assert without_gradient == set()
    assert_loads(work.run(), built[-1])
    measured = CliRunner().invoke(app, ["eval", str(work.run()), str(table), "--json"])
    assert measured.exit_code == 0, measured.output
    first, second = (CliRunner().invoke(app, ["predict", str(work.run()), str(table)]) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout


@pytest.mark.parametrize(
    "name",
    nightly_but(
        [name for name in sorted(shipped_recipes()) if kind_of_objective(name) not in TABLES],
        "albert-tiny",
        "gpt2-774m",
    ),
)
def test_a_shipped_recipe_trains_measures_and_writes(
    name: str, work: Work, without_gradient: set[str], built: list[Any]
) -> None:
    settings = parse_settings(small(name), [Setting("data.train", [str(work.text)], "TEXT")])
    events = list(train(plan_pretraining(None, name, settings, no_report), work.session()))
    assert ended(events).step == 2
    assert without_gradient == set()
    assert metrics(work.run())[-1]["valid_loss"] > 0
    model = assert_loads(work.run(), built[-1])

    measured = CliRunner().invoke(app, ["eval", str(work.run()), str(work.text), "--json"])
    if kind_of_objective(name) == "replaced-tokens":
        assert isinstance(measured.exception, UsageError)
        assert metrics(work.run())[-1]["detection-accuracy"] > 0
        return
    assert measured.exit_code == 0, measured.output
    if load(name).recipe.model.reads == "words":  # has pairs instead of tokens, and neighbours instead of next tokens
        assert list(json.loads(measured.stdout)) == ["loss", "pairs", "context"]
        near = CliRunner().invoke(app, ["neighbors", str(work.run()), "cat", "--json"])
        assert near.exit_code == 0, near.output
        return
    figures = "loss perplexity word_perplexity bits_per_byte tokens context stride limit_bits_per_byte"
    is_ngram = load(name).recipe.model.kind == "ngram"
    assert " ".join(json.loads(measured.stdout)) == figures + " unseen_ngrams" * is_ngram
    # bidirectional models fill masks
    wanted = "--length" if model.reads == "both" else "--max-new-tokens"
    asked = ["generate", "the cat", "--run", str(work.run()), wanted, "10", "--seed", "1", "--json"]
    first, second = (CliRunner().invoke(app, asked) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["tokens"]
