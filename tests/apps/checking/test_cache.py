"""What the cache holds is listed and cleared, and nothing else is touched."""

import os
import time
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import pytest

from lmtool.apps.checking import cache as module
from lmtool.data.cached import TOKENS
from lmtool.data.hub import DATASETS_FOLDER
from lmtool.data.prepare import tokenize_files
from lmtool.interop.references import imports_folder
from lmtool.recipe.spec.text import CharTokenizer, Data
from lmtool.storage import durable
from lmtool.storage.durable import TEMPORARY_PREFIX, hold_lock
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.errors import refuses
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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    return tmp_path / "cache"


def make_file(path: Path, content: bytes = b"12345") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def make_folder(path: Path) -> Path:
    return make_file(path / "content").parent


@pytest.fixture
def made(folder: Path) -> dict[str, Path]:
    """An entry of each kind."""
    paths = {kind: folder / module.CACHE_KINDS[kind].folder / name for kind, name in NAMES.items()}
    return {kind: (make_folder if kind in ("models", "tokens") else make_file)(path) for kind, path in paths.items()}


def paths(entries: Iterable[module.CacheEntryInfo]) -> set[Path]:
    return {entry.path for entry in entries}


def test_what_tokens_are_of_is_told(folder: Path, tmp_path: Path) -> None:
    """Their names are checksums."""
    (tmp_path / "a.txt").write_text("one two\n\nthree", encoding="utf-8")
    data = Data(split="document", documents="blank-line")
    tokenize_files([str(tmp_path / "a.txt")], data, Tokenizer.train(CharTokenizer(kind="char"), ["one two three"]))
    make_folder(folder / TOKENS / KEY)
    told = sorted(map(module.describe_cache_entry, module.find_cache_entries(["tokens"])), key=len)
    assert told[0] == f"{KEY[:12]}: unfinished, or damaged"
    assert "16 tokens, 2 documents" in told[1]


def test_each_kind_is_found_and_removed(made: dict[str, Path]) -> None:
    found = {entry.kind: (entry.path, entry.size) for entry in module.find_cache_entries()}
    assert found == {kind: (path, 5) for kind, path in made.items()}
    assert paths(module.find_cache_entries(["kernels", "tokens"])) == {made["kernels"], made["tokens"]}
    for entry in module.find_cache_entries(["models", "datasets"]):
        assert module.remove_cache_entry_or_explain(entry) == ""
    assert {kind for kind, path in made.items() if not path.exists()} == {"models", "datasets"}
    assert paths(module.find_cache_entries()) == set(made.values()) - {made["models"], made["datasets"]}
    with refuses("usage"):
        module.find_cache_entries(["model"])


def test_all_that_training_keeps_is_found_and_made_again(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each entry that training makes, its process holds the lock while it makes it."""
    taken, open_file = set(), os.open

    def note(path: str | Path, *rest: int, **more: int) -> int:
        taken.add(Path(path))
        return open_file(path, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", note)
        work.pretrain("training.steps=1")
    entries = module.find_cache_entries()
    assert {entry.kind for entry in entries} >= {"tokens", "tokenizers", "surveys"}
    assert {entry.lock for entry in entries if entry.kind in ("tokens", "tokenizers", "surveys")} <= taken
    files = {path for path in folder.rglob("*") if path.is_file() and path.stat().st_size}
    assert all(any(path.is_relative_to(entry.path) for entry in entries) for path in files)
    assert {module.remove_cache_entry_or_explain(entry) for entry in entries} == {""}
    assert not any(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    work.pretrain("training.steps=1", name="again")


def test_what_a_killed_process_left_is_found(folder: Path) -> None:
    scratch = [folder / name / f"{TEMPORARY_PREFIX}xyz" for name in ("streams", "imports", "kernels")]
    left = {
        make_file(folder / "datasets" / f"{TEMPORARY_PREFIX}{KEY}.jsonl"),
        make_folder(folder / "tokens" / f"{TEMPORARY_PREFIX}{KEY}"),
        make_folder(folder / "tokens" / f".{KEY}-{SHORT}.partial"),
        *map(make_folder, scratch),
    }
    for path in scratch:
        (path / durable.SCRATCH_LOCK_FILE).touch()
    with durable.scratch_folder(folder / "tokens") as used:  # which removes what is left there
        entries = module.find_cache_entries()
        assert paths(entries) == left | {used}
        assert [entry.path for entry in entries if module.remove_cache_entry_or_explain(entry)] == [used]
    assert module.find_cache_entries() == []


@pytest.mark.parametrize("kind", NAMES)
def test_what_a_process_makes_stays(made: dict[str, Path], kind: str) -> None:
    if kind == "models":
        make_file(imports_folder() / "locks" / KEY, b"")
    (entry,) = module.find_cache_entries([kind])
    with hold_lock(entry.lock):
        assert "process" in module.remove_cache_entry_or_explain(entry)
    assert made[kind].exists()
    assert module.remove_cache_entry_or_explain(entry) == ""
    assert not made[kind].exists()


def test_nothing_outside_of_the_cache_is_touched(folder: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    kept = [
        make_folder(mine / KEY) / "content",
        make_file(mine / f"{KEY}.jsonl"),
        make_folder(folder / "tokens" / "mine"),
        make_file(folder / "mine.txt"),
        make_file(folder / "imports" / "locks" / KEY),
        make_file(folder / "imports" / "digests" / KEY),
    ]
    (folder / DATASETS_FOLDER).symlink_to(mine)  # a whole kind elsewhere
    (folder / "tokens" / KEY).symlink_to(mine / KEY)
    inside = make_folder(folder / "tokens" / KEY.replace("0", "f"))
    (inside / "link").symlink_to(mine)
    entries = module.find_cache_entries()
    assert paths(entries) == {folder / "tokens" / KEY, inside}
    assert sum(entry.size for entry in entries) < 1000
    assert [module.remove_cache_entry_or_explain(entry) for entry in entries] == ["", ""]
    assert all(path.exists() for path in kept)


def test_what_was_used_lately_stays(made: dict[str, Path]) -> None:
    old, month = time.time() - 3600 * 24 * 40, timedelta(days=30)
    for path in (made["tokens"], made["tokens"] / "content", made["datasets"]):
        os.utime(path, (old, old))
    os.utime(made["kernels"], (time.time(), old))
    assert paths(module.find_cache_entries((), month)) == {made["tokens"], made["datasets"]}
    assert module.find_cache_entries((), timedelta(days=50)) == []
    os.utime(made["tokens"] / "content", (time.time(), old))  # it was read
    assert module.find_cache_entries()[-1].path == made["datasets"]
    assert paths(module.find_cache_entries((), month)) == {made["datasets"]}


def test_a_model_that_adapters_need_stays(made: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_bases_of_adapter_runs", lambda paths: {path: ["tuned"] for path in paths})
    assert {entry.kind for entry in module.find_cache_entries() if module.remove_cache_entry_or_explain(entry)} == {
        "models"
    }
    assert made["models"].exists()
