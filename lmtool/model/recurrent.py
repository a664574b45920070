"""Recurrent language models without a source: from left to right, optionally with attention to past states, or in both
directions, as in ELMo; and the base of all recurrent models.

Shapes: B rows, T positions, S positions so far, D model width, V vocabulary; G cache lines of rows with a common
prefix, Q new positions of all rows of a line.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch, Mask
from lmtool.compute.kernels import ops
from lmtool.errors import UsageError
from lmtool.model.features import FrozenModelScalarMix
from lmtool.model.language_model import HiddenOutput, LanguageModel, ModulesByDepth, append_to_last_layer
from lmtool.model.layers.cells import Cell, CellState, TextLayout, build_cell
from lmtool.model.layers.memory_attention import RecurrentStateAttention, past_mask
from lmtool.model.state import DecodeState, KeyValueCache, LayerState
from lmtool.recipe.spec.recurrent import Recurrent


class RecurrentLayers(nn.Module):
    """Stacked recurrent layers with dropout between them. right_to_left: the direction in which they read.

    With `residual` the output of a layer from the second on is x + cell(dropout(x)).
    """

    def __init__(self, spec: Recurrent, right_to_left: bool = False) -> None:
        super().__init__()
        d_in = None if spec.features is None else spec.features.input_width(spec.d_model)
        self.cells = nn.ModuleList(build_cell(spec, None if i else d_in) for i in range(spec.n_layers))
        self.dropout, self.residual = spec.dropout, spec.residual
        self.right_to_left = right_to_left

    def initial_state(self, n_rows: int) -> tuple[CellState, ...]:
        """Returns zero states of every layer."""
        return tuple(cast(Cell, cell).initial_state(n_rows) for cell in self.cells)

    def forward(
        self, x_BTD: Tensor, layout: TextLayout | None, states: Sequence[CellState] | None = None, first_layer: int = 0
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Returns the hidden states (B, T, D) of each layer at all positions, and the final states; see `Cell`.

        Args:
            states: of the layers from `first_layer` on, before the first position; None for zeros.
            first_layer: index of the layer that `x_BTD` is the input of.
        """
        outputs: list[Tensor] = []
        final_states: list[CellState] = []
        states = self.initial_state(len(x_BTD)) if states is None else states
        for layer, state in enumerate(states, first_layer):
            read_BTD = ops.dropout(x_BTD, self.dropout, self.training) if layer else x_BTD
            cell = cast(Cell, self.cells[layer])
            y_BTD, final_state = (cell.forward_right_to_left if self.right_to_left else cell)(read_BTD, state, layout)
            x_BTD = x_BTD + y_BTD if layer and self.residual else y_BTD
            outputs.append(x_BTD)
            final_states.append(final_state)
        return outputs, tuple(final_states)


class RecurrentModel(LanguageModel):
    """Base of all recurrent models: an embedding, a head, and a state from which text of any length is continued.

    With a context vector c_t from attention, an untied head is z_t = W [h_t; c_t] + b. A tied head has the embedding
    width, so its input is tanh(W_c [h_t; c_t]) (Luong et al. 2015).
    """

    recurrent = True

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(vocab_size, None, f"{spec.cell} {spec.shape}, {spec.n_layers} x {spec.d_model}")
        self.dropout = spec.dropout
        attends = spec.attention is not None and spec.attention.feed == "output"
        self.embedding = nn.Embedding(vocab_size, spec.d_model)
        # so that a tied head's logits start near zero
        nn.init.normal_(self.embedding.weight, std=spec.d_model**-0.5)
        self.join = nn.Linear(2 * spec.d_model, spec.d_model, bias=False) if attends and spec.tie_embeddings else None
        self.head_input_width = 2 * spec.d_model if attends and not spec.tie_embeddings else spec.d_model
        self.head = None if spec.tie_embeddings else nn.Linear(self.head_input_width, vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(vocab_size)) if spec.head_bias else None
        self.features = None if spec.features is None else FrozenModelScalarMix(spec.features)

    def forward(self, batch: Batch) -> HiddenOutput:
        return HiddenOutput(self._compute_head_inputs(batch, self.initial_state(batch))[0])

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, *self.head_parameters())

    def head_parameters(self) -> tuple[Tensor, ...]:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return (weight,) if self.head_bias is None else (weight, self.head_bias)

    def token_vectors(self) -> Tensor:
        return self.embedding.weight

    def embed_tokens(self, tokens_BT: Tensor) -> Tensor:
        """Returns the embeddings (B, T, D), with dropout."""
        return ops.dropout(self.embedding(tokens_BT), self.dropout, self.training)

    def embed_inputs(self, batch: Batch) -> Tensor:
        """Returns what the first layer reads (B, T, input width): embeddings, features of another model, or both."""
        if self.features is None:
            return self.embed_tokens(batch.tokens_BT)
        x_BTD = self.embedding(batch.tokens_BT)
        features_BTD = self.features(batch).to(x_BTD.dtype)
        x_BTD = torch.cat((x_BTD, features_BTD), -1) if self.features.concatenates else features_BTD
        return ops.dropout(x_BTD, self.dropout, self.training)

    def combine_for_head(self, h_BTD: Tensor, context_BTD: Tensor | None) -> Tensor:
        """Returns the input of the head, with dropout: (B, T, D), or (B, T, 2 D) for an untied head with a context."""
        if context_BTD is not None:
            h_BTD = torch.cat((h_BTD, context_BTD), -1)
        if self.join is not None:
            # in the head's dtype, because decoding applies the head outside autocast
            h_BTD = torch.tanh(self.join(h_BTD)).to(self.embedding.weight.dtype)
        return ops.dropout(h_BTD, self.dropout, self.training)

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        if self.features is not None:
            what = "a model with features of another one reads whole texts, and has no next token"
            raise UsageError(what, fix="classify texts with lmtool predict")
        hidden, layers = self._compute_head_inputs(Batch(tokens_BT), state)
        return hidden, replace(state.add_unfilled_positions(tokens_BT.shape[1]), layers=layers)

    @abstractmethod
    def _compute_head_inputs(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Returns the inputs of the head, and the new states of the layers."""


class RecurrentDecoder(RecurrentModel):
    """An RNN language model (Elman 1990; Mikolov et al. 2010), with or without attention to all its past states.

    With `attention`, c_t attends with query h_t to the last layer's past states M_t = {h_1, ..., h_{t-1}}. M_1 is empty
    and c_1 zero; with `attends_to_present` M_t contains h_t as well.
    """

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.rnn = RecurrentLayers(spec)
        self.attention = None if spec.attention is None else RecurrentStateAttention(spec.attention, spec.d_model)
        self.attends_to_present = spec.attention is not None and spec.attention.present

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        x_BTD = self.embed_inputs(batch)
        embedded_BTD = x_BTD if self.features is None else self.embed_tokens(batch.tokens_BT)
        return [embedded_BTD, *self.rnn(x_BTD, text_layout(batch))[0]], None

    def initial_state(self, batch: Batch) -> DecodeState:
        n_rows = len(batch.tokens_BT)
        states = self.rnn.initial_state(n_rows)
        if self.attention is None:
            return DecodeState(0, None, states)
        empty_B0D = states[-1][0][:, None][:, :0]
        cache = KeyValueCache(self.attention.transform_keys(empty_B0D), empty_B0D[:, None])
        return DecodeState(0, None, (*states, cache))

    def _compute_head_inputs(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        outputs, states = self.rnn(self.embed_inputs(batch), text_layout(batch), state.layers[: len(self.rnn.cells)])
        h_BTD = outputs[-1]
        if self.attention is None:
            return self.combine_for_head(h_BTD, None), states
        state_after = state.add_unfilled_positions(h_BTD.shape[1])
        h_GQD = state_after.rows_to_lines(h_BTD)
        memory = cast(KeyValueCache, state.layers[-1]).append(self.attention.transform_keys(h_GQD), h_GQD[:, None])
        _, keep_GS, seen_GQS = state_after.key_positions_and_masks(h_BTD.shape[1])
        keep_GS = batch.keep_BT if keep_GS is None else keep_GS
        mask = Mask(causal=True, keep_BS=keep_GS, documents_BS=batch.documents_BT)
        n_states = memory.v_BNSH.shape[2]
        allowed = past_mask(mask, h_GQD.shape[1], n_states, h_BTD.device, self.attends_to_present)
        allowed = allowed if seen_GQS is None else allowed & seen_GQS
        context_GQD = self.attention(h_GQD, memory, allowed)
        return self.combine_for_head(h_BTD, state_after.lines_to_rows(context_GQD)), (*states, memory)

    def modules_by_depth(self) -> ModulesByDepth:
        return [(self.embedding,), *append_to_last_layer(zip(self.rnn.cells), self.attention, self.join)]


def text_layout(batch: Batch) -> TextLayout | None:
    """Returns the layout of the batch's texts; None when each fills its row."""
    return TextLayout.from_masks_unless_full(batch.tokens_BT, batch.keep_BT, batch.documents_BT)


class BidirectionalLanguageModel(RecurrentModel):
    """Two language models that share embedding and head (Peters et al. 2018, Deep contextualized word representations).

    As a language model it is its left-to-right half, so evaluation and generation are those of any other.
    `forward_right_to_left` gives the other half, and `hidden_states_by_layer` the contextual embeddings of both.
    """

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.forth, self.back = RecurrentLayers(spec), RecurrentLayers(spec, right_to_left=True)

    def forward_right_to_left(self, batch: Batch) -> HiddenOutput:
        """Returns right-to-left hidden states (B, T, D), which predict the token before each position."""
        outputs, _ = self.back(self.embed_inputs(batch), text_layout(batch))
        return HiddenOutput(self.combine_for_head(outputs[-1], None))

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """Returns the embeddings, concatenated with themselves, and both halves' states of each layer (B, T, 2 D)."""
        x_BTD, layout = self.embed_inputs(batch), text_layout(batch)
        embedded_BTD = x_BTD if self.features is None else self.embed_tokens(batch.tokens_BT)
        pairs = zip(self.forth(x_BTD, layout)[0], self.back(x_BTD, layout)[0], strict=True)
        return [torch.cat(pair, -1) for pair in ((embedded_BTD, embedded_BTD), *pairs)], None

    def initial_state(self, batch: Batch) -> DecodeState:
        return DecodeState(0, None, self.forth.initial_state(len(batch.tokens_BT)))

    def _compute_head_inputs(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        outputs, states = self.forth(self.embed_inputs(batch), text_layout(batch), state.layers)
        return self.combine_for_head(outputs[-1], None), states

    def modules_by_depth(self) -> ModulesByDepth:
        return [(self.embedding,), *zip(self.forth.cells, self.back.cells, strict=True)]
