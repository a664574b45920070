"""Resuming a run from its newest intact checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from lmtool.checks.runs import find_damaged_records
from lmtool.compute.device import Compute, choose_compute
from lmtool.data.survey import Progress
from lmtool.durable import write_file
from lmtool.errors import CheckpointError, UsageError
from lmtool.inference.load import load_feature_model
from lmtool.inference.reference import find_base, find_teacher, read_tokenizer, read_trained_recipe, resolve_reference
from lmtool.interop.names import HUB, pointer_of
from lmtool.printable import format_count
from lmtool.recipe.changes import CHANGE_RULES, diff_recipes, find_change_rule, find_unchangeable_keys
from lmtool.recipe.dump import dump
from lmtool.recipe.load import Setting
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.records import encode_json
from lmtool.run.checkpoint import SINGLE_PROCESS, Checkpoint
from lmtool.run.directory import RESULTS, SPLIT, Run
from lmtool.run.find import find_resumable_run
from lmtool.tasks.build import kind_of_rows, usual_metric
from lmtool.tasks.prepare import open_tables, read_tables
from lmtool.training.checkpoint_manager import TrainingState
from lmtool.training.data import TrainingData, read_text
from lmtool.training.events import AlreadyFinished, Event, Info, Warn
from lmtool.training.job import Invocation, TrainingJob
from lmtool.training.plan import agree, checked_compute, is_for_tables
from lmtool.training.train import train

PROLONGING = {"training.steps", "evaluation.patience", *(key for key, rule in CHANGE_RULES.items() if rule.resets)}
"""Keys with which a run that is finished goes on."""


def resume(reference: str | None, settings: Sequence[Setting], invocation: Invocation) -> Iterator[Event]:
    """Continue a run from its newest intact checkpoint, or from a given checkpoint.

    reference: None for the last run that can be resumed. settings: over the run's recipe; `lmtool.recipe.changes` has
    what may change, and what that resets.
    Raises UsageError for a change that is not allowed, CheckpointError when data or tokenizer are not those of the run.
    """
    if reference is None:
        run, passed = find_resumable_run(or_finished=any(setting.key in PROLONGING for setting in settings))
        if passed:
            yield Info(f"resuming {run.name}, since {', '.join(passed)}")
        reference = str(run.path)
    if reference.startswith(HUB) and not pointer_of(reference).exists():  # it would be downloaded first
        raise _without_training(reference)
    named = resolve_reference(reference)
    run = named.run
    if run.info.origin is not None:
        raise _without_training(str(run.path))
    written, doubts = named.written_recipe()
    recipe = resolve(written, settings).recipe
    if recipe.evaluation.metric == "auto":
        recipe = recipe.with_values({"evaluation.metric": usual_metric(recipe.objective)})
    with choose_compute(recipe.training.device, recipe.training.precision).joined() as compute:
        world = compute.world
        compute = checked_compute(recipe, compute, {})
        if world.is_main:
            run.lock()
        with run if world.is_main else nullcontext():
            checkpoint, warnings = named.newest_checkpoint(
                peers=world.side_group() if world.size > 1 else SINGLE_PROCESS
            )
            yield from map(Warn, (*warnings, *doubts))
            before = read_trained_recipe(checkpoint)
            if recipe.training.steps != before.training.steps:
                # else steps would follow from epochs again
                recipe = recipe.with_values({"training.epochs": None, "training.min_steps": None})
            changed, now = diff_recipes(before, recipe), diff_recipes(written, recipe)
            _refuse(changed, before, recipe, checkpoint, run)
            if "training.steps" in changed and checkpoint.step < before.training.steps:
                stopped = f"the planned end moves; the run has done {format_count(checkpoint.step, 'step')}"
                changed["training.steps"] += f" ({stopped})"
            state = TrainingState.read(checkpoint, run.last_validation, recipe)
            read_tokenizer(run)
            unusable = dict(find_damaged_records(run))
            is_rescored = RESULTS in unusable or any("scores" in find_change_rule(key).resets for key in now)
            is_over = _is_over(run, recipe, checkpoint, state, is_rescored)
            world.wait()  # all have read the run before the first one changes anything on disk
            if not is_over:
                job = _job_of(run, recipe, checkpoint, state, compute, invocation.report)
                if world.is_main and job.data.split is not None and run.saved_split is None:
                    write_file(run.path / SPLIT, encode_json(job.data.split.model_dump()))
                    yield Warn(f"{SPLIT} is missing: the rows to hold out are drawn anew from the seed")
                yield from train(job, run if world.is_main else None, invocation, tuple(changed.values()))
                return
            yield from (Warn(why if name in why else f"{name}: {why}") for name, why in unusable.items())
            if world.is_main:
                run.write_recipe(dump(recipe))
                yield from map(Info, now.values())
                run.remove_leftover_checkpoints(recipe.checkpoint.keep_last)
                if run.info.sessions[-1].outcome != "finished":
                    # killed between its last checkpoint and its end, or ended by its new recipe
                    run.end_session("finished")
                if not recipe.checkpoint.keep_optimizer:
                    run.remove_optimizer_states()
                is_stale = state.is_stale(recipe.evaluation)
                can_go_on = not recipe.model.counts and not isinstance(recipe.optimizer, Lbfgs)
                yield AlreadyFinished(run.path, checkpoint.step, is_stale, can_go_on)


def _without_training(where: str) -> CheckpointError:
    """The error for a published model, imported or not."""
    fix = "train it further: lmtool finetune TABLE --from RUN, or lmtool pretrain TEXT --from RUN"
    return CheckpointError("a published model has no training to resume", where=where, fix=fix)


def _job_of(
    run: Run, recipe: Recipe, checkpoint: Checkpoint, state: TrainingState, compute: Compute, report: Progress
) -> TrainingJob:
    """What training goes on with at a checkpoint. Raises CheckpointError when the data of the run have changed."""
    tokenizer = read_tokenizer(run)
    base = find_base(run) if recipe.tuning.lora is not None else None
    teacher = find_teacher(run) if recipe.distillation.teacher is not None else None
    data: TrainingData
    if is_for_tables(recipe):
        tables = open_tables(recipe.data, kind_of_rows(recipe.objective))
        read, data = read_tables(recipe, tables, tokenizer, run.saved_split)
    else:
        read, data = read_text(recipe, tokenizer, compute.world, report)
    if data.fingerprint != run.info.fingerprints.data:
        what = "the run cannot be resumed: its training data have changed since it was started"
        where = ", ".join((*recipe.data.sources, *recipe.data.valid))
        raise CheckpointError(what, where=where, fix="restore the old data, or start a new run", code="data_changed")
    agree(read, data.fingerprint, compute.world)
    features = load_feature_model(run, read, compute)
    return TrainingJob(read, data, compute, base, teacher, None, features, checkpoint, state, lines=data.lines)


def go_on(folder: Path, invocation: Invocation) -> Iterator[Event]:
    """Continue the run in a folder under its own recipe, or say that it is finished; see `resume`.

    With a warning where the command is not the one that began it, since what the two set differently has no effect.
    """
    sessions = Run.open(folder).info.sessions
    began = list(sessions[0].command) if sessions else [*invocation.command]
    if [*invocation.command] != began:
        yield Warn(
            f"the run continues with the options that it began with, not with those of this command: {' '.join(began)}"
        )
    yield from resume(str(folder), (), invocation)


def _is_over(run: Run, recipe: Recipe, checkpoint: Checkpoint, state: TrainingState, is_rescored: bool) -> bool:
    """Whether the run is complete: all steps, the pending validation, and the final evaluation.

    is_rescored: that is to be done again.
    """
    measures = is_for_tables(recipe) or recipe.evaluation.baseline
    is_measured = not measures or ((run.path / RESULTS).exists() and not is_rescored)
    trained = state.is_stale(recipe.evaluation) or recipe.training.steps <= checkpoint.step
    return trained and state.pending is None and is_measured


def _refuse(changed: Mapping[str, str], before: Recipe, recipe: Recipe, checkpoint: Checkpoint, run: Run) -> None:
    """Raise UsageError with the changes that a resumed run does not allow. before: the recipe of the checkpoint."""
    if refused := find_unchangeable_keys(changed):
        what = f"the run cannot be resumed under another recipe: {'; '.join(changed[key] for key in refused)}"
        fix = f"undo this, or {'; or '.join(dict.fromkeys(find_change_rule(key).note for key in refused))}"
        raise UsageError(what, where=str(run.recipe_path), fix=fix)
    if recipe.model.counts and before.training.steps == checkpoint.step < recipe.training.steps:
        steps = format_count(checkpoint.step, "step")
        what = f"the whole text was counted in {steps}, and a token may be counted only once"
        raise UsageError(what, where="training.steps", fix="omit it; for more text, train a new run")
    if recipe.training.steps < checkpoint.step:
        what = (
            f"training.steps is {recipe.training.steps}, and the run has done {format_count(checkpoint.step, 'step')}"
        )
        fix = f"train longer: -s training.steps=+N; or resume an earlier checkpoint: {run.name}@STEP"
        raise UsageError(what, where=str(run.recipe_path), fix=fix)
