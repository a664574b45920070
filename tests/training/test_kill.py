"""A run that is killed at any moments, and resumed each time, is bitwise the uninterrupted run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import lmtool


def test_kill_and_resume(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.training.killing", str(tmp_path)],
        cwd=Path(lmtool.__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    chains = outcome["chains"].values()
    for chain in chains:
        assert chain["problems"] == []
        assert chain["steps"] == sorted(chain["steps"]), "an intact checkpoint was lost"
    assert sum(chain["kills"] for chain in chains) >= 20
    assert sum(chain["in a save"] for chain in chains) >= 5
    assert outcome["early"] == {"killed": True, "refused": True}
