"""Recipes in the terms of families: the same logits in Transformers, or each key that stands in the way."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from lmtool.batch import Batch
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.family import Family
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.model import LanguageModel, build
from lmtool.recipe.spec.objective import AnyObjective, Causal, Classification, Masked, Seq2Seq
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.hub import DECODERS as HUB
from tests.interop.families.peers import MANY, VOCAB, described, published, tensors_of_head
from tests.recipe.strategies import specs
from tests.support.cases import nightly_but
from tests.support.examples import examples
from tests.support.peers import MODELS


def first(spec: Transformer, objective: AnyObjective) -> str:
    """The first family that can express it. Raises StopIteration without one."""

    def can(family: Family) -> bool:
        try:
            family.build_verified_config(spec, objective)
        except InexpressibleRecipe:
            return False
        return True

    return next(family.model_type for family in FAMILIES.values() if can(family))


def made(spec: Transformer) -> LanguageModel:
    """A model with random weights."""
    model = build(spec, spec.vocab_size or 0).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def tokens(*shape: int, seed: int = 0) -> Tensor:
    """Any but those of padding."""
    return torch.randint(5, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", HUB)
def test_each_family_is_the_first_that_expresses_its_own(name: str) -> None:
    model, objective = described(HUB[name][0])
    assert first(model, objective) == HUB[name][0]["model_type"]


FLAGS = (True, False)
ROTARY: dict[str, Any] = {"kind": "rotary"}
SCALED = {"factor": 2.0, "original_context": 16}
ONE_KEY: dict[str, Sequence[Any]] = {
    **{"vocab_size": (None,), "shape": ("prefix", "encoder", "encoder-decoder"), "n_kv_heads": (1, 4)},
    **{"d_ff": (20, None, 0), "context": (40,), "qk_norm": ("none", "head", "joint"), "dropout": (0.1,)},
    "activation": ("relu", "relu-squared", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-exact"),
    "position": (
        *({"kind": kind} for kind in ("learned", "sinusoidal", "alibi", "relative", "rotary", "none")),
        *({"kind": "learned", "size": 50}, {"kind": "learned", "offset": 2}),
        *({**ROTARY, "theta": 500.0}, {**ROTARY, "share": 0.5}),
        {**ROTARY, "scaling": {"kind": "linear", "factor": 2.0}},
        *({**ROTARY, "scaling": {"kind": kind, **SCALED}} for kind in ("llama3", "yarn")),
    ),
    "pattern": [
        {"kind": "window", "size": 5, **more}
        for more in ({}, {"dilation": 2}, {"global_tokens": 1}, {"full_layers": [1]}, {"full_layers": [0, 1]})
    ],
    "norm": (
        *({"kind": kind, "place": place} for kind in ("layer", "rms") for place in ("pre", "post", "output")),
        *({"kind": "rms", "unit_offset": True}, {"kind": "rms", "eps": 1e-3}, {"kind": "none"}),
        *({"kind": "layer", **more} for more in ({"eps": 1e-3}, {"embedding": True}, {"first": False})),
        *({"kind": "layer", "bias": flag} for flag in FLAGS),
    ),
    **dict.fromkeys(("parallel", "bias", "qkv_bias", "tie_embeddings", "scale_embedding"), FLAGS),
    **dict.fromkeys(("head_bias", "x0", "smear", "scale_head", "head_transform", "share_layers"), (True,)),
    **dict.fromkeys(("separate_inputs", "span_boundary_head"), (True,)),
    **{"residual": (False,), "causal_mask": (False,), "attention_gate": ("headwise",), "n_segments": (2,)},
}
CHANGES: list[dict[str, Any]] = [
    {},
    *({key: value} for key, values in ONE_KEY.items() for value in values),
    *({"n_heads": 2, "head_width": width} for width in (6, 16)),
    {"n_heads": 3, "n_kv_heads": None, "head_width": 4},
    *({"score": score, "n_kv_heads": None, "qk_norm": "none"} for score in ("dot", "bilinear", "additive")),
    {"bias": True, "head_bias": True},
    {"embedding_width": 8, "tie_embeddings": False},
    {"n_segments": 0, "next_sentence_head": True},
]
"""Changes of a model, one of each kind of key."""
REFUSED_BY_ALL = {"position.kind", "norm.place", "x0", "attention_gate"}
REFUSED_BY: dict[str, set[str]] = {
    "decoder": {"shape", "vocab_size", "qk_norm", "head_bias", "scale_head", "smear"},
    "encoder": {"scale_embedding", "residual"},
    "encoder-decoder": {"n_kv_heads"},
}
"""Keys that each family refuses with some value, and each of one shape."""


OBJECTIVES: dict[str, tuple[AnyObjective, str]] = {
    "decoder": (Causal(), "lm_head.weight"),
    "encoder": (Masked(kind="masked"), ""),
    "encoder-decoder": (Seq2Seq(kind="seq2seq"), "final_logits_bias"),
}


def usual(family: Family) -> Transformer:
    """A small model of a family."""
    config = next(config for model_type, config in MODELS.values() if model_type == family.model_type)
    names = [*MANY, OBJECTIVES[family.shape][1]]
    names += tensors_of_head(family.model_type, "masked") if family.shape == "encoder" else []
    more = {"model_type": family.model_type, "vocab_size": VOCAB, "pad_token_id": 0}
    return described({**more, **config}, names)[0]


def near(family: Family) -> Iterator[tuple[dict[str, Any], Transformer, Mapping[str, str]]]:
    """Each change of a small model of a family, the changed model, and what stands in the way of it."""
    objective, _ = OBJECTIVES[family.shape]
    plain = usual(family).model_dump()
    for change in CHANGES:
        try:
            model = Transformer.model_validate({**plain, **change})
        except ValidationError:
            continue
        if change and model.model_dump() == plain:
            continue
        try:
            family.build_verified_config(model, objective)
        except InexpressibleRecipe as error:
            yield change, model, error.obstacles
        else:
            yield change, model, {}


@pytest.mark.parametrize("name", FAMILIES)
def test_recipes_near_a_family_are_refused_by_a_changed_key(name: str) -> None:
    found = [(change, obstacles) for change, _, obstacles in near(FAMILIES[name]) if obstacles]
    for change, obstacles in found:
        # the output of EuroBERT has a bias if its layers have
        changed = {*change} | ({"head_bias"} if name == "eurobert" and "bias" in change else set())
        assert changed & {key.split(".")[1] for key in obstacles}, (change, obstacles)
    refused = {key.removeprefix("model.") for _, obstacles in found for key in obstacles}
    assert REFUSED_BY_ALL | REFUSED_BY[FAMILIES[name].shape] <= refused, refused


@pytest.mark.parametrize("name", nightly_but(FAMILIES, "gpt2"))
def test_other_recipes_near_a_family_have_its_logits(name: str, tmp_path: Path) -> None:
    """And their tensors make ours again."""
    family = FAMILIES[name]
    objective, _ = OBJECTIVES[family.shape]
    tokens_BT, source_BS = tokens(3, 17), tokens(3, 20, seed=1)
    for number, (change, spec, obstacles) in enumerate(near(family)):
        if obstacles:
            continue
        model = made(spec)
        peer = published(family, spec, objective, model, tmp_path / str(number))
        source = {} if spec.shape != "encoder-decoder" else {"source_BS": source_BS}
        with torch.no_grad():
            found = peer(source_BS, decoder_input_ids=tokens_BT) if source else peer(tokens_BT)
            wanted = model.logits(model(Batch(tokens_BT, **source)).hidden_BTD)
        logits = found["prediction_logits" if spec.next_sentence_head else "logits"]
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()), msg=str(change))
        for weight in family.list_parameter_mappings(spec, objective):
            tensor = model.state_dict()[weight.name]
            assert torch.equal(weight.layout.join(weight.layout.split(tensor)), tensor)


@settings(max_examples=examples(40, 200), suppress_health_check=[HealthCheck.too_slow])
@given(
    model=specs(Transformer),
    family=st.sampled_from([*FAMILIES.values(), *GGUF_FAMILIES.values()]),
    objective=specs(Classification) | specs(Causal),
)
def test_any_recipe_is_written_or_refused(model: Transformer, family: Family, objective: AnyObjective) -> None:
    assume(model.n_layers < 1000)
    try:
        found = family.build_verified_config(model, objective)
    except InexpressibleRecipe:
        return
    assert found.get("model_type", family.model_type) == family.model_type


LABELLED = {"kind": "classification", "task": "class", "labels": ("a", "b")}
OF_BERT = {**LABELLED, "dense": "tanh"}
REFUSED_OBJECTIVES: list[tuple[str, dict[str, Any], str]] = [
    ("encoder", {"kind": "replaced-tokens"}, "kind"),
    ("encoder", {"kind": "masked", "permutation": True}, "permutation"),
    ("encoder", {"kind": "masked", "sentence_order": True}, "sentence_order"),
    ("decoder", {"kind": "masked"}, "kind"),
    ("decoder", {**LABELLED, "task": "auto"}, "task"),
    ("decoder", {"kind": "classification", "task": "class"}, "labels"),
    ("decoder", {**LABELLED, "task": "multi", "labels": ("a", "a")}, "labels"),
    ("decoder", {**LABELLED, "pool": "mean"}, "pool"),
    ("decoder", {**LABELLED, "layers": "mix"}, "layers"),
    ("decoder", {**LABELLED, "dense": "tanh"}, "dense"),
    ("decoder", {**LABELLED, "dense_norm": True}, "dense_norm"),
    ("decoder", {**LABELLED, "bias": True}, "bias"),
    ("decoder", {"kind": "classification", "task": "number"}, "center"),
    ("decoder", {"kind": "classification", "task": "number", "center": 0.0, "scale": 2.0}, "scale"),
    ("bert", {**OF_BERT, "task": "auto"}, "task"),
    ("bert", {**OF_BERT, "labels": ("one",)}, "labels"),
    ("bert", {**OF_BERT, "pool": "mean"}, "pool"),
    ("bert", {**OF_BERT, "dense": "relu"}, "dense"),
    ("bert", {**OF_BERT, "dense_norm": True}, "dense_norm"),
    ("bert", {**OF_BERT, "bias": False}, "bias"),
    ("bert", {**OF_BERT, "layers": "mix"}, "layers"),
]
"""Of all families of a shape, or of one; and the key of the objective."""


def objective_of(values: dict[str, Any]) -> AnyObjective:
    objective: AnyObjective = TypeAdapter(AnyObjective).validate_python(values)
    return objective


@pytest.mark.parametrize(("of", "values", "key"), REFUSED_OBJECTIVES)
def test_objectives_that_a_family_cannot_express(of: str, values: dict[str, Any], key: str) -> None:
    for family in FAMILIES.values():
        if of in (family.shape, family.model_type):
            with pytest.raises(InexpressibleRecipe) as refusal:
                family.build_verified_config(usual(family), objective_of(values))
            assert f"objective.{key}" in refusal.value.obstacles


def test_the_token_head_of_a_classifier_is_not_published() -> None:
    """Of a body that fills masks and knows next sentences, or that has an output matrix of its own."""
    for name, changes, head in (
        ("gpt2", {"tie_embeddings": False, "head_bias": True}, {**LABELLED, "bias": False}),
        ("bert", {"next_sentence_head": True}, OF_BERT),
    ):
        family, objective = FAMILIES[name], objective_of(head)
        model = Transformer.model_validate({**usual(family).model_dump(), **changes})
        family.build_verified_config(model, objective)
        weights = family.list_parameter_mappings(model, objective)
        assert not any(weight.name.startswith("body.head") for weight in weights)
