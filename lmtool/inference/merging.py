"""Merging the adapters of a run into its weights."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from lmtool.errors import UsageError
from lmtool.inference.base import open_base
from lmtool.inference.load import weights_of
from lmtool.recipe.dump import dump
from lmtool.run.directory import RESULTS, SPLIT, Run, describe_environment
from lmtool.run.files import saved_state


def merge(reference: str, output: Path | None, command: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """Make a run that predicts as another one does, but has no adapters and needs no base run.

    It has the best checkpoint, or the given one. output: its directory; a new one under the runs directory when None.
    command: as typed, for run.json.
    Returns the new run, and warnings about the other one.
    Raises UsageError for a run without adapters, and CheckpointError when their base is missing.
    """
    adapted = open_base(reference)
    old, recipe, step = adapted.run, adapted.recipe, adapted.checkpoint.step
    if recipe.tuning.lora is None:
        raise UsageError(
            "this run has no adapters: it needs no base run",
            where=str(old.path),
            fix="name a run that was trained with tuning.lora",
        )
    plain = recipe.model_copy(update={"tuning": recipe.tuning.model_copy(update={"lora": None})})
    weights, state = weights_of(adapted), saved_state(adapted.checkpoint)
    run = Run.create(
        output,
        name=f"{old.info.recipe}-merged",
        summary=old.info.summary,
        recipe=dump(plain),
        tokenizer=adapted.tokenizer.files(),
        fingerprints=old.fingerprints,
        base=adapted.record(),
    )
    with run:
        run.start(step=step, command=command, environment=describe_environment("cpu"))
        for name in (SPLIT, RESULTS):
            if (old.path / name).exists():
                shutil.copyfile(old.path / name, run.path / name)
        changed = {"stale": 0, "pending": None, "recipe": plain.model_dump(mode="json")}
        kept = state.model_copy(update=changed).model_dump(exclude_unset=True)
        run.save(step, weights, {}, kept, best_step=step, keep_last=1)
        run.end("finished")
        run.drop_optimizers()
    return run.path, adapted.warnings
