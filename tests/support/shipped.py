"""The shipped recipes, made small, with the tables that they learn."""

from functools import cache
from pathlib import Path

from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile

SMALL = (
    *("model.n_layers=2", "model.d_model=16", "model.n_heads=2", "model.d_ff=32", "model.context=16"),
    *("training.steps=2", "training.batch_size=4", "training.precision=float32", "training.device=cpu"),
    *("data.valid_fraction=0.2", "evaluation.tokens=200", "evaluation.sample_tokens=4"),
)
ONE_OF_EACH_KIND = (
    *("albert-tiny", "bilstm", "distil-tiny", "elmo-tiny", "gpt2-124m", "linear", "lstm", "prefix-lm"),
    *("seq2seq-bahdanau", "skipgram", "tagger"),
)
"""Recipes of different models and objectives."""
TABLES = ("classification", "seq2seq", "tagging")
"""Objectives that are trained on tables."""


def table_for(name: str, folder: Path) -> Path:
    """A table that trains a shipped recipe."""
    if kind_of_objective(name) == "tagging":
        table = folder / "table.conll"
        table.write_text(
            "".join(f"the O\ncat B-X\nnumber I-X\n{i} O\n{'sat B-Y' if i % 2 else 'ran O'}\n\n" for i in range(40))
        )
        return table
    table = folder / "table.csv"
    columns = "source,target" if kind_of_objective(name) == "seq2seq" else "text,label"
    rows = [f"the cat {i} sat on a mat,{'dog ran' if i % 2 else 'a mat'}" for i in range(40)]
    table.write_text("\n".join([columns, *rows]) + "\n")
    return table


@cache
def recipe_of(name: str) -> Recipe:
    """A shipped recipe."""
    return load(name).recipe


def kind_of_objective(name: str) -> str:
    return recipe_of(name).objective.kind


def small(name: str) -> list[str]:
    """Settings that scale a recipe down."""
    model = recipe_of(name).model
    # a size of 0 means none, such as layers above one-hot words
    own = {f"model.{field}" for field in type(model).model_fields if getattr(model, field) != 0}
    settings = [text for text in SMALL if not text.startswith("model.") or text.partition("=")[0] in own]
    tokenizer = recipe_of(name).tokenizer
    if not isinstance(tokenizer, CharTokenizer | TokenizerFile):
        settings.append(f"tokenizer.vocab_size={300 + tokenizer.sentinels}")
    return settings
