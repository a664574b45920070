"""Successive halving: its rungs, who goes on, and its time, by a clock of its own."""

import heapq
import math
import random
from itertools import pairwise

import pytest

from lmtool.apps.sweeping.halving import (
    ETA,
    Rung,
    RunSeconds,
    count_halvings,
    estimate_seconds_of_rungs,
    make_rungs,
    plan_rungs,
    train_by_halving,
)
from lmtool.errors import UsageError


class Machine:
    """Runs that take as long as they are said to, and get better as they are trained."""

    def __init__(self, names, slots, whole, start=2.0, noise=0.0, seed=0):
        self.random = random.Random(seed)
        self.slots, self.whole, self.start, self.noise = slots, whole, start, noise
        self.now, self.share = 0.0, dict.fromkeys(names, 0.0)
        self.loss = {name: self.random.random() for name in names}
        self.calls = []

    def value(self, name, share):
        return self.loss[name] + math.exp(-5 * share)

    def train(self, names, until, limit=math.inf):
        self.calls.append((list(names), until))
        free = [0.0] * self.slots
        for name in names:
            if self.share[name] < until:
                began = heapq.heappop(free)
                speed = 1 + self.noise * self.random.uniform(-1, 1)
                takes = self.start + (until - self.share[name]) * self.whole * speed
                heapq.heappush(free, min(limit, began + takes + self.start * (until == 1)))
                if began + takes > limit:
                    self.share[name] += max(0.0, limit - began - self.start) / self.whole
                else:
                    self.share[name] = until
        self.now += max(free)

    def extrapolate_longest_run_seconds(self, names):
        return RunSeconds(self.start, self.whole)

    def rank(self, names):
        return sorted(names, key=lambda name: self.value(name, self.share[name]))


def test_rungs_are_those_of_the_paper():
    """Table 1 of Li et al. (2018), its first bracket: 81 runs, one unit of time each, to one run of 81 units."""
    units = [(rung.n_runs, round(81 * rung.end_share, 6)) for rung in make_rungs(81, 1, 4)]
    assert units == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 8, 9, 10, 27, 28, 243])
@pytest.mark.parametrize("slots", [1, 2, 8])
def test_rungs_divide_until_one_is_left_or_as_many_as_train_at_once(runs, slots):
    left, times = runs, 0
    while left > 1:
        left, times = -(-left // ETA), times + 1
    assert count_halvings(runs) == times
    made = make_rungs(runs, slots, times)
    assert made[0].n_runs == runs
    assert made[-1] == Rung(min(runs, slots), 1.0)
    assert all(other.n_runs <= one.n_runs <= ETA * other.n_runs for one, other in pairwise(made))


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("done", [0.0, 1 / 9])
def test_the_time_of_rungs_is_what_they_take(slots, done):
    names = [f"run {i}" for i in range(9)]
    machine = Machine(names, slots, whole=100.0)
    machine.share = dict.fromkeys(names, done)
    planned = [rung for rung in make_rungs(9, slots, 2) if rung.end_share > done]
    for rung in planned:
        machine.train(names[: rung.n_runs], rung.end_share)
    assert estimate_seconds_of_rungs(planned, slots, RunSeconds(2.0, 100.0), done) == pytest.approx(
        machine.now, abs=0.001
    )


def test_the_gentlest_plan_is_taken_that_there_is_time_for():
    cost = RunSeconds(0.0, 9.0)
    assert plan_rungs(9, 1, 1000, cost) == make_rungs(9, 1, 0)
    assert plan_rungs(9, 1, 51, cost) == make_rungs(9, 1, 1)
    assert plan_rungs(9, 1, 24, cost) == make_rungs(9, 1, 2)
    assert plan_rungs(9, 1, 22.5, cost)[0].n_runs == 8
    assert plan_rungs(9, 1, 10, cost) == [Rung(1, 1.0)]
    assert plan_rungs(9, 1, 9, cost) == []


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("budget", [250, 400, 1000])
def test_the_best_of_each_rung_go_on(seed, budget):
    names = [f"run {i}" for i in range(12)]
    machine = Machine(names, 1, whole=100.0, seed=seed)
    train_by_halving(names, 1, lambda: budget - machine.now, machine)
    (probed, first), *calls = machine.calls
    assert probed == names[:1]
    assert first == ETA ** -count_halvings(12)
    for (before, until), (after, _) in pairwise(calls):
        best = sorted(before, key=lambda name: machine.value(name, until))
        assert after == best[: len(after)]
    assert calls[-1][1] == 1.0
    assert names[0] in calls[0][0]
    assert machine.share[calls[-1][0][0]] == 1.0


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("budget", [90, 180, 600])
@pytest.mark.parametrize("whole", [5.0, 40.0])
def test_the_time_is_kept_to_the_twentieth_where_speed_varies_by_a_tenth(slots, budget, whole):
    for seed in range(10):
        names = [f"run {i}" for i in range(9)]
        machine = Machine(names, slots, whole, noise=0.1, seed=seed)
        train_by_halving(names, slots, lambda machine=machine: budget - machine.now, machine)
        assert machine.now <= 1.05 * budget
        assert max(machine.share.values()) == 1.0


def test_runs_are_stopped_where_steps_become_slower():
    names = [f"run {i}" for i in range(9)]
    machine = Machine(names, 2, whole=40.0)
    train = machine.train

    def slower(*arguments):
        train(*arguments)
        machine.whole = min(400.0, 2 * machine.whole)

    machine.train, machine.extrapolate_longest_run_seconds = slower, lambda names: RunSeconds(2.0, 40.0)
    train_by_halving(names, 2, lambda: 180 - machine.now, machine)
    assert machine.now == pytest.approx(1.05 * 180)
    assert max(machine.share.values()) < 1


@pytest.mark.parametrize("whole", [100.0, 1e6])
def test_a_time_that_is_short_for_one_run_is_refused_with_what_it_takes(whole):
    names = [f"run {i}" for i in range(9)]
    machine = Machine(names, 1, whole)
    with pytest.raises(UsageError, match="too short for a whole run") as refused:
        train_by_halving(names, 1, lambda: 60 - machine.now, machine)
    assert machine.now <= 60 / ETA
    minutes = int(refused.value.fix.split("--minutes ")[1].split()[0])
    enough = Machine(names, 1, whole)
    train_by_halving(names, 1, lambda: 60 * minutes - enough.now, enough)
    assert max(enough.share.values()) == 1.0


def test_where_the_first_have_failed_it_is_told():
    machine = Machine(["a", "b"], 1, whole=1.0)
    machine.rank = lambda names: []
    with pytest.raises(UsageError, match="have failed") as refused:
        train_by_halving(["a", "b"], 1, lambda: 60 - machine.now, machine)
    assert "a" in refused.value.where
    assert len(machine.calls) == 1


def test_where_all_fail_later_it_ends():
    machine = Machine(["a", "b"], 1, whole=1.0)
    machine.rank = lambda names: list(names) if len(machine.calls) == 1 else []
    train_by_halving(["a", "b"], 1, lambda: 60 - machine.now, machine)
    assert len(machine.calls) == 2
