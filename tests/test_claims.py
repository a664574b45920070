"""Claims and experiments are rerun by benchmarks/, and their pages say how and show what came out."""

import fcntl
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forks

ROOT = Path(__file__).parents[1]
SERIES = ("claims", "experiments")
PAGE = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")


def named(series: str) -> list[str]:
    return re.findall(rf"^    python benchmarks/{series}\.py (\w+)$", PAGE, flags=re.M)


CASES = [(series, name) for series in SERIES for name in named(series)]


def reran(series: str, name: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a claim or an experiment with few steps."""
    script = ROOT / "benchmarks" / f"{series}.py"
    command = [sys.executable, str(script), name, "--quick", "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def test_two_processes_share_a_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process has begun comes last; what is kept is not run again."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import bench

    other = (tmp_path / "first.lock").open("w")
    fcntl.flock(other, fcntl.LOCK_EX)
    ran: list[str] = []

    def lmtool(name: str) -> str:
        ran.append(name)
        other.close()  # the other process was killed meanwhile
        return f"printed {name}"

    monkeypatch.setattr(bench, "lmtool", lmtool)
    for series in (bench.Series(tmp_path, quick=True), bench.Series(tmp_path, quick=True)):
        found = series.each(lambda name, series=series: series.run(name, name), ["first", "second"])
        assert found == {"first": "printed first", "second": "printed second"}
        assert ran == ["second", "first"]


@pytest.mark.system
@pytest.mark.parametrize("series", SERIES)
def test_the_page_has_a_table_for_each(series: str) -> None:
    program = (
        "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module(sys.argv.pop(1), {}, '__main__')"
    )
    helped = forks.run(["-c", program, str(ROOT / "benchmarks"), series, "--help"])
    known = re.search(r"\{([\w,]+)\}", helped.stdout)
    assert known is not None, helped.stderr
    assert sorted(named(series)) == sorted(known[1].split(","))
    parts = PAGE.split(f"python benchmarks/{series}.py ")[1:]
    assert [bool(re.search(r"^\|---", part, flags=re.M)) for part in parts] == [True] * len(parts)


@pytest.mark.slow
@pytest.mark.parametrize(("series", "name"), CASES)
def test_it_runs_and_goes_on_where_it_stopped(series: str, name: str, tmp_path: Path) -> None:
    done = reran(series, name, tmp_path)
    assert done.returncode == 0, done.stderr
    head, *_ = done.stdout.splitlines()
    assert f"{head}\n|---" in PAGE, "the page shows another table"
    again = reran(series, name, tmp_path)
    assert again.stderr == "", "what was there already was run again"
    if name != "length":  # whose table is of times
        assert again.stdout == done.stdout
