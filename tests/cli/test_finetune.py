"""`lmtool finetune`, `predict`, `resume`: from a table to predictions."""

import csv
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmtool.cli import app

RECIPE = """\
model: {kind: transformer, shape: SHAPE, n_layers: 1, d_model: 16, n_heads: 2, context: 32}
tokenizer: {kind: word, vocab_size: 60}
objective: {kind: classification}
training: {steps: 1, epochs: 6, batch_size: 16, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.02}
schedule: {kind: linear, warmup_steps: 3}
evaluation: {every: 10, metric: accuracy}
checkpoint: {every: 10}
"""


def table(path: Path, n: int, seed: int, label: str = "class") -> Path:
    """Rows that are good exactly when `good` stands in them."""
    rng = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        for i in range(n):
            good = rng.random() < 0.5
            words = [rng.choice(["a", "the", "cat", "dog", "sat", "ran"]) for _ in range(rng.randint(3, 9))]
            words.insert(rng.randint(0, len(words)), "good" if good else "bad")
            answer = {
                "class": "yes" if good else "no",
                "number": str(2.5 if good else -1.5),
                "multi": "x;y" if good else "y",
            }
            writer.writerow([i, " ".join(words), answer[label]])
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    table(tmp_path / "train.csv", 200, 0)
    table(tmp_path / "test.csv", 60, 1)
    for shape in ("encoder", "decoder"):
        (tmp_path / f"{shape}.yaml").write_text(RECIPE.replace("SHAPE", shape))
    return tmp_path


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_table_is_learnt_measured_and_answered(shape: str, folder: Path) -> None:
    out = run(
        *("finetune", folder / "train.csv", "--test", folder / "test.csv", "--recipe", folder / f"{shape}.yaml"),
        *("-o", folder / "run"),
    )
    assert out.splitlines()[-1] == str(folder / "run")
    assert "test: 60 rows" in out
    record = json.loads((folder / "run/metrics.json").read_text())
    assert record["accuracy"] > 0.95
    assert record["labels"] == ["no", "yes"]
    assert sum(map(sum, record["confusion"])) == record["rows"] == 60
    held = json.loads((folder / "run/split.json").read_text())
    assert len(held["train"]) + len(held["test"]) == 200

    again = json.loads(run("eval", folder / "run", folder / "test.csv", "--json"))
    assert again["accuracy"] == record["accuracy"]
    assert again["confusion"] == record["confusion"]
    run("predict", folder / "run", folder / "test.csv", "-o", folder / "out.csv")
    with (folder / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "text", "label", "predicted", "p_no", "p_yes"]
    assert sum(row["label"] == row["predicted"] for row in rows) / 60 == pytest.approx(record["accuracy"])
    for row in rows:
        assert float(row["p_no"]) + float(row["p_yes"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("label", ["number", "multi"])
def test_numbers_and_several_labels(label: str, folder: Path) -> None:
    table(folder / "train.csv", 200, 0, label)
    metric = "correlation" if label == "number" else "accuracy"
    run(
        *("finetune", folder / "train.csv", "--recipe", folder / "decoder.yaml", "-o", folder / "run"),
        *("--metric", metric, "--labels", label),
    )
    record = json.loads((folder / "run/metrics.json").read_text())
    assert record["pearson" if label == "number" else "subset_accuracy"] > 0.9
    out = run("predict", folder / "run", folder / "test.csv").splitlines()
    values = [row["predicted"] for row in csv.DictReader(out)]
    assert len(values) == 60
    if label == "number":
        assert all(-4 < float(value) < 5 for value in values)
    else:
        assert set(values) <= {"x;y", "y", "x", ";"}


def test_a_trained_run_is_fine_tuned_and_resumed(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"the cat sat good {i} bad dog ran" for i in range(60)))
    run(
        *("pretrain", text, "--recipe", "tiny", "-s", "model.n_layers=1", "-s", "model.d_model=16"),
        *("-s", "model.n_heads=2", "-s", "model.context=32", "-s", "training.steps=4", "-s", "training.device=cpu"),
        *("-s", "tokenizer.vocab_size=300", "-s", "evaluation.prompts=[]", "-o", folder / "base"),
    )
    once = ("finetune", folder / "train.csv", "--from", folder / "base", "--epochs", "1")
    run(*once, "-o", folder / "tuned")
    recipe = (folder / "tuned/recipe.yaml").read_text()
    assert "kind: classification" in recipe
    assert "labels: ['no', 'yes']" in recipe or "- 'no'" in recipe or '"no"' in recipe
    run("resume", folder / "tuned", "-s", "training.steps=+6")
    steps = [json.loads(line)["step"] for line in (folder / "tuned/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    # a head for the same labels is kept
    result = CliRunner().invoke(app, [*map(str, once[:2]), "--from", str(folder / "tuned"), "--epochs", "1"])
    assert "the head is kept" in result.stderr
