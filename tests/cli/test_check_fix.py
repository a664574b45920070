"""`lmtool check --fix` and `--near`: a table without the rows that spoil training, otherwise byte for byte."""

import json

import pytest

ROWS = [
    '1;good film;pos\r\n',
    '2;bad film;neg\r\n',
    '3;good film;pos\r\n',
    '4;"dull;\r\nvery ""dull""";neg\r\n',
    "5;odd one;pos\r\n",
    "\r\n",
    "6;odd one;neg\r\n",
    "7;in test;pos\r\n",
    "8;in valid ;neg\r\n",
    "9;odd one;pos\r\n",
    "10;naïve film;pos",
]  # fmt: skip
HEADER = "id;text;label\r\n"
KEPT = "".join([HEADER, ROWS[0], ROWS[1], ROWS[3], ROWS[10]])


@pytest.fixture
def folder(home):
    (home / "test.csv").write_text("text,label\nin test,pos\nother,neg\n")
    (home / "valid.csv").write_text("text,label\nquite another,pos\nin valid ,neg\n")
    return home


def listed(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_what_is_kept_is_kept_byte_for_byte(lmtool, folder, encoding):
    raw = (HEADER + "".join(ROWS)).encode(encoding)
    (folder / "a.csv").write_bytes(raw)
    given = ("--encoding", "cp1252") if encoding == "cp1252" else ()
    done = lmtool.succeeds("check", "a.csv", "--valid", "valid.csv", "--test", "test.csv", "--fix", "b.csv", *given)
    assert done.out.endswith("fixed    b.csv: without 6 rows, listed in b.removed.jsonl\n")
    assert (folder / "b.csv").read_bytes() == KEPT.encode(encoding)
    assert (folder / "a.csv").read_bytes() == raw
    assert [(one["row"], one["reason"], one["part"], one["other"]) for one in listed(folder / "b.removed.jsonl")] == [
        (3, "duplicate rows", "train", 1),
        (5, "duplicate rows with different labels", "train", 6),
        (6, "duplicate rows with different labels", "train", 5),
        (7, "rows shared by train and test", "test", 1),
        (8, "rows shared by train and test", "validation", 2),
        (9, "duplicate rows with different labels", "train", 5),
    ]
    again = json.loads(
        lmtool.succeeds("check", "b.csv", "--valid", "valid.csv", "--test", "test.csv", "--json", *given).out
    )
    assert again["findings"] == []


def test_json_lines_keep_their_lines(lmtool, folder):
    lines = [
        '{"text": "a  b",  "label": "x", "more": [1]}\n',
        '{"label": "x", "text": "a  b"}\n',
        '{"text": "c", "label": "y"}\n',
    ]
    lines += ['{"text": "d", "label": "x"}\n', '{"text": "e", "label": "y"}\n']
    (folder / "a.jsonl").write_text("".join(lines))
    lmtool.succeeds("check", "a.jsonl", "--fix", "b.jsonl", "--label-column", "label")
    assert (folder / "b.jsonl").read_text() == "".join([lines[0], *lines[2:]])
    assert listed(folder / "b.removed.jsonl")[0]["row"] == 2


def test_all_rows_are_looked_at_and_none_is_held_out(lmtool, folder):
    rows = "".join(f"row {i} of it,{'ab'[i % 2]}\n" for i in range(50)) * 2
    (folder / "a.csv").write_text(f"text,label\n{rows}")
    lmtool.succeeds("check", "a.csv", "--fix", "b.csv")
    assert (folder / "b.csv").read_text() == f"text,label\n{rows[: len(rows) // 2]}"
    assert [one["other"] for one in listed(folder / "b.removed.jsonl")] == list(range(1, 51))


def test_rows_that_cannot_be_read_are_removed_where_they_are_skipped(lmtool, folder):
    (folder / "a.csv").write_text("text,label\nab,x\ncd\nef,y\ngh,x\nij,y\n")
    lmtool.refuses(3, "check", "a.csv", "--fix", "b.csv", words=["a.csv:3", "--skip-bad-rows"])
    lmtool.succeeds("check", "a.csv", "--fix", "b.csv", "--skip-bad-rows")
    assert (folder / "b.csv").read_text() == "text,label\nab,x\nef,y\ngh,x\nij,y\n"
    assert listed(folder / "b.removed.jsonl") == [{"row": 2, "reason": "ragged row"}]


def test_rows_whose_cells_are_bad_are_removed_as_well(lmtool, folder):
    (folder / "a.csv").write_text("text,label\nab,x\ncd,\n,y\nef,y\nef,y\ngh\nij,x\nkl,z\n")
    done = lmtool.succeeds("check", "a.csv", "--fix", "b.csv", "--skip-bad-rows")
    assert done.out.endswith("fixed    b.csv: without 4 rows, listed in b.removed.jsonl\n")
    assert (folder / "b.csv").read_text() == "text,label\nab,x\ncd,\nef,y\nij,x\n"
    assert [(one["row"], one["reason"]) for one in listed(folder / "b.removed.jsonl")] == [
        (3, "empty text"),
        (5, "duplicate rows"),
        (6, "ragged row"),
        (8, "class with one row"),
    ]


def test_nothing_is_overwritten(lmtool, folder):
    content = "text,label\nab,x\nab,x\ncd,y\nef,y\n"
    (folder / "a.csv").write_text(content)
    lmtool.refuses(2, "check", "a.csv", "--fix", "a.csv", words=["exists already"])
    (folder / "b.removed.jsonl").write_text("mine")
    failed = lmtool("check", "a.csv", "--fix", "b.csv")
    assert failed.code == 2
    assert "b.removed.jsonl" in failed.err
    assert not failed.out, "it is refused before anything is checked"
    assert not (folder / "b.csv").exists()
    assert (folder / "b.removed.jsonl").read_text() == "mine"
    assert (folder / "a.csv").read_text() == content


def test_what_is_no_such_table_is_refused_by_name(lmtool, folder):
    (folder / "a.csv").write_text("text,label\nab,x\nab,x\ncd,y\nef,y\n")
    (folder / "a.txt").write_text("a text\n" * 200)
    (folder / "a.conll").write_text("A\tO\nb\tB-X\n\nC\tO\nd\tB-Y\n\n")
    failed = lmtool("check", "a.txt", "--fix", "b.txt")
    assert (failed.code, "not a table" in failed.err) == (3, True)
    for name, out, word in (("a.csv", "b.tsv", "end its name with .csv"), ("a.conll", "b.conll", "delimited text")):
        failed = lmtool("check", name, "--fix", out)
        assert (failed.code, len(failed.err.splitlines())) == (2, 3)
        assert word in failed.err
    assert {path.suffix for path in folder.iterdir()} == {".csv", ".txt", ".conll"}
    lmtool.refuses(2, "check", "a.csv", "--run", "last", words=["--run", "--fix"])
    lmtool.refuses(2, "check", "a.csv", "--run", "last", "--fix", "b.csv", "--near", "1.5", words=["--near"])
    lmtool.refuses(2, "check", "--cache", "--fix", "b.csv", words=["nothing to check"])
    failed = lmtool("check", "a.csv", "--run", "none", "--fix", "b.csv")
    assert (failed.code, "none" in failed.err) == (4, True)


def near(lmtool, folder, least, *options):
    """Rows that are removed: of each its number, why, and the part and the number of the one that it resembles."""
    for path in folder.glob("b.*"):
        path.unlink()
    done = lmtool.succeeds("check", "a.csv", "--run", "last", "--near", least, "--fix", "b.csv", "--json", *options)
    record = json.loads(done.out.splitlines()[-1])
    rows = listed(folder / "b.removed.jsonl")
    assert record == {"fixed": "b.csv", "log": "b.removed.jsonl", "removed": len(rows)}
    return rows


def test_near_duplicates_are_removed(lmtool, run, folder):
    """Rows with equal texts are no near-duplicates: they are told as duplicates."""
    texts = [
        "The baker found a kettle.",
        "The baker found a kettle!",
        "The baker found a map.",
        "The baker found a kettle.",
        "The baker",
    ]
    lines = [f"{text},{label}\n" for text, label in zip(texts, "xyxxy", strict=True)]
    (folder / "a.csv").write_text("text,label\n" + "".join(lines))
    found = near(lmtool, folder, "0")
    assert [(one["row"], one["part"], one["other"]) for one in found] == [(row, "train", 1) for row in (2, 3, 4, 5)]
    assert [one["reason"] for one in found] == ["nearly equal rows"] * 2 + ["duplicate rows", "nearly equal rows"]
    assert [one["row"] for one in near(lmtool, folder, "1")] == [4]
    similarity = {one["row"]: one["similarity"] for one in found if one["row"] != 4}
    nearest = max(similarity, key=similarity.get)
    assert [one["row"] for one in near(lmtool, folder, similarity[nearest] - 1e-4)] == sorted([nearest, 4])
    kept = [line for number, line in enumerate(lines, 1) if number not in (nearest, 4)]
    assert (folder / "b.csv").read_text() == "text,label\n" + "".join(kept)


def test_rows_that_are_nearly_held_out_are_near_too(lmtool, run, folder):
    (folder / "a.csv").write_text("text,label\nThe baker sold a map!,x\nA moon,y\nThe twin,x\nAt dawn,y\n")
    (folder / "test.csv").write_text("text,label\nThe baker sold a map.,x\nIt,y\n")
    first = near(lmtool, folder, "0.0", "--test", "test.csv")[0]
    assert (first["part"], first["row"]) == ("test", 1)
