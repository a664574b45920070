"""Finds and reads text files: paths, folders and globs; plain, gzip or zstd, in bounded memory."""

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
from lmtool.recipe.grammar import join_with_or

FOLDER_FORMATS = (".txt", ".jsonl", ".csv", ".parquet")
"""Formats that folders are searched for; each may be followed by one of COMPRESSED_SUFFIXES."""

COMPRESSED_SUFFIXES = (".gz", ".zst")
"""Endings of compressed files: gzip, and Zstandard (RFC 8878)."""

TABLE_FORMATS = (".tsv", ".conll", ".json")
"""Formats of files that are tables only, but for .json: see `is_json_list`."""

FORMATS = (*FOLDER_FORMATS, *TABLE_FORMATS, *COMPRESSED_SUFFIXES)

READ_BYTES = 1 << 17
"""Bytes read at once."""

_MAX_SUGGESTION_CANDIDATES = 10_000
"""Folder entries that are compared with the name of a missing file."""

MAX_QUOTED_NAMES = 8
"""Names that a message lists."""

MAX_DOCUMENT_SEARCH_BYTES = 1 << 26
"""Bytes that are searched for the end of a document."""

MAX_TEXT_LINE_CHARACTERS = 1 << 26
"""Limit of the length of a line."""

_BLANK_BYTES = b" \t\r\n\0" + codecs.BOM_UTF8 + codecs.BOM_UTF16
"""White space, the bytes of byte order marks, and the zeros of UTF-16."""

_LINE_END = re.compile(rb"\n")
_BLANK_LINE = re.compile(rb"(?<=\n)\r?\n")


class ByteRange(NamedTuple):
    """The bytes begin..end of a file, at the boundaries of documents."""

    begin: int
    end: int


def quote(text: str, limit: int = 60) -> str:
    """Quotes a text from outside for a message: escapes control characters, and shortens it to about `limit`."""
    return repr(text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}")


def quote_all(names: Sequence[str]) -> str:
    """Quotes names from outside for a message: at most MAX_QUOTED_NAMES of them, and the number of the others."""
    more = f" and {len(names) - MAX_QUOTED_NAMES:,} more" if len(names) > MAX_QUOTED_NAMES else ""
    return ", ".join(quote(name, 40) for name in names[:MAX_QUOTED_NAMES]) + more


def display_path(path: Path) -> str:
    """Formats a path for a message."""
    return str(path) if str(path).isprintable() else quote(str(path), 200)


def compression_suffix(path: Path) -> str:
    """Returns the suffix of a compressed file in lower case; empty for other files."""
    return next((ending for ending in COMPRESSED_SUFFIXES if path.name.lower().endswith(ending)), "")


def name_without_compression(path: Path) -> str:
    """Returns the name of a file in lower case without the suffix of compressed files."""
    return path.name.lower().removesuffix(compression_suffix(path))


def detect_format_suffix(path: Path) -> str:
    """Returns one of FOLDER_FORMATS or .json, inferred from the name without compression; .txt by default.

    A .json file has the format .json if it holds a list of objects, .jsonl if it has an object on each line, else .txt.
    """
    name = name_without_compression(path)
    if name.endswith(".json"):
        return ".json" if is_json_list(path) else ".jsonl" if is_json_lines(path) else ".txt"
    return next((s for s in FOLDER_FORMATS[1:] if name.endswith(s)), ".txt")


def is_json_list(path: Path) -> bool:
    """Returns whether a file begins like a list of JSON objects, or an empty list, in UTF-8 or UTF-16."""
    if not path.is_file():
        return False
    with convert_read_errors(path), open_decompressed(path) as file:
        head = file.read(READ_BYTES)
    return head.translate(None, _BLANK_BYTES)[:2] in (b"[{", b"[]")


def is_json_lines(path: Path) -> bool:
    """Returns whether the first line of a file is a JSON object and the second begins like one, in UTF-8."""
    if not path.is_file():
        return False
    with convert_read_errors(path), open_decompressed(path) as file:
        lines = file.read(READ_BYTES).decode("utf-8-sig", errors="replace").split("\n")
    first, second = [*filter(None, map(str.strip, lines)), "", ""][:2]
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(first), dict) and second.startswith("{")
    return False


def find_files(source: str) -> list[Path]:
    """Returns the files that a path, a folder or a glob refers to, sorted by name.

    Searches folders recursively for the known formats, and skips hidden files. If the path data/NAME does not exist, it
    refers to the bundled text of that name.
    Raises DataError when nothing is found, ResourceError without permission to read it.
    """
    path = Path(os.path.expanduser(source))  # that of Path raises for unknown users
    with convert_read_errors(path):
        if path.is_dir():
            files = [
                Path(folder, name)
                for folder, _, names in os.walk(path, onerror=_raise_error)
                for name in names
                if name_without_compression(Path(name)).endswith(FOLDER_FORMATS)
            ]
            files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
            if not files:
                fix = f"put {', '.join(FOLDER_FORMATS)} files (or .gz or .zst of these) into it, or name files"
                raise DataError("the folder holds no text files", where=quote(source), fix=fix)
            return sorted(files)
        if path.is_file():
            return [path]
        if path.exists():
            what, fix = "not a file: text is read more than once", "save it to a file first"
            raise DataError(what, where=display_path(path), fix=fix)
    if glob.has_magic(source):
        files = sorted(Path(f) for f in glob.glob(str(path), recursive=True) if os.path.isfile(f))
        if files:
            return files
        raise DataError("no file matches the pattern", where=quote(source), fix="check it with `ls`, and quote it")
    if known := bundled.find_bundled_file(path):
        return [known]
    raise _file_not_found_error(path)


def _raise_error(error: OSError) -> None:
    raise error


def suggest_similar_files(path: Path) -> list[Path]:
    """Returns at most three texts and tables that a missing path may mean, the likeliest first.

    Their names are similar, whatever the case and the suffix. They are in the folder of the path, else in the folders
    inside it, in folders of similar names if that folder is missing, or among the bundled files.
    """
    base = next(parent for parent in path.parents if os.path.isdir(parent))
    beside = list(islice(_list_visible_entries(base), _MAX_SUGGESTION_CANDIDATES))
    folders = [entry for entry in beside if os.path.isdir(entry)]
    if base != path.parent:
        beside, folders = [], _find_similar_names(Path(path.relative_to(base).parts[0]), folders)
    inside = (file for folder in folders for file in _list_visible_entries(folder) if not os.path.isdir(file))
    bundled_files = () if path.is_absolute() else _list_visible_entries(bundled.data_folder())
    shipped = (Path("data", file.name) for file in bundled_files)
    known = (*FOLDER_FORMATS, *TABLE_FORMATS, *filter(None, [path.suffix.lower()]))
    for level in (beside, islice(inside, _MAX_SUGGESTION_CANDIDATES), shipped):
        likely = (entry for entry in level if name_without_compression(entry).endswith(known) or os.path.isdir(entry))
        if similar := _find_similar_names(path, likely):
            return similar[:3]
    return []


def _list_visible_entries(folder: Path) -> Iterator[Path]:
    """Yields the entries of a folder that are not hidden, in order; none if it cannot be read."""
    with suppress(OSError):
        yield from sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _find_similar_names(path: Path, others: Iterable[Path]) -> list[Path]:
    """Returns the paths whose names are similar to that of `path`, the most similar first."""
    by_stem: dict[str, list[Path]] = {}
    for other in others:
        by_stem.setdefault(Path(name_without_compression(other)).stem, []).append(other)
    stem = Path(name_without_compression(path)).stem
    stems = [stem] if stem in by_stem else get_close_matches(stem, by_stem, n=3, cutoff=0.6)
    return [other for stem in stems for other in by_stem[stem]]


def _file_not_found_error(path: Path) -> DataError:
    here = "here" if path.parent == Path() else f"in {path.parent}"
    fix = f"check its name: `ls` lists what is {here}"
    if not os.path.isdir(path.parent):
        fix = f"there is no folder {path.parent} either"
    if near := suggest_similar_files(path):
        fix = f"did you mean {join_with_or([display_path(other) for other in near])}?"
    return DataError("the file does not exist", where=display_path(path), fix=fix, code="file_not_found")


@contextmanager
def convert_read_errors(path: Path) -> Iterator[None]:
    """Converts errors of the operating system, gzip or zstd while reading `path` to a DataError or ResourceError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        raise _convert_read_error(path, error) from error


def _convert_read_error(path: Path, error: Exception) -> LmtoolError:
    where, again = display_path(path), "copy or compress it again"
    match error:
        case FileNotFoundError():
            return _file_not_found_error(path)
        case IsADirectoryError():
            return DataError("a folder, not a file", where=where, fix="name a file in it")
        case gzip.BadGzipFile() | EOFError() | zlib.error():
            return DataError(f"the gzip file is damaged: {error}", where=where, fix=again)
        case PermissionError():
            return ResourceError("no permission to read it", where=where, fix="change its permissions, or copy it")
        case OSError(errno=None) if compression_suffix(path) == ".zst":  # of the decompressor, not of the system
            return DataError(f"the zstd file is damaged: {error}", where=where, fix=again)
    return ResourceError(f"cannot read it: {getattr(error, 'strerror', None) or error}", where=where)


def open_decompressed(path: Path) -> IO[bytes]:
    """Opens a file for reading bytes, and decompresses it if it ends in .gz or .zst."""
    match compression_suffix(path):
        case ".gz":
            return cast(IO[bytes], gzip.open(path))
        case ".zst":
            import pyarrow

            return cast(IO[bytes], pyarrow.CompressedInputStream(str(path), "zstd"))
    return open(path, "rb")


_NON_TEXT_ENCODINGS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape"})
"""Python's encodings of host names and string literals, which no text file has."""


def choose_encoding(path: Path, fallback: str | None = None) -> str:
    """Returns UTF-16 for a file with its byte order mark, `fallback` if not all of it is valid UTF-8, else UTF-8."""
    with convert_read_errors(path), open_decompressed(path) as file:
        data = file.read(READ_BYTES)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "UTF-16"
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while fallback is not None and decoder.decode(data, not data) is not None and data:
                data = file.read(READ_BYTES)
        except UnicodeDecodeError:
            return fallback or "UTF-8"
    return "UTF-8"


def find_next_document_start(path: Path, offset: int, file_size: int, *, after_blank_line: bool) -> int:
    """Returns the first position from `offset` on after a line end, or with `after_blank_line` after a blank line.

    Returns `file_size`, that of the file, if none follows. Raises DataError if MAX_DOCUMENT_SEARCH_BYTES have none.
    """
    if offset <= 0 or offset >= file_size:
        return max(0, min(offset, file_size))
    pattern, kept = (_BLANK_LINE, 3) if after_blank_line else (_LINE_END, 1)
    with convert_read_errors(path), open(path, "rb") as file:
        at = max(0, offset - kept)
        file.seek(at)
        held = b""
        while data := file.read(READ_BYTES):
            text = held + data
            for match in pattern.finditer(text):
                if at + match.end() >= offset:
                    return at + match.end()
            held = text[-kept:]
            at += len(text) - len(held)
            if at > offset + MAX_DOCUMENT_SEARCH_BYTES:
                what = f"no document ends within {MAX_DOCUMENT_SEARCH_BYTES:,} bytes of offset {offset:,}"
                fix = "set data.documents=line, break its lines, or set data.stream=false"
                raise DataError(what, where=display_path(path), fix=fix)
    return file_size


def count_line_ends_before(path: Path, offset: int) -> int:
    """Counts the lines that end in the first `offset` bytes of an uncompressed file."""
    return sum(data.count(b"\n") for data in _read_first_bytes(path, offset))


def _read_first_bytes(path: Path, size: int) -> Iterator[bytes]:
    """Yields the first `size` decompressed bytes of a file in blocks."""
    with convert_read_errors(path), open_decompressed(path) as file:
        while data := file.read(min(READ_BYTES, size)):
            size -= len(data)
            yield data


def read_text_blocks(path: Path, encoding: str | None = None, byte_range: ByteRange | None = None) -> Iterator[str]:
    """Yields the text of a file, or of a byte range of an uncompressed one, in blocks without a byte order mark.

    `encoding` is the value of --encoding. Without it the text is UTF-8, and a NUL byte indicates a binary file.
    Raises DataError, with line and byte offset (in the decompressed text), for bytes that are not text; and UsageError
    for an unknown encoding.
    """
    try:
        "a".encode(encoding or "utf-8")  # Encodings of bytes, such as base64, fail here.
        decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
        if codecs.lookup(encoding or "utf-8").name in _NON_TEXT_ENCODINGS:
            raise LookupError
    except (LookupError, UnicodeError):
        fix = "for example --encoding cp1252, utf-16 or gb18030"
        raise UsageError(f"there is no encoding {quote(encoding or '')}", fix=fix) from None
    offset, end = byte_range or (0, None)
    first = offset == 0
    with convert_read_errors(path), open_decompressed(path) as file:
        if offset:
            file.seek(offset)
        while True:
            data = file.read(READ_BYTES if end is None else min(READ_BYTES, end - offset))
            if offset == 0:
                _check_is_text_format(data, path, encoding)
            if encoding is None and (at := data.find(b"\0")) >= 0:
                what = f"a binary file, not text: NUL byte at offset {offset + at}"
                raise DataError(what, where=display_path(path), fix="name a text file, or extract the text first")
            offset += len(data)
            try:
                text = decoder.decode(data, not data)
            except UnicodeError as error:
                raise _decoding_error(error, offset, path, encoding) from None
            if first:
                text = text.removeprefix("\ufeff")
            first = first and not text
            if text:
                yield text
            if not data:
                return


def _check_is_text_format(head: bytes, path: Path, encoding: str | None) -> None:
    if head.startswith((b"PK\x03\x04", b"\xd0\xcf\x11\xe0")):
        fix = "save the sheet as CSV (UTF-8)"
        raise DataError("a workbook or archive, not text", where=display_path(path), fix=fix)
    if head.startswith(b"\x1f\x8b"):
        raise DataError("gzip, not text", where=display_path(path), fix="decompress it, or rename it to end in .gz")
    if head.startswith(b"\x28\xb5\x2f\xfd"):
        raise DataError("zstd, not text", where=display_path(path), fix="decompress it, or rename it to end in .zst")
    is_utf8 = codecs.lookup(encoding or "utf-8").name == "utf-8"
    if is_utf8 and head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        fix = "omit --encoding" if encoding else "convert it: `iconv -f utf-16 -t utf-8`"
        raise DataError("the text is UTF-16, not UTF-8", where=display_path(path), fix=fix)


def _decoding_error(error: UnicodeError, end_offset: int, path: Path, encoding: str | None) -> DataError:
    """Returns the error for bytes before `end_offset`. Lines are counted only here, as that is slow."""
    fix = "convert the file, for example with `iconv -f latin1 -t utf-8`, if that is what it is"
    fix = "give its encoding, for example --encoding cp1252 or utf-16-le" if encoding else fix
    if not isinstance(error, UnicodeDecodeError):  # UTF-16 and UTF-32 without a byte order mark
        return DataError(f"not valid {encoding}: {error}", where=display_path(path), fix=fix)
    offset = end_offset + error.start - len(error.object)
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")("ignore")
    line = 1 + sum(decoder.decode(before).count("\n") for before in _read_first_bytes(path, offset))
    byte = f"byte 0x{error.object[error.start]:02x}" if error.start < len(error.object) else "the end"
    what = f"not valid {encoding or 'UTF-8'}: {byte} at offset {offset}"
    return DataError(what, where=f"{display_path(path)}:{line}", fix=fix)


def read_whole_line_blocks(
    path: Path, encoding: str | None, truncate_lines_at: int, byte_range: ByteRange | None = None
) -> Iterator[str]:
    """Yields the text of a file, or of a byte range of it, in blocks of whole lines, which end with CR LF, LF or CR.

    May truncate a line of `truncate_lines_at` characters or more to that length. Raises as `read_text_blocks` does.
    """
    held: list[str] = []
    size, cut, half = 0, False, ""
    for block in read_text_blocks(path, encoding, byte_range):
        text = half + block
        half = "\r" if text.endswith("\r") else ""  # LF may follow.
        text = text.removesuffix(half)
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if end:
            start = find_next_line(text, 0) if cut else 0
            if start < end:
                yield "".join([*held, text[start:end]])
            held, size, cut = [], 0, False
        if not cut:
            held.append(text[end:])
            size += len(text) - end
            cut = size >= truncate_lines_at
            if cut:
                yield "".join(held)[:truncate_lines_at] + "\n"
    if not cut and (last := "".join([*held, half])):
        yield last


def read_nonblank_lines(path: Path, encoding: str | None = None) -> Iterator[str]:
    """Yields the lines of a text that are not blank, without their ends; truncates the longest.

    Raises as `read_text_blocks` does.
    """
    for text in read_whole_line_blocks(path, encoding, MAX_TEXT_LINE_CHARACTERS):
        yield from (line.rstrip("\r\n") for line in iterate_lines(text) if line.strip())


def iterate_lines(text: str) -> io.StringIO:
    """Returns an iterator over the lines of `text` with their line ends."""
    return io.StringIO(text, newline="")


def find_next_line(text: str, position: int) -> int:
    """Returns where the line after that of `position` begins."""
    end = text.find("\n", position) + 1 or len(text)
    cr = text.find("\r", position, end) + 1
    return cr if cr and not text.startswith("\n", cr) else end


def count_line_ends(text: str, start: int = 0, stop: int | None = None) -> int:
    """Counts the lines that end in this part of `text`."""
    n_lines = text.count("\n", start, stop)
    if text.find("\r", start, stop) >= 0:
        n_lines += text.count("\r", start, stop) - text.count("\r\n", start, stop)
    return n_lines


def hash_files(paths: Sequence[Path]) -> str:
    """Returns the SHA-256 of the formats and contents of files in order; names do not count."""
    total = hashlib.sha256()
    for path in paths:
        with convert_read_errors(path), open(path, "rb") as file:
            packed = compression_suffix(path)
            total.update(f"{detect_format_suffix(path)} {packed if packed == '.zst' else packed == '.gz'} ".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
