"""From the names of models, in arguments and in recipes, to runs and their checkpoints.

A name is that of a run, `last`, RUN@STEP, the directory of a run or a checkpoint, or a published model, which is
imported first: hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from lmtool.data.survey import DividedText, Progress, divide_text
from lmtool.errors import CheckpointError, RecipeError, UsageError
from lmtool.interop.names import HUB, is_published, known_run
from lmtool.printable import plain
from lmtool.recipe.changes import diff_recipes, find_unchangeable_keys
from lmtool.recipe.finetuning import ParentRun
from lmtool.recipe.grammar import get_value
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
    """A run and a checkpoint of it, the best one unless another is named.

    What is in its files is read, and verified, when it is first asked for. All of it raises CheckpointError where the
    run is damaged.
    named: the directory of the checkpoint that is named.
    """

    run: Run
    named: Path | None = None

    def newest(self, *, optimizer: bool = True, peers: Peers = SINGLE_PROCESS) -> tuple[Checkpoint, list[str]]:
        """The named checkpoint, or the newest complete one; see `checkpoint.find_newest_valid`."""
        if self.named is None:
            return self.run.newest_checkpoint(optimizer=optimizer, peers=peers)
        wanted = optimizer and checkpoints.has_optimizer(self.named)
        return checkpoints.verify_checkpoint(self.named, optimizer=wanted, peers=peers), []

    @cached_property
    def _best(self) -> tuple[Checkpoint, list[str]]:
        return self.newest(optimizer=False) if self.named else self.run.best_checkpoint(optimizer=False)

    @cached_property
    def _read(self) -> tuple[Recipe, list[str]]:
        return read_recipe(self.run, self.checkpoint)

    @property
    def checkpoint(self) -> Checkpoint:
        return self._best[0]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the run, which is compared with that of the checkpoint; see `read_recipe`."""
        return self._read[0]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of the run was found damaged or missing, a line each; people are to be told."""
        return (*self._best[1], *self._read[1])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return read_tokenizer(self.run)

    @property
    def newer(self) -> int | None:
        """The step of the newest checkpoint after the best one; None where there is none, or another is named."""
        return None if self.named else self.run.newest_step_after(self.checkpoint.step)

    def written_recipe(self) -> tuple[Recipe, list[str]]:
        """The recipe in recipe.yaml; the one of the newest checkpoint, and a warning, where that is damaged.

        It is not compared with a checkpoint.
        """
        try:
            return load_run_recipe(self.run.recipe_path), []
        except (RecipeError, UsageError):
            return read_recipe(self.run, self.newest(optimizer=False)[0])

    @property
    def is_published(self) -> bool:
        """Whether the weights are those of a published model, or were trained further from these."""
        return self.run.info.origin is not None or (self.run.info.base is not None and self.run.info.base.is_published)

    @property
    def parent(self) -> ParentRun:
        """What the recipe of a run that begins with it depends on."""
        return ParentRun(self.recipe, self.run.name, self.is_published)

    def record(self) -> dict[str, object]:
        """Its path and the SHA-256 of its weights, by which `base_of` finds it."""
        return {
            "is_published": self.is_published,
            "run": self.run.name,
            "path": str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.path.name,
            "sha256": self.checkpoint.model_digest,
        }


def resolve_reference(name: str) -> Reference:
    """The run, or the checkpoint, that a name of a model stands for; a published model is imported first.

    Raises CheckpointError as `run.find.find_run` does, and for a model that cannot be imported.
    """
    return Reference(*find_run(run_of(name)))


def run_of(name: str) -> str:
    """A name of a model; for a published one the directory of the run that it is imported as.

    Raises CheckpointError for a model that cannot be imported.
    """
    if not is_published(name):
        return name
    if name.startswith(HUB) and (known := known_run(name)) is not None:
        return str(known)
    from lmtool.interop.importing import imported

    return str(imported(name))


def run_named_by_file(name: str) -> str:
    """The run that a file names, as `run_of`. No connection is opened for it: only what somebody types may open one.

    Raises CheckpointError for a name of the Hub that was not imported before.
    """
    if name.startswith(HUB) and known_run(name) is None:
        what = "a file names a model of the Hub, which is not in the cache and not downloaded because of that"
        fix = f"if you trust it, name it yourself, which imports it: lmtool runs show {plain(name)[:120]}"
        raise CheckpointError(what, where=plain(name)[:120], fix=fix, code="run_not_found")
    return run_of(name)


def base_of(run: Run) -> Reference:
    """The checkpoint that a run was initialized from, at its old path or in a run of its name.

    Raises CheckpointError when it is missing, or when its weights have changed.
    """
    need, note = f"{run.name} holds adapters only, to", "`lmtool runs merge` makes a run that needs no base"
    return _reopen(run, run.info.base, "the base of its adapters", need, note)


def teacher_of(run: Run) -> Reference:
    """The checkpoint that a run is distilled from, found as `base_of` does. Raises CheckpointError likewise."""
    return _reopen(run, run.info.teacher, "its teacher", f"{run.name} learns from", "only with it training goes on")


def _reopen(of_run: Run, record: SourceCheckpoint | None, name: str, need: str, note: str) -> Reference:
    """The checkpoint of a record of a run. name, need, note: what it is, why it is needed, and what to know."""
    if record is None:
        raise CheckpointError(f"the run does not name {name}", where=str(of_run.path), fix="train anew")
    wanted = f"{need} {record.checkpoint} of {record.run}"
    known = run_named_by_file(record.path if Path(record.path).exists() else record.run)
    try:
        run = resolve_reference(known).run
        reference = Reference(run, run.path / CHECKPOINTS / record.checkpoint)
        is_same = reference.checkpoint.model_digest == record.sha256
    except CheckpointError as error:
        raise CheckpointError(f"{wanted}: {error.what}", where=record.path, fix=f"restore that run; {note}") from error
    if not is_same:
        what = f"{wanted}, which has changed since"
        raise CheckpointError(what, where=str(reference.named), fix="restore the checkpoint, or train anew")
    return reference


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
        written = load_run_recipe(run.recipe_path)
    except (RecipeError, UsageError):
        what = "damaged" if run.recipe_path.is_file() else "missing"
        return trained, [f"{RECIPE} of {run.name} is {what}; the recipe in its checkpoint is used"]
    different = diff_recipes(trained, written)
    forged = [different[key] for key in find_unchangeable_keys(different)]
    if forged:
        more = f", and {len(forged) - 3} more" if len(forged) > 3 else ""
        first = "; ".join(plain(text)[:200] for text in forged[:3])
        what = f"{RECIPE} is not the recipe of this model: {first}{more}"
        fix = "undo these changes, or delete the file: the checkpoint has the recipe too"
        raise CheckpointError(what, where=str(run.recipe_path), fix=fix)
    return written, []


def recipe_of(checkpoint: Checkpoint) -> Recipe:
    """The recipe that a checkpoint was trained by. Raises CheckpointError."""
    try:
        return Recipe.model_validate(read_saved_state(checkpoint).recipe)
    except ValidationError as error:
        what = "state.json holds no recipe of this version of lmtool"
        unread = CheckpointError(what, where=str(checkpoint.path), fix="train anew")
        raise add_version_hint(checkpoint.path.parents[1], unread) from error


def tokenizer_path(reference: str) -> str:
    """A tokenizer.json, or a folder with one, as named, or of the model that is named. Raises CheckpointError."""
    is_file = os.path.isfile(reference) and not is_published(reference)
    if is_file or os.path.isfile(os.path.join(reference, TOKENIZER_FILE)):
        return reference
    try:
        return str(resolve_reference(reference).run.tokenizer_path)
    except CheckpointError as error:
        fix = "name a tokenizer.json, or a folder, run or model with one"
        raise CheckpointError(f"there is no tokenizer: {error.what}", where=error.where, fix=fix) from error


def resolve_for_text(
    recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> tuple[ResolvedRecipe, DividedText | None]:
    """`resolve`, with the shape of the text where the recipe is the default one and names one; and that text.

    report: None where the text is not read, and the recipe is as for any text. Raises as `divide_text` and `with_runs`.
    """
    resolved, divided = resolve(recipe, settings), None
    if report is not None and is_default_recipe(recipe) and resolved.recipe.data.sources:
        divided = divide_text(resolved.recipe.text, seed=resolved.recipe.seed, report=report)
        resolved = resolve(recipe, settings, divided.text.shape)
    return with_runs(resolved), divided


def with_runs(resolved: ResolvedRecipe, base: Recipe | None = None) -> ResolvedRecipe:
    """A recipe whose keys that name a model name its run, as `run_of` says.

    base: the recipe of the run that it continues, in which names are those of that run.
    Raises CheckpointError for a model that cannot be imported.
    """
    named = _named_models(resolved.recipe)
    if base is not None:
        named = dict(named.items() - _named_models(base).items())
    runs = {key: RESOLVED[key](value) for key, value in named.items()}
    return replace(resolved, recipe=resolved.recipe.with_values(runs)) if runs != named else resolved


def _named_models(recipe: Recipe) -> dict[str, str]:
    """The keys of a recipe that name a model, and its names."""
    tree = recipe.model_dump()
    return {key: value for key in RESOLVED if isinstance(value := get_value(tree, tuple(key.split("."))), str)}


RESOLVED: Mapping[str, Callable[[str], str]] = {
    "distillation.teacher": run_of,
    "model.features.run": run_of,
    "model.embeddings": run_of,
    "tokenizer.path": tokenizer_path,
}
"""Keys of a recipe that name a model, and what resolves them. Embeddings may be of a file instead, tokenizers too."""
