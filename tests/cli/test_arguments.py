"""One rule for all commands: how runs and files are named, what `-` and `-h` are, and what a closed pipe is."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lmtool.apps.labelling.table import TableToLabel
from lmtool.apps.sweeping.sweep import SharedRunArguments
from lmtool.cli import app
from lmtool.cli.commands import serve
from lmtool.cli.help import RUN_OPTION, find_near_words
from lmtool.training.cost import planning
from tests.support.cli import (
    COMMANDS,
    RUN,
    SENTENCES,
    SMALL,
    CommandLine,
    arguments_of,
    film_rows,
    pipe_in,
    write_table,
)

TAKING_RUN = [name for name, one in COMMANDS.items() if any(one.metavar == "RUN" for one in arguments_of(one)[:1])]
TAKING_RUN.append("recipes batch")


def test_every_run_can_be_named_by_an_option() -> None:
    """Also where another argument comes first: only what a run is trained from, or compared with, has its own name."""
    others = {"pretrain", "finetune", "plan", "sweep"}  # --from
    taking = {name for name, command in COMMANDS.items() if any("RUN" in str(one.metavar) for one in command.params)}
    assert {"chat", "generate", "runs rm", "check", "label", "recipes batch"} <= taking
    for name in taking - others - {"tokenize"}:
        assert "--run" in [option for one in COMMANDS[name].params for option in one.opts], name


@pytest.mark.parametrize("name", TAKING_RUN)
def test_an_argument_and_the_option_name_the_same_run(name: str) -> None:
    command = COMMANDS[name]
    n_more = len(arguments_of(command)) - 1
    more = ["one", "two"][: max(n_more, arguments_of(command)[0].nargs == -1)]
    many = more * 2 if arguments_of(command)[-1].nargs == -1 else more

    def parsed(*words: str) -> dict[str, Any]:
        parameters: dict[str, Any] = command.make_context(command.name, list(words)).params
        assert not parameters.pop(RUN_OPTION)
        return parameters

    expected = parsed("a-run", *many)
    assert "a-run" in str(expected)
    assert parsed("--run", "a-run", *many) == parsed(*many, "--run=a-run") == expected
    if n_more:
        assert parsed(*many[:1], "--run", "a-run", *many[1:]) == expected
    assert parsed("--run", "a-run", "--", *many) == expected


def test_several_runs_are_named_by_the_option_as_by_arguments(lmtool: CommandLine, run: Path) -> None:
    assert lmtool.succeeds("runs", "show", "--run", "last").out == lmtool.succeeds("runs", "show", RUN).out
    both = lmtool.succeeds("runs", "compare", "--run", "last", "--run", RUN).out
    assert both == lmtool.succeeds("runs", "compare", "last", RUN).out


@pytest.fixture
def files(run: Path, home: Path) -> Path:
    (home / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    write_table(home / "rows.csv", film_rows())
    return home


LINEAR = ("-r", "linear", "-s", "training.device=cpu", "-s", "optimizer.l2=1", "-s", "evaluation.baseline=false", "-q")
READING = {
    "pretrain": ("text.txt", ("pretrain", "-", *SMALL, "-q", "-o", "made")),
    "plan": ("rows.csv", ("plan", "-", "-r", "linear", "-s", "optimizer.l2=1", "--json", "-q")),
    "tokenize": ("text.txt", ("tokenize", "-", "--kind", "char", "--json")),
    "check": ("rows.csv", ("check", "-", "--json")),
    "finetune": ("rows.csv", ("finetune", "-", *LINEAR, "-o", "made")),
    "sweep": ("rows.csv", ("sweep", "-", "-r", "linear", "--seeds", "2")),
    "label": ("rows.csv", ("label", "-", "--labels", "a,b")),
    "eval": ("text.txt", ("eval", RUN, "-", "--json")),
    "predict": ("rows.csv", ("predict", "tuned", "-")),
    "embed": ("text.txt", ("embed", RUN, "-", "--pool", "mean", "--truncate", "-q")),
    "search index": ("text.txt", ("search", "index", "-", "--run", RUN, "-o", "index", "--json", "-q")),
    "recipes batch": ("text.txt", ("recipes", "batch", RUN, "-", "-q")),
}
"""Of each command that takes names of texts or tables: what it is given on standard input, and how it is called."""


def test_every_command_that_reads_files_is_tried() -> None:
    taking = [
        name
        for name, command in COMMANDS.items()
        if any({"TEXT", "TABLE"} & set(one.metavar.split("|")) for one in arguments_of(command))
    ]
    assert set(taking) == READING.keys()


@pytest.mark.parametrize("name", READING)
def test_a_hyphen_is_standard_input(
    lmtool: CommandLine, files: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    file, words = READING[name]
    if name == "predict":
        lmtool.succeeds("finetune", "rows.csv", *LINEAR, "-o", "tuned")
    read: list[str] = []

    def kept(*given: Any, **more: Any) -> None:
        read.append(given[0].data[0] if isinstance(given[0], SharedRunArguments) else given[0])
        raise SystemExit

    monkeypatch.setattr(SharedRunArguments, "resolve_for_all_runs", kept)
    monkeypatch.setattr(TableToLabel, "read", kept)
    monkeypatch.setattr(serve, "_check_installed", print)
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)
    content = (files / file).read_bytes()
    pipe_in(monkeypatch, content)
    outcome = lmtool.succeeds(*words)
    if name in ("sweep", "label"):
        assert Path(*read).read_bytes() == content
    elif name not in ("pretrain", "finetune", "search index"):
        pipe_in(monkeypatch, "")
        of_file = lmtool.succeeds(*(file if word == "-" else word for word in words))
        if "--json" in words:
            same = [{**one.json(), "name": "", "step_seconds": 0, "seconds": 0} for one in (outcome, of_file)]
            same = [{key: one[key] for key in one if "second" not in key and key != "basis"} for one in same]
            assert same[0] == same[1]
        else:
            assert outcome.out == of_file.out


def test_a_run_that_was_trained_on_standard_input_is_resumed(
    lmtool: CommandLine, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is read once: the run names a copy."""
    content = (files / "text.txt").read_bytes()
    pipe_in(monkeypatch, content)
    lmtool.succeeds("pretrain", "-", *SMALL, "-q", "-o", "made")
    pipe_in(monkeypatch, "")
    lmtool.succeeds("resume", "made", "-s", "training.steps=+2", "-q")


def test_what_is_piped_in_is_the_prompts(lmtool: CommandLine, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a name, what the shell puts into standard input; beside one it is not read."""
    settings = ("--greedy", "--max-new-tokens", "3", "-q")
    (files / "prompts.txt").write_text("The baker\nThe sailor\n")
    (files / "empty.txt").touch()

    def generated(file: str, *words: str) -> str:
        with open(files / file) as piped, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", piped)
            return lmtool.succeeds("generate", *words, *settings).out

    expected = lmtool.succeeds("generate", "--prompt-file", "prompts.txt", *settings).out
    assert generated("prompts.txt") == generated("prompts.txt", "-") == expected
    assert generated("empty.txt") == lmtool.succeeds("generate", "", *settings).out
    alone = generated("prompts.txt", "The moon")
    assert alone.startswith("The moon")
    assert "---" not in alone


@pytest.mark.parametrize(
    "words", [("gradients", "last"), ("attention", "last", "--json"), ("tokenize", "--tokenizer", "last", "--show")]
)
def test_a_sentence_is_read_from_standard_input(
    lmtool: CommandLine, files: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    expected = lmtool.succeeds(*words, "The baker sold").out
    pipe_in(monkeypatch, b"The baker sold\n")
    assert lmtool.succeeds(*words, "-").out == expected


def test_h_is_another_name_of_help() -> None:
    """Of every command, since all have it from the program."""
    for name in ("runs", "runs ls", "generate"):
        result = CliRunner().invoke(app, [*name.split(), "-h"])
        assert (result.exit_code, "Usage: " in result.output) == (0, True), name


def test_only_near_names_are_suggested() -> None:
    options = ["--temperature", "--top-k", "--max-new-tokens", "--json", "--prompt-file", "--seed", "--run", "--greedy"]
    for meant, *typed in (
        ("--temperature", "--temp", "--temprature"),
        ("--json", "--jsno"),
        ("--max-new-tokens", "--max_new_token", "--max-tokens"),
        ("--prompt-file", "--prompt"),
        ("--greedy", "--reedy"),
    ):
        for name in typed:
            assert find_near_words(name, options) == [meant]
    for name in ("--from", "--tok", "--format"):
        assert find_near_words(name, options) == []
