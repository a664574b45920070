"""What torch computes fast on some devices only: FlexAttention, CUDA graphs, fused Adam.

Each has the plain computation beside it where it is used, and `lmtool check --device` compares them.

Shapes: B rows, T queries, S keys, N heads, K heads of keys and values, H head width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

FLEX_DEVICES = ("cuda",)
FLEX_MIN_POSITIONS = 1024
"""From this many positions on, eight of its blocks, compiled models use FlexAttention for masks and biases."""

FLEX_MIN_HEAD_WIDTH = 16
"""Minimum head width of FlexAttention."""

GRAPH_DEVICES = ("cuda",)
FUSED_DEVICES = ("cpu", "cuda")


def can_use_flex_attention(device: torch.device, n_positions: int, head_width: int) -> bool:
    """Returns whether FlexAttention serves rows of this length, and a model is being compiled, since it must be."""
    return (
        torch.compiler.is_compiling()
        and device.type in FLEX_DEVICES
        and n_positions >= FLEX_MIN_POSITIONS
        and head_width >= FLEX_MIN_HEAD_WIDTH
    )


class FlexAttention:
    """FlexAttention (Dong et al. 2024): a compiled kernel that skips the blocks in which a mask has no pair.

    There are as many queries as keys. A query that attends to nothing, which is padding, gets zeros.
    """

    def __init__(
        self,
        allows: Callable[[Tensor, Tensor, Tensor], Tensor],
        n_rows: int,
        length: int,
        device: torch.device,
        score_mod: Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None,
    ) -> None:
        """Makes the blocks of a mask.

        Args:
            allows: gives for numbers of a row, a query and a key whether the query attends to the key.
            n_rows: number of masks; 1 for one that all rows have.
            score_mod: changes a score, given the numbers of its row, head, query and key.
        """
        # imported here, because it imports the compiler
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return allows(row, query, key)

        self._blocks = create_block_mask(sees, n_rows, None, length, length, device)
        self._score_mod = score_mod

    def __call__(self, q_BNTH: Tensor, k_BKSH: Tensor, v_BKSH: Tensor, scale: float) -> Tensor:
        """Returns the weighted sums of the values (B, N, T, H)."""
        from torch.nn.attention.flex_attention import flex_attention

        # autocast leaves some scores in float32
        q_BNTH, k_BKSH = q_BNTH.to(v_BKSH.dtype), k_BKSH.to(v_BKSH.dtype)
        is_grouped = q_BNTH.shape[1] != k_BKSH.shape[1]
        return flex_attention(q_BNTH, k_BKSH, v_BKSH, self._score_mod, self._blocks, scale, is_grouped)


def capture_cuda_graph(run: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Captures a computation as a CUDA graph that always returns the same tensor; returns `run` on other devices.

    The tensors that it reads and writes must keep their addresses. Raises RuntimeError for what cannot be captured.
    """
    if device.type != "cuda":
        return run
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):
        before = torch.cuda.current_stream()
        warm_up = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        warm_up.wait_stream(before)
        with torch.cuda.stream(warm_up):
            for _ in range(2):  # libraries allocate their workspaces
                run()
        before.wait_stream(warm_up)
        # other threads, such as a server's, may use CUDA meanwhile
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            output = run()

    def replay() -> Tensor:
        graph.replay()
        return output

    return replay


def adam_counter_device(parameter: Tensor) -> torch.device:
    """Returns the device on which `update_by_adam_` expects the number of steps of a parameter."""
    return parameter.device if parameter.device.type in FUSED_DEVICES else torch.device("cpu")


def update_by_adam_(
    parameters: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    counters: list[Tensor],
    **settings: Any,
) -> None:
    """Updates parameters by Adam, with torch's fused kernel where all are on devices that have one.

    Args:
        averages, squares: of the gradients, which are updated, too.
        counters: the number of steps before, one float32 number each, which is counted up.
        settings: those of `torch.optim.adam.adam`.
    """
    is_fused = all(p.device.type in FUSED_DEVICES for p in parameters)
    adam(parameters, grads, averages, squares, [], counters, fused=is_fused, amsgrad=False, maximize=False, **settings)
