"""The way of a training run: from a plan to a locked run directory, the session in it, and its events."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from lmtool.compute.device import configure_compute
from lmtool.errors import NumericalError
from lmtool.evaluation.embedding import Vectors, embed_to_unit_vectors
from lmtool.model.size import build_on_meta
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.spec.objective import supported_objectives
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.checkpoint import SINGLE_PROCESS
from lmtool.runs.creation import check_output_free_and_writable, create_and_lock_run
from lmtool.runs.directory import BASELINE, RECIPE, SPLIT, Run
from lmtool.runs.files import RunInfo, describe_environment
from lmtool.runs.load import load_run
from lmtool.storage.durable import write_file
from lmtool.storage.records import encode_json
from lmtool.tasks.baseline import Baseline
from lmtool.tasks.data import TableData
from lmtool.training.checkpoint_manager import CheckpointManager
from lmtool.training.events import Event, Info, RunStarted, Warn
from lmtool.training.fit import is_checkpoint_step
from lmtool.training.job import SessionOptions, TrainingJob
from lmtool.training.plan import TrainingPlan, check_device_and_choose_sharding
from lmtool.training.session import TrainingSession


def train(plan: TrainingPlan, options: SessionOptions) -> Iterator[Event]:
    """Reads the data of a plan, creates a run directory, trains in it, and evaluates the best checkpoint.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    check_output_free_and_writable(options.output, options.replace_aborted)
    recipe = plan.recipe
    with configure_compute(recipe.training.device, recipe.training.precision).join_process_group_once() as joined:
        compute = check_device_and_choose_sharding(recipe, joined, plan.resolved.origins)
        if compute.world.is_main:
            check_output_free_and_writable(options.output, options.replace_aborted)  # others may have been quicker
        job = plan.read_data_and_make_job(compute, options.report)
        run = _create_run(plan.resolved.name, job, options) if compute.world.is_main else None
        with run or nullcontext():
            if run is not None and job.features is not None:
                run.copy_run_as_features(job.features.reference.run, job.features.reference.checkpoint)
            if run is not None and job.data.split is not None:
                write_file(run.path / SPLIT, encode_json(job.data.split.model_dump()))
            yield from train_session(job, run, options)


def _create_run(recipe_name: str, job: TrainingJob, options: SessionOptions) -> Run:
    recipe, data = job.recipe, job.data
    tokenizer = data.prompt_format.tokenizer
    info = RunInfo.create(
        recipe=recipe_name,
        summary=describe_model(recipe),
        fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
        base=job.base and job.base.to_source_record(),
        teacher=job.teacher and job.teacher.to_source_record(),
        data={
            "lines": list(job.lines),
            "bytes_per_token": data.validation_bytes_per_token,
            "valid_rows": data.n_valid if isinstance(data, TableData) else None,
        },
    )
    files = {RECIPE: dump_yaml(recipe).encode(), **tokenizer.serialize_files()}
    return create_and_lock_run(options.output, info, files, options.replace_aborted)


def describe_model(recipe: Recipe) -> str:
    """Describes the model of a recipe and its size in a few words, for lists of runs."""
    lm = build_on_meta(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.description}, {size} parameters" if count else lm.description


def train_session(
    job: TrainingJob, run: Run | None, options: SessionOptions, changes: Sequence[str] = ()
) -> Iterator[Event]:
    """Trains from the start or from a checkpoint, and evaluates the best checkpoint: one session of a run.

    run: locked; everything is saved in it. None in processes that only compute. changes: descriptions of what differs
    from the recipe that the run had before. Every process iterates to the end. With a time limit the speed of the first
    steps sets the number of steps.

    At a step that ends with a validation the checkpoint is saved first: no later error loses the step, and a run that
    is resumed there begins with that validation. A step at which the run is interrupted is validated as well, outside
    of the training: patience, the best step and the metrics are as if it had not been.

    Raises NumericalError, also when the first validation loss is not finite, ResourceError and CheckpointError. When
    saving fails, training continues with a warning, but a run whose last save fails ends with that error.
    """
    recipe, data, state, checkpoint, world = job.recipe, job.data, job.state, job.checkpoint, job.compute.world
    # a checkpoint that only an interruption made is removed after the next one
    removable_step = None if checkpoint is None or is_checkpoint_step(recipe, checkpoint.step) else checkpoint.step
    peers = world.create_text_exchange_group() if world.sharded else SINGLE_PROCESS
    with data.open_streams_for_training(job.compute, state.stream or ()), ThreadPoolExecutor(1) as thread:
        if run is not None:
            step = 0 if checkpoint is None else checkpoint.step
            is_noted = checkpoint is not None and state.pending is None
            damaged = run.rewind_and_start_session(
                step=step,
                command=options.command,
                environment=describe_environment(str(job.compute.device)),
                validated=state.make_validation_state(step) if is_noted else None,
                is_validation_pending=state.pending is not None,
            )
            if checkpoint is not None:
                run.replace_recipe(dump_yaml(recipe))
            yield from map(Warn, damaged)
            yield RunStarted(run.path, run.name, recipe, data.prompt_format.tokenizer, job.lines, tuple(changes))
            yield from _measure_or_read_baselines(run, job)
        yield from map(Warn, job.warnings)
        manager = CheckpointManager(run, recipe.checkpoint, thread, checkpoint, removable_step, peers)
        session = TrainingSession(job, manager, options)
        yield from map(Warn, session.warnings)
        try:
            yield from session.run()
        except NumericalError as error:
            where = "; ".join(filter(None, (error.where, manager.saved_description)))
            raise NumericalError(error.what, where=where, fix=error.fix) from error
        yield from session.finish_and_evaluate_best_checkpoint()


def _measure_or_read_baselines(run: Run, job: TrainingJob) -> Iterator[Event]:
    """Measures the baselines of tables with labels unless that is off, or reads those that the run has kept."""
    data, recipe = job.data, job.recipe
    if not isinstance(data, TableData):
        return
    kept = run.saved_baselines  # also where the recipe says false, as those of earlier versions always do
    if kept is None and recipe.evaluation.baseline is False:
        return
    if kept is not None:
        data.baselines = {name: Baseline(**dict(figures)) for name, figures in kept.root.items()}
    else:
        base = job.base if job.checkpoint is None and job.compute.world.size == 1 else None
        is_encoder = base is not None and "embedding" in supported_objectives(base.recipe.model)
        compute = configure_compute(recipe.training.device, "float32")

        def embed(texts: Sequence[str]) -> Vectors:
            assert base is not None
            return embed_to_unit_vectors(load_run(base, compute), texts)

        data.measure_baselines(embed if is_encoder else None)
        if data.baselines:
            figures = {name: baseline.model_dump() for name, baseline in data.baselines.items()}
            write_file(run.path / BASELINE, encode_json(figures))
    for name, baseline in data.baselines.items():
        yield Info(f"{name}: {baseline.describe()}" if name else baseline.describe())
