"""The order of samples: permutations, epochs, windows, lanes and mixtures, against plain ones and by chi-square."""

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.data.order import (
    LaneOrder,
    MixtureOrder,
    RandomOffsetWindows,
    SampleOrder,
    derive_seed,
    permute,
    sample_numbers_for_rank,
)
from lmtool.errors import DataError
from tests.reference import order as reference
from tests.support.examples import examples

keys = st.integers(0, 2**63 - 1)


def chi_square_is_plausible(counts: np.ndarray) -> bool:
    """True when counts of equally likely cells lie within five standard deviations of chi-square's mean."""
    expected = counts.sum() / counts.size
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = counts.size - 1
    return bool(abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom))


@settings(deadline=None)
@given(st.integers(1, 2**50), keys, st.data())
def test_permutation_equals_the_plain_one_at_any_places(n: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(0, n - 1), max_size=5))
    expected = [reference.permute(index, n, key) for index in indices]
    assert permute(np.array(indices, dtype=np.int64), n, key).tolist() == expected
    assert permute(np.array([indices] * 2, dtype=np.int64), n, key).tolist() == [expected] * 2
    each = np.array([key, 1, 2**63 - 1], dtype=np.uint64)
    assert permute(np.full(3, n - 1), n, each).tolist() == [reference.permute(n - 1, n, int(one)) for one in each]


@pytest.mark.parametrize("n", [2**32 + 1, 10**12, 2**61 + 3, 2**62 - 1])
def test_permutation_of_a_huge_range_never_repeats(n: int) -> None:
    indices = np.concatenate([np.arange(20_000), n - 1 - np.arange(20_000)])
    images = permute(indices, n, 7)
    assert len(np.unique(images)) == len(indices)
    assert images.min() >= 0
    assert images.max() < n
    assert chi_square_is_plausible(np.bincount(images // (n // 100 + 1), minlength=100))


@pytest.mark.parametrize(("index", "n"), [(0, 0), (-1, 5), (5, 5), (0, 2**62)])
def test_permutation_refuses_indices_out_of_range(index: int, n: int) -> None:
    with pytest.raises(ValueError, match=r"permutation|range"):
        permute(np.array([index]), n, 0)


@pytest.mark.parametrize("n", [2, 3, 5, 6])
def test_all_orders_of_a_few_items_are_equally_likely(n: int) -> None:
    key_N = np.arange(50_000, dtype=np.uint64)
    order_N = np.zeros(len(key_N), dtype=np.int64)
    for index in range(n):
        order_N = order_N * n + permute(np.full(len(key_N), index), n, key_N)
    _, counts = np.unique(order_N, return_counts=True)
    assert len(counts) == math.factorial(n)
    assert chi_square_is_plausible(counts)


@pytest.mark.parametrize("n", [37, 100, 101])
def test_neighbours_go_to_independent_places(n: int) -> None:
    key_N = np.arange(200 * n, dtype=np.uint64)
    first, second = (permute(np.full(len(key_N), index), n, key_N) for index in (8, 9))
    assert chi_square_is_plausible(np.bincount(first, minlength=n))
    # The second is anywhere but at the first, so its distance is uniform in 1..n-1.
    assert chi_square_is_plausible(np.bincount((second - first) % n, minlength=n)[1:])


def test_seeds_are_documented_and_differ_by_their_parts() -> None:
    digest = hashlib.blake2b(b'[3,"order",0]', digest_size=8).digest()
    assert derive_seed(3, "order", 0) == int.from_bytes(digest, "little") // 2
    parts: list[Sequence[int | str]] = [(), (1,), ("1",), (1, 2), (12,), ("1", "2"), ("12",), ("", "12")]
    parts += [("é",), ("\ud800",), ('","',), (-1,)]
    assert len({derive_seed(*part) for part in parts}) == len(parts)
    assert all(0 <= derive_seed(*part) < 2**63 for part in parts)


@settings(deadline=None, max_examples=examples(12, 30))
@given(st.integers(1, 200), st.integers(0, 5), st.integers(5, 50))
def test_every_item_comes_once_an_epoch_in_an_order_of_its_own(n: int, seed: int, batch_size: int) -> None:
    order = SampleOrder(n, seed)
    n_steps = -(-2 * n // batch_size)
    epochs, items = zip(*(order(sample_numbers_for_rank(step, batch_size)) for step in range(n_steps)), strict=True)
    epoch_S, item_S = np.concatenate(epochs), np.concatenate(items)
    orders = [item_S[epoch_S == epoch].tolist() for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(n))
    other = SampleOrder(n, seed + 1)(np.arange(n))[1].tolist()
    assert n < 30 or (orders[0] != orders[1] and orders[0] != other)


@given(st.integers(0, 1000), st.integers(1, 100), st.integers(1, 9))
def test_ranks_share_the_same_batch(step: int, batch_size: int, n_ranks: int) -> None:
    shares = [sample_numbers_for_rank(step, batch_size, rank, n_ranks) for rank in range(n_ranks)]
    whole = list(range(step * batch_size, (step + 1) * batch_size))
    assert np.concatenate(shares).tolist() == sample_numbers_for_rank(step, batch_size).tolist() == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(1, 400), st.integers(0, 3))
def test_windows_lie_in_the_stream_and_do_not_overlap(context: int, more: int, seed: int) -> None:
    n_tokens = context + more
    windows = RandomOffsetWindows(n_tokens, context, seed)
    n = windows.n_items
    assert n == max(1, (n_tokens - context) // context)
    for epoch in range(5):
        starts = [windows.window_start(epoch, window) for window in range(n)]
        assert starts[0] == windows.phase(epoch) in range(context)
        assert np.diff(starts).tolist() == [context] * (n - 1)
        assert starts[-1] + context + 1 <= n_tokens


@pytest.mark.parametrize(("n_tokens", "n_phases"), [(1000, 16), (32, 16), (31, 15), (17, 1), (16, 0)])
def test_windows_begin_equally_often_wherever_they_fit(n_tokens: int, n_phases: int) -> None:
    if not n_phases:
        with pytest.raises(DataError):
            RandomOffsetWindows(n_tokens, 16, seed=0)
        return
    windows = RandomOffsetWindows(n_tokens, 16, seed=5)
    phases = np.array([windows.phase(epoch) for epoch in range(2000)])
    assert phases.max() == n_phases - 1
    assert n_phases == 1 or chi_square_is_plausible(np.bincount(phases, minlength=n_phases))


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 3))
def test_lanes_go_on_from_step_to_step_and_cover_what_they_can(n: int, n_lanes: int, seed: int) -> None:
    if n < n_lanes:
        with pytest.raises(DataError):
            LaneOrder(n, n_lanes, seed)
        return
    order = LaneOrder(n, n_lanes, seed)
    steps = [order(sample_numbers_for_rank(step, n_lanes)) for step in range(3 * order.n_steps)]
    for step, (epoch_S, item_S) in enumerate(steps):
        assert set(epoch_S) == {step // order.n_steps}
        assert order.is_lane_start(step) == (step % order.n_steps == 0)
        if not order.is_lane_start(step):
            assert (item_S == steps[step - 1][1] + 1).all()
    for epoch in range(3):
        items = np.concatenate([item_S for epoch_S, item_S in steps if epoch_S[0] == epoch])
        assert sorted(items) == list(range(items.min(), items.min() + order.n_steps * n_lanes))
        assert items.max() < n
        assert n - len(items) < n_lanes


def test_windows_that_are_left_over_are_others_in_each_epoch() -> None:
    order = LaneOrder(103, 10, seed=1)
    assert {int(order(np.array([epoch * 100]))[1][0]) for epoch in range(50)} == {0, 1, 2, 3}


def test_a_mixture_has_the_shares_of_its_weights_in_every_block() -> None:
    text_S, _ = MixtureOrder((7.0, 2.0, 1.0), seed=1)(np.arange(3 * 1000))
    blocks = text_S.reshape(3, 1000)
    assert np.stack([np.bincount(block) for block in blocks]).tolist() == [[700, 200, 100]] * 3
    assert (blocks[0] != blocks[1]).any()
    assert (text_S != MixtureOrder((7.0, 2.0, 1.0), seed=2)(np.arange(3 * 1000))[0]).any()
    assert abs(np.bincount(blocks[0][:500])[0] - 350) < 60  # halves of a block are about alike too
    with pytest.raises(DataError):
        MixtureOrder((1.0, 1e-5), seed=1)


def test_a_mixture_reads_each_text_in_order_and_in_any_place() -> None:
    order = MixtureOrder((0.3, 0.1, 0.6001), seed=5)
    text_S, own_S = order(np.arange(5000))
    for text in range(3):
        assert own_S[text_S == text].tolist() == list(range(int((text_S == text).sum())))
    some = np.array([4999, 0, 1234, 1234, 2000])
    assert [found.tolist() for found in order(some)] == [text_S[some].tolist(), own_S[some].tolist()]
    for sample in (0, 1, 999, 1000, 3217):
        assert order.count_samples_per_text_before(sample) == np.bincount(text_S[:sample], minlength=3).tolist()
