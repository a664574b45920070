"""`lmtool check`: what is a run, tokens, a table or a text; what it prints and its exit codes; `--fix`; `--device`."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.apps.checking import device as devices
from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.directory import CHECKPOINTS
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.cli import SENTENCES, SMALL, CommandLine, write_table

DATA, CHECKPOINT, ENVIRONMENT = 3, 4, 5
WORDS = ("-s", "tokenizer.kind=word")
QUICK = ("-s", "evaluation.baseline=false", "-s", "optimizer.l2=1")


def record(lmtool: CommandLine, *arguments: object) -> Any:
    """The record of a check, whatever its exit code."""
    return lmtool("check", *arguments, "--json").json()


def kinds(found: Any) -> list[str]:
    return [finding["kind"] for finding in found["findings"]]


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# Runs and tokens


def test_damage_of_a_checkpoint_is_named_and_an_error(lmtool: CommandLine, run: Path) -> None:
    step, folder = checkpoints.list_checkpoints(run / CHECKPOINTS)[0]
    damaged = os.path.relpath(folder / "model.safetensors")
    flip(folder / "model.safetensors", 100)
    assert [damage["path"] for damage in record(lmtool, "last")["damage"]] == [damaged]
    for named in ("last", f"last@{step}"):
        done = lmtool("check", named)
        assert (done.code, len(done.err.splitlines()) <= 3) == (CHECKPOINT, True)
        assert "model.safetensors" in done.err
        assert f"damaged  {damaged}: " in done.out


def test_only_some_damaged_files_are_listed(lmtool: CommandLine, run: Path) -> None:
    for number in range(30):
        (run / CHECKPOINTS / f"step-{number + 100:06}").mkdir()
    lines = [line for line in lmtool("check", "last").out.splitlines() if line.startswith("damaged")]
    assert len(lines) == 21
    assert "10 more; --json" in lines[-1]
    assert len(record(lmtool, "last")["damage"]) == 30


def test_changed_training_data_are_told(lmtool: CommandLine, home: Path) -> None:
    text = home / "own.txt"
    text.write_text("".join(f"Line {n} of a text that is long enough.\n" for n in range(400)))
    lmtool.succeeds("pretrain", "own.txt", "-o", "own", *SMALL)
    assert kinds(record(lmtool, "own")) == []
    text.write_text(text.read_text() + "One more.\n")
    assert kinds(record(lmtool, "own")) == ["training data changed"]
    assert (lmtool("check", "own").code, lmtool("check", "own", "--strict").code) == (0, DATA)
    text.unlink()
    assert kinds(record(lmtool, "own")) == []


# Tables and texts


LINE = {"text": "one line"}


@pytest.mark.parametrize(
    ("row", "options", "subject"),
    [
        (LINE | {"id": "a7"}, "", "text"),
        (LINE | {"title": "its title", "url": "http://b"}, "", "text"),
        (LINE | {"categorie": "a"}, "", "table"),
        (LINE | {"label": "a"}, "--column text", "text"),
        (LINE | {"label": "a"}, "-s data.column=text", "text"),
        (LINE | {"mood": "a"}, "-s data.label_column=mood", "table"),
        (LINE | {"mood": "a", "title": "its title"}, "--label-column MOOD", "table"),
        ({"question": "one line", "answer": "two"}, "", "table"),
    ],
)
def test_rows_are_a_table_or_a_text(
    lmtool: CommandLine, home: Path, row: dict[str, str], options: str, subject: str
) -> None:
    rows = [{key: f"{value} {n}" if len(value) > 1 else "ab"[n % 2] for key, value in row.items()} for n in range(40)]
    Path("a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    Path("a.json").write_text(json.dumps(rows))
    for name in ("a.jsonl", "a.json"):
        assert record(lmtool, name, *options.split())["subject"] == subject


def test_a_table_is_read_as_finetune_reads_it(lmtool: CommandLine, home: Path) -> None:
    """The same columns, the same rows held out."""
    words = ("blue", "red", "old", "tall", "far", "low", "wet")
    texts = [" ".join(words[(i * k + k) % 7] for k in range(3, 15)) for i in range(600)]
    write_table(home / "a.csv", [(f"{text} {i}", "ab"[i % 2]) for i, text in enumerate(texts)], "text,categorie")
    told = lmtool.succeeds("finetune", "a.csv", "-r", "linear", *QUICK, *WORDS).err
    checked = lmtool.succeeds("check", "a.csv", *WORDS).out
    assert next(line for line in told.splitlines() if "columns: " in line).partition("columns: ")[2] in checked
    (held,) = re.findall(r"validation: ([\d,]+) rows", told)
    assert f"validation: {held} rows" in checked


# Tables that are fixed

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


def removed(name: str = "b.removed.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_what_is_kept_is_kept_byte_for_byte(lmtool: CommandLine, home: Path, encoding: str) -> None:
    write_table(home / "test.csv", [("in test", "pos"), ("other", "neg")])
    write_table(home / "valid.csv", [("quite another", "pos"), ("in valid ", "neg")])
    raw = (HEADER + "".join(ROWS)).encode(encoding)
    (home / "a.csv").write_bytes(raw)
    given = ["--encoding", "cp1252"] if encoding == "cp1252" else []
    parts = ("--valid", "valid.csv", "--test", "test.csv", *given)
    done = lmtool.succeeds("check", "a.csv", *parts, "--fix", "b.csv")
    assert done.out.endswith("fixed    b.csv: without 6 rows, listed in b.removed.jsonl\n")
    assert (home / "b.csv").read_bytes() == KEPT.encode(encoding)
    assert (home / "a.csv").read_bytes() == raw
    assert [(one["row"], one["reason"], one["part"], one["other"]) for one in removed()] == [
        (3, "duplicate rows", "train", 1),
        (5, "duplicate rows with different labels", "train", 6),
        (6, "duplicate rows with different labels", "train", 5),
        (7, "rows shared by train and test", "test", 1),
        (8, "rows shared by train and test", "validation", 2),
        (9, "duplicate rows with different labels", "train", 5),
    ]
    assert record(lmtool, "b.csv", *parts)["findings"] == []


def test_json_lines_keep_their_lines(lmtool: CommandLine, home: Path) -> None:
    lines = ['{"text": "a  b",  "label": "x", "more": [1]}\n', '{"label": "x", "text": "a  b"}\n']
    lines += [f'{{"text": "{text}", "label": "{label}"}}\n' for text, label in ("cy", "dx", "ey")]
    (home / "a.jsonl").write_text("".join(lines))
    lmtool.succeeds("check", "a.jsonl", "--fix", "b.jsonl", "--label-column", "label")
    assert (home / "b.jsonl").read_text() == "".join([lines[0], *lines[2:]])
    assert removed()[0]["row"] == 2


def test_bad_rows_are_removed_where_they_are_skipped(lmtool: CommandLine, home: Path) -> None:
    (home / "a.csv").write_text("text,label\nab,x\ncd,\n,y\nef,y\nef,y\ngh\nij,x\nkl,z\n")
    done = lmtool.succeeds("check", "a.csv", "--fix", "b.csv", "--skip-bad-rows")
    assert done.out.endswith("fixed    b.csv: without 4 rows, listed in b.removed.jsonl\n")
    assert (home / "b.csv").read_text() == "text,label\nab,x\ncd,\nef,y\nij,x\n"
    assert [(one["row"], one["reason"]) for one in removed()] == [
        (3, "empty text"),
        (5, "duplicate rows"),
        (6, "ragged row"),
        (8, "class with one row"),
    ]


def test_no_row_is_held_out_of_a_table_that_is_fixed(lmtool: CommandLine, home: Path) -> None:
    rows = [(f"row {i} of it", "ab"[i % 2]) for i in range(50)]
    write_table(home / "a.csv", rows * 2)
    lmtool.succeeds("check", "a.csv", "--fix", "b.csv")
    assert (home / "b.csv").read_text() == write_table(home / "c.csv", rows).read_text()
    assert [one["other"] for one in removed()] == list(range(1, 51))


def test_the_list_of_removed_rows_is_not_overwritten(lmtool: CommandLine, home: Path) -> None:
    """It is refused before anything is checked."""
    write_table(home / "a.csv", [("ab", "x"), ("ab", "x"), ("cd", "y"), ("ef", "y")])
    (home / "b.removed.jsonl").write_text("mine")
    lmtool.refuses(2, "check", "a.csv", "--fix", "b.csv")
    assert not (home / "b.csv").exists()
    assert (home / "b.removed.jsonl").read_text() == "mine"


def test_nearly_equal_rows_are_removed(lmtool: CommandLine, run: Path, home: Path) -> None:
    """Rows with equal texts are duplicates; the nearest is found by the vectors of a run."""
    texts = ["The baker found a kettle.", "The baker found a kettle!", "The baker found a map."]
    write_table(home / "a.csv", zip([*texts, texts[0], "The baker"], "xyxxy", strict=True))
    write_table(home / "test.csv", [("The baker sold a map.", "x"), ("It", "y")])

    def near(least: float, *more: str) -> list[dict[str, Any]]:
        for path in home.glob("b.*"):
            path.unlink()
        fix = ("--fix", "b.csv", "--run", "last", "--near", least, "--json")
        told = lmtool.succeeds("check", "a.csv", *fix, *more).records()[-1]
        assert told == {"fixed": "b.csv", "log": "b.removed.jsonl", "removed": len(removed())}
        return removed()

    found = near(0)
    assert [(one["row"], one["part"], one["other"]) for one in found] == [(row, "train", 1) for row in (2, 3, 4, 5)]
    assert [one["reason"] for one in found] == ["nearly equal rows"] * 2 + ["duplicate rows", "nearly equal rows"]
    assert [one["row"] for one in near(1)] == [4]
    similarity = {one["row"]: one["similarity"] for one in found if one["row"] != 4}
    nearest = max(similarity, key=lambda row: similarity[row])
    assert [one["row"] for one in near(similarity[nearest] - 1e-4)] == sorted([nearest, 4])
    assert (near(0, "--test", "test.csv")[0]["part"], removed()[0]["row"]) == ("test", 1)


# Devices


def test_ways_of_a_device_that_differ_or_fail_are_told(lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Any:
        raise RuntimeError("no such kernel\nat all")

    one = torch.ones(3)
    ways: dict[str, Callable[[], Any]] = {
        "a": lambda: (lambda: one, lambda: one),
        "b": lambda: (lambda: 2 * one, lambda: one),
        "c": fails,
    }
    monkeypatch.setattr(devices, "_list_fast_path_pairs", lambda device: ways)
    refused = lmtool("check", "--device")
    assert refused.code == ENVIRONMENT
    assert ": b, c\n" in refused.err
    assert "RuntimeError: no such kernel\n" in refused.out
    found = lmtool("check", "--device", "--json").json()
    assert [way["verdict"] for way in found["ways"]] == ["same", "differs by 100 %", "RuntimeError: no such kernel"]


def test_tokens_and_the_cache(lmtool: CommandLine, home: Path) -> None:
    (home / "a.txt").write_text("".join(f"Line {n} of a text.\n" for n in range(400)))
    lmtool.succeeds("tokenize", "a.txt", "--vocab-size", "300", "-o", "tokens", "-q")
    assert "nothing found" in lmtool.succeeds("check", "tokens").out
    assert lmtool.succeeds("check", "--cache").out.splitlines()[-1] == "nothing found"
    assert lmtool.succeeds("check", "tokens", "--cache").out.count("nothing found") == 2
    flip(home / "tokens" / "train" / "tokens-00000.bin", 50)
    done = lmtool("check", "tokens")
    assert done.code == DATA
    assert "train" in done.err


def test_a_text_its_validation_text_and_its_tokenizer(lmtool: CommandLine, run: Path, home: Path) -> None:
    (home / "train.txt").write_text("\n\n".join([*SENTENCES, SENTENCES[0]]))
    (home / "valid.txt").write_text("\n\n".join([f"Another one, {n}." for n in range(9)] + SENTENCES[1:2]))
    found = record(lmtool, "train.txt", "--valid", "valid.txt", "--tokenizer", "last")
    assert "duplicate documents" in kinds(found)
    assert "texts in another language" not in kinds(found)
    told = lmtool.succeeds("pretrain", "train.txt", "--valid", "valid.txt", "-o", "own", *SMALL).err
    assert "documents are equal to an earlier one" in told
    words = [" ".join(f"word{(7 * i * k) % 300}" for k in range(40)) for i in range(1, 90)]
    Tokenizer.train(BpeTokenizer(vocab_size=900), words).save(home)
    foreign = [f"Жизнь прожить не поле перейти, {n} раз сказал он нам." for n in range(5)]
    (home / "mixed.txt").write_text("\n\n".join([*words[:30], *foreign]))
    assert "texts in another language" in kinds(record(lmtool, "mixed.txt", "--tokenizer", "tokenizer.json"))
