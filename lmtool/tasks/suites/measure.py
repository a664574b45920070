"""Measures the tasks of a suite: rows in chunks, each kept when it is scored, so that an interrupted suite goes on."""

import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path

import numpy as np

from lmtool import __version__, durable
from lmtool.checksum import sha256_of_json
from lmtool.compute.processes import is_main
from lmtool.data.catalogue import read_catalogue
from lmtool.data.files import hash_files
from lmtool.data.survey import Progress
from lmtool.data.table import Table, open_table
from lmtool.errors import LmtoolError, UsageError
from lmtool.generation.generate import TextGenerator
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.params import SamplingParams
from lmtool.inference.evaluation import not_reported
from lmtool.inference.load import LoadedModel
from lmtool.inference.scoring import ScoredContinuation, check_continues, score_continuations, score_whole
from lmtool.recipe.spec.text import Data
from lmtool.records import parse
from lmtool.run.directory import SUITES
from lmtool.tasks.suites.rendering import Rendering, TaskItem, joined
from lmtool.tasks.suites.results import WAYS, RowScores, SuiteResults, TaskFigures
from lmtool.tasks.suites.spec import (
    AnyTask,
    ChoiceTask,
    ContinuationTask,
    MatchTask,
    PromptedTask,
    SchemaTask,
    TextTask,
)

CHUNK = 1024
"""Rows that are sorted by length, scored and kept together."""


@contextmanager
def kept_rows(loaded: LoadedModel) -> Iterator[Path]:
    """The folder of a run for what was scored, or one that goes away where the run cannot be written to.

    Another command that measures the same run waits.
    """
    if not os.access(loaded.run_path, os.W_OK):
        with tempfile.TemporaryDirectory() as scratch:
            yield Path(scratch)
        return
    folder = loaded.run_path / SUITES
    with durable.locked(folder / ".lock") if is_main() else nullcontext():
        yield folder


def open_tasks(loaded: LoadedModel, tasks: Mapping[str, AnyTask]) -> list[Rendering]:
    """The tasks of a suite with their tables.

    Raises UsageError for one that the model cannot do, or whose templates do not fit its table; the errors of tables.
    """
    for name, task in tasks.items():
        _check(loaded, name, task)
    return [_opened(name, task) for name, task in tasks.items()]


def measure_suite(
    loaded: LoadedModel, suite: str, tasks: Sequence[Rendering], folder: Path, report: Progress = not_reported
) -> SuiteResults:
    """Results of each task of a suite by all processes together. folder: where rows are kept, and found again."""
    with loaded.joined() as loaded:
        return SuiteResults(suite, {one.name: _measure(loaded, one, folder, report) for one in tasks})


def write_rows(path: Path, results: SuiteResults) -> None:
    """Write what is kept of all rows, each with the name of its task, to a new file."""
    rows = ({"task": name, **row} for name, one in results.tasks.items() for row in one.rows())
    durable.write_output(path, (json.dumps(row).encode() + b"\n" for row in rows))


def texts_of(tasks: Sequence[Rendering]) -> Iterator[tuple[str, str]]:
    """The texts of all rows, those of the right choices and without examples, each after its name."""
    for one in tasks:
        for row in islice(one.table.rows(), one.task.limit):
            item = one.item(one.table, row)
            yield f"{one.name}, row {row.number}", joined(*item.pairs[item.right])


def _check(loaded: LoadedModel, name: str, task: AnyTask) -> None:
    """Raise UsageError for a task that a model cannot do."""
    check_continues(loaded)
    model = f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind}"
    writes_nothing = isinstance(task, MatchTask | ContinuationTask) and not TextGenerator(loaded).writes
    if writes_nothing or (isinstance(task, TextTask) and loaded.prompt_format.answers):
        fix = "leave the task out, or name another model"
        raise UsageError(f"{model} does no task of kind {task.kind}", where=name, fix=fix)


def _opened(name: str, task: AnyTask) -> Rendering:
    """The tables of a task, and its templates, which are read."""
    examples = task.examples if isinstance(task, PromptedTask) else None
    reading = Data(encoding=task.encoding, delimiter=task.delimiter)
    pool = None if examples is None else _table(examples, reading)
    rendering = Rendering(name, task, _table(task.table, reading), pool)
    assert rendering.templates
    return rendering


def _table(source: str, reading: Data) -> Table:
    """A table; the error says how to get one of a package that is missing, and names keys of a task, not options."""
    try:
        return open_table(source, reading)
    except LmtoolError as error:
        error.fix = re.sub(r"--(encoding|delimiter) ", r"\1: ", error.fix or "")
        for name, data in read_catalogue().data.items():
            if Path(source).name in data.sha256 and not Path(source).exists():
                error.fix = f"lmtool data get {name} makes it"
        raise


def _measure(loaded: LoadedModel, rendering: Rendering, folder: Path, report: Progress) -> TaskFigures:
    """Results of a task; its rows that were scored before are read."""
    task, table = rendering.task, rendering.table
    paths = [one.path for one in (table, rendering.pool) if one is not None]
    what = [__version__, loaded.checkpoint_hash, loaded.compute.precision, hash_files(paths)]
    key = sha256_of_json([*what, task.model_dump(exclude={"table", "examples", "limit"})])
    results, world = TaskFigures(task, folder / f"{key[:32]}.jsonl"), loaded.compute.world
    done = int(world.from_main(str(_read(results))))
    total = min(table.n_rows, task.limit or table.n_rows)
    rows = enumerate(islice(table.rows(), done, task.limit), done)
    while chunk := [(number, rendering.item(table, row)) for number, row in islice(rows, CHUNK)]:
        items = [item.after(rendering.before(number)) for number, item in chunk]
        names = [f"{rendering.name}, row {number}" for number in range(done + 1, done + len(items) + 1)]
        scored = [{"row": done + n, **one} for n, one in enumerate(_scores(loaded, task, items, names), 1)]
        for one in scored:
            results.add(one)
        if world.is_main:
            with durable.writing(results.kept), results.kept.open("ab") as file:
                file.writelines(json.dumps(one).encode() + b"\n" for one in scored)
        done += len(chunk)
        report(f"{rendering.name}, rows", done, total)
    return results


def _read(results: TaskFigures) -> int:
    """Add the rows that are kept, as many as the task has, and forget an incomplete last one; returns how many."""
    if not results.kept.exists():
        return 0
    with results.kept.open("r+b") as file:
        for line in iter(file.readline, b""):
            if not line.endswith(b"\n"):
                file.truncate(file.tell() - len(line))
            elif results.sums["rows"] != results.task.limit:
                results.add(parse(line))
    return results.sums["rows"]


def _scores(loaded: LoadedModel, task: AnyTask, items: Sequence[TaskItem], names: Sequence[str]) -> Iterator[RowScores]:
    """What is kept of each row. names: of the rows, for messages."""
    if isinstance(task, TextTask):
        texts = [item.pairs[0][1] for item in items]
        for text, log_p in zip(texts, score_whole(loaded, texts), strict=True):
            yield {"nats": -log_p, "words": len(text.split()), "bytes": len(text.encode()), "cut": False}
        return
    if isinstance(task, MatchTask):
        params, generator = SamplingParams("greedy", max_new_tokens=task.max_new_tokens), TextGenerator(loaded)
        prompts = [item.pairs[0][0].rstrip() for item in items]
        written = generator.completions(prompts, params, stop=task.stop, overflow="cut")
        runner = ModelRunner(loaded.model)
        for item, prompt, completion in zip(
            items, map(loaded.prompt_format.make_prompt, prompts), written, strict=True
        ):
            answer = _extracted(completion.text, task.pattern)
            right = answer in {text.strip() for _, text in item.pairs}
            cut = runner.fit_prompt(prompt, "cut", "") != prompt
            yield {"text": completion.text, "answer": answer, "right": right, "cut": cut}
        return
    scored, bare = (
        score_continuations(loaded, groups, names[: len(groups)], begins=task.begins, cuts=True)
        for groups in ([item.pairs for item in items], [item.bare for item in items if item.bare])
    )
    for item, each, free in zip(items, scored, bare or [[]] * len(items), strict=True):
        cut = any(one.is_cut for one in each)
        if isinstance(task, ContinuationTask):
            yield {"log_p": each[0].total, "right": each[0].is_greedy, "cut": cut}
        else:
            yield _compared(task, item, each, free) | {"cut": cut}


def _compared(
    task: ChoiceTask | SchemaTask,
    item: TaskItem,
    each: Sequence[ScoredContinuation],
    free: Sequence[ScoredContinuation],
) -> RowScores:
    """The scores of choices in all ways, and which each of these picks."""
    totals = [one.total for one in each]
    scores = {"sum": totals, "per_token": [one.mean for one in each]}
    if isinstance(task, ChoiceTask):
        texts = [text for _, text in item.pairs]
        scores["per_byte"] = [total / max(1, len(text.encode())) for total, text in zip(totals, texts, strict=True)]
    if free:
        scores["calibrated"] = [total - one.total for total, one in zip(totals, free, strict=True)]
    picks = {way: int(np.argmax(scores[way])) for way in WAYS if way in scores}
    right = picks[task.score] == item.right
    return {"choices": len(each), "answer": item.right, "right": right, "picks": picks, "scores": scores}


def _extracted(text: str, pattern: str | None) -> str | None:
    """The answer in a generated text."""
    if pattern is None:
        return text.strip()
    match = re.search(pattern, text)
    return None if match is None else (match[1] if match.re.groups else match[0] or "").strip()
