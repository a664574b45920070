"""Word vectors: skip-gram and CBOW, GloVe, and the truncated SVD of positive pointwise mutual information.

Shapes: B rows, T positions, V vocabulary, D model width, P pairs of words, W words that occur.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmtool.batch import IGNORE, Batch
from lmtool.errors import UsageError
from lmtool.model.language_model import CountingModel, HiddenOutput, ModelWithoutNextToken
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.words import Glove, Ppmi, SkipGram

MIN_BUFFERED_PAIRS = 1 << 22
"""Minimum number of pairs to buffer before equal ones are summed."""

MAX_DENSE_WORDS = 400
"""Up to this many words the SVD is computed of a dense matrix."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class WordVectorModel(ModelWithoutNextToken):
    """A model of which words occur in the window around a word, at any offset. It keeps unigram counts."""

    reads: Reads = "words"
    title: str
    counts_V: Tensor

    def __init__(self, vocab_size: int, description: str) -> None:
        super().__init__(vocab_size, None, description)
        self.register_buffer("counts_V", torch.zeros(vocab_size, dtype=torch.int64))

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """Returns the vectors of the tokens, as the only layer; of GloVe w + u."""
        return [self.token_vectors()[batch.tokens_BT]], None

    def no_next_token_error(self) -> UsageError:
        return UsageError(f"a {self.title} model has no next token", fix="list nearest words with lmtool neighbors")


class SkipGramModel(WordVectorModel):
    """p(o | c) = softmax over the vocabulary of u_o . v_c (Mikolov et al. 2013).

    Unigram counts determine the noise distribution. Steps are about a millisecond of small operations, for which one
    thread is faster than several.
    """

    step_threads = 1
    title = "skip-gram"

    def __init__(self, spec: SkipGram | Glove, vocab_size: int) -> None:
        super().__init__(vocab_size, f"{spec.kind}, {spec.d_model} wide")
        self.centres = nn.Embedding(vocab_size, spec.d_model)
        self.neighbours = nn.Embedding(vocab_size, spec.d_model)
        for table in (self.centres, self.neighbours):
            nn.init.uniform_(table.weight, -0.5 / spec.d_model, 0.5 / spec.d_model)

    def forward(self, batch: Batch) -> HiddenOutput:
        """Returns the context-independent centre vectors of the tokens (B, T, D)."""
        return HiddenOutput(self.centres(batch.tokens_BT))

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the scores (..., V) of every word as a context word."""
        return hidden @ self.neighbours.weight.T

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.neighbours.weight,)

    def token_vectors(self) -> Tensor:
        return self.centres.weight


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

    def estimate_log_counts(self, centres: Tensor, neighbours: Tensor) -> Tensor:
        """Returns the estimate of log X for words and context words, of any equal shape."""
        products: Tensor = (self.centres(centres) * self.neighbours(neighbours)).sum(-1)
        return products + self.centre_bias_V[centres] + self.neighbour_bias_V[neighbours]

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden) + self.neighbour_bias_V

    def head_parameters(self) -> tuple[Tensor, ...]:
        return (self.neighbours.weight, self.neighbour_bias_V)

    def token_vectors(self) -> Tensor:
        return self.centres.weight + self.neighbours.weight


class PairCounts:
    """Counts ordered pairs of words, and sums their weights.

    keys_P: first word times V, plus the second; sorted. sums_P: of their weights.
    """

    def __init__(self, vocab_size: int, keys_P: IntArray, sums_P: FloatArray) -> None:
        self.vocab_size = vocab_size
        self._keys, self._sums = [keys_P], [sums_P]
        self._n_new = 0

    def add_batch(
        self, batch: Batch, is_word_V: NDArray[np.bool_], window: int, *, weight_by_inverse_distance: bool
    ) -> None:
        """Counts each target of a batch with the words up to `window` tokens before it in its document, both ways.

        Args:
            weight_by_inverse_distance: a pair at distance d counts 1 / d, else 1.
        """
        for distance, first_P, second_P in pairs_by_distance(batch, window):
            are_words_P = is_word_V[first_P] & is_word_V[second_P]
            first_P, second_P = first_P[are_words_P], second_P[are_words_P]
            keys_P = np.concatenate((first_P * self.vocab_size + second_P, second_P * self.vocab_size + first_P))
            self._keys.append(keys_P)
            self._sums.append(np.full(len(keys_P), 1 / distance if weight_by_inverse_distance else 1.0))
            self._n_new += len(keys_P)
        if self._n_new > max(MIN_BUFFERED_PAIRS, len(self._keys[0])):
            self.merge()

    def merge(self) -> tuple[IntArray, FloatArray]:
        """Sums equal pairs, and returns the keys and sums so far."""
        keys_P, pair_P = np.unique(np.concatenate(self._keys), return_inverse=True)
        sums_P: FloatArray = np.bincount(pair_P, np.concatenate(self._sums), len(keys_P)).astype(np.float64)
        self._keys, self._sums, self._n_new = [keys_P], [sums_P], 0
        return keys_P, sums_P


def pairs_by_distance(batch: Batch, window: int) -> Iterator[tuple[int, IntArray, IntArray]]:
    """Yields for each distance from 1 to `window` the pairs of a token and a target of one document so far apart."""
    if batch.targets_BT is None or batch.documents_BT is None:
        raise ValueError("a batch without targets or documents has nothing to count")
    tokens_BT, targets_BT = batch.tokens_BT.cpu().numpy(), batch.targets_BT.cpu().numpy()
    documents_BT = batch.documents_BT.cpu().numpy()
    T = tokens_BT.shape[1]
    for distance in range(1, min(window, T) + 1):
        # the target of position t is at t + 1
        before, at = slice(0, T - distance + 1), slice(distance - 1, T)
        near = (targets_BT[:, at] != IGNORE) & (documents_BT[:, before] == documents_BT[:, at])
        yield distance, tokens_BT[:, before][near], targets_BT[:, at][near]


class PpmiModel(WordVectorModel, CountingModel):
    """Word vectors by counting (Levy, Goldberg and Dagan 2015, Improving Distributional Similarity).

        M_ij = max(0, log(X_ij X / (X_i X_j))), of rank D: U S V';  w_i = U_i S^(1/2), u_j = V_j S^(1/2)

    X_ij is how often word j is at most `window` tokens away from word i in a document; X_i, X_j and X are its sums. The
    rows w are the words' vectors. As a model of context words, p(j | i) is proportional to (X_j + 1) exp(w_i . u_j).
    """

    variable_length_tensors = frozenset(("keys_P", "sums_P"))
    title = "ppmi"

    def __init__(self, spec: Ppmi, vocab_size: int) -> None:
        super().__init__(vocab_size, f"ppmi, window {spec.window}, {spec.d_model} wide")
        self.n_context_tokens = spec.window
        self.register_buffer("keys_P", torch.empty(0, dtype=torch.int64))
        self.register_buffer("sums_P", torch.empty(0, dtype=torch.float64))
        self.register_buffer("n_read", torch.zeros((), dtype=torch.int64))
        self.register_buffer("words_VD", torch.zeros(vocab_size, spec.d_model))
        self.register_buffer("contexts_VD", torch.zeros(vocab_size, spec.d_model))
        self.register_buffer("log_share_V", torch.zeros(vocab_size))

    keys_P: Tensor
    sums_P: Tensor
    words_VD: Tensor
    contexts_VD: Tensor
    log_share_V: Tensor

    def partial_fit_(self, batches: Iterable[Batch], n_new_tokens: int) -> None:
        is_word_V = (self.counts_V > 0).cpu().numpy()
        pairs = PairCounts(self.vocab_size, self.keys_P.cpu().numpy(), self.sums_P.cpu().numpy())
        for batch in batches:
            pairs.add_batch(batch, is_word_V, self.n_context_tokens, weight_by_inverse_distance=False)
        keys_P, sums_P = pairs.merge()
        device = self.words_VD.device
        self.keys_P, self.sums_P = (torch.from_numpy(array).to(device) for array in (keys_P, sums_P))
        self.n_read = self.n_read + n_new_tokens
        rows_P, columns_P = np.divmod(keys_P, self.vocab_size)
        total_V = np.bincount(rows_P, sums_P, self.vocab_size)
        self.log_share_V.copy_(torch.from_numpy(np.log((total_V + 1) / (total_V + 1).sum())))
        used_W = np.flatnonzero(total_V)
        index_V = np.cumsum(total_V != 0) - 1
        ppmi_P = positive_pmi(rows_P, columns_P, sums_P)
        factors = factorize_by_truncated_svd(
            index_V[rows_P], index_V[columns_P], ppmi_P, len(used_W), self.words_VD.shape[1]
        )
        rows_W = torch.from_numpy(used_W).to(device)
        for table_VD, factor_WD in zip((self.words_VD, self.contexts_VD), factors, strict=True):
            table_VD.zero_()
            table_VD[rows_W, : factor_WD.shape[1]] = torch.from_numpy(factor_WD).to(table_VD)

    def forward(self, batch: Batch) -> HiddenOutput:
        """Returns the context-independent vectors of the tokens (B, T, D)."""
        return HiddenOutput(self.words_VD[batch.tokens_BT])

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the scores (..., V) of every word as a context word."""
        return hidden @ self.contexts_VD.T + self.log_share_V

    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return self.logits(hidden).log_softmax(-1).gather(-1, targets[..., None])[..., 0]

    def token_vectors(self) -> Tensor:
        return self.words_VD


def positive_pmi(rows_P: IntArray, columns_P: IntArray, sums_P: FloatArray) -> FloatArray:
    """Returns max(0, log(X_ij X / (X_i X_j))) of each pair that occurs."""
    row_V, column_V = np.bincount(rows_P, sums_P), np.bincount(columns_P, sums_P)
    ratio_P = sums_P * sums_P.sum() / (row_V[rows_P] * column_V[columns_P])
    pmi_P: FloatArray = np.maximum(0.0, np.log(ratio_P))
    return pmi_P


def factorize_by_truncated_svd(
    rows_P: IntArray, columns_P: IntArray, values_P: FloatArray, n_words: int, rank: int
) -> tuple[FloatArray, FloatArray]:
    """Returns U S^(1/2) and V S^(1/2) of the `rank` largest singular values of a sparse matrix, each (n_words, rank).

    There are fewer columns where the matrix is smaller than that. The largest entry of each column of U is positive.
    """
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds

    matrix = csr_array((values_P, (rows_P, columns_P)), shape=(n_words, n_words))
    if n_words <= max(MAX_DENSE_WORDS, 2 * rank):
        u_WR, s_R, v_RW = np.linalg.svd(matrix.toarray(), full_matrices=False)
    else:
        start_W = np.random.Generator(np.random.PCG64(0)).standard_normal(n_words)
        u_WR, s_R, v_RW = svds(matrix, k=rank, v0=start_W)
    order: Sequence[int] = np.argsort(-s_R, kind="stable")[:rank].tolist()
    u_WR, s_R, v_RW = u_WR[:, order], s_R[order], v_RW[order]
    sign_R = np.where(np.take_along_axis(u_WR, np.abs(u_WR).argmax(0)[None], 0)[0] < 0, -1.0, 1.0) if n_words else 1.0
    root_R = np.sqrt(s_R) * sign_R
    return u_WR * root_R, v_RW.T * root_R
