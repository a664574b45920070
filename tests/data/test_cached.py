"""Damaged entries of the cache are reported on one line and made anew; one that may not be written is only read."""

import logging
import os
import tempfile
from pathlib import Path

import pytest

from lmtool.data.cached import find_damaged_entries, load_or_create
from lmtool.data.prepare import TokenizedData, tokenize_data
from lmtool.recipe.spec.text import BpeTokenizer, Data
from tests.faults.places import make_read_only
from tests.runs.killing import in_child
from tests.support.damage import flip_bit
from tests.support.texts import prose

pytestmark = pytest.mark.usefixtures("cache")

CANNOT_MOUNT = 77


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(prose(5_000), encoding="utf-8", newline="")
    return path


def prepared(book: Path, out: Path | None = None) -> TokenizedData:
    return tokenize_data(Data(train=(str(book),)), BpeTokenizer(vocab_size=300), seed=1, out=out)


def content(found: TokenizedData) -> tuple[str, str, list[list[int]]]:
    stores = [store.read(0, len(store)).tolist() for store in (found.train, found.valid)]
    return found.fingerprint, found.tokenizer.fingerprint, stores


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def damage(path: Path, how: str = "flipped") -> None:
    raw = path.read_bytes()
    if how == "deleted":
        path.unlink()
    elif how == "flipped":
        flip_bit(path, len(raw) * 2 // 3)
    else:
        path.write_bytes(raw[: len(raw) * 2 // 3])


@pytest.mark.parametrize("how", ["flipped", "truncated", "deleted"])
def test_damaged_files_are_made_anew(how: str, book: Path, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    before = content(prepared(book))
    files = [path for path in sorted(cache.rglob("*")) if path.is_file() and path.suffix != ".lock"]
    assert sorted(path.suffix for path in files) == sorted([*[".bin"] * 4, *[".json"] * 2, *[".entry"] * 2])
    assert list(find_damaged_entries()) == []
    for path in files:
        damage(path, how)
        n_damaged = 0 if how == "deleted" and path.suffix == ".entry" else 1
        assert len(list(find_damaged_entries())) == n_damaged
        caplog.clear()
        assert content(prepared(book)) == before
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert len(warnings) == n_damaged
        assert not any("\n" in line for line in warnings)
        assert list(find_damaged_entries()) == []
    assert not list(cache.rglob(".tmp-*"))


def test_a_store_of_other_tokens_under_its_name_is_not_used(
    book: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = content(prepared(book))
    first, second = cache.glob("tokens/*")
    first.rename(cache / "aside")
    second.rename(first)
    (cache / "aside").rename(second)
    assert content(prepared(book)) == before
    assert len(caplog.records) == 2


def test_content_that_cannot_be_parsed_is_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    assert load_or_create("numbers", "k", "a number", lambda: b"twelve", bytes.decode) == "twelve"
    assert load_or_create("numbers", "k", "a number", lambda: b"12", int) == 12
    assert load_or_create("numbers", "k", "a number", lambda: b"13", int) == 12
    assert len(caplog.records) == 1


def test_a_cache_that_may_not_be_written_is_read_and_what_it_lacks_is_made(
    book: Path, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one warning."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = content(prepared(book))
    other = tmp_path / "other.txt"
    other.write_text(prose(4_000, 2), encoding="utf-8", newline="")
    (cache / "tokenizers").rename(cache / "moved")  # one folder is missing, the others may not be written
    files = contents_of(cache)

    def work() -> None:
        if not make_read_only(cache):
            os._exit(CANNOT_MOUNT)
        read = prepared(book)
        assert content(read) == before
        assert read.train.path.is_relative_to(cache)
        made = [prepared(other) for _ in range(2)]
        assert content(made[0]) == content(made[1])
        assert content(made[0]) != before
        assert made[1].seconds == 0, "of the process itself"
        assert content(prepared(other, tmp_path / "out")) == content(made[0])
        (warning,) = caplog.records
        assert "LMTOOL_CACHE" in warning.getMessage()

    code = os.waitstatus_to_exitcode(os.waitpid(in_child(work), 0)[1])
    if code == CANNOT_MOUNT:
        pytest.skip("this user cannot mount a folder")
    assert code == 0
    assert contents_of(cache) == files
