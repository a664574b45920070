"""Lion against the formula of its paper, which matrices it decays, and how much memory it is counted for."""

import pytest
import torch

from lmtool.compute.device import CPU
from lmtool.model import LanguageModel
from lmtool.recipe.spec.training import AdamW, Lion  # type: ignore[attr-defined]
from lmtool.training.optimizer import Optimizers
from tests.support import tiny

SPEC = Lion(kind="lion", lr=0.01, beta1=0.8, beta2=0.6, weight_decay=2.0)


def sign(x: float) -> int:
    return (x > 0) - (x < 0)


def test_steps_equal_the_formula_of_the_paper() -> None:
    """Number by number: w = w - lr (sign(b1 m + (1 - b1) g) + decay w), then m = b2 m + (1 - b2) g."""
    model = tiny.model(n_layers=1)
    optimizers = Optimizers(SPEC, model, CPU)
    before = {name: p.detach().flatten().tolist() for name, p in model.named_parameters()}
    momentum = {name: [0.0] * len(numbers) for name, numbers in before.items()}
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        for name, p in model.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            decay = 2.0 if p.ndim > 1 else 0.0
            for i, slope in enumerate(p.grad.flatten().tolist()):
                w, m = before[name][i], momentum[name][i]
                before[name][i] = w - 0.01 * (sign(0.8 * m + 0.2 * slope) + decay * w)
                momentum[name][i] = 0.6 * m + 0.4 * slope
        optimizers.clip_and_step(1.0, 1.0, None, step)
        for name, p in model.named_parameters():
            assert p.detach().flatten().tolist() == pytest.approx(before[name], rel=1e-12), name


def step_at_random(model: LanguageModel, optimizers: Optimizers, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator, dtype=p.dtype)
    optimizers.clip_and_step(1.0, 1.0, None, step)


def test_its_state_is_kept_and_taken_over() -> None:
    one, two = tiny.model(), tiny.model()
    kept, other = Optimizers(SPEC, one, CPU), Optimizers(SPEC, two, CPU)
    for step in range(4):
        step_at_random(one, kept, step)
        step_at_random(two, other, step)
        other = Optimizers(SPEC, two, CPU)
        other.load_state(kept.state_tensors(), step + 1)
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), two.parameters(), strict=True))


def test_it_keeps_half_of_what_adam_keeps() -> None:
    assert 2 * SPEC.count_states(1000, 10) == AdamW().count_states(1000, 10)
