"""FlexAttention in compiled models equals the dense mask.

On a CPU torch refuses its backward pass, although the backend that compiles nothing computes it by the formula; so here
the refusal is taken away. On a GPU its own kernels are compiled.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch, Mask
from lmtool.compute.kernels import gpu
from lmtool.model import LanguageModel
from lmtool.model.layers.attention import AttentionOp
from lmtool.model.layers.positions import AlibiPositions, AttentionPositions, RelativePositions, RotaryPositions
from lmtool.model.layers.scores import AdditiveScore, BilinearScore, Score
from tests.support import tiny
from tests.support.attention import dense

B, N, T, H = 2, 4, 150, 8
"""More positions than one of its blocks of 128."""

pytestmark = pytest.mark.filterwarnings(
    # torch.compile imports parts of torch that torch itself has deprecated
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
)


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


KEEP = torch.arange(T).expand(B, T) >= torch.tensor([[0], [37]])
DOCUMENTS = (torch.rand(B, T, generator=torch.Generator().manual_seed(1)) < 0.03).cumsum(1)
PLACES = (KEEP.cumsum(1) - 1).clamp(min=0)
WINDOW = Mask(True, 20)
EVERYTHING = Mask(True, 20, 1, 1, torch.tensor([5, 60]), KEEP, DOCUMENTS, text_positions_PS=PLACES)


class Flexes:
    """A backend of torch.compile that compiles nothing, and notes what FlexAttention computes.

    masks: the block mask of each call, by its name in the graph.
    """

    def __init__(self) -> None:
        self.masks: list[str] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        calls = [node for node in graph.graph.nodes if str(node.target) == "flex_attention"]
        # up to the mask_mod, which is traced for each call
        self.masks += [str(node.args[4][:-1]) for node in calls]
        return graph.forward

    def of(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """As it is traced, in one piece."""
        return torch.compile(run, backend=self, fullgraph=True)


@pytest.fixture
def flexes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Flexes]:
    """On a CPU too, and however small a model is."""
    from torch.nn.attention import flex_attention

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(gpu, "FLEX_DEVICES", ("cpu",))
    monkeypatch.setattr(gpu, "FLEX_MIN_POSITIONS", 2)
    monkeypatch.setattr(gpu, "FLEX_MIN_HEAD_WIDTH", 1)
    torch._dynamo.reset()
    yield Flexes()
    torch._dynamo.reset()


def test_equals_the_dense_mask(flexes: Flexes) -> None:
    """Of a window, a global token, prefixes, padding, documents and ALiBi; scores with weights; and grouped heads."""
    rule, score = AlibiPositions(N).double(), BilinearScore(N, H).double()
    q, k, v = (
        drawn(B, n, T, width, seed=seed).requires_grad_() for n, width, seed in ((N, H, 1), (2, H, 2), (2, 4, 3))
    )

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return AttentionOp(EVERYTHING, T, PLACES, rule)(q, k, v, 0.0, score)

    found = flexes.of(run)(q, k, v)
    assert len(flexes.masks) == 1
    # `dense` divides scores by the root of the width
    wanted = dense(score.transform_queries(q) * H**0.5, k, v, EVERYTHING, rule, PLACES)
    found, wanted = (t.transpose(1, 2)[KEEP] for t in (found, wanted))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    gradients = (torch.autograd.grad(t.cos().sum(), (q, k, v)) for t in (found, wanted))
    for own, other in zip(*gradients, strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


def test_a_query_without_keys_stays_finite(flexes: Flexes) -> None:
    q = drawn(B, N, T, H, seed=1).requires_grad_()
    mask = Mask(True, 20, n_global=3, keep_BS=KEEP, text_positions_PS=PLACES)
    mixed = flexes.of(lambda q: AttentionOp(mask, T, torch.arange(T)[None])(q, q, q, 0.0))(q)
    (gradient,) = torch.autograd.grad(mixed.sum(), q)
    assert flexes.masks
    assert bool(mixed.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert not mixed[1, :, 0].any()


class _AnotherAlibi(AlibiPositions):
    """With a bias of its own, which FlexAttention would not add."""


OTHERS: dict[str, tuple[Mask, AttentionPositions, Score, float]] = {
    "the causal mask, which SDPA has": (Mask(True), RotaryPositions(100.0), Score(1.0), 0.0),
    "dilated windows": (Mask(True, 5, 2), AttentionPositions(), Score(1.0), 0.0),
    "relative positions": (WINDOW, RelativePositions(N, 8, 20, True).double(), Score(1.0), 0.0),
    "positions derived from others": (WINDOW, _AnotherAlibi(N).double(), Score(1.0), 0.0),
    "additive scores": (WINDOW, AttentionPositions(), AdditiveScore(N, H, H).double(), 0.0),
    "dropout": (WINDOW, AttentionPositions(), Score(1.0), 0.1),
}


@pytest.mark.parametrize("case", OTHERS)
def test_what_it_does_not_have_is_computed_as_before(
    flexes: Flexes, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    mask, rule, score, dropout = OTHERS[case]
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x = drawn(B, N, T, H, seed=1)
    assert not AttentionOp(mask, T, torch.arange(T)[None], position=rule)._prefers_flex_attention(x, x, dropout, score)
    assert AttentionOp(WINDOW, T, torch.arange(T)[None])._prefers_flex_attention(x, x, 0.0, Score(1.0))


@pytest.mark.parametrize("n_keys", [gpu.FLEX_MIN_POSITIONS - 1, gpu.FLEX_MIN_POSITIONS])
def test_only_long_rows_on_gpus(monkeypatch: pytest.MonkeyPatch, n_keys: int) -> None:
    """And only while a model is compiled."""

    def flexes(device: str, width: int) -> bool:
        monkeypatch.setattr(gpu, "FLEX_DEVICES", ("cpu",) if device in devices else ())
        x = torch.empty(1, 1, n_keys, width)
        return AttentionOp(WINDOW, n_keys, torch.zeros(1, n_keys))._prefers_flex_attention(x, x, 0.0, Score(1.0))

    devices, wide = gpu.FLEX_DEVICES, gpu.FLEX_MIN_HEAD_WIDTH
    assert not flexes("cuda", wide)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert flexes("cuda", wide) == (n_keys >= gpu.FLEX_MIN_POSITIONS)
    assert not flexes("cuda", wide - 1)
    assert not flexes("cpu", wide)


def rows_of(model: LanguageModel, rows: str, length: int) -> Batch:
    more: dict[str, Tensor] = {}
    if model.reads == "source":
        more["prefix_B"] = torch.tensor([0, 3, length // 2, length])
    if rows == "packed":
        more["documents_BT"] = torch.arange(length).expand(4, length) // (length // 3)
    if rows == "padded":
        more["keep_BT"] = torch.arange(length) < torch.tensor([length, 3, length // 2, length - 1])[:, None]
    return Batch(tiny.tokens(4, length), **more)


def outcome(model: LanguageModel, run: Callable[[Batch], Any], batch: Batch) -> list[Tensor]:
    """Hidden states of text, and all gradients."""
    model.zero_grad()
    hidden = run(batch).hidden_BTD
    hidden = hidden.flatten(0, 1) if batch.keep_BT is None else hidden[batch.keep_BT]
    torch.autograd.backward(hidden.float().sin().sum())
    return [hidden.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def test_layers_with_one_pattern_share_a_block_mask(flexes: Flexes) -> None:
    model = tiny.model(**tiny.TRANSFORMERS["full layers among windows"], n_layers=3)
    batch = rows_of(model, "packed", 19)
    found = outcome(model, flexes.of(model), batch)
    assert len(flexes.masks) == 3
    assert len(set(flexes.masks)) == 2
    for own, other in zip(found, outcome(model, model, batch), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-9, atol=1e-9)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("changes", "rows"),
    [
        ({"pattern": {"kind": "window", "size": 256}}, "alone"),
        ({"pattern": {"kind": "window", "size": 100, "global_tokens": 2}, "n_kv_heads": 2}, "padded"),
        ({"position": {"kind": "alibi"}}, "alone"),
        ({"position": {"kind": "alibi"}}, "padded"),
        ({"position": {"kind": "rotary"}, "qk_norm": "head"}, "packed"),
        ({"shape": "prefix", "head_width": 24}, "alone"),
        ({"shape": "encoder", "pattern": {"kind": "window", "size": 64, "full_layers": [0]}}, "packed"),
    ],
)
def test_compiled_on_a_gpu(changes: dict[str, Any], rows: str, precision: torch.dtype) -> None:
    """Its kernels, forward and backward, against those of SDPA."""
    torch.set_float32_matmul_precision("highest")
    length = gpu.FLEX_MIN_POSITIONS + 76
    model = tiny.model(dtype=torch.float32, d_model=64, n_heads=4, context=length, **{"head_width": 16} | changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    model, batch = model.cuda(), rows_of(model, rows, length).to(torch.device("cuda"))
    with torch.autocast("cuda", dtype=precision, enabled=precision != torch.float32):
        wanted = outcome(model, model, batch)
        found = outcome(model, torch.compile(model), batch)
    for own, other in zip(found, wanted, strict=True):
        away = float((own - other).norm() / other.norm().clamp(min=1e-6))
        assert away < (1e-4 if precision == torch.float32 else 0.05)
