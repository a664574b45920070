"""One rule for all commands: how runs and files are named, what `-` and `-h` are, and what a closed pipe is."""

import io
import json
import sys

import pytest
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.cli.commands import serve
from lmtool.cli.help import RUN_OPTION, find_near_words
from lmtool.labelling.table import TableToLabel
from lmtool.sweeping.sweep import SweepInputs
from tests.cli.conftest import RUN, SENTENCES, SMALL
from tests.cli.test_help import ALL, NAMES

COMMANDS = {name: ALL[path] for name, path in NAMES.items() if not hasattr(ALL[path], "commands")}


def arguments(command):
    return [one for one in command.params if one.param_type_name == "argument"]


TAKING_RUN = [name for name, command in COMMANDS.items() if any(one.metavar == "RUN" for one in arguments(command)[:1])]
TAKING_RUN.append("recipes batch")


def test_every_run_can_be_named_by_an_option():
    """Also where another argument comes first: only what a run is trained from, or compared with, has its own name."""
    others = {"pretrain", "finetune", "plan", "sweep"}  # --from
    taking = {name for name, command in COMMANDS.items() if any("RUN" in str(one.metavar) for one in command.params)}
    assert {"chat", "generate", "runs rm", "check", "label", "recipes batch"} <= taking
    for name in taking - others - {"tokenize"}:
        assert "--run" in [option for one in COMMANDS[name].params for option in one.opts], name


@pytest.mark.parametrize("name", TAKING_RUN)
def test_an_argument_and_the_option_name_the_same_run(name):
    command = COMMANDS[name]
    n_more = len(arguments(command)) - 1
    more = ["one", "two"][: max(n_more, arguments(command)[0].nargs == -1)]
    many = more * 2 if arguments(command)[-1].nargs == -1 else more

    def parsed(*words):
        parameters = command.make_context(command.name, list(words)).params
        assert not parameters.pop(RUN_OPTION)
        return parameters

    expected = parsed("a-run", *many)
    assert "a-run" in str(expected)
    assert parsed("--run", "a-run", *many) == parsed(*many, "--run=a-run") == expected
    if n_more:
        assert parsed(*many[:1], "--run", "a-run", *many[1:]) == expected
    assert parsed("--run", "a-run", "--", *many) == expected


def test_runs_that_are_named_twice_are_too_many(lmtool, run):
    lmtool.refuses(2, "chat", "last", "--run", "last")
    assert lmtool.succeeds("runs", "show", "--run", "last").out == lmtool.succeeds("runs", "show", RUN).out
    both = lmtool.succeeds("runs", "compare", "--run", "last", "--run", RUN).out
    assert both == lmtool.succeeds("runs", "compare", "last", RUN).out
    checked = lmtool.succeeds("check", "--run", "last").out
    assert checked == lmtool.succeeds("check", "last").out


@pytest.fixture
def files(run, home):
    (home / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    rows = [f"{'good' if i % 2 else 'bad'} film {i},{'yes' if i % 2 else 'no'}" for i in range(40)]
    (home / "rows.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    return home


LINEAR = ("-r", "linear", "-s", "training.device=cpu", "-q")
READING = {
    "pretrain": ("text.txt", ("pretrain", "-", *SMALL, "-q", "-o", "made")),
    "plan": ("rows.csv", ("plan", "-", "--json", "-q")),
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


def test_every_command_that_reads_files_is_tried():
    taking = [
        name
        for name, command in COMMANDS.items()
        if any({"TEXT", "TABLE"} & set(one.metavar.split("|")) for one in arguments(command))
    ]
    assert set(taking) == READING.keys()


@pytest.mark.parametrize("name", READING)
def test_a_hyphen_is_standard_input(lmtool, files, monkeypatch, name):
    file, words = READING[name]
    if name == "predict":
        lmtool.succeeds("finetune", "rows.csv", *LINEAR, "-o", "tuned")
    read = []

    def kept(*given, **more):
        read.append([given[0].data] if isinstance(given[0], SweepInputs) else given)
        raise SystemExit

    monkeypatch.setattr(SweepInputs, "prepare", kept)
    monkeypatch.setattr(TableToLabel, "read", kept)
    monkeypatch.setattr(serve, "_check_installed", lambda command: None)
    content = (files / file).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    outcome = lmtool.succeeds(*words)
    if name in ("sweep", "label"):
        ((source, *_),) = read
        with open(source[0] if name == "sweep" else source, "rb") as kept_file:
            assert kept_file.read() == content
    elif name not in ("pretrain", "finetune", "search index"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        of_file = lmtool.succeeds(*(file if word == "-" else word for word in words))
        if "--json" in words:
            same = [{**json.loads(one.out), "name": "", "step_seconds": 0, "seconds": 0} for one in (outcome, of_file)]
            same = [{key: one[key] for key in one if "second" not in key and key != "basis"} for one in same]
            assert same[0] == same[1]
        else:
            assert outcome.out == of_file.out


def test_a_run_that_was_trained_on_standard_input_is_resumed(lmtool, files, monkeypatch):
    """Which is read once: the run names a copy."""
    content = (files / "text.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    lmtool.succeeds("pretrain", "-", *SMALL, "-q", "-o", "made")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    lmtool.succeeds("resume", "made", "-s", "training.steps=+2", "-q")
    lmtool.refuses(2, "pretrain", "-", "--valid", "-", words=["once"])


def test_what_is_piped_in_is_the_prompts(lmtool, files, monkeypatch):
    (files / "prompts.txt").write_text("The baker\nThe sailor\n")
    settings = ("--greedy", "--max-new-tokens", "3", "-q")
    expected = lmtool.succeeds("generate", "--prompt-file", "prompts.txt", *settings).out
    for words in (("generate",), ("generate", "-")):
        with open(files / "prompts.txt") as piped, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", piped)
            assert lmtool.succeeds(*words, *settings).out == expected
    (files / "empty.txt").write_text("")
    with open(files / "empty.txt") as piped, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", piped)
        nothing = lmtool.succeeds("generate", *settings).out
    assert nothing == lmtool.succeeds("generate", "", *settings).out
    with open(files / "prompts.txt") as piped, monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", piped)
        alone = lmtool.succeeds("generate", "The moon", *settings).out
    assert alone.startswith("The moon")
    assert "---" not in alone


@pytest.mark.parametrize("words", [("gradients",), ("attention", "--json"), ("tokenize",)], ids=lambda words: words[0])
def test_a_sentence_is_read_from_standard_input(lmtool, files, monkeypatch, words):
    command, *more = words
    named = ["--tokenizer", "last", "--show"] if command == "tokenize" else ["last"]
    expected = lmtool.succeeds(command, *named, "The baker sold", *more).out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The baker sold\n")))
    assert lmtool.succeeds(command, *named, "-", *more).out == expected


@pytest.mark.parametrize("name", [name for name in NAMES if name != "lmtool"])
def test_h_is_help(name):
    result = CliRunner().invoke(app, [*NAMES[name], "-h"])
    assert (result.exit_code, "Usage: " in result.output) == (0, True)


def test_only_near_names_are_suggested(lmtool, home):
    options = ["--temperature", "--top-k", "--max-new-tokens", "--json", "--prompt-file", "--seed", "--run", "--greedy"]
    for typed, meant in {
        "--temp": ["--temperature"],
        "--temprature": ["--temperature"],
        "--jsno": ["--json"],
        "--max_new_token": ["--max-new-tokens"],
        "--max-tokens": ["--max-new-tokens"],
        "--prompt": ["--prompt-file"],
        "--from": [],
        "--reedy": ["--greedy"],
        "--tok": [],
        "--format": [],
    }.items():
        assert find_near_words(typed, options) == meant
    (line, _) = lmtool.refuses(2, "generate", "a", "--from", "last")
    assert "mean" not in line
    lmtool.refuses(2, "generate", "a", "--temprature", "1", words=["--temperature"])
    lmtool.refuses(2, "pretrian", "a", words=["pretrain"])
    (line, _) = lmtool.refuses(2, "runs", "list")
    assert "mean" not in line
