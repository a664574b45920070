"""Scores are the model's own log-probabilities, by a plain loop over the tokens of one text at a time."""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.inference.load import LoadedModel, load_run
from lmtool.inference.scoring import score_continuations, score_texts
from tests.inference.shapes import SHAPES, next_of
from tests.training.tiny import Work

TEXTS = ["a cat sat on the mat", "the dog", "naïve ran", "a"]
ANSWERING = {
    "encoder-decoder": (
        "model.context=64",
        "model.shape=encoder-decoder",
        "objective={kind: span-corruption}",
        "tokenizer.sentinels=20",
    ),
    "prefix": ("model.context=64", "model.shape=prefix", "objective={kind: span-corruption}", "tokenizer.sentinels=20"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    work = Work(tmp_path_factory.mktemp("runs"))
    for name, overrides in {**SHAPES, **ANSWERING}.items():
        work.pretrain(*overrides, "training.steps=2", name=name)
    return {name: work.run(name) for name in {**SHAPES, **ANSWERING}}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [name for name in SHAPES if name != "encoder"])
def test_each_token_is_given_those_before_it(name: str, runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs[name]), CPU)
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


def test_each_token_of_an_encoder_is_given_all_others(runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs["encoder"]), CPU)
    t = loaded.tokenizer
    for text, found in zip(TEXTS, score_texts(loaded, TEXTS), strict=True):
        ids = t.encode(text)
        for i, token in enumerate(ids):
            row = [t.cls_id, *ids[:i], t.mask_id, *ids[i + 1 :], t.sep_id]
            with torch.no_grad():
                hidden_D = loaded.model(Batch(torch.tensor([row]))).hidden_BTD[0, i + 1]
                wanted = float(loaded.model.logits(hidden_D).float().log_softmax(-1)[token])
            logprob = found.logprobs[i]
            assert logprob is not None
            assert math.isclose(logprob, wanted, rel_tol=1e-4, abs_tol=1e-5)


@pytest.mark.parametrize("name", ANSWERING)
def test_each_token_of_a_target_is_given_its_source(name: str, runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs[name]), CPU)
    t, sources = loaded.tokenizer, ["a dog ran", "the", "home and away", "on"]
    for text, source, found in zip(TEXTS, sources, score_texts(loaded, TEXTS, sources), strict=True):
        ids = t.encode(text)
        for i, token in enumerate(ids):
            wanted = float(next_of(loaded, [t.bos_id, *ids[:i]], t.encode(source))[token])
            logprob = found.logprobs[i]
            assert logprob is not None
            assert math.isclose(logprob, wanted, rel_tol=1e-4, abs_tol=1e-5)


def test_what_cannot_be_scored_is_refused(runs: dict[str, Path]) -> None:
    decoder, pairs = (load_run(str(runs[name]), CPU) for name in ("decoder", "encoder-decoder"))
    assert score_texts(decoder, []) == []
    assert score_texts(decoder, [""])[0].total == 0
    with pytest.raises(UsageError, match="give sources"):
        score_texts(pairs, ["a"])
    with pytest.raises(UsageError, match="has no sources"):
        score_texts(decoder, ["a"], ["a"])
    with pytest.raises(UsageError, match="not as many: 2 and 1"):
        score_texts(pairs, ["a", "a"], ["a"])
    with pytest.raises(UsageError, match="tokens, but the model reads"):
        score_texts(decoder, ["a cat " * 100])


PREFIX = ("model.context=64", "model.shape=prefix", "objective={kind: prefix}")


@pytest.fixture(scope="module")
def prefix_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = Work(tmp_path_factory.mktemp("prefix"))
    work.pretrain(*PREFIX, "training.steps=2", name="prefix")
    return work.run("prefix")


PROMPTS = ["a cat sat on the", "the dog: ", "na"]
ANSWERS = ["mat", "home", "a dog ran"]


class Answers(NamedTuple):
    """Of each answer to each prompt."""

    total_PA: NDArray[np.float64]
    tokens_PA: NDArray[np.int64]


def score_answers(loaded: LoadedModel, prompts: list[str], answers: list[str], origins: list[str] = PROMPTS) -> Answers:
    groups = [[(prompt, after(prompt, answer)[len(prompt) :]) for answer in answers] for prompt in prompts]
    scored = score_continuations(loaded, groups, origins)
    totals, lengths = ([[getattr(one, name) for one in group] for group in scored] for name in ("total", "n_tokens"))
    return Answers(np.array(totals), np.array(lengths))


def after(prompt: str, answer: str) -> str:
    return prompt.rstrip() + (prompt[len(prompt.rstrip()) :] or " ") + answer


def test_an_answer_is_scored_after_its_prompt(runs: dict[str, Path]) -> None:
    for name in ("decoder", "stream", "recurrent", "ngram"):
        loaded = load_run(str(runs[name]), CPU)
        found = score_answers(loaded, PROMPTS, ANSWERS)
        opening = [] if name == "stream" else [loaded.tokenizer.bos_id]
        for p, prompt in enumerate(PROMPTS):
            stem = [*opening, *loaded.tokenizer.encode(prompt.rstrip())]
            for a, answer in enumerate(ANSWERS):
                whole = [*opening, *loaded.tokenizer.encode(after(prompt, answer))]
                wanted = sum(float(next_of(loaded, whole[:i])[whole[i]]) for i in range(len(stem), len(whole)))
                assert found.total_PA[p, a] == pytest.approx(wanted, rel=1e-4)
                assert found.tokens_PA[p, a] == len(whole) - len(stem)


@pytest.mark.parametrize("name", ANSWERING)
def test_an_answer_is_the_span_removed_at_the_end_of_its_prompt(name: str, runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs[name]), CPU)
    t = loaded.tokenizer
    found = score_answers(loaded, PROMPTS, ANSWERS)
    for p, prompt in enumerate(PROMPTS):
        source = [*t.encode(prompt.rstrip()), t.sentinel_ids[0]]
        for a, answer in enumerate(ANSWERS):
            begun = [t.bos_id, t.sentinel_ids[0]]
            ids = t.encode(after(prompt, answer)[len(prompt.rstrip()) :])
            wanted = sum(float(next_of(loaded, [*begun, *ids[:i]], source)[token]) for i, token in enumerate(ids))
            assert found.total_PA[p, a] == pytest.approx(wanted, rel=1e-4)


def test_a_prefix_lm_reads_the_prompt_both_ways(prefix_run: Path) -> None:
    loaded = load_run(str(prefix_run), CPU)
    found = score_answers(loaded, PROMPTS, ANSWERS)
    for p, prompt in enumerate(PROMPTS):
        known = loaded.prompt_format.make_prompt(prompt.rstrip()).text
        for a, answer in enumerate(ANSWERS):
            whole = loaded.prompt_format.make_prompt(after(prompt, answer)).text
            wanted = sum(
                float(next_of(loaded, list(whole[len(known) - 1 : i]), list(known[:-1]))[whole[i]])
                for i in range(len(known), len(whole))
            )
            assert found.total_PA[p, a] == pytest.approx(wanted, rel=1e-4)


def test_answers_of_one_token_are_read_in_one_row(runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs["stream"]), CPU)
    (shorter,) = score_answers(loaded, ["a:"], ["cat", "dog"], ["row 1"]).total_PA
    single = score_answers(loaded, ["a: c"], ["a", "o"], ["row 1"])
    assert single.tokens_PA.tolist() == [[2, 2]], "a space and a letter"
    assert shorter.shape == (2,)
    with pytest.raises(UsageError, match="1 of 2 prompts do not fit the context of 64"):
        score_answers(loaded, ["a", "a cat " * 30], ["a", "b"], ["row 1", "row 2"])


def test_masked_models_answer_by_pseudo_likelihood(runs: dict[str, Path]) -> None:
    loaded = load_run(str(runs["encoder"]), CPU)
    found = score_answers(loaded, PROMPTS, ANSWERS)
    for p, prompt in enumerate(PROMPTS):
        for a, answer in enumerate(ANSWERS):
            (whole,) = score_texts(loaded, [after(prompt, answer)])
            n = found.tokens_PA[p, a]
            assert found.total_PA[p, a] == pytest.approx(sum(one or 0 for one in whole.logprobs[-n:]), rel=1e-4)
