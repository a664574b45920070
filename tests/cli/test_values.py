"""Values that no option means: numbers beyond all, and what is no text. None of them is an unexpected error."""

import re
from pathlib import Path

import pytest

from lmtool.training.cost import planning
from tests.support.cli import COMMANDS, SMALL, CommandLine, options_of, pipe_in

NUMBERS = ("9" * 400, "-" + "9" * 400, "1e308", "-1e308", "nan", "inf", "-inf", "-0")
TEXTS = ("\ud800", "caf\udce9")
"""Half a character, and the bytes of a name that is not UTF-8."""
WORDS: dict[str, tuple[str, ...]] = {
    "pretrain": ("tales.txt", *SMALL, "-s", "training.steps=1", "-q", "-o", "out"),
    "plan": ("tiny", *SMALL, "-q"),
    "resume": ("last", "-q"),
    "generate": ("The", "--max-new-tokens", "1"),
    "chat": ("last", "-q", "--max-new-tokens", "1"),
    "serve": ("last", "--host", "256.256.256.256"),
    "finetune": ("table.csv", "--from", "last", "-q", "-s", "training.epochs=null", "-s", "training.steps=1"),
    "sweep": ("missing.txt", "-s", "seed=1,2", "-q"),
    "predict": ("last", "table.csv"),
    "eval": ("last", "tales.txt"),
    "neighbors": ("last", "map"),
    "gradients": ("last", "The map"),
    "embed": ("last", "--text", "The map"),
    "search index": ("tales.txt", "--run", "last", "-o", "texts.index"),
    "search query": ("missing.index", "The map"),
    "attention": ("last", "The map"),
    "report": ("last", "-o", "page.html"),
    "import": ("missing",),
    "export": ("last", "out"),
    "push": ("last", "nobody"),
    "check": ("table.csv",),
    "label": ("missing.csv",),
    "tokenize": ("tales.txt", "-o", "out", "-q"),
    "runs ls": (),
    "runs cache": (),
    "runs show": ("last",),
    "runs compare": ("last", "last"),
    "runs merge": ("last",),
    "runs rm": (),
    "recipes ls": (),
    "recipes show": ("tiny",),
    "recipes draw": ("tiny",),
    "recipes schema": (),
    "recipes batch": ("tiny", "The map"),
    "data ls": (),
    "data get": ("missing",),
}
"""Arguments with which each command begins to work."""
OPTIONS = {
    name: sorted({max(one.opts, key=len) for one in options_of(command).values() if not getattr(one, "is_flag", False)})
    for name, command in COMMANDS.items()
}
"""The options with a value of each command."""
DECLARED = {
    (option, options_of(COMMANDS[name])[option].help): (name, option)
    for name in WORDS
    for option in OPTIONS[name]
    if option != "--tasks"
}
"""The options with a value, each with one of the commands that declare it alike; but names of tasks, which lm-eval
looks for among all of its own for seconds: tests/tasks refuses wrong ones."""


def test_every_command_is_here() -> None:
    assert set(OPTIONS) == set(WORDS)


@pytest.fixture
def folder(lmtool: CommandLine, run: Path, home: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(planning, "ESTIMATE_SECONDS", 0.01)  # that a step is measured
    (home / "tales.txt").write_bytes(corpus.read_bytes())
    (home / "table.csv").write_text("text,label\n" + "".join(f"a map {i},{'xy'[i % 2]}\n" for i in range(20)))
    return home


@pytest.mark.parametrize(("name", "option"), [*DECLARED.values()])
def test_no_value_of_an_option_is_an_unexpected_error(
    lmtool: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    told = lmtool(*name.split(), *WORDS[name], f"{option}=x").err
    for value in NUMBERS if re.search("valid (int|float|number)|is not a (whole )?number", told) else TEXTS:
        pipe_in(monkeypatch, "")
        outcome = lmtool(*name.split(), *WORDS[name], f"{option}={value}")
        assert outcome.code != 1, (value, outcome)
        assert outcome.code == 2 or value in ("-0", *TEXTS), (value, outcome)


@pytest.mark.parametrize("name", WORDS)
def test_no_argument_is_an_unexpected_error(
    lmtool: CommandLine, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    words = WORDS[name]
    for i, word in enumerate(words):
        if not word.startswith("-") and (i == 0 or not words[i - 1].startswith("-")):
            for value in (*TEXTS, "9" * 400, "", "nan"):
                pipe_in(monkeypatch, "")
                outcome = lmtool(*name.split(), *words[:i], value, *words[i + 1 :])
                assert outcome.code != 1, (value, outcome)


FILES = {("attention", "--npz"), ("check", "--fix"), ("eval", "--rows"), ("generate", "--html"), ("tokenize", "--html")}
FOLDERS = {"data get", "finetune", "import", "pretrain", "runs merge", "search index", "sweep", "tokenize"}
FILES |= {(name, "--output") for name, options in OPTIONS.items() if "--output" in options and name not in FOLDERS}


@pytest.mark.parametrize(("name", "option"), sorted(FILES))
def test_a_file_to_write_is_refused_before_anything_is_read(
    lmtool: CommandLine, folder: Path, name: str, option: str
) -> None:
    """Where its name is none, that of a folder, or in a folder that is not there."""
    for code, value in ((2, ""), (2, "."), (2, ".."), (2, "/"), (2, "runs"), (2, "runs/"), (5, "none/x.html")):
        lmtool.refuses(code, *name.split(), *WORDS[name], f"{option}={value}")
        lmtool.refuses(code, *name.split(), *WORDS[name], option, value)


@pytest.mark.parametrize(
    "words", [*((*name.split(), *WORDS[name], "-o") for name in sorted(FOLDERS)), ("export", "last")]
)
def test_a_folder_to_write_has_a_name(lmtool: CommandLine, folder: Path, words: list[str]) -> None:
    before = sorted(folder.iterdir())
    lmtool.refuses(2, *words, "")
    assert sorted(folder.iterdir()) == before
