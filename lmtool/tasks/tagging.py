"""The task of tagging: a tag for each word of a sentence, entities or others.

Shapes: W words of a row that have a token in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.inference.evaluation import Validation
from lmtool.model.heads import Tagger
from lmtool.recipe.spec.objective import Tagging
from lmtool.tasks.cells import OUTSIDE
from lmtool.tasks.labels import LabelKind, LabelMap
from lmtool.tasks.metrics import MetricValues, class_metrics, entity_metrics, find_entities
from lmtool.tasks.reading import LabelledText, LabelledTexts
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import LONGEST_TEXT, MISTAKES, AnsweringModel, Cells, Prediction, Task
from lmtool.tokenization.prompt_format import PromptFormat

Tags = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaggedRow(EncodedRow):
    """A sentence. words: all of them. tags: theirs; None where they are unknown. placed_W: indices of the words that
    have a token in the row, whose tags are predicted.
    """

    words: tuple[str, ...]
    tags: Tags | None
    placed_W: NDArray[np.int64]


class TagTask(Task):
    """A tag for each word, such as its part of speech, by the state of its first token."""

    rows = "words"
    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}
    usual_metric = "accuracy"

    @classmethod
    def label_kind(cls, spec: Tagging, columns: Columns) -> LabelKind:
        return "tags"

    @classmethod
    def resolve(cls, spec: Tagging, train: LabelledTexts) -> Tagging:
        return spec.with_values({"labels": cast(LabelMap, train.labels).names})

    @classmethod
    def texts(cls, name: str, columns: Columns, item: LabelledText) -> Iterable[str]:
        return [" ".join(item.texts)]

    def __init__(self, prompt_format: PromptFormat, spec: Tagging) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._map = LabelMap("tags", spec.labels)
        # of words that have no token, such as those beyond the context
        self._unplaced = OUTSIDE if OUTSIDE in spec.labels else spec.labels[0]

    def encode(self, items: Sequence[LabelledText]) -> list[EncodedRow]:
        return [self._row(item) for item in items]

    def _row(self, item: LabelledText) -> TaggedRow:
        ids, spans = self.prompt_format.tokenizer.encode_with_offsets(" ".join(item.texts))
        tokens, segments, cut = self.prompt_format.encode_row([np.array(ids, dtype=np.int64)])
        first = len(self.prompt_format.before)
        n_kept = len(tokens) - first - len(self.prompt_format.after) if ids else 0
        placed_W, first_W = _first_tokens(item.texts, spans[:n_kept])
        tags = cast(Tags | None, item.label)
        label = None
        if tags is not None:
            label = np.array(self._map.encode(tags), dtype=np.float64)[placed_W]
        row = item.row, tokens, cut, segments, label
        return TaggedRow(*row, word_starts=first_W + first, words=item.texts, tags=tags, placed_W=placed_W)

    def _tags(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> tuple[list[Tags], float]:
        """The predicted tags of each row, and the mean loss of a word; NaN where the rows have no tags."""
        sentences = cast(Sequence[TaggedRow], rows)

        def read(scores_BWC: Tensor, batch: Batch, indices: list[int]) -> list[NDArray[np.float64]]:
            assert batch.places_BW is not None
            tags_BW = cast(Tagger, model.lm).decode_tags(scores_BWC, batch.places_BW >= 0).cpu().double().numpy()
            return [tags_BW[n, : len(sentences[i].placed_W)] for n, i in enumerate(indices)]

        evaluated = model.evaluate(rows, read)
        return [self._named(*pair) for pair in zip(sentences, evaluated.arrays, strict=True)], evaluated.loss

    def _named(self, row: TaggedRow, tags_W: NDArray[np.float64]) -> Tags:
        names = [self._unplaced] * len(row.words)
        for word, tag in zip(row.placed_W.tolist(), tags_W.astype(int).tolist(), strict=True):
            names[word] = self.labels[tag]
        return tuple(names)

    def validate(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> Validation:
        predicted, loss = self._tags(model, rows)
        return self.validation(loss, self.figures(_true(rows), predicted))

    def measure(self, model: AnsweringModel, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        predicted, loss = self._tags(model, rows)
        true = _true(rows)
        n_wrong = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in zip(true, predicted, strict=True)]
        worst = sorted((i for i in range(len(rows)) if n_wrong[i]), key=lambda i: (-n_wrong[i], i))[:MISTAKES]
        listed = []
        for i in worst:
            words, one, other = cast(TaggedRow, rows[i]).words, self.parts(true[i]), self.parts(predicted[i])
            missed, wrong = (
                ", ".join(f"{of} {' '.join(words[start:stop])}" for of, start, stop in sorted(part, key=lambda x: x[1]))
                for part in (one - other, other - one)
            )
            text = " ".join(words)[:LONGEST_TEXT]
            listed.append({"row": rows[i].number, "label": missed, "predicted": wrong, "text": text})
        return Results(part, step, len(rows), loss, self.figures(true, predicted), listed, self.labels)

    def answer(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Cells]:
        return [(list(tags),) for tags in self._tags(model, rows)[0]]

    def predict(self, model: AnsweringModel, rows: Sequence[EncodedRow]) -> list[Prediction]:
        sentences = cast(Sequence[TaggedRow], rows)
        tags_of_rows = self._tags(model, rows)[0]
        return [Prediction(tags, {}, row.words) for tags, row in zip(tags_of_rows, sentences, strict=True)]

    def parts(self, tags: Tags) -> set[tuple[str, int, int]]:
        """What is tagged: tag, first word, and word after the last."""
        return {(tag, i, i + 1) for i, tag in enumerate(tags)}

    def figures(self, true: Sequence[Tags], predicted: Sequence[Tags]) -> MetricValues:
        """The metrics by name, as JSON values."""
        index = {name: i for i, name in enumerate(self.labels)}
        true_R, predicted_R = (np.array([index[tag] for tags in rows for tag in tags]) for rows in (true, predicted))
        return class_metrics(true_R, predicted_R, self.labels)


class EntityTask(TagTask):
    """BIO tags of entities, measured by the entities that are found."""

    metrics: ClassVar[Mapping[str, str]] = {"f1": "f1", "accuracy": "accuracy"}
    usual_metric = "f1"

    def parts(self, tags: Tags) -> set[tuple[str, int, int]]:
        return find_entities(tags)

    def figures(self, true: Sequence[Tags], predicted: Sequence[Tags]) -> MetricValues:
        return entity_metrics(true, predicted)


def _true(rows: Sequence[EncodedRow]) -> list[Tags]:
    return [cast(Tags, cast(TaggedRow, row).tags) for row in rows]


def _first_tokens(
    words: Sequence[str], spans: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Indices of the words that have a token, and of the first token of each (W, W).

    spans: characters of each token in the words, joined by spaces. The space before a word may belong to its token.
    """
    placed, first_tokens = [], []
    start, token = 0, 0
    for word, text in enumerate(words):
        stop = start + len(text)
        while token < len(spans) and spans[token][1] <= start:
            token += 1
        if token < len(spans) and spans[token][0] < stop:
            placed.append(word)
            first_tokens.append(token)
        start = stop + 1
    return np.array(placed, dtype=np.int64), np.array(first_tokens, dtype=np.int64)
