"""Tagging: a tag for each word of a sentence, of entities or others.

Shapes: W words of a row that have a token in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmtool.batch import Batch
from lmtool.evaluation.loop import ValidationResult
from lmtool.model.heads import Tagger
from lmtool.recipe.spec.objective import Tagging
from lmtool.tasks.cells import OUTSIDE_TAG
from lmtool.tasks.labels import LabelKind, LabelMap
from lmtool.tasks.metrics import MetricValues, class_metrics, entity_metrics, find_entities
from lmtool.tasks.reading import LabelledRow, LabelledTable
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import MAX_LISTED_ROWS, MAX_TEXT_CHARACTERS, Cells, ModelWithObjective, Prediction, Task
from lmtool.tokenization.prompt_format import PromptFormat

Tags = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class TaggedRow(EncodedRow):
    """A sentence. tags: None if unknown. placed_W: indices of the words with a token in the row, whose tags are
    predicted.
    """

    words: tuple[str, ...]
    tags: Tags | None
    placed_W: NDArray[np.int64]


class TaggingTask(Task):
    """A tag for each word, such as its part of speech, predicted from the state of its first token."""

    row_kind = "words"
    metrics: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy", "macro-f1": "macro_f1"}
    default_metric = "accuracy"

    @classmethod
    def get_label_kind(cls, spec: Tagging, columns: Columns) -> LabelKind:
        return "tags"

    @classmethod
    def resolve_spec_from_rows(cls, spec: Tagging, train: LabelledTable) -> Tagging:
        return spec.with_unvalidated_values({"labels": cast(LabelMap, train.labels).names})

    @classmethod
    def get_tokenizer_texts(cls, name: str, columns: Columns, item: LabelledRow) -> Iterable[str]:
        return [" ".join(item.texts)]

    def __init__(self, prompt_format: PromptFormat, spec: Tagging) -> None:
        super().__init__(prompt_format, "", spec.labels)
        self._map = LabelMap("tags", spec.labels)
        # Of words without a token, such as those beyond the context.
        self._default_tag = OUTSIDE_TAG if OUTSIDE_TAG in spec.labels else spec.labels[0]

    def encode(self, items: Sequence[LabelledRow]) -> list[EncodedRow]:
        first = len(self.prompt_format.before)
        rows: list[EncodedRow] = []
        for item in items:
            ids, spans = self.prompt_format.tokenizer.encode_with_offsets(" ".join(item.texts))
            tokens, segments, is_truncated = self.prompt_format.encode_and_truncate_row([np.array(ids, dtype=np.int64)])
            n_kept = len(tokens) - first - len(self.prompt_format.after) if ids else 0
            placed_W, first_W = _find_words_and_first_tokens(item.texts, spans[:n_kept])
            tags = cast(Tags | None, item.label)
            label = None if tags is None else np.array(self._map.encode(tags), dtype=np.float64)[placed_W]
            row = EncodedRow(item.row, tokens, is_truncated, segments, label, word_starts=first_W + first)
            rows.append(TaggedRow(**vars(row), words=item.texts, tags=tags, placed_W=placed_W))
        return rows

    def _predict_tags_and_loss(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> tuple[list[Tags], float]:
        """Predicts the tags of rows; returns them and the mean loss of a word, NaN if the rows have no tags."""
        sentences = cast(Sequence[TaggedRow], rows)

        def decode_tags(scores_BWC: Tensor, batch: Batch, indices: list[int]) -> list[NDArray[np.float64]]:
            assert batch.places_BW is not None
            tags_BW = cast(Tagger, model.lm).decode_tags(scores_BWC, batch.places_BW >= 0).cpu().double().numpy()
            return [tags_BW[n, : len(sentences[i].placed_W)] for n, i in enumerate(indices)]

        evaluated = model.evaluate(rows, decode_tags)
        predicted = []
        for row, tags_W in zip(sentences, evaluated.arrays, strict=True):
            names = [self._default_tag] * len(row.words)
            for word, tag in zip(row.placed_W.tolist(), tags_W.astype(int).tolist(), strict=True):
                names[word] = self.labels[tag]
            predicted.append(tuple(names))
        return predicted, evaluated.loss

    def validate(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> ValidationResult:
        predicted, loss = self._predict_tags_and_loss(model, rows)
        return self.make_validation(loss, self.compute_metrics(_get_true_tags(rows), predicted))

    def compute_results(self, model: ModelWithObjective, rows: Sequence[EncodedRow], part: str, step: int) -> Results:
        predicted, loss = self._predict_tags_and_loss(model, rows)
        true = _get_true_tags(rows)
        n_wrong = [sum(a != b for a, b in zip(*pair, strict=True)) for pair in zip(true, predicted, strict=True)]
        worst = sorted((i for i in range(len(rows)) if n_wrong[i]), key=lambda i: (-n_wrong[i], i))[:MAX_LISTED_ROWS]
        listed = []
        for i in worst:
            words = cast(TaggedRow, rows[i]).words
            true_spans, predicted_spans = self.find_spans(true[i]), self.find_spans(predicted[i])
            listed_spans = []
            for spans in (true_spans - predicted_spans, predicted_spans - true_spans):
                in_order = sorted(spans, key=lambda span: span[1])
                listed_spans.append(", ".join(f"{tag} {' '.join(words[start:stop])}" for tag, start, stop in in_order))
            missed, wrong = listed_spans
            text = " ".join(words)[:MAX_TEXT_CHARACTERS]
            listed.append({"row": rows[i].number, "label": missed, "predicted": wrong, "text": text})
        return Results(part, step, len(rows), loss, self.compute_metrics(true, predicted), listed, self.labels)

    def predict_cells(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Cells]:
        return [(list(tags),) for tags in self._predict_tags_and_loss(model, rows)[0]]

    def predict(self, model: ModelWithObjective, rows: Sequence[EncodedRow]) -> list[Prediction]:
        sentences = cast(Sequence[TaggedRow], rows)
        tags_of_rows = self._predict_tags_and_loss(model, rows)[0]
        return [Prediction(tags, {}, row.words) for tags, row in zip(tags_of_rows, sentences, strict=True)]

    def find_spans(self, tags: Tags) -> set[tuple[str, int, int]]:
        """Returns the tag, the first word and the word after the last of each tagged span."""
        return {(tag, i, i + 1) for i, tag in enumerate(tags)}

    def compute_metrics(self, true: Sequence[Tags], predicted: Sequence[Tags]) -> MetricValues:
        """Computes the metrics by name, as JSON values."""
        index = {name: i for i, name in enumerate(self.labels)}
        true_R, predicted_R = (np.array([index[tag] for tags in rows for tag in tags]) for rows in (true, predicted))
        return class_metrics(true_R, predicted_R, self.labels)


class EntityTask(TaggingTask):
    """BIO tags of entities, measured by the entities that are found."""

    metrics: ClassVar[Mapping[str, str]] = {"f1": "f1", "accuracy": "accuracy"}
    default_metric = "f1"

    def find_spans(self, tags: Tags) -> set[tuple[str, int, int]]:
        return find_entities(tags)

    def compute_metrics(self, true: Sequence[Tags], predicted: Sequence[Tags]) -> MetricValues:
        return entity_metrics(true, predicted)


def _get_true_tags(rows: Sequence[EncodedRow]) -> list[Tags]:
    return [cast(Tags, cast(TaggedRow, row).tags) for row in rows]


def _find_words_and_first_tokens(
    words: Sequence[str], spans: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the indices of the words that have a token, and of the first token of each (W, W).

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
