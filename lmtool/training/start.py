"""Starting and resuming: from a user's request to a locked run directory and the training in it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from lmtool.compute.device import Compute, device_memory, resolve
from lmtool.compute.processes import World, joined, local_rank, local_size
from lmtool.errors import CheckpointError, UsageError
from lmtool.inference.base import Base, base_of, open_base, read_tokenizer, recipe_of, teacher_of, written_recipe
from lmtool.inference.features import FeatureSource, open_features
from lmtool.inference.load import features_of
from lmtool.inference.vectors import open_vectors
from lmtool.model.size import check_fits, outline, training_bytes
from lmtool.recipe.changes import RESUMING, changes, rule_of, unchangeable
from lmtool.recipe.dump import dump
from lmtool.recipe.finetuning import HeadKind, recipe_for_tables, recipe_for_text, with_choices
from lmtool.recipe.load import Assignments, Resolved, Setting, lay_over, load, settings_of
from lmtool.recipe.pretraining import NAME, DefaultRecipe
from lmtool.recipe.spec.objective import Classification, HeadSpec, QuestionAnswering, Seq2Seq, Tagging
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import Data
from lmtool.recipe.spec.training import Distillation
from lmtool.recipe.spec.transformer import Transformer
from lmtool.records import encode
from lmtool.run.checkpoint import ALONE, Checkpoint
from lmtool.run.directory import FLOOR, LINES, RECIPE, RESULTS, SPLIT, Run, check_folder, describe_environment
from lmtool.run.files import StreamMark
from lmtool.run.find import find, find_resumable
from lmtool.run.verification import damaged_records
from lmtool.tables.columns import RowKind
from lmtool.tables.data import (
    TableData,
    TaskTables,
    kind_of_rows,
    open_tables,
    read_tables,
    sample_texts,
    usual_metric,
)
from lmtool.tables.floor import Floor, has_words
from lmtool.text.disk import write_file
from lmtool.text.prepare import default_cache
from lmtool.text.survey import Report, settle
from lmtool.text.tokenizer import Tokenizer
from lmtool.training.data import TrainingData, read_text
from lmtool.training.events import AlreadyFinished, Event, Noted, Started, Warned
from lmtool.training.keeper import TrainingState
from lmtool.training.length import Speed, Trained, timed, with_length
from lmtool.training.teaching import check_teacher, tokenizer_of, with_teacher
from lmtool.training.train import train

CHARACTERS = ("tokenizer.kind=char", "model.ngrams=5", "model.context=2048")
"""Assignments of the recipe `linear` for texts whose words do not recur."""

PROLONGING = {"training.steps", "evaluation.patience", *(key for key, rule in RESUMING.items() if rule.resets)}
"""Keys with which a run that is finished goes on."""


def pretrain(
    resolved: Resolved | DefaultRecipe,
    base: Base | None,
    *,
    output: Path | None,
    retry: bool = False,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event]:
    """Prepare the text, create a run directory, and train.

    resolved: a recipe, or the default one, which the text settles. base: another run for the initial weights and the
    tokenizer; from scratch when None. output: the run directory; a new one under the runs directory when None. retry:
    it may hold a run that ended before its first checkpoint, which is replaced. command: as typed, for run.json.
    report: called with the progress of preparing the text. stop: called after each step.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    began = time.perf_counter()
    check_folder(output, retry)
    if not resolved.recipe.data.sources:
        raise UsageError("no text to train on", fix="name a file: lmtool pretrain TEXT")
    resolved, inferred = settle(resolved, cache=default_cache(), report=report)
    resolved, teacher = with_teacher(resolved, base)
    tokenizer = tokenizer_of(base, teacher)
    recipe = resolved.recipe
    if recipe.data.split == "slice" and recipe.data.documents in ("line", "blank-line"):
        raise UsageError(
            f"data.documents {recipe.data.documents} divides the text, but data.split slice makes one text of it",
            where=", ".join(dict.fromkeys(resolved.origins[f"data.{key}"] for key in ("documents", "split"))),
            fix="set data.split=document, or data.documents=whole",
        )
    if is_for_tables(recipe):
        raise UsageError(
            f"objective {recipe.objective.kind} is trained on a table, not on a text",
            fix="lmtool finetune TABLE" + ("" if resolved.name == NAME else f" --recipe {resolved.name}"),
        )

    def read(world: World, compute: Compute) -> tuple[TrainingData, tuple[str, ...]]:
        return read_text(recipe, tokenizer, world, report), inferred

    yield from _begin(resolved, read, base, teacher, output, retry, command, stop, began)


def to_continue(
    source: str, other: Resolved | None, overrides: Assignments, flags: Sequence[Setting]
) -> tuple[Resolved, Base]:
    """The recipe with which `pretrain` continues training a run on another text, and the run's weights.

    other: the recipe of all but model, tokenizer and data; the run's own recipe when None.
    """
    base = open_base(source)
    kept = {"column", "documents", "split", "valid_fraction", "isolate_documents"}
    own_data = Data(**base.recipe.data.model_dump(include=kept))
    own = base.recipe.model_copy(update={"distillation": Distillation(), "data": own_data})
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

    def rows(self) -> TableData:
        """The rows of the tables, as training reads them without a teacher."""
        features = open_features(self.resolved.recipe, self.base)
        recipe, base = (self.resolved.recipe, self.base) if features is None else (features.recipe, features.base)
        return read_tables(recipe, self.tables, tokenizer_of(base, None))

    def run(
        self,
        *,
        output: Path | None,
        retry: bool = False,
        command: Sequence[str],
        report: Report,
        stop: Callable[[], bool],
    ) -> Iterator[Event]:
        """Read the tables, create a run directory, train, and evaluate the best checkpoint; see `pretrain`."""

        began = time.perf_counter()
        resolved, teacher = with_teacher(self.resolved, self.base)
        features = open_features(resolved.recipe, self.base)
        recipe = resolved.recipe if features is None else features.recipe

        def read(world: World, compute: Compute) -> tuple[TrainingData, tuple[str, ...]]:
            report("reading", 0, 0)
            base = features.base if features is not None else self.base
            lines = () if features is None else (features.line,)
            return read_tables(recipe, self.tables, tokenizer_of(base, teacher)), lines

        resolved = replace(resolved, recipe=recipe)
        yield from _begin(resolved, read, self.base, teacher, output, retry, command, stop, began, features)


def plan_finetuning(
    source: str | None, scratch: Resolved | None, overrides: Assignments, flags: Sequence[Setting]
) -> FineTuning:
    """Open the tables that the command line names, and resolve the recipe.

    source: the run that is fine-tuned. scratch: a recipe to train from scratch, instead of a run. Without both, the
    last run is fine-tuned if it is a pretrained body, and else the recipe `linear` is trained.
    Raises UsageError for a recipe that is not for tables, and for a model that cannot be trained on them.
    """
    if scratch is not None:
        if not is_for_tables(scratch.recipe):
            raise UsageError(
                f"recipe {scratch.name} is not for tables: its objective is {scratch.recipe.objective.kind}",
                fix="add -s objective.kind=classification or seq2seq, or train it with lmtool pretrain",
            )
        _refuse_adapters_alone(scratch.recipe)
        return FineTuning(
            scratch, None, tuple(open_tables(scratch.recipe.data, kind_of_rows(scratch.recipe.objective)))
        )
    settings = settings_of(overrides, flags)
    choice = ""
    if source is None:
        base, why = _last_body()
        if base is None:
            return _plan_linear(why, settings)
        choice = f"{why}: it is fine-tuned; --from RUN or --from hf:ORG/NAME takes another, --recipe linear none"
    else:
        base = open_base(source)
    name, label = base.run.name, f"fine-tuning of {base.run.name}"
    # settings of the data come first: the rest depends on them
    about_data = [setting for setting in settings if setting.key.partition(".")[0] == "data"]
    unread = base.recipe.model_copy(update={"data": Data()})
    tables = tuple(open_tables(lay_over(unread, label, name, about_data).recipe.data, named_kind(settings)))
    writes = bool(tables[0].name) or tables[0].columns.writes
    head = OF_ROWS[tables[0].columns.kind]
    n_rows = sum(task.table.n_rows for task in tables)
    recipe = recipe_for_tables(base.recipe, name, n_rows, writes, base.is_published, head)
    chosen = lay_over(recipe, label, f"finetune-{name}", settings).recipe
    recipe = with_choices(recipe, chosen, n_rows, base.is_published)
    return FineTuning(lay_over(recipe, label, f"finetune-{name}", settings), base, tables, choice)


OF_ROWS: Mapping[RowKind, HeadKind] = {
    "texts": "classification",
    "words": "tagging",
    "questions": "question-answering",
}
"""The objective that each kind of rows trains a head by."""


def named_kind(settings: Sequence[Setting]) -> RowKind | None:
    """What the rows of a table are, as the command line names the objective; None where it does not."""
    named = [setting.value for setting in settings if setting.key == "objective.kind"]
    if not named:
        return None
    return next((kind for kind, objective in OF_ROWS.items() if objective == named[-1]), "texts")


def _last_body() -> tuple[Base | None, str]:
    """The last run if it is a pretrained body for other tasks, and what it is."""
    try:
        base = open_base("last")
    except CheckpointError as error:
        return None, error.what
    recipe, name = base.recipe, base.run.name
    last = f"the last run, {name}, is"
    if isinstance(recipe.objective, HeadSpec):
        below = base.run.info.base
        other = f", --from {below.run} what it was fine-tuned from" if below else ""
        what = "a classifier" if isinstance(recipe.objective, Classification) else f"one for {recipe.objective.kind}"
        return None, f"{last} {what} (--from {name} trains it on{other})"
    if not isinstance(recipe.model, Transformer | Recurrent):
        return None, f"{last} no body to fine-tune ({recipe.model.title})"
    return base, f"{last} a {recipe.model.title}"


def _plan_linear(why: str, settings: Sequence[Setting]) -> FineTuning:
    """The linear model of a labelled table, where there is nothing to fine-tune. why: as `_last_body` says it."""
    if part := next((setting for setting in settings if setting.key.startswith("tuning.")), None):
        raise UsageError(f"{part.flag} is for a trained model: {why}", fix="name one: --from RUN or --from hf:ORG/NAME")
    kind = named_kind(settings)
    data = load("linear", [setting for setting in settings if setting.key != "objective.kind"]).recipe.data
    tables = tuple(open_tables(data, kind))
    if tables[0].columns.kind != "texts":
        what, recipe = "tagged words", "tagger"
        if tables[0].columns.kind == "questions":
            what, recipe = "questions", "bert-tiny -s objective.kind=question-answering"
        raise UsageError(
            f"a table of {what} needs a model that reads a text word by word: {why}",
            fix=f"name one: --from RUN or --from hf:ORG/NAME; or train one from scratch: --recipe {recipe}",
        )
    if tables[0].name or tables[0].columns.writes:
        raise UsageError(
            f"a table of target texts needs a model that writes: {why}",
            fix="name one: --from RUN or --from hf:ORG/NAME; or train one from scratch: --recipe transformer-tiny",
        )
    words = has_words(sample_texts(tables[0], data.skip_bad_rows))
    of = "words and word pairs" if words else "character n-grams"
    resolved = load("linear", [*(() if words else CHARACTERS), *settings])
    choice = f"{why}: a linear model of {of} is trained; for more, --from hf:ORG/NAME or --from RUN fine-tunes a model"
    return FineTuning(resolved, None, tables, choice)


def _begin(
    resolved: Resolved,
    read: Callable[[World, Compute], tuple[TrainingData, tuple[str, ...]]],
    base: Base | None,
    teacher: Base | None,
    output: Path | None,
    retry: bool,
    command: Sequence[str],
    stop: Callable[[], bool],
    began: float,
    features: FeatureSource | None = None,
) -> Iterator[Event]:
    """Create a run directory for the data of `read`, which also says what was inferred from them, and train in it.

    began: when the command did, by time.perf_counter.
    """
    recipe = resolved.recipe
    if base is None:
        _refuse_adapters_alone(recipe)
    else:
        _refuse_other_positions(recipe.model, base.recipe.model)
    source = open_vectors(recipe, base)
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    with joined(compute) as world:
        sharded = _check(recipe, compute, world, resolved.origins)
        if world.is_main:
            check_folder(output, retry)
        data, inferred = read(world, compute)
        _agree(data.recipe, data.fingerprint, compute, world)
        if teacher is not None:
            check_teacher(teacher, data.recipe, data.framing.tokenizer)
        frozen = None if features is None else features.model
        # a model that has to be sharded cannot be built whole
        speed = None if sharded else Speed.measure(data, Trained(base, teacher, frozen), compute, world, began)
        draft = data.recipe
        data, pace, length = with_length(data, speed)
        recipe, inferred = data.recipe, (*inferred, *filter(None, [length]))
        vectors = None if source is None else source.match(data.framing.tokenizer, data.token_counts())
        inferred = inferred if vectors is None else (*inferred, vectors.line)
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
                data={
                    "lines": [*data.lines, *inferred],
                    "bytes_per_token": data.bytes_per_token,
                    "valid_rows": data.n_valid if isinstance(data, TableData) else None,
                },
                retry=retry,
            )
        with run or nullcontext(), data.flowing(world, compute):
            if run is not None:
                if features is not None:
                    run.keep_features(features.base.run, features.base.checkpoint)
                if data.split is not None:
                    write_file(run.path / SPLIT, encode(data.split.model_dump()))
                if data.known_lines is not None:
                    write_file(run.path / LINES, data.known_lines.to_bytes())
                run.start(step=0, command=command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, recipe, data.framing.tokenizer, (*data.lines, *inferred))
                yield from _floors(run, data)
            for opened in (base, teacher, None if features is None else features.base):
                yield from map(Warned, () if opened is None else opened.warnings)
            yield from map(Warned, data.warnings)
            same = base is not None and _labels(base.recipe) == _labels(recipe)
            if speed is not None:
                yield timed(data, speed, draft=draft)
            yield from train(
                run,
                data,
                compute,
                world,
                base=base,
                teacher=teacher,
                same_labels=same,
                vectors=vectors,
                features=frozen,
                sharded=sharded,
                pace=pace,
                stop=stop,
            )


def _floors(run: Run, data: TrainingData) -> Iterator[Event]:
    """Measure the floors of tables with labels, or read those that the run has kept."""
    if not isinstance(data, TableData):
        return
    kept = run.saved_floors
    if kept is not None:
        data.floors = {name: Floor(**figures.model_dump()) for name, figures in kept.root.items()}
    else:
        data.measure_floors()
        if data.floors:
            write_file(run.path / FLOOR, encode({name: floor.record() for name, floor in data.floors.items()}))
    for name, floor in data.floors.items():
        yield Noted(f"{name}: {floor.line()}" if name else floor.line())


def resume(
    reference: str | None,
    overrides: Assignments,
    *,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event]:
    """Continue a run from its newest intact checkpoint, or from a given checkpoint.

    reference: None for the last run that can be resumed. overrides: over the run's recipe; `lmtool.recipe.changes` has
    what may change, and what that resets.
    Raises UsageError for a change that is not allowed, CheckpointError when data or tokenizer are not those of the run.
    """
    if reference is None:
        overrides = settings_of(overrides)
        longer = any(setting.key in PROLONGING for setting in overrides)
        run, passed = find_resumable(longer=longer)
        if passed:
            yield Noted(f"resuming {run.name}, since {', '.join(passed)}")
        reference = str(run.path)
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
    if recipe.evaluation.metric == "auto":
        evaluation = recipe.evaluation.model_copy(update={"metric": usual_metric(recipe.objective)})
        recipe = recipe.model_copy(update={"evaluation": evaluation})
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    with joined(compute) as world:
        sharded = _check(recipe, compute, world, {})
        if world.is_main:
            run.lock()
        with run if world.is_main else nullcontext(), ExitStack() as stack:
            checkpoint, warnings = found.newest(peers=world.aside() if world.size > 1 else ALONE)
            yield from map(Warned, (*warnings, *doubts))
            before = recipe_of(checkpoint)
            if recipe.training.steps != before.training.steps:
                # else steps would follow from epochs again
                training = recipe.training.model_copy(update={"epochs": None, "min_steps": None})
                recipe = recipe.model_copy(update={"training": training})
            changed, now = changes(before, recipe), changes(written, recipe)
            _refuse(changed, recipe, checkpoint, run)
            state = TrainingState.read(checkpoint, run.validated, recipe)
            tokenizer = read_tokenizer(run)
            unusable = dict(damaged_records(run))
            is_rescored = RESULTS in unusable or any("scores" in rule_of(key).resets for key in now)
            is_over = _is_over(run, recipe, checkpoint, state, is_rescored)
            world.wait()  # all have read the run before the first one changes anything on disk
            if is_over:
                yield from (Warned(why if name in why else f"{name}: {why}") for name, why in unusable.items())
                if world.is_main:
                    run.write_recipe(dump(recipe))
                    yield from map(Noted, now.values())
                    run.tidy(recipe.checkpoint.keep_last)
                    if run.info.sessions[-1].outcome != "finished":
                        # killed between its last checkpoint and its end, or ended by its new recipe
                        run.end("finished")
                    if not recipe.checkpoint.keep_optimizer:
                        run.drop_optimizers()
                    yield AlreadyFinished(run.path, checkpoint.step, state.is_stale(recipe.evaluation))
                return
            base = base_of(run) if recipe.tuning.lora is not None else None
            teacher = teacher_of(run) if recipe.distillation.teacher is not None else None
            data = _read_again(recipe, run, tokenizer, world, report)
            recipe = data.recipe
            _agree(recipe, data.fingerprint, compute, world)
            features = features_of(run, recipe, compute)
            trained = Trained(base, teacher, features)
            # before the text flows, which is read once
            speed = None if sharded else Speed.measure(data, trained, compute, world, time.perf_counter())
            marks = [StreamMark.model_validate(mark) for mark in state.stream or ()]
            stack.enter_context(data.flowing(world, compute, marks))
            if world.is_main:
                damaged = run.start(
                    step=checkpoint.step,
                    command=command,
                    environment=describe_environment(str(compute.device)),
                    validated=None if state.pending is not None else state.note(checkpoint.step),
                    pending=state.pending is not None,
                )
                run.write_recipe(dump(recipe))
                yield from map(Warned, damaged)
                if data.split is not None and run.saved_split is None:
                    write_file(run.path / SPLIT, encode(data.split.model_dump()))
                    yield Warned(f"{SPLIT} is missing: the rows to hold out are drawn anew from the seed")
                yield Started(run.path, run.name, recipe, tokenizer, data.lines, tuple(changed.values()))
                yield from _floors(run, data)
            main = run if world.is_main else None
            if speed is not None:
                yield timed(data, speed, done=checkpoint.step)
            yield from train(
                main,
                data,
                compute,
                world,
                checkpoint=checkpoint,
                state=state,
                base=base,
                teacher=teacher,
                features=features,
                sharded=sharded,
                stop=stop,
            )


def go_on(folder: Path, *, command: Sequence[str], report: Report, stop: Callable[[], bool]) -> Iterator[Event]:
    """Continue the run in a folder under its own recipe, or say that it is finished; see `resume`.

    With a warning where the command is not the one that began it, since what the two set differently has no effect.
    """
    sessions = Run.open(folder).info.sessions
    began = list(sessions[0].command) if sessions else [*command]
    if [*command] != began:
        yield Warned(f"the run goes on as it began, not as this command says: {' '.join(began)}")
    yield from resume(str(folder), (), command=command, report=report, stop=stop)


def _is_over(run: Run, recipe: Recipe, checkpoint: Checkpoint, state: TrainingState, is_rescored: bool) -> bool:
    """Whether the run is complete: all steps, the pending validation, and the final evaluation.

    is_rescored: that is to be done again.
    """
    measures = is_for_tables(recipe) or recipe.evaluation.baseline
    is_measured = not measures or ((run.path / RESULTS).exists() and not is_rescored)
    trained = state.is_stale(recipe.evaluation) or recipe.training.steps <= checkpoint.step
    return trained and state.pending is None and is_measured


def _read_again(recipe: Recipe, run: Run, tokenizer: Tokenizer, world: World, report: Report) -> TrainingData:
    """The training data of a run. Raises CheckpointError when they have changed."""
    data: TrainingData
    if is_for_tables(recipe):
        tables = open_tables(recipe.data, kind_of_rows(recipe.objective))
        data = read_tables(recipe, tables, tokenizer, run.saved_split)
    else:
        data = read_text(recipe, tokenizer, world, report)
    if data.fingerprint != run.fingerprints["data"]:
        raise CheckpointError(
            "the run cannot be resumed: its training data have changed since it was started",
            where=", ".join((*recipe.data.sources, *recipe.data.valid)),
            fix="restore the old data, or start a new run",
        )
    return data


def is_for_tables(recipe: Recipe) -> bool:
    """Whether its examples are rows of a table, not windows of a text."""
    return isinstance(recipe.objective, HeadSpec | Seq2Seq)


def _labels(recipe: Recipe) -> tuple[str, tuple[str, ...]] | None:
    """What a head predicts, and its classes; None where there is none."""
    match recipe.objective:
        case Classification() as spec:
            return spec.task, spec.labels
        case Tagging() as spec:
            return spec.kind, spec.labels
        case QuestionAnswering() as spec:
            return spec.kind, ()
    return None


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.describe()}, {size} parameters" if count else lm.describe()


def _refuse_other_positions(spec: Model, base: Model) -> None:
    """Raise UsageError where the table of learned positions has another length than that of the run to begin with.

    base: the model of that run.
    """
    there, here = _position_rows(base), _position_rows(spec)
    if there is None or here is None or there == here:
        return
    assert isinstance(base, Transformer)
    assert isinstance(base.position, LearnedPosition)
    if here < there:
        raise UsageError(
            f"the run has {there} learned positions, and the recipe has a table of {here}",
            where="model.position.size",
            fix=f"set model.position.size={there}; a shorter context reads its beginning",
        )
    last = there - base.position.offset
    raise UsageError(
        f"the learned positions of the run end at {last}, and the recipe has {here - there} more",
        where="model.context",
        fix=f"set model.context={last} or less and model.position.size={there}, or train the run anew with "
        f"model.position.size={here}",
    )


def _position_rows(spec: Model) -> int | None:
    """Rows of the table of learned positions; None without one."""
    if not isinstance(spec, Transformer) or not isinstance(spec.position, LearnedPosition):
        return None
    return spec.position.size or spec.context + spec.position.offset


def _refuse_adapters_alone(recipe: Recipe) -> None:
    if recipe.tuning.lora is not None:
        raise UsageError(
            "adapters need the weights of a run, and none is given",
            where="tuning.lora",
            fix="name a run with --from, or omit the adapters",
        )


def _check(recipe: Recipe, compute: Compute, world: World, origins: Mapping[str, str]) -> bool:
    """Whether the processes shard the model.

    Raises UsageError for a recipe that cannot run on this device or with so many processes.
    """
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
    memory = device_memory(compute.device)
    sharded = _shards(recipe, compute, world, memory)
    if memory is not None:
        check_fits(recipe, memory, origins, world.size if sharded else 1)
    return sharded


def _shards(recipe: Recipe, compute: Compute, world: World, memory: int | None) -> bool:
    """Whether the processes shard the model. memory: of this one, in bytes, if known.

    Raises UsageError where they should, and the recipe has a part that does not allow it.
    """
    training = recipe.training
    if world.size == 1 or training.shard == "none" or not isinstance(recipe.model, Transformer):
        return False
    if training.shard == "auto":
        own = None if memory is None else memory // (1 if compute.device.type == "cuda" else local_size())
        is_short = own is not None and training_bytes(recipe) > own
        # machines may differ, and all must do the same
        if not world.sum((float(is_short),), compute)[0]:
            return False
    for excluded, where in (
        (compute.scales_gradients, "training.precision=float16"),
        (training.compile is True, "training.compile=true"),
        (training.minutes is not None, "training.minutes"),
        (recipe.evaluation.gradient_norms, "evaluation.gradient_norms=true"),
    ):
        if excluded:
            raise UsageError(
                "the processes shard this model, which one of its settings does not allow",
                where=where,
                fix="set it otherwise, or training.shard=none",
            )
    return True


def _agree(recipe: Recipe, fingerprint: str, compute: Compute, world: World) -> None:
    """Raise UsageError in a process whose recipe or text differ from those of the main one. Files may lie elsewhere."""
    data = recipe.data.model_copy(update={"train": (), "valid": ()})
    own = {"recipe": dump(recipe.model_copy(update={"data": data})), "training data": fingerprint}
    of_main = json.loads(world.from_main(json.dumps(own), compute))
    if differs := [name for name in own if own[name] != of_main[name]]:
        raise UsageError(
            f"process {world.rank} has another {' and another '.join(differs)} than process 0",
            fix="start all processes with the same command, recipe and files",
        )


def _refuse(changed: Mapping[str, str], recipe: Recipe, checkpoint: Checkpoint, run: Run) -> None:
    """Raise UsageError with the changes that a resumed run does not allow."""
    if refused := unchangeable(changed):
        raise UsageError(
            f"the run cannot be resumed under another recipe: {'; '.join(changed[key] for key in refused)}",
            where=str(run.recipe_path),
            fix=f"undo this, or {'; or '.join(dict.fromkeys(rule_of(key).note for key in refused))}",
        )
    if recipe.training.steps < checkpoint.step:
        raise UsageError(
            f"training.steps is {recipe.training.steps}, and the run has done {checkpoint.step} steps",
            where=str(run.recipe_path),
            fix=f"train longer: -s training.steps=+N; or resume an earlier checkpoint: {run.name}@STEP",
        )
