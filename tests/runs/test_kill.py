"""A process killed at any moment of a save leaves the old checkpoint or the new one, complete."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks

pytestmark = pytest.mark.system


def outcomes(mode: str, folder: Path, seed: int = 0) -> list[dict[str, Any]]:
    done = forks.run(["-W", "ignore", "-m", "tests.runs.killing", mode, str(folder), str(seed)])
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


def check(outcome: dict[str, Any]) -> None:
    assert outcome["problems"] == []
    assert outcome["step"] in (outcome["old"], outcome["old"] + 1)


def test_kill_before_each_thing_that_a_save_does(tmp_path: Path) -> None:
    *killed, survived = outcomes("at-each-event", tmp_path)
    for outcome in [*killed, survived]:
        check(outcome)
    assert all(outcome["killed"] for outcome in killed)
    assert survived["status"] == 0
    assert survived["step"] == 3
    assert len(killed) >= 30
    # Once the new one has its name, it is kept.
    assert [outcome["step"] for outcome in killed] == sorted(outcome["step"] for outcome in killed)
    assert {outcome["step"] for outcome in killed} == {2, 3}


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_at_random_moments(tmp_path: Path, seed: int) -> None:
    for outcome in outcomes("at-random", tmp_path, seed):
        check(outcome)
        assert outcome["killed"]
