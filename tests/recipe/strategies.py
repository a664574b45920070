"""Hypothesis strategies for recipes: any value that the language allows, part by part."""

from functools import partial
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from pydantic import ValidationError

from lmtool.recipe.grammar import parts
from lmtool.recipe.spec import LearnedPosition, Recipe, Recurrent, Spec, Transformer, objectives_of

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
        high = schema.get("maximum", schema.get("exclusiveMaximum", 10**30) - 1)
        return st.integers(low, min(high, max(low, 10**6))) | st.integers(low, high)
    if schema["type"] == "number":
        low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        return st.floats(
            schema.get("minimum", low),
            schema.get("maximum", high),
            exclude_min=low is not None,
            exclude_max=high is not None,
            allow_nan=False,
            allow_infinity=False,
        )
    return {
        "boolean": st.booleans(),
        "null": st.none(),
        "string": texts,
        "array": st.lists(texts, max_size=3).map(tuple),
    }[schema["type"]]


def specs(spec: type[Spec]) -> st.SearchStrategy[Spec]:
    """Instances of a spec."""
    if spec is Transformer:
        return transformers()
    if spec is Recipe:
        return _recipes()
    return st.fixed_dictionaries(_fields(spec)).map(partial(_valid, spec)).filter(lambda built: built is not None)


def _valid(spec: type[Spec], fields: dict[str, Any]) -> Spec | None:
    """The spec with these fields; None when they do not fit each other."""
    try:
        return spec(**fields)
    except ValidationError:
        return None


@st.composite
def _recipes(draw: st.DrawFn) -> Recipe:
    fields = {name: draw(strategy) for name, strategy in _fields(Recipe).items() if name != "objective"}
    kinds = parts(Recipe.model_fields["objective"])
    fields["objective"] = draw(specs(kinds[draw(st.sampled_from(objectives_of(fields["model"])))]))
    recipe = _valid(Recipe, fields)
    assume(recipe is not None)
    return recipe


def _fields(spec: type[Spec]) -> dict[str, st.SearchStrategy[Any]]:
    properties = spec.model_json_schema()["properties"]
    return {
        name: st.one_of([specs(part) for part in parts(field).values()]) if parts(field) else values(properties[name])
        for name, field in spec.model_fields.items()
    }


@st.composite
def transformers(draw: st.DrawFn) -> Transformer:
    """Transformers small enough to build, whose sizes fit each other."""
    fields = {name: draw(strategy) for name, strategy in _fields(Transformer).items()}
    if isinstance(fields["position"], LearnedPosition):
        fields["position"] = LearnedPosition(size=draw(st.none() | st.integers(20, 40)))
    if fields["score"] != "reduced-rank":
        fields["rank"] = None
    groups, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    built = _valid(
        Transformer,
        {
            **fields,
            "rank": fields["rank"] and draw(st.integers(1, 5)),
            "n_segments": draw(st.integers(0, 3)) if fields["shape"] == "encoder" else 0,
            "head_transform": fields["head_transform"] and fields["activation"] not in ("swiglu", "geglu"),
            "n_layers": draw(st.integers(1, 3)),
            "n_heads": groups * kv_heads,
            "n_kv_heads": draw(st.sampled_from([None, kv_heads])),
            "d_model": 2 * groups * kv_heads * draw(st.integers(1, 3)),
            "d_ff": draw(st.none() | st.integers(1, 30)),
            "context": draw(st.integers(1, 20)),
            "vocab_size": draw(st.none() | st.integers(50, 60)),
        },
    )
    assume(built is not None)
    return built


@st.composite
def recurrents(draw: st.DrawFn) -> Recurrent:
    """Recurrent networks small enough to build, whose parts fit each other."""
    fields = {name: draw(strategy) for name, strategy in _fields(Recurrent).items()}
    if fields["attention"] is not None:
        fields["attention"] = fields["attention"].model_copy(update={"k": draw(st.integers(1, 5))})
        if fields["attention"].rank is not None:
            fields["attention"] = fields["attention"].model_copy(update={"rank": draw(st.integers(1, 5))})
    built = _valid(
        Recurrent,
        {
            **fields,
            "n_layers": draw(st.integers(1, 3)),
            "d_model": draw(st.integers(1, 12)),
            "context": draw(st.integers(1, 20)),
            "vocab_size": draw(st.none() | st.integers(50, 60)),
        },
    )
    assume(built is not None)
    return built


recipes: st.SearchStrategy[Recipe] = specs(Recipe)
