"""Probabilities that mean something: temperatures, thresholds, blank predictions and costs of errors."""

import csv
import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import lmtool
from lmtool.cli import app
from lmtool.errors import DataError, UsageError
from lmtool.inference.load import load_run
from lmtool.tasks.predict import TablePredictor
from tests.cli.test_finetune import RECIPE, refusal, run
from tests.reference.calibrated import cheapest

NAMES = ("bad", "fine", "good")
COSTS = "true,good,bad,fine\nfine,1,1,0\nbad,20,0,2\ngood,0,2,1\n"


def table(path: Path, n: int, seed: int, kind: str = "class") -> Path:
    """Rows whose words say their class, but for one in five."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for _ in range(n):
            said = rng.choice(NAMES)
            true = said if rng.random() < 0.8 else rng.choice(NAMES)
            words = [rng.choice(["a", "the", "cat", "dog", "sat"]) for _ in range(3)]
            also = ";rare" if rng.random() < 0.05 else ""
            label = {"class": true, "multi": f"{true}{also};any", "number": f"{len(true) + rng.random():.2f}"}[kind]
            writer.writerow([f"{' '.join(words)} {said}", label])
    return path


def trained(folder: Path, name: str, *settings: str, kind: str = "class") -> Path:
    """A run whose probabilities are too low, by label smoothing of classes."""
    smooth = ("objective.label_smoothing=0.5",) if kind == "class" else ()
    values = ("data.valid_fraction=0.5", "training.epochs=4", "checkpoint.keep_last=9", *smooth, *settings)
    given = [part for value in values for part in ("-s", value)]
    path = folder / name
    run("finetune", folder / f"{kind}.csv", "--recipe", folder / "recipe.yaml", "--labels", kind, "-o", path, *given)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("calibrated")
    for kind in ("class", "multi", "number"):
        table(made / f"{kind}.csv", 400, 0, kind)
    table(made / "test.csv", 300, 1)
    (made / "recipe.yaml").write_text(RECIPE.replace("SHAPE", "encoder"))
    (made / "costs.csv").write_text(COSTS)
    return made


@pytest.fixture(scope="module")
def classifier(folder: Path) -> Path:
    return trained(folder, "classifier")


@pytest.fixture(scope="module")
def undivided(folder: Path) -> Path:
    """The same run without a temperature."""
    return trained(folder, "undivided", "objective.temperature=1")


@pytest.fixture(scope="module")
def labeller(folder: Path) -> Path:
    return trained(folder, "labeller", kind="multi")


def results(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((path / "metrics.json").read_text())
    return record


def answers(path: object, source: Path, *options: str) -> list[dict[str, str]]:
    return list(csv.DictReader(run("predict", path, source, *options).splitlines()))


def probabilities(row: dict[str, str], names: tuple[str, ...] = NAMES) -> list[float]:
    return [float(row[f"p_{name}"]) for name in names]


def log_loss(rows: list[dict[str, str]]) -> float:
    return -sum(math.log(float(row[f"p_{row['label']}"])) for row in rows) / len(rows)


def test_a_temperature_is_chosen_kept_and_used(folder: Path, classifier: Path, undivided: Path) -> None:
    """It changes no class, and lowers the log loss and the calibration error of other rows."""
    kept, other = results(classifier), results(undivided)
    temperature = kept["temperature"]
    assert temperature < 0.8
    assert kept["calibration"]["ece"] < kept["calibration"]["before"]["ece"] - 0.05
    assert kept["calibration"]["before"]["ece"] == pytest.approx(other["calibration"]["ece"], rel=1e-6)
    assert "temperature" not in other
    assert kept["confusion"] == other["confusion"]
    with_it, without = (answers(path, folder / "test.csv") for path in (classifier, undivided))
    assert [row["predicted"] for row in with_it] == [row["predicted"] for row in without]
    for row, plain in zip(with_it, without, strict=True):
        powers = [p ** (1 / temperature) for p in probabilities(plain)]
        assert probabilities(row) == pytest.approx([p / sum(powers) for p in powers], abs=1e-4)
    assert log_loss(with_it) < log_loss(without) - 0.05
    measured, plain = (json.loads(run("eval", path, folder / "test.csv", "--json")) for path in (classifier, undivided))
    assert measured["temperature"] == temperature
    assert measured["calibration"]["ece"] < plain["calibration"]["ece"] - 0.05
    assert measured["calibration"]["before"]["ece"] == pytest.approx(plain["calibration"]["ece"], rel=1e-6)


def test_every_way_to_predict_has_the_same_probabilities(folder: Path, classifier: Path) -> None:
    rows = answers(classifier, folder / "test.csv")[:20]
    model = lmtool.load(str(classifier))
    served = TablePredictor.from_model(load_run(str(classifier)))
    for found in (
        model.predict([row["text"] for row in rows]),
        served.predict(served.encode([(row["text"],) for row in rows])),
    ):
        assert [one.label for one in found] == [row["predicted"] for row in rows]
        for one, row in zip(found, rows, strict=True):
            assert list(one.probabilities.values()) == pytest.approx(probabilities(row), abs=2e-6)


def test_only_the_best_checkpoint_has_its_temperature(folder: Path, classifier: Path) -> None:
    steps = [int(path.name.removeprefix("step-")) for path in (classifier / "checkpoints").glob("step-*")]
    best = results(classifier)["step"]
    other = next(step for step in steps if step != best)
    measured = [
        json.loads(run("eval", f"{classifier}@{step}", folder / "test.csv", "--json")) for step in (best, other)
    ]
    assert ["temperature" in one for one in measured] == [True, False]


def test_runs_made_before_go_on_as_they_are(folder: Path, classifier: Path, undivided: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier, tmp_path / "old")
    record = results(classifier)
    del record["temperature"], record["calibration"]["before"]
    (tmp_path / "old/metrics.json").write_text(json.dumps(record))
    wanted = answers(undivided, folder / "test.csv")
    assert answers(tmp_path / "old", folder / "test.csv") == wanted


def test_what_is_resumed_decides_the_same(classifier: Path, labeller: Path, tmp_path: Path) -> None:
    for path in (classifier, labeller):
        shutil.copytree(path, tmp_path / path.name)
        (tmp_path / path.name / "metrics.json").unlink()
        run("resume", tmp_path / path.name)
        assert results(tmp_path / path.name) == results(path)


def test_people_see_the_calibration_before_and_after(classifier: Path, folder: Path) -> None:
    calibration = results(classifier)["calibration"]
    after, before = calibration["ece"], calibration["before"]["ece"]
    page = (classifier / "report.html").read_text()
    assert f"calibration error: {after:.3f}; {before:.3f} before the scores were divided by the temperature" in page
    out = run("eval", classifier, folder / "class.csv")
    assert "calibration error 0." in out
    assert "without the temperature" in out


def test_an_uncertain_prediction_is_blank(folder: Path, classifier: Path) -> None:
    plain = answers(classifier, folder / "test.csv")
    sure = sorted(max(probabilities(row)) for row in plain)
    above = max(range(80, 120), key=lambda i: sure[i] - sure[i - 1])
    limit = (sure[above - 1] + sure[above]) / 2
    result = CliRunner().invoke(
        app, ["predict", str(classifier), str(folder / "test.csv"), "--min-probability", str(limit)]
    )
    rows = list(csv.DictReader(result.stdout.splitlines()))
    n_blank = sum(max(probabilities(row)) < limit for row in plain)
    assert n_blank == above
    assert f"{n_blank} of 300 predictions are blank: below {limit:g}" in result.stderr
    for row, other in zip(rows, plain, strict=True):
        is_blank = max(probabilities(other)) < limit
        assert row == other | {"predicted": "" if is_blank else other["predicted"]}
    assert "blank" not in CliRunner().invoke(app, ["predict", str(classifier), "--text", "a cat"]).stderr


def test_the_class_of_least_expected_cost_is_predicted(folder: Path, classifier: Path) -> None:
    """The table of costs may have its rows and columns in any order."""
    costs = {"bad": (0, 2, 20), "fine": (1, 0, 1), "good": (2, 1, 0)}
    by_number = [costs[name] for name in NAMES]
    plain = answers(classifier, folder / "test.csv")
    rows = answers(classifier, folder / "test.csv", "--costs", str(folder / "costs.csv"))
    chosen = [NAMES[cheapest(probabilities(row), by_number)] for row in rows]
    assert [row["predicted"] for row in rows] == chosen
    assert chosen != [row["predicted"] for row in plain]
    paid, usual = (
        sum(costs[row["label"]][NAMES.index(row["predicted"])] for row in predicted) / 300
        for predicted in (rows, plain)
    )
    measured = json.loads(run("eval", classifier, folder / "test.csv", "--costs", folder / "costs.csv", "--json"))
    assert measured["cost"] == pytest.approx(paid)
    assert measured["cost_of_most_probable"] == pytest.approx(usual)
    assert measured["cost"] < measured["cost_of_most_probable"]
    assert measured["accuracy"] == pytest.approx(sum(row["label"] == row["predicted"] for row in rows) / 300)
    assert all(mistake["label"] != mistake["predicted"] for mistake in measured["mistakes"])


def test_figures_by_costs_are_not_kept_as_those_of_the_run(folder: Path, classifier: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier, tmp_path / "run")
    (tmp_path / "run/evaluations.json").unlink(missing_ok=True)
    run("eval", tmp_path / "run", folder / "test.csv", "--costs", folder / "costs.csv")
    assert not (tmp_path / "run/evaluations.json").exists()
    run("eval", tmp_path / "run", folder / "test.csv")
    assert (tmp_path / "run/evaluations.json").exists()


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("true,bad,fine\nbad,0,1\nfine,1,0\n", "a row and a column for each class"),
        (COSTS.replace("good,0,2,1\n", ""), "a row and a column for each class"),
        (COSTS + "good,0,2,1\n", "a row and a column for each class"),
        (COSTS.replace("\nfine", "\nFine"), "a row and a column for each class"),
        (COSTS.replace("20", "dear"), "the cost is not a number"),
        (COSTS.replace("20", ""), "the cost is not a number"),
        (COSTS.replace("20", "nan"), "the cost is not a number"),
    ],
)
def test_costs_that_cannot_be_used_are_refused(
    content: str, what: str, folder: Path, classifier: Path, tmp_path: Path
) -> None:
    (tmp_path / "costs.csv").write_text(content)
    for command in ("predict", "eval"):
        assert what in refusal(command, classifier, folder / "test.csv", "--costs", tmp_path / "costs.csv")


def test_a_wrong_cost_is_told_with_its_place(folder: Path, classifier: Path, tmp_path: Path) -> None:
    (tmp_path / "costs.csv").write_text(COSTS.replace("20", "dear"))
    arguments = ["predict", str(classifier), str(folder / "test.csv"), "--costs", str(tmp_path / "costs.csv")]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, DataError)
    assert str(error.where).endswith("costs.csv:3, row 2, column 'good'")


def test_what_has_no_single_class_has_neither_costs_nor_blanks(folder: Path, labeller: Path) -> None:
    number = trained(folder, "number", "evaluation.metric=loss", kind="number")
    for path in (labeller, number):
        source = path.parent / "multi.csv"
        for option, value in (("--costs", folder / "costs.csv"), ("--min-probability", 0.9)):
            error = CliRunner().invoke(app, ["predict", str(path), str(source), option, str(value)]).exception
            assert isinstance(error, UsageError)
            assert (error.what, error.where) == ("this run does not predict a class", option)
    refused = refusal("eval", labeller, folder / "multi.csv", "--costs", folder / "costs.csv")
    assert "does not predict a class" in refused


def test_costs_are_for_tables_one_by_one(folder: Path, classifier: Path) -> None:
    costs = ("--costs", folder / "costs.csv")
    for arguments in ((folder / "test.csv", "--prompt", "{text}:"), ("--text", "a cat")):
        assert "costs need a table of classes, and a run that predicts them" in refusal(
            "eval", classifier, *arguments, *costs
        )


def test_labels_have_thresholds(folder: Path, labeller: Path) -> None:
    record = results(labeller)
    names = tuple(record["labels"])
    thresholds = record["thresholds"]
    assert names == ("any", "bad", "fine", "good", "rare")
    assert any(threshold != 0.5 for threshold in thresholds)
    rows = answers(labeller, folder / "multi.csv")
    served = lmtool.load(str(labeller)).predict([row["text"] for row in rows])
    for row, one in zip(rows, served, strict=True):
        pairs = zip(names, probabilities(row, names), thresholds, strict=True)
        wanted = [name for name, p, threshold in pairs if p > threshold]
        assert row["predicted"] == (";".join(wanted) or ";")
        assert list(one.label) == wanted
    given = trained(folder, "given", "objective.thresholds=[0.5, 0.5, 0.5, 0.5, 0.5]", kind="multi")
    assert results(given)["thresholds"] == [0.5] * 5
    assert record["macro_f1"] >= results(given)["macro_f1"]


def test_thresholds_are_one_for_each_label(folder: Path) -> None:
    with pytest.raises(UsageError, match="1 thresholds for 5 labels") as error:
        trained(folder, "refused", "objective.thresholds=[0.5]", kind="multi")
    assert error.value.where == "objective.thresholds"


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        ("class", "thresholds", "[0.5, 0.5, 0.5]"),
        ("number", "thresholds", "[0.5]"),
        ("multi", "temperature", "2"),
        ("number", "temperature", "2"),
    ],
)
def test_other_kinds_of_labels_have_neither(kind: str, key: str, value: str, folder: Path) -> None:
    with pytest.raises(UsageError, match="only for labels of kind") as error:
        trained(folder, "refused", f"objective.{key}={value}", "evaluation.metric=loss", kind=kind)
    assert error.value.where == f"objective.{key}"
