"""Resuming a run from its newest intact checkpoint."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.data.survey import Progress
from lmtool.errors import CheckpointError, UsageError
from lmtool.interop.references import HUB_PREFIX, hub_note_file
from lmtool.interop.resolve import resolve_reference
from lmtool.printable import format_count
from lmtool.recipe.changes import CHANGE_RULES, diff_recipes, find_change_rule, find_unchangeable_keys
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import Setting
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.runs.checkpoint import SINGLE_PROCESS, Checkpoint
from lmtool.runs.damage import find_damaged_record_files
from lmtool.runs.directory import RESULTS, SPLIT, Run
from lmtool.runs.find import find_resumable_or_last_run
from lmtool.runs.load import load_feature_model
from lmtool.runs.reference import (
    find_unchanged_base,
    find_unchanged_teacher,
    read_trained_recipe,
    read_verified_tokenizer,
)
from lmtool.storage.durable import write_file
from lmtool.storage.records import encode_json
from lmtool.tasks.build import get_default_metric, get_row_kind
from lmtool.tasks.prepare import open_training_tables, read_and_encode_tables
from lmtool.training.checkpoint_manager import TrainerState
from lmtool.training.data import TrainingData, tokenize_training_text
from lmtool.training.events import Event, Info, RunAlreadyFinished, Warn
from lmtool.training.job import SessionOptions, TrainingJob
from lmtool.training.plan import check_device_and_choose_sharding, check_same_inputs_in_all_processes, is_for_tables
from lmtool.training.train import train_session

PROLONGING_KEYS = {"training.steps", "evaluation.patience", *(key for key, rule in CHANGE_RULES.items() if rule.resets)}
"""Keys that let a finished run continue when they change."""


def resume(reference: str | None, settings: Sequence[Setting], options: SessionOptions) -> Iterator[Event]:
    """Continues a run from its newest intact checkpoint, or from a given checkpoint.

    reference: None for the last run that can be resumed. settings: changes of the run's recipe; `lmtool.recipe.changes`
    lists which are allowed and what they reset.
    Raises UsageError for a change that is not allowed, CheckpointError when data or tokenizer are not those of the run.
    """
    if reference is None:
        run, skipped = find_resumable_or_last_run(
            include_finished=any(setting.key in PROLONGING_KEYS for setting in settings)
        )
        if skipped:
            yield Info(f"resuming {run.name}, since {', '.join(skipped)}")
        reference = str(run.path)
    if reference.startswith(HUB_PREFIX) and not hub_note_file(reference).exists():  # it would be downloaded first
        raise _no_training_error(reference)
    named = resolve_reference(reference)
    run = named.run
    if run.info.origin is not None:
        raise _no_training_error(str(run.path))
    written, recipe_warnings = named.read_unverified_or_checkpoint_recipe()
    recipe = resolve(written, settings).recipe
    if recipe.evaluation.metric == "auto":
        recipe = recipe.with_unvalidated_values({"evaluation.metric": get_default_metric(recipe.objective)})
    with configure_compute(recipe.training.device, recipe.training.precision).join_process_group_once() as compute:
        world = compute.world
        compute = check_device_and_choose_sharding(recipe, compute, {})
        if world.is_main:
            run.lock()
        with run if world.is_main else nullcontext():
            checkpoint, warnings = named.find_named_or_newest_checkpoint(
                peers=world.create_text_exchange_group() if world.size > 1 else SINGLE_PROCESS
            )
            yield from map(Warn, (*warnings, *recipe_warnings))
            before = read_trained_recipe(checkpoint)
            if recipe.training.steps != before.training.steps:
                # else steps would follow from epochs again
                recipe = recipe.with_unvalidated_values({"training.epochs": None, "training.min_steps": None})
            changed, now = diff_recipes(before, recipe), diff_recipes(written, recipe)
            _check_recipe_changes(changed, before, recipe, checkpoint, run)
            if "training.steps" in changed and checkpoint.step < before.training.steps:
                stopped = f"the planned end moves; the run has done {format_count(checkpoint.step, 'step')}"
                changed["training.steps"] += f" ({stopped})"
            state = TrainerState.from_checkpoint(checkpoint, run.last_validation, recipe)
            read_verified_tokenizer(run)
            unusable = dict(find_damaged_record_files(run))
            needs_evaluation = RESULTS in unusable or any("scores" in find_change_rule(key).resets for key in now)
            is_stale = state.is_stale(recipe.evaluation)
            has_results = (run.path / RESULTS).exists() and not needs_evaluation
            needs_results = is_for_tables(recipe) or recipe.evaluation.baseline is True
            is_trained = is_stale or recipe.training.steps <= checkpoint.step
            is_over = is_trained and state.pending is None and (has_results or not needs_results)
            world.barrier()  # all have read the run before the first one changes anything on disk
            if not is_over:
                job = _reread_data_and_make_job(run, recipe, checkpoint, state, compute, options.report)
                if world.is_main and job.data.split is not None and run.saved_split is None:
                    write_file(run.path / SPLIT, encode_json(job.data.split.model_dump()))
                    yield Warn(f"{SPLIT} is missing: the rows to hold out are drawn anew from the seed")
                yield from train_session(job, run if world.is_main else None, options, tuple(changed.values()))
                return
            yield from (Warn(why if name in why else f"{name}: {why}") for name, why in unusable.items())
            if world.is_main:
                run.replace_recipe(dump_yaml(recipe))
                yield from map(Info, now.values())
                run.remove_leftover_checkpoints(recipe.checkpoint.keep_last)
                if run.info.sessions[-1].outcome != "finished":
                    # killed between its last checkpoint and its end, or ended by its new recipe
                    run.record_session_end("finished")
                if not recipe.checkpoint.keep_optimizer:
                    run.remove_optimizer_states()
                can_go_on = not recipe.model.counts and not isinstance(recipe.optimizer, Lbfgs)
                yield RunAlreadyFinished(run.path, checkpoint.step, is_stale, can_go_on)


def _no_training_error(where: str) -> CheckpointError:
    """Returns the error for a published model, which has no training to resume."""
    fix = "train it further: lmtool finetune TABLE --from RUN, or lmtool pretrain TEXT --from RUN"
    return CheckpointError("a published model has no training to resume", where=where, fix=fix)


def _reread_data_and_make_job(
    run: Run, recipe: Recipe, checkpoint: Checkpoint, state: TrainerState, compute: ExecutionContext, report: Progress
) -> TrainingJob:
    """Rebuilds the job of a run at a checkpoint. Raises CheckpointError when the data of the run have changed."""
    tokenizer = read_verified_tokenizer(run)
    base = find_unchanged_base(run) if recipe.tuning.lora is not None else None
    teacher = find_unchanged_teacher(run) if recipe.distillation.teacher is not None else None
    data: TrainingData
    if is_for_tables(recipe):
        tables = open_training_tables(recipe.data, get_row_kind(recipe.objective))
        read, data = read_and_encode_tables(recipe, tables, tokenizer, run.saved_split)
    else:
        read, data = tokenize_training_text(recipe, tokenizer, compute.world, report)
    if data.fingerprint != run.info.fingerprints.data:
        what = "the run cannot be resumed: its training data have changed since it was started"
        where = ", ".join((*recipe.data.sources, *recipe.data.valid))
        raise CheckpointError(what, where=where, fix="restore the old data, or start a new run", code="data_changed")
    check_same_inputs_in_all_processes(read, data.fingerprint, compute.world)
    return TrainingJob(
        read,
        data,
        compute,
        base=base,
        teacher=teacher,
        features=load_feature_model(run, read, compute),
        checkpoint=checkpoint,
        state=state,
        lines=data.description_lines,
    )


def resume_with_own_recipe(run_folder: Path, options: SessionOptions) -> Iterator[Event]:
    """Continues the run in a folder with its own recipe; see `resume`.

    Warns if the command differs from the one that started the run, since the differences have no effect.
    """
    sessions = Run.open(run_folder).info.sessions
    first_command = list(sessions[0].command) if sessions else [*options.command]
    if [*options.command] != first_command:
        yield Warn(
            "the run continues with the options that it began with, not with those of this command: "
            + " ".join(first_command)
        )
    yield from resume(str(run_folder), (), options)


def _check_recipe_changes(
    change_by_key: Mapping[str, str], before: Recipe, recipe: Recipe, checkpoint: Checkpoint, run: Run
) -> None:
    """Raises UsageError for changes that a resumed run does not allow. before: the recipe of the checkpoint."""
    if refused := find_unchangeable_keys(change_by_key):
        what = f"the run cannot be resumed under another recipe: {'; '.join(change_by_key[key] for key in refused)}"
        fix = f"undo this, or {'; or '.join(dict.fromkeys(find_change_rule(key).note for key in refused))}"
        raise UsageError(what, where=str(run.recipe_path), fix=fix)
    if recipe.model.counts and before.training.steps == checkpoint.step < recipe.training.steps:
        steps = format_count(checkpoint.step, "step")
        what = f"the whole text was counted in {steps}, and a token may be counted only once"
        raise UsageError(what, where="training.steps", fix="omit it; for more text, train a new run")
    if recipe.training.steps < checkpoint.step:
        done = format_count(checkpoint.step, "step")
        what = f"training.steps is {recipe.training.steps}, and the run has done {done}"
        fix = f"train longer: -s training.steps=+N; or resume an earlier checkpoint: {run.name}@STEP"
        raise UsageError(what, where=str(run.recipe_path), fix=fix)
