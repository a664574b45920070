"""For each family, a run is the same in other micro-batches, and when it was interrupted and resumed."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import SkipGramModel
from lmtool.run.directory import Run
from tests.support.cases import nightly_but
from tests.support.families import ON_TABLES, ON_TEXT
from tests.support.training import Stop, Work, after, lasting, metrics, words


def train(
    work: Work, family: str, *overrides: str, name: str, stop: Stop = lambda: False, dropout: float = 0.1
) -> list[Any]:
    """Six steps of a family, on the text or on a table of its kind."""
    own = [setting.replace("dropout: 0.1", f"dropout: {dropout}") for setting in {**ON_TEXT, **ON_TABLES}[family]]
    own = [setting.replace("dropout=0.1", f"dropout={dropout}") for setting in own]
    short = ("training.steps=6", "training.batch_size=6", "checkpoint.every=2", "evaluation.every=3")
    if family in ON_TEXT:
        return work.pretrain(*own, *short, *overrides, name=name, stop=stop)
    rows = ["target,source" if "seq2seq" in ON_TABLES[family][1] else "label,text"]
    rows += [f"{'ab'[i % 2]},{words(2 + i % 7, i)}" for i in range(40)]
    table = work.folder / "table.csv"
    table.write_text("\n".join(rows), encoding="utf-8")
    return work.learn_table(work.recipe, table, *own, *short, *overrides, name=name, stop=stop)


@pytest.mark.parametrize("family", nightly_but([*ON_TEXT, *ON_TABLES], "encoder", "cbow"))
def test_stopping_and_resuming_changes_no_bit(work: Work, family: str) -> None:
    train(work, family, name="whole")
    train(work, family, name="run", stop=after(3))
    assert Run.open(work.run()).state == "stopped"
    work.resume()
    assert Run.open(work.run()).state == "finished"
    assert lasting(work.run(), 6) == lasting(work.run("whole"), 6)


@pytest.mark.parametrize(
    "family",
    nightly_but([name for name in (*ON_TEXT, *ON_TABLES) if name not in ("3-gram", "ppmi")], "encoder", "skip-gram"),
)
def test_any_micro_batches_are_the_same_run(work: Work, family: str) -> None:
    """Six rows at once, or four and two."""
    for rows in (6, 4):
        few = ("training.steps=3", f"training.micro_batch={rows}", "checkpoint.every=6")
        train(work, family, *few, name=str(rows), dropout=0)
    whole, parts = metrics(work.run("6")), metrics(work.run("4"))
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
