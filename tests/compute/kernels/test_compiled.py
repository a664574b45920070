"""The model of the default recipe is one graph for torch.compile, with the operators of the kernels in it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

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
    graphs: list[torch.fx.GraphModule] = []

    def compile_(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    found = results(model, torch.compile(model, fullgraph=True, backend=compile_))
    torch.testing.assert_close(found, results(model, model), rtol=1e-4, atol=1e-6)
    (graph,) = graphs
    called = [node.target for node in graph.graph.nodes if str(node.target).startswith("lmtool.")]
    # of each layer: two norms, one rotation of queries with keys, a gate and three dropouts
    names = {"rms_norm": 2 * 2 + 1, "rotary": 2, "swiglu": 2, "dropout": 2 * 3 + 1}
    assert {name: called.count(getattr(torch.ops.lmtool, name).default) for name in names} == names
    torch.compiler.reset()
