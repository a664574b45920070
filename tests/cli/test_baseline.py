"""`lmtool finetune` without a run or a recipe, and the baseline that every run on labels is held to."""

import json
import random
import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from lmtool.cli import app
from lmtool.errors import UsageError
from lmtool.inference.load import load_run
from lmtool.recipe.load import load, parse_settings
from lmtool.run.directory import Run
from lmtool.training.finetuning import plan_finetuning
from tests.cli.test_finetune import pairs, table

SHORT = ("--epochs", "4", "-s", "model.buckets=5000")
TINY = """\
model: {kind: KIND, d_model: 16, n_heads: 2, n_layers: 1, context: 32}
tokenizer: {kind: word, vocab_size: 60}
training: {steps: 2, batch_size: 4, device: cpu, precision: float32}
"""
NGRAM = """\
model: {kind: ngram, order: 2, context: 16}
tokenizer: {kind: char}
training: {steps: 1, batch_size: 4}
"""


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    table(tmp_path / "train.csv", 200, 0)
    table(tmp_path / "test.csv", 60, 1)
    return tmp_path


def pretrain(folder: Path, recipe: str) -> Path:
    (folder / "text.txt").write_text("\n\n".join(f"the cat sat good {i} bad dog ran" for i in range(60)))
    (folder / "recipe.yaml").write_text(recipe)
    run("pretrain", folder / "text.txt", "--recipe", folder / "recipe.yaml", "-o", folder / "runs/last")
    return folder / "runs/last"


def test_a_head_that_is_fitted_has_read_all_rows(folder: Path) -> None:
    run("finetune", folder / "train.csv", "-r", "linear", "-o", folder / "fitted")
    run("finetune", folder / "train.csv", *SHORT, "-o", folder / "trained")
    compared = json.loads(run("runs", "compare", folder / "fitted", folder / "trained", "--json").stdout)
    rows = len((folder / "train.csv").read_text().splitlines()) - 1  # few of them: none are held out
    assert [one["rows"] for one in compared["runs"]] == [rows, 128 * compared["runs"][1]["steps"]]


def test_the_linear_model_of_a_table_is_a_run_like_any_other(folder: Path) -> None:
    found = run("finetune", folder / "train.csv", "--test", folder / "test.csv", *SHORT)
    path = Path(found.stdout.splitlines()[-1])
    said = found.stderr.splitlines()
    assert said[0].startswith("a linear model of words, word pairs and character n-grams ")
    assert "; --from hf:" in said[0]
    baseline = next(line for line in said if line.startswith("baseline: majority "))
    assert baseline.endswith("words and pairs 100.0 %")
    assert said.index(baseline) < next(i for i, line in enumerate(said) if line.startswith("step "))
    record = json.loads((path / "metrics.json").read_text())
    assert record["accuracy"] > 0.9
    share = (folder / "test.csv").read_text().count(",yes\n") / 60
    most = (folder / "train.csv").read_text().count(",yes\n") > 100
    assert record["baseline"]["constant"] == pytest.approx(share if most else 1 - share)
    assert record["baseline"]["linear"] == 1
    assert found.stdout.splitlines()[1].startswith(f"{baseline}; this model {100 * record['accuracy']:.1f} %")
    assert load(path / "recipe.yaml").recipe.model.kind == "averaging"
    again = json.loads(run("eval", "last", folder / "test.csv", "--json").stdout)
    assert again["accuracy"] == record["accuracy"]
    assert "predicted" in run("predict", "last", folder / "test.csv").stdout.splitlines()[0]
    assert path.name in run("runs", "ls").stdout
    for command in (("generate", "a cat"), ("embed", folder / "text.txt")):
        (folder / "text.txt").write_text("a cat")
        error = CliRunner().invoke(app, [*map(str, command), "--run", str(path)]).exception
        assert isinstance(error, UsageError | SystemExit)


def test_the_encoder_that_is_advised_is_of_the_language_of_the_table(folder: Path) -> None:
    english = ("text,label", "the end of the film is lovely", "all-MiniLM")
    greek = ("κείμενο,ετικέτα", "Πολύ καλή ταινία και το τέλος υπέροχο", "paraphrase-multilingual-MiniLM")
    for header, text, encoder in (english, greek):
        rows = "".join(f"{text} {i},{'ab'[i % 2]}\n" for i in range(20))
        (folder / "a.csv").write_text(f"{header}\n{rows}", encoding="utf-8")
        choice = plan_finetuning(None, None, parse_settings([f"data.train={folder / 'a.csv'}"])).choice
        assert f"hf:sentence-transformers/{encoder}" in choice


def test_a_resumed_run_is_held_to_the_floor_it_began_with(folder: Path) -> None:
    """It is read, not measured again."""
    once = ("finetune", folder / "train.csv", "-s", "training.steps=6", "-s", "evaluation.every=3", *SHORT[2:])
    run(*once, "-s", "checkpoint.every=3", "-s", "checkpoint.keep_last=2", "-o", folder / "run")
    shutil.rmtree(folder / "run/checkpoints/step-000006")
    kept = json.loads((folder / "run/baseline.json").read_text())
    kept[""]["linear"] = 0.123
    (folder / "run/baseline.json").write_text(json.dumps(kept))
    resumed = run("resume", folder / "run")
    assert "words and pairs 12.3 %" in resumed.stderr
    assert "words and pairs 12.3 %; this model " in resumed.stdout
    assert json.loads((folder / "run/metrics.json").read_text())["baseline"]["linear"] == 0.123


def test_a_model_below_the_floor_is_said_to_be(folder: Path) -> None:
    (folder / "tiny.yaml").write_text(TINY.replace("KIND", "transformer") + "objective: {kind: classification}\n")
    found = run("finetune", folder / "train.csv", "--recipe", folder / "tiny.yaml", "-s", "training.steps=1")
    assert "% is below it: lmtool finetune with --recipe linear" in found.stdout


HELD_OUT = ("-s", "data.valid_fraction=0.1")
WEAK = ("-s", "training.steps=1", "-s", "optimizer.lr=1e-9")
UNINFORMED = ("-s", "model.log_ratios=false", "-s", "model.buckets=5000")
"""Of a linear model that does not begin with naive Bayes."""


def advice(found: Result) -> str:
    (line,) = (line for line in found.stdout.splitlines() if "; this model " in line)
    return line.partition("% is below it")[2]


def test_what_was_done_is_not_advised(folder: Path) -> None:
    """A linear model is not advised to be one, whether named or chosen, under any name; nor a fine-tuned one a run."""
    train = folder / "train.csv"
    (folder / "mine.yaml").write_text(run("recipes", "show", "linear").stdout)
    for recipe in ((), ("--recipe", "linear"), ("--recipe", folder / "mine.yaml")):
        told = advice(run("finetune", train, *recipe, *WEAK, *UNINFORMED))
        assert "--from hf:" in told
        assert "linear" not in told
    base = pretrain(folder, TINY.replace("KIND", "transformer"))
    told = advice(run("finetune", train, "--from", base, *WEAK, *HELD_OUT, "-o", folder / "tuned"))
    assert "--recipe linear" in told
    assert "--from" not in told
    (folder / "tuned/metrics.json").unlink()
    assert advice(run("resume", folder / "tuned")) == told


def test_more_epochs_are_advised_only_where_the_last_step_was_the_best(folder: Path) -> None:
    assert "more --epochs" in advice(run("finetune", folder / "train.csv", *WEAK, *UNINFORMED))
    longer = ("-s", "training.steps=3", "-s", "evaluation.every=1", "--metric", "accuracy")
    told = advice(run("finetune", folder / "train.csv", *WEAK, *UNINFORMED, *longer))
    assert "--from" in told
    assert "--epochs" not in told


def test_numbers_and_names_have_a_linear_model(folder: Path) -> None:
    table(folder / "numbers.csv", 200, 0, "number")
    small = ("-s", "model.buckets=5000")
    found = run("finetune", folder / "numbers.csv", *small)
    assert "cross-validation: 200 rows" in found.stdout
    assert "by cross-validation, as no rows are held out; this model " in found.stdout
    found = run("finetune", folder / "numbers.csv", *small, *HELD_OUT)
    assert "baseline: mean " in found.stderr
    assert json.loads((Path(found.stdout.splitlines()[-1]) / "metrics.json").read_text())["pearson"] > 0.9
    rng = random.Random(0)
    names = [("".join(rng.choices("bdfgklmnprst", k=6)), rng.choice("ao")) for _ in range(200)]
    lines = [f"{stem}{end},{'F' if end == 'a' else 'M'}\n" for stem, end in names]
    (folder / "names.csv").write_text("name,label\n" + "".join(lines))
    found = run("finetune", folder / "names.csv", "--text-column", "name", "--epochs", "20")
    assert "a linear model of character n-grams is trained" in found.stderr
    assert "character n-grams 100.0 %" in found.stderr
    record = json.loads((Path(found.stdout.splitlines()[-1]) / "metrics.json").read_text())
    assert record["accuracy"] > 0.9


def test_the_result_is_the_same_whatever_was_trained_before(folder: Path) -> None:
    """To the bit, also where the last run could be fine-tuned, which is said, and done where it is named."""
    learn = ("finetune", folder / "train.csv", "-s", "model.buckets=500", "-o")
    first = run(*learn, folder / "first")
    path = pretrain(folder, TINY.replace("KIND", "transformer"))
    again = run(*learn, folder / "again")
    for file in ("checkpoints/step-000001/model.safetensors", "metrics.json", "recipe.yaml", "tokenizer.json"):
        assert (folder / "first" / file).read_bytes() == (folder / "again" / file).read_bytes()
    assert first.stdout.splitlines()[:-1] == again.stdout.splitlines()[:-1]
    assert "--from last fine-tunes" not in first.stderr
    assert "; --from last fine-tunes last, a transformer decoder, and --from hf:" in again.stderr
    run("finetune", folder / "train.csv", "--from", "last", "-o", folder / "tuned")
    base = json.loads((folder / "tuned/run.json").read_text())["base"]
    assert base["run"] == "again"
    run("finetune", folder / "train.csv", "--epochs", "0.1", "--from", path, "-o", folder / "tuned-2")
    assert json.loads((folder / "tuned-2/run.json").read_text())["base"]["run"] == path.name


def test_a_run_that_is_far_below_the_baseline_stops_and_goes_on_when_it_is_resumed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lmtool.training.session.MIN_SAVED_FLOPS", 0)
    path = pretrain(folder, TINY.replace("KIND", "transformer"))
    slow = ("--from", path, "--epochs", "4", "-s", "optimizer.lr=1e-9", "-s", "evaluation.every=6", *HELD_OUT)
    slow += ("-s", "evaluation.patience=null")
    found = run("finetune", folder / "train.csv", *slow, "-o", folder / "far")
    steps = load(folder / "far/recipe.yaml").recipe.training.steps
    told = next(line for line in found.stderr.splitlines() if "goes on to the end" in line)
    assert f"lmtool resume {folder / 'far'}" in told
    stopped = Run.open(folder / "far")
    assert stopped.state == "stopped"
    assert stopped.last_validation is not None
    assert steps / 4 <= stopped.last_validation.step < steps
    assert not (folder / "far/metrics.json").exists()
    run("resume", folder / "far")
    assert Run.open(folder / "far").state == "finished"
    assert json.loads((folder / "far/metrics.json").read_text())["part"] == "validation"
    for other in (("--seeds", "1", "--start-or-resume"), ("--seeds", "2")):
        run("finetune", folder / "train.csv", *slow, *other, "-o", folder / f"whole-{len(other)}")
    assert all(Run.open(folder / "whole-2" / f"seed-{seed}").state == "finished" for seed in (1, 2))
    assert Run.open(folder / "whole-3").state == "finished"


def test_an_encoder_is_held_to_its_vectors(folder: Path) -> None:
    """The figure of a classifier of its vectors as they are, which is measured once."""
    path = pretrain(folder, TINY.replace("KIND", "transformer, shape: encoder") + "objective: {kind: masked}\n")
    found = run("finetune", folder / "train.csv", "--from", path, "--freeze", "body", "-o", folder / "tuned")
    assert ", vectors of the encoder " in found.stderr
    probe = json.loads((folder / "tuned/baseline.json").read_text())[""]["probe"]
    assert 0.3 < probe <= 1
    assert f"vectors of the encoder {100 * probe:.1f} %" in run("resume", folder / "tuned").stderr + found.stderr


def test_a_classifier_is_not_trained_on_unless_it_is_named(folder: Path) -> None:
    path = pretrain(folder, TINY.replace("KIND", "transformer"))
    run("finetune", folder / "train.csv", "--epochs", "0.1", "--from", path, "-o", folder / "runs/mood")
    found = run("finetune", folder / "train.csv", *SHORT)
    said = found.stderr.splitlines()[0]
    assert said.startswith("a linear model of words, word pairs and character n-grams ")
    assert "--from last" not in said
    loaded = load_run(found.stdout.splitlines()[-1])
    assert loaded.recipe.model.kind == "averaging"
    assert run("finetune", folder / "train.csv", "--epochs", "0.1", "--from", "mood").exit_code == 0


def test_what_only_counts_is_no_body(folder: Path) -> None:
    pretrain(folder, NGRAM)
    found = run("finetune", folder / "train.csv", *SHORT)
    assert "--from last" not in found.stderr
    assert load_run(found.stdout.splitlines()[-1]).recipe.model.kind == "averaging"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("pairs.tsv",), "needs a model that writes"),
        (("--task", "a:pairs.tsv"), "needs a model that writes"),
        (("train.csv", "--lora-rank", "4"), "--lora-rank is for a trained model"),
        (("train.csv", "-s", "tuning={freeze: body}"), "is for a trained model"),
        (("train.csv", "--freeze", "body"), "--freeze is for a trained model"),
    ],
)
def test_what_needs_a_trained_model_says_which(
    arguments: tuple[str, ...], says: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    pairs(folder / "pairs.tsv", 20, 0)
    error = CliRunner().invoke(app, ["finetune", *arguments]).exception
    assert isinstance(error, UsageError)
    assert says in error.what
    assert "--from" in str(error.fix)
    assert not (folder / "runs").exists()
