"""Bag-of-words classifiers: the deep averaging network and, without embeddings and layers, the linear classifier.

Shapes: B texts, T positions, F features of a text, U of a batch, K buckets, D model width, C classes or labels.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.compute.kernels import ops
from lmtool.errors import UsageError
from lmtool.model.features import FrozenFeatures
from lmtool.model.language_model import Output, Parts, WithoutNextToken
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.words import Averaging

if TYPE_CHECKING:
    from scipy.sparse import csr_array

LEFT = 8
"""Features of a text that word dropout leaves on average at least: fewer do not tell what a short text is about."""

MERSENNE = 2**31 - 1
"""A prime modulus for hashes, so that their products do not overflow 64 bits."""

MULTIPLIER = 1_000_003
"""Prime too: it makes a polynomial hash depend on the order of tokens."""

Hashes = Iterator[tuple[Tensor, Tensor]]
"""Hashes of features that begin at each position of texts, and False where there are none; both (B, T)."""


class RatioHead(nn.Linear):
    """A linear classifier initialised as naive Bayes (after Wang and Manning 2012, Baselines and Bigrams).

    The score of class c is b_c + sum of v_cf r_cf x_f over the features f of a text, x_f being their weights. v is
    trained, initially 1. r is set by `count`: the log ratio of how often f is in texts of c and of how often it would
    be, were it independent of the class.
    """

    ratios_CF: Tensor

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.register_buffer("ratios_CF", torch.zeros(n_classes, n_features))

    @torch.no_grad()
    def count(self, body: "AveragingModel", batches: Sequence[Batch]) -> None:
        """Set r by `log_ratios` from labelled texts in CPU memory."""
        members_BC = np.concatenate([_members(batch, len(self.bias)) for batch in batches])
        self.ratios_CF.copy_(torch.from_numpy(log_ratios(body.matrix(batches), members_BC)))


def log_ratios(features_BF: "csr_array", members_BC: NDArray[np.float64]) -> NDArray[np.float64]:
    """r_cf = log((n_cf + 1) / (n_f N_c / N + 1)) / s of labelled texts (C, F).

    n_cf and n_f are the numbers of texts of class c and of all texts with feature f, N_c and N their sums over f.
    For two classes the scores differ as those of naive Bayes. Adding 1 on both sides keeps the ratios of rare
    features near 0, also in rare classes. s makes the mean square of all scores of these texts 1, so that one
    learning rate suits texts of all lengths.
    members_BC: 1 where a text belongs to a class, else 0.
    """
    has_BF = (features_BF > 0).astype(np.float64)
    counts_CF = (has_BF.T @ members_BC).T
    totals_F = has_BF.sum(0)
    share_C1 = counts_CF.sum(1, keepdims=True) / max(1.0, totals_F.sum())
    ratios_CF = np.log((counts_CF + 1) / (share_C1 * totals_F + 1))
    scale = float(np.square(features_BF @ ratios_CF.T).mean()) ** 0.5
    return np.asarray(ratios_CF / (scale or 1.0))


def _members(batch: Batch, n_classes: int) -> NDArray[np.float64]:
    """1 where a text belongs to a class, else 0, (B, C)."""
    if batch.labels_B is not None:
        return np.asarray(np.eye(n_classes)[batch.labels_B.numpy()])
    assert batch.values_BC is not None
    return np.asarray(batch.values_BC, dtype=np.float64)


class Hashed(NamedTuple):
    """Features that are hashed into `size` rows from `start` on, and their hashes in a batch."""

    start: int
    size: int
    hashes: Callable[[Batch], Hashes]


class AveragingModel(WithoutNextToken):
    """The deep averaging network below its head (Iyyer et al. 2015, Deep Unordered Composition).

        x = mean of E[f] over the features f of a text;  h_i = f(W_i h_{i-1} + b_i), h_0 = x

    The features are its tokens and, with `ngrams` n, its token n-grams of orders 2 to n, hashed into `buckets` rows
    of E (Joulin et al. 2017, Bag of Tricks). Word dropout drops each from the mean with the given probability in
    training, or a lower one in a short text, of which LEFT stay on average; one that would lose all keeps them.
    With one_hot, E is the identity: x holds relative frequencies of features, and the head is a linear classifier;
    with log_ratios too, x is 1 for each feature present in the text, and the head is a RatioHead. With tf_idf, the
    weights of the sum are (1 + log n_f) idf_f instead of equal ones, n_f being how often the text has f, scaled so
    that their squares sum to 1 (Salton and Buckley 1988).
    `count` sets idf_F, and owner_K, the n-gram that a bucket stands for: the one that most training texts have. All
    other n-grams are ignored then, so that those of new texts do not take the weights of known ones.
    With `word_buckets`, the tokens being characters, words and pairs of words are features too, and n-grams have only
    characters of one word between their first and last. The squared weights of words sum to 1/2, and those of the
    tokens and n-grams too.

    width: input width of a head.
    in_word_V: whether a token is a character of words.
    """

    reads: Reads = "words"
    idf_F: Tensor | None
    owner_K: Tensor | None
    in_word_V: Tensor | None

    def __init__(self, spec: Averaging, vocab_size: int) -> None:
        n_features = vocab_size + spec.n_hashed
        mean_width = spec.d_model if spec.features is None else spec.features.input_width(spec.d_model)
        width = n_features if spec.one_hot else spec.d_model if spec.n_layers else mean_width
        read = "tokens" if spec.ngrams == 1 else f"n-grams of up to {spec.ngrams} tokens"
        read = f"words and {read}" if spec.word_buckets else read
        description = f"linear in {read}" if spec.one_hot else f"mean of {read}, {spec.n_layers} x {width}"
        super().__init__(vocab_size, spec.context, description)
        self.spec, self.width = spec, width
        self.register_buffer("idf_F", torch.ones(n_features) if spec.tf_idf else None)
        # no n-gram has the hash -1: until they are counted, a bucket stands for all
        owner_K = torch.full((spec.n_hashed,), -1, dtype=torch.int32) if spec.tf_idf and spec.n_hashed else None
        self.register_buffer("owner_K", owner_K)
        self.register_buffer("in_word_V", torch.zeros(vocab_size, dtype=torch.bool) if spec.word_buckets else None)
        n_buckets = spec.n_hashed - spec.word_buckets
        hashed = (
            Hashed(vocab_size, n_buckets, self._ngrams),
            Hashed(vocab_size + n_buckets, spec.word_buckets, self._words),
        )
        self.hashed = [kind for kind in hashed if kind.size]
        self.features_of_tokens = None if spec.features is None else FrozenFeatures(spec.features)
        self.embedding = None if spec.one_hot else nn.Embedding(n_features, spec.d_model)
        widths = (mean_width, *(spec.d_model,) * spec.n_layers)
        self.dense = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.activation = torch.relu if spec.activation == "relu" else torch.tanh
        if self.embedding is not None:
            # small, so that words rare in training have little weight
            nn.init.normal_(self.embedding.weight, std=1 / spec.d_model)
            self.embedding.requires_grad_(spec.features is None or spec.features.beside)

    @torch.no_grad()
    def count(self, batches: Sequence[Batch]) -> None:
        """Set idf_f = 1 + log((1 + n) / (1 + n_f)) from n texts in CPU memory, n_f of which have the feature f."""
        if self.idf_F is None:
            return
        if self.owner_K is not None:
            self.owner_K.copy_(self._owners(batches))
        n_texts, counts_F = 0, torch.zeros(len(self.idf_F), dtype=torch.float64)
        for batch in batches:
            features_BF, times_BF = _distinct(*self._all_features(batch))
            counts_F += torch.bincount(features_BF[times_BF > 0], minlength=len(counts_F))
            n_texts += len(batch.tokens_BT)
        self.idf_F.copy_(torch.where(counts_F > 0, 1 + torch.log((1 + n_texts) / (1 + counts_F)), 0.0))

    def _owners(self, batches: Sequence[Batch]) -> Tensor:
        """The hash of the feature in most texts, for each bucket; -1 where no text has any. Ties: the larger hash."""
        owner_K = np.full(self.spec.n_hashed, -1, dtype=np.int32)
        for kind in self.hashed:
            hashes = counts = torch.zeros(0, dtype=torch.int64)
            n_merged = 0
            for batch in batches:
                for hash_BT, keep_BT in kind.hashes(batch):
                    hash_BT, times_BT = _distinct(hash_BT, keep_BT)
                    new_hashes, n_texts = torch.unique(hash_BT[times_BT > 0], return_counts=True)
                    hashes, counts = torch.cat((hashes, new_hashes)), torch.cat((counts, n_texts))
                if len(hashes) > 2 * n_merged:
                    hashes, counts = _merged(hashes, counts)
                    n_merged = len(hashes)
            hashes, counts = _merged(hashes, counts)
            hashes = hashes[counts.argsort(stable=True)]
            # of several with one bucket the last is kept
            owner_K[(kind.start - self.vocab_size + hashes % kind.size).numpy()] = hashes.numpy()
        return torch.from_numpy(owner_K)

    def scores(self, batch: Batch, head: nn.Linear, dropout: float) -> Tensor:
        """The head's scores of each text (B, C). dropout: on the head's input vector, unless words are one_hot.

        Padding (False in `keep_BT`) is ignored; the mean of an empty text is zero.
        """
        features_BF, share_BF = self.features(batch, head.weight.dtype)
        if self.embedding is None:
            # only the weights of these features are read, of many thousands
            used_U, place_BF = torch.unique(features_BF, return_inverse=True)
            used_CU = used_U.expand(len(head.weight), -1)
            weight_CU = head.weight.gather(1, used_CU)
            if isinstance(head, RatioHead):
                weight_CU = weight_CU * head.ratios_CF.gather(1, used_CU)
            scores_BC = F.embedding_bag(place_BF, weight_CU.T.contiguous(), per_sample_weights=share_BF, mode="sum")
            return scores_BC if head.bias is None else scores_BC + head.bias
        x_BD = F.embedding_bag(features_BF, self.embedding.weight, per_sample_weights=share_BF, mode="sum")
        if self.features_of_tokens is not None:
            # without n-grams and tf-idf there is a share for each token
            states_BTD = self.features_of_tokens(batch).to(x_BD.dtype)
            mean_BD = (share_BF[..., None].to(x_BD.dtype) * states_BTD).sum(1)
            x_BD = torch.cat((x_BD, mean_BD), -1) if self.features_of_tokens.beside else mean_BD
        for layer in self.dense:
            x_BD = ops.dropout(self.activation(layer(x_BD)), self.spec.dropout, self.training)
        return cast(Tensor, head(ops.dropout(x_BD, dropout, self.training)))

    def matrix(self, batches: Iterable[Batch]) -> "csr_array":
        """The weights of all features in the vectors x of texts in CPU memory (B, F)."""
        from scipy.sparse import csr_array, vstack

        parts = []
        for batch in batches:
            features_BF, weight_BF = (values.numpy() for values in self.features(batch, torch.float64))
            starts = np.arange(0, features_BF.size + 1, features_BF.shape[1])
            shape = len(features_BF), self.vocab_size + self.spec.n_hashed
            parts.append(csr_array((weight_BF.ravel(), features_BF.ravel(), starts), shape=shape))
        matrix_BF = csr_array(vstack(parts))
        matrix_BF.sum_duplicates()
        matrix_BF.eliminate_zeros()
        return matrix_BF

    def features(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The features of each text, and the weight of each in x; both (B, F)."""
        features_BF, keep_BF = self._all_features(batch)
        if self.spec.log_ratios and self.idf_F is None:
            features_BF, times_BF = _distinct(features_BF, keep_BF)
            return features_BF, (times_BF > 0).to(dtype)
        if self.training and self.spec.word_dropout:
            rate_B1 = (1 - LEFT / keep_BF.sum(1, keepdim=True)).clamp(0, self.spec.word_dropout)
            stays_BF = keep_BF & (torch.rand(keep_BF.shape, device=keep_BF.device) >= rate_B1)
            keep_BF = torch.where(stays_BF.any(1, keepdim=True), stays_BF, keep_BF)
        if self.idf_F is not None:
            features_BF, times_BF = _distinct(features_BF, keep_BF)
            weight_BF = torch.where(times_BF > 0, 1 + times_BF.clamp(min=1).to(dtype).log(), 0.0)
            weight_BF = weight_BF * self.idf_F[features_BF].to(dtype)
            if not self.spec.word_buckets:
                return features_BF, F.normalize(weight_BF, dim=1)
            is_word_BF = features_BF >= self.hashed[-1].start
            halves = [F.normalize(weight_BF * part_BF, dim=1) for part_BF in (is_word_BF, ~is_word_BF)]
            return features_BF, (halves[0] + halves[1]) / 2**0.5
        return features_BF, keep_BF.to(dtype) / keep_BF.sum(1, keepdim=True).clamp(min=1)

    def _all_features(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The features of each text, repeated ones too, and False for padding; both (B, F)."""
        features, keeps = [batch.tokens_BT], [_kept(batch)]
        for kind in self.hashed:
            for hash_BT, known_BT in kind.hashes(batch):
                bucket_BT = hash_BT % kind.size
                if self.owner_K is not None:
                    owner_BT = self.owner_K[kind.start - self.vocab_size + bucket_BT]
                    known_BT = known_BT & ((owner_BT == hash_BT) | (owner_BT < 0))
                features.append(kind.start + bucket_BT)
                keeps.append(known_BT)
        return torch.cat(features, 1), torch.cat(keeps, 1)

    def _ngrams(self, batch: Batch) -> Hashes:
        """N-grams of tokens, by order from 2; beside words those within a word and its neighbours."""
        hash_BT = tokens_BT = batch.tokens_BT
        keep_BT = kept_BT = _kept(batch)
        for n in range(2, min(self.spec.ngrams, tokens_BT.shape[1]) + 1):
            hash_BT = (hash_BT[:, :-1] * MULTIPLIER ^ tokens_BT[:, n - 1 :]) % MERSENNE
            kept_BT = kept_BT[:, :-1] & keep_BT[:, n - 1 :]
            if self.in_word_V is not None and n > 2:
                kept_BT = kept_BT & self.in_word_V[tokens_BT[:, n - 2 : -1]]
            yield hash_BT, kept_BT

    def _words(self, batch: Batch) -> Hashes:
        """Words, the longest runs of characters that are in words; and pairs of words that follow each other."""
        assert self.in_word_V is not None
        tokens_BT = batch.tokens_BT
        n_tokens = tokens_BT.shape[1]
        inside_BT = F.pad(self.in_word_V[tokens_BT] & _kept(batch), (1, 1))
        begins_BT, ends_BT = inside_BT[:, 1:-1] & ~inside_BT[:, :-2], inside_BT[:, 1:-1] & ~inside_BT[:, 2:]
        # a word's characters from s to e have the hash sum_t (token_t + 1) m^(t - s), from sums up to each t
        power_T, inverse_T = (
            _powers(base, n_tokens).to(tokens_BT.device) for base in (MULTIPLIER, pow(MULTIPLIER, -1, MERSENNE))
        )
        sum_BT = F.pad(((tokens_BT + 1) * power_T % MERSENNE).cumsum(1), (1, 0))
        end_BT = _next(ends_BT)
        hash_BT = (sum_BT.gather(1, end_BT.clamp(max=n_tokens - 1) + 1) - sum_BT[:, :-1]) % MERSENNE
        hash_BT = hash_BT * inverse_T % MERSENNE
        yield hash_BT, begins_BT
        second_BT = F.pad(_next(begins_BT)[:, 1:], (0, 1), value=n_tokens)
        other_BT = hash_BT.gather(1, second_BT.clamp(max=n_tokens - 1))
        yield (hash_BT * MULTIPLIER ^ other_BT) % MERSENNE, begins_BT & (second_BT < n_tokens)

    def forward(self, batch: Batch) -> Output:
        """Context-independent embeddings of the tokens (B, T, D). Raises UsageError with one_hot."""
        return Output(self.token_vectors()[batch.tokens_BT])

    def token_vectors(self) -> Tensor:
        if self.embedding is None:
            raise UsageError(
                "this model has no vectors of tokens: it counts the words of a text",
                fix="name a run of another model, such as an encoder or one of the recipe dan",
            )
        # without hashed n-grams the parameter itself
        return self.embedding.weight[: self.vocab_size] if self.spec.n_hashed else self.embedding.weight

    def layers_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """The token embeddings; the layers above them are of whole texts."""
        return [self(batch).hidden_BTD], None

    def logits(self, hidden: Tensor) -> Tensor:
        raise self.refusal()

    def refusal(self) -> UsageError:
        return UsageError("an averaging model does not generate text", fix="classify texts with lmtool predict")

    def parts(self) -> Parts:
        return [(self.embedding,), *zip(self.dense)]


def _kept(batch: Batch) -> Tensor:
    """False at padding (B, T)."""
    return torch.ones_like(batch.tokens_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT


def _powers(base: int, n: int) -> Tensor:
    """The powers of a number from 0 to n - 1, modulo MERSENNE (n,)."""
    return torch.tensor(list(accumulate(range(1, n), lambda power, _: power * base % MERSENNE, initial=1)))


def _next(is_BT: Tensor) -> Tensor:
    """The first position from each one on that is marked; T where none is (B, T)."""
    n_tokens = is_BT.shape[1]
    position_BT = torch.arange(n_tokens, device=is_BT.device).where(is_BT, n_tokens)
    return position_BT.flip(1).cummin(1).values.flip(1)


def _merged(numbers: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Distinct numbers, sorted, and the sums of their counts."""
    distinct, index = torch.unique(numbers, return_inverse=True)
    return distinct, torch.zeros_like(distinct).index_add_(0, index, counts)


def _distinct(features_BF: Tensor, keep_BF: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted features of each text, and how often it has them at the first of equal ones, else 0; both (B, F)."""
    sorted_BF = features_BF.masked_fill(~keep_BF, -1).sort(1).values
    is_new_BF = F.pad(sorted_BF[:, 1:] != sorted_BF[:, :-1], (1, 0), value=True)
    run_BF = is_new_BF.cumsum(1) - 1
    times_BF = torch.zeros_like(sorted_BF).scatter_add_(1, run_BF, torch.ones_like(sorted_BF)).gather(1, run_BF)
    return sorted_BF.clamp(min=0), times_BF * (is_new_BF & (sorted_BF >= 0))
