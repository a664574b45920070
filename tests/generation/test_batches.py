"""A request gives the same tokens in any batch, and cached as without a cache, for real models of each family."""

from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel
from lmtool.model.packed import pack_weights_
from lmtool.tokenization.prompt_format import Prompt
from tests.reference import decoding as reference
from tests.support.generating import collect, search
from tests.support.writers import FAMILIES, model_of, prompts_of

GREEDY = SamplingParams("greedy", max_new_tokens=6)


def tokens_of(
    model: LanguageModel, prompts: list[Prompt], max_rows: int, settings: SamplingParams = GREEDY
) -> dict[Any, list[int]]:
    results = collect(generate(model, prompts, settings, end_ids={2}, max_rows=max_rows))
    return {request: tokens for request, (tokens, _) in results.items()}


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder", "lstm"])
def test_float32_texts_are_the_same_in_any_batch_and_as_without_rounding(family: str, is_packed: bool) -> None:
    """Packed as in the commands; without rounding is in float64."""
    prompts = prompts_of(model_of(family, torch.float32), 12)
    exact = tokens_of(model_of(family, torch.float64), prompts, 1)
    assert len(set(map(tuple, exact.values()))) > 5
    model = model_of(family, torch.float32)
    if is_packed:
        pack_weights_(model, "float32", torch.device("cpu"))
    for max_rows in (1, 7, 32):
        assert tokens_of(model, prompts, max_rows) == exact


@pytest.mark.parametrize(("family", "n_reads"), [("decoder", 2), ("lstm", 4)])
def test_prompts_of_about_the_same_length_are_read_together(
    family: str, n_reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the state holds all positions: 8 to 10 tokens, and 15; else each length is read by itself."""
    model = model_of(family, torch.float64)
    prompts = [Prompt(tuple(range(n))) for n in (8, 15, 10, 9)]
    alone = tokens_of(model, prompts, 1)
    read, advance = [], model.forward_incremental

    def reading(tokens_BT: torch.Tensor, state: Any) -> Any:
        read.append(tokens_BT)
        return advance(tokens_BT, state)

    monkeypatch.setattr(model, "forward_incremental", reading)
    assert tokens_of(model, prompts, 4) == alone
    assert sum(tokens_BT.shape[1] > 1 for tokens_BT in read) == n_reads


@pytest.mark.parametrize(
    ("family", "strategy"),
    [*((name, "sample") for name in FAMILIES), *((name, "beam") for name in ("decoder", "encoder-decoder", "lstm"))],
)
def test_cached_equals_uncached(family: str, strategy: str) -> None:
    model = model_of(family, torch.float64)
    prompts = prompts_of(model, 5, seed=3)

    def without_cache(prompt: Prompt) -> Any:
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

    if strategy == "beam":
        settings = SamplingParams("beam", max_new_tokens=4, num_beams=3, num_return=3)
        for prompt, texts in zip(prompts, search(model, prompts, settings, end_ids={2}), strict=True):
            expected = reference.beam_search(without_cache(prompt), prompt.tokens, k=3, max_new_tokens=4, end_ids={2})
            assert [tokens for _, tokens in texts] == [tokens for _, tokens in expected]
        return
    found = tokens_of(model, prompts, 16, SamplingParams(max_new_tokens=6, temperature=1.3, top_p=0.9))
    for i, prompt in enumerate(prompts):
        read = [*(prompt.source or ()), *prompt.tokens]
        options: dict[str, Any] = {
            "max_new_tokens": 6,
            "context": model.context,
            "end_ids": {2},
            "read": read,
            "t": 1.3,
            "p": 0.9,
        }
        assert found[i, 0] == reference.continuation(without_cache(prompt), prompt.tokens, **options)[0]
