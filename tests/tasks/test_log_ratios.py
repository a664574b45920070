"""Linear classifiers initialized as naive Bayes, from a table to predictions."""

from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lmtool.generation import generate as generating
from lmtool.runs.load import load_run
from tests.support.errors import refuses
from tests.support.training import Work, assert_resumes_bit_for_bit, warnings_in, write_table

TEXTS = ("a fine day", "a bad day", "fine, fine tea", "bad tea", "a day with tea", "no tea")
TWO = ("good", "bad", "good", "bad", "good", "bad")


def table(work: Work, labels: tuple[object, ...]) -> Path:
    rows = [f'"{text} {i}",{label}' for i in range(8) for text, label in zip(TEXTS, labels, strict=True)]
    return write_table(work.folder / "table.csv", rows)


def learner(work: Work, labels: tuple[object, ...], steps: int) -> partial[list[object]]:
    settings = [f"training.steps={steps}", "training.epochs=null", "training.batch_size=4", "model.buckets=500"]
    keeps = ["checkpoint.every=3", "checkpoint.keep_optimizer=true"]
    return partial(work.learn_table, "naive-bayes", table(work, labels), *settings, *keeps)


def ratios(work: Work, name: str = "run") -> Tensor:
    found: Tensor = load_run(str(work.run(name))).model.state_dict()["head.ratios_CF"]
    return found


def test_ratios_are_kept_with_the_weights(work: Work) -> None:
    learner(work, ("good", "bad", "good", "bad", "neither", "neither"), 3)()
    assert ratios(work).shape[0] == 3
    assert bool((ratios(work) != 0).any(1).all())


def test_a_resumed_run_goes_on_from_the_same_ratios(work: Work) -> None:
    assert_resumes_bit_for_bit(work, learner(work, TWO, 6), 3, steps=6)


def test_a_run_can_be_trained_on_and_writes_no_text(work: Work) -> None:
    """Its body has no weights; its head is reused, as the labels are the same."""
    learner(work, TWO, 3)()
    events = work.finetune(source=work.run(), table=table(work, TWO), name="on")
    assert "the head is reused, since the labels are the same" in warnings_in(events)
    assert torch.equal(ratios(work, "on"), ratios(work))
    with refuses("usage"):
        list(generating.TextGenerator.open(str(work.run())).generate("a fine"))


def test_numbers_are_refused_and_what_counts_learns_no_labels(work: Work) -> None:
    with refuses("usage"):
        learner(work, (1.5, 2.25, 3.5, 4.0, 5.0, 6.0), 2)()
    work.pretrain("model={kind: ngram, order: 3, context: 16}", name="counts")
    with refuses("usage"):
        work.finetune(source=work.run("counts"))
