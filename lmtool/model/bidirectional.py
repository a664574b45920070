"""ELMo: a forward and a backward recurrent language model over shared embeddings.

Shapes: B rows, T positions, D model width.
"""

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.language_model import DecodeState, Parts
from lmtool.model.recurrent import Layers, RecurrentModel, find_texts, make_cell
from lmtool.recipe.spec import Recurrent


class BidirectionalModel(RecurrentModel):
    """Two language models that share embedding and head (Peters et al. 2018, Deep contextualized word representations).

    As a language model it is its forward half, so it is measured, and writes, like any other. `backward` gives the
    other half, and `layers` the states of both, which are what the model is for.
    """

    def __init__(self, spec: Recurrent, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.forth, self.back = (
            Layers([make_cell(spec) for _ in range(spec.n_layers)], spec.dropout, backwards)
            for backwards in (False, True)
        )

    def forward(self, batch: Batch) -> Tensor:
        """States (B, T, D) that have read each text up to the position; they predict the next token."""
        return self._hidden(self.forth, batch)

    def backward(self, batch: Batch) -> Tensor:
        """States (B, T, D) that have read each text from its end to the position; they predict the token before."""
        return self._hidden(self.back, batch)

    def layers(self, batch: Batch) -> list[Tensor]:
        """The embeddings, twice beside each other, and the states of both halves of each layer; (B, T, 2 D) each."""
        embedded = self.embed(batch.tokens_BT)
        halves = [self._read(half, batch, embedded) for half in (self.forth, self.back)]
        return [torch.cat(pair, -1) for pair in [(embedded, embedded), *zip(*halves, strict=True)]]

    def start(self, batch: Batch) -> DecodeState:
        return DecodeState(0, None, self.forth.start(len(batch.tokens_BT)))

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        outs, states = self.forth(self.embed(tokens_BT), state.layers, None)
        length = state.length + tokens_BT.shape[1]
        return self.hidden(outs[-1], None), DecodeState(length, state.padding_B, states)

    def _hidden(self, half: Layers, batch: Batch) -> Tensor:
        return self.hidden(self._read(half, batch, self.embed(batch.tokens_BT))[-1], None)

    @staticmethod
    def _read(half: Layers, batch: Batch, embedded_BTD: Tensor) -> list[Tensor]:
        outs: list[Tensor]
        outs, _ = half(embedded_BTD, half.start(len(embedded_BTD)), find_texts(batch))
        return outs

    def parts(self) -> Parts:
        return [(self.embedding,), *zip(self.forth.cells, self.back.cells, strict=True)]
