"""Invariant 5: every recipe that comes with lmtool trains, measures and writes, when it is made small."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.engine import session, train
from lmtool.engine.build import build_model, load_run
from lmtool.engine.optimizer import Optimizers
from lmtool.errors import RecipeError
from lmtool.recipe.load import Setting, load, shipped
from tests.engine.tiny import Work, ended, metrics, no_report

SMALL = (
    "model.n_layers=2",
    "model.d_model=16",
    "model.n_heads=2",
    "model.d_ff=32",
    "model.context=16",
    "training.steps=2",
    "training.batch_size=4",
    "training.precision=float32",
    "training.device=cpu",
    "data.valid_fraction=0.2",
    "evaluation.tokens=200",
)


WAITING = ("bert-base", "bert-large", "bert-tiny", "transformer-base", "transformer-tiny")
"""Recipes with objectives that cannot be trained yet: next sentences, and pairs."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.xfail(strict=True, raises=RecipeError)] if name in WAITING else [])
        for name in sorted(shipped())
    ],
)
def test_a_shipped_recipe_trains_measures_and_writes(name: str, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    without_gradient: set[str] = set()
    genuine = Optimizers.update

    def update(self: Optimizers, *arguments: Any) -> float:
        without_gradient.update(key for p, key in self._names.items() if p.grad is None or not bool(p.grad.any()))
        return genuine(self, *arguments)

    monkeypatch.setattr(Optimizers, "update", update)
    built: list[Any] = []
    monkeypatch.setattr(train, "build_model", lambda *a: built.append(build_model(*a)) or built[-1])
    own = {f"model.{field}" for field in type(load(name).recipe.model).model_fields}
    settings = [text for text in SMALL if not text.startswith("model.") or text.partition("=")[0] in own]
    if hasattr(load(name).recipe.tokenizer, "vocab_size"):
        sentinels = load(name).recipe.tokenizer.sentinels
        settings.append(f"tokenizer.vocab_size={300 + sentinels}")
    resolved = load(name, settings, [Setting("data.train", [str(work.text)], "TEXT")])
    events = list(session.pretrain(resolved, output=work.run(), command=[], report=no_report, stop=lambda: False))
    assert ended(events).step == 2
    assert without_gradient == set()
    assert metrics(work.run())[-1]["valid_loss"] > 0

    loaded, again = load_run(str(work.run())), load_run(str(work.run()))
    (model,) = built
    for key, weight in model.state_dict().items():
        assert torch.equal(weight, loaded.model.state_dict()[key])
        assert torch.equal(weight, again.model.state_dict()[key])

    measured = CliRunner().invoke(app, ["eval", str(work.run()), str(work.text), "--json"])
    assert measured.exit_code == 0, measured.output
    if resolved.recipe.model.kind == "skipgram":  # has pairs in place of tokens, and neighbours in place of a next one
        assert list(json.loads(measured.stdout)) == ["loss", "pairs", "context"]
        near = CliRunner().invoke(app, ["neighbors", str(work.run()), "cat", "--json"])
        assert near.exit_code == 0, near.output
        return
    assert list(json.loads(measured.stdout)) == [
        "loss",
        "perplexity",
        "word_perplexity",
        "bits_per_byte",
        "tokens",
        "context",
        "stride",
        "limit_bits_per_byte",
    ]
    # what reads both sides fills masks
    wanted = "--length" if loaded.model.reads == "both" else "--max-new-tokens"
    asked = ["generate", "the cat", "--run", str(work.run()), wanted, "10", "--seed", "1", "--json"]
    first, second = (CliRunner().invoke(app, asked) for _ in range(2))
    assert first.exit_code == 0, first.output
    assert first.stdout == second.stdout
    assert json.loads(first.stdout)["tokens"]


def test_there_are_recipes() -> None:
    papers = "gpt1 gpt2-124m gpt2-355m gpt2-774m gpt2-1.5b bert-base bert-large roberta-base t5-small prefix-lm"
    small = "tiny shakespeare-char bert-tiny roberta-tiny longformer-tiny t5-tiny prefix-tiny transformer-tiny"
    assert {*papers.split(), "transformer-base", *small.split()} <= set(shipped())
