"""GGUF files, held against Transformers, sentencepiece and files written here after llama.cpp's conventions."""

import json
import struct
import unicodedata

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from lmtool.batch import Batch
from lmtool.errors import CheckpointError, UsageError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.interop.gguf import writing
from lmtool.interop.gguf.vocabulary import convert_tokenizer_to_gguf_keys
from lmtool.interop.gguf.writing import ROPE_DIVISORS_TENSOR, write_gguf
from lmtool.interop.importing import import_model_as_new_run, read_recipe_sections
from lmtool.interop.published_models import GgufModel
from lmtool.model import build
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.transformer import Transformer
from tests.support.cases import nightly_but

VOCAB = 320
TEXT = "The cat sat on the mat. The dog didn't; 12 dogs ran 345 miles, and the cat saw them all in the end."
TEXTS = [
    TEXT,
    "two  spaces,\n\n\tand lines\n",
    "naïve café 東京 🙂",
    "12345 67.8",
    "",
    "x",
    "don't DON'T",
]
SIZES = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
LIKE_LLAMA = {**SIZES, **HEADS, "bos_token_id": 1, "eos_token_id": 2}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512}
MODELS = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True, "num_key_value_heads": 4}),
    "llama-linear": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 4.0}}),
    "llama-yarn": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama3": ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4, **LLAMA3}}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 128, "num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen3-narrow": ("qwen3", {"head_dim": 8}),
    "gemma": ("gemma", {"head_dim": 32}),
    "olmo2": ("olmo2", {}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"tie_word_embeddings": False}),
    "gptneox": ("gpt_neox", {}),
    "gptneox-serial": ("gpt_neox", {"use_parallel_residual": False}),
}
YARN = {"kind": "yarn", "factor": 4.0, "original_context": 32}
SCALED = {"kind": "llama3", "factor": 8.0, "original_context": 512}


def model_of(name):
    """A model of random weights, norms and biases too."""
    model_type, options = MODELS[name]
    if model_type == "gpt2":
        sizes = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024, "eos_token_id": 1}
    elif model_type == "gpt_neox":
        sizes = {**SIZES, "num_attention_heads": 4, "max_position_embeddings": 128}
    else:
        sizes = LIKE_LLAMA
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **{**sizes, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.dim() == 1) * 0.5)
    return model


def byte_tokenizer(cut=None, normalizer=None, *, whole=False, specials=("<|begin|>", "<|end|>", "<|pad|>")):
    """A byte-level tokenizer, trained on TEXT."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    tokenizer.pre_tokenizer = cut or pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - 10,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=list(specials),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    return tokenizer


def add_byte_tokenizer(writer, tokenizer, pre="gpt-2", **options):
    """The keys of a byte-level tokenizer, as llama.cpp's converter writes them."""
    document = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size())]
    special = {token["content"]: token["special"] for token in document["added_tokens"]}
    kinds = [1 if token not in special else 3 if special[token] else 4 for token in tokens]
    n_unused = VOCAB - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{n}]" for n in range(len(tokens), VOCAB)])
    writer.add_token_types(kinds + [5] * n_unused)
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    for key, value in {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 2, **options}.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(f"tokenizer.ggml.{key}", value)


def converted(name, config, tensor):
    """A tensor in llama.cpp's order of rows, by plain loops over heads."""
    if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
        n_heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        heads = []
        for head in tensor.chunk(n_heads):
            first, second = head.chunk(2)
            heads += [row for pair in zip(first, second, strict=True) for row in pair]
        return torch.stack(heads)
    if config.model_type == "gemma" and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type == "gpt2" and any(f"{part}.weight" in name for part in ("c_attn", "c_proj", "c_fc")):
        return tensor.T
    if config.model_type == "gpt_neox" and "query_key_value" in name:
        heads = tensor.chunk(config.num_attention_heads)
        return torch.cat([head.chunk(3)[part] for part in range(3) for head in heads])
    return tensor


ARCHITECTURES = {"gpt_neox": gguf.MODEL_ARCH.GPTNEOX}


def stored_names(config, names):
    """llama.cpp's names by Transformers', from the table of the package gguf."""
    found = ARCHITECTURES.get(config.model_type) or gguf.MODEL_ARCH[config.model_type.upper()]
    table = gguf.get_tensor_name_map(found, config.num_hidden_layers)
    renamed = {
        name: name.replace("lm_head", "embed_out") if config.model_type == "gpt_neox" else name for name in names
    }
    return {name: table.get_name(renamed[name], try_suffixes=(".weight", ".bias")) for name in names}


def state_of(model):
    """Tensors as in a file of Transformers: without the copy of a tied embedding."""
    state = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def new_writer(path, model):
    """A writer with the hyperparameters of a model, as llama.cpp's converter has them."""
    config = model.config
    arch = {"gpt_neox": "gptneox"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    if arch == "gpt2":
        writer.add_feed_forward_length(4 * config.n_embd)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
        return writer
    writer.add_feed_forward_length(config.intermediate_size)
    rope = config.rope_parameters
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if arch == "gptneox":
        writer.add_layer_norm_eps(config.layer_norm_eps)
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        writer.add_parallel_residual(config.use_parallel_residual)
        return writer
    writer.add_vocab_size(config.vocab_size)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch in ("qwen3", "gemma", "llama"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if arch == "llama":
        writer.add_rope_dimension_count(head_dim)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "llama3":
        base = rope["rope_theta"] ** -(torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (base / model.model.rotary_emb.inv_freq).numpy())
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensors(writer, model):
    state = state_of(model)
    for name, stored in stored_names(model.config, list(state)).items():
        writer.add_tensor(stored, converted(name, model.config, state[name]).contiguous().numpy())


def written(path, name, tokenizer=None, **options):
    """A model in a file of 32-bit floats, written here."""
    model = model_of(name)
    writer = new_writer(path, model)
    add_byte_tokenizer(writer, tokenizer or byte_tokenizer(), **options)
    add_tensors(writer, model)
    finish(writer)
    return model


def spec_of(sections):
    """The recipe's model, without dropout."""
    return Transformer.model_validate({**sections["model"], "dropout": 0.0})


def loaded(read):
    """A model of ours with the configuration and tensors of a GgufModel."""
    spec = spec_of(read_recipe_sections(read)[0])
    model = build(spec, spec.vocab_size).eval()
    weights = read.family.list_parameter_mappings(spec, Causal())
    assert {name for weight in weights for name in weight.published_names} == read.config.tensor_names
    model.load_state_dict(
        {w.name: w.layout.join([read.read_tensor(name).float() for name in w.published_names]) for w in weights}
    )
    return model


def logits_of(model):
    ids = torch.randint(VOCAB, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        return model(ids).logits if hasattr(model, "config") else model.logits(model(Batch(ids)).hidden_BTD)


def close(a, b, atol=1e-5):
    torch.testing.assert_close(logits_of(a), logits_of(b), atol=atol, rtol=1e-5)


@pytest.mark.parametrize("name", nightly_but(MODELS, "llama", "llama-linear", "qwen3", "gpt2"))
def test_a_file_is_the_model_it_was_made_of(tmp_path, name):
    model = written(tmp_path / "model.gguf", name)
    read = GgufModel(tmp_path / "model.gguf")
    close(loaded(read), model, 1e-4 if name == "gemma" else 1e-5)  # one is added to its gains, and taken away again
    assert spec_of(read_recipe_sections(read)[0]) == published(model)[0]


# Tensors


def file_of_tensors(path, tensors):
    """A file of a Llama of one layer in which these tensors take the place of the usual ones."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **{**LIKE_LLAMA, "num_hidden_layers": 1, "hidden_size": 512, "vocab_size": VOCAB})
    )
    writer = new_writer(path, model)
    add_byte_tokenizer(writer, byte_tokenizer())
    state = state_of(model)
    for name, stored in stored_names(model.config, list(state)).items():
        content, kind = tensors.get(stored, (state[name].numpy(), None))
        writer.add_tensor(stored, content, raw_dtype=kind)
    finish(writer)
    return GgufModel(path)


WRITTEN = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
ONLY_READ = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ2_XS, Kind.TQ1_0]


@pytest.mark.parametrize("kind", [*WRITTEN, *ONLY_READ])
def test_a_quantized_tensor_is_what_gguf_dequantizes(tmp_path, kind):
    block, size = gguf.GGML_QUANT_SIZES[kind]
    held = np.random.default_rng(0).integers(0, 60, (VOCAB, 512 // block * size), np.uint8)
    read = file_of_tensors(tmp_path / "model.gguf", {"output.weight": (held, kind)})
    tensor = read.read_tensor("output.weight")
    assert tensor.dtype == torch.float32
    np.testing.assert_array_equal(tensor.numpy(), gguf.dequantize(held, kind))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats_keep_their_type(tmp_path, dtype):
    matrix = torch.randn(VOCAB, 512).to(dtype)
    kind = {torch.float32: Kind.F32, torch.float16: Kind.F16, torch.bfloat16: Kind.BF16}[dtype]
    read = file_of_tensors(tmp_path / "model.gguf", {"output.weight": (matrix.view(torch.uint8).numpy(), kind)})
    assert read.read_tensor("output.weight").dtype == dtype
    assert torch.equal(read.read_tensor("output.weight"), matrix)


def test_a_copy_of_the_embedding_is_tied(tmp_path):
    """As older converters wrote GPT-2."""
    model = model_of("gpt2")
    writer = new_writer(tmp_path / "model.gguf", model)
    add_byte_tokenizer(writer, byte_tokenizer())
    add_tensors(writer, model)
    writer.add_tensor("output.weight", model.transformer.wte.weight.detach().numpy())
    finish(writer)
    read = GgufModel(tmp_path / "model.gguf")
    assert spec_of(read_recipe_sections(read)[0]).tie_embeddings
    close(loaded(read), model)


# Tokenizers


def tokenizer_file(path, add):
    """A file of a tiny Llama whose tokenizer `add` writes."""
    model = model_of("llama")
    writer = new_writer(path, model)
    add(writer)
    add_tensors(writer, model)
    finish(writer)
    return GgufModel(path)


LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split_cut(pattern):
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), bytes_])


def digits_cut():
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_])


TEKKEN_CUT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ORIGINALS = {
    "gpt-2": lambda: byte_tokenizer(),
    "default": lambda: byte_tokenizer(),
    "olmo": lambda: byte_tokenizer(normalizer=normalizers.NFC()),
    "smollm": lambda: byte_tokenizer(digits_cut()),
    "llama-bpe": lambda: byte_tokenizer(split_cut(LLAMA3_CUT), whole=True),
    "tekken": lambda: byte_tokenizer(split_cut(TEKKEN_CUT), whole=True),
    "dbrx": lambda: byte_tokenizer(split_cut(LLAMA3_CUT)),
    "qwen2": lambda: byte_tokenizer(split_cut(LLAMA3_CUT.replace("{1,3}", "")), normalizers.NFC()),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_tokens_are_those_of_the_original(tmp_path, pre):
    original = ORIGINALS[pre]()
    read = tokenizer_file(
        tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original, pre, add_bos_token=False)
    )
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in [*TEXTS, "<|begin|>a<|end|>"]:
        ids = ours.encode(text).ids
        assert ids == original.encode(text).ids
        assert ours.decode(ids, skip_special_tokens=False) == text
        if pre != "smollm":  # theirs keeps numbers together
            assert ids == theirs(text).input_ids
    decomposed = unicodedata.normalize("NFD", "é")
    assert ours.encode(decomposed).ids == original.encode(decomposed).ids
    assert read.read_tokenizer().config == {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|pad|>"}
    assert [read.token_settings[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "framed"),
    [
        ({}, [0, None]),  # Llama 3 begins with bos where the file does not say
        ({"add_bos_token": False}, [None]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, None, 1]),
        ({"add_bos_token": False, "add_eos_token": True}, [None, 1]),
    ],
)
def test_tokens_around_a_text(tmp_path, options, framed):
    original = ORIGINALS["llama-bpe"]()
    read = tokenizer_file(
        tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original, "llama-bpe", **options)
    )
    ids = Tokenizer.from_str(read.read_tokenizer().json).encode("x").ids
    (x,) = original.encode("x").ids
    assert ids == [x if n is None else n for n in framed]


def test_all_tokens_that_end_a_text_and_the_chat_template(tmp_path):
    def add(writer):
        add_byte_tokenizer(writer, byte_tokenizer(), eot_token_id=2)
        writer.add_chat_template("{{ messages }}")

    read = tokenizer_file(tmp_path / "model.gguf", add)
    assert read.token_settings["eos_token_id"] == [1, 2]
    assert read.read_tokenizer().config["chat_template"] == "{{ messages }}"


def test_added_words_stay_whole_and_unused_ones_are_never_written(tmp_path):
    original = byte_tokenizer()
    original.add_tokens(["<think>", "  "])
    read = tokenizer_file(tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original))
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    for text in ("a<think>b  c", "[PAD317]"):
        assert ours.encode(text).ids == original.encode(text).ids
    added = {token.content: token.special for token in ours.get_added_tokens_decoder().values()}
    assert added == {"<|begin|>": True, "<|end|>": True, "<|pad|>": True, "<think>": False, "  ": False}


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sentencepiece")
    (folder / "text.txt").write_text((TEXT + "\n") * 20, encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text.txt"),
        model_prefix=str(folder / "m"),
        model_type="bpe",
        vocab_size=VOCAB,
        byte_fallback=True,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=["<think>"],
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "m.model"))


def add_sentencepiece(writer, model, **options):
    """The keys of a SentencePiece tokenizer, as llama.cpp's converter writes them."""
    ids = range(model.vocab_size())
    kinds = {n: 6 if model.is_byte(n) else 3 if model.is_control(n) else 2 if model.is_unknown(n) else 1 for n in ids}
    tokens = [model.id_to_piece(n) for n in ids]
    kinds[tokens.index("<think>")] = 4
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([model.get_score(n) for n in ids])
    writer.add_token_types(list(kinds.values()))
    for key, value in {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **options}.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(f"tokenizer.ggml.{key}", value)


def test_sentencepiece_tokens_are_those_of_the_original(tmp_path, sentencepiece_model):
    read = tokenizer_file(tmp_path / "model.gguf", lambda writer: add_sentencepiece(writer, sentencepiece_model))
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    for text in [text for text in TEXTS if text] + [" the cat", "  the cat"]:
        ids = ours.encode(text).ids
        assert ids == [1, *sentencepiece_model.encode(text)]
        assert ours.decode(ids[1:], skip_special_tokens=False) == text
        if not text.startswith(" "):  # theirs adds no second space
            assert ids == theirs(text).input_ids
    assert ours.encode("<think>", add_special_tokens=False).ids[-1] == sentencepiece_model.piece_to_id("<think>")
    assert read.read_tokenizer().config == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    ours.encode_special_tokens = True  # so that text spells no control token
    assert set(ours.encode("</s>", add_special_tokens=False).ids).isdisjoint({0, 1, 2})


def test_no_space_before_a_text(tmp_path, sentencepiece_model):
    read = tokenizer_file(
        tmp_path / "model.gguf",
        lambda writer: add_sentencepiece(writer, sentencepiece_model, add_space_prefix=False, add_bos_token=False),
    )
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    assert ours.encode(" the cat").ids == sentencepiece_model.encode("the cat")
    assert ours.decode(ours.encode("the cat").ids) == "the cat"


def test_gemma_orders_merges_by_token_and_spells_spaces_as_others_do(tmp_path):
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "   ", *(f"<0x{n:02X}>" for n in range(256))]
    tokens += ["▁a", "ab", "▁ab", "▁", "a", "b"]
    kinds = [3, 3, 3, 2, 4, 4, *[6] * 256, *[1] * 6]

    def add(writer):
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 262 + [-3.0, -2.0, -1.0, 0.0, 0.0, 0.0])
        writer.add_token_types(kinds)
        for key, n in {"padding": 0, "eos": 1, "bos": 2, "unknown": 3}.items():
            writer.add_uint32(f"tokenizer.ggml.{key}_token_id", n)
        writer.add_add_space_prefix(False)

    model = model_of("gemma")
    writer = new_writer(tmp_path / "model.gguf", model)
    add(writer)
    add_tensors(writer, model)
    finish(writer)
    ours = Tokenizer.from_str(GgufModel(tmp_path / "model.gguf").read_tokenizer().json)
    assert ours.encode("ab ab   b").tokens == ["<bos>", "ab", "▁ab", "▁▁▁", "b"]
    assert ours.encode(" ab", add_special_tokens=False).tokens == ["▁ab"]
    assert ours.decode(ours.encode("ab ab   b").ids) == "ab ab   b"

    # Gemma's own file has runs of spaces as added tokens too.
    ours.add_tokens([AddedToken(run, normalized=False) for run in ("▁▁", "▁▁▁")])
    saved(tmp_path / "again.gguf", model, ours, bos_token="<bos>", eos_token="<eos>")
    again = Tokenizer.from_str(GgufModel(tmp_path / "again.gguf").read_tokenizer().json)
    assert again.encode("ab ab   b").tokens == ["<bos>", "ab", "▁ab", "▁▁▁", "b"]


# Refusals and damage


def refused(path, error=CheckpointError):
    with pytest.raises(error) as caught:
        import_model_as_new_run(str(path), path.parent / "run", lambda *_: None)
    assert len(caught.value.lines()) == 3
    assert all(len(line) < 400 and line.isprintable() for line in caught.value.lines())
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda w: w.add_string("general.architecture", "phi3"), "phi3 is none of gpt2, llama"),
        (lambda w: w.add_float32("llama.logit_scale", 2.0), "llama.logit_scale"),
        (lambda w: w.add_uint32("llama.expert_count", 8), "llama.expert_count is 8"),
        (lambda w: w.add_bool("llama.attention.causal", False), "llama.attention.causal"),
        (lambda w: w.add_uint32("llama.rope.dimension_count", 8), "llama.rope.dimension_count is 8"),
        (lambda w: w.add_string("llama.rope.scaling.type", "longrope"), "longrope"),
        (lambda w: w.add_uint32("llama.block_count", 2**31), "layers"),
        (lambda w: w.add_uint32("llama.block_count", 10**6), "layers"),
        (lambda w: w.add_uint32("llama.block_count", 3), "blk.2.attn_norm.weight is missing"),
        (lambda w: w.add_uint32("llama.attention.head_count", 0), "head_count is 0"),
        (lambda w: w.add_string("llama.context_length", "many"), "context_length is 'many'"),
        (lambda w: w.add_uint32("llama.feed_forward_length", 95), "is 64 x 96, not 64 x 95"),
        (
            lambda w: w.add_tensor("blk.0.ffn_gate_inp.weight", np.zeros((2, 2), np.float32)),
            "blk.0.ffn_gate_inp.weight",
        ),
        (lambda w: w.add_tensor("rope_freqs.weight", np.full(8, 2, np.float32)), "rope_freqs.weight"),
        (lambda w: w.add_tensor("odd", np.zeros(2, np.int32)), "type 26"),
        (lambda w: w.add_string("tokenizer.ggml.model", "t5"), "t5"),
        (lambda w: w.add_string("tokenizer.ggml.pre", "made\x1bup"), "made\\x1bup"),
        (lambda w: w.add_uint32("tokenizer.ggml.bos_token_id", VOCAB), "bos_token_id is 320"),
        (lambda w: w.add_array("tokenizer.ggml.token_type", [1, 2]), "2 items for 320 tokens"),
        (lambda w: w.add_array("tokenizer.ggml.merges", ["a b c"]), "two parts"),
        (lambda w: w.add_array("tokenizer.ggml.merges", ["a zzz"]), "does not fit together"),
        (lambda w: w.add_array("tokenizer.ggml.tokens", ["a"] * VOCAB), "1 different"),
        (lambda w: w.add_array("tokenizer.ggml.tokens", [str(n) for n in range(VOCAB + 1)]), "321 tokens"),
        (lambda w: w.add_uint32("general.alignment", 48), "general.alignment"),
        (lambda w: w.kv_data[0].pop("tokenizer.ggml.tokens"), "tokenizer.ggml.tokens is missing"),
    ],
)
def test_what_would_compute_something_else_is_refused(tmp_path, change, words):
    model = model_of("llama")
    writer = new_writer(tmp_path / "model.gguf", model)
    add_byte_tokenizer(writer, byte_tokenizer())
    add_tensors(writer, model)
    change(writer)
    finish(writer)
    assert words in refused(tmp_path / "model.gguf")


@pytest.fixture(scope="module")
def intact(tmp_path_factory):
    path = tmp_path_factory.mktemp("intact") / "model.gguf"
    written(path, "llama")
    return path.read_bytes()


def test_a_file_that_is_cut_off(tmp_path, intact):
    path = tmp_path / "model.gguf"
    header = len(intact) - 300_000
    for length in [*range(0, 64), *range(64, header, 499), *range(header, len(intact), 30_011), len(intact) - 1]:
        path.write_bytes(intact[:length])
        assert "is not an intact GGUF file" in refused(path)


def test_numbers_of_a_header_that_are_wrong(tmp_path, intact):
    path = tmp_path / "model.gguf"
    path.write_bytes(intact)
    GgufModel(path)
    huge = struct.pack("<Q", 1 << 60)
    at = intact.index(b"llama.block_count")
    table = intact.index(b"token_embd.weight") + len(b"token_embd.weight")
    offset = table + 4 + 2 * 8 + 4
    tokens = intact.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 4
    for place, content in [
        (0, b"GGML"),
        (4, struct.pack("<I", 1)),
        (4, struct.pack(">I", 3)),
        (8, huge),
        (16, huge),
        (at - 8, huge),
        (at, b"\xff\xfe"),
        (at + len(b"llama.block_count"), struct.pack("<I", 77)),
        (tokens, struct.pack("<I", 9)),
        (tokens + 4, huge),
        (tokens + 12, huge),
        (table, struct.pack("<I", 5)),
        (table, struct.pack("<I", 2**31)),
        (table + 4, huge),
        (table + 4, struct.pack("<Q", 0)),
        (table + 4, struct.pack("<Q", 63)),
        (table + 20, struct.pack("<I", 1000)),
        (offset, huge),
        (offset, struct.pack("<Q", 1)),
        (offset, struct.pack("<Q", len(intact) // 32 * 32)),
    ]:
        path.write_bytes(intact[:place] + content + intact[place + len(content) :])
        refused(path)


def test_flipped_bytes_are_found_or_do_no_harm(tmp_path, intact):
    path = tmp_path / "model.gguf"
    generator = np.random.default_rng(0)
    header = intact.index(b"output_norm.weight") + 2000
    for _ in range(150):
        content = bytearray(intact)
        for place in generator.integers(0, header, 3):
            content[place] = generator.integers(256)
        path.write_bytes(content)
        lines = []
        try:
            GgufModel(path)
        except CheckpointError as error:
            lines = error.lines()
        assert len(lines) in (0, 3)


def test_no_file(tmp_path):
    assert "cannot be read" in refused(tmp_path / "none.gguf")


# Writing


def published(model):
    """The recipe's model of a model of Transformers, without dropout, and its tensors in our names."""
    family, state = FAMILIES[model.config.model_type], state_of(model)
    names = family.map_canonical_to_stored_names(state)
    spec = spec_of(family.read_recipe_from_config(StrictConfigReader(model.config.to_dict(), "", names)))
    weights = family.list_parameter_mappings(spec, Causal())
    return spec, {w.name: w.layout.join([state[names[name]] for name in w.published_names]) for w in weights}


def saved(path, model, tokenizer, quantization="f16", ends=(1,), vocab_size=VOCAB, **tokenizer_config):
    """A model of Transformers, written by `write_gguf`."""
    spec, ours = published(model)
    family = next(one for one in GGUF_FAMILIES.values() if one.model_type == model.config.model_type)
    keys = {**family.build_verified_config(spec, Causal())}
    values = {
        key if key == ROPE_DIVISORS_TENSOR else f"{family.architecture}.{key}": value for key, value in keys.items()
    }
    tokens = {"bos_token": "<|begin|>", "eos_token": "<|end|>", **tokenizer_config}
    values |= convert_tokenizer_to_gguf_keys(tokenizer.to_str(), tokens, family.architecture, vocab_size, ends)
    weights = family.list_parameter_mappings(spec, Causal())
    tensors = {
        name: one for w in weights for name, one in zip(w.published_names, w.layout.split(ours[w.name]), strict=True)
    }
    write_gguf(path, family.architecture, values, tensors, quantization)


@pytest.mark.parametrize("name", nightly_but(MODELS, "llama", "llama-linear", "qwen3", "gpt2"))
def test_what_is_written_is_what_llama_cpp_converts(tmp_path, name):
    """The same keys, and the same tensors as far as their types go, as in a file written here."""
    model = written(tmp_path / "here.gguf", name)
    saved(tmp_path / "model.gguf", model, byte_tokenizer(), pad_token="<|pad|>")
    ours, here = gguf.GGUFReader(tmp_path / "model.gguf"), gguf.GGUFReader(tmp_path / "here.gguf")
    expected = {tensor.name: tensor for tensor in here.tensors}
    assert {tensor.name for tensor in ours.tensors} == set(expected)
    for tensor in ours.tensors:
        plain = len(tensor.shape) == 1 or tensor.name == "position_embd.weight"
        assert tensor.tensor_type == (Kind.F32 if plain else Kind.F16)
        values = expected[tensor.name].data
        if tensor.name == "rope_freqs.weight":
            np.testing.assert_allclose(tensor.data, values, rtol=1e-5)
        else:
            np.testing.assert_array_equal(tensor.data, values.astype(tensor.data.dtype))
    for key, field in here.fields.items():
        if not key.startswith(("GGUF.", "general.name")):
            assert ours.fields[key].contents() == field.contents(), key
            assert ours.fields[key].types == field.types, key


@pytest.mark.parametrize("name", nightly_but(["llama", "llama-tied", "qwen2", "gpt2"], "llama", "qwen2"))
def test_transformers_reads_what_is_written(tmp_path, name):
    model = model_of(name)
    saved(tmp_path / "model.gguf", model, byte_tokenizer(), "q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    close(loaded(GgufModel(tmp_path / "model.gguf")), theirs)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert tokenizer(TEXT).input_ids == byte_tokenizer().encode(TEXT).ids


@pytest.mark.parametrize("pre", ORIGINALS)
def test_a_byte_level_tokenizer_is_written(tmp_path, pre):
    original = ORIGINALS[pre]()
    template = "{% for message in messages %}{{ message }}{% endfor %}"
    saved(tmp_path / "model.gguf", model_of("llama"), original, unk_token="<|pad|>", chat_template=template)
    read = GgufModel(tmp_path / "model.gguf")
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    assert [ours.encode(text).ids for text in TEXTS] == [original.encode(text).ids for text in TEXTS]
    expected = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "unk_token": "<|pad|>", "chat_template": template}
    assert read.read_tokenizer().config == expected


@pytest.mark.parametrize("begins", [False, True])
def test_a_sentencepiece_tokenizer_is_written(tmp_path, sentencepiece_model, begins):
    def add(writer):
        add_sentencepiece(writer, sentencepiece_model, add_bos_token=begins)

    first = tokenizer_file(tmp_path / "first.gguf", add)
    original = Tokenizer.from_str(first.read_tokenizer().json)
    saved(tmp_path / "model.gguf", model_of("llama"), original, **first.read_tokenizer().config)
    read = GgufModel(tmp_path / "model.gguf")
    ours = Tokenizer.from_str(read.read_tokenizer().json)
    assert [ours.encode(text).ids for text in TEXTS] == [original.encode(text).ids for text in TEXTS]
    assert ours.to_str() == original.to_str()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"activation": "geglu"}, "model.activation"),
        ({"position": {"kind": "alibi"}}, "model.position.kind"),
        ({"position": {"kind": "rotary", "share": 0.5}}, "model.position.share"),
        (
            {"position": {"kind": "rotary", "scaling": {**YARN, "fast_turns": 16.0}}},
            "model.position.scaling.fast_turns",
        ),
        (
            {"position": {"kind": "rotary", "scaling": {**YARN, "attention_factor": 2.0}}},
            "model.position.scaling.attention_factor",
        ),
        ({"position": {"kind": "rotary", "scaling": {**SCALED, "factor": 0.5}}}, "model.position.scaling.factor"),
        (
            {"position": {"kind": "rotary", "scaling": {**SCALED, "low_frequency": 2.0}}},
            "model.position.scaling.factor",
        ),
        ({"pattern": {"kind": "window", "size": 16}}, "model.pattern.kind"),
        ({"qk_norm": "head"}, "model.qk_norm"),
    ],
)
def test_a_recipe_that_gguf_cannot_express(changes, key):
    spec = Transformer.model_validate({**published(model_of("llama"))[0].model_dump(), **changes})
    llama = GGUF_FAMILIES["llama"]
    with pytest.raises(InexpressibleRecipe) as caught:
        llama.build_verified_config(spec, Causal())
    assert key in caught.value.obstacles


def test_a_window_that_no_text_is_longer_than():
    spec = published(model_of("llama"))[0]
    llama = GGUF_FAMILIES["llama"]
    wide = Transformer.model_validate({**spec.model_dump(), "pattern": {"kind": "window", "size": spec.context}})
    assert llama.build_verified_config(wide, Causal()) == llama.build_verified_config(spec, Causal())


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ({"vocab_size": 4}, "vocab_size"),
        ({"ends": [1, 2, 3, 4]}, "eos_token_id"),
        ({"ends": [1, VOCAB]}, "eos_token_id"),
    ],
)
def test_tokens_that_gguf_cannot_express(tmp_path, more, key):
    with pytest.raises(UsageError) as caught:
        saved(tmp_path / "model.gguf", model_of("llama"), byte_tokenizer(), **more)
    assert caught.value.where == key
    assert len(caught.value.lines()) == 3
    assert list(tmp_path.iterdir()) == []


def changed(tokenizer, change):
    document = json.loads(tokenizer.to_str())
    change(document)
    return Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize(
    ("tokenizer", "key"),
    [
        (lambda: Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), "model.type"),
        (lambda: Tokenizer(models.BPE({"a": 0}, [])), "pre_tokenizer"),
        (lambda: byte_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True)), "pre_tokenizer"),
        (lambda: byte_tokenizer(normalizer=normalizers.Lowercase()), "normalizer"),
        (lambda: byte_tokenizer(whole=True), "model.ignore_merges"),
        (lambda: byte_tokenizer(specials=["<|end|>"]), "bos_token"),
        (lambda: changed(byte_tokenizer(), lambda d: d["added_tokens"][0].update(lstrip=True)), "added_tokens"),
        (lambda: changed(byte_tokenizer(), lambda d: d["model"].update(merges=[])), "model.merges"),
        (
            lambda: changed(byte_tokenizer(), lambda d: d.update(post_processor=framing("<|begin|>", 0, "<|pad|>", 2))),
            "post_processor",
        ),
    ],
)
def test_a_tokenizer_that_gguf_cannot_express(tmp_path, tokenizer, key):
    with pytest.raises(UsageError) as caught:
        saved(tmp_path / "model.gguf", model_of("llama"), tokenizer())
    assert caught.value.where == key


def framing(first, n_first, last, n_last):
    known = {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in ((first, n_first), (last, n_last))}
    single = [{"SpecialToken": {"id": first, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    single.append({"SpecialToken": {"id": last, "type_id": 0}})
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(path, model_of("llama"), byte_tokenizer())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
def test_a_value_that_16_bits_cannot_hold(tmp_path, value):
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight[3, 3] = value
    with pytest.raises(UsageError, match=r"output.weight is too large"):
        saved(tmp_path / "model.gguf", model, byte_tokenizer())
    assert list(tmp_path.iterdir()) == []
