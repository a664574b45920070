"""`lmtool finetune`, `predict`, `resume`: from a table to predictions."""

import csv
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.errors import DataError, RecipeError, UsageError
from lmtool.recipe.load import Setting, load, parse_settings
from lmtool.recipe.spec.objective import Classification
from lmtool.training.finetuning import plan_finetuning
from tests.tokenization import chat_templates

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
    """Rows that are good exactly when they contain `good`."""
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


def refusal(*arguments: object) -> str:
    """The message of a user error."""
    error = CliRunner().invoke(app, [str(argument) for argument in arguments]).exception
    assert isinstance(error, UsageError | DataError)
    return f"{error.what} {error.fix}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    table(tmp_path / "train.csv", 200, 0)
    table(tmp_path / "test.csv", 60, 1)
    for shape in ("encoder", "decoder"):
        (tmp_path / f"{shape}.yaml").write_text(RECIPE.replace("SHAPE", shape))
    return tmp_path


def test_the_pooler_of_an_encoder_without_biases_goes_on_with_its_own(folder: Path) -> None:
    recipe = RECIPE.replace("SHAPE", "encoder, bias: false, n_segments: 2, next_sentence_head: true")
    for old, new in (
        ("classification", "masked, next_sentence: true"),
        ("epochs: 6, ", ""),
        (", metric: accuracy", ""),
    ):
        recipe = recipe.replace(old, new)
    (folder / "masked.yaml").write_text(recipe)
    (folder / "text.txt").write_text("the cat sat\n\n" * 200)
    run("pretrain", folder / "text.txt", "--recipe", folder / "masked.yaml", "-o", folder / "base")
    run("finetune", folder / "train.csv", "--from", folder / "base", "--epochs", "1", "-o", folder / "run")
    run("predict", folder / "run", folder / "test.csv", "-o", folder / "answers.csv")


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


def test_a_trained_run_is_fine_tuned_and_resumed(folder: Path, base: Path) -> None:
    once = ("finetune", folder / "train.csv", "--from", base, "--epochs", "1")
    run(*once, "-o", folder / "tuned")
    recipe = (folder / "tuned/recipe.yaml").read_text()
    assert "kind: classification" in recipe
    assert "labels: ['no', 'yes']" in recipe or "- 'no'" in recipe or '"no"' in recipe
    run("resume", folder / "tuned", "-s", "training.steps=+6")
    steps = [json.loads(line)["step"] for line in (folder / "tuned/metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(1, len(steps) + 1))
    # a head for the same labels is reused
    result = CliRunner().invoke(app, [*map(str, once[:2]), "--from", str(folder / "tuned"), "--epochs", "1"])
    assert "the head is reused" in result.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("source", "settings"),
    [
        ("base", ("--label-column", "stars")),
        ("recipe", ("--label-column", "stars")),
        ("base", ("-s", "data.label_column=stars")),
        ("recipe", ("-s", " data.label_column = stars")),
        ("base", ("-s", "data={label_column: stars}")),
        ("recipe", ("-s", " data = {label_column: stars}")),
        ("base", ("-s", "data={label_column: label}", "-s", "data.label_column=stars")),
    ],
)
def test_however_a_column_is_named_it_is_the_one_that_is_trained_on(
    settings: tuple[str, ...], source: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    rows = "".join(f"the cat {i % 3} sat {i},{'xy'[i % 2]},{'pqr'[i % 3]}\n" for i in range(36))
    (folder / "train.csv").write_text("text,label,stars\n" + rows)
    begun: tuple[object, ...] = ()
    if source == "base":
        begun = ("--from", request.getfixturevalue("base"))
    elif source == "recipe":
        begun = ("--recipe", folder / "encoder.yaml")
    run("finetune", folder / "train.csv", *begun, *settings, "--epochs", "1", "-q", "-o", folder / "tuned")
    found = load(folder / "tuned/recipe.yaml").recipe
    assert found.data.label_column == "stars"
    assert isinstance(found.objective, Classification)
    assert found.objective.labels == ("p", "q", "r")


def test_merged_labels_are_those_of_every_command(folder: Path) -> None:
    for name in ("train", "test"):
        path = folder / f"{name}.csv"
        lines = path.read_text().splitlines()
        wrong = [f"{line[:-3]}Yes" if line.endswith(",yes") and i % 9 == 1 else line for i, line in enumerate(lines)]
        path.write_text("\n".join(wrong) + "\n")
    train, test, merge = folder / "train.csv", folder / "test.csv", ("--merge-labels", "Yes=yes")
    assert "--merge-labels Yes=yes" in run("check", train)
    assert "similar labels" not in run("check", train, "--test", test, *merge)
    made = folder / "made"
    run("finetune", train, "--recipe", folder / "encoder.yaml", "--test", test, *merge, "-o", made)
    figures = json.loads((made / "metrics.json").read_text())
    assert figures["labels"] == ["no", "yes"]
    assert figures["rows"] == 60
    evaluated = json.loads(run("eval", made, test, "--json"))
    assert evaluated["accuracy"] == figures["accuracy"]
    assert "have changed" not in run("check", made)
    # a typo that training has not seen
    test.write_text(test.read_text().replace(",no\n", ",noo\n"))
    assert "--merge-labels noo=no" in refusal("eval", made, test)
    (folder / "m.csv").write_text("from,to\nnoo,no\n")
    again = json.loads(run("eval", made, test, "--json", "--merge-labels", folder / "m.csv"))
    assert again["accuracy"] == figures["accuracy"]


def test_the_table_may_be_a_setting(folder: Path) -> None:
    assert "no table to train on name one: lmtool finetune TABLE" in refusal("finetune")
    run("finetune", "-s", f"data={{train: [{folder / 'train.csv'}]}}", "--epochs", "1", "-q", "-o", folder / "run")
    assert load(folder / "run/recipe.yaml").recipe.data.train == (str(folder / "train.csv"),)


@pytest.mark.parametrize("named", ["objective.kind=classification", "objective={kind: classification}"])
def test_an_objective_that_is_named_decides_what_the_rows_are(named: str, folder: Path, base: Path) -> None:
    """Lists in `tokens` beside `tags` would be words with tags."""
    row = {"tokens": ["the", "cat"], "tags": ["X", "Y"], "text": "the cat", "label": "x"}
    (folder / "rows.jsonl").write_text("\n".join([json.dumps(row)] * 20))
    table = Setting("data.train", [str(folder / "rows.jsonl")], "TABLE")
    plan = plan_finetuning(str(base), None, parse_settings([named], [table]))
    assert plan.tables[0].columns.texts == ("text",)
    assert plan.resolved.recipe.objective.kind == "classification"


@pytest.mark.parametrize(
    ("label", "metric", "fix"),
    [
        ("number", "accuracy", "use loss or correlation"),
        ("number", "macro-f1", "use loss or correlation"),
        ("class", "correlation", "use loss or accuracy or macro-f1"),
        ("multi", "correlation", "use loss or accuracy or macro-f1"),
    ],
)
def test_a_metric_that_the_labels_do_not_have_is_refused_before_anything_is_made(
    label: str, metric: str, fix: str, folder: Path
) -> None:
    path = table(folder / "labels.csv", 60, 0, label)
    once = ("finetune", path, "--recipe", folder / "encoder.yaml", "--metric", metric, "-o", folder / "run")
    result = CliRunner().invoke(app, [str(argument) for argument in once])
    assert isinstance(result.exception, UsageError)
    assert result.exception.exit_code == 2
    assert f"the metric {metric} is not for labels of kind {label}" in result.exception.what
    assert result.exception.fix == fix
    assert not (folder / "run").exists()


def test_a_metric_of_labels_is_not_for_answers(folder: Path) -> None:
    (folder / "pairs.yaml").write_text(PAIRS)
    once = ("finetune", folder / "train.csv", "--recipe", folder / "pairs.yaml", "--metric", "accuracy")
    error = CliRunner().invoke(app, [str(argument) for argument in once]).exception
    assert isinstance(error, RecipeError)
    assert "accuracy is for objective classification" in str(error)


def pretrain(folder: Path, n_layers: int, d_model: int, context: int) -> Path:
    text = folder / "text.txt"
    text.write_text("\n\n".join(f"the cat sat good {i} bad dog ran" for i in range(60)))
    run(
        *("pretrain", text, "--recipe", "tiny", "-s", f"model.n_layers={n_layers}", "-s", f"model.d_model={d_model}"),
        *("-s", "model.n_heads=2", "-s", f"model.context={context}", "-s", "training.steps=4"),
        *("-s", "training.device=cpu", "-s", "tokenizer.vocab_size=300", "-s", "evaluation.prompts=[]"),
        *("-o", folder / "base"),
    )
    return folder / "base"


@pytest.fixture(scope="module")
def trained_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(tmp_path_factory.mktemp("base"), n_layers=2, d_model=32, context=32)


@pytest.fixture(scope="module")
def trained_small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pretrain(tmp_path_factory.mktemp("small"), n_layers=1, d_model=16, context=48)


@pytest.fixture
def base(folder: Path, trained_base: Path) -> Path:
    return Path(shutil.copytree(trained_base, folder / "base"))


def predictions(folder: Path, run_path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(run("predict", run_path, folder / "test.csv").splitlines()))


@pytest.mark.slow
def test_adapters_are_learnt_measured_merged_and_answer_alike(folder: Path, base: Path) -> None:
    out = run(
        *("finetune", folder / "train.csv", "--test", folder / "test.csv", "--from", base, "--lora-rank", "4"),
        *("--merge", "--epochs", "8", "-s", "optimizer.lr=0.02", "-o", folder / "tuned"),
    )
    assert out.splitlines()[-2:] == [str(folder / "tuned"), str(folder / "tuned-merged")]
    record = json.loads((folder / "tuned/metrics.json").read_text())
    assert record["accuracy"] > 0.9
    adapted, merged = (predictions(folder, folder / name) for name in ("tuned", "tuned-merged"))
    assert sum(row["label"] == row["predicted"] for row in adapted) / 60 == pytest.approx(record["accuracy"])
    for one, other in zip(adapted, merged, strict=True):
        assert float(one["p_yes"]) == pytest.approx(float(other["p_yes"]), abs=1e-4)
    assert json.loads((folder / "tuned-merged/metrics.json").read_text()) == record
    small, whole = (
        sum(file.stat().st_size for file in (folder / name / "checkpoints").rglob("model.safetensors"))
        for name in ("tuned", "tuned-merged")
    )
    assert small < 0.3 * whole
    # it needs no base run, and can be fine-tuned further
    shutil.rmtree(base)
    again = json.loads(run("eval", folder / "tuned-merged", folder / "test.csv", "--json"))
    assert again["accuracy"] == pytest.approx(record["accuracy"], abs=1e-9)
    run("resume", folder / "tuned-merged", "-s", "training.steps=+3")
    assert "initialized from" in run("runs", "show", folder / "tuned-merged")
    assert "has no adapters" in refusal("runs", "merge", folder / "tuned-merged")


def test_a_language_model_learns_another_text_by_adapters(folder: Path, base: Path) -> None:
    other = folder / "other.txt"
    other.write_text("\n\n".join(f"a dog ran {i} times" for i in range(80)))
    on = ("pretrain", other, "--from", base, "-s", "tuning.lora={rank: 4, targets: [query, value, feed-forward]}")
    run(*on, "-s", "training.steps=30", "-s", "training.batch_size=8", "-o", folder / "adapted")
    losses = [json.loads(run("eval", path, other, "--json"))["loss"] for path in (base, folder / "adapted")]
    assert losses[1] < 0.95 * losses[0]
    run("runs", "merge", folder / "adapted", "-o", folder / "merged")
    assert json.loads(run("eval", folder / "merged", other, "--json"))["loss"] == pytest.approx(losses[1], rel=1e-4)
    texts = [
        run("generate", "a dog", "--run", folder / name, "--max-new-tokens", "6", "--seed", "1")
        for name in ("adapted", "merged")
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_answers_are_learnt_by_adapters(folder: Path, base: Path) -> None:
    train = pairs(folder / "train.tsv", 60, 0)
    out = run("finetune", train, "--from", base, "--lora-rank", "2", "--epochs", "1", "-o", folder / "run")
    assert "bleu" in out
    assert "predicted" in run("predict", folder / "run", train).splitlines()[0]


def test_merging_needs_adapters(folder: Path, base: Path) -> None:
    assert "needs adapters" in refusal("finetune", folder / "train.csv", "--from", base, "--merge")


def test_several_seeds_are_several_runs_and_their_spread(folder: Path) -> None:
    out = run(
        *("finetune", folder / "train.csv", "--test", folder / "test.csv", "--recipe", folder / "encoder.yaml"),
        *("--seeds", "3", "--epochs", "2", "-o", folder / "runs of seeds"),
    )
    lines = out.splitlines()
    paths = [folder / "runs of seeds" / f"seed-{seed}" for seed in (1, 2, 3)]
    assert [line for line in lines if line.startswith(str(folder))] == list(map(str, paths))
    records = [json.loads((path / "metrics.json").read_text()) for path in paths]
    figures = {name: [record[name] for record in records] for name in ("accuracy", "macro_f1", "loss")}
    assert len(set(figures["loss"])) == 3
    assert lines[-1].startswith("test, 3 runs: ")
    for name, values in figures.items():
        mean = sum(values) / 3
        deviation = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
        assert f"{name.replace('_', ' ')} {mean:.4f} ± {deviation:.4f}" in lines[-1]
    # each is a run of its own
    for seed, path in enumerate(paths, 1):
        assert f"seed: {seed}\n" in (path / "recipe.yaml").read_text()
    shutil.copytree(paths[1], folder / "again")
    alone = ("finetune", folder / "train.csv", "--test", folder / "test.csv", "--recipe", folder / "encoder.yaml")
    run(*alone, "--epochs", "2", "-s", "seed=2", "-o", folder / "alone")
    assert json.loads((folder / "alone/metrics.json").read_text()) == records[1]


def test_runs_are_compared_row_by_row(folder: Path) -> None:
    for name, epochs in (("short", "0.1"), ("long", "12")):
        options = ("--recipe", folder / "encoder.yaml", "--epochs", epochs, "-o", folder / name)
        run("finetune", folder / "train.csv", *options)
    compare = ("runs", "compare", folder / "short", folder / "long", "--test", folder / "test.csv")
    (tested,) = json.loads(run(*compare, "--json"))["tests"]
    figures = [json.loads(run("eval", folder / name, folder / "test.csv", "--json")) for name in ("short", "long")]
    assert tested["means"] == pytest.approx([one["accuracy"] for one in figures])
    assert tested["rows"] == figures[0]["rows"]
    assert tested["difference"] == pytest.approx(
        tested["right_alone"][1] / tested["rows"] - tested["right_alone"][0] / tested["rows"]
    )
    low, high = tested["interval"]
    assert low <= tested["difference"] <= high
    told = run(*compare).splitlines()[-1].strip()
    better = tested["better"]
    rows = f"no difference that {tested['rows']} rows can show"
    assert told == (f"{better} is better, by more than chance" if better else rows)
    same = run("runs", "compare", folder / "long", folder / "long", "--test", folder / "test.csv")
    assert same.splitlines()[-1].strip() == rows
    header, *others = (folder / "test.csv").read_text(encoding="utf-8").splitlines()
    renamed = folder / "renamed.csv"
    renamed.write_text("\n".join((header.replace("text", "said").replace("label", "meant"), *others)), encoding="utf-8")
    columns = ("--text-column", "said", "--label-column", "meant")
    (again,) = json.loads(run(*compare[:-1], renamed, *columns, "--json"))["tests"]
    assert again | {"source": ""} == tested | {"source": ""}


def test_rows_that_were_trained_on_are_told_before_their_figure(folder: Path) -> None:
    run("finetune", folder / "train.csv", "--recipe", folder / "encoder.yaml", "--epochs", "1", "-o", folder / "run")
    for command in (
        ("eval", folder / "run", folder / "train.csv"),
        ("runs", "compare", folder / "run", folder / "run", "--test", folder / "train.csv"),
    ):
        result = CliRunner().invoke(app, list(map(str, command)))
        assert result.exit_code == 0
        assert re.search(r"warning: 180 of 200 rows \(90\.0 %\) are in the training text of run", result.stderr)
        last = "accuracy" if command[0] == "eval" else "difference"
        assert result.output.index("are in the training text") < result.output.rindex(last)


def test_seeds_begin_with_the_same_run(folder: Path, base: Path) -> None:
    """Not from the last run, which is that of the seed before."""
    run("finetune", folder / "train.csv", "--epochs", "0.5", "--from", base, "--seeds", "2", "-o", folder / "seeds")
    for seed in (1, 2):
        assert json.loads((folder / f"seeds/seed-{seed}/run.json").read_text())["base"]["run"] == "base"


def test_seeds_are_for_one_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    once = ("finetune", folder / "train.csv", "--recipe", folder / "encoder.yaml")
    assert "torchrun" in refusal(*once, "--seeds", "2")


def test_patience_ends_a_run_and_the_best_checkpoint_is_measured(folder: Path) -> None:
    """Random labels cannot be learned."""
    rng = random.Random(0)
    lines = [f"{rng.choice(['cat', 'dog'])} sat,{rng.choice(['yes', 'no'])}" for _ in range(120)]
    (folder / "noise.csv").write_text("\n".join(["text,label", *lines]) + "\n")
    run(
        *("finetune", folder / "noise.csv", "--recipe", folder / "encoder.yaml", "--epochs", "200"),
        *("--patience", "3", "--metric", "macro-f1", "-s", "evaluation.every=4", "-o", folder / "run"),
    )
    records = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    measured = {record["step"]: record["macro-f1"] for record in records if "macro-f1" in record}
    losses = {record["step"]: record["valid_loss"] for record in records}
    best = max(measured, key=lambda step: (measured[step], -losses[step]))
    assert records[-1]["step"] == best + 3 * 4 < 1000
    result = json.loads((folder / "run/metrics.json").read_text())
    assert result["step"] == best
    assert result["macro_f1"] == pytest.approx(measured[best])


def skewed(path: Path, label: str = "class") -> Path:
    """Four rows of `no` for each of `yes`."""
    lines = [f"the cat sat {i},{'yes' if i % 5 == 0 else 'no'}" for i in range(100)]
    path.write_text("\n".join(["text,label", *lines]) + "\n")
    return path


def test_balanced_class_weights_are_read_off_the_rows_that_are_trained_on(folder: Path) -> None:
    run(
        *("finetune", skewed(folder / "skewed.csv"), "--recipe", folder / "encoder.yaml", "--epochs", "1"),
        *("--class-weights", "balanced", "-o", folder / "run"),
    )
    # a tenth of each class is held out
    n, counts = 90, {"no": 72, "yes": 18}
    weights = load(folder / "run/recipe.yaml").recipe.objective.class_weights
    assert weights == (n / (2 * counts["no"]), n / (2 * counts["yes"]))
    run("resume", folder / "run", "-s", "training.steps=+2")


def test_class_weights_that_do_not_fit_are_refused(folder: Path) -> None:
    recipe = ("--recipe", folder / "encoder.yaml", "-o", folder / "run")
    numbers = table(folder / "numbers.csv", 40, 0, "number")
    assert "have a number" in refusal("finetune", numbers, *recipe, "--class-weights", "balanced")
    given = ("-s", "objective.class_weights=[1, 2, 3]")
    assert "3 weights for 2 classes" in refusal("finetune", skewed(folder / "skewed.csv"), *recipe, *given)


PAIRS = """\
model: {kind: recurrent, shape: encoder-decoder, cell: gru, d_model: 48, context: 16, attention: {score: bilinear}}
objective: {kind: seq2seq}
tokenizer: {kind: word, vocab_size: 60}
training: {steps: 1, epochs: 12, batch_size: 16, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.02, weight_decay: 0.0}
schedule: {kind: linear, warmup_steps: 3}
evaluation: {every: 50}
checkpoint: {every: 50}
"""


def pairs(path: Path, n: int, seed: int, columns: str = "source\ttarget") -> Path:
    """Sources of two or three words, and the same words backwards."""
    rng = random.Random(seed)
    lines = [columns]
    for _ in range(n):
        words = [rng.choice(["a", "the", "cat", "dog", "sat"]) for _ in range(rng.randint(2, 3))]
        lines.append(" ".join(words) + "\t" + " ".join(reversed(words)))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_pairs_are_learnt_measured_and_answered(folder: Path) -> None:
    recipe = folder / "pairs.yaml"
    recipe.write_text(PAIRS)
    train, test = pairs(folder / "train.tsv", 300, 0, "en\tne"), pairs(folder / "test.tsv", 40, 1, "en\tne")
    columns = ("--source-column", "en", "--target-column", "ne")
    out = run("finetune", train, "--test", test, "--recipe", recipe, *columns, "-o", folder / "run")
    assert "test: 40 rows  bleu" in out
    assert "greedy" in out
    record = json.loads((folder / "run/metrics.json").read_text())
    assert record["exact"] > 0.9
    assert record["bleu"] > 90 or record["chrf"] > 90  # texts below four words have no 4-grams
    again = json.loads(run("eval", folder / "run", test, "--json"))
    assert {key: again[key] for key in ("bleu", "chrf", "exact", "loss")} == {
        key: record[key] for key in ("bleu", "chrf", "exact", "loss")
    }
    beams = json.loads(run("eval", folder / "run", test, "--num-beams", "3", "--json"))
    assert "3 beams" in beams["decoding"]
    rows = list(csv.DictReader(run("predict", folder / "run", test).splitlines()))
    assert [*rows[0]] == ["en", "ne", "predicted"]
    assert sum(row["ne"] == row["predicted"] for row in rows) / len(rows) == record["exact"]


def test_a_stopped_run_on_pairs_goes_on_as_if_never_stopped(folder: Path) -> None:
    recipe = folder / "pairs.yaml"
    recipe.write_text(PAIRS.replace("every: 50", "every: 5"))
    train = pairs(folder / "train.tsv", 80, 0)
    once = ("finetune", train, "--recipe", recipe, "-s", "training.epochs=null", "-s", "training.steps=10")
    once += ("-s", "checkpoint.keep_optimizer=true")
    run(*once, "-o", folder / "whole")
    shutil.copytree(folder / "whole", folder / "half")
    shutil.rmtree(folder / "half/checkpoints/step-000010")
    run("resume", folder / "half")
    whole, half = (folder / name / "checkpoints/step-000010" for name in ("whole", "half"))
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (whole / file).read_bytes() == (half / file).read_bytes()
    assert (folder / "whole/metrics.json").read_text() == (folder / "half/metrics.json").read_text()


@pytest.fixture
def pretrained(folder: Path, trained_small: Path) -> Path:
    return Path(shutil.copytree(trained_small, folder / "base"))


FORMS: dict[str, Callable[[str, str], dict[str, object]]] = {
    "pairs": lambda asked, answer: {"prompt": asked, "completion": answer},
    "instructions": lambda asked, answer: {"instruction": asked, "input": "", "output": answer},
    "conversations": lambda asked, answer: {
        "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    },
}
SAYS = {"the cat": "good", "bad dog": "ran"}


def questions(path: Path, form: str, n: int = 60) -> Path:
    rows = [FORMS[form](asked, answer) for asked, answer in SAYS.items()]
    path.write_text("".join(json.dumps(rows[i % 2] | {"id": i}) + "\n" for i in range(n)))
    return path


@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_learns_answers(folder: Path, pretrained: Path, form: str) -> None:
    """Asked on the command line as in the table, alone as in a batch; and it stays a decoder."""
    train = questions(folder / "train.jsonl", form)
    fast = ("-s", "optimizer.lr=0.02", "-s", "training.batch_size=10", "-s", "evaluation.every=20", "--epochs", "10")
    out = run("finetune", train, "--valid", train, "--from", pretrained, *fast, "-o", folder / "run")
    assert "exact 1.0000" in out
    recipe = load(folder / "run/recipe.yaml").recipe
    assert (recipe.model.title, recipe.objective.kind) == ("transformer decoder", "seq2seq")
    for asked, answer in SAYS.items():
        assert run("generate", asked, "--run", folder / "run", "--strategy", "greedy").strip() == answer
    assert json.loads(run("eval", folder / "run", train, "--json"))["exact"] == 1
    rows = list(csv.DictReader(run("predict", folder / "run", train).splitlines()))
    assert [row["predicted"] for row in rows] == [*SAYS.values()] * 30


def test_a_stopped_run_on_conversations_goes_on_as_if_never_stopped(folder: Path, pretrained: Path) -> None:
    train = questions(folder / "train.jsonl", "conversations")
    short = ("-s", "training.epochs=null", "-s", "training.steps=6", "-s", "checkpoint.every=3")
    short += ("-s", "evaluation.every=3", "-s", "checkpoint.keep_last=2", "-s", "checkpoint.keep_optimizer=true")
    run("finetune", train, "--from", pretrained, *short, "-o", folder / "whole")
    shutil.copytree(folder / "whole", folder / "half")
    shutil.rmtree(folder / "half/checkpoints/step-000006")
    run("resume", folder / "half")
    whole, half = (folder / name / "checkpoints/step-000006/model.safetensors" for name in ("whole", "half"))
    assert whole.read_bytes() == half.read_bytes()


def test_a_chat_template_writes_questions_and_answers(folder: Path) -> None:
    chat_templates.publish(folder / "tokens", "gemma")
    recipe = folder / "chat.yaml"
    recipe.write_text(
        "model: {kind: transformer, n_layers: 1, d_model: 48, n_heads: 4, context: 64}\nobjective: {kind: seq2seq}\n"
        "training: {steps: 1, epochs: 25, batch_size: 10, device: cpu}\noptimizer: {kind: adamw, lr: 0.01}\n"
        f"tokenizer: {{kind: file, path: '{folder}/tokens'}}\nevaluation: {{every: 20}}\n"
    )
    train = questions(folder / "train.jsonl", "conversations")
    out = run("finetune", train, "--valid", train, "--recipe", recipe, "-o", folder / "run")
    assert "exact 1.0000" in out
    for asked, answer in SAYS.items():
        assert run("generate", asked, "--run", folder / "run", "--strategy", "greedy").strip() == answer
    with train.open("a") as file:
        file.write(
            json.dumps({"messages": [{"role": "system", "content": "a"}, {"role": "assistant", "content": "b"}]})
        )
    assert "System role not supported" in refusal("finetune", train, "--recipe", recipe)


def test_conversations_are_for_decoders(folder: Path, pretrained: Path) -> None:
    recipe = folder / "pairs.yaml"
    recipe.write_text(PAIRS)
    train = questions(folder / "train.jsonl", "conversations")
    assert "does not read conversations" in refusal("finetune", train, "--recipe", recipe)
    assert "not for tasks" in refusal("finetune", "--task", f"a:{train}", "--from", pretrained)
    assert "no column" in refusal("finetune", train, "--from", pretrained, "--messages-column", "talk")


def test_several_tasks_are_learnt_as_text(folder: Path, pretrained: Path) -> None:
    translation = pairs(folder / "train.tsv", 60, 0)
    out = run(
        *("finetune", "--task", f"mood:{folder / 'train.csv'}", "--task", f"back:{translation}:0.5"),
        *("--task-test", f"mood:{folder / 'test.csv'}", "--from", pretrained, "--epochs", "1", "-o", folder / "run"),
        *("-s", "data.valid_fraction=0.2"),
    )
    assert "mood, test: 60 rows  accuracy" in out
    assert "back, validation: " in out
    record = json.loads((folder / "run/metrics.json").read_text())["tasks"]
    assert "accuracy" in record["mood"]
    assert "bleu" in record["back"]
    assert sorted(json.loads((folder / "run/split.json").read_text())) == ["back", "mood"]
    again = json.loads(run("eval", folder / "run", folder / "test.csv", "--task", "mood", "--json"))
    assert again["accuracy"] == record["mood"]["accuracy"]
    assert "predicted" in run("predict", folder / "run", folder / "test.csv", "--task", "mood").splitlines()[0]
    assert "mood or back" in refusal("eval", folder / "run", folder / "test.csv")


def test_a_text_to_text_model_learns_labels_as_text(folder: Path) -> None:
    recipe = folder / "pairs.yaml"
    recipe.write_text(PAIRS)
    out = run(
        *("finetune", folder / "train.csv", "--test", folder / "test.csv", "--recipe", recipe, "--epochs", "6"),
        *("-o", folder / "run"),
    )
    assert "test: 60 rows  accuracy" in out
    assert json.loads((folder / "run/metrics.json").read_text())["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ((), "no table"),
        (("{train}", "--task", "a:{train}"), "cannot be combined"),
        (("--task", "a", "--recipe", "{pairs}"), "not NAME:FILE"),
        (("{train}", "--recipe", "tiny"), "not for tables"),
        (("{train}", "--recipe", "{pairs}", "--target-column", "zzz"), "no column"),
    ],
)
def test_what_cannot_be_is_refused(arguments: tuple[str, ...], what: str, folder: Path) -> None:
    (folder / "pairs.yaml").write_text(PAIRS)
    places = {"train": folder / "train.csv", "pairs": folder / "pairs.yaml"}
    assert what in refusal("finetune", *(text.format(**places) for text in arguments))


@pytest.mark.parametrize("source", ["last", "base"])
def test_a_run_and_a_recipe_to_begin_anew_contradict_each_other(folder: Path, base: Path, source: str) -> None:
    once = ("finetune", folder / "train.csv", "--from", source, "--recipe", folder / "encoder.yaml")
    assert "--from fine-tunes a run, --recipe trains from scratch" in refusal(*once, "-o", folder / "run")
    assert not (folder / "run").exists()


def test_a_recipe_for_tables_is_not_for_text(folder: Path) -> None:
    (folder / "text.txt").write_text("the cat sat")
    refused = refusal("pretrain", folder / "text.txt", "--recipe", "transformer-tiny")
    assert "lmtool finetune TABLE --recipe transformer-tiny" in refused
