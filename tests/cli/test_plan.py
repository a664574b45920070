"""`lmtool plan`: a text or a table as `pretrain` and `finetune` would train on it, printed and as JSON."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.training.cost import planning
from tests.support.cli import SMALL, CommandLine


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures a step or two, not a second of them."""
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)


def planned(lmtool: CommandLine, *arguments: object) -> Any:
    return lmtool.succeeds("plan", *arguments, "--device-kind", "a100", "--json").json()


def test_a_text_is_planned_as_pretrain_trains_it(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    """With the same arguments: the default recipe, or a recipe by name, beside the text or with --recipe."""
    assert planned(lmtool, corpus, *SMALL) == planned(lmtool, "default", "--text", corpus, *SMALL)
    by_option = planned(lmtool, corpus, "-r", "tiny", *SMALL, "--epochs", "3")
    assert 3 <= by_option["epochs"] < 3.5
    assert by_option == planned(lmtool, corpus, "tiny", *SMALL, "--epochs", "3")
    (home / "mine.yaml").write_text(lmtool.succeeds("recipes", "show", "tiny").out)
    assert by_option == planned(lmtool, "mine.yaml", corpus, *SMALL, "--epochs", "3")
    run = lmtool.succeeds("pretrain", corpus, *SMALL, "--epochs", "3", "-q").out.strip()
    steps = len((home / run / "metrics.jsonl").read_text().splitlines())
    assert planned(lmtool, corpus, *SMALL, "--epochs", "3")["steps"] == steps
    on_from = planned(lmtool, corpus, "--from", run)
    assert (on_from["steps"], on_from["vocab_size"]) == (steps, 300)
