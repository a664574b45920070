"""Decoding steps of few rows, which a GPU replays: their kernels take less time than their launches.

Shapes: B rows, D model width.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch import distributed as dist

from lmtool.model.fixed import FixedState, Shape
from lmtool.model.language_model import DecodeState, LanguageModel, RowTokens
from lmtool.model.layers.attention import CrossAttention, SelfAttention, mixers_of
from lmtool.model.layers.parts import FeedForward
from lmtool.model.transformer import TransformerModel

DEVICES = ("cuda",)
MOST_ROWS = 8

PATIENCE = 8
"""Steps of one shape before it is captured, which takes as long as some of them."""

MOST_GRAPHS = 8
"""Shapes that are captured, the first ones; each has a cache of its own."""


class Steps:
    """The captured steps of a model, by the shape of the state.

    Of Transformers on one GPU, for rows with cache lines of their own; there is none for others.
    """

    def __init__(self, model: LanguageModel, device: torch.device) -> None:
        self._model = model
        # other mixers may wait for the device, which a graph cannot hold
        self._serves = (
            device.type in DEVICES
            and isinstance(model, TransformerModel)
            and all(type(mixer) in (SelfAttention, CrossAttention, FeedForward) for mixer in mixers_of(model))
            and not (dist.is_available() and dist.is_initialized())
        )
        self._seen: Counter[Shape] = Counter()
        self._captured: dict[Shape, CapturedStep] = {}

    def of(self, state: DecodeState) -> "CapturedStep | None":
        """The step of states of this shape; None where it is not captured."""
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


class CapturedStep:
    """One token of each row, with a state and a captured graph of its own."""

    def __init__(self, model: LanguageModel, state: FixedState) -> None:
        self._model, self._state = model, state
        self._tokens_B1 = torch.zeros(state.n_rows, 1, dtype=torch.int64, device=state.newest_1.device)
        self._run = captured(self._advance, state.newest_1.device)

    def __call__(self, tokens_B1: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        """Hidden states (B, D), valid until the next call, and the new state.

        A state that this step returned is changed in place; only the last one may be given again.
        """
        if not isinstance(state, FixedState) or state.newest_1 is not self._state.newest_1:
            self._state.load(state.growing())
        self._tokens_B1.copy_(tokens_B1)
        return self._run(), replace(self._state, length=state.length + 1)

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
