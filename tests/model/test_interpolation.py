"""The interpolation of a language model with an n-gram model, against its formula."""

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.generation.drafts import NGramDraft
from lmtool.generation.engine import Engine
from lmtool.generation.generate import complete
from lmtool.generation.params import SamplingParams
from lmtool.generation.request import Request
from lmtool.model import NGramModel, build
from lmtool.model.interpolation import NGramInterpolation
from lmtool.recipe.spec.words import NGram
from lmtool.tokenization.prompt_format import Prompt
from tests.support import tiny

WEIGHT = 0.3


def counted(order: int = 4) -> NGramModel:
    """The n-gram model of a text in which few contexts of three tokens occur twice."""
    ngram = build(NGram(kind="ngram", order=order), tiny.VOCAB)
    assert isinstance(ngram, NGramModel)
    text_BT = tiny.tokens(2, 150)
    ngram.partial_fit_([Batch(text_BT[:, :-1], text_BT[:, 1:])], 300)
    return ngram.eval()


def interpolated(**changes: Any) -> Any:
    model = tiny.model(dtype=torch.float32, **changes).eval()
    model.interpolation = NGramInterpolation(counted(), WEIGHT)
    return model


def plain_probabilities(model: Any, text: list[int]) -> NDArray[np.float64]:
    """p of each token after a text, read at once: (1 - w) p_model + w p_ngram."""
    batch, ngram = Batch(torch.tensor([text])), model.interpolation.ngram
    with torch.no_grad():
        own = model.logits(model(batch).hidden_BTD[0, -1]).double().softmax(-1)
        other = ngram.logits(ngram(batch).hidden_BTD[0, -1]).exp()
    found: NDArray[np.float64] = ((1 - WEIGHT) * own + WEIGHT * other).numpy()
    return found


@pytest.mark.parametrize("order", [1, 2, 4])
def test_probabilities_after_one_context_are_those_of_all_rows(order: int) -> None:
    ngram = counted(order)
    seen = tiny.tokens(2, 150)[0].tolist()
    for text in ([], seen[:1], seen[:2], seen[:9], seen[40:50], [0, 0, 0, 0], [seen[3], 0, seen[5]]):
        wanted = ngram.initial_state(Batch(torch.zeros(1, 1, dtype=torch.long))).layers[0][0]
        if text:
            wanted = ngram(Batch(torch.tensor([text]))).hidden_BTD[0, -1]
        p_V = ngram.next_token_probabilities(text[-ngram.n_context_tokens :])
        np.testing.assert_allclose(np.log(p_V), ngram.logits(wanted).flatten(), rtol=1e-12)


def test_logits_are_logs_of_the_weighted_mean_of_probabilities() -> None:
    model = interpolated()
    for text in (tiny.tokens(n, seed=n).tolist() for n in (1, 2, 5, 12)):
        logits_V = model.logits(model(Batch(torch.tensor([text]))).hidden_BTD[0, -1:])
        found = model.interpolation.interpolate_next_token_log_probs(logits_V, [text])[0].exp().detach()
        np.testing.assert_allclose(found, plain_probabilities(model, text), rtol=1e-5)


def test_ids_that_only_the_model_has_keep_their_share_of_it() -> None:
    interpolation = NGramInterpolation(counted(), WEIGHT)
    logits_1V = torch.randn(1, tiny.VOCAB + 3)
    found = interpolation.interpolate_next_token_log_probs(logits_1V, [[3, 1]])[0].exp()
    torch.testing.assert_close(found[-3:], (1 - WEIGHT) * logits_1V.softmax(-1)[0, -3:])
    assert float(found.sum()) == pytest.approx(1, abs=1e-5)


def test_scored_targets_have_the_probabilities_of_logits() -> None:
    interpolation = NGramInterpolation(counted(), WEIGHT)
    text_BT = tiny.tokens(3, 9)
    batch = Batch(text_BT[:, :-1], text_BT[:, 1:])
    is_scored_BT = torch.rand(3, 8, generator=torch.Generator().manual_seed(0)) < 0.6
    logits_BTV = torch.randn(3, 8, tiny.VOCAB)
    own_N = logits_BTV.log_softmax(-1).gather(2, text_BT[:, 1:, None])[..., 0][is_scored_BT]
    found_N = interpolation.interpolate_target_log_probs(own_N, batch, is_scored_BT)
    places = is_scored_BT.nonzero().tolist()
    texts = [text_BT[b, : t + 1].tolist() for b, t in places]
    wanted_NV = interpolation.interpolate_next_token_log_probs(logits_BTV[is_scored_BT], texts)
    torch.testing.assert_close(found_N, wanted_NV.gather(1, text_BT[:, 1:][is_scored_BT][:, None])[:, 0])


GREEDY = SamplingParams("greedy", max_new_tokens=20)


@pytest.mark.parametrize(
    ("params", "options"),
    [
        (GREEDY, {}),
        (GREEDY, {"draft": NGramDraft()}),
        (SamplingParams("beam", max_new_tokens=5, num_beams=3), {}),
    ],
    ids=["greedy", "greedy with a draft", "beam"],
)
def test_generated_tokens_have_the_interpolated_probabilities(params: SamplingParams, options: dict[str, Any]) -> None:
    """In batches of prompts of several lengths, with cached states."""
    model = interpolated(context=16)
    prompts = [Prompt(tuple(tiny.tokens(n, seed=n).tolist())) for n in (3, 7, 7, 11)]
    found = list(complete(model, prompts, params, max_rows=8, **options))
    assert len(found) == len(prompts)
    for prompt, completion in zip(prompts, found, strict=True):
        text = list(prompt.tokens)
        for token, logprob in zip(completion.tokens, completion.logprobs, strict=True):
            if len(text) > 16:
                break  # the window slides, which only the model notices
            p_V = plain_probabilities(model, text)
            assert np.log(p_V[token]) == pytest.approx(logprob, abs=1e-4)
            if params.strategy == "greedy":
                assert p_V[token] == pytest.approx(p_V.max(), rel=1e-4)
            text.append(token)


def test_the_probabilities_of_a_prompt_are_interpolated() -> None:
    model, ids = interpolated(), tiny.tokens(8).tolist()
    engine = Engine(model, chunk=3)
    params = SamplingParams("greedy", max_new_tokens=1)
    request = Request(prompt=Prompt(tuple(ids)), params=params, prompt_logprobs=True)
    (first,) = engine.run(iter([engine.create_request_state(request)]), nullcontext)
    wanted = [np.log(plain_probabilities(model, ids[:n])[ids[n]]) for n in range(1, len(ids))]
    np.testing.assert_allclose([token.logprob for token in first.prompt], wanted, atol=1e-4)
