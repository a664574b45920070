"""The units, the order and the blocks of a text that is streamed."""

import gzip
import json
import random
from pathlib import Path

import pyarrow
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmtool.data import files, streaming
from lmtool.data.corpus import Chunk, Corpus, DocumentDivision, open_corpus
from lmtool.data.split import DocumentSplit
from lmtool.data.streaming import BlockPosition, StreamBlock, StreamedText
from lmtool.errors import DataError
from lmtool.recipe.spec.text import Data


def joined(chunks: list[Chunk]) -> list[str]:
    """The documents of chunks."""
    found: list[str] = []
    for chunk in chunks:
        texts = list(chunk.texts)
        if not chunk.starts:
            found[-1] += texts.pop(0)
        found += texts
    return found


def of_units(text: StreamedText) -> list[str]:
    return joined([chunk for unit in range(text.n_units) for chunk in text.chunks(unit)])


def written(folder: Path) -> Path:
    """DocumentSplit in all formats, packed and not."""
    folder.mkdir()
    rng = random.Random(1)
    for number, name in enumerate(["a.txt", "b.jsonl", "c.csv", "d.jsonl.gz", "e.jsonl.zst", "f.txt.zst", "g.txt"]):
        lines = [f"{number}-{i} " + "é" * rng.randint(0, 60) for i in range(40)]
        body = "\n\n".join(lines) + "\n"
        if "json" in name:
            body = "".join(json.dumps({"text": line}, ensure_ascii=False) + "\n" for line in lines)
        if "csv" in name:
            body = "\n".join(["text", *lines]) + "\n"
        content = body.encode()
        if name.endswith(".gz"):
            content = gzip.compress(content)
        if name.endswith(".zst"):
            content = pyarrow.Codec("zstd").compress(content, asbytes=True)
        (folder / name).write_bytes(content)
    for name in ("empty.txt", "empty.jsonl"):
        (folder / name).touch()
    (folder / "blank.txt").write_text("\n \n\n" * 40)
    return folder


@pytest.mark.parametrize("unit", [1, 7, 50, 1 << 20])
def test_units_are_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: int) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", unit)
    folder = written(tmp_path / "texts")
    corpus = open_corpus([str(folder)], column="text", documents="blank-line")
    text = StreamedText(Data(train=(str(folder),), stream=True), 1)
    assert of_units(text) == joined(list(corpus.chunks()))
    assert text.head.documents == "blank-line"


@given(text=st.text(st.sampled_from("ab \n\r\té"), max_size=60), unit=st.integers(1, 20), block=st.integers(1, 9))
@example(text="a\n\n\nb\r\n\r\nc\n \nd\n\n", unit=1, block=1)
@settings(deadline=None, max_examples=60)
@pytest.mark.parametrize("documents", ["line", "blank-line"])
def test_extents_end_where_documents_do(
    tmp_path_factory: pytest.TempPathFactory, documents: DocumentDivision, text: str, unit: int, block: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    corpus = Corpus((path,), frozenset(), "text", documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "UNIT_BYTES", unit)
        patch.setattr(files, "READ_BYTES", block + 3)
        data = Data.model_validate({"train": [str(path.parent)], "documents": documents, "stream": True})
        assert of_units(StreamedText(data, 1)) == joined(list(corpus.chunks()))


def test_a_document_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_DOCUMENT_SEARCH_BYTES", 1000)
    monkeypatch.setattr(files, "READ_BYTES", 100)
    monkeypatch.setattr(streaming, "UNIT_BYTES", 100)
    (tmp_path / "a.txt").write_text("a\n\nb\n\n" + "long " * 1000 + "\n\nc\n")
    text = StreamedText(Data(train=(str(tmp_path),), documents="blank-line", stream=True), 1)
    with pytest.raises(DataError, match="no document ends within 1,000 bytes"):
        of_units(text)


def test_a_turn_is_read_in_blocks_in_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", 50)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 300)
    folder = written(tmp_path / "texts")
    text = StreamedText(Data(train=(str(folder),), stream=True), 1)
    content = text.read_head_and_hash()
    assert 0 < text.head_fraction < 1
    orders, place, sizes = [], BlockPosition(), []
    for turn in range(2):
        order: list[str] = []
        while place.turn == turn:
            block = StreamBlock(text, place)
            chunks = list(block.chunks())
            assert chunks[0].starts
            assert chunks[-1].ends
            sizes.append(sum(chunk.size for chunk in chunks))
            order += joined(chunks)
            place = block.end
        orders.append(order)
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(of_units(text))
    assert max(sizes) < 300 + 5000  # a block ends with a chunk; those of packed files are long here
    assert StreamedText(Data(train=(str(folder),), stream=True), 1).read_head_and_hash() == content
    assert StreamedText(Data(train=(str(folder),), stream=True), 2).read_head_and_hash() != content


def test_a_long_document_is_cut_into_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 300_000)
    long = "word " * 400_000
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(long)
    text = StreamedText(Data(train=(str(tmp_path),), documents="whole", stream=True), 1)
    text.read_head_and_hash()
    place, found, n_blocks = BlockPosition(), "", 0
    while not place.turn:
        block = StreamBlock(text, place)
        chunks = list(block.chunks())
        assert sum(chunk.size for chunk in chunks) < 1_000_000
        assert chunks[-1].ends
        found += "".join(part for chunk in chunks for part in chunk.texts)
        place, n_blocks = block.end, n_blocks + 1
    assert found == 2 * long
    assert n_blocks > 6


def test_documents_of_the_head_are_held_out_in_every_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "UNIT_BYTES", 200)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 3000)
    folder = written(tmp_path / "texts")
    text = StreamedText(Data(train=(str(folder),), stream=True), 1)
    text.read_head_and_hash()
    train, valid = (DocumentSplit(5, 1 << 62, valid=valid) for valid in (False, True))
    held_out = joined(list(valid.select(text.head.chunks())))
    assert len(held_out) > 3
    place, seen = text.head_end, joined(list(train.select(text.head.chunks())))
    while place.turn < 2:
        block = StreamBlock(text, place, train)
        seen += joined(list(block.chunks()))
        place = block.end
    assert set(held_out).isdisjoint(seen)
    left_out = set(of_units(text)) - set(seen)
    # of a file that is read as a whole, later documents may be left out too
    assert set(held_out) <= left_out
    assert len(left_out) < 2 * len(held_out) + 20


def test_a_dataset_is_read_in_shards(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        rows = [json.dumps({"text": f"{number}-{i}"}) + "\n" for i in range(4)]
        (folder / f"train-{number}.jsonl").write_text("".join(rows))
    text = StreamedText(Data(train=(f"hf:{folder}",), stream=True), 1)
    assert text.n_units == 3
    assert of_units(text) == [f"{number}-{i}" for number in range(3) for i in range(4)]
    assert text.n_bytes == sum(path.stat().st_size for path in folder.iterdir())
    with pytest.raises(DataError, match="no column 'body'"):
        of_units(StreamedText(Data(train=(f"hf:{folder}",), column="body", stream=True), 1))
