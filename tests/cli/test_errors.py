"""Errors whatever the command: names that are quoted, damage of runs, the environment, and what nobody foresaw."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
import torch

from lmtool.cli import to_lmtool_error
from tests.support.cli import RUN, SMALL, CommandLine, pipe_in

USAGE, DATA, CHECKPOINT, ENVIRONMENT, NOT_FINITE = 2, 3, 4, 5, 6


@pytest.mark.parametrize("name", ["n" * 5000, "folder/" * 700 + "file.txt"])
@pytest.mark.parametrize("command", [["pretrain"], ["finetune"], ["recipes", "show"], ["predict", "last"], []])
def test_a_very_long_name_is_shortened(lmtool: CommandLine, run: Path, command: list[str], name: str) -> None:
    done = lmtool(*command, name)
    assert done.code in (USAGE, DATA, CHECKPOINT, ENVIRONMENT)
    assert 0 < max(map(len, done.err.splitlines())) <= 650


@pytest.mark.parametrize("place", ["file", "file/run", "/proc/run"])
def test_a_folder_of_the_environment_that_cannot_be_made(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (home / "file").write_text("mine")
    for variable, command in (("LMTOOL_RUNS", "pretrain"), ("LMTOOL_CACHE", "tokenize")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, place)
            lmtool.refuses(ENVIRONMENT, command, corpus, *(SMALL if command == "pretrain" else ()), words=[place])
    assert (home / "file").read_text() == "mine"


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    """It stays where it is."""
    newest = run / "checkpoints" / "step-000006"
    (newest / "model.safetensors").write_bytes((newest / "model.safetensors").read_bytes()[:-7])
    for command in (("generate", "The", "--run", "last"), ("eval", "last", corpus), ("resume", "last")):
        (line,) = lmtool.succeeds(*command, "--quiet").err.splitlines()
        assert line.startswith("warning: ")
        assert "step-000006" in line
    assert len(list((run / "checkpoints").glob("*step-000006*"))) == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_is_not_there(lmtool: CommandLine, run: Path, corpus: Path) -> None:
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
        (DATA, ["pretrain", NASTY]),
        (DATA, ["pretrain", "rows.csv", "--column", NASTY]),
        (DATA, ["pretrain", "rows.jsonl"]),
        (DATA, ["pretrain", f"{NASTY}.txt"]),
        (USAGE, ["pretrain", "tales.txt", "--recipe", NASTY]),
        (USAGE, ["pretrain", "tales.txt", "--recipe", "bad.yaml"]),
        (USAGE, ["pretrain", "tales.txt", "-s", f"{NASTY}=1"]),
        (USAGE, ["pretrain", "tales.txt", "-s", f"optimizer.lr={NASTY}"]),
        (CHECKPOINT, ["generate", "--run", NASTY]),
        (CHECKPOINT, ["tokenize", "tales.txt", "--tokenizer", NASTY]),
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


def test_what_was_not_foreseen_is_one_line_without_a_traceback(
    lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the \x1b[31msky\nfell")

    monkeypatch.setattr("lmtool.recipe.load.shipped_recipes", fail)
    outcome = lmtool("recipes", "ls")
    assert outcome.code == 1
    first, second = outcome.err.splitlines()
    assert first == "unexpected RuntimeError: the \\x1b[31msky\\nfell"
    assert "--debug" in second
    debugged = lmtool("recipes", "ls", "--debug")
    assert debugged.code == 1
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert debugged.err.endswith(f"\n{outcome.err}")


def test_a_traceback_stands_before_the_error_and_changes_no_exit_code(lmtool: CommandLine, home: Path) -> None:
    words = ("generate", "x", "--run", "missing")
    refused, debugged = lmtool(*words), lmtool("--debug", *words)
    assert debugged.code == refused.code == CHECKPOINT
    assert debugged.err.startswith("Traceback (most recent call last):\n")
    assert debugged.err.endswith(f"\n{refused.err}")
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


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": "x"}, ["'x'", "WORLD_SIZE", "torchrun"]),
        ({"WORLD_SIZE": "0"}, ["'0'", "WORLD_SIZE"]),
        ({"WORLD_SIZE": "2"}, ["RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT"]),
        ({"WORLD_SIZE": "9" * 5000}, ["WORLD_SIZE"]),
        ({"LOCAL_RANK": "-1"}, ["'-1'", "LOCAL_RANK"]),
        (
            {"WORLD_SIZE": "2", "RANK": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            ["RANK is 2"],
        ),
    ],
)
def test_an_environment_that_torchrun_did_not_make(
    lmtool: CommandLine,
    corpus: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    words: list[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    lmtool.refuses(USAGE, "pretrain", corpus, *SMALL, words=words)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "The"),
        ("runs", "ls"),
        ("tokenize", "--show", "The"),
        ("sweep", "text.txt", "-s", "seed=1,2"),
        ("export", "last", "exported"),
        ("eval", "last", "-"),
    ],
)
def test_commands_that_several_processes_would_repeat(
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


def test_processes_that_cannot_meet(
    lmtool: CommandLine, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for given, word in ((port, port), ("abc", "abc"), ("99999999", "65535")):
            names = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
            for name, value in zip(names, ("2", "0", "0", "127.0.0.1", given), strict=True):
                monkeypatch.setenv(name, value)
            lmtool.refuses(ENVIRONMENT, "pretrain", corpus, *SMALL, words=[word])


def test_standard_input_that_is_closed(lmtool: CommandLine, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    lmtool.refuses(DATA, "eval", "last", "-", words=["empty"])
    sys.stdin.close()


def test_a_changed_text_of_a_run_is_refused(lmtool: CommandLine, run: Path, corpus: Path, home: Path) -> None:
    recipe = run / "recipe.yaml"
    (home / "tales.txt").write_text("Another text than it was.\n" * 100)
    recipe.write_text(re.sub(re.escape(str(corpus)), "tales.txt", recipe.read_text()))
    lmtool.refuses(CHECKPOINT, "resume", "last", "-s", "training.steps=+2", words=["tales.txt"])
    assert os.listdir(home / "runs") == [RUN]
