"""`lmtool finetune`: tables of each kind, what it prints, several seeds, and adapters."""

import json
import re
import shutil
from pathlib import Path

import pytest

from lmtool.recipe.load import load
from lmtool.run.directory import Run
from lmtool.training.finetuning import plan_finetuning
from tests.support.cli import CommandLine, film_rows, settings, write_table

QUICK = (*settings(training_steps=2, training_epochs="null", evaluation_every=2), "-s", "training.device=cpu")
LINEAR = ("-r", "linear", "-s", "model.buckets=5000", "-s", "training.device=cpu")
UNTRAINED = (*settings(training_steps=1, optimizer_lr=1e-9, model_log_ratios="false", model_buckets=500),)
"""A linear model that has learnt nothing, and does not begin with naive Bayes."""


@pytest.fixture
def films(home: Path) -> str:
    write_table(home / "films.csv", film_rows(100))
    write_table(home / "test.csv", [(f"{text} again", label) for text, label in film_rows(20)])
    return "films.csv"


def results(run: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((Path(run) / "metrics.json").read_text())
    return found


def test_a_linear_model_is_chosen_told_and_held_to_its_baseline(lmtool: CommandLine, films: str) -> None:
    done = lmtool.succeeds("finetune", films, "--test", "test.csv", "--epochs", "4", "-s", "model.buckets=5000")
    *printed, run = done.out.splitlines()
    told = done.err.splitlines()
    assert "; --from hf:" in told[0]
    (baseline,) = (line for line in told if line.startswith("baseline: "))
    assert told.index(baseline) < next(i for i, line in enumerate(told) if line.startswith("step "))
    assert told.index(next(line for line in told if line.startswith("export: "))) < told.index(
        next(line for line in told if line.startswith("plan: "))
    )
    record = results(run)
    assert printed[0].startswith("test: 20 rows  accuracy ")
    assert any(
        line.startswith(f"{baseline}; this model {100 * float(str(record['accuracy'])):.1f} %") for line in printed
    )
    assert json.loads((Path(run) / "baseline.json").read_text())[""]["linear"] == 1
    quiet = lmtool.succeeds("finetune", films, *LINEAR, "-q", "-o", "quiet")
    assert (quiet.err, quiet.out.splitlines()[-1]) == ("", "quiet")


def test_the_encoder_that_is_advised_is_of_the_language_of_the_table(home: Path) -> None:
    from lmtool.recipe.load import parse_settings

    english = ("text,label", "the end of the film is lovely", "all-MiniLM")
    greek = ("κείμενο,ετικέτα", "Πολύ καλή ταινία και το τέλος υπέροχο", "paraphrase-multilingual-MiniLM")
    for header, text, encoder in (english, greek):
        write_table(home / "a.csv", [(f"{text} {i}", "ab"[i % 2]) for i in range(20)], header)
        choice = plan_finetuning(None, None, parse_settings(["data.train=a.csv"])).choice
        assert f"hf:sentence-transformers/{encoder}" in choice


def test_a_linear_model_is_not_advised_to_be_one(lmtool: CommandLine, films: str) -> None:
    out = lmtool.succeeds("finetune", films, "-r", "linear", *UNTRAINED).out
    (advice,) = (line.partition("% is below it")[2] for line in out.splitlines() if "; this model " in line)
    assert "--from hf:" in advice
    assert "more --epochs" in advice
    assert "linear" not in advice


def test_the_result_is_the_same_whatever_was_trained_before(lmtool: CommandLine, trained: Path, films: str) -> None:
    """A run that could be fine-tuned is told of, and fine-tuned if it is named."""
    first = lmtool.succeeds("finetune", films, "-s", "model.buckets=500", "-o", "first")
    shutil.copytree(trained, Path("runs") / trained.name)
    lmtool.succeeds("finetune", films, "-s", "model.buckets=500", "-o", "again")
    for file in ("checkpoints/step-000001/model.safetensors", "metrics.json", "recipe.yaml", "tokenizer.json"):
        assert (Path("first") / file).read_bytes() == (Path("again") / file).read_bytes()
    assert "--from last" not in first.err
    lmtool.succeeds("finetune", films, "--from", trained.name, *QUICK, "-o", "tuned")
    base = Run.open(Path("tuned")).info.base
    assert base is not None
    assert base.run == trained.name


@pytest.mark.parametrize(
    ("labels", "recipe", "metric", "figure"),
    [("number", "linear", "correlation", "pearson"), ("multi", "dan", "accuracy", "subset_accuracy")],
)
def test_numbers_and_several_labels(
    lmtool: CommandLine, home: Path, labels: str, recipe: str, metric: str, figure: str
) -> None:
    label = {"number": ("-1.5", "2.5"), "multi": ("x", "x;y")}[labels]
    write_table(home / "a.csv", [(f"{('bad', 'good')[i % 2]} film {i}", label[i % 2]) for i in range(80)])
    kind = ("--labels", labels, "--metric", metric)
    lmtool.succeeds("finetune", "a.csv", "-r", recipe, *QUICK, *kind, "--valid", "a.csv", "-o", "m")
    assert figure in results("m")
    assert load("m/recipe.yaml").recipe.evaluation.metric == metric
    rows = lmtool.succeeds("predict", "m", "a.csv", "--json", "-q").records()
    assert {type(row["predicted"]) for row in rows} == {float if labels == "number" else str}


def test_balanced_class_weights_are_written_as_numbers(lmtool: CommandLine, home: Path) -> None:
    """They follow from the rows that are trained on: a tenth of each class is held out."""
    rows = [(f"the cat sat {i}", "yes" if i % 5 == 0 else "no") for i in range(100)]
    write_table(home / "a.csv", rows)
    lmtool.succeeds("finetune", "a.csv", "-r", "dan", "--class-weights", "balanced", *QUICK, "-o", "run")
    objective = load("run/recipe.yaml").recipe.model_dump()["objective"]
    assert objective["class_weights"] == (90 / (2 * 72), 90 / (2 * 18))
    lmtool.succeeds("resume", "run", "-s", "training.steps=+2")


def test_a_run_goes_on_that_is_far_below_its_baseline(
    lmtool: CommandLine, run: Path, films: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops and says how to continue, unless it is one of several or a program's."""
    monkeypatch.setattr("lmtool.training.session.MIN_SAVED_FLOPS", 0)
    slow: tuple[str, ...] = (
        "--from",
        "last",
        "--epochs",
        "2",
        "-s",
        "optimizer.lr=1e-9",
        "-s",
        "data.valid_fraction=0.1",
    )
    slow += ("-s", "evaluation.patience=null", "-s", "evaluation.every=6", "-s", "training.batch_size=4")
    told = lmtool.succeeds("finetune", films, *slow, "-o", "far")
    assert "lmtool resume far goes on to the end" in told.err
    assert Run.open(Path("far")).state == "stopped"
    (advice,) = (line for line in lmtool.succeeds("resume", "far").out.splitlines() if "; this model " in line)
    assert "--recipe linear" in advice
    assert "--from" not in advice, "which it has begun with"
    assert results("far")["part"] == "validation"
    for other in (("--seeds", "2"), ("--start-or-resume",)):
        lmtool.succeeds("finetune", films, *slow[:2], *slow[4:], "--epochs", "1", *other, "-o", f"whole{len(other)}")
    assert Run.open(Path("whole2/seed-2")).state == Run.open(Path("whole1")).state == "finished"


# Adapters and seeds


def test_adapters_are_merged_at_the_end_or_later(lmtool: CommandLine, run: Path, films: str) -> None:
    lora = ("--from", "last", "--lora-rank", "4", *QUICK)
    out = lmtool.succeeds("finetune", films, *lora, "--merge", "-q", "-o", "tuned").out.splitlines()
    assert out[-2:] == ["tuned", "tuned-merged"]
    assert results("tuned") == results("tuned-merged")
    before, after = (lmtool.succeeds("predict", name, films, "-q").out for name in out[-2:])
    assert [line.split(",")[:3] for line in before.splitlines()] == [line.split(",")[:3] for line in after.splitlines()]
    assert lmtool.succeeds("runs", "merge", "tuned", "-o", "later").out.splitlines()[-1] == "later"
    assert "initialized from" in lmtool.succeeds("runs", "show", "later").out
    lmtool.refuses(2, "runs", "merge", "later", words=["later"])


def test_several_seeds_are_several_runs_and_their_spread(lmtool: CommandLine, films: str) -> None:
    train = ("finetune", films, "--test", "test.csv", "-r", "dan", *QUICK, "-q")
    lines = lmtool.succeeds(*train, "--seeds", "3", "-o", "runs of seeds").out.splitlines()
    paths = [f"runs of seeds/seed-{seed}" for seed in (1, 2, 3)]
    assert [line for line in lines if line.startswith("runs of seeds/")] == paths
    losses = [float(str(results(path)["loss"])) for path in paths]
    assert len(set(losses)) == 3
    mean = sum(losses) / 3
    deviation = (sum((loss - mean) ** 2 for loss in losses) / 2) ** 0.5
    assert lines[-1].startswith("test, 3 runs: ")
    assert f"loss {mean:.4f} ± {deviation:.4f}" in lines[-1]
    lmtool.succeeds(*train, "-s", "seed=2", "-o", "alone")
    assert results("alone") == results(paths[1])


def test_seeds_are_for_one_process(lmtool: CommandLine, films: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    lmtool.refuses(2, "finetune", films, *LINEAR, "--seeds", "2", words=["torchrun"])


def test_seeds_begin_with_the_same_run(lmtool: CommandLine, run: Path, films: str) -> None:
    """Not with the last run, which is that of the seed before."""
    lmtool.succeeds("finetune", films, "--from", "last", *QUICK, "--seeds", "2", "-q", "-o", "seeds")
    bases = [Run.open(Path(f"seeds/seed-{seed}")).info.base for seed in (1, 2)]
    assert [base.run for base in bases if base is not None] == [run.name] * 2


# Other kinds of tables


def test_several_tasks_are_learnt_as_text(lmtool: CommandLine, run: Path, films: str) -> None:
    pairs = write_table(Path("pairs.tsv"), [(f"say {i}", i) for i in range(40)], "source\ttarget", "\t")
    tasks = ("--task", f"mood:{films}", "--task", f"back:{pairs}:0.5", "--task-test", "mood:test.csv")
    short = (*settings(training_batch_size=4, data_valid_fraction=0.2), *QUICK)
    out = lmtool.succeeds("finetune", *tasks, "--from", "last", *short, "-o", "run").out
    assert "mood, test: 20 rows  accuracy" in out
    assert "back, validation: " in out
    found = results("run")["tasks"]
    assert isinstance(found, dict)
    assert {"mood", "back"} == set(found)
    again = lmtool.succeeds("eval", "run", "test.csv", "--task", "mood", "--json").json()
    assert again["accuracy"] == found["mood"]["accuracy"]
    assert "predicted" in lmtool.succeeds("predict", "run", "test.csv", "--task", "mood").out.splitlines()[0]
    lmtool.refuses(2, "eval", "run", "test.csv", "-q", words=["mood", "back"])


def test_target_texts_are_measured_and_written(lmtool: CommandLine, run: Path) -> None:
    pairs = write_table(Path("pairs.csv"), [("the cat", "good"), ("bad dog", "ran")] * 20, "en,ne")
    columns = ("--source-column", "en", "--target-column", "ne")
    fast = (*settings(optimizer_lr=0.02, training_batch_size=10, evaluation_every=20), "--epochs", "10", "-q")
    out = lmtool.succeeds("finetune", pairs, "--valid", pairs, "--from", "last", *columns, *fast, "-o", "run").out
    assert "bleu" in out
    assert "exact 1.0000" in out
    assert lmtool.succeeds("generate", "the cat", "--run", "run", "--greedy", "-q").out == "good\n"
    assert lmtool.succeeds("predict", "run", pairs, "-q").out.splitlines()[:2] == [
        "en,ne,predicted",
        "the cat,good,good",
    ]
    found = lmtool.succeeds("eval", "run", pairs, "--num-beams", "3", "--json").json()
    assert found["exact"] == 1
    assert "3 beams" in found["decoding"]


TAGGER = settings(model_n_layers=1, model_d_model=16, training_batch_size=16)


def test_tagged_words_are_learnt_and_written_beside_their_words(lmtool: CommandLine, home: Path) -> None:
    rows = [line for i in range(40) for line in (f"{('Otto', 'Ida')[i % 2]} B-PER", "saw O", f"it{i} O", "")]
    (home / "a.conll").write_text("\n".join(rows))
    lmtool.succeeds("finetune", "a.conll", "-r", "tagger", *TAGGER, *QUICK, "-q", "-o", "run")
    found = lmtool.succeeds("eval", "run", "a.conll", "--json", "-q").json()
    assert set(found["entities"]) == {"PER"}
    written = [line.split("\t") for line in lmtool.succeeds("predict", "run", "a.conll", "-q").out.splitlines() if line]
    assert [row[:2] for row in written] == [line.split(" ") for line in rows if line]
    assert {row[2] for row in written} <= {"B-PER", "I-PER", "O"}
    typed = lmtool.succeeds("predict", "run", "--text", "Ida saw it", "--json", "-q").json()
    assert len(typed["predicted"]) == 3


def test_answers_in_contexts_are_written_with_their_places(lmtool: CommandLine, run: Path) -> None:
    answers = [[], [{"text": "Ida", "answer_start": 0}]]
    qas = [{"id": str(i), "question": f"Who {i}?", "answers": answers[i % 2]} for i in range(30)]
    content = {"data": [{"paragraphs": [{"context": "Ida saw the sea.", "qas": [one]} for one in qas]}]}
    Path("a.json").write_text(json.dumps(content))
    lmtool.succeeds("finetune", "a.json", "--from", "last", *QUICK, "-q", "-o", "tuned")
    assert lmtool.succeeds("eval", "tuned", "a.json", "--json", "-q").json()["rows"] == 30
    rows = lmtool.succeeds("predict", "tuned", "a.json", "--json", "-q").records()
    assert len(rows) == 30
    assert all({"predicted", "start", "null_score"} <= set(row) for row in rows)


@pytest.mark.parametrize(("name", "recipe"), [("a.conll", "tagger"), ("a.json", "bert-tiny")])
def test_tags_and_questions_have_a_usual_recipe(lmtool: CommandLine, home: Path, name: str, recipe: str) -> None:
    (home / "a.conll").write_text("".join(f"Anna B-PER\nsold O\nmaps{i} O\n\n" for i in range(20)))
    qas = [
        {"id": str(i), "question": f"What {i}?", "answers": [{"text": "maps", "answer_start": 5}]} for i in range(20)
    ]
    (home / "a.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": "sold maps", "qas": qas}]}]}))
    done = lmtool.succeeds("finetune", name, *QUICK)
    assert f"the recipe {recipe}" in done.err
    assert "linear model" not in done.err


def test_merged_labels_are_those_of_every_command(lmtool: CommandLine, home: Path) -> None:
    rows = [(text, "Yes" if label == "yes" and i % 9 == 1 else label) for i, (text, label) in enumerate(film_rows(100))]
    write_table(home / "a.csv", rows)
    merge = ("--merge-labels", "Yes=yes")
    assert "--merge-labels Yes=yes" in lmtool.succeeds("check", "a.csv").out
    assert "similar labels" not in lmtool.succeeds("check", "a.csv", *merge).out
    lmtool.succeeds("finetune", "a.csv", *LINEAR, *merge, "--test", "a.csv", "-q", "-o", "made")
    figures = results("made")
    assert figures["labels"] == ["no", "yes"]
    assert lmtool.succeeds("eval", "made", "a.csv", "--json").json()["accuracy"] == figures["accuracy"]
    write_table(home / "typo.csv", [(text, label.replace("no", "noo")) for text, label in film_rows(20)])
    assert "--merge-labels noo=no" in lmtool.refuses(3, "eval", "made", "typo.csv", "-q")[-1]
    write_table(home / "m.csv", [("noo", "no")], "from,to")
    assert lmtool.succeeds("eval", "made", "typo.csv", "--merge-labels", "m.csv", "--json").json()["rows"] == 20


def test_rows_that_were_trained_on_are_told_before_their_figure(lmtool: CommandLine, films: str) -> None:
    lmtool.succeeds("finetune", films, *LINEAR, "-s", "data.valid_fraction=0.1", "-q", "-o", "run")
    for command in (("eval", "run", films), ("runs", "compare", "run", "run", "--test", films)):
        assert re.search(r"warning: 90 of 100 rows \(90\.0 %\)", lmtool.succeeds(*command).err)


def test_runs_are_compared_row_by_row(lmtool: CommandLine, films: str) -> None:
    for name, more in (("short", UNTRAINED), ("long", ("-s", "model.buckets=5000"))):
        lmtool.succeeds("finetune", films, "-r", "linear", *more, "-q", "-o", name)
    compare = ("runs", "compare", "short", "long", "--test", "test.csv")
    (tested,) = lmtool.succeeds(*compare, "--json").json()["tests"]
    figures = [lmtool.succeeds("eval", name, "test.csv", "--json").json() for name in ("short", "long")]
    assert tested["means"] == pytest.approx([one["accuracy"] for one in figures])
    assert tested["rows"] == 20
    assert (tested["better"] or "no difference") in lmtool.succeeds(*compare).out.splitlines()[-1]
    text = Path("test.csv").read_text()
    Path("renamed.csv").write_text(text.replace("text", "said", 1).replace("label", "meant", 1))
    columns = ("--text-column", "said", "--label-column", "meant")
    (again,) = lmtool.succeeds(*compare[:-1], "renamed.csv", *columns, "--json").json()["tests"]
    assert again | {"source": ""} == tested | {"source": ""}
