"""Base checkpoints: those that other runs are initialized from, and that runs of adapters need again."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from lmtool.errors import CheckpointError, RecipeError, UsageError
from lmtool.interop.reference import find, run_named_by_file
from lmtool.printable import plain
from lmtool.recipe.changes import changes, unchangeable
from lmtool.recipe.finetuning import Parent
from lmtool.recipe.load import load_of_run
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.checkpoint import Checkpoint, verify
from lmtool.run.directory import CHECKPOINTS, RECIPE, Run
from lmtool.run.files import OtherRun, saved_state
from lmtool.run.find import Found
from lmtool.run.paths import explained
from lmtool.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Base:
    """A checkpoint that another run is initialized from, and the run that it belongs to.

    warnings: what of the run was found damaged or missing, a line each; people are to be told.
    """

    run: Run
    checkpoint: Checkpoint
    recipe: Recipe
    tokenizer: Tokenizer
    warnings: tuple[str, ...]

    @classmethod
    def of(cls, run: Run, checkpoint: Checkpoint, warnings: Sequence[str] = ()) -> "Base":
        """A checkpoint of a run. warnings: those of opening it.

        Raises CheckpointError when the tokenizer or the recipe is not the run's own.
        """
        recipe, doubts = read_recipe(run, checkpoint)
        return cls(run, checkpoint, recipe, read_tokenizer(run), (*warnings, *doubts))

    @property
    def is_published(self) -> bool:
        """Whether the weights are those of a published model, or were trained further from these."""
        return self.run.info.origin is not None or (self.run.info.base is not None and self.run.info.base.is_published)

    @property
    def parent(self) -> Parent:
        """What the recipe of a run that begins with it depends on."""
        return Parent(self.recipe, self.run.name, self.is_published)

    def record(self) -> dict[str, object]:
        """Its path and the SHA-256 of its weights, by which `base_of` finds it."""
        return {
            "is_published": self.is_published,
            "run": self.run.name,
            "path": str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.path.name,
            "sha256": self.checkpoint.model_digest,
        }


def open_base(reference: str) -> Base:
    """The best checkpoint of a run, or a given checkpoint, as the base of another run."""
    source = find(reference)
    return Base.of(source.run, *source.best(optimizer=False))


def base_of(run: Run) -> Base:
    """The checkpoint that a run was initialized from, at its old path or in a run of its name.

    Raises CheckpointError when it is missing, or when its weights have changed.
    """
    need, note = f"{run.name} holds adapters only, to", "`lmtool runs merge` makes a run that needs no base"
    return _reopen(run, run.info.base, "the base of its adapters", need, note)


def teacher_of(run: Run) -> Base:
    """The checkpoint that a run is distilled from, found as `base_of` does. Raises CheckpointError likewise."""
    return _reopen(run, run.info.teacher, "its teacher", f"{run.name} learns from", "only with it training goes on")


def _reopen(of_run: Run, record: OtherRun | None, name: str, need: str, note: str) -> Base:
    """The checkpoint of a `Base.record` of a run. name, need, note: what it is, why it is needed, and what to know."""
    if record is None:
        raise CheckpointError(f"the run does not name {name}", where=str(of_run.path), fix="train anew")
    wanted = f"{need} {record.checkpoint} of {record.run}"
    reference = run_named_by_file(record.path if Path(record.path).exists() else record.run)
    try:
        run = find(reference).run
        checkpoint = verify(run.path / CHECKPOINTS / record.checkpoint, optimizer=False)
    except CheckpointError as error:
        raise CheckpointError(f"{wanted}: {error.what}", where=record.path, fix=f"restore that run; {note}") from error
    if checkpoint.model_digest != record.sha256:
        what = f"{wanted}, which has changed since"
        raise CheckpointError(what, where=str(checkpoint.path), fix="restore the checkpoint, or train anew")
    return Base.of(run, checkpoint)


def read_tokenizer(run: Run) -> Tokenizer:
    """The tokenizer of a run. Raises CheckpointError when it is not the one that the run was trained with."""
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if tokenizer.fingerprint != run.info.fingerprints.tokenizer:
        what = "the tokenizer does not fit the model: it is not the one that the model was trained with"
        raise CheckpointError(what, where=str(run.tokenizer_path), fix="restore the run's own tokenizer.json")
    return tokenizer


def read_recipe(run: Run, checkpoint: Checkpoint) -> tuple[Recipe, list[str]]:
    """The recipe of a run at a checkpoint, and a warning where recipe.yaml is damaged or missing.

    What the model is comes from the checkpoint; recipe.yaml may differ in what a resumed run may change. Raises
    CheckpointError, which names the keys, where it differs in more.
    """
    trained = recipe_of(checkpoint)
    try:
        written = load_of_run(run.recipe_path)
    except (RecipeError, UsageError):
        what = "damaged" if run.recipe_path.is_file() else "missing"
        return trained, [f"{RECIPE} of {run.name} is {what}; the recipe in its checkpoint is used"]
    different = changes(trained, written)
    forged = [different[key] for key in unchangeable(different)]
    if forged:
        more = f", and {len(forged) - 3} more" if len(forged) > 3 else ""
        what = f"{RECIPE} is not the recipe of this model: {'; '.join(plain(text)[:200] for text in forged[:3])}{more}"
        fix = "undo these changes, or delete the file: the checkpoint has the recipe too"
        raise CheckpointError(what, where=str(run.recipe_path), fix=fix)
    return written, []


def written_recipe(source: Found) -> tuple[Recipe, list[str]]:
    """The recipe in a run's recipe.yaml; the one of its newest checkpoint, and a warning, where that is damaged.

    It is not compared with a checkpoint.
    """
    try:
        return load_of_run(source.run.recipe_path), []
    except (RecipeError, UsageError):
        return read_recipe(source.run, source.newest(optimizer=False)[0])


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """The recipe that a checkpoint was trained by. Raises CheckpointError."""
    try:
        return Recipe.model_validate(saved_state(checkpoint).recipe)
    except ValidationError as error:
        what = "state.json holds no recipe of this version of lmtool"
        unread = CheckpointError(what, where=str(checkpoint.path), fix="train anew")
        raise explained(checkpoint.path.parents[1], unread) from error
