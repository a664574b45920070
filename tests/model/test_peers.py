"""The same logits as models of Transformers, and as layers of torch, with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

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


@pytest.mark.parametrize("pre", [True, False])
def test_torch_transformer(pre: bool) -> None:
    """Encoder and decoder layers of Vaswani et al. 2017, between our embedding and our head."""
    layer: dict[str, Any] = {"d_model": 16, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}
    layer |= {"norm_first": pre, "layer_norm_eps": 1e-3}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(**layer), 2, nn.LayerNorm(16, 1e-3) if pre else None, enable_nested_tensor=False
    )
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2, nn.LayerNorm(16, 1e-3) if pre else None)
    peer = nn.Transformer(16, 4, custom_encoder=encoder, custom_decoder=decoder, batch_first=True).double().eval()
    torch.manual_seed(0)
    for parameter in peer.parameters():
        nn.init.normal_(parameter, std=0.3)
    norm = {"kind": "layer", "place": "pre" if pre else "post", "eps": 1e-3}
    model = tiny.model(**{**tiny.VASWANI, "norm": norm})
    weights = peer.state_dict()
    for stack, per_layer in (("encoder", 2), ("decoder", 3)):
        for name, parameter in getattr(model, stack).named_parameters():
            put(parameter, weights_of(name, stack, per_layer, weights))
    assert not weights
    source_BS, tokens_BT = tiny.tokens(3, 20), tiny.tokens(3, 17, seed=1)
    positions = [torch.arange(n)[None] for n in (20, 17)]
    with torch.no_grad():
        wanted = peer(
            model.inputs(source_BS, positions[0], None, None),
            model.inputs(tokens_BT, positions[1], None, None),
            tgt_mask=torch.ones(17, 17).triu(1).bool(),
            src_key_padding_mask=~KEEP,
            memory_key_padding_mask=~KEEP,
        )
    hidden = model(Batch(tokens_BT, source_BS=source_BS, source_keep_BS=KEEP)).hidden_BTD
    torch.testing.assert_close(hidden, wanted, rtol=1e-10, atol=1e-10)


def weights_of(name: str, stack: str, per_layer: int, weights: dict[str, Tensor]) -> Tensor:
    """Takes out of torch's weights those of a parameter of ours, such as sublayers.3.mixer.qkv.weight."""
    if name.startswith("norm."):
        return weights.pop(f"{stack}.{name}")
    _, number, part, kind = name.replace("mixer.", "").split(".")
    layer, place = divmod(int(number), per_layer)
    prefix, last = f"{stack}.layers.{layer}", place == per_layer - 1
    attention = "self_attn" if place == 0 else "multihead_attn"
    match part:
        case "norm":
            return weights.pop(f"{prefix}.norm{place + 1}.{kind}")
        case "up" | "out" if last:
            return weights.pop(f"{prefix}.linear{1 if part == 'up' else 2}.{kind}")
        case "out":
            return weights.pop(f"{prefix}.{attention}.out_proj.{kind}")
        case "q":
            return weights[f"{prefix}.{attention}.in_proj_{kind}"][:16]
        case "kv":
            return weights.pop(f"{prefix}.{attention}.in_proj_{kind}")[16:]
    return weights.pop(f"{prefix}.{attention}.in_proj_{kind}")


def put(parameter: Tensor, weight: Tensor) -> None:
    assert parameter.shape == weight.shape
    with torch.no_grad():
        parameter.copy_(weight)
