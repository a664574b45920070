"""Errors of the command line: their wording, an exit code, at most three lines, and nothing that is changed."""

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.golden import WRITES, Case, make_workbench, read_cases, write_cases
from tests.support.cli import CommandLine, contents


@pytest.fixture(scope="module")
def workbench(tmp_path_factory: pytest.TempPathFactory, trained: Path, counted: Path) -> Iterator[Path]:
    """What the commands name; they change nothing, so that one is enough."""
    home = tmp_path_factory.mktemp("workbench")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("LMTOOL_RUNS", "runs")
        patch.delenv("LMTOOL_RUN", raising=False)
        make_workbench(home, trained, counted)
        yield home


@pytest.fixture(scope="module")
def written() -> Iterator[dict[tuple[str, str], str]]:
    """What each case says, which is written if that is asked for."""
    told: dict[tuple[str, str], str] = {}
    yield told
    if os.environ.get(WRITES):
        write_cases(told)


@pytest.mark.parametrize("case", [*read_cases()], ids=lambda case: case.command)
def test_a_command_is_refused_as_the_golden_file_says(
    case: Case, lmtool: CommandLine, workbench: Path, written: dict[tuple[str, str], str]
) -> None:
    before = contents(workbench / "runs"), sorted(workbench.iterdir())
    outcome = lmtool(*shlex.split(case.command))
    error = "none" if outcome.error is None else outcome.error.code
    said = re.sub(r"(?<=there is )[\d.]+(?= GB)", "N", outcome.err)  # the memory of the machine
    written[case.part, case.command] = told = f"{outcome.code} {error}\n{said}"
    assert outcome.code in (2, 3, 4, 5, 6)
    assert outcome.out == "" or case.command.startswith(("check", "predict"))  # they print what they have found
    assert outcome.error is None or 1 <= len(outcome.error.lines()) <= 3
    assert all(line.isprintable() for line in outcome.err.splitlines())
    assert (contents(workbench / "runs"), sorted(workbench.iterdir())) == before
    assert told == case.told or os.environ.get(WRITES)
