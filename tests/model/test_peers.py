"""The same logits as models of Transformers with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.interop.families import FAMILIES
from tests.interop.families.peers import brought
from tests.support import tiny
from tests.support.peers import MODELS as CASES
from tests.support.peers import random_model as peer_of

KEEP = torch.arange(20) < torch.tensor([[20], [1], [15]])


def language_model(case: str) -> Any:
    """A random model of Transformers, of which 0 is the padding token."""
    model_type, config = CASES[case]
    family = FAMILIES[model_type]
    head = family.heads["masked" if "masked" in family.heads else "causal"]
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
    return peer_of(
        family.class_prefix + head.class_suffix, {"vocab_size": tiny.VOCAB, **config, **ids, "pad_token_id": 0}
    )


def words(n: int, seed: int = 0) -> Tensor:
    """Tokens (3, n), none of them padding."""
    return 1 + tiny.tokens(3, n, seed=seed, vocab_size=tiny.VOCAB - 1)


@pytest.mark.parametrize("case", CASES)
def test_transformers(case: str) -> None:
    """With padding behind texts, or behind the sources of an encoder-decoder; in training and in inference."""
    peer = language_model(case)
    model, tokens_BT, keep_BT = brought(peer), words(20).masked_fill(~KEEP, 0), KEEP
    batch, more = Batch(tokens_BT, keep_BT=KEEP), {}
    if peer.config.is_encoder_decoder:
        answers_BT = words(17, seed=1)
        batch, keep_BT = Batch(answers_BT, source_BS=tokens_BT, source_keep_BS=KEEP), torch.ones(3, 17).bool()
        more = {"decoder_input_ids": answers_BT}
    with torch.no_grad():
        wanted = peer(tokens_BT, attention_mask=KEEP.long(), **more).logits
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            found = model.logits(model(batch).hidden_BTD)
        close = 1e-5 * float(wanted[keep_BT].abs().max())
        torch.testing.assert_close(found[keep_BT], wanted[keep_BT], rtol=1e-5, atol=close)
