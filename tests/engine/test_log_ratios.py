"""Linear classifiers that begin as naive Bayes, from a table to answers."""

import pytest
import torch
from torch import Tensor

from lmtool.engine import session
from lmtool.engine.build import load_run
from lmtool.errors import UsageError
from lmtool.recipe.load import Setting, load
from tests.engine.tiny import Stop, Work, after, no_report

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
