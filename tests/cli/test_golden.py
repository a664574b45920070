"""Errors and outputs of the command line: their wording, exit codes, at most three lines, and what they change."""

import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lmtool.training.cost import planning
from tests.cli.golden import (
    OUTPUTS,
    REFUSALS,
    WRITES,
    Parts,
    copy_workbench,
    describe_output,
    describe_refusal,
    iterate_refusals,
    make_workbench,
    read_parts,
    stamps,
    write_parts,
)
from tests.support.cli import CommandLine, contents, pipe_in

Compare = Callable[[Path, str, dict[str, str]], None]


@pytest.fixture(scope="module")
def workbench(tmp_path_factory: pytest.TempPathFactory, trained: Path, counted: Path) -> Iterator[Path]:
    """What the commands name; those that are refused change nothing, so that one is enough."""
    home = tmp_path_factory.mktemp("workbench")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("LMTOOL_RUNS", "runs")
        patch.delenv("LMTOOL_RUN", raising=False)
        make_workbench(home, trained, counted)
        yield home


@pytest.fixture(scope="module")
def equals_golden() -> Iterator[Compare]:
    """Compares what cases of a part say with a golden file, or writes the file if that is asked for."""
    said: dict[Path, Parts] = {}

    def compare(file: Path, part: str, found: dict[str, str]) -> None:
        said.setdefault(file, {}).setdefault(part, {}).update(found)
        expected = read_parts(file)[part]
        for command, below in found.items():
            assert (
                os.environ.get(WRITES) or f"$ lmtool {command}\n{below}" == f"$ lmtool {command}\n{expected[command]}"
            )

    yield compare
    if os.environ.get(WRITES):
        for file, parts in said.items():
            write_parts(file, parts)


@pytest.mark.parametrize(
    ("part", "command"), [pytest.param(part, command, id=command) for part, command, _ in iterate_refusals()]
)
def test_a_command_is_refused_as_the_golden_file_says(
    part: str, command: str, lmtool: CommandLine, workbench: Path, equals_golden: Compare
) -> None:
    before = contents(workbench / "runs"), sorted(workbench.iterdir())
    outcome = lmtool(*shlex.split(command))
    equals_golden(REFUSALS, part, {command: describe_refusal(outcome)})
    assert outcome.code in (2, 3, 4, 5, 6)
    assert outcome.out == "" or command.startswith(("check", "predict"))  # they print what they have found
    assert outcome.error is None or 1 <= len(outcome.error.lines()) <= 3
    assert all(line.isprintable() for line in outcome.err.splitlines())
    assert (contents(workbench / "runs"), sorted(workbench.iterdir())) == before


@pytest.mark.parametrize("part", read_parts(OUTPUTS))
def test_commands_print_what_the_golden_file_says(
    part: str, lmtool: CommandLine, workbench: Path, home: Path, monkeypatch: pytest.MonkeyPatch, equals_golden: Compare
) -> None:
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)
    monkeypatch.setattr(secrets, "randbelow", lambda n: n // 2)  # the seed of what is sampled without --seed
    monkeypatch.setenv("LMTOOL_CACHE", str(home.with_name("cache")))
    monkeypatch.delenv("LMTOOL_RUN", raising=False)
    copy_workbench(workbench, home)
    said = {}
    for command in read_parts(OUTPUTS)[part]:
        words, _, file = command.partition(" < ")
        pipe_in(monkeypatch, (home / file).read_bytes() if file else b"")
        before = stamps(home)
        outcome = lmtool(*shlex.split(words))
        assert outcome.code != 1, outcome.err
        made = sorted(name for name, when in stamps(home).items() if before.get(name) != when)
        said[command] = describe_output(outcome, made)
    equals_golden(OUTPUTS, part, said)
