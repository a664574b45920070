"""What the cache holds is listed and cleared, and nothing else is touched."""

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from lmtool.apps.checking import cache as module
from lmtool.apps.checking.cache import (
    CACHE_KINDS,
    CacheEntryInfo,
    describe_cache_entry,
    find_cache_entries,
    remove_cache_entry_or_explain,
)
from lmtool.data.cached import TOKENS
from lmtool.data.hub import DATASETS_FOLDER
from lmtool.data.prepare import tokenize_files
from lmtool.errors import UsageError
from lmtool.interop.references import imports_folder
from lmtool.recipe.spec.text import CharTokenizer, Data
from lmtool.storage import durable
from lmtool.storage.durable import TEMPORARY_PREFIX, hold_lock
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.training import Work

KEY, SHORT = "0123456789abcdef" * 4, "0123456789abcdef"
NAMES = {
    "models": f"a.Model_2-{KEY[:12]}",
    "datasets": f"{KEY}.jsonl",
    "tokens": KEY,
    "tokenizers": f"{KEY}.entry",
    "surveys": f"{KEY}.entry",
    "kernels": f"{SHORT}-{SHORT}.so",
}
FOLDERS = ("models", "tokens")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "cache"


def make(path: Path, *, is_folder: bool, content: bytes = b"12345") -> Path:
    file = path / "content" if is_folder else path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    return path


def make_all(folder: Path) -> dict[str, Path]:
    """An entry of each kind."""
    return {
        kind: make(folder / CACHE_KINDS[kind].folder / name, is_folder=kind in FOLDERS) for kind, name in NAMES.items()
    }


def paths(entries: Iterable[CacheEntryInfo]) -> set[Path]:
    return {entry.path for entry in entries}


def test_what_tokens_are_of_is_told(folder: Path, tmp_path: Path) -> None:
    """Their names are checksums."""
    (tmp_path / "a.txt").write_text("one two\n\nthree", encoding="utf-8")
    data = Data(split="document", documents="blank-line")
    tokenize_files([str(tmp_path / "a.txt")], data, Tokenizer.train(CharTokenizer(kind="char"), ["one two three"]))
    make(folder / TOKENS / KEY, is_folder=True)
    (damaged, whole) = sorted(
        map(describe_cache_entry, find_cache_entries(["tokens"])), key=lambda line: "documents" in line
    )
    assert "16 tokens, 2 documents" in whole
    assert damaged == f"{KEY[:12]}: unfinished, or damaged"


def test_each_kind_is_found_and_removed(folder: Path) -> None:
    made = make_all(folder)
    assert {entry.kind: (entry.path, entry.size) for entry in find_cache_entries()} == {
        k: (p, 5) for k, p in made.items()
    }
    assert paths(find_cache_entries(["kernels", "tokens"])) == {made["kernels"], made["tokens"]}
    for entry in find_cache_entries(["models", "datasets"]):
        assert remove_cache_entry_or_explain(entry) == ""
    assert paths(find_cache_entries()) == set(made.values()) - {made["models"], made["datasets"]}
    assert {kind for kind, path in made.items() if not path.exists()} == {"models", "datasets"}
    with pytest.raises(UsageError):
        find_cache_entries(["model"])


def test_all_that_training_keeps_is_found_and_made_again(work: Work, folder: Path) -> None:
    work.pretrain("training.steps=1")
    entries = find_cache_entries()
    assert {entry.kind for entry in entries} >= {"tokens", "tokenizers", "surveys"}
    files = {path for path in folder.rglob("*") if path.is_file() and path.stat().st_size}
    assert all(any(path.is_relative_to(entry.path) for entry in entries) for path in files)
    assert [remove_cache_entry_or_explain(entry) for entry in entries] == [""] * len(entries)
    assert not any(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    work.pretrain("training.steps=1", name="again")


def test_what_a_killed_process_left_is_found(folder: Path) -> None:
    left = {
        make(folder / "datasets" / f"{TEMPORARY_PREFIX}{KEY}.jsonl", is_folder=False),
        make(folder / "tokens" / f"{TEMPORARY_PREFIX}{KEY}", is_folder=True),
        make(folder / "tokens" / f".{KEY}-{SHORT}.partial", is_folder=True),
        *(make(folder / name / f"{TEMPORARY_PREFIX}xyz", is_folder=True) for name in ("streams", "imports", "kernels")),
    }
    for name in ("streams", "imports", "kernels"):
        (folder / name / f"{TEMPORARY_PREFIX}xyz" / durable.SCRATCH_LOCK_FILE).touch()
    with durable.scratch_folder(folder / "tokens") as used:  # which removes what is left there
        entries = find_cache_entries()
        assert paths(entries) == left | {used}
        kept = [entry.path for entry in entries if remove_cache_entry_or_explain(entry)]
        assert kept == [used]
    assert find_cache_entries() == []


@pytest.mark.parametrize("kind", NAMES)
def test_what_a_process_makes_stays(folder: Path, kind: str) -> None:
    path = make_all(folder)[kind]
    if kind == "models":
        make(imports_folder() / "locks" / KEY, is_folder=False, content=b"")
    (entry,) = find_cache_entries([kind])
    with hold_lock(entry.lock):
        assert "process" in remove_cache_entry_or_explain(entry)
    assert path.exists()
    assert remove_cache_entry_or_explain(entry) == ""
    assert not path.exists()


def test_locks_are_those_that_are_taken(work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each entry that training makes, its process holds the lock while it makes it."""
    taken, open_file = set(), os.open

    def note(path: str | Path, *rest: int, **more: int) -> int:
        taken.add(Path(path))
        return open_file(path, *rest, **more)

    monkeypatch.setattr(os, "open", note)
    work.pretrain("training.steps=1")
    monkeypatch.undo()
    monkeypatch.setenv("LMTOOL_CACHE", str(folder))
    assert {entry.lock for entry in find_cache_entries(["tokens", "tokenizers", "surveys"])} <= taken


def test_nothing_outside_of_the_cache_is_touched(folder: Path, tmp_path: Path) -> None:
    kept = [
        make(tmp_path / "mine" / KEY, is_folder=True),
        make(tmp_path / "mine" / f"{KEY}.jsonl", is_folder=False),
        make(folder / "tokens" / "mine", is_folder=True),
        make(folder / "mine.txt", is_folder=False),
        make(folder / "imports" / "locks" / KEY, is_folder=False),
        make(folder / "imports" / "digests" / KEY, is_folder=False),
    ]
    (folder / DATASETS_FOLDER).symlink_to(tmp_path / "mine")  # a whole kind elsewhere
    (folder / "tokens" / KEY).symlink_to(tmp_path / "mine" / KEY)
    inside = make(folder / "tokens" / KEY.replace("0", "f"), is_folder=True)
    (inside / "link").symlink_to(tmp_path / "mine")
    entries = find_cache_entries()
    assert paths(entries) == {folder / "tokens" / KEY, inside}
    assert sum(entry.size for entry in entries) < 1000
    assert [remove_cache_entry_or_explain(entry) for entry in entries] == ["", ""]
    assert all(path.exists() for path in kept)
    assert (tmp_path / "mine" / KEY / "content").exists()


def test_what_was_used_lately_stays(folder: Path) -> None:
    made = make_all(folder)
    old = time.time() - 3600 * 24 * 40
    for path in (made["tokens"] / "content", made["datasets"]):
        os.utime(path, (old, old))
    os.utime(made["tokens"], (old, old))
    os.utime(made["kernels"], (time.time(), old))
    assert paths(find_cache_entries((), timedelta(days=30))) == {made["tokens"], made["datasets"]}
    assert find_cache_entries((), timedelta(days=50)) == []
    os.utime(made["tokens"] / "content", (time.time(), old))  # it was read
    assert find_cache_entries()[-1].path == made["datasets"]
    assert paths(find_cache_entries((), timedelta(days=30))) == {made["datasets"]}


def test_a_model_that_adapters_need_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_all(folder)
    monkeypatch.setattr(module, "find_bases_of_adapter_runs", lambda paths: {path: ["tuned"] for path in paths})
    assert {entry.kind for entry in find_cache_entries() if remove_cache_entry_or_explain(entry)} == {"models"}
    assert made["models"].exists()
