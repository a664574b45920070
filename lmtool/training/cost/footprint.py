"""Memory of training a recipe, by tracing a micro-batch on tensors without storage.

Forward and backward pass run as they would, on fake tensors (torch's FakeTensorMode): each has shape, dtype and device,
and a lifetime, but no bytes. So the peak is that of the code, for every family, and costs no memory itself.
"""

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lmtool.batch import Batch
from lmtool.compute.device import DTYPES
from lmtool.compute.kernels.ops import use_kernels_for_fake_tensors
from lmtool.model import LanguageModel, build
from lmtool.model.features import find_frozen_features
from lmtool.model.layers.kernels import force_fused_attention_on_cpu
from lmtool.model.size import PersistentTrainingBytes
from lmtool.objective.cross_entropy import rows_per_chunk, sum_cross_entropy_in_chunks
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.recurrent import PretrainedStatesModelSpec, Recurrent
from lmtool.recipe.spec.transformer import Transformer, WindowPattern
from lmtool.training.cost.devices import DeviceGroup

MAX_TRACED_LAYERS = 8
"""Deeper models are traced with so many layers and with half of them; layers are alike."""

MAX_TRACED_CHUNKS = 4
"""Rows of more chunks of logits are traced with so many and with half of them."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes on one device.

    activations: kept for the backward pass.
    logits: the most that the loss takes beside them.
    peak: of all together; less than their sum where gradients come only as activations go.
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    logits: int
    peak: int


@dataclass(frozen=True)
class BatchToTrace:
    """A micro-batch to trace.

    batch: real tensors, of which only the shapes matter.
    scored_fraction: share of the positions that have a target.
    accumulates: gradients of an earlier micro-batch are there already.
    """

    batch: Batch
    scored_fraction: float
    accumulates: bool


def estimate_training_memory_per_device(
    spec: Model,
    vocab_size: int,
    persistent: PersistentTrainingBytes,
    make_batch: Callable[[int], BatchToTrace],
    n_rows: int,
    devices: DeviceGroup,
) -> MemoryEstimate:
    """Estimates the memory of training with micro-batches of `n_rows` rows.

    persistent: what stays from step to step. make_batch: makes a micro-batch of so many rows.
    """
    n_layers = dict(spec).get("n_layers", 0)
    row = make_batch(1)
    chunk = rows_per_chunk(torch.device("meta" if devices.on_gpu else "cpu"), vocab_size)
    most_rows = max(2, int(MAX_TRACED_CHUNKS * chunk / max(1, row.scored_fraction * row.batch.tokens_BT.numel())))
    varied = isinstance(spec, Transformer) and isinstance(spec.pattern, WindowPattern) and spec.pattern.full_layers

    def at(layers: int, rows: int) -> tuple[float, ...]:
        changed = spec.with_unvalidated_values({"n_layers": layers}) if n_layers else spec
        return _trace_micro_batch_bytes(changed, vocab_size, make_batch(rows), devices)

    def deep(rows: int) -> tuple[float, ...]:
        if varied:
            return at(n_layers, rows)
        return _measure_or_extrapolate(lambda layers: at(layers, rows), n_layers, MAX_TRACED_LAYERS)

    activations, logits, peak = map(int, _measure_or_extrapolate(deep, n_rows, most_rows))
    stays = persistent.weights + persistent.moments
    # one CPU has gradients of the rows of an n-gram table that a step reads, which are traced
    table = persistent.table_gradients if devices.on_gpu or devices.count > 1 else 0
    gradients = persistent.gradients + table
    # frozen weights have no gradients, which the trace does not know
    baseline = max(peak + table - persistent.absent_gradients, activations + logits, gradients)
    return MemoryEstimate(persistent.weights, gradients, persistent.moments, activations, logits, stays + baseline)


def _measure_or_extrapolate(
    measure: Callable[[int], tuple[float, ...]], n: int, max_measured: int
) -> tuple[float, ...]:
    """The measurement at n; beyond `max_measured` by the line through those at half of it and at it."""
    if n <= max_measured:
        return measure(n)
    low, at_low, at_high = max_measured // 2, measure(max_measured // 2), measure(max_measured)
    return tuple(a + (b - a) * (n - low) / (max_measured - low) for a, b in zip(at_low, at_high, strict=True))


class _TracedBytes(NamedTuple):
    """Bytes beside the weights: that a forward pass keeps, that the loss takes beside those, and at the peak."""

    activations: int
    logits: int
    peak: int


def _trace_micro_batch_bytes(spec: Model, vocab_size: int, traced: BatchToTrace, devices: DeviceGroup) -> _TracedBytes:
    """Runs the forward and backward pass of a micro-batch on fake tensors, and counts their bytes."""
    # recurrent layers look at what of a batch is text, and the kernel of LSTMs hides its workspace from fake tensors
    fake = None if isinstance(spec, Recurrent) else FakeTensorMode()
    with ExitStack() as stack:
        if fake is not None:
            stack.enter_context(fake)
        lm = build(spec, vocab_size).train()
        if (part := find_frozen_features(lm)) is not None:
            part.attach_source(cast(LanguageModel, _FakeFeatureModel(spec)))
        batch = traced.batch if fake is None else traced.batch.map_tensors(fake.from_tensor)
        if devices.on_gpu:
            stack.enter_context(force_fused_attention_on_cpu())
            stack.enter_context(_DisableAttentionDropout())
        else:
            stack.enter_context(use_kernels_for_fake_tensors())
        read = filter(torch.is_tensor, vars(batch).values())
        ledger = stack.enter_context(AllocationTracker([*lm.parameters(), *lm.buffers(), *read]))
        for _ in range(1 + traced.accumulates):
            ledger.peak = ledger.live
            is_narrow = devices.precision != "float32"
            with torch.autocast("cpu", dtype=DTYPES[devices.precision], enabled=is_narrow):
                hidden_MD = lm(batch).hidden_BTD.flatten(0, 1)
                kept = ledger.live
                total = _compute_loss_of_dummy_targets(lm, hidden_MD, round(traced.scored_fraction * len(hidden_MD)))
            loss = ledger.peak - kept
            del hidden_MD
            torch.autograd.backward(total)
            del total
    return _TracedBytes(kept, max(0, loss), ledger.peak)


def _compute_loss_of_dummy_targets(lm: LanguageModel, hidden_MD: Tensor, n_scored: int) -> Tensor:
    if not n_scored:
        return hidden_MD.sum()
    scored_MD = hidden_MD if n_scored == len(hidden_MD) else hidden_MD[:n_scored]
    targets_M = torch.zeros(n_scored, dtype=torch.int64)
    return sum_cross_entropy_in_chunks(lm, scored_MD, targets_M)


class AllocationTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the bytes of the tensors that are alive.

    known: tensors that are not counted.
    live: bytes now.
    peak: the most since the caller set it.
    """

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in known:
            self._track(tensor, counted=False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0  # of a tensor without values; such as whether padding moves a window, which it does not at the end
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, Tensor):
                self._track(tensor, counted=True)
        return made

    def _track(self, tensor: Tensor, *, counted: bool) -> None:
        if tensor.is_sparse:
            # of a few rows of a table
            self._track(tensor._indices(), counted=counted)
            self._track(tensor._values(), counted=counted)
            return
        storage = tensor.untyped_storage()
        key = id(storage)
        if key in self._seen:
            return
        size = storage.nbytes() if counted else 0
        self.live += size
        self.peak = max(self.peak, self.live)

        def end(_: object) -> None:
            del self._seen[key]
            self.live -= size

        self._seen[key] = weakref.ref(storage, end)


class _FakeFeatureModel(nn.Module):
    """Stands for the model whose states another one reads as features."""

    def __init__(self, spec: Model) -> None:
        super().__init__()
        read = cast(PretrainedStatesModelSpec, spec).features
        assert read is not None
        self._width, self._n_layers = read.width or spec.d_model, read.mixed_layers or 1

    def hidden_states_by_layer(self, batch: Batch) -> list[Tensor]:
        """The states of each layer (B, T, D)."""
        return [torch.zeros(*batch.tokens_BT.shape, self._width) for _ in range(self._n_layers)]


class _DisableAttentionDropout(TorchFunctionMode):
    """Fused attention without dropout, which a GPU's kernel has inside, and a CPU's refuses."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            kwargs = (kwargs or {}) | {"dropout_p": 0.0}
        return func(*args, **(kwargs or {}))
