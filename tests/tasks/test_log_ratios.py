"""Linear classifiers initialized as naive Bayes, from a table to predictions."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.generation import generate as generating
from lmtool.runs.load import load_run
from tests.support.training import Stop, Work, after, warnings_in

TEXTS = ("a fine day", "a bad day", "fine, fine tea", "bad tea", "a day with tea", "no tea")


def table(work: Work, labels: tuple[object, ...]) -> Path:
    path = work.folder / "table.csv"
    rows = [f'"{text} {i}",{label}' for i in range(8) for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def finetune(work: Work, name: str, labels: tuple[object, ...], steps: int, stop: Stop = lambda: False) -> None:
    settings = [f"training.steps={steps}", "training.epochs=null", "training.batch_size=4", "model.buckets=500"]
    work.learn_table("naive-bayes", table(work, labels), *settings, name=name, stop=stop)


def weights(work: Work, name: str) -> dict[str, Tensor]:
    return load_run(str(work.run(name))).model.state_dict()


def test_ratios_are_kept_with_the_weights(work: Work) -> None:
    finetune(work, "run", ("good", "bad", "good", "bad", "neither", "neither"), 3)
    found = weights(work, "run")["head.ratios_CF"]
    assert found.shape[0] == 3
    assert bool((found != 0).any(1).all())


def test_a_resumed_run_goes_on_from_the_same_ratios(work: Work) -> None:
    labels = ("good", "bad", "good", "bad", "good", "bad")
    finetune(work, "whole", labels, 6)
    finetune(work, "parts", labels, 6, after(3))
    work.resume(name="parts")
    resumed = weights(work, "parts")
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights(work, "whole").items())


def test_numbers_are_refused(work: Work) -> None:
    with pytest.raises(UsageError, match="labels, not numbers"):
        finetune(work, "run", (1.5, 2.25, 3.5, 4.0, 5.0, 6.0), 2)


def test_a_run_can_be_trained_on(work: Work) -> None:
    """Its body has no weights; its head is reused, as the labels are the same."""
    labels = ("good", "bad", "good", "bad", "good", "bad")
    finetune(work, "run", labels, 3)
    path = table(work, labels)
    events = work.finetune(source=work.run("run"), table=path, name="on")
    assert "the head is reused, since the labels are the same" in warnings_in(events)
    assert torch.equal(weights(work, "on")["head.ratios_CF"], weights(work, "run")["head.ratios_CF"])


def test_what_counts_learns_no_labels(work: Work) -> None:
    work.pretrain("model={kind: ngram, order: 3, context: 16}", name="counts")
    with pytest.raises(UsageError, match="ngram does not learn labels"):
        work.finetune(source=work.run("counts"))


def test_what_averages_words_writes_no_text(work: Work) -> None:
    finetune(work, "run", ("good", "bad", "good", "bad", "good", "bad"), 2)
    with pytest.raises(UsageError, match="an averaging model does not generate text"):
        list(generating.TextGenerator.open(str(work.run("run"))).generate("a fine"))
