"""Decoding steps of few rows, which a GPU replays, as their kernels take less time than their launches, and of one row,
which kernels in C compute on a CPU.

Shapes: B rows, D model width.
"""

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor
from torch import distributed as dist

from lmtool.compute.agreement import agree, away
from lmtool.generation.rowstep import MIXERS, NativeLayers, RowStep
from lmtool.model.fixed import FixedState, Shape
from lmtool.model.language_model import DecodeState, LanguageModel, RowTokens
from lmtool.model.layers.attention import mixers_of
from lmtool.model.packed import rounds_inputs
from lmtool.model.transformer import TransformerModel

_LOG = logging.getLogger(__name__)

DEVICES = ("cuda",)
MOST_ROWS = 8

PATIENCE = 8
"""Steps of one shape before it is captured, which takes as long as some of them."""

MOST_GRAPHS = 8
"""Shapes that are captured, the first ones; each has a cache of its own."""


class Steps:
    """The fast steps of a model, by the shape of the state.

    Of Transformers, for rows with cache lines of their own: captured on one GPU, by kernels on a CPU for one row. There
    is none for others.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self._model = model
        # other mixers may wait for the device, which a graph cannot hold
        self._serves = (
            device.type in DEVICES
            and isinstance(model, TransformerModel)
            and all(type(mixer) in MIXERS for mixer in mixers_of(model))
            and not (dist.is_available() and dist.is_initialized())
        )
        self._is_native = device.type == "cpu"
        self._seen: Counter[Shape] = Counter()
        self._captured: dict[Shape, CapturedStep] = {}

    @cached_property
    def native(self) -> NativeLayers | None:
        """The layers, and from now on the head, as kernels compute them for one row; None where they do not."""
        return NativeLayers.of(self._model) if self._is_native else None

    def __call__(self, tokens_B1: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState] | None:
        """Hidden states (B, D), and the new state, as of `CapturedStep`; None where no fast step serves.

        The first step of a shape is compared with that of the model, which is taken where they differ, with a warning,
        and from then on.
        """
        step = self.of(state)
        if step is None or step.is_checked:
            return None if step is None else step(tokens_B1, state)
        hidden_B1D, plain = self._model.advance(tokens_B1, state.growing())
        wanted_BD = hidden_B1D[:, -1]
        found_BD, after = step(tokens_B1, state)
        rounds = torch.is_autocast_enabled(tokens_B1.device.type) or rounds_inputs(self._model)
        if agree(found_BD, wanted_BD, in_float32=not rounds):
            step.is_checked = True
            return found_BD, after
        percent = 100 * away(found_BD, wanted_BD)
        _LOG.warning("the fast step here differs from the model's by %.0f %%, and is not taken", percent)
        self._serves = self._is_native = False
        return wanted_BD, plain

    def of(self, state: DecodeState) -> "CapturedStep | None":
        """The step of states of this shape; None where it is not captured."""
        if self._is_native and state.n_rows == 1 and self.native is not None:
            return self._of_one_row(state, self.native)
        if not self._serves or state.branches is not None or state.n_rows > MOST_ROWS:
            return None
        shape = Shape.of(state)
        self._seen[shape] += 1
        if shape not in self._captured and self._seen[shape] > PATIENCE and len(self._captured) < MOST_GRAPHS:
            try:
                self._captured[shape] = CapturedStep(self._model, FixedState.like(state, shape))
            except RuntimeError:  # a library's kernel that cannot be captured, or no memory for one more cache
                self._serves = False
        return self._captured.get(shape) if self._serves else None

    def _of_one_row(self, state: DecodeState, layers: NativeLayers) -> "CapturedStep | None":
        if state.branches is not None or (state.padding_B is not None and state.padding_B.any()):
            return None
        shape = Shape.of(state)
        if shape not in self._captured:
            growing = state.growing()
            fixed = replace(FixedState.like(growing.of_type(torch.float32), shape), grows_as=growing.dtype)
            self._captured[shape] = CapturedStep(self._model, fixed, RowStep(layers, fixed))
        return self._captured[shape]


class CapturedStep:
    """One token of each row, with a state and a captured graph of its own.

    row: computes it instead, for one row on a CPU.
    is_checked: it has been compared with the step of the model.
    """

    is_checked: bool = False

    def __init__(self, model: LanguageModel, state: FixedState, row: RowStep | None = None) -> None:
        self._model, self._state, self._row = model, state, row
        self._tokens_B1 = torch.zeros(state.n_rows, 1, dtype=torch.int64, device=state.newest_1.device)
        self._run = captured(self._advance, state.newest_1.device)

    def __call__(self, tokens_B1: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Hidden states (B, D), valid until the next call, and the new state.

        A state that this step returned is changed in place; only the last one may be given again.
        """
        if not isinstance(state, FixedState) or state.newest_1 is not self._state.newest_1:
            state = state.growing()
            self._state.load(state)
            if self._row is not None:
                self._row.read_source(state)
        after = replace(self._state, length=state.length + 1)
        if self._row is not None:
            return self._row(tokens_B1), after
        self._tokens_B1.copy_(tokens_B1)
        return self._run(), after

    def _advance(self) -> Tensor:
        kind = self._tokens_B1.device.type
        # weights that autocast has cached are not there any more when a graph is replayed
        with torch.autocast(
            kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind), cache_enabled=False
        ):
            hidden_B1D, after = self._model.advance(self._tokens_B1, self._state)
        for kept, now in zip(self._state.layers, after.layers, strict=True):
            if isinstance(kept, RowTokens) and isinstance(now, RowTokens):
                kept.tokens_BS.copy_(now.tokens_BS[:, 1:])
        return hidden_B1D[:, -1]


def captured(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """The same computation as a CUDA graph, whose output is the same tensor each time; `run` itself on other devices.

    Everything that it reads and writes must stay where it is.
    """
    if device.type != "cuda":
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        beside.wait_stream(before)
        with torch.cuda.stream(beside):
            for _ in range(2):  # libraries allocate their workspaces
                run()
        before.wait_stream(beside)
        # other threads, as of a server, may go on with theirs
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = run()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay
