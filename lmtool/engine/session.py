"""Starting and resuming: from what a person asks for to a locked run directory and the training in it."""

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import ValidationError

from lmtool.engine.build import base_of, open_base, read_run, vocabulary_rows
from lmtool.engine.device import Compute, resolve
from lmtool.engine.distributed import World, joined, local_rank
from lmtool.engine.material import Material, TextMaterial
from lmtool.engine.pairs import read_tables
from lmtool.engine.results import Results, measure_best
from lmtool.engine.tables import SPLIT, saved_split
from lmtool.engine.train import Ended, Event, Progress, Warned, train
from lmtool.errors import CheckpointError, DataError, UsageError
from lmtool.recipe.document import Path as RecipePath
from lmtool.recipe.document import dotted
from lmtool.recipe.dump import dump, leaves
from lmtool.recipe.load import Resolved, load
from lmtool.recipe.size import check_fits, machine_memory, parameter_count
from lmtool.recipe.spec import Averaging, Classification, NGram, Recipe, Recurrent, Seq2Seq, SkipGram, Transformer
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import Run, check_folder, describe_environment
from lmtool.run.find import find
from lmtool.text.disk import write_file
from lmtool.text.prepare import Prepared, Report, default_cache, prepare
from lmtool.text.tokenizer import Tokenizer

HARMLESS = (
    "description.",
    "data.train.",
    "data.valid.",
    "training.steps.",
    "training.micro_batch.",
    "training.micro_tokens.",
    "training.device.",
    "training.precision.",
    "training.compile.",
    "evaluation.",
    "checkpoint.",
)
"""Keys that may change when a run is resumed: they decide how far and on what it goes on, not what is learnt.

Files may have moved, since their content is compared.
"""


@dataclass(frozen=True)
class Started:
    """The text is ready and the run directory is there.

    changes: what differs from the run's recipe so far, when it is resumed.
    """

    path: Path
    name: str
    recipe: Recipe
    material: Material
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Nothing:
    """There is nothing left to train: all steps are done, or patience has run out."""

    path: Path
    step: int
    early: bool


def pretrain(
    resolved: Resolved,
    *,
    output: Path | None,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
    source: str | None = None,
) -> Iterator[Event | Started]:
    """Prepare the text, make a run directory, and train.

    source: a run whose weights and tokenizer are trained on; from scratch when None.
    output: the run directory; a new one under the runs directory when None. command: as typed, for run.json.
    report: told how preparing the text goes. stop: asked after each step.

    Raises the errors of every part; nothing is made before recipe, folder and memory are found good.
    """
    recipe = resolved.recipe
    if not recipe.data.train:
        raise UsageError("no text to train on", fix="name a file: lmtool pretrain TEXT")
    if isinstance(recipe.objective, Classification | Seq2Seq):
        raise UsageError(
            f"objective {recipe.objective.kind} learns from a table, not from a text",
            fix=f"lmtool finetune TABLE --recipe {resolved.name}",
        )
    _refuse_adapters_alone(recipe, source)
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    base, tokenizer = open_base(source) if source is not None else (None, None)
    with joined(compute) as world:
        _check(recipe, compute, world, resolved.origins)
        if world.is_main:
            check_folder(output)
        prepared = _prepare(recipe, world, report, tokenizer)
        recipe = _with_text(recipe, prepared)
        _check_memory(recipe, compute, resolved.origins)
        run = None
        if world.is_main:
            run = Run.create(
                output,
                name=resolved.name,
                summary=summary(recipe),
                recipe=dump(recipe),
                tokenizer=prepared.tokenizer.to_json().encode(),
                fingerprints={"data": prepared.fingerprint, "tokenizer": prepared.tokenizer.fingerprint},
                base=None if base is None else base.record(),
            )
        with run or nullcontext():
            if run is not None:
                run.start(step=0, command=command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, recipe, TextMaterial(prepared, recipe))
            yield from train(run, recipe, TextMaterial(prepared, recipe), compute, world, base=base, stop=stop)


def finetune(
    resolved: Resolved,
    *,
    source: str | None,
    output: Path | None,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event | Started | Results]:
    """Read labelled tables, make a run directory, train on them, and measure the best checkpoint.

    source: the run whose weights and tokenizer are trained on; from scratch when None. The rest is as for `pretrain`.
    """
    recipe = resolved.recipe
    _refuse_adapters_alone(recipe, source)
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    base, tokenizer = open_base(source) if source is not None else (None, None)
    with joined(compute) as world:
        _check(recipe, compute, world, resolved.origins)
        if world.is_main:
            check_folder(output)
        report("reading", 0, 0)
        rows = read_tables(recipe, tokenizer)
        recipe, material = rows.recipe, rows.material
        run = None
        if world.is_main:
            run = Run.create(
                output,
                name=resolved.name,
                summary=summary(recipe),
                recipe=dump(recipe),
                tokenizer=material.tokenizer.to_json().encode(),
                fingerprints={"data": rows.fingerprint, "tokenizer": material.tokenizer.fingerprint},
                base=None if base is None else base.record(),
            )
        with run or nullcontext():
            if run is not None:
                if rows.split is not None:
                    write_file(run.path / SPLIT, json.dumps(rows.split).encode())
                run.start(step=0, command=command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, recipe, material)
            yield from map(Warned, rows.warnings)
            same = base is not None and _labels_of(base.checkpoint) == _labels(recipe)
            ended = yield from _until_ended(
                train(run, recipe, material, compute, world, base=base, same_labels=same, stop=stop)
            )
            if run is not None and ended.reason != "interrupted":
                yield from measure_best(run, recipe, material, compute)


def _until_ended(events: Iterator[Event]) -> Generator[Event, None, Ended]:
    """Pass events on; the last one is the value."""
    last: Event | None = None
    for last in events:
        yield last
    assert isinstance(last, Ended)
    return last


def _labels(recipe: Recipe) -> tuple[str, tuple[str, ...]] | None:
    spec = recipe.objective
    return (spec.task, spec.labels) if isinstance(spec, Classification) else None


def _labels_of(checkpoint: Checkpoint) -> tuple[str, tuple[str, ...]] | None:
    """The labels that a checkpoint's head answers; None when it has no head."""
    return _labels(_recipe_of(checkpoint, Progress.read(checkpoint)))


def resume(
    reference: str,
    overrides: Sequence[str],
    *,
    command: Sequence[str],
    report: Report,
    stop: Callable[[], bool],
) -> Iterator[Event | Started | Nothing | Results]:
    """Go on with a run from its newest whole checkpoint, or from the checkpoint that is named.

    overrides: `KEY=VALUE` texts laid over the run's recipe; only keys that leave the past as it was.
    Raises CheckpointError with the differences when recipe, text or tokenizer are not those of the run.
    """
    found = find(reference)
    run = found.run
    recipe = load(run.recipe_path, overrides).recipe
    compute = resolve(recipe.training.device, recipe.training.precision, local_rank())
    with joined(compute) as world:
        _check(recipe, compute, world, {})
        if world.is_main:
            run.lock()
        with run if world.is_main else nullcontext():
            checkpoint, warnings = _newest(found.newest, world)
            yield from map(Warned, warnings)
            progress = Progress.read(checkpoint)
            changes = _changes(_recipe_of(checkpoint, progress), recipe)
            _refuse(changes, run)
            early = progress.is_stale(recipe.evaluation)
            if early or recipe.training.steps <= checkpoint.step:
                if world.is_main and not changes and run.info["sessions"][-1]["outcome"] is None:
                    # killed between its last checkpoint and its end
                    run.end("finished")
                yield Nothing(run.path, checkpoint.step, early)
                return
            _, tokenizer = read_run(run)
            base = base_of(run) if recipe.tuning.lora is not None else None
            material, fingerprint = _material(recipe, run, world, report, tokenizer)
            if fingerprint != run.fingerprints["data"]:
                raise CheckpointError(
                    "the run cannot go on: its text has changed since it was started",
                    where=", ".join((*recipe.data.train, *recipe.data.valid)),
                    fix="put the old text back, or start a new run with lmtool pretrain",
                )
            if world.is_main:
                environment = describe_environment(str(compute.device))
                run.start(step=checkpoint.step, command=command, environment=environment)
                run.write_recipe(dump(recipe))
                yield Started(run.path, run.name, recipe, material, tuple(changes.values()))
            main = run if world.is_main else None
            events = train(main, recipe, material, compute, world, checkpoint=checkpoint, base=base, stop=stop)
            ended = yield from _until_ended(events)
            if main is not None and not isinstance(material, TextMaterial) and ended.reason != "interrupted":
                yield from measure_best(main, recipe, material, compute)


def summary(recipe: Recipe) -> str:
    """A model in a few words, for lists."""
    model = recipe.model
    count = parameter_count(model, model.vocab_size or 0)
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    match model:
        case Transformer():
            what = f"{model.kind} {model.shape}, {model.n_layers} x {model.d_model}"
        case Recurrent():
            what = f"{model.cell} {model.shape}, {model.n_layers} x {model.d_model}"
        case NGram():
            return f"{model.order}-gram"
        case SkipGram():
            what = f"{model.kind}, {model.d_model} wide"
        case Averaging(one_hot=True):
            return "linear in words"
        case Averaging():
            what = f"mean of words, {model.n_layers} x {model.d_model}"
    return f"{what}, {size} parameters"


def _refuse_adapters_alone(recipe: Recipe, source: str | None) -> None:
    if recipe.tuning.lora is not None and source is None:
        raise UsageError(
            "adapters learn beside trained weights, and there are none to begin with",
            where="tuning.lora",
            fix="name a run with --from, or leave out the adapters",
        )


def _check(recipe: Recipe, compute: Compute, world: World, origins: Mapping[str, str]) -> None:
    """Refuse what cannot work on this device and with so many processes."""
    if recipe.training.batch_size % world.size:
        raise UsageError(
            f"a batch of {recipe.training.batch_size} rows cannot be shared by {world.size} processes",
            where="training.batch_size",
            fix=f"set it to a multiple of {world.size}",
        )
    if recipe.training.carry_state and world.size > 1:
        raise UsageError(
            f"states are carried on in one process only, not in {world.size}",
            where="training.carry_state",
            fix="start lmtool without torchrun, or set it to false",
        )
    _check_memory(recipe, compute, origins)


def _check_memory(recipe: Recipe, compute: Compute, origins: Mapping[str, str]) -> None:
    memory = machine_memory()
    if compute.device.type == "cuda":
        memory = torch.cuda.get_device_properties(compute.device).total_memory
    if memory is not None:
        check_fits(recipe, memory, origins=origins)


def _prepare(recipe: Recipe, world: World, report: Report, tokenizer: Tokenizer | None = None) -> Prepared:
    """Rank 0 prepares the text, then the others find it in the cache."""
    if not world.is_main:
        world.wait()
    prepared = prepare(
        recipe.data, tokenizer or recipe.tokenizer, cache=default_cache(), seed=recipe.seed, report=report
    )
    if world.is_main:
        world.wait()
    for part, store in (("training", prepared.train), ("validation", prepared.valid)):
        needed = recipe.model.context + 1 if part == "training" else 2
        if len(store) < needed:
            raise DataError(
                f"the {part} text has {len(store)} tokens, but a context of {recipe.model.context} needs {needed}",
                where=", ".join(recipe.data.train),
                fix="give more text, or set model.context lower",
            )
    return prepared


def _material(recipe: Recipe, run: Run, world: World, report: Report, tokenizer: Tokenizer) -> tuple[Material, str]:
    """What a run learns from, read again, and its fingerprint."""
    if isinstance(recipe.objective, Classification | Seq2Seq):
        rows = read_tables(recipe, tokenizer, saved_split(run.path))
        return rows.material, rows.fingerprint
    prepared = _prepare(recipe, world, report, tokenizer)
    return TextMaterial(prepared, recipe), prepared.fingerprint


def _with_text(recipe: Recipe, prepared: Prepared) -> Recipe:
    """The recipe with what only the text could say: how it divides, and how large the vocabulary came out."""
    model = recipe.model.model_copy(update={"vocab_size": vocabulary_rows(recipe, prepared.tokenizer)})
    return recipe.model_copy(update={"model": model, "data": prepared.data})


def _recipe_of(checkpoint: Checkpoint, progress: Progress) -> Recipe:
    """The recipe that a checkpoint was trained under, whatever became of the run's recipe.yaml since."""
    try:
        return Recipe.model_validate(progress.recipe)
    except ValidationError as error:
        raise CheckpointError(
            "state.json holds no recipe of this version of lmtool", where=str(checkpoint.path), fix="train anew"
        ) from error


def _refuse(changes: Mapping[str, str], run: Run) -> None:
    """Raise CheckpointError with the changes after which the run would not be the same run."""
    refused = [text for key, text in changes.items() if not f"{key}.".startswith(HARMLESS)]
    if refused:
        raise CheckpointError(
            f"the run cannot go on under another recipe: {'; '.join(refused)}",
            where=str(run.recipe_path),
            fix="leave these as they are, or start a new run with lmtool pretrain",
        )


def _newest(newest: Callable[[], tuple[Checkpoint, list[str]]], world: World) -> tuple[Checkpoint, list[str]]:
    """The checkpoint to go on from, found by all processes before the first one changes anything."""
    found = newest()
    world.wait()
    return found


def _changes(before: Recipe, after: Recipe) -> dict[str, str]:
    """What differs between two recipes, by dotted key."""
    values = [{dotted(path): _value(recipe, path) for path in leaves(recipe)} for recipe in (before, after)]
    keys = dict.fromkeys([*values[0], *values[1]])
    return {
        key: f"{key} {values[0].get(key)} -> {values[1].get(key)}"
        for key in keys
        if values[0].get(key) != values[1].get(key)
    }


def _value(recipe: Recipe, path: RecipePath) -> object:
    value: object = recipe
    for name in path:
        value = getattr(value, str(name))
    return value
