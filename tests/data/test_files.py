"""Files that are suggested in place of one that does not exist, and the texts that come with lmtool."""

import hashlib
import json
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.data.files import find_files
from lmtool.data.table import open_table
from tests.support.errors import refuses

BUNDLED = bundled.data_folder()
VALID, TRAIN = BUNDLED / "stories.valid.txt", BUNDLED / "stories.txt"
FILES = ("book.txt", "Letters.txt", "poems.jsonl.gz", "reviews.csv", "tags.conll", "book.pdf", "book.yaml", ".book.txt")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts" / "archive").mkdir(parents=True)
    for name in (*FILES, "texts/novel.txt", "texts/book.txt", "texts/archive/diary.txt"):
        (tmp_path / name).write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("book", "book.txt"),
        ("BOOK.TXT", "book.txt"),
        ("poem.jsonl", "poems.jsonl.gz"),
        ("reviews.cvs", "reviews.csv"),
        ("novel.txt", "texts/novel.txt"),
        ("txts/novle.txt", "texts/novel.txt"),
        ("text", "texts"),
        ("data/Stories.TXT", "data/stories.txt"),
        ("storeis.txt", "data/stories.txt or data/stories.valid.txt"),
        ("{folder}/txts/novl.txt", "{folder}/texts/novel.txt"),
    ],
)
def test_similar_names_nearby_are_suggested(folder: Path, typed: str, meant: str) -> None:
    typed = typed.format(folder=folder)
    with refuses("file_not_found") as refused:
        find_files(typed)
    assert refused.value.where == str(Path(typed))
    assert refused.value.fix == f"did you mean {meant.format(folder=folder)}?"


@pytest.mark.parametrize("typed", ["xyz.txt", "diary.txt", "nowhere/xyz.txt"])
def test_no_other_names_are_suggested(folder: Path, typed: str) -> None:
    with refuses("file_not_found") as refused:
        find_files(typed)
    assert "did you mean" not in refused.value.fix
    assert ("nowhere" in refused.value.fix) == typed.startswith("nowhere")


def test_a_user_who_does_not_exist_has_no_files(folder: Path) -> None:
    for read in (find_files, open_table):
        with refuses("file_not_found"):
            read("~nobody-of-this-name/text.csv")


def test_a_bundled_text_is_found_where_no_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_files("data/stories.txt") == [TRAIN]
    for name in ("stories.txt", "other/stories.txt", "data/no-such.txt"):
        with refuses("file_not_found"):
            find_files(name)
    own = Path("data/stories.txt")
    own.parent.mkdir()
    own.write_text("mine")
    assert find_files("data/stories.txt") == [own]


def test_the_entropy_of_a_text_is_known_by_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = json.loads((BUNDLED / bundled.ENTROPY_FILE).read_text("utf-8"))
    one, two = (known[hashlib.sha256(path.read_bytes()).hexdigest()] for path in (VALID, TRAIN))
    copy = tmp_path / "renamed.txt"
    copy.write_bytes(VALID.read_bytes())
    assert bundled.known_entropy_bits_per_byte([copy]) == bundled.known_entropy_bits_per_byte([VALID])
    assert bundled.known_entropy_bits_per_byte([VALID]) == pytest.approx(one["bits_per_byte"], abs=1e-6)
    both = (one["bits"] + two["bits"]) / (one["bytes"] + two["bytes"])
    assert bundled.known_entropy_bits_per_byte([VALID, TRAIN]) == pytest.approx(both)
    copy.write_bytes(VALID.read_bytes()[:-1] + b"!")
    for unknown in ([], [copy], [VALID, copy], [BUNDLED / "translation.tsv"], [BUNDLED / "reviews.csv"]):
        assert bundled.known_entropy_bits_per_byte(unknown) is None
    monkeypatch.setattr(bundled, "data_folder", lambda: tmp_path / "none")
    assert bundled.known_entropy_bits_per_byte([VALID]) is None
