"""From the tables that a recipe names to rows: inferred settings, held-out rows, and warnings."""

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from lmtool.errors import DataError
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.load import Setting, load
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.files import SavedSplit
from lmtool.runs.load import load_run
from lmtool.tasks.data import TableData
from lmtool.tasks.predict import evaluate_tables, predict_table_lazily
from lmtool.tasks.prepare import open_training_tables, read_and_encode_tables
from lmtool.tasks.results import Results
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    assert_resumes_bit_for_bit,
    ended,
    of_kind,
    read_metrics_json,
    words,
    write_table,
)

CLASSES = ("objective={kind: classification, dropout: 0}", "training.epochs=null")
SEQ2SEQ = ("model={kind: recurrent, shape: encoder-decoder, d_model: 8, context: 8}", "objective={kind: seq2seq}")


def write(path: Path, labels: list[object], texts: list[str] | None = None) -> Path:
    texts = texts or [f"{words(1 + i % 5, i)} {i}" for i in range(len(labels))]
    return write_table(path, [f"{text},{label}" for text, label in zip(texts, labels, strict=True)])


def numbers(work: Work) -> Path:
    """Numbers of mean 1000, within 50."""
    rng = random.Random(0)
    return write(work.folder / "numbers.csv", [round(rng.gauss(1000, 50), 2) for _ in range(60)])


def encoded(
    work: Work, *settings: str | Setting, split: SavedSplit | None = None, tokenizer: Tokenizer | None = None
) -> tuple[Recipe, TableData]:
    recipe = load(work.recipe, [*settings]).recipe
    return read_and_encode_tables(recipe, open_training_tables(recipe.data), tokenizer, split)


def resolved(work: Work, table: Path, *settings: str, split: SavedSplit | None = None) -> tuple[Recipe, TableData]:
    return encoded(work, *CLASSES, *settings, Setting("data.train", [str(table)], "TABLE"), split=split)


def read(work: Work, table: Path, *settings: str, split: SavedSplit | None = None) -> TableData:
    return resolved(work, table, *settings, split=split)[1]


def head_of(data: TableData) -> Classification:
    assert isinstance(data.objective, ClassificationObjective)
    return data.objective.spec


# Inferred settings


@pytest.mark.parametrize("task", ["number", "auto"])
def test_numbers_are_learned_around_zero_whoever_says_that_they_are_numbers(work: Work, task: str) -> None:
    table = numbers(work)
    data = read(work, table, f"objective.task={task}")
    rows = data.tasks[0].train
    targets = np.array([row.label for row in rows])
    # a row of each decile of the numbers is held out
    assert targets.shape == (50, 1)
    assert float(targets.mean()) == pytest.approx(0, abs=1e-9)
    assert float(targets.std()) == pytest.approx(1)
    head = head_of(data)
    assert (head.task, head.labels) == ("number", ())
    # from the training rows, not from those held out
    values = [float(line.split(",")[1]) for line in table.read_text().splitlines()[1:]]
    trained = [values[row.number - 1] for row in rows]
    assert [head.center, head.scale] == pytest.approx([np.mean(trained), np.std(trained)])
    batch = data.objective.collate([row.to_example() for row in rows])
    assert batch.values_BC is not None
    assert float(batch.values_BC.square().mean()) == pytest.approx(1, rel=1e-5)


def test_a_scale_that_is_given_is_taken(work: Work) -> None:
    given = ("objective.task=number", "objective.scale=10")
    head = head_of(read(work, numbers(work), *given, "objective.center=900"))
    assert (head.center, head.scale) == (900, 10)
    half = head_of(read(work, numbers(work), *given))
    assert half.center == pytest.approx(1000, abs=30)
    assert half.scale == 10


@pytest.mark.parametrize("unit", [1e-300, 1e10])
def test_numbers_of_any_size_are_learned_and_measured(work: Work, unit: float) -> None:
    table = write(work.folder / "numbers.csv", [(i % 7 - 3) * unit for i in range(60)])
    work.learn_table(work.recipe, table, *CLASSES, "objective.task=number", "training.steps=2")
    loaded = load_run(str(work.run()))
    (results,) = evaluate_tables(loaded, [str(table)])
    assert np.isfinite(results.loss)
    for _, cells in predict_table_lazily(loaded, str(table)).rows:
        assert abs(float(str(cells[0]))) < 100 * unit


def test_a_run_on_numbers_keeps_its_scale(work: Work) -> None:
    """Also when it is resumed; and predictions are on the scale of the table."""
    table = numbers(work)
    asked = (*CLASSES, "objective.task=number", "evaluation.metric=correlation")
    assert_resumes_bit_for_bit(work, partial(work.learn_table, work.recipe, table, *asked), 5)
    kept, resumed = (load(work.run(name) / "recipe.yaml").recipe.objective for name in ("whole", "run"))
    assert isinstance(kept, Classification)
    assert kept.center == pytest.approx(1000, abs=30)
    assert kept.scale == pytest.approx(50, rel=0.3)
    assert resumed == kept
    answers = [float(str(cells[0])) for _, cells in predict_table_lazily(load_run(str(work.run())), str(table)).rows]
    assert len(answers) == 60
    assert all(abs(answer - 1000) < 200 for answer in answers)
    assert read_metrics_json(work.run())["mse"] < 100**2


def test_accuracy_chooses_the_best_where_rows_have_one_class(work: Work) -> None:
    one = write(work.folder / "one.csv", ["x", "y"] * 30)
    several = write(work.folder / "several.csv", ["x;y", "y"] * 30)
    for table, settings, metric in (
        (one, ["evaluation.metric=auto"], "accuracy"),
        (one, ["evaluation.metric=loss"], "loss"),
        (several, ["evaluation.metric=auto", "objective.task=multi"], "loss"),
        (numbers(work), ["evaluation.metric=auto", "objective.task=number"], "loss"),
    ):
        assert resolved(work, table, *settings)[0].evaluation.metric == metric


def test_classes_have_the_order_that_the_recipe_names(work: Work) -> None:
    table = write(work.folder / "grades.csv", [["good", "bad", "fair"][i % 3] for i in range(60)])
    assert head_of(read(work, table)).labels == ("bad", "fair", "good")
    data = read(work, table, "objective.labels=[bad,good,fair,worst]")
    assert head_of(data).labels == ("bad", "good", "fair", "worst")
    assert [int(row.label[0]) for row in data.tasks[0].train[:3] if row.label is not None] == [1, 0, 2]
    several = write(work.folder / "several.csv", [["a;b", "b", "c;a"][i % 3] for i in range(60)])
    assert head_of(read(work, several, "objective.labels=[c,b,a]")).task == "multi"
    # a class that is not named, one that is named twice, numbers, and a single class
    for refused, labels in ((table, "bad,good"), (table, "bad,fair,good,fair"), (numbers(work), "bad,good")):
        with refuses("usage"):
            read(work, refused, f"objective.labels=[{labels}]")
    with refuses("data"):
        read(work, write(work.folder / "one.csv", ["good"] * 60), "objective.labels=[bad,good]")


@pytest.mark.parametrize(
    ("settings", "steps", "every"),
    [
        (("training.epochs=3", "training.min_steps=10", "evaluation.epochs=1"), 24, 8),
        (("training.epochs=3", "training.min_steps=50", "evaluation.epochs=1"), 50, 8),
        (("training.epochs=3", "training.min_steps=400", "evaluation.epochs=1"), 400, 20),
        (("training.epochs=3", "evaluation.epochs=0.5"), 24, 4),
        (("training.epochs=0.01", "evaluation.every=5"), 1, 5),
        (("training.steps=12", "evaluation.every=5"), 12, 5),
    ],
)
def test_steps_and_validations_follow_from_the_rows(
    work: Work, settings: tuple[str, ...], steps: int, every: int
) -> None:
    """A pass of 64 rows in batches of 8 is 8 steps; there are 20 validations at most."""
    table = write(work.folder / "t.csv", ["a", "b"] * 36)
    recipe, data = resolved(work, table, "data.valid_fraction=0.1", *settings)
    assert len(data.tasks[0].train) == 64
    assert (recipe.training.steps, recipe.evaluation.every) == (steps, every)


# Held-out rows


def test_the_rows_held_out_are_told_and_found_again(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 30)
    data = read(work, table)
    assert data.split is not None
    (task,) = data.tasks
    train, test = ([row.number for row in rows] for rows in (task.train, task.valid))
    assert data.split.model_dump() == {"table": str(table), "train": train, "test": test}
    again = read(work, table, "seed=7", split=SavedSplit.model_validate_json(data.split.model_dump_json()))
    assert (again.split, again.fingerprint) == (data.split, data.fingerprint)
    assert read(work, table, "seed=7").split != data.split
    with refuses("checkpoint"):
        read(work, write(work.folder / "table.csv", ["x", "y"] * 29), split=data.split)


def test_a_table_of_its_own_is_validated_on(work: Work) -> None:
    """And its skipped rows are told with its name."""
    table = write(work.folder / "table.csv", ["x", "y", "a,b"] * 20)
    valid = write(work.folder / "valid.csv", ["x", "y", "a,b", "a,b"])
    data = read(work, table, f"data.valid={valid}", f"data.test={valid}", "data.skip_bad_rows=true")
    (task,) = data.tasks
    assert data.split is None
    assert (len(task.train), len(task.valid), len(task.test or ())) == (40, 2, 2)
    assert any("of valid.csv are also in the training table" in warning for warning in data.warnings)
    own, other, *_ = [warning for warning in data.warnings if "bad rows" in warning]
    assert "skipped 20 bad rows: " in own
    assert other.startswith("skipped 2 bad rows of valid.csv: ")


@pytest.mark.parametrize("key", ["valid", "test"])
def test_a_table_beside_it_with_other_names_is_told_with_the_names_of_both(work: Work, key: str) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 30)
    other = write_table(work.folder / "other.csv", ["a,x", "b,y"], "review,sentiment")
    with pytest.raises(DataError) as caught:
        read(work, table, f"data.{key}={other}")
    for part in ("'text', 'label'", "table.csv", "'review', 'sentiment'", str(other)):
        assert part in str(caught.value)
    # an option names a column of both tables, so that none helps here
    assert "--text-column" not in str(caught.value)


def test_rows_without_a_label_do_not_count_as_rows(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y", "", "", ""] * 20)
    recipe = load(work.recipe, [*CLASSES, Setting("data.train", [str(table)], "TABLE")]).recipe
    (opened,) = open_training_tables(recipe.data)
    assert (opened.n_labelled_training_rows, opened.table.n_rows) == (40, 100)


def test_each_of_several_tasks_has_rows_of_its_own(work: Work) -> None:
    first = write(work.folder / "first.csv", ["x", "y"] * 30)
    second = write(work.folder / "second.csv", ["u", "v"] * 10)
    tasks = f"data.tasks=[one:{first}, two:{second}:2]"
    _, data = encoded(work, *SEQ2SEQ, tasks)
    found = [(task.task.name, task.weight, len(task.train), len(task.valid)) for task in data.tasks]
    assert found == [("one", 1.0, 54, 6), ("two", 2.0, 18, 2)]
    assert data.split is not None
    splits = [data.split.split_of_task(name) for name in ("one", "two")]
    assert [len(one.test) for one in splits if one] == [6, 2]
    assert encoded(work, *SEQ2SEQ, tasks, split=data.split)[1].fingerprint == data.fingerprint
    assert data.make_training_examples(data.objective).examples_per_epoch == 54 + 2 * 18
    assert [line.split(":")[0] for line in data.description_lines] == ["columns", "task one", "columns", "task two"]
    with refuses("usage"):  # they have no one label
        encoded(work, *CLASSES, tasks)


def test_rows_that_change_their_part_are_other_data(work: Work) -> None:
    """The row at the end of one table is moved to the beginning of the next."""
    rows = [f"{words(1 + i % 5, i)} {i},{'xy'[i % 2]}" for i in range(60)]
    prints, tokenizer = set(), None
    for first, second in ((40, 50), (39, 50), (40, 49)):
        parts = {"train": rows[:first], "valid": rows[first:second], "test": rows[second:]}
        paths = {key: write_table(work.folder / f"{key}.csv", part) for key, part in parts.items()}
        beside = (f"data.valid={paths['valid']}", f"data.test={paths['test']}")
        train = Setting("data.train", [str(paths["train"])], "TABLE")
        data = encoded(work, *CLASSES, *beside, train, tokenizer=tokenizer)[1]
        tokenizer = data.prompt_format.tokenizer
        prints.add(data.fingerprint)
    assert len(prints) == 3


def test_what_a_row_gives_is_not_confused_with_the_row_beside_it(work: Work) -> None:
    """Tokens that move from the source to the target, and from a row to the next, are other data."""
    tables = [["a b,c", "d,e f"] * 3, ["a,b c", "d,e f"] * 3, ["a b,c d", "e,f a"] * 3, ["a b,c d e", "f,a"] * 3]
    prints, tokenizer = set(), None
    for rows in tables:
        path = str(write_table(work.folder / "pairs.csv", [*rows, "x,y"], "source,target"))
        flags = [Setting("data.train", [path], "TABLE"), Setting("data.valid", [path], "--valid")]
        data = encoded(work, *SEQ2SEQ, "tokenizer={kind: word}", *flags, tokenizer=tokenizer)[1]
        tokenizer = data.prompt_format.tokenizer
        prints.add(data.fingerprint)
    assert len(prints) == len(tables)


def test_rows_that_are_cut_are_counted(work: Work) -> None:
    texts = [f"{i} the cat sat on the mat and ran home" if i < 9 else f"cat {i}" for i in range(40)]
    data = read(work, write(work.folder / "table.csv", ["x", "y"] * 20, texts))
    (task,) = data.tasks
    parts = {"train": task.train, "validation": task.valid}
    cut = {part: sum(row.is_truncated for row in rows) for part, rows in parts.items()}
    assert sum(cut.values()) == 9
    assert [warning for warning in data.warnings if "are truncated" in warning] == [
        f"{n} of {len(parts[part])} {part} rows are truncated to the context of 16" for part, n in cut.items() if n
    ]


# No row held out

NONE_HELD = ("objective.kind=seq2seq", "data.valid_fraction=0")


def pairs(path: Path, n: int) -> Path:
    rows = (f"{words(1 + i % 5, i)} {i},{words(1 + i % 3, i + n)}" for i in range(n))
    return write_table(path, rows, "prompt,answer")


def test_rows_that_are_to_be_learnt_are_all_trained_on_and_measured(work: Work) -> None:
    table = pairs(work.folder / "p.csv", 30)
    events = work.learn_table(work.recipe, table, *NONE_HELD, "training.epochs=1")
    assert any("none are held out" in line and "data.valid_fraction" in line for line in events[0].data)
    (results,) = of_kind(events, Results)
    assert (results.part, results.rows) == ("held-out quarter", 8)
    assert ended(events).step == 4
    assert not (work.run() / "split.json").exists()
    assert read_metrics_json(work.run())["part"] == "held-out quarter"
    # a table beside it is for validation all the same
    valid = f"data.valid=[{pairs(work.folder / 'v.csv', 7)}]"
    events = work.learn_table(work.recipe, table, *NONE_HELD, "training.epochs=1", valid, name="beside")
    (results,) = of_kind(events, Results)
    assert (results.part, results.rows) == ("validation", 7)


def test_a_run_with_no_row_held_out_goes_on(work: Work) -> None:
    table = pairs(work.folder / "p.csv", 30)
    learn = partial(work.learn_table, work.recipe, table, *NONE_HELD, "training.epochs=2")
    assert_resumes_bit_for_bit(work, learn, 3, steps=8)


@pytest.mark.parametrize("settings", [("objective.kind=tagging",), ()])
def test_tags_and_texts_are_held_out(work: Work, settings: tuple[str, ...]) -> None:
    with refuses("recipe"):
        load(work.recipe, [*settings, "data.valid_fraction=0", Setting("data.train", ["any"], "DATA")])
