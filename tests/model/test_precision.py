"""Lower precision and other devices come close to float32 on the CPU."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lmtool.model import LanguageModel, build
from lmtool.model.layers.stack import Sublayer
from tests.support import tiny
from tests.support.tiny import CACHED, TRANSFORMERS, VOCAB

places = pytest.mark.parametrize(
    ("device", "dtype"),
    [
        pytest.param(device, dtype, marks=[pytest.mark.gpu] if device == "cuda" else [])
        for device in ("cpu", "cuda")
        for dtype in (torch.bfloat16, torch.float16)
    ],
)
FAMILIES = tiny.of_each_kind(TRANSFORMERS)
CACHING = [name for name in FAMILIES if name in CACHED]
PACKED = [name for name in FAMILIES if TRANSFORMERS[name].get("shape") not in ("encoder-decoder", "prefix")]
"""Families whose rows may hold several documents."""
TOKENS = tiny.tokens(4, 19)


def initial(family: str) -> Any:
    """A model with its initial weights, and so initial logits."""
    torch.manual_seed(0)
    return build(tiny.spec(init={"std": 0.2}, **TRANSFORMERS[family]), VOCAB)


def close(one: Tensor, two: Tensor, share: float) -> bool:
    """Within a fraction of the norm of `two`."""
    return float((one.detach().cpu().float() - two.detach()).norm()) <= share * float(two.detach().norm())


def assert_same_gradients(plain: nn.Module, other: nn.Module, share: float) -> None:
    for (name, wanted), parameter in zip(plain.named_parameters(), other.parameters(), strict=True):
        if wanted.grad is not None:  # as the next-sentence head
            assert parameter.grad is not None
            assert close(parameter.grad, wanted.grad, share), name


@places
@pytest.mark.parametrize("family", FAMILIES)
def test_autocast_is_close_to_float32_and_leaves_the_stream_in_it(device: str, dtype: torch.dtype, family: str) -> None:
    """In float16 with several documents in a row: kernels differ by type, and masks do not."""
    plain = initial(family)
    other = copy.deepcopy(plain).to(device)
    isolated = dtype == torch.float16 and family in PACKED
    documents: Any = {"documents_BT": torch.arange(19).expand(4, 19) // 7} if isolated else {}
    logits = plain.logits(tiny.read(plain, TOKENS, **documents))
    logits.log_softmax(-1)[..., 3].sum().backward()
    stream: set[torch.dtype] = set()
    for sublayer in (module for module in other.modules() if isinstance(module, Sublayer)):
        sublayer.register_forward_hook(lambda module, given, given_back: stream.add(given_back[0].dtype))
    with torch.autocast(device, dtype=dtype):
        hidden = tiny.read(other, TOKENS, **documents)
        low = other.logits(hidden)
    assert {hidden.dtype, *stream} == {torch.float32}
    low.float().log_softmax(-1)[..., 3].sum().backward()
    assert low.dtype == dtype
    assert close(low, logits, 0.03)
    assert {parameter.dtype for parameter in other.parameters()} == {torch.float32}
    assert_same_gradients(plain, other, 0.1)


@places
@pytest.mark.parametrize("family", CACHING)
@torch.no_grad()
def test_cached_decoding_in_low_precision(device: str, dtype: torch.dtype, family: str) -> None:
    """By autocast to float16, and with all weights in bfloat16."""
    plain = initial(family)
    wanted = tiny.read(plain, TOKENS)
    other = copy.deepcopy(plain).to(device)
    autocast = dtype == torch.float16
    other = other if autocast else other.to(dtype)
    with torch.autocast(device, dtype=dtype, enabled=autocast):
        hidden = in_steps(other)
    assert close(hidden, wanted, 0.05)


def in_steps(model: LanguageModel) -> Tensor:
    state = tiny.start(model, 4)
    hidden = []
    for chunk in torch.split(TOKENS.to(tiny.device_of(model)), [7, 1, 1, 10], 1):
        read, state = model.forward_incremental(chunk, state)
        hidden.append(read)
    return torch.cat(hidden, 1)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "rows"),
    [*((name, rows) for name in FAMILIES for rows in ("alone", "padded")), *((name, "packed") for name in PACKED)],
)
def test_cuda_equals_the_cpu(family: str, rows: str) -> None:
    """SDPA's kernels on a GPU, in float32, against plain products on the CPU, with every kind of mask."""
    torch.set_float32_matmul_precision("highest")
    plain = initial(family)
    other = copy.deepcopy(plain).cuda()
    more: dict[str, Any] = {
        "alone": {},
        "packed": {"documents_BT": torch.arange(19).expand(4, 19) // 7},
        "padded": {"keep_BT": torch.arange(19) < torch.tensor([19, 3, 11, 18])[:, None]},
    }
    keep_BT = more[rows].get("keep_BT", torch.ones(4, 19, dtype=torch.bool))
    logits = plain.logits(tiny.read(plain, TOKENS, **more[rows]))[keep_BT]
    logits.log_softmax(-1)[..., 3].sum().backward()
    there = other.logits(tiny.read(other, TOKENS, **more[rows]))[keep_BT.cuda()]
    there.log_softmax(-1)[..., 3].sum().backward()
    torch.testing.assert_close(there.detach().cpu(), logits.detach(), rtol=1e-4, atol=1e-4)
    assert_same_gradients(plain, other, 1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("family", CACHING)
def test_cached_decoding_on_cuda(family: str) -> None:
    torch.set_float32_matmul_precision("highest")
    model = initial(family).cuda()
    torch.testing.assert_close(in_steps(model), tiny.read(model, TOKENS), rtol=1e-4, atol=1e-4)
