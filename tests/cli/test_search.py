"""`lmtool search`: ranking by a model of pairs; tests/apps/search has the rest."""

import csv
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import SENTENCES, CommandLine, write_table

LINES = SENTENCES[:12]


@pytest.mark.parametrize(("name", "column"), [("classes", "p_same"), ("numbers", "predicted")])
def test_a_model_of_pairs_ranks_the_nearest_anew(lmtool: CommandLine, run: Path, name: str, column: str) -> None:
    """Before they are cut."""
    Path("a.txt").write_text("\n".join(LINES), encoding="utf-8")
    lmtool.succeeds("search", "index", "a.txt", "--run", "last", "-o", "tales", "-q")
    yes, no = ("same", "not_same") if name == "classes" else ("1.5", "0.25")
    pairs = [(a, b) for a in SENTENCES[::5] for b in SENTENCES[::7]]
    rows = [(a, b, yes if a.split()[1] == b.split()[1] else no) for a, b in pairs]
    write_table(Path("pairs.csv"), rows, "text1,text2,label")
    kind = ("--labels", "number") if name == "numbers" else ()
    quick = ("-q", "-s", "training.epochs=null", "-s", "training.steps=1", "-o", name)
    lmtool.succeeds("finetune", "pairs.csv", "--from", "last", *kind, *quick)

    def hits(k: int) -> Any:
        (found,) = lmtool.succeeds("search", "tales", LINES[0], "--rerank", name, "-k", k, "--json").records()
        return found["hits"]

    found = hits(12)
    write_table(Path("rows.csv"), [(LINES[0], hit["text"]) for hit in found], "text1,text2")
    predicted = csv.DictReader(lmtool.succeeds("predict", name, "rows.csv", "-q").out.splitlines())
    scores = [hit["score"] for hit in found]
    assert scores == pytest.approx([float(row[column]) for row in predicted], rel=1e-4, abs=1e-5)
    assert scores == sorted(scores, reverse=True)
    assert hits(3) == found[:3]
