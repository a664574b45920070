"""Resolves names of models, in arguments and in recipes, to runs and their checkpoints.

A name is that of a run, `last`, RUN@STEP, the directory of a run or a checkpoint, or a published model, which is
imported first: hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lmtool.data.survey import Progress, ScannedTrainingText, scan_training_text
from lmtool.errors import CheckpointError
from lmtool.interop.references import HUB_PREFIX, find_cached_run, is_published
from lmtool.printable import printable
from lmtool.recipe.grammar import get_value_or_default
from lmtool.recipe.load import ResolvedRecipe, Setting
from lmtool.recipe.resolve import is_default_recipe, resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.directory import TOKENIZER_FILE
from lmtool.runs.reference import Reference


def resolve_reference(name: str) -> Reference:
    """Resolves the name of a model to its run and checkpoint; a published model is imported first.

    Raises CheckpointError as `find_run` does, and for a model that cannot be imported.
    """
    return Reference.from_name(import_if_published(name))


def import_if_published(name: str) -> str:
    """Imports a model if it is published, and returns the directory of its run; returns other names as they are.

    Raises CheckpointError for a model that cannot be imported.
    """
    if not is_published(name):
        return name
    if name.startswith(HUB_PREFIX) and (known := find_cached_run(name)) is not None:
        return str(known)
    from lmtool.interop.importing import import_to_cache

    return str(import_to_cache(name))


def import_if_published_refusing_downloads(name: str) -> str:
    """Resolves a name that a file holds, as `import_if_published` does, but downloads nothing: only names that a user
    typed may be downloaded.

    Raises CheckpointError for a name of the Hub that was not imported before.
    """
    if name.startswith(HUB_PREFIX) and find_cached_run(name) is None:
        what = "a file names a model of the Hub that is not in the cache; models named by files are not downloaded"
        fix = f"if you trust it, name it yourself, which imports it: lmtool runs show {printable(name)[:120]}"
        raise CheckpointError(what, where=printable(name)[:120], fix=fix, code="run_not_found")
    return import_if_published(name)


def find_tokenizer_path(name: str) -> str:
    """Returns the path of a tokenizer.json, of a folder with one, or of a model's tokenizer. Raises CheckpointError."""
    is_file = os.path.isfile(name) and not is_published(name)
    if is_file or os.path.isfile(os.path.join(name, TOKENIZER_FILE)):
        return name
    try:
        return str(resolve_reference(name).run.tokenizer_path)
    except CheckpointError as error:
        fix = "name a tokenizer.json, or a folder, run or model with one"
        raise CheckpointError(f"there is no tokenizer: {error.what}", where=error.where, fix=fix) from error


def resolve_recipe_for_text(
    recipe: str | None, settings: Sequence[Setting], scan_progress: Progress | None = None
) -> tuple[ResolvedRecipe, ScannedTrainingText | None]:
    """Resolves a recipe for a text; the default recipe depends on the size of the text, which is then read.

    scan_progress: None to not read the text, and resolve the recipe as for any text.
    Returns the resolved recipe, and the text if it was read. Raises as `scan_training_text` and
    `import_models_named_in_recipe` do.
    """
    resolved, scanned = resolve(recipe, settings), None
    if scan_progress is not None and is_default_recipe(recipe) and resolved.recipe.data.sources:
        scanned = scan_training_text(
            resolved.recipe.data_without_unsupported_streaming, stream_seed=resolved.recipe.seed, report=scan_progress
        )
        resolved = resolve(recipe, settings, scanned.text.text_statistics)
    return import_models_named_in_recipe(resolved), scanned


def import_models_named_in_recipe(resolved: ResolvedRecipe, resolved_base: Recipe | None = None) -> ResolvedRecipe:
    """Replaces names of models in a recipe by their runs; see `import_if_published`.

    resolved_base: the recipe of the run that it continues, whose names are resolved already.
    Raises CheckpointError for a model that cannot be imported.
    """
    named = _list_model_names_by_key(resolved.recipe)
    if resolved_base is not None:
        named = dict(named.items() - _list_model_names_by_key(resolved_base).items())
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
