"""Decoding with a real Transformer. Weights are float64, so that rounding never decides between two tokens."""

import re
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lmtool.batch import Batch
from lmtool.generation import filters
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams, apply_sampling_filters
from lmtool.model import build
from lmtool.recipe.spec.transformer import Init, Transformer
from tests.support.cases import nightly_but
from tests.support.generating import collect, search

VOCAB_SIZE = 23
ENDS = [0, 3, 8, 11, 14]  # so many that some texts end early
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 0], [2, 2, 2], [3, 1], [9] * 16]
NAMES = {
    r"transformer\.wte\.weight": "inputs.tokens.weight",
    r"transformer\.wpe\.weight": "inputs.position.table.weight",
    r"transformer\.h\.(\d+)\.ln_1\.(\w+)": "stack.sublayers.{0}.norm.{1}",
    r"transformer\.h\.(\d+)\.attn\.c_attn\.(\w+)": "stack.sublayers.{0}.mixer.qkv.{1}",
    r"transformer\.h\.(\d+)\.attn\.c_proj\.(\w+)": "stack.sublayers.{0}.mixer.out.{1}",
    r"transformer\.h\.(\d+)\.ln_2\.(\w+)": "stack.sublayers.{0}+1.norm.{1}",
    r"transformer\.h\.(\d+)\.mlp\.c_fc\.(\w+)": "stack.sublayers.{0}+1.mixer.up.{1}",
    r"transformer\.h\.(\d+)\.mlp\.c_proj\.(\w+)": "stack.sublayers.{0}+1.mixer.out.{1}",
    r"transformer\.ln_f\.(\w+)": "stack.norm.{0}",
}


def gpt(**options: Any) -> Any:
    torch.manual_seed(1)
    shape = {"n_layers": 2, "d_model": 24, "n_heads": 4, "context": 16, "activation": "gelu-tanh"}
    spec = Transformer(kind="transformer", init=Init(std=0.6), **shape | options)
    return build(spec, VOCAB_SIZE).double().eval()


def gpt2_with_weights_of(model: Any) -> Any:
    peer = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB_SIZE,
            n_positions=model.context,
            n_embd=24,
            n_layer=2,
            n_head=4,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).double()
    ours = model.state_dict()
    weights = peer.state_dict()
    for theirs, tensor in weights.items():
        for pattern, name in NAMES.items():
            if match := re.fullmatch(pattern, theirs):
                place = match.groups()
                if len(place) == 2:
                    place = (2 * int(place[0]) + ("+1" in name), place[1])
                source = ours.pop(name.replace("+1", "").format(*place))
                transposed = tensor.dim() == 2 and "transformer.h." in theirs  # Conv1D keeps (in, out)
                tensor.copy_(source.T if transposed else source)
    assert not ours
    peer.load_state_dict(weights)
    return peer.eval()


def without_cache(model: Any) -> Any:
    @torch.inference_mode()
    def logits_after(ids: list[int]) -> Any:
        return model.logits(model(Batch(torch.tensor([ids]))).hidden_BTD[0, -1]).float().tolist()

    return logits_after


def of_the_peer(peer: Any, prompt: Any, **options: Any) -> Any:
    return peer.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        eos_token_id=ENDS,
        pad_token_id=VOCAB_SIZE,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    nightly_but(
        [
            ({}, {}),
            ({"early_stopping": "yes", "length_penalty": 0.0}, {"early_stopping": True, "length_penalty": 0.0}),
            ({"early_stopping": "never", "length_penalty": 2.0}, {"early_stopping": "never", "length_penalty": 2.0}),
            ({"early_stopping": "never", "length_penalty": 0.0}, {"early_stopping": "never", "length_penalty": 0.0}),
            ({"length_penalty": -1.0}, {"length_penalty": -1.0}),
            (
                {"min_new_tokens": 6, "no_repeat_ngram": 2, "logit_bias": (((4,), 0.7), ((4, 5), -1.0))},
                {"min_new_tokens": 6, "no_repeat_ngram_size": 2, "sequence_bias": [[[4], 0.7], [[4, 5], -1.0]]},
            ),
        ],
        0,
        3,
        unpack=True,
    ),
    ids=str,
)
@pytest.mark.parametrize("num_beams", nightly_but([2, 5], 0))
def test_beam_search_equals_transformers(num_beams: Any, ours: Any, theirs: Any) -> None:
    model = gpt(context=64)
    peer = gpt2_with_weights_of(model)
    settings = SamplingParams("beam", num_beams=num_beams, num_return=2, max_new_tokens=10, **ours)
    found = search(model, PROMPTS, settings, end_ids=ENDS, max_rows=3 * num_beams)
    lengths = set()
    for prompt, texts in zip(PROMPTS, found, strict=True):
        options = {"num_beams": num_beams, "num_return_sequences": 2, "max_new_tokens": 10, "do_sample": False}
        output = of_the_peer(peer, prompt, **options | theirs)
        expected = [[token for token in row if token != VOCAB_SIZE] for row in output.sequences.tolist()]
        assert [tokens for _, tokens in texts] == [row[len(prompt) :] for row in expected]
        assert [score for score, _ in texts] == pytest.approx(output.sequences_scores.tolist(), rel=1e-5, abs=1e-5)
        lengths |= {len(tokens) for _, tokens in texts}
    if not ours:  # a strong penalty makes all texts as long as they may be
        assert len(lengths) > 1


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {}),
        (
            {"min_new_tokens": 9, "repetition_penalty": 1.5, "no_repeat_ngram": 3},
            {"min_new_tokens": 9, "repetition_penalty": 1.5, "no_repeat_ngram_size": 3},
        ),
    ],
    ids=["plain", "filters"],
)
def test_greedy_equals_transformers(ours: Any, theirs: Any) -> None:
    model = gpt(context=64)
    peer = gpt2_with_weights_of(model)
    results = collect(generate(model, PROMPTS, SamplingParams("greedy", max_new_tokens=30, **ours), end_ids=ENDS))
    for i, prompt in enumerate(PROMPTS):
        output = of_the_peer(peer, prompt, max_new_tokens=30, do_sample=False, **theirs)
        assert results[i, 0][0] == output.sequences[0, len(prompt) :].tolist()


def test_all_filters_together_equal_those_of_transformers_in_their_order() -> None:
    """Each filter changes the next one's input, so that a wrong order is detected."""
    model = gpt(context=64)
    peer = gpt2_with_weights_of(model)
    same = {"temperature": 1.4, "top_k": 15, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9}
    same |= {"repetition_penalty": 1.6, "min_new_tokens": 5}
    settings = SamplingParams(**same, no_repeat_ngram=2, logit_bias=(((4,), 2.0), ((4, 5), -3.0)))
    options = {**same, "no_repeat_ngram_size": 2, "sequence_bias": [[[4], 2.0], [[4, 5], -3.0]]}
    torch.manual_seed(3)
    n_compared = 0
    for prompt in PROMPTS:
        output = of_the_peer(peer, prompt, max_new_tokens=20, do_sample=True, **options)
        written = output.sequences[0, len(prompt) :].tolist()
        for n, theirs in enumerate(output.scores):
            text = [*prompt, *written[:n]]
            logits_1V = torch.tensor([without_cache(model)(text)])
            ours = apply_sampling_filters(
                filters.apply_logits_processors(logits_1V, settings, [text], [n], ENDS), settings
            )
            torch.testing.assert_close(ours.softmax(-1), theirs.softmax(-1), atol=1e-5, rtol=1e-4)
            n_compared += 1
    assert n_compared > 40


def test_logits_stay_float32_under_autocast(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt().float()
    logits, types = model.logits, set()

    def watched(hidden: Any) -> Any:
        result = logits(hidden)
        types.add(result.dtype)
        return result

    monkeypatch.setattr(model, "logits", watched)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        list(generate(model, PROMPTS, SamplingParams(max_new_tokens=20)))
    assert types == {torch.float32}


@pytest.mark.gpu
@pytest.mark.parametrize(
    "settings",
    [SamplingParams("greedy", max_new_tokens=40), SamplingParams(max_new_tokens=40, top_k=9, top_p=0.95)],
    ids=str,
)
def test_a_gpu_gives_the_tokens_of_the_cpu(settings: SamplingParams) -> None:
    on_cpu = collect(generate(gpt(), PROMPTS, settings, end_ids={0}, banned_ids={1}, max_rows=4))
    on_gpu = collect(generate(gpt().cuda(), PROMPTS, settings, end_ids={0}, banned_ids={1}, max_rows=4))
    assert {request: tokens for request, (tokens, _) in on_gpu.items()} == {
        request: tokens for request, (tokens, _) in on_cpu.items()
    }
