"""Orders samples by pure functions, without state to save or restore.

Sample number `step * batch_size + j` maps to an epoch and an item, and stream windows map to token offsets, by
arithmetic on (seed, epoch) alone. So resuming or changing the number of devices does not change the samples.

Shapes: S samples, N numbers; any shape is kept.
"""

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from lmtool.errors import DataError
from lmtool.printable import format_count

IntArray = NDArray[np.int64]

FEISTEL_ROUNDS = 12
"""Feistel rounds, each of both halves; with 6 or fewer, permutations of six items are not uniform."""

GOLDEN_RATIO_64 = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)


def derive_seed(*parts: int | str) -> int:
    """Derives a seed from numbers and words, 0 <= seed < 2**63.

    The first 8 bytes, little-endian without the top bit, of BLAKE2b (RFC 7693, 8-byte digest) of `parts` as a JSON
    list without spaces in ASCII: the same on every machine and in every version.
    """
    text = json.dumps(parts, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode("ascii"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def permute(index_N: IntArray, n: int, key: int | NDArray[np.uint64]) -> IntArray:
    """Applies a keyed permutation of range(n) to each index, in constant memory and with random access.

    A Feistel network (Luby and Rackoff 1988) on a grid of about sqrt(n) x sqrt(n) cells, with cycle walking for results
    beyond n (Black and Rogaway 2002).

    index_N: numbers in range(n). n: 1 <= n < 2**62. key: one for all, or one for each index.
    Raises ValueError when n or an index is out of range.
    """
    if not 1 <= n < 2**62:
        raise ValueError(f"a permutation of {n} items")
    if index_N.size and (index_N.min() < 0 or index_N.max() >= n):
        raise ValueError(f"indices from {index_N.min()} to {index_N.max()} are not in range({n})")
    height = math.isqrt(n - 1) + 1
    width = -(-n // height)
    cells = index_N.astype(np.uint64).reshape(-1)
    keys = np.broadcast_to(np.asarray(key, dtype=np.uint64), index_N.shape).reshape(-1)
    outside = np.arange(cells.size)
    while outside.size:
        cells[outside] = _run_feistel_network(cells[outside], np.uint64(height), np.uint64(width), keys[outside])
        outside = outside[cells[outside] >= n]
    return cells.astype(np.int64).reshape(index_N.shape)


def _run_feistel_network(
    cell_N: NDArray[np.uint64], height: np.uint64, width: np.uint64, key_N: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Runs the Feistel network once: a bijection of range(height * width) for each key."""
    row_N, column_N = np.divmod(cell_N, width)
    round_key_N = mix_bits(key_N)
    for _ in range(FEISTEL_ROUNDS):
        round_key_N = round_key_N + GOLDEN_RATIO_64
        # The shift avoids overflow of the sum at 2**64, with which the map would not be injective.
        row_N = (row_N + (mix_bits(column_N ^ mix_bits(round_key_N)) >> _ONE)) % height
        round_key_N = round_key_N + GOLDEN_RATIO_64
        column_N = (column_N + (mix_bits(row_N ^ mix_bits(round_key_N)) >> _ONE)) % width
    return row_N * width + column_N


def mix_bits(x_N: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mixes all bits by a bijection, the finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    x_N = (x_N ^ (x_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x_N = (x_N ^ (x_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x_N ^ (x_N >> np.uint64(31))


def sample_numbers_for_rank(step: int, batch_size: int, rank: int = 0, n_ranks: int = 1) -> IntArray:
    """Returns the sample numbers of batch `step` (from 0) on `rank`, its contiguous share of the batch.

    All ranks together have samples step * batch_size to (step + 1) * batch_size - 1, in order.
    """
    first = step * batch_size
    return np.arange(first + rank * batch_size // n_ranks, first + (rank + 1) * batch_size // n_ranks)


def _compute_per_epoch(epoch_S: IntArray, value: Callable[[int], int]) -> IntArray:
    """Computes a value once per epoch, and returns that of each sample."""
    epochs, index_S = np.unique(epoch_S, return_inverse=True)
    values = np.array([value(int(epoch)) for epoch in epochs], dtype=np.int64)
    return values[index_S.reshape(epoch_S.shape)]


@dataclass(frozen=True)
class SampleOrder:
    """Orders every item once per epoch, reshuffled each epoch.

    n_items: items of one epoch, at least 1.
    """

    n_items: int
    seed: int

    def __call__(self, sample_S: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the epochs (from 0) and items (in range(n_items)) of sample numbers."""
        epoch_S, within_S = np.divmod(sample_S, self.n_items)
        key_S = _compute_per_epoch(epoch_S, lambda epoch: derive_seed(self.seed, "order", epoch)).astype(np.uint64)
        return epoch_S, permute(within_S, self.n_items, key_S)


@dataclass(frozen=True)
class MixtureOrder:
    """Assigns each sample to one of several texts by their weights.

    Every block of BLOCK_SAMPLES has the same number of samples of each text, its rounded share, in an order of its own.
    So the number of earlier samples of a text follows from the sample number.

    weights: of the texts, above 0. Raises DataError when a share is too small for a block.
    """

    weights: tuple[float, ...]
    seed: int

    BLOCK_SAMPLES: ClassVar[int] = 1000

    def __post_init__(self) -> None:
        if min(self.quotas) < 1:
            number = int(np.argmin(self.quotas))
            what = f"text {number + 1} of the mixture has a share below one in {2 * self.BLOCK_SAMPLES:,}"
            raise DataError(what, where="data.mixture", fix="give it more weight, or leave it out")

    @cached_property
    def quotas(self) -> tuple[int, ...]:
        """Returns the samples of each text in a block; those of largest remainder are rounded up."""
        shares = np.array(self.weights) / sum(self.weights) * self.BLOCK_SAMPLES
        counts = np.floor(shares).astype(np.int64)
        largest = np.argsort(counts - shares, kind="stable")[: self.BLOCK_SAMPLES - int(counts.sum())]
        counts[largest] += 1
        return tuple(counts.tolist())

    def __call__(self, sample_S: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the texts (in range(len(weights))) of samples, and the sample numbers within these texts."""
        block_S, within_S = np.divmod(sample_S, self.BLOCK_SAMPLES)
        text_S, of_text_S = np.empty_like(sample_S), np.empty_like(sample_S)
        for block in np.unique(block_S):
            text_P, rank_P = self._texts_and_ranks_in_block(int(block))
            here = block_S == block
            text_S[here] = text_P[within_S[here]]
            of_text_S[here] = block * np.array(self.quotas)[text_S[here]] + rank_P[within_S[here]]
        return text_S, of_text_S

    def count_samples_per_text_before(self, sample: int) -> list[int]:
        """Counts the samples of each text before `sample`."""
        block, within = divmod(sample, self.BLOCK_SAMPLES)
        text_P, _ = self._texts_and_ranks_in_block(block)
        counts = block * np.array(self.quotas) + np.bincount(text_P[:within], minlength=len(self.weights))
        return [int(count) for count in counts]

    def _texts_and_ranks_in_block(self, block: int) -> tuple[IntArray, IntArray]:
        """Returns the text at each place of a block, and the number of earlier places with the same text."""
        places_P = np.arange(self.BLOCK_SAMPLES)
        ordered_P = np.repeat(np.arange(len(self.weights)), self.quotas)
        text_P = ordered_P[permute(places_P, self.BLOCK_SAMPLES, derive_seed(self.seed, "mixture", block))]
        rank_P = np.empty_like(text_P)
        for text in range(len(self.weights)):
            rank_P[text_P == text] = np.arange(self.quotas[text])
        return text_P, rank_P


@dataclass(frozen=True)
class RandomOffsetWindows:
    """Cuts one long stream into windows of `context` + 1 tokens, inputs and targets, at another offset each epoch.

    Window i of epoch e is tokens[start : start + context + 1], start = phase(e) + i * context. Every phase leaves room
    for the same number of windows, so all epochs have equal length.

    n_tokens: tokens in the stream.
    context: predicted positions per window.
    Raises DataError when the stream is shorter than one window.
    """

    n_tokens: int
    context: int
    seed: int

    def __post_init__(self) -> None:
        if self.n_tokens <= self.context:
            size = format_count(self.n_tokens, "token")
            what = f"the text has {size}, but a context of {self.context} needs {self.context + 1}"
            less = f", or set model.context to {self.n_tokens - 1} or less" if self.n_tokens > 1 else ""
            raise DataError(what, fix=f"give more text{less}")

    @property
    def n_items(self) -> int:
        """Returns the number of windows in one epoch."""
        return max(1, self.n_tokens // self.context - 1)

    def phase(self, epoch: int) -> int:
        """Returns the offset of the first window of an epoch."""
        n_phases = min(self.context, self.n_tokens - self.n_items * self.context)
        return derive_seed(self.seed, "phase", epoch) % n_phases

    def window_start(self, epoch: int, window: int) -> int:
        """Returns the offset of a window in the stream."""
        return self.phase(epoch) + window * self.context


@dataclass(frozen=True)
class LaneOrder:
    """Orders windows so that each batch row continues the same row of the previous batch.

    An epoch is divided into one lane per row, of contiguous windows. Leftover windows are before and after the lanes,
    at different positions each epoch.

    n_items: windows of one epoch.
    n_lanes: rows of a batch.
    Raises DataError when there are fewer windows than lanes.
    """

    n_items: int
    n_lanes: int
    seed: int

    def __post_init__(self) -> None:
        if self.n_items < self.n_lanes:
            size = format_count(self.n_items, "window")
            what = f"the text has {size}, but each of the {self.n_lanes} rows of a batch needs one"
            fix = f"set training.batch_size to {self.n_items} or less, or model.context lower"
            raise DataError(what, where="training.carry_state", fix=fix)

    @property
    def n_steps(self) -> int:
        """Returns the batches per epoch, which are the windows of a lane."""
        return self.n_items // self.n_lanes

    def __call__(self, sample_S: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the epochs (from 0) and windows (in range(n_items)) of sample numbers."""
        step_S, lane_S = np.divmod(sample_S, self.n_lanes)
        epoch_S, within_S = np.divmod(step_S, self.n_steps)
        n_offsets = self.n_items - self.n_steps * self.n_lanes + 1
        offset_S = _compute_per_epoch(epoch_S, lambda epoch: derive_seed(self.seed, "lanes", epoch) % n_offsets)
        return epoch_S, offset_S + lane_S * self.n_steps + within_S

    def is_lane_start(self, step: int) -> bool:
        """Returns whether the rows of batch `step` (from 0) do not continue those of the previous batch."""
        return step % self.n_steps == 0
