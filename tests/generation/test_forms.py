"""Texts of a form: what may follow is what an independent reader allows, with every strategy and tokenizer."""

import itertools
import json
import math
import random
import re
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner

from lmtool.errors import UsageError
from lmtool.generation import constrained, engine
from lmtool.generation.constrained import check_form_and_create_state
from lmtool.generation.drafts import Draft, ModelDraft, NGramDraft
from lmtool.generation.forms import TextForm
from lmtool.generation.generate import complete
from lmtool.generation.params import SamplingParams, params_to_record
from lmtool.generation.replay import params_from_record
from lmtool.generation.request import Completion
from lmtool.interop.tokenization.reading import read_published_tokenizer
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, WordPieceTokenizer, WordTokenizer
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.generation.models import AnswerModel, HistoryModel
from tests.interop.tokenization import hub
from tests.support.examples import examples

TEXTS = [
    'The answer is "yes" or "no", {"name": "Ann", "age": 12, "tags": ["a", "b"]} and true, false, null.',
    "very good, not bad; 1 2 3 4 5 6 7 8 9 0 - + . : [ ] ( ) ab ba abc cab aa bb cc é 日本 the cat sat on the mat",
]
KINDS = {
    "bpe": BpeTokenizer(kind="bpe", vocab_size=330),
    "char": CharTokenizer(kind="char"),
    "wordpiece": WordPieceTokenizer(kind="wordpiece", vocab_size=120),
    "word": WordTokenizer(kind="word", vocab_size=90),
}
PERSON: dict[str, Any] = {
    "name": {"type": "string", "maxLength": 6},
    "age": {"type": "integer", "minimum": 0, "maximum": 150},
    "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
}
SCHEMA = {"type": "object", "properties": PERSON, "required": [*PERSON], "additionalProperties": False}


@cache
def tokenizer_of(kind: str) -> Tokenizer:
    if kind == "sentencepiece":
        with tempfile.TemporaryDirectory() as folder:
            hub.sentencepiece_json("llama", True, Path(folder))
            read = read_published_tokenizer(Path(folder), "llama")
            return Tokenizer(Inner.from_str(read.json), read.config)
    return Tokenizer.train(KINDS[kind], TEXTS * 4)


@cache
def format_of(kind: str) -> PromptFormat:
    return PromptFormat(tokenizer_of(kind), reads="past", documents=True)


def written(form: TextForm, kind: str = "bpe", strategy: Any = "greedy", **options: Any) -> list[Completion]:
    """The completions of a model with random logits. options: of `complete`, and else of `SamplingParams`."""
    given = {name: options.pop(name) for name in ("n", "draft") if name in options}
    prompts = options.pop("prompts", ("the",))
    model = options.pop("model", None) or HistoryModel(tokenizer_of(kind).vocab_size)
    chosen = SamplingParams(strategy, form=form, **({"max_new_tokens": 60} | options))
    return list(complete(model, prompts, chosen, format_of(kind), **given))


def has_form(form: TextForm, text: str) -> Any:
    match form.kind:
        case "choices":
            return text in json.loads(form.source)
        case "regex":
            return re.fullmatch(form.source, text) is not None
    return jsonschema.Draft202012Validator(json.loads(form.source)).is_valid(json.loads(text))


CHOICES = TextForm("choices", '["yes", "no", "very good"]')
FORMS = [CHOICES, TextForm("regex", "(a|b)+ [0-9]{2}"), TextForm("json-schema", json.dumps(SCHEMA))]


@pytest.mark.parametrize(
    ("form", "how"),
    [
        (FORMS[0], {}),
        (FORMS[1], {"strategy": "sample", "n": 3, "temperature": 1.5}),
        (FORMS[0], {"strategy": "beam", "num_beams": 4, "groups": 2, "diversity": 0.7}),
        (FORMS[1], {"strategy": "beam", "num_beams": 3}),
        (FORMS[2], {"draft": NGramDraft()}),
        (FORMS[1], {"strategy": "sample", "draft": ModelDraft(HistoryModel(330))}),
    ],
    ids=["greedy", "sample", "diverse", "beam", "n-gram draft", "sampled draft"],
)
def test_each_strategy_keeps_the_form(form: TextForm, how: dict[str, Any]) -> None:
    for one in written(form, **how, prompts=("the", "a cat", "")):
        assert one.finish_reason == "stop"
        assert has_form(form, one.text)
        assert one.constrained is not None
        assert len(one.constrained) == len(one.tokens)
        assert all(among >= alone - 1e-5 for among, alone in zip(one.constrained, one.logprobs, strict=True))


@pytest.mark.parametrize("kind", [*KINDS, "sentencepiece"])
def test_tokenizers_of_each_kind_write_choices_and_json(kind: str) -> None:
    """Words and WordPieces are spelled with or without spaces, as the form needs."""
    words = TextForm("regex", "(the|cat|very|good)( (the|cat|sat|good)){2}")
    for form in (CHOICES, words, FORMS[2]):
        for one in written(form, kind, prompts=("the cat", ""), strategy="sample", n=2, temperature=1.0):
            if one.finish_reason == "stop":
                assert has_form(form, one.text), one.text
            else:
                assert one.finish_reason == "length"
                assert form.kind == "json-schema"


def matches(pattern: str, n: int) -> set[str]:
    return {
        "".join(text)
        for i in range(n + 1)
        for text in itertools.product("abc", repeat=i)
        if re.fullmatch(pattern, "".join(text))
    }


PATTERNS = st.recursive(
    st.sampled_from(["a", "b", "c", "[ab]", "[^a]", "."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])).map(lambda pair: f"({pair[0]}){pair[1]}"),
    ),
    max_leaves=6,
)


@given(PATTERNS)
@settings(max_examples=examples(60, 1000), deadline=None)
def test_what_may_follow_is_what_some_match_goes_on_with(pattern: str) -> None:
    """Against all strings over three letters, by Python's own matcher."""
    tokenizer, longest, most = tokenizer_of("char"), 3, 6
    letters = {letter: tokenizer.encode(letter)[0] for letter in "abc"}
    every = matches(pattern, most)
    state = check_form_and_create_state(TextForm("regex", pattern), tokenizer)
    for n in range(longest + 1):
        for text in map("".join, itertools.product("abc", repeat=n)):
            here, alive = state, True
            for letter in text:
                alive = alive and bool(here.allowed_non_end_V[letters[letter]])
                here = here.with_token(letters[letter]) if alive else here
            # a match of six letters or fewer exists for all that these patterns can be led to in three
            begun = {one for one in every if one.startswith(text)}
            assert alive or not begun
            if alive:
                assert here.may_end == (text in every)
                following = {one[n] for one in begun if len(one) > n}
                assert following <= {letter for letter, token in letters.items() if here.allowed_non_end_V[token]}


class Counting(HistoryModel):
    passes = 0

    def forward_incremental(self, tokens_BT: torch.Tensor, state: Any) -> Any:
        self.passes += 1
        return super().forward_incremental(tokens_BT, state)


def test_tokens_that_a_form_forces_are_read_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """In fewer passes, with the same tokens and probabilities."""
    results = []
    for jumps in (True, False):
        if not jumps:
            monkeypatch.setattr(engine.Engine, "_forced_tokens_worth_reading", lambda *given, **named: ())
        model = Counting(tokenizer_of("bpe").vocab_size)
        results.append((written(FORMS[2], model=model, strategy="sample", seed=4), model.passes))
    (jumped, n_jumped), (stepped, n_stepped) = results
    assert [(one.text, one.tokens, one.finish_reason) for one in jumped] == [
        (one.text, one.tokens, one.finish_reason) for one in stepped
    ]
    assert jumped[0].logprobs == pytest.approx(stepped[0].logprobs, abs=1e-5)
    assert jumped[0].constrained == pytest.approx(stepped[0].constrained, abs=1e-5)
    assert n_stepped == len(stepped[0].tokens)
    assert n_jumped <= 0.7 * n_stepped


def test_targets_of_sources_have_forms_too() -> None:
    model = AnswerModel(tokenizer_of("bpe").vocab_size)
    prompt_format = replace(format_of("bpe"), reads="source")
    for one in complete(model, ["the cat"], SamplingParams("greedy", form=CHOICES), prompt_format):
        assert one.text in ("yes", "no", "very good")


def test_the_chance_of_a_choice_is_that_among_the_choices() -> None:
    """`constrained` of whole texts sums to 1 over all that may be sampled, by letters: each text has one spelling."""
    model, form = HistoryModel(tokenizer_of("char").vocab_size), TextForm("choices", '["aa", "ab", "b", "ca"]')
    found = {}
    for seed in range(60):
        (one,) = written(form, "char", model=model, strategy="sample", seed=seed, temperature=4.0)
        found[one.text] = sum(one.constrained or ())
    assert len(found) == 4
    assert sum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-5)


KEYS = st.sampled_from(["name", "b", "c d", 'e"f'])


def array(first: list[Any], items: Any, n: int) -> dict[str, Any]:
    return {"type": "array", "prefixItems": first, "items": items, "minItems": n, "maxItems": n + 2}


def an_object(values: dict[str, Any], n_required: int, more: Any) -> dict[str, Any]:
    required = sorted(values)[:n_required]
    return {"type": "object", "properties": values, "required": required, "additionalProperties": more}


SCHEMAS = st.recursive(
    st.sampled_from(
        [
            *({"type": kind} for kind in ("integer", "number", "boolean", "null", "string")),
            {"type": "integer", "minimum": -3, "maximum": 12},
            {"type": "string", "minLength": 2, "maxLength": 4},
            {"type": "string", "pattern": "^[a-c]{1,3}$"},
            {"type": "string", "format": "ipv4"},
            {"enum": ["x", 1, None, "é"]},
            {"const": {"a": [1, 2]}},
        ]
    ),
    lambda inner: st.one_of(
        st.builds(array, st.just([]), inner, st.integers(0, 2)),
        st.builds(array, inner.map(lambda one: [one]), inner, st.just(1)),
        st.builds(an_object, st.dictionaries(KEYS, inner, max_size=3), st.integers(0, 3), st.booleans() | inner),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options}),
    ),
    max_leaves=5,
)


@given(SCHEMAS, st.integers(0, 10**6), st.sampled_from([None, NGramDraft(), ModelDraft(HistoryModel(330))]))
@settings(max_examples=examples(40, 1000), deadline=None)
def test_whatever_length_is_left_the_answer_validates(schema: Any, seed: int, draft: Draft | None) -> None:
    form = TextForm("json-schema", json.dumps(schema), complete=True)
    n = len(check_form_and_create_state(form, tokenizer_of("bpe")).closing_tokens or ()) + seed % 40
    (one,) = written(form, strategy="sample", seed=seed, max_new_tokens=max(1, n), temperature=2.0, draft=draft)
    jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(one.text))


@pytest.mark.parametrize("ends", [True, False])
def test_a_form_without_a_longest_text_ends_within_the_length(ends: bool) -> None:
    """Also where no token ends a text; only a form that may stay incomplete is cut by the length."""
    form = TextForm("regex", "(a|bb|cab)( (a|bb|cab))*", complete=True)
    prompt_format = replace(format_of("char"), documents=ends)
    model = HistoryModel(tokenizer_of("char").vocab_size)
    for n in range(1, 12):
        (one,) = complete(model, ["the"], SamplingParams(form=form, seed=n, max_new_tokens=n), prompt_format)
        assert has_form(form, one.text), one.text
        assert len(one.tokens) <= n
    assert written(TextForm("regex", "a{30}"), max_new_tokens=5)[0].finish_reason == "length"


@pytest.mark.parametrize("form", [*FORMS, TextForm("regex", "a( a)*")], ids=lambda form: form.source[:9])
def test_closing_tokens_complete_the_form_and_there_are_none_where_it_may_end(form: TextForm) -> None:
    state, chance = check_form_and_create_state(form, tokenizer_of("char")), random.Random(1)
    for _ in range(20):
        closed = state
        for token in state.closing_tokens or ():
            closed = closed.with_token(token)
        assert closed.may_end
        assert state.may_end == (state.closing_tokens == ())
        if state.allowed_non_end_V.any():
            state = state.with_token(chance.choice(state.allowed_non_end_V.nonzero()[0].tolist()))


REFUSED: dict[str, tuple[Any, str]] = {
    "not JSON": ("json-schema", "{"),
    "not a JSON object": ("json-schema", "[]"),
    "properties.a has 'maxlength'": ("json-schema", '{"properties": {"a": {"maxlength": 3}}}'),
    "anyOf.1 has 'not'": ("json-schema", '{"anyOf": [{}, {"not": {}}]}'),
    "x-guidance": ("json-schema", '{"x-guidance": {"lenient": true}, "uniqueItems": true}'),
    "Unknown format": ("json-schema", '{"type": "string", "format": "colour"}'),
    "more than 200 deep": ("json-schema", '{"items": ' * 300 + "{}" + "}" * 300),
    "one text or more": ("choices", "[]"),
    "none of them empty": ("choices", '["a", ""]'),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_enforced_is_named(what: str) -> None:
    with pytest.raises(UsageError, match=what) as refused:
        TextForm(*REFUSED[what])
    assert all(len(line) < 300 for line in refused.value.lines())


def test_words_of_a_schema_that_restrict_nothing_are_no_mistakes() -> None:
    TextForm("json-schema", '{"title": "T", "x-order": 1, "properties": {"uniqueItems": {"description": "d"}}}')
    assert TextForm.from_sources() is None
    assert TextForm.from_sources(json_schema={"type": "null"}) == TextForm("json-schema", '{"type": "null"}')


def test_settings_with_a_form_are_kept_as_records() -> None:
    chosen = SamplingParams(form=replace(CHOICES, complete=True), seed=3)
    assert params_from_record(json.loads(json.dumps(params_to_record(chosen)))) == chosen


UNSPELLED: dict[str, tuple[Any, str]] = {
    "at the beginning": ("choices", '["ᚠᚢ", "ᛗ"]'),
    "after a text": ("choices", '["the ᚠ"]'),
    "in the middle": ("regex", "the cat ᚠ[ab]"),
    "by one of several": ("regex", "the cat (ᚠ|ᛗ)"),
    "in a key": ("json-schema", '{"type": "object", "properties": {"ᚠ": {"type": "null"}}, "required": ["ᚠ"]}'),
    "in a value": ("json-schema", '{"enum": ["ᚠ"]}'),
    "in a grammar": ("grammar", 'start: ("a" | "b")~2 "ᚠ"'),
}


@pytest.mark.parametrize(
    ("kind", "how", "where"),
    [
        *(("char", {}, where) for where in UNSPELLED),
        ("wordpiece", {"strategy": "beam", "num_beams": 2}, "in the middle"),
        ("wordpiece", {}, "in a key"),
        ("word", {}, "after a text"),
    ],
)
def test_a_vocabulary_that_cannot_spell_a_form_says_so(kind: str, how: dict[str, Any], where: str) -> None:
    """Its filters exclude nothing, and an end would be found with other tokens."""
    for is_complete in (False, True)[: 2 - ("strategy" in how)]:
        with pytest.raises(UsageError, match="no token of this model continues it"):
            written(TextForm(*UNSPELLED[where], complete=is_complete), kind, **how)


def test_filters_that_exclude_every_token_and_a_form_that_no_text_has_are_told_apart() -> None:
    bias = tuple(((token,), -math.inf) for token in tokenizer_of("char").encode("ab"))
    with pytest.raises(UsageError, match="filters exclude every token"):
        written(TextForm("regex", "[ab]"), "char", logit_bias=bias)
    with pytest.raises(UsageError, match="no text continues it"):
        written(TextForm("regex", r"a[^\s\S]b"))


@pytest.mark.parametrize("kind", ["char", "word", "wordpiece"])
@pytest.mark.parametrize(
    ("pattern", "text"), [("é|è", "é"), ("日(本|木)", "日本"), ("(the|a) cat( ᚠ)?", "(the|a) cat")]
)
def test_a_form_is_completed_with_what_the_vocabulary_can_spell(kind: str, pattern: str, text: str) -> None:
    """Also where characters begin with the same bytes."""
    for seed in range(3):
        (one,) = written(TextForm("regex", pattern, complete=True), kind, strategy="sample", seed=seed)
        assert re.fullmatch(text, one.text)


def test_errors_name_the_file_of_a_form() -> None:
    with pytest.raises(UsageError, match=r"^a\\x1b.lark: the "):
        TextForm("grammar", "start: word", file="a\x1b.lark")
    assert TextForm.from_sources(regex="a", file="b") == TextForm("regex", "a")


def test_samples_of_one_place_share_what_may_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mask of a state is computed once, however many samples are there."""
    n_asked, allowed = 0, constrained.SpelledVocabulary.spelling_mask_to_token_mask

    def asking(*given: Any) -> Any:
        nonlocal n_asked
        n_asked += 1
        return allowed(*given)

    monkeypatch.setattr(constrained.SpelledVocabulary, "spelling_mask_to_token_mask", asking)
    texts = {one.text for one in written(TextForm("regex", "a[bc]a[bc]a"), "char", strategy="sample", n=16)}
    assert len(texts) > 1
    assert n_asked <= 1 + 2 + 4  # a place for each beginning
