"""Descriptions and embeddings of models."""

from collections.abc import Iterator
from typing import Any

import pytest

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.model.language_model import CountingModel
from lmtool.recipe.spec.objective import Classification
from tests.support import tiny
from tests.support.errors import refuses

AVERAGING = {"kind": "averaging", "d_model": 6, "n_layers": 2}


@pytest.mark.parametrize(
    ("of", "line"),
    [
        ({}, "transformer decoder, 2 x 16"),
        ({"shape": "prefix", "n_layers": 3}, "transformer prefix, 3 x 16"),
        (tiny.BERT, "transformer encoder, 2 x 16"),
        (tiny.T5, "transformer encoder-decoder, 2 x 16"),
        (tiny.RECURRENT, "lstm decoder, 2 x 8"),
        ({**tiny.SEQ2SEQ, "cell": "rnn"}, "rnn encoder-decoder, 2 x 8"),
        ({**tiny.RECURRENT, "shape": "bidirectional"}, "lstm bidirectional, 2 x 8"),
        ({"kind": "ngram", "order": 3}, "3-gram"),
        ({"kind": "skipgram", "d_model": 6}, "skipgram, 6 wide"),
        (AVERAGING, "mean of tokens, 2 x 6"),
        ({"kind": "averaging", "one_hot": True, "n_layers": 0}, "linear in tokens"),
    ],
)
def test_each_family_has_its_line(of: dict[str, Any], line: str) -> None:
    assert build(tiny.any_spec(**of), tiny.VOCAB).description == line


@pytest.mark.parametrize("of", [*tiny.FAMILIES.values(), AVERAGING], ids=[*tiny.FAMILIES, "averaging"])
def test_models_read_and_count_as_their_specs_say(of: dict[str, Any]) -> None:
    spec = tiny.any_spec(**of)
    model = build(spec, tiny.VOCAB)
    assert model.reads == spec.reads
    assert isinstance(model, CountingModel) == spec.counts
    assert model.variable_length_tensors <= set(model.state_dict())


@pytest.mark.parametrize("of", [AVERAGING, *map(tiny.FAMILIES.get, ("skip-gram", "glove", "bert"))], ids=str)
def test_models_that_write_nothing_have_no_state(of: dict[str, Any]) -> None:
    with refuses("usage"):
        build(tiny.any_spec(**of), tiny.VOCAB).initial_state(Batch(tiny.tokens(1, 3)))


def test_a_head_leaves_its_body_the_model_that_it_was() -> None:
    body = build(tiny.spec(), tiny.VOCAB)
    model = Classifier(body, Classification(kind="classification", labels=("a", "b")), tiny.spec())
    for name in ("vocab_size", "context", "max_positions", "reads", "recurrent", "description"):
        assert getattr(model, name) == getattr(body, name)
    assert model.modules_by_depth() == body.modules_by_depth()


def test_a_head_that_counts_nothing_leaves_the_texts_alone() -> None:
    spec = tiny.any_spec(**AVERAGING)
    model = Classifier(build(spec, tiny.VOCAB), Classification(kind="classification", labels=("a", "b")), spec)

    def batches() -> Iterator[Batch]:
        raise AssertionError("these were read")
        yield

    model.fit_idf_and_log_ratios_(batches())
