"""A cache and a folder of runs of its own for each test."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
