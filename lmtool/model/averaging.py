"""Classifiers that know no order: the deep averaging network and, without vectors and layers, the linear classifier.

Shapes: B texts, T positions, D width of what a head reads, V vocabulary.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.recipe.spec import Averaging


class AveragingModel(nn.Module):
    """Texts to vectors: the deep averaging network (Iyyer et al. 2015, Deep Unordered Composition).

        x = mean of E[w] over the words w of a text;  h_i = f(W_i h_{i-1} + b_i), h_0 = x

    Word dropout leaves each word out of the mean with the given probability in training; a text that would lose all of
    its words keeps them. With one_hot, x has the share of each entry of the vocabulary instead, and width V.

    width: of the result, which a head reads.
    """

    def __init__(self, spec: Averaging, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.word_dropout = spec.word_dropout
        self.dropout = spec.dropout
        self.width = vocab_size if spec.one_hot else spec.d_model
        self.embedding = None if spec.one_hot else nn.Embedding(vocab_size, spec.d_model)
        self.layers = nn.ModuleList(nn.Linear(spec.d_model, spec.d_model) for _ in range(spec.n_layers))
        self.activation = torch.relu if spec.activation == "relu" else torch.tanh
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=spec.d_model**-0.5)

    def forward(self, batch: Batch) -> Tensor:
        """The vector of each text (B, D). Positions outside `keep_BT` count nothing; an empty text is zeros below the
        layers."""
        keep_BT = torch.ones_like(batch.tokens_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT
        if self.training and self.word_dropout:
            stays_BT = keep_BT & (torch.rand(keep_BT.shape, device=keep_BT.device) >= self.word_dropout)
            keep_BT = torch.where(stays_BT.any(1, keepdim=True), stays_BT, keep_BT)
        dtype = torch.get_default_dtype() if self.embedding is None else self.embedding.weight.dtype
        share_BT = keep_BT.to(dtype) / keep_BT.sum(1, keepdim=True).clamp(min=1)
        x_BD = self._mean(batch.tokens_BT, share_BT)
        for layer in self.layers:
            x_BD = F.dropout(self.activation(layer(x_BD)), self.dropout, self.training)
        return x_BD

    def _mean(self, tokens_BT: Tensor, share_BT: Tensor) -> Tensor:
        if self.embedding is None:
            zeros_BV = torch.zeros(len(tokens_BT), self.vocab_size, dtype=share_BT.dtype, device=share_BT.device)
            return zeros_BV.scatter_add_(1, tokens_BT, share_BT)
        return F.embedding_bag(tokens_BT, self.embedding.weight, per_sample_weights=share_BT, mode="sum")
