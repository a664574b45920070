"""Layouts are inverse, bit for bit, and refuse other shapes."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lmtool.interop.families.layouts import (
    AS_ROW,
    SAME,
    TRANSPOSED,
    WITH_ZERO_ROW,
    ParameterLayout,
    make_concatenated_layout,
    make_even_entries_first_layout,
    make_head_interleaved_qkv_layout,
    make_rescaled_layout,
    make_rotary_pairs_layout,
)


@st.composite
def layouts(draw: st.DrawFn) -> tuple[ParameterLayout, list[Tensor]]:
    """A layout, and tensors of theirs that fit it."""
    rest = draw(st.lists(st.integers(1, 3), max_size=2))
    n = draw(st.integers(1, 4))
    match draw(st.sampled_from(["same", "rescaled", "joined", "transposed", "by head", "pairs", "halves", "row"])):
        case "rescaled":
            tensor = torch.randint(-9, 10, (n, *rest)).double()
            return make_rescaled_layout(draw(st.sampled_from([0.5, 1.0, -4.0])), draw(st.integers(-3, 3))), [tensor]
        case "joined":
            widths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
            return make_concatenated_layout(widths), [torch.randn(width, *rest) for width in widths]
        case "transposed":
            return TRANSPOSED, [torch.randn(n, draw(st.integers(1, 4)))]
        case "by head":
            return make_head_interleaved_qkv_layout(n), [torch.randn(3 * n * draw(st.integers(1, 3)), *rest)]
        case "pairs":
            return make_rotary_pairs_layout(n), [torch.randn(2 * n * draw(st.integers(1, 3)), *rest)]
        case "halves":
            dim = draw(st.integers(0, len(rest)))
            sizes = [n, *rest]
            sizes[dim] *= 2
            return make_even_entries_first_layout(dim, SAME), [torch.randn(*sizes)]
        case "row":
            return AS_ROW, [torch.randn(1, n)]
    return SAME, [torch.randn(n, *rest)]


@given(layouts())
def test_layouts_are_inverse(case: tuple[ParameterLayout, list[Tensor]]) -> None:
    layout, theirs = case
    joined = layout.join(theirs)
    back = layout.split(joined)
    assert len(back) == len(theirs)
    assert all(torch.equal(one, other) for one, other in zip(back, theirs, strict=True))
    assert sum(one.numel() for one in theirs) == joined.numel()
    assert torch.equal(layout.join(back), joined)


def test_by_head_takes_all_queries_first() -> None:
    # heads of width 2: q0 q0 k0 k0 v0 v0 q1 q1 k1 k1 v1 v1
    theirs = torch.tensor([0, 1, 10, 11, 20, 21, 2, 3, 12, 13, 22, 23])
    assert make_head_interleaved_qkv_layout(2).join([theirs]).tolist() == [0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23]


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
def test_wrong_shapes(layout: ParameterLayout, theirs: list[Tensor]) -> None:
    with pytest.raises(ValueError, match=r"instead of|not divisible"):
        layout.join(theirs)


def test_what_is_published_is_the_parameter_times_the_scale_plus_the_shift() -> None:
    layout = make_rescaled_layout(2.0, 1.0)
    assert layout.split(torch.tensor([3.0, 0.0]))[0].tolist() == [7.0, 1.0]
    assert layout.join([torch.tensor([7.0, 1.0])]).tolist() == [3.0, 0.0]


def test_pairs_are_neighbours_in_theirs() -> None:
    # a head of width 4: its halves are 0 1 and 2 3
    assert make_rotary_pairs_layout(1).split(torch.tensor([0, 1, 2, 3]))[0].tolist() == [0, 2, 1, 3]


def test_a_segment_that_is_not_zero() -> None:
    one = torch.ones(3, 2)
    with pytest.raises(ValueError, match="not all zeros"):
        WITH_ZERO_ROW.join([one, one[:1]])
