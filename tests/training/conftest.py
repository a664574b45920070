from pathlib import Path

import pytest

from tests.training.tiny import Work


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    """A folder to train in; `last` and names are looked up in it alone."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return Work(tmp_path)
