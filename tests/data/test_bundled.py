"""Bundled texts are found from any folder, and recognized by their content."""

import hashlib
import json
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.errors import DataError

VALID, TRAIN = (bundled.folder() / name for name in ("stories.valid.txt", "stories.txt"))


def test_a_bundled_text_is_found_where_there_is_none_of_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert find_files("data/stories.txt") == [TRAIN]
    own = Path("data/stories.txt")
    own.parent.mkdir()
    own.write_text("mine")
    assert find_files("data/stories.txt") == [own]


def test_only_data_means_the_bundled_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("stories.txt", "other/stories.txt", "data/no-such.txt"):
        with pytest.raises(DataError):
            find_files(name)


def test_the_limit_is_that_of_the_content(tmp_path):
    known = json.loads((bundled.folder() / bundled.LIMITS).read_text("utf-8"))
    one, two = (known[hashlib.sha256(path.read_bytes()).hexdigest()] for path in (VALID, TRAIN))
    assert bundled.limit([VALID]) == pytest.approx(one["bits_per_byte"], abs=1e-6)
    both = (one["bits"] + two["bits"]) / (one["bytes"] + two["bytes"])
    assert bundled.limit([VALID, TRAIN]) == pytest.approx(both)
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(VALID.read_bytes())
    assert bundled.limit([copy]) == bundled.limit([VALID])
    assert bundled.limit([]) is None
    copy.write_bytes(VALID.read_bytes() + b"More.\n")
    assert bundled.limit([copy]) is None
    copy.write_bytes(VALID.read_bytes()[:-1] + b"!")
    assert bundled.limit([copy]) is None
    assert bundled.limit([VALID, copy]) is None


def test_tables_have_no_limit_in_bits():
    assert bundled.limit([bundled.folder() / "translation.tsv"]) is None
    assert bundled.limit([bundled.folder() / "reviews.csv"]) is None


def test_without_the_bundled_texts_no_text_has_a_limit(tmp_path, monkeypatch):
    copy = tmp_path / "stories.txt"
    copy.write_bytes(TRAIN.read_bytes())
    monkeypatch.setattr(bundled, "folder", lambda: tmp_path / "none")
    assert bundled.limit([copy]) is None
