"""Layouts refuse other shapes; that they are inverse is tested with the families that have them."""

import pytest
import torch
from torch import Tensor

from lmtool.interop.families.layouts import (
    TRANSPOSED,
    WITH_ZERO_ROW,
    ParameterLayout,
    make_concatenated_layout,
    make_head_interleaved_qkv_layout,
    make_rescaled_layout,
)


@pytest.mark.parametrize(
    ("layout", "theirs"),
    [
        (make_concatenated_layout((2, 3)), [torch.zeros(2), torch.zeros(2)]),
        (make_concatenated_layout((2, 3)), [torch.zeros(2), torch.tensor(1.0)]),
        (TRANSPOSED, [torch.zeros(2)]),
        (TRANSPOSED, [torch.zeros(2, 2, 2)]),
        (make_head_interleaved_qkv_layout(4), [torch.zeros(8)]),
        (make_head_interleaved_qkv_layout(4), [torch.tensor(1.0)]),
    ],
)
def test_tensors_of_wrong_shapes_are_refused(layout: ParameterLayout, theirs: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=r"instead of|not divisible"):
        layout.join(theirs)


def test_what_is_published_is_the_parameter_times_the_scale_plus_the_shift() -> None:
    layout = make_rescaled_layout(2.0, 1.0)
    assert layout.split(torch.tensor([3.0, 0.0]))[0].tolist() == [7.0, 1.0]
    assert layout.join([torch.tensor([7.0, 1.0])]).tolist() == [3.0, 0.0]


def test_a_segment_that_is_not_zero() -> None:
    one = torch.ones(3, 2)
    assert torch.equal(WITH_ZERO_ROW.join(WITH_ZERO_ROW.split(one)), one)
    with pytest.raises(ValueError, match="not all zeros"):
        WITH_ZERO_ROW.join([one, one[:1]])
