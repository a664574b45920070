"""`lmtool attention`: in the terminal, as a page, and as numbers."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.model.layers.observing import record_attention_weights
from lmtool.runs.load import load_run
from tests.support.cli import CommandLine

TEXT = "The twin sold a map"


def weights_of(run: Path) -> tuple[list[str], NDArray[Any]]:
    loaded = load_run(str(run))
    opening = [loaded.tokenizer.bos_id] if loaded.recipe.data.split == "document" else []
    ids = [*opening, *loaded.tokenizer.encode(TEXT)]
    with torch.inference_mode(), record_attention_weights(loaded.model) as found:
        loaded.model(Batch(torch.tensor([ids])))
    weights = np.stack([weights[0].numpy() for weights in found.values()])
    return [loaded.tokenizer.display_token(i) for i in ids], weights


def test_json_and_npz_hold_the_weights(lmtool: CommandLine, run: Path, home: Path) -> None:
    tokens, weights = weights_of(run)
    (found,) = lmtool.succeeds("attention", run, TEXT, "--json", "-q").json()["attention"]
    assert (found["queries"], found["keys"]) == (tokens, tokens)
    np.testing.assert_allclose(found["weights"], weights, atol=1e-6)
    assert lmtool.succeeds("attention", run, TEXT, "--npz", "a.npz").out == "a.npz\n"
    with np.load(home / "a.npz") as arrays:
        np.testing.assert_array_equal(arrays["self"], weights)
