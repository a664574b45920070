"""Other families on the command line: n-grams as a baseline, skip-gram's pairs."""

import json

import pytest

NGRAM = ["-r", "ngram", "-s", "tokenizer.vocab_size=300", "-s", "model.order=3", "-s", "training.steps=3"]
SKIPGRAM = [
    *("-r", "skipgram", "-s", "model.d_model=8", "-s", "model.context=16", "-s", "training.steps=4"),
    *("-s", "training.batch_size=2", "-s", "evaluation.tokens=300"),
]


@pytest.fixture
def ngram(lmtool, home, corpus):
    lmtool.succeeds(
        "pretrain", corpus, *NGRAM, "-s", "model.context=64", "-s", "training.batch_size=4", "-q", "-o", "n"
    )
    return "n"


@pytest.fixture
def skipgram(lmtool, home, corpus):
    lmtool.succeeds("pretrain", corpus, *SKIPGRAM, "-q", "-o", "s")
    return "s"


def test_a_baseline_is_shown_beside_a_run(lmtool, run, ngram, corpus):
    alone = json.loads(lmtool.succeeds("eval", ngram, corpus, "--json").out)
    both = json.loads(lmtool.succeeds("eval", run, corpus, "--baseline", ngram, "--json").out)
    del alone["limit_bits_per_byte"], alone["unseen_ngrams"]
    assert both["baseline"] == alone
    assert both["bits_per_byte"] == json.loads(lmtool.succeeds("eval", run, corpus, "--json").out)["bits_per_byte"]
    shown = lmtool.succeeds("eval", run, corpus, "--baseline", ngram).out.splitlines()
    assert f"baseline         {alone['bits_per_byte']:.4f} bits per byte (n, ngram)" in shown


def test_an_n_gram_model_writes_and_cannot_be_trained_on(lmtool, ngram):
    first, second = (lmtool.succeeds("generate", "The", "--run", ngram, "--seed", "3", "--json").out for _ in range(2))
    assert first == second
    assert json.loads(first)["tokens"]
    again = lmtool("resume", ngram, "-s", "training.steps=+2", "-q")
    assert again.code == 2
    assert again.err.startswith("the whole text was counted in 3 steps")


def test_an_n_gram_model_has_no_vectors(lmtool, ngram):
    lmtool.refuses(2, "neighbors", ngram, "the", words=["no token embeddings"])


def test_skip_gram_is_measured_by_pairs(lmtool, skipgram, ngram, corpus):
    first, second = (json.loads(lmtool.succeeds("eval", skipgram, corpus, "--json").out) for _ in range(2))
    assert first == second
    assert set(first) == {"loss", "pairs", "context"}
    assert 0 < first["loss"] < 10
    assert "nats per pair" in lmtool.succeeds("eval", skipgram, corpus).out
    lmtool.refuses(2, "eval", skipgram, corpus, "--baseline", ngram, words=["cannot be compared"])


def test_skip_gram_has_neighbours_and_no_next_token(lmtool, skipgram):
    assert len(lmtool.succeeds("neighbors", skipgram, "kettle", "-k", "3").out.splitlines()) == 3
    lmtool.refuses(2, "generate", "The", "--run", skipgram, words=["next token"])
