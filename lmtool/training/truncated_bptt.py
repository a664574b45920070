"""Truncated backpropagation through time (Williams and Peng 1990): states carried from one step to the next.

States are detached: their values are carried, their gradients are not. Shapes: B rows, T positions, D model width.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import CheckpointError
from lmtool.model import DecodeState, HiddenOutput, LanguageModel
from lmtool.model.language_model import ModelWrapper

TENSOR_PREFIX = "carried/"
"""Prefix of the names of carried states among the tensors of a checkpoint."""


class StateCarryingModel(ModelWrapper):
    """A model whose rows start from `carried_state`; after a forward pass `final_state` is their last one, detached."""

    def __init__(self, model: LanguageModel, carried_state: DecodeState) -> None:
        super().__init__(model)
        self.carried_state = carried_state
        self.final_state = carried_state

    def forward(self, batch: Batch) -> HiddenOutput:
        hidden, state = self.body.forward_incremental(batch.tokens_BT, self.carried_state)
        layers = tuple(tuple(tensor.detach() for tensor in layer) for layer in state.layers)
        # of fixed size, whatever the number of tokens read
        self.final_state = replace(state, length=0, layers=layers)
        return HiddenOutput(hidden)

    def initial_state(self, batch: Batch) -> DecodeState:
        """Returns the initial state of the rows."""
        return self.carried_state


def make_initial_state(model: LanguageModel, n_rows: int, device: torch.device) -> DecodeState:
    """Returns the state of rows that have read nothing."""
    return model.initial_state(Batch(torch.zeros(n_rows, 1, dtype=torch.int64, device=device)))


def state_to_tensors(state: DecodeState) -> dict[str, Tensor]:
    """Converts a state to named tensors for a checkpoint."""
    return {
        f"{TENSOR_PREFIX}{layer}/{part}": tensor
        for layer, parts in enumerate(state.layers)
        for part, tensor in enumerate(parts)
    }


def state_from_tensors(tensors: Mapping[str, Tensor], initial: DecodeState, checkpoint_path: str) -> DecodeState:
    """Returns the state from the tensors of `state_to_tensors`, on the device of `initial`.

    initial: the initial state of the same rows. Raises CheckpointError if the tensors do not match it.
    """
    expected = state_to_tensors(initial)
    saved = {name: tensor for name, tensor in tensors.items() if name.startswith(TENSOR_PREFIX)}
    shapes, expected_shapes = ({(name, t.shape, t.dtype) for name, t in part.items()} for part in (saved, expected))
    if shapes != expected_shapes:
        name = min(name for name, *_ in shapes ^ expected_shapes)
        what = f"the carried states of the rows do not fit the run: {name} is missing, unknown or of another shape"
        raise CheckpointError(what, where=checkpoint_path, fix="resume from another checkpoint")
    parts = iter(saved[name].to(tensor) for name, tensor in expected.items())
    return replace(initial, layers=tuple(tuple(next(parts) for _ in layer) for layer in initial.layers))
