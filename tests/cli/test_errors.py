"""Errors whatever the command: names that are quoted, damage of runs, the environment, and what nobody foresaw."""

import json
import socket
import sys
from pathlib import Path

import pytest
import torch

from lmtool.cli import to_lmtool_error
from tests.support.cli import SMALL, CommandLine, pipe_in

USAGE, DATA, CHECKPOINT, ENVIRONMENT, NOT_FINITE = 2, 3, 4, 5, 6


@pytest.mark.parametrize("command", [["pretrain"], ["finetune"], ["recipes", "show"], ["predict", "last"], []])
def test_a_very_long_name_is_shortened(lmtool: CommandLine, run: Path, command: list[str]) -> None:
    for name in ("n" * 5000, "folder/" * 700 + "file.txt"):
        done = lmtool(*command, name)
        assert done.code in (USAGE, DATA, CHECKPOINT, ENVIRONMENT)
        assert 0 < max(map(len, done.err.splitlines())) <= 650


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_a_folder_of_the_environment_that_cannot_be_made_is_refused(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (home / "file").write_text("mine")
    for variable, command in (("LMTOOL_RUNS", "pretrain"), ("LMTOOL_CACHE", "tokenize")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, place)
            lmtool.refuses(ENVIRONMENT, command, corpus, *(SMALL if command == "pretrain" else ()), words=[place])
    assert (home / "file").read_text() == "mine"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(lmtool: CommandLine, run: Path) -> None:
    """It stays where it is."""
    newest = run / "checkpoints" / "step-000006"
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:-7])
    for command in (("generate", "The", "--run", "last"), ("resume", "last")):
        (line,) = lmtool.succeeds(*command, "--quiet").err.splitlines()
        assert line.startswith("warning: ")
        assert "step-000006" in line
    assert len(list((run / "checkpoints").glob("*step-000006*"))) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there_is_refused(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    for command in (
        ("pretrain", corpus, *SMALL, "-s", "training.device=cuda"),
        ("resume", "last", "-s", "training.device=cuda"),
        ("generate", "The", "--device", "cuda"),
        ("eval", "last", corpus, "--device", "cuda"),
    ):
        lmtool.refuses(ENVIRONMENT, *command, words=["cuda", "auto"])


# What is printed


@pytest.mark.parametrize("arguments", [[], ["runs"], ["recipes"]])
def test_a_command_without_a_subcommand_shows_its_help(lmtool: CommandLine, arguments: list[str]) -> None:
    outcome = lmtool(*arguments)
    assert (outcome.code, outcome.err) == (USAGE, "")
    assert "Commands" in outcome.out


NASTY = "[red]\x1b[31m\x07\u202e\n:smile:"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (USAGE, [NASTY]),
        (DATA, ["pretrain", "rows.csv", "--column", NASTY]),
        (DATA, ["pretrain", "rows.jsonl"]),
        (DATA, ["pretrain", f"{NASTY}.txt"]),
        (USAGE, ["pretrain", "tales.txt", "--recipe", "bad.yaml"]),
        (USAGE, ["pretrain", "tales.txt", "-s", f"optimizer.lr={NASTY}"]),
        (CHECKPOINT, ["generate", "--run", NASTY]),
        (ENVIRONMENT, ["pretrain", "tales.txt", "-o", f"/proc/{NASTY}"]),
    ],
)
def test_messages_escape_what_they_quote(lmtool: CommandLine, home: Path, code: int, words: list[str]) -> None:
    (home / "tales.txt").write_text("text")
    (home / "rows.csv").write_text(f'"a{NASTY}"\n1\n')
    (home / "rows.jsonl").write_text(f"{NASTY}\n")
    (home / "bad.yaml").write_text(json.dumps({NASTY: 1}))
    (home / f"{NASTY}.txt").write_bytes(b"\0")
    lines = lmtool.refuses(code, *words)
    assert ":smile:" in "".join(lines) or "[red]" in "".join(lines)


def test_a_traceback_is_shown_if_asked_for_before_the_error_and_changes_no_exit_code(
    lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the \x1b[31msky\nfell")

    monkeypatch.setattr("lmtool.recipe.load.shipped_recipes", fail)
    for words, code in ((("recipes", "ls"), 1), (("generate", "x", "--run", "missing"), CHECKPOINT)):
        outcome, debugged = lmtool(*words), lmtool("--debug", *words)
        assert outcome.code == debugged.code == code
        assert debugged.err.startswith("Traceback (most recent call last):\n")
        assert debugged.err.endswith(f"\n{outcome.err}")
    first, second = lmtool("recipes", "ls").err.splitlines()
    assert first == "unexpected RuntimeError: the \\x1b[31msky\\nfell"
    assert "--debug" in second
    assert "Traceback" not in lmtool("--debug", "generate", "--no-such-option").err
    assert "Traceback" not in lmtool("generate", "--run", "missing", "--", "--debug").err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"),
        ImportError("libtorch_cpu.so: failed to map segment"),
        OSError(28, "No space left on device", "some/file"),
    ],
)
def test_memory_libraries_and_disk_are_the_environment(error: Exception) -> None:
    found = to_lmtool_error(error)
    assert found.exit_code == ENVIRONMENT
    assert found.fix
    assert found.where == ("some/file" if isinstance(error, OSError) else "")


# What surrounds the process


TORCHRUN = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["x"], ["'x'", "WORLD_SIZE", "torchrun"]),
        (["0"], ["'0'", "WORLD_SIZE"]),
        (["9" * 5000], ["WORLD_SIZE"]),
        (["2"], ["RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"]),
        (["2", "2", "0", "localhost", "1"], ["RANK is 2"]),
        (["2", "0", "-1", "localhost", "1"], ["'-1'", "LOCAL_RANK"]),
    ],
)
def test_an_environment_that_torchrun_did_not_make_is_refused(
    lmtool: CommandLine, corpus: Path, home: Path, monkeypatch: pytest.MonkeyPatch, values: list[str], words: list[str]
) -> None:
    for name, value in zip(TORCHRUN, values, strict=False):
        monkeypatch.setenv(name, value)
    lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, words=words)


@pytest.mark.parametrize(
    "command", [("generate", "The"), ("sweep", "text.txt", "-s", "seed=1,2"), ("eval", "last", "-")]
)
def test_commands_that_several_processes_would_repeat_are_refused(
    lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """Each would write the same files, or read a part of standard input."""
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    pipe_in(monkeypatch, "The map\n")
    what = "standard input" if "-" in command else f"lmtool {command[0]}"
    lmtool.refuses(USAGE, *command, words=[what, "torchrun"])
    monkeypatch.delenv("WORLD_SIZE")  # a rank alone is what a shell may have left
    assert lmtool("runs", "ls").code == 0


def test_processes_that_cannot_meet_are_refused(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for given, word in ((port, port), ("abc", "abc"), ("99999999", "65535")):
            for name, value in zip(TORCHRUN, ("2", "0", "0", "127.0.0.1", given), strict=True):
                monkeypatch.setenv(name, value)
            lmtool.refuses(ENVIRONMENT, "pretrain", corpus, *SMALL, words=[word])


def test_standard_input_that_is_closed_is_empty(
    lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    lmtool.refuses(DATA, "eval", "last", "-", words=["empty"])
    sys.stdin.close()
