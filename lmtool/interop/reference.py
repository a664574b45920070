"""Names of models, in arguments and in recipes, that name a published model instead of a run."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar, cast

from lmtool import durable
from lmtool.errors import CheckpointError
from lmtool.printable import plain
from lmtool.recipe.grammar import value_at
from lmtool.recipe.load import Resolved, Setting, lay_over
from lmtool.recipe.pretraining import DefaultRecipe
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.directory import TOKENIZER
from lmtool.run.find import find
from lmtool.run.places import INFO

HUB = "hf:"
CONFIG, MODULES = "config.json", "modules.json"

AnyRecipe = TypeVar("AnyRecipe", bound=Resolved | DefaultRecipe)


def is_published(reference: str) -> bool:
    """Whether a RUN argument names a published model instead of a run. Reads no file."""
    if reference.startswith(HUB):
        return True
    if os.path.isdir(reference):
        has_run = os.path.exists(os.path.join(reference, INFO))
        return not has_run and any(os.path.exists(os.path.join(reference, name)) for name in (CONFIG, MODULES))
    return reference.lower().endswith(".gguf") and os.path.isfile(reference)


def parse_hub(reference: str) -> tuple[str, str | None]:
    """Name and revision of hf:ORG/NAME[@REVISION]. Raises CheckpointError."""
    name, _, revision = reference.removeprefix(HUB).partition("@")
    if re.fullmatch(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]*/)?[A-Za-z0-9_][A-Za-z0-9._-]*", name) is None or (
        "@" in reference and not revision
    ):
        raise CheckpointError(
            f"no model is named by {plain(reference)[:80]}",
            where="RUN",
            fix="write hf:ORG/NAME, or hf:ORG/NAME@REVISION for a branch, tag or commit",
        )
    return name, revision or None


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


def tokenizer_path(reference: str) -> str:
    """A tokenizer.json, or a folder with one, as named, or of the model that is named. Raises CheckpointError."""
    is_file = os.path.isfile(reference) and not is_published(reference)
    if is_file or os.path.isfile(os.path.join(reference, TOKENIZER)):
        return reference
    try:
        return str(find(run_of(reference)).run.tokenizer_path)
    except CheckpointError as error:
        fix = "name a tokenizer.json, or a folder, run or model with one"
        raise CheckpointError(f"there is no tokenizer: {error.what}", where=error.where, fix=fix) from error


def with_runs(recipe: AnyRecipe, base: Recipe | None = None) -> AnyRecipe:
    """A recipe whose keys that name a model name its run, as `run_of` says.

    base: the recipe of the run that it continues, in which names are those of that run.
    Raises CheckpointError for a model that cannot be imported.
    """
    named = _named_models(recipe.recipe)
    if base is not None:
        named = dict(named.items() - _named_models(base).items())
    settings = [Setting(key, RESOLVED[key](value), f"-s {key}={value}") for key, value in named.items()]
    if all(setting.value == named[setting.key] for setting in settings):
        return recipe
    if isinstance(recipe, DefaultRecipe):
        return cast(AnyRecipe, DefaultRecipe.of([*recipe.settings, *settings]))
    laid = lay_over(recipe.recipe, recipe.name, recipe.name, settings)
    return cast(AnyRecipe, replace(recipe, recipe=laid.recipe))


def _named_models(recipe: Recipe) -> dict[str, str]:
    """The keys of a recipe that name a model, and its names."""
    tree = recipe.model_dump()
    return {key: value for key in RESOLVED if isinstance(value := value_at(tree, tuple(key.split("."))), str)}


def imports_folder() -> Path:
    """The folder of the cache with the runs of published models."""
    from lmtool.text.prepare import default_cache

    return default_cache() / "imports"


def pointer_of(reference: str) -> Path:
    """The file that names the run of a name of the Hub. Raises CheckpointError for a wrong name."""
    name = "@".join(filter(None, parse_hub(reference)))
    return imports_folder() / "hub" / hashlib.sha256(name.encode()).hexdigest()


def known_run(reference: str) -> Path | None:
    """The run of a name of the Hub that was imported before; None when it was not."""
    name = noted(pointer_of(reference))
    run = imports_folder() / name
    return run if name and (run / INFO).exists() else None


def noted(file: Path) -> str:
    """The line of a file of the cache; empty when it cannot be read."""
    try:
        return durable.read(file).decode("ascii")
    except (OSError, ValueError):
        return ""


RESOLVED: Mapping[str, Callable[[str], str]] = {
    "distillation.teacher": run_of,
    "model.features.run": run_of,
    "model.embeddings": run_of,
    "tokenizer.path": tokenizer_path,
}
"""Keys of a recipe that name a model, and what resolves them. Embeddings may be of a file instead, tokenizers too."""
