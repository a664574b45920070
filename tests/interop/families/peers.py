"""Transformers' models, brought in through a family and published again."""

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from pydantic import TypeAdapter
from safetensors.torch import save_file
from torch import Tensor, nn

from lmtool.interop.families.config import Config
from lmtool.interop.families.family import Family
from lmtool.model import LanguageModel, build
from lmtool.recipe.spec.objective import AnyObjective, HeadSpec
from lmtool.recipe.spec.transformer import Transformer

VOCAB = 13
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**12, 0.0, -0.5, 2.5, float("nan"), float("inf")),
    *("", "\x1b[31m", "gated-", "-", [], [None], [3, "x"], {}, {"0": None}, {"x": []}, {"full_attention": {}}),
)
"""Values that a damaged or hostile config.json may have for any key."""


def peer_of(architecture: str, config: dict[str, Any]) -> Any:
    """A model of Transformers with random weights, norms and biases in float32."""
    kind = getattr(transformers, architecture)
    made = kind.config_class(**config)
    made.architectures = [architecture]
    peer = kind(made).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, tensor in [*peer.named_parameters(), *peer.named_buffers()]:
            if tensor.requires_grad or name == "final_logits_bias":
                nn.init.normal_(tensor, std=0.3)
    return peer


def tensors_of(peer: Any, family: Family) -> dict[str, Tensor]:
    """Its tensors, named as in a model with a head."""
    alone = not any(name.startswith(family.prefix) for name in peer.state_dict())
    return {f"{family.prefix if alone else ''}{name}": tensor for name, tensor in peer.state_dict().items()}


def values_of(peer: Any) -> dict[str, Any]:
    """Its config.json."""
    values: dict[str, Any] = json.loads(json.dumps(peer.config.to_dict(), default=str))
    return values


def described(family: Family, values: Mapping[str, Any], names: Any) -> tuple[Transformer, AnyObjective]:
    """The recipe's model and objective of a configuration, all of which must have been read."""
    config = Config(values, "config.json")
    found = family.describe(config, names)
    config.check_all_read()
    model = Transformer.model_validate({"kind": "transformer", **found.model})
    return model, TypeAdapter(AnyObjective).validate_python(found.objective)


class Brought:
    """A model of Transformers as a model of ours. `of_head`: the tensors of a classifier beside its body."""

    def __init__(self, family: Family, peer: Any) -> None:
        self.family = family
        self.theirs = tensors_of(peer, family)
        self.spec, self.objective = described(family, values_of(peer), self.theirs)
        assert self.spec.vocab_size is not None
        self.model: LanguageModel = build(self.spec, self.spec.vocab_size).eval()
        self.weights = family.weights(self.spec, self.objective)
        ours = {one.ours: one.layout.join([self.theirs[name] for name in one.theirs]) for one in self.weights}
        assert len(ours) == len(self.weights)
        self.ours = ours
        read = {name for one in self.weights for name in one.theirs}
        redundant = re.compile("|".join(family.redundant) or "$.")
        assert all(redundant.fullmatch(name) for name in self.theirs.keys() - read)
        body = "body." if isinstance(self.objective, HeadSpec) else ""
        self.of_head = {name: tensor for name, tensor in ours.items() if not name.startswith(body)}
        of_body = {name.removeprefix(body): tensor for name, tensor in ours.items() if name.startswith(body)}
        self.model.load_state_dict(of_body)

    def published(self, folder: Path, **more: Any) -> Any:
        return published(self.family, self.spec, self.objective, self.ours, folder, **more)


def published(
    family: Family,
    spec: Transformer,
    objective: AnyObjective,
    ours: Mapping[str, Tensor],
    folder: Path,
    **more: Any,
) -> Any:
    """A model of Transformers, from the files of an export. more: keys of config.json that an exporter adds."""
    made = family.publish(spec, objective)
    theirs = family.constants(spec, objective)
    for weight in family.weights(spec, objective):
        split = weight.layout.split(ours[weight.ours].detach())
        theirs |= {name: tensor.contiguous() for name, tensor in zip(weight.theirs, split, strict=True)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(made | more))
    save_file({name: tensor.clone() for name, tensor in theirs.items()}, folder / "model.safetensors", {"format": "pt"})
    loaded, found = getattr(transformers, made["architectures"][0]).from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    return loaded.eval()


def assert_close(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def assert_same_tensors(found: Any, wanted: Any, unread: Collection[str] = ()) -> None:
    """Bit for bit. unread: names of tensors that have no effect."""
    other = wanted.state_dict()
    for name, tensor in found.state_dict().items():
        assert name in unread or torch.equal(tensor, other[name]), name
