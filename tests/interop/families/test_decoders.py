"""Decoders of Transformers in both directions: the same logits as its models, and each refusal by the key concerned."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import CheckpointError
from lmtool.interop.families import EVERY
from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.decoder import Decoder
from lmtool.interop.families.layouts import SAME, AsRow, Joined, Layout, Transposed, by_head, in_halves
from lmtool.model import LanguageModel, build
from lmtool.recipe.spec.objective import AnyObjective, Causal, Classification, Masked
from lmtool.recipe.spec.transformer import Transformer
from tests.examples import examples
from tests.interop.families.hub import (
    BLOOM_FILE,
    GEMMA_FILE,
    GPT2_FILE,
    HUB,
    MISTRAL_FILE,
    MPT_FILE,
    OLMO2_FILE,
    PYTHIA_FILE,
    QWEN3_FILE,
    QWEN25_FILE,
    TINYLLAMA_FILE,
)
from tests.model import tiny
from tests.model.test_peers import randomise
from tests.recipe.strategies import specs

DECODERS = [family for family in EVERY if isinstance(family, Decoder)]
FAMILIES = {family.model_type: family for family in DECODERS}
MANY = [f"tensor {i}" for i in range(1000)]
"""Names of the tensors of a large language model."""

TOKENS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GPT2: dict[str, Any] = {"vocab_size": tiny.VOCAB, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, **TOKENS}
SIZES: dict[str, Any] = {
    "vocab_size": tiny.VOCAB,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    **TOKENS,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
BLOOM: dict[str, Any] = {"vocab_size": tiny.VOCAB, "hidden_size": 32, "n_layer": 3, "n_head": 4, **TOKENS}
MPT: dict[str, Any] = {
    "vocab_size": tiny.VOCAB,
    "d_model": 32,
    "n_layers": 3,
    "n_heads": 4,
    "max_seq_len": 64,
    **TOKENS,
}


def rope(**more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0, **more}}


LLAMA3 = rope(
    rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32
)
YARN = rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, beta_fast=4.0)
WINDOWS = {"use_sliding_window": True, "sliding_window": 4}

PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2 untied, dot": (
        "gpt2",
        {
            **GPT2,
            "tie_word_embeddings": False,
            "scale_attn_weights": False,
            "n_inner": 24,
            "activation_function": "relu",
        },
    ),
    "llama": ("llama", {**GROUPED, **rope()}),
    "llama with biases, tied": (
        "llama",
        {**GROUPED, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "llama of one group, geglu": ("llama", {**SIZES, "num_key_value_heads": 1, "hidden_act": "gelu"}),
    "llama, wide heads": ("llama", {**GROUPED, "head_dim": 12, **rope()}),
    "llama, linear": ("llama", {**GROUPED, **rope(rope_type="linear", factor=2.0)}),
    "llama 3": ("llama", {**GROUPED, **LLAMA3}),
    "llama, yarn": ("llama", {**GROUPED, **YARN}),
    "llama, yarn, plain attention": (
        "llama",
        {**GROUPED, "rope_parameters": {**YARN["rope_parameters"], "attention_factor": 1.0}},
    ),
    "mistral": ("mistral", {**GROUPED, **rope(), "sliding_window": 4}),
    "mistral without windows": ("mistral", {**GROUPED, "sliding_window": None, "tie_word_embeddings": True}),
    "qwen2": ("qwen2", {**GROUPED, **rope(), "tie_word_embeddings": True}),
    "qwen2 with windows": ("qwen2", {**GROUPED, **rope(), **WINDOWS, "max_window_layers": 2}),
    "qwen2, windows between": (
        "qwen2",
        {**GROUPED, **WINDOWS, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    ),
    "qwen2, windows everywhere": ("qwen2", {**GROUPED, **WINDOWS, "max_window_layers": 0}),
    "qwen2, odd heads": ("qwen2", {**GROUPED, "head_dim": 12}),
    "qwen3": ("qwen3", {**GROUPED, **rope(), "head_dim": 12}),
    "qwen3 with windows": ("qwen3", {**GROUPED, **WINDOWS, "max_window_layers": 1, "head_dim": 8}),
    "gemma": ("gemma", {**GROUPED, **rope(), "head_dim": 12}),
    "gemma untied": ("gemma", {**GROUPED, "head_dim": 8, "hidden_act": "gelu", "tie_word_embeddings": False}),
    "olmo2": ("olmo2", {**GROUPED, **rope()}),
    "neox": ("gpt_neox", {**SIZES, **rope(partial_rotary_factor=0.25)}),
    "neox in sequence, tied": ("gpt_neox", {**SIZES, "use_parallel_residual": False, "tie_word_embeddings": True}),
    "neox, linear": ("gpt_neox", {**SIZES, **rope(rope_type="linear", factor=2.0, partial_rotary_factor=0.5)}),
    "neox, yarn": (
        "gpt_neox",
        {**SIZES, "rope_parameters": {**YARN["rope_parameters"], "partial_rotary_factor": 1.0}, "hidden_act": "silu"},
    ),
    "bloom": ("bloom", BLOOM),
    "bloom of six heads, untied": ("bloom", {**BLOOM, "hidden_size": 24, "n_head": 6, "tie_word_embeddings": False}),
    "mpt": ("mpt", MPT),
    "mpt of six heads, untied": ("mpt", {**MPT, "d_model": 24, "n_heads": 6, "tie_word_embeddings": False}),
}
"""Families and configurations of small models."""


def config_of(family: str, values: dict[str, Any]) -> Any:
    """A configuration of Transformers."""
    of = transformers.AutoConfig.for_model(family, **values)
    of._attn_implementation = "eager"
    return of


def peer_of(family: str, head: str, values: dict[str, Any]) -> Any:
    """A model of Transformers with random weights, norms included."""
    kind = getattr(transformers, f"AutoModelFor{head}")
    peer = kind.from_config(config_of(family, values), attn_implementation="eager").eval()
    randomise(peer)
    return peer


def file_of(peer: Any) -> Config:
    """Its config.json."""
    return Config(json.loads(peer.config.to_json_string(use_diff=False)), "config.json")


def described(config: Config, names: Sequence[str] = MANY) -> tuple[Transformer, AnyObjective]:
    found = FAMILIES[config.values["model_type"]].describe(config, names)
    config.check_all_read()
    objective: AnyObjective = TypeAdapter(AnyObjective).validate_python(found.objective)
    return Transformer.model_validate(found.model), objective


def in_files(family: Decoder, name: str) -> str:
    """What a tensor of a model is called in its files."""
    for part, other in family.renamed:
        name = name.replace(part, other)
    return name


def copied(family: Decoder, peer: Any, model: Transformer, objective: AnyObjective) -> dict[str, Tensor]:
    """Our weights from those of a peer, all of which are used, but for redundant ones."""
    theirs = {in_files(family, name): tensor for name, tensor in peer.state_dict().items()}
    ours = {}
    for weight in family.weights(model, objective):
        ours[weight.ours] = weight.layout.join([theirs.pop(name) for name in weight.theirs])
    assert all(any(re.fullmatch(pattern, name) for pattern in family.redundant) for name in theirs), list(theirs)
    return ours


def loaded(model: Transformer, weights: dict[str, Tensor]) -> LanguageModel:
    """Our model with these weights, which must be all that it has."""
    assert model.vocab_size is not None
    built = build(model, model.vocab_size).eval()
    built.load_state_dict(weights)
    return built


def published(
    family: Decoder,
    config: dict[str, Any],
    head: str,
    model: Transformer,
    objective: AnyObjective,
    ours: dict[str, Tensor],
) -> Any:
    """A new peer of this configuration, with our weights."""
    config = json.loads(json.dumps(config))
    peer = peer_of(config.pop("model_type"), head, {**config, **TOKENS})
    theirs = {}
    for weight in family.weights(model, objective):
        theirs |= dict(zip(weight.theirs, weight.layout.split(ours[weight.ours]), strict=True))
    names = {in_files(family, name): name for name in peer.state_dict()}
    missing, unexpected = peer.load_state_dict({names[name]: tensor for name, tensor in theirs.items()}, strict=False)
    assert not unexpected
    assert all(re.fullmatch(r"lm_head\.weight", name) and model.tie_embeddings for name in missing)
    return peer


def assert_equal(model: LanguageModel, peer: Any, keep_BT: Tensor | None = None) -> None:
    """Logits at all positions that are no padding."""
    tokens_BT = tiny.tokens(3, 40)
    with torch.no_grad():
        wanted = peer(tokens_BT, attention_mask=None if keep_BT is None else keep_BT.long()).logits
        logits = model.logits(model(Batch(tokens_BT, keep_BT=keep_BT)).hidden_BTD)
    kept = torch.ones_like(tokens_BT, dtype=torch.bool) if keep_BT is None else keep_BT
    assert wanted[kept].std() > 0.01
    torch.testing.assert_close(logits[kept], wanted[kept], rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", PEERS)
def test_models(case: str) -> None:
    """Import and export: equal logits with and without padding, and all tensors back, bit for bit."""
    name, values = PEERS[case]
    family = FAMILIES[name]
    peer = peer_of(name, "CausalLM", values)
    model, objective = described(file_of(peer), list(peer.state_dict()))
    assert objective == Causal()
    ours = copied(family, peer, model, objective)
    built = loaded(model, ours)
    keep_BT = torch.arange(40) < torch.tensor([[40], [21], [33]])
    assert_equal(built, peer)
    assert_equal(built, peer, keep_BT)
    found = family.publish(model, objective)
    assert found["architectures"] == [type(peer).__name__]
    again = published(family, found, "CausalLM", model, objective, ours)
    assert_equal(built, again, keep_BT)
    for tensor_name, tensor in peer.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[tensor_name]), tensor_name
    assert described(file_of(again), list(again.state_dict()))[0] == model
    # readers of either form of rotary positions find the same
    for form in (("rope_parameters",), ("rope_theta", "rope_scaling", "rotary_pct", "rotary_emb_base")):
        half = {key: value for key, value in found.items() if key not in form}
        assert described(Config(half, ""))[0] == model


@pytest.mark.parametrize("family", FAMILIES)
def test_order(family: str) -> None:
    """Each family is the first that expresses a plain model of its own; all are there."""
    case = next(values for name, values in PEERS.values() if name == family)
    model, objective = described(file_of(peer_of(family, "CausalLM", case)))
    assert first(model, objective)["model_type"] == family
    assert set(FAMILIES) == {name for name, _ in PEERS.values()}


def first(model: Transformer, objective: AnyObjective) -> dict[str, Any]:
    """By the first family that expresses it."""
    whys = []
    for family in DECODERS:
        try:
            return family.publish(model, objective)
        except Inexpressible as error:
            whys.append(f"{family.model_type}: {error}")
    raise AssertionError(whys)


def test_shipped_recipes() -> None:
    """Those that a published family expresses."""
    expected = {
        "tiny": "mpt",
        "llama-tiny": "llama",
        **dict.fromkeys(("gpt2-124m", "gpt2-355m", "gpt2-774m", "gpt2-1.5b"), "gpt2"),
        "shakespeare-char": "qwen3",
    }
    for name, family in expected.items():
        recipe = yaml.safe_load(Path(f"recipes/{name}.yaml").read_text(encoding="utf-8"))
        model = Transformer.model_validate({"vocab_size": 2048, **recipe["model"]})
        assert first(model, Causal())["model_type"] == family, name


def test_default_recipe() -> None:
    """The default recipe is an MPT, with the same logits."""
    recipe = yaml.safe_load(Path("recipes/tiny.yaml").read_text(encoding="utf-8"))
    small = {"vocab_size": tiny.VOCAB, "d_model": 24, "n_heads": 6, "n_layers": 2}
    model = Transformer.model_validate({**recipe["model"], **small})
    built = build(model, tiny.VOCAB).eval()
    found = FAMILIES["mpt"].publish(model, Causal())
    peer = published(FAMILIES["mpt"], found, "CausalLM", model, Causal(), built.state_dict())
    assert_equal(built, peer, torch.arange(40) < torch.tensor([[40], [21], [33]]))


# Classifiers


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("task", ["class", "multi", "number"])
def test_classifiers(family: str, task: str) -> None:
    values = next(values for name, values in PEERS.values() if name == family)
    labels = {"number": ["height"], "class": ["no", "yes"], "multi": ["a", "b", "c"]}[task]
    kinds = {"multi": "multi_label_classification"}
    named = {"id2label": dict(enumerate(labels)), "problem_type": kinds.get(task)}
    peer = peer_of(family, "SequenceClassification", {**values, **named, "pad_token_id": 0})
    config = file_of(peer)
    model, objective = described(config, list(peer.state_dict()))
    assert isinstance(objective, Classification)
    number = {"center": 0.0, "scale": 1.0} if task == "number" else {"labels": labels}
    common: dict[str, Any] = {"kind": "classification", "pool": "last", "dense": "none", "bias": False, "dropout": 0.0}
    assert objective == Classification(**common, task=task, **number)
    ours = copied(FAMILIES[family], peer, model, objective)
    body = loaded(model, {name.removeprefix("body."): w for name, w in ours.items() if name.startswith("body.")})
    texts = [[3, 5, 7, 2], [4], [1, 2]]
    tokens_BT, keep_BT = tiny.padded(texts)
    tokens_BT[~keep_BT] = 0
    last = torch.tensor([len(text) - 1 for text in texts])
    with torch.no_grad():
        wanted = peer(tokens_BT, attention_mask=keep_BT.long()).logits
        hidden = body(Batch(tokens_BT, keep_BT=keep_BT)).hidden_BTD[torch.arange(3), last]
    scores = hidden @ ours["head.weight"].T
    torch.testing.assert_close(scores, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))
    found = FAMILIES[family].publish(model, objective)
    assert found["architectures"] == [type(peer).__name__]
    again = published(
        FAMILIES[family], {**found, "num_labels": len(labels)}, "SequenceClassification", model, objective, ours
    )
    for name, tensor in peer.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    reread = described(Config({**found, "id2label": dict(enumerate(labels))}, ""), ["score.weight", *MANY])
    assert reread == (model, objective)


def test_the_token_head_of_a_classifier_is_not_published() -> None:
    model = tiny.spec(vocab_size=tiny.VOCAB, tie_embeddings=False, head_bias=True, activation="gelu-tanh")
    objective = Classification(kind="classification", task="class", labels=("a", "b"), bias=False)
    family = FAMILIES["gpt2"]
    family.publish(model, objective)
    assert {weight.ours for weight in family.weights(model, objective)} == {
        "head.weight",
        *(f"body.{name}" for name, _ in build(model, tiny.VOCAB).named_parameters() if not name.startswith("head.")),
    }
    with pytest.raises(Inexpressible, match="head_bias"):
        family.publish(model, Causal())


# What is on the hub


@pytest.mark.parametrize("name", HUB)
def test_hub(name: str) -> None:
    values, ours = HUB[name]
    model, objective = described(Config(values, "config.json"))
    assert model == Transformer.model_validate({"kind": "transformer", **ours})
    # and Transformers reads what is written as it reads the file
    found = FAMILIES[values["model_type"]].publish(model, objective)
    theirs, back = (transformers.AutoConfig.for_model(**one).to_dict() for one in (values, found))
    names = {*found, "rope_parameters", "sliding_window", "layer_types"} - {"rope_scaling", "dtype", "architectures"}
    for key in sorted(names & theirs.keys()):
        if key not in ("hidden_act", "max_window_layers", "attn_config", "n_inner") or name == "SmolLM2-135M":
            assert back[key] == theirs[key], key


@pytest.mark.parametrize("name", HUB)
def test_hub_variants(name: str) -> None:
    """A null is a missing value, and other versions of the same keys mean the same."""
    values, _ = HUB[name]
    model, _ = described(Config(values, ""))
    extended = {**values, "dtype": "float32", "add_cross_attention": False, "is_encoder_decoder": False}
    assert described(Config({**extended, "pruned_heads": {}, "quantization_config": None}, ""))[0] == model
    if "rope_theta" in values:
        new = {key: value for key, value in values.items() if key not in ("rope_theta", "rope_scaling")}
        parameters = {"rope_type": "default", "rope_theta": values["rope_theta"], **(values.get("rope_scaling") or {})}
        assert described(Config({**new, "rope_parameters": parameters}, ""))[0] == model


@pytest.mark.parametrize(("full", "first"), [([], 0), ([0, 1], 2), ([0, 2], 1), (None, 3)])
def test_windows_for_old_readers(full: list[int] | None, first: int) -> None:
    """Before layer_types, files said how many layers come before the first one with a window."""
    change = {} if full is None else {"pattern": {"kind": "window", "size": 4, "full_layers": full}}
    plain = described(Config({"model_type": "qwen2", **GROUPED}, ""))[0].model_dump(exclude_defaults=True)
    model = Transformer.model_validate({**plain, "kind": "transformer", **change})
    config = FAMILIES["qwen2"].publish(model, Causal())
    assert config["max_window_layers"] == first
    del config["layer_types"]
    assert (described(Config(config, ""))[0] == model) == (full != [0, 2])


def test_old_keys_of_rotary_positions() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    position = described(Config({**TINYLLAMA_FILE, "rope_scaling": yarn}, ""))[0].model_dump()["position"]
    assert position["scaling"]["kind"] == "yarn"
    assert position["scaling"]["fast_turns"] == 32
    # the context of the file is the original one when it gives no other
    del yarn["original_max_position_embeddings"]
    assert described(Config({**TINYLLAMA_FILE, "rope_scaling": yarn}, ""))[0].model_dump()["position"] == position
    both = {**PYTHIA_FILE, "rope_theta": 10000, "partial_rotary_factor": 0.25}
    assert described(Config(both, ""))[0] == described(Config(PYTHIA_FILE, ""))[0]


# Refusals

LINEAR = {"rope_type": "linear", "factor": 2.0}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (GPT2_FILE, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    (GPT2_FILE, {"add_cross_attention": True}, "add_cross_attention is True"),
    (GPT2_FILE, {"activation_function": "quick_gelu"}, "activation_function is 'quick_gelu'"),
    (GPT2_FILE, {"n_embd": "768"}, "n_embd is '768', not of type int"),
    (GPT2_FILE, {"n_embd": True}, "n_embd is True, not of type int"),
    (GPT2_FILE, {"n_embd": None}, "n_embd is missing"),
    (GPT2_FILE, {"n_embd": 10**400}, "n_embd has more than 64 bits"),
    (GPT2_FILE, {"layer_norm_epsilon": 10**400}, "layer_norm_epsilon has more than 64 bits"),
    (GPT2_FILE, {"hidden_size": 512}, "hidden_size is 512 and n_embd 768"),
    (GPT2_FILE, {"n_layer": 10**12}, "n_layer is 1000000000000, more than there are tensors"),
    (GPT2_FILE, {"new_trick": 1, "other\x1b": 2}, r"unknown keys may change what it computes: new_trick, other\x1b"),
    (TINYLLAMA_FILE, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling.type is 'dynamic'"),
    (TINYLLAMA_FILE, {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type is 'longrope'"),
    (TINYLLAMA_FILE, {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
    (
        TINYLLAMA_FILE,
        {"rope_scaling": {**LINEAR, "twist": 1}},
        "unknown keys may change what it computes: rope_scaling.twist",
    ),
    (TINYLLAMA_FILE, {"rope_scaling": "linear"}, "rope_scaling is 'linear', not of type dict"),
    (TINYLLAMA_FILE, {"rope_scaling": {"type": 3}}, "rope_scaling.type is 3"),
    (TINYLLAMA_FILE, {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
    (TINYLLAMA_FILE, {"rope_parameters": {**YARN["rope_parameters"], "mscale": 1.0}}, "rope_parameters.mscale is 1.0"),
    (
        TINYLLAMA_FILE,
        {"rope_parameters": {**YARN["rope_parameters"], "truncate": False}},
        "rope_parameters.truncate is False",
    ),
    (TINYLLAMA_FILE, {"rope_interleaved": True}, "rope_interleaved is True"),
    (TINYLLAMA_FILE, {"attention_bias": True}, "attention_bias True and mlp_bias False"),
    (TINYLLAMA_FILE, {"mlp_bias": True}, "attention_bias False and mlp_bias True"),
    (TINYLLAMA_FILE, {"hidden_act": "relu"}, "hidden_act is 'relu'"),
    (TINYLLAMA_FILE, {"hidden_act": None}, "hidden_act is missing"),
    (TINYLLAMA_FILE, {"sliding_window": 7}, "unknown keys may change what it computes: sliding_window"),
    (
        TINYLLAMA_FILE,
        {"quantization_config": {"bits": 4}},
        "unknown keys may change what it computes: quantization_config",
    ),
    (MISTRAL_FILE, {"layer_types": ["full_attention"]}, "unknown keys may change what it computes: layer_types"),
    (MISTRAL_FILE, {"attention_bias": True}, "attention_bias is True"),
    (QWEN25_FILE, {"use_mrope": True}, "use_mrope is True"),
    (QWEN25_FILE, {"layer_types": ["full_attention"]}, "layer_types does not name"),
    (QWEN25_FILE, {"layer_types": ["chunked_attention"] * 24}, "layer_types does not name"),
    (QWEN25_FILE, {"layer_types": [[]] * 24}, "layer_types does not name"),
    (QWEN25_FILE, {"layer_types": ["sliding_attention"] * 24}, "sliding_attention without a sliding_window"),
    (QWEN3_FILE, {"attention_bias": True}, "attention_bias is True"),
    (GEMMA_FILE, {"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
    (GEMMA_FILE, {"hidden_act": "silu"}, "hidden_act is 'silu'"),
    (GEMMA_FILE, {"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    (OLMO2_FILE, {"attention_bias": True}, "attention_bias is True"),
    (PYTHIA_FILE, {"attention_bias": False}, "attention_bias is False"),
    (PYTHIA_FILE, {"rope_theta": 500.0}, "rope_theta is 500.0 and rotary_emb_base 10000"),
    (
        BLOOM_FILE,
        {"apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm is True",
    ),
    (BLOOM_FILE, {"n_inner": 64}, "n_inner is 64"),
    (MPT_FILE, {"attn_config": {"alibi": False}}, "attn_config.alibi is False"),
    (MPT_FILE, {"attn_config": {"alibi_bias_max": 16}}, "attn_config.alibi_bias_max is 16"),
    (MPT_FILE, {"attn_config": {"clip_qkv": 6}}, "attn_config.clip_qkv is 6"),
    (MPT_FILE, {"attn_config": {"prefix_lm": True}}, "attn_config.prefix_lm is True"),
    (MPT_FILE, {"attn_config": {"qk_ln": True}}, "attn_config.qk_ln is True"),
    (MPT_FILE, {"attn_config": {"softmax_scale": 1.0}}, "attn_config.softmax_scale is 1.0"),
    (
        MPT_FILE,
        {"attn_config": {"attn_type": "multiquery_attention"}},
        "attn_config.attn_type is 'multiquery_attention'",
    ),
    (MPT_FILE, {"attn_config": {"rope": True}}, "unknown keys may change what it computes: attn_config.rope"),
    (MPT_FILE, {"attn_config": []}, "attn_config is [], not of type dict"),
    (MPT_FILE, {"no_bias": False}, "no_bias is False"),
    (MPT_FILE, {"expansion_ratio": 2}, "expansion_ratio is 2"),
    (MPT_FILE, {"logit_scale": 0.5}, "logit_scale is 0.5"),
    (MPT_FILE, {"norm_type": "rmsnorm"}, "norm_type is 'rmsnorm'"),
]


@pytest.mark.parametrize(("values", "change", "what"), REFUSED)
def test_refusals(values: dict[str, Any], change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        described(Config({**values, **change}, "a/config.json"))
    assert what in caught.value.what
    assert caught.value.where == "a/config.json"
    assert all(line.isprintable() for line in caught.value.lines())


LABELS: list[tuple[dict[str, Any], str]] = [
    ({"id2label": {"0": "a", "1": "a"}}, "id2label does not give each class"),
    ({"id2label": {"0": "a", "2": "b"}}, "id2label does not give each class"),
    ({"id2label": {"0": "a", "1": 7}}, "id2label does not give each class"),
    ({"id2label": {"0": "a", "1": ["b"]}}, "id2label does not give each class"),
    ({"id2label": {}}, "id2label does not give each class"),
    ({"id2label": ["a", "b"]}, "id2label is ['a', 'b'], not of type dict"),
    ({"id2label": {"0": "a", "1": "b"}, "problem_type": "regression"}, "problem_type is 'regression' of 2 numbers"),
    ({"id2label": {"0": "a", "1": "b"}, "problem_type": "ranking"}, "problem_type is 'ranking'"),
    ({"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, "num_labels is 3"),
    ({"num_labels": 10**9}, "num_labels is 1000000000"),
]


@pytest.mark.parametrize(("change", "what"), LABELS)
def test_refused_labels(change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        described(Config({**GPT2_FILE, **change}, ""), ["score.weight", *MANY])
    assert what in caught.value.what


@pytest.mark.parametrize(("change", "n_labels"), [({}, 2), ({"num_labels": 3}, 3)])
def test_labels_without_names(change: dict[str, Any], n_labels: int) -> None:
    _, objective = described(Config({**GPT2_FILE, **change}, ""), ["score.weight", *MANY])
    assert isinstance(objective, Classification)
    assert objective.labels == ("LABEL_0", "LABEL_1", "LABEL_2")[:n_labels]


@settings(max_examples=examples(100, 300), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever a file says, there is a recipe, perhaps one that the recipe language refuses, or a CheckpointError."""
    values = dict(data.draw(st.sampled_from([values for values, _ in HUB.values()])))
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["linear", "yarn", "gelu", ""])
    keys = st.sampled_from(sorted({*values, "rope_scaling", "rope_parameters", "layer_types", "id2label", "n_inner"}))
    parts = st.sampled_from(
        ["rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings", "0", "alibi"]
    )
    anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(parts, scalars, max_size=5)
    for key, value in data.draw(st.dictionaries(keys, anything, min_size=1, max_size=3)).items():
        values[key] = value
    values["model_type"] = (family := data.draw(st.sampled_from(sorted(FAMILIES))))
    names = data.draw(st.sampled_from([MANY, ["score.weight", *MANY]]))
    try:
        found = FAMILIES[family].describe(Config(values, ""), names)
    except CheckpointError:
        return
    try:
        model = Transformer.model_validate(found.model)
        objective: AnyObjective = TypeAdapter(AnyObjective).validate_python(found.objective)
    except ValidationError:
        return
    weights = FAMILIES[family].weights(model, objective)
    assert len({weight.ours for weight in weights}) == len(weights) > 6 * model.n_layers


# Export

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
    *({"activation": one} for one in ("relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-exact")),
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
    *({"bias": flag} for flag in (True, False)),
    *({"qkv_bias": flag} for flag in (True, False)),
    *({"tie_embeddings": flag} for flag in (True, False)),
    {"head_bias": True},
    *({"scale_embedding": flag} for flag in (True, False)),
    {"embedding_width": 8, "tie_embeddings": False},
    {"scale_head": True},
    {"head_transform": True},
    {"dropout": 0.1},
]
"""Changes of a model, one of each kind of key."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FAMILIES)
def test_changed_models(name: str) -> None:
    """A recipe near that of a family is exported with equal logits, or refused by a changed key."""
    values = next(values for family, values in PEERS.values() if family == name)
    plain = described(Config({"model_type": name, **values}, ""))[0].model_dump(exclude_defaults=True)
    refused = set()
    for change in CHANGES:
        try:
            model = Transformer.model_validate({**plain, "kind": "transformer", **change})
        except ValidationError:
            continue
        try:
            found = FAMILIES[name].publish(model, Causal())
        except Inexpressible as error:
            refused.add(error.key)
            if error.key.split(".")[1] not in change:
                raise
            continue
        built = tiny.model(dtype=torch.float32, **model.model_dump())
        peer = published(FAMILIES[name], found, "CausalLM", model, Causal(), built.state_dict())
        with torch.no_grad():
            tokens_BT = tiny.tokens(2, 33)
            wanted, logits = peer(tokens_BT).logits, built.logits(built(Batch(tokens_BT)).hidden_BTD)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()), msg=str(change))
    keys = ("shape", "vocab_size", "position.kind", "norm.place", "qk_norm", "head_bias", "scale_head")
    assert {f"model.{key}" for key in keys} <= refused


@settings(max_examples=examples(80, 200), suppress_health_check=[HealthCheck.too_slow])
@given(model=specs(Transformer), family=st.sampled_from(DECODERS), objective=specs(Classification) | specs(Causal))
def test_any_recipe_is_written_or_refused(model: Transformer, family: Decoder, objective: AnyObjective) -> None:
    assume(model.n_layers < 1000)
    try:
        found = family.publish(model, objective)
    except Inexpressible:
        return
    assert found["model_type"] == family.model_type


NAMES = ("a", "b")


@pytest.mark.sampled(4)
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
def test_refused_objectives(objective: AnyObjective, key: str) -> None:
    for family in DECODERS:
        model, _ = described(
            Config(next(values for values, _ in HUB.values() if values["model_type"] == family.model_type), "")
        )
        with pytest.raises(Inexpressible) as caught:
            family.publish(model, objective)
        assert caught.value.key == key


# Layouts


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Layout, list[Tensor]]:
    """A layout, and tensors of theirs that fit it."""
    rest = draw(st.lists(st.integers(1, 3), max_size=2))
    n = draw(st.integers(1, 4))
    match draw(st.sampled_from(["same", "joined", "transposed", "by head", "halves", "row"])):
        case "joined":
            widths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
            return Joined(tuple(widths)), [torch.randn(width, *rest) for width in widths]
        case "transposed":
            return Transposed(), [torch.randn(n, draw(st.integers(1, 4)))]
        case "by head":
            return by_head(n), [torch.randn(3 * n * draw(st.integers(1, 3)), *rest)]
        case "halves":
            dim = draw(st.integers(0, len(rest)))
            sizes = [n, *rest]
            sizes[dim] *= 2
            return in_halves(dim, SAME), [torch.randn(*sizes)]
        case "row":
            return AsRow(), [torch.randn(1, n)]
    return SAME, [torch.randn(n, *rest)]


@given(layouts())
def test_layouts_are_inverse(case: tuple[Layout, list[Tensor]]) -> None:
    layout, theirs = case
    joined = layout.join(theirs)
    back = layout.split(joined)
    assert len(back) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(back, theirs, strict=True))
    assert sum(one.numel() for one in theirs) == joined.numel()
    assert torch.equal(layout.join(back), joined)


def test_by_head_takes_all_queries_first() -> None:
    # heads of width 2: q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1
    theirs = torch.tensor([0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23])
    assert by_head(2).join([theirs]).tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


@pytest.mark.parametrize(
    ("layout", "theirs"),
    [
        (Joined((2, 3)), [torch.zeros(2), torch.zeros(2)]),
        (Joined((2, 3)), [torch.zeros(2), torch.tensor(1.0)]),
        (Transposed(), [torch.zeros(2)]),
        (Transposed(), [torch.zeros(2, 2, 2)]),
        (by_head(4), [torch.zeros(8)]),
        (by_head(4), [torch.tensor(1.0)]),
    ],
)
def test_wrong_shapes(layout: Layout, theirs: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=r"instead of|not divisible"):
        layout.join(theirs)
