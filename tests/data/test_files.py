"""Files that are suggested in place of one that does not exist."""

from pathlib import Path

import pytest

from lmtool.data.files import find_files
from lmtool.data.table import open_table
from tests.support.errors import refuses

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
        ("poem.jsonl", "poems.jsonl.gz"),
        ("reviews.cvs", "reviews.csv"),
        ("novel.txt", "texts/novel.txt"),
        ("txts/novle.txt", "texts/novel.txt"),
        ("./nvel.txt", "texts/novel.txt"),
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
