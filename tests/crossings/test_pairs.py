"""Runs with several features at once: some drawn at random here, each pair of features with `make test-crossings`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds paths of open files through /proc"),
]


def test_runs_with_several_features_hold_what_is_promised() -> None:
    words = [sys.executable, "-W", "ignore", "-m", "tests.crossings", "--sample", "5", "--seed", "4"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^seed 4: 5 crossings, 0 failed", done.stdout, re.MULTILINE)
