"""Optimizers: which parameter has which update rule, and all rules as one."""

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter

from lmtool.compute.device import Compute
from lmtool.model import LanguageModel
from lmtool.model.parameters import depths, layer_matrices
from lmtool.recipe.spec import Adam, AdamW, Muon, Optimizer, Sgd, Tuning
from lmtool.training.updates import AdamUpdate, Groups, MomentumSgd, MuonMatrices, UpdateRule

FLOAT16_SCALE = 2.0**4
"""Initial loss scale of float16. Losses are sums over thousands of targets, so it is far below the usual 2^16."""

Shares = dict[Parameter, float]


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
        self._base_rates = [[group["lr"] for group in rule.param_groups] for rule in self._all]
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
        # the scaler raises for parameters without gradients
        active = [
            (rule, rates)
            for rule, rates in zip(self._all, self._base_rates, strict=True)
            if any(p.grad is not None for group in rule.param_groups for p in group["params"])
        ]
        for rule, _ in active:
            self._scaler.unscale_(_as_optimizer(rule))
        gradients = [parameter.grad for parameter in self._names if parameter.grad is not None]
        norm = gradient_scale * float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients))))
        if math.isfinite(norm):
            clip = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
            torch._foreach_mul_(gradients, gradient_scale * clip)
            for rule, rates in active:
                for group, rate in zip(rule.param_groups, rates, strict=True):
                    group["lr"] = rate * rate_multiplier
                self._scaler.step(_as_optimizer(rule))
        self._scaler.update()
        self.forget_gradients()
        return norm

    def forget_gradients(self) -> None:
        for parameter in self._names:
            parameter.grad = None

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
            for rule in self._all
            for parameter, moments in rule.state.items()
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


def _as_optimizer(rule: UpdateRule) -> torch.optim.Optimizer:
    """For the scaler, which asks for groups of parameters and a step."""
    return cast(torch.optim.Optimizer, rule)


def _build(spec: Optimizer, model: LanguageModel, shares: Shares) -> Iterator[UpdateRule]:
    """The update rules of the parameters in `shares`, which gives the factor of each on the learning rate."""
    match spec:
        case _ if not shares:
            return
        case Sgd():
            yield MomentumSgd(_groups(shares, spec), momentum=spec.momentum)
        case Adam() | AdamW():
            yield _adam(spec, shares)
        case Muon():
            blocks = {matrix: rows for matrix, rows in layer_matrices(model).items() if matrix in shares}
            if blocks:
                groups = _groups({p: shares[p] for p in blocks}, spec)
                yield MuonMatrices(groups, blocks, momentum=spec.momentum)
            yield _adam(spec.adamw, {p: share for p, share in shares.items() if p not in blocks})


def _adam(spec: Adam | AdamW, shares: Shares) -> UpdateRule:
    decoupled = isinstance(spec, AdamW)
    return AdamUpdate(_groups(shares, spec), beta1=spec.beta1, beta2=spec.beta2, eps=spec.eps, decoupled=decoupled)


def _groups(shares: Shares, spec: Optimizer) -> Groups:
    """Parameter groups: matrices with weight decay, vectors without; separate where their learning rates differ."""
    groups: dict[tuple[float, float], list[Parameter]] = defaultdict(list)
    for parameter, share in shares.items():
        groups[spec.lr * share, spec.weight_decay if parameter.ndim >= 2 else 0.0].append(parameter)
    return [{"params": found, "lr": rate, "weight_decay": decay} for (rate, decay), found in groups.items()]
