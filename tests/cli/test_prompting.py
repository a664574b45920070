"""Tasks by prompting: a model of counts, whose answers are known, chooses labels; mistakes are named."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from lmtool.data.table import open_table
from lmtool.errors import UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.prompting import PromptTemplate, calibrate_scores, parse_answers_option
from tests.reference.prompting import calibrated

ASKED = "{text}\\nverdict:"


def write(path: Path, rows: list[tuple[str, str]], header: tuple[str, str] = ("text", "label")) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text in which `verdict:` is followed by what the word before it says, yes three times as often as no."""
    folder = tmp_path_factory.mktemp("prompting")
    lines = [f"{word} verdict: {answer}" for word, answer in (("good", "yes"), ("bad", "no")) for _ in range(40)]
    lines += ["plain verdict: yes"] * 80
    (folder / "text.txt").write_text("\n\n".join(lines))
    write(folder / "rows.csv", [("good", "yes"), ("bad", "no"), ("good", "yes"), ("bad", "yes")])
    write(folder / "numbered.csv", [("good", "1"), ("bad", "0")], ("review", "stars"))
    return folder


def test_the_most_probable_answer_is_chosen(lmtool, ngram, files):
    found = json.loads(lmtool.succeeds("eval", ngram, files / "rows.csv", "--prompt", ASKED, "--json").out)
    assert found["rows"] == 4
    assert found["accuracy"] == found["majority"] == 0.75
    assert found["scores"]["sum"]["confusion"] == [[1, 0], [1, 2]]
    assert found["scores"].keys() == {"sum", "per_token", "per_byte"}
    shown = lmtool.succeeds("eval", ngram, files / "rows.csv", "--prompt", ASKED).out.splitlines()
    assert shown[1].split() == ["accuracy,", "%", "sum", "per", "token", "per", "byte"]
    assert shown[2].split() == ["as", "scored", "75.0", "75.0", "75.0"]
    assert shown[3] == "majority: 75.0 %"


def test_labels_have_other_names_and_columns(lmtool, ngram, files):
    asked = (
        "eval",
        ngram,
        files / "numbered.csv",
        "--prompt",
        "{review} verdict:",
        "--label-column",
        "stars",
        "--json",
    )
    found = json.loads(lmtool.succeeds(*asked, "--answers", "0=no,1=yes").out)
    assert found["answers"] == {"0": "no", "1": "yes"}
    assert found["accuracy"] == 1
    turned = json.loads(lmtool.succeeds(*asked, "--answers", "0=yes,1=no").out)
    assert turned["accuracy"] == 0
    assert (
        json.loads(lmtool.succeeds(*asked[:4], "{text} verdict:", *asked[5:], "--answers", "0=no,1=yes").out) == found
    )


def test_calibration_divides_by_what_an_empty_prompt_gives():
    rng = np.random.default_rng(0)
    score_RA, free_FA = rng.normal(size=(6, 3)) - 4, rng.normal(size=(2, 3)) - 4
    found_RA = np.exp(calibrate_scores(score_RA, free_FA))
    wanted_RA = [calibrated(np.exp(own).tolist(), np.exp(free_FA).tolist()) for own in score_RA]
    np.testing.assert_allclose(found_RA / found_RA.sum(1, keepdims=True), wanted_RA, rtol=1e-12)


def test_calibration_undoes_a_preference(lmtool, ngram, files):
    rows = write(files / "plain.csv", [("plain", "yes"), ("unknown", "no"), ("bad", "no")])
    found = json.loads(lmtool.succeeds("eval", ngram, rows, "--prompt", ASKED, "--calibrate", "--json").out)
    assert found["scores"]["sum"]["confusion"] == [[1, 1], [0, 1]]
    assert found["accuracy"] == found["calibrated"]["sum"]["accuracy"]


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ("Sentiment:", ["does not say where the text", "write {text}"]),
        ("{txt} is", ["{txt}", "not a column", "'text', 'label'"]),
        ("{text} is {label}", ["the prompt holds the label"]),
        ("{text is", ["a brace that is not a field", "{{"]),
        ("{text!r} is", ["not the name of a column"]),
        ("{} is", ["not the name of a column"]),
    ],
)
def test_prompts_that_fit_no_table(lmtool, ngram, files, prompt, words):
    assert len(lmtool.refuses(2, "eval", ngram, files / "rows.csv", "--prompt", prompt, words=words)) == 3


def test_answers_that_fit_no_labels(lmtool, ngram, files):
    asked = ("eval", ngram, files / "rows.csv", "--prompt", ASKED)
    lmtool.refuses(2, *asked, "--answers", "yes,nope", words=["the label 'no', which has no answer", "no,yes"])
    lmtool.refuses(2, *asked, "--answers", "yes=a,no=a", words=["two different texts"])
    lmtool.refuses(2, *asked, "--answers", "yes=,no=a", words=["two different texts"])
    lmtool.refuses(2, *asked[:3], "--answers", "yes,no", words=["need a prompt", "--prompt"])
    assert parse_answers_option(["a=b", "c"], ["a=b", "c"]) == {"a=b": "a=b", "c": "c"}


def test_a_prompt_longer_than_the_context(lmtool, run, files, home):
    write(home / "rows.csv", [("good", "yes"), ("good " * 40, "no")])
    words = ["1 of 2 prompts do not fit the context of 16 tokens", "rows.csv, row 2"]
    assert len(lmtool.refuses(2, "eval", "last", "rows.csv", "--prompt", "{text}:", words=words)) == 3


def test_braces_stand_for_columns(tmp_path):
    table = open_table(str(write(tmp_path / "rows.csv", [("it rains", "a")], ("a b", "label"))))
    prompt = PromptTemplate("{{x}} {a b}: ")
    assert prompt.fill(prompt.choose_columns(table, Data()), ("it rains",)) == "{x} it rains: "
    with pytest.raises(UsageError, match="does not say where"):
        PromptTemplate("{{text}}").choose_columns(table, Data())
