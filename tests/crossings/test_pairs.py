"""Runs with several features at once: some drawn at random here, each pair of features with `make test-crossings`."""

import re
from pathlib import Path

import pytest

from tests.campaigns.homes import IMPORTS
from tests.support import forks

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds paths of open files through /proc"),
]


def test_runs_with_several_features_hold_what_is_promised() -> None:
    done = forks.run(["-W", "ignore", "-m", "tests.crossings", "--sample", "2", "--seed", "5"], imports=IMPORTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^seed 5: 2 cases, 0 failed", done.stdout, re.MULTILINE)
