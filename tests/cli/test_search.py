"""`lmtool search`: indexes of files and tables, queries, ranking by a model of pairs, and what is refused."""

import csv
import io
import json
import shutil
import sys

import pytest

from lmtool.search.index import Index
from tests.cli.conftest import SENTENCES

LINES = SENTENCES[:12]


@pytest.fixture
def folder(run, home):
    """A file and a table to index."""
    (home / "a.txt").write_text("\n".join(["", *LINES]) + "\n", encoding="utf-8")
    rows = "".join(f"k{i};{line};{i % 2}\n" for i, line in enumerate(SENTENCES[12:18]))
    (home / "b.csv").write_text(f"key;text;label\n{rows}", encoding="utf-8")
    return home


@pytest.fixture
def index(lmtool, folder):
    lmtool.succeeds("search", "index", "a.txt", "--run", "last", "-o", "i", "-q")
    return "i"


def searched(lmtool, *arguments):
    return [json.loads(line) for line in lmtool.succeeds("search", *arguments, "--json").out.splitlines()]


def test_a_file_and_a_table_are_indexed_and_found(lmtool, folder, index):
    assert lmtool.succeeds("search", "index", "b.csv", "-o", index).out == "i: 18 texts; 6 added, 0 replaced, 0 kept\n"
    done = lmtool.succeeds("search", "index", "b.csv", "a.txt", "-o", index, "--json", "-q")
    assert json.loads(done.out) == {"index": "i", "texts": 18, "added": 0, "replaced": 0, "kept": 18}
    (found,) = searched(lmtool, index, LINES[3], "-k", "2")
    assert found["query"] == LINES[3]
    assert [set(hit) for hit in found["hits"]] == [{"id", "source", "text", "score"}] * 2
    assert found["hits"][0] | {"score": 1} == {"id": "a.txt:4", "source": "a.txt", "text": LINES[3], "score": 1}
    assert found["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    (found,) = searched(lmtool, "query", index, SENTENCES[13], "-k", "1")
    assert (found["hits"][0]["id"], found["hits"][0]["source"]) == ("b.csv:2", "b.csv")


def test_another_column_of_a_table(lmtool, folder):
    lmtool.succeeds("search", "index", "b.csv", "--run", "last", "--column", "key", "-o", "i", "-q")
    assert {hit["text"] for hit in searched(lmtool, "i", "a")[0]["hits"]} == {f"k{i}" for i in range(6)}
    lmtool.refuses(3, "search", "index", "b.csv", "--column", "kee", "-o", "i", "-q", words=["--text-column key"])


def test_a_table_has_ids_and_several_columns_of_texts(lmtool, folder):
    rows = "".join(f"{i}|été {i}|{line}\n" for i, line in enumerate(LINES[:4], 100))
    (folder / "d.csv").write_bytes(f"nr|titre|texte\n{rows}".encode("cp1252"))
    command = ("search", "index", "d.csv", "-o", "i", "-q", "--id-column", "NR", "--delimiter", "|")
    columns = ("--text-column", "titre", "--text-column", "texte")
    lmtool.refuses(3, *command, *columns, "--run", "last", words=["not valid UTF-8", "d.csv:2", "--encoding"])
    lmtool.refuses(3, *command, *columns, "--run", "last", "--encoding", "utf-16", words=["not valid utf-16"])
    lmtool.succeeds(*command, *columns, "--run", "last", "--encoding", "cp1252")
    (found,) = searched(lmtool, "i", f"été 102 {LINES[2]}", "-k", "1")
    assert found["hits"][0] | {"score": 1} == {
        "id": "102", "source": "d.csv", "text": f"été 102 {LINES[2]}", "score": 1,
    }  # fmt: skip
    assert lmtool.succeeds("search", "i", f"été 102 {LINES[2]}", "-k", "1").out == f"1.0000  102  été 102 {LINES[2]}\n"
    assert lmtool.succeeds("search", "index", "-o", "i", "--remove", "102").out == "i: 3 texts; 1 removed\n"
    done = lmtool.succeeds(*command, *columns, "--encoding", "cp1252")
    assert done.out == "i: 4 texts; 1 added, 0 replaced, 3 kept\n"
    lmtool.refuses(3, *command, "--encoding", "cp1252", words=["no column 'text'", "--text-column"])
    named = ("--encoding", "cp1252", *columns[:2], "--id-column")
    lmtool.refuses(3, *command, *named, "name", words=["no column 'name'", "--id-column"])
    (folder / "d.csv").write_bytes(f"nr|titre|texte\n{rows}7|a|\n7|b|\n|c|\n".encode("cp1252"))
    lmtool.refuses(3, *command, *columns, "--encoding", "cp1252", words=["no id", "row 7", "--skip-bad-rows"])
    said = lmtool.refuses(3, *command, *columns, "--encoding", "cp1252", "--skip-bad-rows")
    assert said == ["warning: skipped 1 bad row: no id 1", *said[1:]]
    assert "two texts have the same id: '7'" in said[1]


def test_files_of_a_folder_have_their_own_numbers(lmtool, folder):
    (folder / "notes").mkdir()
    for name, lines in (("x.txt", LINES[:2]), ("y.txt", LINES[2:5]), ("empty.txt", [])):
        (folder / "notes" / name).write_text("\n".join(lines), encoding="utf-8")
    lmtool.succeeds("search", "index", "notes/", "--run", "last", "-o", "i", "-q")
    ids = [searched(lmtool, "i", line, "-k", "1")[0]["hits"][0]["id"] for line in LINES[:5]]
    assert ids == ["notes/x.txt:1", "notes/x.txt:2", "notes/y.txt:1", "notes/y.txt:2", "notes/y.txt:3"]


def test_queries_of_a_pipe(lmtool, folder, index, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES[:3]).encode())))
    assert [one["hits"][0]["text"] for one in searched(lmtool, index, "-k", "1")] == LINES[:3]
    plain = lmtool.succeeds("search", index, LINES[0], LINES[1], "-k", "1").out
    assert plain == f"{LINES[0]}\n1.0000  a.txt:1  {LINES[0]}\n{LINES[1]}\n1.0000  a.txt:2  {LINES[1]}\n"
    assert lmtool.succeeds("search", index, LINES[0], "-k", "1").out == f"1.0000  a.txt:1  {LINES[0]}\n"


def test_queries_of_files(lmtool, folder, index, monkeypatch):
    (folder / "q.txt").write_text("\n".join([LINES[0], "", LINES[1]]), encoding="utf-8")
    rows = "".join(f'{i};"{line}"\n' for i, line in enumerate([LINES[2], "", LINES[3]]))
    (folder / "q.csv").write_text(f"nr;question\n{rows}", encoding="utf-8")
    of_table = ("--query-file", "q.csv", "--text-column", "question")
    found = searched(lmtool, index, "--query-file", "q.txt", *of_table, "-k", "1")
    assert [one["query"] for one in found] == LINES[:4]
    assert [one["hits"][0]["id"] for one in found] == [f"a.txt:{i}" for i in (1, 2, 3, 4)]
    assert searched(lmtool, index, *LINES[:2], *of_table, "-k", "1") == found
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(LINES[:4]).encode())))
    assert searched(lmtool, index, "--query-file", "-", "-k", "1") == found
    assert lmtool.succeeds("search", index, *of_table, "-k", "3", "-o", "hits.jsonl").out == "hits.jsonl\n"
    lines = (folder / "hits.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == searched(lmtool, index, *of_table, "-k", "3")
    lmtool.succeeds("search", index, *of_table, "-k", "3", "-o", "hits.csv")
    with (folder / "hits.csv").open(newline="") as file:
        hits = list(csv.DictReader(file))
    flat = [(one["query"], rank, hit) for one in map(json.loads, lines) for rank, hit in enumerate(one["hits"], 1)]
    assert [(hit["query"], int(hit["rank"]), hit["id"], float(hit["score"])) for hit in hits] == [
        (query, rank, hit["id"], hit["score"]) for query, rank, hit in flat
    ]


def test_queries_that_are_refused(lmtool, folder, index):
    for name, text in (("blank.txt", "\n \n"), ("empty.txt", ""), ("head.csv", "text\n"), ("other.csv", "a\nb\n")):
        (folder / name).write_text(text)
    for name, word in (
        ("blank.txt", "no text"),
        ("empty.txt", "no text"),
        ("head.csv", "no rows"),
        ("no.csv", "no.csv"),
    ):
        lmtool.refuses(3, "search", index, "--query-file", name, words=[word])
    lmtool.refuses(3, "search", index, "--query-file", "other.csv", words=["no column 'text'", "--text-column"])
    lmtool.refuses(2, "search", index, "", words=["query 1 is empty"])
    lmtool.refuses(2, "search", index, LINES[0], "", "-o", "hits.csv", words=["query 2 is empty"])
    lmtool.refuses(2, "search", index, "a", "-o", "hits.txt", words=[".jsonl nor .csv"])
    lmtool.refuses(2, "search", index, "a", "-o", "a.txt", words=["neither"])
    (folder / "hits.csv").write_text("mine")
    lmtool.refuses(2, "search", index, "a", "-o", "hits.csv", words=["exists already"])
    assert [path.name for path in folder.glob("*hits*")] == ["hits.csv"]


def test_texts_are_removed(lmtool, folder, index):
    assert lmtool.succeeds("search", "index", "-o", index, "--remove", "a.txt:1").out == "i: 11 texts; 1 removed\n"
    assert LINES[0] not in lmtool.succeeds("search", index, LINES[0]).out
    lmtool.refuses(3, "search", "index", "-o", index, "--remove", "c.txt", "-q", words=["c.txt", "name ids, or files"])
    lmtool.succeeds("search", "index", "-o", index, "--remove", "a.txt")
    assert lmtool.succeeds("search", index, LINES[0]).out == ""


def test_an_index_goes_where_its_run_went(lmtool, run, folder, index):
    run.rename(run.with_name("moved"))
    lmtool.refuses(4, "search", index, "a", words=[run.name, "the index i is of it", "--run RUN"])
    lmtool.refuses(4, "search", "index", "b.csv", "-o", index, words=[run.name, "--run RUN"])
    assert searched(lmtool, index, LINES[0], "-k", "1", "--run", str(run.with_name("moved")))


@pytest.fixture
def pairs(lmtool, folder):
    """Runs that tell whether two sentences have the same subject: of classes, of a number; and one of single texts."""
    quick = ("-q", "-s", "training.epochs=null", "-s", "training.steps=2")
    rows = [(a, b, a.split()[1] == b.split()[1]) for a in SENTENCES[::5] for b in SENTENCES[::7]]
    for name, yes, no in (("classes", "same", "not_same"), ("numbers", "1.5", "0.25"), ("three", "same", "not_same")):
        labels = [yes if same else no for *_, same in rows]
        if name == "three":
            labels[::3] = ["other"] * len(labels[::3])
        lines = "".join(f"{a},{b},{label}\n" for (a, b, _), label in zip(rows, labels, strict=True))
        (folder / f"{name}.csv").write_text(f"text1,text2,label\n{lines}", encoding="utf-8")
        kind = ("--labels", "number") if name == "numbers" else ()
        lmtool.succeeds("finetune", f"{name}.csv", "--from", "last", *kind, *quick, "-o", name)
    lmtool.succeeds("finetune", "b.csv", "--from", "last", *quick, "-o", "single")
    return folder


def test_a_model_of_pairs_ranks_the_nearest_anew(lmtool, pairs, run):
    lmtool.succeeds("search", "index", "a.txt", "--run", str(run), "-o", "i", "-q")
    for name, column in (("classes", "p_same"), ("numbers", "predicted")):
        (found,) = searched(lmtool, "i", LINES[0], "--rerank", name, "-k", "12")
        rows = "".join(f"{LINES[0]},{hit['text']}\n" for hit in found["hits"])
        (pairs / "rows.csv").write_text(f"text1,text2\n{rows}", encoding="utf-8")
        lines = lmtool.succeeds("predict", name, "rows.csv", "-q").out.splitlines()
        at = lines[0].split(",").index(column)
        scores = [hit["score"] for hit in found["hits"]]
        assert scores == pytest.approx([float(line.split(",")[at]) for line in lines[1:]], rel=1e-4, abs=1e-5)
        assert scores == sorted(scores, reverse=True)
        assert len(found["hits"]) == 12
        (few,) = searched(lmtool, "i", LINES[0], "--rerank", name, "-k", "3")
        assert few["hits"] == found["hits"][:3], "they are ranked before they are cut"
    lmtool.refuses(2, "search", "i", "a", "--rerank", "single", words=["cannot rank", "two classes"])
    lmtool.refuses(2, "search", "i", "a", "--rerank", "three", words=["cannot rank", "pairs"])
    lmtool.refuses(2, "search", "i", "a", "--rerank", str(run), words=["does not classify"])


def test_what_is_refused(lmtool, folder, index):
    lmtool.refuses(3, "search", "index", "a.txt", "-o", "new", words=["there is no index", "--run"])
    lmtool.refuses(2, "search", "index", "-o", "new", words=["either texts to index, or --remove"])
    lmtool.refuses(2, "search", "index", "a.txt", "-o", index, "--remove", "a.txt", words=["--remove"])
    lmtool.refuses(2, "search", "index", "a.txt", "--run", "last", words=["-o"])
    lmtool.refuses(2, "search", "index", "a.txt", "--run", "last", "-o", ".", "-q", words=["not empty"])
    lmtool.refuses(3, "search", "index", "none.txt", "--run", "last", "-o", "new", "-q", words=["none.txt"])
    lmtool.refuses(
        3, "search", "index", "a.txt", "a.txt", "-o", index, "-q", words=["the same id", "name each file once"]
    )
    lmtool.refuses(3, "search", "none", "a", words=["there is no index"])
    shutil.copytree(index, "damaged")
    (folder / "damaged" / "vectors.f32").unlink()
    for command in (
        ("damaged", "a"),
        ("index", "a.txt", "-o", "damaged"),
        ("index", "-o", "damaged", "--remove", "a.txt"),
    ):
        lmtool.refuses(3, "search", *command, words=["damaged", "make a new one", "-o NEW"])
    lmtool.refuses(2, "search", index, "a", "-k", "0", words=["-k"])
    (folder / "c.csv").write_text("text,label\none,a\ntwo\nthree,b\n")
    lmtool.refuses(3, "search", "index", "c.csv", "-o", index, "-q", words=["c.csv:3"])
    assert len(Index(folder / index).row_N) == 12
