"""`lmtool check`: damage of runs and tokens, and what ruins training in tables and texts."""

import json
import os
import re

import numpy as np
import pytest
import torch

from lmtool.recipe.spec.text import BpeTokenizer
from lmtool.run import checkpoint as checkpoints
from lmtool.run import saving
from lmtool.run.directory import CHECKPOINTS
from lmtool.run.saving import Snapshot
from lmtool.tokenization.tokenizer import Tokenizer
from tests.cli.conftest import SMALL

DATA, CHECKPOINT = 3, 4


def record(lmtool, *arguments):
    """The record of a check, whatever its exit code."""
    return json.loads(lmtool("check", *arguments, "--json").out)


def kinds(found):
    return [finding["kind"] for finding in found["findings"]]


def finds(lmtool, code, *arguments, words):
    """Assert that a check fails with this code and three lines, the words in them."""
    done = lmtool("check", *arguments)
    assert done.code == code, done
    assert len(done.err.splitlines()) <= 3
    for word in words:
        assert word in done.err


# Runs


def test_an_intact_run(lmtool, run, home):
    done = lmtool.succeeds("check", "last")
    assert "nothing found" in done.out
    assert done.out.count("recipe, tokenizer and weights fit") == len(checkpoints.list_checkpoints(run / CHECKPOINTS))


def test_a_checkpoint_that_is_not_there(lmtool, run, home):
    finds(lmtool, CHECKPOINT, "last@987", words=["no checkpoint", "step-000987"])


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"],
)
def test_a_flipped_bit_in_a_checkpoint_is_found(lmtool, run, home, name):
    step, folder = checkpoints.list_checkpoints(run / CHECKPOINTS)[0]
    flip(folder / name, 100)
    found = record(lmtool, "last")
    assert [damage["path"] for damage in found["damage"]] == [os.path.relpath(folder / name)]
    finds(lmtool, CHECKPOINT, "last", words=[name])
    finds(lmtool, CHECKPOINT, f"last@{step}", words=[name])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("recipe.yaml", "n_heads: 2", "n_heads: 1"),
        ("tokenizer.json", "[MASK]", "[SKAM]"),
        ("run.json", '"format"', '"form"'),
    ],
)
def test_an_edited_file_is_found(lmtool, run, home, name, old, new):
    content = (run / name).read_text()
    assert old in content
    (run / name).write_text(content.replace(old, new))
    finds(lmtool, CHECKPOINT, str(run), words=[name])


def test_weights_that_are_not_finite_are_found_though_their_checksum_is_right(lmtool, run, home):
    step, folder = checkpoints.list_checkpoints(run / CHECKPOINTS)[-1]
    old = checkpoints.verify_checkpoint(folder, optimizer=False)
    weights, state = old.load_model(), old.load_state()
    next(iter(weights.values())).view(-1)[0] = torch.nan
    saving.rename_aside(folder)
    saving.save_checkpoint(run / CHECKPOINTS, Snapshot(step, weights, {}, state, old.best_step), keep_last=9)
    found = record(lmtool, "last")
    assert [damage["path"] for damage in found["damage"]] == [os.path.relpath(folder)]
    assert "not finite" in found["damage"][0]["problem"]


def test_changed_training_data_are_told(lmtool, home):
    text = home / "own.txt"
    text.write_text("".join(f"Line {n} of a text that is long enough.\n" for n in range(400)))
    lmtool.succeeds("pretrain", "own.txt", "-o", "own", *SMALL)
    assert kinds(record(lmtool, "own")) == []
    text.write_text(text.read_text() + "One more.\n")
    assert kinds(record(lmtool, "own")) == ["training data changed"]
    assert lmtool("check", "own").code == 0
    assert lmtool("check", "own", "--strict").code == DATA
    text.unlink()
    assert kinds(record(lmtool, "own")) == []


# Tokens


def test_a_flipped_bit_in_tokens_is_found(lmtool, home):
    (home / "a.txt").write_text("".join(f"Line {n} of a text.\n" for n in range(400)))
    lmtool.succeeds("tokenize", "a.txt", "--vocab-size", "300", "-o", "tokens", "-q")
    assert "nothing found" in lmtool.succeeds("check", "tokens").out
    flip(home / "tokens" / "train" / "tokens-00000.bin", 50)
    finds(lmtool, DATA, "tokens", words=["train"])


# Tables


def rows(n, start=0):
    words = np.random.default_rng(start).choice(["blue", "red", "old", "tall", "far", "low", "wet"], (n, 12))
    return [(" ".join(row) + f" {start + i}", "good" if i % 2 else "bad") for i, row in enumerate(words)]


def write(path, given):
    path.write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in given))


def test_a_clean_table(lmtool, home):
    write(home / "train.csv", rows(60))
    write(home / "test.csv", rows(20, 1000))
    assert "nothing found" in lmtool.succeeds("check", "train.csv", "--test", "test.csv").out


def test_each_fault_of_a_table_is_found(lmtool, home):
    train, test = rows(60), rows(20, 1000)
    train += [train[3], (train[4][0], "good"), (train[5][0] + " x", train[5][1]), *(("a" * 150, "bad"),) * 2]
    train += [(letter * 150, "good") for letter in "bcdef"]
    write(home / "train.csv", train)
    write(home / "test.csv", [*test[:9:2], train[7], (train[8][0] + " indeed", "bad")])
    found = record(lmtool, "train.csv", "--test", "test.csv")
    assert set(kinds(found)) >= {
        "duplicate rows",
        "duplicate rows with different labels",
        "rows shared by train and test",
        "rows nearly shared by train and test",
        "texts cut at one length",
    }
    assert lmtool("check", "train.csv", "--test", "test.csv").code == 0
    finds(lmtool, DATA, "train.csv", "--test", "test.csv", "--strict", words=["--strict"])


def test_each_finding_of_a_table_is_said_once(lmtool, home):
    """Also where there are two held-out parts, and bad rows in each table."""
    train = [*rows(60), *[rows(60)[3]] * 2, *[(f"a plain text {n}", "rare") for n in range(3)]]
    train += [(f"another text {n}", "godo") for n in range(1)]
    write(home / "train.csv", train)
    for name, start in ("valid", 1000), ("test", 2000):
        write(home / f"{name}.csv", [*rows(20, start), train[7], (train[8][0] + " indeed", "bad")])
    for path in home.glob("*.csv"):
        path.write_text(path.read_text() + "a row,of,three\n")
    done = lmtool.succeeds("check", "train.csv", "--valid", "valid.csv", "--test", "test.csv", "--skip-bad-rows")
    lines = [line for line in done.out.splitlines() if line.startswith("found")]
    assert len(set(lines)) == len(lines)
    assert sum("have no row in the training part" in line for line in lines) == 0
    assert [sum(f"skipped 1 bad row of {name}.csv" in line for line in lines) for name in ("valid", "test")] == [1, 1]
    for line in lines:
        words = line.removeprefix("found").strip()
        assert len(words) < 20 or line.count(words[:20]) == 1, "the kind is said, and then said again"
    assert not any("godo" in line for line in lines if "no row" in line), "it is told as a misspelt label"
    assert sum("'godo'" in line for line in lines) == 1


def test_a_class_that_only_the_held_out_rows_have_is_said_once(lmtool, home):
    """Of one row that is for validation nothing is learnt: whatever the other parts."""
    write(home / "train.csv", rows(60))
    found = record(lmtool, "train.csv", "--valid", "train.csv", "--test", "train.csv")
    texts = [finding["text"] for finding in found["findings"]]
    assert len(set(texts)) == len(texts)


def test_a_list_of_objects_is_a_text_or_a_table_as_lines_are(lmtool, home):
    lines = [{"text": f"one line {n}", "mood": "ab"[n % 2]} for n in range(40)]
    (home / "a.json").write_text(json.dumps([{"text": line["text"]} for line in lines]))
    assert record(lmtool, "a.json")["subject"] == "text"
    (home / "b.json").write_text(json.dumps([{"text": line["text"], "label": line["mood"]} for line in lines]))
    assert record(lmtool, "b.json")["subject"] == "table"


def test_columns_make_a_table_of_a_file_that_may_be_a_text(lmtool, home):
    lines = [{"text": f"one line {n}", "mood": "ab"[n % 2], "title": f"its title {n}"} for n in range(40)]
    (home / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert record(lmtool, "a.jsonl", "--column", "text")["subject"] == "text"
    assert (
        "text 'title', label 'mood'"
        in lmtool.succeeds("check", "a.jsonl", "--label-column", "MOOD", "--text-column", "title").out
    )
    both = ("--text-column", "TITLE", "--text-column", "text", "--label-column", "mood")
    assert "text 'title' and 'text', label 'mood'" in lmtool.succeeds("check", "a.jsonl", *both).out


def test_a_column_of_text_that_is_a_setting_means_a_text_too(lmtool, home):
    lines = [{"text": f"one line {n}", "label": "ab"[n % 2]} for n in range(40)]
    (home / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for setting in ("data.column=text", "data={column: text}"):
        assert record(lmtool, "a.jsonl", "-s", setting)["subject"] == "text"


def test_the_kind_of_labels_may_be_named(lmtool, home):
    write(home / "a.csv", [(f"text {n} of it", n % 5) for n in range(40)])
    assert "in 5 classes" in lmtool.succeeds("check", "a.csv").out
    assert "one number each" in lmtool.succeeds("check", "a.csv", "--labels", "number").out


def test_finetune_tells_of_rows_that_are_nearly_shared(lmtool, home):
    train = rows(60)
    write(home / "train.csv", train)
    write(home / "test.csv", [*rows(6, 1000), (train[8][0] + " indeed", "bad")])
    done = lmtool.succeeds("finetune", "train.csv", "--recipe", "linear", "--test", "test.csv", "--epochs", "1")
    assert "1 of 7 rows of the test part are nearly rows for training" in done.err


@pytest.mark.parametrize(
    ("row", "options", "subject"),
    [
        ({"text": "one line", "id": "a7"}, [], "text"),
        ({"text": "one line", "title": "its title", "url": "http://b"}, [], "text"),
        ({"text": "one line", "categorie": "a"}, [], "table"),
        ({"text": "one line", "date": "a"}, [], "table"),
        ({"text": "one line", "id": "a"}, [], "table"),
        ({"text": "one line", "id": "a"}, ["--column", "text"], "text"),
        ({"text": "one line", "label": "a"}, [], "table"),
        ({"text": "one line", "label": "a"}, ["--column", "text"], "text"),
        ({"body": "one line", "stars": "a"}, [], "table"),
        ({"text": "one line", "mood": "a"}, ["-s", "data.label_column=mood"], "table"),
        ({"question": "one line", "answer": "two"}, [], "table"),
    ],
)
def test_rows_are_a_table_or_a_text(lmtool, home, row, options, subject):
    lines = [{key: f"{value} {n}" if len(value) > 1 else "ab"[n % 2] for key, value in row.items()} for n in range(40)]
    (home / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert record(lmtool, "a.jsonl", *options)["subject"] == subject


def test_ids_are_no_labels(lmtool, home):
    lines = [{"id": n, "text": f"one line {n}"} for n in range(40)]
    (home / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert record(lmtool, "a.jsonl")["subject"] == "text"


@pytest.mark.parametrize("n", [60, 600])
@pytest.mark.parametrize("label", ["label", "categorie", "xq"])
def test_a_table_is_read_as_finetune_reads_it(lmtool, home, n, label):
    """The same columns, the same rows held out or none."""
    write(home / "a.csv", rows(n))
    (home / "a.csv").write_text((home / "a.csv").read_text().replace("text,label", f"text,{label}"))
    words = ("-s", "tokenizer.kind=word")
    checked = lmtool.succeeds("check", "a.csv", *words).out
    trained = lmtool.succeeds("finetune", "a.csv", *words, "-s", "evaluation.baseline=false").err
    columns = next(line for line in trained.splitlines() if "columns: " in line).partition("columns: ")[2]
    assert columns in checked
    held = re.findall(r"validation: ([\d,]+) rows", trained)
    assert held == re.findall(r"validation: ([\d,]+) rows", checked)
    assert bool(held) == (n == 600)
    assert ("none are held out" in checked) == (n == 60)


# Texts


def documents(n, seed):
    words = np.random.default_rng(seed).choice([f"word{i}" for i in range(300)], (n, 40))
    return [" ".join(row) for row in words]


def test_each_fault_of_a_text_is_found(lmtool, home):
    train, valid = documents(40, 0), documents(10, 1)
    (home / "train.txt").write_text("\n\n".join([*train, train[0]]))
    (home / "valid.txt").write_text("\n\n".join([*valid, train[1]]))
    found = record(lmtool, "train.txt", "--valid", "valid.txt")
    assert set(kinds(found)) == {"duplicate documents", "validation text in the training text"}
    assert "9.1 % of the 440 words" in found["findings"][1]["text"]
    done = lmtool.succeeds("pretrain", "train.txt", "--valid", "valid.txt", "-o", "own", *SMALL)
    assert "9.1 % of the 440 words" in done.err
    assert "1 of 41 documents are equal to an earlier one" in done.err


def test_text_in_another_language_than_that_of_the_tokenizer_is_found(lmtool, home):
    Tokenizer.train(BpeTokenizer(vocab_size=900), documents(90, 0)).save(home)
    lines = documents(30, 1)
    (home / "known.txt").write_text("\n\n".join(lines))
    foreign = [f"Жизнь прожить не поле перейти, {n} раз сказал он нам." for n in range(5)]
    (home / "mixed.txt").write_text("\n\n".join([*lines, *foreign]))
    assert "texts in another language" in kinds(record(lmtool, "mixed.txt", "--tokenizer", "tokenizer.json"))
    assert "texts in another language" not in kinds(record(lmtool, "known.txt", "--tokenizer", "tokenizer.json"))


def test_the_cache(lmtool, home):
    (home / "a.txt").write_text("".join(f"Line {n} of a text.\n" for n in range(400)))
    lmtool.succeeds("tokenize", "a.txt", "--vocab-size", "300", "-q")
    found = lmtool.succeeds("check", "--cache")
    assert "nothing found" in found.out


def test_nothing_to_check(lmtool, home):
    lmtool.refuses(2, "check", words=["nothing to check"])
