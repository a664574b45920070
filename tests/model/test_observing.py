"""Observed attention weights of every family; tests/model/test_transformer.py compares them with the plain model."""

import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.model.layers.observing import find_attention_modules, record_attention_weights
from lmtool.recipe.spec.objective import Classification
from tests.support import tiny

ATTENDING = {name: of for name, of in tiny.FAMILIES.items() if "kind" not in of or of.get("attention")}


@pytest.mark.parametrize("name", tiny.of_each_kind(ATTENDING))
@pytest.mark.parametrize("grad", [False, True])
def test_observing_changes_no_output_and_weights_of_a_query_sum_to_one(name: str, grad: bool) -> None:
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


def test_other_families_do_not_attend() -> None:
    for name in tiny.of_each_kind(tiny.FAMILIES.keys() - ATTENDING.keys()):
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
    mean = Classification(kind="classification", task="class", labels=("a", "b"), pool="mean")
    attention = mean.model_copy(update={"pool": "attention"})
    for spec, attending in ((mean, set()), (attention, {"pool"})):
        assert set(find_attention_modules(Classifier(build(of, tiny.VOCAB), spec, of))) == attending
