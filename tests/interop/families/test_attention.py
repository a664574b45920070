"""The attention weights of Transformers' models with the same weights (`output_attentions`)."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.layers.attention import CrossAttention
from lmtool.model.layers.observing import record_attention_weights
from tests.interop.families.peers import VOCAB, brought, language_model
from tests.support import tiny

ONE_STACK = ["gpt2", "llama", "llama 3", "mistral", "bloom", "gpt_neox", "bert", "modernbert"]
SEQ2SEQ = ["t5", "bart"]


def eager(peer: Any) -> Any:
    """A model that forms its attention weights."""
    peer.set_attn_implementation("eager")
    return peer


def assert_same(found: list[Tensor], wanted: tuple[Tensor, ...]) -> None:
    assert len(found) == len(wanted)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ONE_STACK)
@torch.no_grad()
def test_decoders_and_encoders(case: str) -> None:
    peer = language_model(case)
    ours = brought(peer)
    tokens_BT = tiny.tokens(2, 12, vocab_size=VOCAB)
    with record_attention_weights(ours) as found:
        ours(Batch(tokens_BT))
    assert_same(list(found.values()), eager(peer)(tokens_BT, output_attentions=True).attentions)


@pytest.mark.parametrize("case", SEQ2SEQ)
@torch.no_grad()
def test_encoder_decoders(case: str) -> None:
    peer = language_model(case)
    ours = brought(peer)
    source_BS, tokens_BT = tiny.tokens(2, 9, vocab_size=VOCAB), tiny.tokens(2, 6, seed=1, vocab_size=VOCAB)
    keep_BS = torch.tensor([[True] * 9, [True] * 5 + [False] * 4])
    with record_attention_weights(ours) as found:
        ours(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=keep_BS))
    theirs = eager(peer)(source_BS, keep_BS.long(), decoder_input_ids=tokens_BT, output_attentions=True)
    across = {name for name in found if isinstance(ours.get_submodule(name), CrossAttention)}
    assert_same([found[name] for name in found if name in across], theirs.cross_attentions)
    inside = {name: weights for name, weights in found.items() if name not in across}
    assert_same([w for name, w in inside.items() if name.startswith("decoder")], theirs.decoder_attentions)
    of_source = [w for name, w in inside.items() if name.startswith("encoder")]
    kept = [w[keep_BS[:, None, :, None].expand_as(w)] for w in of_source]
    assert_same(kept, tuple(w[keep_BS[:, None, :, None].expand_as(w)] for w in theirs.encoder_attentions))
