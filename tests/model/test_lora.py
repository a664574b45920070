"""Low-rank adapters against the plain formula; merging and saving."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model.heads import Classifier
from lmtool.model.layers.attention import JoinedLinear, find_linears
from lmtool.model.lora import (
    LoraLinear,
    adapter_or_full_state_dict,
    adapter_parameter_names,
    add_adapters_and_freeze_,
    merge_adapters_,
)
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.training import Lora
from tests.reference import lora as reference
from tests.support import tiny

ALL: Any = ("query", "key", "value", "output", "feed-forward")


def drawn(model: torch.nn.Module, seed: int = 3) -> None:
    """Adapters as after training: without zeros."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name in set(adapter_parameter_names(model)):
            parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)


def batch_of(name: str) -> Batch:
    shape = tiny.TRANSFORMERS[name].get("shape")
    source = tiny.tokens(2, 5, seed=1) if shape == "encoder-decoder" else None
    prefix = torch.tensor([2, 3]) if shape == "prefix" else None
    return Batch(tiny.tokens(2, 7), source_BS=source, prefix_B=prefix)


@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("name", ["modern", "2017"])
def test_quantized_weights_below_adapters(name: str, quantize: Any) -> None:
    """Outputs, gradients of adapters, and what is saved are those of the same weights, rounded, in full."""
    wide = {**tiny.TRANSFORMERS[name], "d_model": 32, "d_ff": 64}
    found, wanted = (tiny.model(dtype=torch.float32, **wide) for _ in range(2))
    for model, trains in ((found, True), (wanted, False)):
        add_adapters_and_freeze_(model, Lora(targets=ALL, quantize=quantize), store_quantized=trains)
        drawn(model)
        torch.autograd.backward(model.float().logits(model(batch_of(name)).hidden_BTD).square().mean())
    rounded = {key for key, value in found.state_dict().items() if not value.isfinite().all()}
    assert len(rounded) == len(find_linears(found))
    gradients = dict(wanted.named_parameters())
    for key in adapter_parameter_names(found):
        torch.testing.assert_close(found.get_parameter(key).grad, gradients[key].grad, rtol=1e-4, atol=1e-6)
    for model in (found, wanted):
        assert adapter_or_full_state_dict(model).keys() == set(adapter_parameter_names(model))
        merge_adapters_(model)
    torch.testing.assert_close(found.state_dict(), wanted.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("adapted", [(True, False, True), (True, True, True), (False, True, False)])
def test_a_joined_map_equals_the_plain_formula(adapted: tuple[bool, ...]) -> None:
    torch.manual_seed(0)
    widths, spec = (4, 2, 3), Lora(rank=2, alpha=5.0)
    linear = JoinedLinear(6, widths, bias=True).double()
    layer = LoraLinear(linear, adapted, spec).double()
    layer.up_OR.data.normal_()
    x = torch.randn(6, dtype=torch.float64)
    lows = iter(layer.down_RI.detach().numpy().reshape(-1, 2, 6))
    n = np.cumsum([0, *(width for width, has in zip(widths, adapted, strict=True) if has)])
    ups = iter([layer.up_OR.detach().numpy()[a:b] for a, b in pairwise(n)])
    nothing = np.zeros((0, 6))
    wanted = reference.joined(
        linear.weight.detach().numpy(),
        linear.bias.detach().numpy(),
        widths,
        [next(lows) if has else nothing for has in adapted],
        [next(ups) if has else nothing for has in adapted],
        5.0,
        x.numpy(),
    )
    np.testing.assert_allclose(layer(x).detach().numpy(), wanted, rtol=1e-12)
    merged = layer.merged_weight() @ x + linear.bias
    np.testing.assert_allclose(merged.detach().numpy(), wanted, rtol=1e-12)


def test_adapters_are_drawn_so_that_what_they_read_keeps_its_size() -> None:
    layer = LoraLinear(torch.nn.Linear(400, 3), (True,), Lora(rank=50))
    assert float(layer.down_RI.detach().std()) == pytest.approx(400**-0.5, rel=0.02)


@pytest.mark.parametrize("name", tiny.of_each_kind(tiny.TRANSFORMERS))
def test_a_model_begins_as_the_one_that_it_is_made_of_and_merges_into_one_like_it(name: str) -> None:
    plain, adapted = (tiny.model(**tiny.TRANSFORMERS[name]) for _ in range(2))
    batch = batch_of(name)
    with torch.no_grad():
        before = plain.logits(plain(batch).hidden_BTD)
        add_adapters_and_freeze_(adapted, Lora(rank=2, targets=ALL))
        torch.testing.assert_close(adapted.logits(adapted(batch).hidden_BTD), before, rtol=0, atol=0)
        drawn(adapted)
        after = adapted.logits(adapted(batch).hidden_BTD)
        assert not torch.allclose(after, before)
        merge_adapters_(adapted)
        torch.testing.assert_close(adapted.logits(adapted(batch).hidden_BTD), after, rtol=1e-8, atol=1e-9)
    assert list(adapter_parameter_names(adapted)) == []
    assert {n: p.shape for n, p in adapted.named_parameters()} == {n: p.shape for n, p in plain.named_parameters()}


@pytest.mark.parametrize("targets", [("query",), ("key", "value"), ("output",), ("feed-forward",)])
def test_only_targets_have_adapters(targets: Any) -> None:
    """Told by the weights that merging changes."""
    plain, adapted = (tiny.model(**tiny.TRANSFORMERS["2017 pre-norm"]) for _ in range(2))
    add_adapters_and_freeze_(adapted, Lora(rank=2, targets=targets))
    drawn(adapted)
    merge_adapters_(adapted)
    changed = set()
    for (name, before), after in zip(plain.named_parameters(), adapted.parameters(), strict=True):
        last = name.split(".")[-2:]
        parts = {"qkv": ("query", "key", "value"), "q": ("query",), "kv": ("key", "value")}.get(last[0])
        network = name.split(".mixer.")[0] + ".mixer.up.weight" in plain.state_dict()
        parts = parts or (("feed-forward",) if network else ("output",))
        widths = {"qkv": [16, 8, 8], "kv": [8, 8]}.get(last[0], [len(before)])
        if torch.equal(before, after):
            continue
        assert last[1] == "weight"
        for part, old, new in zip(parts, torch.split(before, widths), torch.split(after, widths), strict=True):
            if not torch.equal(old, new):
                changed.add(part)
                assert torch.linalg.matrix_rank(new - old) == 2
    assert changed == set(targets)


def test_only_adapters_and_the_head_learn_and_only_they_are_kept() -> None:
    spec = Classification(kind="classification", labels=("a", "b"), pool="attention")
    model = Classifier(tiny.model(**tiny.BERT), spec, tiny.spec(**tiny.BERT))
    head = {name for name, _ in model.named_parameters() if not name.startswith("body.")}
    assert {"head.weight", "head.bias", "pool.key.weight"} <= head
    assert len(adapter_or_full_state_dict(model)) == len(model.state_dict())
    add_adapters_and_freeze_(model.body, Lora())
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert learning == head | set(adapter_parameter_names(model)) == set(adapter_or_full_state_dict(model))
    assert len(set(adapter_parameter_names(model))) == 2 * 2


def test_dropout_is_of_what_adapters_read() -> None:
    """With zero adapters dropout has no effect."""
    model, batch = tiny.model(), Batch(tiny.tokens(2, 5))
    add_adapters_and_freeze_(model, Lora(dropout=0.5))
    model.train()
    assert torch.equal(model(batch).hidden_BTD, model(batch).hidden_BTD)
    drawn(model)
    assert not torch.equal(model(batch).hidden_BTD, model(batch).hidden_BTD)
    model.eval()
    assert torch.equal(model(batch).hidden_BTD, model(batch).hidden_BTD)
