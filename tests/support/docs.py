"""The pages of the documentation, and what they name."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import Any

import typer

from lmtool.cli import app
from lmtool.cli.help import GroupWithDefault

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "course.md").read_text(encoding="utf-8")
TOPICS = {
    topic: re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0]
    for topic, _, text in (part.partition("\n") for part in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:])
}


@cache
def names_in(path: Path) -> set[str]:
    """The functions, classes and methods of a file, methods as Class.method too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


OTHER_PROGRAMS = {
    *(".", "awk", "cat", "cd", "cp", "curl", "cut", "do", "done", "echo", "for", "git", "grep", "head", "lm_eval"),
    *("mkdir", "paste", "pip", "printf", "rev", "rm", "sed", "tail", "tr", "unzip"),
}
LMTOOL = typer.main.get_command(app)


def check_lmtool(arguments: Sequence[str]) -> None:
    """Parse the arguments as the command line would, without running the command."""
    command: Any = LMTOOL
    rest = list(arguments)
    while hasattr(command, "commands"):
        assert rest, "a command is missing"
        if isinstance(command, GroupWithDefault) and rest[0] not in command.commands:
            rest = [list(command.commands)[-1], *rest]
        flags = {name for parameter in command.params for name in parameter.opts}
        rest = [*dropwhile(flags.__contains__, rest)]
        if not rest:
            return
        assert rest[0] in command.commands, f"there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    command.make_context(command.name, rest)


def check_command(words: Sequence[str]) -> None:
    """Raise where a program, target, file or option is none that there is, without running the command."""
    program, *rest = words
    if program == "torchrun":
        program, *rest = rest[rest.index("-m") + 1 :]
    if program == "lmtool":
        check_lmtool([re.sub(r"^\$\w+$", "1", word) for word in rest])  # the variable of a loop
    elif program == "make":
        targets = re.findall(r"^([\w-]+)[^:=\n]*:(?!=)", (ROOT / "Makefile").read_text(), flags=re.M)
        assert set(word for word in rest if "=" not in word) <= set(targets), "there is no such target"
    elif program == "python":
        assert rest[0] in ("-", "-c") or (ROOT / rest[0]).is_file(), "there is no such file"
    else:
        assert program in OTHER_PROGRAMS or (ROOT / program).is_file(), "an unknown program"
