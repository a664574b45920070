"""Starting a training: from a plan to a locked run directory and the training in it."""

from collections.abc import Iterator
from contextlib import nullcontext

from lmtool.compute.device import choose_compute
from lmtool.durable import write_file
from lmtool.model.size import outline
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.recipe import Recipe
from lmtool.records import encode_json
from lmtool.run.creation import check_output_folder, create_run
from lmtool.run.directory import RECIPE, SPLIT, Run
from lmtool.run.files import RunInfo
from lmtool.tasks.data import TableData
from lmtool.training.events import Event
from lmtool.training.job import Invocation, TrainingJob
from lmtool.training.plan import Plan, checked_compute
from lmtool.training.train import train


def start(plan: Plan, invocation: Invocation) -> Iterator[Event]:
    """Read the data of a plan, create a run directory, train in it, and evaluate the best checkpoint.

    Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
    """
    check_output_folder(invocation.output, invocation.retry)
    recipe = plan.recipe
    with choose_compute(recipe.training.device, recipe.training.precision).joined() as joined:
        compute = checked_compute(recipe, joined, plan.resolved.origins)
        if compute.world.is_main:
            check_output_folder(invocation.output, invocation.retry)  # others may have been quicker
        job = plan.job(compute, invocation.report)
        run = _created(plan.resolved.name, job, invocation) if compute.world.is_main else None
        with run or nullcontext():
            if run is not None and job.features is not None:
                run.copy_features_run(job.features.reference.run, job.features.reference.checkpoint)
            if run is not None and job.data.split is not None:
                write_file(run.path / SPLIT, encode_json(job.data.split.model_dump()))
            yield from train(job, run, invocation)


def _created(name: str, job: TrainingJob, invocation: Invocation) -> Run:
    """A new run directory. name: of the recipe."""
    recipe, data = job.recipe, job.data
    tokenizer = data.prompt_format.tokenizer
    info = RunInfo.create(
        recipe=name,
        summary=summary(recipe),
        fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
        base=job.base and job.base.record(),
        teacher=job.teacher and job.teacher.record(),
        data={
            "lines": list(job.lines),
            "bytes_per_token": data.bytes_per_token,
            "valid_rows": data.n_valid if isinstance(data, TableData) else None,
        },
    )
    files = {RECIPE: dump(recipe).encode(), **tokenizer.serialize_files()}
    return create_run(invocation.output, info, files, invocation.retry)


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.description}, {size} parameters" if count else lm.description
