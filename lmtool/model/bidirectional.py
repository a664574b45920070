"""ELMo: a forward and a backward recurrent language model over shared embeddings.

Shapes: B rows, T positions, D model width.
"""

import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.language_model import DecodeState, LayerState, Output, Parts
from lmtool.model.recurrent import Layers, RecurrentModel, find_texts
from lmtool.recipe.spec.recurrent import Recurrent


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

    def layers(self, batch: Batch) -> list[Tensor]:
        """The embeddings, concatenated with themselves, and both halves' states of each layer; (B, T, 2 D) each."""
        read, texts = self.inputs(batch), find_texts(batch)
        embedded = read if self.features is None else self.embed(batch.tokens_BT)
        halves = [half.read(read, texts) for half in (self.forth, self.back)]
        return [torch.cat(pair, -1) for pair in [(embedded, embedded), *zip(*halves, strict=True)]]

    def start(self, batch: Batch) -> DecodeState:
        return DecodeState(0, None, self.forth.start(len(batch.tokens_BT)))

    def _read(self, batch: Batch, state: DecodeState) -> tuple[Tensor, tuple[LayerState, ...]]:
        outs, states = self.forth(self.inputs(batch), state.layers, find_texts(batch))
        return self.hidden(outs[-1], None), states

    def parts(self) -> Parts:
        return [(self.embedding,), *zip(self.forth.cells, self.back.cells, strict=True)]
