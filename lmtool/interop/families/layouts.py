"""How tensors of published models become parameters of lmtool's models, and back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Factors = tuple[Tensor, Tensor]
"""A matrix (out, in) as a product of two: (out, rank) and (rank, in)."""


@dataclass(frozen=True)
class ParameterLayout:
    """How one parameter of lmtool is made of published tensors.

    join: makes the parameter of the published tensors. Raises ValueError for shapes that do not fit, as far as the
        layout depends on them.
    split: the inverse of `join`, bit for bit.
    split_factors: the same for a parameter in two factors; None where `split` splits the first factor alone.
    """

    join: Callable[[Sequence[Tensor]], Tensor]
    split: Callable[[Tensor], list[Tensor]]
    split_factors: Callable[[Tensor, Tensor], list[Factors]] | None = None

    def split_into_published_factors(self, up: Tensor, down: Tensor) -> list[Factors]:
        """Splits the matrix `up @ down`. Returns the two factors of each published matrix, as a map (out, in)."""
        if self.split_factors is not None:
            return self.split_factors(up, down)
        return [(part, down) for part in self.split(up)]


def _make_one_to_one_layout(
    from_published: Callable[[Tensor], Tensor], to_published: Callable[[Tensor], Tensor]
) -> ParameterLayout:
    """Makes a layout of one published tensor, which is another view or another scale of the parameter."""

    def join(published: Sequence[Tensor]) -> Tensor:
        (tensor,) = published
        return from_published(tensor)

    return ParameterLayout(join, lambda parameter: [to_published(parameter)])


def _transpose(matrix: Tensor) -> Tensor:
    if matrix.ndim != 2:
        raise ValueError(f"{matrix.ndim} dimensions instead of 2")
    return matrix.T


def _first_if_second_is_zero(published: Sequence[Tensor]) -> Tensor:
    """Returns the first of two published tensors. Raises ValueError when the second is not all zeros."""
    table, zeros = published
    if zeros.any():
        raise ValueError("a row that is not all zeros")
    return table


SAME = _make_one_to_one_layout(lambda tensor: tensor, lambda tensor: tensor)
TRANSPOSED = ParameterLayout(
    _make_one_to_one_layout(_transpose, _transpose).join, lambda matrix: [matrix.T], lambda up, down: [(up, down)]
)
"""A published matrix is (in, out) (GPT-2's Conv1D); parameters are (out, in)."""
AS_ROW = _make_one_to_one_layout(lambda matrix: matrix.squeeze(0), lambda vector: vector[None])
"""A published vector is a matrix of one row (the output bias of BART and Marian)."""
DUPLICATED = ParameterLayout(lambda published: published[0], lambda parameter: [parameter, parameter])
"""A file has the tensor twice, and the model reads the first one (the output biases of BERT, untied)."""
WITH_ZERO_ROW = ParameterLayout(_first_if_second_is_zero, lambda table: [table, table.new_zeros(1, *table.shape[1:])])
"""A table of one row of zeros follows the tensor (segments, of a recipe without any)."""


def make_rescaled_layout(export_scale: float, export_shift: float = 0.0) -> ParameterLayout:
    """Makes a layout where the published tensor is the parameter times `export_scale`, plus `export_shift`.

    `join` and `split` are inverse up to rounding.
    """
    return _make_one_to_one_layout(
        lambda tensor: (tensor - export_shift) / export_scale, lambda parameter: parameter * export_scale + export_shift
    )


def make_concatenated_layout(
    published_widths: Sequence[int], layouts: Sequence[ParameterLayout] = ()
) -> ParameterLayout:
    """Makes a layout that concatenates published tensors of these widths in the first dimension of the parameter.

    layouts: that of each published tensor; by default all are unchanged.
    """
    layouts = layouts or (SAME,) * len(published_widths)

    def join(published: Sequence[Tensor]) -> Tensor:
        found = [width for tensor in published for width in tensor.shape[:1]]
        if found != list(published_widths):
            raise ValueError(f"widths {found} instead of {list(published_widths)}")
        return torch.cat([layout.join([tensor]) for layout, tensor in zip(layouts, published, strict=True)])

    def split(parameter: Tensor) -> list[Tensor]:
        parts = zip(layouts, torch.split(parameter, list(published_widths)), strict=True)
        return [tensor for layout, part in parts for tensor in layout.split(part)]

    return ParameterLayout(join, split)


def _make_axis_swap_layout(
    axis_sizes: Sequence[int], first_axis: int, dim: int = 0, layout: ParameterLayout = SAME
) -> ParameterLayout:
    """Makes a layout that splits a dimension of the published tensor into three axes and swaps two neighbours.

    axis_sizes: of the three axes, -1 for one that follows from the others. first_axis: the first of the two that are
    swapped. layout: of the tensor apart from that.
    """
    swapped = list(axis_sizes)
    swapped[first_axis : first_axis + 2] = reversed(swapped[first_axis : first_axis + 2])

    def swap(tensor: Tensor, axis_sizes: Sequence[int]) -> Tensor:
        known = [size for size in axis_sizes if size > 0]
        if tensor.ndim <= dim or tensor.shape[dim] % math.prod(known):
            raise ValueError(f"shape {list(tensor.shape)} is not divisible by {' x '.join(map(str, known))}")
        return (
            torch.unflatten(tensor, dim, axis_sizes)
            .transpose(dim + first_axis, dim + first_axis + 1)
            .flatten(dim, dim + 2)
        )

    def split_factors(up: Tensor, down: Tensor) -> list[Factors]:
        return layout.split_into_published_factors(*((up, swap(down, swapped)) if dim else (swap(up, swapped), down)))

    return ParameterLayout(
        lambda published: swap(layout.join(published), axis_sizes),
        lambda parameter: layout.split(swap(parameter, swapped)),
        split_factors,
    )


def make_head_interleaved_qkv_layout(n_heads: int) -> ParameterLayout:
    """Makes the layout of GPT-NeoX and BLOOM: query, key and value of each head stand together.

    The parameter has all queries first.
    """
    return _make_axis_swap_layout((n_heads, 3, -1), 0)


def make_rotary_pairs_layout(n_heads: int) -> ParameterLayout:
    """Makes the layout of llama.cpp's Llama: components that rotate together are neighbours.

    In the parameter they are in the two halves of a head.
    """
    return _make_axis_swap_layout((n_heads, -1, 2), 1)


def make_even_entries_first_layout(dim: int, layout: ParameterLayout) -> ParameterLayout:
    """Makes `layout` with the even entries of a dimension of the parameter before the odd ones."""
    return _make_axis_swap_layout((1, 2, -1), 1, dim, layout)


@dataclass(frozen=True)
class ParameterMapping:
    """A parameter, the names of the published tensors that it is made of, and how."""

    name: str
    published_names: tuple[str, ...]
    layout: ParameterLayout = SAME
