"""What the measurements share: contenders that take turns, commands of lmtool, tables, and series of kept runs.

A measurement names its contenders, lets them take turns with `run_in_turns`, and prints medians as rows of a table,
below a line of `describe_machine`.

A `Series` is a folder of commands, each run once and kept: an interrupted series goes on where it stopped, and a script
that is started twice with the same folder shares the work between two processes.
"""

import argparse
import csv
import json
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, TypeVar

from lmtool.cli import app
from lmtool.data import bundled
from lmtool.system import try_to_lock_file

DATA = bundled.data_folder()
SEEDS = 3

Case = TypeVar("Case", bound=Hashable)
Found = TypeVar("Found")


def options_of(description: str | None) -> argparse.ArgumentParser:
    """Returns a parser whose help is the docstring of a script."""
    return argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)


def run_in_turns(
    contenders: Mapping[str, Callable[[], Found]], rounds: int, warm_up: int = 0
) -> dict[str, list[Found]]:
    """Returns what each contender gave in each round; a round calls all of them, so that other load affects all alike.

    Args:
        contenders: By name; each does its work once and returns a measurement of it.
        rounds: How many are kept.
        warm_up: Rounds before these whose results are dropped.
    """
    found: dict[str, list[Found]] = {name: [] for name in contenders}
    for turn in range(warm_up + rounds):
        for name, work in contenders.items():
            result = work()
            if turn >= warm_up:
                found[name].append(result)
    return found


def time_call(work: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    """Returns the seconds of a call. `wait` returns when the device has computed everything."""
    wait()
    began = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - began


def medians(found: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: median(values) for name, values in found.items()}


def describe_machine() -> str:
    """Returns the processor, its cores and the load average, which belong to every figure."""
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"


def print_row(*cells: str) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)


def print_head(*cells: str) -> None:
    print_row(*cells)
    print_row(*["---"] * len(cells))


def run_lmtool(*arguments: str, folder: Path | None = None, **environment: str) -> str:
    """Returns what a command prints, run in a process of its own in a folder. Raises CalledProcessError."""
    command, variables = [sys.executable, "-m", "lmtool", *arguments], os.environ | environment
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder, env=variables).stdout


class Busy(Exception):
    """Another process is at this run."""


def lmtool(*arguments: str) -> str:
    """Run a command in this process, and return what it prints. Its errors are raised."""
    sys.argv = ["lmtool", *arguments]
    with redirect_stdout(StringIO()) as printed:
        code = app(standalone_mode=False)
    if code:
        raise SystemExit(code)
    return printed.getvalue()


class Series:
    """Runs commands in a folder, each once.

    quick: few steps and one seed, to check that all runs. real: a folder of data that is not bundled. published: an
    imported model to try as well. n_seeds: of each series. spent: CPU seconds of each command.
    """

    def __init__(self, folder: Path, quick: bool, real: Path | None = None, published: Path | None = None) -> None:
        self.folder, self.quick, self.real, self.published = folder, quick, real, published
        self.n_seeds = 1 if quick else SEEDS
        self.spent: dict[str, float] = {}

    def steps(self, n: int) -> str:
        return f"training.steps={4 if self.quick else n}"

    def seeds(self) -> range:
        return range(1, self.n_seeds + 1)

    def has(self, *names: str) -> bool:
        """Whether the folder of real data has these files."""
        return self.real is not None and all((self.real / name).exists() for name in names)

    def each(self, job: Callable[[Case], Found], cases: Iterable[Case]) -> dict[Case, Found]:
        """The results of independent jobs; those at which another process is wait until the others are done."""
        found: dict[Case, Found] = {}
        wanted = list(dict.fromkeys(cases))
        while len(found) < len(wanted):
            before = len(found)
            for case in wanted:
                if case not in found:
                    with suppress(Busy):
                        found[case] = job(case)
            if len(found) == before:
                time.sleep(1)
        return found

    def run(self, name: str, *arguments: str, settings: Iterable[str] = (), made: Path | None = None) -> str:
        """The output of a command, cached under this name. made: the run it trains, resumed if it was interrupted.

        Raises Busy while another process runs it.
        """
        command = [*arguments, *(word for setting in settings for word in ("-s", setting))]
        kept = self.folder / f"{name}.json"
        if not kept.exists():
            with (self.folder / f"{name}.lock").open("w") as handle:
                if not try_to_lock_file(handle.fileno()):
                    raise Busy(name)
                if not kept.exists():
                    self._run(kept, command, made)
        found = json.loads(kept.read_text())
        if found["command"] != command:
            raise SystemExit(f"{kept} is of another command: {shlex.join(found['command'])}")
        self.spent[name] = found["seconds"]
        printed: str = found["printed"]
        return printed

    def _run(self, kept: Path, command: list[str], made: Path | None) -> None:
        cut = kept.with_suffix(".cut.json")
        asked, before = command, 0.0
        if made is not None:
            was = json.loads(cut.read_text()) if cut.exists() else {"command": None}
            if was["command"] == command and any(made.glob("checkpoints/*/MANIFEST.json")):
                asked, before = ["resume", str(made), "--quiet"], was["seconds"]
            else:
                shutil.rmtree(made, ignore_errors=True)
        print("lmtool", shlex.join(asked), file=sys.stderr, flush=True)
        began = time.process_time()
        try:
            output = lmtool(*asked)
        finally:
            done = {"command": command, "seconds": before + time.process_time() - began}
            cut.write_text(json.dumps(done))
        self.write(kept.name, json.dumps({**done, "printed": output}))
        cut.unlink()

    def train(self, verb: str, name: str, *arguments: str, settings: Iterable[str] = ()) -> Path:
        """The run directory of a training command."""
        run = self.folder / name
        self.run(name, verb, *arguments, "-o", str(run), "--quiet", settings=settings, made=run)
        return run

    def evaluate(self, name: str, run: Path, text: Path, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(name, "eval", str(run), str(text), *options, "--json", "--quiet"))
        return found

    def write(self, name: str, content: str) -> Path:
        """A file of the folder, unless it is there; another process sees all of it or nothing."""
        path = self.folder / name
        if not path.exists():
            partial = self.folder / f".{os.getpid()}-{name}"
            partial.write_text(content, encoding="utf-8", newline="")
            partial.replace(path)
        return path


def figures(run: Path) -> dict[str, Any]:
    """The results of a fine-tuned run on its test table."""
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return found


def last_of(run: Path) -> dict[str, Any]:
    """What was logged at the last step."""
    found: dict[str, Any] = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    return found


def parameters(run: Path) -> str:
    summary: str = json.loads((run / "run.json").read_text())["summary"]
    return summary.rpartition(", ")[2].removesuffix(" parameters")


def read(file: Path) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table."""
    with file.open(encoding="utf-8", newline="") as lines:
        head, *rows = csv.reader(lines, delimiter="\t" if file.suffix == ".tsv" else ",")
    return head, rows


def written(series: Series, name: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Path:
    """A table in the folder of the series."""
    page = StringIO(newline="")
    csv.writer(page, delimiter="\t" if name.endswith(".tsv") else ",").writerows([head, *rows])
    return series.write(name, page.getvalue())


def sample(series: Series, file: Path, n: int, seed: int) -> Path:
    """n rows of a table at random, the same for all models."""
    head, rows = read(file)
    return written(series, f"{file.stem}-{n}-{seed}.csv", head, random.Random(seed).sample(rows, n))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def mean(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    return f"{fmean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


def run_named(parts: Mapping[str, Callable[[Series], str]], description: str) -> None:
    """Parses the command line, runs the part that it names, and prints its table."""
    parser = options_of(description)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, run in parts.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.add_argument("--folder", type=Path, help="where runs are saved; a temporary folder by default")
        command.add_argument("--quick", action="store_true", help="few steps and one seed, to check that all runs")
        command.add_argument("--seeds", type=int, default=SEEDS, metavar="N", help="how many; %(default)s by default")
        command.add_argument("--real", type=Path, metavar="FOLDER", help="data that is not bundled, if a part needs it")
        command.add_argument("--published", type=Path, metavar="RUN", help="an imported model, if a part needs it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, real, published = (
            path and path.resolve() for path in (asked.folder or Path(scratch), asked.real, asked.published)
        )
        folder.mkdir(parents=True, exist_ok=True)
        series = Series(folder, asked.quick, real, published)
        series.n_seeds = min(series.n_seeds, asked.seeds)
        print(series.each(lambda name: parts[name](series), [asked.name])[asked.name])
    print(f"\n{sum(series.spent.values()):.0f} s of CPU time")
