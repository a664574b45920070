"""Commands that are killed while they write: what the same command does then, and what is left."""

import io
import os
import signal
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from lmtool.interop.export.ollama import MODELFILE_SUFFIX
from lmtool.storage.durable import TEMPORARY_PREFIX
from tests.runs.killing import in_child
from tests.support.cli import CommandLine

pytestmark = pytest.mark.system

TABLE = "text\n" + "".join(f"The baker sold map {i}.\n" for i in range(50))
COMMANDS = {
    "export": ("export", "last", "out/model"),
    "export --gguf": ("export", "last", "out/model.gguf", "--gguf", "f16"),
    "import": ("import", "published", "-o", "out/model", "-q"),
    "embed": ("embed", "last", "texts.csv", "-o", "out/vectors.npz"),
    "embed lines": ("embed", "last", "texts.csv", "-o", "out/vectors.jsonl"),
    "predict": ("predict", "tuned", "texts.csv", "-o", "out/predicted.csv"),
    "merge": ("runs", "merge", "adapted", "-o", "out/merged"),
}
"""Commands that write something large, into the folder out."""


@pytest.fixture
def folder(lmtool: CommandLine, run: Path, home: Path) -> Path:
    """What the commands name."""
    (home / "out").mkdir()
    (home / "texts.csv").write_text(TABLE)
    return home


def prepare(lmtool: CommandLine, name: str) -> None:
    """The runs and models that a command needs besides the last run."""
    rows = "".join(f"{'good' if i % 2 else 'bad'} map {i},{'ab'[i % 2]}\n" for i in range(40))
    few = ("-q", "-s", "training.epochs=null", "-s", "training.steps=2", "-o")
    if name == "import":
        lmtool.succeeds("export", "last", "published")
    if name in ("predict", "merge"):
        with open("table.csv", "w") as file:
            file.write(f"text,label\n{rows}")
        lora = ("--lora-rank", 2) if name == "merge" else ()
        lmtool.succeeds(
            "finetune", "table.csv", "--from", "last", *lora, *few, "tuned" if name == "predict" else "adapted"
        )


def die_at_sync(lmtool: CommandLine, *arguments: object) -> None:
    """Call a command in a process that is killed when it has written a large file, and is to sync it."""

    def work() -> None:
        genuine = os.fsync

        def fsync(handle: int) -> None:
            if stat.S_ISREG(os.fstat(handle).st_mode) and os.fstat(handle).st_size > 2000:
                os.kill(os.getpid(), signal.SIGKILL)
            genuine(handle)

        pytest.MonkeyPatch().setattr(os, "fsync", fsync)
        lmtool(*arguments)

    assert os.WIFSIGNALED(os.waitpid(in_child(work), 0)[1])


def left_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if TEMPORARY_PREFIX in str(path) and path.is_file()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_repeat_works_and_removes_what_the_killed_one_has_left(lmtool: CommandLine, folder: Path, name: str) -> None:
    prepare(lmtool, name)
    die_at_sync(lmtool, *COMMANDS[name])
    assert sum(path.stat().st_size for path in left_in(folder / "out")) > 1000
    lmtool.succeeds(*COMMANDS[name])
    assert left_in(folder / "out") == []
    made = [path for path in (folder / "out").iterdir() if path.suffix != MODELFILE_SUFFIX]
    assert len(made) == 1


def test_another_command_that_writes_there_removes_it_too(lmtool: CommandLine, folder: Path) -> None:
    die_at_sync(lmtool, *COMMANDS["export"])
    assert left_in(folder / "out")
    lmtool.succeeds(*COMMANDS["embed"])
    assert left_in(folder / "out") == []


def test_an_import_into_the_cache_that_was_killed_is_made_by_a_repeat(
    lmtool: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(folder / "cache"))
    lmtool.succeeds("export", "last", "published")
    die_at_sync(lmtool, "generate", "The", "--run", "published", "--max-new-tokens", 1)
    assert left_in(folder / "cache")
    lmtool.succeeds("generate", "The", "--run", "published", "--max-new-tokens", 1)
    assert left_in(folder / "cache") == []


def test_standard_input_of_a_killed_command_is_removed(
    lmtool: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(folder / "out"))

    def receive() -> None:
        _kill_at_rename()
        sys.stdin = io.TextIOWrapper(io.BytesIO(TABLE.encode()))
        lmtool("predict", "tuned", "-", "-o", "predicted.csv")

    prepare(lmtool, "predict")
    pid = in_child(receive)
    assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
    assert any((folder / "out").rglob("*.csv"))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TABLE.encode())))
    lmtool.succeeds("predict", "tuned", "-", "-o", "predicted.csv")
    assert not any((folder / "out").iterdir())


def _kill_at_rename() -> None:
    """Kill this process when standard input is a file."""

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(arguments[1]).endswith(".csv"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(audit)
