"""Successive halving (Jamieson and Talwalkar 2016; Li et al. 2018): all runs start, the better third continues."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from lmtool.errors import UsageError

ETA = 3
"""Reduction factor: one in so many runs continues, and trains so many times as long in total."""

PLANNED_TIME_SHARE = 0.9
"""Share of the time that a plan uses; the rest is for steps that take longer than those that were measured."""

OVERTIME_SHARE = 0.05
"""Share of the budget that runs may exceed it by before they are saved and stopped."""


class Rung(NamedTuple):
    """Trains `n_runs` runs up to a share of their steps."""

    n_runs: int
    end_share: float


class RunSeconds(NamedTuple):
    """Seconds that a process needs in addition to its steps, twice if it measures the result; seconds of all steps."""

    start_seconds: float
    total_seconds: float


class TrainableRuns(Protocol):
    """Runs that halving trains, by name."""

    def train(self, names: Sequence[str], end_share: float, max_seconds: float = math.inf) -> None:
        """Starts or continues runs up to a share of their steps, for at most `max_seconds`."""

    def extrapolate_longest_run_seconds(self, names: Sequence[str]) -> RunSeconds:
        """Returns the seconds of the longest of these runs, extrapolated from what they have done."""

    def rank(self, names: Sequence[str]) -> list[str]:
        """Returns the names by validation, the best first, without runs that failed."""


def count_halvings(n_runs: int) -> int:
    """Returns how often runs are divided by ETA until one is left."""
    return math.ceil(math.log(n_runs, ETA) - 1e-9)


def make_rungs(n_runs: int, n_parallel: int, n_halvings: int) -> list[Rung]:
    """Returns the rungs of runs that are divided `n_halvings` times; at least `n_parallel` runs are left."""
    shares = [ETA ** (i - n_halvings) for i in range(n_halvings + 1)]
    return [Rung(max(min(n_parallel, n_runs), math.ceil(n_runs / ETA**i)), share) for i, share in enumerate(shares)]


def estimate_seconds_of_rungs(
    rungs: Sequence[Rung], n_parallel: int, cost: RunSeconds, done_share: float = 0.0
) -> float:
    """Returns the seconds of rungs that train `n_parallel` runs at once. done_share: of the steps of every run."""
    begins = (done_share, *(rung.end_share for rung in rungs))
    batches = [math.ceil(rung.n_runs / n_parallel) for rung in rungs]
    shares = [max(0.0, rung.end_share - begin) for rung, begin in zip(rungs, begins, strict=False)]
    steps = sum(n * share * cost.total_seconds for n, share in zip(batches, shares, strict=True))
    return steps + (sum(batches) + batches[-1]) * cost.start_seconds


def plan_rungs(
    max_runs: int, n_parallel: int, seconds_left: float, cost: RunSeconds, done_share: float = 0.0
) -> list[Rung]:
    """Returns rungs of as many runs, and then as few halvings, as the time allows; none if one run takes too long."""
    plans = (make_rungs(n, n_parallel, times) for n in range(max_runs, 0, -1) for times in range(count_halvings(n) + 1))
    planned_seconds = PLANNED_TIME_SHARE * seconds_left
    fitting = (
        rungs for rungs in plans if estimate_seconds_of_rungs(rungs, n_parallel, cost, done_share) <= planned_seconds
    )
    return next(fitting, [])


def train_by_halving(
    names: Sequence[str], n_parallel: int, get_seconds_left: Callable[[], float], runs: TrainableRuns
) -> None:
    """Trains runs in rungs until the last ones are complete; plans the rungs before each from the seconds so far.

    names: the first one is the baseline, which is measured first. get_seconds_left: returns what is left of the budget.
    Raises UsageError if that is too little for one whole run.
    """
    names, budget, done_share = list(names), get_seconds_left(), 0.0
    first, first_share = names[:n_parallel], ETA ** -count_halvings(len(names))
    runs.train(first, first_share, budget / ETA)
    cost = runs.extrapolate_longest_run_seconds(first)
    if not runs.rank(first):
        what = f"the first runs have failed, or done no step in {budget / ETA / 60:.2g} minutes"
        raise UsageError(what, where=", ".join(first), fix="see their .log files; give more --minutes, or train less")
    seconds_left = get_seconds_left()
    if not plan_rungs(1, 1, seconds_left, cost, first_share):
        needed = math.ceil((2 * cost.start_seconds + cost.total_seconds) / PLANNED_TIME_SHARE / 60 + 0.5)
        more = estimate_seconds_of_rungs([Rung(1, 1.0)], 1, cost, first_share) / PLANNED_TIME_SHARE / 60
        of_all = (
            f"the first runs have left {max(0.0, seconds_left) / 60:.2g} of them, and it needs {more:.2g} more here"
        )
        what = f"{budget / 60:.3g} minutes are too short for a whole run: {of_all}"
        raise UsageError(what, fix=f"give --minutes {needed} or more, or train less: -s training.steps=N")
    while names and done_share < 1:
        rungs = plan_rungs(len(names), n_parallel, get_seconds_left(), cost, done_share)
        rungs = rungs or [Rung(min(n_parallel, len(names)), 1.0)]
        names, done_share = names[: rungs[0].n_runs], rungs[0].end_share
        runs.train(names, done_share, get_seconds_left() + OVERTIME_SHARE * budget)
        cost = runs.extrapolate_longest_run_seconds(names)
        names = runs.rank(names)[: rungs[min(1, len(rungs) - 1)].n_runs]
