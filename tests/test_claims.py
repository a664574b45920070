"""The claims of the lectures are rerun by benchmarks/claims.py, and docs/claims.md says how."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
SCRIPT = ROOT / "benchmarks" / "claims.py"
CLAIMS = re.findall(r"^    python benchmarks/claims\.py (\w+)$", PAGE, flags=re.M)


def claim(name: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Run a claim with few steps."""
    command = [sys.executable, str(SCRIPT), name, "--quick", "--folder", str(folder)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_page_has_a_table_for_each_claim() -> None:
    helped = subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, text=True)
    known = re.search(r"\{([\w,]+)\}", helped.stdout)
    assert known is not None, helped.stderr
    assert sorted(CLAIMS) == sorted(known[1].split(","))
    parts = PAGE.split("python benchmarks/claims.py ")[1:]
    assert [bool(re.search(r"^\|---", part, flags=re.M)) for part in parts] == [True] * len(CLAIMS)


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_a_claim_runs_and_goes_on_where_it_stopped(name: str, tmp_path: Path) -> None:
    done = claim(name, tmp_path)
    assert done.returncode == 0, done.stderr
    head, *_ = done.stdout.splitlines()
    assert f"{head}\n|---" in PAGE, "the page shows another table"
    again = claim(name, tmp_path)
    assert again.stderr == "", "what was there already was run again"
    assert again.stdout == done.stdout
