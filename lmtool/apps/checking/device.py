"""Compares every fast path on a device with the plain computation, on a small model: `lmtool check --device`."""

import copy
import time
import timeit
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import AdamW

from lmtool.batch import Batch
from lmtool.compute.agreement import agrees, relative_difference
from lmtool.compute.device import ExecutionContext
from lmtool.compute.kernels import gpu, ops
from lmtool.generation.fast_steps import STEPS_BEFORE_CAPTURE
from lmtool.generation.model_runner import ModelRunner
from lmtool.model import LanguageModel, build
from lmtool.model.language_model import DecodeState
from lmtool.model.packed import pack_weights_, quantize_weights_
from lmtool.objective.cross_entropy import sum_cross_entropy_in_chunks
from lmtool.recipe.spec.transformer import Transformer

MODEL_SPEC: dict[str, Any] = {
    **{"kind": "transformer", "n_layers": 2, "d_model": 256, "n_heads": 4, "context": 2 * gpu.FLEX_MIN_POSITIONS},
    **{"activation": "swiglu", "norm": {"kind": "rms"}, "position": {"kind": "rotary"}, "bias": False},
}
WINDOW = {"pattern": {"kind": "window", "size": 100}}
VOCAB = 512
N_STEPS = STEPS_BEFORE_CAPTURE + 8


class FastPathCheck(NamedTuple):
    """The result of the comparison of a fast path.

    verdict: "same", "differs by N %", or the first line of an error.
    fast, plain: seconds, the shortest of three calls after the first.
    """

    name: str
    verdict: str
    fast: float | None = None
    plain: float | None = None


FastAndPlainComputation = tuple[Callable[[], Tensor], Callable[[], Tensor]]
"""The fast and the plain computation of the same tensor."""


def check_fast_paths(device: torch.device) -> Iterator[FastPathCheck]:
    """Compares each fast path of this device."""
    torch.manual_seed(0)
    for name, ways in _list_fast_path_pairs(device).items():
        try:
            outputs, seconds = [], []
            with torch.no_grad():
                for compute in ways():
                    outputs.append(compute())
                    seconds.append(min(timeit.repeat(compute, timer=_synchronized_time, number=1, repeat=3)))
            verdict = "same" if agrees(*outputs) else f"differs by {100 * relative_difference(*outputs):.0f} %"
            yield FastPathCheck(name, verdict, *seconds)
        except Exception as error:  # any: a compiler's, a driver's, one of memory
            yield FastPathCheck(name, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}")


def _synchronized_time() -> float:
    """Returns the time in seconds after the device has finished all work."""
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
    return time.perf_counter()


def _list_fast_path_pairs(device: torch.device) -> dict[str, Callable[[], FastAndPlainComputation]]:
    """Returns for each fast path of a device a function that makes its two computations, by name."""
    ways: dict[str, Callable[[], FastAndPlainComputation]] = {
        f"matrices in {name}": partial(_pair_packed_weights, device, name)
        for name in ("bfloat16", "float16", "int8", "int4")
    }
    if device.type == "cpu" and ops.has_kernels():
        ways |= {
            f"one text by kernels, {name}": partial(_pair_decoding_steps, device, name)
            for name in ("float32", "int8", "int4")
        }
        ways |= {
            f"{name} by a kernel, float32 beside float64": partial(_pair_kernel_with_float64, name)
            for name in ops.KERNEL_CHECKS
        }
        ways["training step by kernels, float32 beside float64"] = partial(_pair_gradients_with_float64, device)
    if device.type in gpu.GRAPH_DEVICES:
        ways["captured steps"] = partial(_pair_decoding_steps, device, None)
    ways["compiled model"] = partial(_pair_compiled_forward, device, {})
    if device.type in gpu.FLEX_DEVICES:
        ways["compiled model with FlexAttention"] = partial(_pair_compiled_forward, device, WINDOW)
    if device.type in gpu.FUSED_DEVICES:
        ways["fused AdamW"] = partial(_pair_fused_adamw, device)
    return ways


def _build_model(device: torch.device, **changes: Any) -> LanguageModel:
    return build(Transformer.model_validate({**MODEL_SPEC, **changes}), VOCAB).to(device).eval()


def _random_tokens(device: torch.device, n: int) -> Tensor:
    return torch.randint(VOCAB, (1, n), generator=torch.Generator().manual_seed(1)).to(device)


def _pair_packed_weights(device: torch.device, precision: str) -> FastAndPlainComputation:
    plain, batch = _build_model(device), Batch(_random_tokens(device, 64))
    fast = copy.deepcopy(plain)
    pack_weights_(fast, precision, device)
    if precision in ("int8", "int4"):
        quantize_weights_(plain, precision, store_dequantized=True)

    def compute(model: LanguageModel, precision: str) -> Tensor:
        with ExecutionContext(device, precision).autocast():
            return model.logits(model(batch).hidden_BTD)

    return partial(compute, fast, precision), partial(compute, plain, "float32")


def _pair_decoding_steps(device: torch.device, precision: str | None) -> FastAndPlainComputation:
    """Pairs steps of one text after a prompt. precision: of a packed model."""
    model, tokens = _build_model(device), _random_tokens(device, 16 + N_STEPS)
    if precision is not None:
        pack_weights_(model, precision, device)

    def compute(step: Callable[[list[int], DecodeState], tuple[Tensor, DecodeState]]) -> Tensor:
        hidden, state = model.forward_incremental(tokens[:, :16], model.initial_state(Batch(tokens[:, :16])))
        for token in tokens[0, 16:].tolist():
            hidden, state = step([token], state)
        return hidden

    def step(row: list[int], state: DecodeState) -> tuple[Tensor, DecodeState]:
        hidden, state = model.forward_incremental(torch.tensor([row], device=device), state)
        return hidden[:, -1], state

    return partial(compute, ModelRunner(model).decode_step_), partial(compute, step)


def _pair_kernel_with_float64(operator_name: str) -> FastAndPlainComputation:
    """Pairs the kernel of an operator and its gradient with the formula in float64."""
    check, x = ops.KERNEL_CHECKS[operator_name], ops.draw_input()

    def compute(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return torch.cat([value.flatten() for value in check.compute_with_gradient(function, x)])

    return partial(compute, check.kernel, x), partial(compute, check.formula, x.double())


def _pair_gradients_with_float64(device: torch.device) -> FastAndPlainComputation:
    """Pairs the gradients of a training step with those in float64, for which there are no kernels."""
    plain, tokens = _build_model(device), _random_tokens(device, MODEL_SPEC["context"])

    def compute(model: LanguageModel) -> Tensor:
        with torch.enable_grad():
            loss = sum_cross_entropy_in_chunks(model, model(Batch(tokens)).hidden_BTD[0], tokens[0])
            return torch.cat([grad.flatten() for grad in torch.autograd.grad(loss, list(model.parameters()))])

    return partial(compute, copy.deepcopy(plain)), partial(compute, plain.double())


def _pair_compiled_forward(device: torch.device, spec_changes: dict[str, Any]) -> FastAndPlainComputation:
    plain, batch = _build_model(device, **spec_changes), Batch(_random_tokens(device, MODEL_SPEC["context"]))
    fast = copy.deepcopy(plain)
    fast.compile()
    return lambda: fast(batch).hidden_BTD, lambda: plain(batch).hidden_BTD


def _pair_fused_adamw(device: torch.device) -> FastAndPlainComputation:
    weight, gradient = torch.randn(2, 512, 512, device=device).unbind()

    def update_fused() -> Tensor:
        trained, moments = weight.clone(), torch.zeros(2, *weight.shape, device=device)
        counter = torch.zeros((), device=gpu.adam_counter_device(trained))
        settings = {"beta1": 0.9, "beta2": 0.999, "lr": 0.1, "weight_decay": 0.01, "eps": 1e-8}
        gpu.update_by_adam_(
            [trained], [gradient], [moments[0]], [moments[1]], [counter], decoupled_weight_decay=True, **settings
        )
        return trained - weight

    def update_plainly() -> Tensor:
        trained = torch.nn.Parameter(weight.clone())
        trained.grad = gradient.clone()
        AdamW([trained], lr=0.1, foreach=False).step()
        return trained.detach() - weight

    return update_fused, update_plainly
