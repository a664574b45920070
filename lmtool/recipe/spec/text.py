"""Tokenizers and data."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import Fraction, Spec, Strings


class TrainedTokenizerSpecBase(Spec):
    """Base of all trained tokenizers."""

    sentinels: Annotated[int, Field(ge=0, le=10_000)] = 0
    """Sentinel tokens for removed spans (T5 has 100)."""
    sample_mb: PositiveInt = 100
    """Maximum megabytes of text, spread over the corpus, to train the tokenizer on."""


class BpeTokenizer(TrainedTokenizerSpecBase):
    """Byte-level byte pair encoding: lossless for any text (Sennrich et al. 2016; Radford et al. 2019)."""

    kind: Literal["bpe"] = "bpe"
    vocab_size: Annotated[int, Field(ge=300)] = 4096
    """Entries, special tokens included."""
    min_frequency: PositiveInt = 2
    """Fewest occurrences of a pair of tokens that is merged."""
    dropout: Fraction = 0.0
    """BPE dropout: probability of skipping a merge in training pairs, for objective seq2seq (Provilkov et al. 2020)."""


class WordPieceTokenizer(TrainedTokenizerSpecBase):
    """WordPiece with ## continuations (Devlin et al. 2019)."""

    kind: Literal["wordpiece"]
    vocab_size: Annotated[int, Field(ge=100)] = 8192
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text and strip accents first (BERT uncased)."""


class CharTokenizer(TrainedTokenizerSpecBase):
    """One token for each character of the training text."""

    kind: Literal["char"]
    lowercase: bool = False
    """Lower-case the text first."""


class WordTokenizer(TrainedTokenizerSpecBase):
    """One token for each frequent word or punctuation mark; the rest is [UNK]."""

    kind: Literal["word"]
    vocab_size: Annotated[int, Field(ge=10)] = 16384
    """Entries, special tokens included."""
    lowercase: bool = False
    """Lower-case the text first."""


class TokenizerFile(Spec):
    """An existing tokenizer."""

    kind: Literal["file"]
    path: str
    """A tokenizer.json written by lmtool, or a folder or run with one."""


AnyTokenizer = Annotated[
    BpeTokenizer | WordPieceTokenizer | CharTokenizer | WordTokenizer | TokenizerFile, Field(discriminator="kind")
]


TABLE_KEYS = frozenset(
    f"data.{key}"
    for key in (
        *("text_columns", "label_column", "source_column", "target_column", "input_column", "messages_column"),
        *("encoding", "delimiter", "skip_bad_rows", "merge_labels"),
    )
)
"""Keys that say how a labelled table is read."""


class Data(Spec):
    """The text to train on."""

    train: Strings = ()
    """Files, folders, globs, or `hf:NAME` for a Hugging Face dataset; .txt, .jsonl, .csv, .parquet, .json with a list
    of objects, also .gz, .zst."""
    mixture: dict[str, PositiveFloat] = {}  # noqa: RUF012 - pydantic copies it
    """Texts to mix, each named as in `train`, and their weights: the share of each in every thousand examples. In place
    of `train`; each ends by itself and begins again."""
    valid: Strings = ()
    """Validation text; when empty, it is split off the training text."""
    column: str = "text"
    """Column of .jsonl, .json, .csv and .parquet files that holds the text."""
    source_column: str | None = None
    """Column that holds the source of a pair, for objective seq2seq; found by its name by default."""
    target_column: str | None = None
    """Column that holds the target of a pair, for objective seq2seq; found by its name by default."""
    input_column: str | None = None
    """Column whose text, where there is any, follows the source after an empty line; found by its name beside a column
    `instruction`."""
    messages_column: str | None = None
    """Column that holds conversations, for objective seq2seq of decoders; found by its name by default."""
    text_columns: Strings = ()
    """Columns that hold the texts of a row, for objective classification; found by their names when empty. For tagging
    the column of the words, for question-answering those of question and context."""
    label_column: str | None = None
    """Column that holds the label, for objective classification; found by its name by default. For tagging the column
    of the tags, for question-answering that of the answers."""
    test: str | None = None
    """Test table, evaluated once after training."""
    tasks: Strings = ()
    """Tables for multi-task text-to-text training, each `name:file`, or `name:file:weight` to repeat each of its rows
    `weight` times per epoch; in place of one table in `train`; for objective seq2seq."""
    task_tests: Strings = ()
    """Test tables of some of the tasks, each `name:file`."""
    encoding: str | None = None
    """Encoding of labelled .csv and .tsv tables; UTF-8 by default."""
    delimiter: str | None = None
    """Field separator of labelled .csv and .tsv tables, one character; inferred from the table by default."""
    skip_bad_rows: bool = False
    """Skip and count bad rows of labelled tables, instead of stopping."""
    merge_labels: dict[str, str] = {}  # noqa: RUF012 - pydantic copies it
    """Labels of tables that are read as others, such as misspelt ones: each with the one that it is read as."""
    documents: Literal["auto", "whole", "blank-line", "line"] = "auto"
    """How a .txt file is split into documents; auto splits at blank lines when every paragraph is on one line."""
    split: Literal["auto", "document", "slice"] = "auto"
    """Hold out whole documents, or the final slice of one long text; auto slices when there is one document."""
    valid_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Fraction of the documents, characters or rows held out for validation. 0, for tables of target texts or of
    labels: all rows are trained on, and validation measures how well these are learnt."""
    isolate_documents: bool = False
    """Mask attention across documents packed into a row."""
    stream: bool | Literal["auto"] = "auto"
    """Tokenize beside training, from the first block of text on, instead of before it; auto streams files of 4 GB and
    more, where the recipe does not need all of the text at once."""

    @property
    def holds_out(self) -> bool:
        """Whether there is something to validate on that is not trained on."""
        return bool(self.valid) or self.valid_fraction > 0

    @property
    def sources(self) -> tuple[str, ...]:
        """The training texts."""
        return self.train or tuple(self.mixture)

    @property
    def task_names(self) -> list[str]:
        """The names of the tasks that a run was trained on; one empty name for a single table."""
        return [text.partition(":")[0] for text in self.tasks] or [""]

    def mistakes(self) -> Iterator[str]:
        for key in ("train", "valid", "test", "text_columns"):
            if self.tasks and getattr(self, key):
                yield f"{key} is for one table, not for tasks"
        if self.task_tests and not self.tasks:
            yield "task_tests are for tasks, of which there are none"
        if name := next((name for name in self.merge_labels.values() if name in self.merge_labels), None):
            yield f"merge_labels reads {name!r:.60} as another label, and another one as it; name the last of them"
        if self.mixture and (self.train or self.tasks):
            yield "mixture names the texts itself; omit train and tasks"
        if self.stream is True and self.split == "slice":
            yield "stream divides a text into documents, and split slice does not; set one of them otherwise"
