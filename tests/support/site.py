"""The site, built once for all tests that look at it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def build(folder: Path) -> Path:
    """The site in a folder, strictly. Skips the test where MkDocs and its plugins are not installed."""
    for name in ("mkdocs", "material", "latex2mathml"):
        if importlib.util.find_spec(name) is None:
            pytest.skip("needs MkDocs: pip install -e '.[docs]'")
    command = [sys.executable, "-W", "ignore", "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)]
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NO_MKDOCS_2_WARNING": "1",
        "LMTOOL_REPOSITORY": "https://example.org/r",
    }
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder
