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
import faulthandler
import json
import os
import random
import resource
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
EQUIVALENT = ROOT / "scripts" / "mutants.yaml"
ROOMS = ("model", "objective", "decoding", "training", "tables", "run")
FAST = "not slow and not system and not gpu and not browser and not real"
PATIENCE = 60.0
"""Seconds beyond twenty times its usual duration after which a test counts as hanging."""

MEMORY = 32 * 2**30
"""Bytes of addresses that the tests of a mutant may take, which may ask for any number."""

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
OPERATORS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.MatMult: ("@", "*"),
}


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


class Finder(ast.NodeVisitor):
    """Collects the mutants of a file: inside functions, without annotations, decorators, defaults and f-strings."""

    def __init__(self, path: str, source: bytes) -> None:
        self.path, self.source, self.mutants = path, source, list[Mutant]()
        self.lines = source.splitlines(keepends=True)
        self.offsets = [0]
        for line in self.lines:
            self.offsets.append(self.offsets[-1] + len(line))
        self.statement, self.depth = 0, 0
        self.visit(ast.parse(source))

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self.offsets[node.lineno - 1] + node.col_offset,
            self.offsets[node.end_lineno - 1] + node.end_col_offset,
        )

    def add(self, kind: str, start: int, stop: int, text: str) -> None:
        if not self.depth:
            return
        line = sum(offset <= start for offset in self.offsets)
        before = self.source[start:stop].decode()
        context = self.lines[line - 1].decode().strip()
        mutant = Mutant(self.path, line, self.statement, kind, start, stop, text, context, " ".join(before.split()))
        ast.parse(mutant.applied(self.source))
        self.mutants.append(mutant)

    def between(self, kind: str, left: ast.expr, right: ast.expr, swap: tuple[str, str]) -> None:
        """Replace the operator in the gap of two operands, which may also hold parentheses, breaks and comments."""
        start, stop = self.span(left)[1], self.span(right)[0]
        at = self.source.find(swap[0].encode(), start, stop)
        if at >= 0 and b"#" not in self.source[start:stop]:
            self.add(kind, at, at + len(swap[0]), swap[1])

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.stmt):
            self.statement = node.lineno
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.depth += 1
        for statement in node.body[ast.get_docstring(node) is not None :]:
            self.visit(statement)
        self.depth -= 1

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """An f-string is text for people, and its parts have no positions."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("statement", *self.span(node), "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("statement", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("statement", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
            self.add("statement", *self.span(node), "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.add("statement", *self.span(node), "pass")

    def visit_Break(self, node: ast.Break) -> None:
        self.add("statement", *self.span(node), "continue")

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            self.add("return", *self.span(node.value), "None")
        self.generic_visit(node)

    def negated(self, test: ast.expr) -> None:
        start, stop = self.span(test)
        self.add("condition", start, stop, f"not ({self.source[start:stop].decode()})")

    def visit_If(self, node: ast.If) -> None:
        self.negated(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If  # type: ignore[assignment]

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.negated(test)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        for i, operator in enumerate(node.ops):
            self.between("comparison", operands[i], operands[i + 1], COMPARISONS[type(operator)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        swap = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.between("and-or", left, right, swap)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = any(
            isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
            for side in (node.left, node.right)
        )
        if not is_text and type(node.op) in OPERATORS:
            self.between("arithmetic", node.left, node.right, OPERATORS[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            self.add("constant", *self.span(node), str(not value))
        elif isinstance(value, int | float):
            self.add("constant", *self.span(node), repr(value + 1))
            self.add("constant", *self.span(node), f"({value - 1!r})")

    def visit_Call(self, node: ast.Call) -> None:
        first, second = (*node.args, None, None)[:2]
        if first and second and not any(isinstance(argument, ast.Starred) for argument in (first, second)):
            (start, middle), (after, stop) = self.span(first), self.span(second)
            parts = (self.source[after:stop], self.source[middle:after], self.source[start:middle])
            if parts[0] != parts[2]:
                self.add("arguments", start, stop, b"".join(parts).decode())
        self.generic_visit(node)


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


class Chosen:
    """A plugin that runs some tests alone, in their order, and ends the process when one of them hangs."""

    def __init__(self, tests: dict[str, float]) -> None:
        self.tests = tests
        self.stderr = os.dup(2)
        """The one of the process, before pytest captures what is written to it."""
        self.watch(10 * PATIENCE)

    def watch(self, seconds: float) -> None:
        faulthandler.dump_traceback_later(seconds, exit=True, file=self.stderr)

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """The examples of each run, and no search for a smaller one that fails."""
        from hypothesis import Phase, settings  # after its plugin, or pytest warns of it, which is an error

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", settings(), phases=phases, derandomize=True, database=None)
        settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        files = list(dict.fromkeys(test.split("::")[0] for test in self.tests))
        items[:] = sorted(
            (item for item in items if item.nodeid in self.tests),
            key=lambda item: files.index(item.nodeid.split("::")[0]),
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.watch(PATIENCE + 20 * self.tests.get(nodeid, 0))

    def pytest_runtest_logfinish(self) -> None:
        self.watch(10 * PATIENCE)


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


def attempt(tests_file: str) -> int:
    """Run the tests of a file until the first fails; the exit status of pytest. Runs within a copy."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    tests: dict[str, float] = json.loads(Path(tests_file).read_text())
    files = dict.fromkeys(test.split("::")[0] for test in tests)
    options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "-rfE"]
    return int(pytest.main([*options, *files], plugins=[Chosen(tests)]))


def outcome(mutant: Mutant, tests: list[str], copy: Path) -> tuple[str, str]:
    """(`killed`, `survived`, `hangs` or `not executed`, what the tests said last)."""
    if not tests:
        return "not executed", ""
    seconds = json.loads(DURATIONS.read_text())
    path = copy / mutant.path
    source = path.read_bytes()
    path.write_bytes(mutant.applied(source))
    chosen = copy / "chosen.json"
    chosen.write_text(json.dumps({test: seconds[test] for test in tests}))
    try:
        ended = subprocess.run(
            [sys.executable, "scripts/mutants.py", "attempt", str(chosen)],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    finally:
        path.write_bytes(source)
    last = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))][:1]
    if "Timeout (" in ended.stdout:
        return "hangs", " ".join(last)
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
    known = {entry["mutant"]: entry["reason"] for entry in yaml.safe_load(EQUIVALENT.read_text()) or []}
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
    parser.add_argument("command", choices=["collect", "try", "attempt"])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--room", action="append", choices=ROOMS)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options, others = parser.parse_known_args()
    if options.command == "collect":
        return collect(others)
    if options.command == "attempt":
        return attempt(others[0])
    return campaign(options.count, options.seed, tuple(options.room or ROOMS), options.jobs)


if __name__ == "__main__":
    sys.exit(main())
