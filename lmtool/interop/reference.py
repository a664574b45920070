"""Names of models, in arguments and in recipes, that name a published model instead of a run."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lmtool.data.survey import DividedText, Report, divide
from lmtool.errors import CheckpointError
from lmtool.interop.names import HUB, is_published, known_run
from lmtool.printable import plain
from lmtool.recipe.grammar import value_at
from lmtool.recipe.load import Resolved, Setting
from lmtool.recipe.resolve import is_default, resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.directory import TOKENIZER
from lmtool.run.find import Found
from lmtool.run.find import find as find_run


def run_of(reference: str) -> str:
    """A RUN argument; for a published model the directory of the run that it is imported as.

    Raises CheckpointError for a model that cannot be imported.
    """
    if not is_published(reference):
        return reference
    if reference.startswith(HUB) and (known := known_run(reference)) is not None:
        return str(known)
    from lmtool.interop.importing import imported

    return str(imported(reference))


def run_named_by_file(reference: str) -> str:
    """The run that a file names, as `run_of`. No connection is opened for it: only what somebody types may open one.

    Raises CheckpointError for a name of the Hub that was not imported before.
    """
    if reference.startswith(HUB) and known_run(reference) is None:
        what = "a file names a model of the Hub, which is not in the cache and not downloaded because of that"
        fix = f"if you trust it, name it yourself, which imports it: lmtool runs show {plain(reference)[:120]}"
        raise CheckpointError(what, where=plain(reference)[:120], fix=fix, code="run_not_found")
    return run_of(reference)


def find(reference: str) -> Found:
    """The run, or the checkpoint, that a RUN argument or a key of a recipe names; a published model is imported first.

    reference: as `run.find.find` takes it, or hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.
    Raises CheckpointError as `run.find.find` does, and for a model that cannot be imported.
    """
    return find_run(run_of(reference))


def tokenizer_path(reference: str) -> str:
    """A tokenizer.json, or a folder with one, as named, or of the model that is named. Raises CheckpointError."""
    is_file = os.path.isfile(reference) and not is_published(reference)
    if is_file or os.path.isfile(os.path.join(reference, TOKENIZER)):
        return reference
    try:
        return str(find(reference).run.tokenizer_path)
    except CheckpointError as error:
        fix = "name a tokenizer.json, or a folder, run or model with one"
        raise CheckpointError(f"there is no tokenizer: {error.what}", where=error.where, fix=fix) from error


def resolve_for_text(
    recipe: str | None, settings: Sequence[Setting], report: Report | None = None
) -> tuple[Resolved, DividedText | None]:
    """`resolve`, with the shape of the text where the recipe is the default one and names one; and that text.

    report: None where the text is not read, and the recipe is as for any text. Raises as `divide` and `with_runs`.
    """
    resolved, divided = resolve(recipe, settings), None
    if report is not None and is_default(recipe) and resolved.recipe.data.sources:
        divided = divide(resolved.recipe.text, seed=resolved.recipe.seed, report=report)
        resolved = resolve(recipe, settings, divided.text.shape)
    return with_runs(resolved), divided


def with_runs(resolved: Resolved, base: Recipe | None = None) -> Resolved:
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
    return {key: value for key in RESOLVED if isinstance(value := value_at(tree, tuple(key.split("."))), str)}


RESOLVED: Mapping[str, Callable[[str], str]] = {
    "distillation.teacher": run_of,
    "model.features.run": run_of,
    "model.embeddings": run_of,
    "tokenizer.path": tokenizer_path,
}
"""Keys of a recipe that name a model, and what resolves them. Embeddings may be of a file instead, tokenizers too."""
