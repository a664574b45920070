"""The options of reading tables are those of every command that reads one, and mean the same."""

import csv
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import typer

from lmtool.cli import app, main
from tests.cli.test_prompting import files  # noqa: F401 - a fixture

OPTIONS = {
    "--text-column",
    "--label-column",
    "--source-column",
    "--target-column",
    "--input-column",
    "--messages-column",
    "--encoding",
    "--delimiter",
    "--skip-bad-rows",
    "--merge-labels",
}
ROWS = [("très bien, café", "oui"), ("pas mal; «été»", "oui"), ("mauvais\nnaïf", "non"), ('un "déjà" vu', "non")] * 6
BYTES = {"UTF-8": "utf-8", "UTF-8 with a mark": "utf-8-sig", "cp1252": "cp1252", "UTF-16": "utf-16"}


def write(path: Path, encoding: str, header: tuple[str, ...] = ("text", "label"), delimiter: str = ",") -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([header, *(row[: len(header)] for row in ROWS)])
    path.write_bytes(text.getvalue().encode(encoding))
    return path


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each encoding of its table."""
    folder = tmp_path_factory.mktemp("learned")
    runs = {}
    for name in ("utf-8", "cp1252"):
        table = write(folder / f"{name}.csv", name)
        runs[name] = folder / f"run-{name}"
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["lmtool", "finetune", str(table), "--recipe", "linear", "--encoding", name])
            sys.argv += ["-s", "training.epochs=null", "-s", "training.steps=2", "-q", "-o", str(runs[name])]
            with pytest.raises(SystemExit) as end:
                main()
        assert not end.value.code
    return runs


def texts(written: str) -> list[str]:
    return [row["text"] for row in csv.DictReader(io.StringIO(written, newline=""))]


def test_each_command_has_the_options(lmtool):
    commands = typer.main.get_command(app).commands
    declared = {
        name: {word: option.help for option in command.params for word in option.opts}
        for name, command in commands.items()
        if name in ("finetune", "predict", "eval", "check")
    }
    assert len(declared) == 4
    for options in declared.values():
        assert declared["finetune"].keys() >= OPTIONS
        assert {word: options.get(word) for word in OPTIONS} == {word: declared["finetune"][word] for word in OPTIONS}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("trained", ["utf-8", "cp1252"])
@pytest.mark.parametrize("encoding", [BYTES[name] for name in ("UTF-8", "UTF-8 with a mark", "UTF-16")])
@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_what_is_valid_text_is_read_as_such_whatever_was_trained_on(
    lmtool, home, learned, trained, encoding, delimiter
):
    table = write(home / "rows.csv", encoding, delimiter=delimiter)
    assert texts(lmtool.succeeds("predict", learned[trained], table).out) == [text for text, _ in ROWS]
    found = json.loads(lmtool.succeeds("eval", learned[trained], table, "--json").out)
    assert found["rows"] == len(ROWS)


def test_what_is_not_is_read_as_in_training_or_as_stated(lmtool, home, learned):
    table = write(home / "rows.csv", "cp1252")
    expected = [text for text, _ in ROWS]
    assert texts(lmtool.succeeds("predict", learned["cp1252"], table).out) == expected
    for command in ("predict", "eval"):
        said = lmtool.refuses(3, command, learned["utf-8"], table, "-q", words=["not valid utf-8"])
        assert "--encoding cp1252" in said[-1]
        lmtool.succeeds(command, learned["utf-8"], table, "--encoding", "cp1252")
    assert texts(lmtool.succeeds("predict", learned["utf-8"], table, "--encoding", "cp1252").out) == expected


def test_a_stated_encoding_is_taken(lmtool, home, learned):
    """Also where the bytes are valid UTF-8."""
    table = write(home / "rows.csv", "utf-8")
    for run in learned.values():
        found = texts(lmtool.succeeds("predict", run, table, "--encoding", "latin-1").out)
        assert found[0] == "trÃ¨s bien, cafÃ©"
    assert texts(lmtool.succeeds("predict", learned["cp1252"], table, "--encoding", "utf-8").out)[0] == ROWS[0][0]


@pytest.mark.parametrize("header", [("TEXT", "LABEL"), (" Text ", "La bel"), ("te-xt", "Label")])
def test_columns_are_found_whatever_their_case(lmtool, home, learned, header):
    table = write(home / "rows.csv", "utf-8", header)
    run = learned["utf-8"]
    assert len(lmtool.succeeds("predict", run, table).out) > 0
    assert json.loads(lmtool.succeeds("eval", run, table, "--json").out)["rows"] == len(ROWS)
    said = lmtool.succeeds("check", table, "--text-column", "text", "--label-column", "label").out
    assert f"text {header[0].strip()!r}, label {header[1]!r}" in said


def test_columns_and_delimiters_may_be_named(lmtool, home, learned):
    table = write(home / "rows.csv", "utf-8", ("avis", "note"), "#")
    run = learned["utf-8"]
    named = ("--text-column", "Avis", "--delimiter", "#")
    # columns by their names are found, and told
    assert "text 'avis'" in lmtool.succeeds("eval", run, table, "--delimiter", "#").err
    assert "text 'avis'" in lmtool.succeeds("predict", run, table, "--delimiter", "#").err
    assert "avis,note,predicted" in lmtool.succeeds("predict", run, table, *named).out
    found = json.loads(lmtool.succeeds("eval", run, table, *named, "--label-column", "NOTE", "--json").out)
    assert found["rows"] == len(ROWS)


def test_bad_rows_may_be_skipped_by_each(lmtool, home, learned):
    table = write(home / "rows.csv", "utf-8")
    with table.open("a") as file:
        file.write("one,two,three\nbon,peut-être\n")
    run = learned["utf-8"]
    for command in (("predict", run, "-o", "predicted.csv"), ("eval", run), ("check",)):
        said = lmtool.refuses(3, *command, table, "-q", words=["--skip-bad-rows"])
        assert "the row has 3 fields" in said[0]
    assert len(texts(lmtool.succeeds("predict", run, table, "--skip-bad-rows").out)) == len(ROWS) + 1
    outcome = lmtool.succeeds("eval", run, table, "--skip-bad-rows", "--json")
    assert json.loads(outcome.out)["rows"] == len(ROWS)
    assert "skipped 2 bad rows: ragged row 1, label unseen in training 1" in outcome.err
    assert "skipped 2 bad rows" in lmtool.succeeds("check", table, "--skip-bad-rows").out


def test_more_or_fewer_texts_than_the_model_reads_are_refused(lmtool, home, learned):
    table = home / "rows.csv"
    table.write_text("text,more,label\na,b,oui\n")
    for command in ("predict", "eval"):
        lmtool.refuses(
            2,
            *(command, learned["utf-8"], table, "-q", "--text-column", "text", "--text-column", "more"),
            words=["the model reads 1 text in a row", "'text'"],
        )


@pytest.mark.parametrize("encoding", [None, "cp1252", "utf-16"])
def test_standard_input_is_read_by_the_same_options(lmtool, home, learned, monkeypatch, encoding):
    raw = io.BytesIO(write(home / "rows.csv", encoding or "utf-8", ("AVIS", "Label"), ";").read_bytes())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))
    stated = () if encoding in (None, "utf-16") else ("--encoding", encoding)
    out = lmtool.succeeds("predict", learned["utf-8"], "-", "--text-column", "avis", *stated).out
    assert [row["AVIS"] for row in csv.DictReader(io.StringIO(out, newline=""))] == [text for text, _ in ROWS]


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16"])
def test_lines_of_standard_input_too(lmtool, home, learned, monkeypatch, encoding):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("très bien\nmauvais été\n".encode(encoding))))
    assert texts(lmtool.succeeds("predict", learned["cp1252"], "-").out) == ["très bien", "mauvais été"]


def test_prompts_are_made_of_tables_by_the_same_options(lmtool, ngram, home):
    path = home / "rows.csv"
    path.write_bytes("Avis;NOTE\ngood;yes\nbad;no\ngood é;yes\n".encode("cp1252"))
    asked = ("eval", ngram, path, "--prompt", "{avis} verdict:", "--label-column", "note", "--json")
    said = lmtool.refuses(3, *asked, words=["not valid UTF-8"])
    assert "--encoding" in said[-1]
    found = json.loads(lmtool.succeeds(*asked, "--encoding", "cp1252", "--delimiter", ";").out)
    assert found["rows"] == 3
    path.write_bytes(b"Avis;NOTE\ngood;yes\nbad;no\na;b;c\n")
    assert json.loads(lmtool.succeeds(*asked, "--skip-bad-rows").out)["rows"] == 2


def test_options_of_tables_are_not_for_texts(lmtool, run, corpus):
    said = lmtool.refuses(2, "eval", run, corpus, "--label-column", "x", words=["--label-column"])
    assert re.search("--prompt|table", said[-1])


def test_similarities_are_read_by_the_options_that_the_messages_name(lmtool, home, learned):
    shutil.copy(write(home / "pairs.csv", "cp1252"), home / "other.csv")
    said = lmtool.refuses(3, "neighbors", learned["utf-8"], "--similarity", home / "pairs.csv", words=["not valid"])
    options = re.findall(r"--[a-z-]+", said[-1])
    command = typer.main.get_command(app).commands["neighbors"]
    assert set(options) <= {word for option in command.params for word in option.opts}
