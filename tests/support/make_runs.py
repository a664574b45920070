"""Make the runs of tests/data/runs/VERSION: a tiny one of each kind, as this version of lmtool writes it.

    python -m tests.support.make_runs

Once for each version, just before it is released. It writes a new folder, with the texts and recipes that the runs were
trained on, and never changes that of another version: tests/test_old_runs.py holds that later versions load, measure,
resume and export them. Pages and locks, which nothing reads, are left out, and so are names of processor and system.
"""

import platform
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import lmtool
from lmtool import cli
from lmtool.runs import files
from lmtool.runs.reference import Reference
from tests.support.training import documents

RUNS = Path(__file__).parents[1] / "data" / "runs"

_TRAINED = "training: {steps: 4, batch_size: 4, device: cpu, precision: float32}\n"
_OFTEN = """\
schedule: {kind: linear, warmup_steps: 1}
evaluation: {every: 2, tokens: 200, prompts: []}
checkpoint: {every: 2, keep_last: 1}
"""
_GRADIENTS = _TRAINED + "optimizer: {kind: adamw, lr: 0.003}\n" + _OFTEN
_SIZES = "n_layers: 1, d_model: 8, n_heads: 2, context: 16"

RECIPES = {
    "ngram": """\
model: {kind: ngram, order: 3, context: 16}
tokenizer: {kind: char}
training: {steps: 2, batch_size: 8, precision: float32}
evaluation: {every: 2, tokens: 200}
checkpoint: {every: 2}
""",
    "recurrent": "model: {kind: recurrent, shape: decoder, cell: lstm, n_layers: 1, d_model: 8, context: 16}\n"
    "tokenizer: {kind: char}\n" + _GRADIENTS,
    "gpt": f"model: {{kind: transformer, shape: decoder, {_SIZES}, position: {{kind: alibi}}, bias: false}}\n"
    "tokenizer: {kind: bpe, vocab_size: 300}\n" + _GRADIENTS,
    "encoder": f"""\
model:
  {{kind: transformer, shape: encoder, {_SIZES}, position: {{kind: learned}}, head_bias: true, head_transform: true,
   norm: {{kind: layer, place: post, embedding: true}}}}
objective: {{kind: masked}}
tokenizer: {{kind: wordpiece, vocab_size: 120}}
"""
    + _GRADIENTS,
    "encoder-decoder": f"""\
model:
  {{kind: transformer, shape: encoder-decoder, {_SIZES}, position: {{kind: relative}}, bias: false, score: dot,
   norm: {{kind: rms, place: pre}}, activation: relu}}
objective: {{kind: span-corruption}}
tokenizer: {{kind: char, sentinels: 4}}
"""
    + _GRADIENTS,
    "word-vectors": """\
model: {kind: skipgram, d_model: 8, context: 16}
objective: {kind: skip-gram, window: 2, negatives: 2}
tokenizer: {kind: word, vocab_size: 64}
"""
    + _GRADIENTS,
}
"""By the name of the run that is trained with it."""

_FEW = "training.epochs=null training.steps=4 training.batch_size=8 training.device=cpu training.precision=float32"
_SAVED = "evaluation.every=2 checkpoint.every=2 checkpoint.keep_last=1 schedule.warmup_steps=1"
_SET = [word for setting in f"{_FEW} {_SAVED}".split() for word in ("-s", setting)]
_TUNED = ["finetune", "reviews.csv", *_SET]

COMMANDS: dict[str, list[str]] = {
    **{name: ["pretrain", "text.txt", "-r", f"recipes/{name}.yaml", "--valid", "valid.txt"] for name in RECIPES},
    "classifier": [*_TUNED, "--from", "encoder"],
    "lora": [*_TUNED, "--from", "gpt", "--lora-rank", "2"],
    "embedding": ["finetune", "pairs.csv", *_SET, "--from", "encoder", "-s", "objective.kind=embedding"],
}
"""By the name of the run. All but the first and the classifier are stopped half way, with what a resumed run needs."""

FINISHED = ("ngram", "classifier")


def make(folder: Path) -> None:
    """Write the texts, the recipes and the runs of this version into a new folder."""
    (folder / "recipes").mkdir(parents=True)
    for name, recipe in RECIPES.items():
        (folder / "recipes" / f"{name}.yaml").write_text(recipe, encoding="utf-8", newline="\n")
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8", newline="\n")
    for name, command in COMMANDS.items():
        until = [] if name in FINISHED else ["--until", "0.5"]
        run([*command, *until, "-q", "-o", name], folder)
        for left in ("report.html", ".lock"):
            (folder / name / left).unlink()


def texts() -> dict[str, str]:
    """By the name of the file."""
    rng = random.Random(0)
    pairs = [(f"the {rng.choice(THINGS)} {rng.choice(DONE)}", rng.random() < 0.5) for _ in range(40)]
    reviews = [f"{text} {'at home' if is_good else 'away'},{'good' if is_good else 'bad'}" for text, is_good in pairs]
    alike = [f"{text} on the mat,a {text.partition(' ')[2]}" for text in dict.fromkeys(text for text, _ in pairs)]
    return {
        "text.txt": documents(30),
        "valid.txt": documents(8, seed=1),
        "reviews.csv": "\n".join(["text,label", *reviews, ""]),
        "pairs.csv": "\n".join(["anchor,positive", *alike, ""]),
    }


THINGS = ["cat", "dog", "mat", "kettle", "ship", "miller", "king", "pear"]
DONE = ["sat", "ran", "slept", "sang", "broke", "sank"]


def run(words: Sequence[str], folder: Path) -> None:
    """A command of lmtool in a folder, in this process. The base of a run is named as one that has moved since."""
    record = Reference.to_source_record
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("LMTOOL_RUNS", str(folder))
        patch.setattr(sys, "argv", ["lmtool", *words])
        patch.setattr(platform, "platform", lambda: "any")
        patch.setattr(files, "get_processor_name", lambda: "any")
        patch.setattr(
            Reference, "to_source_record", lambda base: {**record(base), "path": f"/elsewhere/{base.run.name}"}
        )
        try:
            cli.main()
        except SystemExit as done:
            if done.code:
                raise


if __name__ == "__main__":
    make(RUNS / lmtool.__version__)
