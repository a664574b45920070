"""Training examples of GloVe: blocks of co-occurrence counts, in an order that is a function of the seed.

Shapes: S samples, P pairs of words that occur together, V vocabulary.
"""

import numpy as np
from numpy.typing import NDArray

from lmtool.data.order import derive_seed, permute
from lmtool.errors import DataError
from lmtool.model.word_vectors import PairCounts
from lmtool.objective import Example
from lmtool.training.windows import ExampleSource, Windows

COOCCURRENCE_SPAN_TOKENS = 1 << 16


class CooccurrenceExamples(ExampleSource):
    """Ordered pairs of words with X_ij, the sum of 1 / d over their distances d in a text; see `ExampleSource`.

    An example has `length` pairs: the words i as tokens, the words j as the other part, and X as label. An epoch is a
    permutation of all pairs; the last example of it is filled up from its beginning.
    """

    unit = "blocks of counts"

    def __init__(self, text: Windows, is_word_V: NDArray[np.bool_], window: int, length: int, seed: int) -> None:
        """Counts the pairs of words of a text that are at most `window` tokens apart in a document.

        is_word_V: which tokens are words. length: pairs of an example.
        Raises DataError if no two words are near each other.
        """
        pairs = PairCounts(len(is_word_V), np.empty(0, dtype=np.int64), np.empty(0))
        for start in range(0, text.n_tokens, COOCCURRENCE_SPAN_TOKENS):
            batch = text.read_span(start, min(start + COOCCURRENCE_SPAN_TOKENS, text.n_tokens), window)
            pairs.add_batch(batch, is_word_V, window, weight_by_inverse_distance=True)
        keys_P, self._sums_P = pairs.merge()
        if not len(keys_P):
            raise DataError("no two words of the vocabulary are near each other", fix="give more text")
        self._words_P, self._contexts_P = np.divmod(keys_P, len(is_word_V))
        self._length, self._seed = length, seed

    @property
    def examples_per_epoch(self) -> int:
        """Number of examples in one epoch over the pairs."""
        return -(-len(self._sums_P) // self._length)

    def read(self, sample_S: NDArray[np.int64]) -> list[Example]:
        """Reads the examples with these sample numbers, which continue from epoch to epoch."""
        examples = []
        for sample in sample_S.tolist():
            epoch, item = divmod(sample, self.examples_per_epoch)
            position = (item * self._length + np.arange(self._length)) % len(self._sums_P)
            chosen = permute(position, len(self._sums_P), derive_seed(self._seed, "pairs", epoch))
            rng = np.random.Generator(np.random.PCG64(derive_seed(self._seed, "example", sample)))
            words, contexts = self._words_P[chosen], self._contexts_P[chosen]
            examples.append(Example(words, rng, second=contexts, label=self._sums_P[chosen]))
        return examples

    def list_distinct_document_numbers(self, sample_S: NDArray[np.int64]) -> list[int]:
        """Returns the numbers of the blocks, from 0 in each epoch."""
        return sorted(set((sample_S % self.examples_per_epoch).tolist()))
