"""The names of weights in published models, and weights that all matter."""

import torch
from torch import Tensor

from lmtool.model import LanguageModel


def randomise(peer: torch.nn.Module) -> None:
    torch.manual_seed(0)
    for parameter in peer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)


def joined(peer: dict[str, Tensor], model: LanguageModel, names: dict[str, tuple[str, ...]]) -> None:
    """Copy weights that are separate in theirs and joined in ours; all of theirs must be used."""
    for name, parameter in model.named_parameters():
        module, _, kind = name.rpartition(".")
        with torch.no_grad():
            parameter.copy_(torch.cat([peer.pop(f"{theirs}.{kind}") for theirs in names[module]]))
    assert not peer


def bert_names(body: str) -> dict[str, tuple[str, ...]]:
    names: dict[str, tuple[str, ...]] = {
        "inputs.tokens": (f"{body}.embeddings.word_embeddings",),
        "inputs.position.table": (f"{body}.embeddings.position_embeddings",),
        "inputs.segments": (f"{body}.embeddings.token_type_embeddings",),
        "inputs.norm": (f"{body}.embeddings.LayerNorm",),
    }
    for layer in range(2):
        attention, ffn = f"stack.sublayers.{2 * layer}", f"stack.sublayers.{2 * layer + 1}"
        theirs = f"{body}.encoder.layer.{layer}"
        names |= {
            f"{attention}.mixer.qkv": tuple(f"{theirs}.attention.self.{part}" for part in ("query", "key", "value")),
            f"{attention}.mixer.out": (f"{theirs}.attention.output.dense",),
            f"{attention}.norm": (f"{theirs}.attention.output.LayerNorm",),
            f"{ffn}.mixer.up": (f"{theirs}.intermediate.dense",),
            f"{ffn}.mixer.out": (f"{theirs}.output.dense",),
            f"{ffn}.norm": (f"{theirs}.output.LayerNorm",),
        }
    return names
