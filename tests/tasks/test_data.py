"""From the tables that a recipe names to rows: inferred settings, held-out rows, and warnings."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmtool.errors import CheckpointError, DataError, RecipeError, UsageError
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
from tests.support.cases import nightly_but
from tests.support.training import Work, after, ended, lasting, warnings_in, words

CLASSES = ("objective={kind: classification, dropout: 0}", "training.epochs=null")


def write(path: Path, labels: list[object], texts: list[str] | None = None) -> Path:
    texts = texts or [f"{words(1 + i % 5, i)} {i}" for i in range(len(labels))]
    lines = [f"{text},{label}" for text, label in zip(texts, labels, strict=True)]
    path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    return path


def resolved(work: Work, table: Path, *overrides: str, split: dict[str, Any] | None = None) -> tuple[Recipe, TableData]:
    recipe = load(work.recipe, [*CLASSES, *overrides, Setting("data.train", [str(table)], "TABLE")]).recipe
    return read_and_encode_tables(recipe, open_training_tables(recipe.data), None, split)


def read(work: Work, table: Path, *overrides: str, split: dict[str, Any] | None = None) -> TableData:
    return resolved(work, table, *overrides, split=split)[1]


def head_of(data: TableData) -> Classification:
    assert isinstance(data.objective, ClassificationObjective)
    return data.objective.spec


# Numbers


def numbers(work: Work) -> Path:
    """Numbers of mean 1000, within 50."""
    rng = random.Random(0)
    return write(work.folder / "numbers.csv", [round(rng.gauss(1000, 50), 2) for _ in range(60)])


@pytest.mark.parametrize("task", ["number", "auto"])
def test_numbers_are_learned_around_zero_whoever_says_that_they_are_numbers(work: Work, task: str) -> None:
    data = read(work, numbers(work), f"objective.task={task}")
    rows = data.tasks[0].train
    targets = np.array([row.label for row in rows])
    # a row of each decile of the numbers is held out
    assert targets.shape == (50, 1)
    assert float(targets.mean()) == pytest.approx(0, abs=1e-9)
    assert float(targets.std()) == pytest.approx(1)
    head = head_of(data)
    assert (head.task, head.labels) == ("number", ())
    # from the training rows, not from those held out
    values = [float(line.split(",")[1]) for line in numbers(work).read_text().splitlines()[1:]]
    trained = [values[row.number - 1] for row in rows]
    assert (head.center, head.scale) == (pytest.approx(np.mean(trained)), pytest.approx(np.std(trained)))
    objective = data.objective
    batch = objective.collate([row.to_example() for row in rows])
    assert batch.values_BC is not None
    assert float(batch.values_BC.square().mean()) == pytest.approx(1, rel=1e-5)


def test_accuracy_chooses_the_best_where_rows_have_one_class(work: Work) -> None:
    one, several = (
        write(work.folder / "one.csv", ["x", "y"] * 30),
        write(work.folder / "several.csv", ["x;y", "y"] * 30),
    )
    auto = "evaluation.metric=auto"
    assert resolved(work, one, auto)[0].evaluation.metric == "accuracy"
    assert resolved(work, one, "evaluation.metric=loss")[0].evaluation.metric == "loss"
    assert resolved(work, several, auto, "objective.task=multi")[0].evaluation.metric == "loss"
    assert resolved(work, numbers(work), auto, "objective.task=number")[0].evaluation.metric == "loss"


def test_a_scale_that_is_given_is_taken(work: Work) -> None:
    head = head_of(read(work, numbers(work), "objective.task=number", "objective.center=900", "objective.scale=10"))
    assert (head.center, head.scale) == (900, 10)
    half = head_of(read(work, numbers(work), "objective.task=number", "objective.scale=10"))
    assert half.center == pytest.approx(1000, abs=30)
    assert half.scale == 10


@pytest.mark.parametrize("unit", nightly_but([1e-300, 1e-200, 1e-9, 1.0, 1e10, 3e14], 0, 2, 4))
def test_numbers_of_any_size_are_learned_and_measured(work: Work, unit: float) -> None:
    table = write(work.folder / "numbers.csv", [(i % 7 - 3) * unit for i in range(60)])
    data = read(work, table, "objective.task=number")
    targets = np.array([row.label for row in data.tasks[0].train])
    assert float(targets.mean()) == pytest.approx(0, abs=1e-9)
    assert float(targets.std()) == pytest.approx(1)
    work.learn_table(work.recipe, table, *CLASSES, "objective.task=number", "training.steps=2")
    (results,) = evaluate_tables(load_run(str(work.run())), [str(table)])
    assert np.isfinite(results.loss)
    assert all(
        abs(float(str(cells[0]))) < 100 * unit
        for _, cells in predict_table_lazily(load_run(str(work.run())), str(table)).rows
    )


def test_a_run_on_numbers_keeps_its_scale(work: Work) -> None:
    """Also when it is resumed; and predictions are on the scale of the table."""
    table = numbers(work)
    asked = (*CLASSES, "objective.task=number", "evaluation.metric=correlation")
    work.learn_table(work.recipe, table, *asked, name="whole")
    kept = load(work.run("whole") / "recipe.yaml").recipe.objective
    assert isinstance(kept, Classification)
    assert kept.center == pytest.approx(1000, abs=30)
    assert kept.scale == pytest.approx(50, rel=0.3)
    work.learn_table(work.recipe, table, *asked, stop=after(5))
    work.resume()
    assert load(work.run() / "recipe.yaml").recipe.objective == kept
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
    answers = [float(str(cells[0])) for _, cells in predict_table_lazily(load_run(str(work.run())), str(table)).rows]
    assert len(answers) == 60
    assert all(abs(answer - 1000) < 200 for answer in answers)
    record = json.loads((work.run() / "metrics.json").read_text())
    assert record["mse"] < 100**2


# Held-out rows


def test_the_rows_held_out_are_told_and_found_again(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 30)
    data = read(work, table)
    assert data.split is not None
    numbers = {part: [row.number for row in rows] for part, rows in parts(data).items()}
    assert data.split.model_dump() == {"table": str(table), "train": numbers["train"], "test": numbers["validation"]}
    again = read(work, table, "seed=7", split=SavedSplit.model_validate_json(data.split.model_dump_json()))
    assert again.split == data.split
    assert again.fingerprint == data.fingerprint
    assert read(work, table, "seed=7").split != data.split
    with pytest.raises(CheckpointError, match="does not fit the table"):
        read(work, write(work.folder / "table.csv", ["x", "y"] * 29), split=data.split)


def parts(data: TableData) -> dict[str, Any]:
    (task,) = data.tasks
    return {"train": task.train, "validation": task.valid}


def test_a_table_of_its_own_is_validated_on(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 30)
    valid = write(work.folder / "valid.csv", ["x", "y", "y"])
    data = read(work, table, f"data.valid={valid}", f"data.test={valid}")
    (task,) = data.tasks
    assert data.split is None
    assert (len(task.train), len(task.valid), len(task.test or ())) == (60, 3, 3)
    assert any("of valid.csv are also in the training table" in warning for warning in data.warnings)


def test_skipped_rows_are_told_with_the_table_they_are_of(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y", "a,b"] * 20)
    valid = write(work.folder / "valid.csv", ["x", "y", "a,b", "a,b"])
    told = [warning for warning in read(work, table, f"data.valid={valid}", "data.skip_bad_rows=true").warnings]
    (own,), (other,) = ([line for line in told if f"skipped {n} bad rows" in line] for n in (20, 2))
    assert "valid.csv" not in own
    assert other.startswith("skipped 2 bad rows of valid.csv: ")


@pytest.mark.parametrize("key", ["valid", "test"])
def test_a_table_beside_it_with_other_names_is_told_with_the_names_of_both(work: Work, key: str) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 30)
    other = work.folder / "other.csv"
    other.write_text("review,sentiment\na,x\nb,y\n")
    with pytest.raises(DataError) as caught:
        read(work, table, f"data.{key}={other}")
    assert len(caught.value.lines()) == 3
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
    model = "model={kind: recurrent, shape: encoder-decoder, d_model: 8, context: 8}"
    recipe = load(
        work.recipe,
        [model, "objective={kind: seq2seq}", f"data.tasks=[one:{first}, two:{second}:2]"],
    ).recipe
    _, data = read_and_encode_tables(recipe, open_training_tables(recipe.data), None)
    assert [(task.task.name, task.weight, len(task.train), len(task.valid)) for task in data.tasks] == [
        ("one", 1.0, 54, 6),
        ("two", 2.0, 18, 2),
    ]
    assert data.split is not None
    assert [len(data.split.split_of_task(name).test) for name in ("one", "two")] == [6, 2]
    assert (
        read_and_encode_tables(recipe, open_training_tables(recipe.data), None, data.split)[1].fingerprint
        == data.fingerprint
    )
    examples = data.make_training_examples(data.objective)
    assert examples.examples_per_epoch == 54 + 2 * 18
    assert [line.split(":")[0] for line in data.description_lines] == ["columns", "task one", "columns", "task two"]


def moved(path: Path, rows: list[str]) -> str:
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return str(path)


def test_rows_that_change_their_part_are_other_data(work: Work) -> None:
    """The row at the end of one table is moved to the beginning of the next."""
    rows = [f"{words(1 + i % 5, i)} {i},{'xy'[i % 2]}" for i in range(60)]
    prints = set()
    tokenizer = None
    for first, second in ((40, 50), (39, 50), (40, 49)):
        train, valid, test = (
            moved(work.folder / f"{name}.csv", part)
            for name, part in (("a", rows[:first]), ("b", rows[first:second]), ("c", rows[second:]))
        )
        recipe = load(work.recipe, [*CLASSES, Setting("data.train", [train], "TABLE")]).recipe
        beside = recipe.data.model_copy(update={"valid": (valid,), "test": test})
        _, data = read_and_encode_tables(
            recipe.model_copy(update={"data": beside}), open_training_tables(beside), tokenizer
        )
        tokenizer = data.prompt_format.tokenizer
        prints.add(data.fingerprint)
    assert len(prints) == 3


def test_what_a_row_gives_is_not_confused_with_the_row_beside_it(work: Work) -> None:
    """Tokens that move from the source to the target, and from a row to the next, are other data."""
    model = "model={kind: recurrent, shape: encoder-decoder, d_model: 8, context: 8}"
    tables = [["a b,c", "d,e f"] * 3, ["a,b c", "d,e f"] * 3, ["a b,c d", "e,f a"] * 3, ["a b,c d e", "f,a"] * 3]
    prints = set()
    tokenizer = None
    for rows in tables:
        path = work.folder / "pairs.csv"
        path.write_text("\n".join(["source,target", *rows, "x,y"]) + "\n", encoding="utf-8")
        flags = [Setting("data.train", [str(path)], "TABLE"), Setting("data.valid", [str(path)], "--valid")]
        settings = [model, "objective={kind: seq2seq}", "tokenizer={kind: word}", *flags]
        recipe = load(work.recipe, settings).recipe
        _, data = read_and_encode_tables(recipe, open_training_tables(recipe.data), tokenizer)
        tokenizer = data.prompt_format.tokenizer
        prints.add(data.fingerprint)
    assert len(prints) == len(tables)


# Descriptions and warnings


def test_rows_that_are_cut_are_counted(work: Work) -> None:
    texts = [f"{i} the cat sat on the mat and ran home" if i < 9 else f"cat {i}" for i in range(40)]
    data = read(work, write(work.folder / "table.csv", ["x", "y"] * 20, texts))
    cut = {part: sum(row.is_truncated for row in rows) for part, rows in parts(data).items()}
    assert cut["train"] + cut["validation"] == 9
    sizes = {"train": 36, "validation": 4}
    assert [warning for warning in data.warnings if "are truncated" in warning] == [
        f"{n} of {sizes[part]} {part} rows are truncated to the context of 16" for part, n in cut.items() if n
    ]


def test_several_tables_have_no_one_label(work: Work) -> None:
    table = write(work.folder / "table.csv", ["x", "y"] * 5)
    recipe = load(work.recipe, [*CLASSES, f"data.tasks=[a:{table}, b:{table}]"]).recipe
    with pytest.raises(UsageError, match="one labelled table"):
        read_and_encode_tables(recipe, open_training_tables(recipe.data), None)


@pytest.mark.parametrize(
    ("settings", "steps", "every"),
    [
        (("training.epochs=3", "training.min_steps=10", "evaluation.epochs=1"), 24, 8),
        (("training.epochs=3", "training.min_steps=50", "evaluation.epochs=1"), 50, 8),
        (("training.epochs=3", "training.min_steps=400", "evaluation.epochs=1"), 400, 20),
        (("training.epochs=3", "evaluation.epochs=0.5"), 24, 4),
        (("training.epochs=3", "evaluation.every=5"), 24, 5),
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
    assert recipe.training.steps == steps
    assert recipe.evaluation.every == every


# No row held out


def pairs(path: Path, n: int) -> Path:
    rows = (f"{words(1 + i % 5, i)} {i},{words(1 + i % 3, i + n)}" for i in range(n))
    path.write_text("\n".join(["prompt,answer", *rows]) + "\n", encoding="utf-8")
    return path


def of_pairs(work: Work, *overrides: str) -> Any:
    return work.learn_table(work.recipe, pairs(work.folder / "p.csv", 30), "objective.kind=seq2seq", *overrides)


def test_rows_that_are_to_be_learnt_are_all_trained_on_and_measured(work: Work) -> None:
    events = of_pairs(work, "data.valid_fraction=0", "training.epochs=1")
    assert any("none are held out" in line and "data.valid_fraction" in line for line in events[0].data)
    (results,) = [event for event in events if isinstance(event, Results)]
    assert (results.part, results.rows) == ("held-out quarter", 8)
    assert ended(events).step == 4
    assert not (work.run() / "split.json").exists()
    assert json.loads((work.run() / "metrics.json").read_text())["part"] == "held-out quarter"


def test_a_run_with_no_row_held_out_goes_on(work: Work) -> None:
    settings = ("data.valid_fraction=0", "training.epochs=2")
    of_pairs(work, *settings)
    work.run().rename(work.run("whole"))

    table = work.folder / "p.csv"
    work.learn_table(work.recipe, table, "objective.kind=seq2seq", *settings, stop=after(3))
    assert warnings_in(work.resume()) == []
    assert lasting(work.run(), 8) == lasting(work.run("whole"), 8)


def test_a_table_beside_it_is_for_validation_all_the_same(work: Work) -> None:
    valid = pairs(work.folder / "v.csv", 7)
    events = of_pairs(work, "data.valid_fraction=0", "training.epochs=1", f"data.valid=[{valid}]")
    (results,) = [event for event in events if isinstance(event, Results)]
    assert (results.part, results.rows) == ("validation", 7)


@pytest.mark.parametrize("settings", [("objective.kind=tagging",), ()])
def test_tags_and_texts_are_held_out(work: Work, settings: tuple[str, ...]) -> None:
    flags = [Setting("data.train", ["any"], "DATA")]
    with pytest.raises(RecipeError, match=r"data\.valid_fraction: 0 is for tables, with objective seq2seq or class"):
        load(work.recipe, [*settings, "data.valid_fraction=0", *flags])


def test_classes_have_the_order_that_the_recipe_names(work: Work) -> None:
    table = write(work.folder / "grades.csv", [["good", "bad", "fair"][i % 3] for i in range(60)])
    assert head_of(read(work, table)).labels == ("bad", "fair", "good")
    ordered = "objective.labels=[bad,good,fair,worst]"
    data = read(work, table, ordered)
    assert head_of(data).labels == ("bad", "good", "fair", "worst")
    assert [int(row.label[0]) for row in data.tasks[0].train[:3] if row.label is not None] == [1, 0, 2]
    several = write(work.folder / "several.csv", [["a;b", "b", "c;a"][i % 3] for i in range(60)])
    assert head_of(read(work, several, "objective.labels=[c,b,a]")).task == "multi"
    with pytest.raises(UsageError, match="'fair' of the training data is not among them"):
        read(work, table, "objective.labels=[bad,good]")
    with pytest.raises(UsageError, match="'fair' is named twice"):
        read(work, table, "objective.labels=[bad,fair,good,fair]")
    with pytest.raises(UsageError, match="numbers have no names"):
        read(work, numbers(work), "objective.labels=[bad,good]")
    with pytest.raises(DataError, match="all rows have the same class"):
        read(work, write(work.folder / "one.csv", ["good"] * 60), "objective.labels=[bad,good]")
