"""Families and objectives in whole runs: the same in other micro-batches, and when interrupted and resumed."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.generation.generate import TextGenerator
from lmtool.model import LanguageModel, SkipGramModel
from lmtool.objective import scheduled
from lmtool.training.events import StepCompleted
from tests.support.errors import refuses
from tests.support.families import ALBERT, BERT, OF_OBJECTIVES, ON_TABLES, ON_TEXT, PERMUTED, SAMPLED
from tests.support.training import (
    Stop,
    Work,
    assert_resumes_bit_for_bit,
    metrics,
    of_kind,
    words,
    write_table,
)

ALL = {**ON_TEXT, **OF_OBJECTIVES, **ON_TABLES}


def train(work: Work, family: str, *, name: str, stop: Stop = lambda: False) -> list[Any]:
    """Six steps of a family, on the text or on a table of its kind."""
    short = ("training.steps=6", "training.batch_size=6", "checkpoint.every=2", "evaluation.every=3")
    if family not in ON_TABLES:
        return work.pretrain(*ALL[family], *short, name=name, stop=stop)
    rows = (f"{'ab'[i % 2]},{words(2 + i % 7, i)}" for i in range(40))
    table = write_table(work.folder / "table.csv", rows, "target,source")
    return work.learn_table(work.recipe, table, *ALL[family], *short, name=name, stop=stop)


@pytest.mark.parametrize("family", ["encoder", "cbow", "next sentences", "replaced tokens", "sampled", "bpe dropout"])
def test_stopping_and_resuming_changes_no_bit(work: Work, family: str) -> None:
    """tests/crossings has the others."""
    assert_resumes_bit_for_bit(work, partial(train, work, family), 3, steps=6)


def test_small_steps_are_computed_by_one_thread(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of skip-gram, and nothing above them."""
    seen = []
    genuine = SkipGramModel.forward

    def spy(self: SkipGramModel, batch: Batch) -> Any:
        if self.training:
            seen.append(torch.get_num_threads())
        return genuine(self, batch)

    monkeypatch.setattr(SkipGramModel, "forward", spy)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        train(work, "skip-gram", name="run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}
    assert len(seen) >= 6, "and the steps whose speed is measured"


def test_a_permuted_model_is_measured_and_fills_no_masks(work: Work) -> None:
    work.pretrain(*PERMUTED)
    generator = TextGenerator.open(str(work.run()))
    with refuses("usage"):
        generator.generate("the [MASK] sat")
    assert not generator.writes


def test_scheduled_sampling_takes_ever_more_tokens_of_the_model(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    genuine: Callable[..., object] = scheduled.sample_input_tokens

    def spy(model: LanguageModel, batch: Batch) -> object:
        assert batch.draws_BT is not None
        shares.append(float((batch.draws_BT >= 0).float().mean()))
        return genuine(model, batch)

    monkeypatch.setattr(scheduled, "sample_input_tokens", spy)
    work.pretrain(SAMPLED)
    shares = shares[-12:]  # those before are of the steps whose speed is measured
    assert shares[0] == 0
    # k 0.02 for each percent: all of them from the middle on
    assert shares[3] == pytest.approx(0.5, abs=0.1)
    assert shares[6:] == [1.0] * 6


@pytest.mark.parametrize(("overrides", "name"), [(BERT, "next-sentence-accuracy"), (ALBERT, "sentence-order-accuracy")])
def test_the_accuracy_of_pairs_is_in_validations_and_metrics(work: Work, overrides: Sequence[str], name: str) -> None:
    events = work.pretrain(*overrides)
    validated = [event.validation for event in of_kind(events, StepCompleted) if event.validation is not None]
    assert [list(validation.metrics) for validation in validated] == [[name]] * 3
    records = [record for record in metrics(work.run()) if record["valid_loss"] is not None]
    assert [record[name] for record in records] == [validation.metrics[name] for validation in validated]
    # the loss of a step is that of the chosen tokens and of both texts together
    assert records[0]["loss"] > records[0]["valid_loss"] + 0.3
