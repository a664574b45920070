"""`--help`: every example is true, and docs/cli.md lists every command."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.recipe.load import load
from tests.support.cli import COMMANDS, GROUPS

ROOT = Path(__file__).parents[2]
REDIRECTION = re.compile(r"\s+[<>]\s+\S+$")


def examples(name: str) -> list[str]:
    heading, *lines = (GROUPS[name].epilog or "").split("  \n")
    assert heading == "Examples:", f"{name} has no examples"
    return [line.strip("`") for line in lines]


def shown(monkeypatch: pytest.MonkeyPatch, name: str, width: int) -> str:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "dumb")
    result = CliRunner().invoke(app, [*name.removeprefix("lmtool").split(), "--help"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("name", GROUPS)
def test_the_examples_are_true(name: str) -> None:
    path = name.removeprefix("lmtool").split()
    found = examples(name)
    assert found
    for example in found:
        program, *words = shlex.split(REDIRECTION.sub("", example))
        assert program == "lmtool"
        assert words[: len(path)] == path, "an example of another command"
        command = GROUPS["lmtool"]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        context = command.make_context(command.name, words)
        if settings := context.params.get("overrides"):
            load(context.params.get("name") or context.params.get("recipe") or "tiny", settings)


@pytest.mark.parametrize("width", [60, 160])
def test_no_help_has_leftovers_of_its_tools(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    for name in GROUPS:
        text = shown(monkeypatch, name, width)
        joined = re.sub(r"\s+│\s+│\s+", " ", text)
        assert not any(word in joined for word in ("<bool>", "[[", "[default: (", "[default: ]")), name
        assert all(example in text for example in examples(name)) or width < 160


def test_defaults_in_words_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):  # also the second time
        text = re.sub(r"[\s│]+", " ", shown(monkeypatch, "generate", 160))
        assert "[default: last]" in text
        assert text.count("[default: 200]") == 1


def test_the_options_of_finetune_are_in_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, "finetune", 100)
    titles = re.findall(r"╭─ (\w+) ", text)
    assert titles == ["Arguments", "Options", "Data", "Training", "Evaluation", "Output"]
    panels = dict(zip(titles, re.split(r"╭─ \w+ ", text)[1:], strict=True))
    for option, panel in {"--text-column": "Data", "--epochs": "Training", "--metric": "Evaluation"}.items():
        assert option in panels[panel]


def test_the_page_of_the_command_line_lists_all_commands() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page[page.index("| command |") :].partition("\n\n")[0]
    assert sorted(re.findall(r"^\| `([a-z ]+)` \|", table, flags=re.M)) == sorted(COMMANDS)
