"""Optimizers: the choice of an update rule for each parameter, and all rules as one."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import cast

import torch
from torch import Tensor
from torch.nn import Parameter

from lmtool.compute.device import ExecutionContext
from lmtool.compute.kernels.gpu import adam_counter_device
from lmtool.compute.shards import (
    all_reduce_norm,
    get_local_row_range,
    get_local_rows,
    is_sharded,
    make_sharded_like,
    process_group,
)
from lmtool.errors import CheckpointError, NumericalError
from lmtool.model import LanguageModel
from lmtool.model.layers.attention import find_layer_matrices_and_part_rows
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.recipe.spec.training import Adam, AdamW, Lbfgs, Muon, Optimizer, Sgd, Tuning
from lmtool.runs.tensors import get_meta_tensors, read_tensor_rows
from lmtool.training.updates import AdamUpdate, Groups, MomentumSgd, MuonMatrices, RowAdagrad, UpdateRule

FLOAT16_SCALE = 2.0**4
"""Initial loss scale of float16. Losses are sums over thousands of targets, so it is far below the usual 2^16."""

_SCALER = "scaler/"
"""Prefix of the names of the gradient scale."""

RateFactors = dict[Parameter, float]


class Optimizers:
    """The optimizers of all trainable parameters of a model, as one: scaling, clipping, update.

    With `layer_decay` d a parameter k layers below the highest has d^k times its learning rate; with `unfreeze_every` N
    it is frozen for k N steps (Howard and Ruder 2018, ULMFiT).
    """

    def __init__(
        self,
        spec: Optimizer,
        model: LanguageModel,
        compute: ExecutionContext,
        tuning: Tuning = Tuning(),  # noqa: B008 - it is frozen
    ) -> None:
        trained = {parameter: name for name, parameter in model.named_parameters() if parameter.requires_grad}
        # of a sharded parameter, the rules see the rows of this process
        self._rows = {parameter: Parameter(get_local_rows(parameter)) for parameter in trained if is_sharded(parameter)}
        self._wholes: dict[Tensor, Parameter] = {rows: parameter for parameter, rows in self._rows.items()}
        self._names: dict[Tensor, str] = {self._rows.get(p, p): name for p, name in trained.items()}
        depths = {parameter: n for parameter, n in model.parameter_depths().items() if parameter.requires_grad}
        layers_below = {self._rows.get(p, p): max(depths.values()) - n for p, n in depths.items()}
        self._first_steps = {p: (tuning.unfreeze_every or 0) * n for p, n in layers_below.items()}
        # a model that counts has no parameters
        self._rules = list(
            _make_update_rules(spec, model, self._rows, {p: tuning.layer_decay**n for p, n in layers_below.items()})
        )
        self._base_rates = [[group["lr"] for group in rule.param_groups] for rule in self._rules]
        self._scaler = torch.amp.GradScaler(
            compute.device.type, init_scale=FLOAT16_SCALE, enabled=compute.needs_loss_scaling
        )

    def backward(self, total: Tensor) -> None:
        """Accumulates the gradient of a summed loss."""
        torch.autograd.backward(self._scaler.scale(total))

    def clip_and_step(
        self, rate_factor: float, gradient_scale: float, clip_norm: float | None, steps_done: int = 0
    ) -> float:
        """Scales the gradients, clips them to g min(1, c / norm(g)), updates the weights, and clears the gradients.

        rate_factor: on the peak learning rates. gradient_scale: factor from summed gradients to means. steps_done:
        number of completed steps. Returns the norm before clipping, over the parameters trained in this step; if it is
        not finite, no weight is changed.
        """
        for parameter, rows in self._rows.items():
            rows.grad = None if parameter.grad is None else get_local_rows(parameter.grad)
        for parameter, first_step in self._first_steps.items():
            if steps_done < first_step:
                parameter.grad = None
        # the scaler raises for parameters without gradients
        active = [
            (rule, rates)
            for rule, rates in zip(self._rules, self._base_rates, strict=True)
            if any(p.grad is not None for group in rule.param_groups for p in group["params"])
        ]
        for rule, _ in active:
            self._scaler.unscale_(_as_optimizer(rule))
        gradients = [_coalesce_gradient_values_(parameter) for parameter in self._names if parameter.grad is not None]
        summed = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        if self._rows:
            summed = all_reduce_norm(process_group(next(iter(self._rows))), summed)
        norm = gradient_scale * float(summed)
        if math.isfinite(norm):
            clip = 1.0 if clip_norm is None or norm <= clip_norm else clip_norm / norm
            torch._foreach_mul_(gradients, gradient_scale * clip)
            for rule, rates in active:
                for group, rate in zip(rule.param_groups, rates, strict=True):
                    group["lr"] = rate * rate_factor
                self._scaler.step(_as_optimizer(rule))
        self._scaler.update()
        self.clear_gradients()
        return norm

    def clear_gradients(self) -> None:
        for parameter in (*self._names, *self._rows):
            parameter.grad = None

    @property
    def peak_rate(self) -> float:
        """The reported peak learning rate: the highest of the first optimizer."""
        rate: float = max(self._base_rates[0])
        return rate

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns all moments, by `moment/parameter name`, and the gradient scale of float16.

        Those of sharded parameters are sharded.
        """
        moments_of = {f"{_SCALER}{key}": torch.tensor(value) for key, value in self._scaler.state_dict().items()}
        for rule in self._rules:
            for parameter, moments in rule.state.items():
                for moment, value in moments.items():
                    tensor = torch.as_tensor(value)
                    if parameter in self._wholes and tensor.ndim:
                        tensor = make_sharded_like(tensor, self._wholes[parameter])
                    moments_of[f"{moment}/{self._names[parameter]}"] = tensor
        return moments_of

    def load_state(self, tensors: Mapping[str, Tensor], steps_done: int = 1, checkpoint_path: str = "") -> None:
        """Loads what `state_tensors` returned after so many steps; of sharded parameters the rows of this process.

        checkpoint_path: for errors. Raises CheckpointError for a moment that is missing, unknown or misshapen, and
        NumericalError for one that holds NaN.
        """
        owner = {p: o for o in self._rules for group in o.param_groups for p in group["params"]}
        scale = {key.removeprefix(_SCALER): tensors[key] for key in tensors if key.startswith(_SCALER)}
        moments = {key: tensor for key, tensor in get_meta_tensors(tensors).items() if not key.startswith(_SCALER)}
        known = {f"{moment}/{self._names[p]}": p for p, rule in owner.items() for moment in rule.moments}
        needed = {key for key, p in known.items() if self._first_steps[p] < steps_done}
        if scale and not moments:  # in float16 the first steps may have been skipped
            needed = set()
        for key in sorted(moments.keys() | needed):
            if key not in moments:
                raise _mismatch_error(f"{key} is missing", checkpoint_path)
            if key not in known:
                raise _mismatch_error(f"{key} is unknown", checkpoint_path)
            if not _has_moment_shape(moments[key], self._wholes.get(known[key], known[key]), key):
                raise _mismatch_error(f"{key} does not fit the model", checkpoint_path)
        loaded: dict[str, Tensor] = {}
        for key, outline in moments.items():
            parameter, whole = known[key], self._wholes.get(known[key])
            if whole is not None and outline.ndim:
                tensor = read_tensor_rows(tensors, key, get_local_row_range(whole))
            else:
                tensor = tensors[key]
            # infinite ones may belong to a run that goes on
            if bool(tensor.isnan().any()):
                what = f"the optimizer state is useless: {key} holds NaN"
                raise NumericalError(what, where=checkpoint_path, fix="resume from another checkpoint")
            device = parameter.device if tensor.ndim else adam_counter_device(parameter)
            loaded[key] = tensor.clone().to(device)
        if self._scaler.is_enabled() and scale:
            keys = self._scaler.state_dict().keys()
            if scale.keys() != keys or any(tensor.numel() != 1 for tensor in scale.values()):
                raise _mismatch_error("the scale of float16 is not one", checkpoint_path)
            self._scaler.load_state_dict({key: tensor.item() for key, tensor in scale.items()})
        for key, tensor in loaded.items():
            owner[known[key]].state[known[key]][key.partition("/")[0]] = tensor


def _coalesce_gradient_values_(parameter: Tensor) -> Tensor:
    """Returns the gradient of a parameter; of a sparse one, which is coalesced, the rows that it has."""
    assert parameter.grad is not None
    if not parameter.grad.is_sparse:
        return parameter.grad
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()


def _has_moment_shape(moment: Tensor, parameter: Parameter, key: str) -> bool:
    """Whether a tensor has the shape and type of a moment of a parameter. key: see `Optimizers.state_tensors`."""
    if key.startswith("step/"):
        return moment.shape == () and moment.dtype == torch.float32
    if key.startswith("square/"):
        return moment.shape == (len(parameter), 1) and moment.dtype == parameter.dtype
    return moment.shape == parameter.shape and moment.dtype == parameter.dtype


def _mismatch_error(what: str, where: str) -> CheckpointError:
    return CheckpointError(
        f"the optimizer state does not fit the run: {what}", where=where, fix="resume from another checkpoint"
    )


def _as_optimizer(rule: UpdateRule) -> torch.optim.Optimizer:
    """Casts a rule for GradScaler, which uses nothing but `param_groups` and `step`."""
    return cast(torch.optim.Optimizer, rule)


def _make_update_rules(
    spec: Optimizer, model: LanguageModel, local_rows: Mapping[Parameter, Parameter], rate_factors: RateFactors
) -> Iterator[UpdateRule]:
    """Makes the update rules of parameters.

    rate_factors: of each trained parameter, on the learning rate. local_rows: of this process, of sharded parameters.
    Embeddings of n-grams have a rule of their own.
    """
    if isinstance(spec, Lbfgs):
        return  # fits the head as a whole
    weights = (local_rows.get(part.weight, part.weight) for part in find_ngram_embeddings(model))
    tables = {table: rate_factors[table] for table in weights if table in rate_factors}
    if tables:
        groups = [{"params": [table], "lr": spec.lr * factor} for table, factor in tables.items()]
        yield RowAdagrad(groups)
        rate_factors = {p: factor for p, factor in rate_factors.items() if p not in tables}
    match spec:
        case _ if not rate_factors:
            return
        case Sgd():
            yield MomentumSgd(_group_by_rate_and_decay(rate_factors, spec), momentum=spec.momentum)
        case Adam() | AdamW():
            yield _make_adam(spec, rate_factors)
        case Muon():
            matrices = find_layer_matrices_and_part_rows(model)
            blocks = {
                local_rows.get(p, p): parts for p, parts in matrices.items() if local_rows.get(p, p) in rate_factors
            }
            if blocks:
                groups = _group_by_rate_and_decay({p: rate_factors[p] for p in blocks}, spec)
                sharded = process_group(next(iter(local_rows))) if local_rows else None
                yield MuonMatrices(groups, blocks, sharded, momentum=spec.momentum)
            yield _make_adam(spec.adamw, {p: factor for p, factor in rate_factors.items() if p not in blocks})


def _make_adam(spec: Adam | AdamW, rate_factors: RateFactors) -> UpdateRule:
    groups, decoupled = _group_by_rate_and_decay(rate_factors, spec), isinstance(spec, AdamW)
    return AdamUpdate(groups, beta1=spec.beta1, beta2=spec.beta2, eps=spec.eps, decoupled=decoupled)


def _group_by_rate_and_decay(rate_factors: RateFactors, spec: Adam | AdamW | Sgd | Muon) -> Groups:
    """Groups parameters by learning rate and weight decay, which only matrices have."""
    groups: dict[tuple[float, float], list[Parameter]] = defaultdict(list)
    for parameter, factor in rate_factors.items():
        groups[spec.lr * factor, spec.weight_decay if parameter.ndim >= 2 else 0.0].append(parameter)
    return [{"params": parameters, "lr": rate, "weight_decay": decay} for (rate, decay), parameters in groups.items()]
