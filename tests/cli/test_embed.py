"""`lmtool embed` and `lmtool neighbors`: the model's own vectors, and errors."""

import io
import json
import sys

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.inference.load import load_run
from lmtool.tokenization.tokenizer import find_word_spans

TEXT = "The  señora's map"
OTHER = "A twin (at dawn)"


@pytest.fixture
def stdin(monkeypatch):
    def give(text):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    return give


def layers_of(run, text):
    """Every layer's vectors of a text read alone, and the positions of its tokens."""
    loaded = load_run(str(run))
    ids, places = loaded.tokenizer.encode_with_offsets(text)
    assert ids == loaded.tokenizer.encode(text)
    marks = loaded.recipe.data.split == "document"
    row = [loaded.tokenizer.bos_id, *ids, loaded.tokenizer.eos_id] if marks else ids
    with torch.inference_mode():
        layers = [layer[0] for layer in loaded.model.layer_outputs(Batch(torch.tensor([row])))]
    return [layer[1:-1] if marks else layer for layer in layers], places, layers


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_a_word_has_the_mean_of_its_pieces(lmtool, run, stdin, layer):
    stdin(f"{TEXT}\n\n{OTHER}\n")
    found = [json.loads(line) for line in lmtool.succeeds("embed", run, "--layer", layer).out.splitlines()]
    assert [record["text"] for record in found] == [0, 1]
    for record, text in zip(found, (TEXT, OTHER), strict=True):
        layers, places, _ = layers_of(run, text)
        words = find_word_spans(text)
        assert record["words"] == [text[start:stop] for start, stop in words]
        for (start, stop), vector in zip(words, record["vectors"], strict=True):
            own = [i for i, (a, b) in enumerate(places) if a < stop and b > start]
            torch.testing.assert_close(torch.tensor(vector), layers[layer][own].mean(0), rtol=1e-4, atol=1e-5)
    assert "señora's" in found[0]["words"]


@pytest.mark.parametrize("pool", ["mean", "max", "first", "last"])
def test_a_text_has_one_vector(lmtool, run, stdin, pool):
    stdin(f"{TEXT}\n{OTHER}\n")
    found = [json.loads(line) for line in lmtool.succeeds("embed", run, "--pool", pool, "-q").out.splitlines()]
    for record, text in zip(found, (TEXT, OTHER), strict=True):
        layers, _, whole = layers_of(run, text)
        wanted = {"mean": layers[-1].mean(0), "max": layers[-1].amax(0), "first": whole[-1][0], "last": whole[-1][-1]}
        torch.testing.assert_close(torch.tensor(record["vector"]), wanted[pool], rtol=1e-4, atol=1e-5)


def test_files_hold_the_same_as_lines(lmtool, run, home):
    (home / "texts.txt").write_text(f"{TEXT}\n{OTHER}\n" * 3, encoding="utf-8")
    (home / "rows.csv").write_text(f'n,words\n1,"{TEXT}"\n2,"{OTHER}"\n' * 1, encoding="utf-8")
    lines = [json.loads(line) for line in lmtool.succeeds("embed", run, "texts.txt").out.splitlines()]
    assert len(lines) == 6
    assert lmtool.succeeds("embed", run, "texts.txt", "-o", "a.npz").out == "a.npz\n"
    lmtool.succeeds("embed", run, "texts.txt", "-o", "a.jsonl")
    assert [json.loads(line) for line in (home / "a.jsonl").read_text().splitlines()] == lines
    arrays = np.load(home / "a.npz")
    assert arrays["words"].tolist() == [word for line in lines for word in line["words"]]
    assert arrays["texts"].tolist() == [line["text"] for line in lines for _ in line["words"]]
    np.testing.assert_array_equal(arrays["vectors"], np.float32([v for line in lines for v in line["vectors"]]))
    table = lmtool.succeeds("embed", run, "rows.csv", "--column", "words", "--pool", "mean", "-o", "b.npz")
    assert table.code == 0
    assert np.load(home / "b.npz")["vectors"].shape == (2, 16)
    assert set(np.load(home / "b.npz")) == {"vectors", "texts"}


def test_tables_are_read_by_the_options_of_others(lmtool, run, home, stdin):
    (home / "rows.csv").write_bytes(f"n|a|b\n1|{TEXT}|\n2|{OTHER}|café\n3|x\n".encode("cp1252"))
    columns = ("--text-column", "a", "--text-column", "B")
    options = ("--encoding", "cp1252", "--delimiter", "|", *columns, "--truncate", "--whole", "-q")
    lmtool.refuses(2, "embed", run, "--text", TEXT, *options, words=["--text-column", "only typed texts"])
    lmtool.refuses(3, "embed", run, "rows.csv", *options, "-o", "a.jsonl", words=["rows.csv:4", "--skip-bad-rows"])
    done = lmtool.succeeds("embed", run, "rows.csv", *options, "--skip-bad-rows")
    assert "skipped 1 bad row" in done.err
    stdin(f"{TEXT}\n{OTHER} café\n")
    assert lmtool.succeeds("embed", run, "--truncate", "--whole").out == done.out


def test_neighbours_do_not_change_a_text(lmtool, run, stdin):
    """In a batch with longer ones, and alone."""
    stdin(f"{TEXT}\n{OTHER}\nmap\n")
    together = json.loads(lmtool.succeeds("embed", run).out.splitlines()[2])
    stdin("map\n")
    alone = json.loads(lmtool.succeeds("embed", run).out)
    np.testing.assert_allclose(together["vectors"], alone["vectors"], rtol=1e-4, atol=1e-5)


def test_what_cannot_be_embedded_is_refused(lmtool, run, home, stdin):
    (home / "there.npz").write_text("mine")
    lmtool.refuses(2, "embed", run, "x.txt", "-o", "there.npz", words=["exists already"])
    lmtool.refuses(2, "embed", run, "x.txt", "-o", "a.csv", words=[".npz nor .jsonl"])
    lmtool.refuses(3, "embed", run, "x.txt", words=["x.txt"])
    stdin("a map\n")
    lmtool.refuses(2, "embed", run, "--layer", "7", words=["no layer 7", "0, the embeddings, to 1"])
    stdin("\n \n")
    lmtool.refuses(3, "embed", run, words=["there is no text"])
    stdin("a map\n" + "map " * 50)
    lmtool.refuses(2, "embed", run, "-o", "b.npz", words=["text 2 has", "--truncate"])
    assert not list(home.glob("*b.npz*"))
    stdin("map " * 50)
    found = json.loads(lmtool.succeeds("embed", run, "--truncate").out)
    assert 1 <= len(found["words"]) < 50


def test_neighbors_are_the_nearest_by_cosine(lmtool, run):
    loaded = load_run(str(run))
    vectors = loaded.model.token_vectors().detach()
    word = loaded.tokenizer.encode("The")
    found = json.loads(lmtool.succeeds("neighbors", run, "The", "-k", "5", "--json", "-q").out)
    assert found["word"] == loaded.tokenizer.display_token(word[0])
    similar = F.cosine_similarity(vectors, vectors[word[0]][None])
    similar[list(loaded.tokenizer.special_ids)] = -2
    similar[word[0]] = -2
    wanted = similar.topk(5)
    assert [near["word"] for near in found["neighbors"]] == [
        loaded.tokenizer.display_token(i) for i in wanted.indices.tolist()
    ]
    np.testing.assert_allclose([near["similarity"] for near in found["neighbors"]], wanted.values, rtol=1e-5)
    shown = lmtool.succeeds("neighbors", run, "The", "-k", "5").out.splitlines()
    assert [line.split("  ", 1)[1] for line in shown] == [near["word"] for near in found["neighbors"]]


def test_an_unknown_word_is_refused_with_those_like_it(lmtool, run):
    lmtool.refuses(2, "neighbors", run, "Thee", words=["'Thee' is not a token", "did you mean"])
    lmtool.refuses(2, "neighbors", run, "xyzzyxyzzy", words=["single word"])
