"""Transformers' models, brought in through a family and published again."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import transformers
from pydantic import TypeAdapter
from safetensors.torch import save_file

from lmtool.interop.families import FAMILIES
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.family import Family
from lmtool.model import LanguageModel, build
from lmtool.recipe.spec.objective import AnyObjective
from lmtool.recipe.spec.transformer import Transformer
from tests.support.peers import peer, random_model

VOCAB = 13
MANY = [f"tensor {i}" for i in range(1000)]
"""Names of the tensors of a large model."""
JUNK: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 10**12, 0.0, -0.5, 2.5, float("nan"), float("inf")),
    *("", "\x1b[31m", "gated-", "-", [], [None], [3, "x"], {}, {"0": None}, {"x": []}, {"full_attention": {}}),
)
"""Values that a damaged or hostile config.json may have for any key."""


def language_model(name: str) -> Any:
    """A small random one of the table."""
    architecture, config, *_ = peer(name)
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    return random_model(architecture, {"vocab_size": VOCAB, **tokens, **config})


def described(values: Mapping[str, Any], names: Sequence[str] = MANY) -> tuple[Transformer, AnyObjective]:
    """The recipe's model and objective of a configuration, all of which must have been read."""
    config = StrictConfigReader(values, "a/config.json", names)
    found = FAMILIES[values["model_type"]].read_recipe_from_config(config)
    config.check_all_read()
    objective: AnyObjective = TypeAdapter(AnyObjective).validate_python(found["objective"])
    return Transformer.model_validate(found["model"]), objective


def tensors_of_head(model_type: str, head: str) -> list[str]:
    """Names of the tensors by which a file tells its head."""
    return [f"{name}.weight" for name in " ".join(FAMILIES[model_type].heads[head].modules.values()).split()]


def brought(peer: Any) -> LanguageModel:
    """A model of ours with the weights of one of Transformers."""
    values = json.loads(json.dumps(peer.config.to_dict(), default=str))
    family, tensors = FAMILIES[values["model_type"]], peer.state_dict()
    names = family.map_canonical_to_stored_names(tensors)
    spec, objective = described(values, list(names))
    assert spec.vocab_size is not None
    model = build(spec, spec.vocab_size).eval()
    weights = family.list_parameter_mappings(spec, objective)
    model.load_state_dict(
        {one.name: one.layout.join([tensors[names[n]] for n in one.published_names]) for one in weights}
    )
    return model


def published(family: Family, spec: Transformer, objective: AnyObjective, model: LanguageModel, folder: Path) -> Any:
    """A model of ours as one of Transformers, by files."""
    made = family.build_verified_config(spec, objective)
    theirs, ours = family.constant_tensors(spec, objective), model.state_dict()
    for weight in family.list_parameter_mappings(spec, objective):
        split = weight.layout.split(ours[weight.name].detach())
        theirs |= {name: tensor.contiguous() for name, tensor in zip(weight.published_names, split, strict=True)}
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"pad_token_id": 0, **made}))
    save_file({name: tensor.clone() for name, tensor in theirs.items()}, folder / "model.safetensors", {"format": "pt"})
    loaded, found = getattr(transformers, made["architectures"][0]).from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    return loaded.eval()
