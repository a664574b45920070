"""Keys and values of what texts begin with, for later texts that begin with the same tokens.

Shapes: B rows of a state.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

import torch

from lmtool.model.language_model import DecodeState

BLOCK = 16
"""Tokens of a block; of a text only whole blocks are kept."""

_Key = tuple[int, tuple[int, ...]]
"""The number of the block before, 0 for none, and the tokens of the block itself."""


class PrefixCache:
    """Keys and values of prefixes, as a radix tree of blocks of tokens (Zheng et al. 2024; vLLM's prefix caching).

    For models whose state goes back, and has no source. The tensors of all blocks have at most `max_bytes`; what was
    used least recently gives way, longer prefixes before the shorter ones that they begin with. A cache of 0 bytes
    keeps nothing.

    n_block: tokens of a block.
    """

    def __init__(self, max_bytes: int, n_block: int = BLOCK) -> None:
        self._max_bytes, self._n_block = max_bytes, n_block
        # Least recently used first. Blocks are used with all before them, which are put after them in this order: so
        # the first one is always a leaf.
        self._blocks: OrderedDict[_Key, tuple[int, DecodeState]] = OrderedDict()
        self._numbers = count(1)

    def n_known(self, texts: Sequence[Sequence[int]]) -> int:
        """How many tokens of each text, from the first one on, are kept."""
        return self._n_block * min(len(self._path(tokens)) for tokens in texts)

    @torch.inference_mode()
    def state(self, texts: Sequence[Sequence[int]]) -> DecodeState | None:
        """The state, whose rows are the texts, after the tokens that are kept of each, equally many; None for none."""
        paths = [self._path(tokens) for tokens in texts]
        n = min(map(len, paths))
        if not n:
            return None
        for path in paths:
            self._use(path[:n])
        return DecodeState.join([DecodeState.concat([self._blocks[key][1] for key in path[:n]]) for path in paths])

    @torch.inference_mode()
    def keep(self, texts: Sequence[Sequence[int]], state: DecodeState, n_new: int) -> None:
        """Keep the blocks of texts that their last `n_new` tokens complete, and all before them.

        state: its rows have read the texts at least.
        """
        for row, tokens in enumerate(texts if self._max_bytes else ()):
            n_whole = len(tokens) // self._n_block
            if n_whole == (len(tokens) - n_new) // self._n_block:
                continue
            state = state.growing()
            path = self._path(tokens)
            self._use(path)
            for i in range(len(path), n_whole):
                part = state.part(row, i * self._n_block, (i + 1) * self._n_block)
                size = sum(t.nbytes for layer in part.layers for t in layer)  # that of every block
                if (i + 1) * size > self._max_bytes:
                    break
                while (len(self._blocks) + 1) * size > self._max_bytes:
                    self._blocks.popitem(last=False)
                path.append(self._key(path, tokens))
                self._blocks[path[-1]] = next(self._numbers), part
                self._use(path)

    def _path(self, tokens: Sequence[int]) -> list[_Key]:
        """The blocks that are kept of a text, from the first one on."""
        path: list[_Key] = []
        while (len(path) + 1) * self._n_block <= len(tokens) and (key := self._key(path, tokens)) in self._blocks:
            path.append(key)
        return path

    def _key(self, path: Sequence[_Key], tokens: Sequence[int]) -> _Key:
        """The key of the block of a text after those of a path."""
        first = len(path) * self._n_block
        return self._blocks[path[-1]][0] if path else 0, tuple(tokens[first : first + self._n_block])

    def _use(self, path: Sequence[_Key]) -> None:
        for key in reversed(path):
            self._blocks.move_to_end(key)
