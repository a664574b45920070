"""What the tests protect: the share of small faults, put into lmtool one at a time, that some test finds.

    python scripts/mutants.py collect     # which test executes which line, and how long it takes; the fast tests once
    python scripts/mutants.py try         # a sample of 100 mutants, each against the tests that execute its line

A mutant is one change inside a function: another comparison, operator or number, a condition negated, `and` for `or`,
two arguments swapped, a statement removed, None returned. It is written into a copy of the checkout, never into the
checkout. The tests run by file, those of the same room first and then the fastest, until the first fails. A mutant
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
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "mutants"
COVERAGE, DURATIONS, REPORT = BUILD / "coverage", BUILD / "durations.json", BUILD / "report.json"
ROOMS = ("model", "objective", "generation", "training", "tasks", "run")
FAST = "not slow and not system and not gpu and not browser and not real"
PATIENCE = 600.0
"""Seconds beyond twenty times their usual duration after which tests count as hanging."""

MEMORY = 32 * 2**30
"""Bytes of addresses that the tests of a mutant may take, which may ask for any number."""

LISTS = yaml.safe_load((ROOT / "scripts" / "mutants.yaml").read_text(encoding="utf-8"))
SWAPS: dict[str, tuple[str, str]] = LISTS["swaps"]
"""For each kind of comparison and operator how it is written, and what takes its place."""


@dataclass(frozen=True)
class Mutant:
    """A change of the characters from `start` to `stop` of a file into `text`, within the statement at `statement`."""

    path: str
    line: int
    statement: int
    kind: str
    start: int
    stop: int
    text: str
    context: str
    """The line as it is, by which scripts/mutants.yaml names it."""
    before: str

    @property
    def room(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return f"{self.path}: {self.context}: {'all' if self.before == self.context else self.before} -> {self.text}"

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.text.encode() + source[self.stop :]


Change = tuple[str, int, int, str]
"""Its kind, and the characters from start to stop that become a text."""


class Finder:
    """Collects the mutants of a file: inside functions, without annotations, decorators, defaults and f-strings."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.mutants = path, source, list[Mutant]()
        self.lines = source.splitlines(keepends=True)
        self.offsets = [0, *itertools.accumulate(map(len, self.lines))]
        self.visit(ast.parse(source), 0, False)

    def visit(self, node: ast.AST, statement: int, inside: bool) -> None:
        """Add the mutants of a node and of those below it; inside: of a function."""
        if isinstance(node, ast.stmt):
            statement = node.lineno
        if inside:
            for change in self.changes(node):
                self.add(statement, *change)
        match node:
            case ast.JoinedStr() | ast.Raise():  # text for people, and its parts have no positions
                below: list[ast.AST] = []
            case ast.FunctionDef():
                below, inside = [*node.body[ast.get_docstring(node) is not None :]], True
            case ast.AnnAssign(value=value):
                below = [value] if value else []
            case _:
                below = [*ast.iter_child_nodes(node)]
        for child in below:
            self.visit(child, statement, inside)

    def add(self, statement: int, kind: str, start: int, stop: int, text: str) -> None:
        line = sum(offset <= start for offset in self.offsets)
        before, context = self.source[start:stop].decode(), self.lines[line - 1].decode().strip()
        mutant = Mutant(self.path, line, statement, kind, start, stop, text, context, " ".join(before.split()))
        ast.parse(mutant.applied(self.source))
        self.mutants.append(mutant)

    def span(self, node: Any) -> tuple[int, int]:
        start, stop = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return self.offsets[start[0] - 1] + start[1], self.offsets[stop[0] - 1] + stop[1]

    def text(self, node: Any) -> str:
        start, stop = self.span(node)
        return self.source[start:stop].decode()

    def changes(self, node: Any) -> Iterator[Change]:
        """The changes of a node itself."""
        match node:
            case ast.Raise() | ast.AugAssign() | ast.Continue() | ast.Expr(value=ast.Call()):
                yield "statement", *self.span(node), "pass"
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]):
                yield "statement", *self.span(node), "pass"
            case ast.Break():
                yield "statement", *self.span(node), "continue"
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                yield "return", *self.span(value), "None"
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield "condition", *self.span(test), f"not ({self.text(test)})"
            case ast.comprehension(ifs=tests):
                yield from (("condition", *self.span(test), f"not ({self.text(test)})") for test in tests)
            case ast.Compare(left=left, ops=operators, comparators=others):
                for one, other, operator in zip([left, *others], others, operators, strict=False):
                    yield from self.swapped("comparison", one, other, operator)
            case ast.BoolOp(op=operator, values=values):
                for one, other in itertools.pairwise(values):
                    yield from self.swapped("and-or", one, other, operator)
            case ast.BinOp(left=left, op=operator, right=right):
                texts = (
                    isinstance(side, ast.JoinedStr) or str is type(getattr(side, "value", 0)) for side in (left, right)
                )
                if not any(texts):
                    yield from self.swapped("arithmetic", left, right, operator)
            case ast.Constant(value=bool() as value):
                yield "constant", *self.span(node), str(not value)
            case ast.Constant(value=int() | float() as value):
                yield "constant", *self.span(node), repr(value + 1)
                yield "constant", *self.span(node), f"({value - 1!r})"
            case ast.Call(args=[first, second, *_]) if ast.Starred not in (type(first), type(second)):
                (start, middle), (after, stop) = self.span(first), self.span(second)
                if self.text(first) != self.text(second):
                    between = self.source[middle:after].decode()
                    yield "arguments", start, stop, self.text(second) + between + self.text(first)

    def swapped(self, kind: str, left: ast.expr, right: ast.expr, operator: Any) -> Iterator[Change]:
        """Another operator in the gap of two operands, which may also hold parentheses, breaks and comments."""
        old, new = SWAPS.get(type(operator).__name__, ("", ""))
        start, stop = self.span(left)[1], self.span(right)[0]
        at = self.source.find(old.encode(), start, stop)
        if old and at >= 0 and b"#" not in self.source[start:stop]:
            yield kind, at, at + len(old), new


def mutants(root: Path, rooms: tuple[str, ...]) -> list[Mutant]:
    """All mutants of these rooms, in the order of their files."""
    return [
        mutant
        for room in rooms
        for path in sorted((root / "lmtool" / room).rglob("*.py"))
        for mutant in Finder(str(path.relative_to(root)), path.read_bytes()).mutants
    ]


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


def executed(sample: list[Mutant]) -> Iterator[list[str]]:
    """For each mutant the tests that execute its line, by file: those of its room first, then the fastest.

    What a fixture executes that several tests of a file share, all tests of the file are taken to execute.
    """
    from coverage import CoverageData

    data = CoverageData(str(COVERAGE))
    data.read()
    contexts_by_line = cache(lambda path: data.contexts_by_lineno(str(ROOT / path)))
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    by_file = defaultdict(list)
    for test in seconds:
        by_file[test.split("::")[0]].append(test)
    for mutant in sample:
        lines = contexts_by_line(mutant.path)
        contexts = {name for name in lines.get(mutant.line) or lines.get(mutant.statement) or () if name}
        tests = set()
        for test, _, phase in (name.rpartition("|") for name in contexts):
            tests.update([test] if phase == "run" else by_file[test.split("::")[0]])
        files = Counter[str]()
        for test in tests:
            files[test.split("::")[0]] += seconds.get(test, 0)
        order = sorted(files, key=lambda file: (not file.startswith(f"tests/{mutant.room}/"), files[file]))
        yield [test for file in order for test in by_file[file] if test in tests]


def outcome(mutant: Mutant, tests: list[str], copy: Path) -> tuple[str, str]:
    """(`killed`, `survived`, `hangs` or `not executed`, what the tests said last)."""
    if not tests:
        return "not executed", ""
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    path = copy / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    (copy / "chosen.txt").write_text("\n".join(tests))
    options = "-x -q -p no:cacheprovider --no-header -rfE --hypothesis-profile mutants @chosen.txt"
    try:
        ended = subprocess.run(
            ["sh", "-c", f"ulimit -v {MEMORY >> 10}; exec {sys.executable} -m pytest {options}"],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=PATIENCE + 20 * sum(seconds[test] for test in tests),
        )
    except subprocess.TimeoutExpired:
        return "hangs", ""
    finally:
        path.write_bytes(source)
    last = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
    # a mutant may also break what is run when tests are collected, but not the call of pytest, nor leave nothing to run
    if ended.returncode not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED):
        raise RuntimeError(ended.stdout)
    return "survived" if ended.returncode == pytest.ExitCode.OK else "killed", " ".join(last)


def copied(folder: Path) -> Path:
    """The checkout's files, tracked or not, without what git ignores."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def campaign(count: int, seed: int, rooms: tuple[str, ...], jobs: int) -> int:
    """Try a sample, print each outcome and the share by room; 0 where at least 90 % are found."""
    known = {entry["mutant"] for entry in LISTS["equivalent"]}
    every = mutants(ROOT, rooms)
    sample = [mutant for mutant in random.Random(seed).sample(every, len(every)) if mutant.name not in known][:count]
    print(f"{len(sample)} of {len(every):,} mutants, seed {seed}", flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary, ThreadPoolExecutor(jobs) as pool:
        copies, folders = SimpleQueue[Path](), [copied(Path(temporary) / str(number)) for number in range(jobs)]
        for folder in folders:
            copies.put(folder)

        first, tests = next((one, tests) for one, tests in zip(sample, executed(sample), strict=True) if tests)
        unchanged = replace(first, stop=first.start, text="")
        if (found := outcome(unchanged, tests, folders[0])) != ("survived", ""):
            raise SystemExit(f"the tests fail without a mutant: {found}")

        def tried(mutant: Mutant, tests: list[str]) -> None:
            copy, begun = copies.get(), time.monotonic()
            try:
                how, last = outcome(mutant, tests, copy)
            finally:
                copies.put(copy)
            row = {"mutant": mutant.name, "line": mutant.line, "room": mutant.room, "kind": mutant.kind, "outcome": how}
            rows.append({**row, "tests": len(tests), "seconds": round(time.monotonic() - begun), "last": last})
            print(f"{how:12} {len(tests):5} tests {rows[-1]['seconds']:4} s  {mutant.line}: {mutant.name}", flush=True)
            REPORT.write_text(json.dumps(rows, indent=1))

        list(pool.map(tried, sample, executed(sample)))
    for room in (*rooms, *(["all"] if len(rooms) > 1 else [])):
        outcomes = Counter(row["outcome"] for row in rows if room in (row["room"], "all"))
        found = outcomes["killed"] + outcomes["hangs"]
        print(f"{room:10} {found} of {outcomes.total()} found: {dict(outcomes)}")
    found = sum(row["outcome"] in ("killed", "hangs") for row in rows)
    return int(found < 0.9 * len(rows))


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
    return campaign(options.count, options.seed, tuple(options.room or ROOMS), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
