"""The units, the order and the blocks of a text that is streamed."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmtool.data import files, streaming
from lmtool.data.corpus import Corpus, DocumentDivision, MultiDocumentChunk, open_corpus
from lmtool.data.split import DocumentSplitPart
from lmtool.data.streaming import BlockPosition, StreamedText, StreamedTextBlock
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data
from tests.support.tables import PACKERS, json_lines
from tests.support.texts import documents


def streamed(*sources: object, seed: int = 1, **data: Any) -> StreamedText:
    return StreamedText(Data(train=tuple(map(str, sources)), stream=True, **data), seed)


def documents_of_units(text: StreamedText) -> list[str]:
    return documents(chunk for unit in range(text.n_units) for chunk in text.read_unit_chunks(unit))


def blocks(
    text: StreamedText, place: BlockPosition, n_turns: int, *split: DocumentSplitPart
) -> Iterator[list[MultiDocumentChunk]]:
    """The chunks of each block of these turns, from a place on."""
    while place.turn < n_turns:
        block = StreamedTextBlock(text, place, *split)
        yield list(block.read_chunks_and_record_end())
        place = block.end


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents in all formats, packed and not."""
    folder = tmp_path / "texts"
    folder.mkdir()
    rng = random.Random(1)
    for number, name in enumerate(["a.txt", "b.jsonl", "c.csv", "d.jsonl.gz", "e.jsonl.zst", "f.txt.zst", "g.txt"]):
        lines = [f"{number}-{i} " + "é" * rng.randint(0, 60) for i in range(40)]
        body = "\n\n".join(lines) + "\n"
        if "json" in name:
            body = json_lines(lines).decode()
        if "csv" in name:
            body = "\n".join(["text", *lines]) + "\n"
        pack = next(pack for ending, pack in reversed(PACKERS.items()) if name.endswith(ending))
        (folder / name).write_bytes(pack(body.encode()))
    for name in ("empty.txt", "empty.jsonl"):
        (folder / name).touch()
    (folder / "blank.txt").write_text("\n \n\n" * 40)
    return folder


@pytest.mark.parametrize("unit", [1, 50, 1 << 20])
def test_the_units_of_a_stream_have_all_documents_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch, unit: int
) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", unit)
    text = streamed(folder)
    assert documents_of_units(text) == documents(open_corpus([str(folder)], "text", "blank-line").chunks())
    assert text.head.documents == "blank-line"


@given(text=st.text(st.sampled_from("ab \n\r\té"), max_size=60), unit=st.integers(1, 20), block=st.integers(1, 9))
@example(text="a\n\n\nb\r\n\r\nc\n \nd\n\n", unit=1, block=1)
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("division", ["line", "blank-line"])
def test_units_end_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, division: DocumentDivision, text: str, unit: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "UNIT_BYTES", unit)
        patch.setattr(files, "READ_BYTES", block + 3)
        whole = Corpus((path,), frozenset(), "text", division)
        assert documents_of_units(streamed(path.parent, documents=division)) == documents(whole.chunks())


def test_a_document_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_DOCUMENT_SEARCH_BYTES", 1000)
    monkeypatch.setattr(files, "READ_BYTES", 100)
    monkeypatch.setattr(streaming, "UNIT_BYTES", 100)
    (tmp_path / "a.txt").write_text("a\n\nb\n\n" + "long " * 1000 + "\n\nc\n")
    with pytest.raises(DataError):
        documents_of_units(streamed(tmp_path, documents="blank-line"))


def test_each_turn_has_all_documents_in_an_order_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", 50)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 300)
    text = streamed(folder)
    content = text.record_head_end_and_hash_text()
    assert 0 < text.head_fraction < 1
    both = [documents(chunks) for chunks in blocks(text, BlockPosition(), 2)]
    assert max(sum(map(len, block)) for block in both) < 300 + 5000  # of packed files chunks are long here
    order = [document for block in both for document in block]
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    assert first != second
    assert sorted(first) == sorted(second) == sorted(documents_of_units(text))
    assert streamed(folder).record_head_end_and_hash_text() == content
    assert streamed(folder, seed=2).record_head_end_and_hash_text() != content


def test_a_long_document_is_cut_into_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 300_000)
    long = "word " * 400_000
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(long)
    text = streamed(tmp_path, documents="whole")
    text.record_head_end_and_hash_text()
    found = list(blocks(text, BlockPosition(), 1))
    assert all(sum(chunk.size for chunk in chunks) < 1_000_000 and chunks[-1].ends for chunks in found)
    assert "".join(part for chunks in found for chunk in chunks for part in chunk.texts) == 2 * long
    assert len(found) > 6


def test_validation_documents_come_in_no_turn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", 200)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 3000)
    text = streamed(folder)
    text.record_head_end_and_hash_text()
    train, valid = (DocumentSplitPart(5, 1 << 62, valid=valid) for valid in (False, True))
    held_out = documents(valid.select(text.head.chunks()))
    assert len(held_out) > 3
    seen = documents(train.select(text.head.chunks()))
    for chunks in blocks(text, text.head_end, 2, train):
        seen += documents(chunks)
    assert set(held_out).isdisjoint(seen)
    left_out = set(documents_of_units(text)) - set(seen)
    # of a file that is read as a whole, later documents may be left out too
    assert set(held_out) <= left_out
    assert len(left_out) < 2 * len(held_out) + 20


def test_a_dataset_is_read_in_shards(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        (folder / f"train-{number}.jsonl").write_bytes(json_lines([f"{number}-{i}" for i in range(4)]))
    (tmp_path / "a.txt").write_text("a text")
    text = streamed(tmp_path / "a.txt", f"hf:{folder}", documents="whole")
    assert text.n_units == 4
    assert documents_of_units(text) == ["a text", *(f"{number}-{i}" for number in range(3) for i in range(4))]
    assert text.n_bytes == 6 + sum(path.stat().st_size for path in folder.iterdir())
    before = streamed(f"hf:{folder}").record_head_end_and_hash_text()
    with open(folder / "train-2.jsonl", "a") as file:
        file.write('{"id": 4, "text": "new"}\n')
    assert streamed(f"hf:{folder}").record_head_end_and_hash_text() != before
    with pytest.raises(DataError):
        documents_of_units(streamed(f"hf:{folder}", column="body"))
