"""What all tasks on the rows of a table have in common."""

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
from lmtool.compute.device import Compute
from lmtool.inference.evaluation import EvaluationItems, EvaluationSums, Validation, evaluate_items
from lmtool.model import LanguageModel
from lmtool.model.heads import HeadedModel
from lmtool.objective import Loss, Objective
from lmtool.objective.heads import RowObjective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.labels import LabelKind
from lmtool.tasks.reading import LabelledText, LabelledTexts
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns, RowKind
from lmtool.tokenization.prompt_format import PromptFormat

MISTAKES = 10
"""Number of most confident mistakes that are listed, and of the best and of the worst texts."""

LONGEST_TEXT = 1000
"""Characters of a row's text that are kept beside its result."""

Floats = NDArray[np.float64]
Cells = tuple[object, ...]


class FormattedNumber(float):
    """A number that is rounded where it is written as text, in a table for instance, and whole in JSON."""

    def __new__(cls, value: float, spec: str) -> Self:
        number = super().__new__(cls, value)
        number._spec = spec
        return number

    _spec: str

    def __str__(self) -> str:
        return format(float(self), self._spec)


class Prediction(NamedTuple):
    """The answer of a fine-tuned model for one row.

    label: the class; the labels with a probability above their thresholds, in a tuple or joined; a number; the tag of
        each word; or the text that was generated, or found in a context.
    probabilities: of each class or label; empty for others.
    words: which are tagged; empty for others.
    start: where an answer begins in its context; None for none, and for others.
    """

    label: str | tuple[str, ...] | float
    probabilities: Mapping[str, float]
    words: tuple[str, ...] = ()
    start: int | None = None


Read = Callable[[Tensor, Batch, list[int]], Sequence[NDArray[Any]]]
"""An array for each row of a batch, from its scores, itself, and the indices of the rows."""


@dataclass(frozen=True)
class AnsweringModel:
    """A model for the rows of a table, its device and precision, and the processes that share the rows."""

    lm: LanguageModel
    objective: Objective
    compute: Compute

    def evaluate(self, rows: Sequence[EncodedRow], read: Read | None = None) -> EvaluationSums:
        """The loss of rows, and an array for each from the scores of a head. The loss of a head is NaN where rows have
        no labels."""

        def collated(indices: list[int]) -> tuple[Loss | None, Sequence[NDArray[Any]]]:
            batch = self.objective.collate([rows[i].example() for i in indices]).to(self.compute.device)
            if read is None:
                return self.objective.score(self.lm, batch), ()
            objective, is_labelled = cast(RowObjective, self.objective), rows[indices[0]].label is not None
            scores = cast(HeadedModel, self.lm).run_head(batch).scores
            loss = objective.head_loss(self.lm, scores, batch) if is_labelled else None
            return loss, read(scores, batch, indices)

        return evaluate_items(self.lm, EvaluationItems([row.lengths for row in rows], collated), self.compute)


def worst_and_best(
    name: str, scores: Sequence[float], texts_of: Callable[[int], tuple[int, str, str, str]]
) -> list[dict[str, Any]]:
    """The predicted texts with the MISTAKES lowest and the MISTAKES highest scores of a name, the lowest first.

    texts_of: the row, source, target and prediction of a number.
    """
    order = sorted(range(len(scores)), key=lambda i: scores[i])
    listed = []
    for i in order if len(order) <= 2 * MISTAKES else [*order[:MISTAKES], *order[-MISTAKES:]]:
        row, *texts = texts_of(i)
        shown = zip(("source", "target", "predicted"), (text[:LONGEST_TEXT] for text in texts), strict=True)
        listed.append({"row": row, **dict(shown), name: scores[i]})
    return listed


class Task(ABC):
    """A task on the rows of a table: which columns its rows have, how a row becomes tokens, by which figures a model is
    measured, and what a prediction is. Its loss is that of its objective.

    rows: what the rows are, which says the roles of their columns; see `schema`.
    usual_metric: the one of `metrics`, or the loss, that chooses the best checkpoint where a recipe leaves it open.
    name: prefix of each source where a model is trained on several tasks; else empty.
    labels: names of the classes or labels, empty where there are none.
    metrics: those that can choose the best checkpoint besides the loss, and their names among the figures.
    added: names of the columns of `answer`.
    reread: another reading of a training row, drawn by the generator; None where rows are always the same.
    """

    rows: ClassVar[RowKind] = "texts"
    metrics: ClassVar[Mapping[str, str]] = {}
    usual_metric: ClassVar[str] = "loss"
    added: tuple[str, ...] = ("predicted",)
    reread: Callable[[EncodedRow, np.random.Generator], EncodedRow] | None = None

    def __init__(self, prompt_format: PromptFormat, name: str, labels: tuple[str, ...]) -> None:
        self.prompt_format = prompt_format
        self.name = name
        self.labels = labels

    @classmethod
    def label_kind(cls, spec: Any, columns: Columns) -> LabelKind | None:
        """The kind of labels that an objective says; None where the table decides, or has none."""
        return None

    @classmethod
    def resolve(cls, spec: Any, train: LabelledTexts) -> Any:
        """The objective with what follows from the training rows. Raises UsageError where it is not for them."""
        return spec

    @classmethod
    def texts(cls, name: str, columns: Columns, item: LabelledText) -> Iterable[str]:
        """The texts of a row of the task of this name, of which a tokenizer is made."""
        return item.texts

    @classmethod
    def build(
        cls, recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
    ) -> Self:
        """The task of a resolved recipe; see `build_task`."""
        of_objective: Any = cls
        task: Self = of_objective(prompt_format, recipe.objective)
        return task

    @abstractmethod
    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        """Rows as token ids, in order; unknown labels and targets are None."""

    @abstractmethod
    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        """Loss and metrics of a model on labelled rows."""

    def validation(self, loss: float, figures: Mapping[str, Any]) -> Validation:
        """The loss, and the metrics of the task among these figures."""
        chosen = {metric: figures[name] for metric, name in self.metrics.items()}
        return Validation(loss, {metric: math.nan if v is None else float(v) for metric, v in chosen.items()})

    @abstractmethod
    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        """Full results of a model on labelled rows. part, step: see `Results`."""

    @abstractmethod
    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        """The prediction for each row and its probabilities, as cells of a table."""

    def predict(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Prediction]:
        """The prediction for each row, as a value."""
        return [Prediction(str(cells[0]), {}) for cells in self.answer(model, rows)]

    def decide(self, model: AnsweringModel, rows: Sequence[EncodedRow], *, held_out: bool) -> None:
        """Choose what validation rows decide, before other rows are measured. held_out: they are not trained on."""
        return

    def _text(self, row: EncodedRow) -> str:
        """The texts of a row, a line each, or its source, as far as the model reads them."""
        tokenizer = self.prompt_format.tokenizer
        between = tokenizer.special_ids - {tokenizer.unk_id}
        parts = groupby(row.tokens.tolist(), key=between.__contains__)
        return "\n".join(tokenizer.decode(list(part)) for is_between, part in parts if not is_between)[:LONGEST_TEXT]

    def _ids(self, texts: Sequence[Sequence[str]]) -> Iterator[list[NDArray[np.int64]]]:
        """The ids of the texts of each row."""
        ids, lengths = self.prompt_format.tokenizer.encode_many([text for row in texts for text in row])
        pieces = iter(np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])) if len(lengths) else iter(())
        return ([next(pieces) for _ in row] for row in texts)
