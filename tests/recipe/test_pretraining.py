"""The default recipe: what follows from a text, and that nothing a person has set is overruled."""

from dataclasses import replace
from typing import Any

import pytest

from lmtool.errors import RecipeError
from lmtool.recipe.load import Setting, load, parse_settings
from lmtool.recipe.pretraining import LENGTH_KEYS, TextStatistics, resolve_default_recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import CharTokenizer
from tests.recipe.reading import value as value_of

MILLION = 10**6
PROSE = TextStatistics(False, True, 1, MILLION, MILLION, longest=MILLION, alphabet=90, new_words=0.03)
NAMES = replace(PROSE, is_list=True, is_stream=False, documents=32_000, characters=200_000, n_bytes=200_000, longest=15)
CAPTIONS = replace(PROSE, is_list=True, is_stream=False, documents=15_000, longest=200)
STORIES = replace(PROSE, is_stream=False, documents=4000, new_words=0.0)
SHAPES = {"prose": PROSE, "names": NAMES, "captions": CAPTIONS, "stories": STORIES}
TEXT = Setting("data.train", ["a.txt"], "TEXT")


def settled(shape: TextStatistics, *overrides: str, **flags: object) -> tuple[Any, str]:
    given = [TEXT, *(Setting(f"training.{key}", value, f"--{key}") for key, value in flags.items())]
    resolved = resolve_default_recipe(parse_settings(overrides, given), shape)
    return resolved.recipe, "\n".join(resolved.inferred)


def test_short_lines_are_read_by_characters_in_a_context_that_holds_the_longest() -> None:
    recipe, told = settled(NAMES)
    assert isinstance(recipe.tokenizer, CharTokenizer)
    assert 15 + 2 <= recipe.model.context <= 64
    assert recipe.data.isolate_documents
    assert "tokenizer.kind" in told
    assert "data.isolate_documents" in told


def test_long_lines_and_large_alphabets_are_read_in_pieces() -> None:
    for shape in (CAPTIONS, PROSE, replace(NAMES, alphabet=4000)):
        recipe, told = settled(shape)
        assert recipe.tokenizer.kind == "bpe"
        assert "tokenizer.vocab_size" in told


def test_a_text_of_a_page_has_several_windows() -> None:
    page, book = (settled(replace(PROSE, n_bytes=size))[0] for size in (700, 700_000))
    assert page.model.context < 64 < book.model.context
    assert len({one.model.context * one.training.batch_size for one in (page, book)}) == 1


def test_a_closed_vocabulary_takes_the_recipe_for_it() -> None:
    recipe, told = settled(STORIES)
    tiny = load("tiny").recipe
    changed = {"n_heads": 4, "ngram_embedding": recipe.model.ngram_embedding}
    assert recipe.model == tiny.model.model_copy(update=changed)
    assert recipe.optimizer == tiny.optimizer
    assert recipe.training.minutes == 2
    assert recipe.data.isolate_documents
    steps = settled(STORIES, "training.steps=90", "model.d_model=66", "model.ngram_embedding=null")[0]
    assert (steps.training.steps, steps.training.minutes, steps.model.n_heads) == (90, None, 2)
    assert steps.model.ngram_embedding is None
    assert recipe.evaluation.baseline
    assert not settled(STORIES, "evaluation.baseline=false")[0].evaluation.baseline
    assert "tiny" in told
    assert settled(replace(STORIES, characters=10_000))[0].model != recipe.model


def test_more_text_gives_more_pieces_more_width_less_dropout_and_fewer_passes() -> None:
    sizes = [2**n * 10_000 for n in range(14)]
    recipes = [settled(replace(PROSE, characters=size, n_bytes=size))[0] for size in sizes]
    for key, direction in (
        ("tokenizer.vocab_size", 1),
        ("model.d_model", 1),
        ("model.dropout", -1),
        ("training.epochs", -1),
    ):
        found = [direction * value_of(recipe, key) for recipe in recipes]
        assert found == sorted(found)
        assert found[0] < found[-1]


def test_only_decoders_of_much_text_have_embeddings_of_ngrams() -> None:
    large = replace(PROSE, characters=20_000_000, n_bytes=20_000_000)
    recipe, told = settled(large)
    assert recipe.model.ngram_embedding is not None
    assert "model.ngram_embedding" in told
    for others in (["model.shape=encoder", "objective.kind=masked"], ["model.ngram_embedding=null"]):
        recipe, told = settled(large, *others)
        assert recipe.model.ngram_embedding is None
        assert "ngram" not in told
    assert isinstance(settled(large, "model={kind: recurrent, d_model: 32, context: 32}")[0].model, Recurrent)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("tokenizer.kind=bpe", "bpe"),
        ("tokenizer.kind=char", "char"),
        ("tokenizer.vocab_size=777", 777),
        ("model.context=48", 48),
        ("model.d_model=60", 60),
        ("model.n_heads=1", 1),
        ("model.dropout=0.05", 0.05),
        ("model.n_layers=3", 3),
        ("training.batch_size=5", 5),
        ("data.isolate_documents=false", False),
        ("training.steps=77", 77),
        ("evaluation.every=9", 9),
    ],
)
def test_what_a_person_sets_stays(shape: TextStatistics, override: str, value: object) -> None:
    recipe, told = settled(shape, override)
    key = override.partition("=")[0]
    assert value_of(recipe, key) == value
    assert f"(-s {key})" not in told


@pytest.mark.parametrize("key", sorted(LENGTH_KEYS))
@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_who_sets_a_length_sets_it_alone(shape: TextStatistics, key: str) -> None:
    recipe, told = settled(shape, f"{key}=5")
    training = recipe.training
    assert {name for name in ("epochs", "tokens", "minutes") if getattr(training, name) is not None} == (
        {key.partition(".")[2]} - {"steps"}
    )
    assert "length" not in told
    by_flag, _ = settled(shape, minutes=2.0)
    assert (by_flag.training.minutes, by_flag.training.epochs) == (2.0, None)
    streamed = settled(replace(shape, is_streamed=True), "data.stream=true")[0].training
    assert (streamed.minutes is None, streamed.epochs) == (False, None), "nobody knows how long an epoch is"


def test_heads_divide_any_even_width() -> None:
    for width in range(2, 400, 14):
        model = settled(PROSE, f"model.d_model={width}")[0].model  # refuses heads that do not divide it
        assert model.d_model == width


@pytest.mark.parametrize("kind", ["recurrent", "skipgram", "ngram"])
def test_another_model_takes_what_it_has_of_it(kind: str) -> None:
    objective = "skip-gram" if kind == "skipgram" else "causal"
    for shape in SHAPES.values():
        recipe, _ = settled(shape, f"model.kind={kind}", f"objective.kind={objective}", "tokenizer.kind=word")
        assert recipe.model.kind == kind
        assert (recipe.evaluation.baseline is True) == (kind == "recurrent")


def test_mistakes_are_told_before_a_text_is_read() -> None:
    for wrong in ("model.n_headss=2", "model.n_heads=7", "training.steps=0", "data.documents=page"):
        with pytest.raises(RecipeError):
            resolve_default_recipe(parse_settings([wrong], [TEXT]))
