"""What holds for every test: one thread each, no network, and nobody's cache or runs but the test's own."""

import gc
import os
import re
import shutil
import sys
from collections.abc import Generator, Iterator
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.main
import typer.testing
import yaml
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from tests.support.training import Work

# Before torch is imported. Tests run in several processes at once; one that needs threads sets them itself.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"

MEMORY = Path("/dev/shm")
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))  # no disk, on which small files are slow

settings.register_profile("fast", max_examples=40, deadline=None)
settings.register_profile("thorough", max_examples=1000, deadline=None)
"""For `--hypothesis-profile thorough`; tests with few examples for each of many models then have many."""
settings.register_profile(
    "mutants", max_examples=40, phases=[Phase.explicit, Phase.generate], derandomize=True, database=None, deadline=None
)
"""Of which a failing example is not made smaller; for `make mutants`."""
settings.load_profile("fast")

LONGEST = (
    "test_processes.py",
    "test_sharding.py",
    "test_campaigns.py",
    "test_docs.py",
)
"""Files that go first, so that at the end no worker waits for another."""


@pytest.fixture(scope="session", autouse=True)
def _own_folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        if "PYTEST_XDIST_WORKER" in os.environ:  # all workers share the kernels in C, which take seconds to compile
            kernels = tmp_path_factory.getbasetemp().parent / "kernels"
            kernels.mkdir(exist_ok=True)
            (cache / "kernels").symlink_to(kernels)
        patch.setenv("LMTOOL_CACHE", str(cache))
        patch.setenv("LMTOOL_RUNS", str(tmp_path_factory.mktemp("runs")))
        yield
    if MEMORY in tmp_path_factory.getbasetemp().parents and not request.session.testsfailed:
        shutil.rmtree(tmp_path_factory.getbasetemp(), ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _built_once() -> Iterator[None]:
    """The commands, and the nodes of recipes, which every call of `lmtool` builds: most of the time of a short one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "compose", lru_cache(maxsize=256)(yaml.compose))
        built = cache(typer.main.get_command)
        patch.setattr(typer.main, "get_command", built)
        patch.setattr(typer.testing, "_get_command", built)
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_power_cuts() -> Iterator[None]:
    """No test of this process loses power, so none waits for a disk; who looks at what is synced replaces it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_queued_seeds() -> Iterator[None]:
    """Where no device is, torch.manual_seed keeps for each kind of them the seed with the stack: more than a step."""
    with pytest.MonkeyPatch.context() as patch:
        if "torch" in sys.modules:
            import torch

            for devices in (torch.cuda, torch.xpu, torch.mtia):
                if not devices.is_available():
                    patch.setattr(devices, "manual_seed_all", lambda seed: None, raising=False)
        yield


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "Work":
    """A folder to train in; `last` and names are looked up in it alone."""
    from tests.support.training import Work  # here, as below

    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return Work(tmp_path)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage among modules and tests, of which there are many and which all stay: a tenth of the time."""
    gc.disable()
    done = yield
    gc.freeze()
    gc.set_threshold(50_000)
    gc.enable()
    return done


PEERS = ("peft", "sentence_transformers", "sentencepiece", "transformers")
"""What lmtool is compared with, or reads tokenizers by; beside the oldest libraries these are not there."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """Skip a test that finds no peer."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name in PEERS:
            pytest.skip(f"needs {error.name}")
        raise


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip files of tests that find no peer."""
    report = yield
    missing = re.search(rf"No module named '({'|'.join(PEERS)})'", str(report.longrepr))
    if report.failed and missing:
        report.outcome, report.longrepr = "skipped", (report.nodeid, 0, f"Skipped: needs {missing[1]}")
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not _has_cuda():
        for item in on_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def _has_cuda() -> bool:
    import torch  # here, so that tests of the recipe language start at once

    return torch.cuda.is_available()
