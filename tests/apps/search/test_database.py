"""The files of an index are somebody else's: they are not believed, and errors of the system are told as such."""

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest

from lmtool.apps.search import database
from lmtool.apps.search.entries import Entry
from lmtool.apps.search.index import (
    LISTS,
    SCHEMA,
    TEXTS,
    VECTORS,
    Index,
    open_index,
    remove_texts_by_id_or_source,
)
from lmtool.errors import DataError, LmtoolError, ResourceError
from lmtool.interop import resolve
from lmtool.runs.load import LoadedModel
from lmtool.storage.checksum import xxh3
from tests.apps.search.conftest import LINES, add, entries, found
from tests.support.errors import refuses


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path / TEXTS, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def use(path: Path, loaded: LoadedModel) -> None:
    """All that is done with an index: it is searched, then changed."""
    found(path, loaded, "the cat")
    add(path, loaded, [Entry("b", "b", "a mat")])
    remove_texts_by_id_or_source(path, ["b"])


def test_an_index_opens_no_connection(path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("a connection is opened"))
    execute(path, "UPDATE model SET run = 'hf:some/model'")
    with refuses("run_not_found") as error:
        open_index(path)
    assert "--run RUN" in error.value.fix
    monkeypatch.setattr(resolve, "find_cached_run", lambda name: loaded.run_path if name == "hf:some/model" else None)
    opened = open_index(path, device="cpu").loaded
    assert opened is not None
    assert opened.run_path == loaded.run_path, "it was imported before"


# What is in it

ENDLESS = (
    "WITH RECURSIVE n(vector) AS (SELECT 0 UNION ALL SELECT vector + 1 FROM n) SELECT vector, 'a', 'b', 'c', 'd' FROM n"
)
WIDTHS = ("0", "-16", "15", "32", "1 << 40", "NULL", "'wide'", "1e999", "16.5")
FORGED = {
    "a name that is not UTF-8": [
        "PRAGMA writable_schema = ON",
        "INSERT INTO sqlite_master SELECT 'table', CAST(x'ff' AS TEXT), 'a', 2, 'CREATE TABLE a (' FROM model",
    ],
    "a view without end": ["DROP TABLE texts", f"CREATE VIEW texts(vector, id, source, text, xxh3) AS {ENDLESS}"],
    "a view beside it": [f"CREATE VIEW more AS {ENDLESS}"],
    "a trigger": [f"CREATE TRIGGER t AFTER INSERT ON texts BEGIN {ENDLESS}; END"],
    "another column": ["ALTER TABLE texts ADD COLUMN more"],
    "no model": ["DELETE FROM model"],
    "two models": ["INSERT INTO model SELECT * FROM model"],
    "a blob as a text": ["UPDATE texts SET text = x'00ff'"],
    "text that is not UTF-8": ["UPDATE texts SET text = CAST(x'ff' AS TEXT)"],
    "a blob as an id": ["UPDATE texts SET id = x'00ff' WHERE vector = 1"],
    "no source": ["UPDATE texts SET source = NULL"],
    "no checksum": ["UPDATE texts SET xxh3 = NULL"],
    "a run that is a blob": ["UPDATE model SET run = x'00ff'"],
    **{f"a width of {width}": [f"UPDATE model SET width = {width}"] for width in WIDTHS},
    **{f"a text of vector {n}": [f"UPDATE texts SET vector = {n} WHERE vector = 1"] for n in ("-1", "7", "1 << 62")},
    "a write-ahead log": ["PRAGMA journal_mode = WAL"],
}


@pytest.mark.parametrize("kind", FORGED)
def test_forged_texts_are_refused(path: Path, loaded: LoadedModel, kind: str) -> None:
    execute(path, *FORGED[kind])
    with pytest.raises(DataError, match="damaged"):
        use(path, loaded)


CHANGED: dict[str, Callable[[Any], Any]] = {
    "reversed": np.flipud,
    "negative": np.negative,
    "of other bytes": np.ndarray.byteswap,
    "NaN": lambda v_ND: np.full_like(v_ND, np.nan),
    "infinite": lambda v_ND: np.full_like(v_ND, np.inf),
    "long": lambda v_ND: 1000 * v_ND,
}


@pytest.mark.parametrize(
    ("kind", "with_checksums"),
    [(kind, sums) for kind in CHANGED for sums in (False, True) if not sums or kind not in ("reversed", "negative")],
)  # with checksums, those are vectors as a program writes them
def test_changed_vectors_give_no_answers(path: Path, loaded: LoadedModel, kind: str, with_checksums: bool) -> None:
    vectors_ND = CHANGED[kind](np.array(Index(path).vectors_ND))
    (path / VECTORS).write_bytes(vectors_ND.tobytes())
    if with_checksums:
        sums = [(xxh3(vector_D.tobytes()), i) for i, vector_D in enumerate(vectors_ND)]
        with closing(sqlite3.connect(path / TEXTS)) as db, db:
            db.executemany("UPDATE texts SET xxh3 = ? WHERE vector = ?", sums)
    for call in (
        lambda: Index(path),
        lambda: add(path, loaded, entries()),
        lambda: remove_texts_by_id_or_source(path, ["a.txt"]),
    ):
        with pytest.raises(DataError, match=VECTORS):
            call()


def test_a_file_whose_pages_repeat_ends(path: Path, loaded: LoadedModel) -> None:
    """Pages of a tree that are all the same one: each row is read again and again."""
    add(path, loaded, [Entry(f"{i}", "a", "the cat") for i in range(500)])
    with closing(sqlite3.connect(path / TEXTS)) as db:
        ((root, size),) = db.execute(
            "SELECT rootpage, (SELECT page_size FROM pragma_page_size) FROM sqlite_master WHERE name = 'texts'"
        )
    content = bytearray((path / TEXTS).read_bytes())
    page = memoryview(content)[(root - 1) * size : root * size]
    assert page[0] == 5, "it is within the tree"
    cells = [int.from_bytes(page[12 + 2 * i : 14 + 2 * i]) for i in range(int.from_bytes(page[3:5]))]
    for cell in cells:
        page[cell : cell + 4] = root.to_bytes(4)
    page.release()
    (path / TEXTS).write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        use(path, loaded)


def test_a_file_of_many_gigabytes_is_read(path: Path, loaded: LoadedModel) -> None:
    os.truncate(path / TEXTS, 5 << 30)
    assert len(found(path, loaded, "the cat")) == len(LINES)


# What is no file


def make_socket(file: Path) -> None:
    at = os.open(file.parent, os.O_RDONLY)
    try:
        with closing(socket.socket(socket.AF_UNIX)) as made:
            made.bind(f"/proc/self/fd/{at}/{file.name}")  # a short name
    finally:
        os.close(at)


SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "folder": os.mkdir,
    "endless": lambda file: file.symlink_to("/dev/zero"),
    "link to itself": lambda file: file.symlink_to(file.name),
    "socket": make_socket,
}


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="names sockets through /proc")
@pytest.mark.parametrize("name", [TEXTS, f"{TEXTS}-journal", f"{TEXTS}-wal", VECTORS])
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_not_waited_for(path: Path, loaded: LoadedModel, name: str, kind: str) -> None:
    (path / name).unlink(missing_ok=True)
    SPECIAL[kind](path / name)
    with pytest.raises((DataError, ResourceError)) as error:
        Index(path)
    assert name in error.value.what
    with pytest.raises(LmtoolError) as refused:
        add(path, loaded, entries())
    assert refused.value.exit_code > 1


@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_of_lists_is_not_needed(path: Path, loaded: LoadedModel, kind: str) -> None:
    SPECIAL[kind](path / LISTS)
    assert found(path, loaded, "the cat sat", 1)[0].text == "the cat sat"


@pytest.mark.parametrize("name", [TEXTS, VECTORS])
def test_nothing_is_written_through_a_link(path: Path, loaded: LoadedModel, tmp_path: Path, name: str) -> None:
    (path / name).rename(tmp_path / "elsewhere")
    (path / name).symlink_to(tmp_path / "elsewhere")
    assert len(found(path, loaded, "the cat", 3)) == 3
    with pytest.raises(DataError, match="link"):
        add(path, loaded, [Entry("b", "b", "a mat")])


# What a process leaves that is killed


@pytest.fixture
def interrupted(path: Path, tmp_path: Path) -> Path:
    """An index as a process leaves it that is killed while it writes its texts."""
    with closing(sqlite3.connect(path / TEXTS)) as db:
        db.execute("PRAGMA cache_size = 1")
        rows = ((i, f"{i}", "a.txt", "x" * 500, "") for i in range(len(LINES), 200))
        db.executemany("INSERT INTO texts VALUES (?, ?, ?, ?, ?)", rows)
        shutil.copytree(path, tmp_path / "killed")
        db.rollback()
    assert (tmp_path / "killed" / f"{TEXTS}-journal").exists()
    return tmp_path / "killed"


def test_what_was_half_written_is_undone(interrupted: Path, loaded: LoadedModel) -> None:
    assert len(found(interrupted, loaded, "the cat")) == len(LINES)
    use(interrupted, loaded)


def test_a_journal_that_names_another_file_is_refused(interrupted: Path, tmp_path: Path) -> None:
    """SQLite would delete that file where it takes it for one of its own."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"keep")
    name = str(victim).encode()
    record = b"\0\0\0\1" + name + len(name).to_bytes(4) + sum(name).to_bytes(4)
    with (interrupted / f"{TEXTS}-journal").open("ab") as file:
        file.write(record + bytes.fromhex("d9d505f920a163d7"))
    with pytest.raises(DataError, match="damaged"):
        Index(interrupted)
    assert victim.read_bytes() == b"keep"


def test_reading_changes_no_file(path: Path, loaded: LoadedModel) -> None:
    os.chmod(path / TEXTS, 0o444)
    before = {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()}
    found(path, loaded, "the cat", 3)
    assert {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.iterdir()} == before


# What the system refuses


def limit(monkeypatch: pytest.MonkeyPatch, *, timeout: float = 60.0, pages: int | None = None) -> None:
    """Let connections wait no longer, and files grow no further, as on a full disk."""
    real = sqlite3.connect

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = real(*arguments, **more | {"timeout": timeout})
        if pages is not None and arguments[0] != ":memory:":
            db.execute(f"PRAGMA max_page_count = {pages}")
        return db

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.parametrize("name", ["new", "i"])
def test_a_full_disk_is_told_as_that(
    path: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    database._expected_schema(SCHEMA)
    limit(monkeypatch, pages=1)
    with refuses("no_space") as error:
        add(path.with_name(name), loaded, [Entry(f"{i}", "b.txt", "the cat " * 500) for i in range(20)])
    assert error.value.exit_code == 5
    monkeypatch.undo()
    assert not path.with_name("new").exists()
    assert len(found(path, loaded, "the cat")) == len(LINES)


def test_an_index_that_another_process_changes_is_told_as_that(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(path / TEXTS)) as db:
        db.execute("BEGIN EXCLUSIVE")
        limit(monkeypatch, timeout=0.0)
        with pytest.raises(ResourceError, match="another process"):
            Index(path)


CODES: dict[int, type[LmtoolError]] = {
    **dict.fromkeys((sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR), ResourceError),
    sqlite3.SQLITE_CANTOPEN: ResourceError,
    **dict.fromkeys((sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB), DataError),
}


@pytest.mark.parametrize("writes", [False, True])
def test_every_error_of_sqlite_has_its_exit_code(tmp_path: Path, writes: bool) -> None:
    values = [getattr(sqlite3, name) for name in dir(sqlite3) if name.startswith("SQLITE_")]
    for value in [one for one in values if isinstance(one, int) and one > 0]:
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = value
        with (
            pytest.raises(CODES.get(value & 0xFF, LmtoolError)),
            database.convert_sqlite_errors(tmp_path, writes=writes),
        ):
            raise error


def test_a_journal_that_asks_for_more_memory_than_there_is_is_told_as_that(tmp_path: Path) -> None:
    """Python raises MemoryError where SQLite has none."""
    with refuses("resource"), database.convert_sqlite_errors(tmp_path, writes=False):
        raise MemoryError
