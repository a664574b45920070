"""`lmtool eval --suite`: figures, rows and pages; an interrupted suite goes on; what a model cannot do is refused."""

import json
import math
from pathlib import Path

import pytest

from lmtool.run.uncertainty import confidence_interval
from lmtool.tasks.suites import measure
from tests.cli.conftest import SMALL

SUITE = """\
words:
  kind: choice
  table: rows.jsonl
  prompt: "{{ text }} verdict:"
  choices: ["yes", "no"]
  answer: "{{ label }}"
  calibrate: "verdict:"
  shots: 1
  examples: shots.jsonl
next:
  kind: continuation
  table: rows.jsonl
  prompt: "{{ text }} verdict:"
  continuation: "{{ label }}"
which:
  kind: schema
  table: rows.jsonl
  contexts: ["good verdict:", "bad verdict:"]
  continuation: "{{ label }}"
  answer: "{{ text }} verdict:"
written:
  kind: match
  table: rows.jsonl
  prompt: "{{ text }} verdict:"
  answers: label
  pattern: "^ ?(yes|no)"
  max_new_tokens: 3
texts:
  kind: perplexity
  table: rows.jsonl
  text: "{{ text }} verdict: {{ label }}"
"""
LABELS = [("good", "yes"), ("bad", "no"), ("good", "yes"), ("bad", "yes")]
"""The last one is not what the text says."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("suite")
    lines = [f"{word} verdict: {answer}" for word, answer in (("good", "yes"), ("bad", "no")) for _ in range(40)]
    (folder / "text.txt").write_text("\n\n".join(lines))
    for name, rows in (("rows", LABELS), ("shots", [("good", "yes"), ("bad", "no")])):
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    (folder / "suite.yaml").write_text(SUITE)
    return folder


def test_figures_rows_and_page(lmtool, ngram, files, home):
    asked = ("eval", ngram, "--suite", files / "suite.yaml", "--rows", "rows.jsonl", "-o", "page.html", "--json")
    found = json.loads(lmtool.succeeds(*asked).out)
    (home / "rows.jsonl").rename(home / "others.jsonl")
    lmtool.refuses(2, *asked, words=["the file exists already", "page.html"])
    (home / "others.jsonl").rename(home / "rows.jsonl")
    tasks = found["tasks"]
    assert {name: one.get("accuracy") for name, one in tasks.items()} == {
        "words": 0.75, "next": 0.75, "which": 0.75, "written": 0.75, "texts": None
    }  # fmt: skip
    words = tasks["words"]
    assert words["interval"] == list(confidence_interval("accuracy", 0.75, 4) or ())
    assert (words["chance"], words["centred"], tasks["next"]["chance"]) == (0.5, 0.5, 0)
    assert words["accuracies"].keys() == {"sum", "per_token", "per_byte", "calibrated"}
    assert tasks["which"]["accuracies"].keys() == {"sum", "per_token"}
    assert found["centred"] == pytest.approx((0.5 + 0.75 + 0.5 + 0.75) / 4)
    rows = list(map(json.loads, (home / "rows.jsonl").read_text().splitlines()))
    assert [(row["task"], row["row"]) for row in rows] == [(task, n) for task in tasks for n in (1, 2, 3, 4)]
    assert [row["right"] for row in rows if row["task"] == "words"] == [True, True, True, False]
    assert [row["answer"] for row in rows if row["task"] == "written"] == ["yes", "no", "yes", "no"]
    bits = sum(row["nats"] for row in rows if row["task"] == "texts") / math.log(2)
    n_bytes = sum(len(f"{text} verdict: {label}") for text, label in LABELS)
    assert tasks["texts"]["bits_per_byte"] == pytest.approx(bits / n_bytes)
    page = (home / "page.html").read_text()
    assert all(f">{name}<" in page for name in tasks)
    shown = lmtool.succeeds("eval", ngram, "--suite", files / "suite.yaml").out.splitlines()
    assert shown[1].split()[:3] == ["words", "4", "75.0"]
    lmtool.refuses(2, *asked, words=["exists already"])


def test_an_interrupted_suite_goes_on(lmtool, ngram, files, home, monkeypatch):
    whole = lmtool.succeeds("eval", ngram, "--suite", files / "suite.yaml", "--json").out
    kept = sorted(next((home / "runs").iterdir()).glob("suites/*.jsonl"))
    assert len(kept) == 5
    contents = [path.read_bytes() for path in kept]
    kept[0].unlink()
    kept[1].write_bytes(contents[1][: len(contents[1]) * 2 // 3])
    scored = []
    monkeypatch.setattr(measure, "_scores", lambda *args, of=measure._scores: scored.append(len(args[2])) or of(*args))
    assert lmtool.succeeds("eval", ngram, "--suite", files / "suite.yaml", "--json").out == whole
    assert [path.read_bytes() for path in kept] == contents
    assert sorted(scored)[-1] == 4, "the task of the first file"
    assert sum(scored) in (6, 7), "and what the second one lacked"


@pytest.mark.slow
def test_random_weights_score_chance_on_the_bundled_suite(lmtool, home, trained):
    lmtool.succeeds("pretrain", "data/stories.txt", "-o", "random", "-q", *SMALL, "-s", "training.steps=1",
                    "-s", "model.context=128", "-s", "optimizer.lr=1e-12")  # fmt: skip
    tasks = json.loads(lmtool.succeeds("eval", "random", "--suite", "bundled", "--json").out)["tasks"]
    choices = {name: one for name, one in tasks.items() if one["kind"] == "choice"}
    assert len(choices) == 3
    for one in choices.values():
        low, high = one["interval"]
        assert low <= one["chance"] <= high
    assert tasks["answers"]["accuracy"] == tasks["generated"]["accuracy"] == 0


def test_rows_that_were_trained_on_are_told(lmtool, ngram, files, home):
    asked = ("eval", ngram, "--suite", files / "suite.yaml", "--task", "words")
    leaks = json.loads(lmtool.succeeds(*asked, "--json").out)["leaks"]
    # each line of the text is a document, so the three rows that say what the text says are whole documents of it
    assert [one["count"] for one in leaks] == [3]
    assert "words, row 1: 'good verdict: yes'" in leaks[0]["text"]
    shown = lmtool.succeeds(*asked)
    assert "3 of 4 rows (75.0 %) are in the training text" in shown.err
    assert [line.split()[0] for line in shown.out.splitlines()] == ["task", "words", "mean"]
    lmtool.refuses(2, *asked[:-1], "word", words=["no task word", "did you mean words"])


def test_runs_are_compared_on_each_task(lmtool, ngram, files, home):
    known = next((home / "runs").iterdir())
    keys = ("model.order=1", "model.context=16", "data.split=document")
    settings = [word for key in keys for word in ("-s", key)]
    lmtool.succeeds("pretrain", files / "text.txt", "-o", "other", "-q", "-r", "ngram", *settings)
    asked = ("runs", "compare", known, "other", "--suite", files / "suite.yaml", "--json")
    tests = {one["source"].rpartition(" ")[2]: one for one in json.loads(lmtool.succeeds(*asked).out)["tests"]}
    assert list(tests) == ["words", "next", "which", "written", "texts"]
    assert tests["words"]["rows"] == 4
    assert tests["words"]["right_alone"][0] - tests["words"]["right_alone"][1] == -4 * tests["words"]["difference"]
    assert tests["texts"]["measure"] == "log-probability"
    assert tests["texts"]["means"][0] > tests["texts"]["means"][1], "the 4-gram knows the text"


def test_what_cannot_be_measured_is_refused(lmtool, ngram, files, home):
    asked = ("eval", ngram, "--suite")
    lmtool.refuses(2, *asked, "bundlde", words=["no suite", "bundled"])
    lmtool.refuses(2, *asked, "bundled", "text.txt", words=["sets this itself", "TEXT"])
    lmtool.refuses(2, *asked, "bundled", "--shots", "3", "--stride", "2", words=["--stride, --shots"])
    lmtool.refuses(2, *asked, "bundled", "--encoding", "cp1252", words=["--encoding"])
    lmtool.refuses(2, "eval", ngram, files / "text.txt", "--rows", "rows.jsonl", words=["--suite NAME"])
    lmtool.refuses(3, *asked, "bigbench", words=["bigbench_qa_wikidata.jsonl", "lmtool data get bigbench"])
    encoder = ("-s", "model.shape=encoder", "-s", "objective={kind: masked}")
    lmtool.succeeds("pretrain", files / "text.txt", "-o", "masked", "-q", *SMALL, *encoder)
    lmtool.refuses(2, "eval", "masked", "--suite", files / "suite.yaml", words=["kind continuation", "next"])
    only = files / "only.yaml"
    only.write_text(SUITE.partition("next:")[0])
    found = json.loads(lmtool.succeeds("eval", "masked", "--suite", only, "--json").out)
    assert found["tasks"]["words"]["rows"] == 4
