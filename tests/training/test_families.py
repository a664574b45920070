"""For each family, a run is the same in other micro-batches, and when it was interrupted and resumed."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import SkipGramModel
from tests.support.cases import nightly_but
from tests.support.families import OF_OBJECTIVES, ON_TABLES, ON_TEXT
from tests.support.training import Stop, Work, assert_resumes_bit_for_bit, metrics, words, write_table

ALL = {**ON_TEXT, **OF_OBJECTIVES, **ON_TABLES}
SPLIT = [name for name in ALL if name not in ("3-gram", "ppmi", *list(OF_OBJECTIVES)[6:])]
"""Families whose batches are divided; of objectives those with a loss of their own."""


def train(
    work: Work, family: str, *overrides: str, name: str, stop: Stop = lambda: False, dropout: float = 0.1
) -> list[Any]:
    """Six steps of a family, on the text or on a table of its kind."""
    own = [setting.replace("dropout: 0.1", f"dropout: {dropout}") for setting in ALL[family]]
    own = [setting.replace("dropout=0.1", f"dropout={dropout}") for setting in own]
    short = ("training.steps=6", "training.batch_size=6", "checkpoint.every=2", "evaluation.every=3")
    if family not in ON_TABLES:
        return work.pretrain(*own, *short, *overrides, name=name, stop=stop)
    header = "target,source" if "seq2seq" in ON_TABLES[family][1] else "label,text"
    rows = (f"{'ab'[i % 2]},{words(2 + i % 7, i)}" for i in range(40))
    table = write_table(work.folder / "table.csv", rows, header)
    return work.learn_table(work.recipe, table, *own, *short, *overrides, name=name, stop=stop)


@pytest.mark.parametrize("family", nightly_but(ALL, "encoder", "cbow", "next sentences", "replaced tokens"))
def test_stopping_and_resuming_changes_no_bit(work: Work, family: str) -> None:
    assert_resumes_bit_for_bit(work, partial(train, work, family), 3, steps=6)


@pytest.mark.parametrize("divided", ["training.micro_batch=4", "training.micro_tokens=30"])
@pytest.mark.parametrize(
    "family", nightly_but(SPLIT, "encoder", "skip-gram", "replaced tokens", "balanced classes", "seq2seq")
)
def test_any_micro_batches_are_the_same_run(work: Work, family: str, divided: str) -> None:
    """Six rows at once, or four and two, or as many as have 30 tokens."""
    if "tokens" in divided and family not in ON_TABLES:
        pytest.skip("rows of a text are of one length")
    for name, split in (("whole", "training.micro_batch=6"), ("parts", divided)):
        train(work, family, "training.steps=3", "checkpoint.every=6", split, name=name, dropout=0)
    whole, parts = metrics(work.run("whole")), metrics(work.run("parts"))
    assert len(whole) == 3
    for one, other in zip(whole, parts, strict=True):
        assert family in ON_TABLES or other["tokens"] == one["tokens"]  # else padding counts
        figures = [key for key in ("loss", "grad_norm", "valid_loss") if one[key] is not None]
        assert [other[key] for key in figures] == pytest.approx([one[key] for key in figures], rel=1e-4)


def test_small_steps_are_computed_by_one_thread(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of skip-gram, and nothing above them."""
    seen = []
    genuine = SkipGramModel.forward

    def spy(self: SkipGramModel, batch: Batch) -> Tensor:
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
