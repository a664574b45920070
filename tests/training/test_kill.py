"""A run that is killed at any moments, and resumed each time, is bitwise the uninterrupted run."""

import json
from pathlib import Path

import pytest

from tests.support import forks

pytestmark = pytest.mark.system


# the others take as long each
@pytest.mark.parametrize(
    "variant",
    [
        "adamw, patience, samples",
        pytest.param("muon, micro-batches", marks=pytest.mark.slow),
        pytest.param("lstm, carried states", marks=pytest.mark.slow),
        pytest.param("streamed", marks=pytest.mark.slow),
        pytest.param("in the background", marks=pytest.mark.slow),
    ],
)
def test_kill_and_resume(tmp_path: Path, variant: str) -> None:
    done = forks.run(["-W", "ignore", "-m", "tests.training.killing", str(tmp_path), variant])
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["problems"] == []
    assert outcome["steps"] == sorted(outcome["steps"]), "an intact checkpoint was lost"
    assert outcome["kills"] >= 6
    assert outcome["in a save"] >= 2
    assert outcome["early"] == {"killed": True, "refused": True}
