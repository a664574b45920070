"""`--help`: every example is true, and docs/cli.md lists every command."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.recipe.load import load

ROOT = Path(__file__).parents[2]
REDIRECTION = re.compile(r"\s+[<>]\s+\S+$")


def commands(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command and group with its words, the program itself included."""
    command = command or typer.main.get_command(app)
    yield path, command
    for name, other in getattr(command, "commands", {}).items():
        yield from commands(other, (*path, name))


ALL = dict(commands())
NAMES = {" ".join(path) or "lmtool": path for path in ALL}


def examples(path: tuple[str, ...]) -> list[str]:
    heading, *lines = (ALL[path].epilog or "").split("  \n")
    assert heading == "Examples:", f"{' '.join(path)} has no examples"
    return [line.strip("`") for line in lines]


@pytest.fixture
def helped(monkeypatch: pytest.MonkeyPatch) -> Any:
    def call(path: tuple[str, ...], width: int = 100) -> str:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "dumb")
        result = CliRunner().invoke(app, [*path, "--help"])
        assert result.exit_code == 0
        return result.output

    return call


@pytest.mark.parametrize("name", NAMES)
def test_the_examples_are_true(name: str) -> None:
    path = NAMES[name]
    found = examples(path)
    assert found
    for example in found:
        program, *words = shlex.split(REDIRECTION.sub("", example))
        assert program == "lmtool"
        assert tuple(words[: len(path)]) == path, "an example of another command"
        command = ALL[()]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        context = command.make_context(command.name, words)
        settings = context.params.get("overrides") or []
        if settings:
            recipe = context.params.get("name") or context.params.get("recipe") or "tiny"
            load(recipe, settings)


@pytest.mark.sampled(15)
@pytest.mark.parametrize("name", NAMES)
def test_the_help_has_no_leftovers_of_its_tools(helped: Any, name: str) -> None:
    for width in (60, 100, 160):
        shown = helped(NAMES[name], width)
        assert "<bool>" not in shown
        assert "[[" not in shown
        joined = re.sub(r"\s+│\s+│\s+", " ", shown)
        assert "[default: (" not in joined
        assert "[default: ]" not in joined
    assert "Examples:" in shown
    assert all(example in shown for example in examples(NAMES[name]))


def test_defaults_in_words_are_still_told(helped: Any) -> None:
    shown = re.sub(r"[\s│]+", " ", helped(("generate",), 160))
    assert "[default: last]" in shown
    assert "[default: 200]" in shown
    assert shown.count("[default: 200]") == 1
    assert "[default: 200]" in re.sub(r"[\s│]+", " ", helped(("generate",), 160)), "also the second time"


def test_the_options_of_finetune_are_in_panels(helped: Any) -> None:
    shown = helped(("finetune",))
    titles = re.findall(r"╭─ (\w+) ", shown)
    assert titles == ["Arguments", "Options", "Data", "Training", "Evaluation", "Output"]
    panels = dict(zip(titles, re.split(r"╭─ \w+ ", shown)[1:], strict=True))
    for option, panel in {"--text-column": "Data", "--epochs": "Training", "--metric": "Evaluation"}.items():
        assert option in panels[panel]


def test_the_page_of_the_command_line_lists_all_commands() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page[page.index("| command |") :].partition("\n\n")[0]
    listed = re.findall(r"^\| `([a-z ]+)` \|", table, flags=re.M)
    assert sorted(listed) == sorted(" ".join(path) for path, command in ALL.items() if not hasattr(command, "commands"))
