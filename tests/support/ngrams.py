"""N-gram models, counted from a few documents."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.model import NGramModel, build
from lmtool.recipe.spec.words import NGram
from tests.support import tiny

VOCAB, BOS = tiny.VOCAB, 1


def some_documents(n: int = 60, vocab_size: int = VOCAB) -> list[list[int]]:
    """Documents that begin with BOS, with a skewed token distribution."""
    rng = np.random.default_rng(0)
    share = np.arange(1, vocab_size - 2) ** -1.5
    lengths = rng.integers(0, 15, n)
    return [[BOS, *(2 + rng.choice(vocab_size - 3, k, p=share / share.sum())).tolist()] for k in lengths]


def as_batches(documents: list[list[int]], cuts: list[int], n_before: int) -> list[Batch]:
    """All documents as one row, cut into overlapping batches."""
    tokens = torch.tensor([token for document in documents for token in document])
    owner = torch.tensor([number for number, document in enumerate(documents) for _ in document])
    batches = []
    for start, stop in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        first = max(0, start - n_before)
        targets = tokens[first + 1 : stop].clone()
        targets[(owner[first + 1 : stop] != owner[first : stop - 1]) | (torch.arange(first + 1, stop) < start)] = IGNORE
        batches.append(Batch(tokens[None, first : stop - 1], targets[None], documents_BT=owner[None, first : stop - 1]))
    return batches


def counted(
    documents: list[list[int]], order: int, vocab_size: int = VOCAB, cuts: tuple[int, ...] = (), **keys: Any
) -> NGramModel:
    built = build(NGram(kind="ngram", order=order, **keys), vocab_size)
    assert isinstance(built, NGramModel)
    batches = as_batches(documents, list(cuts), built.n_context_tokens)
    built.partial_fit_(batches, sum(map(len, documents)))
    return built.eval()


def log_p(model: NGramModel, text: list[int]) -> Tensor:
    return model.logits(model(Batch(torch.tensor([text]))).hidden_BTD)[0]
