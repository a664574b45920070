"""Learning rates against their formulas, at every step."""

import json
import time
from typing import Any

import pytest
from pydantic import TypeAdapter

from lmtool.recipe.load import load
from lmtool.recipe.spec.training import Schedule
from lmtool.training.length import count_steps_by_deadline, min_total_steps_keeping_schedule
from lmtool.training.schedule import learning_rate_factor, tiny_inverse_sqrt_rate_warning
from tests.reference import schedules as reference


def rates(steps: int, d_model: int = 64, **fields: Any) -> list[float]:
    spec: Schedule = TypeAdapter(Schedule).validate_python(fields)
    return [learning_rate_factor(spec, step, steps, d_model) for step in range(steps)]


SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"kind": "constant", "warmup_steps": 3},
    "linear": {"kind": "linear", "warmup_steps": 3},
    "plateau": {"kind": "linear", "warmup_steps": 3, "decay_fraction": 0.6},
    "cosine": {"kind": "cosine", "warmup_steps": 3},
    "roots": {"kind": "inverse-square-root", "warmup_steps": 3},
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("done", [1, 3, 4, 16, 39])
def test_the_shortest_run_with_the_same_steps(name: str, done: int) -> None:
    """Bit for bit: with fewer steps in all a rate differs, with as many or more none does."""
    recipe = load("tiny", [f"schedule={json.dumps(SCHEDULES[name])}", "training.steps=40"]).recipe
    found = min_total_steps_keeping_schedule(recipe, done)
    before = rates(40, **SCHEDULES[name])[:done]
    if found is None:
        assert rates(80, **SCHEDULES[name])[: done + 1] != rates(40, **SCHEDULES[name])[: done + 1]
        return
    assert done <= found <= 40
    for steps in (found, found + 1, 41, 400):
        assert rates(steps, **SCHEDULES[name])[:done] == before
    if found > done:
        assert rates(found - 2, **SCHEDULES[name])[: done + 1] != rates(400, **SCHEDULES[name])[: done + 1]


def test_what_depends_on_the_share_of_training_done_has_no_other_length() -> None:
    sampled = "objective={kind: causal, scheduled_sampling: {}}"
    recipe = load("tiny", ["schedule={kind: constant}", "training.steps=40", sampled]).recipe
    assert min_total_steps_keeping_schedule(recipe, 5) is None


def test_the_pace_follows_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps in 20 s: 100 s hold 50; never fewer than those whose rates were the same, nor more than allowed."""
    monkeypatch.setattr(time, "perf_counter", lambda: 20.0)

    def steps(until: float, planned: int, most: int = 10**9) -> int:
        schedule = "{kind: linear, warmup_steps: 5, decay_fraction: 0.5}"
        recipe = load("tiny", [f"schedule={schedule}", f"training.steps={planned}"]).recipe
        return count_steps_by_deadline(recipe, 10, 0.0, until, most)

    assert steps(100.0, 30) == steps(100.0, 200) == 50
    assert steps(100.0, 49) == 49
    assert steps(21.0, 30) == 15
    assert steps(100.0, 30, most=35) == 35
    assert steps(100.0, 14) == 14


def test_an_inverse_square_root_at_the_rate_of_another_schedule_is_doubted() -> None:
    def told(lr: float, kind: str = "inverse-square-root") -> str | None:
        overrides = [f"optimizer.lr={lr}", f"schedule={{kind: {kind}, warmup_steps: 400}}", "model.d_model=64"]
        return tiny_inverse_sqrt_rate_warning(load("transformer-tiny", overrides).recipe)

    assert f"{1e-3 * reference.inverse_square_root(400, 64, 400):.2g} at most; take" in (told(1e-3) or "")
    assert told(1.0) is told(1e-3, "cosine") is None


sizes = pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (2, 0), (7, 1), (20, 19), (100, 10)])


@sizes
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_linear(steps: int, warmup: int, final: float) -> None:
    """Also after a plateau, and a plateau that never ends."""
    wanted = [reference.linear(t, steps, warmup, final) for t in range(1, steps + 1)]
    assert rates(steps, kind="linear", warmup_steps=warmup, final_fraction=final) == pytest.approx(wanted)
    for share in (0.01, 0.3, 0.6, 1.0):
        wanted = [reference.plateau(t, steps, warmup, final, share) for t in range(1, steps + 1)]
        found = rates(steps, kind="linear", warmup_steps=warmup, final_fraction=final, decay_fraction=share)
        assert found == pytest.approx(wanted)
    wanted = [reference.constant(t, warmup) for t in range(1, steps + 1)]
    assert rates(steps, kind="constant", warmup_steps=warmup) == pytest.approx(wanted)


@sizes
@pytest.mark.parametrize("final", [0.0, 0.1, 1.0])
def test_cosine(steps: int, warmup: int, final: float) -> None:
    wanted = [reference.cosine(t, steps, warmup, final) for t in range(1, steps + 1)]
    assert rates(steps, kind="cosine", warmup_steps=warmup, final_fraction=final) == pytest.approx(wanted)


@pytest.mark.parametrize(("steps", "warmup", "d_model"), [(1, 1, 1), (50, 1, 64), (200, 20, 512), (1, 20, 64)])
def test_inverse_square_root(steps: int, warmup: int, d_model: int) -> None:
    wanted = [reference.inverse_square_root(t, d_model, warmup) for t in range(1, steps + 1)]
    found = rates(steps, d_model, kind="inverse-square-root", warmup_steps=warmup)
    assert found == pytest.approx(wanted)
    assert found.index(max(found)) == min(warmup, steps) - 1
