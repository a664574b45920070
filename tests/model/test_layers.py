"""Descriptions of models, the output of every layer, from one pass, and context-independent embeddings."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.model.language_model import CountingModel
from lmtool.recipe.spec.objective import Classification
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.tiny import DECODERS

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
shapes = pytest.mark.parametrize("shape", ["decoder", "prefix", "encoder", "encoder-decoder"])
KEEP = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


@shapes
@pytest.mark.parametrize("family", ["gpt2", "modern"])
def test_there_are_states_of_the_embeddings_and_of_each_layer(family: str, shape: str) -> None:
    changes: dict[str, Any] = {**DECODERS[family], "shape": shape, "n_layers": 3}
    model: Any = tiny.model(**changes)
    batch = Batch(tiny.tokens(2, 7), keep_BT=KEEP)
    layers = model.hidden_states_by_layer(batch)
    assert [layer.shape for layer in layers] == [(2, 7, 16)] * 4
    if shape == "encoder-decoder":  # those of the encoder
        read = model.encode(Batch(batch.tokens_BT, source_BS=batch.tokens_BT, source_keep_BS=KEEP))
    else:
        read = model(batch)
    torch.testing.assert_close(layers[-1], read.hidden_BTD, **EXACT)
    # a model truncated after k layers has the output of layer k, after its own final norm
    for k in (1, 2):
        shorter: Any = tiny.model(**{**changes, "n_layers": k})
        weights = model.state_dict()
        shorter.load_state_dict({name: weights[name] for name in shorter.state_dict()})
        stack = shorter.encoder if shape == "encoder-decoder" else shorter.stack
        torch.testing.assert_close(stack.norm(layers[k]), shorter.hidden_states_by_layer(batch)[-1], **EXACT)
        torch.testing.assert_close(shorter.hidden_states_by_layer(batch)[0], layers[0], **EXACT)


@shapes
def test_the_first_states_are_embeddings_of_tokens_and_positions(shape: str) -> None:
    model, tokens_BT = tiny.model(shape=shape), tiny.tokens(2, 7)
    weights = model.state_dict()
    assert torch.equal(model.token_vectors(), weights["inputs.tokens.weight"])
    wanted = model.token_vectors()[tokens_BT] + weights["inputs.position.table.weight"][:7]
    torch.testing.assert_close(model.hidden_states_by_layer(Batch(tokens_BT))[0], wanted)


@pytest.mark.parametrize("both", [False, True])
def test_layers_of_recurrent_encoders_do_not_depend_on_padding(both: bool) -> None:
    """tests/model/test_recurrent.py compares those of decoders with loops."""
    model = tiny.model(**{**tiny.SEQ2SEQ, "bidirectional_encoder": both})
    tokens_BT = tiny.tokens(2, 7)
    layers = model.hidden_states_by_layer(Batch(tokens_BT, keep_BT=KEEP))
    assert [layer.shape for layer in layers] == [(2, 7, 8)] * 3
    torch.testing.assert_close(layers[0], model.token_vectors()[tokens_BT], **EXACT)
    for together, own in zip(layers, model.hidden_states_by_layer(Batch(tokens_BT[1:, :4])), strict=True):
        torch.testing.assert_close(together[1, :4], own[0], **EXACT)


def test_models_of_word_vectors_have_one_layer_and_counts_none() -> None:
    model, batch = tiny.model(**tiny.FAMILIES["skip-gram"]), Batch(tiny.tokens(2, 7))
    (layer,) = model.hidden_states_by_layer(batch)
    assert torch.equal(layer, model.token_vectors()[batch.tokens_BT])
    counts = tiny.model(**tiny.FAMILIES["3-gram"])
    with refuses("usage"):
        counts.token_vectors()
    with refuses("usage"):
        counts.hidden_states_by_layer(batch)


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
