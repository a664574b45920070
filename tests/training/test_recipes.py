"""Every shipped recipe, scaled down, trains and is measured; and learns one batch by heart."""

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.errors import UsageError
from lmtool.objective import Example
from lmtool.recipe.load import Setting, parse_settings, shipped_recipes
from lmtool.runs.load import load_run
from lmtool.tasks.rows import LengthBucketedExamples
from lmtool.training.cooccurrences import CooccurrenceExamples
from lmtool.training.optimizer import Optimizers
from lmtool.training.plan import plan_pretraining
from lmtool.training.train import train
from lmtool.training.windows import Windows
from tests.support.cases import nightly_but
from tests.support.shipped import TABLES, kind_of_objective, recipe_of, small, table_for
from tests.support.training import Stop, Work, ended, metrics, no_report


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


def train_recipe(work: Work, name: str, settings: Sequence[str], stop: Stop = lambda: False) -> list[Any]:
    """Train a recipe on a table or a text."""
    if kind_of_objective(name) in TABLES:
        settings = (*settings, "training.epochs=null", "data.valid_fraction=0.2")
        return work.learn_table(name, table_for(name, work.folder), *settings, stop=stop)
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    plan = plan_pretraining(None, name, parse_settings(settings, flags), no_report)
    return list(train(plan, work.session(stop=stop)))


@pytest.mark.parametrize(
    "name", nightly_but(sorted(shipped_recipes()), "bilstm", "seq2seq-luong", "albert-tiny", "gpt2-774m")
)
def test_a_shipped_recipe_trains_all_of_its_parameters_and_is_measured(
    name: str, work: Work, without_gradient: set[str], built: list[Any]
) -> None:
    """Its run has the weights of the model that was trained."""
    assert ended(train_recipe(work, name, small(name))).step == 2
    assert without_gradient == set()
    loaded = load_run(str(work.run())).model.state_dict()
    assert all(torch.equal(weight, loaded[key]) for key, weight in built[-1].state_dict().items())
    table = [*work.folder.glob("table.*")]
    measured = CliRunner().invoke(app, ["eval", str(work.run()), *map(str, table or [work.text]), "--json"])
    if kind_of_objective(name) == "replaced-tokens":
        assert isinstance(measured.exception, UsageError)
        assert metrics(work.run())[-1]["detection-accuracy"] > 0
    else:
        assert measured.exit_code == 0, measured.output
        assert json.loads(measured.stdout)["loss"] > 0


STEPS = {"lstm": 500, "lstm-attention": 500, **dict.fromkeys(("elmo-tiny", "gru", "t5-tiny", "dan", "linear"), 300)}
"""Most steps of recipes that need more than 150; gated networks need the most to memorize a batch."""
PAPERS = {"gpt1", "bert-base", "bert-large", "roberta-base", "t5-small", "prefix-lm", "transformer-base"}
"""Their learning rates are for hundreds of thousands of steps, as are those of each gpt2."""

HARD = {
    "skipgram": 0.5,  # negative samples include true neighbours
    "cbow": 0.5,
}
"""Loss of a recipe relative to the first, where it is above a fifth."""


def trained_by_steps() -> list[str]:
    names = [name for name in sorted(shipped_recipes()) if not name.startswith("gpt2") and name not in PAPERS]
    return [name for name in names if not recipe_of(name).model.counts]


@pytest.fixture
def one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step has the first samples, corrupted in the same way."""
    for source in (Windows, LengthBucketedExamples, CooccurrenceExamples):

        def read(self: Any, sample_S: NDArray[np.int64], genuine: Any = source.read) -> list[Example]:
            return list(genuine(self, np.arange(len(sample_S))))

        monkeypatch.setattr(source, "read", read)


@pytest.mark.parametrize("name", nightly_but(trained_by_steps(), "albert-tiny", "lstm"))
def test_a_small_recipe_learns_one_batch_by_heart(name: str, work: Work, one_batch: None) -> None:
    recipe = recipe_of(name)
    steps = STEPS.get(name, 150)
    settings = [*small(name), f"training.steps={steps}", f"evaluation.every={steps}", f"checkpoint.every={steps}"]
    own = type(recipe.objective).model_fields
    settings += [f"model.{key}=0" for key in ("dropout", "word_dropout") if key in type(recipe.model).model_fields]
    settings += [f"objective.{key}=0" for key in ("dropout", "label_smoothing") if key in own]
    if recipe.model.kind != "averaging" or not recipe.model.one_hot:
        settings.append("model.d_model=64")

    asked = count(1)

    def learned() -> bool:
        losses = [line["loss"] for line in metrics(work.run())]
        return bool(min(losses) < HARD.get(name, 0.2) * losses[0])  # replaced tokens are drawn in each step

    def at_times() -> bool:
        return next(asked) % 10 == 0 and learned()

    assert train_recipe(work, name, settings, at_times)
    assert learned()
