"""Successive halving: its rungs, who goes on, and its time, by a clock of its own."""

import heapq
import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from lmtool.apps.sweeping import halving
from lmtool.errors import UsageError
from tests.support.errors import refuses


class Machine:
    """Runs that take as long as they are said to, and get better as they are trained.

    whole: seconds of a run beside 2 to start it. becomes: those of later steps, each time twice as many, at most.
    fails_after: calls of `train` after which all runs have failed.
    """

    def __init__(
        self,
        n_runs: int = 9,
        slots: int = 1,
        whole: float = 100.0,
        noise: float = 0.0,
        seed: int = 0,
        becomes: float = 0.0,
        fails_after: float = math.inf,
    ) -> None:
        self.random, self.names = random.Random(seed), [f"run {i}" for i in range(n_runs)]
        self.slots, self.whole, self.noise, self.now = slots, whole, noise, 0.0
        self.told, self.becomes, self.fails_after = whole, becomes or whole, fails_after
        self.share = dict.fromkeys(self.names, 0.0)
        self.loss = {name: self.random.random() for name in self.names}
        self.calls: list[tuple[list[str], float]] = []

    def halve(self, budget: float) -> None:
        halving.train_by_halving(self.names, self.slots, lambda: budget - self.now, self)

    def value(self, name: str, share: float) -> float:
        return self.loss[name] + math.exp(-5 * share)

    def train(self, names: Sequence[str], until: float, limit: float = math.inf) -> None:
        self.calls.append((list(names), until))
        free = [0.0] * self.slots
        for name in names:
            if self.share[name] < until:
                began = heapq.heappop(free)
                speed = 1 + self.noise * self.random.uniform(-1, 1)
                takes = 2 + (until - self.share[name]) * self.whole * speed
                heapq.heappush(free, min(limit, began + takes + 2 * (until == 1)))
                if began + takes > limit:
                    self.share[name] += max(0.0, limit - began - 2) / self.whole
                else:
                    self.share[name] = until
        self.now += max(free)
        self.whole = min(self.becomes, 2 * self.whole)

    def extrapolate_longest_run_seconds(self, names: Sequence[str]) -> halving.RunSeconds:
        return halving.RunSeconds(2.0, self.told)

    def rank(self, names: Sequence[str]) -> list[str]:
        if len(self.calls) >= self.fails_after:
            return []
        return sorted(names, key=lambda name: self.value(name, self.share[name]))


def test_rungs_are_those_of_the_paper() -> None:
    """Table 1 of Li et al. (2018), its first bracket: 81 runs, one unit of time each, to one run of 81 units."""
    units = [(rung.n_runs, round(81 * rung.end_share, 6)) for rung in halving.make_rungs(81, 1, 4)]
    assert units == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 9, 10, 28])
@pytest.mark.parametrize("slots", [1, 8])
def test_rungs_divide_until_one_is_left_or_as_many_as_train_at_once(runs: int, slots: int) -> None:
    times = halving.count_halvings(runs)
    assert times == sum(runs > halving.ETA**i for i in range(9))
    made = halving.make_rungs(runs, slots, times)
    assert made[0].n_runs == runs
    assert made[-1] == halving.Rung(min(runs, slots), 1.0)
    assert all(other.n_runs <= one.n_runs <= halving.ETA * other.n_runs for one, other in pairwise(made))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("done", [0.0, 1 / 9])
def test_the_time_of_rungs_is_what_they_take(slots: int, done: float) -> None:
    machine = Machine(slots=slots)
    machine.share = dict.fromkeys(machine.names, done)
    planned = [rung for rung in halving.make_rungs(9, slots, 2) if rung.end_share > done]
    for rung in planned:
        machine.train(machine.names[: rung.n_runs], rung.end_share)
    seconds = halving.estimate_seconds_of_rungs(planned, slots, halving.RunSeconds(2.0, 100.0), done)
    assert seconds == pytest.approx(machine.now, abs=0.001)


def test_the_gentlest_plan_is_taken_that_there_is_time_for() -> None:
    cost = halving.RunSeconds(0.0, 9.0)
    for seconds, plan in (
        (1000, halving.make_rungs(9, 1, 0)),
        (51, halving.make_rungs(9, 1, 1)),
        (24, halving.make_rungs(9, 1, 2)),
    ):
        assert halving.plan_rungs(9, 1, seconds, cost) == plan
    assert halving.plan_rungs(9, 1, 22.5, cost)[0].n_runs == 8
    assert halving.plan_rungs(9, 1, 10, cost) == [halving.Rung(1, 1.0)]
    assert halving.plan_rungs(9, 1, 9, cost) == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [250, 400, 1000])
def test_the_best_of_each_rung_go_on(seed: int, budget: float) -> None:
    machine = Machine(12, seed=seed)
    machine.halve(budget)
    probe, *calls = machine.calls
    assert probe == (machine.names[:1], halving.ETA ** -halving.count_halvings(12))
    for (before, until), (after, _) in pairwise(calls):
        best = sorted(before, key=lambda name: machine.value(name, until))
        assert after == best[: len(after)]
    assert calls[-1][1] == 1.0
    assert machine.names[0] in calls[0][0]
    assert machine.share[calls[-1][0][0]] == 1.0


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("budget", [90, 180, 600])
@pytest.mark.parametrize("whole", [5.0, 40.0])
def test_the_time_is_kept_to_the_twentieth_where_speed_varies_by_a_tenth(
    slots: int, budget: float, whole: float
) -> None:
    for seed in range(10):
        machine = Machine(slots=slots, whole=whole, noise=0.1, seed=seed)
        machine.halve(budget)
        assert machine.now <= 1.05 * budget
        assert max(machine.share.values()) == 1.0


def test_runs_are_stopped_where_steps_become_slower() -> None:
    machine = Machine(slots=2, whole=40.0, becomes=400.0)
    machine.halve(180)
    assert machine.now == pytest.approx(1.05 * 180)
    assert max(machine.share.values()) < 1


@pytest.mark.parametrize("whole", [100.0, 1e6])
def test_a_time_that_is_short_for_one_run_is_refused_with_what_it_takes(whole: float) -> None:
    machine = Machine(whole=whole)
    with pytest.raises(UsageError, match="--minutes") as refused:
        machine.halve(60)
    assert machine.now <= 60 / halving.ETA
    enough = Machine(whole=whole)
    enough.halve(60 * int(refused.value.fix.split("--minutes ")[1].split()[0]))
    assert max(enough.share.values()) == 1.0


def test_where_the_first_have_failed_it_is_told_and_where_all_fail_later_it_ends() -> None:
    first = Machine(2, whole=1.0, fails_after=0)
    with refuses("usage") as refused:
        first.halve(60)
    assert "run 0" in refused.value.where
    assert len(first.calls) == 1
    later = Machine(2, whole=1.0, fails_after=2)
    later.halve(60)
    assert len(later.calls) == 2
