"""`lmtool attention`: in the terminal, as a page, and as numbers; errors."""

import json

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.inference.load import load_run
from lmtool.model.layers.observing import record_attention_weights

TEXT = "The twin sold a map"


def weights_of(run, text):
    loaded = load_run(str(run))
    opening = [loaded.tokenizer.bos_id] if loaded.recipe.data.split == "document" else []
    ids = [*opening, *loaded.tokenizer.encode(text)]
    with torch.inference_mode(), record_attention_weights(loaded.model) as found:
        loaded.model(Batch(torch.tensor([ids])))
    return [loaded.tokenizer.display_token(i) for i in ids], np.stack(
        [weights[0].numpy() for weights in found.values()]
    )


def test_json_and_npz_hold_the_weights(lmtool, run, home):
    tokens, weights = weights_of(run, TEXT)
    (found,) = json.loads(lmtool.succeeds("attention", run, TEXT, "--json", "-q").out)["attention"]
    assert (found["queries"], found["keys"]) == (tokens, tokens)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    np.testing.assert_allclose(np.sum(found["weights"], -1), 1, atol=1e-5)
    assert lmtool.succeeds("attention", run, TEXT, "--npz", "a.npz").out == "a.npz\n"
    with np.load(home / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["self"], weights)


def test_a_pipe_gets_a_plain_matrix(lmtool, run):
    tokens, weights = weights_of(run, TEXT)
    title, _, *rows = lmtool.succeeds("attention", run, TEXT, "--layer", "0", "--head", "1").out.splitlines()
    assert title == "Self-attention, layer 0, head 1, in percent"
    assert "\x1b" not in "".join(rows)
    last = rows[len(tokens) - 1].split()[2:]
    assert [0 if cell == "·" else int(cell) for cell in last] == [round(100 * w) for w in weights[0, 1, -1].tolist()]


def test_a_page_is_written_once(lmtool, run, home):
    assert lmtool.succeeds("attention", run, TEXT, "-o", "page.html").out == "page.html\n"
    page = (home / "page.html").read_text(encoding="utf-8")
    assert "attention-data" in page
    assert "Content-Security-Policy" in page
    lmtool.refuses(2, "attention", run, TEXT, "-o", "page.html", words=["exists already"])
    assert (home / "page.html").read_text(encoding="utf-8") == page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["no text is given", "give TEXT"]),
        ((TEXT, "--layer", "1"), ["no layer 1", "0, the only one"]),
        ((TEXT, "--head", "2"), ["no head 2", "0 to 1"]),
        ((TEXT, "--kind", "cross"), ["no attention of the kind cross", "choose self"]),
        ((TEXT, "-o", "page.txt"), ["not .html"]),
        ((TEXT, "--npz", "a.html"), ["not .npz"]),
        (("map " * 50,), ["context is 16", "shorten it"]),
        (("--source", TEXT), ["reads a text, not a source"]),
        ((TEXT, "--layer", "9", "-o", "page.html"), ["no layer 9"]),
    ],
    ids=str,
)
def test_what_cannot_be_shown_is_refused(lmtool, run, home, arguments, words):
    lmtool.refuses(2, "attention", run, *arguments, "-q", words=words)
    assert not list(home.glob("*.html"))


def test_a_run_that_does_not_exist(lmtool, run):
    lmtool.refuses(4, "attention", "other", TEXT)
