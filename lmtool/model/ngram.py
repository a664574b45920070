"""N-gram language models: counts of token sequences, smoothed by interpolated modified Kneser-Ney, by add-k, or not.

Shapes: B rows, T positions, C tokens of context, M scored positions, V vocabulary, N order, G n-grams of one
order, X their contexts. A context shorter than C is left-padded with NONE.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import IGNORE, Batch, widest_float_dtype
from lmtool.model.language_model import CountingModel, DecodeState, HiddenOutput
from lmtool.recipe.spec.words import NGram

PADDING_ID = -1
"""Id of the padding before a text."""

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of counts 1, 2 and 3 or more if a text is too small to estimate them; KenLM has the same ones."""

MIN_BUFFERED_NGRAMS = 1 << 20
"""Minimum number of n-grams to buffer before they are merged into the counts."""

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
NGramCounts = tuple[NDArray[np.int32], IntArray]
"""Distinct n-grams (G, N) and their counts (G,)."""


class _OrderTable(NamedTuple):
    """The n-grams of one order above 1, sorted by context and then token.

    keys_G: context index times V, plus the token.
    mass_G: discounted probability of the n-gram given its context.
    starts_X: offset of each context's first n-gram, plus the end offset.
    backoff_X: backoff weight of each context; 1 for unseen contexts.
    """

    keys_G: Tensor
    mass_G: Tensor
    starts_X: Tensor
    backoff_X: Tensor


class _NgramTables(NamedTuple):
    """Unigram probabilities, and the tables of the orders from 2 on that have n-grams."""

    unigram_V: Tensor
    orders: tuple[_OrderTable, ...]


class _ContextLookupResult(NamedTuple):
    """The contexts of M rows in the table of an order: their indices (0 if unseen), and whether they were seen."""

    table: _OrderTable
    index_M: Tensor
    is_seen_M: Tensor


class _Continuations(NamedTuple):
    """N-grams that begin with the context of a row: the row, the cell of a flat (M, V) table, the mass."""

    row_G: Tensor
    cell_G: Tensor
    mass_G: Tensor


class NGramModel(CountingModel):
    """Interpolated modified Kneser-Ney (Chen and Goodman 1999), estimated by counting instead of by gradients.

        p(w | h) = (a(hw) - D(a(hw))) / a(h.) + backoff(h) p(w | h without its first token)

    a is the count of an n-gram for the highest order; for the others its continuation count, the number of distinct
    preceding tokens, plus the number of documents it begins. Unigrams are interpolated with 1 / V. D is one of three
    discounts of each order, from its counts of counts. An unseen h backs off to the shorter h.

    The hidden state of a position is its last C = max(1, N - 1) token ids, int64 (B, T, C).

    Only the distinct n-grams of the highest order and their counts are stored (4 N + 8 bytes each); all else is derived
    from them. So memory grows with the number of distinct n-grams, not with the length of the text. Counting needs room
    for one batch and as many n-grams again.
    """

    variable_length_tensors = frozenset(("grams_GN", "counts_G"))

    def __init__(self, spec: NGram, vocab_size: int) -> None:
        super().__init__(vocab_size, None, f"{spec.order}-gram")
        self.order = spec.order
        self.n_context_tokens = spec.d_model
        self.register_buffer("grams_GN", torch.empty(0, spec.order, dtype=torch.int32))
        self.register_buffer("counts_G", torch.empty(0, dtype=torch.int64))
        self.register_buffer("n_read", torch.zeros((), dtype=torch.int64))
        self._cached: tuple[Tensor, _NgramTables] | None = None

    grams_GN: Tensor
    counts_G: Tensor

    def forward(self, batch: Batch) -> HiddenOutput:
        """Returns the last C tokens up to each position (B, T, C), within its document; padding is skipped."""
        tokens_BT, documents_BT = batch.tokens_BT, batch.documents_BT
        if batch.keep_BT is None:
            return HiddenOutput(self._windows_ending_at_each_position(tokens_BT, documents_BT))
        # padding is moved after the text, and each position back afterwards
        order_BT = (~batch.keep_BT).long().argsort(dim=1, stable=True)
        documents_BT = None if documents_BT is None else documents_BT.gather(1, order_BT)
        packed_BTC = self._windows_ending_at_each_position(tokens_BT.gather(1, order_BT), documents_BT)
        return HiddenOutput(packed_BTC.gather(1, order_BT.argsort(1)[..., None].expand_as(packed_BTC)))

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the normalised log p of every token, in float64 if the device has it."""
        smoothed = self._cached_smoothed_tables()
        context_MC = hidden.reshape(-1, self.n_context_tokens)
        share_M = torch.ones(len(context_MC), dtype=smoothed.unigram_V.dtype, device=hidden.device)
        parts = []
        for order, index_M, seen_M in reversed(list(self._find_contexts_by_order(context_MC))):
            rows, contexts = seen_M.nonzero()[:, 0], index_M[seen_M]
            rows_of_grams, cells, mass = self._find_continuations(order, rows, contexts)
            parts.append((cells, share_M[rows_of_grams] * mass))
            share_M[rows] *= order.backoff_X[contexts]
        p_MV = share_M[:, None] * smoothed.unigram_V
        for cells, mass in parts:
            p_MV.view(-1).index_add_(0, cells, mass)
        return p_MV.log_().view(*hidden.shape[:-1], self.vocab_size)

    def next_token_probabilities(self, context: Sequence[int]) -> FloatArray:
        """Returns p of each token (V,) after the last tokens of a text, as `logits` does, but faster for one row.

        The model is on the CPU.
        """
        unigram_V, orders = self._cached_smoothed_tables()
        p_V: FloatArray = unigram_V.double().numpy().copy()
        for n, table in enumerate(orders, 1):
            index = self._find_context_index(context[-n:]) if len(context) >= n else None
            if index is None:
                break
            keys_G, mass_G, starts_X, backoff_X = (tensor.numpy() for tensor in table)
            grams = slice(starts_X[index], starts_X[index + 1])
            p_V *= backoff_X[index]
            p_V[keys_G[grams] % self.vocab_size] += mass_G[grams]
        return p_V

    def _find_context_index(self, context: Sequence[int]) -> int | None:
        """Returns the index of a context in the table of its n-grams; None if it was not seen."""
        index = context[0]
        for table, token in zip(self._cached_smoothed_tables().orders, context[1:], strict=False):
            keys_G, key = table.keys_G.numpy(), index * self.vocab_size + token
            index = int(np.searchsorted(keys_G, key))
            if index == len(keys_G) or keys_G[index] != key:
                return None
        return index

    def _find_continuations(self, order: _OrderTable, rows: Tensor, context_indices: Tensor) -> _Continuations:
        """Returns all n-grams that begin with the contexts of these rows."""
        starts = order.starts_X[context_indices]
        lengths = order.starts_X[context_indices + 1] - starts
        firsts = lengths.cumsum(0) - lengths
        grams = torch.arange(int(lengths.sum()), device=rows.device) + (starts - firsts).repeat_interleave(lengths)
        rows_of_grams = rows.repeat_interleave(lengths)
        cells = rows_of_grams * self.vocab_size + order.keys_G[grams] % self.vocab_size
        return _Continuations(rows_of_grams, cells, order.mass_G[grams])

    def has_counted_targets(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Returns whether each target was ever counted after its context."""
        context_MC, target_M = hidden.reshape(-1, self.n_context_tokens), targets.reshape(-1)
        length_M = self._context_lengths(context_MC)
        counted_M = torch.isin(target_M, self.grams_GN[:, -1]) & (length_M == 0)
        for n, (order, index_M, seen_M) in enumerate(self._find_contexts_by_order(context_MC), 1):
            _, has_M = _find_sorted(order.keys_G, index_M * self.vocab_size + target_M)
            counted_M |= seen_M & has_M & (length_M == n)
        return counted_M.view(targets.shape)

    def _context_lengths(self, context_MC: Tensor) -> Tensor:
        """Returns the number of tokens of each context, without padding."""
        return (context_MC[:, self.n_context_tokens - (self.order - 1) :] != PADDING_ID).sum(1)

    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        context_MC, target_M = hidden.reshape(-1, self.n_context_tokens), targets.reshape(-1)
        p_M = self._cached_smoothed_tables().unigram_V[target_M]
        for order, index_M, seen_M in self._find_contexts_by_order(context_MC):
            gram_M, has_M = _find_sorted(order.keys_G, index_M * self.vocab_size + target_M)
            mass_M = order.mass_G[gram_M].where(has_M, 0)
            p_M = torch.where(seen_M, mass_M + order.backoff_X[index_M] * p_M, p_M)
        return p_M.log().view(targets.shape)

    def initial_state(self, batch: Batch) -> DecodeState:
        context_BC = batch.tokens_BT.new_full((len(batch.tokens_BT), self.n_context_tokens), PADDING_ID)
        return DecodeState(0, None, ((context_BC,),))

    def forward_incremental(self, tokens_BT: Tensor, state: DecodeState) -> tuple[Tensor, DecodeState]:
        hidden_BTC = self._windows_ending_at_each_position(tokens_BT, None, state.layers[0][0])
        length = state.length + tokens_BT.shape[1]
        return hidden_BTC, DecodeState(length, state.padding_B, ((hidden_BTC[:, -1].clone(),),))

    def partial_fit_(self, batches: Iterable[Batch], n_new_tokens: int) -> None:
        # in text order, so that no n-gram is counted before its own prefix
        merged = (self.grams_GN.cpu().numpy(), self.counts_G.cpu().numpy())
        new, n_new = [], 0
        for batch in batches:
            new.append(_merge_counts([self._list_highest_order_target_ngrams(batch)], self.vocab_size))
            n_new += len(new[-1][0])
            if n_new > max(MIN_BUFFERED_NGRAMS, len(merged[0])):
                merged, new, n_new = _merge_counts([merged, *new], self.vocab_size), [], 0
        grams_GN, counts_G = _merge_counts([merged, *new], self.vocab_size)
        self.grams_GN = torch.from_numpy(grams_GN).to(self.grams_GN.device)
        self.counts_G = torch.from_numpy(counts_G).to(self.counts_G.device)
        self.n_read = self.n_read + n_new_tokens

    def _windows_ending_at_each_position(
        self, tokens_BT: Tensor, documents_BT: Tensor | None, past_BC: Tensor | None = None
    ) -> Tensor:
        """Returns the last C tokens at each position (B, T, C), after those of `past_BC`."""
        C = self.n_context_tokens
        if past_BC is None:
            past_BC = tokens_BT.new_full((len(tokens_BT), C), PADDING_ID)
        window_BTC = torch.cat((past_BC, tokens_BT), 1).unfold(1, C, 1)[:, 1:]
        if documents_BT is not None:
            document_BTC = torch.cat((torch.zeros_like(past_BC), documents_BT), 1).unfold(1, C, 1)[:, 1:]
            window_BTC = window_BTC.masked_fill(document_BTC != documents_BT[..., None], PADDING_ID)
        return window_BTC.contiguous()

    def _list_highest_order_target_ngrams(self, batch: Batch) -> NGramCounts:
        """Returns the n-gram of every target and its N - 1 preceding tokens, each with count 1."""
        if batch.targets_BT is None:
            raise ValueError("a batch without targets has nothing to count")
        context_BTC = self.forward(batch).hidden_BTD[..., self.n_context_tokens - (self.order - 1) :]
        grams_MN = torch.cat((context_BTC, batch.targets_BT[..., None]), -1)[batch.targets_BT != IGNORE]
        return grams_MN.to("cpu", torch.int32).numpy(), np.ones(len(grams_MN), dtype=np.int64)

    def _find_contexts_by_order(self, context_MC: Tensor) -> Iterator[_ContextLookupResult]:
        """Looks up the context of each row in the tables of the orders from 2 on."""
        C, orders = self.n_context_tokens, self._cached_smoothed_tables().orders
        for n, table in enumerate(orders, 2):
            index_M = context_MC[:, C - n + 1].contiguous()
            seen_M = index_M != PADDING_ID
            for order, token_M in zip(orders, context_MC[:, C - n + 2 :].unbind(1), strict=False):
                index_M, has_M = _find_sorted(order.keys_G, index_M * self.vocab_size + token_M)
                seen_M = seen_M & has_M
            yield _ContextLookupResult(table, index_M.where(seen_M, 0), seen_M)

    def _cached_smoothed_tables(self) -> _NgramTables:
        """Returns the tables for the current counts, on the model's device."""
        # anything that changes or moves the counts replaces the tensor
        if self._cached is None or self._cached[0] is not self.counts_G:
            self._cached = self.counts_G, self._build_smoothed_tables()
        return self._cached[1]

    def _build_smoothed_tables(self) -> _NgramTables:
        device = self.grams_GN.device
        dtype = widest_float_dtype(device)
        levels = [(self.grams_GN.cpu().numpy(), self.counts_G.cpu().numpy())]
        for _ in range(self.order - 1):
            grams_GN, counts_G = levels[-1]
            levels.append(
                _merge_counts([(grams_GN[:, 1:], self._count_contributions_to_suffixes(*levels[-1]))], self.vocab_size)
            )
        (tokens_G1, counts_G), *rest = reversed(levels)
        adjusted_V = np.zeros(self.vocab_size, dtype=np.int64)
        adjusted_V[tokens_G1[:, 0]] = counts_G
        orders: list[tuple[IntArray, FloatArray, IntArray, FloatArray]] = []
        for grams_GN, counts_G in rest:
            is_whole = grams_GN[:, 0] != PADDING_ID
            if not is_whole.any():
                break
            context_G = grams_GN[is_whole, 0].astype(np.int64)
            for (keys, *_), token_G in zip(orders, grams_GN[is_whole, 1:-1].T, strict=True):
                context_G = np.searchsorted(keys, context_G * self.vocab_size + token_G)
            n_contexts = len(orders[-1][0]) if orders else self.vocab_size
            keys_G = context_G * self.vocab_size + grams_GN[is_whole, -1]
            mass_G, backoff_X = self._ngram_masses_and_context_weights(context_G, counts_G[is_whole], n_contexts)
            orders.append((keys_G, mass_G, np.searchsorted(context_G, np.arange(n_contexts + 1)), backoff_X))

        def to_tensor(values: NDArray[Any]) -> Tensor:
            return torch.from_numpy(values).to(device, dtype if values.dtype.kind == "f" else None)

        unigram_V = to_tensor(self._estimate_unigrams(adjusted_V))
        return _NgramTables(unigram_V, tuple(_OrderTable(*map(to_tensor, order)) for order in orders))

    def _count_contributions_to_suffixes(self, grams_GN: NDArray[np.int32], counts_G: IntArray) -> IntArray:
        """Returns what each n-gram adds to the count of itself without its first token.

        The sums are continuation counts: the number of distinct preceding tokens, and of texts that it begins.
        """
        return np.where(grams_GN[:, 0] == PADDING_ID, counts_G, 1)

    def _ngram_masses_and_context_weights(
        self, context_G: IntArray, counts_G: IntArray, n_contexts: int
    ) -> list[FloatArray]:
        """Returns the mass of each n-gram (`mass_G`) and the weight of each context (`backoff_X`) of an order.

        In Kneser-Ney smoothing they are its discounted probability and the back-off weight; see `_OrderTable`.
        """
        discount_G = kneser_ney_discounts_by_count(counts_G)[np.minimum(counts_G, 3)]
        total_X = np.bincount(context_G, counts_G, n_contexts)
        taken_X = np.bincount(context_G, discount_G, n_contexts)
        backoff_X = np.divide(taken_X, total_X, out=np.ones(n_contexts), where=total_X > 0)
        return [(counts_G - discount_G) / total_X[context_G], backoff_X]

    def _estimate_unigrams(self, counts_V: IntArray) -> FloatArray:
        """Returns unigram probabilities, which are uniform if nothing was counted."""
        if not counts_V.any():
            return np.full(len(counts_V), 1 / len(counts_V))
        discount_V = kneser_ney_discounts_by_count(counts_V)[np.minimum(counts_V, 3)]
        p_V: FloatArray = (counts_V - discount_V + discount_V.sum() / len(counts_V)) / counts_V.sum()
        return p_V


class AddKNGramModel(NGramModel):
    """Add-k smoothing, p(w | h) = (c(hw) + k) / (c(h.) + k V) (Lidstone 1920); relative frequencies for k = 0.

    h is as many of the order - 1 preceding tokens as there are, and c are their counts. With k = 0 an n-gram that was
    never counted has probability 0; after a context that was never counted, all have 1 / V, the limit of small k.

    In its tables masses are counts, and the backoff of a context is the sum of the counts after it.
    """

    def __init__(self, spec: NGram, vocab_size: int) -> None:
        super().__init__(spec, vocab_size)
        self.k = spec.k if spec.smoothing == "add-k" else 0.0
        self.description += f", add-{self.k:g}" if self.k else ", relative frequencies"

    def logits(self, hidden: Tensor) -> Tensor:
        """Returns the normalised log p of every token, -inf for probability 0, in float64 if the device has it."""
        context_MC = hidden.reshape(-1, self.n_context_tokens)
        length_M = self._context_lengths(context_MC)
        count_MV = (length_M == 0)[:, None] * self._cached_smoothed_tables().unigram_V
        total_M = count_MV.sum(1)
        for n, (order, index_M, seen_M) in enumerate(self._find_contexts_by_order(context_MC), 1):
            rows = (seen_M & (length_M == n)).nonzero()[:, 0]
            _, cells, counts = self._find_continuations(order, rows, index_M[rows])
            count_MV.view(-1).index_add_(0, cells, counts)
            total_M[rows] = order.backoff_X[index_M[rows]]
        log_p_MV = self._add_k_probability(count_MV, total_M[:, None]).log_()
        return log_p_MV.view(*hidden.shape[:-1], self.vocab_size)

    def token_log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        context_MC, target_M = hidden.reshape(-1, self.n_context_tokens), targets.reshape(-1)
        length_M, unigram_V = self._context_lengths(context_MC), self._cached_smoothed_tables().unigram_V
        count_M = (length_M == 0) * unigram_V[target_M]
        total_M = (length_M == 0) * unigram_V.sum()
        for n, (order, index_M, seen_M) in enumerate(self._find_contexts_by_order(context_MC), 1):
            is_context_M = seen_M & (length_M == n)
            gram_M, has_M = _find_sorted(order.keys_G, index_M * self.vocab_size + target_M)
            count_M = torch.where(is_context_M & has_M, order.mass_G[gram_M], count_M)
            total_M = torch.where(is_context_M, order.backoff_X[index_M], total_M)
        return self._add_k_probability(count_M, total_M).log().view(targets.shape)

    def _add_k_probability(self, count: Tensor, total: Tensor) -> Tensor:
        """Returns the smoothed probability of what was counted `count` times of `total`."""
        denominator = total + self.k * self.vocab_size
        return torch.where(denominator > 0, (count + self.k) / denominator.clamp(min=1e-300), 1 / self.vocab_size)

    def _count_contributions_to_suffixes(self, grams_GN: NDArray[np.int32], counts_G: IntArray) -> IntArray:
        return counts_G

    def _ngram_masses_and_context_weights(
        self, context_G: IntArray, counts_G: IntArray, n_contexts: int
    ) -> list[FloatArray]:
        """Returns the counts of n-grams, and their sum for each context."""
        total_X = np.bincount(context_G, counts_G, n_contexts).astype(np.float64)
        return [counts_G.astype(np.float64), total_X]

    def _estimate_unigrams(self, counts_V: IntArray) -> FloatArray:
        return counts_V.astype(np.float64)


def kneser_ney_discounts_by_count(ngram_counts: IntArray) -> FloatArray:
    """Returns the discounts of counts 0, 1, 2, and 3 or more for n-grams of one order (Chen and Goodman 1999, eq. 26).

    They are FALLBACK_DISCOUNTS if not all counts from 1 to 4 occur, or a discount would not be positive.
    """
    n1, n2, n3, n4 = (int((ngram_counts == c).sum()) for c in (1, 2, 3, 4))
    if min(n1, n2, n3, n4) == 0:
        return np.array([0.0, *FALLBACK_DISCOUNTS])
    y = n1 / (n1 + 2 * n2)
    discount = np.array([0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3])
    return discount if (discount[1:] > 0).all() else np.array([0.0, *FALLBACK_DISCOUNTS])


def _merge_counts(tables: list[NGramCounts], vocab_size: int) -> NGramCounts:
    """Returns the sorted distinct n-grams of all tables, and the sums of their counts."""
    grams_GN, counts_G = (np.concatenate(column) for column in zip(*tables, strict=True))
    if not len(grams_GN):
        return grams_GN, counts_G
    words = _pack_ngrams_into_integers(grams_GN, vocab_size + 1)
    order = np.argsort(words[0], kind="stable") if len(words) == 1 else np.lexsort(words[::-1])
    words = [word[order] for word in words]
    first = np.concatenate(([True], np.any([word[1:] != word[:-1] for word in words], axis=0)))
    return grams_GN[order[first]], np.add.reduceat(counts_G[order], np.flatnonzero(first))


def _pack_ngrams_into_integers(grams_GN: NDArray[np.int32], base: int) -> list[IntArray]:
    """Packs n-grams into as few 63-bit integers as possible, which sort in the same order; first tokens first."""
    digits = 1
    while base ** (digits + 1) < 2**63:
        digits += 1
    words = []
    for start in range(0, grams_GN.shape[1], digits):
        word = np.zeros(len(grams_GN), dtype=np.int64)
        for column in grams_GN[:, start : start + digits].T:
            word = word * base + (column + 1)
        words.append(word)
    return words


def _find_sorted(keys_G: Tensor, queries_M: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the index of each query among sorted keys, arbitrary if absent, and whether it is present."""
    index_M = torch.searchsorted(keys_G, queries_M).clamp_(max=len(keys_G) - 1)
    return index_M, keys_G[index_M] == queries_M
