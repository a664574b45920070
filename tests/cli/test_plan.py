"""`lmtool plan`: a text or a table as `pretrain` and `finetune` would train on it, printed and as JSON."""

from pathlib import Path
from typing import Any

import pytest

from lmtool.cost import planning
from tests.support.cli import SMALL, CommandLine, film_rows, write_table

FLAT = ("-s", "model.n_layers=1")
"""Memory is traced layer by layer."""


@pytest.fixture(autouse=True)
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures a step or two, not a second of them."""
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)


def planned(lmtool: CommandLine, *arguments: object) -> Any:
    return lmtool.succeeds("plan", *arguments, "--device-kind", "a100", "--json").json()


def test_a_plan_is_printed(lmtool: CommandLine, home: Path) -> None:
    out = lmtool.succeeds("plan", "gpt2-124m", "--device-kind", "h100", "--devices", "8", "-q").out
    words = ["124,439,808 parameters", "gradients 498 MB", "8 x h100, bfloat16, 80 GB: fits", "rule"]
    assert all(word in out for word in words)


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


@pytest.mark.parametrize("named", [(), ("-r", "linear"), ("linear",)])
def test_a_table_is_planned_in_rows(lmtool: CommandLine, home: Path, named: tuple[str, ...]) -> None:
    write_table(home / "films.csv", film_rows(60))
    out = lmtool.succeeds("plan", "films.csv", *named, "--epochs", "3", "-s", "training.min_steps=1", "-q").out
    assert "length: 2 steps, 256 rows, " in out
    assert "measured" in out
    assert not any(word in out for word in (" 0 parameters", "compute-optimal", "the text", "tokens"))


@pytest.mark.parametrize("name", ["softmax", "naive-bayes", "tagger"])
def test_recipes_for_tables_are_planned_in_rows(lmtool: CommandLine, home: Path, name: str) -> None:
    out = lmtool.succeeds("plan", name, "--device-kind", "h100", "-q").out
    (length,) = (line for line in out.splitlines() if line.startswith("length: "))
    assert length.endswith(" rows")
    assert "compute-optimal" not in out


def test_a_run_is_planned_on_a_table(lmtool: CommandLine, run: Path) -> None:
    write_table(Path("films.csv"), film_rows(300))
    found = lmtool.succeeds("plan", "films.csv", "--from", "last", "--epochs", "2", "--json", "-q").json()
    assert (found["vocab_size"], found["basis"], found["tokens"]) == (300, "measured", None)
    assert found["epochs"] == pytest.approx(2, abs=0.7)
    notes = lmtool.succeeds("plan", "films.csv", "-q").out.splitlines()
    assert len([line for line in notes if line.startswith("note: ")]) == 2


def test_a_student_is_planned_with_the_tokenizer_of_its_teacher(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    assert planned(lmtool, corpus, "-r", "tiny", "-s", "distillation.teacher=last", *FLAT)["vocab_size"] == 300
