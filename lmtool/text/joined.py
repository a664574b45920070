"""Several token stores as one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lmtool.text.store import TokenStore


class JoinedStore(TokenStore):
    """The texts of several stores, one after the other. fingerprint: as given.

    Documents keep their order; no tokens are copied, but the bytes and words of all documents are in memory.
    """

    def __init__(self, parts: Sequence[TokenStore], fingerprint: str) -> None:
        """parts: at least one, of the same vocabulary."""
        self.parts = tuple(parts)
        self.path = parts[0].path
        self.fingerprint = fingerprint
        self.vocab_size = parts[0].vocab_size
        self.n_documents = sum(part.n_documents for part in parts)
        self.n_bytes = np.concatenate([part.n_bytes for part in parts])
        self.n_words = np.concatenate([part.n_words for part in parts])
        self._stops = np.cumsum([len(part) for part in parts])
        self._documents = np.cumsum([part.n_documents for part in parts])

    def verify(self) -> None:
        for part in self.parts:
            part.verify()

    def verify_early(self) -> None:
        for part in self.parts:
            part.verify_early()

    def __len__(self) -> int:
        return int(self._stops[-1])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"tokens {start}..{stop} of a store of {len(self)}")
        found = []
        for part, end in zip(self.parts, self._stops.tolist(), strict=True):
            begin = end - len(part)
            first, last = max(start, begin), min(stop, end)
            if first < last:
                found.append(part.read(first - begin, last - begin))
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def counts(self) -> NDArray[np.int64]:
        total: NDArray[np.int64] = np.sum([part.counts() for part in self.parts], axis=0)
        return total

    def document(self, i: int) -> tuple[int, int]:
        if not 0 <= i < self.n_documents:
            raise IndexError(f"document {i} of a store of {self.n_documents}")
        number = int(np.searchsorted(self._documents, i, side="right"))
        part = self.parts[number]
        before = int(self._stops[number]) - len(part)
        start, stop = part.document(i - (int(self._documents[number]) - part.n_documents))
        return before + start, before + stop

    def document_lengths(self) -> NDArray[np.int64]:
        return np.concatenate([part.document_lengths() for part in self.parts])

    def document_at(self, token: int | NDArray[np.int64]) -> NDArray[np.int64]:
        token_S = np.asarray(token)
        number_S = np.searchsorted(self._stops, token_S, side="right").clip(max=len(self.parts) - 1)
        found_S = np.empty(token_S.shape, dtype=np.int64)
        for number, part in enumerate(self.parts):
            here_S = number_S == number
            within_S = token_S[here_S] - (int(self._stops[number]) - len(part))
            found_S[here_S] = int(self._documents[number]) - part.n_documents + part.document_at(within_S)
        return found_S
