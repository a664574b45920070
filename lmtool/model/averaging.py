"""Classifiers that know no order: the deep averaging network and, without vectors and layers, the linear classifier.

Shapes: B texts, T positions, F features of a text, D model width, C classes or labels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.language_model import DecodeState, LanguageModel
from lmtool.recipe.spec import Averaging


class AveragingModel(LanguageModel):
    """The deep averaging network below its head (Iyyer et al. 2015, Deep Unordered Composition).

        x = mean of E[f] over the features f of a text;  h_i = f(W_i h_{i-1} + b_i), h_0 = x

    The features are its words and, with `pairs`, its pairs of neighbouring words, hashed into that many rows of E
    (Joulin et al. 2017, Bag of Tricks). Word dropout leaves each out of the mean with the given probability in
    training; a text that would lose all of them keeps them. With one_hot, E is the identity: x has the share of each
    feature, and a head is a linear classifier.

    width: of what a head reads.
    """

    reads = "both"

    def __init__(self, spec: Averaging, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.context = spec.context
        self.pairs = spec.pairs
        self.word_dropout = spec.word_dropout
        self.dropout = spec.dropout
        n_features = vocab_size + spec.pairs
        self.width = n_features if spec.one_hot else spec.d_model
        self.embedding = None if spec.one_hot else nn.Embedding(n_features, spec.d_model)
        self.dense = nn.ModuleList(nn.Linear(spec.d_model, spec.d_model) for _ in range(spec.n_layers))
        self.activation = torch.relu if spec.activation == "relu" else torch.tanh
        if self.embedding is not None:
            nn.init.normal_(self.embedding.weight, std=spec.d_model**-0.5)

    def scores(self, batch: Batch, head: nn.Linear, dropout: float) -> Tensor:
        """What a head says of each text (B, C). dropout: of the vector that it reads, unless words are one_hot.

        Positions outside `keep_BT` count nothing; an empty text is zeros below the layers.
        """
        features_BF, share_BF = self._features(batch, head.weight.dtype)
        if self.embedding is None:
            # the rows of the words in place of a product with a vector as long as the vocabulary
            scores_BC = F.embedding_bag(
                features_BF, head.weight.T.contiguous(), per_sample_weights=share_BF, mode="sum"
            )
            return scores_BC + head.bias
        x_BD = F.embedding_bag(features_BF, self.embedding.weight, per_sample_weights=share_BF, mode="sum")
        for layer in self.dense:
            x_BD = F.dropout(self.activation(layer(x_BD)), self.dropout, self.training)
        found: Tensor = head(F.dropout(x_BD, dropout, self.training))
        return found

    def _features(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The features of each text, and what each counts in the mean; both (B, F)."""
        features_BF = batch.tokens_BT
        keep_BF = torch.ones_like(features_BF, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT
        if self.pairs:
            left_BT, right_BT = batch.tokens_BT[:, :-1], batch.tokens_BT[:, 1:]
            # multiplied by a prime, so that both words move the remainder
            pair_BT = self.vocab_size + (left_BT * 1_000_003 ^ right_BT) % self.pairs
            features_BF = torch.cat((features_BF, pair_BT), 1)
            keep_BF = torch.cat((keep_BF, keep_BF[:, :-1] & keep_BF[:, 1:]), 1)
        if self.training and self.word_dropout:
            stays_BF = keep_BF & (torch.rand(keep_BF.shape, device=keep_BF.device) >= self.word_dropout)
            keep_BF = torch.where(stays_BF.any(1, keepdim=True), stays_BF, keep_BF)
        return features_BF, keep_BF.to(dtype) / keep_BF.sum(1, keepdim=True).clamp(min=1)

    def forward(self, batch: Batch) -> Tensor:
        """The vectors of the tokens (B, T, D), which nothing around them changes. Raises UsageError with one_hot."""
        return self.token_vectors()[batch.tokens_BT]

    def token_vectors(self) -> Tensor:
        if self.embedding is None:
            raise UsageError("this model has no vectors of tokens: its words are one_hot", fix="name a run of a dan")
        return self.embedding.weight[: self.vocab_size]

    def layers(self, batch: Batch) -> list[Tensor]:
        """The vectors of the tokens; the layers above are of whole texts."""
        return [self(batch)]

    def logits(self, hidden: Tensor) -> Tensor:
        raise _no_writer()

    def head_parameters(self) -> tuple[Tensor, ...]:
        return ()

    def start(self, batch: Batch) -> DecodeState:
        raise _no_writer()

    def advance(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        raise _no_writer()


def _no_writer() -> UsageError:
    return UsageError("an averaging model writes no text", fix="ask what it has learnt with lmtool predict")
