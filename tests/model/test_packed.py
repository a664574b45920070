"""Packed matrices compute what the plain ones do, in the given precision."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.compute.kernels import products
from lmtool.compute.kernels.build import load_kernels
from lmtool.compute.kernels.matrices import quantize_int8
from lmtool.compute.kernels.products import MAX_QUANTIZED_INPUT, DequantizingProduct, _OneDnnInt8Product
from lmtool.model import LanguageModel
from lmtool.model.packed import PackedMatrix, pack_weights_
from tests.support import tiny
from tests.support.tiny import FAMILIES

CPU = torch.device("cpu")
AWAY: dict[Any, float] = {"float32": 1e-5, "bfloat16": 0.05, "float16": 0.01, "int8": 0.1, "int4": 0.1}
PRECISIONS = list(AWAY)


def model_of(family: str) -> LanguageModel:
    return tiny.model(dtype=torch.float32, **FAMILIES[family])


def packed(model: LanguageModel, precision: Any, device: torch.device = CPU) -> LanguageModel:
    other = copy.deepcopy(model)
    pack_weights_(other, precision, device)
    return other


def logits(model: LanguageModel) -> Tensor:
    with torch.inference_mode():
        found = model.logits(tiny.read(model, tiny.tokens(3, 11)))
    assert type(found) is Tensor
    return found


def away(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("family", ["gpt2", "modern", "2017", "bert", "gated heads", "lstm", "bahdanau"])
def test_logits_are_rounded_as_the_precision_says(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They stay close and float32, and differ, or else the models were not packed."""
    model = model_of(family)
    wanted, found = logits(model), [logits(packed(model, precision)) for precision in PRECISIONS]
    assert {each.dtype for each in found} == {torch.float32}
    errors = [away(each, wanted) for each in found]
    assert all(error < AWAY[precision] for error, precision in zip(errors, PRECISIONS, strict=True))
    exact, brain, half, whole, _ = errors
    assert exact < half / 10
    assert half < brain or family in ("lstm", "bahdanau")  # whose head alone is packed, in float16 in both
    assert whole > half
    monkeypatch.setattr(products, "has_fast_bfloat16", lambda device: False)
    emulated = logits(packed(model, "bfloat16"))
    assert emulated.dtype == torch.float32
    assert 1e-5 < away(emulated, wanted) < 0.05


def test_eight_bit_weights_are_each_channel_rounded_to_its_largest() -> None:
    """Against loops over numbers; inputs are whole multiples of a 127th, which 8 bits hold exactly."""
    torch.manual_seed(1)
    weight, bias = torch.randn(7, 32) * torch.logspace(-3, 2, 7)[:, None], torch.randn(7)
    weight[3] = 0
    x = torch.randint(-127, 128, (5, 32)) / 127
    x[:, 0] = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    steps = [max(map(abs, channel)) / 127 for channel in weight.tolist()]
    rounded = [
        [round(w / step) * step if step else 0.0 for w in channel]
        for channel, step in zip(weight.tolist(), steps, strict=True)
    ]
    expected = x @ torch.tensor(rounded).T + bias
    for product in (_OneDnnInt8Product(weight), DequantizingProduct(weight, "int8")):
        if isinstance(product, _OneDnnInt8Product) and MAX_QUANTIZED_INPUT < 127:
            continue
        torch.testing.assert_close(product(x, bias), expected, rtol=1e-4, atol=1e-4)


def test_in_int8_neighbours_change_nothing_and_zeros_divide_nothing() -> None:
    """Each row of inputs has its own scale, and sums of whole numbers are exact."""
    model = packed(model_of("gpt2"), "int8")
    matrix = next(p for p in model.parameters() if isinstance(p, PackedMatrix))
    x = torch.randn(9, matrix.shape[1]) * torch.logspace(-2, 2, 9)[:, None]
    x[4] = 0
    together = F.linear(x, matrix)
    for row, found in zip(x, together, strict=True):
        assert torch.equal(F.linear(row[None], matrix)[0], found)
    assert not together[4].any()


def test_a_tied_embedding_still_gives_its_vectors_and_other_matrices_are_kept_once() -> None:
    """The placeholder of a packed weight holds one number."""
    model, tokens_BT = model_of("gpt2"), tiny.tokens(1, 9)
    for precision in PRECISIONS:
        other = packed(model, precision)
        assert isinstance(other.token_vectors(), PackedMatrix)
        assert torch.equal(F.embedding(tokens_BT, other.token_vectors()), model.token_vectors()[tokens_BT])
        sizes = [p.untyped_storage().nbytes() for p in other.parameters() if isinstance(p, PackedMatrix)]
        assert sorted(sizes)[:-1] == [4] * (4 * 2)


@pytest.mark.skipif(load_kernels() is None, reason="no C compiler")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_tied_head_of_eight_bits_is_the_embedding_too(precision: str) -> None:
    model = tiny.model(dtype=torch.float32, **FAMILIES["gpt2"], d_model=64)
    other, tokens_BT = packed(model, precision), tiny.tokens(2, 9)
    matrix = other.token_vectors()
    assert matrix.untyped_storage().nbytes() == 4
    rounded = torch.mul(*quantize_int8(model.token_vectors().detach()))
    assert torch.equal(F.embedding(tokens_BT, matrix), rounded[tokens_BT])
    assert 0 < away(logits(other), logits(model)) < AWAY[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_any_number_of_rows(precision: str) -> None:
    model = packed(model_of("gpt2"), precision)
    tokens_BT = tiny.tokens(40, 20)
    with torch.inference_mode():
        together = model(Batch(tokens_BT)).hidden_BTD
        alone = model(Batch(tokens_BT[7:8, :3])).hidden_BTD
    torch.testing.assert_close(together[7:8, :3], alone, rtol=1e-2, atol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", PRECISIONS)
def test_packed_on_cuda(precision: Any) -> None:
    model = model_of("gpt2")
    wanted = logits(model)
    other = packed(model.cuda(), precision, torch.device("cuda"))
    with torch.inference_mode():
        found = other.logits(other(Batch(tiny.tokens(3, 11).cuda())).hidden_BTD)
    assert found.dtype == torch.float32
    assert away(found.cpu(), wanted) < max(1e-3, AWAY[precision])
