"""GGUF files, held against Transformers, sentencepiece and files written here after llama.cpp's conventions."""

import json
import struct
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import sentencepiece
import torch
from gguf import GGMLQuantizationType as Kind
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from lmtool.batch import Batch
from lmtool.errors import CheckpointError, UsageError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.rules import InexpressibleRecipe
from lmtool.interop.gguf import writing
from lmtool.interop.gguf.vocabulary import convert_tokenizer_to_gguf_keys
from lmtool.interop.gguf.writing import ROPE_DIVISORS_TENSOR, Quantization, write_gguf
from lmtool.interop.importing import import_model_as_new_run
from lmtool.interop.published_models import GgufModel
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.transformer import Transformer
from tests.support.peers import YARN, brought, peer, random_model
from tests.support.published_tokenizers import byte_cut, byte_level

VOCAB = 320
TEXT = "The cat sat on the mat. The dog didn't; 12 dogs ran 345 miles, and the cat saw them all in the end."
TEXTS = [TEXT, "two  spaces,\n\n\tand lines\n", "naïve café 東京 🙂", "12345 67.8", "", "x", "don't DON'T"]
PLAIN_YARN = {key: value for key, value in YARN["rope_parameters"].items() if key != "beta_fast"}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("llama", "llama with biases, tied", "llama, wide heads", "llama, linear", "llama 3")},
    **{name: {} for name in ("qwen2", "qwen3", "gemma", "olmo2", "gpt2", "gpt_neox", "gpt_neox in sequence, tied")},
    "llama, yarn": {"rope_parameters": PLAIN_YARN},
}
"""Models of the table of published families that GGUF has, and what it cannot express of them."""
Writer = Any


def model_of(name: str, **changes: Any) -> Any:
    """A model of random weights, norms and biases too."""
    architecture, config, *_ = peer(name, **MODELS[name], **changes)
    return random_model(architecture, {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2, **config}, 0.2)


def byte_tokenizer(
    cut: Any = None, normalizer: Any = None, *, whole: bool = False, specials: Sequence[str] = ()
) -> Tokenizer:
    """A byte-level tokenizer, trained on TEXT."""
    names = specials or ("<|begin|>", "<|end|>", "<|pad|>")
    tokenizer = byte_level(names, cut=cut, texts=[TEXT], vocab_size=VOCAB - 10, ignore_merges=whole)
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def add_settings(writer: Writer, values: dict[str, Any]) -> None:
    for key, value in values.items():
        (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(f"tokenizer.ggml.{key}", value)


def add_byte_tokenizer(writer: Writer, tokenizer: Tokenizer, pre: str = "gpt-2", **options: Any) -> None:
    """The keys of a byte-level tokenizer, as llama.cpp's converter writes them."""
    document = json.loads(tokenizer.to_str())
    tokens = [tokenizer.id_to_token(n) for n in range(tokenizer.get_vocab_size())]
    special = {token["content"]: token["special"] for token in document["added_tokens"]}
    kinds = [1 if token not in special else 3 if special[token] else 4 for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{n}]" for n in range(len(tokens), VOCAB)])
    writer.add_token_types(kinds + [5] * (VOCAB - len(tokens)))
    writer.add_token_merges([" ".join(merge) for merge in document["model"]["merges"]])
    add_settings(writer, {"bos_token_id": 0, "eos_token_id": 1, "padding_token_id": 2, **options})


def converted(name: str, config: Any, tensor: Tensor) -> Tensor:
    """A tensor in llama.cpp's order of rows, by plain loops over heads."""
    if config.model_type == "llama" and (".q_proj." in name or ".k_proj." in name):
        n_heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
        heads: list[Tensor] = []
        for head in tensor.chunk(n_heads):
            first, second = head.chunk(2)
            heads += [row for pair in zip(first, second, strict=True) for row in pair]
        return torch.stack(heads)
    if config.model_type == "gemma" and name.endswith("norm.weight"):
        return tensor + 1
    if config.model_type == "gpt2" and any(f"{part}.weight" in name for part in ("c_attn", "c_proj", "c_fc")):
        return tensor.T
    if config.model_type == "gpt_neox" and "query_key_value" in name:
        parts = [head.chunk(3) for head in tensor.chunk(config.num_attention_heads)]
        return torch.cat([head[part] for part in range(3) for head in parts])
    return tensor


def stored_names(config: Any, names: Sequence[str]) -> dict[str, str]:
    """llama.cpp's names by Transformers', from the table of the package gguf."""
    is_neox = config.model_type == "gpt_neox"
    found = gguf.MODEL_ARCH.GPTNEOX if is_neox else gguf.MODEL_ARCH[config.model_type.upper()]
    table = gguf.get_tensor_name_map(found, config.num_hidden_layers)
    renamed = {name: name.replace("lm_head", "embed_out") if is_neox else name for name in names}
    return {name: table.get_name(renamed[name], try_suffixes=(".weight", ".bias")) or "" for name in names}


def state_of(model: Any) -> dict[str, Tensor]:
    """Tensors as in a file of Transformers: without the copy of a tied embedding."""
    state: dict[str, Tensor] = model.state_dict()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight")
    return state


def new_writer(path: Path, model: Any) -> Writer:
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
        if rope["rope_theta"] != 10_000:
            writer.add_rope_freq_base(rope["rope_theta"])
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


def write_file(
    path: Path,
    model: Any,
    tokenizer: Callable[[Writer], None] | None = None,
    change: Callable[[Writer], Any] | None = None,
    tensors: dict[str, tuple[Any, Any]] | None = None,
) -> Path:
    """A model in a file of 32-bit floats, written here. tensors: some in the place of others, and their kinds."""
    writer, state = new_writer(path, model), state_of(model)
    if tokenizer is None:
        add_byte_tokenizer(writer, byte_tokenizer())
    else:
        tokenizer(writer)
    for name, stored in stored_names(model.config, list(state)).items():
        usual = converted(name, model.config, state[name]).contiguous().numpy()
        content, kind = (tensors or {}).get(stored, (usual, None))
        writer.add_tensor(stored, content, raw_dtype=kind)
    if change is not None:
        change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def published(model: Any) -> tuple[Transformer, dict[str, Tensor]]:
    """The recipe's model of a model of Transformers, without dropout, and its tensors in our names."""
    family, state = FAMILIES[model.config.model_type], state_of(model)
    names = family.map_canonical_to_stored_names(state)
    found = family.read_recipe_from_config(StrictConfigReader(model.config.to_dict(), "", list(names)))
    spec = Transformer.model_validate({**found["model"], "dropout": 0.0})
    weights = family.list_parameter_mappings(spec, Causal())
    return spec, {w.name: w.layout.join([state[names[name]] for name in w.published_names]) for w in weights}


def saved(
    path: Path,
    model: Any,
    tokenizer: Tokenizer,
    quantization: Quantization = "f16",
    ends: Sequence[int] = (1,),
    vocab_size: int = VOCAB,
    **tokenizer_config: Any,
) -> GgufModel:
    """A model of Transformers, written by `write_gguf`."""
    spec, ours = published(model)
    family = next(one for one in GGUF_FAMILIES.values() if one.model_type == model.config.model_type)
    values = {
        key if key == ROPE_DIVISORS_TENSOR else f"{family.architecture}.{key}": value
        for key, value in family.build_verified_config(spec, Causal()).items()
    }
    tokens = {"bos_token": "<|begin|>", "eos_token": "<|end|>", **tokenizer_config}
    values |= convert_tokenizer_to_gguf_keys(tokenizer.to_str(), tokens, family.architecture, vocab_size, ends)
    tensors = {
        name: one
        for w in family.list_parameter_mappings(spec, Causal())
        for name, one in zip(w.published_names, w.layout.split(ours[w.name]), strict=True)
    }
    write_gguf(path, family.architecture, values, tensors, quantization)
    return GgufModel(path)


def close(a: Any, b: Any, atol: float = 1e-5) -> None:
    ids = torch.randint(VOCAB, (2, 60), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found, wanted = (m(ids).logits if hasattr(m, "config") else m.logits(m(Batch(ids)).hidden_BTD) for m in (a, b))
    torch.testing.assert_close(found, wanted, atol=atol, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_files_are_read_and_written_as_llama_cpp_converts_models(tmp_path: Path, name: str) -> None:
    """A file written here is the model; and ours has the same keys, and the same tensors as far as their types go."""
    model = model_of(name)
    read = brought(write_file(tmp_path / "here.gguf", model))
    close(read.model, model, 1e-4 if name == "gemma" else 1e-5)  # one is added to its gains, and taken away again
    assert read.recipe.model.with_unvalidated_values({"dropout": 0.0}) == published(model)[0]
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


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_transformers_reads_what_is_written(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "model.gguf", model_of(name), byte_tokenizer(), "q8_0")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32).eval()
    close(brought(tmp_path / "model.gguf").model, theirs)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert tokenizer(TEXT).input_ids == byte_tokenizer().encode(TEXT).ids


# Tensors


def file_of_tensors(path: Path, tensors: dict[str, tuple[Any, Any]]) -> GgufModel:
    """A file of a Llama of one layer in which these tensors take the place of the usual ones."""
    model = model_of("llama", num_hidden_layers=1, hidden_size=512)
    return GgufModel(write_file(path, model, tensors=tensors))


WRITTEN = [Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0]
ONLY_READ = [Kind.Q2_K, Kind.Q3_K, Kind.Q4_K, Kind.Q5_K, Kind.Q6_K, Kind.IQ4_XS, Kind.IQ2_XS, Kind.TQ1_0]


@pytest.mark.parametrize("kind", [*WRITTEN, *ONLY_READ])
def test_a_quantized_tensor_is_what_gguf_dequantizes(tmp_path: Path, kind: Kind) -> None:
    block, size = gguf.GGML_QUANT_SIZES[kind]
    held = np.random.default_rng(0).integers(0, 60, (VOCAB, 512 // block * size), np.uint8)
    read = file_of_tensors(tmp_path / "model.gguf", {"output.weight": (held, kind)}).read_tensor("output.weight")
    assert read.dtype == torch.float32
    np.testing.assert_array_equal(read.numpy(), gguf.dequantize(held, kind))


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.float32, Kind.F32), (torch.float16, Kind.F16), (torch.bfloat16, Kind.BF16)]
)
def test_floats_keep_their_type(tmp_path: Path, dtype: torch.dtype, kind: Kind) -> None:
    matrix = torch.randn(VOCAB, 512).to(dtype)
    held = {"output.weight": (matrix.view(torch.uint8).numpy(), kind)}
    read = file_of_tensors(tmp_path / "model.gguf", held).read_tensor("output.weight")
    assert read.dtype == dtype
    assert torch.equal(read, matrix)


def test_a_copy_of_the_embedding_is_tied(tmp_path: Path) -> None:
    """As older converters wrote GPT-2."""
    model = model_of("gpt2")
    copy = model.transformer.wte.weight.detach().numpy()
    path = write_file(tmp_path / "model.gguf", model, change=lambda writer: writer.add_tensor("output.weight", copy))
    read = brought(path)
    assert isinstance(read.recipe.model, Transformer)
    assert read.recipe.model.tie_embeddings
    close(read.model, model)


# Tokenizers


def tokenizer_file(path: Path, add: Callable[[Writer], None]) -> GgufModel:
    """A file of a tiny Llama whose tokenizer `add` writes."""
    return GgufModel(write_file(path, model_of("llama"), add))


def tokenizer_in(read: GgufModel) -> Tokenizer:
    return Tokenizer.from_str(read.read_tokenizer().json)


LLAMA3_CUT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_CUT = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS_CUT = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_cut()])
ORIGINALS = {
    "gpt-2": byte_tokenizer(),
    "default": byte_tokenizer(),
    "olmo": byte_tokenizer(normalizer=normalizers.NFC()),
    "smollm": byte_tokenizer(DIGITS_CUT),
    "llama-bpe": byte_tokenizer(byte_cut(LLAMA3_CUT), whole=True),
    "tekken": byte_tokenizer(byte_cut(TEKKEN_CUT), whole=True),
    "dbrx": byte_tokenizer(byte_cut(LLAMA3_CUT)),
    "qwen2": byte_tokenizer(byte_cut(LLAMA3_CUT.replace("{1,3}", "")), normalizers.NFC()),
}


@pytest.mark.parametrize("pre", ORIGINALS)
def test_byte_level_tokens_are_those_of_the_original(tmp_path: Path, pre: str) -> None:
    """Also when they are written again."""
    original = ORIGINALS[pre]
    read = tokenizer_file(
        tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original, pre, add_bos_token=False)
    )
    ours, theirs = tokenizer_in(read), AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    template: dict[str, Any] = {"chat_template": "{% for message in messages %}{{ message }}{% endfor %}"}
    again = saved(tmp_path / "again.gguf", model_of("llama"), original, unk_token="<|pad|>", **template)
    for text in [*TEXTS, "<|begin|>a<|end|>", unicodedata.normalize("NFD", "é")]:
        ids = ours.encode(text).ids
        assert ids == original.encode(text).ids == tokenizer_in(again).encode(text).ids
        if not unicodedata.combining(text[-1:] or " "):
            assert ours.decode(ids, skip_special_tokens=False) == text
            assert pre == "smollm" or ids == theirs(text).input_ids  # theirs keeps numbers together
    roles = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert read.read_tokenizer().config == roles | {"pad_token": "<|pad|>"}
    assert [read.token_settings[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [0, 1, 2]
    assert again.read_tokenizer().config == roles | template | {"unk_token": "<|pad|>"}


@pytest.mark.parametrize(
    ("options", "framed"),
    [
        ({}, [0, None]),  # Llama 3 begins with bos where the file does not say
        ({"add_bos_token": False}, [None]),
        ({"add_bos_token": True, "add_eos_token": True}, [0, None, 1]),
        ({"add_bos_token": False, "add_eos_token": True}, [None, 1]),
    ],
)
def test_tokens_around_a_text(tmp_path: Path, options: dict[str, Any], framed: list[int | None]) -> None:
    original = ORIGINALS["llama-bpe"]
    read = tokenizer_file(
        tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original, "llama-bpe", **options)
    )
    (x,) = original.encode("x").ids
    assert tokenizer_in(read).encode("x").ids == [x if n is None else n for n in framed]


def test_all_tokens_that_end_a_text_and_the_chat_template(tmp_path: Path) -> None:
    def add(writer: Writer) -> None:
        add_byte_tokenizer(writer, byte_tokenizer(), eot_token_id=2)
        writer.add_chat_template("{{ messages }}")

    read = tokenizer_file(tmp_path / "model.gguf", add)
    assert read.token_settings["eos_token_id"] == [1, 2]
    assert read.read_tokenizer().config["chat_template"] == "{{ messages }}"


def test_added_words_stay_whole_and_unused_ones_are_never_written(tmp_path: Path) -> None:
    original = byte_tokenizer()
    original.add_tokens(["<think>", "  "])
    ours = tokenizer_in(tokenizer_file(tmp_path / "model.gguf", lambda writer: add_byte_tokenizer(writer, original)))
    for text in ("a<think>b  c", "[PAD317]"):
        assert ours.encode(text).ids == original.encode(text).ids
    added = {token.content: token.special for token in ours.get_added_tokens_decoder().values()}
    assert added == {"<|begin|>": True, "<|end|>": True, "<|pad|>": True, "<think>": False, "  ": False}


@pytest.fixture(scope="module")
def sentencepiece_model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20),
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


def add_sentencepiece(writer: Writer, model: Any, **options: Any) -> None:
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
    add_settings(writer, {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, **options})


def assert_written_again(path: Path, read: GgufModel) -> None:
    again = saved(path, model_of("llama"), tokenizer_in(read), **read.read_tokenizer().config)
    assert tokenizer_in(again).to_str() == tokenizer_in(read).to_str()


def test_sentencepiece_tokens_are_those_of_the_original(tmp_path: Path, sentencepiece_model: Any) -> None:
    """Also when they are written again."""
    read = tokenizer_file(tmp_path / "model.gguf", lambda writer: add_sentencepiece(writer, sentencepiece_model))
    ours, theirs = tokenizer_in(read), AutoTokenizer.from_pretrained(tmp_path, gguf_file="model.gguf")
    assert_written_again(tmp_path / "again.gguf", read)
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


def test_no_space_before_a_text(tmp_path: Path, sentencepiece_model: Any) -> None:
    def add(writer: Writer) -> None:
        add_sentencepiece(writer, sentencepiece_model, add_space_prefix=False, add_bos_token=False)

    read = tokenizer_file(tmp_path / "model.gguf", add)
    ours = tokenizer_in(read)
    assert ours.encode(" the cat").ids == sentencepiece_model.encode("the cat")
    assert ours.decode(ours.encode("the cat").ids) == "the cat"


def test_gemma_orders_merges_by_token_and_spells_spaces_as_others_do(tmp_path: Path) -> None:
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "  ", "   ", *(f"<0x{n:02X}>" for n in range(256))]
    tokens += ["▁a", "ab", "▁ab", "▁", "a", "b"]

    def add(writer: Writer) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 262 + [-3.0, -2.0, -1.0, 0.0, 0.0, 0.0])
        writer.add_token_types([3, 3, 3, 2, 4, 4, *[6] * 256, *[1] * 6])
        add_settings(writer, {f"{k}_token_id": n for n, k in enumerate(("padding", "eos", "bos", "unknown"))})
        writer.add_add_space_prefix(False)

    model = model_of("gemma")
    ours = tokenizer_in(GgufModel(write_file(tmp_path / "model.gguf", model, add)))
    assert ours.encode("ab ab   b").tokens == ["<bos>", "ab", "▁ab", "▁▁▁", "b"]
    assert ours.encode(" ab", add_special_tokens=False).tokens == ["▁ab"]
    assert ours.decode(ours.encode("ab ab   b").ids) == "ab ab   b"

    # Gemma's own file has runs of spaces as added tokens too.
    ours.add_tokens([AddedToken(run, normalized=False) for run in ("▁▁", "▁▁▁")])
    again = tokenizer_in(saved(tmp_path / "again.gguf", model, ours, bos_token="<bos>", eos_token="<eos>"))
    assert again.encode("ab ab   b").tokens == ["<bos>", "ab", "▁ab", "▁▁▁", "b"]


# Refusals and damage


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        import_model_as_new_run(str(path), path.parent / "run", lambda *_: None)
    assert len(caught.value.lines()) == 3
    assert all(len(line) < 400 and line.isprintable() for line in caught.value.lines())
    return str(caught.value)


CHANGED_KEYS: list[tuple[str, Any, str]] = [
    # a key, its other value, and what is named
    ("general.architecture", "phi3", "phi3 is none of gpt2, llama"),
    ("llama.logit_scale", 2.0, "llama.logit_scale"),
    ("llama.expert_count", 8, "llama.expert_count is 8"),
    ("llama.attention.causal", False, "llama.attention.causal"),
    ("llama.rope.dimension_count", 4, "llama.rope.dimension_count is 4"),
    ("llama.rope.scaling.type", "longrope", "longrope"),
    ("llama.block_count", 2**31, "layers"),
    ("llama.block_count", 10**6, "layers"),
    ("llama.block_count", 3, "blk.2.attn_norm.weight is missing"),
    ("llama.attention.head_count", 0, "head_count is 0"),
    ("llama.context_length", "many", "context_length is 'many'"),
    ("llama.feed_forward_length", 47, "is 32 x 48, not 32 x 47"),
    ("tokenizer.ggml.model", "t5", "t5"),
    ("tokenizer.ggml.pre", "made\x1bup", "made\\x1bup"),
    ("tokenizer.ggml.bos_token_id", VOCAB, "bos_token_id is 320"),
    ("tokenizer.ggml.token_type", [1, 2], "2 items for 320 tokens"),
    ("tokenizer.ggml.merges", ["a b c"], "two parts"),
    ("tokenizer.ggml.merges", ["a zzz"], "does not fit together"),
    ("tokenizer.ggml.tokens", ["a"] * VOCAB, "1 different"),
    ("tokenizer.ggml.tokens", [str(n) for n in range(VOCAB + 1)], "321 tokens"),
    ("tokenizer.ggml.tokens", None, "tokenizer.ggml.tokens is missing"),
    ("general.alignment", 48, "general.alignment"),
    ("blk.0.ffn_gate_inp.weight", np.zeros((2, 2), np.float32), "blk.0.ffn_gate_inp.weight"),
    ("rope_freqs.weight", np.full(4, 2, np.float32), "rope_freqs.weight"),
    ("odd", np.zeros(2, np.int32), "type 26"),
]


@pytest.mark.parametrize(("key", "value", "words"), CHANGED_KEYS)
def test_what_would_compute_something_else_is_refused(tmp_path: Path, key: str, value: Any, words: str) -> None:
    def change(writer: Writer) -> None:
        match value:
            case None:
                writer.kv_data[0].pop(key)
            case np.ndarray():
                writer.add_tensor(key, value)
            case bool() | str() | list() | float():
                kind = {bool: "bool", str: "string", list: "array", float: "float32"}[type(value)]
                getattr(writer, f"add_{kind}")(key, value)
            case _:
                writer.add_uint32(key, value)

    assert words in refused(write_file(tmp_path / "model.gguf", model_of("llama"), change=change))


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_file(tmp_path_factory.mktemp("intact") / "model.gguf", model_of("llama")).read_bytes()


def test_a_file_that_is_cut_off_or_missing(tmp_path: Path, intact: bytes) -> None:
    path = tmp_path / "model.gguf"
    assert "cannot be read" in refused(path)
    header = intact.index(b"output_norm.weight") + 2000
    for length in [*range(0, 64, 3), *range(64, header, 499), *range(header, len(intact), 30_011), len(intact) - 1]:
        path.write_bytes(intact[:length])
        assert "is not an intact GGUF file" in refused(path)


def test_numbers_of_a_header_that_are_wrong(tmp_path: Path, intact: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(intact)
    GgufModel(path)
    huge = struct.pack("<Q", 1 << 60)
    at = intact.index(b"llama.block_count")
    table = intact.index(b"token_embd.weight") + len(b"token_embd.weight")
    offset = table + 4 + 2 * 8 + 4
    tokens = intact.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 4
    for place, content in [
        *((0, b"GGML"), (4, struct.pack("<I", 1)), (4, struct.pack(">I", 3)), (8, huge), (16, huge)),
        *((at - 8, huge), (at, b"\xff\xfe"), (at + len(b"llama.block_count"), struct.pack("<I", 77))),
        *((tokens, struct.pack("<I", 9)), (tokens + 4, huge), (tokens + 12, huge)),
        *((table, struct.pack("<I", n)) for n in (5, 2**31)),
        *((table + 4, struct.pack("<Q", n)) for n in (1 << 60, 0, 31)),
        (table + 20, struct.pack("<I", 1000)),
        *((offset, struct.pack("<Q", n)) for n in (1 << 60, 1, len(intact) // 32 * 32)),
    ]:
        path.write_bytes(intact[:place] + content + intact[place + len(content) :])
        refused(path)


def test_flipped_bytes_are_found_or_do_no_harm(tmp_path: Path, intact: bytes) -> None:
    path = tmp_path / "model.gguf"
    generator = np.random.default_rng(0)
    header = intact.index(b"output_norm.weight") + 2000
    for _ in range(150):
        content = bytearray(intact)
        for place in generator.integers(0, header, 3):
            content[place] = generator.integers(256)
        path.write_bytes(content)
        lines: list[str] = []
        try:
            GgufModel(path)
        except CheckpointError as error:
            lines = error.lines()
        assert len(lines) in (0, 3)


# What cannot be written

YARN_SCALING = {"kind": "yarn", "factor": 4.0, "original_context": 32}
LLAMA3_SCALING = {"kind": "llama3", "factor": 8.0, "original_context": 512}


def scaled(scaling: dict[str, Any], **changes: float) -> dict[str, Any]:
    return {"position": {"kind": "rotary", "scaling": {**scaling, **changes}}}


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"activation": "geglu"}, "activation"),
        ({"position": {"kind": "alibi"}}, "position.kind"),
        ({"position": {"kind": "rotary", "share": 0.5}}, "position.share"),
        (scaled(YARN_SCALING, fast_turns=16.0), "position.scaling.fast_turns"),
        (scaled(YARN_SCALING, attention_factor=2.0), "position.scaling.attention_factor"),
        (scaled(LLAMA3_SCALING, factor=0.5), "position.scaling.factor"),
        (scaled(LLAMA3_SCALING, low_frequency=2.0), "position.scaling.factor"),
        ({"pattern": {"kind": "window", "size": 16}}, "pattern.kind"),
        ({"qk_norm": "head"}, "qk_norm"),
    ],
)
def test_a_recipe_that_gguf_cannot_express(changes: dict[str, Any], key: str) -> None:
    spec = Transformer.model_validate({**published(model_of("llama"))[0].model_dump(), **changes})
    with pytest.raises(InexpressibleRecipe) as caught:
        GGUF_FAMILIES["llama"].build_verified_config(spec, Causal())
    assert f"model.{key}" in caught.value.obstacles


def test_a_window_that_no_text_is_longer_than() -> None:
    spec, llama = published(model_of("llama"))[0], GGUF_FAMILIES["llama"]
    wide = Transformer.model_validate({**spec.model_dump(), "pattern": {"kind": "window", "size": spec.context}})
    assert llama.build_verified_config(wide, Causal()) == llama.build_verified_config(spec, Causal())


def framing(first: str, n_first: int, last: str, n_last: int) -> dict[str, Any]:
    known = {token: {"id": token, "ids": [n], "tokens": [token]} for token, n in ((first, n_first), (last, n_last))}
    begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (first, last))
    single = [begin, {"Sequence": {"id": "A", "type_id": 0}}, end]
    return {"type": "TemplateProcessing", "single": single, "pair": single, "special_tokens": known}


def changed(change: Callable[[dict[str, Any]], Any]) -> Tokenizer:
    document = json.loads(byte_tokenizer().to_str())
    change(document)
    return Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize(
    ("tokenizer", "more", "key"),
    [
        (byte_tokenizer(), {"vocab_size": 4}, "vocab_size"),
        (byte_tokenizer(), {"ends": [1, 2, 3, 4]}, "eos_token_id"),
        (byte_tokenizer(), {"ends": [1, VOCAB]}, "eos_token_id"),
        (Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]")), {}, "model.type"),
        (Tokenizer(models.BPE({"a": 0}, [])), {}, "pre_tokenizer"),
        (byte_tokenizer(pre_tokenizers.ByteLevel(add_prefix_space=True)), {}, "pre_tokenizer"),
        (byte_tokenizer(normalizer=normalizers.Lowercase()), {}, "normalizer"),
        (byte_tokenizer(whole=True), {}, "model.ignore_merges"),
        (byte_tokenizer(specials=["<|end|>"]), {}, "bos_token"),
        (changed(lambda d: d["added_tokens"][0].update(lstrip=True)), {}, "added_tokens"),
        (changed(lambda d: d["model"].update(merges=[])), {}, "model.merges"),
        (changed(lambda d: d.update(post_processor=framing("<|begin|>", 0, "<|pad|>", 2))), {}, "post_processor"),
    ],
)
def test_a_tokenizer_that_gguf_cannot_express(
    tmp_path: Path, tokenizer: Tokenizer, more: dict[str, Any], key: str
) -> None:
    with pytest.raises(UsageError) as caught:
        saved(tmp_path / "model.gguf", model_of("llama"), tokenizer, **more)
    assert caught.value.where == key
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "quantize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(path, model_of("llama"), byte_tokenizer())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("value", [1e6, float("nan"), float("inf")])
def test_a_value_that_16_bits_cannot_hold(tmp_path: Path, value: float) -> None:
    model = model_of("llama")
    with torch.no_grad():
        model.lm_head.weight[3, 3] = value
    with pytest.raises(UsageError, match=r"output.weight is too large"):
        saved(tmp_path / "model.gguf", model, byte_tokenizer())
    assert list(tmp_path.iterdir()) == []
