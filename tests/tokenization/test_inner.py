"""Published tokenizers that the library would panic on, abort on, or fail with a bare exception for."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.errors import CheckpointError
from lmtool.recipe.spec.text import BpeTokenizer, WordTokenizer
from lmtool.tokenization import inner
from lmtool.tokenization.inner import parse_tokenizer_json
from lmtool.tokenization.tokenizer import Tokenizer

TEXT = "the cat sat on the mat and the dog sat on the cat"


def described(spec: BpeTokenizer | WordTokenizer) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Tokenizer.train(spec, [TEXT]).to_json())
    return content


@pytest.fixture
def bpe() -> dict[str, Any]:
    return described(BpeTokenizer(vocab_size=300))


def load(content: dict[str, Any], folder: Path) -> Tokenizer:
    """A published tokenizer."""
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "[EOS]"}))
    return Tokenizer.load(folder)


def refused(content: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_tokenizer_json(json.dumps(content))


def test_merges_that_do_not_go_on_with_the_prefix_are_refused(bpe: dict[str, Any]) -> None:
    bpe["model"]["continuing_subword_prefix"] = "Ġ"
    refused(bpe, "'Ġ'")
    bpe["model"]["merges"] = [" ".join(merge) for merge in bpe["model"]["merges"]]
    refused(bpe, "'Ġ'")


@pytest.mark.parametrize("nested", [False, True])
def test_templates_define_their_tokens_and_have_a_text_once(nested: bool, bpe: dict[str, Any]) -> None:
    template: dict[str, Any] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[BOS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[BOS]": {"id": "[BOS]", "ids": [1], "tokens": ["[BOS]"]}},
    }
    bpe["post_processor"] = {"type": "Sequence", "processors": [template]} if nested else template
    assert parse_tokenizer_json(json.dumps(bpe)).encode("cat").ids[0] == 1
    refused(bpe | {"post_processor": template | {"special_tokens": {}}}, r"'\[BOS\]'")
    texts = [{"Sequence": {"id": "A", "type_id": n}} for n in range(2)]
    refused(bpe | {"post_processor": template | {"single": texts, "pair": texts}}, "more than once")


def test_a_vocabulary_without_its_unknown_token_encodes_only_known_words(tmp_path: Path) -> None:
    words = described(WordTokenizer(kind="word", vocab_size=60))
    words["model"]["unk_token"] = "nobody"
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("the cat") == tokenizer.encode_many(["the cat"])[0].tolist()
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets, lambda text: tokenizer.encode_many([text])):
        with pytest.raises(CheckpointError):
            encode("an unheard word")


def steps(*parts: dict[str, Any], kind: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", kind: list(parts)}


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None} | {
    "lowercase": True
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GROWING = {
    "replacements": {"normalizer": steps(*[replace("a", "aa")] * 40)},
    "one long replacement": {"normalizer": replace("a", "a" * 1001)},
    "nested": {"normalizer": steps(steps(*[replace("a", "aa")] * 6), steps(*[replace("a", "aa")] * 6))},
    "patterns": {"normalizer": steps(*[replace("a", "aa", "Regex")] * 40)},
    "patterns that match nothing": {"normalizer": steps(*[replace("(?=a)", "a", "Regex")] * 40)},
    "an empty text": {"normalizer": steps(*[replace("", "a")] * 40)},
    "ligatures": {"normalizer": steps(*[replace("\u0644", "\ufdfa"), {"type": "NFKD"}] * 20)},
    "prefixes": {"normalizer": steps(*[{"type": "Prepend", "prepend": "a" * 100}] * 40)},
    "bytes of bytes": {"pre_tokenizer": steps(*[BYTES] * 40, kind="pretokenizers")},
    "both": {"normalizer": replace("a", "a" * 500), "pre_tokenizer": BYTES},
}


@pytest.mark.parametrize("parts", GROWING.values(), ids=GROWING)
def test_texts_that_would_grow_without_bound_are_refused(parts: dict[str, Any], bpe: dict[str, Any]) -> None:
    refused(bpe | parts, "its normalizer")


SPACES = replace(" {2,}", " ", "Regex")
PUBLISHED = {
    "BERT": steps(BERT),
    "BERT for Japanese": steps({"type": "NFKC"}, BERT),
    "CLIP": steps({"type": "NFC"}, replace(r"\s+", " ", "Regex"), {"type": "Lowercase"}),
    "Llama": steps({"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")),
    "Unigram": steps({"type": "Nmt"}, {"type": "NFKC"}, SPACES, {"type": "Lowercase"}),
    "ALBERT": steps(
        *(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}, {"type": "Lowercase"}),
        *({"type": "NFKC"}, SPACES),  # for its rules, which are those
    ),
}


@pytest.mark.parametrize("normalizer", PUBLISHED.values(), ids=PUBLISHED)
def test_normalizers_of_published_models_are_read(normalizer: dict[str, Any], bpe: dict[str, Any]) -> None:
    assert parse_tokenizer_json(json.dumps(bpe | {"normalizer": normalizer, "pre_tokenizer": None})).encode("cat").ids


@pytest.mark.parametrize("name", inner._GROWTH_BY_NORMALIZER)
def test_a_step_makes_no_more_of_a_character_than_it_is_held_to(name: str, bpe: dict[str, Any]) -> None:
    step = BERT if name == "BertNormalizer" else {"type": name}
    normalize = parse_tokenizer_json(json.dumps(bpe | {"normalizer": step})).normalizer.normalize_str
    rare = (0x130, 0x390, 0x1F82, 0x2057, 0x3300, 0xFDFA, 0x1D160, 0x2F800)
    sizes = [len(normalize(chr(c))) for c in (*rare, *range(1, 0xD800, 5), *range(0xF900, 0x30000, 11))]
    assert max(sizes) <= inner._GROWTH_BY_NORMALIZER[name]


SLOW = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
"""It tries all ways to divide a run of "a" before anything else, until the library panics."""


def test_a_panic_on_a_text_is_an_error_of_that_text(bpe: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = load(bpe | {"pre_tokenizer": SLOW}, tmp_path)
    text = "a" * 40 + "b"
    for encode in (tokenizer.encode, tokenizer.encode_with_offsets, tokenizer.pre_tokenize):
        with pytest.raises(CheckpointError):
            encode(text)
    with pytest.raises(CheckpointError):
        tokenizer.encode("a" * 5000 + "b")
    with pytest.raises(CheckpointError):
        tokenizer.encode_many(["cat", text, "dog"])
    assert tokenizer.encode("cat") == tokenizer.encode_many(["cat"])[0].tolist() != []


def test_a_panic_while_reading_is_an_error_of_the_file(bpe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        load(bpe | {"pre_tokenizer": {"type": "FixedLength", "length": 0}}, tmp_path)


def test_byte_pairs_without_a_pre_tokenizer_are_encoded_as_by_the_library(bpe: dict[str, Any], tmp_path: Path) -> None:
    tokenizer = load(bpe | {"pre_tokenizer": None}, tmp_path)
    assert tokenizer.encode_many(["cat"])[0].tolist() == tokenizer.encode("cat")
