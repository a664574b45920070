"""One crossing: a run with some features at once, and all that must hold of it."""

import json
import math
import random
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lmtool.runs.directory import Run
from tests.campaigns.commands import Hook, Outcome, lmtool, problems_of, run_together
from tests.campaigns.homes import digests, settings
from tests.campaigns.watching import Kill, Record
from tests.crossings import axes
from tests.crossings.axes import AXES, OF_MODEL, PUBLISHED, TASKS, USUAL, WITHOUT_TEXT, Row, chosen, is_named
from tests.crossings.home import SHORT, table_of
from tests.support.training import lasting, metrics

WHOLE, AGAIN, OTHER = "runs/whole", "runs/again", "runs/other"
TOLERANCES = {"float32": 2e-4, "bfloat16": 0.05}
FIGURES = ("loss", "valid_loss")


@dataclass
class Crossing:
    """A row in a home of its own.

    row: what is left of it, without what was refused. did: in words that are counted. problems: there should be none.
    refused: combinations that were refused, by the name of one of their keys.
    """

    home: Path
    row: Row
    did: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    refused: list[list[tuple[str, str]]] = field(default_factory=list)

    def run(self, rng: random.Random) -> None:
        """Train, kill, resume, repeat with other processes, and use what was trained."""
        events = self._train_reduced()
        if events is None:
            return
        self._losses_are_finite()
        self._killed_and_resumed(events, rng)
        self._with_other_processes()
        self._evaluations_agree()
        for name, command, must in uses(self.row):
            self._use(name, lmtool(self.home, *shlex.split(command)), must)

    def _train_reduced(self) -> list[str] | None:
        """Train, without a feature more whenever one is refused; returns the operations on files of the run."""
        for _ in range(len(AXES)):
            outcome = self._prepare() or first_refusal(self._train(WHOLE, Record(self.home.with_name("events"))))
            if outcome.code == 0:
                return self.home.with_name("events").read_text().splitlines()
            if outcome.code not in (2, 3):
                self._report(outcome)
                return None
            named = [axis for axis in chosen(self.row) if is_named(axis, self.row[axis], outcome.err)]
            if not named:
                self.problems.append(f"refused without the name of a key: {outcome.err[-500:]}")
                return None
            values = [(axis, self.row[axis]) for axis in named[:2]]
            self.refused.append(values if len(values) == 2 else [("task", self.row["task"]), *values])
            self.did.append(f"refused {values[0][0]} {values[0][1]}")
            self.row = {**self.row, named[0]: USUAL[named[0]]}
            for made in ("runs", "published"):
                shutil.rmtree(self.home / made, ignore_errors=True)
        raise AssertionError("a row without any feature is refused")

    def _prepare(self) -> Outcome | None:
        """Train what the row needs; returns the outcome of what failed."""
        for name, row, more in needed(self.row):
            if (self.home / name).exists():
                continue
            outcome = lmtool(self.home, *words_of(row, name, more))
            if outcome.code:
                return outcome
            if name == "runs/base" and self.row["base"] == "published":
                outcome = lmtool(self.home, "export", name, "published", "-q")
                if outcome.code:
                    # some models no family can express
                    code = 2 if outcome.code == 4 else outcome.code
                    return Outcome(outcome.words, code, "", f"--from: {outcome.err}", False, 0)
        return None

    def _train(self, name: str, hook: Hook | None = None) -> list[Outcome]:
        return run_together(self.home, words_of(self.row, name), processes_of(self.row), hook)

    def _report(self, *outcomes: Outcome, codes: Sequence[int] = (0,)) -> bool:
        """Keep the problems of these outcomes; whether there are any."""
        self.problems += (problems := problems_of(outcomes, codes))
        return bool(problems)

    def _losses_are_finite(self) -> None:
        for record in metrics(self.home / WHOLE):
            figures = {key: record[key] for key in FIGURES if record.get(key) is not None}
            wrong = [f"{key} is {value}" for key, value in figures.items() if not math.isfinite(value)]
            self.problems += [f"step {record['step']}: {one}" for one in wrong]

    def _killed_and_resumed(self, events: Sequence[str], rng: random.Random) -> None:
        of_run = [line for line in events if f"\t{WHOLE}/" in line]
        first = next(i for i, line in enumerate(of_run, 1) if line.startswith("rename\t") and "/.tmp-step-" in line)
        at = rng.randint(min(first + 2, len(of_run)), len(of_run))
        outcomes = self._train(AGAIN, Kill(at, below=f"{AGAIN}/"))
        if outcomes[0].killed:
            self.did.append("killed")
            if any(outcome.hung for outcome in outcomes):
                self.problems.append("a process hung after another was killed")
            if self._report(*run_together(self.home, ("resume", AGAIN, "-q"), processes_of(self.row))):
                return
        elif self._report(*outcomes):
            return
        if Run.open(self.home / AGAIN).state != "finished":
            self.problems.append(f"resumed, the run is {Run.open(self.home / AGAIN).state}")
            return
        if by_the_clock(self.row):
            return
        step = max(int(path.name.rpartition("-")[2]) for path in (self.home / WHOLE / "checkpoints").glob("step-*"))
        whole, again = (digests(lasting(self.home / name, step)) for name in (WHOLE, AGAIN))
        other = [part for part in whole if whole[part] != again.get(part)]
        if other:
            self.problems.append(f"killed at {at} of {len(of_run)} and resumed, other: {', '.join(other)}")

    def _with_other_processes(self) -> None:
        """The same losses in one process and in two; not where dropout or samples are drawn for each micro-batch."""
        if is_random(self.row) or by_the_clock(self.row):
            return
        row = {**self.row, "processes": "one" if processes_of(self.row) == 2 else "two"}
        outcomes = run_together(self.home, words_of(row, OTHER), processes_of(row))
        if all(outcome.code == 2 for outcome in outcomes):
            self.did.append("refused in other processes")
            return
        if self._report(*outcomes):
            return
        tolerance = TOLERANCES[self.row["precision"]]
        for one, other in zip(metrics(self.home / WHOLE), metrics(self.home / OTHER), strict=True):
            for key in FIGURES:
                if one.get(key) is not None and other.get(key) != pytest.approx(one[key], rel=tolerance, abs=1e-5):
                    found = f"{one[key]}, in other processes {other.get(key)}"
                    self.problems.append(f"{key} of step {one['step']}: {found}")
                    return
        self.did.append("the same in other processes")

    def _evaluations_agree(self) -> None:
        """The same evaluation in one process and in two."""
        task = TASKS[self.row["task"]]
        words: tuple[str, ...] = ("eval", WHOLE, data_of(self.row, ".test"), "--json", "-q")
        if task.table == "tasks":
            words = (*words, "--task", "turn")
        alone = lmtool(self.home, *words)
        if alone.code in (2, 4) and not task.predicts and task.table is None:
            self._report(alone, codes=(2, 4))
            return
        two = run_together(self.home, words, 2)
        if self._report(alone, *two):
            return
        one, both = json.loads(alone.out), [json.loads(outcome.out) for outcome in two if outcome.out.strip()]
        if len(both) != 1:
            self.problems.append(f"eval prints {len(both)} results in two processes")
            return
        different = [path for path, a, b in both_leaves(one, both[0]) if not same(a, b)]
        if different:
            self.problems.append(f"evaluated in two processes, other: {', '.join(different[:5])}")
        self.did.append("evaluated")

    def _use(self, name: str, outcome: Outcome, must: bool) -> None:
        """Judge a use of the run. must: it has to work; else it may also refuse, with the name of something."""
        if self._report(outcome, codes=(0,) if must else (0, 2, 4)):
            return
        if outcome.code and len(outcome.error_lines) < 1:
            self.problems.append(f"{name} says nothing of why it ended with {outcome.code}")
        self.did.append(name if outcome.code == 0 else f"no {name}")


def first_refusal(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of the first process that refused, after which the others were told to end; else of the main one."""
    return next((outcome for outcome in outcomes if outcome.code in (2, 3)), outcomes[0])


def processes_of(row: Row) -> int:
    return 1 if row["processes"] == "one" else 2


def is_random(row: Row) -> bool:
    """Whether something is drawn for each micro-batch, which other processes cut otherwise."""
    draws = row["loss"] == "scheduled" or row["dropout"] != USUAL["dropout"]
    return draws or row["task"] == "electra"


def by_the_clock(row: Row) -> bool:
    """Whether the time that steps take decides how many there are."""
    return row["length"] == "minutes"


def words_of(row: Row, output: str, more: Sequence[str] = ()) -> list[str]:
    """The command that trains a row. more: overrides of one that is trained from scratch."""
    task, table = TASKS[row["task"]], row["table"]
    words = ["pretrain"] if task.table is None else ["finetune"]
    if task.table is None:
        words += [] if "mixture" in row["text"] else ["text.txt"]
    elif task.table == "tasks":
        words += ["--task", "turn:pairs.csv", "--task", "again:pairs.valid.csv:2"]
    else:
        words += [table_of(task.table, table)]
        if table == "valid and test":
            words += [f"--{part}={table_of(task.table, table, f'.{part}')}" for part in ("valid", "test")]
    if row["base"] == "none":
        words += ["--recipe", "tiny.yaml", *settings([*axes.settings(row), *more])]
    else:
        model = "published" if row["base"] == "published" else "runs/base"
        words += ["--from", model, *settings([*SHORT, *axes.settings_on_base(row)])]
    return [*words, "-o", output, "-q"]


def needed(row: Row) -> Iterator[tuple[str, Row, Sequence[str]]]:
    """Runs that another run needs, by name, and more overrides; each after those that it needs itself."""
    of_model = {axis: row[axis] for axis in OF_MODEL}
    if row["vectors"] == "a run":
        yield "runs/vectors", {**USUAL} | {"task": "skip-gram", "tokenizer": row["tokenizer"]}, ()
    if row["features"] != "none":
        yield "runs/features", {**USUAL} | {"task": "gpt", "tokenizer": row["tokenizer"]}, ()
    if row["base"] != "none":
        body = TASKS[row["task"]].body or row["task"]
        usual_text = TASKS[body].table is None
        more = PUBLISHED.get(body, ()) if row["base"] == "published" else ()
        labels = {} if usual_text else {"labels": row["labels"]}
        yield "runs/base", {**USUAL} | of_model | {"task": body} | labels, more
    if row["teacher"] != "none":
        kept = {axis: row[axis] for axis in (*OF_MODEL, "task", "base", "labels", "table")}
        yield "runs/teacher", {**USUAL} | kept, ()


def data_of(row: Row, part: str = "") -> str:
    """What the trained model is evaluated on."""
    table = TASKS[row["task"]].table
    if table is None:
        return "other.txt"
    return table_of("pairs" if table == "tasks" else table, row["table"] if row["table"] != "bad rows" else "csv", part)


def uses(row: Row) -> Iterator[tuple[str, str, bool]]:
    """Commands that use a run, with a name in front, and whether they have to work."""
    task = TASKS[row["task"]]
    labels = task.table in WITHOUT_TEXT
    chooses = "--task turn" if task.table == "tasks" else ""
    is_masked = any("masked" in text for text in task.objective)
    after = "generate 'the cat' --greedy --overflow cut"
    how = "generate 'the [MASK] sat' --mask [MASK]" if is_masked else f"{after} --max-new-tokens 3"
    yield "generate", f"{how} --run {WHOLE}", task.writes and not labels
    form = f"{after} --choices the,cat --max-new-tokens 8 --run {WHOLE}"
    yield "generate in a form", form, task.writes and not (labels or is_masked)
    if task.table == "related":
        yield "embed", f"embed {WHOLE} other.txt --whole --truncate -o new.npz", True
    elif task.table is not None:
        yield "predict", f"predict {WHOLE} {data_of(row, '.test')} -o predicted.csv {chooses} -q", True
    # the recipe of a run that had a base does not say which vocabulary it took over
    is_whole = row["base"] == "none" and not task.counts
    yield "report", f"report {WHOLE} -o page.html", True
    yield "check", f"check {WHOLE}", True
    yield "show", f"runs show {WHOLE}", True
    yield "plan", f"plan {WHOLE}/recipe.yaml --device-kind h100 -q", is_whole
    yield "export", f"export {WHOLE} new-published -q", False
    yield "export of GGUF", f"export {WHOLE} new.gguf --gguf f16 -q", False
    yield "merge", f"runs merge {WHOLE} -o runs/merged", row["tuning"].startswith("lora")


def both_leaves(one: object, other: object, path: str = "") -> Iterator[tuple[str, object, object]]:
    """The leaves of two JSON values side by side."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in {**one, **other}:
            yield from both_leaves(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from both_leaves(a, b, f"{path}[{i}]")
    else:
        yield path, one, other


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float | int):
        return other == pytest.approx(one, rel=1e-4, abs=1e-6)
    return one == other
