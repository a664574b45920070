"""What the tests protect: the share of small faults, put into lmtool one at a time, that some test finds.

    python scripts/mutants.py collect     # which test executes which line, and how long it takes; the fast tests once
    python scripts/mutants.py try         # a sample of 100 mutants, each against the tests that execute its line

A mutant is one change inside a function: another comparison, operator or number, a condition negated, `and` for `or`,
two arguments swapped, a statement removed, None returned. It is written into a copy of the checkout, never into the
checkout. The tests of its room run first, then the others, by file and the fastest first, until one fails. A mutant
that no test finds is a gap, or the program it makes is equivalent; scripts/mutants.yaml lists those, with the reason.
"""

import argparse
import ast
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import accumulate
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutants"
COVERAGE, DURATIONS = BUILD / "coverage", BUILD / "durations.json"
ROOMS = ("model", "objective", "generation", "training", "tasks", "runs")
FAST = "not slow and not system and not gpu and not browser and not real"
PATIENCE = 120.0
"""Seconds beyond twenty times their usual duration after which tests count as hanging."""
MEMORY = 32 * 2**30
"""Bytes of addresses that the tests of a mutant may take, which may ask for any number."""
LISTS = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text(encoding="utf-8"))
MODIFIED = itertools.count(int(time.time()))
"""Times of modification, each another second: Python knows by them which compiled file is of another source."""


class Mutant(NamedTuple):
    """A file in which the bytes from `start` to `stop` become `text`, within the statement that begins at `statement`.

    change: what scripts/mutants.yaml calls it, by the line and the change.
    """

    path: Path
    line: int
    statement: int
    start: int
    stop: int
    text: str
    change: str

    @property
    def room(self) -> str:
        return self.path.parts[1]

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.stop :]


def find_mutants(path: Path) -> Iterator[Mutant]:
    """The mutants of a file: inside functions, without annotations, decorators, defaults, f-strings and messages."""
    source, name = path.read_bytes(), path.relative_to(ROOT)
    lines = source.splitlines(keepends=True)
    offsets = [0, *accumulate(map(len, lines))]
    for statement, node, text in walk_changes(ast.parse(source), 0, inside=False):
        start, stop = offsets[node.lineno - 1] + node.col_offset, offsets[node.end_lineno - 1] + node.end_col_offset
        line, before = lines[node.lineno - 1].decode().strip(), " ".join(source[start:stop].decode().split())
        change = f"{name}: {line}: {'all' if before == line else before} -> {text}"
        yield Mutant(name, node.lineno, statement, start, stop, text, change)


def walk_changes(node: ast.AST, statement: int, inside: bool) -> Iterator[tuple[int, Any, str]]:
    """The line of the statement, and the changes, of a node and of those below it. inside: of a function."""
    if isinstance(node, ast.stmt):
        statement = node.lineno
    if inside:
        for change in list_changes(node):
            yield statement, *change
    match node:
        # text for people, whose parts have no positions; and what the program asserts of itself, as it does of lengths
        case ast.JoinedStr() | ast.Raise() | ast.keyword(arg="strict"):
            below: list[ast.AST] = []
        case ast.FunctionDef():
            below, inside = [*node.body[ast.get_docstring(node) is not None :]], True
        case ast.AnnAssign(value=value):
            below = [value] if value else []
        case _:
            below = [*ast.iter_child_nodes(node)]
    for child in below:
        yield from walk_changes(child, statement, inside)


def list_changes(node: Any) -> Iterator[tuple[Any, str]]:
    """The changes of a node itself: the node whose source becomes a text."""
    match node:
        case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield value, "None"
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            yield test, f"not ({ast.unparse(test)})"
        case ast.comprehension(ifs=tests):
            yield from ((test, f"not ({ast.unparse(test)})") for test in tests)
        case ast.Compare(left=left, ops=operators, comparators=others):
            for i, operator in enumerate(operators):
                other = [*operators[:i], swap(operator), *operators[i + 1 :]]
                yield node, f"({ast.unparse(ast.Compare(left, other, others))})"
        case ast.BoolOp(op=operator, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(swap(operator), values))})"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator).__name__ in LISTS["swaps"]:
            is_text = [isinstance(x, ast.JoinedStr) or isinstance(getattr(x, "value", 0), str) for x in (left, right)]
            if not any(is_text):
                yield node, f"({ast.unparse(ast.BinOp(left, swap(operator), right))})"
        case ast.Constant(value=bool() as value):
            yield node, str(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
            yield node, f"({value - 1!r})"
        case ast.Call(func, [first, second, *others], keywords):
            is_same = ast.unparse(func) in ("min", "max") or ast.dump(first) == ast.dump(second)
            if not is_same and ast.Starred not in (type(first), type(second)):
                yield node, ast.unparse(ast.Call(func, [second, first, *others], keywords))


def swap(operator: ast.AST) -> Any:
    return getattr(ast, LISTS["swaps"][type(operator).__name__])()


class Durations:
    """A plugin that writes how long each test takes, with its fixtures."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        DURATIONS.write_text(json.dumps(self.seconds))


def collect(arguments: list[str]) -> int:
    """Run the fast tests with coverage by test."""
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    os.environ["COVERAGE_FILE"] = str(COVERAGE)
    config = BUILD / "coveragerc"
    sources = "".join(f"\n    {ROOT}/lmtool/{room}" for room in ROOMS)
    config.write_text(f"[run]\nsource ={sources}\ndisable_warnings = no-data-collected,module-not-imported,no-sysmon\n")
    options = ["--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report=", "-q", "-m", FAST]
    return int(pytest.main([*options, *arguments], plugins=[Durations()]))


def list_tests(sample: list[Mutant], seconds: dict[str, float]) -> Iterator[list[str]]:
    """For each mutant the tests that execute its line, by file: those of its room first, then the fastest.

    What a fixture executes that several tests of a file share, all tests of the file are taken to execute.
    """
    from coverage import CoverageData

    data = CoverageData(str(COVERAGE))
    data.read()
    contexts_by_line = cache(lambda path: data.contexts_by_lineno(str(ROOT / path)))
    by_file = defaultdict(list)
    for test in seconds:
        by_file[test.split("::")[0]].append(test)
    for mutant in sample:
        lines = contexts_by_line(mutant.path)
        tests = set()
        for context in filter(None, lines.get(mutant.line) or lines.get(mutant.statement) or ()):
            test, _, phase = context.rpartition("|")
            tests.update([test] if phase == "run" else by_file[test.split("::")[0]])
        files = Counter[str]()
        for test in tests:
            files[test.split("::")[0]] += seconds.get(test, 0)
        order = sorted(files, key=lambda file: (not file.startswith(f"tests/{mutant.room}/"), files[file]))
        yield [test for file in order for test in by_file[file] if test in tests]


def try_mutant(mutant: Mutant, tests: list[str], copy: Path, usual: float) -> tuple[str, str]:
    """(`killed`, `survived`, `hangs` or `not executed`, what the tests said last). usual: seconds of the tests.

    The tests of the room run on their own, since the others take longer to import than most mutants to be found.
    """
    path = copy / mutant.path
    source = path.read_bytes()
    ast.parse(mutant.apply(source))
    own = [test for test in tests if test.startswith(f"tests/{mutant.room}/")]
    others = tests[len(own) :]
    outcome = "not executed", ""
    try:
        write_source(path, mutant.apply(source))
        for chosen in filter(None, (own, others)):
            outcome = run_tests(chosen, copy, PATIENCE + 20 * usual)
            if outcome[0] != "survived":
                break
    finally:
        write_source(path, source)
    return outcome


def write_source(path: Path, source: bytes) -> None:
    """Write a file of Python, so that what was compiled of it before is not used."""
    path.write_bytes(source)
    modified = next(MODIFIED)
    os.utime(path, (modified, modified))


def run_tests(tests: list[str], copy: Path, timeout: float) -> tuple[str, str]:
    """(`killed`, `survived` or `hangs`, what the tests said last)."""
    (copy / "chosen.txt").write_text("\n".join(tests))
    options = "-x -q -p no:cacheprovider --no-header -rfE --hypothesis-profile mutants @chosen.txt"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    try:
        ended = subprocess.run(
            ["sh", "-c", f"ulimit -v {MEMORY >> 10}; exec {sys.executable} -m pytest {options}"],
            cwd=copy,
            env={**environment, "PYTHONPATH": str(copy)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return "hangs", ""
    # a mutant may also break what is run when tests are collected, but not the call of pytest, nor leave nothing to run
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(ended.stdout)
    last = next((line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    return "survived" if ended.returncode == pytest.ExitCode.OK else "killed", last


def try_sample(count: int, seed: int, rooms: tuple[str, ...], jobs: int) -> int:
    """Try a sample, print each outcome and the share by room; 0 where at least 90 % are found."""
    known = {entry["mutant"] for entry in LISTS["equivalent"]}
    paths = [path for room in rooms for path in sorted((ROOT / "lmtool" / room).rglob("*.py"))]
    every = [mutant for path in paths for mutant in find_mutants(path)]
    sample = [mutant for mutant in random.Random(seed).sample(every, len(every)) if mutant.change not in known][:count]
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    print(f"{len(sample)} of {len(every):,} mutants, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ThreadPoolExecutor(jobs) as pool:
        copies = SimpleQueue[Path]()
        for number in range(jobs):
            folder = Path(temporary) / str(number)
            folder.mkdir()
            files = "git ls-files -z --cached --others --exclude-standard"  # tracked or not, but nothing ignored
            subprocess.run(["sh", "-c", f"{files} | xargs -0 cp --parents -t {folder}"], cwd=ROOT, check=True)
            copies.put(folder)

        def run(mutant: Mutant, tests: list[str]) -> str:
            copy, begun = copies.get(), time.monotonic()
            try:
                how, last = try_mutant(mutant, tests, copy, sum(seconds[test] for test in tests))
            finally:
                copies.put(copy)
            took = f"{len(tests):5} tests {time.monotonic() - begun:4.0f} s"
            print(f"{how:12} {took}  {mutant.line}: {mutant.change}  {last}", flush=True)
            return how

        cases = list(zip(sample, list_tests(sample, seconds), strict=True))
        first, tests = min((case for case in cases if case[1]), key=lambda case: len(case[1]))
        if run(first._replace(stop=first.start, text="", change="nothing"), tests) != "survived":
            raise SystemExit("the tests fail without a mutant")
        outcomes = list(pool.map(run, *zip(*cases, strict=True)))
    for room in (*rooms, "all"):
        counts = Counter(how for mutant, how in zip(sample, outcomes, strict=True) if room in (mutant.room, "all"))
        found = counts["killed"] + counts["hangs"]
        print(f"{room:10} {found} of {counts.total()} found: {dict(counts)}")
    return int(found < 0.9 * len(sample))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["collect", "try"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", choices=ROOMS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options, others = parser.parse_known_args()
    if options.command == "collect":
        return collect(others)
    return try_sample(options.count, options.seed, tuple(options.room or ROOMS), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
