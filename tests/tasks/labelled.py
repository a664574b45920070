"""Labelled tables of a few rows, and a small tokenizer of each kind."""

from pathlib import Path
from typing import Any

from lmtool.data.table import open_table
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.tasks.reading import LabelledTable, read_labelled_table
from lmtool.tasks.schema import choose_columns

KINDS: dict[str, TrainedTokenizerSpecBase] = {
    "bpe": BpeTokenizer(vocab_size=300),
    "wordpiece": WordPieceTokenizer(kind="wordpiece", vocab_size=100),
    "char": CharTokenizer(kind="char"),
    "char-lower": CharTokenizer(kind="char", lowercase=True),
    "word": WordTokenizer(kind="word", vocab_size=100),
}


def read(path: Path, content: str, *, columns: dict[str, Any] | None = None, **options: Any) -> LabelledTable:
    path.write_text(content, encoding="utf-8")
    table = open_table(str(path))
    return read_labelled_table(table, choose_columns(table, **(columns or {})), **options)


def labelled(path: Path, *labels: str, **options: Any) -> LabelledTable:
    """A table with these labels and distinct texts."""
    return read(path / "a.csv", "text,label\n" + "".join(f"t{i},{x}\n" for i, x in enumerate(labels)), **options)
