"""Configurations of published models: what they are in the recipe language, and each refusal by the key concerned."""

import contextlib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES, tables
from lmtool.interop.families.config import StrictConfigReader
from lmtool.printable import printable
from lmtool.recipe.document import parse_yaml
from lmtool.recipe.spec.objective import Causal, Classification
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.hub import ALIBI, DECODERS, ENCODER_DECODERS, ENCODERS, GPT2_FILE
from tests.interop.families.peers import JUNK, MANY, described, tensors_of_head
from tests.support.peers import GROUPED, YARN


def tensors_beside(values: Mapping[str, Any], tensor: str) -> list[str]:
    """All tensors of the head that has this one, or the one alone."""
    kinds = ("masked", *(["classification"] if tensor == "classifier.weight" else []))
    heads = [tensors_of_head(values["model_type"], kind) for kind in kinds]
    return next((names for names in heads if tensor in names), [tensor])


FILES: dict[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    **{name: (values, MANY) for name, (values, _) in DECODERS.items()},
    **{name: (values, [*MANY, *tensors_beside(values, tensor)]) for name, (tensor, values) in ENCODERS.items()},
    **{
        name: (values, [*MANY, "lm_head.weight", *(["final_logits_bias"] if values["model_type"] != "t5" else [])])
        for name, values in ENCODER_DECODERS.items()
    },
    "gpt2 classifier": (GPT2_FILE, ["score.weight", *MANY]),
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
    theirs, back = (transformers.AutoConfig.for_model(**deepcopy(one)).to_dict() for one in (values, found))
    names = {*found, "rope_parameters", "sliding_window", "layer_types"} - {"rope_scaling", "dtype", "architectures"}
    for key in sorted(names & theirs.keys()):
        if key not in ("hidden_act", "max_window_layers", "attn_config", "n_inner") or name == "SmolLM2-135M":
            assert back[key] == theirs[key], key


@pytest.mark.parametrize("name", DECODERS)
def test_other_spellings_of_a_file_are_the_same_model(name: str) -> None:
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
    plain = described({"model_type": "qwen2", "vocab_size": 31, **GROUPED, "num_hidden_layers": 3})[0].model_dump(
        exclude_defaults=True
    )
    model = Transformer.model_validate({**plain, "kind": "transformer", **change})
    config = FAMILIES["qwen2"].build_verified_config(model, Causal())
    assert config["max_window_layers"] == first
    del config["layer_types"]
    assert (described(config)[0] == model) == (full != [0, 2])


def test_old_keys_of_rotary_positions() -> None:
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}
    position = described({**DECODERS["TinyLlama-1.1B"][0], "rope_scaling": yarn})[0].model_dump()["position"]
    assert position["scaling"]["kind"] == "yarn"
    assert position["scaling"]["fast_turns"] == 32
    # the context of the file is the original one when it gives no other
    del yarn["original_max_position_embeddings"]
    assert described({**DECODERS["TinyLlama-1.1B"][0], "rope_scaling": yarn})[0].model_dump()["position"] == position
    both = {**DECODERS["pythia-70m"][0], "rope_theta": 10000, "partial_rotary_factor": 0.25}
    assert described(both)[0] == described(DECODERS["pythia-70m"][0])[0]


@pytest.mark.parametrize("name", [*ENCODERS, *ENCODER_DECODERS])
def test_encoders_and_encoder_decoders_of_the_hub(name: str) -> None:
    """What is told again is told alike."""
    values, names = FILES[name]
    family = FAMILIES[values["model_type"]]
    model, objective = described(values, names)
    bodies = ("google/electra-small-discriminator", "sentence-transformers/all-MiniLM-L6-v2")
    kinds = {SST2: "classification", **dict.fromkeys(bodies, "embedding"), **dict.fromkeys(ENCODER_DECODERS, "seq2seq")}
    assert objective.kind == kinds.get(name, "masked")
    if isinstance(objective, Classification):
        assert (objective.labels, objective.dropout) == (("NEGATIVE", "POSITIVE"), 0.2)
    contexts = {"facebook/bart-base": 1024, "google/pegasus-large": 1024, MODERNBERT: 8192}
    assert model.context == contexts.get(name, 512)
    told = family.build_verified_config(model, objective)
    labels = {"id2label": values["id2label"]} if isinstance(objective, Classification) else {}
    weights = family.list_parameter_mappings(model, objective)
    again, _ = described(told | labels, [one for weight in weights for one in weight.published_names])
    assert again == model


MORE: dict[str, Any] = {
    **{"add_cross_attention": True, "is_encoder_decoder": True, "rotary": True, "num_experts": 8},
    **{"scale_attn_by_inverse_layer_idx": True, "rope_interleaved": True, "mlp_bias": True, "attention_bias": True},
    **{"use_bidirectional_attention": True, "use_mrope": True, "quantization_config": {"bits": 4}},
    **{"sliding_window": 7, "layer_types": ["full_attention"], "n_inner": 64, "dense_act_fn": "tanh"},
}
"""Keys that a file may have beside its own, with values that are not the usual ones."""
IGNORED = """
    _name_or_path _num_labels add_bias_logits attention_dropout attention_probs_dropout_prob
    attention_softmax_in_fp32 auto_map bad_words_ids bias_dropout_fusion bos_token_id classif_dropout
    classifier_dropout classifier_pooling cls_token_id decoder_layerdrop decoder_start_token_id
    deterministic_flash_attn early_stopping emb_pdrop embedding_fraction encoder_layerdrop eos_token_id
    finetuning_task force_bos_token_to_be_generated forced_bos_token_id forced_eos_token_id gradient_checkpointing
    hidden_dropout id2label init_config init_device init_std initializer_cutoff_factor initializer_factor
    initializer_range is_llama_config label2id learned_pos_emb length_penalty masked_softmax_fusion mlp_dropout
    n_ctx no_repeat_ngram_size num_beams offset_alibi output_past pad_token_id pooler_fc_size
    pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pretraining_tp qa_dropout resid_pdrop
    sep_token_id sinusoidal_pos_embds skip_bias_add summary_activation summary_first_dropout summary_last_dropout
    summary_proj_to_labels summary_type summary_use_proj task_specific_params tie_weights_ tokenizer_name
    torch_dtype transformers.js_config transformers_version unk_token_id use_cache verbose
"""
"""Keys that do not change what a model computes."""
WINDOWS = {"sliding_window", "use_sliding_window", "max_window_layers"}
IGNORED_BY = {
    **{"pythia-70m": {"attention_bias"}, "answerdotai/ModernBERT-base": {"layer_norm_eps", "position_embedding_type"}},
    **{"Qwen2.5-0.5B": WINDOWS, "Qwen3-0.6B": WINDOWS},
}
"""Those that change nothing beside other values of these files."""


def changed(value: Any) -> Any:
    """Another value, if possible of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return 2 * value + 1
        case str():
            return "quick_gelu"
    return {"other": 1}


def outcome(values: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The model and the objective of a configuration, or the error."""
    try:
        return described(values, names)
    except (CheckpointError, ValidationError) as error:
        return error


@pytest.mark.parametrize("name", FILES)
def test_no_key_is_passed_over(name: str) -> None:
    """With another value it is refused by its name, or the recipe is another one."""
    values, names = FILES[name]
    before, passed = described(values, names), set()
    tried = MORE | {key: changed(value) for key, value in values.items() if key != "model_type"}
    for key, value in tried.items():
        found = outcome({**values, key: value}, names)
        if isinstance(found, CheckpointError):
            assert key.rpartition("_")[2] in found.what  # or a key that has to go with it
            assert (found.where, len(found.lines())) == ("a/config.json", 3)
        elif found == before:
            passed.add(key)
    assert passed <= {*IGNORED.split(), *IGNORED_BY.get(name, set())}


MPT_IGNORED = ("attn_impl", "attn_pdrop")
MODERNBERT, SST2 = "answerdotai/ModernBERT-base", "distilbert-base-uncased-finetuned-sst-2-english"
LINEAR = {"rope_type": "linear", "factor": 2.0}
TWO = {"id2label": {"0": "a", "1": "b"}}
LABELS: list[Any] = [{"0": "a", "1": "a"}, {"0": "a", "2": "b"}, {"0": "a", "1": 7}, {"0": "a", "1": ["b"]}, {}, ["a"]]
REFUSED: list[tuple[str, str, list[Any]]] = [
    ("gpt2", "n_embd", ["768", True, None, 0, -1, 10**400]),
    ("gpt2", "layer_norm_epsilon", [10**400, float("nan")]),
    ("gpt2", "n_layer", [10**12]),
    ("gpt2", "hidden_size", [512]),
    ("gpt2", "other\x1b", [2]),
    ("TinyLlama-1.1B", "rope_scaling", ["linear", {"type": "dynamic", "factor": 2.0}, {"rope_type": "linear"}]),
    ("TinyLlama-1.1B", "rope_scaling", [{"type": 3}, {**LINEAR, "twist": 1}]),
    ("TinyLlama-1.1B", "rope_parameters", [{**YARN["rope_parameters"], "mscale": 1.0}, {"rope_type": "longrope"}]),
    ("TinyLlama-1.1B", "rope_parameters", [{**YARN["rope_parameters"], "truncate": False}]),
    ("TinyLlama-1.1B", "hidden_act", ["relu", None]),
    ("Mistral-7B-v0.1", "layer_types", [["full_attention"]]),
    ("Qwen2.5-0.5B", "layer_types", [["full_attention"], ["chunked_attention"] * 24, [[]] * 24]),
    ("gemma-2b", "hidden_act", ["silu"]),
    ("gemma-2b", "hidden_activation", ["gelu"]),
    ("pythia-70m", "attention_bias", [False]),
    ("pythia-70m", "rope_theta", [500.0]),
    ("mpt-7b", "attn_config", [{key: changed(value)} for key, value in ALIBI.items() if key not in MPT_IGNORED]),
    ("mpt-7b", "attn_config", [[], {"rope": True}]),
    ("bert-base-uncased", "num_hidden_layers", [None]),
    ("bert-base-uncased", "type_vocab_size", [0]),
    ("bert-base-uncased", "is_decoder", [True]),
    ("roberta-base", "pad_token_id", [-1]),
    ("roberta-base", "max_position_embeddings", [2]),
    (SST2, "id2label", [{"1": "x", "2": "y"}, {}, {"0": 1, "1": 2}]),
    (SST2, "problem_type", ["regression", "ranking"]),
    (MODERNBERT, "global_attn_every_n_layers", [0]),
    (MODERNBERT, "local_attention", [1]),
    (MODERNBERT, "layer_types", [["full_attention"], [{}] * 22]),
    (MODERNBERT, "rope_scaling", [{"rope_type": "yarn"}]),
    (MODERNBERT, "rope_parameters", [{"full_attention": 3}, {"rope_theta": 3}]),
    ("t5-small", "num_decoder_layers", [2]),
    ("t5-small", "dense_act_fn", ["tanh"]),
    ("t5-small", "d_kv", [-1]),
    ("t5-small", "is_encoder_decoder", [False]),
    ("t5-small", "feed_forward_proj", ["split-gelu"]),
    ("facebook/bart-base", "d_model", [None]),
    ("gpt2 classifier", "id2label", LABELS),
    ("gpt2 classifier", "num_labels", [10**9]),
]
"""Files, and values of a key that are not taken."""
NO_HEADS = {
    "bert-base-uncased": "BertForMultipleChoice BertForNextSentencePrediction",
    "gpt2": "GPT2ForTokenClassification",
    MODERNBERT: "ModernBertForTokenClassification",
    "facebook/bart-base": "BartForSequenceClassification BartForCausalLM",
}
"""Classes of heads that no recipe has."""
REFUSED_TOGETHER: list[tuple[str, dict[str, Any], str]] = [
    ("TinyLlama-1.1B", {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
    ("Qwen2.5-0.5B", {"layer_types": ["sliding_attention"] * 24, "sliding_window": None}, "sliding_window"),
    ("bert-base-uncased", {"architectures": ["\x1b[31mForQuestionAnswering"]}, r"\x1b[31mFor"),
    (MODERNBERT, {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "rope_type"),
    ("t5-small", {"feed_forward_proj": "gated-relu"}, "'relu'"),
    ("t5-small", {"feed_forward_proj": "quick_gelu"}, "quick_gelu"),
    *((name, {"architectures": [kind]}, kind) for name, kinds in NO_HEADS.items() for kind in kinds.split()),
    *(("gpt2 classifier", {**TWO, "problem_type": kind}, "problem_type") for kind in ("regression", "ranking")),
    ("gpt2 classifier", {**TWO, "num_labels": 3}, "num_labels"),
]
"""Files, changes, and what an error names."""


@pytest.mark.parametrize(
    ("name", "change", "named"),
    [*((name, {key: value}, key) for name, key, values in REFUSED for value in values), *REFUSED_TOGETHER],
)
def test_values_that_no_recipe_has_are_refused(name: str, change: dict[str, Any], named: str) -> None:
    values, names = FILES[name]
    with pytest.raises(CheckpointError) as caught:
        described({**values, **change}, names)
    assert printable(named) in caught.value.what
    assert all(line.isprintable() for line in caught.value.lines())


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("bert-base-uncased", {"architectures": [7, "\x1b[31mForQuestionAnswering"]}),
        (MODERNBERT, {"rope_parameters": {"rope_type": "default", "rope_theta": None}}),
    ],
)
def test_odd_values_that_say_nothing_are_taken(name: str, change: dict[str, Any]) -> None:
    values, names = FILES[name]
    assert described({**values, **change}, names) == described(values, names)


@pytest.mark.parametrize(("change", "n_labels"), [({}, 2), ({"num_labels": 3}, 3)])
def test_labels_without_names(change: dict[str, Any], n_labels: int) -> None:
    _, objective = described({**GPT2_FILE, **change}, ["score.weight", *MANY])
    assert isinstance(objective, Classification)
    assert objective.labels == ("LABEL_0", "LABEL_1", "LABEL_2")[:n_labels]


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
def test_any_value_of_any_key_is_read_or_refused(name: str) -> None:
    """They are described, or refused; nothing else."""
    values, names = FILES[name]
    more = ("id2label", "num_labels", "layer_types", "rope_parameters", "tie_word_embeddings", "problem_type")
    for key in (*values, *more, "dense_act_fn", "is_gated_act", "scale_decoder_outputs"):
        for junk in JUNK:
            with contextlib.suppress(CheckpointError):
                FAMILIES[values["model_type"]].read_recipe_from_config(
                    StrictConfigReader({**values, key: junk}, "config.json", names)
                )
