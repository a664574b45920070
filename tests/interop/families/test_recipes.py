"""Recipes in the terms of families: the same logits in Transformers, or each key that stands in the way."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from lmtool.batch import Batch
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.family import Family
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.model import LanguageModel, build
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import AnyObjective, Causal, Classification, Masked, ReplacedTokens, Seq2Seq
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.cases import DECODERS
from tests.interop.families.hub import DECODERS as HUB
from tests.interop.families.peers import VOCAB, assert_close, described, published
from tests.recipe.strategies import specs
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.examples import examples

SMALL: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "context": 20,
    "vocab_size": VOCAB,
}


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


def assert_published(spec: Transformer, objective: AnyObjective, expected: str, folder: Path) -> None:
    """The family is this one, and has the same logits as a model of ours; its tensors make ours again."""
    assert first(spec, objective) == expected
    family, model = FAMILIES[expected], made(spec)
    peer = published(family, spec, objective, model, folder)
    tokens_BT, source_BS = tokens(3, 17), tokens(3, 20, seed=1)
    with torch.no_grad():
        if spec.shape == "encoder-decoder":
            found, batch = peer(source_BS, decoder_input_ids=tokens_BT), Batch(tokens_BT, source_BS=source_BS)
        else:
            found, batch = peer(tokens_BT), Batch(tokens_BT)
        wanted = model.logits(model(batch).hidden_BTD)
    assert_close(found["prediction_logits" if spec.next_sentence_head else "logits"], wanted)
    for weight in family.map_weights(spec, objective):
        tensor = model.state_dict()[weight.name]
        assert torch.equal(weight.layout.join(weight.layout.split(tensor)), tensor)


SHIPPED = {
    **{"tiny": "mpt", "llama-tiny": "llama", "gpt2-124m": "gpt2", "shakespeare-char": "qwen3"},
    **{"roberta-base": "bert", "bert-base": "bert", "t5-small": "t5", "t5-tiny": "t5"},
    **{"transformer-tiny": "marian", "transformer-base": "marian", "transformer-small": "pegasus"},
}


@pytest.mark.parametrize("recipe", SHIPPED)
def test_shipped_recipes(recipe: str, tmp_path: Path) -> None:
    """Shrunken. Without segments it is a BERT whose only segment is zero; the sinusoids of 2017 alternate."""
    loaded = load(recipe).recipe
    values = {**loaded.model.model_dump(), **SMALL}
    if SHIPPED[recipe] == "mpt":
        values["d_ff"] = None
    if values.get("n_kv_heads"):
        values["n_kv_heads"] = 2
    assert_published(Transformer.model_validate(values), loaded.objective, SHIPPED[recipe], tmp_path)


@pytest.mark.parametrize("name", [name for name, (values, _) in HUB.items()])
def test_each_family_is_the_first_that_expresses_its_own(name: str) -> None:
    model, objective = described(HUB[name][0])
    assert first(model, objective) == HUB[name][0]["model_type"]


POST: dict[str, Any] = {"place": "post", "embedding": True}
ENCODER: dict[str, Any] = {
    "kind": "transformer",
    "shape": "encoder",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "context": 20,
    "vocab_size": VOCAB,
    "head_transform": True,
    "head_bias": True,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"norm": {**POST, "eps": 1e-12}}, "distilbert"),
        ({"norm": POST}, "bert"),
        ({"norm": POST, "position": {"kind": "learned", "size": 30, "offset": 3}}, "roberta"),
        ({"norm": POST, "embedding_width": 6}, "electra"),
        ({"norm": POST, "embedding_width": 6, "n_segments": 2, "tie_embeddings": False}, "electra"),
        (
            {
                "norm": {"embedding": True, "first": False},
                "position": {"kind": "rotary"},
                "activation": "geglu",
                "pattern": {"kind": "window", "size": 3, "full_layers": [1]},
                "tie_embeddings": False,
            },
            "modernbert",
        ),
    ],
)
def test_encoders_of_ours(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    assert_published(Transformer.model_validate(ENCODER | changes), Masked(kind="masked"), expected, tmp_path)


CHANGES: list[dict[str, Any]] = [
    {},
    {"vocab_size": None},
    *({"shape": shape} for shape in ("prefix", "encoder", "encoder-decoder")),
    *({"n_heads": 2, "head_width": width} for width in (6, 16)),
    {"n_heads": 3, "n_kv_heads": None, "head_width": 4},
    *({"n_kv_heads": number} for number in (1, 4)),
    {"d_ff": 20},
    {"d_ff": None},
    {"context": 40},
    *(
        {"activation": one}
        for one in ("relu", "relu-squared", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-exact")
    ),
    *({"position": {"kind": kind}} for kind in ("learned", "sinusoidal", "alibi", "relative", "rotary", "none")),
    {"position": {"kind": "learned", "size": 50}},
    {"position": {"kind": "learned", "offset": 2}},
    {"position": {"kind": "rotary", "theta": 500.0}},
    {"position": {"kind": "rotary", "share": 0.5}},
    {"position": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0}}},
    {"position": {"kind": "rotary", "scaling": {"kind": "llama3", "factor": 2.0, "original_context": 16}}},
    {"position": {"kind": "rotary", "scaling": {"kind": "yarn", "factor": 2.0, "original_context": 16}}},
    {"pattern": {"kind": "window", "size": 5}},
    {"pattern": {"kind": "window", "size": 5, "dilation": 2}},
    {"pattern": {"kind": "window", "size": 5, "global_tokens": 1}},
    {"pattern": {"kind": "window", "size": 5, "full_layers": [1]}},
    {"pattern": {"kind": "window", "size": 5, "full_layers": [0, 1]}},
    *({"score": score, "n_kv_heads": None, "qk_norm": "none"} for score in ("dot", "bilinear", "additive")),
    *({"qk_norm": kind} for kind in ("none", "head", "joint")),
    *({"parallel": flag} for flag in (True, False)),
    *({"norm": {"kind": "layer", "place": place}} for place in ("pre", "post", "output")),
    *({"norm": {"kind": "rms", "place": place}} for place in ("pre", "post", "output")),
    {"norm": {"kind": "rms", "unit_offset": True}},
    {"norm": {"kind": "rms", "eps": 1e-3}},
    {"norm": {"kind": "layer", "eps": 1e-3}},
    {"norm": {"kind": "layer", "embedding": True}},
    {"norm": {"kind": "layer", "first": False}},
    *({"norm": {"kind": "layer", "bias": flag}} for flag in (True, False)),
    *({"bias": flag} for flag in (True, False)),
    *({"qkv_bias": flag} for flag in (True, False)),
    *({"tie_embeddings": flag} for flag in (True, False)),
    {"head_bias": True},
    {"x0": True},
    {"smear": True},
    {"attention_gate": "headwise"},
    *({"scale_embedding": flag} for flag in (True, False)),
    {"embedding_width": 8, "tie_embeddings": False},
    {"scale_head": True},
    {"head_transform": True},
    {"dropout": 0.1},
]
"""Changes of a model, one of each kind of key."""


@pytest.mark.parametrize(
    "name",
    nightly_but([family.model_type for family in FAMILIES.values() if family.shape == "decoder"], "gpt2", "gemma"),
)
def test_changed_decoders(name: str, tmp_path: Path) -> None:
    """A recipe near that of a family is exported with equal logits, or refused by a changed key."""
    values = next(values for family, values in DECODERS.values() if family == name)
    plain = described({"model_type": name, "vocab_size": VOCAB, **values})[0].model_dump(exclude_defaults=True)
    refused: set[str] = set()
    for number, change in enumerate(CHANGES):
        try:
            model = Transformer.model_validate({**plain, "kind": "transformer", **change})
        except ValidationError:
            continue
        try:
            FAMILIES[name].build_verified_config(model, Causal())
        except InexpressibleRecipe as error:
            refused |= error.obstacles.keys()
            if error.key.split(".")[1] not in change:
                raise
            continue
        built = made(model)
        peer = published(FAMILIES[name], model, Causal(), built, tmp_path / str(number))
        with torch.no_grad():
            tokens_BT = tokens(2, 33)
            wanted, logits = peer(tokens_BT).logits, built.logits(built(Batch(tokens_BT)).hidden_BTD)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()), msg=str(change))
    keys = ("shape", "vocab_size", "position.kind", "norm.place", "qk_norm", "head_bias", "scale_head")
    keys += ("x0", "smear", "attention_gate")
    assert {f"model.{key}" for key in keys} <= refused


@settings(max_examples=examples(80, 200), suppress_health_check=[HealthCheck.too_slow])
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


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        ("bert", {"position": {"kind": "alibi"}}, "model.position.kind"),
        ("bert", {"position": {"kind": "learned", "offset": 2}}, "model.position.offset"),
        ("bert", {"norm": {"embedding": True}}, "model.norm.place"),
        ("bert", {"norm": {"place": "post"}}, "model.norm.embedding"),
        ("bert", {"activation": "geglu"}, "model.activation"),
        ("bert", {"bias": False}, "model.bias"),
        ("bert", {"qkv_bias": False}, "model.qkv_bias"),
        ("bert", {"norm": {**POST, "bias": False}}, "model.norm.bias"),
        ("bert", {"n_kv_heads": 2}, "model.n_kv_heads"),
        ("bert", {"head_width": 8}, "model.head_width"),
        ("bert", {"score": "additive"}, "model.score"),
        ("bert", {"scale_embedding": True}, "model.scale_embedding"),
        ("bert", {"embedding_width": 8}, "model.embedding_width"),
        ("bert", {"head_transform": False}, "model.head_transform"),
        ("bert", {"head_bias": False}, "model.head_bias"),
        ("bert", {"scale_head": True}, "model.scale_head"),
        ("bert", {"qk_norm": "head"}, "model.qk_norm"),
        ("bert", {"pattern": {"kind": "window", "size": 4}}, "model.pattern.kind"),
        ("bert", {"shape": "decoder", "n_segments": 0}, "model.shape"),
        ("roberta", {}, "model.position.offset"),
        (
            "roberta",
            {"position": {"kind": "learned", "offset": 2}, "next_sentence_head": True},
            "model.next_sentence_head",
        ),
        ("roberta", {"position": {"kind": "learned", "offset": 2}, "activation": "relu"}, "model.activation"),
        ("distilbert", {}, "model.norm.eps"),
        ("distilbert", {"norm": {**POST, "eps": 1e-12}, "n_segments": 2}, "model.n_segments"),
        ("electra", {"embedding_width": 16}, "model.embedding_width"),
        ("modernbert", {}, "model.position.kind"),
        ("modernbert", {"position": {"kind": "rotary"}}, "model.activation"),
        (
            "modernbert",
            {"position": {"kind": "rotary", "share": 0.5}, "activation": "swiglu", "norm": {"embedding": True}},
            "model.position.share",
        ),
        (
            "modernbert",
            {
                "position": {"kind": "rotary"},
                "activation": "swiglu",
                "pattern": {"kind": "window", "size": 4, "dilation": 2},
            },
            "model.pattern.dilation",
        ),
        (
            "modernbert",
            {"position": {"kind": "rotary"}, "activation": "swiglu", "pattern": {"kind": "window", "size": 1}},
            "model.pattern.size",
        ),
    ],
)
def test_encoders_that_a_family_cannot_express(family: str, changes: dict[str, Any], key: str) -> None:
    spec = Transformer.model_validate({**ENCODER, "norm": POST, **changes})
    with pytest.raises(InexpressibleRecipe) as refusal:
        FAMILIES[family].build_verified_config(spec, Masked(kind="masked"))
    assert key in refusal.value.obstacles


T5_SPEC: dict[str, Any] = {
    "position": {"kind": "relative"},
    "score": "dot",
    "norm": {"kind": "rms"},
    "bias": False,
    "activation": "relu",
}
BART_SPEC: dict[str, Any] = {
    "position": {"kind": "learned", "offset": 2},
    "norm": {"place": "post", "embedding": True},
    "separate_inputs": True,
}
MARIAN_SPEC: dict[str, Any] = {"position": {"kind": "sinusoidal"}, "norm": {"place": "post"}}


@pytest.mark.parametrize(
    ("family", "spec", "key"),
    [
        ("t5", {**T5_SPEC, "score": "scaled-dot"}, "model.score"),
        ("t5", {**T5_SPEC, "bias": True}, "model.bias"),
        ("t5", {**T5_SPEC, "norm": {"kind": "layer"}}, "model.norm.kind"),
        ("t5", {**T5_SPEC, "norm": {"kind": "rms", "unit_offset": True}}, "model.norm.unit_offset"),
        ("t5", {**T5_SPEC, "position": {"kind": "alibi"}}, "model.position.kind"),
        ("t5", {**T5_SPEC, "n_kv_heads": 2}, "model.n_kv_heads"),
        ("t5", {**T5_SPEC, "head_bias": True}, "model.head_bias"),
        ("t5", {**T5_SPEC, "scale_embedding": True}, "model.scale_embedding"),
        ("t5", {**T5_SPEC, "parallel": True}, "model.parallel"),
        ("bart", {**BART_SPEC, "position": {"kind": "learned"}}, "model.position.offset"),
        ("bart", {**BART_SPEC, "separate_inputs": False}, "model.separate_inputs"),
        ("bart", {**BART_SPEC, "tie_embeddings": False}, "model.tie_embeddings"),
        ("bart", {**BART_SPEC, "norm": {"place": "post"}}, "model.norm.embedding"),
        ("bart", {**BART_SPEC, "norm": {"embedding": True}}, "model.norm.place"),
        ("bart", {**BART_SPEC, "activation": "swiglu"}, "model.activation"),
        ("bart", {**BART_SPEC, "head_width": 8}, "model.head_width"),
        ("bart", MARIAN_SPEC, "model.position.kind"),
        ("marian", {**MARIAN_SPEC, "norm": {"place": "post", "embedding": True}}, "model.norm.embedding"),
        ("marian", {**MARIAN_SPEC, "tie_embeddings": False}, "model.tie_embeddings"),
        ("marian", {**MARIAN_SPEC, "scale_head": True}, "model.scale_head"),
        ("marian", {**MARIAN_SPEC, "embedding_width": 8, "tie_embeddings": False}, "model.tie_embeddings"),
        ("marian", {**MARIAN_SPEC, "head_transform": True}, "model.head_transform"),
        ("marian", {**MARIAN_SPEC, "shape": "decoder"}, "model.shape"),
        ("marian", BART_SPEC, "model.position.kind"),
        ("marian", {**MARIAN_SPEC, "norm": {"place": "pre"}}, "model.norm.place"),
        ("pegasus", MARIAN_SPEC, "model.norm.place"),
        ("pegasus", {**MARIAN_SPEC, "norm": {"place": "pre", "eps": 1e-6}}, "model.norm.eps"),
        ("pegasus", {**MARIAN_SPEC, "norm": {"place": "pre", "embedding": True}}, "model.norm.embedding"),
        ("pegasus", BART_SPEC, "model.position.kind"),
    ],
)
def test_encoder_decoders_that_a_family_cannot_express(family: str, spec: dict[str, Any], key: str) -> None:
    sizes = {"kind": "transformer", "shape": "encoder-decoder", **SMALL}
    with pytest.raises(InexpressibleRecipe) as refusal:
        FAMILIES[family].build_verified_config(Transformer.model_validate(sizes | spec), Seq2Seq(kind="seq2seq"))
    assert key in refusal.value.obstacles


@pytest.mark.parametrize("family", [family.model_type for family in FAMILIES.values() if family.shape == "encoder"])
def test_objectives_that_no_encoder_has(family: str) -> None:
    with pytest.raises(InexpressibleRecipe) as refusal:
        FAMILIES[family].build_verified_config(
            Transformer.model_validate(ENCODER), ReplacedTokens(kind="replaced-tokens")
        )
    assert "objective.kind" in refusal.value.obstacles


NAMES = ("a", "b")


@pytest.mark.parametrize(
    ("objective", "key"),
    [
        (Masked(kind="masked"), "objective.kind"),
        (Classification(kind="classification", task="auto"), "objective.task"),
        (Classification(kind="classification", task="class"), "objective.labels"),
        (Classification(kind="classification", task="multi", labels=("a", "a")), "objective.labels"),
        (Classification(kind="classification", task="class", labels=NAMES, pool="mean"), "objective.pool"),
        (Classification(kind="classification", task="class", labels=NAMES, layers="mix"), "objective.layers"),
        (Classification(kind="classification", task="class", labels=NAMES, dense="tanh"), "objective.dense"),
        (Classification(kind="classification", task="class", labels=NAMES, dense_norm=True), "objective.dense_norm"),
        (Classification(kind="classification", task="class", labels=NAMES, bias=True), "objective.bias"),
        (Classification(kind="classification", task="number"), "objective.center"),
        (Classification(kind="classification", task="number", center=0.0, scale=2.0), "objective.scale"),
    ],
)
def test_objectives_that_decoders_cannot_express(objective: AnyObjective, key: str) -> None:
    for values, _ in HUB.values():
        model, _ = described(values)
        with pytest.raises(InexpressibleRecipe) as caught:
            FAMILIES[values["model_type"]].build_verified_config(model, objective)
        assert key in caught.value.obstacles


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"task": "auto"}, "objective.task"),
        ({"labels": ()}, "objective.labels"),
        ({"labels": ("one",)}, "objective.labels"),
        ({"pool": "mean", "dense": "tanh"}, "objective.pool"),
        ({"dense": "relu"}, "objective.dense"),
        ({"dense_norm": True}, "objective.dense_norm"),
        ({"bias": False}, "objective.bias"),
        ({"layers": "mix"}, "objective.layers"),
    ],
)
def test_heads_that_bert_cannot_express(changes: dict[str, Any], key: str) -> None:
    spec = Transformer.model_validate({**ENCODER, "norm": POST})
    head = Classification.model_validate(
        {"kind": "classification", "task": "class", "labels": ("a", "b"), "dense": "tanh"} | changes, strict=False
    )
    with pytest.raises(InexpressibleRecipe) as refusal:
        FAMILIES["bert"].build_verified_config(spec, head)
    assert key in refusal.value.obstacles


def test_the_token_head_of_a_classifier_is_not_published() -> None:
    """Of a body that fills masks and knows next sentences, or that has an output matrix of its own."""
    objective = Classification(kind="classification", task="class", labels=NAMES, bias=False)
    decoder = tiny.spec(vocab_size=tiny.VOCAB, tie_embeddings=False, head_bias=True, activation="gelu-tanh")
    update = {"head_transform": True, "head_bias": True, "next_sentence_head": True}
    encoder = Transformer.model_validate({**ENCODER, "norm": POST, **update})
    with_dense = Classification(kind="classification", task="class", labels=NAMES, dense="tanh")
    for family, model, head in (("gpt2", decoder, objective), ("bert", encoder, with_dense)):
        FAMILIES[family].build_verified_config(model, head)
        weights = FAMILIES[family].map_weights(model, head)
        assert not any(weight.name.startswith("body.head") for weight in weights)


def test_a_number_is_published_in_its_own_unit() -> None:
    head = Classification(kind="classification", task="number", center=40.0, scale=2.5, dense="tanh")
    weights = FAMILIES["bert"].map_weights(Transformer.model_validate({**ENCODER, "norm": POST}), head)
    layouts = {weight.name: weight.layout for weight in weights}
    one = torch.ones(1, 2)
    assert torch.equal(layouts["head.weight"].split(one)[0], 2.5 * one)
    assert torch.equal(layouts["head.bias"].split(one)[0], 2.5 * one + 40)
