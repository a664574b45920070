"""Successive halving (Jamieson and Talwalkar 2016; Li et al. 2018): many runs begin, the better third goes on."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from lmtool.errors import UsageError

ETA = 3
"""Of so many runs one goes on, and trains so many times as long in all."""

MARGIN = 0.9
"""Share of the time that is planned for: the rest is for steps that take longer than those that were measured."""

LATE = 0.05
"""Share of the budget after whose end all runs are stopped, and saved."""


class Rung(NamedTuple):
    """So many runs are trained up to a share of their steps."""

    runs: int
    until: float


class Cost(NamedTuple):
    """Seconds that a process takes beside its steps, twice where it measures the result, and those of all steps."""

    start: float
    whole: float


class Runs(Protocol):
    """The runs of a search, by name."""

    def train(self, names: Sequence[str], until: float, limit: float = math.inf) -> None:
        """Train runs up to a share of their steps, or go on to there, for no more than so many seconds."""

    def cost(self, names: Sequence[str]) -> Cost:
        """What they have cost so far, the most of any."""

    def ranked(self, names: Sequence[str]) -> list[str]:
        """The best first, by validation, without those that failed."""


def halvings(runs: int) -> int:
    """How often so many runs are divided by ETA until one is left."""
    return math.ceil(math.log(runs, ETA) - 1e-9)


def rungs(runs: int, slots: int, times: int) -> list[Rung]:
    """The rungs of runs divided `times` times, of which at least as many are left as are trained at once."""
    return [Rung(max(min(slots, runs), math.ceil(runs / ETA**i)), ETA ** (i - times)) for i in range(times + 1)]


def seconds(planned: Sequence[Rung], slots: int, cost: Cost, done: float = 0.0) -> float:
    """Time of rungs that train `slots` runs at once, the last to the end. done: share of their steps that all have."""
    shares = [rung.until - before for rung, before in zip(planned, (done, *(r.until for r in planned)), strict=False)]
    batches = [math.ceil(rung.runs / slots) for rung in planned]
    steps = sum(n * max(0.0, share) * cost.whole for n, share in zip(batches, shares, strict=True))
    return steps + (sum(batches) + batches[-1]) * cost.start


def plan(runs: int, slots: int, left: float, cost: Cost, done: float = 0.0) -> list[Rung]:
    """The rungs of as many runs, and then of as few halvings, as the time allows; none where it is short for one."""
    plans = (rungs(n, slots, times) for n in range(runs, 0, -1) for times in range(halvings(n) + 1))
    return next((one for one in plans if seconds(one, slots, cost, done) <= MARGIN * left), [])


def search(names: Sequence[str], slots: int, left: Callable[[], float], runs: Runs) -> None:
    """Train runs in rungs, planned anew before each by what they have cost, until those that are left are whole.

    names: the first one is what is compared with, and is measured first. left: seconds of the budget. Raises UsageError
    where they are too few for one whole run.
    """
    names, budget, done = list(names), left(), 0.0
    first = names[:slots]
    runs.train(first, ETA ** -halvings(len(names)), budget / ETA)
    cost = runs.cost(first)
    if not runs.ranked(first):
        what = f"the first runs have failed, or done no step in {budget / ETA / 60:.2g} minutes"
        raise UsageError(what, where=", ".join(first), fix="see their .log files; give more --minutes, or train less")
    share, rest = ETA ** -halvings(len(names)), left()
    if not plan(1, 1, rest, cost, share):
        needed = math.ceil((2 * cost.start + cost.whole) / MARGIN / 60 + 0.5)
        more = seconds([Rung(1, 1.0)], 1, cost, share) / MARGIN / 60
        of_all = f"the first runs have left {max(0.0, rest) / 60:.2g} of them, and it needs {more:.2g} more here"
        what = f"{budget / 60:.3g} minutes are too short for a whole run: {of_all}"
        raise UsageError(what, fix=f"give --minutes {needed} or more, or train less: -s training.steps=N")
    while names and done < 1:
        planned = plan(len(names), slots, left(), cost, done) or [Rung(min(slots, len(names)), 1.0)]
        names, done = names[: planned[0].runs], planned[0].until
        runs.train(names, done, left() + LATE * budget)
        cost = runs.cost(names)
        names = runs.ranked(names)[: planned[min(1, len(planned) - 1)].runs]
