"""Finding and reading files of text: paths, folders and globs; UTF-8, plain or gzip, in bounded memory."""

import codecs
import glob
import gzip
import hashlib
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import IO, cast

from lmtool.errors import DataError, LmtoolError, ResourceError
from lmtool.text import bundled

SUFFIXES = (".txt", ".jsonl", ".csv", ".parquet")
"""Formats that are looked for in folders; each may be followed by .gz."""

BLOCK = 1 << 17
"""Bytes read at once."""


def shown(text: str, limit: int = 60) -> str:
    """Text from outside, quoted, its control characters escaped, at most about `limit` characters long."""
    return repr(text if len(text) <= limit else f"{text[: limit // 2]}…{text[-limit // 2 :]}")


def place(path: Path) -> str:
    """A path as messages name it."""
    return str(path) if str(path).isprintable() else shown(str(path), 200)


def suffix(path: Path) -> str:
    """The format that a file's name tells, .gz taken off; .txt when the name tells none."""
    name = path.name.lower().removesuffix(".gz")
    return next((s for s in SUFFIXES[1:] if name.endswith(s)), ".txt")


def find_files(source: str) -> list[Path]:
    """The files that a path, a folder or a glob means, in order of their names.

    Folders are searched to the bottom for the known formats; hidden files are left out. Where there is no data/NAME, it
    means the bundled text of that name.
    Raises DataError when nothing is there, ResourceError when it may not be read.
    """
    path = Path(source).expanduser()
    with reading(path):
        if path.is_dir():
            files = [
                Path(folder, name)
                for folder, _, names in os.walk(path, onerror=_raise)
                for name in names
                if name.lower().removesuffix(".gz").endswith(SUFFIXES)
            ]
            files = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
            if not files:
                raise DataError(
                    "the folder holds no text files",
                    where=shown(source),
                    fix=f"put {', '.join(SUFFIXES)} files (or .gz of these) into it, or name files",
                )
            return sorted(files)
        if path.is_file():
            return [path]
        if path.exists():
            raise DataError("not a file: text is read more than once", where=place(path), fix="save it to a file first")
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


def _missing(path: Path) -> DataError:
    folder = path.parent
    if not folder.is_dir():
        return DataError("the file does not exist", where=place(path), fix=f"there is no {folder} either")
    near = get_close_matches(path.name, os.listdir(folder), n=3, cutoff=0.6)
    fix = f"did you mean {', '.join(str(folder / n) for n in near)}?" if near else f"look into {folder} for its name"
    return DataError("the file does not exist", where=place(path), fix=fix)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the operating system or gzip refuses while reading `path` into a DataError or ResourceError."""
    try:
        yield
    except LmtoolError:
        raise
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"the gzip file is damaged: {error}", where=place(path), fix="copy or pack it again") from error
    except PermissionError as error:
        raise ResourceError(
            "no permission to read it", where=place(path), fix="change its permissions, or copy it"
        ) from error
    except OSError as error:
        raise ResourceError(f"cannot read it: {error.strerror or error}", where=place(path)) from error


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked if it ends in .gz."""
    return cast(IO[bytes], gzip.open(path)) if path.name.lower().endswith(".gz") else open(path, "rb")


def text_blocks(path: Path) -> Iterator[str]:
    """The text of a UTF-8 file, block by block, without a byte order mark.

    Raises DataError with the byte offset (in the unpacked text, for .gz) of what is no text.
    """
    with reading(path), open_bytes(path) as file:
        offset, rest = 0, b""
        while block := file.read(BLOCK):
            if offset == 0:
                _refuse_utf16(block, path)
            data = rest + block
            _refuse_nul(block, offset + len(rest), path)
            text, used = _decode(data, offset, path, final=False)
            rest = data[used:]
            if offset == 0:
                text = text.removeprefix("\ufeff")
            offset += used
            if text:
                yield text
        _decode(rest, offset, path, final=True)


def _decode(data: bytes, offset: int, path: Path, *, final: bool) -> tuple[str, int]:
    try:
        return codecs.utf_8_decode(data, "strict", final)
    except UnicodeDecodeError as error:
        raise DataError(
            f"not valid UTF-8: byte 0x{data[error.start]:02x} at offset {offset + error.start}",
            where=place(path),
            fix="convert the file, for example with `iconv -f latin1 -t utf-8`, if that is what it is",
        ) from None


def _refuse_utf16(block: bytes, path: Path) -> None:
    if block.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(
            "the text is UTF-16, not UTF-8", where=place(path), fix="convert it: `iconv -f utf-16 -t utf-8`"
        )


def _refuse_nul(block: bytes, offset: int, path: Path) -> None:
    at = block.find(b"\0")
    if at >= 0:
        raise DataError(
            f"a binary file, not text: NUL byte at offset {offset + at}",
            where=place(path),
            fix="name a text file, or extract the text first",
        )


def text_lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a UTF-8 file with their line ends: the number of the first one, from 1, and a list of some."""
    number, rest = 1, []
    for block in text_blocks(path):
        lines = block.split("\n")
        if len(lines) == 1:
            rest.append(block)
            continue
        lines[0] = "".join([*rest, lines[0]])
        rest = [lines.pop()]
        yield number, [line + "\n" for line in lines]
        number += len(lines)
    if last := "".join(rest):
        yield number, [last]


def content_hash(paths: Sequence[Path]) -> str:
    """SHA-256 over the contents of files, in their order. Names do not count, but formats do."""
    total = hashlib.sha256()
    for path in paths:
        with reading(path), open(path, "rb") as file:
            total.update(f"{suffix(path)} {path.name.lower().endswith('.gz')} ".encode())
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
