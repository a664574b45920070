"""What an option does its key does: on the command line, alone or in a mapping, and in the recipe's file."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer

from lmtool.apps.checking import check as checking
from lmtool.cli import app, settings
from lmtool.interop import resolve
from lmtool.interop.resolve import resolve_recipe_for_text
from lmtool.recipe.spec.text import TABLE_KEYS
from lmtool.training import train as starting
from lmtool.training.cost import planning
from lmtool.training.plan import TrainingPlan
from tests.support.cli import SENTENCES, CommandLine, write_table
from tests.support.training import no_report

MODEL: dict[str, Any] = {"kind": "transformer", "n_layers": 1, "d_model": 16, "n_heads": 2, "context": 16}
TEXT: dict[str, Any] = {
    "model": MODEL,
    "tokenizer": {"kind": "bpe", "vocab_size": 300},
    "data": {"train": ["text.txt"]},
    "training": {"steps": 2, "batch_size": 4},
}
CLASSES = TEXT | {"objective": {"kind": "classification"}, "data": {"train": ["rows.csv"]}}
PAIRS = CLASSES | {"objective": {"kind": "seq2seq"}}
TASKS = {key: part for key, part in PAIRS.items() if key != "data"}
RECIPES = {"text.yaml": TEXT, "classes.yaml": CLASSES, "pairs.yaml": PAIRS, "tasks.yaml": TASKS}


@dataclass(frozen=True)
class Case:
    """An option with a value, and the key that it sets. where: recipe files and options that it is tried with."""

    option: str
    key: str
    value: object
    where: tuple[str, ...]
    typed: str = ""

    @property
    def words(self) -> list[str]:
        text = self.typed or str(self.value)
        if self.option.isupper():
            return [text]
        return [self.option] if self.value is True else [self.option, text]


PRETRAIN = ("", "-r text.yaml", "--from base", "--from base -r text.yaml")
PLANNED = ("default", "text.yaml", *PRETRAIN)
# how an option joins a recipe and a base run is tried with one option of each command, the others with one of these
TEXTS = ("text.txt -r text.yaml",)
CLASSIFIED = ("rows.csv -r classes.yaml", "rows.csv --from base", "rows.csv")
INPUT = ("rows.csv -r pairs.yaml --source-column text --target-column body",)

READING = (
    Case("--text-column", "data.text_columns", ["body"], CLASSIFIED, "body"),
    Case("--label-column", "data.label_column", "stars", CLASSIFIED[:1]),
    Case("--label-column", "data.label_column", "2024", CLASSIFIED[1:]),
    Case("--source-column", "data.source_column", "body", ("rows.csv -r pairs.yaml --target-column text",)),
    Case("--target-column", "data.target_column", "body", ("rows.csv -r pairs.yaml --source-column text",)),
    Case("--messages-column", "data.messages_column", "talk", ("talk.jsonl --from base",)),
    Case("--labels", "objective.task", "multi", CLASSIFIED),
    Case("--labels", "objective.task", "number", ("rows.csv -r classes.yaml --label-column 2024",)),
    Case("--labels", "objective.kind", "tagging", ("rows.conll -r classes.yaml",), "tags"),
    Case("--labels", "objective.kind", "question-answering", ("answers.json --from base",), "answers"),
    Case("--encoding", "data.encoding", "latin-1", CLASSIFIED[:1]),
    Case("--delimiter", "data.delimiter", "|", ("bars.csv -r classes.yaml",)),
    Case("--skip-bad-rows", "data.skip_bad_rows", True, CLASSIFIED[:1]),
    Case("--merge-labels", "data.merge_labels", {"nine": "ten"}, CLASSIFIED[:1], "nine=ten"),
    Case("--input-column", "data.input_column", "label", INPUT),
)
"""What each command reads tables by: the same declarations, which are tried with finetune."""
READ = {case.option for case in READING}

CASES: dict[str, tuple[Case, ...]] = {
    "pretrain": (
        Case("TEXT", "data.train", ["text.txt"], PRETRAIN, "text.txt"),
        Case("--valid", "data.valid", ["held.txt"], TEXTS, "held.txt"),
        Case("--column", "data.column", "body", ("body.jsonl --from base",)),
        Case("--minutes", "training.minutes", 2.0, TEXTS),
        Case("--epochs", "training.epochs", 3.0, ("text.txt --from base",)),
        Case("--tokens", "training.tokens", 3000, TEXTS),
        Case("--teacher", "distillation.teacher", "base", TEXTS),
    ),
    "plan": (
        Case("TEXT|TABLE|RECIPE", "data.train", ["text.txt"], PLANNED, "text.txt"),
        Case("--text", "data.train", ["text.txt"], ("-r text.yaml",), "text.txt"),
        Case("--valid", "data.valid", ["held.txt"], TEXTS, "held.txt"),
        Case("--column", "data.column", "body", ("body.jsonl -r text.yaml",)),
        Case("--minutes", "training.minutes", 2.0, TEXTS),
        Case("--epochs", "training.epochs", 3.0, ("rows.csv", "text.txt --from base")),
        Case("--tokens", "training.tokens", 3000, TEXTS),
    ),
    "tokenize": (
        Case("TEXT", "data.train", ["text.txt"], ("", "-r text.yaml"), "text.txt"),
        Case("--column", "data.column", "body", ("body.jsonl",)),
        Case("--kind", "tokenizer.kind", "wordpiece", TEXTS),
        Case("--vocab-size", "tokenizer.vocab_size", 320, ("text.txt",)),
        Case("--tokenizer", "tokenizer", {"kind": "file", "path": "base"}, TEXTS, "base"),
    ),
    "check": (
        Case("--valid", "data.valid", ["held.txt"], ("text.txt",), "held.txt"),
        Case("--test", "data.test", "rows.csv", ("rows.csv",)),
        Case("--column", "data.column", "body", ("body.jsonl",)),
        Case("--label-column", "data.label_column", "stars", ("rows.csv",)),
    ),
    "finetune": (
        Case("TABLE", "data.train", ["rows.csv"], ("-r classes.yaml", "--from base", ""), "rows.csv"),
        Case("--task", "data.tasks", ["a:pairs.csv"], ("-r tasks.yaml",), "a:pairs.csv"),
        Case("--task-test", "data.task_tests", ["a:pairs.csv"], ("--task a:pairs.csv --from base",), "a:pairs.csv"),
        Case("--valid", "data.valid", ["rows.csv"], CLASSIFIED[:1], "rows.csv"),
        Case("--test", "data.test", "rows.csv", CLASSIFIED[1:2]),
        Case("--epochs", "training.epochs", 2.0, CLASSIFIED),
        Case("--minutes", "training.minutes", 2.0, CLASSIFIED[:1]),
        Case("--metric", "evaluation.metric", "macro-f1", CLASSIFIED[1:2]),
        Case("--patience", "evaluation.patience", 2, CLASSIFIED[:1]),
        Case("--class-weights", "objective.class_weights", "balanced", CLASSIFIED[:1]),
        Case("--freeze", "tuning.freeze", "body", CLASSIFIED),
        Case("--lora-rank", "tuning.lora.rank", 3, CLASSIFIED),
        Case("--teacher", "distillation.teacher", "base", CLASSIFIED[:1]),
        *READING,
    ),
    "resume": (),
}
"""Each option of a command that sets keys of a recipe."""

REFUSED = {("--freeze", "rows.csv"), ("--lora-rank", "rows.csv"), ("--lora-rank", "rows.csv -r classes.yaml")}
"""Options where they have no model to tune, and so their keys."""

OTHERS = {
    "pretrain": {"--recipe", "--set", "--from", "--output", "--start-or-resume", "--profile", "--until", "--quiet"},
    "plan": {"--recipe", "--set", "--from", "--devices", "--device-kind", "--utilization", "--json", "--quiet"},
    "tokenize": {"--output", "--recipe", "--set", "--show", "--html", "--json", "--quiet"},
    "check": {
        *("RUN|TABLE|TEXT", "--tokenizer", "--set", "--cache", "--device", "--strict", "--json", "--quiet"),
        *("--fix", "--run", "--near"),
    },
    "finetune": {
        *("--from", "--recipe", "--set", "--merge", "--seeds", "--output"),
        *("--profile", "--start-or-resume", "--until", "--quiet"),
    },
    "resume": {"RUN", "--run", "--set", "--profile", "--quiet"},
}
"""Options that set no key."""


@pytest.fixture
def files(home: Path, trained: Path) -> Path:
    shutil.copytree(trained, home / "base")
    rows = [(f"good {i}", f"fine {i}", "ab"[i % 2], "yn"[i % 2], i) for i in range(40)]
    write_table(home / "rows.csv", rows, "text,body,label,stars,2024")
    write_table(home / "bars.csv", [(f"good, {i}", i % 2) for i in range(40)], "text|label", "|")
    write_table(home / "pairs.csv", [(f"say {i}", i) for i in range(40)], "source,target")
    talk = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good day"}]
    asked = [{"id": str(i), "question": "What?", "answers": [{"text": "maps", "answer_start": 5}]} for i in range(20)]
    squad = {"version": "1", "data": [{"title": "t", "paragraphs": [{"context": "sold maps", "qas": asked}]}]}
    written = {
        "text.txt": "\n".join(SENTENCES),
        "held.txt": "\n".join(SENTENCES[::3]),
        "body.jsonl": "\n".join(json.dumps({"body": text, "text": text[::-1]}) for text in SENTENCES),
        "talk.jsonl": "\n".join([json.dumps({"talk": talk, "other": 1})] * 20),
        "rows.conll": "Anna B-PER\nsold O\nmaps O\n\nTom B-PER\nran O\n\n" * 20,
        "answers.json": json.dumps(squad),
        **{name: json.dumps(recipe) for name, recipe in RECIPES.items()},
    }
    for name, content in written.items():
        (home / name).write_text(content, encoding="utf-8")
    return home


@pytest.fixture
def resolved(files: Path, lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recipe that a command would run, for check what is read and of which kind; or its exit code."""
    found: list[Any] = []

    def settled(plan: TrainingPlan, *given: Any, **more: Any) -> Any:
        found.append(plan.recipe)
        raise SystemExit

    def tokenized(recipe: Any, settings: Any, *given: Any) -> Any:
        found.append(resolve_recipe_for_text(recipe, settings, scan_progress=no_report)[0].recipe)
        raise SystemExit

    def looked(data: Any, *given: Any, **more: Any) -> Any:
        found.append((data, *(one for one in given if isinstance(one, str))))
        raise SystemExit

    monkeypatch.setattr(starting, "train", settled)
    monkeypatch.setattr(planning, "forecast_training", settled)
    monkeypatch.setattr(resolve, "resolve_recipe_for_text", tokenized)
    monkeypatch.setattr(checking, "check_text", looked)
    monkeypatch.setattr(checking, "check_labelled_tables", looked)

    def call(*words: str) -> Any:
        found.clear()
        outcome = lmtool(*words)
        return found[0] if found else outcome.code

    return call


def options(command: Any) -> set[str]:
    return {param.opts[0] if param.opts[0].startswith("-") else str(param.metavar) for param in command.params}


@pytest.mark.parametrize("name", CASES)
def test_every_option_is_known(name: str) -> None:
    """Of each command that takes settings of a recipe."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    taking = {own for own, command in commands.items() if "--set" in options(command)}
    assert taking - {"sweep"} == CASES.keys(), "but sweep, whose keys are those of other commands"
    assert settings.READ_OPTIONS.keys() == TABLE_KEYS
    assert options(commands[name]) - {"--help"} == {
        *(case.option for case in CASES[name]),
        *(READ if name in ("plan", "check") else ()),
        *OTHERS[name],
    }


def in_file(recipe: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """A recipe with a value written into it."""
    part, _, name = key.rpartition(".")
    if not part:
        return recipe | {name: value}
    outer, _, inner = part.partition(".")
    return recipe | {outer: in_file(recipe.get(outer, {}), f"{inner}.{name}" if inner else name, value)}


def spellings(case: Case) -> Iterator[list[str]]:
    """The overrides that set what an option sets."""
    if isinstance(case.value, dict):
        if case.key != "data.merge_labels":  # whose labels are no keys
            yield [word for name, one in case.value.items() for word in ("-s", f"{case.key}.{name}={one}")]
        yield ["-s", f"{case.key}={json.dumps(case.value)}"]
        return
    yield ["-s", f"{case.key}={case.value if isinstance(case.value, str) else json.dumps(case.value)}"]
    outer, *inner = case.key.split(".")
    for n in range(len(inner)):
        nested: object = case.value
        for name in reversed(inner[n:]):
            nested = {name: nested}
        yield ["-s", f"{'.'.join((outer, *inner[:n]))}={json.dumps(nested)}"]


@pytest.mark.parametrize(
    ("name", "case", "where"),
    [
        pytest.param(name, case, where, id=f"{name} {case.option} {case.value}: {where}")
        for name, cases in CASES.items()
        for case in cases
        for where in case.where
    ],
)
def test_an_option_does_what_its_key_does(name: str, case: Case, where: str, resolved: Any, files: Path) -> None:
    words = where.split()
    expected = resolved(name, *words, *case.words)
    for spelled in spellings(case):
        assert resolved(name, *words, *spelled) == expected
        assert resolved(name, *spelled, *words) == expected
    file = next((word for word in words if word.endswith(".yaml")), None)
    if file is not None:
        (files / "written.yaml").write_text(json.dumps(in_file(RECIPES[file], case.key, case.value)), encoding="utf-8")
        found = resolved(name, *("written.yaml" if word == file else word for word in words))
        assert found == expected
    assert not isinstance(expected, int) or (expected == 2 and (case.option, where) in REFUSED)
