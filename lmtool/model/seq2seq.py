"""Recurrent encoder-decoders, without attention (Sutskever et al. 2014) and with it (Bahdanau, Luong).

Shapes: B rows, T positions of the target, S positions of the source, D model width, G gates times D; of contexts, G
cache lines of W rows with one source, and Q positions of all rows of a line.
"""

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.compute.kernels import ops
from lmtool.model.language_model import ModulesByDepth, append_to_last_layer
from lmtool.model.layers.cells import Cell, CellState, TextLayout, build_cell
from lmtool.model.layers.memory_attention import RecurrentStateAttention
from lmtool.model.recurrent import RecurrentLayers, RecurrentModel, text_layout
from lmtool.model.state import DecodeState, LayerState, Memory
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.recurrent import CELL_SIZES, Recurrent


class RecurrentEncoder(nn.Module):
    """Computes states at all source positions, and the decoder's initial states.

    Unidirectional: the decoder starts from the encoder's final states (Sutskever et al. 2014). Bidirectional: each
        direction has half the width, and a bridge maps the two final states of each layer: h = tanh(W [forward;
        backward] + b) (after Bahdanau et al. 2015), and c likewise without the tanh, as it is unbounded.
    """

    def __init__(self, spec: Recurrent) -> None:
        super().__init__()
        width, (_, n_parts) = spec.d_model, CELL_SIZES[spec.cell]
        self.dropout = spec.dropout
        both = spec.bidirectional_encoder
        self.forth = nn.ModuleList(build_cell(spec, d_out=width // 2 if both else None) for _ in range(spec.n_layers))
        self.back = nn.ModuleList(build_cell(spec, d_out=width // 2) for _ in range(spec.n_layers)) if both else None
        n_maps = spec.n_layers * n_parts if both else 0
        self.bridge = nn.ModuleList(nn.Linear(width, width) for _ in range(n_maps))

    def forward(self, x_BSD: Tensor, layout: TextLayout | None) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Returns each layer's hidden states (B, S, D), zeros at padding, and each decoder layer's initial state."""
        outputs: list[Tensor] = []
        decoder_states: list[CellState] = []
        for layer, forth in enumerate(cast(Iterable[Cell], self.forth)):
            x_BSD = ops.dropout(x_BSD, self.dropout, self.training) if layer else x_BSD
            zero_state = forth.initial_state(len(x_BSD))
            out_BSD, last = forth(x_BSD, zero_state, layout)
            if self.back is not None:
                back_BSD, back_last = cast(Cell, self.back[layer]).forward_right_to_left(x_BSD, zero_state, layout)
                out_BSD = torch.cat((out_BSD, back_BSD), -1)
                with torch.autocast(out_BSD.device.type, enabled=False):
                    joined = [torch.cat(parts, -1) for parts in zip(last, back_last, strict=True)]
                    h_BD, *others = (self.bridge[layer * len(last) + i](state_BD) for i, state_BD in enumerate(joined))
                    last = (torch.tanh(h_BD), *others)
            x_BSD = out_BSD
            outputs.append(x_BSD)
            decoder_states.append(last)
        return outputs, tuple(decoder_states)

    def modules_by_depth(self) -> ModulesByDepth:
        """Returns the cells of each layer, the last ones with the bridge."""
        cells = zip(self.forth) if self.back is None else zip(self.forth, self.back, strict=True)
        return append_to_last_layer(cells, self.bridge)


class RecurrentEncoderDecoder(RecurrentModel):
    """p(target | source): a decoder initialised from an encoder, optionally with attention to it.

    attention none: the source enters only through the initial state. feed "output" (Luong et al. 2015): the states h_t
    of the last layer are the queries, and the context is concatenated to them before the output. feed "input" (Bahdanau
    et al. 2015): the query is the state h_{t-1} of the first layer, whose input is the embedding concatenated with the
    context.
    """

    reads: Reads = "source"

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.encoder = RecurrentEncoder(spec)
        self.rnn = RecurrentLayers(spec)
        self.attention = None if spec.attention is None else RecurrentStateAttention(spec.attention, spec.d_model)
        feeds = spec.attention is not None and spec.attention.feed == "input"
        n_gates, _ = CELL_SIZES[spec.cell]
        # the columns of the first layer's input weights for the context
        self.feed = nn.Linear(spec.d_model, n_gates * spec.d_model, bias=False) if feeds else None

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """Returns the encoder's layers, with the tokens as source."""
        embedded = self.embed_tokens(batch.tokens_BT)
        return [embedded, *self.encoder(embedded, text_layout(batch))[0]], None

    def initial_state(self, batch: Batch) -> DecodeState:
        if batch.source_BS is None:
            raise ValueError("an encoder-decoder needs a source")
        texts = TextLayout.from_masks_unless_full(batch.source_BS, batch.source_keep_BS, None)
        (*_, out_BSD), first = self.encoder(self.embed_tokens(batch.source_BS), texts)
        if self.attention is None:
            return DecodeState(0, None, first)
        memory = Memory(self.attention.transform_keys(out_BSD), out_BSD[:, None])
        return DecodeState(0, None, (*first, memory), batch.source_keep_BS)

    def _compute_head_inputs(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        x_BTD, layout = self.embed_tokens(batch.tokens_BT), text_layout(batch)
        states = state.layers[: len(self.rnn.cells)]
        if self.attention is None:
            outputs, states = self.rnn(x_BTD, layout, states)
            return self.combine_for_head(outputs[-1], None), states
        memory = cast(Memory, state.layers[-1])
        allowed_G1S = torch.ones_like(memory.v_BNSH[..., 0], dtype=torch.bool)
        if state.source_keep_BS is not None:
            allowed_G1S = state.source_keep_BS[:, None]
        if self.feed is None:
            outputs, states = self.rnn(x_BTD, layout, states)
            context_GQD = self.attention(state.rows_to_lines(outputs[-1]), memory, allowed_G1S)
            return self.combine_for_head(outputs[-1], state.lines_to_rows(context_GQD)), (*states, memory)
        h_BTD, first_state = self._run_input_feeding_layer(x_BTD, state, allowed_G1S, batch.keep_BT)
        outputs, other_states = self.rnn(h_BTD, layout, states[1:], first_layer=1)
        return self.combine_for_head([h_BTD, *outputs][-1], None), (first_state, *other_states, memory)

    def _run_input_feeding_layer(
        self, x_BTD: Tensor, decode_state: DecodeState, allowed_G1S: Tensor, keep_BT: Tensor | None
    ) -> tuple[Tensor, CellState]:
        """Runs the first layer step by step, because each context depends on the previous state.

        The input part of the gates is computed for all steps at once. Padding leaves the state unchanged.
        """
        cell, feed = cast(Cell, self.rnn.cells[0]), cast(nn.Linear, self.feed)
        attention, memory = cast(RecurrentStateAttention, self.attention), cast(Memory, decode_state.layers[-1])
        state: CellState = tuple(decode_state.layers[0])
        hidden = []
        with torch.autocast(x_BTD.device.type, enabled=False):
            for t, gates_BG in enumerate(cell.project_input(x_BTD).unbind(1)):
                context_GWD = attention(decode_state.rows_to_lines(state[0][:, None]), memory, allowed_G1S)
                after = cell.step(gates_BG + feed(decode_state.lines_to_rows(context_GWD)[:, 0]), state)
                if keep_BT is not None:
                    keep_B1 = keep_BT[:, t, None]
                    after = tuple(torch.where(keep_B1, new, old) for new, old in zip(after, state, strict=True))
                state = after
                hidden.append(state[0])
        return torch.stack(hidden, 1), state

    def modules_by_depth(self) -> ModulesByDepth:
        decoder = append_to_last_layer(zip(self.rnn.cells), self.attention, self.join, self.feed)
        return [(self.embedding,), *self.encoder.modules_by_depth(), *decoder]
