"""Briefly trained models that answer the rows of a table."""

from pathlib import Path
from typing import Any

from lmtool.runs.load import LoadedModel, load_run
from tests.support.training import Work, words

HEADS = {
    "class": ("objective={kind: classification, dropout: 0}", lambda i: "ab"[i % 2]),
    "multi": ("objective={kind: classification, task: multi, dropout: 0}", lambda i: ["a;b", "b", ";"][i % 3]),
    "number": ("objective={kind: classification, task: number, dropout: 0}", lambda i: 0.5 + i % 4),
}
PREFIX = "model={kind: transformer, shape: prefix, n_layers: 1, d_model: 16, n_heads: 2, context: 16}"


def write(path: Path, label: Any, n: int = 24) -> Path:
    rows = [f"{i},{words(1 + i % 7, i)},{label(i)}" for i in range(n)]
    path.write_text("\n".join(["id,text,label", *rows]) + "\n", encoding="utf-8")
    return path


def learned(work: Work, kind: str) -> tuple[LoadedModel, Path]:
    """A briefly trained model, and its table."""
    short = ("training.epochs=null", "training.steps=2")
    if kind == "answers":
        table = write(work.folder / "table.csv", lambda i: "ab"[i % 2])
        work.learn_table(work.recipe, table, PREFIX, "objective={kind: seq2seq}", *short)
    else:
        objective, label = HEADS[kind]
        table = write(work.folder / "table.csv", label)
        work.learn_table(work.recipe, table, objective, *short)
    return load_run(str(work.run())), table
