from pathlib import Path

import pytest

from tests.support.runs import MakeRun, make_run


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The runs directory of this test."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


@pytest.fixture
def make(runs: Path) -> MakeRun:
    """Makes a run in the runs directory of this test."""
    return make_run


@pytest.fixture(autouse=True)
def _short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lock that another holds."""
    monkeypatch.setattr("lmtool.runs.lock._ACQUIRE_SECONDS", 0.05)
