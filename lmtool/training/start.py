"""Starting a training: from a plan to a locked run directory and the training in it."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial

from lmtool.compute.device import Compute, choose_compute
from lmtool.durable import write_file
from lmtool.inference.embedding import Vectors
from lmtool.inference.load import load_run
from lmtool.inference.reference import Reference
from lmtool.model.size import outline
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import objectives_of
from lmtool.recipe.spec.recipe import Recipe
from lmtool.records import encode
from lmtool.run.creation import check_folder, create_run
from lmtool.run.directory import BASELINE, RECIPE, SPLIT, Run
from lmtool.run.files import RunInfo, describe_environment
from lmtool.search.index import text_vectors
from lmtool.tables.baseline import Baseline
from lmtool.tables.data import TableData
from lmtool.training.events import Event, Info, Started, Warn
from lmtool.training.job import Invocation, TrainingJob
from lmtool.training.plan import Plan, checked_compute
from lmtool.training.train import train


def start(plan: Plan, invocation: Invocation) -> Iterator[Event]:
    """Read the data of a plan, create a run directory, train in it, and evaluate the best checkpoint.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    check_folder(invocation.output, invocation.retry)
    recipe = plan.recipe
    with choose_compute(recipe.training.device, recipe.training.precision).joined() as joined:
        compute = checked_compute(recipe, joined, plan.resolved.origins)
        if compute.world.is_main:
            check_folder(invocation.output, invocation.retry)  # others may have been quicker
        job = plan.job(compute, invocation.report)
        run = _created(plan.resolved.name, job, invocation) if compute.world.is_main else None
        with run or nullcontext():
            if run is not None and job.features is not None:
                run.keep_features(job.features.reference.run, job.features.reference.checkpoint)
            if run is not None and job.data.split is not None:
                write_file(run.path / SPLIT, encode(job.data.split.model_dump()))
            yield from train_in_run(job, run, invocation)


def train_in_run(
    job: TrainingJob, run: Run | None, invocation: Invocation, changed: tuple[str, ...] = ()
) -> Iterator[Event]:
    """Begin a session of a run, and train in it, from the start or from a checkpoint.

    run: locked; None in processes that only compute. changed: what of its recipe is another than before, in words.
    """
    data, compute, state, checkpoint = job.data, job.compute, job.state, job.checkpoint
    with data.streaming(compute, state.stream or ()):
        if run is not None:
            step = 0 if checkpoint is None else checkpoint.step
            is_noted = checkpoint is not None and state.pending is None
            damaged = run.start(
                step=step,
                command=invocation.command,
                environment=describe_environment(str(compute.device)),
                validated=state.note(step) if is_noted else None,
                pending=state.pending is not None,
            )
            if checkpoint is not None:
                run.write_recipe(dump(job.recipe))
            yield from map(Warn, damaged)
            yield Started(run.path, run.name, job.recipe, data.prompt_format.tokenizer, job.lines, changed)
            yield from baselines(run, job)
        yield from map(Warn, job.warnings)
        yield from train(job, run, invocation)


def _created(name: str, job: TrainingJob, invocation: Invocation) -> Run:
    """A new run directory. name: of the recipe."""
    recipe, data = job.recipe, job.data
    tokenizer = data.prompt_format.tokenizer
    features = [one.recipe.model_dump(mode="json", include={"model", "tokenizer"}) for one in job.candidates]
    info = RunInfo.new(
        recipe=name,
        summary=summary(recipe),
        fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
        base=job.base and job.base.record(),
        teacher=job.teacher and job.teacher.record(),
        data={
            "lines": list(job.lines),
            "bytes_per_token": data.bytes_per_token,
            "valid_rows": data.n_valid if isinstance(data, TableData) else None,
            "features": features,
        },
    )
    files = {RECIPE: dump(recipe).encode(), **tokenizer.files()}
    return create_run(invocation.output, info, files, invocation.retry)


def baselines(run: Run, job: TrainingJob) -> Iterator[Event]:
    """Measure the baselines of tables with labels, or read those that the run has kept."""
    data, recipe = job.data, job.recipe
    if not isinstance(data, TableData):
        return
    kept, base = run.saved_baselines, job.base if job.checkpoint is None and job.compute.world.size == 1 else None
    if kept is not None:
        data.baselines = {name: Baseline(**dict(figures)) for name, figures in kept.root.items()}
    else:
        is_encoder = base is not None and "embedding" in objectives_of(base.recipe.model)
        compute = choose_compute(recipe.training.device, "float32")
        data.measure_baselines(partial(_vectors_of, base, compute) if base is not None and is_encoder else None)
        if data.baselines:
            figures = {name: baseline.model_dump() for name, baseline in data.baselines.items()}
            write_file(run.path / BASELINE, encode(figures))
    for name, baseline in data.baselines.items():
        yield Info(f"{name}: {baseline.line()}" if name else baseline.line())


def _vectors_of(base: Reference, compute: Compute, texts: Sequence[str]) -> Vectors:
    return text_vectors(load_run(base, compute), texts)


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.description}, {size} parameters" if count else lm.description
