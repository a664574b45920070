"""Campaigns of cases: which there are, and running them side by side, each in a process of its own."""

import json
import os
import random
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import damage, forged, jobs, pairs
from tests.faults.commands import die_with_parent

RESULT = "case.json"


@dataclass(frozen=True)
class Campaign:
    """Cases of one kind. size: how many a full campaign has. run: does one case in a copy of the home.

    It is given the copy, a generator seeded for this case, and the number of the case; it returns what it did in words
    that are counted, and problems, of which there should be none.
    """

    name: str
    size: int
    run: Callable[[Path, random.Random, int], tuple[list[str], list[str]]]


CAMPAIGNS = (
    Campaign("kills", 200, jobs.kill),
    Campaign("signals", 100, jobs.signals),
    Campaign("damage", 1000, damage.case),
    Campaign("special-files", 300, damage.special),
    Campaign("forged", 300, forged.case),
    Campaign("full-disks", 1100, jobs.full_disk),
    Campaign("read-only", 60, jobs.read_only),
    Campaign("no-locks", 60, jobs.no_locks),
    Campaign("no-maps", 60, jobs.no_maps),
    Campaign("no-syncs", 60, jobs.no_syncs),
    Campaign("no-home", 60, jobs.no_home),
    Campaign("clocks", 40, jobs.clock),
    Campaign("pairs", 100, pairs.case),
)


@dataclass(frozen=True)
class Case:
    """A case that is over."""

    campaign: str
    number: int
    did: list[str]
    problems: list[str]
    seconds: float


@dataclass
class Tally:
    """What became of the cases of a campaign."""

    tried: int = 0
    failed: list[Case] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)

    def add(self, case: Case) -> None:
        self.tried += 1
        self.did.update(case.did)
        if case.problems:
            self.failed.append(case)


def planned(names: Sequence[str], count: int | None, first: int = 0) -> list[tuple[Campaign, int]]:
    """Cases of these campaigns from number `first` on, interleaved, so that any part has the same share of each."""
    cases = [
        (number / size, campaign, number)
        for campaign in CAMPAIGNS
        if campaign.name in names
        for size in [min(campaign.size, first + (count or campaign.size))]
        for number in range(first, size)
    ]
    return [(campaign, number) for _, campaign, number in sorted(cases, key=lambda case: case[0])]


def run_all(
    folder: Path, cases: Sequence[tuple[Campaign, int]], seed: int, workers: int, deadline: float
) -> Iterator[Case]:
    """Run cases side by side until the deadline, of time.monotonic."""
    waiting = list(reversed(cases))
    running: dict[int, Path] = {}
    while running or (waiting and time.monotonic() < deadline):
        while waiting and len(running) < workers and time.monotonic() < deadline:
            campaign, number = waiting.pop()
            place = folder / f"{campaign.name}-{number}"
            sys.stdout.flush()
            pid = os.fork()
            if pid == 0:
                _run_one(folder, place, campaign, number, seed)
            running[pid] = place
        pid, _ = os.wait()
        place = running.pop(pid)
        yield _result(place)
        shutil.rmtree(place)


def run_here(folder: Path, campaign: Campaign, number: int, seed: int) -> tuple[Case, Path]:
    """One case, whose files stay, and where they are."""
    place = folder / f"{campaign.name}-{number}"
    pid = os.fork()
    if pid == 0:
        _run_one(folder, place, campaign, number, seed)
    os.waitpid(pid, 0)
    return _result(place), place


def _result(place: Path) -> Case:
    """The result that a case has written."""
    try:
        return Case(**json.loads((place / RESULT).read_text()))
    except FileNotFoundError:
        campaign, _, number = place.name.rpartition("-")
        return Case(campaign, int(number), [], ["the process of this case died"], 0.0)


def _run_one(folder: Path, place: Path, campaign: Campaign, number: int, seed: int) -> None:
    """Run a case in this process, which ends with it."""
    began = time.monotonic()
    did: list[str] = []
    try:
        die_with_parent()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        home = place / "home"
        shutil.copytree(folder / "home", home, symlinks=True)
        did, problems = campaign.run(home, random.Random(f"{seed} {campaign.name} {number}"), number)
    except BaseException:
        problems = [traceback.format_exc()]
    result = {"campaign": campaign.name, "number": number, "did": did, "problems": problems}
    (place / RESULT).write_text(json.dumps(result | {"seconds": time.monotonic() - began}))
    os._exit(0)
