"""The campaigns find faults: each of these, put into lmtool, makes one of them fail."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MUTATIONS = {
    "files are not synced": (
        "kills",
        40,
        """
from lmtool.storage import durable
def write_new(path, chunks):
    path.write_bytes(b"".join(map(bytes, [chunks] if isinstance(chunks, bytes | memoryview) else chunks)))
durable.write_and_sync_new_file = write_new
""",
    ),
    "the moments of the optimizer start anew when a run is resumed": (
        "kills",
        20,
        """
from lmtool.training.optimizer import Optimizers
Optimizers.load_state = lambda *_: None
""",
    ),
    "the digests of a checkpoint are not compared": (
        "damage",
        80,
        """
from lmtool.runs import checkpoint
checkpoint._compare_digest = lambda path, expected: None
""",
    ),
    "a run has no lock": (
        "pairs",
        30,
        """
from lmtool import system
system.try_lock = lambda handle, shared=False: True
""",
    ),
}
"""What is wrong: the campaign that finds it, within so many cases, and the change of the code."""

RUN = """
import runpy, sys
sys.argv[0] = "faults"
runpy.run_module("tests.faults", run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("wrong", MUTATIONS)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds paths of open files through /proc")
def test_a_campaign_finds(wrong: str) -> None:
    name, count, code = MUTATIONS[wrong]
    words = ("--only", name, "--count", str(count))
    done = subprocess.run([sys.executable, "-c", code + RUN, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"again: python -m tests.faults --only {name} --seed 1 --case" in done.stdout, done.stdout + done.stderr
