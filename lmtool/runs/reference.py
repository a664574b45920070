"""References to models: a run and one of its checkpoints, whose files are read and verified when they are needed.

A name is that of a run, `last`, RUN@STEP, or the directory of a run or a checkpoint.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from lmtool.errors import CheckpointError, RecipeError, UsageError
from lmtool.printable import printable
from lmtool.recipe.changes import diff_recipes, find_unchangeable_keys
from lmtool.recipe.finetuning import ParentRun
from lmtool.recipe.load import load_run_recipe
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs import checkpoint as checkpoints
from lmtool.runs.checkpoint import SINGLE_PROCESS, Checkpoint, CheckpointProcessGroup
from lmtool.runs.directory import CHECKPOINTS, RECIPE, Run
from lmtool.runs.files import SourceCheckpoint, read_saved_state
from lmtool.runs.find import find_run
from lmtool.runs.paths import add_version_hint
from lmtool.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class Reference:
    """A run and one of its checkpoints, the best one unless another is named.

    Its files are read and verified when they are first needed; that raises CheckpointError if the run is damaged.
    named: directory of the named checkpoint; None for the best.
    """

    run: Run
    named: Path | None = None

    def find_named_or_newest_checkpoint(
        self, *, verify_optimizer: bool = True, peers: CheckpointProcessGroup = SINGLE_PROCESS
    ) -> tuple[Checkpoint, list[str]]:
        """Returns the named checkpoint, or the newest complete one; see `checkpoint.find_newest_valid_checkpoint`."""
        if self.named is None:
            return self.run.find_newest_checkpoint(verify_optimizer=verify_optimizer, peers=peers)
        verify_optimizer = verify_optimizer and checkpoints.has_optimizer(self.named)
        return checkpoints.open_and_verify_checkpoint(self.named, verify_optimizer=verify_optimizer, peers=peers), []

    @classmethod
    def from_name(cls, name: str) -> Self:
        """Finds a run and maybe one of its checkpoints by name or directory. Raises CheckpointError as `find_run` does.

        Published models have no runs yet; `interop.resolve.resolve_reference` finds and imports them.
        """
        return cls(*find_run(name))

    @cached_property
    def _checkpoint_and_warnings(self) -> tuple[Checkpoint, list[str]]:
        return (
            self.find_named_or_newest_checkpoint(verify_optimizer=False)
            if self.named
            else self.run.find_best_or_newest_checkpoint()
        )

    @cached_property
    def _recipe_and_warnings(self) -> tuple[Recipe, list[str]]:
        return read_verified_or_checkpoint_recipe(self.run, self.checkpoint)

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint_and_warnings[0]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run; see `read_verified_or_checkpoint_recipe`."""
        return self._recipe_and_warnings[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about damaged or missing parts of the run."""
        return (*self._checkpoint_and_warnings[1], *self._recipe_and_warnings[1])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_verified_tokenizer(self.run)

    @property
    def newest_step_after_best(self) -> int | None:
        """Step of the newest checkpoint after the best one; None if there is none, or a checkpoint is named."""
        if self.named is not None:
            return None
        step, saved = self.checkpoint.step, checkpoints.list_checkpoints(self.run.path / CHECKPOINTS)
        return max((other for other, _ in saved if other > step), default=None)

    def read_unverified_or_checkpoint_recipe(self) -> tuple[Recipe, list[str]]:
        """Reads recipe.yaml without comparing it with a checkpoint.

        If it is damaged, returns the recipe of the newest checkpoint, and a warning.
        """
        try:
            return load_run_recipe(self.run.recipe_path), []
        except (RecipeError, UsageError):
            return read_verified_or_checkpoint_recipe(
                self.run, self.find_named_or_newest_checkpoint(verify_optimizer=False)[0]
            )

    @property
    def is_published(self) -> bool:
        """Whether the weights are those of a published model, or were trained further from them."""
        return self.run.info.origin is not None or (self.run.info.base is not None and self.run.info.base.is_published)

    @property
    def parent(self) -> ParentRun:
        """The facts about it that the recipe of a run trained further from it needs."""
        return ParentRun(self.recipe, self.run.name, self.is_published)

    def to_source_record(self) -> dict[str, object]:
        """Returns its path and the SHA-256 of its weights, by which `find_unchanged_base` finds it."""
        return {
            "is_published": self.is_published,
            "run": self.run.name,
            "path": str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.path.name,
            "sha256": self.checkpoint.model_digest,
        }


def find_unchanged_base(run: Run) -> Reference:
    """Finds the checkpoint that a run was initialized from, at its old path or in a run of its name.

    Raises CheckpointError if it is missing, or if its weights have changed.
    """
    need, note = f"{run.name} holds adapters only, to", "`lmtool runs merge` makes a run that needs no base"
    return _find_recorded_checkpoint(run, run.info.base, "the base of its adapters", need, note)


def find_unchanged_teacher(run: Run) -> Reference:
    """Finds the checkpoint that a run is distilled from, and raises, as `find_unchanged_base` does."""
    return _find_recorded_checkpoint(
        run, run.info.teacher, "its teacher", f"{run.name} learns from", "only with it training goes on"
    )


def _find_recorded_checkpoint(
    run_with_record: Run, record: SourceCheckpoint | None, role: str, purpose: str, advice: str
) -> Reference:
    """Finds the checkpoint that a run recorded. role, purpose, advice: of this checkpoint, for errors."""
    if record is None:
        raise CheckpointError(f"the run does not name {role}", where=str(run_with_record.path), fix="train anew")
    wanted = f"{purpose} {record.checkpoint} of {record.run}"
    try:
        run = Reference.from_name(record.path if Path(record.path).exists() else record.run).run
        reference = Reference(run, run.path / CHECKPOINTS / record.checkpoint)
        is_same = reference.checkpoint.model_digest == record.sha256
    except CheckpointError as error:
        fix = (
            "import it again: lmtool runs show NAME, as it is published" if record.is_published else "restore that run"
        )
        raise CheckpointError(f"{wanted}: {error.what}", where=record.path, fix=f"{fix}; {advice}") from error
    if not is_same:
        what = f"{wanted}, which has changed since"
        raise CheckpointError(what, where=str(reference.named), fix="restore the checkpoint, or train anew")
    return reference


def read_verified_tokenizer(run: Run) -> Tokenizer:
    """Reads the tokenizer of a run. Raises CheckpointError if the run was trained with another one."""
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if tokenizer.fingerprint != run.info.fingerprints.tokenizer:
        what = "the tokenizer does not fit the model: it is not the one that the model was trained with"
        raise CheckpointError(what, where=str(run.tokenizer_path), fix="restore the run's own tokenizer.json")
    return tokenizer


def read_verified_or_checkpoint_recipe(run: Run, checkpoint: Checkpoint) -> tuple[Recipe, list[str]]:
    """Reads recipe.yaml of a run. If it is damaged or missing, returns the checkpoint's recipe, and a warning.

    It may differ from the checkpoint's recipe in keys that a resumed run may change. Raises CheckpointError, which
    names the keys, if it differs in others.
    """
    trained = read_trained_recipe(checkpoint)
    try:
        written = load_run_recipe(run.recipe_path)
    except (RecipeError, UsageError):
        what = "damaged" if run.recipe_path.is_file() else "missing"
        return trained, [f"{RECIPE} of {run.name} is {what}; the recipe in its checkpoint is used"]
    different = diff_recipes(trained, written)
    forged = [different[key] for key in find_unchangeable_keys(different)]
    if forged:
        more = f", and {len(forged) - 3} more" if len(forged) > 3 else ""
        first = "; ".join(printable(text)[:200] for text in forged[:3])
        what = f"{RECIPE} is not the recipe of this model: {first}{more}"
        fix = "undo these changes, or delete the file: the checkpoint has the recipe too"
        raise CheckpointError(what, where=str(run.recipe_path), fix=fix)
    return written, []


def read_trained_recipe(checkpoint: Checkpoint) -> Recipe:
    """Reads the recipe that a checkpoint was trained with. Raises CheckpointError."""
    try:
        return Recipe.model_validate(read_saved_state(checkpoint).recipe)
    except ValidationError as error:
        what = "state.json holds no recipe of this version of lmtool"
        unread = CheckpointError(what, where=str(checkpoint.path), fix="train anew")
        raise add_version_hint(checkpoint.path.parents[1], unread) from error


def with_unset_calibration_filled(recipe: Recipe, figures: Mapping[str, Any], checkpoint_step: int) -> Recipe:
    """Returns the recipe with temperature and thresholds that held-out rows decided, unless it names them itself.

    figures: results of the run. Temperature and thresholds of another step than that of the checkpoint are not used.
    """
    is_same_step = figures.get("step") == checkpoint_step
    keys = ("null_threshold", *(("temperature", "thresholds") if is_same_step else ()))
    unset = (key for key in keys if getattr(recipe.objective, key, "") is None)
    return recipe.with_unvalidated_values({f"objective.{key}": figures.get(key) for key in unset})
