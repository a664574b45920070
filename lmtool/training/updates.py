"""Update rules of weights, each for groups of parameters with settings of their own.

Shapes: G matrices of one shape, R rows, C columns.
"""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim.adam import adam

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

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients."""
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if parameters:
                self._update(group, parameters, tuple(p.grad for p in parameters))

    @abstractmethod
    def _update(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        """Update these parameters of a group in place."""

    def _moments(self, name: str, parameters: list[Tensor]) -> list[Tensor]:
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter)
        return [self.state[parameter][name] for parameter in parameters]


class MomentumSgd(UpdateRule):
    """v = m v + lr g; w = w - v (Polyak 1964, in the form with the learning rate inside the velocity)."""

    def _update(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        if group["weight_decay"]:
            grads = torch._foreach_add(grads, parameters, alpha=group["weight_decay"])
        if not group["momentum"]:
            torch._foreach_sub_(parameters, torch._foreach_mul(grads, group["lr"]))
            return
        velocities = self._moments("velocity", parameters)
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, grads, alpha=group["lr"])
        torch._foreach_sub_(parameters, velocities)


class AdamUpdate(UpdateRule):
    """Adam (Kingma and Ba 2015), and with `decoupled` weight decay AdamW (Loshchilov and Hutter 2019)."""

    def _update(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
        for parameter in parameters:
            if "step" not in self.state[parameter]:
                place = parameter.device if fused else "cpu"
                self.state[parameter]["step"] = torch.zeros((), dtype=torch.float32, device=place)
        adam(
            parameters,
            list(grads),
            self._moments("exp_avg", parameters),
            self._moments("exp_avg_sq", parameters),
            [],
            [self.state[parameter]["step"] for parameter in parameters],
            fused=fused,
            decoupled_weight_decay=group["decoupled"],
            amsgrad=False,
            beta1=group["beta1"],
            beta2=group["beta2"],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


class MuonMatrices(UpdateRule):
    """Muon, momentum orthogonalised: w = w - lr max(1, R/C)^0.5 NS(Nesterov momentum) (Jordan et al. 2024).

    Matrices of one shape are batched. A fused matrix (queries, keys and values) is split first, because each part is a
    linear map of its own.
    """

    def __init__(self, groups: Groups, blocks: Blocks, **settings: Any) -> None:
        """blocks: the rows of the parts of each parameter."""
        super().__init__(groups, **settings)
        self._blocks = blocks

    def _update(self, group: Mapping[str, Any], parameters: list[Tensor], grads: Grads) -> None:
        averages = self._moments("momentum", parameters)
        torch._foreach_lerp_(averages, grads, 1 - group["momentum"])
        updates = torch._foreach_lerp(grads, averages, group["momentum"])
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        by_shape: dict[tuple[int, int], list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for parameter, update in zip(parameters, updates, strict=True):
            rows = self._blocks[cast(Parameter, parameter)]
            for pair in zip(torch.split(parameter, rows), torch.split(update, rows), strict=True):
                by_shape[pair[0].shape[0], pair[0].shape[1]].append(pair)
        for (n_rows, n_columns), pairs in by_shape.items():
            orthogonal_GRC = orthogonalise(torch.stack([update for _, update in pairs]))
            rate = group["lr"] * max(1, n_rows / n_columns) ** 0.5
            torch._foreach_add_([weight for weight, _ in pairs], list(orthogonal_GRC.unbind()), alpha=-rate)


def orthogonalise(matrices_GRC: Tensor, steps: int = 5) -> Tensor:
    """Approximately the nearest semi-orthogonal matrix of each, by a quintic Newton-Schulz iteration in bfloat16.

    Singular values converge to about 0.7 to 1.2, which suffices here (Jordan et al. 2024).
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices_GRC.bfloat16()
    wide = x.shape[1] <= x.shape[2]
    x = x if wide else x.mT
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x if wide else x.mT).to(matrices_GRC.dtype)
