"""The step of one text by kernels in C gives what the model itself gives, for every kind of part that it serves."""

from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.compute.kernels import build
from lmtool.generation.generate import generate
from lmtool.generation.model_runner import ModelRunner
from lmtool.generation.native_step import NativeLayerMatrices, NativeSingleRowStep
from lmtool.generation.params import SamplingParams
from lmtool.model import LanguageModel, fixed
from lmtool.model.packed import pack_weights_
from lmtool.tokenization.prompt_format import Prompt
from tests.support import tiny
from tests.support.tiny import CACHED, FAMILIES, TRANSFORMERS

CPU = torch.device("cpu")
OTHERS = {
    *("disentangled", "global window", "bilinear", "reduced-rank", "additive", "wide additive"),
    *("encoder-decoder, additive", "encoder-decoder, plain attention", "disentangled encoder-decoder"),
    *(name for name in TRANSFORMERS if name.startswith("plain attention")),
    "prefix with windows",
}
"""Transformers with parts that the kernels do not have."""
SERVED = [name for name in CACHED if name in TRANSFORMERS and name not in OTHERS]
WIDE: dict[str, Any] = {"d_model": 64, "n_heads": 4, "d_ff": 96}
"""Whole groups of quantised weights."""

pytestmark = pytest.mark.skipif(build.load_kernels() is None, reason="no C compiler")


def packed(family: str, precision: str = "float32", **changes: Any) -> LanguageModel:
    model = tiny.model(dtype=torch.float32, **{**FAMILIES[family], **changes})
    pack_weights_(model, precision, CPU)
    return model


def prompt_of(model: LanguageModel, n: int = 3) -> Prompt:
    source = tuple(tiny.tokens(5, seed=5).tolist()) if model.reads == "source" else None
    return Prompt(tuple(tiny.tokens(n, seed=n).tolist()), source)


def states(model: LanguageModel, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of n tokens after a few others: by steps, and by the model."""
    source = tiny.tokens(1, 5, seed=5) if model.reads == "source" else None
    tokens = tiny.tokens(1, n + 3)
    runner = ModelRunner(model)
    with torch.inference_mode():
        state = model.initial_state(Batch(tokens[:, :3], source_BS=source))
        _, state = model.forward_incremental(tokens[:, :3], state)
        wanted, _ = model.forward_incremental(tokens[:, 3:], state)
        found = []
        for token in tokens[0, 3:].tolist():
            assert runner._steps.find_or_capture_step(state) is not None
            hidden, state = runner.decode_step_([token], state)
            found.append(hidden)
    return torch.cat(found), wanted[0]


def away(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(SERVED))
def test_states_of_every_kind_of_part_are_those_of_the_model(family: str) -> None:
    assert away(*states(packed(family), 12)) < 1e-4


@pytest.mark.parametrize(
    ("family", "precision", "most"), [("gpt2", "bfloat16", 0.1), ("neox", "int8", 0.05), ("modern", "int4", 0.05)]
)
def test_the_states_in_every_precision(family: str, precision: str, most: float) -> None:
    """Rounded inputs of products differ between the kernels and the model, by as much as the type rounds."""
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
        assert away(*states(packed(family, precision, **WIDE), 12)) < most


def test_other_parts_and_weights_that_may_change_are_computed_as_before() -> None:
    for family in sorted(OTHERS):
        assert NativeLayerMatrices.from_model_if_supported(packed(family)) is None, family
    for family in ("gpt2", "lstm"):
        assert NativeLayerMatrices.from_model_if_supported(tiny.model(dtype=torch.float32, **FAMILIES[family])) is None


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("rotary", SamplingParams("greedy", max_new_tokens=40)),
        ("t5", SamplingParams(max_new_tokens=40, top_k=5)),
        ("window", SamplingParams("beam", num_beams=3, max_new_tokens=12)),
    ],
)
def test_a_text_by_kernels_is_that_of_the_model(
    monkeypatch: pytest.MonkeyPatch, family: str, settings: SamplingParams
) -> None:
    """Through several sizes of the cache, sliding windows, texts that join and leave, and hypotheses that share one."""
    monkeypatch.setattr(fixed, "MIN_SLOTS", 8)
    monkeypatch.setattr(fixed, "SOURCE_LENGTH_MULTIPLE", 4)

    def written(rows: int) -> list[Any]:
        model = packed(family, context=20)
        prompts = [prompt_of(model, n) for n in (3, 6, 2)]
        texts = generate(model, prompts, settings, max_rows=rows, end_ids={4}, n=1)
        return sorted((event.request, event.id) for event in texts)

    found = [written(1), written(2)]
    monkeypatch.setattr(NativeLayerMatrices, "from_model_if_supported", lambda model: None)
    assert found == [written(1), written(2)]


def test_a_padded_source_is_read_by_kernels_as_by_the_model() -> None:
    model = packed("t5")
    tokens, keep = tiny.padded([[3, 4, 5], [6]])
    runner = ModelRunner(model)
    with torch.inference_mode():
        state = model.initial_state(Batch(tiny.tokens(2, 3), source_BS=tokens, source_keep_BS=keep))
        _, state = model.forward_incremental(tiny.tokens(2, 3), state)
        for row in range(2):
            wanted, _ = model.forward_incremental(torch.tensor([[8]]), state.select_rows([row]))
            assert away(runner.decode_step_([8], state.select_rows([row]))[0], wanted[0]) < 1e-4


def test_without_kernels_the_model_steps(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name, value, told in (("LMTOOL_NATIVE", "0", ""), ("PATH", "", "no C compiler")):
        build.load_kernels.cache_clear()
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            patch.delenv("CC", raising=False)
            assert build.load_kernels() is None
            assert NativeLayerMatrices.from_model_if_supported(packed("gpt2")) is None
            assert told in caplog.text
    build.load_kernels.cache_clear()


def test_a_state_grows_in_the_type_of_the_model() -> None:
    """So that in a batch keys and values are not converted at each step."""
    model = packed("modern", "bfloat16", **WIDE)
    runner = ModelRunner(model)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        _, state = model.forward_incremental(tiny.tokens(1, 3), model.initial_state(Batch(tiny.tokens(1, 3))))
        before = state.dtype
        for token in (3, 4):
            _, state = runner.decode_step_([token], state)
        assert (before, state.dtype, state.to_growable().dtype) == (torch.bfloat16, torch.float32, torch.bfloat16)


def test_a_step_that_differs_is_not_taken(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def written(model: LanguageModel) -> list[int]:
        params = SamplingParams("greedy", max_new_tokens=9)
        return [event.id for event in generate(model, [Prompt((3, 4))], params)]

    wanted = written(packed("alibi"))
    assert not caplog.text
    call = NativeSingleRowStep.__call__
    monkeypatch.setattr(NativeSingleRowStep, "__call__", lambda self, tokens: 1.2 * call(self, tokens))
    model = packed("alibi")
    assert written(model) == written(model) == wanted
    assert "differs from the model's by 20 %" in caplog.text
