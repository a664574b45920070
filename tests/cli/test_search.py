"""`lmtool search`: indexes of files and tables, queries, what is printed and written, ranking by a model of pairs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import SENTENCES, CommandLine, write_table

LINES = SENTENCES[:12]


@pytest.fixture
def folder(run: Path, home: Path) -> Path:
    """A file and a table to index."""
    (home / "a.txt").write_text("\n".join(["", *LINES]) + "\n", encoding="utf-8")
    rows = [(f"k{i}", line, i % 2) for i, line in enumerate(SENTENCES[12:18])]
    write_table(home / "b.csv", rows, "key;text;label", ";")
    return home


@pytest.fixture
def index(lmtool: CommandLine, folder: Path) -> str:
    lmtool.succeeds("search", "index", "a.txt", "--run", "last", "-o", "i", "-q")
    return "i"


def searched(lmtool: CommandLine, *arguments: object) -> list[Any]:
    return lmtool.succeeds("search", *arguments, "--json").records()


def test_hits_are_written(lmtool: CommandLine, folder: Path, index: str) -> None:
    asked = (index, *LINES[:2], "-k", "3")
    assert lmtool.succeeds("search", *asked, "-o", "hits.jsonl").out == "hits.jsonl\n"
    lines = [json.loads(line) for line in (folder / "hits.jsonl").read_text().splitlines()]
    assert lines == searched(lmtool, *asked)
    lmtool.succeeds("search", *asked, "-o", "hits.csv")
    with (folder / "hits.csv").open(newline="") as file:
        hits = [(hit["query"], int(hit["rank"]), hit["id"], float(hit["score"])) for hit in csv.DictReader(file)]
    flat = [(one["query"], rank, hit) for one in lines for rank, hit in enumerate(one["hits"], 1)]
    assert hits == [(query, rank, hit["id"], hit["score"]) for query, rank, hit in flat]


@pytest.mark.parametrize(("name", "column"), [("classes", "p_same"), ("numbers", "predicted")])
def test_a_model_of_pairs_ranks_the_nearest_anew(
    lmtool: CommandLine, folder: Path, run: Path, index: str, name: str, column: str
) -> None:
    yes, no = ("same", "not_same") if name == "classes" else ("1.5", "0.25")
    pairs = [(a, b) for a in SENTENCES[::5] for b in SENTENCES[::7]]
    rows = [(a, b, yes if a.split()[1] == b.split()[1] else no) for a, b in pairs]
    write_table(folder / "pairs.csv", rows, "text1,text2,label")
    kind = ("--labels", "number") if name == "numbers" else ()
    quick = ("-q", "-s", "training.epochs=null", "-s", "training.steps=2", "-o", name)
    lmtool.succeeds("finetune", "pairs.csv", "--from", "last", *kind, *quick)
    (found,) = searched(lmtool, index, LINES[0], "--rerank", name, "-k", "12")
    write_table(folder / "rows.csv", [(LINES[0], hit["text"]) for hit in found["hits"]], "text1,text2")
    predicted = csv.DictReader(lmtool.succeeds("predict", name, "rows.csv", "-q").out.splitlines())
    scores = [hit["score"] for hit in found["hits"]]
    assert scores == pytest.approx([float(row[column]) for row in predicted], rel=1e-4, abs=1e-5)
    assert scores == sorted(scores, reverse=True)
    (few,) = searched(lmtool, index, LINES[0], "--rerank", name, "-k", "3")
    assert few["hits"] == found["hits"][:3], "they are ranked before they are cut"
