"""How many steps a run takes that is given epochs, tokens or minutes."""

import itertools
import math
import time
from dataclasses import replace
from typing import Any

import pytest

from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training import length
from lmtool.training.events import Plan, Resized, Stepped
from lmtool.training.fit import fit
from lmtool.training.schedule import Pace
from tests.training.tiny import Work, ended, words

WORD_VECTORS = {
    "skip-gram": ("model={kind: skipgram, d_model: 8}", "objective={kind: skip-gram}"),
    "cbow": ("model={kind: skipgram, d_model: 8}", "objective={kind: cbow}"),
    "glove": ("model={kind: glove, d_model: 8}", "objective={kind: glove}"),
}


def recipe_of(work: Work) -> Any:
    return load(work.run() / "recipe.yaml").recipe


@pytest.mark.parametrize(
    ("budget", "expected"),
    [
        # windows of 16 tokens, 8 to a step
        ("training.epochs=2", lambda n: math.ceil(2 * (n // 16) / 8)),
        ("training.tokens=2000", lambda n: math.ceil(2000 / (8 * 16))),
    ],
)
def test_epochs_and_tokens(work: Work, budget: str, expected: Any) -> None:
    text = words(2000)
    work.text.write_text(text)
    told = work.pretrain(budget, "data.split=slice", "data.valid_fraction=0.1")
    n_tokens = int(0.9 * len(text)) if text.isascii() else len(text[: int(len(text) * 0.9)])
    assert abs(ended(told).step - expected(n_tokens)) <= 1
    kept = recipe_of(work)
    assert kept.training.steps == ended(told).step
    assert not kept.training.has_budget
    assert kept.schedule.warmup_steps == min(3, math.ceil(kept.training.steps / 10))
    assert kept.evaluation.every <= math.ceil(kept.training.steps / length.VALIDATIONS)


def test_of_several_the_first_to_end_counts(work: Work) -> None:
    few = ended(work.pretrain("training.tokens=640", name="few")).step
    both = ended(work.pretrain("training.tokens=640", "training.epochs=50", name="both")).step
    assert (few, both) == (5, 5)


def test_minutes_follow_from_the_measured_speed(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a tenth of a second leaves half a minute for at most 300."""
    now = itertools.count(0, 0.001)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    real = fit

    def slow(*args: Any, **options: Any) -> Any:
        for step in real(*args, **options):
            yield replace(step, seconds=1.0 if step.step <= 2 else 0.1)

    monkeypatch.setattr(length, "fit", slow)
    told = work.pretrain("training.minutes=0.5", "training.compile=false")
    assert 280 <= ended(told).step <= 300
    (line,) = [line for line in told[0].data if line.startswith("length")]
    assert "0.5 minutes at 1,280 tokens/s" in line


def test_a_run_with_a_time_is_reproduced_by_its_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained to measure the speed leaves no trace."""
    planned(monkeypatch, 9)
    cosine = "schedule={kind: cosine, warmup_steps: 0}"
    timed = work.pretrain("training.minutes=1", cosine, "evaluation.every=3", name="timed")
    plain = work.pretrain("training.steps=9", cosine, "evaluation.every=1", name="plain")
    assert ended(timed).best_value == ended(plain).best_value


def planned(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs with a time are planned with so many steps."""
    real = length._measure
    monkeypatch.setattr(length, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(length, "_measure", lambda *args: real(*args)._replace(steps=steps))


@pytest.mark.parametrize("last", [14, 60])
def test_the_length_follows_the_speed(work: Work, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """The weights are those of a run that was planned with so many steps, and its recipe says how many."""
    asked = []

    def steps(pace: Pace, recipe: Recipe, done: int, began: float) -> int:
        asked.append(done)
        return last if len(asked) == 2 else recipe.training.steps

    planned(monkeypatch, 24)
    monkeypatch.setattr(Pace, "steps", steps)
    schedule = "schedule={kind: linear, warmup_steps: 2, decay_fraction: 0.5}"
    told = work.pretrain("training.minutes=1", schedule, name="timed")
    assert asked[:2] == [2, 4]
    assert [event.steps for event in told if isinstance(event, Resized)] == [last]
    kept = load(work.run("timed") / "recipe.yaml").recipe
    assert (kept.training.steps, kept.evaluation.every) == (last, math.ceil(last / 12))
    assert ended(told).step == last
    monkeypatch.undo()
    plain = work.pretrain(f"training.steps={last}", schedule, f"evaluation.every={last}", name="plain")
    validated = {event.step.step: event.validation for event in told if isinstance(event, Stepped)}
    assert validated[last] is not None
    assert validated[last].loss == ended(plain).best_value


def test_it_is_resumed_with_the_same_steps(work: Work) -> None:
    told = work.pretrain("training.tokens=1280", stop=lambda: True)
    assert ended(told).step == 1
    assert ended(work.resume()).step == 10
    assert ended(work.resume("training.steps=+2")).step == 12


@pytest.mark.parametrize("kind", WORD_VECTORS)
@pytest.mark.parametrize("budget", ["training.epochs=2", "training.minutes=0.01"])
def test_word_vectors_have_a_length_too(work: Work, kind: str, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "PROBE_SECONDS", 0.1)
    work.text.write_text(words(2000))
    told = work.pretrain(*WORD_VECTORS[kind], "tokenizer={kind: word, vocab_size: 50}", "training.batch_size=1", budget)
    assert ended(told).step == recipe_of(work).training.steps
    if "epochs" in budget:
        assert [event.epochs for event in told if isinstance(event, Plan)] == [2]
