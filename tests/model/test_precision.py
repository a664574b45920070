"""Lower precision and other devices come close to float32 on the CPU."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model import DecodeState, LanguageModel, build
from tests.model import tiny
from tests.model.tiny import DECODERS, VOCAB

PLACES = [
    pytest.param("cpu", torch.bfloat16, id="cpu bfloat16"),
    pytest.param("cpu", torch.float16, id="cpu float16"),
    pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu, id="cuda bfloat16"),
    pytest.param("cuda", torch.float16, marks=pytest.mark.gpu, id="cuda float16"),
]


def initial(family: str) -> LanguageModel:
    """A model with its first weights, whose logits are of the size that training starts from."""
    torch.manual_seed(0)
    return build(tiny.spec(init={"std": 0.2}, **DECODERS[family]), VOCAB)


def batch_on(device: str, **more: Any) -> Batch:
    return Batch(tiny.tokens(4, 20), **more).to(torch.device(device))


def close(one: Tensor, two: Tensor, share: float) -> bool:
    """Within a share of the size of `two`."""
    return float((one.detach().cpu().float() - two.detach()).norm()) <= share * float(two.detach().norm())


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("isolated", [False, True])
def test_autocast_is_close_to_float32(device: str, dtype: torch.dtype, family: str, isolated: bool) -> None:
    plain = initial(family)
    other = copy.deepcopy(plain).to(device)
    documents = {"documents_BT": torch.arange(20).expand(4, 20) // 7} if isolated else {}
    logits = plain.logits(plain(batch_on("cpu", **documents)))
    logits.log_softmax(-1)[..., 3].sum().backward()
    with torch.autocast(device, dtype=dtype):
        low = other.logits(other(batch_on(device, **documents)))
    low.float().log_softmax(-1)[..., 3].sum().backward()
    assert low.dtype == dtype
    assert close(low, logits, 0.03)
    gradients = zip(plain.named_parameters(), other.parameters(), strict=True)
    for (name, wanted), parameter in gradients:
        assert parameter.dtype == torch.float32
        assert wanted.grad is not None
        assert parameter.grad is not None
        assert close(parameter.grad, wanted.grad, 0.1), name


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("family", DECODERS)
def test_the_stream_stays_float32_under_autocast(device: str, dtype: torch.dtype, family: str) -> None:
    model = initial(family).to(device)
    seen = []
    for sublayer in model.stack.sublayers:
        sublayer.register_forward_hook(lambda module, given, given_back: seen.append(given_back[0].dtype))
    with torch.autocast(device, dtype=dtype):
        hidden = model(batch_on(device))
    assert hidden.dtype == torch.float32
    assert seen == [torch.float32] * 4


@pytest.mark.parametrize(("device", "dtype"), PLACES)
@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_cached_decoding_in_low_precision(device: str, dtype: torch.dtype, family: str) -> None:
    plain = initial(family)
    wanted = plain(batch_on("cpu"))
    for autocast in (True, False):
        other = copy.deepcopy(plain).to(device)
        other = other if autocast else other.to(dtype)
        batch = batch_on(device)
        state = other.start(batch)
        hidden = []
        with torch.autocast(device, dtype=dtype, enabled=autocast):
            for chunk in torch.split(batch.tokens_BT, [7, 1, 1, 11], 1):
                read, state = other.advance(chunk, state)
                hidden.append(read)
        assert isinstance(state, DecodeState)
        assert close(torch.cat(hidden, 1), wanted, 0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("rows", ["alone", "packed", "padded"])
def test_cuda_equals_the_cpu(family: str, rows: str) -> None:
    """SDPA's kernels on a GPU, in float32, against plain products on the CPU, with every kind of mask."""
    torch.set_float32_matmul_precision("highest")
    plain = initial(family)
    other = copy.deepcopy(plain).cuda()
    more: dict[str, dict[str, Tensor]] = {
        "alone": {},
        "packed": {"documents_BT": torch.arange(20).expand(4, 20) // 7},
        "padded": {"keep_BT": torch.arange(20) < torch.tensor([20, 3, 11, 19])[:, None]},
    }
    keep_BT = more[rows].get("keep_BT", torch.ones(4, 20, dtype=torch.bool))
    logits = plain.logits(plain(batch_on("cpu", **more[rows])))[keep_BT]
    logits.log_softmax(-1)[..., 3].sum().backward()
    there = other.logits(other(batch_on("cuda", **more[rows])))[keep_BT.cuda()]
    there.log_softmax(-1)[..., 3].sum().backward()
    torch.testing.assert_close(there.detach().cpu(), logits.detach(), rtol=1e-4, atol=1e-4)
    for (name, wanted), parameter in zip(plain.named_parameters(), other.parameters(), strict=True):
        assert wanted.grad is not None
        assert parameter.grad is not None
        assert close(parameter.grad, wanted.grad, 1e-3), name
    batch = batch_on("cuda")
    state = other.start(batch)
    steps = []
    for chunk in torch.split(batch.tokens_BT, [7, 1, 1, 11], 1):
        hidden, state = other.advance(chunk, state)
        steps.append(hidden)
    torch.testing.assert_close(torch.cat(steps, 1), other(batch), rtol=1e-4, atol=1e-4)
