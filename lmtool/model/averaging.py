"""Bag-of-words classifiers: the deep averaging network and, without embeddings and layers, the linear classifier.

Shapes: B texts, T positions, F features of a text, U distinct ones of a batch, K buckets, D model width, C classes or
labels.
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
from lmtool.model.features import FrozenModelScalarMix
from lmtool.model.language_model import HiddenOutput, ModelWithoutNextToken, ModulesByDepth
from lmtool.recipe.spec.model import Reads
from lmtool.recipe.spec.words import Averaging

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MIN_EXPECTED_FEATURES = 8
"""Number of features of a text that word dropout keeps on average at least, so that short texts keep their topic."""

HASH_MODULUS = 2**31 - 1
"""A Mersenne prime, for hashes whose products do not overflow 64 bits."""

HASH_MULTIPLIER = 1_000_003
"""A prime, which makes a polynomial hash depend on the order of tokens."""

FeatureHashes = Iterator[tuple[Tensor, Tensor]]
"""Hashes of features that begin at each position of texts, and False where none begins; both (B, T)."""


class NaiveBayesScaledHead(nn.Linear):
    """A linear classifier initialised as naive Bayes (after Wang and Manning 2012, Baselines and Bigrams).

    The score of class c is b_c + sum of v_cf r_cf x_f over the features f of a text, x_f being their weights. v is
    trained, initially 1. r is set by `set_log_ratios_`: the log ratio of how often f is in texts of c and of how often
    it would be, were it independent of the class.
    """

    ratios_CF: Tensor

    def __init__(self, n_features: int, n_classes: int) -> None:
        super().__init__(n_features, n_classes)
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        self.register_buffer("ratios_CF", torch.zeros(n_classes, n_features))

    @torch.no_grad()
    def set_log_ratios_(self, body: "AveragingModel", batches: Sequence[Batch]) -> None:
        """Sets r by `log_count_ratios` from labelled texts in CPU memory. body: computes their features."""
        members_BC = np.concatenate([multi_hot_or_numeric_labels(batch, len(self.bias)) for batch in batches])
        self.ratios_CF.copy_(torch.from_numpy(log_count_ratios(body.sparse_feature_matrix(batches), members_BC)))


def log_count_ratios(features_BF: "csr_array", membership_BC: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns r_cf = log((n_cf + 1) / (n_f N_c / N + 1)) / s of labelled texts (C, F).

    n_cf and n_f are the numbers of texts of class c and of all texts with feature f, N_c and N their sums over f.
    For two classes the scores differ as those of naive Bayes. Adding 1 on both sides keeps the ratios of rare
    features near 0, also in rare classes. s makes the mean square of all scores of these texts 1, so that one
    learning rate suits texts of all lengths.

    Args:
        features_BF: the weights of the features in each text.
        membership_BC: 1 where a text belongs to a class, else 0.
    """
    has_BF = (features_BF > 0).astype(np.float64)
    counts_CF = (has_BF.T @ membership_BC).T
    totals_F = has_BF.sum(0)
    share_C1 = counts_CF.sum(1, keepdims=True) / max(1.0, totals_F.sum())
    # most of many hashed features are in no text, and their ratio is 0
    used_F = totals_F.nonzero()[0]
    ratios_CF = np.zeros_like(counts_CF)
    ratios_CF[:, used_F] = np.log((counts_CF[:, used_F] + 1) / (share_C1 * totals_F[used_F] + 1))
    scale = float(np.square(features_BF @ ratios_CF.T).mean()) ** 0.5
    return np.asarray(ratios_CF / (scale or 1.0))


def multi_hot_or_numeric_labels(batch: Batch, n_classes: int) -> NDArray[np.float64]:
    """Returns 1 where a text belongs to a class, else 0 (B, C); of texts with numbers these (B, 1)."""
    if batch.labels_B is not None:
        return np.asarray(np.eye(n_classes)[batch.labels_B.numpy()])
    assert batch.values_BC is not None
    return np.asarray(batch.values_BC, dtype=np.float64)


class FeatureHasher(NamedTuple):
    """One kind of hashed features: it has `n_buckets` rows from `first_row` on, and `hash_batch` hashes a batch."""

    first_row: int
    n_buckets: int
    hash_batch: Callable[[Batch], FeatureHashes]


class AveragingModel(ModelWithoutNextToken):
    """The deep averaging network below its head (Iyyer et al. 2015, Deep Unordered Composition).

        x = mean of E[f] over the features f of a text;  h_i = f(W_i h_{i-1} + b_i), h_0 = x

    The features are its tokens and, with `ngrams` n, its token n-grams of orders 2 to n, hashed into `buckets` rows
    of E (Joulin et al. 2017, Bag of Tricks). Word dropout drops each from the mean with the given probability in
    training, or a lower one in a short text, so that MIN_EXPECTED_FEATURES stay on average; a text that would lose all
    features keeps them.
    With one_hot, E is the identity: x holds relative frequencies of features, and the head is a linear classifier;
    with log_ratios too, x is 1 for each feature of the text, and the head is a NaiveBayesScaledHead. With tf_idf,
    the weights of the sum are (1 + log n_f) idf_f instead of equal ones, n_f being how often the text has f, scaled so
    that their squares sum to 1 (Salton and Buckley 1988).
    `fit_idf_and_drop_hash_collisions_` sets idf_F, and owner_K, the n-gram that a bucket stands for: the one that most
    training texts have. All other n-grams are ignored then, so that those of new texts do not take the weights of known
    ones.
    With `word_buckets`, the tokens being characters, words and pairs of words are features too, and n-grams have only
    characters of one word between their first and last. The squared weights of words sum to 1/2, and those of the
    tokens and n-grams too.

    head_input_width: input width of a head.
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
        features = "tokens" if spec.ngrams == 1 else f"n-grams of up to {spec.ngrams} tokens"
        features = f"words and {features}" if spec.word_buckets else features
        description = f"linear in {features}" if spec.one_hot else f"mean of {features}, {spec.n_layers} x {width}"
        super().__init__(vocab_size, spec.context, description)
        self.spec, self.head_input_width = spec, width
        self.register_buffer("idf_F", torch.ones(n_features) if spec.tf_idf else None)
        # no n-gram has the hash -1; until n-grams are counted, a bucket stands for all of them
        owner_K = torch.full((spec.n_hashed,), -1, dtype=torch.int32) if spec.tf_idf and spec.n_hashed else None
        self.register_buffer("owner_K", owner_K)
        self.register_buffer("in_word_V", torch.zeros(vocab_size, dtype=torch.bool) if spec.word_buckets else None)
        n_buckets = spec.n_hashed - spec.word_buckets
        hashed = (
            FeatureHasher(vocab_size, n_buckets, self._iterate_ngram_hashes_by_order),
            FeatureHasher(vocab_size + n_buckets, spec.word_buckets, self._iterate_word_and_pair_hashes),
        )
        self.hashed_features = [kind for kind in hashed if kind.n_buckets]
        self.features_of_tokens = None if spec.features is None else FrozenModelScalarMix(spec.features)
        self.embedding = None if spec.one_hot else nn.Embedding(n_features, spec.d_model)
        widths = (mean_width, *(spec.d_model,) * spec.n_layers)
        self.dense = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self.activation = torch.relu if spec.activation == "relu" else torch.tanh
        if self.embedding is not None:
            # small, so that words that are rare in training have little weight
            nn.init.normal_(self.embedding.weight, std=1 / spec.d_model)
            self.embedding.requires_grad_(spec.features is None or spec.features.beside)

    @torch.no_grad()
    def fit_idf_and_drop_hash_collisions_(self, batches: Sequence[Batch]) -> None:
        """Sets idf_f = 1 + log((1 + n) / (1 + n_f)) from n texts in CPU memory, n_f of which have the feature f.

        It sets the n-gram of each bucket too. Without tf_idf it does nothing.
        """
        if self.idf_F is None:
            return
        if self.owner_K is not None:
            self.owner_K.copy_(self._find_most_common_hash_of_buckets(batches))
        n_texts, counts_F = 0, torch.zeros(len(self.idf_F), dtype=torch.float64)
        for batch in batches:
            features_BF, times_BF = _sort_and_count_features(*self._feature_ids_and_mask(batch))
            counts_F += torch.bincount(features_BF[times_BF > 0], minlength=len(counts_F))
            n_texts += len(batch.tokens_BT)
        self.idf_F.copy_(torch.where(counts_F > 0, 1 + torch.log((1 + n_texts) / (1 + counts_F)), 0.0))

    def _find_most_common_hash_of_buckets(self, batches: Sequence[Batch]) -> Tensor:
        """Returns for each bucket the hash of the feature in most texts, of ties the larger; -1 if no text has any."""
        owner_K = np.full(self.spec.n_hashed, -1, dtype=np.int32)
        for kind in self.hashed_features:
            hashes = counts = torch.zeros(0, dtype=torch.int64)
            n_merged = 0
            for batch in batches:
                for hash_BT, keep_BT in kind.hash_batch(batch):
                    hash_BT, times_BT = _sort_and_count_features(hash_BT, keep_BT)
                    new_hashes, n_texts = torch.unique(hash_BT[times_BT > 0], return_counts=True)
                    hashes, counts = torch.cat((hashes, new_hashes)), torch.cat((counts, n_texts))
                if len(hashes) > 2 * n_merged:
                    hashes, counts = _sum_counts(hashes, counts)
                    n_merged = len(hashes)
            hashes, counts = _sum_counts(hashes, counts)
            hashes = hashes[counts.argsort(stable=True)]
            # of several hashes of one bucket the last assignment stays
            owner_K[(kind.first_row - self.vocab_size + hashes % kind.n_buckets).numpy()] = hashes.numpy()
        return torch.from_numpy(owner_K)

    def score_texts(self, batch: Batch, head: nn.Linear, dropout: float) -> Tensor:
        """Returns the head's scores of each text (B, C).

        Padding (False in `keep_BT`) is ignored; the mean of an empty text is zero.

        Args:
            dropout: on the head's input vector, unless words are one_hot.
        """
        features_BF, share_BF = self.feature_ids_and_weights(batch, head.weight.dtype)
        if self.embedding is None:
            # read only the weights of these features, of many thousands
            used_U, place_BF = torch.unique(features_BF, return_inverse=True)
            used_CU = used_U.expand(len(head.weight), -1)
            weight_CU = head.weight.gather(1, used_CU)
            if isinstance(head, NaiveBayesScaledHead):
                weight_CU = weight_CU * head.ratios_CF.gather(1, used_CU)
            scores_BC = F.embedding_bag(place_BF, weight_CU.T.contiguous(), per_sample_weights=share_BF, mode="sum")
            return scores_BC if head.bias is None else scores_BC + head.bias
        x_BD = F.embedding_bag(features_BF, self.embedding.weight, per_sample_weights=share_BF, mode="sum")
        if self.features_of_tokens is not None:
            # without n-grams and tf-idf there is one share for each token
            states_BTD = self.features_of_tokens(batch).to(x_BD.dtype)
            mean_BD = (share_BF[..., None].to(x_BD.dtype) * states_BTD).sum(1)
            x_BD = torch.cat((x_BD, mean_BD), -1) if self.features_of_tokens.concatenates else mean_BD
        for layer in self.dense:
            x_BD = ops.dropout(self.activation(layer(x_BD)), self.spec.dropout, self.training)
        return cast(Tensor, head(ops.dropout(x_BD, dropout, self.training)))

    def sparse_feature_matrix(self, batches: Iterable[Batch]) -> "csr_array":
        """Returns the weights of all features in the vectors x of texts in CPU memory (B, all features)."""
        from scipy.sparse import csr_array, vstack

        parts = []
        for batch in batches:
            features_BF, weight_BF = (values.numpy() for values in self.feature_ids_and_weights(batch, torch.float64))
            starts = np.arange(0, features_BF.size + 1, features_BF.shape[1])
            shape = len(features_BF), self.vocab_size + self.spec.n_hashed
            parts.append(csr_array((weight_BF.ravel(), features_BF.ravel(), starts), shape=shape))
        matrix_BF = csr_array(vstack(parts))
        matrix_BF.sum_duplicates()
        matrix_BF.eliminate_zeros()
        return matrix_BF

    def feature_ids_and_weights(self, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns the features of each text, and the weight of each in x; both (B, F)."""
        features_BF, keep_BF = self._feature_ids_and_mask(batch)
        if self.spec.log_ratios and self.idf_F is None:
            features_BF, times_BF = _sort_and_count_features(features_BF, keep_BF)
            return features_BF, (times_BF > 0).to(dtype)
        if self.training and self.spec.word_dropout:
            rate_B1 = (1 - MIN_EXPECTED_FEATURES / keep_BF.sum(1, keepdim=True)).clamp(0, self.spec.word_dropout)
            stays_BF = keep_BF & (torch.rand(keep_BF.shape, device=keep_BF.device) >= rate_B1)
            keep_BF = torch.where(stays_BF.any(1, keepdim=True), stays_BF, keep_BF)
        if self.idf_F is not None:
            features_BF, times_BF = _sort_and_count_features(features_BF, keep_BF)
            weight_BF = torch.where(times_BF > 0, 1 + times_BF.clamp(min=1).to(dtype).log(), 0.0)
            weight_BF = weight_BF * self.idf_F[features_BF].to(dtype)
            if not self.spec.word_buckets:
                return features_BF, F.normalize(weight_BF, dim=1)
            is_word_BF = features_BF >= self.hashed_features[-1].first_row
            halves = [F.normalize(weight_BF * part_BF, dim=1) for part_BF in (is_word_BF, ~is_word_BF)]
            return features_BF, (halves[0] + halves[1]) / 2**0.5
        return features_BF, keep_BF.to(dtype) / keep_BF.sum(1, keepdim=True).clamp(min=1)

    def _feature_ids_and_mask(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Returns the features of each text, repeated ones too, and False for padding; both (B, F)."""
        features, keeps = [batch.tokens_BT], [_padding_mask(batch)]
        for kind in self.hashed_features:
            for hash_BT, valid_BT in kind.hash_batch(batch):
                bucket_BT = hash_BT % kind.n_buckets
                if self.owner_K is not None:
                    owner_BT = self.owner_K[kind.first_row - self.vocab_size + bucket_BT]
                    valid_BT = valid_BT & ((owner_BT == hash_BT) | (owner_BT < 0))
                features.append(kind.first_row + bucket_BT)
                keeps.append(valid_BT)
        return torch.cat(features, 1), torch.cat(keeps, 1)

    def _iterate_ngram_hashes_by_order(self, batch: Batch) -> FeatureHashes:
        """Yields n-grams of tokens, by order from 2; with `word_buckets` those within a word and its neighbours."""
        hash_BT = tokens_BT = batch.tokens_BT
        keep_BT = valid_BT = _padding_mask(batch)
        for n in range(2, min(self.spec.ngrams, tokens_BT.shape[1]) + 1):
            hash_BT = (hash_BT[:, :-1] * HASH_MULTIPLIER ^ tokens_BT[:, n - 1 :]) % HASH_MODULUS
            valid_BT = valid_BT[:, :-1] & keep_BT[:, n - 1 :]
            if self.in_word_V is not None and n > 2:
                valid_BT = valid_BT & self.in_word_V[tokens_BT[:, n - 2 : -1]]
            yield hash_BT, valid_BT

    def _iterate_word_and_pair_hashes(self, batch: Batch) -> FeatureHashes:
        """Yields words, the longest runs of characters that are in words, and pairs of adjacent words."""
        assert self.in_word_V is not None
        tokens_BT = batch.tokens_BT
        n_tokens = tokens_BT.shape[1]
        inside_BT = F.pad(self.in_word_V[tokens_BT] & _padding_mask(batch), (1, 1))
        begins_BT, ends_BT = inside_BT[:, 1:-1] & ~inside_BT[:, :-2], inside_BT[:, 1:-1] & ~inside_BT[:, 2:]
        # the characters of a word from s to e have the hash sum_t (token_t + 1) m^(t - s), from sums up to each t
        power_T, inverse_T = (
            _modular_powers(base, n_tokens).to(tokens_BT.device)
            for base in (HASH_MULTIPLIER, pow(HASH_MULTIPLIER, -1, HASH_MODULUS))
        )
        sum_BT = F.pad(((tokens_BT + 1) * power_T % HASH_MODULUS).cumsum(1), (1, 0))
        end_BT = _next_marked_position(ends_BT)
        hash_BT = (sum_BT.gather(1, end_BT.clamp(max=n_tokens - 1) + 1) - sum_BT[:, :-1]) % HASH_MODULUS
        hash_BT = hash_BT * inverse_T % HASH_MODULUS
        yield hash_BT, begins_BT
        second_BT = F.pad(_next_marked_position(begins_BT)[:, 1:], (0, 1), value=n_tokens)
        other_BT = hash_BT.gather(1, second_BT.clamp(max=n_tokens - 1))
        yield (hash_BT * HASH_MULTIPLIER ^ other_BT) % HASH_MODULUS, begins_BT & (second_BT < n_tokens)

    def forward(self, batch: Batch) -> HiddenOutput:
        """Returns the context-independent embeddings of the tokens (B, T, D). Raises UsageError with one_hot."""
        return HiddenOutput(self.token_vectors()[batch.tokens_BT])

    def token_vectors(self) -> Tensor:
        if self.embedding is None:
            raise UsageError(
                "this model has no vectors of tokens: it counts the words of a text",
                fix="name a run of another model, such as an encoder or one of the recipe dan",
            )
        # without hashed n-grams the parameter itself
        return self.embedding.weight[: self.vocab_size] if self.spec.n_hashed else self.embedding.weight

    def hidden_states_by_layer_and_auxiliary(self, batch: Batch) -> tuple[list[Tensor], None]:
        """Returns the token embeddings; the layers above them are of whole texts."""
        return [self(batch).hidden_BTD], None

    def logits(self, hidden: Tensor) -> Tensor:
        raise self.no_next_token_error()

    def no_next_token_error(self) -> UsageError:
        return UsageError("an averaging model does not generate text", fix="classify texts with lmtool predict")

    def modules_by_depth(self) -> ModulesByDepth:
        return [(self.embedding,), *zip(self.dense)]


def _padding_mask(batch: Batch) -> Tensor:
    """Returns False at padding (B, T)."""
    return torch.ones_like(batch.tokens_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT


def _modular_powers(base: int, n: int) -> Tensor:
    """Returns the powers of a number from 0 to n - 1, modulo HASH_MODULUS (n,)."""
    return torch.tensor(list(accumulate(range(1, n), lambda power, _: power * base % HASH_MODULUS, initial=1)))


def _next_marked_position(is_marked_BT: Tensor) -> Tensor:
    """Returns the first marked position at or after each position (B, T); T if there is none."""
    n_tokens = is_marked_BT.shape[1]
    position_BT = torch.arange(n_tokens, device=is_marked_BT.device).where(is_marked_BT, n_tokens)
    return position_BT.flip(1).cummin(1).values.flip(1)


def _sum_counts(keys: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the distinct keys, sorted, and the sums of their counts."""
    distinct, index = torch.unique(keys, return_inverse=True)
    return distinct, torch.zeros_like(distinct).index_add_(0, index, counts)


def _sort_and_count_features(features_BF: Tensor, keep_BF: Tensor) -> tuple[Tensor, Tensor]:
    """Returns sorted features of each text, and at the first of equal ones their number, else 0; both (B, F)."""
    sorted_BF = features_BF.masked_fill(~keep_BF, -1).sort(1).values
    is_new_BF = F.pad(sorted_BF[:, 1:] != sorted_BF[:, :-1], (1, 0), value=True)
    run_BF = is_new_BF.cumsum(1) - 1
    times_BF = torch.zeros_like(sorted_BF).scatter_add_(1, run_BF, torch.ones_like(sorted_BF)).gather(1, run_BF)
    return sorted_BF.clamp(min=0), times_BF * (is_new_BF & (sorted_BF >= 0))
