"""The decoder-only Transformer language model: GPT (Radford et al. 2018, 2019).

Shapes: B rows, T positions, S positions so far, D model width, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch, Mask
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.model.stack import Stack
from lmtool.recipe.spec import Transformer


class TransformerDecoder(LanguageModel):
    """A Stack under a causal mask, and a head over the vocabulary."""

    def __init__(self, spec: Transformer, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.context = spec.context
        self.stack = Stack(spec, vocab_size)
        self.head = None if spec.tie_embeddings else nn.Linear(spec.d_model, vocab_size, bias=False)
        self.head_bias = nn.Parameter(torch.zeros(vocab_size)) if spec.head_bias else None
        if self.head is not None:
            nn.init.normal_(self.head.weight, std=spec.init.std)

    def forward(self, batch: Batch) -> Tensor:
        mask = Mask(causal=True, keep_BS=batch.keep_BT, documents_BS=batch.documents_BT)
        hidden: Tensor
        hidden, _ = self.stack(batch.tokens_BT, positions_in_text(batch), mask, None, 0)
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, *self.head_parameters())

    def head_parameters(self) -> tuple[Tensor, ...]:
        weight = self.stack.embedding.weight if self.head is None else self.head.weight
        return (weight,) if self.head_bias is None else (weight, self.head_bias)

    def start(self, batch: Batch) -> DecodeState:
        return DecodeState(0, None, self.stack.start(len(batch.tokens_BT)))

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        n_positions = state.length + tokens_BT.shape[1]
        slots_S = torch.arange(n_positions, device=tokens_BT.device)
        positions = slots_S[None, state.length :]
        keep_BS = None
        if state.padding_B is not None:
            keep_BS = slots_S >= state.padding_B[:, None]
            positions = positions - state.padding_B[:, None]
        mask = Mask(causal=True, keep_BS=keep_BS)
        hidden, layers = self.stack(tokens_BT, positions, mask, state.layers, state.length)
        return hidden, DecodeState(n_positions, state.padding_B, layers)


def positions_in_text(batch: Batch) -> Tensor:
    """How many tokens of its row, or of its document when rows hold several, stand before each: (B, T).

    (1, T) where all rows have the same. Padding is not counted, so a text has the same positions wherever it stands.
    """
    if batch.keep_BT is None:
        index = torch.arange(batch.tokens_BT.shape[1], device=batch.tokens_BT.device)[None]
    else:
        index = batch.keep_BT.cumsum(1) - batch.keep_BT.long()
    if batch.documents_BT is None:
        return index
    first_BT = F.pad(batch.documents_BT[:, 1:] != batch.documents_BT[:, :-1], (1, 0), value=True)
    return index - torch.where(first_BT, index, 0).cummax(1).values
