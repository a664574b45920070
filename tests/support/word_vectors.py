"""Word vectors of a few documents of numbered words."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch

from lmtool.model.word_vectors import PpmiModel
from lmtool.objective import TextCutSettings
from lmtool.recipe.spec.words import Ppmi
from lmtool.training.windows import Windows
from tests.support.training import MemoryStore

V, SPECIALS, BOS, EOS, UNK = 20, 7, 1, 2, 3
WORDS = set(range(SPECIALS, V))
COUNTS = np.array([0, 9, 9, 50, 0, 0, 0, *range(1, 14)])


def randomised(model: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.double().parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def counted(rows: list[list[int]], window: int, *, parts: int = 1) -> PpmiModel:
    """A model that has counted documents, in so many parts."""
    model = PpmiModel(Ppmi(kind="ppmi", d_model=6, window=window), V)
    model.counts_V[SPECIALS:] = 1
    windows = Windows(MemoryStore(rows), TextCutSettings("stream", 1, 1), 1)
    edges = np.linspace(0, windows.n_tokens, parts + 1).astype(int).tolist()
    for start, stop in pairwise(edges):
        model.partial_fit_([windows.read_span(start, stop, window)], stop - start)
    return model


TEXT = [[BOS, 7, 8, 9, 10, 7, 8, 11, EOS], [BOS, 12, 13, 7, UNK, 9, 9, EOS], [BOS, 14, 8, 12, EOS]]
