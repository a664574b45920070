"""The base of recurrent language models, and those that read a text alone: left to right, optionally with attention to
past states; or in both directions, as ELMo.

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
from lmtool.model.features import FrozenFeatures
from lmtool.model.language_model import DecodeState, KeyValue, LanguageModel, LayerState, Output, Parts, topped
from lmtool.model.layers.cells import Cell, CellState, Texts, build_cell
from lmtool.model.layers.memory_attention import MemoryAttention, earlier
from lmtool.recipe.spec.recurrent import Recurrent


class Layers(nn.Module):
    """Stacked recurrent layers with dropout between them.

    backwards: right to left.
    """

    def __init__(self, spec: Recurrent, backwards: bool = False) -> None:
        super().__init__()
        first = None if spec.features is None else spec.features.input_width(spec.d_model)
        self.cells = nn.ModuleList(build_cell(spec, None if i else first) for i in range(spec.n_layers))
        self.dropout = spec.dropout
        self.backwards = backwards

    def start(self, n_rows: int) -> tuple[CellState, ...]:
        """Zero states of every layer."""
        return tuple(cast(Cell, cell).start(n_rows) for cell in self.cells)

    def forward(
        self, x_BTD: Tensor, states: Sequence[CellState], texts: Texts | None, first: int = 0
    ) -> tuple[list[Tensor], tuple[CellState, ...]]:
        """Hidden states (B, T, D) of each layer at all positions, and the final ones; see `Cell`.

        first: index of the layer that `x` is input to; `states` start at that layer.
        """
        outs: list[Tensor] = []
        after: list[CellState] = []
        for layer, state in enumerate(states, first):
            x_BTD = ops.dropout(x_BTD, self.dropout, self.training) if layer else x_BTD
            cell = cast(Cell, self.cells[layer])
            x_BTD, last = (cell.backwards if self.backwards else cell)(x_BTD, state, texts)
            outs.append(x_BTD)
            after.append(last)
        return outs, tuple(after)

    def read(self, x_BTD: Tensor, texts: Texts | None) -> list[Tensor]:
        """Hidden states (B, T, D) of each layer at all positions, from zero initial states."""
        return cast(list[Tensor], self(x_BTD, self.start(len(x_BTD)), texts)[0])


class RecurrentModel(LanguageModel):
    """Base of all recurrent models: an embedding, a head, and stateful processing of text of any length.

    With a context vector c_t from attention, an untied head is z_t = W [h_t; c_t] + b. A tied head has the embedding
    width, so its input is tanh(W_c [h_t; c_t]) (Luong et al. 2015).

    width: input width of the head.
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
        self.width = 2 * spec.d_model if attends and not spec.tie_embeddings else spec.d_model
        self.head = None if spec.tie_embeddings else nn.Linear(self.width, vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(vocab_size)) if spec.head_bias else None
        self.features = None if spec.features is None else FrozenFeatures(spec.features)

    def forward(self, batch: Batch) -> Output:
        return Output(self._read(batch, self.start(batch))[0])

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, *self.head_parameters())

    def head_parameters(self) -> tuple[Tensor, ...]:
        weight = self.embedding.weight if self.head is None else self.head.weight
        return (weight,) if self.head_bias is None else (weight, self.head_bias)

    def token_vectors(self) -> Tensor:
        return self.embedding.weight

    def embed(self, tokens_BT: Tensor) -> Tensor:
        """Embeddings (B, T, D), with dropout."""
        return ops.dropout(self.embedding(tokens_BT), self.dropout, self.training)

    def inputs(self, batch: Batch) -> Tensor:
        """What the first layer reads (B, T, input width): embeddings, features of another model, or both."""
        if self.features is None:
            return self.embed(batch.tokens_BT)
        return ops.dropout(self.features.joined(self.embedding(batch.tokens_BT), batch), self.dropout, self.training)

    def hidden(self, h_BTD: Tensor, context_BTD: Tensor | None) -> Tensor:
        """Input of the head, with dropout: (B, T, D), or (B, T, 2 D) for an untied head with a context."""
        if context_BTD is not None:
            h_BTD = torch.cat((h_BTD, context_BTD), -1)
        if self.join is not None:
            # in the head's dtype, as decoding applies it outside autocast
            h_BTD = torch.tanh(self.join(h_BTD)).to(self.embedding.weight.dtype)
        return ops.dropout(h_BTD, self.dropout, self.training)

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        if self.features is not None:
            what = "a model with features of another one reads whole texts, and has no next token"
            raise UsageError(what, fix="classify texts with lmtool predict")
        hidden, layers = self._read(Batch(tokens_BT), state)
        return hidden, replace(state.longer(tokens_BT.shape[1]), layers=layers)

    @abstractmethod
    def _read(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        """Hidden states, and the layers' new states."""


class RecurrentDecoder(RecurrentModel):
    """An RNN language model (Elman 1990; Mikolov et al. 2010), with or without attention to all its past states.

    With `attention`, c_t attends with query h_t to the last layer's past states M_t = {h_1, ..., h_{t-1}}. M_1 is empty
    and c_1 zero; with `present` M_t has h_t as well.
    """

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.rnn = Layers(spec)
        self.attention = None if spec.attention is None else MemoryAttention(spec.attention, spec.d_model)
        self.present = spec.attention is not None and spec.attention.present

    def layers_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """The embeddings and the hidden states of each layer, each (B, T, D)."""
        read = self.inputs(batch)
        embedded = read if self.features is None else self.embed(batch.tokens_BT)
        return [embedded, *self.rnn.read(read, find_texts(batch))], None

    def start(self, batch: Batch) -> DecodeState:
        n_rows = len(batch.tokens_BT)
        states = self.rnn.start(n_rows)
        if self.attention is None:
            return DecodeState(0, None, states)
        nothing_B0D = states[-1][0][:, None][:, :0]
        return DecodeState(0, None, (*states, KeyValue(self.attention.keys(nothing_B0D), nothing_B0D[:, None])))

    def _read(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        first = state.layers[: len(self.rnn.cells)]
        outs, states = self.rnn(self.inputs(batch), first, find_texts(batch))
        h_BTD = outs[-1]
        if self.attention is None:
            return self.hidden(h_BTD, None), states
        after = state.longer(h_BTD.shape[1])
        h_GQD = after.on_lines(h_BTD)
        memory = cast(KeyValue, state.layers[-1]).plus(self.attention.keys(h_GQD), h_GQD[:, None])
        _, keep_GS, seen_GQS = after.slots(h_BTD.shape[1])
        keep_GS = batch.keep_BT if keep_GS is None else keep_GS
        mask = Mask(causal=True, keep_BS=keep_GS, documents_BS=batch.documents_BT)
        allowed = earlier(mask, h_GQD.shape[1], memory.v_BNSH.shape[2], h_BTD.device, self.present)
        allowed = allowed if seen_GQS is None else allowed & seen_GQS
        context_GQD = self.attention(h_GQD, memory, allowed)
        return self.hidden(h_BTD, after.on_rows(context_GQD)), (*states, memory)

    def parts(self) -> Parts:
        return [(self.embedding,), *topped(zip(self.rnn.cells), self.attention, self.join)]


def find_texts(batch: Batch) -> Texts | None:
    """The layout of the batch's texts; None when each fills its row."""
    return Texts.find(batch.tokens_BT, batch.keep_BT, batch.documents_BT)


class BidirectionalModel(RecurrentModel):
    """Two language models that share embedding and head (Peters et al. 2018, Deep contextualized word representations).

    As a language model it is its forward half, so evaluation and generation are those of any other. `backward` gives
    the other half, and `layers` the contextual embeddings of both.
    """

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.forth, self.back = Layers(spec), Layers(spec, backwards=True)

    def backward(self, batch: Batch) -> Output:
        """Right-to-left hidden states (B, T, D), which predict the token before each position."""
        return Output(self.hidden(self.back.read(self.inputs(batch), find_texts(batch))[-1], None))

    def layers_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """The embeddings, concatenated with themselves, and both halves' states of each layer; (B, T, 2 D) each."""
        read, texts = self.inputs(batch), find_texts(batch)
        embedded = read if self.features is None else self.embed(batch.tokens_BT)
        halves = [half.read(read, texts) for half in (self.forth, self.back)]
        return [torch.cat(pair, -1) for pair in [(embedded, embedded), *zip(*halves, strict=True)]], None

    def start(self, batch: Batch) -> DecodeState:
        return DecodeState(0, None, self.forth.start(len(batch.tokens_BT)))

    def _read(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        outs, states = self.forth(self.inputs(batch), state.layers, find_texts(batch))
        return self.hidden(outs[-1], None), states

    def parts(self) -> Parts:
        return [(self.embedding,), *zip(self.forth.cells, self.back.cells, strict=True)]
