"""The campaigns run, a few cases of each, and find what is wrong; more of them with `make test-faults` and others."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.homes import IMPORTS
from tests.faults.__main__ import FAULTS
from tests.support import forks

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds paths of open files through /proc"),
]


def tried(program: str, *words: str) -> dict[str, str]:
    """How many cases of each campaign were tried, none of which failed."""
    done = forks.run(["-W", "ignore", "-m", f"tests.{program}", *words], imports=IMPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.findall(r"^\| ([a-z-]+) \| (\d+) \| 0 \|", done.stdout, re.MULTILINE))


@pytest.mark.parametrize("count", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_no_fault_breaks_a_promise(count: int) -> None:
    assert tried("faults", "--count", str(count), "--seed", "3") == {one.name: str(count) for one in FAULTS.campaigns}


def test_what_is_killed_again_and_again_ends_as_if_nothing_had_happened() -> None:
    assert tried("faults", "--only", "kills", "--count", "12") == {"kills": "12"}


def test_runs_with_several_features_hold_what_is_promised() -> None:
    assert tried("crossings", "--sample", "2", "--seed", "5") == {"crossings": "2"}


WRITE = """lambda path, chunks: path.write_bytes(
    b"".join(map(bytes, [chunks] if isinstance(chunks, bytes | memoryview) else chunks))
)"""
MUTATIONS: dict[str, tuple[Any, ...]] = {
    "files are not synced": ("kills", 40, "lmtool.storage.durable", "write_and_sync_new_file", WRITE),
    "the moments of the optimizer start anew when a run is resumed": (
        *("kills", 20, "lmtool.training.optimizer", "Optimizers.load_state", "lambda *_: None"),
    ),
    "the digests of a checkpoint are not compared": (
        *("damage", 80, "lmtool.runs.checkpoint", "_verify_digest", "lambda path, expected: None"),
    ),
    "a run has no lock": ("pairs", 30, "lmtool.system", "try_to_lock_file", "lambda descriptor, shared=False: True"),
}
"""What is wrong: the campaign that finds it, within so many cases; in a module the name that has another value."""
RUN = """
import importlib, runpy, sys
module = importlib.import_module("{0}")
assert module.{1}
module.{1} = {2}
sys.argv[0] = "faults"
runpy.run_module("tests.faults", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("wrong", MUTATIONS)
def test_a_campaign_finds(wrong: str) -> None:
    name, count, *change = MUTATIONS[wrong]
    done = forks.run(["-c", RUN.format(*change), "--only", name, "--count", str(count)], imports=IMPORTS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"again: python -m tests.faults --only {name} --seed 1 --case" in done.stdout, done.stdout + done.stderr
