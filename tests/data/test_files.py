"""What is suggested in place of a file that does not exist."""

from pathlib import Path

import pytest

from lmtool.data.files import find_files
from lmtool.data.table import open_table
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data

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
        ("bok.txt", "book.txt"),
        ("book", "book.txt"),
        ("BOOK.TXT", "book.txt"),
        ("letters.text", "Letters.txt"),
        ("poem.jsonl", "poems.jsonl.gz"),
        ("reviews.cvs", "reviews.csv"),
        ("tag.conll", "tags.conll"),
        ("novel.txt", "texts/novel.txt"),
        ("txts/novle.txt", "texts/novel.txt"),
        ("texts/novle.txt", "texts/novel.txt"),
        ("./nvel.txt", "texts/novel.txt"),
        ("text", "texts"),
        ("data/Stories.TXT", "data/stories.txt"),
        ("storeis.txt", "data/stories.txt or data/stories.valid.txt"),
    ],
)
def test_texts_nearby_are_suggested(folder: Path, typed: str, meant: str) -> None:
    with pytest.raises(DataError, match="does not exist") as refused:
        find_files(typed)
    assert refused.value.where == str(Path(typed))
    assert refused.value.fix == f"did you mean {meant}?"


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("xyz.txt", "check its name: `ls` lists what is here"),
        ("diary.txt", "check its name: `ls` lists what is here"),
        ("nowhere/xyz.txt", "there is no folder nowhere either"),
    ],
)
def test_nothing_unlike_is_suggested(folder: Path, typed: str, fix: str) -> None:
    with pytest.raises(DataError) as refused:
        find_files(typed)
    assert refused.value.fix == fix


def test_absolute_paths_stay_absolute(folder: Path) -> None:
    with pytest.raises(DataError) as refused:
        find_files(str(folder / "txts" / "novl.txt"))
    assert refused.value.fix == f"did you mean {folder / 'texts' / 'novel.txt'}?"


@pytest.mark.parametrize("read", [find_files, lambda name: open_table(name, Data())])
def test_of_a_user_who_does_not_exist_there_is_no_home(read, folder: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        read("~nobody-of-this-name/text.csv")
