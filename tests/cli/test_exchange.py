"""`lmtool export`: from a fine-tuned published model to a directory or a file, and back."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.support import peers
from tests.support.cli import CommandLine
from tests.support.peers import BODIES
from tests.support.published import sentence_transformers

SHORT = ("-s", "training.epochs=1", "-s", "training.device=cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(peers, "CASES", {**peers.CASES, **BODIES})
    return tmp_path


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
