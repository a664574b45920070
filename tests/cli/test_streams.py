"""Standard output and error that are closed, full, read no longer, or lack letters; in processes of their own."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.kernels.build import CACHE_FOLDER
from lmtool.runs.directory import Run
from lmtool.storage.durable import cache_folder
from tests.support import forks
from tests.support.cli import SENTENCES, SMALL, film_rows, write_table

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
MANY_LINES = ("recipes", "show", "gpt2-124m", "--resolved")


def start(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> "subprocess.CompletedProcess[bytes]":
    command = [sys.executable, "-m", "lmtool", *arguments]
    return subprocess.run(
        command, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})}, **options
    )


def unread() -> int:
    """A pipe that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def test_a_reader_that_goes_away_is_no_error(run: Path, corpus: Path, home: Path) -> None:
    """As in `lmtool recipes show gpt2-124m --resolved | head -1`, when head exits first: no error, of no command."""
    write_table(home / "rows.csv", film_rows())
    shutil.rmtree(cache_folder() / CACHE_FOLDER, ignore_errors=True)  # kernels are compiled without a word
    for words in (
        "--help",
        "runs show last",
        "generate The --greedy -q",
        f"eval last {corpus} -q",
        "attention last The -q",
        "finetune rows.csv -r linear -q -o tuned",
        "predict tuned rows.csv -q",
    ):
        command = ["-m", "lmtool", *words.split()]
        with open(unread(), "wb") as broken, forks.begin(command, files=(None, broken, subprocess.PIPE)) as done:
            _, said = done.communicate()
        assert (done.returncode, said) == (0, ""), words
    assert Run.open(home / "tuned").state == "finished"
    assert (home / "tuned" / "report.html").exists()


def test_a_program_whose_reader_goes_away_ends_without_a_word() -> None:
    """Started as a shell does, until its end, at which Python writes what it has left."""
    with open(unread(), "wb") as broken:
        done = start(*MANY_LINES, stdout=broken)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_behind_stdout_is_an_error() -> None:
    with open("/dev/full", "wb") as full:
        done = start(*MANY_LINES, stdout=full)
    assert done.returncode == 5
    assert done.stderr.startswith(b"No space left on device")


@pytest.mark.parametrize("reader", ["full disk", "gone"])
def test_messages_that_stderr_cannot_take_change_no_exit_code(reader: str, tmp_path: Path) -> None:
    """A full disk or a closed pipe behind stderr ends the messages, not the training."""
    (tmp_path / "tales.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    place = unread() if reader == "gone" else os.open("/dev/full", os.O_WRONLY)
    with open(place, "wb") as lost:
        for arguments, code in ((["runs", "show", "nothing"], 4), (["pretrain", "tales.txt", *SMALL, "-o", "run"], 0)):
            env = {**os.environ, "LMTOOL_RUNS": "runs"}
            files = (None, subprocess.PIPE, lost)
            with forks.begin(["-m", "lmtool", *arguments], cwd=tmp_path, env=env, files=files) as done:
                out, _ = done.communicate()
            assert done.returncode == code
    assert out == "run\n"


INTERRUPTED = """
import itertools, signal, sys
from lmtool.cli.output import prepare_streams

prepare_streams()
signal.signal(signal.SIGALRM, signal.default_int_handler)
numbers = itertools.count()
for i in range(2000):
    try:
        signal.setitimer(signal.ITIMER_REAL, (i % 100 + 1) * 1e-6)
        while True:
            sys.stderr.write(f"{next(numbers)}\\n")
    except KeyboardInterrupt:
        pass
"""


def test_an_interrupted_message_is_not_repeated() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], stderr=subprocess.PIPE, env={"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0
    numbers = [int(line) for line in done.stderr.splitlines()]
    assert len(numbers) > 1000
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("number", [1, 2])
def test_a_closed_stream_changes_no_exit_code(number: int) -> None:
    done = start("recipes", "ls", stdout=subprocess.PIPE, preexec_fn=lambda: os.close(number))
    assert (done.returncode, done.stderr) == (0, b"")


def test_an_encoding_that_lacks_letters_gets_escapes(home: Path) -> None:
    (home / "runs" / "雨").mkdir(parents=True)
    (home / "runs" / "雨" / "run.json").write_text("{")
    done = start("runs", "ls", stdout=subprocess.PIPE, env={"PYTHONIOENCODING": "latin-1"})
    assert done.returncode == 0
    assert done.stdout.startswith(b"\\u96e8\t")
