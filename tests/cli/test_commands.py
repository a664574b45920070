"""What `pretrain`, `resume`, `eval`, `generate`, `tokenize` and the lists print: for programs and for people."""

import json
import re
import shutil
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.recipe.load import load
from lmtool.runs.directory import Run
from tests.support.cli import RUN, SMALL, CommandLine, contents, settings

ROOT = Path(__file__).parents[2]


def documented(where: str) -> list[str]:
    """The keys documented in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{where}` |"))
    return re.findall(r"`(\w+)`", row.removeprefix(f"| `{where}`"))


RECORDS = {
    "eval --json": "eval last tales.txt --json",
    "generate --json": "generate The --max-new-tokens 4 --json",
    "tokenize --json": "tokenize tales.txt --vocab-size 320 -o tokens --json",
    "tokenize --show --json": "tokenize --tokenizer last --show map --json",
    "runs ls --json": "runs ls --json",
    "recipes ls --json": "recipes ls --json",
}
"""Commands by where docs/cli.md lists the keys of their records."""


@pytest.mark.parametrize("where", RECORDS)
def test_records_have_the_documented_keys(lmtool: CommandLine, run: Path, corpus: Path, where: str) -> None:
    shutil.copy(corpus, "tales.txt")
    out = lmtool.succeeds(*RECORDS[where].split()).out
    record = json.loads(out if out.startswith("[") else out.splitlines()[0])
    assert list(record[0] if isinstance(record, list) else record) == documented(where)


def test_logged_steps_have_the_documented_keys(run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert {tuple(line) for line in lines} == {tuple(documented("metrics.jsonl"))}


def test_resume_without_a_name_takes_the_last_run_that_was_stopped_and_says_so(lmtool: CommandLine, run: Path) -> None:
    finished = Path(shutil.copytree(run, run.with_name("finished")))
    for path, step in ((run, 4), (finished, 6)):
        with Run.open(path) as began:
            began.lock()
            began.rewind_and_start_session(step=step, command=[], environment={})
            if path == finished:
                began.record_session_end("finished")
    outcome = lmtool.succeeds("resume")
    assert outcome.err.splitlines()[0] == f"resuming {RUN}, since finished is finished"
    assert outcome.out == f"runs/{RUN}\n"


@pytest.mark.parametrize("named", ["shakespeare-char", None])
def test_a_run_is_trained_on_from(lmtool: CommandLine, run: Path, home: Path, named: str | None) -> None:
    """All but the model and its tokenizer is that of the recipe that is named, also if that is the default one."""
    (home / "other.txt").write_text("\n".join(f"The sailor sold {i} maps at dawn." for i in range(200)))
    base, before = load(run / "recipe.yaml").recipe, contents(run)
    short = settings(training_steps=2, evaluation_tokens=200, training_precision="float32", evaluation_every="+7")
    words = ("pretrain", "other.txt", "--from", run, *(() if named is None else ("-r", named)), *short, "-q")
    found = load(f"{lmtool.succeeds(*words).out.strip()}/recipe.yaml").recipe
    recipe = base if named is None else load(named).recipe
    assert (found.model, found.tokenizer) == (base.model, base.tokenizer)
    assert (found.optimizer, found.schedule, found.checkpoint) == (recipe.optimizer, recipe.schedule, recipe.checkpoint)
    assert found.training.batch_size == recipe.training.batch_size
    assert found.evaluation.every == recipe.evaluation.every + 7, "what is added is added once"
    assert contents(run) == before


def test_a_second_phase_has_longer_rows(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    """As BERT's: the weights of the first phase, in a longer context. A table of learned positions has all rows."""
    learned = ("-s", "model.position={kind: learned, size: 32}", "-q")
    lmtool.succeeds("pretrain", corpus, *SMALL, *learned, "-o", "base")
    short = settings(training_steps=2, evaluation_tokens=200, training_precision="float32")
    lmtool.succeeds("pretrain", corpus, "--from", "base", *short, "-s", "model.context=32", "-q", "-o", "longer")
    model = load("base/recipe.yaml").recipe.model
    assert load("longer/recipe.yaml").recipe.model == model.model_copy(update={"context": 32}) != model
    for key, value in (("context", 64), ("position.size", 64)):
        lmtool.refuses(2, "pretrain", corpus, "--from", "base", *short, "-s", f"model.{key}={value}", words=["32"])


def test_the_limit_of_a_bundled_text_stands_beside_the_figure(lmtool: CommandLine, home: Path) -> None:
    text = bundled.data_folder() / "stories.valid.txt"
    quick = settings(training_steps=1, tokenizer_vocab_size=400, evaluation_baseline="false")
    lmtool.succeeds("pretrain", text, *SMALL, *quick, "-q", "-o", "run")
    limit = bundled.known_entropy_bits_per_byte([text])
    assert limit is not None
    assert f"the best possible model: {limit:.4f}" in lmtool.succeeds("eval", "run", "data/stories.valid.txt").out


def test_a_runs_command_can_be_typed_again(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    (home / "my tales.txt").write_bytes(corpus.read_bytes())
    lmtool.succeeds("pretrain", "my tales.txt", *SMALL, "-q", "-o", "out put/[ünï]")
    assert "started: lmtool pretrain 'my tales.txt' -s model.n_layers=1 " in lmtool.succeeds("runs", "show").out
    assert lmtool.succeeds("generate", "--run", "[ünï]", "The", "--max-new-tokens", "3").out.startswith("The")
