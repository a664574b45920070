"""Tasks of tags: words and their tokens, predictions, and figures."""

from typing import Any

import numpy as np
import pytest
from torch import nn

from lmtool.model.heads import Tagger, TokenHeadModel
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.tagging import EntityTask
from lmtool.tasks.task import ModelWithObjective
from lmtool.tokenization.tokenizer import Tokenizer
from tests.tasks.labelled import KINDS
from tests.tasks.models import model_of, recipe_of, task_of

TEXT = ["Otto met Ida at the Golden Goose , didn't he ? Übermut und naïve Hühner"]
WORDS = ("Otto", "met", "Ida's", "naïve", "Hühner", "at", "the", "Golden", "Goose", "?")
BIO = ("B-X", "I-X", "O")


def task(kind: str, labels: tuple[str, ...] = BIO, **model: Any) -> tuple[Any, ModelWithObjective]:
    """For a tokenizer of this kind."""
    tokenizer = Tokenizer.train(KINDS[kind], TEXT)
    recipe = recipe_of({"shape": "encoder", "context": 96} | model, {"kind": "tagging", "labels": labels})
    return task_of(recipe, tokenizer, Columns(("words",))), model_of(recipe, tokenizer)


def item(words: tuple[str, ...], tags: tuple[str, ...] | None = None, row: int = 1) -> LabelledRow:
    return LabelledRow(words, tags, None, row)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_token_of_a_word_stands_for_it(kind: str) -> None:
    built, _ = task(kind)
    tokenizer = built.prompt_format.tokenizer
    (row,) = built.encode([item(WORDS)])
    assert row.placed_W.tolist() == list(range(len(WORDS)))
    stops = [*row.word_starts[1:].tolist(), len(row.tokens) - 1]
    for word, first, stop in zip(WORDS, row.word_starts.tolist(), stops, strict=True):
        own = tokenizer.decode(row.tokens[first:stop].tolist()).strip().replace(" ", "")
        spelled = word.lower() if kind == "char-lower" else word
        assert own == spelled or tokenizer.unk_id in row.tokens[first:stop] or kind == "char"
        if kind == "char":
            assert tokenizer.decode(row.tokens[first : first + 1].tolist()) == word[0]


def test_words_beyond_the_context_have_no_place_and_no_loss() -> None:
    built, model = task("char", context=10)
    (row,) = built.encode([item(WORDS, ("B-X", *["O"] * 9))])
    assert row.is_truncated
    # [CLS] Otto met [SEP]: eight characters
    assert (row.placed_W.tolist(), row.word_starts.tolist(), row.label.tolist()) == ([0, 1], [1, 6], [0, 2])
    ((found,),) = built.predict_cells(model, [row])
    assert len(found) == 10
    assert found[2:] == ["O"] * 8


def test_a_word_that_the_tokenizer_drops_is_outside_of_entities() -> None:
    built, model = task("wordpiece")
    rows = built.encode([item(("Otto", "\u200b", "Ida")), item(("\u200b",), row=2)])
    assert [row.placed_W.tolist() for row in rows] == [[0, 2], []]
    assert [len(tags) for (tags,) in built.predict_cells(model, rows)] == [3, 1]
    assert built.predict_cells(model, rows[1:]) == [(["O"],)]


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_predictions_are_the_highest_scores_of_first_tokens(shape: str) -> None:
    built, model = task("bpe", shape=shape)
    assert isinstance(model.lm, Tagger)
    nn.init.normal_(model.lm.eval().head.weight)
    rows = built.encode([item(WORDS), item(WORDS[:2], row=2)])
    for row, (tags,) in zip(rows, built.predict_cells(model, rows), strict=True):
        output = TokenHeadModel.run_head(model.lm, model.objective.collate([row.to_example()]))
        assert tags == [BIO[int(output.scores[0, place].argmax())] for place in row.word_starts]


def test_entities_are_measured_by_their_f1_and_other_tags_by_classes() -> None:
    entities, model = task("char")
    assert isinstance(entities, EntityTask)
    rows = entities.encode([item(("Otto", "met", "Ida"), ("B-X", "I-X", "O")), item(("Otto",), ("O",), row=2)])
    results = entities.compute_results(model, rows, "test", 3)
    assert {"f1", "precision", "recall", "accuracy", "entities"} == results.figures.keys()
    assert results.rows == 2
    assert {mistake["label"] for mistake in results.mistakes} <= {"X Otto met", ""}
    assert results.lines()
    assert entities.validate(model, rows).metrics == {name: results.figures[name] for name in ("f1", "accuracy")}
    plain, model = task("char", ("NOUN", "VERB"))
    assert not isinstance(plain, EntityTask)
    found = plain.compute_results(model, plain.encode([item(("Otto", "met"), ("NOUN", "VERB"))]), "test", 3)
    assert found.figures["accuracy"] in (0.0, 0.5, 1.0)
    assert np.sum(found.figures["confusion"]) == 2
    assert len(found.mistakes) == int(found.figures["accuracy"] < 1)
