"""The output of every layer, from one pass, and context-independent embeddings."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model import LanguageModel, SkipGramModel, build
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.words import NGram, SkipGram
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.tiny import DECODERS

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = ("decoder", "prefix", "encoder", "encoder-decoder")
shapes = pytest.mark.parametrize("shape", SHAPES)
KEEP = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


def last_of(model: LanguageModel, batch: Batch) -> Tensor:
    """The hidden states of the stack that reads text."""
    if hasattr(model, "encode"):
        source = Batch(batch.tokens_BT, source_BS=batch.tokens_BT, source_keep_BS=batch.keep_BT)
        return model.encode(source).hidden_BTD
    return model(batch).hidden_BTD


@shapes
@pytest.mark.parametrize("family", nightly_but(DECODERS, "gpt2", "modern"))
def test_there_is_one_for_the_embeddings_and_one_for_each_layer(family: str, shape: str) -> None:
    changes: dict[str, Any] = {**DECODERS[family], "shape": shape, "n_layers": 3}
    model = tiny.model(**changes)
    batch = Batch(tiny.tokens(2, 7), keep_BT=KEEP)
    layers = model.layer_outputs(batch)
    assert [layer.shape for layer in layers] == [(2, 7, 16)] * 4
    torch.testing.assert_close(layers[-1], last_of(model, batch), **EXACT)
    # a model truncated after k layers has the output of layer k, after its own final norm
    for k in (1, 2):
        shorter = tiny.model(**{**changes, "n_layers": k})
        shorter.load_state_dict(
            {name: value for name, value in model.state_dict().items() if name in shorter.state_dict()}
        )
        stack = shorter.encoder if shape == "encoder-decoder" else shorter.stack
        torch.testing.assert_close(stack.norm(layers[k]), shorter.layer_outputs(batch)[-1], **EXACT)  # type: ignore[operator, union-attr]
        torch.testing.assert_close(shorter.layer_outputs(batch)[0], layers[0], **EXACT)


@shapes
def test_the_first_is_the_embedding_of_tokens_and_positions(shape: str) -> None:
    model = tiny.model(shape=shape)
    tokens_BT = tiny.tokens(2, 7)
    positions_TD = model.state_dict()["inputs.position.table.weight"][:7]
    torch.testing.assert_close(
        model.layer_outputs(Batch(tokens_BT))[0], model.token_vectors()[tokens_BT] + positions_TD
    )


@shapes
def test_token_vectors_are_the_embedding(shape: str) -> None:
    model = tiny.model(shape=shape)
    assert torch.equal(model.token_vectors(), model.state_dict()["inputs.tokens.weight"])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder", "bidirectional"])
def test_recurrent_layers(shape: str, both: bool) -> None:
    spec = Recurrent(
        kind="recurrent",
        shape=shape,  # type: ignore[arg-type]
        n_layers=3,
        d_model=6,
        context=9,
        bidirectional_encoder=both and shape == "encoder-decoder",
    )
    model = build(spec, tiny.VOCAB).double().eval()
    tokens_BT = tiny.tokens(2, 7)
    layers = model.layer_outputs(Batch(tokens_BT, keep_BT=KEEP))
    width = 12 if shape == "bidirectional" else 6
    assert [layer.shape for layer in layers] == [(2, 7, width)] * 4
    torch.testing.assert_close(layers[0][..., :6], model.token_vectors()[tokens_BT], **EXACT)
    alone = model.layer_outputs(Batch(tokens_BT[1:, :4]))
    for together, own in zip(layers, alone, strict=True):
        torch.testing.assert_close(together[1, :4], own[0], **EXACT)
    if shape == "decoder":
        torch.testing.assert_close(layers[-1], model(Batch(tokens_BT, keep_BT=KEEP)).hidden_BTD, **EXACT)


def test_skip_gram_has_the_centres_only() -> None:
    model = build(SkipGram(kind="skipgram", d_model=5), tiny.VOCAB)
    assert isinstance(model, SkipGramModel)
    tokens_BT = tiny.tokens(2, 7)
    (layer,) = model.layer_outputs(Batch(tokens_BT))
    assert torch.equal(layer, model.token_vectors()[tokens_BT])
    assert torch.equal(model.token_vectors(), model.centres.weight)


def test_counts_are_no_vectors() -> None:
    model = build(NGram(kind="ngram"), tiny.VOCAB)
    for ask in (model.token_vectors, lambda: model.layer_outputs(Batch(tiny.tokens(1, 3)))):
        with pytest.raises(UsageError, match="no token embeddings"):
            ask()
