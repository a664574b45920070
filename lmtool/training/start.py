"""Starting a training: from a plan to a locked run directory and the training in it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from lmtool.compute.device import Compute, choose_compute
from lmtool.data.survey import Report
from lmtool.durable import write_file
from lmtool.inference.base import Base
from lmtool.inference.embedding import Vectors
from lmtool.inference.load import load_run
from lmtool.model.size import outline
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import objectives_of
from lmtool.recipe.spec.recipe import Recipe
from lmtool.records import encode
from lmtool.run.creation import check_folder, create_run
from lmtool.run.directory import BASELINE, RECIPE, SPLIT, Run
from lmtool.run.files import RunInfo, describe_environment
from lmtool.search.index import text_vectors
from lmtool.tasks.baseline import Baseline
from lmtool.tasks.data import TableData
from lmtool.training.data import TrainingData
from lmtool.training.events import Event, Info, Started, Warn
from lmtool.training.plan import Plan, TrainingJob, checked_compute
from lmtool.training.train import train


@dataclass(frozen=True)
class Invocation:
    """What the person who starts or resumes training says besides the recipe.

    command: as typed, for run.json.
    report: called with the progress of preparing the data.
    stop: called after each step; when True the run is saved and ends.
    output: the run directory; a new one under the runs directory when None.
    retry: it may hold a run that ended before its first checkpoint, which is replaced.
    began: when the command did, by time.perf_counter.
    until, is_baseline_least: see `train`.
    """

    command: Sequence[str]
    report: Report
    stop: Callable[[], bool]
    output: Path | None = None
    retry: bool = False
    began: float = field(default_factory=lambda: time.perf_counter())
    until: float = 1.0
    is_baseline_least: bool = False


def start(plan: Plan, invocation: Invocation) -> Iterator[Event]:
    """Read the data of a plan, create a run directory, train in it, and evaluate the best checkpoint.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    check_folder(invocation.output, invocation.retry)
    recipe, base = plan.recipe, plan.base
    with choose_compute(recipe.training.device, recipe.training.precision).joined() as joined:
        compute = checked_compute(recipe, joined, plan.resolved.origins)
        if compute.world.is_main:
            check_folder(invocation.output, invocation.retry)  # others may have been quicker
        job = plan.job(compute, invocation.report)
        data = job.data
        run = _created(plan.resolved.name, job, invocation) if compute.world.is_main else None
        with run or nullcontext(), data.streaming(compute):
            if run is not None:
                if (features := job.initialization.features) is not None:
                    run.keep_features(features.base.run, features.base.checkpoint)
                if data.split is not None:
                    write_file(run.path / SPLIT, encode(data.split.model_dump()))
                run.start(step=0, command=invocation.command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, job.recipe, data.prompt_format.tokenizer, job.lines)
                yield from baselines(run, data, job.recipe, base if compute.world.size == 1 else None)
            yield from map(Warn, job.warnings)
            yield from train(
                job,
                run,
                stop=invocation.stop,
                until=invocation.until,
                is_baseline_least=base is not None and invocation.is_baseline_least,
                began=invocation.began,
            )


def _created(name: str, job: TrainingJob, invocation: Invocation) -> Run:
    """A new run directory. name: of the recipe."""
    recipe, data, initialization = job.recipe, job.data, job.initialization
    tokenizer = data.prompt_format.tokenizer
    features = [one.recipe.model_dump(mode="json", include={"model", "tokenizer"}) for one in job.candidates]
    info = RunInfo.new(
        recipe=name,
        summary=summary(recipe),
        fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
        base=initialization.base and initialization.base.record(),
        teacher=initialization.teacher and initialization.teacher.record(),
        data={
            "lines": list(job.lines),
            "bytes_per_token": data.bytes_per_token,
            "valid_rows": data.n_valid if isinstance(data, TableData) else None,
            "features": features,
        },
    )
    files = {RECIPE: dump(recipe).encode(), **tokenizer.files()}
    return create_run(invocation.output, info, files, invocation.retry)


def baselines(run: Run, data: TrainingData, recipe: Recipe, base: Base | None = None) -> Iterator[Event]:
    """Measure the baselines of tables with labels, or read those that the run has kept. base: that is fine-tuned."""
    if not isinstance(data, TableData):
        return
    kept = run.saved_baselines
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


def _vectors_of(base: Base, compute: Compute, texts: Sequence[str]) -> Vectors:
    return text_vectors(load_run(str(base.checkpoint.path), compute), texts)


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.description}, {size} parameters" if count else lm.description
