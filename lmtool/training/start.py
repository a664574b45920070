"""Starting and resuming: from a user's request to a locked run directory and the training in it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from lmtool.compute.device import Compute, resolve
from lmtool.compute.memory import machine_memory
from lmtool.compute.processes import World, joined, local_rank
from lmtool.errors import CheckpointError, UsageError
from lmtool.inference.base import Base, base_of, open_base, read_tokenizer, recipe_of, teacher_of, written_recipe
from lmtool.model.size import check_fits, outline
from lmtool.recipe.changes import changes, unchangeable
from lmtool.recipe.dump import dump
from lmtool.recipe.finetuning import recipe_for_tables, recipe_for_text, with_choices
from lmtool.recipe.load import Resolved, Setting, lay_over, load
from lmtool.recipe.pretraining import NAME, DefaultRecipe
from lmtool.recipe.spec import Classification, Data, Distillation, Recipe, Recurrent, Seq2Seq, Transformer
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import FLOOR, RECIPE, RESULTS, SPLIT, Run, check_folder, describe_environment
from lmtool.run.find import find
from lmtool.tables.data import TableData, TaskTables, open_tables, read_tables, sample_texts
from lmtool.tables.floor import Floor, has_words
from lmtool.text.disk import write_file
from lmtool.text.prepare import default_cache
from lmtool.text.survey import Report, settle
from lmtool.text.tokenizer import Tokenizer
from lmtool.training.data import TrainingData, read_text
from lmtool.training.events import AlreadyFinished, Event, Noted, Started, Warned
from lmtool.training.keeper import TrainingState
from lmtool.training.length import with_length
from lmtool.training.teaching import check_teacher, tokenizer_of, with_teacher
from lmtool.training.train import train

CHARACTERS = ("tokenizer.kind=char", "model.ngrams=5", "model.context=2048")
"""Overrides of the recipe `linear` for texts whose words do not recur."""


def pretrain(
    resolved: Resolved | DefaultRecipe,
    base: Base | None,
    *,
    output: Path | None,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event]:
    """Prepare the text, create a run directory, and train.

    resolved: a recipe, or the default one, which the text settles. base: another run for the initial weights and the
    tokenizer; from scratch when None. output: the run directory; a
    new one under the runs directory when None. command: as typed, for run.json. report: called with the progress of
    preparing the text. stop: called after each step.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    began = time.perf_counter()
    check_folder(output)
    resolved, inferred = settle(resolved, cache=default_cache(), report=report)
    resolved, teacher = with_teacher(resolved, base)
    tokenizer = tokenizer_of(base, teacher)
    recipe = resolved.recipe
    if not recipe.data.train:
        raise UsageError("no text to train on", fix="name a file: lmtool pretrain TEXT")
    if recipe.data.split == "slice" and recipe.data.documents in ("line", "blank-line"):
        raise UsageError(
            f"data.documents {recipe.data.documents} divides the text, but data.split slice makes one text of it",
            where=", ".join(dict.fromkeys(resolved.origins[f"data.{key}"] for key in ("documents", "split"))),
            fix="set data.split=document, or data.documents=whole",
        )
    if _is_for_tables(recipe):
        raise UsageError(
            f"objective {recipe.objective.kind} is trained on a table, not on a text",
            fix="lmtool finetune TABLE" + ("" if resolved.name == NAME else f" --recipe {resolved.name}"),
        )

    def read(world: World, compute: Compute) -> tuple[TrainingData, tuple[str, ...]]:
        data = read_text(recipe, tokenizer, world, report)
        if not recipe.training.has_budget:
            return data, inferred
        report("measuring the speed", 0, 0)
        data, length = with_length(data, began, compute, world, base, teacher)
        return data, (*inferred, length)

    yield from _begin(resolved, read, base, teacher, output, command, stop)


def to_continue(
    source: str, other: Resolved | None, overrides: Sequence[str], flags: Sequence[Setting]
) -> tuple[Resolved, Base]:
    """The recipe with which `pretrain` continues training a run on another text, and the run's weights.

    other: the recipe of all but model, tokenizer and data; the run's own recipe when None.
    """
    base = open_base(source)
    own = base.recipe.model_copy(update={"distillation": Distillation()})
    recipe = recipe_for_text(base.recipe, own if other is None else other.recipe)
    name = base.run.name
    return lay_over(recipe, f"recipe of {name}", f"from-{name}", overrides, flags), base


@dataclass(frozen=True)
class FineTuning:
    """A resolved fine-tuning session, before the first row is read.

    base: the run that is fine-tuned; from scratch when None. tables: of each task, opened once. choice: what was chosen
    where the user named neither a run nor a recipe, as one line; else empty.
    """

    resolved: Resolved
    base: Base | None
    tables: tuple[TaskTables, ...]
    choice: str = ""

    def with_seed(self, seed: int) -> "FineTuning":
        """The same with another seed."""
        recipe = self.resolved.recipe.model_copy(update={"seed": seed})
        return replace(self, resolved=replace(self.resolved, recipe=recipe))

    def run(
        self,
        *,
        output: Path | None,
        command: Sequence[str],
        report: Report,
        stop: Callable[[], bool],
    ) -> Iterator[Event]:
        """Read the tables, create a run directory, train, and evaluate the best checkpoint; see `pretrain`."""

        def read(world: World, compute: Compute) -> tuple[TrainingData, tuple[str, ...]]:
            report("reading", 0, 0)
            return read_tables(resolved.recipe, self.tables, tokenizer_of(self.base, teacher)), ()

        resolved, teacher = with_teacher(self.resolved, self.base)
        yield from _begin(resolved, read, self.base, teacher, output, command, stop)


def plan_finetuning(
    source: str | None, scratch: Resolved | None, overrides: Sequence[str], flags: Sequence[Setting]
) -> FineTuning:
    """Open the tables that the command line names, and resolve the recipe.

    source: the run that is fine-tuned. scratch: a recipe to train from scratch, instead of a run. Without both, the
    last run is fine-tuned if it is a pretrained body, and else the recipe `linear` is trained.
    Raises UsageError for a recipe that is not for tables, and for a model that cannot be trained on them.
    """
    if scratch is not None:
        if not _is_for_tables(scratch.recipe):
            raise UsageError(
                f"recipe {scratch.name} is not for tables: its objective is {scratch.recipe.objective.kind}",
                fix="add -s objective.kind=classification or seq2seq, or train it with lmtool pretrain",
            )
        _refuse_adapters_alone(scratch.recipe)
        return FineTuning(scratch, None, tuple(open_tables(scratch.recipe.data)))
    choice = ""
    if source is None:
        base, why = _last_body()
        if base is None:
            return _plan_linear(why, overrides, flags)
        choice = f"{why}: it is fine-tuned; --from RUN or --from hf:ORG/NAME takes another, --recipe linear none"
    else:
        base = open_base(source)
    name, label = base.run.name, f"fine-tuning of {base.run.name}"
    # settings of the data come first: the rest depends on them
    about_data = [text for text in overrides if text.lstrip().startswith("data.")]
    data_flags = [flag for flag in flags if flag.key.startswith("data.")]
    unread = base.recipe.model_copy(update={"data": Data()})
    tables = open_tables(lay_over(unread, label, name, about_data, data_flags).recipe.data)
    writes = bool(tables[0].name) or tables[0].columns.writes
    n_rows = sum(task.table.n_rows for task in tables)
    recipe = recipe_for_tables(base.recipe, name, n_rows, writes, base.is_published)
    chosen = lay_over(recipe, label, f"finetune-{name}", overrides, flags).recipe
    recipe = with_choices(recipe, chosen, n_rows, base.is_published)
    return FineTuning(lay_over(recipe, label, f"finetune-{name}", overrides, flags), base, tuple(tables), choice)


def _last_body() -> tuple[Base | None, str]:
    """The last run if it is a pretrained body for other tasks, and what it is."""
    try:
        base = open_base("last")
    except CheckpointError as error:
        return None, error.what
    recipe, name = base.recipe, base.run.name
    last = f"the last run, {name}, is"
    if isinstance(recipe.objective, Classification):
        below = base.run.info.get("base")
        other = f", --from {below['run']} what it was fine-tuned from" if below else ""
        return None, f"{last} a classifier (--from {name} trains it on{other})"
    if not isinstance(recipe.model, Transformer | Recurrent):
        return None, f"{last} no body to fine-tune ({recipe.model.title})"
    return base, f"{last} a {recipe.model.title}"


def _plan_linear(why: str, overrides: Sequence[str], flags: Sequence[Setting]) -> FineTuning:
    """The linear model of a labelled table, where there is nothing to fine-tune. why: as `_last_body` says it."""
    if part := next((flag for flag in flags if flag.key.startswith("tuning.")), None):
        raise UsageError(f"{part.flag} is for a trained model: {why}", fix="name one: --from RUN or --from hf:ORG/NAME")
    tables = tuple(open_tables(load("linear", overrides, flags).recipe.data))
    if tables[0].name or tables[0].columns.writes:
        raise UsageError(
            f"a table of target texts needs a model that writes: {why}",
            fix="name one: --from RUN or --from hf:ORG/NAME; or train one from scratch: --recipe transformer-tiny",
        )
    words = has_words(sample_texts(tables[0]))
    of = "words and word pairs" if words else "character n-grams"
    resolved = load("linear", [*(() if words else CHARACTERS), *overrides], flags)
    choice = f"{why}: a linear model of {of} is trained; for more, --from hf:ORG/NAME or --from RUN fine-tunes a model"
    return FineTuning(resolved, None, tables, choice)


def _begin(
    resolved: Resolved,
    read: Callable[[World, Compute], tuple[TrainingData, tuple[str, ...]]],
    base: Base | None,
    teacher: Base | None,
    output: Path | None,
    command: Sequence[str],
    stop: Callable[[], bool],
) -> Iterator[Event]:
    """Create a run directory for the data of `read`, which also says what was inferred from them, and train in it."""
    recipe = resolved.recipe
    if base is None:
        _refuse_adapters_alone(recipe)
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    with joined(compute) as world:
        _check(recipe, compute, world, resolved.origins)
        if world.is_main:
            check_folder(output)
        data, inferred = read(world, compute)
        recipe = data.recipe
        if teacher is not None:
            check_teacher(teacher, recipe, data.framing.tokenizer)
        run = None
        if world.is_main:
            tokenizer = data.framing.tokenizer
            run = Run.create(
                output,
                name=resolved.name,
                summary=summary(recipe),
                recipe=dump(recipe),
                tokenizer=tokenizer.files(),
                fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
                base=None if base is None else base.record(),
                teacher=None if teacher is None else teacher.record(),
                data={"lines": [*data.lines, *inferred], "bytes_per_token": data.bytes_per_token},
            )
        with run or nullcontext():
            if run is not None:
                if data.split is not None:
                    write_file(run.path / SPLIT, json.dumps(data.split).encode())
                run.start(step=0, command=command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, recipe, data.framing.tokenizer, (*data.lines, *inferred))
                yield from _floors(run, data)
            yield from map(Warned, data.warnings)
            same = base is not None and _labels(base.recipe) == _labels(recipe)
            yield from train(run, data, compute, world, base=base, teacher=teacher, same_labels=same, stop=stop)


def _floors(run: Run, data: TrainingData) -> Iterator[Event]:
    """Measure the floors of tables with labels, or read those that the run has kept."""
    if not isinstance(data, TableData):
        return
    kept = run.path / FLOOR
    if kept.exists():
        data.floors = {name: Floor.of_record(record) for name, record in json.loads(kept.read_bytes()).items()}
    else:
        data.measure_floors()
        if data.floors:
            records = {name: floor.record() for name, floor in data.floors.items()}
            write_file(kept, json.dumps(records, indent=1).encode())
    for name, floor in data.floors.items():
        yield Noted(f"{name}: {floor.line()}" if name else floor.line())


def resume(
    reference: str,
    overrides: Sequence[str],
    *,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event]:
    """Continue a run from its newest intact checkpoint, or from a given checkpoint.

    overrides: `KEY=VALUE` texts over the run's recipe; only keys that do not change the steps already done.
    Raises CheckpointError with the differences when recipe, data or tokenizer are not those of the run.
    """
    found = find(reference)
    run = found.run
    if run.origin is not None:
        raise CheckpointError(
            "an imported model has no training to resume",
            where=str(run.path),
            fix="train it further: lmtool finetune TABLE --from RUN, or lmtool pretrain TEXT --from RUN",
        )
    written, doubts = written_recipe(found)
    recipe = lay_over(written, RECIPE, run.name, overrides).recipe
    if recipe.training.steps != written.training.steps:
        # else steps would follow from epochs again
        recipe = recipe.model_copy(
            update={"training": recipe.training.model_copy(update={"epochs": None, "min_steps": None})}
        )
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    with joined(compute) as world:
        _check(recipe, compute, world, {})
        if world.is_main:
            run.lock()
        with run if world.is_main else nullcontext():
            checkpoint, warnings = found.newest()
            world.wait()  # all have found it before the first one changes anything on disk
            yield from map(Warned, (*warnings, *doubts))
            state = TrainingState.read(checkpoint, run.validated)
            changed = changes(recipe_of(checkpoint), recipe)
            _refuse(changed, run)
            if _is_over(run, recipe, checkpoint, state):
                if world.is_main:
                    if not changed and run.info["sessions"][-1]["outcome"] is None:
                        # killed between its last checkpoint and its end
                        run.end("finished")
                        if not recipe.checkpoint.keep_optimizer:
                            run.drop_optimizers()
                    yield AlreadyFinished(run.path, checkpoint.step, state.is_stale(recipe.evaluation))
                return
            tokenizer = read_tokenizer(run)
            base = base_of(run) if recipe.tuning.lora is not None else None
            teacher = teacher_of(run) if recipe.distillation.teacher is not None else None
            data = _read_again(recipe, run, tokenizer, world, report)
            if world.is_main:
                run.start(
                    step=checkpoint.step,
                    command=command,
                    environment=describe_environment(str(compute.device)),
                    validated=None if state.pending is not None else state.note(checkpoint.step),
                    pending=state.pending is not None,
                )
                run.write_recipe(dump(recipe))
                yield Started(run.path, run.name, recipe, tokenizer, data.lines, tuple(changed.values()))
                yield from _floors(run, data)
            main = run if world.is_main else None
            yield from train(
                main, data, compute, world, checkpoint=checkpoint, state=state, base=base, teacher=teacher, stop=stop
            )


def _is_over(run: Run, recipe: Recipe, checkpoint: Checkpoint, state: TrainingState) -> bool:
    """Whether the run is complete: all steps, the pending validation, and the final evaluation."""
    measures = _is_for_tables(recipe) or recipe.evaluation.baseline
    is_measured = not measures or (run.path / RESULTS).exists()
    trained = state.is_stale(recipe.evaluation) or recipe.training.steps <= checkpoint.step
    return trained and state.pending is None and is_measured


def _read_again(recipe: Recipe, run: Run, tokenizer: Tokenizer, world: World, report: Report) -> TrainingData:
    """The training data of a run. Raises CheckpointError when they have changed."""
    data: TrainingData
    if _is_for_tables(recipe):
        split = run.path / SPLIT
        saved = json.loads(split.read_text(encoding="utf-8")) if split.exists() else None
        data = read_tables(recipe, open_tables(recipe.data), tokenizer, saved)
    else:
        data = read_text(recipe, tokenizer, world, report)
    if data.fingerprint != run.fingerprints["data"]:
        raise CheckpointError(
            "the run cannot be resumed: its training data have changed since it was started",
            where=", ".join((*recipe.data.train, *recipe.data.valid)),
            fix="restore the old data, or start a new run",
        )
    return data


def _is_for_tables(recipe: Recipe) -> bool:
    return isinstance(recipe.objective, Classification | Seq2Seq)


def _labels(recipe: Recipe) -> tuple[str, tuple[str, ...]] | None:
    """The classes of a head; None where there is none."""
    spec = recipe.objective
    return (spec.task, spec.labels) if isinstance(spec, Classification) else None


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.describe()}, {size} parameters" if count else lm.describe()


def _refuse_adapters_alone(recipe: Recipe) -> None:
    if recipe.tuning.lora is not None:
        raise UsageError(
            "adapters need the weights of a run, and none is given",
            where="tuning.lora",
            fix="name a run with --from, or omit the adapters",
        )


def _check(recipe: Recipe, compute: Compute, world: World, origins: Mapping[str, str]) -> None:
    """Raise UsageError for a recipe that cannot run on this device or with so many processes."""
    if recipe.training.batch_size % world.size:
        raise UsageError(
            f"a batch of {recipe.training.batch_size} rows cannot be shared by {world.size} processes",
            where="training.batch_size",
            fix=f"set it to a multiple of {world.size}",
        )
    if recipe.training.carry_state and world.size > 1:
        raise UsageError(
            f"states are carried in one process only, not in {world.size}",
            where="training.carry_state",
            fix="run lmtool without torchrun, or set it to false",
        )
    memory = machine_memory()
    if compute.device.type == "cuda":
        memory = torch.cuda.get_device_properties(compute.device).total_memory
    if memory is not None:
        check_fits(recipe, memory, origins)


def _refuse(changed: Mapping[str, str], run: Run) -> None:
    """Raise CheckpointError with the changes that a resumed run does not allow."""
    refused = [changed[key] for key in unchangeable(changed)]
    if refused:
        raise CheckpointError(
            f"the run cannot be resumed under another recipe: {'; '.join(refused)}",
            where=str(run.recipe_path),
            fix="undo these changes, or start a new run with lmtool pretrain",
        )
