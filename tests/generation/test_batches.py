"""The same request in float32 gives the same tokens in batches of 1, 2, 7 and 32; and cached as without a cache, for
real models of each family."""

from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.model.language_model import DecodeState
from lmtool.model.packed import pack_weights_
from lmtool.tokenization.prompt_format import Prompt
from tests.reference import decoding as reference
from tests.support.cases import nightly_but
from tests.support.generating import collect, search
from tests.support.writers import FAMILIES, model_of, prompts_of

STRATEGIES = [
    SamplingParams("greedy", max_new_tokens=6),
    SamplingParams(max_new_tokens=6, temperature=1.3, top_p=0.9),
    SamplingParams("beam", max_new_tokens=4, num_beams=3, num_return=3),
]


def tokens_of(model: Any, prompts: Any, settings: SamplingParams, max_rows: Any) -> Any:
    results = collect(generate(model, prompts, settings, end_ids={2}, max_rows=max_rows))
    return {request: tokens for request, (tokens, _) in results.items()}


@pytest.mark.parametrize("settings", nightly_but(STRATEGIES, 0), ids=lambda settings: settings.strategy)
@pytest.mark.parametrize("family", nightly_but(FAMILIES, "decoder", "lstm"))
def test_requests_are_the_same_in_any_batch(family: str, settings: SamplingParams) -> None:
    model = model_of(family, torch.float32)
    prompts = prompts_of(model, 16)
    alone = tokens_of(model, prompts, settings, 1)
    assert len(set(map(tuple, alone.values()))) > 5
    for max_rows in (2, 7, 32):
        assert tokens_of(model, prompts, settings, max_rows) == alone


@pytest.mark.parametrize(("family", "n_reads"), [("decoder", 2), ("lstm", 4)])
def test_prompts_of_about_the_same_length_are_read_together(
    family: str, n_reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the state holds all positions: 8 to 10 tokens, and 15; else each length is read by itself."""
    model = model_of(family, torch.float64)
    prompts = [Prompt(tuple(range(n))) for n in (8, 15, 10, 9)]
    alone = tokens_of(model, prompts, STRATEGIES[0], 1)
    read, advance = [], model.forward_incremental

    def reading(tokens_BT: torch.Tensor, state: DecodeState) -> Any:
        read.append(tokens_BT)
        return advance(tokens_BT, state)

    monkeypatch.setattr(model, "forward_incremental", reading)
    assert tokens_of(model, prompts, STRATEGIES[0], 4) == alone
    assert sum(tokens_BT.shape[1] > 1 for tokens_BT in read) == n_reads


@pytest.mark.parametrize(
    "settings", nightly_but([STRATEGIES[0], STRATEGIES[2]], 0), ids=lambda settings: settings.strategy
)
@pytest.mark.parametrize(
    "family", nightly_but(["decoder", "encoder-decoder", "bahdanau"], "decoder", "encoder-decoder")
)
def test_packed_matrices_write_the_same_in_any_batch_and_as_plain_ones(family: str, settings: SamplingParams) -> None:
    """As in the commands; the plain model is float64, for the result without rounding."""
    prompts = prompts_of(model_of(family, torch.float32), 12)
    exact = tokens_of(model_of(family, torch.float64), prompts, settings, 1)
    packed = model_of(family, torch.float32)
    pack_weights_(packed, "float32", torch.device("cpu"))
    for max_rows in (1, 7, 64):
        assert tokens_of(packed, prompts, settings, max_rows) == exact


@pytest.mark.parametrize("settings", nightly_but(STRATEGIES, 0, 2), ids=lambda settings: settings.strategy)
@pytest.mark.parametrize("family", nightly_but(FAMILIES, "decoder", "encoder-decoder", "gru-attention"))
def test_cached_equals_uncached(family: str, settings: SamplingParams) -> None:
    model = model_of(family, torch.float64)
    prompts = prompts_of(model, 5, seed=3)

    def without_cache(prompt: Any) -> Any:
        source_BS = None if prompt.source is None else torch.tensor([prompt.source])

        @torch.inference_mode()
        def logits_after(ids: list[int]) -> Any:
            tokens_BT = torch.tensor([ids])
            if model.reads == "source":  # a prefix LM has no forward pass with a separate source
                hidden_BTD, _ = model.forward_incremental(
                    tokens_BT, model.initial_state(Batch(tokens_BT, source_BS=source_BS))
                )
            else:
                hidden_BTD = model(Batch(tokens_BT)).hidden_BTD
            return model.logits(hidden_BTD[0, -1]).float().tolist()

        return logits_after

    if settings.strategy == "beam":
        for prompt, texts in zip(prompts, search(model, prompts, settings, end_ids={2}), strict=True):
            expected = reference.beam_search(without_cache(prompt), prompt.tokens, k=3, max_new_tokens=4, end_ids={2})
            assert [tokens for _, tokens in texts] == [tokens for _, tokens in expected]
        return
    strategy = {"greedy": True} if (settings.strategy == "greedy") else {"t": 1.3, "p": 0.9}
    found = tokens_of(model, prompts, settings, 16)
    for i, prompt in enumerate(prompts):
        read = [*(prompt.source or ()), *prompt.tokens]
        options = {"max_new_tokens": 6, "context": model.context, "end_ids": {2}, "read": read, **strategy}
        assert found[i, 0] == reference.continuation(without_cache(prompt), prompt.tokens, **options)[0]
