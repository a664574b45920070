"""The text of a completion: whole characters, stop strings, and the order in which completions come."""

import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lmtool.errors import UsageError
from lmtool.generation.detokenizer import StopStringFilter
from lmtool.generation.generate import complete, generate, order_completions
from lmtool.generation.params import SamplingParams
from lmtool.generation.request import Completion, Token
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.generation.models import HistoryModel, TableModel
from tests.support.errors import refuses
from tests.support.scripted import BYTES, DOCUMENTS, SPECIAL, TEXTS, ByteTokenizer, ScriptModel, WordTokenizer


def scripted(text: str | bytes, end: bool = False, **options: Any) -> tuple[list[str], Completion]:
    """The pieces and the completion of a model that writes `text`."""
    script = [SPECIAL + byte for byte in (text.encode() if isinstance(text, str) else text)]
    if end:
        script += [ByteTokenizer.eos_id, *BYTES.encode("not this")]
    model = ScriptModel(script, n_prompt=2 if end else 1)
    settings = SamplingParams("greedy", max_new_tokens=len(script) if not end else 1000, seed=4)
    pieces = list(generate(model, [">"], settings, DOCUMENTS if end else TEXTS, **options))
    assert all(piece.completion is None for piece in pieces[:-1])
    assert pieces[-1].completion is not None
    return [piece.text for piece in pieces], pieces[-1].completion


def test_a_completion_holds_what_was_written() -> None:
    pieces, completion = scripted("ciao")
    assert pieces == ["c", "i", "a", "o"]
    assert (completion.prompt, completion.text, completion.sample, completion.seed) == (">", "ciao", 0, 4)
    assert completion.tokens == tuple(BYTES.encode("ciao"))
    assert completion.logprobs == pytest.approx([0.0] * 4)
    assert completion.finish_reason == "length"


def test_the_end_token_ends_a_document_and_is_no_text() -> None:
    """A stop string may be held back until then."""
    pieces, completion = scripted("so EN", end=True, stop=("END",))
    assert pieces == ["s", "o", " ", "", "", "EN"]
    assert completion.text == "so EN"
    assert completion.tokens == (*BYTES.encode("so EN"), ByteTokenizer.eos_id)
    assert completion.finish_reason == "end"


@pytest.mark.parametrize("text", ["naïve “ü”…", "👩‍👩‍👧 family", "a\u0301e"])
def test_characters_never_come_in_parts(text: str) -> None:
    pieces, completion = scripted(text)
    assert completion.text == text
    assert [piece for piece in pieces if piece] == list(text)


def test_a_character_cut_by_the_length_is_replaced_at_the_end_only() -> None:
    assert scripted("né".encode()[:-1])[0] == ["n", "\ufffd"]


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two END three", ["th", "END"], "one two "),
        ("xab", ["ab", "b"], "x"),
        ("aaab", ["aab"], "a"),
        ("日本語", ["語"], "日本"),
        ("two", ["one"], "two"),
    ],
)
def test_stop_strings_are_cut_off_and_never_shown_in_part(text: str, stop: list[str], expected: str) -> None:
    """And writing goes no further."""
    pieces, completion = scripted(text, stop=tuple(stop))
    assert "".join(pieces) == completion.text == expected
    assert completion.finish_reason == ("length" if text == expected else "stop")
    ends = [text.index(one) + len(one) for one in stop if one in text]
    assert completion.tokens == tuple(BYTES.encode(text[: min(ends, default=None)]))


@given(
    text=st.text("abc", max_size=30), stop=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), cuts=st.data()
)
def test_stop_strings_do_not_depend_on_how_the_text_comes(text: str, stop: list[str], cuts: Any) -> None:
    ends = [(i, i - len(s)) for i in range(len(text) + 1) for s in stop if text[:i].endswith(s)]
    expected = text[: min(ends)[1]] if ends else text
    cutter = StopStringFilter(stop)
    shown, i = "", 0
    while i < len(text) and not cutter.stopped:
        length = cuts.draw(st.integers(1, len(text)))
        shown += cutter.push(text[i : i + length])
        assert expected.startswith(shown)
        i += length
    assert shown + cutter.flush() == expected
    assert cutter.stopped == bool(ends)


def test_the_work_for_a_character_does_not_grow_with_the_stop_string() -> None:
    stops = ["a" * 999 + "b", *("a" * n + "c" + "a" * 999 for n in range(100, 500, 100))]

    def counted(n: int) -> int:
        cutter, steps = StopStringFilter(stops), 0

        def count(*_: Any) -> Any:
            nonlocal steps
            steps += 1
            return count

        traced = sys.gettrace()
        sys.settrace(count)
        try:
            for _ in range(n):
                cutter.push("a")
        finally:
            sys.settrace(traced)
        return steps

    counted(1)
    assert counted(900) < 40 * len(stops) * 900


def test_completions_come_in_order_and_equal_those_alone() -> None:
    model = HistoryModel(ByteTokenizer.vocab_size, context=40)
    prompts = ["one", "", "zwei", "o", "zwei"]
    settings = SamplingParams(max_new_tokens=45, temperature=1.2, seed=9)
    options: dict[str, Any] = {"n": 2, "stop": ("q", "xy")}
    together = list(complete(model, prompts, settings, DOCUMENTS, **options))
    assert [(c.prompt, c.sample) for c in together] == [(prompt, i) for prompt in prompts for i in range(2)]
    assert len({len(c.tokens) for c in together}) > 1
    for completion in together[:4]:
        alone = complete(model, [completion.prompt], settings, DOCUMENTS, **options)
        assert completion in [replace(one, request=completion.request) for one in alone]
    order = random.Random(1).sample(prompts, len(prompts))
    again = list(complete(model, order, settings, DOCUMENTS, **options))
    assert {(c.prompt, c.text) for c in again} == {(c.prompt, c.text) for c in together}


def test_a_completion_comes_as_soon_as_all_before_it_are_done() -> None:
    model = TableModel([[1 / 263] * 263] * 263)
    pieces = generate(model, ["a", "b"] * 100, SamplingParams(max_new_tokens=2), TEXTS)
    assert next(order_completions(pieces)).prompt == "a"
    assert next(pieces).request < 20
    written = generate(model, ["a", "b", "c"], SamplingParams("greedy", max_new_tokens=1), TEXTS)
    first, second, third = (piece for piece in written if piece.completion is not None)
    read = []

    def in_another_order() -> Iterator[Token]:
        for piece in (second, first, third):
            read.append(piece.request)
            yield piece

    told = [(completion.prompt, len(read)) for completion in order_completions(in_another_order())]
    assert told == [("a", 2), ("b", 2), ("c", 3)]


@pytest.mark.parametrize("documents", [False, True])
def test_tokens_without_text_are_never_chosen(documents: bool) -> None:
    size = ByteTokenizer.vocab_size + 30
    model = TableModel([[1 / size] * size] * size)
    settings, prompt_format = SamplingParams(max_new_tokens=500, temperature=1.0), DOCUMENTS if documents else TEXTS
    chosen = {token for one in complete(model, ["a"], settings, prompt_format, n=8) for token in one.tokens}
    assert chosen <= set(range(SPECIAL, ByteTokenizer.vocab_size)) | {ByteTokenizer.eos_id}
    assert (ByteTokenizer.eos_id in chosen) == documents


@pytest.mark.parametrize(("prompt", "text"), [("once upon", " a time."), ("once '", "a time.")])
def test_the_text_of_words_goes_on_where_the_prompt_ended(prompt: str, text: str) -> None:
    tokenizer = WordTokenizer()
    model = ScriptModel(tokenizer.encode("a time ."), tokenizer.vocab_size, n_prompt=2)
    settings = SamplingParams("greedy", max_new_tokens=3)
    (completion,) = complete(model, [prompt], settings, PromptFormat(cast(Tokenizer, tokenizer), "past"))
    assert completion.text == text


def test_prompts_that_are_no_text_or_too_long_are_refused() -> None:
    model = HistoryModel(ByteTokenizer.vocab_size, context=4)
    with refuses("usage"):
        generate(model, ["c\udce9"], SamplingParams("greedy"), TEXTS)
    with pytest.raises(UsageError) as error:
        generate(model, ["ok", "123456789"], SamplingParams("greedy"), TEXTS)
    assert error.value.where == "prompt 2 of 2"
