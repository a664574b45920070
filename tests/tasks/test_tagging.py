"""Tasks of tags: words and their tokens, predictions, and figures."""

from typing import Any

import numpy as np
import pytest
import torch

from lmtool.compute.device import configure_compute
from lmtool.model.heads import Tagger, TokenHeadModel
from lmtool.objective import build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import build_model
from lmtool.tasks.build import build_task
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.tagging import EntityTask, TaggedRow, TaggingTask
from lmtool.tasks.task import ModelWithObjective
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.tasks.labelled import KINDS

TEXT = ["Otto met Ida at the Golden Goose , didn't he ? Übermut und naïve Hühner"]
WORDS = ("Otto", "met", "Ida's", "naïve", "Hühner", "at", "the", "Golden", "Goose", "?")
BIO = ("B-X", "I-X", "O")


def recipe(labels: tuple[str, ...], **model: Any) -> Recipe:
    body = {"kind": "transformer", "shape": "encoder", "n_layers": 1, "d_model": 8, "n_heads": 2, "context": 96} | model
    return Recipe.model_validate(
        {
            "model": body,
            "objective": {"kind": "tagging", "labels": labels},
            "training": {"steps": 1, "batch_size": 1, "device": "cpu"},
        }
    )


def task(tokenizer: Tokenizer, labels: tuple[str, ...] = BIO, **model: Any) -> tuple[TaggingTask, ModelWithObjective]:
    made, compute = recipe(labels, **model), configure_compute("cpu", "float32")
    lm = build_model(made, tokenizer, compute)
    built = build_task(made, PromptFormat.from_recipe(made, tokenizer), "", Columns(("words",)), ())
    assert isinstance(built, TaggingTask)
    return built, ModelWithObjective(lm, build_objective(made, tokenizer), compute)


def item(words: tuple[str, ...], tags: tuple[str, ...] | None = None, row: int = 1) -> LabelledRow:
    return LabelledRow(words, tags, None, row)


def encoded(built: TaggingTask, *items: LabelledRow) -> list[TaggedRow]:
    return built.encode(items)  # type: ignore[return-value]


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_token_of_a_word_stands_for_it(kind: str) -> None:
    tokenizer = Tokenizer.train(KINDS[kind], TEXT)
    built, _ = task(tokenizer)
    (row,) = encoded(built, item(WORDS))
    assert row.placed_W.tolist() == list(range(len(WORDS)))
    assert row.word_starts is not None
    stops = [*row.word_starts[1:].tolist(), len(row.tokens) - 1]
    for word, first, stop in zip(WORDS, row.word_starts.tolist(), stops, strict=True):
        own = tokenizer.decode(row.tokens[first:stop].tolist()).strip().replace(" ", "")
        spelled = word.lower() if kind == "char-lower" else word
        assert own == spelled or tokenizer.unk_id in row.tokens[first:stop] or kind == "char"
        if kind == "char":
            assert tokenizer.decode(row.tokens[first : first + 1].tolist()) == word[0]


def test_words_beyond_the_context_have_no_place_and_no_loss() -> None:
    tokenizer = Tokenizer.train(KINDS["char"], TEXT)
    built, model = task(tokenizer, context=10)
    tags = ("B-X", *["O"] * 9)
    (row,) = encoded(built, item(WORDS, tags))
    assert row.is_truncated
    # [CLS] Otto met [SEP]: eight characters
    assert row.placed_W.tolist() == [0, 1]
    assert row.word_starts is not None
    assert row.word_starts.tolist() == [1, 6]
    assert row.label is not None
    assert row.label.tolist() == [0, 2]
    ((found,),) = built.predict_cells(model, [row])
    assert isinstance(found, list)
    assert len(found) == 10
    assert found[2:] == ["O"] * 8


def test_a_word_that_the_tokenizer_drops_is_outside_of_entities() -> None:
    tokenizer = Tokenizer.train(KINDS["wordpiece"], TEXT)
    built, model = task(tokenizer)
    rows = encoded(built, item(("Otto", "\u200b", "Ida")), item(("\u200b",), row=2))
    assert rows[0].placed_W.tolist() == [0, 2]
    assert rows[1].placed_W.tolist() == []
    assert [len(tags) for (tags,) in built.predict_cells(model, rows)] == [3, 1]  # type: ignore[arg-type]
    assert built.predict_cells(model, rows[1:]) == [(["O"],)]


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_predictions_are_the_highest_scores_of_first_tokens(shape: str) -> None:
    tokenizer = Tokenizer.train(KINDS["bpe"], TEXT)
    built, model = task(tokenizer, shape=shape)
    assert isinstance(model.lm, Tagger)
    torch.nn.init.normal_(model.lm.eval().head.weight)
    rows = encoded(built, item(WORDS), item(WORDS[:2], row=2))
    for row, (tags,) in zip(rows, built.predict_cells(model, rows), strict=True):
        scores = (
            TokenHeadModel.run_head(model.lm, model.objective.collate([row.to_example()])).scores[0].detach().numpy()
        )
        assert row.word_starts is not None
        assert tags == [BIO[int(scores[place].argmax())] for place in row.word_starts]


def test_entities_are_measured_by_their_f1_and_other_tags_by_classes() -> None:
    tokenizer = Tokenizer.train(KINDS["char"], TEXT)
    entities, model = task(tokenizer)
    assert isinstance(entities, EntityTask)
    true = ("B-X", "I-X", "O")
    rows = entities.encode([item(("Otto", "met", "Ida"), true), item(("Otto",), ("O",), row=2)])
    results = entities.compute_results(model, rows, "test", 3)
    assert {"f1", "precision", "recall", "accuracy", "entities"} == results.figures.keys()
    assert results.rows == 2
    for mistake in results.mistakes:
        assert mistake["label"] in ("X Otto met", "")
    assert results.lines()
    assert entities.validate(model, rows).metrics == {name: results.figures[name] for name in ("f1", "accuracy")}
    plain, model = task(tokenizer, ("NOUN", "VERB"))
    assert not isinstance(plain, EntityTask)
    found = plain.compute_results(model, plain.encode([item(("Otto", "met"), ("NOUN", "VERB"))]), "test", 3)
    assert found.figures["accuracy"] in (0.0, 0.5, 1.0)
    assert np.sum(found.figures["confusion"]) == 2
    assert len(found.mistakes) == int(found.figures["accuracy"] < 1)
