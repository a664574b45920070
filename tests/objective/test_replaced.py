"""Replaced-token detection: the plain formula, gradients, what is shared and what is saved."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import IGNORE, Batch
from lmtool.errors import RecipeError
from lmtool.model import build
from lmtool.model.transformer import ReplacedTokenDetectorWithGenerator
from lmtool.objective import Example, VocabularyInfo
from lmtool.objective.replaced import DETECTION_ACCURACY, REPLACED_RECALL, ReplacedTokensObjective
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import ReplacedTokens
from lmtool.recipe.spec.recipe import make_generator_spec
from lmtool.recipe.spec.transformer import Transformer
from tests.reference import replaced as reference
from tests.reference.losses import cross_entropy
from tests.support import tiny

V, SPECIALS = 20, 7
PAD, BOS, EOS, MASK, SEP, CLS = 0, 1, 2, 4, 5, 6
VOCABULARY = VocabularyInfo(V, PAD, BOS, EOS, MASK, SEP, CLS, (BOS,), (), frozenset(range(SPECIALS)))
ENCODERS: dict[str, dict[str, Any]] = {
    "bert": tiny.BERT,
    "narrow embeddings": {"shape": "encoder", "embedding_width": 6, "position": {"kind": "sinusoidal"}},
    "shared layers": {"shape": "encoder", "share_layers": True, "position": {"kind": "alibi"}, "activation": "swiglu"},
    "heads without maps": {"shape": "encoder", "mixer": "plain-attention", "position": {"kind": "sinusoidal"}},
}


def objective(**changes: Any) -> ReplacedTokensObjective:
    spec = {"kind": "replaced-tokens", "rate": 0.4, "generator_size": 0.5}
    return ReplacedTokensObjective(ReplacedTokens.model_validate(spec | changes), VOCABULARY)


def detector(encoder: dict[str, Any] = tiny.BERT, **changes: Any) -> Any:
    spec = tiny.spec(**encoder)
    torch.manual_seed(0)
    body: Any = build(spec, V)
    made = ReplacedTokenDetectorWithGenerator(body, objective(**changes).spec, spec).double().eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.4 * drawn if parameter.ndim > 1 else 0.5 + drawn)
    return made


def examples(n: int = 4) -> list[Example]:
    rng = np.random.default_rng(0)
    return [Example(rng.integers(SPECIALS, V, 8 + 3 * (i % 2)), np.random.default_rng(i)) for i in range(n)]


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("share", [True, False])
def test_the_loss_is_that_of_the_paper(name: str, share: bool) -> None:
    own, model = objective(weight=7.0), detector(ENCODERS[name], share_embeddings=share)
    batch: Any = own.collate(examples())
    keep_BT = torch.ones_like(batch.tokens_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT
    total, n_right, n_found, n_replaced, n_kept = 0.0, 0, 0, 0, 0
    for i, keep_T in enumerate(keep_BT):
        n = int(keep_T.sum())
        tokens, targets = batch.tokens_BT[i, :n].tolist(), batch.targets_BT[i, :n].tolist()
        assert [token for token, target in zip(tokens, targets, strict=True) if target != IGNORE] == [MASK] * round(
            0.4 * (n - 2)
        )
        row = Batch(torch.tensor([tokens]))
        logits_TV = model.generator.logits(model.generator(row).hidden_BTD)[0].tolist()
        samples = [reference.drawn(logits_TV[t], float(batch.draws_BT[i, t])) for t in range(n) if targets[t] != IGNORE]
        original = [token if target == IGNORE else target for token, target in zip(tokens, targets, strict=True)]
        read = reference.corrupted(tokens, targets, samples, IGNORE)
        scores = model.detection_logits(model.body(Batch(torch.tensor([read]))).hidden_BTD)[0].tolist()
        n_masked = sum(target != IGNORE for target in targets)
        total += cross_entropy(logits_TV, targets)
        total += 7.0 * n_masked * reference.detection_loss(scores, original, read)
        replaced = [a != b for a, b in zip(original, read, strict=True)]
        n_right += sum((score > 0) == one for score, one in zip(scores, replaced, strict=True))
        n_found += sum(score > 0 and one for score, one in zip(scores, replaced, strict=True))
        n_replaced, n_kept = n_replaced + sum(replaced), n_kept + n
    assert n_replaced
    with torch.no_grad():
        assert float(own.loss(model, batch).total) == pytest.approx(total, rel=1e-6)
        scored = own.score(model, batch)
    assert float(scored.total) == pytest.approx(total, rel=1e-6)
    assert int(scored.count) == own.count_targets(batch) == batch.n_targets
    assert {name: (int(part), n) for name, (part, n) in scored.metrics.items()} == {
        DETECTION_ACCURACY: (n_right, n_kept),
        REPLACED_RECALL: (n_found, n_replaced),
    }


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("share", [True, False])
def test_every_trained_parameter_gets_a_gradient_and_none_is_saved_twice(name: str, share: bool) -> None:
    own, model = objective(), detector(ENCODERS[name], share_embeddings=share)
    idle = set(own.unused_parameters(model))
    torch.autograd.backward(own.loss(model, own.collate(examples())).total)
    for key, parameter in model.named_parameters():
        assert (parameter.grad is None) == (parameter in idle), key
    state = model.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    tables = [key for key, tensor in state.items() if len(tensor) == V and tensor.ndim == 2]
    assert tables == ["body.inputs.tokens.weight", *([] if share else ["generator.inputs.tokens.weight"])]


def test_no_gradient_of_the_detection_reaches_the_generator() -> None:
    """Its samples are data: without shared embeddings its gradient does not depend on the weight."""
    found = []
    for weight in (1.0, 100.0):
        own, model = objective(weight=weight, share_embeddings=False), detector(share_embeddings=False)
        torch.autograd.backward(own.loss(model, own.collate(examples())).total)
        found.append([p.grad.clone() for p in model.generator.parameters() if p.grad is not None])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_validation_is_the_same_each_time_and_training_is_not() -> None:
    own, rows = objective(), [(example.tokens, 1) for example in examples()]
    measured: Any = [own.collate_validation(rows) for _ in range(2)]
    one, two = measured
    assert torch.equal(one.tokens_BT, two.tokens_BT)
    assert torch.equal(one.draws_BT, two.draws_BT)
    again = examples()
    trained: Any = [own.collate(again).draws_BT for _ in range(2)]
    assert not torch.equal(*trained)


def test_the_generator_has_the_layers_and_a_share_of_the_widths() -> None:
    spec = ReplacedTokens(kind="replaced-tokens", generator_size=0.25)
    of = Transformer(kind="transformer", shape="encoder", n_layers=12, d_model=256, n_heads=4, d_ff=1024, context=128)
    made = make_generator_spec(of, spec)
    assert (made.n_layers, made.d_model, made.n_heads, made.head_width, made.d_ff) == (12, 64, 1, 64, 256)
    assert made.embedding_width == 256


def test_a_generator_that_cannot_be_is_a_mistake_of_the_recipe() -> None:
    settings = ("objective.share_embeddings=false", "model.position.kind=sinusoidal", "objective.generator_size=0.026")
    with pytest.raises(RecipeError, match=r"generator_size: 0\.026 does not fit"):
        load("electra-tiny", (*settings, "model.d_model=192", "model.embedding_width=null"))
    with pytest.raises(RecipeError, match="untrained"):
        load("electra-tiny", ("tuning.lora.rank=2",))
