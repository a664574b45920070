"""The model of the default recipe is one graph for torch.compile, with the operators of the kernels in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from lmtool.batch import Batch
from lmtool.compute.kernels import ops
from lmtool.model import LanguageModel, build
from lmtool.recipe.load import load

pytestmark = pytest.mark.skipif(not ops.has_kernels(), reason="needs a C compiler")


@pytest.fixture
def model() -> LanguageModel:
    """Of two layers, with dropout."""
    torch.manual_seed(0)
    return build(load("default", ["model.n_layers=2", "model.context=32", "model.dropout=0.1"]).recipe.model, 300)


def results(model: LanguageModel, call: Callable[[Batch], Any]) -> list[torch.Tensor]:
    """Hidden states and gradients of all parameters."""
    torch.manual_seed(1)
    hidden_BTD = call(Batch(torch.arange(64).view(2, 32))).hidden_BTD
    used = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return [hidden_BTD.detach(), *torch.autograd.grad(hidden_BTD.square().mean(), used, materialize_grads=True)]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_the_default_model_is_one_graph(model: LanguageModel, backend: str) -> None:
    """A break would raise with `fullgraph`. Dropout draws the same numbers as without a compiler."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend(backend)
    found = results(model, torch.compile(model, fullgraph=True, backend=counter))
    torch.testing.assert_close(found, results(model, model), rtol=1e-4, atol=1e-6)
    (graph,) = counter.graphs
    called = [node.target for node in graph.graph.nodes if str(node.target).startswith("lmtool.")]
    # of each layer: two norms, one rotation of queries with keys, a gate and three dropouts
    names = {"rms_norm": 2 * 2 + 1, "rotary": 2, "swiglu": 2, "dropout": 2 * 3 + 1}
    assert {name: called.count(getattr(torch.ops.lmtool, name).default) for name in names} == names
    torch.compiler.reset()


def test_one_graph_has_texts_of_any_length() -> None:
    """No operator turns a symbolic size into a number."""

    def use_all(x_TD: torch.Tensor) -> torch.Tensor:
        heads_1NTH = ops.rms_norm(x_TD, torch.ones(8), 1e-5).view(-1, 2, 4).transpose(0, 1)[None]
        angles_11TA = x_TD.detach()[None, None, :, :2]
        turned_1NTH = ops.rotary(heads_1NTH, angles_11TA.cos(), angles_11TA.sin())
        targets_T, weights_T = torch.zeros(len(x_TD), dtype=torch.int64), torch.ones(len(x_TD))
        loss = ops.cross_entropy(ops.dropout(x_TD, 0.5), targets_T, weights_T, 1.0, 0.0)
        return loss + turned_1NTH.square().sum() + ops.swiglu(x_TD).sum()

    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(use_all, dynamic=True, fullgraph=True, backend=counter)
    for n in (5, 9, 30):
        x_TD = torch.randn(n, 8, requires_grad=True)
        found = []
        for function in (compiled, use_all):
            torch.manual_seed(n)
            found.append(torch.autograd.grad(function(x_TD), x_TD)[0])
        torch.testing.assert_close(*found)
    assert counter.frame_count == 1
    torch.compiler.reset()
