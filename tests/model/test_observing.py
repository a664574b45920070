"""Observed attention weights: those of the plain model, of every family, and nothing else changes."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.model.layers.observing import find_attention_modules, record_attention_weights
from lmtool.recipe.spec.objective import Classification
from tests.reference import attention as plain_attention
from tests.reference import transformer as reference
from tests.support import tiny
from tests.support.cases import nightly_but

CPU = torch.device("cpu")
ATTENDING = {name: of for name, of in tiny.FAMILIES.items() if "kind" not in of or of.get("attention")}
LEARNED = ("bilinear", "reduced-rank", "additive")
PLAIN = {name: of for name, of in tiny.TRANSFORMERS.items() if of.get("score") not in LEARNED}
SOURCE = [3, 1, 4, 1]


@pytest.mark.parametrize(
    "changes", nightly_but(PLAIN.values(), 0, 4, 8, 12, 16, 20, 25, 31, 35, 39, 43, 48, 52, 56, 60), ids=PLAIN.keys()
)
def test_equal_those_of_the_plain_model(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each layer in the order of computation: self-attention of an encoder, then of a decoder, and across."""
    wanted: list[Any] = []
    by_loops = reference.attention_weights

    def kept(*arguments: Any) -> Any:
        wanted.append(by_loops(*arguments))
        return wanted[-1]

    monkeypatch.setattr(reference, "attention_weights", kept)
    spec, model = tiny.spec(**changes), tiny.model(**changes)
    tokens_BT = tiny.tokens(1, 6)
    plain, row = tiny.as_reference(model, spec), tokens_BT[0].tolist()
    with torch.no_grad(), record_attention_weights(model) as found:
        tiny.read(model, tokens_BT, [SOURCE])
    match spec.shape:
        case "decoder":
            plain.causal(row)
        case "prefix":
            plain.prefix([*SOURCE, *row], len(SOURCE))
        case "encoder-decoder":
            plain.answer(SOURCE, row)
        case "encoder":
            plain.both_sides(row)
    assert len(found) == len(wanted)
    for weights_BNTS, one in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(weights_BNTS[0], one, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", tiny.mark_all_but_kinds_nightly(ATTENDING))
@pytest.mark.parametrize("grad", nightly_but([False, True], 0))
def test_nothing_else_changes_and_rows_sum_to_one(name: str, grad: bool) -> None:
    """Bit for bit, in float32; a recurrent decoder has no past state at its first position."""
    model = tiny.model(dtype=torch.float32, **ATTENDING[name])
    tokens_BT = tiny.tokens(2, 7)
    with torch.set_grad_enabled(grad):
        before = tiny.read(model, tokens_BT)
        with record_attention_weights(model) as found:
            during = tiny.read(model, tokens_BT)
        after = tiny.read(model, tokens_BT)
    assert torch.equal(before, during)
    assert torch.equal(before, after)
    assert set(found) == set(find_attention_modules(model))
    for weights_BNTS in found.values():
        assert weights_BNTS.dtype == torch.float32
        sums_BNT = weights_BNTS.detach().sum(-1)
        if "memor" in name:
            assert not sums_BNT[:, :, 0].any()
            sums_BNT = sums_BNT[:, :, 1:]
        torch.testing.assert_close(sums_BNT, torch.ones_like(sums_BNT))


@pytest.mark.parametrize("name", [name for name in tiny.FAMILIES if name not in ATTENDING])
def test_other_families_do_not_attend(name: str) -> None:
    assert find_attention_modules(tiny.model(**tiny.FAMILIES[name])) == {}


def test_observed_is_the_precision_of_scores_under_autocast() -> None:
    model = tiny.model(dtype=torch.float32, **tiny.TRANSFORMERS["additive"])
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16), record_attention_weights(model) as found:
        tiny.read(model, tiny.tokens(1, 6))
    for weights_BNTS in found.values():
        torch.testing.assert_close(weights_BNTS.sum(-1), torch.ones_like(weights_BNTS[..., 0]), rtol=1e-6, atol=1e-6)


def test_steps_of_a_decoder_are_successive_queries() -> None:
    model = tiny.model(**tiny.FAMILIES["bahdanau"])
    tokens_BT = tiny.tokens(2, 5)
    with torch.no_grad():
        with record_attention_weights(model) as whole:
            tiny.read(model, tokens_BT)
        with record_attention_weights(model) as stepwise:
            state = tiny.start(model, 2)
            for t in range(5):
                _, state = model.forward_incremental(tokens_BT[:, t : t + 1], state)
    (wanted,), (found,) = whole.values(), stepwise.values()
    assert wanted.shape[2] == 5
    torch.testing.assert_close(found, wanted)


def test_nobody_observes_after_an_error() -> None:
    model = tiny.model()
    with pytest.raises(IndexError), record_attention_weights(model):
        model(Batch(torch.tensor([[tiny.VOCAB + 5]])))
    assert all(part.observer is None for part in find_attention_modules(model).values())


def test_a_pool_of_another_kind_does_not_attend() -> None:
    of = tiny.any_spec(**tiny.FAMILIES["elmo"])
    for pool, attends in (("mean", False), ("attention", True)):
        spec = Classification(kind="classification", task="class", labels=("a", "b"), pool=pool)
        model = Classifier(build(of, tiny.VOCAB), spec, of).eval()
        assert set(find_attention_modules(model)) == ({"pool"} if attends else set())


def test_windows_of_a_model_are_those_of_its_pattern() -> None:
    """A row that is long enough for blocks, in a Longformer with a global token."""
    changes = tiny.TRANSFORMERS["longformer"] | {"context": 200, "position": {"kind": "sinusoidal"}}
    pattern = tiny.spec(**changes).pattern
    model = tiny.model(dtype=torch.float32, **changes)
    with torch.no_grad(), record_attention_weights(model) as found:
        model(Batch(tiny.tokens(1, 180)))
    for weights_BNTS in found.values():
        for t in (0, 1, 100, 179):
            seen = [s for s in range(180) if plain_attention.in_window(t, s, pattern.size, 1, pattern.global_tokens)]
            assert weights_BNTS[0, 0, t].nonzero()[:, 0].tolist() == seen
