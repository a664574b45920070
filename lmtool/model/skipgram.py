"""Skip-gram: a centre (input) and a context (output) vector per word (Mikolov et al. 2013).

Shapes: B rows, T positions, D model width, V vocabulary.
"""

import torch
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model.language_model import Output, Parts, SilentModel
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.words import Glove, SkipGram


class SkipGramModel(SilentModel):
    """p(o | c) = softmax over the vocabulary of u_o . v_c: which words occur in the window around a word, at any
    offset.

    Keeps unigram counts, for the noise distribution. Steps are about a millisecond of small operations, for which one
    thread is faster than several.
    """

    reads: Reads = "words"
    step_threads = 1
    title = "skip-gram"

    def __init__(self, spec: SkipGram | Glove, vocab_size: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.context = None
        self.centres = nn.Embedding(vocab_size, spec.d_model)
        self.neighbours = nn.Embedding(vocab_size, spec.d_model)
        self.register_buffer("counts_V", torch.zeros(vocab_size, dtype=torch.int64))
        for table in (self.centres, self.neighbours):
            nn.init.uniform_(table.weight, -0.5 / spec.d_model, 0.5 / spec.d_model)

    def forward(self, batch: Batch) -> Output:
        """The context-independent centre vectors of the tokens (B, T, D)."""
        return Output(self.centres(batch.tokens_BT))

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores (..., V) of every word as a context word."""
        return hidden @ self.neighbours.weight.T

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.neighbours.weight,)

    def token_vectors(self) -> Tensor:
        return self.centres.weight

    def layers(self, batch: Batch) -> list[Tensor]:
        """The centre vectors: there is no other layer."""
        return [self(batch).hidden_BTD]

    def refusal(self) -> UsageError:
        return UsageError(f"a {self.title} model has no next token", fix="list nearest words with lmtool neighbors")

    def parts(self) -> Parts:
        return [(self,)]

    def describe(self) -> str:
        return f"skipgram, {self.centres.embedding_dim} wide"


class GloveModel(SkipGramModel):
    """GloVe (Pennington et al. 2014): the score w_i . u_j + b_i + c_j of words i and j estimates log X_ij, X_ij
    being how often they are near each other.

    The vector of a word is w + u, as in the paper. As a model of context words, p(j | i) is proportional to
    exp(w_i . u_j + c_j).
    """

    title = "GloVe"

    def __init__(self, spec: Glove, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.centre_bias_V = nn.Parameter(torch.zeros(vocab_size))
        self.neighbour_bias_V = nn.Parameter(torch.zeros(vocab_size))

    def scores(self, centres: Tensor, neighbours: Tensor) -> Tensor:
        """The estimate of log X for words and context words, of any equal shape."""
        products: Tensor = (self.centres(centres) * self.neighbours(neighbours)).sum(-1)
        return products + self.centre_bias_V[centres] + self.neighbour_bias_V[neighbours]

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) + self.neighbour_bias_V

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.neighbours.weight, self.neighbour_bias_V)

    def token_vectors(self) -> Tensor:
        return self.centres.weight + self.neighbours.weight

    def layers(self, batch: Batch) -> list[Tensor]:
        """The vectors w + u: there is no other layer."""
        return [self.token_vectors()[batch.tokens_BT]]

    def describe(self) -> str:
        return f"glove, {self.centres.embedding_dim} wide"
