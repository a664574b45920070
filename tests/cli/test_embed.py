"""`lmtool embed`: vectors of words and texts as the model computes them, printed and written."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.runs.load import load_run
from lmtool.tokenization.tokenizer import find_word_spans
from tests.support.cli import CommandLine, pipe_in, write_table

TEXT = "The  señora's map"
OTHER = "A twin (at dawn)"


def layers_of(run: Path, text: str) -> tuple[list[torch.Tensor], Any]:
    """Every layer's vectors of a text read alone, and the positions of its tokens."""
    loaded = load_run(str(run))
    ids, places = loaded.tokenizer.encode_with_offsets(text)
    with torch.inference_mode():
        return [layer[0] for layer in loaded.model.hidden_states_by_layer(Batch(torch.tensor([ids])))], places


@pytest.mark.parametrize("layer", [0, -1])
def test_a_word_has_the_mean_of_its_pieces(
    lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    pipe_in(monkeypatch, f"{TEXT}\n\n{OTHER}\n")
    found = lmtool.succeeds("embed", run, "--layer", layer).records()
    assert [record["text"] for record in found] == [0, 1]
    for record, text in zip(found, (TEXT, OTHER), strict=True):
        layers, places = layers_of(run, text)
        words = find_word_spans(text)
        assert record["words"] == [text[start:stop] for start, stop in words]
        for (start, stop), vector in zip(words, record["vectors"], strict=True):
            own = [i for i, (a, b) in enumerate(places) if a < stop and b > start]
            torch.testing.assert_close(torch.tensor(vector), layers[layer][own].mean(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "max", "first", "last"])
def test_a_text_has_one_vector(lmtool: CommandLine, run: Path, pool: str) -> None:
    found = lmtool.succeeds("embed", run, "--text", TEXT, "--text", OTHER, "--pool", pool, "-q").records()
    for record, text in zip(found, (TEXT, OTHER), strict=True):
        last = layers_of(run, text)[0][-1]
        wanted = {"mean": last.mean(0), "max": last.amax(0), "first": last[0], "last": last[-1]}
        torch.testing.assert_close(torch.tensor(record["vector"]), wanted[pool], rtol=1e-4, atol=1e-5)


def test_files_hold_the_same_as_lines(lmtool: CommandLine, run: Path, home: Path) -> None:
    (home / "texts.txt").write_text(f"{TEXT}\n{OTHER}\n" * 3, encoding="utf-8")
    printed = lmtool.succeeds("embed", run, "texts.txt")
    lines = printed.records()
    assert lmtool.succeeds("embed", run, "texts.txt", "-o", "a.npz").out == "a.npz\n"
    lmtool.succeeds("embed", run, "texts.txt", "-o", "a.jsonl")
    assert (home / "a.jsonl").read_text() == printed.out
    arrays = np.load(home / "a.npz")
    assert arrays["words"].tolist() == [word for line in lines for word in line["words"]]
    assert arrays["texts"].tolist() == [line["text"] for line in lines for _ in line["words"]]
    np.testing.assert_array_equal(
        arrays["vectors"], np.array([v for line in lines for v in line["vectors"]], np.float32)
    )
    write_table(home / "rows.csv", [(1, TEXT), (2, OTHER)], "n,words")
    lmtool.succeeds("embed", run, "rows.csv", "--column", "words", "--pool", "mean", "-o", "b.npz")
    assert np.load(home / "b.npz")["vectors"].shape == (2, 16)
    assert set(np.load(home / "b.npz")) == {"vectors", "texts"}
