"""Depth of parameters: by their names, and by the layers that change when one is perturbed."""

import re

import pytest
import torch

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.heads import Classifier
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.words import Averaging
from tests.support import tiny

SHARED = [name for name, family in tiny.FAMILIES.items() if family.get("share_layers")]
FLAT = {name for name in tiny.FAMILIES if "gram" in name or name == "glove"}
LAYERS = {name: tiny.FAMILIES[name] for name in tiny.FAMILIES if name not in {*FLAT, *SHARED}}
"""Families that have layers of their own weights; each has two, and as many in an encoder."""


def by_name(family: dict[str, object], name: str) -> int:
    """The depth of a parameter in a model of two layers (two of an encoder and two of a decoder)."""
    both = family.get("shape") == "encoder-decoder"
    if family.get("kind") == "recurrent":
        top = 5 if both else 3
        above = 2 if name.startswith(("rnn.", "attention.", "join.", "feed.")) else 0
        if found := re.search(r"(?:cells|forth|back)\.(?:cells\.)?(\d)\.", name):
            return int(found[1]) + 1 + (above if both else 0)
        if name.startswith(("attention.", "join.", "feed.")):
            return top - 1
        if name.startswith("encoder.bridge"):
            return 2
        return 0 if name.startswith("embedding.") else top
    top = 5 if both else 3
    if found := re.match(r"(stack|encoder|decoder)\.sublayers\.(\d+)\.", name):
        per_layer = (3 if found[1] == "decoder" else 2) - (family.get("d_ff") == 0)
        return int(found[2]) // per_layer + 1 + (2 if found[1] == "decoder" else 0)
    if found := re.match(r"(stack|encoder|decoder)\.(norm|position)", name):
        last = {"stack": 2, "encoder": 2, "decoder": 4}[found[1]]
        return last if found[2] == "norm" else 0
    return 0 if name.startswith(("inputs.", "target_inputs.", "smear.")) else top


@pytest.mark.parametrize("family", SHARED)
def test_layers_that_share_weights_are_one(family: str) -> None:
    """Of each stack, between the embeddings and the head."""
    model = build(tiny.any_spec(**tiny.FAMILIES[family]), tiny.VOCAB)
    depth_of = model.parameter_depths()
    found = {name: depth_of[parameter] for name, parameter in model.named_parameters()}
    top = 3 if tiny.FAMILIES[family].get("shape") == "encoder-decoder" else 2
    for name, depth in found.items():
        if name.startswith(("inputs.", "stack.position", "encoder.position", "decoder.position")):
            assert depth == 0
        elif name.startswith(("stack.", "encoder.")):
            assert depth == 1
        else:
            assert depth == (2 if name.startswith("decoder.") else top)


@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(LAYERS))
def test_names_tell_the_depth(family: str) -> None:
    model = build(tiny.any_spec(**LAYERS[family]), tiny.VOCAB)
    found = model.parameter_depths()
    assert set(found) == set(model.parameters())
    assert {name: found[p] for name, p in model.named_parameters()} == {
        name: by_name(LAYERS[family], name) for name, _ in model.named_parameters()
    }


@pytest.mark.parametrize("family", ["gpt2", "modern", "bert", "prefix", "lstm", "elmo"])
def test_a_parameter_changes_the_layers_from_its_depth_on(family: str) -> None:
    """Perturbing it leaves the layers below unchanged, but not its own."""
    model = tiny.model(**LAYERS[family])
    batch = Batch(tiny.tokens(2, 6))
    names = {parameter: name for name, parameter in model.named_parameters()}
    with torch.no_grad():
        before = model.hidden_states_by_layer(batch)
        for parameter, depth in model.parameter_depths().items():
            kept = parameter.clone()
            parameter += torch.randn(parameter.shape, dtype=parameter.dtype)
            same = [
                torch.equal(one, other) for one, other in zip(before, model.hidden_states_by_layer(batch), strict=True)
            ]
            parameter.copy_(kept)
            if (
                names[parameter].endswith(("segments.weight", "norm.weight", "norm.bias"))
                or ".bias_" in names[parameter]
            ):
                continue  # rows that are not read, norms that `layers` omits
            assert all(same[:depth]), names[parameter]
            if depth < len(same):
                assert not same[depth], names[parameter]


def test_a_head_stands_above_all_layers() -> None:
    spec = Classification(kind="classification", labels=("a", "b"), pool="attention", layers="mix")
    model = Classifier(build(tiny.spec(), tiny.VOCAB), spec, tiny.spec())
    found = {
        name: depth
        for (name, _), depth in zip(model.named_parameters(), model.parameter_depths().values(), strict=True)
    }
    assert {depth for name, depth in found.items() if not name.startswith("body.")} == {3}
    assert {depth for name, depth in found.items() if name.startswith("body.")} == {0, 1, 2}
    averaging = Averaging(kind="averaging", d_model=4, n_layers=2)
    plain = Classification(kind="classification", labels=("a", "b"))
    dan = Classifier(build(averaging, tiny.VOCAB), plain, averaging)
    assert sorted(set(dan.parameter_depths().values())) == [0, 1, 2, 3]
