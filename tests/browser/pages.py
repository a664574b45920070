"""Every kind of page, of runs whose texts try to be markup."""

import json
import sys
from pathlib import Path

import pytest

from lmtool.cli import main
from tests.support.cli import SENTENCES as ALL_SENTENCES

SENTENCES = ALL_SENTENCES[::4]

HOSTILE = "\"'</script><img src=x onerror=hit()><script>hit()</script>&amp\u2028\u202eend"
"""Read as markup it calls `hit`, or asks for an image, or breaks the policy of the page."""

FILE = HOSTILE.replace("/", "")
"""The same as the name of a file."""

RECIPE = """\
description: {description}
model: {{kind: transformer, shape: {shape}, n_layers: 2, d_model: 16, n_heads: 2, context: 128}}
tokenizer: {tokenizer}
objective: {{kind: {objective}}}
training: {{steps: 6, batch_size: 4, device: cpu, precision: float32}}
optimizer: {{kind: adamw, lr: 1e-5}}
schedule: {{kind: linear, warmup_steps: 2}}
evaluation: {evaluation}
checkpoint: {{every: 2}}
"""

WRITER, OTHER, JUDGE, TRANSLATOR = (f"{name} {FILE}" for name in ("writer", "other", "judge", "translator"))

PAGES: dict[str, tuple[str, ...]] = {
    "attention": ("attention", WRITER, HOSTILE, "-o"),
    "attention of two stacks": ("attention", TRANSLATOR, "--source", HOSTILE, "--target", HOSTILE, "-o"),
    "attention of a classifier": ("attention", JUDGE, HOSTILE, "-o"),
    "report": ("report", WRITER, "-o"),
    "report of two runs": ("report", WRITER, OTHER, "-o"),
    "report of a classifier": ("report", JUDGE, "-o"),
    "report of a translator": ("report", TRANSLATOR, "-o"),
    "recipe": ("recipes", "draw", f"{FILE}.yaml", "-o"),
    "recipe with windows": ("recipes", "draw", "longformer-tiny", "-o"),
    "recipe with buckets": ("recipes", "draw", "t5-tiny", "-o"),
    "recipe with sinusoids": ("recipes", "draw", "transformer-tiny", "-o"),
    "gradients": ("gradients", WRITER, HOSTILE, "-o"),
    "samples": ("generate", HOSTILE, "--run", WRITER, "--max-new-tokens", "12", "--seed", "1", "--html"),
    "pieces": ("tokenize", "--tokenizer", "merges", "--show", HOSTILE, "--html"),
    "neighbours": ("neighbors", WRITER, "img", "--in", HOSTILE, "--among", "tales.txt", "--map", "pca", "-o"),
    "beams": ("generate", HOSTILE, "--run", WRITER, "--max-new-tokens", "9", "--num-beams", "3", "--html"),
}
"""The command that writes each kind of page; the name of the file comes last."""


def write_pages() -> dict[str, Path]:
    """All kinds of pages in the working directory, by name."""
    _make_runs()
    written = {}
    for number, (kind, arguments) in enumerate(PAGES.items()):
        _lmtool(*arguments, f"{number}.html")
        written[kind] = Path(f"{number}.html").resolve()
    return written


def _lmtool(*arguments: str) -> None:
    """Run a command in this process; it must succeed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lmtool", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code, arguments


def _make_runs() -> None:
    Path("tales.txt").write_text("\n".join(f"{line} {HOSTILE}" for line in SENTENCES), encoding="utf-8")
    _recipe(f"{FILE}.yaml", tokenizer={"kind": "file", "path": _hostile_tokenizer("tales.txt")})
    _lmtool("tokenize", "tales.txt", "--kind", "bpe", "--vocab-size", "330", "-o", "merges", "-q")
    _recipe("judge.yaml", shape="encoder", objective="classification")
    _recipe("translator.yaml", shape="encoder-decoder", objective="seq2seq")
    for run in (WRITER, OTHER):
        _lmtool("pretrain", "tales.txt", "--recipe", f"{FILE}.yaml", "-s", f"seed={len(run)}", "-q", "-o", run)
    classes, pairs = [], []
    for number, line in enumerate(SENTENCES):
        word = ("good", "bad")[number % 2]
        classes.append({"text": f"{word} {line} {HOSTILE}", "label": f"{word} {HOSTILE}"})
        pairs.append({"source": f"{line} {HOSTILE}", "target": f"{line[::-1]} {HOSTILE}"})
    for run, recipe, rows in ((JUDGE, "judge.yaml", classes), (TRANSLATOR, "translator.yaml", pairs)):
        file = Path(recipe).with_suffix(".jsonl")
        file.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        _lmtool("finetune", str(file), "--recipe", recipe, "-q", "-o", run)


def _recipe(file: str, *, shape: str = "decoder", objective: str = "causal", tokenizer: object = None) -> None:
    evaluation = {"every": 2, "tokens": 200, "baseline": False}
    recipe = RECIPE.format(
        description=json.dumps(HOSTILE),
        shape=shape,
        tokenizer=json.dumps(tokenizer or {"kind": "char"}),
        objective=objective,
        evaluation=json.dumps(evaluation | ({"prompts": [HOSTILE]} if objective == "causal" else {})),
    )
    Path(file).write_text(recipe, encoding="utf-8")


def _hostile_tokenizer(text: str) -> str:
    """The file of a tokenizer as a stranger may have made it: half of its entries are hostile."""
    _lmtool("tokenize", text, "--kind", "char", "-o", "tokens", "-q")
    file = Path("tokens/tokenizer.json")
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary |= {f"{HOSTILE}{i}": len(vocabulary) + i for i in range(len(vocabulary))}
    file.write_text(json.dumps(content), encoding="utf-8")
    return str(file)
