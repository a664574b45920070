"""Decoding with a GPT-2, beside Transformers. In float64, so that rounding decides between no two tokens."""

from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.generation import filters
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams, apply_sampling_filters
from lmtool.model import LanguageModel
from tests.support.generating import collect, search
from tests.support.peers import brought, peer_in
from tests.support.writers import transformer

ENDS = list(range(0, 330, 2))  # so many that some texts end early
PAD = 999
FILTERS = {"min_new_tokens": 6, "repetition_penalty": 1.4}
PROMPTS = [[1, 2, 3], [4], [5, 6, 71, 8, 9, 10, 0], [2, 2, 2], [3, 1], [9] * 16]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[LanguageModel, Any]:
    """Of lmtool and of Transformers."""
    folder = tmp_path_factory.mktemp("published") / "gpt2"
    peer, ours = peer_in(folder, "gpt2").double(), brought(folder).model.double().eval()
    with torch.no_grad():
        for parameter in (*peer.parameters(), *ours.parameters()):
            parameter.mul_(4)
    return ours, peer


def of_the_peer(peer: Any, prompt: list[int], **options: Any) -> Any:
    return peer.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        eos_token_id=ENDS,
        pad_token_id=PAD,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        ({"early_stopping": "yes", "length_penalty": 0.0}, {"early_stopping": True, "length_penalty": 0.0}),
        ({"early_stopping": "never", "length_penalty": 2.0},) * 2,
        ({"early_stopping": "never", "length_penalty": 0.0},) * 2,
        (
            {**FILTERS, "no_repeat_ngram": 2, "logit_bias": (((4,), 0.7), ((4, 5), -1.0))},
            {**FILTERS, "no_repeat_ngram_size": 2, "sequence_bias": [[[4], 0.7], [[4, 5], -1.0]]},
        ),
    ],
    ids=str,
)
def test_beam_search_equals_transformers(models: Any, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    model, peer = models
    settings = SamplingParams("beam", num_beams=3, num_return=2, max_new_tokens=10, **ours)
    found = search(model, PROMPTS, settings, end_ids=ENDS, max_rows=9)
    options = {"num_beams": 3, "num_return_sequences": 2, "max_new_tokens": 10, "do_sample": False, **theirs}
    lengths = set()
    for prompt, texts in zip(PROMPTS, found, strict=True):
        output = of_the_peer(peer, prompt, **options)
        expected = [[token for token in row if token != PAD] for row in output.sequences.tolist()]
        assert [tokens for _, tokens in texts] == [row[len(prompt) :] for row in expected]
        assert [score for score, _ in texts] == pytest.approx(output.sequences_scores.tolist(), rel=1e-5, abs=1e-5)
        lengths |= {len(tokens) for _, tokens in texts}
    if not ours:  # a strong penalty makes all texts as long as they may be
        assert len(lengths) > 1


def test_greedy_equals_transformers(models: Any) -> None:
    model, peer = models
    same: dict[str, Any] = {"min_new_tokens": 9, "repetition_penalty": 1.5}
    settings = SamplingParams("greedy", max_new_tokens=30, **same, no_repeat_ngram=3)
    results = collect(generate(model, PROMPTS, settings, end_ids=ENDS))
    for i, prompt in enumerate(PROMPTS):
        output = of_the_peer(peer, prompt, max_new_tokens=30, do_sample=False, **same, no_repeat_ngram_size=3)
        assert results[i, 0][0] == output.sequences[0, len(prompt) :].tolist()


def test_all_filters_together_equal_those_of_transformers_in_their_order(models: Any) -> None:
    """Each filter changes the next one's input, so that a wrong order is detected."""
    model, peer = models
    same: dict[str, Any] = {"temperature": 1.4, "top_k": 15, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9}
    same |= {"repetition_penalty": 1.6, "min_new_tokens": 8}
    settings = SamplingParams(**same, no_repeat_ngram=2, logit_bias=(((4,), 2.0), ((4, 5), -3.0)))
    options = {**same, "no_repeat_ngram_size": 2, "sequence_bias": [[[4], 2.0], [[4, 5], -3.0]]}
    torch.manual_seed(3)
    n_compared = 0
    for prompt in PROMPTS:
        output = of_the_peer(peer, prompt, max_new_tokens=20, do_sample=True, **options)
        written = output.sequences[0, len(prompt) :].tolist()
        for n, theirs in enumerate(output.scores):
            text = [*prompt, *written[:n]]
            with torch.inference_mode():
                logits_1V = model.logits(model(Batch(torch.tensor([text]))).hidden_BTD[:, -1]).float()
            processed_1V = filters.apply_logits_processors(logits_1V, settings, [text], [n], ENDS)
            ours = apply_sampling_filters(processed_1V, settings)
            torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1).float(), atol=1e-5, rtol=1e-4)
            n_compared += 1
    assert n_compared > 40


def test_logits_stay_float32_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer(dtype=torch.float32)
    logits, types = model.logits, set()

    def watched(hidden: torch.Tensor) -> torch.Tensor:
        result = logits(hidden)
        types.add(result.dtype)
        return result

    monkeypatch.setattr(model, "logits", watched)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        list(generate(model, [[1, 2]], SamplingParams(max_new_tokens=5)))
    assert types == {torch.float32}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [SamplingParams("greedy", max_new_tokens=40), SamplingParams(max_new_tokens=40, top_k=9, top_p=0.95)],
    ids=str,
)
def test_a_gpu_gives_the_tokens_of_the_cpu(settings: SamplingParams) -> None:
    prompts = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [2, 2, 2]]
    on_cpu, on_gpu = (
        collect(generate(model, prompts, settings, end_ids={0}, banned_ids={1}, max_rows=3))
        for model in (transformer(), transformer().cuda())
    )
    assert {key: tokens for key, (tokens, _) in on_gpu.items()} == {key: tokens for key, (tokens, _) in on_cpu.items()}
