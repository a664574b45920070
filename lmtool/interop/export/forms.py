"""The form in which a recipe is published: a family, and a head of its own class or one in a file of its own."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.family import BODY_OBJECTIVE, Family
from lmtool.interop.families.layouts import ParameterMapping
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.interop.references import HEAD_FILE, USE_DIRECTORY_FIX
from lmtool.recipe.spec.objective import AnyObjective, HeadSpec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.tokenization.tokenizer import Tokenizer

MAX_REASONS_CHARACTERS = 400
"""Characters of a list of obstacles with reasons; a longer one names the keys alone."""


@dataclass(frozen=True)
class FamilyRepresentation:
    """A recipe in the terms of a published family.

    recipe: without adapters, and with the rows of its embedding. config: of config.json, or of a GGUF file.
    head_obstacles: the keys by which no class of Transformers has its head, which then lies in a file of its own; empty
    where one has.
    """

    recipe: Recipe
    family: Family
    config: dict[str, Any]
    head_obstacles: str = ""

    @property
    def model(self) -> Transformer:
        assert isinstance(self.recipe.model, Transformer)
        return self.recipe.model

    @property
    def has_separate_head(self) -> bool:
        """Whether its head lies in a file of its own, beside the body."""
        return bool(self.head_obstacles)

    @property
    def has_head(self) -> bool:
        """Whether it was trained on labels."""
        return isinstance(self.recipe.objective, HeadSpec)

    @property
    def _published_objective(self) -> AnyObjective:
        return BODY_OBJECTIVE if self.has_separate_head else self.recipe.objective

    def list_parameter_mappings(self) -> list[ParameterMapping]:
        """Maps the tensors of the run to those of the family."""
        mappings = self.family.list_parameter_mappings(self.model, self._published_objective)
        body = "body." if self.has_separate_head else ""
        return [replace(mapping, name=f"{body}{mapping.name}") for mapping in mappings]

    def constant_tensors(self) -> dict[str, Tensor]:
        """The tensors that files of the family hold besides the weights."""
        return self.family.constant_tensors(self.model, self._published_objective)

    @property
    def architecture(self) -> str:
        """The class of Transformers."""
        return self.family.class_prefix + self.family.find_head(self.model, self._published_objective).class_suffix

    def describe_class_and_head(self) -> str:
        """Describes the class of Transformers, and a separate head, in a line."""
        if not self.has_separate_head:
            return self.architecture
        return f"{self.architecture}, with its head in {HEAD_FILE}, which no class has: {self.head_obstacles}"


def find_full_or_body_representation(
    recipe: Recipe, tokenizer: Tokenizer, preferred_model_type: str | None = None, *, is_gguf: bool = False
) -> FamilyRepresentation:
    """Expresses a resolved recipe in the first family that has its head, else in the first that has its body.

    preferred_model_type: tried first. is_gguf: a GGUF file is wanted. Raises UsageError with all keys that the
    families cannot express.
    """
    recipe = recipe.with_unvalidated_values({"tuning.lora": None})
    published = "family of GGUF files" if is_gguf else "published family"
    if not isinstance(recipe.model, Transformer):
        what = f"no {published} has {recipe.model.title} models"
        raise UsageError(what, where="model.kind", fix="Transformers can be exported: docs/serve.md lists them")
    model = recipe.model.with_unvalidated_values(
        {"vocab_size": tokenizer.resolve_embedding_rows(recipe.model.vocab_size)}
    )
    recipe = recipe.with_unvalidated_values({"model": model})
    families = sorted(
        (GGUF_FAMILIES if is_gguf else FAMILIES).values(), key=lambda one: one.model_type != preferred_model_type
    )
    found, obstacles = _find_first_expressing_family(families, recipe, recipe.objective, tokenizer.pad_id)
    if found is not None:
        return found
    if isinstance(recipe.objective, HeadSpec):
        head_obstacles = obstacles
        found, obstacles = _find_first_expressing_family(families, recipe, BODY_OBJECTIVE, tokenizer.pad_id)
        if found is not None:
            reasons = head_obstacles[found.family.model_type].items()
            return replace(found, head_obstacles=", ".join(f"{key} ({reason})" for key, reason in reasons))
    fix = "docs/serve.md lists what can be exported; the keys named here stand in the way"
    if is_gguf:
        fix = f"{USE_DIRECTORY_FIX}, or train one with other values of these keys: docs/serve.md"
    raise UsageError(
        f"no {published} can express this {model.title}", where=_format_fewest_obstacles(obstacles), fix=fix
    )


def describe_export(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """Describes in a line whether a resolved recipe can be exported, and as what."""
    try:
        return f"export: as {find_full_or_body_representation(recipe, tokenizer).describe_class_and_head()}"
    except UsageError as error:
        return f"export: not possible, {error.what}: {error.where}"


Obstacles = dict[str, dict[str, str]]
"""The reasons why families cannot express a recipe, by `model_type` and the key of the recipe."""


def _find_first_expressing_family(
    families: Sequence[Family], recipe: Recipe, objective: AnyObjective, pad_id: int
) -> tuple[FamilyRepresentation | None, Obstacles]:
    """Expresses the model of a recipe, with this objective, in the first family that can.

    Also returns the obstacles in the families before it; in all, with None, if none can.
    """
    assert isinstance(recipe.model, Transformer)
    obstacles: Obstacles = {}
    for family in families:
        try:
            config = family.build_verified_config(recipe.model, objective)
            if config.get("pad_token_id") not in (None, pad_id):
                reason = "it follows from the id of the padding token there"
                raise InexpressibleRecipe({"model.position.offset": reason})
            return FamilyRepresentation(recipe, family, config), obstacles
        except InexpressibleRecipe as error:
            if error.key != "model.shape":
                obstacles[family.model_type] = error.obstacles
    return None, obstacles


def _format_fewest_obstacles(obstacles: Mapping[str, Mapping[str, str]]) -> str:
    """Formats the obstacles of the families with the fewest of them, with reasons where the list is short."""
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for family, reasons in obstacles.items():
        groups[tuple(reasons)].append(family)
    # where the key is "model" it hides all others, of which there may be many
    known = {keys: families for keys, families in groups.items() if keys != ("model",)} or groups
    with_reasons, keys_alone = [], []
    for keys, families in known.items():
        if len(keys) == min(map(len, known)):
            listed = [(key, obstacles[families[0]][key]) for key in keys]
            if len(families) > 1:
                listed = [(key, reason.partition(", where ")[0]) for key, reason in listed]
            formatted = ", ".join(f"{key} ({reason})" for key, reason in listed)
            with_reasons.append(f"{', '.join(families)}: {formatted}")
            keys_alone.append(f"{', '.join(families)}: {', '.join(keys)}")
    text = "; ".join(with_reasons)
    return (text if len(text) <= MAX_REASONS_CHARACTERS else "; ".join(keys_alone)) or "model.shape"
