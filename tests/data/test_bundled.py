"""Bundled texts are found from any folder, and recognized by their content."""

import hashlib
import json
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.errors import DataError

FOLDER = bundled.data_folder()
VALID, TRAIN = FOLDER / "stories.valid.txt", FOLDER / "stories.txt"


def test_a_bundled_text_is_found_where_no_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_files("data/stories.txt") == [TRAIN]
    for name in ("stories.txt", "other/stories.txt", "data/no-such.txt"):
        with pytest.raises(DataError):
            find_files(name)
    own = Path("data/stories.txt")
    own.parent.mkdir()
    own.write_text("mine")
    assert find_files("data/stories.txt") == [own]


def test_the_entropy_of_a_text_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = json.loads((FOLDER / bundled.ENTROPY_FILE).read_text("utf-8"))
    one, two = (known[hashlib.sha256(path.read_bytes()).hexdigest()] for path in (VALID, TRAIN))
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(VALID.read_bytes())
    assert bundled.known_entropy_bits_per_byte([copy]) == bundled.known_entropy_bits_per_byte([VALID])
    assert bundled.known_entropy_bits_per_byte([VALID]) == pytest.approx(one["bits_per_byte"], abs=1e-6)
    both = (one["bits"] + two["bits"]) / (one["bytes"] + two["bytes"])
    assert bundled.known_entropy_bits_per_byte([VALID, TRAIN]) == pytest.approx(both)
    copy.write_bytes(VALID.read_bytes()[:-1] + b"!")
    for unknown in ([], [copy], [VALID, copy], [FOLDER / "translation.tsv"], [FOLDER / "reviews.csv"]):
        assert bundled.known_entropy_bits_per_byte(unknown) is None
    monkeypatch.setattr(bundled, "data_folder", lambda: tmp_path / "none")
    assert bundled.known_entropy_bits_per_byte([VALID]) is None
