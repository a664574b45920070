"""Two processes on one run, one cache, one output: one stops anywhere, the other does its work, the first continues."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lmtool.runs.checkpoint import list_checkpoints
from tests.campaigns.commands import Outcome, begin, lmtool, problems_of
from tests.campaigns.harness import Told
from tests.campaigns.homes import Remains, differing
from tests.campaigns.watching import Record, Send
from tests.faults.home import EXPORT, FINETUNE, NEW, PRETRAIN, TOKENIZE, golden, job_named, of_run

WAITS = 1.5
"""Seconds after which a command that has not ended waits for the one that is stopped."""

OTHER = "runs/other"
ELSEWHERE = (*PRETRAIN[:-2], OTHER, "-q")
RESUME = ("resume", "runs/half", "-q")
IMPORT = ("import", "published", "-o", NEW, "-q")
GENERATE = ("generate", "the", "--run", "published", "--greedy", "--max-new-tokens", "2", "-q")


@dataclass(frozen=True)
class Pair:
    """Two commands. result: what is left by those that end with 0, as it is when only the first one runs.

    both: both must end with 0. same: what the second leaves, where it is another thing.
    """

    first: tuple[str, ...]
    second: tuple[str, ...]
    result: Callable[[Path], Remains] | None
    both: bool = False
    same: Callable[[Path], Remains] | None = None


PAIRS = (
    Pair(PRETRAIN, ELSEWHERE, of_run(NEW), both=True, same=of_run(OTHER)),  # one cache
    Pair(PRETRAIN, PRETRAIN, of_run(NEW)),  # one run directory
    Pair(RESUME, RESUME, of_run("runs/half")),
    Pair(TOKENIZE, TOKENIZE, job_named("tokenize").remains),
    Pair(EXPORT, EXPORT, job_named("export").remains),
    Pair(IMPORT, IMPORT, job_named("import").remains),
    Pair(GENERATE, GENERATE, None, both=True),  # imports into the cache
    Pair(RESUME, ("eval", "runs/half", "text.txt", "-q"), of_run("runs/half"), both=True),
    Pair(RESUME, ("runs", "rm", "half", "--yes"), of_run("runs/half")),
    Pair(PRETRAIN, ("runs", "show", "last"), of_run(NEW), both=True),
    Pair(FINETUNE, FINETUNE, of_run(NEW)),
    Pair(PRETRAIN, FINETUNE, None),
)


def case(home: Path, rng: random.Random, number: int) -> Told:
    """One of the pairs, with the first command stopped before one of its operations on files."""
    pair = PAIRS[number % len(PAIRS)]

    def alone(copy: Path) -> dict[str, object]:
        file = copy.with_name(f"{copy.name}.events")
        outcome = lmtool(copy, *pair.first, hook=Record(file))
        assert outcome.code == 0, outcome
        result = pair.result(copy) if pair.result is not None else {"stdout": outcome.out}
        return {"events": len(file.read_text().splitlines()), "result": result}

    expected = golden(home, f"{' '.join(pair.first[:2])} alone".replace("/", " "), alone)
    if rng.random() < 0.3 and pair.first != GENERATE:
        shutil.rmtree(home / "cache")
    at = rng.randint(1, expected["events"])
    first = begin(home, pair.first, Send(((at, signal.SIGSTOP),)))
    stopped = first.stopped(60)
    second = begin(home, pair.second)
    waited = not second.ended(WAITS)
    if stopped:
        os.kill(first.pid, signal.SIGCONT)
    outcomes = [first.finish(), second.finish()]
    did = [f"{pair.first[0]} and {pair.second[0]}", *(["one waited"] if waited else [])]
    return did, [f"stopped at {at}: {problem}" for problem in _judge(home, pair, outcomes, expected["result"])]


def _judge(home: Path, pair: Pair, outcomes: list[Outcome], expected: Remains) -> list[str]:
    if problems := problems_of(outcomes, (0,) if pair.both else (0, 2, 4, 5)):
        return problems
    ended = [outcome for outcome in outcomes if outcome.code == 0]
    if not ended:
        return ["neither command ended with 0:", *(outcome.err for outcome in outcomes)]
    if pair.result is None:
        return [f"stdout is {one.out!r}" for one in ended if pair.both and one.out != expected.get("stdout")]
    if "rm" in pair.second and outcomes[1].code == 0:
        left = list_checkpoints(home / "runs" / "half" / "checkpoints")
        return ["the run that was removed has files"] if left else []
    if outcomes[0].code or pair.first == pair.second or pair.both:
        problems = [f"{part} differs" for part in differing(pair.result(home), expected)]
    if pair.same is not None:
        problems += [f"{part} of the second differs" for part in differing(pair.same(home), expected)]
    return problems + [f"{path.relative_to(home)} was left" for path in (home / "runs").glob(".tmp-*")]
