"""Tokenizers of every kind: special tokens, losslessness, deterministic training, saving."""

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import models

from lmtool.errors import CheckpointError
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.tokenization.chat import ChatFormat, Message
from lmtool.tokenization.encoder import LONG_TEXT_CHARACTERS
from lmtool.tokenization.inner import SPECIAL_TOKENS
from lmtool.tokenization.tokenizer import Tokenizer, replace_surrogates
from tests.reference import tokenizers as reference
from tests.support.errors import refuses
from tests.support.texts import HOSTILE, prose
from tests.support.tokenizers import BPE, SPECS, TOKENIZERS


@pytest.fixture(params=list(TOKENIZERS))
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def test_special_tokens_come_first_and_no_text_gives_them(tokenizer: Tokenizer) -> None:
    t = tokenizer
    ids = [t.pad_id, t.bos_id, t.eos_id, t.unk_id, t.mask_id, t.sep_id, t.cls_id, *t.sentinel_ids]
    names = [*SPECIAL_TOKENS, "<extra_id_0>", "<extra_id_1>", "<extra_id_2>"]
    assert ids == list(range(10))
    assert [t.display_token(i) for i in ids] == names
    for text in [*HOSTILE.values(), *names]:
        assert set(t.encode(text)) & set(ids) <= {t.unk_id}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_has_the_ids_of_the_library(name: str) -> None:
    text = HOSTILE[name] + prose(300)
    text *= 2 * LONG_TEXT_CHARACTERS // len(text) + 1
    for tokenizer in TOKENIZERS.values():
        expected = tokenizer._inner.encode(replace_surrogates(text), add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected
    assert BPE.decode(BPE.encode(HOSTILE[name])) == HOSTILE[name]


@given(st.text())
@settings(deadline=None)
def test_bpe_is_lossless_for_any_text(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@contextmanager
def one_thread_beside() -> Iterator[list[None]]:
    """A list that grows whenever another thread runs, which it does only while this one lets it."""
    turns: list[None] = []
    interval, ended = sys.getswitchinterval(), threading.Event()

    def run() -> None:
        while not ended.is_set():
            turns.append(None)
            time.sleep(0)

    thread = threading.Thread(target=run)
    sys.setswitchinterval(1e6)
    try:
        thread.start()
        yield turns
    finally:
        ended.set()
        sys.setswitchinterval(interval)
        thread.join()


@pytest.mark.parametrize("name", ["bpe", "word"])
def test_other_threads_run_while_a_long_text_is_encoded(name: str) -> None:
    tokenizer, text = TOKENIZERS[name], prose(4000) * 5
    chat = ChatFormat.from_tokenizer_or_plain(tokenizer)
    calls: list[Callable[[], object]] = [
        lambda: tokenizer.encode(text),
        lambda: tokenizer.encode_with_offsets(text),
        lambda: chat.encode_prompt([Message(role="user", content=text)]),
    ]
    for call in calls:
        call()
        with one_thread_beside() as turns:
            for _ in range(100):
                before = len(turns)
                call()
                if len(turns) > before:
                    break
            else:
                pytest.fail("no other thread ran")


def test_characters_are_lossless_but_for_the_unknown() -> None:
    text, chars = prose(4000), TOKENIZERS["char"]
    assert chars.decode(chars.encode(text)) == text
    assert chars.decode(chars.encode("the\n☃ king")) == "the\n king"
    assert chars.vocab_size == 10 + len(set(text))


@pytest.mark.parametrize("kind", ["char", "word", "wordpiece", "bpe"])
def test_unknown_parts_are_named_once(kind: str) -> None:
    tokenizer = Tokenizer.train(SPECS[kind], ["a cat sat a cat"])
    assert tokenizer.find_unknown_parts("a Z cat 猫 sat Z !") == ([] if kind == "bpe" else ["Z", "猫", "!"])
    assert tokenizer.find_unknown_parts("a cat") == []


@pytest.mark.parametrize("name", ["word", "wordpiece"])
@pytest.mark.parametrize(
    "text",
    [
        "The king said, don't walk where the queen walked.",
        'The queen (the river) said: "I walked in." And I said!',
        "well-known house; the 1984 house?",
        "the king's house, and 'the river' too",
    ],
)
def test_words_come_back_as_typed(name: str, text: str) -> None:
    tokenizer = Tokenizer.train(SPECS[name].model_copy(update={"vocab_size": 2000}), [text * 50])
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_lowercase_kinds_lower_also_to_another_number_of_characters() -> None:
    for name in "wordpiece-lower", "char-lower", "word-lower":
        assert TOKENIZERS[name].decode(TOKENIZERS[name].encode("The KING")) == "the king"
    tokenizer = Tokenizer.train(CharTokenizer(kind="char", lowercase=True), ["aAb İI"])
    texts = ["BAB", "İ", "I i"]  # a dotted capital i becomes two characters
    ids, lengths = tokenizer.encode_many(texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == ["bab", "i\u0307", "i i"]
    assert lengths.tolist() == [3, 2, 3]
    assert ids.tolist() == [id for text in texts for id in tokenizer.encode(text)]


def test_word_vocabulary_holds_the_most_frequent_words() -> None:
    words = Tokenizer.train(WordTokenizer(kind="word", vocab_size=10), ["b b b a a a a c c d"])
    assert [words.display_token(i) for i in range(7, 10)] == ["a", "b", "c"]
    assert words.encode("a d") == [7, words.unk_id]


ASCII = st.text("aaabbcde \n.,'1", min_size=1, max_size=60)
"""Texts with repeated letters, and all kinds of borders of words."""


@settings(deadline=None, max_examples=40)
@given(st.lists(ASCII, min_size=3, max_size=6))
def test_bpe_merges_a_most_frequent_pair_within_words_at_each_step(texts: list[str]) -> None:
    """Which of equally frequent pairs comes first is the library's choice, so its merges are counted one by one."""
    tokenizer = Tokenizer.train(BpeTokenizer(vocab_size=300), texts)
    words = Counter(tuple(word) for text in texts for word in reference.bpe_words(text))

    def count(pair: reference.Pair | None) -> int:
        return sum(n * list(pairwise(word)).count(pair) for word, n in words.items() if pair is not None)

    for pair in tokenizer.merges:
        assert count(pair) == count(reference.most_frequent_pair(words)) >= 2
        once: Counter[tuple[str, ...]] = Counter()
        for word, n in words.items():
            once[reference.merged(word, pair)] += n
        words = once
    assert tokenizer.vocab_size == 300 or count(reference.most_frequent_pair(words)) < 2


LEARNT = Tokenizer.train(
    BpeTokenizer(vocab_size=320), ["abba cab, bad bead. 1abc 'd aabb\n" * 3 + "deed cede a, b. " * 2]
)
PIECES = Tokenizer.train(
    WordPieceTokenizer(kind="wordpiece", vocab_size=100), ["abba cabbage bad bead deed cedebad abcabcabc " * 3]
)


@given(ASCII)
def test_bpe_pieces_are_those_of_all_merges_in_their_order(text: str) -> None:
    wanted = [piece for word in reference.bpe_words(text) for piece in reference.bpe_pieces(word, LEARNT.merges)]
    assert [LEARNT.token_name(i) for i in LEARNT.encode(text)] == wanted


@given(st.text("abcdegz ", max_size=40) | st.text("ab", min_size=95, max_size=105))
def test_wordpieces_are_the_longest_matches(text: str) -> None:
    names = {PIECES.token_name(i) for i in range(PIECES.vocab_size)}
    assert "z" not in names
    assert any(len(name) > 3 and name.startswith("##") for name in names)
    wanted = [piece for word in text.split() for piece in reference.longest_matches(word, names)]
    assert [PIECES.token_name(i) for i in PIECES.encode(text)] == wanted


@pytest.mark.parametrize(("fewest", "learnt"), [(1, {"ab", "cd"}), (2, {"ab"}), (4, set())])
def test_bpe_merges_no_pair_that_is_too_rare(fewest: int, learnt: set[str]) -> None:
    tokenizer = Tokenizer.train(BpeTokenizer(vocab_size=300, min_frequency=fewest), ["ab.ab.ab.cd"])
    found = {tokenizer.display_token(i) for i in range(7 + 256, tokenizer.vocab_size)}
    assert found & {"ab", "cd"} == learnt
    assert (tokenizer.vocab_size == 7 + 256) == (not learnt)


@pytest.mark.parametrize("name", SPECS)
def test_training_is_reproducible_and_keeps_its_size(name: str) -> None:
    assert Tokenizer.train(SPECS[name], [prose(4000)]).fingerprint == TOKENIZERS[name].fingerprint
    hanzi = "".join(chr(0x4E00 + i % 3000) + " " * (i % 3 == 0) for i in range(9000))
    tokenizer = Tokenizer.train(SPECS[name], [hanzi, prose(500)])
    assert tokenizer.vocab_size <= getattr(SPECS[name], "vocab_size", 10**6)


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize(
    "text", [" ".join(SPECIAL_TOKENS), f"x{''.join(SPECIAL_TOKENS)}y [pad] <extra_id_0> <extra_id_9>"]
)
def test_texts_that_spell_special_tokens_are_ordinary_texts(name: str, text: str) -> None:
    """Also in training, where they are all there is."""
    trained = Tokenizer.train(SPECS[name], [f"{text}\n", *[text] * 20])
    ids = trained.encode(text)
    assert not set(ids) & trained.special_ids
    shown = trained.decode(ids).replace(" ", "")
    assert shown == (text.lower() if name.endswith("lower") else text).replace(" ", "")


@pytest.mark.parametrize(
    "spec", [BpeTokenizer(vocab_size=300, sentinels=100), WordTokenizer(kind="word", vocab_size=20, sentinels=20)]
)
def test_vocabulary_too_small_for_its_specials_is_refused(spec: TrainedTokenizerSpecBase) -> None:
    with refuses("usage"):
        Tokenizer.train(spec, ["text"])


def rewritten(tokenizer: Tokenizer, folder: Path, change: Callable[[dict[str, Any]], object]) -> Tokenizer:
    """Read from a file whose content is changed: whoever writes a tokenizer.json may name its entries at will."""
    content = json.loads(tokenizer.to_json())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return Tokenizer.load(folder)


def test_a_character_tokenizer_takes_no_longer_entries_of_a_file(tmp_path: Path) -> None:
    trained = Tokenizer.train(CharTokenizer(kind="char"), ["abc"])
    longer = rewritten(trained, tmp_path, lambda content: content["model"]["vocab"].update(ab=trained.vocab_size))
    assert longer.encode("abc") == trained.encode("abc")
    assert longer.decode([trained.vocab_size]) == "ab"


def test_a_token_with_characters_that_stand_for_no_byte_is_text(tmp_path: Path) -> None:
    used = {part for merge in BPE.merges for part in (*merge, "".join(merge))}
    number, name = next((i, n) for i in range(BPE.vocab_size) if len(n := BPE.token_name(i)) == 1 and n not in used)

    def change(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        vocabulary["\u2603x"] = vocabulary.pop(name)

    loaded = rewritten(BPE, tmp_path, change)
    assert loaded.decode([number]) == "\u2603x"
    assert loaded.decode(loaded.encode_many(["the king"])[0].tolist()) == "the king"


def test_saved_and_loaded_is_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    for path in tmp_path, file, str(tmp_path):
        loaded = Tokenizer.load(path)
        for name in ("kind", "fingerprint", "vocab_size", "sentinel_ids"):
            assert getattr(loaded, name) == getattr(tokenizer, name)
        for text in HOSTILE.values():
            assert loaded.encode(text) == tokenizer.encode(text)
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")), indent=4), encoding="utf-8")
    assert Tokenizer.load(file).fingerprint == tokenizer.fingerprint


FOREIGN = Inner(models.BPE({"a": 0, "b": 1}, [])).to_str()


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '{"model": {"type": "BPE"}}', "\udcff", FOREIGN, None])
def test_a_file_that_is_no_tokenizer_is_refused(content: str | None, tmp_path: Path) -> None:
    """Nor one without special tokens."""
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.load(tmp_path)
    assert len(caught.value.lines()) <= 3


def test_pieces_are_readable() -> None:
    pieces = [BPE.display_token(i) for i in BPE.encode("the\n\té\x00")]
    assert "".join(pieces).startswith("the\\n\\t")
    assert all(piece.isprintable() for piece in pieces)
    assert BPE.decode(BPE.encode("a\ud800b")) == "a\ufffdb"
