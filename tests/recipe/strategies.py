"""Hypothesis strategies for recipes: any value that the language allows, part by part."""

from contextlib import suppress
from functools import cache, partial
from typing import Any, cast, get_args

from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from lmtool.recipe.grammar import spec_kind, specs_by_kind
from lmtool.recipe.spec.base import MAX_INTEGER, Spec
from lmtool.recipe.spec.objective import Classification, ReplacedTokens, supported_objectives
from lmtool.recipe.spec.position import DisentangledPosition, LearnedPosition, RelativePosition
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer
from lmtool.recipe.spec.training import Training
from lmtool.recipe.spec.transformer import Transformer, WindowPattern

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ["", "yes", "on", "null", "1e-3", "1:30", "0x1f", ".inf", "-", "a: b", "a #b", " a", "a\nb", "\ttab", "ROMEO:", "~"]
)


def values(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the JSON Schema of a plain field allows."""
    if "anyOf" in schema:
        return st.one_of([values(branch) for branch in schema["anyOf"]])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if schema["type"] == "integer":
        low = schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        high = schema.get("maximum", schema.get("exclusiveMaximum", MAX_INTEGER + 1) - 1)
        return st.integers(low, min(high, max(low, 10**6))) | st.integers(low, high)
    if schema["type"] == "number":
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        return st.floats(
            schema.get("minimum", -MAX_INTEGER if low is None else low),
            min(schema.get("maximum", MAX_INTEGER if high is None else high), MAX_INTEGER),
            exclude_min=low is not None,
            exclude_max=high is not None,
            allow_nan=False,
            allow_infinity=False,
        )
    if schema["type"] == "array":
        return st.lists(values(schema["items"]), min_size=schema.get("minItems", 0), max_size=3).map(tuple)
    if schema["type"] == "object":
        return st.dictionaries(texts, values(schema["additionalProperties"]), max_size=3)
    return {"boolean": st.booleans(), "null": st.none(), "string": texts}[schema["type"]]


@cache
def specs(spec: type[Spec]) -> st.SearchStrategy[Spec]:
    """Instances of a spec."""
    if spec is Transformer:
        return transformers()
    if spec is Recipe:
        return _recipes()
    fields = _fields(spec)
    required = {name: strategy for name, strategy in fields.items() if spec.model_fields[name].is_required()}
    others = {name: strategy for name, strategy in fields.items() if name not in required}
    return st.builds(partial(_grown, spec), st.fixed_dictionaries(required), st.fixed_dictionaries(others))


def _grown(spec: type[Spec], fields: dict[str, Any], others: dict[str, Any]) -> Any:
    """The spec with these compatible fields, and with all others that are compatible with preceding ones.

    So that every draw is valid, without rejection.
    """
    built = spec(**fields)
    for name, value in others.items():
        with suppress(ValidationError):
            built = spec(**{**fields, name: value})
            fields = {**fields, name: value}
    return built


@st.composite
def _recipes(draw: st.DrawFn) -> Recipe:
    fields = _fields(Recipe)
    model = draw(fields["model"])
    if isinstance(model, Transformer) and model.embedding_width is not None:
        # whether narrow embeddings may be tied depends on the objective
        model = model.model_copy(update={"tie_embeddings": model.tie_embeddings and model.head_transform})
    if getattr(model, "features", None) is not None and draw(st.booleans()):
        model = model.model_copy(update={"features": None})
    learns = supported_objectives(model) if getattr(model, "features", None) is None else ("classification",)
    objectives = specs_by_kind(Recipe.model_fields["objective"])
    objective: Any = objectives[draw(st.sampled_from(learns))]
    # the defaults of objectives that a model may not support: with one-hot words, and with heads without maps
    supported: dict[type[Spec], dict[str, float]] = {
        Classification: {"dropout": 0.0},
        ReplacedTokens: {"generator_size": 1.0},
    }
    fits = {
        "model": model,
        "objective": objective(kind=spec_kind(objective), **supported.get(objective, {})),
        "tokenizer": CharTokenizer(kind="char") if getattr(model, "word_buckets", 0) else BpeTokenizer(sentinels=100),
        "training": Training(steps=1, batch_size=1),
    }
    drawn = {name: draw(strategy) for name, strategy in fields.items() if name not in ("model", "objective")}
    return cast(Recipe, _grown(Recipe, fits, {"objective": draw(specs(objective)), **drawn}))


@cache
def _fields(spec: type[Spec]) -> dict[str, st.SearchStrategy[Any]]:
    properties = spec.model_json_schema()["properties"]
    return {
        name: _part(field) if specs_by_kind(field) else values(properties[name])
        for name, field in spec.model_fields.items()
    }


def _part(field: FieldInfo) -> st.SearchStrategy[Any]:
    """One of the specs allowed at a field, or none where it is optional."""
    found: list[st.SearchStrategy[Any]] = [specs(part) for part in specs_by_kind(field).values()]
    return st.one_of(([st.none()] if type(None) in get_args(field.annotation) else []) + found)


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    """Transformers small enough to build, with compatible sizes."""
    groups, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes: dict[str, Any] = {
        "kind": "transformer",
        "n_layers": draw(st.integers(1, 3)),
        "n_heads": groups * kv_heads,
        "d_model": 2 * groups * kv_heads * draw(st.integers(1, 3)),
        "context": draw(st.integers(1, 20)),
    }
    drawn = {name: draw(strategy) for name, strategy in _fields(Transformer).items() if name not in sizes}
    if isinstance(drawn["position"], LearnedPosition):
        drawn["position"] = LearnedPosition(size=draw(st.none() | st.integers(23, 40)), offset=draw(st.integers(0, 3)))
    if isinstance(drawn["position"], DisentangledPosition):
        drawn["position"] = DisentangledPosition(kind="disentangled", max_distance=draw(st.integers(1, 40)))
    if isinstance(drawn["position"], RelativePosition):
        buckets = draw(st.integers(4, 40))
        drawn["position"] = RelativePosition(
            kind="relative", buckets=buckets, max_distance=buckets + draw(st.integers(0, 40))
        )
    if isinstance(drawn["pattern"], WindowPattern):
        full = draw(st.lists(st.integers(0, sizes["n_layers"] - 1), max_size=2))
        drawn["pattern"] = drawn["pattern"].model_copy(update={"full_layers": tuple(full)})
    small = {
        "head_width": draw(st.none() | st.integers(1, 8)),
        "value_width": draw(st.none() | st.integers(1, 8)),
        "score_width": draw(st.none() | st.integers(1, 8)) if drawn["score"] == "additive" else None,
        "embedding_width": draw(st.none() | st.integers(1, 8)),
        "n_kv_heads": draw(st.sampled_from([None, kv_heads])),
        "d_ff": draw(st.none() | st.integers(1, 30)),
        "vocab_size": draw(st.none() | st.integers(50, 60)),
        "rank": draw(st.none() | st.integers(1, 5)),
        "n_segments": draw(st.integers(0, 3)),
    }
    if drawn["ngram_embedding"] is not None:
        changes = {"entries": draw(st.integers(1, 50))}
        drawn["ngram_embedding"] = drawn["ngram_embedding"].model_copy(update=changes)
    return cast(Transformer, _grown(Transformer, sizes, {**drawn, **small}))


@st.composite
def recurrents(draw: st.DrawFn) -> Recurrent:
    """Recurrent networks small enough to build, with compatible parts."""
    sizes = {"kind": "recurrent", "d_model": draw(st.integers(1, 12)), "context": draw(st.integers(1, 20))}
    drawn = {name: draw(strategy) for name, strategy in _fields(Recurrent).items() if name not in sizes}
    if drawn["attention"] is not None:
        changes = {"k": draw(st.integers(1, 5))}
        for size in ("rank", "score_width"):
            if getattr(drawn["attention"], size) is not None:
                changes[size] = draw(st.integers(1, 5))
        drawn["attention"] = drawn["attention"].model_copy(update=changes)
    if drawn["features"] is not None:
        few = st.none() | st.integers(1, 8)
        sizes_of_states = {"width": draw(few), "mixed_layers": draw(few)}
        drawn["features"] = drawn["features"].model_copy(update=sizes_of_states)
    small = {"n_layers": draw(st.integers(1, 3)), "vocab_size": draw(st.none() | st.integers(50, 60))}
    return cast(Recurrent, _grown(Recurrent, sizes, {**drawn, **small}))


recipes: st.SearchStrategy[Recipe] = specs(Recipe)  # type: ignore[assignment]
