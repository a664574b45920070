"""Finding and reading files of text: paths, folders and globs; plain, gzip or zstd, in bounded memory."""

import codecs
import glob
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from lmtool.data import bundled
from lmtool.errors import DataError, LmtoolError, ResourceError, UsageError
from lmtool.recipe.grammar import either

SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
"""Formats that are searched for in folders; each may be followed by one of PACKED."""

PACKED = (".gz", ".zst")
"""Endings of compressed files: gzip, and Zstandard (RFC 8878)."""

TABLES = (".tsv", ".conll", ".json")
"""Formats of files that are tables only, but for .json: see `is_json_list`."""

FORMATS = (*SUFFIXES, *TABLES, *PACKED)

BLOCK = 1 << 17
"""Bytes read at once."""

MOST_NEARBY = 10_000
"""Entries of folders among which a file of a similar name is looked for."""

LONGEST_SEARCH = 1 << 26
"""Bytes in which the end of a document is looked for."""

LONGEST_LINE = 1 << 26
"""Characters that no line may have."""

_UNSEEN = b" \t\r\n\0" + codecs.BOM_UTF8 + codecs.BOM_UTF16
"""White space, the bytes of byte order marks, and the zeros of UTF-16."""

_LINE_END = re.compile(rb"\n")
_BLANK_LINE = re.compile(rb"(?<=\n)\r?\n")


class Extent(NamedTuple):
    """The bytes begin..end of a file, which begin and end where documents do."""

    begin: int
    end: int


def shown(text: str, limit: int = 60) -> str:
    """Text from outside, quoted, its control characters escaped, at most about `limit` characters long."""
    return repr(text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}")


def shown_all(names: Sequence[str], most: int = 8) -> str:
    """Names from outside, each as `shown`; of more than `most` the first ones, and how many there are besides."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(shown(name, 40) for name in names[:most]) + more


def display(path: Path) -> str:
    """A path as shown in messages."""
    return str(path) if str(path).isprintable() else shown(str(path), 200)


def packing(path: Path) -> str:
    """The ending of a compressed file; empty for others."""
    return next((ending for ending in PACKED if path.name.lower().endswith(ending)), "")


def unpacked_name(path: Path) -> str:
    """A file's name in lower case, without the ending of a compressed file."""
    return path.name.lower().removesuffix(packing(path))


def suffix(path: Path) -> str:
    """The format inferred from a file's name without an ending of PACKED; .txt by default.

    That of a .json file is .json where it has a list of objects, and .jsonl where it has an object on each line; other
    JSON is text like any other.
    """
    name = unpacked_name(path)
    if name.endswith(".json"):
        return ".json" if is_json_list(path) else ".jsonl" if is_json_lines(path) else ".txt"
    return next((s for s in SUFFIXES[1:] if name.endswith(s)), ".txt")


def is_json_list(path: Path) -> bool:
    """Whether a file begins as a list of JSON objects does, or an empty one, in UTF-8 or UTF-16."""
    if not path.is_file():
        return False
    with reading(path), open_bytes(path) as file:
        head = file.read(BLOCK)
    return head.translate(None, _UNSEEN)[:2] in (b"[{", b"[]")


def is_json_lines(path: Path) -> bool:
    """Whether the first line of a file is a JSON object, and the second one begins like one, in UTF-8."""
    if not path.is_file():
        return False
    with reading(path), open_bytes(path) as file:
        lines = file.read(BLOCK).decode("utf-8-sig", errors="replace").split("\n")
    first, second = [*filter(None, map(str.strip, lines)), "", ""][:2]
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(first), dict) and second.startswith("{")
    return False


def find_files(source: str) -> list[Path]:
    """The files that a path, a folder or a glob refers to, sorted by name.

    Folders are searched recursively for the known formats; hidden files are skipped. Where there is no data/NAME, it
    refers to the bundled text of that name.
    Raises DataError when nothing is found, ResourceError without permission to read it.
    """
    path = Path(os.path.expanduser(source))  # that of Path raises for unknown users
    with reading(path):
        if path.is_dir():
            files = [
                Path(folder, name)
                for folder, _, names in os.walk(path, onerror=_raise)
                for name in names
                if unpacked_name(Path(name)).endswith(SUFFIXES)
            ]
            files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
            if not files:
                fix = f"put {', '.join(SUFFIXES)} files (or .gz or .zst of these) into it, or name files"
                raise DataError("the folder holds no text files", where=shown(source), fix=fix)
            return sorted(files)
        if path.is_file():
            return [path]
        if path.exists():
            what, fix = "not a file: text is read more than once", "save it to a file first"
            raise DataError(what, where=display(path), fix=fix)
    if glob.has_magic(source):
        files = sorted(Path(f) for f in glob.glob(str(path), recursive=True) if os.path.isfile(f))
        if files:
            return files
        raise DataError("no file matches the pattern", where=shown(source), fix="check it with `ls`, and quote it")
    if known := bundled.find(path):
        return [known]
    raise _missing(path)


def _raise(error: OSError) -> None:
    raise error


def nearby(path: Path) -> list[Path]:
    """The texts and tables that a missing path may mean, the likeliest first, at most three.

    Their names are similar, whatever the case and the ending. They are in its folder, or else in those inside it, in
    folders of similar names where there is no such folder, or among the bundled ones.
    """
    base = next(parent for parent in path.parents if os.path.isdir(parent))
    beside = list(islice(_visible(base), MOST_NEARBY))
    folders = [entry for entry in beside if os.path.isdir(entry)]
    if base != path.parent:
        beside, folders = [], _alike(Path(path.relative_to(base).parts[0]), folders)
    inside = (file for folder in folders for file in _visible(folder) if not os.path.isdir(file))
    shipped = [] if path.is_absolute() else [Path("data", file.name) for file in _visible(bundled.folder())]
    known = (*SUFFIXES, *TABLES, *filter(None, [path.suffix.lower()]))
    levels = (
        _alike(path, (entry for entry in level if unpacked_name(entry).endswith(known) or os.path.isdir(entry)))
        for level in (beside, islice(inside, MOST_NEARBY), shipped)
    )
    return next(filter(None, levels), [])[:3]


def _visible(folder: Path) -> Iterator[Path]:
    """The entries of a folder that are not hidden, in order; nothing where it cannot be read."""
    with suppress(OSError):
        yield from sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _alike(path: Path, others: Iterable[Path]) -> list[Path]:
    """The paths whose names are similar to that of `path`, the most similar first."""
    by_stem: dict[str, list[Path]] = {}
    for other in others:
        by_stem.setdefault(Path(unpacked_name(other)).stem, []).append(other)
    stem = Path(unpacked_name(path)).stem
    stems = [stem] if stem in by_stem else get_close_matches(stem, by_stem, n=3, cutoff=0.6)
    return [other for stem in stems for other in by_stem[stem]]


def _missing(path: Path) -> DataError:
    here = "here" if path.parent == Path() else f"in {path.parent}"
    fix = f"check its name: `ls` lists what is {here}"
    if not os.path.isdir(path.parent):
        fix = f"there is no folder {path.parent} either"
    if near := nearby(path):
        fix = f"did you mean {either([display(other) for other in near])}?"
    return DataError("the file does not exist", where=display(path), fix=fix, code="file_not_found")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the operating system, gzip or zstd in reading `path` into a DataError or ResourceError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: Exception) -> LmtoolError:
    where, again = display(path), "copy or compress it again"
    match error:
        case FileNotFoundError():
            return _missing(path)
        case IsADirectoryError():
            return DataError("a folder, not a file", where=where, fix="name a file in it")
        case gzip.BadGzipFile() | EOFError() | zlib.error():
            return DataError(f"the gzip file is damaged: {error}", where=where, fix=again)
        case PermissionError():
            return ResourceError("no permission to read it", where=where, fix="change its permissions, or copy it")
        case OSError(errno=None) if packing(path) == ".zst":  # of the decompressor, not of the system
            return DataError(f"the zstd file is damaged: {error}", where=where, fix=again)
    return ResourceError(f"cannot read it: {getattr(error, 'strerror', None) or error}", where=where)


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, decompressed if it ends in .gz or .zst."""
    match packing(path):
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".zst":
            import pyarrow

            return cast(IO[bytes], pyarrow.CompressedInputStream(str(path), "zstd"))
    return open(path, "rb")


_OF_NAMES = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape"})
"""Python's encodings of host names and string literals, which no text file has."""


def infer_encoding(path: Path, usual: str | None = None) -> str:
    """UTF-16 where a file begins with its byte order mark; UTF-8; or `usual`, where not all of it is valid UTF-8."""
    with reading(path), open_bytes(path) as file:
        data = file.read(BLOCK)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "UTF-16"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while usual is not None and decoder.decode(data, not data) is not None and data:
                data = file.read(BLOCK)
        except UnicodeDecodeError:
            return usual or "UTF-8"
    return "UTF-8"


def next_document(path: Path, offset: int, size: int, *, blank_lines: bool) -> int:
    """The first position from `offset` on that follows a line end, or with `blank_lines` a blank line; at most `size`.

    Raises DataError when there is none within LONGEST_SEARCH bytes.
    """
    if offset <= 0 or offset >= size:
        return max(0, min(offset, size))
    pattern, kept = (_BLANK_LINE, 3) if blank_lines else (_LINE_END, 1)
    with reading(path), open(path, "rb") as file:
        at = max(0, offset - kept)
        file.seek(at)
        held = b""
        while data := file.read(BLOCK):
            text = held + data
            for match in pattern.finditer(text):
                if at + match.end() >= offset:
                    return at + match.end()
            held = text[-kept:]
            at += len(text) - len(held)
            if at > offset + LONGEST_SEARCH:
                what = f"no document ends within {LONGEST_SEARCH:,} bytes of offset {offset:,}"
                fix = "set data.documents=line, break its lines, or set data.stream=false"
                raise DataError(what, where=display(path), fix=fix)
    return size


def lines_before(path: Path, offset: int) -> int:
    """How many lines end in the first `offset` bytes of a file that is not packed."""
    return sum(data.count(b"\n") for data in _first_bytes(path, offset))


def _first_bytes(path: Path, size: int) -> Iterator[bytes]:
    """The first bytes of a file, decompressed, block by block."""
    with reading(path), open_bytes(path) as file:
        while data := file.read(min(BLOCK, size)):
            size -= len(data)
            yield data


def text_blocks(path: Path, encoding: str | None = None, extent: Extent | None = None) -> Iterator[str]:
    """The text of a file, or of an extent of an unpacked one, block by block, without a byte order mark.

    `encoding` is the value of --encoding. Without it the text is UTF-8, and a NUL byte indicates a binary file.
    Raises DataError, with line and byte offset (in the decompressed text, if packed), for bytes that are not text; and
    UsageError when there is no such encoding.
    """
    try:
        "a".encode(encoding or "utf-8")  # Encodings of bytes, such as base64, fail here.
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
        if codecs.lookup(encoding or "utf-8").name in _OF_NAMES:
            raise LookupError
    except (LookupError, UnicodeError):
        fix = "for example --encoding cp1252, utf-16 or gb18030"
        raise UsageError(f"there is no encoding {shown(encoding or '')}", fix=fix) from None
    offset, end = extent or (0, None)
    first = offset == 0
    with reading(path), open_bytes(path) as file:
        if offset:
            file.seek(offset)
        while True:
            data = file.read(BLOCK if end is None else min(BLOCK, end - offset))
            if offset == 0:
                _refuse_other_formats(data, path, encoding)
            if encoding is None and (at := data.find(b"\0")) >= 0:
                what = f"a binary file, not text: NUL byte at offset {offset + at}"
                raise DataError(what, where=display(path), fix="name a text file, or extract the text first")
            offset += len(data)
            try:
                text = decoder.decode(data, not data)
            except UnicodeError as error:
                raise _not_text(error, offset, path, encoding) from None
            if first:
                text = text.removeprefix("\ufeff")
            first = first and not text
            if text:
                yield text
            if not data:
                return


def _refuse_other_formats(head: bytes, path: Path, encoding: str | None) -> None:
    if head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        raise DataError("a workbook or archive, not text", where=display(path), fix="save the sheet as CSV (UTF-8)")
    if head.startswith(b"\x1f\x8b"):
        raise DataError("gzip, not text", where=display(path), fix="decompress it, or rename it to end in .gz")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        raise DataError("zstd, not text", where=display(path), fix="decompress it, or rename it to end in .zst")
    is_utf8 = codecs.lookup(encoding or "utf-8").name == "utf-8"
    if is_utf8 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        fix = "omit --encoding" if encoding else "convert it: `iconv -f utf-16 -t utf-8`"
        raise DataError("the text is UTF-16, not UTF-8", where=display(path), fix=fix)


def _not_text(error: UnicodeError, offset: int, path: Path, encoding: str | None) -> DataError:
    """The error for bytes before `offset`. Their line is counted only here: counting takes longer than decoding."""
    fix = "convert the file, for example with `iconv -f latin1 -t utf-8`, if that is what it is"
    fix = "give its encoding, for example --encoding cp1252 or utf-16-le" if encoding else fix
    if not isinstance(error, UnicodeDecodeError):  # UTF-16 and UTF-32 without a byte order mark
        return DataError(f"not valid {encoding}: {error}", where=display(path), fix=fix)
    offset += error.start - len(error.object)
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")("ignore")
    line = 1 + sum(decoder.decode(before).count("\n") for before in _first_bytes(path, offset))
    byte = f"byte 0x{error.object[error.start]:02x}" if error.start < len(error.object) else "the end"
    what = f"not valid {encoding or 'UTF-8'}: {byte} at offset {offset}"
    return DataError(what, where=f"{display(path)}:{line}", fix=fix)


def text_stretches(path: Path, encoding: str | None, line_limit: int, extent: Extent | None = None) -> Iterator[str]:
    """The text of a file, or of an extent of it, in blocks of whole lines, which end with CR LF, LF or CR.

    A line of `line_limit` characters or more may be truncated to that length, and is not kept in memory. Raises as
    `text_blocks` does.
    """
    held: list[str] = []
    size, cut, half = 0, False, ""
    for block in text_blocks(path, encoding, extent):
        text = half + block
        half = "\r" if text.endswith("\r") else ""  # LF may follow.
        text = text.removesuffix(half)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if end:
            start = line_end(text, 0) if cut else 0
            if start < end:
                yield "".join([*held, text[start:end]])
            held, size, cut = [], 0, False
        if not cut:
            held.append(text[end:])
            size += len(text) - end
            cut = size >= line_limit
            if cut:
                yield "".join(held)[:line_limit] + "\n"
    if not cut and (last := "".join([*held, half])):
        yield last


def text_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """The lines of a text that are not blank, without their ends; the longest are truncated.

    Raises as `text_blocks` does.
    """
    for text in text_stretches(path, encoding, LONGEST_LINE):
        yield from (line.rstrip("\r\n") for line in split_lines(text) if line.strip())


def split_lines(text: str) -> io.StringIO:
    """The lines of `text` in order, with their line ends."""
    return io.StringIO(text, newline="")


def line_end(text: str, position: int) -> int:
    """Where the line after that of `position` begins."""
    end = text.find("\n", position) + 1 or len(text)
    cr = text.find("\r", position, end) + 1
    return cr if cr and not text.startswith("\n", cr) else end


def count_lines(text: str, start: int = 0, stop: int | None = None) -> int:
    """How many lines end in this part of `text`."""
    n_lines = text.count("\n", start, stop)
    if text.find("\r", start, stop) >= 0:
        n_lines += text.count("\r", start, stop) - text.count("\r\n", start, stop)
    return n_lines


def content_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of files in order. Formats count, names do not."""
    total = hashlib.sha256()
    for path in paths:
        with reading(path), open(path, "rb") as file:
            packed = packing(path)
            total.update(f"{suffix(path)} {packed if packed == '.zst' else packed == '.gz'} ".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
