"""`lmtool finetune`, `eval`, `predict` and `resume` on tagged sentences and on questions."""

import csv
import json
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lmtool import load as load_model
from lmtool.cli import app
from lmtool.errors import DataError, UsageError

RECIPE = """\
model: MODEL
tokenizer: {kind: word, vocab_size: 90}
training: {steps: 1, batch_size: 16, device: cpu, precision: float32}
optimizer: {kind: adam, lr: 0.01}
schedule: {kind: linear}
evaluation: {every: 10}
checkpoint: {every: 10}
"""
MODELS = {
    "encoder": "{kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 24}",
    "decoder": "{kind: transformer, shape: decoder, n_layers: 1, d_model: 16, n_heads: 2, context: 24}",
    "elmo": "{kind: recurrent, shape: bidirectional, d_model: 16, context: 24}",
}
NAMES = ("Otto", "Ida", "Rosa", "Leo", "Kate")


def tagged(path: Path, n: int) -> Path:
    """A name is a person, or a boat after `the`."""
    rng = random.Random(n)
    lines = []
    for _ in range(n):
        name, other = rng.choice(NAMES), rng.choice(NAMES)
        words = [(name, "B-PER"), ("Miller", "I-PER"), ("saw", "O"), ("the", "O"), (other, "B-BOAT"), (".", "O")]
        lines += [f"{word} {tag}" for word, tag in words[: 1 + 5 * (rng.random() < 0.9)]]
        lines.append("")
    path.write_text("\n".join(lines))
    return path


def asked(path: Path, n: int) -> Path:
    """Who gave it is the first word; every third question has no answer."""
    rng = random.Random(n)
    paragraphs = []
    for i in range(n):
        who, whom = rng.choice(NAMES), rng.choice(NAMES)
        context = f"{who} gave the key to {whom} on a day when it had rained for so long that the brook was a river ."
        answers = [] if i % 3 == 0 else [{"text": who, "answer_start": 0}]
        qas = [{"id": str(i), "question": "When was it ?" if i % 3 == 0 else "Who gave it ?", "answers": answers}]
        paragraphs.append({"context": context, "qas": qas})
    path.write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    return path


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def refusal(*arguments: object) -> str:
    error = CliRunner().invoke(app, [str(argument) for argument in arguments]).exception
    assert isinstance(error, UsageError | DataError), error
    assert len(error.lines()) in (2, 3)
    return f"{error.what} | {error.where} | {error.fix}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "text.txt").write_text("\n\n".join(f"{a} gave {b} the key . {b} saw it" for a in NAMES for b in NAMES))
    return tmp_path


def pretrained(folder: Path, body: str) -> Path:
    objective = {"encoder": "masked", "decoder": "causal", "elmo": "bidirectional"}[body]
    recipe = folder / f"{body}.yaml"
    recipe.write_text(RECIPE.replace("MODEL", MODELS[body]) + f"objective: {{kind: {objective}}}\n")
    run("pretrain", folder / "text.txt", "--recipe", recipe, "-o", folder / body, "-q")
    return folder / body


@pytest.mark.parametrize("body", MODELS)
def test_tags_are_learnt_measured_and_predicted(body: str, folder: Path) -> None:
    train, test = tagged(folder / "a.conll", 60), tagged(folder / "b.conll", 12)
    base, made = pretrained(folder, body), folder / "run"
    run("finetune", train, "--test", test, "--from", base, "-o", made, "--epochs", "2", "-s", "training.device=cpu")
    figures = json.loads((made / "metrics.json").read_text())
    assert figures["part"] == "test"
    assert set(figures["entities"]) <= {"PER", "BOAT"}
    assert figures["baseline"]["metric"] == "f1"
    evaluated = json.loads(run("eval", made, test, "--json", "-q"))
    assert evaluated["f1"] == pytest.approx(figures["f1"])
    written = run("predict", made, test, "-q")
    rows = [line.split("\t") for line in written.splitlines() if line]
    assert [row[:2] for row in rows] == [line.split(" ") for line in test.read_text().splitlines() if line]
    assert {row[2] for row in rows} <= {"B-PER", "I-PER", "B-BOAT", "I-BOAT", "O"}
    (row,) = csv.DictReader(run("predict", made, "--text", "Ida saw the Otto", "-q").splitlines())
    assert len(json.loads(row["predicted"])) == 4
    (found,) = load_model(str(made)).predict(["Ida saw the Otto"])
    assert list(found.label) == json.loads(row["predicted"])  # type: ignore[arg-type]
    assert "has completed all 4 steps" in CliRunner().invoke(app, ["resume", str(made)]).output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("body", MODELS)
def test_questions_are_learnt_measured_and_answered(body: str, folder: Path) -> None:
    train, test = asked(folder / "a.json", 40), asked(folder / "b.json", 9)
    base, made = pretrained(folder, body), folder / "run"
    run("finetune", train, "--test", test, "--from", base, "-o", made, "--epochs", "2", "-s", "training.device=cpu")
    figures = json.loads((made / "metrics.json").read_text())
    assert figures["rows"] == 9
    assert 0 <= figures["exact"] <= figures["f1"] <= 1
    evaluated = json.loads(run("eval", made, test, "--json", "-q"))
    assert {key: evaluated[key] for key in ("f1", "exact")} == {key: figures[key] for key in ("f1", "exact")}
    rows = list(csv.DictReader(run("predict", made, test, "-q").splitlines()))
    assert len(rows) == 9
    for row in rows:
        if row["predicted"]:
            start = int(row["start"])
            assert row["context"][start : start + len(row["predicted"])] == row["predicted"]
        assert (float(row["null_score"]) <= figures["null_threshold"] + 1e-4) or not row["predicted"]
    (found,) = load_model(str(made)).predict([(rows[0]["question"], rows[0]["context"])])
    assert found.label == rows[0]["predicted"]


def test_a_run_of_tags_is_resumed_to_the_same_weights(folder: Path) -> None:
    train = tagged(folder / "a.conll", 60)
    recipe = folder / "tagger.yaml"
    recipe.write_text(RECIPE.replace("MODEL", MODELS["elmo"]) + "objective: {kind: tagging, crf: true}\n")
    same = ("finetune", train, "--recipe", recipe, "-s", "training.epochs=null", "-s", "checkpoint.keep_optimizer=true")
    run(*same, "-s", "training.steps=8", "-s", "schedule.kind=constant", "-o", folder / "whole")
    run(*same, "-s", "training.steps=4", "-s", "schedule.kind=constant", "-o", folder / "half")
    run("resume", folder / "half", "-s", "training.steps=8")
    weights = [
        (folder / name / "checkpoints" / "step-000008" / "model.safetensors").read_bytes() for name in ("whole", "half")
    ]
    assert weights[0] == weights[1]


def test_what_a_table_is_can_be_named(folder: Path) -> None:
    rows = [{"tokens": ["a", "b"], "ner": ["B-X", "O"], "tags": ["N", "V"]} for _ in range(12)]
    rows += [{"tokens": ["c", str(i)], "ner": ["O", "O"], "tags": ["N", "N"]} for i in range(12)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = folder / "tagger.yaml"
    recipe.write_text(RECIPE.replace("MODEL", MODELS["encoder"]) + "objective: {kind: tagging}\n")
    run(
        "finetune",
        folder / "a.jsonl",
        "--recipe",
        recipe,
        "--label-column",
        "ner",
        "-o",
        folder / "ner",
        "--labels",
        "tags",
    )
    assert "entities" in json.loads((folder / "ner" / "metrics.json").read_text())
    run("finetune", folder / "a.jsonl", "--recipe", recipe, "-o", folder / "pos")
    assert json.loads((folder / "pos" / "metrics.json").read_text())["labels"] == ["N", "V"]


@pytest.mark.parametrize(
    ("rows", "kind", "recipe"), [("conll", "tagging", "tagger"), ("json", "question-answering", "bert-tiny")]
)
def test_tags_and_questions_have_a_usual_recipe(rows: str, kind: str, recipe: str, folder: Path) -> None:
    table = tagged(folder / "a.conll", 30) if rows == "conll" else asked(folder / "a.json", 20)
    short = ("-s", "training.steps=2", "-s", "training.epochs=null", "-s", "training.device=cpu")
    result = CliRunner().invoke(app, ["finetune", str(table), *short, "-s", "evaluation.every=2"])
    assert result.exit_code == 0, result.output
    assert f"the recipe {recipe}" in result.stderr
    assert "--from" in result.stderr
    # the suggestion is not that of labels
    assert "linear model" not in result.stderr
    assert load_model(result.stdout.splitlines()[-1]).recipe.objective.kind == kind


def test_a_students_mistakes_are_told(folder: Path) -> None:
    recipe = folder / "tagger.yaml"
    recipe.write_text(RECIPE.replace("MODEL", MODELS["encoder"]) + "objective: {kind: tagging}\n")
    train = tagged(folder / "a.conll", 20)

    def told(content: str, name: str = "b.conll", *more: object) -> str:
        (folder / name).write_text(content)
        return refusal("finetune", train, "--recipe", recipe, "--test", folder / name, "-o", folder / "x", *more)

    assert "the tag 'B-CITY' is not among those" in told("Otto B-CITY\n")
    assert "b.conll:2, row 1 | give every word" in told("Otto B-PER\nran\n")
    assert "the tag 'PER' is not in the scheme BIO | " in told("Otto PER\n")
    assert "where one of texts is needed" in refusal("finetune", train, "--recipe", "dan")
    told = refusal("finetune", asked(folder / "q.json", 6), "--recipe", "tagger")
    assert "a table of questions, where one of tagged words is needed | " in told
    assert "--labels answers" in told
    (folder / "i.conll").write_text(train.read_text().replace("B-BOAT", "I-BOAT"))
    result = CliRunner().invoke(
        app, ["finetune", str(folder / "i.conll"), "--recipe", str(recipe), "-o", str(folder / "y")]
    )
    assert "begin with I-, which is read as B-" in result.output
    questions = json.loads(asked(folder / "a.json", 6).read_text())
    questions["data"][0]["paragraphs"][1]["qas"][0]["answers"][0]["answer_start"] = 3
    (folder / "a.json").write_text(json.dumps(questions))
    base = pretrained(folder, "encoder")
    assert "is not at answer_start 3" in refusal("finetune", folder / "a.json", "--from", base)
    assert "begins at" in refusal("finetune", folder / "a.json", "--from", base)
    questions["data"][0]["paragraphs"][1]["qas"][0]["answers"] = [{"text": "the moon", "answer_start": 900}]
    (folder / "a.json").write_text(json.dumps(questions))
    assert "the answer 'the moon' is not at answer_start 900" in refusal("finetune", folder / "a.json", "--from", base)
    assert "model.norm.place (pre)" in exported(folder, train, base)


def exported(folder: Path, train: Path, base: Path) -> str:
    run("finetune", train, "--from", base, "-o", folder / "z", "--epochs", "1", "-s", "training.device=cpu")
    return refusal("export", folder / "z", folder / "out")
