"""`--text` and `-` of eval, predict and embed, and checkpoints by RUN@STEP."""

import csv
import io
import json
import shutil
import sys

import pytest

from tests.cli.conftest import RUN

SETTINGS = ("-q", "-s", "training.steps=30", "-s", "training.device=cpu", "-s", "training.epochs=null")


@pytest.fixture
def stdin(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    return give


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    path = tmp_path_factory.mktemp("table") / "reviews.csv"
    rows = (f"{'good' if i % 2 else 'bad'} film {i},{'yes' if i % 2 else 'no'}" for i in range(40))
    path.write_text("review,label\n" + "\n".join(rows) + "\n")
    return path


@pytest.fixture
def classifier(lmtool, home, table):
    lmtool.succeeds("finetune", table, "--recipe", "dan", "--text-column", "review", *SETTINGS, "-o", "tuned")
    return "tuned"


def loss(outcome):
    return json.loads(outcome.out)["loss"]


def test_eval_of_a_text_and_of_standard_input(lmtool, run, home, stdin):
    text = "The baker found a map at dawn."
    (home / "text.txt").write_text(text)
    expected = loss(lmtool.succeeds("eval", "last", "text.txt", "--json"))
    assert loss(lmtool.succeeds("eval", "last", "--text", text, "--json")) == expected
    stdin(text)
    assert loss(lmtool.succeeds("eval", "last", "-", "--json")) == expected
    both = json.loads(lmtool.succeeds("eval", "last", "--text", text, "--text", text, "--json").out)
    one = json.loads(lmtool.succeeds("eval", "last", "--text", text, "--json").out)
    assert both["loss"] == pytest.approx(one["loss"], rel=1e-5)
    assert both["tokens"] == 2 * one["tokens"]
    lmtool.refuses(2, "eval", "last", words=["nothing to evaluate", "--text"])
    stdin("")
    lmtool.refuses(3, "eval", "last", "-", words=["standard input is empty"])


def test_embed_of_texts(lmtool, run, home, stdin):
    stdin("The moon\n")
    pooled = ("--pool", "mean", "-q")
    found = lmtool.succeeds("embed", "last", "-", "--text", "A map", "--text", "The sea", *pooled)
    records = [json.loads(line) for line in found.out.splitlines()]
    assert [record["text"] for record in records] == [0, 1, 2]
    (home / "lines.txt").write_text("A map\nThe sea\nThe moon\n")
    from_file = [json.loads(line) for line in lmtool.succeeds("embed", "last", "lines.txt", *pooled).out.splitlines()]
    for one, other in zip(records, from_file, strict=True):
        assert one["vector"] == pytest.approx(other["vector"], abs=1e-5)
    # texts alone do not read standard input
    stdin("The moon\n")
    assert len(lmtool.succeeds("embed", "last", "--text", "A map", *pooled).out.splitlines()) == 1


def read(outcome):
    return list(csv.DictReader(outcome.out.splitlines()))


def test_predictions_of_texts(lmtool, classifier, table, stdin):
    texts = ["good film 7", "bad film 8"]
    rows = read(lmtool.succeeds("predict", classifier, "--text", texts[0], "--text", texts[1]))
    assert [row["review"] for row in rows] == texts
    assert list(rows[0]) == ["review", "predicted", "p_no", "p_yes"]
    stdin("\n".join(texts))
    assert read(lmtool.succeeds("predict", classifier, "-")) == rows
    whole = lmtool.succeeds("predict", classifier, table).out
    stdin(table.read_text())
    assert lmtool.succeeds("predict", classifier, "-").out == whole
    named = {row["review"]: row["predicted"] for row in csv.DictReader(whole.splitlines())}
    assert [row["predicted"] for row in rows] == [named[text] for text in texts]
    lmtool.refuses(2, "predict", classifier, words=["no row to predict", "--text"])
    lmtool.refuses(2, "predict", classifier, table, "--text", "a", words=["not both"])


def test_predictions_as_json(lmtool, classifier, table, home):
    """By the ending of the file, or --json: the names of the CSV, and numbers that are numbers."""
    rows = read(lmtool.succeeds("predict", classifier, table))
    printed = lmtool.succeeds("predict", classifier, table, "--json").out
    records = [json.loads(line) for line in printed.splitlines()]
    for name in ("out.jsonl", "out.json", "out.csv"):
        lmtool.succeeds("predict", classifier, table, "-o", name)
    assert (home / "out.jsonl").read_text() == printed
    assert json.loads((home / "out.json").read_text()) == records
    assert list(csv.DictReader((home / "out.csv").read_text().splitlines())) == rows
    for row, record in zip(rows, records, strict=True):
        assert list(record) == list(row) == ["review", "label", "predicted", "p_no", "p_yes"]
        assert {name: record[name] for name in ("review", "label", "predicted")}.items() <= row.items()
        for name in ("p_no", "p_yes"):
            assert record[name] == pytest.approx(float(row[name]), abs=1e-6)
    blank = json.loads(lmtool.succeeds("predict", classifier, "--text", "a", "--min-probability", "1", "--json").out)
    assert blank["predicted"] is None
    lmtool.refuses(2, "predict", classifier, table, "-o", "other.parquet", words=["other.parquet"])
    lmtool.refuses(2, "predict", classifier, table, "--json", "-o", "other.csv", words=["--json"])
    lmtool.refuses(2, "predict", classifier, table, "--json", "--guard-formulas", words=["--guard-formulas"])


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        # a header, whose names are not those of training
        ('text,id\n"good, film",7\n', ["good, film"]),
        ('kommentar;nr\n"good; film";7\n"bad, film";8\n', ["good; film", "bad, film"]),
        ('id,text\n7,"good\nfilm"\n', ["good\nfilm"]),
        ('nr,xq\n7,"good, film"\n8,"a bad, film"\n', ["good, film", "a bad, film"]),
        ("id\ttext\n7\tgood film\n", ["good film"]),
        ("text\ngood film\nbad film\n", ["good film", "bad film"]),
        # without one, as in a file
        ('"a good, long film",x\n"a bad, long film",x\n', ["a good, long film", "a bad, long film"]),
        # texts
        ("good, film\nbad, film\n", ["good, film", "bad, film"]),
        ("good film\nbad; film, all in all\n", ["good film", "bad; film, all in all"]),
        ('"good film"\n"Bad," he said, "indeed."\nso-so\n', ['"good film"', '"Bad," he said, "indeed."', "so-so"]),
        ('a film\n"Smart, funny", says one\nanother\n', ["a film", '"Smart, funny", says one', "another"]),
        ("Question, can you say why?\nNo, I can not\n", ["Question, can you say why?", "No, I can not"]),
        ("title\nreview\nfilm\n", ["title", "review", "film"]),
        ("good film", ["good film"]),
    ],
)
def test_standard_input_is_read_as_a_file_or_as_texts(lmtool, classifier, stdin, content, texts):
    stdin(content)
    rows = list(csv.reader(io.StringIO(lmtool.succeeds("predict", classifier, "-").out)))
    cells = [cell for row in rows for cell in row]
    assert len(rows) == len(texts) + 1
    assert all(text in cells for text in texts)
    assert "predicted" in rows[0]


@pytest.mark.parametrize(
    "content",
    [
        '"good, film",7\n"bad, film",8\n',
        '"good, film",7\n',
        "7\tgood film\n8\tbad film\n",
        '7,"good, film"\n8,9,"bad, film"\n',
    ],
)
def test_what_is_neither_a_table_nor_texts_is_refused(lmtool, classifier, stdin, content):
    stdin(content)
    lmtool.refuses(3, "predict", classifier, "-", "-q")


def test_a_ragged_table_is_refused_as_a_file_is(lmtool, classifier, stdin):
    stdin('text,id\n"good, film",7\na,b,c\nd,e\n')
    assert lmtool("predict", classifier, "-", "-q").code == 3


def test_columns_that_are_not_called_as_in_training_are_told(lmtool, classifier, home):
    (home / "other.csv").write_text("text,id\ngood film,7\nbad film,8\n")
    told = lmtool.succeeds("predict", classifier, "other.csv").err
    assert "text 'text'" in told
    (home / "other.csv").write_text("title,body,id\nfilm,good film,7\nwork,bad film,8\n")
    lmtool.refuses(2, "predict", classifier, "other.csv", words=["reads 1 text", "--text-column"])


def test_a_table_on_standard_input_is_evaluated(lmtool, classifier, table, stdin):
    expected = lmtool.succeeds("eval", classifier, table, "--json").out
    stdin(table.read_text())
    outcome = lmtool.succeeds("eval", classifier, "-", "--json")
    assert outcome.out == expected
    assert "tuned, step" in outcome.err
    lmtool.refuses(2, "eval", classifier, "--text", "a", words=["labelled rows", "lmtool predict"])
    lmtool.refuses(2, "eval", classifier, words=["nothing to evaluate"])


def test_texts_are_for_models_of_one_text(lmtool, home):
    rows = "\n".join(f"a {i},b {i},{'yes' if i % 2 else 'no'}" for i in range(40))
    (home / "pairs.csv").write_text(f"premise,hypothesis,label\n{rows}\n")
    lmtool.succeeds("finetune", "pairs.csv", "--recipe", "dan", *SETTINGS, "-o", "tuned")
    lmtool.refuses(2, "predict", "tuned", "--text", "a", words=["2 texts in a row: premise, hypothesis"])


def test_a_language_model_predicts_no_texts(lmtool, run):
    lmtool.refuses(2, "predict", "last", "--text", "The", words=["not fine-tuned"])


def test_a_checkpoint_is_named_by_its_step(lmtool, run, corpus):
    for reference in ("last@4", f"{RUN}@4", f"runs/{RUN}@4", f"{RUN}/checkpoints/step-4"):
        outcome = lmtool.succeeds("generate", "The", "--run", reference, "--max-new-tokens", "2")
        assert ", step 4, " in outcome.err
        assert "newer weights" not in outcome.err
    lmtool.refuses(4, "eval", "last@3", corpus, words=["no checkpoint 'step-000003'", "step-000004"])
    lmtool.refuses(4, "eval", "lats@3", corpus, words=["no run called 'lats'"])


def test_newer_weights_than_the_best_are_told(lmtool, run, corpus):
    (run / "validated.json").write_text('{"step": 6, "best_step": 4, "best_value": 1.0, "stale": 1}')
    said = f"step 4 is the best by validation; newer weights: runs/{RUN}@6\n"
    for command in (("generate", "The", "--max-new-tokens", "2"), ("eval", "last", corpus)):
        outcome = lmtool.succeeds(*command)
        assert outcome.err.count(said) == 1
        assert said not in lmtool.succeeds(*command, "--quiet").err
    shutil.rmtree(run / "checkpoints" / "step-000006")
    assert said not in lmtool.succeeds("eval", "last", corpus).err
