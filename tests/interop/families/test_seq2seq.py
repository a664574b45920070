"""Encoder-decoders come in from Transformers, and go out again, with the same logits and the same tensors."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import CheckpointError
from lmtool.interop.families import EVERY
from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.family import Family
from lmtool.interop.families.seq2seq import T5, Bart, Marian, Pegasus
from lmtool.model import LanguageModel, build
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import AnyObjective, Seq2Seq
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.peers import (
    JUNK,
    VOCAB,
    Brought,
    assert_close,
    assert_same_tensors,
    described,
    peer_of,
    published,
    tensors_of,
    values_of,
)

SIZES_T5: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "d_kv": 6,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 6,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
SIZES_BART: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "max_position_embeddings": 24,
    **dict.fromkeys(("encoder_layers", "decoder_layers"), 2),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24),
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0),
    "forced_eos_token_id": None,
}
T5_MODEL, BART_MODEL = "T5ForConditionalGeneration", "BartForConditionalGeneration"
PEGASUS_MODEL = "PegasusForConditionalGeneration"
CASES: dict[str, tuple[Family, str, dict[str, Any]]] = {
    "t5": (T5(), T5_MODEL, SIZES_T5),
    "t5 1.1": (T5(), T5_MODEL, {**SIZES_T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5, gated by SiLU": (T5(), T5_MODEL, {**SIZES_T5, "feed_forward_proj": "gated-silu"}),
    "t5, gated by the exact GELU": (
        T5(),
        T5_MODEL,
        {**SIZES_T5, "feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu", "layer_norm_epsilon": 1e-5},
    ),
    "t5, tied without scale": (T5(), T5_MODEL, {**SIZES_T5, "scale_decoder_outputs": False}),
    "bart": (Bart(), BART_MODEL, SIZES_BART),
    "bart, scaled": (Bart(), BART_MODEL, {**SIZES_BART, "scale_embedding": True, "activation_function": "relu"}),
    "marian": (
        Marian(),
        "MarianMTModel",
        {**SIZES_BART, "scale_embedding": True, "activation_function": "swish"},
    ),
    "marian without scale": (Marian(), "MarianMTModel", SIZES_BART),
    "pegasus": (
        Pegasus(),
        PEGASUS_MODEL,
        {**SIZES_BART, "scale_embedding": True, "activation_function": "relu"},
    ),
    "pegasus without scale": (Pegasus(), PEGASUS_MODEL, SIZES_BART),
}
KEEP = torch.arange(20) < torch.tensor([[20], [1], [15]])


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randint(1, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


SOURCE, TARGET = drawn(3, 20, seed=0), drawn(3, 17, seed=1)


def theirs(peer: Any, keep_BS: Tensor | None) -> Tensor:
    mask = None if keep_BS is None else keep_BS.long()
    with torch.no_grad():
        logits: Tensor = peer(SOURCE, attention_mask=mask, decoder_input_ids=TARGET).logits
    return logits


def ours(model: LanguageModel, keep_BS: Tensor | None) -> Tensor:
    with torch.no_grad():
        return model.logits(model(Batch(TARGET, source_BS=SOURCE, source_keep_BS=keep_BS)).hidden_BTD)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_encoder_decoders(case: str, tmp_path: Path) -> None:
    family, architecture, config = CASES[case]
    peer = peer_of(architecture, config)
    brought = Brought(family, peer)
    again = brought.published(tmp_path)
    assert_same_tensors(again, peer)
    for keep_BS in (None, KEEP):
        wanted = theirs(peer, keep_BS)
        assert_close(ours(brought.model, keep_BS), wanted)
        assert_close(theirs(again, keep_BS), wanted)


def untied(peer: Any) -> Any:
    """With an output matrix of its own, as in the files of T5 1.1."""
    peer.lm_head.weight = torch.nn.Parameter(torch.randn_like(peer.lm_head.weight))
    return peer


@pytest.mark.parametrize("scaled", [True, False])
def test_own_output_matrix(scaled: bool, tmp_path: Path) -> None:
    peer = untied(peer_of(T5_MODEL, {**SIZES_T5, "scale_decoder_outputs": scaled}))
    peer.config.tie_word_embeddings = False
    names = tensors_of(peer, T5())
    values = values_of(peer)
    if not scaled:
        # as in files of old
        del values["scale_decoder_outputs"]
    spec, objective = described(T5(), values, names)
    assert (spec.tie_embeddings, spec.scale_head) == (False, scaled)
    weights = {one.ours: one.layout.join([names[name] for name in one.theirs]) for one in T5().weights(spec, objective)}
    model = build(spec, VOCAB).eval()
    model.load_state_dict(weights)
    wanted = theirs(peer, KEEP)
    assert_close(ours(model, KEEP), wanted)
    again = published(T5(), spec, objective, weights, tmp_path)
    assert_same_tensors(again, peer)
    assert_close(theirs(again, KEEP), wanted)


def test_old_files_hold_copies() -> None:
    """A tied output matrix, and the biases of cross-attention, which are not read."""
    peer = peer_of(T5_MODEL, SIZES_T5)
    values, names = values_of(peer), tensors_of(peer, T5())
    del values["scale_decoder_outputs"]
    assert "lm_head.weight" in names
    spec, _ = described(T5(), values, names)
    assert (spec.tie_embeddings, spec.scale_head) == (True, True)


def test_a_body_alone(tmp_path: Path) -> None:
    """As facebook/bart-base, whose logits have no bias."""
    peer = peer_of("BartModel", SIZES_BART)
    brought = Brought(Bart(), peer)
    assert not brought.spec.head_bias
    again = brought.published(tmp_path)
    assert_same_tensors(again.model, peer)
    assert_close(ours(brought.model, KEEP), theirs(again, KEEP))


SMALL: dict[str, Any] = {
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "d_ff": 24,
    "context": 20,
    "vocab_size": VOCAB,
}


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("t5-small", T5),
        ("t5-tiny", T5),
        ("transformer-tiny", Marian),
        ("transformer-base", Marian),
        ("transformer-small", Pegasus),
    ],
)
def test_recipes(recipe: str, expected: type[Family], tmp_path: Path) -> None:
    """Shrunken. The sinusoids of the Transformer of 2017 alternate."""
    loaded = load(recipe).recipe
    spec = Transformer.model_validate({**loaded.model.model_dump(), **SMALL})
    (family,) = [one for one in EVERY if can(one, spec, loaded.objective)]
    assert isinstance(family, expected)
    model = build(spec, VOCAB).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    peer = published(family, spec, loaded.objective, model.state_dict(), tmp_path)
    assert_close(theirs(peer, KEEP), ours(model, KEEP))
    for weight in family.weights(spec, loaded.objective):
        tensor = model.state_dict()[weight.ours]
        assert torch.equal(weight.layout.join(weight.layout.split(tensor)), tensor)


def can(family: Family, spec: Transformer, objective: AnyObjective) -> bool:
    try:
        family.publish(spec, objective)
    except Inexpressible:
        return False
    return True


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
        (T5(), {**T5_SPEC, "score": "scaled-dot"}, "model.score"),
        (T5(), {**T5_SPEC, "bias": True}, "model.bias"),
        (T5(), {**T5_SPEC, "norm": {"kind": "layer"}}, "model.norm.kind"),
        (T5(), {**T5_SPEC, "norm": {"kind": "rms", "unit_offset": True}}, "model.norm.unit_offset"),
        (T5(), {**T5_SPEC, "position": {"kind": "alibi"}}, "model.position.kind"),
        (T5(), {**T5_SPEC, "n_kv_heads": 2}, "model.n_kv_heads"),
        (T5(), {**T5_SPEC, "head_bias": True}, "model.head_bias"),
        (T5(), {**T5_SPEC, "scale_embedding": True}, "model.scale_embedding"),
        (T5(), {**T5_SPEC, "parallel": True}, "model.parallel"),
        (Bart(), {**BART_SPEC, "position": {"kind": "learned"}}, "model.position.offset"),
        (Bart(), {**BART_SPEC, "separate_inputs": False}, "model.separate_inputs"),
        (Bart(), {**BART_SPEC, "tie_embeddings": False}, "model.tie_embeddings"),
        (Bart(), {**BART_SPEC, "norm": {"place": "post"}}, "model.norm.embedding"),
        (Bart(), {**BART_SPEC, "norm": {"embedding": True}}, "model.norm.place"),
        (Bart(), {**BART_SPEC, "activation": "swiglu"}, "model.activation"),
        (Bart(), {**BART_SPEC, "head_width": 8}, "model.head_width"),
        (Bart(), MARIAN_SPEC, "model.position.kind"),
        (Marian(), {**MARIAN_SPEC, "norm": {"place": "post", "embedding": True}}, "model.norm.embedding"),
        (Marian(), {**MARIAN_SPEC, "tie_embeddings": False}, "model.tie_embeddings"),
        (Marian(), {**MARIAN_SPEC, "scale_head": True}, "model.scale_head"),
        (Marian(), {**MARIAN_SPEC, "embedding_width": 8, "tie_embeddings": False}, "model.tie_embeddings"),
        (Marian(), {**MARIAN_SPEC, "head_transform": True}, "model.head_transform"),
        (Marian(), {**MARIAN_SPEC, "shape": "decoder"}, "model.shape"),
        (Marian(), BART_SPEC, "model.position.kind"),
        (Marian(), {**MARIAN_SPEC, "norm": {"place": "pre"}}, "model.norm.place"),
        (Pegasus(), MARIAN_SPEC, "model.norm.place"),
        (Pegasus(), {**MARIAN_SPEC, "norm": {"place": "pre", "eps": 1e-6}}, "model.norm.eps"),
        (Pegasus(), {**MARIAN_SPEC, "norm": {"place": "pre", "embedding": True}}, "model.norm.embedding"),
        (Pegasus(), BART_SPEC, "model.position.kind"),
    ],
)
def test_what_a_family_cannot_express(family: Family, spec: dict[str, Any], key: str) -> None:
    sizes = {"kind": "transformer", "shape": "encoder-decoder", **SMALL}
    with pytest.raises(Inexpressible) as refusal:
        family.publish(Transformer.model_validate(sizes | spec), Seq2Seq(kind="seq2seq"))
    assert refusal.value.key == key


@pytest.mark.parametrize(
    ("family", "architecture", "config", "what"),
    [
        (T5(), "T5ForSequenceClassification", SIZES_T5, "no head as T5ForSequenceClassification"),
        (T5(), "T5ForTokenClassification", SIZES_T5, "no head as T5ForTokenClassification"),
        (T5(), "T5ForQuestionAnswering", SIZES_T5, "no head as T5ForQuestionAnswering"),
        (T5(), "T5EncoderModel", SIZES_T5, "it has no decoder"),
        (Bart(), "BartForSequenceClassification", SIZES_BART, "no head as BartForSequenceClassification"),
        (Bart(), "BartForQuestionAnswering", SIZES_BART, "no head as BartForQuestionAnswering"),
        (Bart(), "BartForCausalLM", SIZES_BART, "no head as BartForCausalLM"),
    ],
)
@pytest.mark.parametrize("says_so", [True, False])
def test_other_heads(family: Family, architecture: str, config: dict[str, Any], what: str, says_so: bool) -> None:
    peer = peer_of(architecture, config)
    values = values_of(peer)
    if not says_so:
        del values["architectures"]
        what = "it has no|a recipe of an encoder-decoder has no head"
    with pytest.raises(CheckpointError, match=what):
        family.describe(Config(values, "config.json"), tensors_of(peer, family))


BOTH: dict[str, Any] = {"early_stopping": True, "num_beams": 4, "no_repeat_ngram_size": 3}
HUB: dict[str, tuple[Family, dict[str, Any]]] = {
    "t5-small": (
        T5(),
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 2048,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "eos_token_id": 1,
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "n_positions": 512,
            "num_heads": 8,
            "num_layers": 6,
            "output_past": True,
            "pad_token_id": 0,
            "relative_attention_num_buckets": 32,
            "task_specific_params": {"summarization": {**BOTH, "prefix": "summarize: "}},
            "vocab_size": 32128,
        },
    ),
    "google/flan-t5-small": (
        T5(),
        {
            "architectures": ["T5ForConditionalGeneration"],
            "d_ff": 1024,
            "d_kv": 64,
            "d_model": 512,
            "decoder_start_token_id": 0,
            "dropout_rate": 0.1,
            "eos_token_id": 1,
            "feed_forward_proj": "gated-gelu",
            "initializer_factor": 1.0,
            "is_encoder_decoder": True,
            "layer_norm_epsilon": 1e-06,
            "model_type": "t5",
            "n_positions": 512,
            "num_decoder_layers": 8,
            "num_heads": 6,
            "num_layers": 8,
            "output_past": True,
            "pad_token_id": 0,
            "relative_attention_max_distance": 128,
            "relative_attention_num_buckets": 32,
            "tie_word_embeddings": False,
            "transformers_version": "4.23.1",
            "use_cache": True,
            "vocab_size": 32128,
        },
    ),
    "facebook/bart-base": (
        Bart(),
        {
            **BOTH,
            "activation_dropout": 0.1,
            "activation_function": "gelu",
            "add_bias_logits": False,
            "add_final_layer_norm": False,
            "architectures": ["BartModel"],
            "attention_dropout": 0.1,
            "bos_token_id": 0,
            "classif_dropout": 0.1,
            "classifier_dropout": 0.0,
            "d_model": 768,
            "decoder_attention_heads": 12,
            "decoder_ffn_dim": 3072,
            "decoder_layerdrop": 0.0,
            "decoder_layers": 6,
            "decoder_start_token_id": 2,
            "dropout": 0.1,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
            "encoder_layerdrop": 0.0,
            "encoder_layers": 6,
            "eos_token_id": 2,
            "forced_bos_token_id": 0,
            "forced_eos_token_id": 2,
            "gradient_checkpointing": False,
            "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
            "init_std": 0.02,
            "is_encoder_decoder": True,
            "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
            "max_position_embeddings": 1024,
            "model_type": "bart",
            "normalize_before": False,
            "normalize_embedding": True,
            "num_hidden_layers": 6,
            "pad_token_id": 1,
            "scale_embedding": False,
            "task_specific_params": {"summarization": {"length_penalty": 1.0, "max_length": 128}},
            "torch_dtype": "float32",
            "transformers_version": "4.12.0.dev0",
            "use_cache": True,
            "vocab_size": 50265,
        },
    ),
    "Helsinki-NLP/opus-mt-en-de": (
        Marian(),
        {
            "activation_dropout": 0.0,
            "activation_function": "swish",
            "add_bias_logits": False,
            "add_final_layer_norm": False,
            "architectures": ["MarianMTModel"],
            "attention_dropout": 0.0,
            "bad_words_ids": [[58100]],
            "bos_token_id": 0,
            "classif_dropout": 0.0,
            "classifier_dropout": 0.0,
            "d_model": 512,
            "decoder_attention_heads": 8,
            "decoder_ffn_dim": 2048,
            "decoder_layerdrop": 0.0,
            "decoder_layers": 6,
            "decoder_start_token_id": 58100,
            "decoder_vocab_size": 58101,
            "dropout": 0.1,
            "encoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "encoder_layerdrop": 0.0,
            "encoder_layers": 6,
            "eos_token_id": 0,
            "forced_eos_token_id": 0,
            "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
            "init_std": 0.02,
            "is_encoder_decoder": True,
            "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
            "max_length": 512,
            "max_position_embeddings": 512,
            "model_type": "marian",
            "normalize_before": False,
            "normalize_embedding": False,
            "num_beams": 6,
            "num_hidden_layers": 6,
            "pad_token_id": 58100,
            "scale_embedding": True,
            "share_encoder_decoder_embeddings": True,
            "static_position_embeddings": True,
            "transformers_version": "4.22.0.dev0",
            "use_cache": True,
            "vocab_size": 58101,
        },
    ),
}
PEGASUS_FILE: dict[str, Any] = {
    "activation_dropout": 0.1,
    "activation_function": "relu",
    "add_bias_logits": False,
    "add_final_layer_norm": True,
    "architectures": ["PegasusForConditionalGeneration"],
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "classif_dropout": 0.0,
    "classifier_dropout": 0.0,
    "d_model": 1024,
    "decoder_attention_heads": 16,
    "decoder_ffn_dim": 4096,
    "decoder_layerdrop": 0.0,
    "decoder_layers": 16,
    "decoder_start_token_id": 0,
    "dropout": 0.1,
    "encoder_attention_heads": 16,
    "encoder_ffn_dim": 4096,
    "encoder_layerdrop": 0.0,
    "encoder_layers": 16,
    "eos_token_id": 1,
    "extra_pos_embeddings": 1,
    "force_bos_token_to_be_generated": False,
    "forced_eos_token_id": 1,
    "gradient_checkpointing": False,
    "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"},
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2},
    "length_penalty": 0.8,
    "max_length": 256,
    "max_position_embeddings": 1024,
    "model_type": "pegasus",
    "normalize_before": True,
    "normalize_embedding": False,
    "num_beams": 8,
    "num_hidden_layers": 16,
    "pad_token_id": 0,
    "scale_embedding": True,
    "static_position_embeddings": True,
    "vocab_size": 96103,
}
HUB["google/pegasus-large"] = (Pegasus(), PEGASUS_FILE)


def names_for(family: Family) -> set[str]:
    names = {f"{family.prefix}{stack}.any" for stack in ("encoder", "decoder")}
    return {*names, "lm_head.weight", *(() if family.model_type == "t5" else ("final_logits_bias",))}


@pytest.mark.parametrize("published_as", HUB)
def test_published_configurations(published_as: str) -> None:
    family, values = HUB[published_as]
    model, objective = described(family, values, names_for(family))
    assert objective.kind == "seq2seq"
    assert model.n_layers == {"google/flan-t5-small": 8, "google/pegasus-large": 16}.get(published_as, 6)
    assert model.context == (1024 if published_as in ("facebook/bart-base", "google/pegasus-large") else 512)
    assert model.tie_embeddings == model.scale_head or family.model_type != "t5"
    activations = {
        "t5-small": "relu",
        "google/flan-t5-small": "geglu",
        "facebook/bart-base": "gelu",
        "google/pegasus-large": "relu",
    }
    assert model.activation == activations.get(published_as, "silu")
    # what is told again is told alike
    told = family.publish(model, objective)
    weights = family.weights(model, objective)
    again, _ = described(family, told, {one for weight in weights for one in weight.theirs})
    assert again == model


@pytest.mark.parametrize(
    ("published_as", "changes", "what"),
    [
        ("t5-small", {"num_decoder_layers": 2}, "num_decoder_layers is 2 and num_layers 6"),
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
        ("facebook/bart-base", {"decoder_layers": 3}, "decoder_layers is 3 and encoder_layers 6"),
        ("facebook/bart-base", {"decoder_ffn_dim": 3}, "decoder_ffn_dim is 3 and encoder_ffn_dim 3072"),
        ("facebook/bart-base", {"num_hidden_layers": 12}, "num_hidden_layers is 12"),
        ("facebook/bart-base", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ("facebook/bart-base", {"d_model": None}, "d_model is missing"),
        ("Helsinki-NLP/opus-mt-en-de", {"share_encoder_decoder_embeddings": False}, "share_encoder_decoder_embeddings"),
        ("Helsinki-NLP/opus-mt-en-de", {"decoder_vocab_size": 7}, "decoder_vocab_size is 7"),
        ("Helsinki-NLP/opus-mt-en-de", {"static_position_embeddings": False}, "static_position_embeddings is False"),
        ("google/pegasus-large", {"normalize_before": False}, "normalize_before is False"),
        ("google/pegasus-large", {"add_final_layer_norm": False}, "add_final_layer_norm is False"),
        ("google/pegasus-large", {"extra_pos_embeddings": 2}, "extra_pos_embeddings is 2"),
    ],
)
def test_refused_configurations(published_as: str, changes: dict[str, Any], what: str) -> None:
    family, values = HUB[published_as]
    with pytest.raises(CheckpointError) as refusal:
        described(family, values | changes, names_for(family))
    assert what in refusal.value.what


@pytest.mark.parametrize("published_as", HUB)
def test_damaged_configurations(published_as: str) -> None:
    """They are described, or refused; nothing else."""
    family, values = HUB[published_as]
    for key in (*values, "dense_act_fn", "is_gated_act", "scale_decoder_outputs"):
        for junk in JUNK:
            with contextlib.suppress(CheckpointError):
                family.describe(Config({**values, key: junk}, "config.json"), names_for(family))


def test_an_output_matrix_that_is_missing() -> None:
    family, values = HUB["google/flan-t5-small"]
    with pytest.raises(CheckpointError, match=r"there is no lm_head\.weight"):
        family.describe(Config(values, "config.json"), names_for(family) - {"lm_head.weight"})
