"""Base checkpoints: those that other runs are initialized from, and that runs of adapters need again."""

from dataclasses import dataclass
from pathlib import Path

from lmtool.errors import CheckpointError
from lmtool.recipe.load import load
from lmtool.recipe.spec import Recipe
from lmtool.run.checkpoint import MODEL, Checkpoint, verify
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.find import find
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Base:
    """A checkpoint that another run is initialized from, and the run that it belongs to."""

    run: Run
    checkpoint: Checkpoint
    recipe: Recipe
    tokenizer: Tokenizer

    @property
    def is_published(self) -> bool:
        """Whether the weights are those of a published model, or were trained further from these."""
        return self.run.origin is not None or bool((self.run.info.get("base") or {}).get("is_published"))

    def record(self) -> dict[str, object]:
        """Its path and the SHA-256 of its weights, by which `base_of` finds it."""
        return {
            "is_published": self.is_published,
            "run": self.run.name,
            "path": str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.path.name,
            "sha256": self.checkpoint.files[MODEL].sha256,
        }


def open_base(reference: str) -> Base:
    """The best checkpoint of a run, or a given checkpoint, as the base of another run."""
    found = find(reference)
    checkpoint, _ = found.best(optimizer=False)
    return Base(found.run, checkpoint, *read_run(found.run))


def base_of(run: Run) -> Base:
    """The checkpoint that a run was initialized from, at its old path or in a run of its name.

    Raises CheckpointError when it is missing, or when its weights have changed.
    """
    info = run.info.get("base")
    if info is None:
        raise CheckpointError("the run does not name the base of its adapters", where=str(run.path), fix="train anew")
    place = Path(info["path"])
    try:
        found = find(str(place) if place.exists() else info["run"])
        checkpoint = verify(found.run.path / CHECKPOINTS / info["checkpoint"], optimizer=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"{run.name} holds adapters only, to {info['checkpoint']} of {info['run']}: {error.what}",
            where=info["path"],
            fix="restore that run; `lmtool runs merge` makes a run that needs no base",
        ) from error
    if checkpoint.files[MODEL].sha256 != info["sha256"]:
        raise CheckpointError(
            f"{run.name} holds adapters only, to {info['checkpoint']} of {info['run']}, which has changed since",
            where=str(checkpoint.path),
            fix="restore the checkpoint, or train anew",
        )
    return Base(found.run, checkpoint, *read_run(found.run))


def read_run(run: Run) -> tuple[Recipe, Tokenizer]:
    """The recipe and the tokenizer of a run. Raises CheckpointError when the tokenizer is not the run's own."""
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if tokenizer.fingerprint != run.fingerprints["tokenizer"]:
        raise CheckpointError(
            "the tokenizer does not fit the model: it is not the one that the model was trained with",
            where=str(run.tokenizer_path),
            fix="restore the run's own tokenizer.json",
        )
    return load(run.recipe_path).recipe, tokenizer
