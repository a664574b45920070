"""Texts and continuations are scored as by a plain loop over their tokens, one at a time, whatever is computed once."""

import math
from dataclasses import replace

import pytest
import torch

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.evaluation.scoring import ScoredContinuation, score_continuations, score_long_texts, score_texts
from lmtool.runs.load import LoadedModel, load_run
from tests.support.errors import refuses
from tests.support.scoring import SHAPES, next_of, plain, text_of
from tests.support.training import Work

KINDS = {
    **SHAPES,
    "attending": ("model={kind: recurrent, d_model: 16, context: 16, attention: {score: additive}}",),
    "prefix": ("model.context=64", "model.shape=prefix", "objective={kind: prefix}"),
}
SPANS = ("model.context=64", "objective={kind: span-corruption}", "tokenizer.sentinels=20")
ANSWERING = {
    name: (*SPANS, f"model.shape={name.removesuffix(' of spans')}") for name in ("encoder-decoder", "prefix of spans")
}
TEXTS = ["a cat sat on the mat", "the dog", "naïve ran", "a"]
CHOICES = [
    [("a cat sat on the", one) for one in ("mat", "map", "dog and home", "m")],
    [("the dog", one) for one in ("ran", "sat on the mat")],
    [("na:\n", one) for one in ("a", "o", "t")],
    [("a dog ran away on the mat", one) for one in ("home", "away")],
    # nearly as long as the context, beside one whose continuations are long: its padding needs no more positions
    [("a cat sat on the mat and the dog ran away and home", one) for one in ("at", "on")],
    [("a cat", one) for one in ("sat on the mat and ran home", "ran away and sat on")],
]
SCHEMAS = [
    [("a cat", "sat on"), ("a dog", "sat on"), ("home", "sat on")],
    [("the mat and a dog", "ran"), ("the mat and a cat", "ran")],
]


def scores(
    loaded: LoadedModel, groups: list[list[tuple[str, str]]], cuts: bool = False
) -> list[list[ScoredContinuation]]:
    spaced = [[(context, text_of(context, one)[len(context) :]) for context, one in group] for group in groups]
    return score_continuations(loaded, spaced, [f"row {n}" for n in range(len(groups))], truncate_contexts=cuts)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    work = Work(tmp_path_factory.mktemp("runs"))
    for name, overrides in {**KINDS, **ANSWERING}.items():
        work.pretrain(*overrides, "training.steps=2", name=name)
    return {name: load_run(str(work.run(name)), CPU) for name in {**KINDS, **ANSWERING}}


@pytest.mark.parametrize("name", ["decoder", "stream", "recurrent"])
def test_each_token_is_given_those_before_it(name: str, runs: dict[str, LoadedModel]) -> None:
    loaded = runs[name]
    first = [] if name == "stream" else [loaded.tokenizer.bos_id]
    for text, found in zip(TEXTS, score_texts(loaded, TEXTS), strict=True):
        ids = loaded.tokenizer.encode(text)
        assert found.tokens == tuple(loaded.tokenizer.display_token(i) for i in ids)
        wanted = [
            float(next_of(loaded, [*first, *ids[:i]])[token]) if first or i else None for i, token in enumerate(ids)
        ]
        assert [p is None for p in found.logprobs] == [p is None for p in wanted]
        known = [(p, q) for p, q in zip(found.logprobs, wanted, strict=True) if p is not None and q is not None]
        assert all(math.isclose(p, q, rel_tol=1e-4, abs_tol=1e-5) for p, q in known)
        assert math.isclose(found.total, sum(q for _, q in known), rel_tol=1e-4, abs_tol=1e-4)


def masked(loaded: LoadedModel, ids: list[int], i: int) -> float:
    """The log-probability of the i-th token, given all others."""
    t = loaded.tokenizer
    row = [t.cls_id, *ids[:i], t.mask_id, *ids[i + 1 :], t.sep_id]
    with torch.no_grad():
        hidden_D = loaded.model(Batch(torch.tensor([row]))).hidden_BTD[0, i + 1]
        return float(loaded.model.logits(hidden_D).float().log_softmax(-1)[ids[i]])


def test_each_token_of_an_encoder_is_given_all_others(runs: dict[str, LoadedModel]) -> None:
    loaded = runs["encoder"]
    for text, found in zip(TEXTS, score_texts(loaded, TEXTS), strict=True):
        ids = loaded.tokenizer.encode(text)
        wanted = [masked(loaded, ids, i) for i in range(len(ids))]
        assert found.logprobs == pytest.approx(wanted, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("name", ANSWERING)
def test_each_token_of_a_target_is_given_its_source(name: str, runs: dict[str, LoadedModel]) -> None:
    loaded = runs[name]
    t, sources = loaded.tokenizer, ["a dog ran", "the", "home and away", "on"]
    for text, source, found in zip(TEXTS, sources, score_texts(loaded, TEXTS, sources), strict=True):
        ids = t.encode(text)
        read = t.encode(source)
        wanted = [float(next_of(loaded, [t.bos_id, *ids[:i]], read)[token]) for i, token in enumerate(ids)]
        assert found.logprobs == pytest.approx(wanted, rel=1e-4, abs=1e-5)


def test_what_cannot_be_scored_is_refused(runs: dict[str, LoadedModel]) -> None:
    decoder, pairs = runs["decoder"], runs["encoder-decoder"]
    assert score_texts(decoder, []) == []
    assert score_texts(decoder, [""])[0].total == 0
    for loaded, texts, sources in (
        (pairs, ["a"], None),
        (decoder, ["a"], ["a"]),
        (pairs, ["a", "a"], ["a"]),
        (decoder, ["a cat " * 100], None),
    ):
        with refuses("usage"):
            score_texts(loaded, texts, sources)
    with refuses("usage"):
        score_long_texts(pairs, TEXTS)


@pytest.mark.parametrize("name", ["decoder", "ngram", "prefix", "encoder", "recurrent", "attending"])
def test_choices_and_schemas_are_scored_as_by_a_loop(name: str, runs: dict[str, LoadedModel]) -> None:
    """As in lm-eval: from the end of the context on, and each group as if it were alone."""
    loaded = runs[name]
    encode = loaded.tokenizer.encode
    for groups in (CHOICES, SCHEMAS):
        for group, scored in zip(groups, scores(loaded, groups), strict=True):
            for pair, one in zip(group, scored, strict=True):
                n = len(encode(text_of(*pair))) - len(encode(pair[0].rstrip()))
                logprobs, greedy = plain(loaded, *pair, n)
                assert one.n_tokens == n
                assert one.total == pytest.approx(sum(logprobs), rel=1e-4)
                assert one.is_greedy == greedy


def test_a_continuation_follows_as_it_is(runs: dict[str, LoadedModel]) -> None:
    """Without a space of its own: the tokens of the whole text count, and none where nothing follows."""
    loaded = runs["decoder"]
    context = "a cat sat on the m"
    ((joined, spaced),) = score_continuations(loaded, [[(context, "at"), (context, " at")]], [""])
    assert joined.total == pytest.approx(sum(plain(loaded, "a cat sat on the", "mat", joined.n_tokens)[0]), rel=1e-4)
    assert spaced.total == pytest.approx(sum(plain(loaded, context, "at", spaced.n_tokens)[0]), rel=1e-4)
    ((nothing,),) = score_continuations(loaded, [[("a cat", "")]], [""])
    assert (nothing.total, nothing.n_tokens, nothing.is_greedy) == (0, 0, True)


@pytest.mark.parametrize("name", ANSWERING)
def test_a_continuation_is_the_span_removed_at_the_end_of_its_context(name: str, runs: dict[str, LoadedModel]) -> None:
    loaded = runs[name]
    t = loaded.tokenizer
    for group, scored in zip(CHOICES, scores(loaded, CHOICES), strict=True):
        for (context, continuation), one in zip(group, scored, strict=True):
            source = [*t.encode(context.rstrip()), t.sentinel_ids[0]]
            ids = t.encode(text_of(context, continuation)[len(context.rstrip()) :])
            begun = [t.bos_id, t.sentinel_ids[0]]
            wanted = sum(float(next_of(loaded, [*begun, *ids[:i]], source)[token]) for i, token in enumerate(ids))
            assert one.total == pytest.approx(wanted, rel=1e-4)


def test_a_text_begins_with_the_token_that_others_put_there(runs: dict[str, LoadedModel]) -> None:
    """Where nothing else precedes: the published bos_token, or else what ends a text."""
    loaded, pair = runs["stream"], ("a cat sat on the", "mat")
    t = loaded.tokenizer
    ids = t.encode(text_of(*pair))
    for named, first in ((None, t.bos_id), (t.sep_id, t.sep_id)):
        t.roles = replace(t.roles, named_bos=named)
        try:
            ((alone,),) = scores(loaded, [[("", "mat")]])
            (whole,) = score_long_texts(loaded, [text_of(*pair)])
        finally:
            t.roles = replace(t.roles, named_bos=None)
        wanted = [float(next_of(loaded, [first, *ids[:i]])[token]) for i, token in enumerate(ids)]
        assert whole == pytest.approx(sum(wanted), rel=1e-4)
        of_word = t.encode(" mat")
        wanted = [float(next_of(loaded, [first, *of_word[:i]])[token]) for i, token in enumerate(of_word)]
        assert alone.total == pytest.approx(sum(wanted), rel=1e-4)


def test_a_context_that_does_not_fit_loses_its_beginning(runs: dict[str, LoadedModel]) -> None:
    loaded = runs["decoder"]
    context = "a cat " * 30 + "the dog"
    (scored,) = scores(loaded, [[(context, "ran"), (context, "sat")]], cuts=True)
    ids = loaded.tokenizer.encode(text_of(context, "ran"))
    assert [one.is_cut for one in scored] == [True, True]
    begins = len(ids) - len(loaded.tokenizer.encode(" ran"))
    row = ids[len(ids) - 1 - 64 : -1]
    wanted = sum(float(next_of(loaded, row[: len(row) - (len(ids) - 1 - i)])[ids[i]]) for i in range(begins, len(ids)))
    assert scored[0].total == pytest.approx(wanted, rel=1e-4)
    with pytest.raises(UsageError, match="1 of 2 answers") as caught:
        score_continuations(loaded, [[("a", "cat")], [("a", "cat " * 30)]], ["row 7", "row 8"], truncate_contexts=True)
    assert (caught.value.where or "").startswith("row 8: ")
    fits = "cat " * 15
    n = len(loaded.tokenizer.encode(" " + fits))
    ((whole,),) = scores(loaded, [[(context, fits)]], cuts=True)
    assert (whole.is_cut, n <= 64, len(whole.logprobs)) == (True, True, n)


@pytest.mark.parametrize("name", ["decoder", "recurrent", "encoder"])
def test_whole_texts_are_scored_in_windows(name: str, runs: dict[str, LoadedModel]) -> None:
    loaded = runs[name]
    t = loaded.tokenizer
    texts = ["a cat sat", "the dog ran away and " * 8, ""]
    for text, total in zip(texts, score_long_texts(loaded, texts), strict=True):
        ids, wanted = t.encode(text), 0.0
        longest = loaded.model.max_positions or loaded.model.context or 1000
        longest -= 2 * (name == "encoder")
        for i, token in enumerate(ids):
            first = i // longest * longest
            stop = min(len(ids), first + longest)
            if name == "encoder":
                wanted += masked(loaded, ids[first:stop], i - first)
            else:
                whole = [t.bos_id, *ids]
                wanted += float(next_of(loaded, whole[max(0, stop - longest) : i + 1])[token])
        assert total == pytest.approx(wanted, rel=1e-4)
