"""Files of rows in every format, made from the cells of one column."""

import csv
import gzip
import io
import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq


def delimited(cells: list[str], delimiter: str = ",", end: str = "\n", encoding: str = "utf-8") -> bytes:
    """Lines of an id and a text, below a header."""
    buffer = io.StringIO(newline="")
    csv.writer(buffer, delimiter=delimiter, lineterminator=end).writerows([["id", "text"], *enumerate(cells)])
    return buffer.getvalue().encode(encoding)


def json_lines(cells: list[str]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": cell}).encode() + b"\n" for i, cell in enumerate(cells))


def json_list(cells: list[str], indent: int | None = None) -> bytes:
    return json.dumps([{"id": i, "text": cell} for i, cell in enumerate(cells)], indent=indent).encode()


def parquet(cells: list[str]) -> bytes:
    return parquet_of({"id": list(range(len(cells))), "text": cells})


def parquet_of(columns: dict[str, object]) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def zstd(content: bytes) -> bytes:
    """Two frames of Zstandard, as files that were appended to each other have."""
    half = len(content) // 2
    return b"".join(pa.Codec("zstd").compress(part, asbytes=True) for part in (content[:half], content[half:]))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".zst": zstd}
"""What compresses a file, by the ending of its name."""

FORMATS: dict[str, Callable[[list[str]], bytes]] = {
    ".csv": delimited,
    ".jsonl": json_lines,
    ".json": json_list,
    ".parquet": parquet,
}
"""What writes the cells of a column `text`, by the ending of the file's name."""
