"""What runs the cases of a generator: `python -m tests.faults`, `python -m tests.fuzz`, `python -m tests.crossings`.

A generator says which campaigns there are and makes what their cases begin with. Each case runs in a fork of one
process that has imported everything, in a copy of the home of the generator. All that is drawn follows from the seed,
the name of the campaign and the number of the case.
"""

import argparse
import ctypes
import gc
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"  # no threads, before torch is imported: this process is forked
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}

RESULT, PROGRESS = "case.json", "progress"
BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->"
SHOWN, LINES = 12, 12
"""How many of the things that were done are told of a campaign, and lines of a problem."""
_SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG

Told = tuple[list[str], list[str]] | tuple[list[str], list[str], dict[str, Any]]
"""What a case did, in words that are counted; problems, of which there should be none; what its generator reads."""


@dataclass(frozen=True)
class Campaign:
    """Cases of one kind. size: how many a full campaign has. run: does one case in a copy of the home.

    It is given the copy, a generator of random numbers that is seeded for this case, and the number of the case.
    """

    name: str
    size: int
    run: Callable[[Path, random.Random, int], Told]


Planned = Sequence[tuple[Campaign, int]]
"""Cases, by campaign and number."""


@dataclass(frozen=True)
class Case:
    """A case that is over."""

    campaign: str
    number: int
    did: list[str]
    problems: list[str]
    found: dict[str, Any]
    seconds: float


class Generator:
    """A program of campaigns. name: of its package in tests. minutes: the time that it takes unless options say it.

    A subclass may make its cases in rounds, from what those of the rounds before have found.
    """

    def __init__(
        self, name: str, campaigns: Sequence[Campaign], build: Callable[[Path], Any], minutes: float | None = None
    ) -> None:
        self.name, self.campaigns, self.build, self.minutes = name, campaigns, build, minutes

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options of this generator alone."""

    def plan_rounds(self, options: argparse.Namespace, home: Path, done: Sequence[Case]) -> Iterator[Planned]:
        """Yields cases that are run before the next are made. done: the cases that are over, which become more."""
        yield plan_cases(self.campaigns, options.only, options.count, options.first)

    def find_case(self, options: argparse.Namespace, home: Path) -> tuple[Campaign, int]:
        """The one case that is to be repeated."""
        if len(options.only or ()) != 1:
            sys.exit("--case needs --only CAMPAIGN")
        return next(one for one in self.campaigns if one.name == options.only[0]), options.case

    def how_to_repeat(self, case: Case, seed: int) -> str:
        return f"--only {shlex.quote(case.campaign)} --seed {seed} --case {case.number}"

    def summarize(self, done: Sequence[Case]) -> tuple[list[str], bool]:
        """More lines below the table, and whether they tell of a failure."""
        return [], False


def plan_cases(campaigns: Sequence[Campaign], names: Sequence[str] | None, count: int | None, first: int) -> Planned:
    """Cases of these campaigns from number `first` on, interleaved, so that any part has the same share of each."""
    cases = [
        (number / size, campaign, number)
        for campaign in campaigns
        if names is None or campaign.name in names
        for size in [min(campaign.size, first + (count or campaign.size))]
        for number in range(first, size)
    ]
    return [(campaign, number) for _, campaign, number in sorted(cases, key=lambda case: case[0])]


def run_cases(folder: Path, cases: Planned, seed: int, workers: int, deadline: float) -> Iterator[Case]:
    """Run cases side by side until the deadline, of time.monotonic."""
    waiting = list(reversed(cases))
    running: dict[int, tuple[Path, Campaign, int]] = {}
    while running or (waiting and time.monotonic() < deadline):
        while waiting and len(running) < workers and time.monotonic() < deadline:
            campaign, number = waiting.pop()
            pid, place = fork_case(folder, campaign, number, seed)
            running[pid] = place, campaign, number
        pid, _ = os.wait()
        place, campaign, number = running.pop(pid)
        yield read_result(place, campaign, number)
        shutil.rmtree(place)


def fork_case(folder: Path, campaign: Campaign, number: int, seed: int) -> tuple[int, Path]:
    """Begin a case in a process of its own; returns its id and the folder of the case."""
    place = folder / f"{campaign.name.replace(' ', '_')}-{number}"
    sys.stdout.flush()
    if pid := os.fork():
        return pid, place
    began = time.monotonic()
    did: list[str] = []
    found: dict[str, Any] = {}
    try:
        die_with_parent()
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        home = place / "home"
        shutil.copytree(folder / "home", home, symlinks=True)
        rng = random.Random(f"{seed} {campaign.name} {number}")
        told = campaign.run(home, rng, number)
        did, problems = told[0], told[1]
        found = told[2] if len(told) == 3 else {}
    except BaseException:
        problems = [traceback.format_exc()]
    case = Case(campaign.name, number, did, problems, found, time.monotonic() - began)
    (place / RESULT).write_text(json.dumps(vars(case)))
    os._exit(0)


def read_result(place: Path, campaign: Campaign, number: int) -> Case:
    """The result that a case has written."""
    try:
        return Case(**json.loads((place / RESULT).read_text()))
    except FileNotFoundError:
        reached = place / "home" / PROGRESS
        where = f" at {reached.read_text()}" if reached.exists() else ""
        return Case(campaign.name, number, [], [f"the process of this case died{where}"], {}, 0.0)


def die_with_parent() -> None:
    """Let this process be killed when the one that forked it ends, on Linux."""
    ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, signal.SIGKILL)


def main(generator: Generator, argv: Sequence[str] | None = None) -> int:
    """Run campaigns, and print what was tried and what failed. Returns 1 when a case failed."""
    options = _parser(generator).parse_args(argv)
    began = time.monotonic()
    minutes = options.minutes or generator.minutes
    deadline = began + 60 * minutes if minutes else float("inf")
    done: list[Case] = []
    print(f"seed {options.seed}", flush=True)
    with ExitStack() as stack:
        prefix = f"lmtool-{generator.name}-"
        repeats = options.case is not None
        folder = options.home or Path(tempfile.mkdtemp(prefix=prefix))
        if options.home is None and not repeats:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        home = folder / "home"
        generator.build(folder)
        gc.freeze()
        if repeats:
            return _repeat(generator, *generator.find_case(options, home), options.seed, folder)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        with suppress(KeyboardInterrupt):  # what was tried until then is told
            for cases in generator.plan_rounds(options, home, done):
                for case in run_cases(folder, cases, options.seed, options.workers, deadline):
                    done.append(case)
                    if case.problems:
                        print(describe_case(generator, case, options.seed), flush=True)
        more, has_failed = generator.summarize(done)
    table, failed = _table(generator, done), sum(bool(case.problems) for case in done)
    seconds = time.monotonic() - began
    print("\n".join([table, *more]))
    print(f"seed {options.seed}: {len(done)} cases, {failed} failed, in {seconds:.0f} s")
    if options.page is not None:
        _write_figures(options.page, f"Seed {options.seed}, {seconds / 60:.0f} minutes:\n\n{table}")
    return int(failed > 0 or has_failed)


def _repeat(generator: Generator, campaign: Campaign, number: int, seed: int, folder: Path) -> int:
    """Run one case again, and leave its files."""
    pid, place = fork_case(folder, campaign, number, seed)
    os.waitpid(pid, 0)
    case = read_result(place, campaign, number)
    print(describe_case(generator, case, seed) if case.problems else f"no problem: {', '.join(case.did)}")
    print(f"its files: {place}")
    return int(bool(case.problems))


def describe_case(generator: Generator, case: Case, seed: int) -> str:
    lines = [f"{case.campaign} {case.number} failed: {', '.join(dict.fromkeys(case.did))}"]
    lines += [f"  {line}" for problem in case.problems for line in problem.splitlines()[-LINES:]]
    return "\n".join([*lines, f"  again: python -m tests.{generator.name} {generator.how_to_repeat(case, seed)}"])


def _table(generator: Generator, done: Sequence[Case]) -> str:
    """What was tried and what failed, by campaign, as Markdown."""
    lines = ["| campaign | tried | failed | what happened |", "|---|---|---|---|"]
    for name in dict.fromkeys([*(one.name for one in generator.campaigns), *(case.campaign for case in done)]):
        if cases := [case for case in done if case.campaign == name]:
            counted = Counter(what for case in cases for what in case.did).most_common(SHOWN)
            failed, did = sum(bool(case.problems) for case in cases), ", ".join(f"{what} {n}" for what, n in counted)
            lines.append(f"| {name} | {len(cases)} | {failed} | {did} |")
    return "\n".join(lines)


def _write_figures(page: Path, text: str) -> None:
    """Put the figures between the marks of a page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}{text}\n{END}{after}", encoding="utf-8")


def _parser(generator: Generator) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m tests.{generator.name}")
    names = tuple(campaign.name for campaign in generator.campaigns)
    sizes = ", ".join(f"{campaign.name} ({campaign.size})" for campaign in generator.campaigns)
    parser.add_argument("--only", action="append", choices=names, metavar="CAMPAIGN", help=f"one of: {sizes}")
    parser.add_argument("--seed", type=int, default=1, help="decides everything that is drawn; 1 by default")
    parser.add_argument("--count", type=int, metavar="N", help="at most so many cases of each campaign")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="begin with this case of each campaign")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no more cases after so many minutes")
    parser.add_argument("--case", type=int, metavar="N", help="only this case of a campaign; its files stay")
    parser.add_argument(
        "--home", type=Path, metavar="DIR", help="make the home here and leave it, or take it from here"
    )
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the figures into this page as well")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), metavar="N", help="cases side by side")
    generator.add_options(parser)
    return parser
