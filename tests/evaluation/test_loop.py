"""The evaluation loop: every item once, in batches under a budget, the same in any number of processes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmtool.compute.device import CPU, ExecutionContext
from lmtool.compute.processes import World
from lmtool.evaluation.loop import BATCH_TOKENS, EvaluationOutput, evaluate_items, group_by_length
from lmtool.objective import Loss
from tests.compute.together import together
from tests.support import tiny
from tests.support.examples import examples

LENGTHS = st.integers(1, 3).flatmap(
    lambda parts: st.lists(st.tuples(*[st.integers(0, 30)] * parts), max_size=40),
)


@settings(max_examples=examples(60, 200), deadline=None)
@given(LENGTHS, st.integers(1, 200), st.one_of(st.none(), st.integers(1, 9)))
def test_every_item_comes_once_and_no_group_is_above_the_budget(
    lengths: list[tuple[int, ...]], tokens: int, rows: int | None
) -> None:
    groups = list(group_by_length(lengths, tokens, rows))
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    for group in groups:
        # parts are padded separately, each to its own longest
        width = sum(max(part) for part in zip(*(lengths[i] for i in group), strict=True))
        assert len(group) == 1 or len(group) * width <= tokens
        assert 1 <= len(group) <= (rows or len(group))


def test_groups_are_of_like_lengths_and_as_large_as_the_budget_allows() -> None:
    lengths = [(n % 13 + 1,) for n in range(100)]
    for group, following in pairwise(group_by_length(lengths, 40)):
        assert (len(group) + 1) * lengths[following[0]][0] > 40
    lengths = [(n,) for n in (3, 60, 4, 3, 5, 4)]
    assert [[lengths[i][0] for i in group] for group in group_by_length(lengths, 64)] == [[3, 3, 4, 4, 5], [60]]


class Things:
    """Items that each have a loss, a number of targets, hits, and an array of their own."""

    def __init__(self, n: int, rank: int = 1) -> None:
        rng = np.random.default_rng(n)
        self.lengths = [(int(length),) for length in rng.integers(1, 20, n)]
        self.nats = rng.random(n)
        self.counts = rng.integers(0, 4, n)
        self.arrays: list[NDArray[Any]] = [
            rng.standard_normal(rng.integers(0, 4) if rank == 1 else (rng.integers(0, 4), 3)) for _ in range(n)
        ]
        self.read: list[int] = []
        self.n_losses = 0
        self.are_inference: set[bool] = set()

    def loss(self, chosen: Sequence[int]) -> Loss:
        self.n_losses += 1
        self.are_inference.add(torch.is_inference_mode_enabled())
        assert not torch.is_grad_enabled()
        hits = torch.tensor(float(sum(i % 3 == 0 for i in chosen)))
        nats, count = torch.tensor(self.nats[chosen].sum()), torch.tensor(int(self.counts[chosen].sum()))
        return Loss(nats, count, {"hits": (hits, len(chosen))})

    def evaluate(
        self,
        world: World = World(),  # noqa: B008 - it is frozen
        found: bool = True,
        losses: bool = True,
        **more: Any,
    ) -> EvaluationOutput:
        def read(chosen: list[int]) -> tuple[Loss | None, list[NDArray[Any]]]:
            self.read.extend(chosen)
            return self.loss(chosen) if losses else None, [self.arrays[i] for i in chosen] if found else []

        metrics = ["hits"] if losses else []
        model, compute = tiny.model(n_layers=1), replace(CPU, world=world)
        return evaluate_items(model, self.lengths, read, compute, metrics=metrics, max_tokens=50, **more)


def assert_found(found: EvaluationOutput, items: Things) -> None:
    n = len(items.lengths)
    assert found.total == pytest.approx(items.nats.sum())
    assert found.count == items.counts.sum()
    assert math.isnan(found.loss) if not found.count else found.loss == pytest.approx(found.total / found.count)
    assert found.metrics == {"hits": pytest.approx(sum(i % 3 == 0 for i in range(n)) / max(1, n))}
    for one, other in zip(found.arrays, items.arrays, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("n", [0, 1, 40])
@pytest.mark.parametrize("rank", [1, 2])
def test_sums_are_over_all_items_and_arrays_in_their_order(n: int, rank: int) -> None:
    items = Things(n, rank)
    assert_found(items.evaluate(), items)
    assert sorted(items.read) == list(range(n))


@pytest.mark.parametrize("size", [2, 7])
@pytest.mark.parametrize("n", [0, 1, 5])
@pytest.mark.parametrize("in_step", [False, True])
def test_any_number_of_processes_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, size: int, n: int, in_step: bool
) -> None:
    """In step all compute as many batches: idle ones repeat some item, which does not count."""
    every = [Things(n) for _ in range(size)]
    for found in together(
        monkeypatch, size, lambda world: every[world.rank].evaluate(replace(world, is_lockstep=in_step))
    ):
        assert_found(found, every[0])
    assert {kind for items in every for kind in items.are_inference} <= {not in_step}
    if in_step:
        (n_losses,) = {items.n_losses for items in every}
        assert n_losses >= min(n, 1)
    else:
        assert sorted(i for items in every for i in items.read) == list(range(n)), "each is read by one process"


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(("found", "losses"), [(False, True), (True, False), (False, False)])
def test_losses_or_arrays_may_be_left_out(
    monkeypatch: pytest.MonkeyPatch, size: int, found: bool, losses: bool
) -> None:
    items = Things(5)
    for one in together(monkeypatch, size, lambda world: items.evaluate(world, found, losses)):
        assert len(one.arrays) == 5 * found
        assert one.count == (items.counts.sum() if losses else 0)
        assert math.isnan(one.loss) == (not losses)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails: bool) -> None:
    model = tiny.model(n_layers=1).train()
    seen = []

    def read(chosen: list[int]) -> tuple[None, Sequence[NDArray[Any]]]:
        seen.append((model.training, torch.is_inference_mode_enabled()))
        if fails:
            raise RuntimeError("no")
        return None, ()

    try:
        evaluate_items(model, [(3,)], read, CPU)
    except RuntimeError:
        assert fails
    assert seen == [(False, True)]
    assert model.training


def test_batches_are_of_a_size_that_memory_has_and_in_the_precision_that_is_asked_for() -> None:
    read_as = []

    def read(chosen: list[int]) -> tuple[None, Sequence[NDArray[Any]]]:
        read_as.append((len(chosen), (torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
        return None, ()

    for compute, dtype in (
        (CPU, torch.float32),
        (ExecutionContext(torch.device("cpu"), "bfloat16"), torch.bfloat16),
    ):
        evaluate_items(tiny.model(n_layers=1), [(BATCH_TOKENS // 4,)] * 9, read, compute)
        assert read_as == [(4, dtype), (4, dtype), (1, dtype)]
        read_as.clear()


def test_how_far_it_is_is_told_to_the_end() -> None:
    told: list[tuple[str, int, int]] = []
    items = Things(40)
    items.evaluate(report=lambda *now: told.append(now))
    whole = sum(length for (length,) in items.lengths)
    done = [now for _, now, _ in told]
    assert done == sorted(done)
    assert (done[0], told[-1]) == (0, ("measuring", whole, whole))
    assert len(told) > 3
    items.evaluate(report=lambda *now: told.append(now), one_pass_per_row=False)
    assert told[-1][1] == sum(length**2 for (length,) in items.lengths)
