"""A small model, and an index of a few lines by it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from lmtool.apps.search.entries import Entry
from lmtool.apps.search.index import Index, add_or_replace_texts
from lmtool.compute.device import CPU
from lmtool.runs.load import LoadedModel, load_run
from tests.support.training import Work, no_report

LINES = ["the cat sat", "a dog ran away", "naïve mat", "and the dog", "home", "on the mat", "a cat ran home"]


@pytest.fixture(scope="package")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    work = Work(tmp_path_factory.mktemp("searched"))
    work.pretrain("training.steps=2")
    return load_run(str(work.run()), CPU)


def entries(lines: Sequence[str] = LINES, source: str = "a.txt") -> list[Entry]:
    return [Entry(f"{source}:{i}", source, line) for i, line in enumerate(lines, 1)]


def add(path: Path, loaded: LoadedModel, texts: Sequence[Entry]) -> dict[str, int]:
    return add_or_replace_texts(path, loaded, texts, no_report)


@pytest.fixture
def path(tmp_path: Path, loaded: LoadedModel) -> Path:
    """An index of the lines."""
    add(tmp_path / "i", loaded, entries())
    return tmp_path / "i"


def found(path: Path, loaded: LoadedModel, query: str, k: int = 99) -> list[Entry]:
    (hits,) = Index(path, loaded).search([query], k)
    return list(hits)
