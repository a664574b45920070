"""The campaigns run: one case of each; more of them with `make test-faults`."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.campaigns.homes import IMPORTS
from tests.faults.__main__ import FAULTS
from tests.support import forks

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="finds paths of open files through /proc"),
]


def campaigns(*words: str) -> "subprocess.CompletedProcess[str]":
    return forks.run(["-m", "tests.faults", *words], imports=IMPORTS)


@pytest.mark.parametrize("count", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_no_case_of_any_campaign_fails(count: int) -> None:
    done = campaigns("--count", str(count), "--seed", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    tried = dict(re.findall(r"^\| ([a-z-]+) \| (\d+) \| 0 \|", done.stdout, re.MULTILINE))
    assert tried == {campaign.name: str(count) for campaign in FAULTS.campaigns}


def test_what_is_killed_again_and_again_ends_as_if_nothing_had_happened() -> None:
    done = campaigns("--only", "kills", "--count", "12")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\| kills \| 12 \| 0 \| .*killed 12", done.stdout, re.MULTILINE)
