"""The base class of tasks on the rows of a table, and their predictions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple, Self, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.compute.device import ExecutionContext
from lmtool.evaluation.loop import EvaluationOutput, ValidationResult, evaluate_items
from lmtool.model import LanguageModel
from lmtool.model.heads import LanguageModelWithTaskHead
from lmtool.objective import Loss, Objective
from lmtool.objective.heads import HeadObjective
from lmtool.tasks.labels import LabelKind
from lmtool.tasks.reading import LabelledRow, LabelledTable
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns, RowKind
from lmtool.tokenization.prompt_format import PromptFormat

MAX_LISTED_ROWS = 10
"""Most confident mistakes, best texts and worst texts that results list."""

MAX_TEXT_CHARACTERS = 1000
"""Characters of a row's text that results keep."""

Cells = tuple[object, ...]
"""Values of the columns that a prediction adds to a row."""


class FormattedNumber(float):
    """A number that is rounded as text, in a table for instance, but not in JSON."""

    def __new__(cls, value: float, spec: str) -> Self:
        number = super().__new__(cls, value)
        number._spec = spec
        return number

    _spec: str

    def __str__(self) -> str:
        return format(float(self), self._spec)


class Prediction(NamedTuple):
    """The prediction of a fine-tuned model for one row.

    Args:
        label: the class; the labels with a probability above their thresholds, in a tuple or joined; a number; the tag
            of each word; or the text that was generated, or found in a context.
        probabilities: of each class or label; empty for other tasks.
        words: that are tagged; empty for other tasks.
        start: character at which an answer begins in its context; None if there is none, and for other tasks.
    """

    label: str | tuple[str, ...] | float
    probabilities: Mapping[str, float]
    words: tuple[str, ...] = ()
    start: int | None = None


ReadHeadScores = Callable[[Tensor, Batch, list[int]], Sequence[NDArray[Any]]]
"""Returns an array for each row of a batch from the scores of a head, the batch, and the indices of the rows."""


@dataclass(frozen=True)
class ModelWithObjective:
    """A model for the rows of a table. compute: its device and precision, and the processes that share the rows."""

    lm: LanguageModel
    objective: Objective
    compute: ExecutionContext

    def evaluate(self, rows: Sequence[EncodedRow], read_scores: ReadHeadScores | None = None) -> EvaluationOutput:
        """Computes the loss of rows, and an array for each with `read_scores` of a head.

        The loss of a head is NaN if rows have no labels.
        """

        def evaluate_batch(indices: list[int]) -> tuple[Loss | None, Sequence[NDArray[Any]]]:
            batch = self.objective.collate([rows[i].to_example() for i in indices]).to(self.compute.device)
            if read_scores is None:
                return self.objective.score(self.lm, batch), ()
            objective, is_labelled = cast(HeadObjective, self.objective), rows[indices[0]].label is not None
            scores = cast(LanguageModelWithTaskHead, self.lm).run_head(batch).scores
            loss = objective.head_loss(self.lm, scores, batch) if is_labelled else None
            return loss, read_scores(scores, batch, indices)

        return evaluate_items(self.lm, [row.lengths for row in rows], evaluate_batch, self.compute)


def list_worst_and_best_rows(
    score_name: str, scores: Sequence[float], get_row: Callable[[int], tuple[int, str, str, str]]
) -> list[dict[str, Any]]:
    """Lists the rows with the MAX_LISTED_ROWS lowest and highest scores, the lowest first.

    score_name: of the scores. get_row: returns number, source, target and predicted text of the row with an index.
    """
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    listed = []
    for i in order if len(order) <= 2 * MAX_LISTED_ROWS else [*order[:MAX_LISTED_ROWS], *order[-MAX_LISTED_ROWS:]]:
        row, *texts = get_row(i)
        shown = zip(("source", "target", "predicted"), (text[:MAX_TEXT_CHARACTERS] for text in texts), strict=True)
        listed.append({"row": row, **dict(shown), score_name: scores[i]})
    return listed


class Task(ABC):
    """A task on the rows of a table: which columns its rows have, how a row becomes tokens, which figures measure a
    model, and what a prediction is. Its loss is that of its objective.

    Attributes:
        row_kind: what rows hold, which decides the roles of columns; see `schema`.
        metrics: those that can choose the best checkpoint besides the loss, and their names among the figures.
        default_metric: one of `metrics`, or the loss; chooses the best checkpoint unless the recipe names a metric.
        output_columns: names of the cells of `predict_cells`.
        resample_row: draws another encoding of a training row; None if rows are always encoded alike.
        name: prefix of each source if a model is trained on several tasks; else empty.
        labels: names of the classes or labels; may be empty.
    """

    row_kind: ClassVar[RowKind] = "texts"
    metrics: ClassVar[Mapping[str, str]] = {}
    default_metric: ClassVar[str] = "loss"
    output_columns: tuple[str, ...] = ("predicted",)
    resample_row: Callable[[EncodedRow, np.random.Generator], EncodedRow] | None = None

    def __init__(self, prompt_format: PromptFormat, name: str, labels: tuple[str, ...]) -> None:
        self.prompt_format = prompt_format
        self.name = name
        self.labels = labels

    @classmethod
    def get_label_kind(cls, spec: Any, columns: Columns) -> LabelKind | None:
        """Returns the kind of labels that an objective needs; None if the table decides, or has no labels."""
        return None

    @classmethod
    def resolve_spec_from_rows(cls, spec: Any, train: LabelledTable) -> Any:
        """Returns the objective with what follows from the training rows. Raises UsageError if it does not fit them."""
        return spec

    @classmethod
    def get_tokenizer_texts(cls, name: str, columns: Columns, item: LabelledRow) -> Iterable[str]:
        """Returns the texts of a row on which a tokenizer is trained. name: of the task."""
        return item.texts

    @abstractmethod
    def encode(self, items: Sequence[LabelledRow]) -> list[EncodedRow]:
        """Encodes rows as token ids, in order; unknown labels and targets are None."""

    @abstractmethod
    def validate(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ValidationResult:
        """Computes the loss and the metrics of a model on labelled rows."""

    def make_validation(self, loss: float, figures: Mapping[str, Any]) -> ValidationResult:
        """Returns the loss, and the metrics of the task among these figures."""
        chosen = {metric: figures[name] for metric, name in self.metrics.items()}
        return ValidationResult(loss, {metric: math.nan if v is None else float(v) for metric, v in chosen.items()})

    @abstractmethod
    def compute_results(self, model: ModelWithObjective, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        """Computes full results of a model on labelled rows. part, step: see `Results`."""

    @abstractmethod
    def predict_cells(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Cells]:
        """Predicts each row; returns the prediction and its probabilities as cells of a table."""

    def predict(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Prediction]:
        """Predicts each row; returns values."""
        return [Prediction(str(cells[0]), {}) for cells in self.predict_cells(model, rows)]

    def calibrate(self, model: ModelWithObjective, rows: Sequence[EncodedRow], *, held_out: bool) -> None:
        """Chooses temperature or thresholds on validation rows. held_out: whether these are not trained on."""
        return

    def _decode_texts(self, row: EncodedRow) -> str:
        """Decodes the texts of a row, a line each, or its source, as far as the model reads them."""
        tokenizer = self.prompt_format.tokenizer
        between = tokenizer.special_ids - {tokenizer.unk_id}
        parts = groupby(row.tokens.tolist(), key=between.__contains__)
        text = "\n".join(tokenizer.decode(list(part)) for is_between, part in parts if not is_between)
        return text[:MAX_TEXT_CHARACTERS]

    def _encode_texts(self, texts: Sequence[Sequence[str]]) -> Iterator[list[NDArray[np.int64]]]:
        """Yields the token ids of the texts of each row."""
        ids, lengths = self.prompt_format.tokenizer.encode_many([text for row in texts for text in row])
        pieces = iter(np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])) if len(lengths) else iter(())
        return ([next(pieces) for _ in row] for row in texts)
