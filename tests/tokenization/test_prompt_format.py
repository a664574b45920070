"""Special tokens around texts: each family has the same format as in training, in all uses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer
from lmtool.tokenization.chat import Message
from lmtool.tokenization.prompt_format import Prompt, PromptFormat, truncate_longest_first
from lmtool.tokenization.tokenizer import Tokenizer
from tests.tokenization import chat_templates

TOKENIZER = Tokenizer.train(CharTokenizer(kind="char"), ["abcdefgh "])
BOS, EOS, SEP, CLS = TOKENIZER.bos_id, TOKENIZER.eos_id, TOKENIZER.sep_id, TOKENIZER.cls_id
MASK = TOKENIZER.mask_id
CONTEXT = 24

TRANSFORMER = {"kind": "transformer", "n_layers": 1, "d_model": 8, "n_heads": 2, "context": CONTEXT}
RECURRENT = {"kind": "recurrent", "d_model": 8, "context": CONTEXT}
MODELS: dict[str, dict[str, Any]] = {
    "decoder": {**TRANSFORMER, "shape": "decoder"},
    "encoder": {**TRANSFORMER, "shape": "encoder"},
    "bert": {**TRANSFORMER, "shape": "encoder", "n_segments": 2},
    "encoder-decoder": {**TRANSFORMER, "shape": "encoder-decoder"},
    "prefix": {**TRANSFORMER, "shape": "prefix"},
    "lstm": RECURRENT,
    "elmo": {**RECURRENT, "shape": "bidirectional"},
    "recurrent encoder-decoder": {**RECURRENT, "shape": "encoder-decoder"},
    "averaging": {"kind": "averaging", "d_model": 8, "context": CONTEXT},
    "ngram": {"kind": "ngram", "order": 3, "context": CONTEXT},
    "skipgram": {"kind": "skipgram", "d_model": 8, "context": CONTEXT},
}


def prompt_format(model: str, objective: str, split: str = "auto") -> PromptFormat:
    recipe = {
        "model": MODELS[model],
        "objective": {"kind": objective},
        "tokenizer": {"kind": "char", "sentinels": 3},
        "data": {"split": split},
        "training": {"steps": 1, "batch_size": 1},
    }
    return PromptFormat.from_recipe(Recipe.model_validate(recipe), TOKENIZER)


def array(text: str) -> NDArray[Any]:
    return TOKENIZER.encode_many([text])[0].astype(np.int64)


def ids(text: str) -> list[int]:
    return list(TOKENIZER.encode(text))


def row(prompt_format: PromptFormat, *texts: str) -> list[int]:
    """Texts as complete rows."""
    found: list[int] = prompt_format.encode_and_truncate_row([array(text) for text in texts])[0].tolist()
    return found


AB, CDE = ids("ab"), ids("cde")
OPEN, CLOSED = (AB, [*AB, SEP, *CDE]), ([BOS, *AB, EOS], [BOS, *AB, SEP, *CDE, EOS])
"""One text and two texts, without special tokens, and between those of a document."""

ROWS = [
    # model, objective, how the training text was divided; a row of one text, and of two
    ("decoder", "causal", "document", *CLOSED),
    ("decoder", "causal", "slice", *OPEN),
    ("decoder", "classification", "auto", [BOS, *AB, CLS], [BOS, *AB, SEP, *CDE, CLS]),
    ("encoder", "masked", "document", [CLS, *AB, SEP], [CLS, *AB, SEP, *CDE, SEP]),
    ("encoder", "classification", "auto", [CLS, *AB, SEP], [CLS, *AB, SEP, *CDE, SEP]),
    ("encoder-decoder", "seq2seq", "auto", *OPEN),
    ("prefix", "prefix", "document", *CLOSED),
    ("prefix", "seq2seq", "auto", *OPEN),
    ("decoder", "seq2seq", "auto", *OPEN),
    ("lstm", "causal", "document", *CLOSED),
    ("lstm", "classification", "auto", [BOS, *AB, CLS], [BOS, *AB, SEP, *CDE, CLS]),
    ("elmo", "bidirectional", "document", *CLOSED),
    ("recurrent encoder-decoder", "seq2seq", "auto", *OPEN),
    ("averaging", "classification", "auto", *OPEN),
    ("ngram", "causal", "document", *CLOSED),
    ("skipgram", "skip-gram", "slice", *OPEN),
]


@pytest.mark.parametrize(("model", "objective", "split", "one", "two"), ROWS)
def test_a_row_has_the_special_tokens_of_its_family_and_fills_the_context(
    model: str, objective: str, split: str, one: list[int], two: list[int]
) -> None:
    made = prompt_format(model, objective, split)
    assert row(made, "ab") == one
    assert row(made, "ab", "cde") == two
    assert [*made.before, *AB, *made.after] == one
    tokens, _, cut = made.encode_and_truncate_row([array("abcdefgh" * 5), array("abc")])
    # recurrent models have no context limit
    unlimited = model in ("lstm", "elmo", "recurrent encoder-decoder", "ngram", "skipgram")
    assert cut == (not unlimited)
    assert len(tokens) == (43 + len(two) - 5 if unlimited else CONTEXT)
    assert tokens[len(tokens) - len(made.after) :].tolist() == list(made.after)


ANSWERED = Prompt((BOS,), tuple(AB))
CONTINUED, NOTHING = Prompt((BOS, *AB, SEP), n_question=4), Prompt((BOS, SEP), n_question=2)
PROMPTS = [
    ("decoder", "causal", "document", Prompt((BOS, *AB)), Prompt((BOS,)), {EOS}),
    ("decoder", "causal", "slice", Prompt(tuple(AB)), Prompt((BOS,)), set()),
    ("lstm", "causal", "document", Prompt((BOS, *AB)), Prompt((BOS,)), {EOS}),
    ("elmo", "bidirectional", "slice", Prompt(tuple(AB)), Prompt((BOS,)), set()),
    ("encoder-decoder", "seq2seq", "auto", ANSWERED, Prompt((BOS,), (EOS,)), {EOS}),
    ("encoder-decoder", "span-corruption", "document", ANSWERED, Prompt((BOS,), (EOS,)), {EOS}),
    ("encoder-decoder", "prefix", "slice", ANSWERED, Prompt((BOS,), (EOS,)), {EOS}),
    ("recurrent encoder-decoder", "seq2seq", "auto", ANSWERED, Prompt((BOS,), (EOS,)), {EOS}),
    ("prefix", "seq2seq", "auto", ANSWERED, Prompt((BOS,), (EOS,)), {EOS}),
    ("decoder", "seq2seq", "auto", CONTINUED, NOTHING, {EOS}),
    ("lstm", "seq2seq", "auto", CONTINUED, NOTHING, {EOS}),
    # a prefix LM of texts continues its prefix, of which the last token is read from left to right
    ("prefix", "prefix", "document", Prompt((AB[1],), (BOS, AB[0]), True), Prompt((BOS,), (), True), {EOS}),
    ("prefix", "prefix", "slice", Prompt((AB[1],), (AB[0],), True), Prompt((BOS,), (), True), set()),
]


@pytest.mark.parametrize(("model", "objective", "split", "prompt", "empty", "ends"), PROMPTS)
def test_a_prompt_stands_where_a_text_stood_in_training(
    model: str, objective: str, split: str, prompt: Prompt, empty: Prompt, ends: set[int]
) -> None:
    made = prompt_format(model, objective, split)
    assert made.make_prompt("ab") == prompt
    assert made.make_prompt("") == empty
    assert made.end_ids == ends
    begun = made.make_prompt("ab", "cd")  # a text whose answer has begun
    assert begun.text == (*prompt.text, *ids("cd"))
    assert begun.joined == prompt.joined
    assert begun.joined or begun.source == prompt.source
    assert begun.generated_prefix == (*prompt.generated_prefix, *ids("cd"))


@pytest.mark.parametrize(("split", "before", "after"), [("document", [BOS], [EOS]), ("slice", [], [])])
def test_masks_stand_in_a_row_of_training(split: str, before: list[int], after: list[int]) -> None:
    """[CLS] is followed by a document with its special tokens, as in training windows."""
    made = prompt_format("encoder", "masked", split)
    assert list(made.encode_masked_prompt("ab_cde", placeholder="_", n_appended_masks=2)) == [
        *(CLS, *before),
        *(*AB, MASK, *CDE, MASK, MASK),
        *(*after, SEP),
    ]


def test_segments_are_given_to_models_that_know_them() -> None:
    texts = [np.array(AB), np.array(CDE)]
    _, segments, _ = prompt_format("bert", "classification").encode_and_truncate_row(texts)
    assert segments is not None
    # the special token after a text belongs to it, the first one to the first text
    assert segments.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert prompt_format("encoder", "classification").encode_and_truncate_row(texts)[1] is None
    assert row(prompt_format("averaging", "classification"), "") == [SEP], "a row has a token"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=4), st.integers(1, 60))
def test_the_longest_texts_are_cut(sizes: list[int], room: int) -> None:
    texts = [np.arange(size) for size in sizes]
    found = [len(text) for text in truncate_longest_first(texts, room)]
    assert sum(found) == min(sum(sizes), room)
    wanted = list(sizes)
    while sum(wanted) > room:
        wanted[wanted.index(max(wanted))] -= 1
    assert sorted(found) == sorted(wanted)


def pair(made: PromptFormat, source: str, answer: str | None) -> tuple[list[int], list[int] | None, bool]:
    found = made.encode_source_and_target(array(source), None if answer is None else array(answer))
    return found.source.tolist(), None if found.target is None else found.target.tolist(), found.cut


@pytest.mark.parametrize("model", ["encoder-decoder", "prefix", "recurrent encoder-decoder"])
def test_an_answer_ends_with_the_end_token_and_a_prompt_is_its_source(model: str) -> None:
    made = prompt_format(model, "seq2seq")
    assert pair(made, "ab", "cde") == (AB, [*CDE, EOS], False)
    assert pair(made, "", "a") == ([EOS], [*ids("a"), EOS], False), "a source has a token"
    assert pair(made, "ab", "") == (AB, [EOS], False)
    assert pair(made, "ab", None) == (AB, None, False)
    assert made.make_answer_prompt(AB) == made.make_prompt("ab") == Prompt((BOS,), tuple(AB))
    empty, _, _ = pair(made, "", None)
    assert made.make_answer_prompt(empty) == made.make_prompt("")


def test_pairs_fill_the_context_and_no_more() -> None:
    apart = pair(prompt_format("encoder-decoder", "seq2seq"), "abcdefgh" * 5, "abc")
    joined = pair(prompt_format("prefix", "seq2seq"), "abcdefgh" * 5, "abc")
    assert (len(apart[0]), apart[2]) == (CONTEXT, True)
    assert apart[1] == joined[1] == [*ids("abc"), EOS]
    assert (len(joined[0]), joined[2]) == (CONTEXT - 4, True)
    assert pair(prompt_format("recurrent encoder-decoder", "seq2seq"), "abcdefgh" * 5, "abc")[2] is False


@pytest.mark.parametrize("n_source", [1, 12, 13, 40])
def test_a_row_that_is_shared_keeps_room_for_an_answer(n_source: int) -> None:
    """At least half of it; and source and target together fill the room."""
    made = prompt_format("prefix", "seq2seq")
    source, _, cut = pair(made, "a" * n_source, None)
    assert len(source) == min(n_source, CONTEXT // 2)
    assert cut == (n_source > CONTEXT // 2)
    assert len(source) + made.default_max_answer_tokens(len(source)) == CONTEXT
    assert prompt_format("encoder-decoder", "seq2seq").default_max_answer_tokens(len(source)) == CONTEXT
    assert prompt_format("recurrent encoder-decoder", "seq2seq").default_max_answer_tokens(10) == 60


# Decoders that learn answers


@pytest.mark.parametrize("model", ["decoder", "lstm"])
def test_a_decoder_reads_a_pair_as_one_text(model: str) -> None:
    made = prompt_format(model, "seq2seq")
    assert pair(made, "ab", "cde") == ([BOS, *AB, SEP], [*CDE, EOS], False)
    assert pair(made, "", "a") == ([BOS, SEP], [*ids("a"), EOS], False)
    source, _, _ = pair(made, "ab", None)
    assert made.make_answer_prompt(source) == made.make_prompt("ab")
    begun = Prompt((BOS, *AB, SEP, *CDE), n_question=4)
    assert made.make_answer_prompt(source, CDE) == made.make_prompt("ab", "cde") == begun


def test_a_decoder_loses_the_beginning_of_a_long_source_and_the_end_of_a_long_answer() -> None:
    made = prompt_format("decoder", "seq2seq")
    text, answer = "abcdefgh" * 5, "abc"
    assert pair(made, text, answer) == ([BOS, *ids(text)[-18:], SEP], [*ids(answer), EOS], True)
    assert pair(made, answer, text) == ([BOS, *ids(answer), SEP], ids(text)[:19], True)
    asked, _, cut = pair(made, text, None)
    assert (asked, cut) == ([BOS, *ids(text)[-10:], SEP], True)
    assert len(asked) + made.default_max_answer_tokens(len(asked)) == CONTEXT
    assert pair(prompt_format("lstm", "seq2seq"), text, answer)[2] is False


def published(folder: Path, name: str, context: int = 200, **changes: Any) -> PromptFormat:
    recipe = {
        **{"model": {**MODELS["decoder"], "context": context}, "objective": {"kind": "seq2seq"}},
        "training": {"steps": 1, "batch_size": 1},
    }
    return PromptFormat.from_recipe(Recipe.model_validate(recipe), chat_templates.published(folder, name, **changes))


def test_a_published_decoder_reads_its_chat_template(tmp_path: Path) -> None:
    made = published(tmp_path, "smollm2")
    assert made.chat is not None
    asked = [Message(role="user", content="Who?")]
    prompt = made.chat.encode_prompt(asked)
    assert made.make_prompt("Who?") == Prompt(tuple(prompt), n_question=len(prompt))
    assert made.make_prompt("Who?", "Tom").generated_prefix == tuple(made.tokenizer.encode("Tom"))
    assert made.end_ids == set(made.chat.end_ids)
    found = made.encode_and_truncate_conversation([*asked, Message(role="assistant", content="Tom.")])
    assert found.source.tolist() == prompt
    assert found.target is not None
    assert found.target.tolist() == [*made.tokenizer.encode("Tom."), made.tokenizer.eos_id]
    assert (found.cut, found.learned) == (False, None)
    assert made.encode_and_truncate_conversation(asked).source.tolist() == prompt
    assert made.encode_and_truncate_conversation(asked).target is None


@pytest.mark.parametrize(("name", "begins"), [("llama3", True), ("qwen", False)])
def test_a_published_decoder_without_a_template_continues_the_source(tmp_path: Path, name: str, begins: bool) -> None:
    made = published(tmp_path / name, name, chat_template=None)
    t = made.tokenizer
    before = [t.bos_id] if begins else []
    source, target = t.encode("Who?"), t.encode(" Tom.")
    found = made.encode_source_and_target(np.array(source), np.array(target))
    assert found.source.tolist() == [*before, *source]
    assert found.target is not None
    assert found.target.tolist() == [*target, t.eos_id]
    assert made.encode_source_and_target(np.array([], dtype=np.int64), np.array(target)).source.tolist() == (
        before or [t.eos_id]
    )


def test_a_conversation_learns_all_turns_of_the_assistant(tmp_path: Path) -> None:
    made = published(tmp_path, "llama3")
    assert made.chat is not None
    texts = ("Who saw it?", "Tom saw it.", "Sure?", "Yes, Tom.")
    messages = [Message(role=("user", "assistant")[i % 2], content=text) for i, text in enumerate(texts)]
    found = made.encode_and_truncate_conversation(messages)
    assert found.target is not None
    assert found.learned is not None
    assert made.tokenizer.decode(found.target.tolist()) == "Yes, Tom."
    assert made.tokenizer.decode(found.source[found.learned].tolist()) == "Tom saw it."
    assert found.source.tolist() == made.chat.encode_prompt(messages[:-1])
    assert {int(found.target[-1]), int(found.source[found.learned][-1])} == made.chat.end_ids - {made.tokenizer.eos_id}
    short = published(tmp_path, "llama3", context=50).encode_and_truncate_conversation(messages)
    assert short.target is not None
    assert short.learned is not None
    assert short.cut
    assert short.target.tolist() == found.target.tolist(), "the shorter one stays whole"
    assert len(short.source) + len(short.target) == 50
    assert short.source[0] == found.source[0] == made.tokenizer.bos_id
    n = len(short.source) - 1
    assert short.source[1:].tolist() == found.source[-n:].tolist()
    assert short.learned[1:].tolist() == found.learned[-n:].tolist()


def test_a_template_that_never_ends_a_turn_is_given_an_end(tmp_path: Path) -> None:
    open_ended = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    made = published(tmp_path, "qwen", chat_template=open_ended + "{% if add_generation_prompt %}assistant:{% endif %}")
    messages = [Message(role="user", content="Who?"), Message(role="assistant", content="Tom")]
    target = made.encode_and_truncate_conversation(messages).target
    assert target is not None
    assert target[-1] == made.tokenizer.eos_id
    assert made.tokenizer.decode(target.tolist()).strip() == "Tom"


def test_the_date_in_prompts_does_not_depend_on_the_day(tmp_path: Path) -> None:
    made = published(tmp_path, "llama3")
    assert "26 Jul 2024" in made.tokenizer.decode(made.make_prompt("Who?").tokens)
