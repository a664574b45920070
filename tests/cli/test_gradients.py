"""`lmtool gradients`, and the same norms in metrics.jsonl on request."""

import json
from pathlib import Path

import pytest

TEXT = "The baker found a map at dawn."


def test_a_curve(lmtool, run):
    outcome = lmtool.succeeds("gradients", "last", TEXT, "--token", "4")
    assert "layer 1" in outcome.out
    assert "log10 of the gradient norm" in outcome.out


def test_a_text_that_is_the_name_of_a_file_is_told(lmtool, run):
    Path("story").write_text("The baker found a map.")
    for command in (
        ("gradients", "last", "story"),
        ("attention", "last", "story"),
        ("tokenize", "--tokenizer", "last", "--show", "story"),
    ):
        assert "story is taken for a text" in lmtool.succeeds(*command).err
    assert "taken for" not in lmtool.succeeds("gradients", "last", TEXT).err


def test_json_and_a_page(lmtool, run):
    outcome = lmtool.succeeds("gradients", "last", TEXT, "--token", "4", "--json", "-o", "page.html")
    record = json.loads(outcome.out)
    assert list(record) == ["tokens", "target", "loss", "norms"]
    assert all(len(norms) == len(record["tokens"]) for norms in record["norms"].values())
    assert "How far back gradients reach" in Path("page.html").read_text(encoding="utf-8")


def test_two_starts(lmtool, home, corpus):
    small = ["model.d_model=8", "model.context=12", "tokenizer.vocab_size=300", "training.steps=1"]
    settings = [word for setting in (*small, "evaluation.baseline=false") for word in ("-s", setting)]
    lmtool.succeeds("pretrain", corpus, "--recipe", "gru", *settings, "-q", "-o", "runs/gru")
    assert "singular value" in lmtool.succeeds("gradients", "gru", TEXT, "--starts").out
    record = json.loads(lmtool.succeeds("gradients", "gru", TEXT, "--starts", "--json", "-o", "starts.html").out)
    assert list(record) == ["tokens", "distances", "rate", "bounds", "largest"]
    assert len(record["distances"]) == len(record["bounds"]) == len(record["tokens"]) + 1
    assert "How fast the first state is forgotten" in Path("starts.html").read_text(encoding="utf-8")
    other = json.loads(lmtool.succeeds("gradients", "gru", TEXT, "--starts", "--json", "--seed", "1").out)
    assert other["distances"] != record["distances"]
    lmtool.refuses(2, "gradients", "gru", TEXT, "--starts", "--token", "2", words=["--token"])


def test_a_transformer_has_no_starts(lmtool, run):
    lmtool.refuses(2, "gradients", "last", TEXT, "--starts", words=["no state", "omit --starts"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["", "--json"], ["no token"]),
        ([TEXT, "--token", "99"], ["no token 99"]),
        ([TEXT * 20], ["reads 16"]),
    ],
)
def test_what_has_no_gradient(lmtool, run, arguments, words):
    lmtool.refuses(2, "gradients", "last", *arguments, words=words)


def test_norms_while_training(lmtool, home, corpus):
    small = ["model.n_layers=1", "model.d_model=8", "model.context=12", "tokenizer.vocab_size=300", "training.steps=2"]
    more = [
        "training.batch_size=2",
        "evaluation.tokens=50",
        "evaluation.baseline=false",
        "evaluation.gradient_norms=true",
    ]
    settings = [word for setting in (*small, *more, "evaluation.every=2") for word in ("-s", setting)]
    lmtool.succeeds("pretrain", corpus, "--recipe", "elman", *settings, "-q", "-o", "runs/one")
    records = [json.loads(line) for line in Path("runs/one/metrics.jsonl").read_text().splitlines()]
    assert "gradient_norms" not in records[0]
    (norms,) = records[-1]["gradient_norms"].values()
    assert len(norms) == 12
    assert norms[0] > norms[-1] > 0


def test_norms_are_of_causal_models(lmtool, home):
    lmtool.refuses(2, "recipes", "show", "bert-tiny", "-s", "evaluation.gradient_norms=true", words=["gradient_norms"])
