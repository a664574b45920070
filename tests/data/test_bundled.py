"""Bundled texts are found from any folder, and recognized by their content."""

import hashlib
import json
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.errors import DataError

VALID, TRAIN = (bundled.data_folder() / name for name in ("stories.valid.txt", "stories.txt"))


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
    known = json.loads((bundled.data_folder() / bundled.ENTROPY_FILE).read_text("utf-8"))
    one, two = (known[hashlib.sha256(path.read_bytes()).hexdigest()] for path in (VALID, TRAIN))
    assert bundled.entropy_bound([VALID]) == pytest.approx(one["bits_per_byte"], abs=1e-6)
    both = (one["bits"] + two["bits"]) / (one["bytes"] + two["bytes"])
    assert bundled.entropy_bound([VALID, TRAIN]) == pytest.approx(both)
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(VALID.read_bytes())
    assert bundled.entropy_bound([copy]) == bundled.entropy_bound([VALID])
    assert bundled.entropy_bound([]) is None
    copy.write_bytes(VALID.read_bytes() + b"More.\n")
    assert bundled.entropy_bound([copy]) is None
    copy.write_bytes(VALID.read_bytes()[:-1] + b"!")
    assert bundled.entropy_bound([copy]) is None
    assert bundled.entropy_bound([VALID, copy]) is None


def test_tables_have_no_limit_in_bits():
    assert bundled.entropy_bound([bundled.data_folder() / "translation.tsv"]) is None
    assert bundled.entropy_bound([bundled.data_folder() / "reviews.csv"]) is None


def test_without_the_bundled_texts_no_text_has_a_limit(tmp_path, monkeypatch):
    copy = tmp_path / "stories.txt"
    copy.write_bytes(TRAIN.read_bytes())
    monkeypatch.setattr(bundled, "data_folder", lambda: tmp_path / "none")
    assert bundled.entropy_bound([copy]) is None
