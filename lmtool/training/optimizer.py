"""Optimizers: which parameter has which update rule, and the rules that torch does not have in this form.

Shapes: G matrices of one shape, R rows, C columns.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from lmtool.compute.device import Compute
from lmtool.model import LanguageModel
from lmtool.model.parameters import depths, layer_matrices
from lmtool.recipe.spec import Adam, AdamW, Muon, Optimizer, Sgd, Tuning

FLOAT16_SCALE = 2.0**4
"""Initial loss scale of float16. Losses are sums over thousands of targets, so it is far below the usual 2^16."""

Groups = list[dict[str, Any]]
Grads = tuple[Tensor, ...]
Blocks = dict[Parameter, list[int]]
Shares = dict[Parameter, float]


class MomentumSgd(torch.optim.Optimizer):
    """v = m v + lr g; w = w - v (Polyak 1964, in the form with the learning rate inside the velocity)."""

    def __init__(self, groups: Groups, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever given
        for group, parameters, grads in _groups_with_grads(self):
            if group["weight_decay"]:
                grads = torch._foreach_add(grads, parameters, alpha=group["weight_decay"])
            if not group["momentum"]:
                torch._foreach_sub_(parameters, torch._foreach_mul(grads, group["lr"]))
                continue
            velocities = _moments(self, "velocity", parameters)
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, grads, alpha=group["lr"])
            torch._foreach_sub_(parameters, velocities)


class MuonMatrices(torch.optim.Optimizer):
    """Muon, momentum orthogonalised: w = w - lr max(1, R/C)^0.5 NS(Nesterov momentum) (Jordan et al. 2024).

    Matrices of one shape are batched. A fused matrix (queries, keys and values) is split first, because each part is a
    linear map of its own. `blocks` gives the rows of the parts of each parameter.
    """

    def __init__(self, groups: Groups, blocks: Blocks, lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._blocks = blocks

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # no closure is ever given
        for group, parameters, grads in _groups_with_grads(self):
            averages = _moments(self, "momentum", parameters)
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


def _groups_with_grads(optimizer: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], list[Tensor], Grads]]:
    """Each group that has parameters with gradients, these parameters, and their gradients."""
    for group in optimizer.param_groups:
        parameters = [p for p in group["params"] if p.grad is not None]
        if parameters:
            yield group, parameters, tuple(p.grad for p in parameters)


def _moments(optimizer: torch.optim.Optimizer, name: str, parameters: list[Tensor]) -> list[Tensor]:
    """The moment of each parameter, initially zero."""
    for parameter in parameters:
        if name not in optimizer.state[parameter]:
            optimizer.state[parameter][name] = torch.zeros_like(parameter)
    return [optimizer.state[parameter][name] for parameter in parameters]


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


class Optimizers:
    """The optimizers of all trainable parameters of a model, as one: scaling, clipping, update.

    With `layer_decay` d a parameter k layers below the highest has d^k times its learning rate; with `unfreeze_every` N
    it is frozen for k N steps (Howard and Ruder 2018, ULMFiT).
    """

    def __init__(self, spec: Optimizer, model: LanguageModel, compute: Compute, tuning: Tuning = Tuning()) -> None:  # noqa: B008 - it is frozen
        self._names: dict[Tensor, str] = {
            parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        depth = {parameter: n for parameter, n in depths(model).items() if parameter.requires_grad}
        below = {parameter: max(depth.values()) - n for parameter, n in depth.items()}
        self._first_steps = {p: (tuning.unfreeze_every or 0) * n for p, n in below.items()}
        # a model that counts has no parameters
        self._all = list(_build(spec, model, {p: tuning.layer_decay**n for p, n in below.items()}))
        self._base_rates = [[group["lr"] for group in optimizer.param_groups] for optimizer in self._all]
        self._scaler = torch.amp.GradScaler(
            compute.device.type, init_scale=FLOAT16_SCALE, enabled=compute.scales_gradients
        )

    def backward(self, total: Tensor) -> None:
        """Accumulate the gradient of a summed loss."""
        torch.autograd.backward(self._scaler.scale(total))

    def update(self, rate_multiplier: float, gradient_scale: float, clip_norm: float | None, step: int = 0) -> float:
        """Scale the gradients, clip them to g min(1, c / norm(g)), update the weights, and zero the gradients.

        rate_multiplier: of the peak learning rates. gradient_scale: factor from summed gradients to means. step: the
        number of steps before. Returns the norm before clipping, over the parameters trained in this step. When it is
        not finite, no weight is changed.
        """
        for parameter, first_step in self._first_steps.items():
            if step < first_step:
                parameter.grad = None
        # the scaler raises for an optimizer without gradients
        active = [
            (optimizer, rates)
            for optimizer, rates in zip(self._all, self._base_rates, strict=True)
            if any(p.grad is not None for group in optimizer.param_groups for p in group["params"])
        ]
        for optimizer, _ in active:
            self._scaler.unscale_(optimizer)
        gradients = [parameter.grad for parameter in self._names if parameter.grad is not None]
        norm = gradient_scale * float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        if math.isfinite(norm):
            clip = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
            torch._foreach_mul_(gradients, gradient_scale * clip)
            for optimizer, rates in active:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * rate_multiplier
                self._scaler.step(optimizer)
        self._scaler.update()
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        for optimizer in self._all:
            optimizer.zero_grad(set_to_none=True)

    @property
    def peak_rate(self) -> float:
        """The reported peak learning rate: the highest of the first optimizer."""
        rate: float = max(self._base_rates[0])
        return rate

    def state(self) -> dict[str, Tensor]:
        """All moments, by `moment/parameter name`, and the gradient scale of float16."""
        scale = {f"scaler/{key}": torch.tensor(value) for key, value in self._scaler.state_dict().items()}
        return scale | {
            f"{moment}/{self._names[parameter]}": torch.as_tensor(value)
            for optimizer in self._all
            for parameter, moments in optimizer.state.items()
            for moment, value in moments.items()
        }

    def load_state(self, tensors: dict[str, Tensor], steps: int = 1) -> None:
        """Load the moments that `state` returned after so many steps.

        Raises KeyError when a tensor belongs to no parameter, or when a parameter that was trained has none.
        """
        parameters = {name: parameter for parameter, name in self._names.items()}
        owner = {p: o for o in self._all for group in o.param_groups for p in group["params"]}
        scale = {key.removeprefix("scaler/"): tensor for key, tensor in tensors.items() if key.startswith("scaler/")}
        if self._scaler.is_enabled() and scale:
            self._scaler.load_state_dict({key: tensor.item() for key, tensor in scale.items()})
        moments = {key: tensor for key, tensor in tensors.items() if not key.startswith("scaler/")}
        trained = {self._names[parameter] for parameter, first_step in self._first_steps.items() if first_step < steps}
        if moments and (missing := trained - {key.partition("/")[2] for key in moments}):
            raise KeyError(f"no moments of {min(missing)}")
        for key, tensor in moments.items():
            moment, _, name = key.partition("/")
            parameter = parameters[name]
            # counters stay on the device that torch requires, moments on that of their parameter
            place = tensor.device if tensor.ndim == 0 and parameter.device.type != "cuda" else parameter.device
            owner[parameter].state[parameter][moment] = tensor.clone().to(place)


def _build(spec: Optimizer, model: LanguageModel, shares: Shares) -> Iterator[torch.optim.Optimizer]:
    """The optimizers of the parameters in `shares`, which gives the factor of each on the learning rate."""
    match spec:
        case _ if not shares:
            return
        case Sgd():
            groups = _groups(shares, spec.lr, spec.weight_decay)
            yield MomentumSgd(groups, spec.lr, spec.momentum)
        case Adam() | AdamW():
            yield _adam(spec, shares)
        case Muon():
            blocks = {matrix: rows for matrix, rows in layer_matrices(model).items() if matrix in shares}
            groups = _groups({p: shares[p] for p in blocks}, spec.lr, spec.weight_decay)
            if groups:
                yield MuonMatrices(groups, blocks, spec.lr, spec.momentum, spec.weight_decay)
            yield _adam(spec.adamw, {p: share for p, share in shares.items() if p not in blocks})


def _adam(spec: Adam | AdamW, shares: Shares) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if isinstance(spec, AdamW) else torch.optim.Adam
    fused = all(p.device.type in ("cpu", "cuda") for p in shares)
    groups = _groups(shares, spec.lr, spec.weight_decay)
    return kind(groups, lr=spec.lr, betas=(spec.beta1, spec.beta2), eps=spec.eps, fused=fused)


def _groups(shares: Shares, lr: float, weight_decay: float) -> Groups:
    """Parameter groups: matrices with weight decay, vectors without; separate where their learning rates differ."""
    groups: dict[tuple[float, float], list[Parameter]] = defaultdict(list)
    for parameter, share in shares.items():
        groups[lr * share, weight_decay if parameter.ndim >= 2 else 0.0].append(parameter)
    return [{"params": found, "lr": rate, "weight_decay": decay} for (rate, decay), found in groups.items()]
