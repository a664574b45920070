"""Hypothesis strategies for recipes: any value that the language allows, part by part."""

from typing import Any

from hypothesis import strategies as st

from lmtool.recipe.grammar import parts
from lmtool.recipe.spec import LearnedPosition, NoPosition, Recipe, SinusoidalPosition, Spec, Transformer

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
        return st.integers(low, max(low, 10**6)) | st.integers(low, schema.get("exclusiveMaximum", 10**30) - 1)
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
    return transformers() if spec is Transformer else st.fixed_dictionaries(_fields(spec)).map(lambda f: spec(**f))


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
    groups, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    context = draw(st.integers(1, 20))
    sizes = st.none() | st.integers(context, 40)
    return Transformer(
        **{
            **fields,
            "n_layers": draw(st.integers(1, 3)),
            "n_heads": groups * kv_heads,
            "n_kv_heads": draw(st.sampled_from([None, kv_heads])),
            "d_model": 2 * groups * kv_heads * draw(st.integers(1, 3)),
            "d_ff": draw(st.none() | st.integers(1, 30)),
            "context": context,
            "vocab_size": draw(st.none() | st.integers(50, 60)),
            "position": draw(
                st.builds(LearnedPosition, size=sizes) | st.builds(SinusoidalPosition) | st.builds(NoPosition)
            ),
        }
    )


recipes: st.SearchStrategy[Recipe] = specs(Recipe)
