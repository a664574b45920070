"""Configurations of published models: what they are in the recipe language, and each refusal by the key concerned."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES, tables
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.family import Family
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.spec.objective import AnyObjective, Causal, Classification
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.cases import GROUPED, YARN
from tests.interop.families.hub import (
    BLOOM_FILE,
    DECODERS,
    ENCODER_DECODERS,
    ENCODERS,
    GEMMA_FILE,
    GPT2_FILE,
    MISTRAL_FILE,
    MPT_FILE,
    OLMO2_FILE,
    PYTHIA_FILE,
    QWEN3_FILE,
    QWEN25_FILE,
    TINYLLAMA_FILE,
)
from tests.interop.families.peers import JUNK, MANY, described
from tests.support.examples import examples


def tensors_of_head(values: Mapping[str, Any], tensor: str) -> list[str]:
    """All tensors of the head that has this one, or the one alone."""
    heads = FAMILIES[values["model_type"]].heads
    for head in (heads["masked"], *([heads["classification"]] if tensor == "classifier.weight" else [])):
        names = [f"{name}.weight" for name in " ".join(head.modules.values()).split()]
        if tensor in names:
            return names
    return [tensor]


FILES: dict[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    **{name: (values, MANY) for name, (values, _) in DECODERS.items()},
    **{name: (values, [*MANY, *tensors_of_head(values, tensor)]) for name, (tensor, values) in ENCODERS.items()},
    **{
        name: (values, [*MANY, "lm_head.weight", *(["final_logits_bias"] if values["model_type"] != "t5" else [])])
        for name, values in ENCODER_DECODERS.items()
    },
}
"""Files of published models, and names of their tensors."""


def test_files_of_families_have_each_key_once() -> None:
    for file in Path(tables.__file__).parents[1].glob("*/*.yaml"):
        if file.name == "words.yaml":  # with an anchor, which recipes do not have
            continue
        assert not parse_yaml(file.read_text(encoding="utf-8"), file.name).mistakes, file


@pytest.mark.parametrize("name", DECODERS)
def test_decoders_of_the_hub(name: str) -> None:
    values, ours = DECODERS[name]
    model, objective = described(values)
    assert objective == Causal()
    assert model == Transformer.model_validate({"kind": "transformer", **ours})
    # and Transformers reads what is written as it reads the file
    found = FAMILIES[values["model_type"]].build_verified_config(model, objective)
    theirs, back = (transformers.AutoConfig.for_model(**one).to_dict() for one in (values, found))
    names = {*found, "rope_parameters", "sliding_window", "layer_types"} - {"rope_scaling", "dtype", "architectures"}
    for key in sorted(names & theirs.keys()):
        if key not in ("hidden_act", "max_window_layers", "attn_config", "n_inner") or name == "SmolLM2-135M":
            assert back[key] == theirs[key], key


@pytest.mark.parametrize("name", DECODERS)
def test_hub_variants(name: str) -> None:
    """A null is a missing value, and other versions of the same keys mean the same."""
    values, _ = DECODERS[name]
    model, _ = described(values)
    extended = {**values, "dtype": "float32", "add_cross_attention": False, "is_encoder_decoder": False}
    assert described({**extended, "pruned_heads": {}, "quantization_config": None})[0] == model
    if "rope_theta" in values:
        new = {key: value for key, value in values.items() if key not in ("rope_theta", "rope_scaling")}
        parameters = {"rope_type": "default", "rope_theta": values["rope_theta"], **(values.get("rope_scaling") or {})}
        assert described({**new, "rope_parameters": parameters})[0] == model


@pytest.mark.parametrize(("full", "first"), [([], 0), ([0, 1], 2), ([0, 2], 1), (None, 3)])
def test_windows_for_old_readers(full: list[int] | None, first: int) -> None:
    """Before layer_types, files said how many layers come before the first one with a window."""
    change = {} if full is None else {"pattern": {"kind": "window", "size": 4, "full_layers": full}}
    plain = described({"model_type": "qwen2", "vocab_size": 31, **GROUPED})[0].model_dump(exclude_defaults=True)
    model = Transformer.model_validate({**plain, "kind": "transformer", **change})
    config = FAMILIES["qwen2"].build_verified_config(model, Causal())
    assert config["max_window_layers"] == first
    del config["layer_types"]
    assert (described(config)[0] == model) == (full != [0, 2])


def test_old_keys_of_rotary_positions() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    position = described({**TINYLLAMA_FILE, "rope_scaling": yarn})[0].model_dump()["position"]
    assert position["scaling"]["kind"] == "yarn"
    assert position["scaling"]["fast_turns"] == 32
    # the context of the file is the original one when it gives no other
    del yarn["original_max_position_embeddings"]
    assert described({**TINYLLAMA_FILE, "rope_scaling": yarn})[0].model_dump()["position"] == position
    both = {**PYTHIA_FILE, "rope_theta": 10000, "partial_rotary_factor": 0.25}
    assert described(both)[0] == described(PYTHIA_FILE)[0]


@pytest.mark.parametrize("name", [*ENCODERS, *ENCODER_DECODERS])
def test_others_of_the_hub(name: str) -> None:
    """What is told again is told alike."""
    values, names = FILES[name]
    family = FAMILIES[values["model_type"]]
    model, objective = described(values, names)
    kinds = {
        "distilbert-base-uncased-finetuned-sst-2-english": "classification",
        "google/electra-small-discriminator": "embedding",
        "sentence-transformers/all-MiniLM-L6-v2": "embedding",
    }
    assert objective.kind == kinds.get(name, "seq2seq" if name in ENCODER_DECODERS else "masked")
    if isinstance(objective, Classification):
        assert (objective.labels, objective.dropout) == (("NEGATIVE", "POSITIVE"), 0.2)
    contexts = {"facebook/bart-base": 1024, "google/pegasus-large": 1024, "answerdotai/ModernBERT-base": 8192}
    assert model.context == contexts.get(name, 512)
    told = family.build_verified_config(model, objective)
    labels = {"id2label": values["id2label"]} if isinstance(objective, Classification) else {}
    weights = family.map_weights(model, objective)
    again, _ = described(told | labels, [one for weight in weights for one in weight.published_names])
    assert again == model


LINEAR = {"rope_type": "linear", "factor": 2.0}
REFUSED_DECODERS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (GPT2_FILE, {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
    (GPT2_FILE, {"add_cross_attention": True}, "add_cross_attention is True"),
    (GPT2_FILE, {"activation_function": "quick_gelu"}, "activation_function is 'quick_gelu'"),
    (GPT2_FILE, {"n_embd": "768"}, "n_embd is '768', not of type int"),
    (GPT2_FILE, {"n_embd": True}, "n_embd is True, not of type int"),
    (GPT2_FILE, {"n_embd": None}, "n_embd is missing"),
    (GPT2_FILE, {"n_embd": 10**400}, "n_embd has more than 64 bits"),
    (GPT2_FILE, {"layer_norm_epsilon": 10**400}, "layer_norm_epsilon has more than 64 bits"),
    (GPT2_FILE, {"hidden_size": 512}, "hidden_size is 512 and n_embd 768"),
    (GPT2_FILE, {"n_layer": 10**12}, "n_layer is 1000000000000, more layers than there are tensors"),
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
    (TINYLLAMA_FILE, {"attention_bias": True}, "mlp_bias is False, where others say True"),
    (TINYLLAMA_FILE, {"mlp_bias": True}, "mlp_bias is True, where others say False"),
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


REFUSED_OTHERS: list[tuple[str, dict[str, Any], str | None]] = [
    ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ("bert-base-uncased", {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
    ("bert-base-uncased", {"is_decoder": True}, "is_decoder is True"),
    ("bert-base-uncased", {"add_cross_attention": True}, "add_cross_attention is True"),
    ("bert-base-uncased", {"is_encoder_decoder": True}, "is_encoder_decoder is True"),
    ("bert-base-uncased", {"hidden_size": 0}, "hidden_size is 0, not a positive number"),
    ("bert-base-uncased", {"hidden_size": "768"}, "hidden_size is '768', not of type int"),
    ("bert-base-uncased", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
    ("bert-base-uncased", {"type_vocab_size": 0}, "type_vocab_size is 0"),
    ("bert-base-uncased", {"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
    ("bert-base-uncased", {"rotary": True}, "unknown keys may change what it computes: rotary"),
    ("bert-base-uncased", {"architectures": [7, "\x1b[31mForQuestionAnswering"]}, None),
    ("bert-base-uncased", {"architectures": ["\x1b[31mForQuestionAnswering"]}, r"\x1b[31mFor"),
    ("roberta-base", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
    ("roberta-base", {"pad_token_id": -1}, "pad_token_id is -1"),
    ("roberta-base", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves no positions"),
    ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {"1": "x", "2": "y"}}, "id2label"),
    ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {}}, "id2label"),
    ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {"0": 1, "1": 2}}, "id2label"),
    (
        "distilbert-base-uncased-finetuned-sst-2-english",
        {"problem_type": "regression"},
        "problem_type is 'regression' of 2 numbers",
    ),
    ("distilbert-base-uncased-finetuned-sst-2-english", {"problem_type": "ranking"}, "problem_type is 'ranking'"),
    ("answerdotai/ModernBERT-base", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
    ("answerdotai/ModernBERT-base", {"local_attention": 1}, "local_attention is 1"),
    ("answerdotai/ModernBERT-base", {"mlp_bias": True}, "mlp_bias is True, where others say False"),
    ("answerdotai/ModernBERT-base", {"classifier_activation": "silu"}, "classifier_activation is 'silu'"),
    ("answerdotai/ModernBERT-base", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
    ("answerdotai/ModernBERT-base", {"layer_types": ["full_attention"]}, "layer_types"),
    ("answerdotai/ModernBERT-base", {"layer_types": [{}] * 22}, "layer_types"),
    ("answerdotai/ModernBERT-base", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
    (
        "answerdotai/ModernBERT-base",
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
        "rope_type is 'yarn'",
    ),
    ("answerdotai/ModernBERT-base", {"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
    ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_theta": 3}}, "rope_parameters"),
    ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
    ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, None),
    ("t5-small", {"num_decoder_layers": 2}, "num_decoder_layers is 2"),
    ("t5-small", {"feed_forward_proj": "gated-relu"}, "is 'relu', which no recipe can express"),
    ("t5-small", {"feed_forward_proj": "split-gelu"}, "feed_forward_proj is 'split-gelu'"),
    ("t5-small", {"feed_forward_proj": "quick_gelu"}, "is 'quick_gelu'"),
    ("t5-small", {"dense_act_fn": "tanh"}, "dense_act_fn is 'tanh'"),
    ("t5-small", {"d_kv": -1}, "d_kv is -1, not a positive number"),
    ("t5-small", {"is_decoder": True}, "is_decoder is True"),
    ("t5-small", {"is_encoder_decoder": False}, "is_encoder_decoder is False"),
    ("t5-small", {"num_experts": 8}, "unknown keys may change what it computes: num_experts"),
    ("facebook/bart-base", {"normalize_before": True}, "normalize_before is True"),
    ("facebook/bart-base", {"normalize_embedding": False}, "normalize_embedding is False"),
    ("facebook/bart-base", {"add_final_layer_norm": True}, "add_final_layer_norm is True"),
    ("facebook/bart-base", {"static_position_embeddings": True}, "static_position_embeddings is True"),
    ("facebook/bart-base", {"decoder_layers": 3}, "decoder_layers is 3"),
    ("facebook/bart-base", {"decoder_ffn_dim": 3}, "decoder_ffn_dim is 3"),
    ("facebook/bart-base", {"num_hidden_layers": 12}, "num_hidden_layers is 12"),
    ("facebook/bart-base", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ("facebook/bart-base", {"d_model": None}, "d_model is missing"),
    ("Helsinki-NLP/opus-mt-en-de", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
    ("Helsinki-NLP/opus-mt-en-de", {"decoder_vocab_size": 7}, "decoder_vocab_size is 7"),
    ("Helsinki-NLP/opus-mt-en-de", {"static_position_embeddings": False}, "static_position_embeddings is False"),
    ("google/pegasus-large", {"normalize_before": False}, "normalize_before is False"),
    ("google/pegasus-large", {"add_final_layer_norm": False}, "add_final_layer_norm is False"),
    ("google/pegasus-large", {"extra_pos_embeddings": 2}, "extra_pos_embeddings is 2"),
]


@pytest.mark.parametrize(("values", "change", "what"), REFUSED_DECODERS)
def test_refused_decoders(values: dict[str, Any], change: dict[str, Any], what: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        described({**values, **change})
    assert what in caught.value.what
    assert caught.value.where == "a/config.json"
    assert all(line.isprintable() for line in caught.value.lines())


@pytest.mark.parametrize(("published_as", "changes", "what"), REFUSED_OTHERS)
def test_refused_others(published_as: str, changes: dict[str, Any], what: str | None) -> None:
    values, names = FILES[published_as]
    if what is None:
        described({**values, **changes}, names)
        return
    with pytest.raises(CheckpointError) as refusal:
        described({**values, **changes}, names)
    assert what in refusal.value.what
    assert len(str(refusal.value).splitlines()) <= 3


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
        described({**GPT2_FILE, **change}, ["score.weight", *MANY])
    assert what in caught.value.what


@pytest.mark.parametrize(("change", "n_labels"), [({}, 2), ({"num_labels": 3}, 3)])
def test_labels_without_names(change: dict[str, Any], n_labels: int) -> None:
    _, objective = described({**GPT2_FILE, **change}, ["score.weight", *MANY])
    assert isinstance(objective, Classification)
    assert objective.labels == ("LABEL_0", "LABEL_1", "LABEL_2")[:n_labels]


@pytest.mark.parametrize(
    ("published_as", "architecture"),
    [
        ("bert-base-uncased", "BertForMultipleChoice"),
        ("bert-base-uncased", "BertForNextSentencePrediction"),
        ("gpt2", "GPT2ForTokenClassification"),
        ("answerdotai/ModernBERT-base", "ModernBertForTokenClassification"),
        ("facebook/bart-base", "BartForSequenceClassification"),
        ("facebook/bart-base", "BartForCausalLM"),
        ("t5-small", "T5ForQuestionAnswering"),
    ],
)
def test_heads_that_no_recipe_has(published_as: str, architecture: str) -> None:
    values, names = FILES[published_as]
    with pytest.raises(CheckpointError, match=f"a recipe has no head as {architecture}"):
        described({**values, "architectures": [architecture]}, names)


@pytest.mark.parametrize(
    ("architecture", "tensor", "kind"),
    [
        ("BertForTokenClassification", "classifier.weight", "tagging"),
        ("BertForQuestionAnswering", "qa_outputs.weight", "question-answering"),
        ("BertForSequenceClassification", "classifier.weight", "classification"),
    ],
)
def test_the_class_tells_heads_apart(architecture: str, tensor: str, kind: str) -> None:
    """Old files of taggers have BERT's pooler too, which nothing reads."""
    values, _ = FILES["bert-base-uncased"]
    names = [*MANY, "bert.pooler.dense.weight", "bert.pooler.dense.bias", tensor]
    assert described({**values, "architectures": [architecture]}, names)[1].kind == kind


def test_an_output_matrix_that_is_missing() -> None:
    values, names = FILES["google/flan-t5-small"]
    with pytest.raises(CheckpointError, match=r"there is no lm_head\.weight"):
        described(values, [name for name in names if name != "lm_head.weight"])


@pytest.mark.parametrize(
    ("scaled", "expected"), [(True, (False, True)), (False, (False, False)), (None, (False, False))]
)
def test_own_output_matrices_of_t5(scaled: bool | None, expected: tuple[bool, bool]) -> None:
    """In old files, a matrix of its own and no scale come together."""
    values, names = FILES["google/flan-t5-small"]
    model, _ = described({**values, "scale_decoder_outputs": scaled}, names)
    assert (model.tie_embeddings, model.scale_head) == expected
    tied, _ = described(*FILES["t5-small"])
    assert (tied.tie_embeddings, tied.scale_head) == (True, True)


def test_null_is_the_base_of_other_layers() -> None:
    """As in ModernBERT's first configurations."""
    values, names = FILES["answerdotai/ModernBERT-base"]
    model, _ = described({**values, "local_rope_theta": None}, names)
    assert model.position.window_theta == 160_000.0  # type: ignore[union-attr]


def test_old_names_of_norms() -> None:
    """As in bert-base-uncased."""
    old = ["embeddings.LayerNorm.gamma", "encoder.layer.0.output.LayerNorm.beta"]
    assert [*FAMILIES["bert"].map_canonical_to_stored_names(old)] == [
        "bert.embeddings.LayerNorm.weight",
        "bert.encoder.layer.0.output.LayerNorm.bias",
    ]


@pytest.mark.parametrize("name", FILES)
def test_damaged_configurations(name: str) -> None:
    """They are described, or refused; nothing else."""
    values, names = FILES[name]
    more = ("id2label", "num_labels", "layer_types", "rope_parameters", "tie_word_embeddings", "problem_type")
    for key in (*values, *more, "dense_act_fn", "is_gated_act", "scale_decoder_outputs"):
        for junk in JUNK:
            with contextlib.suppress(CheckpointError):
                FAMILIES[values["model_type"]].read_recipe_from_config(
                    StrictConfigReader({**values, key: junk}, "config.json", names)
                )


@settings(max_examples=examples(100, 300), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_value_is_read_or_refused(data: st.DataObject) -> None:
    """Whatever a file says, there is a recipe, perhaps one that the recipe language refuses, or a CheckpointError."""
    values = dict(data.draw(st.sampled_from([values for values, _ in FILES.values()])))
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["linear", "yarn", "gelu", ""])
    keys = st.sampled_from(sorted({*values, "rope_scaling", "rope_parameters", "layer_types", "id2label", "n_inner"}))
    parts = st.sampled_from(
        ["rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings", "0", "alibi"]
    )
    anything = scalars | st.lists(scalars, max_size=3) | st.dictionaries(parts, scalars, max_size=5)
    for key, value in data.draw(st.dictionaries(keys, anything, min_size=1, max_size=3)).items():
        values[key] = value
    family: Family = data.draw(st.sampled_from([*FAMILIES.values(), *GGUF_FAMILIES.values()]))
    names = data.draw(st.sampled_from([MANY, ["score.weight", *MANY], [*MANY, "final_logits_bias"]]))
    try:
        found = family.read_recipe_from_config(StrictConfigReader(values, "", names))
    except CheckpointError:
        return
    try:
        model = Transformer.model_validate(found["model"])
        objective: AnyObjective = TypeAdapter(AnyObjective).validate_python(found["objective"])
    except ValidationError:
        return
    try:
        weights = family.map_weights(model, objective)
    except InexpressibleRecipe:  # larger than what any program could hold
        return
    assert len({weight.name for weight in weights}) == len(weights) > 6 * model.n_layers
