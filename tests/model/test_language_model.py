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


LINES: dict[str, tuple[dict[str, Any], str]] = {
    **{name: (tiny.FAMILIES[name], "") for name in tiny.of_each_kind(tiny.FAMILIES)},
    "gpt2": ({}, "transformer decoder, 2 x 16"),
    "prefix": ({"shape": "prefix", "n_layers": 3}, "transformer prefix, 3 x 16"),
    "lstm": (tiny.RECURRENT, "lstm decoder, 2 x 8"),
    "elman": ({**tiny.SEQ2SEQ, "cell": "rnn"}, "rnn encoder-decoder, 2 x 8"),
    "elmo": (tiny.FAMILIES["elmo"], "lstm bidirectional, 2 x 8"),
    "3-gram": ({"kind": "ngram", "order": 3}, "3-gram"),
    "skip-gram": ({"kind": "skipgram", "d_model": 6}, "skipgram, 6 wide"),
    "averaging": (AVERAGING, "mean of tokens, 2 x 6"),
    "one-hot": ({"kind": "averaging", "one_hot": True, "n_layers": 0}, "linear in tokens"),
}


@pytest.mark.parametrize("family", LINES)
def test_models_say_what_they_are_and_read_and_count_as_their_specs_say(family: str) -> None:
    of, line = LINES[family]
    spec = tiny.any_spec(**of)
    model = build(spec, tiny.VOCAB)
    assert line in ("", model.description)
    assert model.reads == spec.reads
    assert isinstance(model, CountingModel) == spec.counts
    assert model.variable_length_tensors <= set(model.state_dict())


def test_models_that_write_nothing_have_no_state() -> None:
    for of in (AVERAGING, *(tiny.FAMILIES[name] for name in ("skip-gram", "glove", "bert"))):
        with refuses("usage"):
            build(tiny.any_spec(**of), tiny.VOCAB).initial_state(Batch(tiny.tokens(1, 3)))


def test_a_head_that_counts_nothing_leaves_the_texts_alone() -> None:
    spec = tiny.any_spec(**AVERAGING)
    model = Classifier(build(spec, tiny.VOCAB), Classification(kind="classification", labels=("a", "b")), spec)

    def batches() -> Iterator[Batch]:
        raise AssertionError("these were read")
        yield

    model.fit_idf_and_log_ratios_(batches())
