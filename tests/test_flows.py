"""The lists of CONTRIBUTING.md, which lead from the command line to the result, against what the commands do."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("cli", "training", "tables", "inference", "decoding")
TRACE = """
import inspect, json, os, sys
import torch, sklearn.metrics  # which take longest, once for all commands
from lmtool import cli

root, folders, commands, entered = sys.argv[1], tuple(sys.argv[2].split()), json.loads(sys.argv[3]), {}

def place(frame):
    while frame and not frame.f_code.co_filename.startswith(root):
        frame = frame.f_back
    return frame.f_code.co_filename.removeprefix(root) if frame else ""

def trace(frame, event, argument):
    if event != "call" or not frame.f_code.co_filename.startswith(root):
        return
    file, name = place(frame), frame.f_code.co_qualname
    caller = place(frame.f_back)
    if file.startswith(folders) and caller != file and "<" not in name:
        door, _, method = name.partition(".")
        callers = entered.setdefault(file, {"door": door, "callers": {}})["callers"]
        # what an object does later is no new entry, and of a generator it is seen who reads it, not who asked for it
        is_generator = frame.f_code.co_flags & inspect.CO_GENERATOR
        if not is_generator and (not method or method in ("__init__", "of")):
            callers.setdefault(caller, door)

def traced(words):
    sys.argv = ["lmtool", *words]
    sys.setprofile(trace)
    try:
        cli.main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        sys.stdout.flush()
        with open(f"{words[0]}.json", "w") as file:
            json.dump(entered, file)

for words in commands:  # each in a process of its own, which has imported nothing of the others
    pid = os.fork()
    if pid == 0:
        traced(words)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit(1)
"""


def section() -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = re.search(r"^## From the command line to the result$(.*?)^## ", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def shared() -> set[str]:
    return set(re.findall(r"`([\w/]+\.py)`", section().split("\n`lmtool")[0])) - {"tests/test_flows.py"}


def listed(command: str) -> list[tuple[str, str]]:
    part = next(part for part in section().split("\n`lmtool ")[1:] if part.startswith(command))
    return re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)`", part, re.MULTILINE)


def before(command: str) -> set[str]:
    """The files of earlier lists, and those beside the lists."""
    earlier = list(COMMANDS)[: list(COMMANDS).index(command)]
    return shared() | {file for other in earlier for file, _ in listed(other)}


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The files that each command entered, in order, as each needs what the one before made."""
    path = tmp_path_factory.mktemp("flows")
    (path / "text.txt").write_text("\n\n".join(f"the cat {n} sat on the mat and ran away" for n in range(60)))
    rows = [f"the film was {label} and long {n},{label}" for n in range(30) for label in ("good", "bad")]
    (path / "table.csv").write_text("\n".join(["text,label", *rows]))
    python = [sys.executable, "-c", TRACE, f"{ROOT / 'lmtool'}/", " ".join(f"{name}/" for name in FOLDERS)]
    given = [("pretrain", TRAINED), *COMMANDS.items()]
    commands = json.dumps([[command, *arguments] for command, arguments in given])
    done = subprocess.run([*python, commands], cwd=path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {command: json.loads((path / f"{command}.json").read_text()) for command in COMMANDS}


SMALL = (
    "-s",
    "model={kind: transformer, n_layers: 1, d_model: 8, n_heads: 2, context: 16}",
    "-s",
    "training.device=cpu",
)
TRAINED = ("text.txt", "-o", "run", *SMALL, "-s", "training.steps=2", "-s", "evaluation.prompts=[the]")
COMMANDS = {
    "generate": ("the", "--run", "run", "--max-new-tokens", "4"),
    "pretrain": (*TRAINED[:2], "other", *TRAINED[3:]),
    "finetune": (
        "table.csv",
        "--from",
        "run",
        "-o",
        "tuned",
        "-s",
        "training.epochs=1",
        "-s",
        "data.valid_fraction=0.1",
    ),
}


@pytest.mark.system
@pytest.mark.parametrize("command", COMMANDS)
def test_each_file_is_entered_once_in_the_order_of_the_list(entered: dict[str, dict[str, Any]], command: str) -> None:
    found = {file: entry for file, entry in entered[command].items() if file not in before(command)}
    assert [(file, entry["door"]) for file, entry in found.items()] == listed(command)
    callers = {file: set(entry["callers"]) - shared() for file, entry in found.items()}
    assert {file: files for file, files in callers.items() if len(files) > 1} == {}


def test_the_lists_are_short_and_name_no_file_twice() -> None:
    assert all(len(listed(command)) <= 15 for command in COMMANDS)
    files = [file for command in COMMANDS for file, _ in listed(command)]
    assert len(files) == len(set(files))
    assert not shared() & set(files)


def test_the_lists_name_what_there_is() -> None:
    for command in COMMANDS:
        for file, door in listed(command):
            source = (ROOT / "lmtool" / file).read_text(encoding="utf-8")
            assert re.search(rf"^(?:def|class) {door}\b", source, re.MULTILINE), f"{file} has no {door}"
    assert all((ROOT / "lmtool" / file).exists() for file in shared())
