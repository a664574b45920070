"""How many steps a run takes that is given epochs, tokens or minutes."""

import itertools
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.processes import World
from lmtool.recipe.load import Setting, load, parse_settings
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.directory import Run
from lmtool.runs.reference import read_verified_tokenizer
from lmtool.runs.uncertainty import N_FOLDS
from lmtool.tasks.prepare import open_training_tables, read_and_encode_tables
from lmtool.training import finetuning, folds, length, session
from lmtool.training.data import tokenize_training_text
from lmtool.training.events import DurationEstimate, StepCompleted, StepCountChanged, TrainingStarted
from lmtool.training.fit import fit
from lmtool.training.folds import MAX_FOLD_TRAINED_ROWS
from tests.support.errors import refuses
from tests.support.families import BERT
from tests.support.training import Work, after, ended, no_report, of_kind, words, write_table

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
        ("training.tokens=2000 training.epochs=50", lambda n: math.ceil(2000 / (8 * 16))),
    ],
)
def test_epochs_and_tokens_decide_on_the_steps(work: Work, budget: str, expected: Any) -> None:
    """Of several, the first to end counts."""
    text = words(2000)
    work.text.write_text(text)
    told = work.pretrain(*budget.split(), "data.split=slice", "data.valid_fraction=0.1")
    assert abs(ended(told).step - expected(int(0.9 * len(text)))) <= 1
    kept = recipe_of(work)
    assert kept.training.steps == ended(told).step
    assert not kept.training.has_budget
    assert kept.schedule.warmup_steps == min(3, math.ceil(kept.training.steps / 10))
    assert kept.evaluation.every <= math.ceil(kept.training.steps / length.N_VALIDATIONS)


def planned(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs with a time are planned with so many steps, after the first one."""
    monkeypatch.setattr(length, "MAX_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(length, "MIN_PROBE_STEPS", 1)
    monkeypatch.setattr(length.MeasuredDurations, "count_steps_within", lambda *_: steps - 1)
    monkeypatch.setattr(length, "count_steps_by_deadline", lambda recipe, *_: recipe.training.steps)


@pytest.mark.parametrize("budget", ["training.tokens=1280", "training.minutes=0.02"])
def test_a_run_that_is_stopped_at_once_knows_its_length_and_goes_on_by_it(work: Work, budget: str) -> None:
    assert ended(work.pretrain(budget, stop=lambda: True)).step == 1
    kept = recipe_of(work)
    assert not kept.training.has_budget
    assert ended(work.resume()).step == kept.training.steps
    assert kept.training.steps == 10 or "minutes" in budget


@pytest.mark.parametrize("last", [14, 36])
def test_the_length_follows_the_speed(work: Work, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """The weights are those of a run that was planned with so many steps, and its recipe says how many."""
    asked = []

    def steps(recipe: Recipe, done: int, *limits: float) -> int:
        asked.append(done)
        return last if len(asked) == 2 else recipe.training.steps

    planned(monkeypatch, 24)
    monkeypatch.setattr(length, "count_steps_by_deadline", steps)
    schedule = "schedule={kind: linear, warmup_steps: 2, decay_fraction: 0.5}"
    told = work.pretrain("training.minutes=1", schedule, name="timed")
    assert asked[:2] == [2, 4]
    assert [event.steps for event in of_kind(told, StepCountChanged)] == [24, last]
    kept = load(work.run("timed") / "recipe.yaml").recipe
    assert (kept.training.steps, kept.evaluation.every) == (last, math.ceil(last / 12))
    assert ended(told).step == last
    monkeypatch.undo()
    plain = work.pretrain(f"training.steps={last}", schedule, f"evaluation.every={last}", name="plain")
    (validated,) = (event.validation for event in of_kind(told, StepCompleted) if event.step.step == last)
    assert validated is not None
    assert validated.loss == ended(plain).best_value


def test_pairs_of_sentences_are_validated_also_when_the_length_has_changed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, 6)
    monkeypatch.setattr(length, "count_steps_by_deadline", lambda *_: 4)
    told = work.pretrain("training.minutes=1", *BERT, "evaluation.every=1")
    assert [event.steps for event in of_kind(told, StepCountChanged)] == [6, 4]
    validated = [event.validation for event in of_kind(told, StepCompleted)]
    assert [set(one.metrics) for one in validated if one is not None] == [{"next-sentence-accuracy"}] * 4


@pytest.mark.parametrize(
    ("kind", "budget"),
    [("skip-gram", "training.minutes=0.005"), ("cbow", "training.epochs=2"), ("glove", "training.steps=5")],
)
def test_word_vectors_have_a_length_but_for_lone_words(
    work: Work, kind: str, budget: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list of names has no pairs of words; as one text it has."""
    monkeypatch.setattr(length, "MAX_PROBE_SECONDS", 0.03)
    work.text.write_text("".join(f"{name}\n" for name in words(600).split()))
    settings = (*WORD_VECTORS[kind], "tokenizer={kind: word, vocab_size: 50}", "training.batch_size=1", budget)
    with refuses("data") as refused:
        work.pretrain(*settings)
    assert "data.documents=whole" in refused.value.fix
    assert not work.run().exists()
    told = work.pretrain(*settings, "data.documents=whole")
    assert ended(told).step == recipe_of(work).training.steps
    if "epochs" in budget:
        assert [event.epochs for event in of_kind(told, TrainingStarted)] == [2]


@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
def test_steps_without_pairs_have_no_speed(work: Work, kind: str) -> None:
    """Few documents have two words, so that the steps that are measured may have no pairs."""
    lines = [f"{word} {word}\n" if n in (7, 195, 199) else f"{word}\n" for n, word in enumerate(words(200).split())]
    work.text.write_text("".join(lines))
    valid = work.folder / "valid.txt"
    valid.write_text(words(50))
    settings = ("tokenizer={kind: word, vocab_size: 50}", "training.steps=5", "training.batch_size=1")
    assert ended(work.pretrain(*WORD_VECTORS[kind], *settings, "model.context=8", valid=valid)).step == 5


# How long it takes is told by the first steps


def pairs_of_any_length(work: Work) -> Path:
    """Questions of one word to thirty, and answers."""
    rows = (f"{words(1 + 29 * i // 120, i)},{words(1 + i % 5, i)}" for i in range(120))
    return write_table(work.folder / "pairs.csv", rows, "prompt,answer")


def charged(monkeypatch: pytest.MonkeyPatch, per_token: float) -> None:
    """Steps take so many seconds for each token."""
    real = fit

    def slow(*args: Any, **options: Any) -> Any:
        for step in real(*args, **options):
            yield replace(step, seconds=per_token * step.n_computed)

    monkeypatch.setattr(session, "fit", slow)


def test_the_time_of_rows_of_any_length_is_that_of_all_of_them(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    charged(monkeypatch, 0.01)
    monkeypatch.setattr(length, "FORWARD_FRACTION", 0.0)
    parts = ("model.context=256", "model.shape=encoder-decoder", "objective.kind=seq2seq", "tokenizer.kind=char")
    events = work.learn_table(work.recipe, pairs_of_any_length(work), *parts, "training.steps=30")
    (told,) = of_kind(events, DurationEstimate)
    steps = [event.step.n_computed for event in of_kind(events, StepCompleted)]
    assert told.seconds == pytest.approx(0.01 * sum(steps[-told.steps :]), rel=0.15)


def test_validations_take_the_time_of_computing_their_tokens(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of what training on as many takes: a backward pass is two forward ones."""
    charged(monkeypatch, 0.01)
    monkeypatch.setattr(length, "MIN_PROBE_STEPS", 1)
    settings = ("evaluation.every=4", "evaluation.tokens=32")
    (first,) = of_kind(work.pretrain(*settings, stop=after(5)), DurationEstimate)
    # eleven more steps of 8 rows of 16 tokens, and three validations of 32
    assert first.steps == 11
    assert first.seconds == pytest.approx(11 * 1.28 + 3 * 0.32 / 3)
    # of which one is over
    (again,) = of_kind(work.resume(), DurationEstimate)
    assert again.steps == 6
    assert again.seconds == pytest.approx(6 * 1.28 + 2 * 0.32 / 3)


def test_a_speed_counts_what_is_computed(work: Work) -> None:
    """All the tokens of the rows, padded to the longest of them, also where few of them have a loss."""
    rows = (f"abc{i % 10}{'z' * (i % 8 == 0)},{'ab'[i % 2]}" for i in range(80))
    table = write_table(work.folder / "even.csv", rows)
    events = work.learn_table(work.recipe, table, "objective.kind=classification", "training.batch_size=72")
    tokenizer = read_verified_tokenizer(Run.open(work.run()))
    _, data = read_and_encode_tables(recipe_of(work), open_training_tables(recipe_of(work).data), tokenizer, None)
    longest = max(len(row.tokens) for row in data.tasks[0].train)
    assert {event.step.n_computed for event in of_kind(events, StepCompleted)} == {72 * longest}
    masked = work.pretrain("model.shape=encoder", "objective.kind=masked", name="masked")
    assert {event.step.n_computed for event in of_kind(masked, StepCompleted)} == {8 * 16}


# Tables have minutes too


def labelled_rows(n: int) -> list[str]:
    return [f"the cat {words(i % 7)} {'ran home' if i % 2 else 'sat'},{'ab'[i % 2]}" for i in range(n)]


@pytest.mark.parametrize(
    ("held_out", "n_rows", "times"), [(0.1, 60, 1), (0, 60, 1 + N_FOLDS), (0, MAX_FOLD_TRAINED_ROWS + 20, 2)]
)
def test_minutes_of_a_table_follow_from_the_measured_speed(
    work: Work, monkeypatch: pytest.MonkeyPatch, held_out: float, n_rows: int, times: int
) -> None:
    """Where no rows are held out, a model is trained for each fold of few rows, and one for a quarter of many."""
    work.pretrain("training.steps=2", name="base")
    charged(monkeypatch, 0.01)
    monkeypatch.setattr(length, "FORWARD_FRACTION", 0.0)
    monkeypatch.setattr(length, "count_steps_by_deadline", lambda recipe, *_: recipe.training.steps)
    now = itertools.count(0, 0.001)  # a clock by which nothing takes longer than milliseconds
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    table = write_table(work.folder / "table.csv", labelled_rows(n_rows))
    settings = ("schedule={kind: cosine, warmup_steps: 0}", "evaluation.patience=null", "training.minutes=1")
    told = work.finetune(*settings, f"data.valid_fraction={held_out}", source=work.run("base"), table=table)
    computed = sum(event.step.n_computed for event in of_kind(told, StepCompleted))
    assert 0.01 * times * computed == pytest.approx(60, rel=0.2)
    assert of_kind(told, StepCountChanged)


def test_models_that_score_rows_have_the_schedule_of_the_run(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where time limits it, so that its steps are not those of its recipe."""
    lengths = []

    def noted(trainable: Any, examples: Any, recipe: Recipe, *others: Any, **options: Any) -> Any:
        lengths.append(recipe.training.steps)
        return fit(trainable, examples, recipe, *others, **options)

    work.pretrain("training.steps=2", name="base")
    planned(monkeypatch, 6)
    monkeypatch.setattr(folds, "fit", noted)
    told = work.finetune("training.minutes=1", "data.valid_fraction=0", source=work.run("base"), name="scored")
    assert ended(told).step == 6
    assert set(lengths) == {6}


@pytest.mark.parametrize("key", ["training.steps=9", "training.minutes=5"])
def test_steps_or_minutes_of_a_table_take_the_place_of_epochs(work: Work, key: str) -> None:
    """No passes of the rule, or of the recipe, end it before."""
    work.pretrain("training.steps=2", name="base")
    flags = [Setting("data.train", [str(pairs_of_any_length(work))], "TABLE")]

    def epochs(*settings: str) -> float | None:
        plan = finetuning.plan_finetuning(str(work.run("base")), None, parse_settings(settings, flags))
        return plan.resolved.recipe.training.epochs

    assert epochs(key) is None
    assert epochs(key, "training.epochs=3") == 3
    assert epochs() is not None
    assert load("dan", [key]).recipe.training.epochs is None


# Less than a pass


@pytest.mark.parametrize("step_seconds", [0.02, 1.0, 300.0])
@pytest.mark.parametrize("validation", [0.0, 2.0])
def test_the_minutes_that_are_named_are_enough_for_a_pass(
    work: Work, monkeypatch: pytest.MonkeyPatch, step_seconds: float, validation: float
) -> None:
    work.text.write_text(words(3000))
    for settings in (("training.steps=1",), ("training.minutes=0.0001",), ("training.tokens=200",)):
        resolved = load(work.recipe, [*settings, Setting("data.train", [str(work.text)], "TEXT")])
        read, data = tokenize_training_text(resolved.recipe, None, World(), no_report)
        speed = length.MeasuredDurations("token", step_seconds, 128.0, validation, 5.0)
        recipe, _ = length.set_steps_from_data(read, data)
        if recipe.training.minutes is not None:
            recipe = length.fix_steps_and_intervals(recipe, 1)
        monkeypatch.setattr(time, "perf_counter", lambda: 3.0)

        new, resumed = (length.RunLengthController(read, data, World(), started) for started in (0.0, None))
        new.durations = resumed.durations = speed
        minutes = new.estimate_duration(recipe, 0, data.examples_per_epoch).pass_minutes
        assert minutes is not None
        whole = math.ceil(data.examples_per_epoch / 8)
        steps = speed.count_steps_within(60 * minutes - 3.0 - 5.0, resolved.recipe.evaluation.every)
        assert whole <= steps
        # no more than it takes, where minutes are not too coarse to say it
        if step_seconds >= 1:
            assert steps <= 1.2 * whole
        longer = length.fix_steps_and_intervals(recipe, steps)
        assert new.estimate_duration(longer, 0, data.examples_per_epoch).pass_minutes is None
        assert resumed.estimate_duration(recipe, 1, data.examples_per_epoch).pass_minutes is None
