"""Linear classifiers that begin as naive Bayes, from a table to answers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.inference import writing
from lmtool.inference.load import load_run
from lmtool.recipe.load import Setting, load
from lmtool.tables.finetuning import recipe_from_run
from lmtool.training import session
from lmtool.training.train import Warned
from tests.training.tiny import Stop, Work, after, no_report

TEXTS = ("a fine day", "a bad day", "fine, fine tea", "bad tea", "a day with tea", "no tea")


def table(work: Work, labels: tuple[object, ...]) -> str:
    path = work.folder / "table.csv"
    rows = [f'"{text} {i}",{label}' for i in range(8) for text, label in zip(TEXTS, labels, strict=True)]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return str(path)


def finetune(work: Work, name: str, labels: tuple[object, ...], steps: int, stop: Stop = lambda: False) -> None:
    settings = [f"training.steps={steps}", "training.epochs=null", "training.batch_size=4", "model.buckets=500"]
    resolved = load("naive-bayes", settings, [Setting("data.train", [table(work, labels)], "TABLE")])
    for _ in session.finetune(resolved, source=None, output=work.run(name), command=[], report=no_report, stop=stop):
        pass


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
    for _ in session.resume(str(work.run("parts")), [], command=[], report=no_report, stop=lambda: False):
        pass
    resumed = weights(work, "parts")
    assert all(torch.equal(weight, resumed[name]) for name, weight in weights(work, "whole").items())


def test_numbers_are_refused(work: Work) -> None:
    with pytest.raises(UsageError, match="this table has numbers"):
        finetune(work, "run", (1.5, 2.25, 3.5, 4.0, 5.0, 6.0), 2)


def test_a_run_can_be_trained_on(work: Work) -> None:
    """Its body has no weights; its head is kept, as the labels are the same."""
    labels = ("good", "bad", "good", "bad", "good", "bad")
    finetune(work, "run", labels, 3)
    path = table(work, labels)
    resolved = recipe_from_run(
        str(work.run("run")), 48, False, ["training.epochs=1"], [Setting("data.train", [path], "T")]
    )
    source = str(work.run("run"))
    quiet: dict[str, Any] = {"command": [], "report": no_report, "stop": lambda: False}
    events = list(session.finetune(resolved, source=source, output=work.run("on"), **quiet))
    assert "the head is kept, since the labels are the same" in [e.text for e in events if isinstance(e, Warned)]
    assert torch.equal(weights(work, "on")["head.ratios_CF"], weights(work, "run")["head.ratios_CF"])


def test_what_counts_learns_no_labels(work: Work) -> None:
    for _ in session.pretrain(
        load(
            "ngram", ["data.valid_fraction=0.2", "model.context=16"], [Setting("data.train", [str(work.text)], "TEXT")]
        ),
        output=work.run("counts"),
        command=[],
        report=no_report,
        stop=lambda: False,
    ):
        pass
    with pytest.raises(UsageError, match="ngram does not learn labels"):
        recipe_from_run(str(work.run("counts")), 48, False, [], [])


def test_what_averages_words_writes_no_text(work: Work) -> None:
    finetune(work, "run", ("good", "bad", "good", "bad", "good", "bad"), 2)
    with pytest.raises(UsageError, match="an averaging model writes no text"):
        list(writing.load(str(work.run("run"))).generate("a fine"))
