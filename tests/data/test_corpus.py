"""Reading text of every format, and errors for text that cannot be read."""

import csv
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lmtool.data import corpus as corpus_module
from lmtool.data.corpus import Chunk, Corpus, open_corpus
from lmtool.data.files import READ_BYTES
from lmtool.errors import DataError, LmtoolError, ResourceError
from tests.data.texts import prose

TEXTS = ["First document.\n\nIts end", 'second, with "quotes" and é', "third\r\nlines"]


def documents(chunks: list[Chunk]) -> list[str]:
    found: list[str] = []
    is_open = False
    for chunk in chunks:
        assert chunk.starts != is_open
        for i, text in enumerate(chunk.texts):
            if i == 0 and is_open:
                found[-1] += text
            else:
                found.append(text)
        is_open = not chunk.ends
    assert not is_open
    return found


def read(*sources: Path | str, documents_are: str = "auto", column: str = "text", stream: bool = False) -> list[str]:
    corpus = open_corpus([str(s) for s in sources], column, documents_are)  # type: ignore[arg-type]
    if stream:
        corpus = Corpus(corpus.files, corpus.explicit_files, corpus.column, corpus.documents, stream=True)
    return documents(list(corpus.chunks()))


def write_jsonl(path: Path) -> None:
    path.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(TEXTS)), encoding="utf-8")


def write_csv(path: Path) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["id", "text"], *enumerate(TEXTS)])


def write_parquet(path: Path) -> None:
    pq.write_table(pa.table({"id": [0, 1, 2], "text": TEXTS}), path)


TABLES: dict[str, Callable[[Path], None]] = {".jsonl": write_jsonl, ".csv": write_csv, ".parquet": write_parquet}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("suffix", TABLES)
def test_tables_give_a_document_a_row(suffix: str, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / f"table{suffix}"
    TABLES[suffix](path)
    if packed:
        path = pack(path)
    assert read(path) == TEXTS
    assert read(path, stream=True) == [text + "\n" for text in TEXTS]


def pack(path: Path, ending: str = ".gz") -> Path:
    packed = path.with_name(path.name + ending)
    packed.write_bytes(PACKERS[ending](path.read_bytes()))
    path.unlink()
    return packed


def zstd(content: bytes) -> bytes:
    """Two frames of Zstandard, as files that were appended to each other have."""
    half = len(content) // 2
    return b"".join(pa.Codec("zstd").compress(part, asbytes=True) for part in (content[:half], content[half:]))


PACKERS = {".gz": gzip.compress, ".zst": zstd}


@pytest.mark.parametrize("suffix", TABLES)
def test_tables_are_read_from_zstd(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"table{suffix}"
    TABLES[suffix](path)
    assert read(pack(path, ".zst")) == TEXTS
    assert read(tmp_path) == TEXTS


def test_a_long_text_is_read_from_zstd(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    text = prose(20_000)
    path.write_text(text, encoding="utf-8")
    assert read(pack(path, ".zst")) == [text]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("documents_are", "expected"),
    [
        ("whole", ["one\ntwo\n\n \nthree\n"]),
        ("blank-line", ["one\ntwo", "three"]),
        ("line", ["one", "two", "three"]),
        ("auto", ["one\ntwo\n\n \nthree\n"]),
    ],
)
def test_text_divides_into_documents(documents_are: str, expected: list[str], packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n \nthree\n", encoding="utf-8")
    assert read(pack(path) if packed else path, documents_are=documents_are) == expected


def test_auto_splits_at_blank_lines_when_paragraphs_stand_on_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n\n\nthree\n", encoding="utf-8")
    assert read(tmp_path) == ["one", "two", "three"]
    (tmp_path / "b.txt").write_text("one line only\n", encoding="utf-8")
    assert len(read(tmp_path)) == 4
    assert read(tmp_path / "b.txt") == ["one line only\n"]
    (tmp_path / "c.txt").write_text("two\nlines\n", encoding="utf-8")
    assert len(read(tmp_path)) == 3


def test_line_ends_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\r\ntwo\r\n\r\nthree\r\n")
    assert read(path, documents_are="whole") == ["one\r\ntwo\r\n\r\nthree\r\n"]
    assert read(path, documents_are="line") == ["one", "two", "three"]
    assert read(path, documents_are="blank-line") == ["one\r\ntwo", "three"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_byte_order_mark_is_dropped(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text({"a.txt": "é", "a.jsonl": '{"text": "é"}', "a.csv": "text\né"}[name], encoding="utf-8-sig")
    assert read(path) == ["é"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_a_csv_may_have_another_delimiter(delimiter: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file, delimiter=delimiter).writerows([["id", "text"], *enumerate(TEXTS)])
    assert read(path) == TEXTS


def test_a_csv_of_one_column_has_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text\none; two; three\nfour;five\n", encoding="utf-8")
    assert read(tmp_path / "a.csv") == ["one; two; three", "four;five"]


@given(text=st.text(st.sampled_from("a \n\r\té"), max_size=60), block=st.integers(1, 9), chunk=st.integers(1, 9))
@example(text="aaaaaaa\r\n", block=1, chunk=1)
@settings(deadline=None)
@pytest.mark.parametrize("documents_are", ["whole", "line", "blank-line"])
def test_blocks_and_chunks_do_not_show(documents_are: str, text: str, block: int, chunk: int) -> None:
    blocks = [text[i : i + block] for i in range(0, len(text), block)]
    divide = {
        "whole": corpus_module._chunk_single_document,
        "line": lambda b: corpus_module._chunk_documents(b, corpus_module._split_lines),
        "blank-line": lambda b: corpus_module._chunk_documents(b, corpus_module._BLANK_LINES.split),
    }[documents_are]
    in_one = documents(list(divide(iter([text])))) if text else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpus_module, "CHUNK_CHARACTERS", chunk)
        assert documents(list(divide(iter(blocks)))) == in_one
        assert documents(list(corpus_module.merge_chunks(divide(iter(blocks))))) == in_one
    if documents_are == "whole":
        assert in_one == ([text] if text.strip() else [])
    if documents_are == "line":
        assert in_one == [t for line in text.split("\n") if (t := line.removesuffix("\r")).strip()]


def test_a_long_text_comes_in_chunks(tmp_path: Path) -> None:
    text = prose(60_000)
    assert len(text.encode()) > 2 * READ_BYTES
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    corpus = Corpus((path,), frozenset(), "text", "whole")
    chunks = list(corpus.chunks())
    assert len(chunks) > 2
    assert max(chunk.size for chunk in chunks) < 2 * corpus_module.CHUNK_CHARACTERS
    assert documents(chunks) == [text]


def test_a_long_row_comes_in_chunks(tmp_path: Path) -> None:
    text = prose(120_000)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": text}) + '\n{"text": "next"}\n', encoding="utf-8")
    chunks = list(Corpus((path,), frozenset(), "text", "whole").chunks())
    assert max(chunk.size for chunk in chunks) < 3 * corpus_module.CHUNK_CHARACTERS
    assert documents(chunks) == [text, "next"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
@pytest.mark.parametrize("documents_are", ["whole", "line", "blank-line"])
def test_a_text_without_any_space_comes_in_chunks(suffix: str, documents_are: Any, tmp_path: Path) -> None:
    text = "é" * 1_000_000
    path = tmp_path / f"a{suffix}"
    path.write_text(text if suffix == ".txt" else json.dumps({"text": text}), encoding="utf-8")
    chunks = list(Corpus((path,), frozenset(), "text", documents_are).chunks())
    assert max(chunk.size for chunk in chunks) < 4 * corpus_module.CHUNK_CHARACTERS
    assert documents(chunks) == [text]


def test_a_document_of_spaces_only_is_none_however_long(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": " " * 1_000_000}) + '\n{"text": "b"}', encoding="utf-8")
    assert read(tmp_path / "a.jsonl") == ["b"]


def test_empty_rows_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n\n{"text": ""}\n{"text": null}\n{"text": " \\n"}\n{"text": "b"}', encoding="utf-8")
    assert read(path) == ["a", "b"]


def test_lone_surrogates_in_json_become_replacement_characters(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a\\ud83d"}\n{"text": "\\ud83d\\ude00"}', encoding="utf-8")
    assert read(path) == ["a\ufffd", "😀"]


def test_folders_and_globs(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".hidden").mkdir(parents=True)
    for name in "b.txt", "a.txt", "sub/c.txt", "sub/.d.txt", "sub/.hidden/e.txt", "f.png", "g.md":
        (tmp_path / name).write_text(name, encoding="utf-8")
    assert read(tmp_path) == ["a.txt", "b.txt", "sub/c.txt"]
    assert read(tmp_path / "*.txt") == ["a.txt", "b.txt"]
    assert read(tmp_path / "**" / "*.txt") == ["a.txt", "b.txt", "sub/c.txt"]
    assert read(tmp_path / "g.md", tmp_path / "a.txt") == ["g.md", "a.txt"]


def test_a_file_whose_name_is_a_pattern_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("x", encoding="utf-8")
    assert read(tmp_path / "a[1].txt") == ["x"]


def test_an_empty_file_in_a_folder_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("", encoding="utf-8")
    (tmp_path / "b.txt").write_text("b", encoding="utf-8")
    assert read(tmp_path) == ["b"]


# Unreadable files: (file name, content, words of the message)
UNREADABLE = {
    "empty": ("a.txt", b"", ["no text", "a.txt"]),
    "blank": ("a.txt", b" \n\n", ["no text"]),
    "empty jsonl": ("a.jsonl", b"\n", ["no text"]),
    "empty csv": ("a.csv", b"", ["no text"]),
    "no rows": ("a.csv", b"text\n", ["no text"]),
    "binary": ("a.txt", b"abc\0def", ["binary", "offset 3"]),
    "utf-16": ("a.txt", "hello".encode("utf-16"), ["UTF-16", "iconv"]),
    "latin-1": ("a.txt", "caf\u00e9 au lait".encode("latin-1"), ["UTF-8", "0xe9", "offset 3"]),
    "latin-1 far": ("a.txt", b"x" * 300_000 + b"\xff", ["0xff", "offset 300000"]),
    "cut character": ("a.txt", "abcdé".encode()[:-1], ["UTF-8", "offset 4"]),
    "character over blocks": ("a.txt", b"x" * (READ_BYTES - 1) + b"\xc3(", ["0xc3", f"offset {READ_BYTES - 1}"]),
    "binary far": ("a.txt", "é".encode() * READ_BYTES + b"\0", [f"offset {2 * READ_BYTES}"]),
    "broken json": ("a.jsonl", b'{"text": "a"}\n{"text": \n', ["not JSON", "a.jsonl:2"]),
    "json list": ("a.jsonl", b'["a"]\n', ["JSON object", "a.jsonl:1"]),
    "deep json": ("a.jsonl", b"[" * 100_000, ["not JSON", "a.jsonl:1"]),
    "no column": ("a.jsonl", b'{"texts": "a", "label": 1}\n', ["no column 'text'", "texts", "label", "--column texts"]),
    "no csv column": ("a.csv", b"sentence,label\na,1\n", ["no column", "'sentence', 'label'"]),
    "number": ("a.jsonl", b'{"text": 3}\n', ["int", "a.jsonl:1"]),
    "ragged csv": ("a.csv", b"text,label\na,1\nb,2,3\n", ["3 fields", "2", "a.csv:3"]),
    "open quote": ("a.csv", b'text\n"abc\n', ["a quote opens here and is never closed", "a.csv:2"]),
    "no parquet": ("a.parquet", b"PAR1 is not all", ["not a Parquet file"]),
    "no gzip": ("a.txt.gz", b"plain", ["gzip", "a.txt.gz"]),
    "cut gzip": ("a.txt.gz", gzip.compress(prose(500).encode())[:-20], ["gzip"]),
    "latin-1 in gzip": ("a.txt.gz", gzip.compress(b"abc\xe9 "), ["offset 3"]),
    "no zstd": ("a.txt.zst", b"plain", ["the zstd file is damaged", "a.txt.zst"]),
    "cut zstd": ("a.txt.zst", zstd(prose(500).encode())[:-20], ["the zstd file is damaged"]),
    "latin-1 in zstd": ("a.txt.zst", zstd(b"abc\xe9 "), ["offset 3"]),
    "zstd as text": ("a.txt", zstd(b"abc"), ["zstd, not text", "a.txt", ".zst"]),
    "gzip as text": ("a.txt", gzip.compress(b"abc"), ["gzip, not text", "a.txt", ".gz"]),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_unreadable_text_is_explained(case: str, tmp_path: Path) -> None:
    name, content, words = UNREADABLE[case]
    path = tmp_path / name
    path.write_bytes(content)
    error = refused(path, DataError)
    for word in words:
        assert word in str(error)


def refused(path: Path | str, kind: type[LmtoolError]) -> LmtoolError:
    with pytest.raises(kind) as caught:
        read(path)
    lines = caught.value.lines()
    assert len(lines) <= 3
    assert all(line.isprintable() and len(line) < 500 for line in lines)
    assert str(path)[:20] in str(caught.value)
    return caught.value


def test_missing_files_suggest_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "shakespeare.txt").write_text("x", encoding="utf-8")
    assert f"did you mean {tmp_path / 'shakespeare.txt'}?" in str(refused(tmp_path / "shakspeare.txt", DataError))
    assert "does not exist" in str(refused(tmp_path / "none" / "a.txt", DataError))


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "save it to a file" in str(refused(tmp_path / "pipe", DataError))


def test_folders_and_globs_without_text(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"x")
    assert "no text files" in str(refused(tmp_path, DataError))
    assert "no file matches" in str(refused(str(tmp_path / "*.txt"), DataError))


def test_no_column_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"content": ["a"], "n": [1]}), path)
    assert "'content', 'n'" in str(refused(path, DataError))
    with pytest.raises(DataError, match="int, not text"):
        read(path, column="n")


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [prose(200, seed) for seed in range(50)]}), path)
    content = path.read_bytes()
    for damaged in content[: len(content) // 2], content[:200] + bytes(1000) + content[1200:]:
        path.write_bytes(damaged)
        assert "not a Parquet file" in str(refused(path, DataError))


def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("x", encoding="utf-8")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(
        "lmtool.data.files.open_decompressed", refuse
    )  # tests may run as root, whom chmod does not stop
    assert "permission" in str(refused(path, ResourceError))


def test_names_are_shown_without_control_characters(tmp_path: Path) -> None:
    refused(tmp_path / "a\x1b[31m\nb.txt", DataError)
    path = tmp_path / "a\x1b[31m\n.jsonl"
    path.write_text('{"\\u001b[31m\\n": "a"}', encoding="utf-8")
    refused(path, DataError)
