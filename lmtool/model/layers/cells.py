"""Recurrent layers: Elman networks, GRU and LSTM, over whole rows, packed texts, or step by step.

Shapes: B rows, T positions, I input width, D state width, G gates times D, M non-padding positions, R texts.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from lmtool.recipe.spec.recurrent import CELL_SIZES, CellName, Nonlinearity, Recurrent

CellState = tuple[Tensor, ...]
"""(h_BD,), or (h_BD, c_BD) for an LSTM."""


@dataclass(frozen=True)
class TextLayout:
    """The layout of a batch's texts where they do not fill their rows: padding, or several documents in a row.

    A text consists of all non-padding tokens of one document of one row, so padding between them does not split it.
    `packed_order_M` gives positions (of B * T) in the order of torch's PackedSequence, without padding: the first
    tokens of all texts, longest text first, then their second tokens, and so on.

    flat_M: index of each non-padding position in the flat batch.
    text_rank_M: rank of its text by length, longest first.
    position_M: its position in the text.
    first_text_B, last_text_B: the first and last text of each row, or R for an empty row.
    n_positions: T.
    """

    flat_M: Tensor
    text_rank_M: Tensor
    position_M: Tensor
    first_text_B: Tensor
    last_text_B: Tensor
    n_texts: int
    n_positions: int

    @classmethod
    def from_masks_unless_full(
        cls, tokens_BT: Tensor, keep_BT: Tensor | None, documents_BT: Tensor | None
    ) -> Self | None:
        """Returns the layout of a batch; None when each text fills its row."""
        if documents_BT is None and (keep_BT is None or bool(keep_BT.all())):
            return None
        B, T = tokens_BT.shape
        keep_BT = torch.ones_like(tokens_BT, dtype=torch.bool) if keep_BT is None else keep_BT
        flat_M = keep_BT.flatten().nonzero()[:, 0]
        row_M = flat_M // T
        # a text begins where the row or document differs from that of the previous non-padding position
        document_M = row_M if documents_BT is None else documents_BT.flatten()[flat_M]
        begins_M = torch.ones_like(flat_M, dtype=torch.bool)
        begins_M[1:] = (row_M[1:] != row_M[:-1]) | (document_M[1:] != document_M[:-1])
        text_M = begins_M.cumsum(0) - 1
        n_texts = int(begins_M.sum())
        lengths_R = torch.bincount(text_M, minlength=n_texts)
        starts_R = lengths_R.cumsum(0) - lengths_R
        rank_R = lengths_R.argsort(descending=True, stable=True).argsort()
        # texts are first numbered in row order
        none_B = torch.full((B,), n_texts, device=flat_M.device)
        ends = [none_B.scatter_reduce(0, row_M, text_M, which, include_self=False) for which in ("amin", "amax")]
        first_text_B, last_text_B = F.pad(rank_R, (0, 1), value=n_texts)[torch.stack(ends)]
        position_M = torch.arange(len(flat_M), device=flat_M.device) - starts_R[text_M]
        return cls(flat_M, rank_R[text_M], position_M, first_text_B, last_text_B, n_texts, T)

    @cached_property
    def reversed(self) -> "TextLayout":
        """The layout of the same texts, each reversed."""
        lengths_R = torch.bincount(self.text_rank_M, minlength=self.n_texts)
        return replace(self, position_M=lengths_R[self.text_rank_M] - 1 - self.position_M)

    @cached_property
    def packed_order_M(self) -> Tensor:
        """The index in the flat batch of each position in the packed order."""
        return self.flat_M[(self.position_M * self.n_texts + self.text_rank_M).argsort()]

    @cached_property
    def batch_sizes(self) -> Tensor:
        """Number of texts with a token at each position; on the CPU, as PackedSequence requires."""
        return torch.bincount(self.position_M).cpu()

    def unpack_outputs(self, out_MD: Tensor) -> Tensor:
        """Scatters packed outputs to their positions (B, T, D), with zeros at padding."""
        out = out_MD.new_zeros(len(self.last_text_B) * self.n_positions, out_MD.shape[1])
        return out.index_copy(0, self.packed_order_M, out_MD).view(len(self.last_text_B), self.n_positions, -1)

    def initial_text_states(self, state_BD: Tensor) -> Tensor:
        """Returns initial states of all texts (R, D): the row's for its first text, zeros for the others."""
        state_RD = state_BD.new_zeros(self.n_texts + 1, state_BD.shape[1])
        return state_RD.index_copy(0, self.first_text_B, state_BD)[:-1]

    def final_row_states(self, state_RD: Tensor, state_BD: Tensor) -> Tensor:
        """Returns final states of all rows (B, D): those of the last texts; `state_BD` for empty rows."""
        last_BD = torch.cat((state_RD, state_RD.new_zeros(1, state_RD.shape[1])))[self.last_text_B]
        return torch.where((self.last_text_B == self.n_texts)[:, None], state_BD, last_BD)


class RecurrentLayerParameters(nn.Module):
    """Weights of a recurrence without a torch kernel, named and initialised like those of torch's kernels."""

    def __init__(self, n_gates: int, d_in: int, d_out: int) -> None:
        super().__init__()
        rows = n_gates * d_out
        shapes = {"weight_ih": (rows, d_in), "weight_hh": (rows, d_out), "bias_ih": (rows,), "bias_hh": (rows,)}
        for name, shape in shapes.items():
            drawn = torch.empty(shape).uniform_(-(d_out**-0.5), d_out**-0.5)
            self.register_parameter(f"{name}_l0", nn.Parameter(drawn))

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """Input weights, recurrent weights and their biases of one layer."""
        return [list(self.parameters())]


class Cell(nn.Module, ABC):
    """One recurrent layer. `step` defines it; whole rows use the equivalent torch kernel if there is one.

    It computes in the dtype of its weights also under autocast, because rounding accumulates over steps.

    kind: its name in recipes; `CELL_SIZES` has its sizes.
    kernel: torch's kernel, which then holds the weights of the cell.
    recorded_states: where to collect the state after each step, see `record_step_states`; usually None.
    """

    kind: ClassVar[CellName]

    def __init__(self, d_in: int, d_out: int, kernel: nn.RNNBase | None = None) -> None:
        super().__init__()
        n_gates, self.n_parts = CELL_SIZES[self.kind]
        self.d_out = d_out
        self.recorded_states: list[CellState] | None = None
        self.kernel = RecurrentLayerParameters(n_gates, d_in, d_out) if kernel is None else kernel

    @abstractmethod
    def step(self, gates_BG: Tensor, state: CellState) -> CellState:
        """Returns the state after one input, which `project_input` has projected."""

    def initial_state(self, n_rows: int) -> CellState:
        """Returns the state before the first token: zeros."""
        weight = self._weights()[0]
        return tuple(weight.new_zeros(n_rows, self.d_out) for _ in range(self.n_parts))

    def forward(self, x_BTI: Tensor, state: CellState, layout: TextLayout | None = None) -> tuple[Tensor, CellState]:
        """Returns the hidden states (B, T, D) at each position, zeros at padding, and the final state.

        Args:
            state: the initial state, from which the first text of each row continues; others start from zeros.
            layout: of the texts; None if each fills its row.
        """
        with torch.autocast(x_BTI.device.type, enabled=False):
            x_BTI = x_BTI.to(self._weights()[0].dtype)
            if layout is None:
                if self.recorded_states is not None or isinstance(self.kernel, RecurrentLayerParameters):
                    steps, last = self._run_steps(self.project_input(x_BTI).unbind(1), state)
                    return torch.stack(steps, 1), last
                return self._run_torch_kernel(x_BTI, state)
            if not layout.n_texts:
                return x_BTI.new_zeros(*x_BTI.shape[:2], self.d_out), state
            x_MI = x_BTI.flatten(0, 1)[layout.packed_order_M]
            first = tuple(layout.initial_text_states(part) for part in state)
            if isinstance(self.kernel, RecurrentLayerParameters):
                steps, last = self._run_steps(torch.split(self.project_input(x_MI), layout.batch_sizes.tolist()), first)
                out_MD = torch.cat(steps)
            else:
                packed, last = self._run_torch_kernel(PackedSequence(x_MI, layout.batch_sizes), first)
                out_MD = packed.data
            final = tuple(layout.final_row_states(part, before) for part, before in zip(last, state, strict=True))
            return layout.unpack_outputs(out_MD), final

    def forward_right_to_left(
        self, x_BTI: Tensor, state: CellState, layout: TextLayout | None
    ) -> tuple[Tensor, CellState]:
        """Computes the same from right to left: the state at t depends on t and all later positions."""
        if layout is not None:
            return cast(tuple[Tensor, CellState], self(x_BTI, state, layout.reversed))
        out_BTD, last = self(x_BTI.flip(1), state)
        return out_BTD.flip(1), last

    def project_input(self, x: Tensor) -> Tensor:
        """Returns the input part of the gates (..., G), for `step`."""
        weight, _, bias, _ = self._weights()
        return F.linear(x, weight, bias)

    def project_state(self, state: CellState) -> Tensor:
        """Returns the recurrent part of the gates (B, G)."""
        _, weight, _, bias = self._weights()
        return F.linear(state[0], weight, bias)

    @torch.no_grad()
    def init_recurrent_weights_(self, radius: float) -> None:
        """Makes the recurrent matrix of each gate orthogonal times `radius`, the magnitude of all its eigenvalues."""
        for matrix_DD in torch.split(self._weights()[1], self.d_out):
            nn.init.orthogonal_(matrix_DD, radius)

    def _weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns the input weights (G, I), the recurrent weights (G, D), and their biases."""
        weight_in, weight_past, bias_in, bias_past = self.kernel.all_weights[0]
        return weight_in, weight_past, bias_in, bias_past

    def _run_steps(self, projected_steps: Sequence[Tensor], state: CellState) -> tuple[list[Tensor], CellState]:
        """Returns the hidden states of each step, whose batch may shrink from the end, and all rows' final states."""
        steps, ended = [], []
        for gates_BG in projected_steps:
            ended.append(tuple(part[len(gates_BG) :] for part in state))
            state = self.step(gates_BG, tuple(part[: len(gates_BG)] for part in state))
            steps.append(state[0])
            if self.recorded_states is not None:
                self.recorded_states.append(state)
        ended.append(state)
        return steps, tuple(torch.cat(parts) for parts in zip(*reversed(ended), strict=True))

    def _run_torch_kernel(self, x: Any, state: CellState) -> tuple[Any, CellState]:
        """Runs torch's kernel, whose states have a leading layer dimension, on rows or a PackedSequence."""
        parts = [part[None].contiguous() for part in state]
        out, last = self.kernel(x, parts[0] if self.n_parts == 1 else tuple(parts))
        return out, tuple(part[0] for part in ((last,) if self.n_parts == 1 else last))


class ElmanCell(Cell):
    """h_t = f(W x_t + b + U h_{t-1} + b') (Elman 1990)."""

    kind = "rnn"

    def __init__(self, nonlinearity: Nonlinearity, d_in: int, d_out: int) -> None:
        # torch's kernel has no sigmoid
        kernel = None if nonlinearity == "sigmoid" else nn.RNN(d_in, d_out, nonlinearity=nonlinearity, batch_first=True)
        super().__init__(d_in, d_out, kernel)
        self.nonlinearity = nonlinearity

    def step(self, gates_BG: Tensor, state: CellState) -> CellState:
        return (getattr(torch, self.nonlinearity)(gates_BG + self.project_state(state)),)


class GruCell(Cell):
    """The gated recurrent unit (Cho et al. 2014), with the reset gate applied after U, as in torch."""

    kind = "gru"

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, nn.GRU(d_in, d_out, batch_first=True))

    def step(self, gates_BG: Tensor, state: CellState) -> CellState:
        reset, update, new = gates_BG.chunk(3, -1)
        past_reset, past_update, past_new = self.project_state(state).chunk(3, -1)
        update = torch.sigmoid(update + past_update)
        new = torch.tanh(new + torch.sigmoid(reset + past_reset) * past_new)
        return (new + update * (state[0] - new),)


class LstmCell(Cell):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), with the forget gate of Gers et al. 2000."""

    kind = "lstm"

    def __init__(self, d_in: int, d_out: int) -> None:
        super().__init__(d_in, d_out, nn.LSTM(d_in, d_out, batch_first=True))
        # a forget bias of 1 (Jozefowicz et al. 2015), to which the other bias is added
        nn.init.ones_(self._weights()[3][d_out : 2 * d_out])

    def step(self, gates_BG: Tensor, state: CellState) -> CellState:
        enter, forget, new, leave = (gates_BG + self.project_state(state)).chunk(4, -1)
        c_BD = torch.sigmoid(forget) * state[1] + torch.sigmoid(enter) * torch.tanh(new)
        return torch.sigmoid(leave) * torch.tanh(c_BD), c_BD


@contextmanager
def record_step_states(model: nn.Module) -> Iterator[list[list[CellState]]]:
    """Makes recurrent layers compute step by step during one forward pass, and records their states.

    Yields a list for each layer, in the order of the modules, which the pass fills with the layer's state after each
    step: the very tensors that later steps and layers read, so that they get gradients. Rows have one text each.
    """
    cells = [module for module in model.modules() if isinstance(module, Cell)]
    states: list[list[CellState]] = [[] for _ in cells]
    for cell, states_of_layer in zip(cells, states, strict=True):
        cell.recorded_states = states_of_layer
    try:
        yield states
    finally:
        for cell in cells:
            cell.recorded_states = None


def build_cell(spec: Recurrent, d_in: int | None = None, d_out: int | None = None) -> Cell:
    """Builds the recurrent layer of a recipe from width `d_in` to `d_out`, by default both the model's width."""
    sizes = d_in or spec.d_model, d_out or spec.d_model
    cell: Cell
    match spec.cell:
        case "rnn":
            cell = ElmanCell(spec.nonlinearity, *sizes)
        case "gru":
            cell = GruCell(*sizes)
        case "lstm":
            cell = LstmCell(*sizes)
    if spec.recurrent_radius is not None:
        cell.init_recurrent_weights_(spec.recurrent_radius)
    return cell
