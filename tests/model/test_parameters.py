"""Depth of parameters: by their names, and by the layers that change when one is perturbed."""

import re
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.words import Averaging
from tests.support import tiny

LAYERS = [name for name in tiny.of_each_kind(tiny.FAMILIES) if name not in ("3-gram", "skip-gram")]
LAYERS += ["albert", "2017 of shared layers"]


def by_name(family: dict[str, Any], name: str) -> int:
    """The depth of a parameter in a model of two layers (two of an encoder and two of a decoder), or of shared ones."""
    both, n_layers = family.get("shape") == "encoder-decoder", 1 if family.get("share_layers") else 2
    top = (n_layers * 2 if both else n_layers) + 1
    if family.get("kind") == "recurrent":
        above = name.startswith(("attention.", "join.", "feed."))
        if found := re.search(r"(?:cells|forth|back)\.(?:cells\.)?(\d)\.", name):
            return int(found[1]) + 1 + (2 if both and name.startswith("rnn.") else 0)
        if above or name.startswith("encoder.bridge"):
            return top - 1 if above else 2
        return 0 if name.startswith("embedding.") else top
    if found := re.match(r"(stack|encoder|decoder)\.sublayers\.(\d+)\.", name):
        per_layer = 3 if found[1] == "decoder" else 2
        return int(found[2]) // per_layer + 1 + (n_layers if found[1] == "decoder" else 0)
    if found := re.match(r"(stack|encoder|decoder)\.norm", name):
        return top - 1 if found[1] == "decoder" else n_layers
    is_embedding = name.startswith(("inputs.", "target_inputs.", "smear.", "ngrams.")) or ".position." in name
    return 0 if is_embedding else top


@pytest.mark.parametrize("family", LAYERS)
def test_names_tell_the_depth(family: str) -> None:
    model = build(tiny.any_spec(**tiny.FAMILIES[family]), tiny.VOCAB)
    found = model.parameter_depths()
    assert set(found) == set(model.parameters())
    for name, parameter in model.named_parameters():
        assert found[parameter] == by_name(tiny.FAMILIES[family], name), name


@pytest.mark.parametrize("family", ["gpt2", "bert", "prefix", "lstm", "elmo"])
def test_a_changed_parameter_changes_the_layers_from_its_depth_on(family: str) -> None:
    model, batch = tiny.model(**tiny.FAMILIES[family]), Batch(tiny.tokens(2, 6))
    depths = model.parameter_depths()
    with torch.no_grad():
        before = model.hidden_states_by_layer(batch)
        for name, parameter in model.named_parameters():
            if name.endswith(("segments.weight", "norm.weight", "norm.bias")) or ".bias_" in name:
                continue  # rows that are not read, norms that `layers` omits
            kept, depth = parameter.clone(), depths[parameter]
            parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype))
            pairs = zip(before, model.hidden_states_by_layer(batch), strict=True)
            same = [torch.equal(one, other) for one, other in pairs]
            parameter.copy_(kept)
            assert all(same[:depth]), name
            assert not any(same[depth : depth + 1]), name


def test_a_head_stands_above_all_layers() -> None:
    spec = Classification(kind="classification", labels=("a", "b"), pool="attention", layers="mix")
    model = Classifier(build(tiny.spec(), tiny.VOCAB), spec, tiny.spec())
    depths = model.parameter_depths()
    for name, parameter in model.named_parameters():
        assert name.startswith("body.") == (depths[parameter] < 3)
    averaging = Averaging(kind="averaging", d_model=4, n_layers=2)
    plain = Classification(kind="classification", labels=("a", "b"))
    dan = Classifier(build(averaging, tiny.VOCAB), plain, averaging)
    assert sorted(set(dan.parameter_depths().values())) == [0, 1, 2, 3]
