"""Datasets by name, through the `datasets` library, from local folders: nothing is downloaded here."""

import json
import logging
import os
import sys
from pathlib import Path

import pytest

from lmtool.data.hub import download_dataset, import_hub, parse_dataset_name
from lmtool.data.prepare import tokenize_data
from lmtool.errors import DataError
from lmtool.recipe.spec.text import CharTokenizer, Data


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "stories"
    folder.mkdir()
    for split, n in ("train", 20), ("test", 3):
        rows = [{"id": i, "text": f"{split} story {i}\nwith é"} for i in range(n)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf:stories", ("stories", None, "train")),
        ("hf:org/stories:en@test", ("org/stories", "en", "test")),
        ("hf:stories@validation", ("stories", None, "validation")),
    ],
)
def test_names(source: str, expected: tuple[str, str | None, str]) -> None:
    assert parse_dataset_name(source) == expected


def test_a_dataset_is_a_corpus(folder: Path, tmp_path: Path) -> None:
    prepared = tokenize_data(
        Data(train=(f"hf:{folder}",), valid=(f"hf:{folder}@test",)),
        CharTokenizer(kind="char"),
        seed=1,
    )
    assert (prepared.train.n_documents, prepared.valid.n_documents) == (20, 3)
    assert (
        prepared.tokenizer.decode(prepared.train.read(*prepared.train.document_range(7)).tolist())
        == "train story 7\nwith é"
    )


def test_attempts_of_a_connection_are_not_told(folder: Path, tmp_path: Path) -> None:
    """What is wrong is said in three lines, by the error that follows."""
    logging.getLogger("huggingface_hub").setLevel(logging.WARNING)
    download_dataset(f"hf:{folder}", "text")
    assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING)


def test_a_dataset_is_streamed_once_but_a_changed_one_again(folder: Path, tmp_path: Path) -> None:
    first = download_dataset(f"hf:{folder}", "text")
    time = first.stat().st_mtime_ns
    assert download_dataset(f"hf:{folder}", "text") == first
    assert first.stat().st_mtime_ns == time
    with open(folder / "train.jsonl", "a", encoding="utf-8") as file:
        file.write('{"id": 20, "text": "new"}\n')
    second = download_dataset(f"hf:{folder}", "text")
    assert second != first
    assert len(second.read_text(encoding="utf-8").splitlines()) == 21


@pytest.mark.parametrize(
    ("suffix", "column", "message"),
    [
        ("", "txt", "no column 'txt'; found 'id', 'text'"),
        ("", "id", "int, not text"),
        ("@valid", "text", "cannot load"),
        (":other", "text", "cannot load"),
        ("x", "text", "cannot load"),
    ],
)
def test_what_a_dataset_does_not_have(suffix: str, column: str, message: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message) as caught:
        download_dataset(f"hf:{folder}{suffix}", column)
    assert len(caught.value.lines()) <= 3
    assert all(line.isprintable() for line in caught.value.lines())


def test_no_name() -> None:
    with pytest.raises(DataError, match="no dataset"):
        parse_dataset_name("hf:@train")


def test_the_files_of_the_hub_go_to_no_folder_named_like_a_missing_home(monkeypatch, tmp_path):
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HOME", "")
    for is_home, expected in ((True, None), (False, str(tmp_path / "huggingface"))):
        monkeypatch.delenv("HF_HOME", raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path, is_home=is_home: "/home/me" if is_home else path)
        assert import_hub() is sys.modules["huggingface_hub"]
        assert os.environ.get("HF_HOME") == expected
