"""`lmtool plan`: a text as `pretrain` would train on it."""

from pathlib import Path

import pytest

from lmtool.training.cost import planning
from tests.support.cli import SMALL, CommandLine


def test_a_text_is_planned_as_pretrain_trains_it(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same arguments: a recipe by name or by file, with --recipe or beside the text."""
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)  # measures a step or two, not a second of them
    (home / "mine.yaml").write_text(lmtool.succeeds("recipes", "show", "tiny").out)
    named = (("-r", "tiny"), ("tiny",), ("mine.yaml",))
    asked = (corpus, *SMALL, "--epochs", "0.5")
    plans = [lmtool.succeeds("plan", *one, *asked, "--device-kind", "a100", "--json").json() for one in named]
    assert plans[0] == plans[1] == plans[2]
    assert 0.5 <= plans[0]["epochs"] < 0.6
    run = lmtool.succeeds("pretrain", *asked, "-r", "tiny", "-q").out.strip()
    assert plans[0]["steps"] == len((home / run / "metrics.jsonl").read_text().splitlines())
