"""Labelled tables of a few rows, and a small tokenizer of each kind."""

from pathlib import Path
from typing import Any

from lmtool.data.table import open_table
from lmtool.recipe.spec import text
from lmtool.tasks.reading import LabelledTable, read_labelled_table
from lmtool.tasks.schema import choose_columns

KINDS: dict[str, text.TrainedTokenizerSpecBase] = {
    "bpe": text.BpeTokenizer(vocab_size=300),
    "wordpiece": text.WordPieceTokenizer(kind="wordpiece", vocab_size=100),
    "char": text.CharTokenizer(kind="char"),
    "char-lower": text.CharTokenizer(kind="char", lowercase=True),
    "word": text.WordTokenizer(kind="word", vocab_size=100),
}


def read(path: Path, content: str, *, columns: dict[str, Any] | None = None, **options: Any) -> LabelledTable:
    path.write_text(content, encoding="utf-8")
    table = open_table(str(path))
    return read_labelled_table(table, choose_columns(table, **(columns or {})), **options)


def labelled(path: Path, *labels: str, **options: Any) -> LabelledTable:
    """A table with these labels and distinct texts."""
    return read(path / "a.csv", "text,label\n" + "".join(f"t{i},{x}\n" for i, x in enumerate(labels)), **options)
