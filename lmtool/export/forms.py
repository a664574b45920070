"""The form in which a recipe is published: a family, and a head of its own class or one beside its body."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.families import EVERY
from lmtool.interop.families.family import BODY, Family
from lmtool.interop.families.layouts import Weight
from lmtool.interop.families.rules import Inexpressible
from lmtool.interop.names import AS_DIRECTORY, HEAD
from lmtool.recipe.spec.objective import AnyObjective, HeadSpec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.tokenization.tokenizer import Tokenizer

LONGEST = 400
"""Characters of a list of obstacles with reasons."""


@dataclass(frozen=True)
class Form:
    """A recipe in the terms of a published family.

    recipe: without adapters, and with the rows of its embedding. config: of config.json, or of a GGUF file. beside: the
    keys by which no class of Transformers has its head, which then lies beside the body; empty where one has.
    """

    recipe: Recipe
    family: Family
    config: dict[str, Any]
    beside: str = ""

    @property
    def model(self) -> Transformer:
        assert isinstance(self.recipe.model, Transformer)
        return self.recipe.model

    def weights(self) -> list[Weight]:
        """How the family's tensors are made of the run's."""
        weights = self.family.weights(self.model, self._objective)
        return [replace(one, ours=f"body.{one.ours}") for one in weights] if self.beside else weights

    def constants(self) -> dict[str, Tensor]:
        """Tensors that their files hold beside the weights."""
        return self.family.constants(self.model, self._objective)

    @property
    def has_head(self) -> bool:
        """Whether it was trained on labels."""
        return isinstance(self.recipe.objective, HeadSpec)

    @property
    def _objective(self) -> AnyObjective:
        return BODY if self.beside else self.recipe.objective

    @property
    def architecture(self) -> str:
        """The class of Transformers."""
        return self.family.name + self.family.head_for(self.model, self._objective).ending

    def describe(self) -> str:
        """The class of Transformers, and a head beside it, in a line."""
        apart = f", with its head in {HEAD}, which no class has: {self.beside}" if self.beside else ""
        return self.architecture + apart


def form_of(
    recipe: Recipe, tokenizer: Tokenizer, preferred: str | None = None, among: Sequence[Family] = EVERY
) -> Form:
    """The form of a resolved recipe: of the first family that has its head, else of the first that has its body.

    preferred: the `model_type` to try first. among: all, or those of GGUF files. Raises UsageError, with all keys that
    stand in the way, without one.
    """
    recipe = recipe.with_values({"tuning.lora": None})
    published = "published family" if among is EVERY else "family of GGUF files"
    if not isinstance(recipe.model, Transformer):
        what = f"no {published} has {recipe.model.title} models"
        raise UsageError(what, where="model.kind", fix="Transformers can be exported: docs/serve.md lists them")
    rows = tokenizer.check_embedding_rows(recipe.model.vocab_size)
    model = recipe.model.with_values({"vocab_size": rows})
    recipe = recipe.with_values({"model": model})
    families = sorted(among, key=lambda family: family.model_type != preferred)
    obstacles: dict[str, dict[str, str]] = {}
    if form := _first(families, model, recipe.objective, tokenizer, obstacles):
        return Form(recipe, *form)
    if isinstance(recipe.objective, HeadSpec):
        beside, obstacles = obstacles, {}
        if form := _first(families, model, BODY, tokenizer, obstacles):
            whys = beside[form[0].model_type].items()
            return Form(recipe, *form, beside=", ".join(f"{key} ({why})" for key, why in whys))
    fix = "docs/serve.md lists what can be exported; the keys named here stand in the way"
    if among is not EVERY:
        fix = f"{AS_DIRECTORY}, or train one with other values of these keys: docs/serve.md"
    raise UsageError(f"no {published} can express this {model.title}", where=_listed(obstacles), fix=fix)


def export_line(recipe: Recipe, tokenizer: Tokenizer) -> str:
    """A line that tells whether a resolved recipe can be exported, and as what."""
    try:
        return f"export: as {form_of(recipe, tokenizer).describe()}"
    except UsageError as refusal:
        return f"export: not possible, {refusal.what}: {refusal.where}"


def _first(
    families: Sequence[Family],
    model: Transformer,
    objective: AnyObjective,
    tokenizer: Tokenizer,
    obstacles: dict[str, dict[str, str]],
) -> tuple[Family, dict[str, Any]] | None:
    """The first family that can express a model; what stands in the way of the others is added to `obstacles`."""
    for family in families:
        try:
            config = family.publish(model, objective)
            if config.get("pad_token_id") not in (None, tokenizer.pad_id):
                raise Inexpressible({"model.position.offset": "it follows from the id of the padding token there"})
            return family, config
        except Inexpressible as error:
            if error.key != "model.shape":
                obstacles[family.model_type] = error.obstacles
    return None


def _listed(obstacles: Mapping[str, Mapping[str, str]]) -> str:
    """All keys that stand in the way of the families with the fewest of them, and why where that is short."""
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for family, whys_of in obstacles.items():
        groups[tuple(whys_of)].append(family)
    # where one hides all others, there may be many
    known = {keys: names for keys, names in groups.items() if keys != ("model",)} or groups
    fewest = min(map(len, known), default=0)
    told, brief = [], []
    for keys, names in known.items():
        if len(keys) > fewest:
            continue
        whys = (obstacles[names[0]][key] for key in keys)
        values = [why if len(names) == 1 else why.partition(", where ")[0] for why in whys]
        told.append(f"{', '.join(names)}: " + ", ".join(f"{key} ({v})" for key, v in zip(keys, values, strict=True)))
        brief.append(f"{', '.join(names)}: {', '.join(keys)}")
    listed = "; ".join(told)
    return (listed if len(listed) <= LONGEST else "; ".join(brief)) or "model.shape"
