"""How tensors of published models become those of ours, and back."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


class Layout(ABC):
    """How one tensor of ours is made of theirs. `join` and `split` are inverse, bit for bit.

    `join` raises ValueError when theirs have other shapes than the layout says; it does not know all of them.
    """

    @abstractmethod
    def join(self, theirs: Sequence[Tensor]) -> Tensor: ...

    @abstractmethod
    def split(self, ours: Tensor) -> list[Tensor]: ...

    def split_product(self, up: Tensor, down: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The same for a matrix `up @ down`: the two factors of each of theirs, as a map from (in) to (out)."""
        return [(part, down) for part in self.split(up)]


@dataclass(frozen=True)
class Mapped(Layout):
    """Theirs is another view, or another scale, of one tensor of ours. turns: a matrix is (in, out) there."""

    to_ours: Callable[[Tensor], Tensor]
    to_theirs: Callable[[Tensor], Tensor]
    turns: bool = False

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        (one,) = theirs
        return self.to_ours(one)

    def split(self, ours: Tensor) -> list[Tensor]:
        return [self.to_theirs(ours)]

    def split_product(self, up: Tensor, down: Tensor) -> list[tuple[Tensor, Tensor]]:
        return [(up, down)] if self.turns else super().split_product(up, down)


def _turned(one: Tensor) -> Tensor:
    if one.ndim != 2:
        raise ValueError(f"{one.ndim} dimensions instead of 2")
    return one.T


SAME = Mapped(lambda one: one, lambda one: one)
TRANSPOSED = Mapped(_turned, _turned, turns=True)
"""A matrix as (in, out) (GPT-2's Conv1D); ours are (out, in)."""
AS_ROW = Mapped(lambda one: one.squeeze(0), lambda one: one[None])
"""A vector as a matrix of one row (the output bias of BART and Marian)."""


def rescaled(scale: float, shift: float = 0.0) -> Layout:
    """Theirs is ours times `scale`, plus `shift`; `join` and `split` are inverse up to rounding."""
    return Mapped(lambda one: (one - shift) / scale, lambda one: one * scale + shift)


@dataclass(frozen=True)
class Joined(Layout):
    """Theirs follow one another in the first dimension, with these widths, each of another layout if one is given."""

    widths: tuple[int, ...]
    parts: tuple[Layout, ...] = ()

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        widths = [width for one in theirs for width in one.shape[:1]]
        if widths != list(self.widths):
            raise ValueError(f"widths {widths} instead of {list(self.widths)}")
        parts = self.parts or (SAME,) * len(widths)
        return torch.cat([part.join([one]) for part, one in zip(parts, theirs, strict=True)])

    def split(self, ours: Tensor) -> list[Tensor]:
        parts = self.parts or (SAME,) * len(self.widths)
        pieces = torch.split(ours, list(self.widths))
        return [one for part, piece in zip(parts, pieces, strict=True) for one in part.split(piece)]


class Copied(Layout):
    """Theirs has the tensor twice, and reads the first one (the output biases of BERT, untied)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one, _ = theirs
        return one

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours, ours]


class ZeroRow(Layout):
    """Theirs has a table of one row of zeros after the tensor (segments, of a recipe without any)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one, zeros = theirs
        if zeros.any():
            raise ValueError("a row that is not all zeros")
        return one

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours, ours.new_zeros(1, *ours.shape[1:])]


@dataclass(frozen=True)
class Swapped(Layout):
    """Two neighbouring axes of a dimension stand the other way round in theirs; otherwise as in `layout`.

    sizes: of the axes that the dimension of theirs has, -1 for the one that follows. axis: the first of the two.
    """

    sizes: tuple[int, int, int]
    axis: int
    dim: int = 0
    layout: Layout = SAME

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return self._swapped(self.layout.join(theirs), self.sizes, self.dim)

    def split(self, ours: Tensor) -> list[Tensor]:
        return self.layout.split(self._back(ours, self.dim))

    def split_product(self, up: Tensor, down: Tensor) -> list[tuple[Tensor, Tensor]]:
        if self.dim == 0:
            return self.layout.split_product(self._back(up, 0), down)
        return self.layout.split_product(up, self._back(down, 1))

    def _back(self, ours: Tensor, dim: int) -> Tensor:
        sizes = list(self.sizes)
        sizes[self.axis : self.axis + 2] = reversed(sizes[self.axis : self.axis + 2])
        return self._swapped(ours, sizes, dim)

    def _swapped(self, one: Tensor, sizes: Sequence[int], dim: int) -> Tensor:
        known = [size for size in sizes if size > 0]
        if one.ndim <= dim or one.shape[dim] % math.prod(known):
            raise ValueError(f"shape {list(one.shape)} is not divisible by {' x '.join(map(str, known))}")
        axis = dim + self.axis
        return torch.unflatten(one, dim, sizes).transpose(axis, axis + 1).flatten(dim, dim + 2)


def by_head(n_heads: int) -> Layout:
    """Query, key and value interleaved by head (GPT-NeoX, BLOOM); ours has all queries first."""
    return Swapped((n_heads, 3, -1), 0)


def in_pairs(n_heads: int) -> Layout:
    """Rotated components of a head are neighbours (llama.cpp's Llama); ours are the halves of a head."""
    return Swapped((n_heads, -1, 2), 1)


def in_halves(dim: int, layout: Layout) -> Layout:
    """The even entries of a dimension of ours come before the odd ones in theirs; otherwise as in `layout`."""
    return Swapped((1, 2, -1), 1, dim, layout)


@dataclass(frozen=True)
class Weight:
    """A tensor of ours, the names of theirs that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = SAME
