"""Tables and texts that `predict`, `eval` and `check` read: their options, standard input, forms of what is written."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.cli import (
    COMMANDS,
    RUN,
    CommandLine,
    exit_code_of,
    film_rows,
    options_of,
    pipe_in,
    settings,
    write_table,
)

READING = {
    *(f"--{role}-column" for role in ("text", "label", "source", "target", "input", "messages")),
    *("--encoding", "--delimiter", "--skip-bad-rows", "--merge-labels"),
}
ROWS = [("très bien, café", "oui"), ("pas mal; «été»", "oui"), ("mauvais\nnaïf", "non"), ('un "déjà" vu', "non")] * 6
TEXTS = [text for text, _ in ROWS]
LINEAR = ("-r", "linear")


def write(path: Path, encoding: str) -> Path:
    text = io.StringIO()
    csv.writer(text).writerows([("text", "label"), *ROWS])
    path.write_bytes(text.getvalue().encode(encoding))
    return path


def classifier(folder: Path, name: str, table: Path, *more: str) -> Path:
    quick = settings(training_epochs="null", training_steps=30, training_device="cpu")
    words = ["finetune", str(table), *more, *quick, "-q", "-o", str(folder / name)]
    assert exit_code_of(["lmtool", *words]) == 0
    return folder / name


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run for each encoding of its table."""
    folder = tmp_path_factory.mktemp("learned")
    return {
        name: classifier(folder, f"run-{name}", write(folder / f"{name}.csv", name), *LINEAR, "--encoding", name)
        for name in ("utf-8", "cp1252")
    }


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("table") / "reviews.csv", film_rows(), "review,label")


@pytest.fixture(scope="module")
def tuned(reviews: Path) -> Path:
    return classifier(reviews.parent, "tuned", reviews, "-r", "dan", "--text-column", "review")


def texts(written: str) -> list[str]:
    return [row["text"] for row in csv.DictReader(io.StringIO(written, newline=""))]


def read(written: str) -> list[dict[str, str]]:
    return list(csv.DictReader(written.splitlines()))


def test_each_command_that_reads_tables_has_the_same_options() -> None:
    declared = {name: options_of(COMMANDS[name]) for name in ("finetune", "predict", "eval", "check", "plan", "sweep")}
    for options in declared.values():
        assert {name: options[name].help for name in READING} == {
            name: declared["finetune"][name].help for name in READING
        }


def test_an_encoding_is_that_of_training_or_the_stated_one(
    lmtool: CommandLine, home: Path, learned: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write(home / "rows.csv", "cp1252")
    assert texts(lmtool.succeeds("predict", learned["cp1252"], table).out) == TEXTS
    for command in ("predict", "eval"):
        assert "--encoding cp1252" in lmtool.refuses(3, command, learned["utf-8"], table, "-q")[-1]
        lmtool.succeeds(command, learned["utf-8"], table, "--encoding", "cp1252")
    pipe_in(monkeypatch, "très bien\nmauvais été\n", "cp1252")
    assert texts(lmtool.succeeds("predict", learned["cp1252"], "-").out) == ["très bien", "mauvais été"]
    valid = write(home / "valid.csv", "utf-8")
    for run in learned.values():  # though the bytes are valid UTF-8
        assert texts(lmtool.succeeds("predict", run, valid, "--encoding", "latin-1").out)[0] == "trÃ¨s bien, cafÃ©"


# Predictions


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        # a header, whose names are not those of training
        ('text,id\n"good, film",7\n', ["good, film"]),
        ('kommentar;nr\n"good; film";7\n"bad, film";8\n', ["good; film", "bad, film"]),
        ("text\ngood film\nbad film\n", ["good film", "bad film"]),
        # without one, as in a file
        ('"a good, long film",x\n"a bad, long film",x\n', ["a good, long film", "a bad, long film"]),
        # texts
        ("good, film\nbad, film\n", ["good, film", "bad, film"]),
        ('"good film"\n"Bad," he said, "indeed."\nso-so\n', ['"good film"', '"Bad," he said, "indeed."', "so-so"]),
        ("good film", ["good film"]),
        # neither
        ('"good, film",7\n"bad, film",8\n', []),
        ('text,id\n"good, film",7\na,b,c\nd,e\n', []),
    ],
)
def test_standard_input_is_a_table_or_texts(
    lmtool: CommandLine, tuned: Path, monkeypatch: pytest.MonkeyPatch, content: str, expected: list[str]
) -> None:
    pipe_in(monkeypatch, content)
    done = lmtool("predict", tuned, "-", "-q")
    assert done.code == (0 if expected else 3)
    rows = list(csv.reader(io.StringIO(done.out)))
    assert len(rows) == len(expected) + 1 or not expected
    assert set(expected) <= {cell for row in rows for cell in row}


def test_predictions_are_json_by_the_ending_of_the_file(
    lmtool: CommandLine, home: Path, tuned: Path, reviews: Path
) -> None:
    printed = lmtool.succeeds("predict", tuned, reviews, "--json", "-q")
    for name in ("out.jsonl", "out.json"):
        lmtool.succeeds("predict", tuned, reviews, "-o", name, "-q")
    assert (home / "out.jsonl").read_text() == printed.out
    assert json.loads((home / "out.json").read_text()) == printed.records()


def test_newer_weights_than_the_best_are_told(lmtool: CommandLine, run: Path) -> None:
    (run / "validated.json").write_text('{"step": 6, "best_step": 4, "best_value": 1.0, "stale": 1}')
    asked = ("generate", "The", "--max-new-tokens", "2")
    assert lmtool.succeeds(*asked).err.count(f"newer weights: runs/{RUN}@6\n") == 1
    assert lmtool.succeeds(*asked, "--quiet").err == ""


def test_costs_decide_and_are_no_figures_of_the_run(
    lmtool: CommandLine, home: Path, tuned: Path, reviews: Path
) -> None:
    costs = write_table(home / "costs.csv", [("yes", 0, 1), ("no", 1000, 0)], "true,yes,no")
    rows = read(lmtool.succeeds("predict", tuned, reviews, "--costs", costs).out)
    assert {row["predicted"] for row in rows} == {"no"}
    kept = tuned / "evaluations.json"
    kept.unlink(missing_ok=True)
    assert lmtool.succeeds("eval", tuned, reviews, "--costs", costs, "--json").json()["cost"] == 0.5
    assert not kept.exists()
    lmtool.succeeds("eval", tuned, write_table(home / "other.csv", film_rows(20), "review,label"))
    assert kept.exists()


def test_the_most_probable_answer_is_chosen(lmtool: CommandLine, home: Path, counted: Path) -> None:
    table = write_table(home / "rows.csv", [("good", "yes"), ("bad", "no"), ("good", "yes"), ("bad", "yes")])
    found = lmtool.succeeds("eval", counted, table, "--prompt", "{text}\\nverdict:", "--json").json()
    assert found["rows"] == 4
    assert found["accuracy"] == found["majority"] == 0.75
    assert found["scores"]["sum"]["confusion"] == [[1, 0], [1, 2]]
    assert found["scores"].keys() == {"sum", "per_token", "per_byte"}
    written = ("predict", counted, table, "--prompt", "{text}\\nverdict:", "-q")
    answers = read(lmtool.succeeds(*written, "--choices", "yes,no").out)
    assert [(row["answer"], row["finish"]) for row in answers] == [(w, "stop") for w in ("yes", "no", "yes", "no")]
    (home / "long.lark").write_text('start: "yes" " yes" " yes"\n')
    cut = lmtool.succeeds(*written, "--grammar", "long.lark", "--max-new-tokens", "1")
    assert {row["finish"] for row in read(cut.out)} == {"length"}
    assert "4 of 4" in cut.err
    assert lmtool.succeeds(*written, "--choices", "yes,no", "--num-beams", "2").err == ""
