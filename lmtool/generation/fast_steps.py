"""Fast decoding steps of few rows: CUDA graphs, because launches would take longer than kernels, and for one row on a
CPU a program of C kernels.

Shapes: B rows, D model width.
"""

import logging
from collections import Counter
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch import distributed as dist

from lmtool.compute.agreement import agrees, relative_difference
from lmtool.compute.kernels import gpu
from lmtool.generation.native_step import NATIVE_MIXERS, NativeLayerMatrices, NativeSingleRowStep
from lmtool.model.fixed import DecodeStateShape, StaticDecodeState
from lmtool.model.language_model import DecodeState, LanguageModel, RowTokens
from lmtool.model.layers.attention import find_mixers
from lmtool.model.packed import has_quantized_inputs
from lmtool.model.transformer import TransformerModel

_LOG = logging.getLogger(__name__)

MAX_GRAPH_ROWS = 8

STEPS_BEFORE_CAPTURE = 8
"""Steps of a shape before its graph is captured, which takes as long as several steps."""

MAX_GRAPHS = 8
"""Maximum captured shapes. Each has a cache of its own."""


class FastStepsByShape:
    """The fast steps of a Transformer by the shape of the state, for rows that share no cache line.

    On a single GPU they are captured graphs; on a CPU, C kernels for one row.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self._model = model
        # other mixers may synchronize with the device, which a graph cannot capture
        self._uses_graphs = (
            device.type in gpu.GRAPH_DEVICES
            and isinstance(model, TransformerModel)
            and all(type(mixer) in NATIVE_MIXERS for mixer in find_mixers(model))
            and not (dist.is_available() and dist.is_initialized())
        )
        self._is_native = device.type == "cpu"
        self._seen: Counter[DecodeStateShape] = Counter()
        self._captured: dict[DecodeStateShape, FixedShapeStep] = {}

    @cached_property
    def native_layers(self) -> NativeLayerMatrices | None:
        """The layers for C kernels, which then compute the head too; None for models without such kernels."""
        return NativeLayerMatrices.from_model_if_supported(self._model) if self._is_native else None

    def __call__(self, tokens_B1: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState] | None:
        """Returns hidden states (B, D) and the new state, as `FixedShapeStep` does; None if there is no fast step.

        The first step of a shape is compared with the model's. If they differ, it warns and uses only the model.
        """
        step = self.find_or_capture_step(state)
        if step is None or step.is_checked:
            return None if step is None else step(tokens_B1, state)
        hidden_B1D, plain = self._model.forward_incremental(tokens_B1, state.to_growable())
        expected_BD = hidden_B1D[:, -1]
        hidden_BD, after = step(tokens_B1, state)
        rounds = torch.is_autocast_enabled(tokens_B1.device.type) or has_quantized_inputs(self._model)
        if agrees(hidden_BD, expected_BD, in_float32=not rounds):
            step.is_checked = True
            return hidden_BD, after
        percent = 100 * relative_difference(hidden_BD, expected_BD)
        _LOG.warning("the fast decoding step differs from the model's by %.0f %% and is not used", percent)
        self._uses_graphs = self._is_native = False
        return expected_BD, plain

    def find_or_capture_step(self, state: DecodeState) -> "FixedShapeStep | None":
        """Returns the fast step for the shape of a state; None if there is none yet. Captures it when it is due."""
        if self._is_native and state.n_rows == 1 and self.native_layers is not None:
            if state.shared_lines is not None or (state.padding_B is not None and state.padding_B.any()):
                return None
            shape = DecodeStateShape.from_state(state)
            if shape not in self._captured:
                growing = state.to_growable()
                empty = StaticDecodeState.empty_like(growing.to_dtype(torch.float32), shape)
                fixed = replace(empty, growable_dtype=growing.dtype)
                self._captured[shape] = FixedShapeStep(
                    self._model, fixed, NativeSingleRowStep(self.native_layers, fixed)
                )
            return self._captured[shape]
        if not self._uses_graphs or state.shared_lines is not None or state.n_rows > MAX_GRAPH_ROWS:
            return None
        shape = DecodeStateShape.from_state(state)
        self._seen[shape] += 1
        if (
            shape not in self._captured
            and self._seen[shape] > STEPS_BEFORE_CAPTURE
            and len(self._captured) < MAX_GRAPHS
        ):
            try:
                self._captured[shape] = FixedShapeStep(self._model, StaticDecodeState.empty_like(state, shape))
            except RuntimeError:  # a library's kernel cannot be captured, or memory is short for another cache
                self._uses_graphs = False
        return self._captured.get(shape) if self._uses_graphs else None


class FixedShapeStep:
    """Decodes one token of each row, with a state and a captured graph of its own.

    native: computes the step instead, for one row on a CPU.
    is_checked: whether it was compared with the step of the model.
    """

    is_checked: bool = False

    def __init__(
        self, model: LanguageModel, state: StaticDecodeState, native: NativeSingleRowStep | None = None
    ) -> None:
        self._model, self._state, self._native = model, state, native
        self._tokens_B1 = torch.zeros(state.n_rows, 1, dtype=torch.int64, device=state.newest_position_1.device)
        self._run = gpu.capture_cuda_graph(self._compute_hidden_on_fixed_state, state.newest_position_1.device)

    def __call__(self, tokens_B1: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Returns hidden states (B, D), valid until the next call, and the new state.

        A state that this step returned is changed in place; only the last one may be passed again.
        """
        if not isinstance(state, StaticDecodeState) or state.newest_position_1 is not self._state.newest_position_1:
            state = state.to_growable()
            self._state.copy_from_(state)
            if self._native is not None:
                self._native.set_source(state)
        after = replace(self._state, length=state.length + 1)
        if self._native is not None:
            return self._native(tokens_B1), after
        self._tokens_B1.copy_(tokens_B1)
        return self._run(), after

    def _compute_hidden_on_fixed_state(self) -> Tensor:
        kind = self._tokens_B1.device.type
        # weights that autocast caches are gone when a graph is replayed
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            hidden_B1D, after = self._model.forward_incremental(self._tokens_B1, self._state)
        for kept, now in zip(self._state.layers, after.layers, strict=True):
            if isinstance(kept, RowTokens) and isinstance(now, RowTokens):
                kept.tokens_BS.copy_(now.tokens_BS[:, 1:])
        return hidden_B1D[:, -1]
