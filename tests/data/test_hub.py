"""Datasets by name, through the `datasets` library, from local folders: nothing is downloaded here."""

import json
import logging
import os
import sys
from pathlib import Path

import pytest

from lmtool.data.hub import download_dataset, import_hub_even_without_home, parse_dataset_name
from lmtool.data.prepare import tokenize_data
from lmtool.recipe.spec.text import CharTokenizer, Data
from tests.support.errors import refuses


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "stories"
    folder.mkdir()
    for split, n in ("train", 20), ("test", 3):
        rows = [{"id": i, "text": f"{split} story {i}\nwith é"} for i in range(n)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder


def test_a_name_has_a_configuration_and_a_split() -> None:
    assert parse_dataset_name("hf:stories") == ("stories", None, "train")
    assert parse_dataset_name("hf:org/stories:en@test") == ("org/stories", "en", "test")
    assert parse_dataset_name("hf:stories@validation") == ("stories", None, "validation")
    with refuses("data"):
        parse_dataset_name("hf:@train")


def test_a_dataset_is_a_corpus(folder: Path) -> None:
    logging.getLogger("huggingface_hub").setLevel(logging.WARNING)
    data = Data(train=(f"hf:{folder}",), valid=(f"hf:{folder}@test",))
    prepared = tokenize_data(data, CharTokenizer(kind="char"), seed=1)
    assert (prepared.train.n_documents, prepared.valid.n_documents) == (20, 3)
    seventh = prepared.train.read(*prepared.train.document_range(7)).tolist()
    assert prepared.tokenizer.decode(seventh) == "train story 7\nwith é"
    # attempts of a connection are not logged: the error that follows says it
    assert not logging.getLogger("huggingface_hub.utils._http").isEnabledFor(logging.WARNING)


def test_a_dataset_is_streamed_once_but_a_changed_one_again(folder: Path) -> None:
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
    ("suffix", "column"), [("", "txt"), ("", "id"), ("@valid", "text"), (":other", "text"), ("x", "text")]
)
def test_what_a_dataset_does_not_have_is_refused(suffix: str, column: str, folder: Path) -> None:
    with refuses("data") as caught:
        download_dataset(f"hf:{folder}{suffix}", column)
    assert len(caught.value.lines()) <= 3
    assert all(line.isprintable() for line in caught.value.lines())


@pytest.mark.parametrize(("home", "is_moved"), [("/home/me", False), ("~", True)])
def test_without_a_home_the_files_of_the_hub_are_in_the_cache(
    home: str, is_moved: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HOME", "")
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path.replace("~", home))
    assert import_hub_even_without_home() is sys.modules["huggingface_hub"]
    assert os.environ.get("HF_HOME") == (str(tmp_path / "huggingface") if is_moved else None)
