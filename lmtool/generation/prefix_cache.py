"""A cache of keys and values of prefixes, for later texts that begin with the same tokens.

Shapes: B rows of a state.
"""

from collections import OrderedDict
from collections.abc import Sequence
from itertools import count

import torch

from lmtool.model.language_model import DecodeState

BLOCK_TOKENS = 16
"""Tokens of a block. Only whole blocks are cached."""

_Key = tuple[int, tuple[int, ...]]
"""The number of the block before, 0 for none, and the tokens of the block itself."""


class PrefixCache:
    """Keys and values of prefixes, as a radix tree of blocks of tokens (Zheng et al. 2024; vLLM's prefix caching).

    It needs a model whose state can be rewound and has no source. The tensors of all blocks have at most `max_bytes`;
    the least recently used block is evicted, a longer prefix before a shorter one that it begins with. A cache of 0
    bytes stays empty.

    n_block: tokens of a block.
    """

    def __init__(self, max_bytes: int, n_block: int = BLOCK_TOKENS) -> None:
        self._max_bytes, self._n_block = max_bytes, n_block
        # Least recently used first. A block is used with all blocks before it, which come after it in this order: so
        # the first one is always a leaf.
        self._blocks: OrderedDict[_Key, tuple[int, DecodeState]] = OrderedDict()
        self._numbers = count(1)

    def n_cached_tokens(self, texts: Sequence[Sequence[int]]) -> int:
        """Returns how many first tokens of every text are cached."""
        return self._n_block * min(len(self._find_cached_block_keys(tokens)) for tokens in texts)

    @torch.inference_mode()
    def build_state_of_cached_prefixes(self, texts: Sequence[Sequence[int]]) -> DecodeState | None:
        """Returns the state, one row per text, after the `n_cached_tokens` of each; None for none."""
        keys_by_text = [self._find_cached_block_keys(tokens) for tokens in texts]
        n = min(map(len, keys_by_text))
        if not n:
            return None
        rows = []
        for keys in keys_by_text:
            self._mark_used(keys[:n])
            rows.append(DecodeState.concatenate_positions([self._blocks[key][1] for key in keys[:n]]))
        return DecodeState.join_rows(rows)

    @torch.inference_mode()
    def store(self, texts: Sequence[Sequence[int]], state: DecodeState, n_new: int) -> None:
        """Stores the blocks of texts that their last `n_new` tokens complete, and all before them.

        state: one row per text, which has read at least the text.
        """
        for row, tokens in enumerate(texts if self._max_bytes else ()):
            n_whole = len(tokens) // self._n_block
            if n_whole == (len(tokens) - n_new) // self._n_block:
                continue
            state = state.to_growable()
            keys = self._find_cached_block_keys(tokens)
            self._mark_used(keys)
            for i in range(len(keys), n_whole):
                part = state.copy_positions(row, i * self._n_block, (i + 1) * self._n_block)
                size = sum(t.nbytes for layer in part.layers for t in layer)  # the same for every block
                if (i + 1) * size > self._max_bytes:
                    break
                while (len(self._blocks) + 1) * size > self._max_bytes:
                    self._blocks.popitem(last=False)
                keys.append(self._block_key(keys, tokens))
                self._blocks[keys[-1]] = next(self._numbers), part
                self._mark_used(keys)

    def _find_cached_block_keys(self, tokens: Sequence[int]) -> list[_Key]:
        """Returns the keys of the cached blocks of a text, from the first one on."""
        keys: list[_Key] = []
        while (len(keys) + 1) * self._n_block <= len(tokens) and (key := self._block_key(keys, tokens)) in self._blocks:
            keys.append(key)
        return keys

    def _block_key(self, keys: Sequence[_Key], tokens: Sequence[int]) -> _Key:
        """Returns the key of the block of a text after those of `keys`."""
        first = len(keys) * self._n_block
        return self._blocks[keys[-1]][0] if keys else 0, tuple(tokens[first : first + self._n_block])

    def _mark_used(self, keys: Sequence[_Key]) -> None:
        for key in reversed(keys):
            self._blocks.move_to_end(key)
