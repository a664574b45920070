"""Truncated backpropagation through time (Williams and Peng 1990): states carried from one step to the next.

States are detached: their values are carried, their gradients are not. Shapes: B rows, T positions, D model width.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import CheckpointError
from lmtool.model import DecodeState, LanguageModel, Output
from lmtool.model.language_model import ModelWrapper

PREFIX = "carried/"
"""Prefix of the names of carried states among the tensors of a checkpoint."""


class CarriedModel(ModelWrapper):
    """A model whose rows start from the state `before`; `after` is their final state, detached."""

    def __init__(self, model: LanguageModel, before: DecodeState) -> None:
        super().__init__(model)
        self.before = before
        self.after = before

    def forward(self, batch: Batch) -> Output:
        hidden, after = self.body.forward_incremental(batch.tokens_BT, self.before)
        layers = tuple(tuple(tensor.detach() for tensor in layer) for layer in after.layers)
        # of fixed size, whatever the number of tokens read
        self.after = replace(after, length=0, layers=layers)
        return Output(hidden)

    def initial_state(self, batch: Batch) -> DecodeState:
        """The initial state of the rows."""
        return self.before


def fresh(model: LanguageModel, n_rows: int, device: torch.device) -> DecodeState:
    """The state of rows without a past."""
    return model.initial_state(Batch(torch.zeros(n_rows, 1, dtype=torch.int64, device=device)))


def rows_of(state: DecodeState, start: int, stop: int) -> DecodeState:
    """The state of a subset of the rows."""
    return state.select_rows(range(start, stop))


def to_tensors(state: DecodeState) -> dict[str, Tensor]:
    """A state as named tensors for a checkpoint."""
    return {
        f"{PREFIX}{layer}/{part}": tensor
        for layer, parts in enumerate(state.layers)
        for part, tensor in enumerate(parts)
    }


def from_tensors(tensors: Mapping[str, Tensor], like: DecodeState, where: str) -> DecodeState:
    """The state from the tensors of `to_tensors`, on the device of `like`.

    like: a state of the same rows. where: the checkpoint. Raises CheckpointError when the tensors do not match.
    """
    expected = to_tensors(like)
    saved = {name: tensor for name, tensor in tensors.items() if name.startswith(PREFIX)}
    outlines, wanted = ({(name, t.shape, t.dtype) for name, t in part.items()} for part in (saved, expected))
    if outlines != wanted:
        name = min(name for name, *_ in outlines ^ wanted)
        what = f"the carried states of the rows do not fit the run: {name} is missing, unknown or of another shape"
        raise CheckpointError(what, where=where, fix="resume from another checkpoint")
    parts = iter(saved[name].to(tensor) for name, tensor in expected.items())
    return replace(like, layers=tuple(tuple(next(parts) for _ in layer) for layer in like.layers))
