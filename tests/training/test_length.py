"""How many steps a run takes that is given epochs, tokens or minutes."""

import itertools
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.errors import DataError
from lmtool.inference import perplexity
from lmtool.inference.base import read_tokenizer
from lmtool.inference.evaluation import Evaluated, Items, evaluate
from lmtool.inference.load import Initialization, build_for_training
from lmtool.objective import build_objective
from lmtool.recipe.load import Setting, load, settings_of
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.directory import Run
from lmtool.tables.prepare import open_tables, read_tables
from lmtool.tables.tasks import task
from lmtool.training import data as text_data
from lmtool.training import finetuning, length
from lmtool.training.data import TrainingData, read_text
from lmtool.training.events import Plan, Stepped, StepsChanged, Timed
from lmtool.training.fit import fit
from lmtool.training.schedule import TimeBudget
from tests.training.tiny import Work, after, documents, ended, no_report, words

WORD_VECTORS = {
    "skip-gram": ("model={kind: skipgram, d_model: 8}", "objective={kind: skip-gram}"),
    "cbow": ("model={kind: skipgram, d_model: 8}", "objective={kind: cbow}"),
    "glove": ("model={kind: glove, d_model: 8}", "objective={kind: glove}"),
}
NEXT_SENTENCE = (
    "model.shape=encoder",
    "model.n_segments=2",
    "model.next_sentence_head=true",
    "objective={kind: masked, next_sentence: true}",
)


def recipe_of(work: Work) -> Any:
    return load(work.run() / "recipe.yaml").recipe


@pytest.mark.sampled(1)
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


@pytest.mark.slow
def test_minutes_follow_from_the_measured_speed(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step of a tenth of a second leaves a tenth of a minute for at most 60."""
    now = itertools.count(0, 0.001)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    real = fit

    def slow(*args: Any, **options: Any) -> Any:
        for step in real(*args, **options):
            yield replace(step, seconds=1.0 if step.step <= 2 else 0.1)

    monkeypatch.setattr(length, "fit", slow)
    told = work.pretrain("training.minutes=0.1", "training.compile=false")
    assert 52 <= ended(told).step <= 60
    (line,) = [line for line in told[0].data if line.startswith("length")]
    assert "0.1 minutes at 1,280 tokens/s" in line


def test_a_run_with_a_time_is_reproduced_by_its_steps(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is trained to measure the speed leaves no trace."""
    planned(monkeypatch, 9)
    cosine = "schedule={kind: cosine, warmup_steps: 0}"
    timed = work.pretrain("training.minutes=1", cosine, "evaluation.every=3", name="timed")
    plain = work.pretrain("training.steps=9", cosine, "evaluation.every=1", name="plain")
    assert ended(timed).best_value == ended(plain).best_value


def planned(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """Runs with a time are planned with so many steps."""
    monkeypatch.setattr(length, "PROBE_SECONDS", 0.0)
    monkeypatch.setattr(length, "_steps_in", lambda *args: steps)


@pytest.mark.parametrize("last", [14, 36])
def test_the_length_follows_the_speed(work: Work, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
    """The weights are those of a run that was planned with so many steps, and its recipe says how many."""
    asked = []

    def steps(budget: TimeBudget, recipe: Recipe, done: int, began: float) -> int:
        asked.append(done)
        return last if len(asked) == 2 else recipe.training.steps

    planned(monkeypatch, 24)
    monkeypatch.setattr(TimeBudget, "steps", steps)
    schedule = "schedule={kind: linear, warmup_steps: 2, decay_fraction: 0.5}"
    told = work.pretrain("training.minutes=1", schedule, name="timed")
    assert asked[:2] == [2, 4]
    assert [event.steps for event in told if isinstance(event, StepsChanged)] == [last]
    kept = load(work.run("timed") / "recipe.yaml").recipe
    assert (kept.training.steps, kept.evaluation.every) == (last, math.ceil(last / 12))
    assert ended(told).step == last
    monkeypatch.undo()
    plain = work.pretrain(f"training.steps={last}", schedule, f"evaluation.every={last}", name="plain")
    validated = {event.step.step: event.validation for event in told if isinstance(event, Stepped)}
    assert validated[last] is not None
    assert validated[last].loss == ended(plain).best_value


def test_pairs_of_sentences_are_validated_also_when_the_length_has_changed(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(monkeypatch, 6)
    monkeypatch.setattr(TimeBudget, "steps", lambda *_: 4)
    told = work.pretrain("training.minutes=1", *NEXT_SENTENCE, "evaluation.every=1")
    assert [event.steps for event in told if isinstance(event, StepsChanged)] == [4]
    validated = [event.validation for event in told if isinstance(event, Stepped)]
    assert [set(one.metrics) for one in validated if one is not None] == [{"next-sentence-accuracy"}] * 4


def test_it_is_resumed_with_the_same_steps(work: Work) -> None:
    told = work.pretrain("training.tokens=1280", stop=lambda: True)
    assert ended(told).step == 1
    assert ended(work.resume()).step == 10
    assert ended(work.resume("training.steps=+2")).step == 12


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", WORD_VECTORS)
@pytest.mark.parametrize("budget", ["training.epochs=2", "training.minutes=0.005"])
def test_word_vectors_have_a_length_too(work: Work, kind: str, budget: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(length, "PROBE_SECONDS", 0.03)
    work.text.write_text(words(600))
    told = work.pretrain(*WORD_VECTORS[kind], "tokenizer={kind: word, vocab_size: 50}", "training.batch_size=1", budget)
    assert ended(told).step == recipe_of(work).training.steps
    if "epochs" in budget:
        assert [event.epochs for event in told if isinstance(event, Plan)] == [2]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", WORD_VECTORS)
@pytest.mark.parametrize("budget", ["training.steps=5", "training.minutes=0.005"])
def test_word_vectors_of_lone_words_are_refused(work: Work, kind: str, budget: str) -> None:
    """A list of names has no pairs of words; as one text it has."""
    lone = "".join(f"{name}\n" for name in words(200).split())
    work.text.write_text(lone)
    settings = (*WORD_VECTORS[kind], "tokenizer={kind: word, vocab_size: 50}", budget)
    with pytest.raises(DataError, match="near each other") as refused:
        work.pretrain(*settings)
    assert "data.documents=whole" in refused.value.fix
    assert not work.run().exists()
    assert ended(work.pretrain(*settings, "data.documents=whole")).step > 0


@pytest.mark.parametrize("kind", ["skip-gram", "cbow"])
def test_steps_without_pairs_have_no_speed(work: Work, kind: str) -> None:
    """Few documents have two words, so that the steps that are measured may have no pairs."""
    lines = [f"{word} {word}\n" if n in (7, 195, 199) else f"{word}\n" for n, word in enumerate(words(200).split())]
    work.text.write_text("".join(lines))
    valid = work.folder / "valid.txt"
    valid.write_text(words(50))
    settings = ("tokenizer={kind: word, vocab_size: 50}", "training.steps=5", "training.batch_size=1")
    told = work.pretrain(*WORD_VECTORS[kind], *settings, "model.context=8", valid=valid)
    assert ended(told).step == 5


# How long it takes is told before the first step


def time_told(events: list[Any]) -> Timed:
    (told,) = [event for event in events if isinstance(event, Timed)]
    first = next((n for n, event in enumerate(events) if isinstance(event, Stepped)), len(events))
    assert events.index(told) < first
    return told


def pairs_of_any_length(work: Work, n: int = 120) -> Path:
    """Questions of one word to thirty, and answers."""
    rows = (f"{words(1 + 29 * i // n, i)},{words(1 + i % 5, i)}" for i in range(n))
    table = work.folder / "pairs.csv"
    table.write_text("\n".join(["prompt,answer", *rows]) + "\n", encoding="utf-8")
    return table


def charged(monkeypatch: pytest.MonkeyPatch, per_token: float, validation: float = 0.0) -> None:
    """Measured steps take so many seconds for each token, and validations so many."""
    real = fit

    def slow(*args: Any, **options: Any) -> Any:
        for step in real(*args, **options):
            yield replace(step, seconds=per_token * step.computed)

    monkeypatch.setattr(length, "fit", slow)
    monkeypatch.setattr(length, "_seconds", lambda action: validation)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_the_time_of_rows_of_any_length_is_that_of_all_of_them(
    work: Work, monkeypatch: pytest.MonkeyPatch, shape: str
) -> None:
    charged(monkeypatch, 0.01)
    parts = ("model.context=256", f"model.shape={shape}", "objective.kind=seq2seq", "tokenizer.kind=char")
    events = work.learn_table(work.recipe, pairs_of_any_length(work), *parts, "training.steps=30")
    computed = sum(event.step.computed for event in events if isinstance(event, Stepped))
    assert time_told(events).seconds == pytest.approx(0.01 * computed, rel=0.15)


def test_validations_and_the_last_measurement_take_time(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    charged(monkeypatch, 1e-9, validation=7.0)
    # twelve steps, a validation after each four; no comparison with n-grams
    assert time_told(work.pretrain(stop=after(5))).seconds == pytest.approx(21)
    # one of them is over
    assert time_told(work.resume()).seconds == pytest.approx(14)
    assert time_told(work.finetune(source=work.run())).seconds > 21


@pytest.mark.parametrize("kind", ["text", "pairs", "table"])
def test_a_part_of_a_large_validation_tells_its_time(work: Work, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Before the first step no more of it is computed than takes the time that is set aside for that."""
    charged(monkeypatch, 0.001)
    sizes: list[int] = []

    def counted(model: Any, items: Items, *others: Any) -> Evaluated:
        sizes.append(items.size(range(len(items.lengths))))
        return evaluate(model, items, *others)

    def seconds(action: Any) -> float:
        action()
        return 0.001 * sizes[-1]

    for module in (perplexity, text_data, task):
        monkeypatch.setattr(module, "evaluate", counted)
    monkeypatch.setattr(length, "_seconds", seconds)
    settings = ["evaluation.tokens=null", "data.valid_fraction=0.5"]
    data: TrainingData
    if kind == "table":
        file = work.folder / "table.csv"
        file.write_text("text,label\n" + "".join(f"the cat {words(i % 7)},{'ab'[i % 2]}\n" for i in range(2000)))
        settings.append("objective.kind=classification")
        recipe = load(work.recipe, [*settings, Setting("data.train", [str(file)], "TABLE")]).recipe
        data = read_tables(recipe, open_tables(recipe.data), None)
    else:
        work.text.write_text(documents(900))
        settings += NEXT_SENTENCE if kind == "pairs" else ()
        recipe = load(work.recipe, [*settings, Setting("data.train", [str(work.text)], "TEXT")]).recipe
        data = read_text(recipe, None, World(), no_report)
    speed = length.Speed.measure(data, Initialization(), CPU, 0.0)
    assert speed is not None
    measured = max(sizes)
    assert 0.001 * measured <= 1.1 * length.SECONDS
    lm, _ = build_for_training(data.recipe, data.prompt_format.tokenizer, CPU, data.set_statistics, Initialization())
    objective = build_objective(data.recipe, data.prompt_format.tokenizer)
    data.examples(objective)
    data.validate(lm, objective, CPU)
    assert sizes[-1] > 5 * measured
    assert speed.validation == pytest.approx(0.001 * sizes[-1], rel=0.1)


def test_a_speed_counts_what_is_computed(work: Work) -> None:
    """All the tokens of the rows, padded to the longest of them; a source beside them."""
    table = work.folder / "even.csv"
    table.write_text("text,label\n" + "".join(f"abc{i % 10}{'z' * (i % 8 == 0)},{'ab'[i % 2]}\n" for i in range(80)))
    events = work.learn_table(work.recipe, table, "objective.kind=classification", "training.batch_size=72")
    data = read_back(work)
    longest = max(len(row.tokens) for row in data.tasks[0].train)
    assert {event.step.computed for event in events if isinstance(event, Stepped)} == {72 * longest}


def read_back(work: Work) -> Any:
    recipe = recipe_of(work)
    return read_tables(recipe, open_tables(recipe.data), read_tokenizer(Run.open(work.run())), None)


def test_a_loss_on_few_tokens_computes_them_all(work: Work) -> None:
    """As plans count them: 8 rows of 16, of which 15 % are predicted."""
    masked = ("model.shape=encoder", "objective.kind=masked")
    steps = [event.step for event in work.pretrain(*masked) if isinstance(event, Stepped)]
    assert {step.computed for step in steps} == {8 * 16}


# Tables have minutes too


@pytest.mark.slow
def test_minutes_of_a_table_follow_from_the_measured_speed(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(name="base")
    charged(monkeypatch, 0.01)
    now = itertools.count(0, 0.001)
    monkeypatch.setattr(time, "perf_counter", lambda: next(now))
    others = ("schedule={kind: cosine, warmup_steps: 0}", "evaluation.patience=null")
    for minutes in (0.5, 1.0):
        told = work.finetune(f"training.minutes={minutes}", *others, source=work.run("base"), name=f"for-{minutes}")
        computed = sum(event.step.computed for event in told if isinstance(event, Stepped))
        assert 0.01 * computed == pytest.approx(60 * minutes, rel=0.2)
        assert any(line.startswith("length: ") and f"{minutes:g} minutes" in line for line in told[0].data)


@pytest.mark.parametrize("key", ["training.steps=9", "training.minutes=5"])
def test_who_sets_a_length_of_a_table_sets_the_length(work: Work, key: str) -> None:
    """No passes of the rule, or of the recipe, end it before."""
    work.pretrain(name="base")
    flags = [Setting("data.train", [str(pairs_of_any_length(work))], "TABLE")]
    rule = finetuning.plan_finetuning(str(work.run("base")), None, settings_of([key], flags))
    assert rule.resolved.recipe.training.epochs is None
    both = finetuning.plan_finetuning(str(work.run("base")), None, settings_of([key, "training.epochs=3"], flags))
    assert both.resolved.recipe.training.epochs == 3
    none = finetuning.plan_finetuning(str(work.run("base")), None, flags)
    assert none.resolved.recipe.training.epochs is not None
    assert load("dan", [key]).recipe.training.epochs is None


@pytest.mark.parametrize("settings", [("training.steps=7",), ("training.tokens=200",)])
def test_minutes_that_nothing_is_known_to_fill_are_told(work: Work, settings: tuple[str, ...]) -> None:
    """Where no step could be timed."""
    resolved = load(work.recipe, [*settings, Setting("data.train", [str(work.text)], "TEXT")])
    data = read_text(resolved.recipe, None, World(), no_report)
    assert "minutes" not in length.with_length(data, None)[2]
    planned, budget, line = length.with_length(data.with_recipe(data.recipe.with_values({"training.minutes": 3})), None)
    assert budget is None
    assert f"{planned.recipe.training.steps} steps" in line
    assert "training.minutes 3 has no effect" in line


# Less than a pass


@pytest.mark.parametrize("step_seconds", [0.02, 1.0, 300.0])
@pytest.mark.parametrize("validation", [0.0, 2.0])
def test_the_minutes_that_are_named_are_enough_for_a_pass(work: Work, step_seconds: float, validation: float) -> None:
    work.text.write_text(words(3000))
    for settings in (("training.steps=1",), ("training.minutes=0.0001",), ("training.tokens=200",)):
        resolved = load(work.recipe, [*settings, Setting("data.train", [str(work.text)], "TEXT")])
        data = read_text(resolved.recipe, None, World(), no_report)
        speed = length.Speed("token", 3.0, step_seconds, 128.0, validation, 5.0)
        planned, _, _ = length.with_length(data, speed)
        minutes = length.timed(planned, speed, draft=data.recipe).whole_pass
        assert minutes is not None
        training = resolved.recipe.training.model_copy(update={"minutes": minutes, "tokens": None})
        longer, _, _ = length.with_length(
            data.with_recipe(data.recipe.model_copy(update={"training": training})), speed
        )
        whole = math.ceil(data.per_epoch / 8)
        assert whole <= longer.recipe.training.steps
        # no more than it takes, where minutes are not too coarse to say it
        if step_seconds >= 1:
            assert longer.recipe.training.steps <= 1.2 * whole
        assert length.timed(longer, speed, draft=data.recipe).whole_pass is None
        assert length.timed(planned, speed, done=1).whole_pass is None
