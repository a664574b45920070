"""Update rules of weights, for groups of parameters with settings of their own.

Shapes: G matrices of one shape, R rows, C columns.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.nn import Parameter

from lmtool.compute.device import has_fast_bfloat16
from lmtool.compute.kernels.gpu import adam_counter_device, update_by_adam_
from lmtool.compute.shards import WholeMatrixExchange

ADAGRAD_EPS = 1e-10
"""Added to the root of a sum of squares, which is zero for a row that never had a gradient."""

Groups = list[dict[str, Any]]
Grads = tuple[Tensor, ...]
Blocks = dict[Parameter, list[int]]


class UpdateRule(ABC):
    """Groups of parameters with their settings, and the moments of each parameter by name, initially zero.

    Not a torch.optim.Optimizer: creating one imports a compiler, which takes longer than building most models.
    """

    def __init__(self, groups: Groups, **settings: Any) -> None:
        """groups: dictionaries with `params`, `lr`, and settings that differ from `settings`."""
        self.param_groups: Groups = [settings | group for group in groups]
        self.state: dict[Tensor, dict[str, Tensor]] = defaultdict(dict)

    @property
    @abstractmethod
    def moments(self) -> tuple[str, ...]:
        """Names of the moments of a parameter that has been updated."""

    @torch.no_grad()
    def step(self) -> None:
        """Updates the parameters that have gradients."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update_(group, parameters, tuple(p.grad for p in parameters))

    @abstractmethod
    def _update_(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        """Updates these parameters of a group in place."""

    def _get_or_create_moments(
        self, name: str, parameters: list[Tensor], make_zeros: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> list[Tensor]:
        """Returns a moment of each parameter. make_zeros: makes it before the first update."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = make_zeros(parameter)
        return [self.state[parameter][name] for parameter in parameters]


class MomentumSgd(UpdateRule):
    """v = m v + lr g; w = w - v (Polyak 1964, in the form with the learning rate inside the velocity)."""

    @property
    def moments(self) -> tuple[str, ...]:
        return ("velocity",) if self.param_groups[0]["momentum"] else ()

    def _update_(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        if group["weight_decay"]:
            grads = torch._foreach_add(grads, parameters, alpha=group["weight_decay"])
        if not group["momentum"]:
            torch._foreach_add_(parameters, grads, alpha=-group["lr"])
            return
        velocities = self._get_or_create_moments("velocity", parameters)
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, grads, alpha=group["lr"])
        torch._foreach_sub_(parameters, velocities)


class AdamUpdate(UpdateRule):
    """Adam (Kingma and Ba 2015), and with `decoupled` weight decay AdamW (Loshchilov and Hutter 2019)."""

    moments = ("step", "exp_avg", "exp_avg_sq")

    def _update_(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        update_by_adam_(
            parameters,
            list(grads),
            self._get_or_create_moments("exp_avg", parameters),
            self._get_or_create_moments("exp_avg_sq", parameters),
            self._get_or_create_moments("step", parameters, lambda p: torch.zeros((), device=adam_counter_device(p))),
            decoupled_weight_decay=group["decoupled"],
            **{name: group[name] for name in ("beta1", "beta2", "lr", "weight_decay", "eps")},
        )


class RowAdagrad(UpdateRule):
    """Adagrad (Duchi et al. 2011) with one scale per row: s = s + mean(g^2), w = w - lr g / s^0.5, for each row.

    For embeddings of which a step has few: rows without a gradient are not changed, and rare rows move far. A gradient
    may be sparse.
    """

    moments = ("square",)

    def _update_(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        squares = self._get_or_create_moments("square", parameters, lambda p: p.new_zeros(len(p), 1))
        for parameter, grad, square_R1 in zip(parameters, grads, squares, strict=True):
            if not grad.is_sparse:
                square_R1.add_(grad.square().mean(1, keepdim=True))
                parameter.addcdiv_(grad, square_R1.sqrt().add_(ADAGRAD_EPS), value=-group["lr"])
                continue
            row_U, grad_UC = grad._indices()[0], grad._values()
            square_U1 = square_R1[row_U] + grad_UC.square().mean(1, keepdim=True)
            square_R1[row_U] = square_U1
            parameter.index_add_(0, row_U, grad_UC / square_U1.sqrt().add_(ADAGRAD_EPS), alpha=-group["lr"])


class MuonMatrices(UpdateRule):
    """Muon, momentum orthogonalised: w = w - lr max(1, R/C)^0.5 NS(Nesterov momentum) (Jordan et al. 2024).

    Matrices of one shape are batched. A fused matrix (queries, keys and values) is split first, because each part is a
    linear map of its own.
    """

    moments = ("momentum",)

    def __init__(self, groups: Groups, blocks: Blocks, sharded: ProcessGroup | None = None, **settings: Any) -> None:
        """blocks: the rows of the parts of each parameter. sharded: the processes that share the parameters by rows.

        Each process then orthogonalises its part of the matrices.
        """
        super().__init__(groups, **settings)
        self._blocks = blocks
        self._sharded = sharded

    def _update_(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        averages = self._get_or_create_moments("momentum", parameters)
        torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
        updates = torch._foreach_lerp(grads, averages, group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        parts = [self._blocks[cast(Parameter, parameter)] for parameter in parameters]
        if self._sharded is not None:
            self._update_sharded_(self._sharded, group["lr"], parameters, updates, parts)
            return
        pairs = list(zip(parameters, updates, strict=True))
        for (n_rows, n_columns), alike in _split_and_group_by_shape(pairs, parts).items():
            orthogonal_GRC = orthogonalise(torch.stack([update for _, update in alike]))
            rate = group["lr"] * max(1, n_rows / n_columns) ** 0.5
            torch._foreach_add_([weight for weight, _ in alike], list(orthogonal_GRC.unbind()), alpha=-rate)

    def _update_sharded_(
        self, sharded: ProcessGroup, rate: float, rows: list[Tensor], updates: Grads, parts: list[list[int]]
    ) -> None:
        """Updates this process's rows of all matrices. Each process orthogonalises a part of the matrices."""
        shapes = [(sum(rows_of_parts), part.shape[1]) for rows_of_parts, part in zip(parts, rows, strict=True)]
        exchange = WholeMatrixExchange(sharded, shapes)
        matrices = exchange.gather_owned_matrices(updates)
        own_parts = [parts[i] for i in exchange.owned]
        for (n_rows, n_columns), alike in _split_and_group_by_shape(
            [(matrix,) for matrix in matrices], own_parts
        ).items():
            orthogonal_GRC = orthogonalise(torch.stack([update for (update,) in alike]))
            orthogonal_GRC = orthogonal_GRC * max(1, n_rows / n_columns) ** 0.5
            torch._foreach_copy_([update for (update,) in alike], list(orthogonal_GRC.unbind()))
        torch._foreach_add_(rows, exchange.scatter_owned_matrices(matrices, updates[0]), alpha=-rate)


def _split_and_group_by_shape(
    matrices: Sequence[tuple[Tensor, ...]], part_rows: Sequence[list[int]]
) -> dict[tuple[int, int], list[tuple[Tensor, ...]]]:
    """Cuts matrices into parts of so many rows, and groups the parts by shape. Matrices of a tuple are cut alike."""
    by_shape: dict[tuple[int, int], list[tuple[Tensor, ...]]] = defaultdict(list)
    for together, rows in zip(matrices, part_rows, strict=True):
        for part in zip(*(torch.split(matrix, rows) for matrix in together), strict=True):
            by_shape[part[0].shape[0], part[0].shape[1]].append(part)
    return by_shape


def orthogonalise(matrices_GRC: Tensor, steps: int = 5) -> Tensor:
    """Approximately the nearest semi-orthogonal matrix of each, by a quintic Newton-Schulz iteration.

    Singular values converge to about 0.7 to 1.2, which suffices here (Jordan et al. 2024); so does bfloat16, where the
    device multiplies it.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices_GRC.to(torch.bfloat16 if has_fast_bfloat16(matrices_GRC.device) else torch.float32)
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).to(matrices_GRC.dtype)
