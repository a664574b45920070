"""`lmtool search`: indexes of files and tables, queries, what is printed and written, ranking by a model of pairs."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import SENTENCES, CommandLine, pipe_in, write_table

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


def test_a_file_and_a_table_are_indexed_and_found(lmtool: CommandLine, folder: Path, index: str) -> None:
    assert lmtool.succeeds("search", "index", "b.csv", "-o", index).out == "i: 18 texts; 6 added, 0 replaced, 0 kept\n"
    done = lmtool.succeeds("search", "index", "b.csv", "a.txt", "-o", index, "--json", "-q")
    assert done.json() == {"index": "i", "texts": 18, "added": 0, "replaced": 0, "kept": 18}
    (found,) = searched(lmtool, index, LINES[3], "-k", "2")
    assert found["query"] == LINES[3]
    assert [set(hit) for hit in found["hits"]] == [{"id", "source", "text", "score"}] * 2
    assert found["hits"][0] | {"score": 1} == {"id": "a.txt:4", "source": "a.txt", "text": LINES[3], "score": 1}
    assert found["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    (found,) = searched(lmtool, "query", index, SENTENCES[13], "-k", "1")
    assert (found["hits"][0]["id"], found["hits"][0]["source"]) == ("b.csv:2", "b.csv")
    assert lmtool.succeeds("search", "index", "-o", index, "--remove", "a.txt:1").out == "i: 17 texts; 1 removed\n"


def test_a_table_has_ids_and_several_columns_of_texts(lmtool: CommandLine, folder: Path) -> None:
    rows = "".join(f"{i}|été {i}|{line}\n" for i, line in enumerate(LINES[:4], 100))
    (folder / "d.csv").write_bytes(f"nr|titre|texte\n{rows}".encode("cp1252"))
    command = ("search", "index", "d.csv", "-o", "i", "-q", "--id-column", "NR", "--delimiter", "|")
    columns = ("--text-column", "titre", "--text-column", "texte")
    lmtool.refuses(3, *command, *columns, "--run", "last", words=["d.csv:2", "--encoding"])
    lmtool.succeeds(*command, *columns, "--run", "last", "--encoding", "cp1252")
    assert lmtool.succeeds("search", "i", f"été 102 {LINES[2]}", "-k", "1").out == f"1.0000  102  été 102 {LINES[2]}\n"
    (folder / "d.csv").write_bytes(f"nr|titre|texte\n{rows}7|a|\n|c|\n".encode("cp1252"))
    lmtool.refuses(3, *command, *columns, "--encoding", "cp1252", words=["row 6", "--skip-bad-rows"])
    done = lmtool.succeeds(*command, *columns, "--encoding", "cp1252", "--skip-bad-rows")
    assert done.out == "i: 5 texts; 1 added, 0 replaced, 4 kept\n"
    assert "skipped 1 bad row: no id 1" in done.err


def test_queries_are_typed_piped_or_of_files(
    lmtool: CommandLine, folder: Path, index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (f"1.0000  a.txt:{i + 1}  {LINES[i]}\n" for i in range(2))
    assert lmtool.succeeds("search", index, LINES[0], "-k", "1").out == one
    assert lmtool.succeeds("search", index, *LINES[:2], "-k", "1").out == f"{LINES[0]}\n{one}{LINES[1]}\n{two}"
    (folder / "q.txt").write_text("\n".join([LINES[0], "", LINES[1]]), encoding="utf-8")
    write_table(folder / "q.csv", enumerate([LINES[2], LINES[3]]), "nr;question", ";")
    of_table = ("--query-file", "q.csv", "--text-column", "question")
    found = searched(lmtool, index, "--query-file", "q.txt", *of_table, "-k", "1")
    assert [one["query"] for one in found] == LINES[:4]
    assert searched(lmtool, index, *LINES[:2], *of_table, "-k", "1") == found
    for words in ((), ("--query-file", "-")):
        pipe_in(monkeypatch, "\n".join(LINES[:4]))
        assert searched(lmtool, index, *words, "-k", "1") == found


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


def test_an_index_goes_where_its_run_went(lmtool: CommandLine, run: Path, folder: Path, index: str) -> None:
    run.rename(run.with_name("moved"))
    for command in (("search", index, "a"), ("search", "index", "b.csv", "-o", index)):
        lmtool.refuses(4, *command, words=[run.name, "--run RUN"])
    assert searched(lmtool, index, LINES[0], "-k", "1", "--run", str(run.with_name("moved")))


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
