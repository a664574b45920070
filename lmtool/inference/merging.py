"""A run whose adapters are added to the weights that they stand beside."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from lmtool.errors import UsageError
from lmtool.inference.load import Base, read_run
from lmtool.recipe.dump import dump
from lmtool.run.directory import Run, describe_environment
from lmtool.run.find import find
from lmtool.tables.results import METRICS
from lmtool.tables.tables import SPLIT
from lmtool.training.train import Progress


def merge(reference: str, output: Path | None, command: Sequence[str]) -> Path:
    """Make a run that answers as another one does, but has no adapters and needs no other run.

    It holds the best checkpoint, or the one that is named. output: its directory; a new one under the runs directory
    when None. command: as typed, for run.json.
    Raises UsageError for a run without adapters, and CheckpointError when what they belong to is not there.
    """
    found = find(reference)
    recipe, tokenizer = read_run(found.run)
    if recipe.tuning.lora is None:
        raise UsageError(
            "this run has no adapters: it needs no other run as it is",
            where=str(found.run.path),
            fix="name a run that was trained with tuning.lora",
        )
    checkpoint, _ = found.best(optimizer=False)
    adapted = Base(found.run, checkpoint)
    weights = adapted.tensors()
    plain = recipe.model_copy(update={"tuning": recipe.tuning.model_copy(update={"lora": None})})
    progress = replace(Progress.read(checkpoint), stale=0, recipe=plain.model_dump(mode="json"))
    step = checkpoint.step
    run = Run.create(
        output,
        name=f"{found.run.info['recipe']}-merged",
        summary=found.run.info["summary"],
        recipe=dump(plain),
        tokenizer=tokenizer.to_json().encode(),
        fingerprints=found.run.fingerprints,
        base=adapted.record(),
    )
    with run:
        run.start(step=step, command=command, environment=describe_environment("cpu"))
        for name in (SPLIT, METRICS):
            if (found.run.path / name).exists():
                shutil.copyfile(found.run.path / name, run.path / name)
        run.save(step, weights, {}, asdict(progress), best_step=step, keep_last=1)
        run.end("finished")
    return run.path
