"""`lmtool export`: from a fine-tuned published model to a directory or a file, and back."""

import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest

from lmtool.interop.references import is_published
from tests.support import peers
from tests.support.cli import CommandLine
from tests.support.peers import BODIES, peer_in
from tests.support.published import sentence_transformers

SHORT = ("-s", "training.epochs=1", "-s", "training.device=cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(peers, "CASES", {**peers.CASES, **BODIES})
    return tmp_path


def reviews(path: Path, n: int = 60) -> Path:
    rng = random.Random(1)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["review", "label"])
        for _ in range(n):
            good = rng.random() < 0.5
            writer.writerow([f"It rained and the {rng.choice(['boats', 'sea'])} {'stayed' if good else 'went'}", good])
    return path


def test_a_published_encoder_is_tuned_exported_and_read_back(folder: Path, lmtool: CommandLine) -> None:
    """The form is told before the first step; the directory predicts as the run, and can be tuned further."""
    base, table = sentence_transformers(folder / "published"), reviews(folder / "reviews.csv")
    tuned = lmtool.succeeds("finetune", table, "--from", base, *SHORT)
    line = next(line for line in tuned.err.splitlines() if line.startswith("export: "))
    assert "with its head in head.safetensors, which no class has: objective." in line
    assert tuned.err.index(line) < tuned.err.index("plan: ")
    exported = lmtool.succeeds("export", "last", folder / "out")
    assert line.removeprefix("export: ") in exported.err.replace("exported as", "as")
    of_run, of_export = (
        [line.rsplit(",", 2) for line in lmtool.succeeds("predict", run, table).out.splitlines()[1:]]
        for run in ("last", folder / "out")
    )
    assert [cells[0] for cells in of_export] == [cells[0] for cells in of_run]
    probabilities = [[[float(p) for p in cells[1:]] for cells in cells_of] for cells_of in (of_run, of_export)]
    np.testing.assert_allclose(probabilities[1], probabilities[0], atol=2e-6)  # the temperature is rounded
    found, figures = (json.loads(lmtool.succeeds("eval", run, table, "--json").out) for run in (folder / "out", "last"))
    assert found["accuracy"] == figures["accuracy"]
    assert found["calibration"]["log_loss"] == pytest.approx(figures["calibration"]["log_loss"], abs=1e-5)
    again = lmtool.succeeds("finetune", table, "--from", folder / "out", *SHORT, "-o", folder / "again")
    assert "the head is reused" in again.err


def test_trained_vectors_are_exported_for_sentence_transformers(folder: Path, lmtool: CommandLine) -> None:
    """That library, and the directory read back, give the vectors of the run."""
    base, table = sentence_transformers(folder / "published"), folder / "pairs.csv"
    lines = [f"it rained {i},the sea {i % 7} went" for i in range(30)]
    table.write_text("\n".join(["query,passage", *lines]) + "\n")
    tuned = lmtool.succeeds("finetune", table, "--from", base, *SHORT)
    assert "texts without a label: vectors of the texts of a row are trained to be near each other" in tuned.err
    assert "columns: text 'query' and 'passage' (inferred from their names)" in tuned.err
    assert "recall@10" in tuned.out
    exported = folder / "out"
    lmtool.succeeds("export", "last", exported)
    texts = ["It rained.", "the sea 3 went, and the boats stayed", "it"]
    ours, again = (
        [json.loads(line)["vector"] for line in lmtool.succeeds("embed", run, *words, "--whole").out.splitlines()]
        for words in [[word for text in texts for word in ("--text", text)]]
        for run in ("last", exported)
    )
    np.testing.assert_array_equal(ours, again)
    measured = [json.loads(lmtool.succeeds("eval", run, table, "--json").out) for run in ("last", exported)]
    assert measured[0]["ndcg@10"] == measured[1]["ndcg@10"]
    peers = pytest.importorskip("sentence_transformers")
    theirs = peers.SentenceTransformer(str(exported), device="cpu").encode(texts)
    np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-6)


def llama(folder: Path) -> Path:
    peer_in(folder, "llama")
    return folder


def test_a_name_that_ends_in_gguf_is_of_a_file(folder: Path, lmtool: CommandLine) -> None:
    base = llama(folder / "published")
    lmtool.succeeds("export", base, folder / "a.gguf")
    assert is_published(str(folder / "a.gguf"))
    lmtool.succeeds("export", base, folder / "b.GGUF", "--gguf", "f16")
    assert len((folder / "a.gguf").read_bytes()) == len((folder / "b.GGUF").read_bytes())
    lmtool.succeeds("export", base, folder / "c.gguf", "--gguf", "q8_0")
    assert len((folder / "c.gguf").read_bytes()) < len((folder / "a.gguf").read_bytes())
    for options in (["--adapters"], ["--dtype", "float16"], ["--shard-size", "1"]):
        lmtool.refuses(2, "export", base, folder / "d.gguf", *options, words=[options[0], "GGUF"])
        lmtool.refuses(2, "export", base, folder / "d", "--gguf", "f16", *options, words=[options[0], "GGUF"])
    assert not (folder / "d.gguf").exists()
