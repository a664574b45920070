"""The losses of tags and of answers against loops."""

import math

import numpy as np
import pytest
import torch

from lmtool.model.heads import SpanReader, Tagger, TokenHeadModel
from lmtool.objective import Example
from lmtool.objective.heads import AnswerSpanObjective, TaggingObjective
from lmtool.recipe.spec.objective import QuestionAnswering, Tagging
from tests.reference import annotated, losses
from tests.support import tiny
from tests.support.vocabularies import VOCABULARY

WORDS = [([0, 2, 3], [1, 0, 2]), ([1, 5], [2, 2]), ([2], [0]), ([], [])]
SPANS = [[1, 2], [6, 6], [0, 0], [0, 5]]


def rows(answers: str) -> list[Example]:
    rng = np.random.default_rng(0)
    return [
        Example(
            rng.integers(0, tiny.VOCAB, length),
            rng,
            label=np.array(tags if answers == "tags" else span, dtype=np.float64),
            word_starts=np.array(places, dtype=np.int64) if answers == "tags" else None,
        )
        for length, (places, tags), span in zip((4, 7, 3, 6), WORDS, SPANS, strict=True)
    ]


def tagging(crf: bool) -> tuple[Tagger, TaggingObjective]:
    spec = Tagging(kind="tagging", labels=("a", "b", "c"), crf=crf, dropout=0.0)
    torch.manual_seed(0)
    model = Tagger(tiny.model(), spec, tiny.spec()).double()
    for parameter in () if model.crf is None else model.crf.parameters():
        torch.nn.init.normal_(parameter)
    return model, TaggingObjective(VOCABULARY)


def reading() -> tuple[SpanReader, AnswerSpanObjective]:
    torch.manual_seed(0)
    spec = QuestionAnswering(kind="question-answering", dropout=0.0)
    return SpanReader(tiny.model(), spec, tiny.spec()).double(), AnswerSpanObjective(VOCABULARY)


@pytest.mark.parametrize("is_chained", [False, True])
def test_the_loss_of_tags_equals_loops(is_chained: bool) -> None:
    model, objective = tagging(is_chained)
    total, crf = 0.0, model.crf
    for row, (places, tags) in zip(rows("tags"), WORDS, strict=True):
        if not places:
            continue
        scores = TokenHeadModel.run_head(model, objective.collate([row])).scores[0, places].detach().double().numpy()
        if crf is not None:
            parts = (p.detach().numpy() for p in (crf.start_C, crf.end_C, crf.transition_PC))
            total -= annotated.chain_log_p(scores, tags, *parts)
        else:
            total += losses.cross_entropy(scores, tags)
    batch = objective.collate(rows("tags"))
    loss = objective.loss(model, batch)
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == objective.count_targets(batch) == 6


def test_the_loss_of_answers_is_the_mean_of_both_ends() -> None:
    model, objective = reading()
    total = 0.0
    for row, (start, stop) in zip(rows("spans"), SPANS, strict=True):
        scores = TokenHeadModel.run_head(model, objective.collate([row])).scores[0].detach().double().numpy()
        for end, at in ((0, start), (1, stop)):
            total -= math.log(math.exp(scores[at, end]) / sum(math.exp(score) for score in scores[:, end])) / 2
    batch = objective.collate(rows("spans"))
    loss = objective.loss(model, batch)
    assert float(loss.total.detach()) == pytest.approx(total, rel=1e-5)
    assert int(loss.count) == objective.count_targets(batch) == 4


@pytest.mark.parametrize("answers", ["tags", "spans"])
def test_rows_without_labels_have_no_loss(answers: str) -> None:
    model, objective = tagging(False) if answers == "tags" else reading()
    (row, *_) = rows(answers)
    batch = objective.collate([Example(row.tokens, row.rng, word_starts=row.word_starts)])
    with pytest.raises(ValueError, match="without"):
        objective.loss(model, batch)
