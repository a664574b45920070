"""Resolves names of models, in arguments and in recipes, to runs and their checkpoints.

A name is that of a run, `last`, RUN@STEP, the directory of a run or a checkpoint, or a published model, which is
imported first: hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from lmtool.data.survey import Progress, ScannedTrainingText, scan_training_text
from lmtool.errors import CheckpointError, RecipeError, UsageError
from lmtool.interop.references import HUB_PREFIX, find_imported_run, is_published
from lmtool.printable import printable
from lmtool.recipe.changes import diff_recipes, find_unchangeable_keys
from lmtool.recipe.finetuning import ParentRun
from lmtool.recipe.grammar import get_value_or_default
from lmtool.recipe.load import ResolvedRecipe, Setting, load_run_recipe
from lmtool.recipe.resolve import is_default_recipe, resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run import checkpoint as checkpoints
from lmtool.run.checkpoint import SINGLE_PROCESS, Checkpoint, Peers
from lmtool.run.directory import CHECKPOINTS, RECIPE, TOKENIZER_FILE, Run
from lmtool.run.files import SourceCheckpoint, read_saved_state
from lmtool.run.find import find_run
from lmtool.run.paths import add_version_hint
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
        self, *, verify_optimizer: bool = True, peers: Peers = SINGLE_PROCESS
    ) -> tuple[Checkpoint, list[str]]:
        """Returns the named checkpoint, or the newest complete one; see `checkpoint.find_newest_valid_checkpoint`."""
        if self.named is None:
            return self.run.find_newest_checkpoint(verify_optimizer=verify_optimizer, peers=peers)
        verify_optimizer = verify_optimizer and checkpoints.has_optimizer(self.named)
        return checkpoints.open_and_verify_checkpoint(self.named, verify_optimizer=verify_optimizer, peers=peers), []

    @cached_property
    def _checkpoint_and_warnings(self) -> tuple[Checkpoint, list[str]]:
        return (
            self.find_named_or_newest_checkpoint(verify_optimizer=False)
            if self.named
            else self.run.find_best_checkpoint(verify_optimizer=False)
        )

    @cached_property
    def _recipe_and_warnings(self) -> tuple[Recipe, list[str]]:
        return read_verified_recipe(self.run, self.checkpoint)

    @property
    def checkpoint(self) -> Checkpoint:
        return self._checkpoint_and_warnings[0]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run; see `read_verified_recipe`."""
        return self._recipe_and_warnings[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about damaged or missing parts of the run."""
        return (*self._checkpoint_and_warnings[1], *self._recipe_and_warnings[1])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_verified_tokenizer(self.run)

    @property
    def newer_step(self) -> int | None:
        """Step of the newest checkpoint after the best one; None if there is none, or a checkpoint is named."""
        return None if self.named else self.run.newest_step_after(self.checkpoint.step)

    def read_unverified_recipe(self) -> tuple[Recipe, list[str]]:
        """Reads recipe.yaml without comparing it with a checkpoint.

        If it is damaged, returns the recipe of the newest checkpoint, and a warning.
        """
        try:
            return load_run_recipe(self.run.recipe_path), []
        except (RecipeError, UsageError):
            return read_verified_recipe(self.run, self.find_named_or_newest_checkpoint(verify_optimizer=False)[0])

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


def resolve_reference(name: str) -> Reference:
    """Resolves the name of a model to its run and checkpoint; a published model is imported first.

    Raises CheckpointError as `run.find.find_run` does, and for a model that cannot be imported.
    """
    return Reference(*find_run(import_if_published(name)))


def import_if_published(name: str) -> str:
    """Imports a model if it is published, and returns the directory of its run; returns other names as they are.

    Raises CheckpointError for a model that cannot be imported.
    """
    if not is_published(name):
        return name
    if name.startswith(HUB_PREFIX) and (known := find_imported_run(name)) is not None:
        return str(known)
    from lmtool.interop.importing import import_to_cache

    return str(import_to_cache(name))


def resolve_name_without_download(name: str) -> str:
    """Resolves a name from a file as `import_if_published`, but downloads nothing, which only typed names may do.

    Raises CheckpointError for a name of the Hub that was not imported before.
    """
    if name.startswith(HUB_PREFIX) and find_imported_run(name) is None:
        what = "a file names a model of the Hub, which is not in the cache and not downloaded because of that"
        fix = f"if you trust it, name it yourself, which imports it: lmtool runs show {printable(name)[:120]}"
        raise CheckpointError(what, where=printable(name)[:120], fix=fix, code="run_not_found")
    return import_if_published(name)


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
    known = resolve_name_without_download(record.path if Path(record.path).exists() else record.run)
    try:
        run = resolve_reference(known).run
        reference = Reference(run, run.path / CHECKPOINTS / record.checkpoint)
        is_same = reference.checkpoint.model_digest == record.sha256
    except CheckpointError as error:
        raise CheckpointError(
            f"{wanted}: {error.what}", where=record.path, fix=f"restore that run; {advice}"
        ) from error
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


def read_verified_recipe(run: Run, checkpoint: Checkpoint) -> tuple[Recipe, list[str]]:
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


def find_tokenizer_path(reference: str) -> str:
    """Returns the path of a tokenizer.json, of a folder with one, or of a model's tokenizer. Raises CheckpointError."""
    is_file = os.path.isfile(reference) and not is_published(reference)
    if is_file or os.path.isfile(os.path.join(reference, TOKENIZER_FILE)):
        return reference
    try:
        return str(resolve_reference(reference).run.tokenizer_path)
    except CheckpointError as error:
        fix = "name a tokenizer.json, or a folder, run or model with one"
        raise CheckpointError(f"there is no tokenizer: {error.what}", where=error.where, fix=fix) from error


def resolve_recipe_for_text(
    recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> tuple[ResolvedRecipe, ScannedTrainingText | None]:
    """Resolves a recipe for a text; the default recipe depends on the size of the text, which is then read.

    report: None to not read the text, and resolve the recipe as for any text.
    Returns the resolved recipe, and the text if it was read. Raises as `scan_training_text` and `resolve_model_names`.
    """
    resolved, scanned = resolve(recipe, settings), None
    if report is not None and is_default_recipe(recipe) and resolved.recipe.data.sources:
        scanned = scan_training_text(resolved.recipe.resolved_data, seed=resolved.recipe.seed, report=report)
        resolved = resolve(recipe, settings, scanned.text.text_statistics)
    return resolve_model_names(resolved), scanned


def resolve_model_names(resolved: ResolvedRecipe, base: Recipe | None = None) -> ResolvedRecipe:
    """Replaces names of models in a recipe by their runs; see `import_if_published`.

    base: the recipe of the run that it continues, whose names are resolved already.
    Raises CheckpointError for a model that cannot be imported.
    """
    named = _list_model_names_by_key(resolved.recipe)
    if base is not None:
        named = dict(named.items() - _list_model_names_by_key(base).items())
    runs = {key: MODEL_NAME_RESOLVERS[key](value) for key, value in named.items()}
    return replace(resolved, recipe=resolved.recipe.with_unvalidated_values(runs)) if runs != named else resolved


def _list_model_names_by_key(recipe: Recipe) -> dict[str, str]:
    """Returns the names of models in a recipe, by key."""
    tree = recipe.model_dump()
    return {
        key: value
        for key in MODEL_NAME_RESOLVERS
        if isinstance(value := get_value_or_default(tree, tuple(key.split("."))), str)
    }


MODEL_NAME_RESOLVERS: Mapping[str, Callable[[str], str]] = {
    "distillation.teacher": import_if_published,
    "model.features.run": import_if_published,
    "model.embeddings": import_if_published,
    "tokenizer.path": find_tokenizer_path,
}
"""Functions that resolve the keys of a recipe that name a model. Embeddings and tokenizers may also be files."""
