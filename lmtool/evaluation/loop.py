"""The evaluation loop: batches items by length under a budget of tokens, and distributes them over all processes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from lmtool.compute.device import ExecutionContext
from lmtool.data.survey import Progress, no_progress
from lmtool.model import LanguageModel
from lmtool.model.language_model import evaluation_mode
from lmtool.objective import Loss

BATCH_TOKENS = 16_384
"""Maximum positions of a batch."""

RowLengths = tuple[int, ...]
"""Tokens of an item; several numbers if parts of it are padded separately."""


@dataclass(frozen=True)
class ValidationResult:
    """Validation results of a model. loss: nats per target or row. metrics: by name; higher is better."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: str) -> float:
        """Returns the loss, or one of the metrics."""
        return self.loss if metric == "loss" else self.metrics[metric]


@dataclass(frozen=True)
class EvaluationOutput:
    """Results over all items and all processes.

    total: sum of the losses of all targets. count: number of targets.
    metrics: means, by name. arrays: the array of each item, in order.
    """

    total: float
    count: int
    metrics: dict[str, float]
    arrays: list[NDArray[Any]]

    @property
    def loss(self) -> float:
        """Mean per target; NaN without targets."""
        return self.total / self.count if self.count else math.nan


def group_by_length(lengths: Sequence[RowLengths], max_tokens: int, max_rows: int | None = None) -> Iterator[list[int]]:
    """Groups items by length, to reduce padding. Yields the indices of each group.

    max_tokens: positions of a group, padding included; a longer item is alone. max_rows: items of a group.
    """
    group: list[int] = []
    widest: RowLengths = ()
    for i in sorted(range(len(lengths)), key=lambda i: sum(lengths[i])):
        wider = tuple(map(max, lengths[i], widest)) if group else lengths[i]
        if group and (len(group) == max_rows or (len(group) + 1) * sum(wider) > max_tokens):
            yield group
            group, wider = [], lengths[i]
        group.append(i)
        widest = wider
    if group:
        yield group


def evaluate_items(
    model: LanguageModel,
    lengths: Sequence[RowLengths],
    read: Callable[[list[int]], tuple[Loss | None, Sequence[NDArray[Any]]]],
    compute: ExecutionContext,
    report: Progress = no_progress,
    *,
    metrics: Sequence[str] = (),
    max_tokens: int = BATCH_TOKENS,
    dtype: DTypeLike = np.float64,
    one_pass_per_row: bool = True,
) -> EvaluationOutput:
    """Evaluates a model in evaluation mode; each process computes its share, and all get the same sums.

    Args:
        lengths: length of each item.
        read: computes the summed loss of some items, by their indices, and an array of `dtype` for each; either may be
            omitted, for all items alike.
        report: called with the tokens of this process done and in total, from 0 on.
        metrics: names of the metrics in the losses.
        max_tokens: positions of a batch.
        one_pass_per_row: False if an item is read once for each of its tokens.
    """
    world = compute.world

    def make_batches(rank: int) -> list[list[int]]:
        share = replace(world, rank=rank).own_items(len(lengths))
        return [[share[i] for i in group] for group in group_by_length([lengths[i] for i in share], max_tokens)]

    batches = make_batches(world.rank)
    # a process with fewer batches than another joins that to keep step
    n_idle = max(len(make_batches(rank)) for rank in range(world.size)) - len(batches) if world.is_lockstep else 0
    n_tokens = [sum(sum(lengths[i]) ** (1 if one_pass_per_row else 2) for i in batch) for batch in batches]
    n_all_tokens = sum(n_tokens)
    total = torch.zeros((), dtype=compute.widest_dtype, device=compute.device)
    count = torch.zeros((), dtype=torch.int64, device=compute.device)
    parts = torch.zeros(len(metrics), 2, dtype=compute.widest_dtype, device=compute.device)
    arrays: dict[int, NDArray[Any]] = {}
    done = 0
    # sharded weights are gathered here, and inference tensors could not be trained afterwards
    mode = torch.no_grad if world.is_lockstep else torch.inference_mode
    with evaluation_mode(model):
        report("measuring", done, n_all_tokens)
        for batch, n in zip(batches, n_tokens, strict=True):
            with mode(), compute.autocast():
                loss, new = read(batch)
            if loss is not None:
                total += loss.total
                count += loss.count
                for part, name in zip(parts, metrics, strict=True):
                    part += torch.stack([torch.as_tensor(number).to(part) for number in loss.metrics[name]])
            if new:
                arrays.update(zip(batch, new, strict=True))
            done += n
            report("measuring", done, n_all_tokens)
        for _ in range(n_idle):
            with mode(), compute.autocast():
                read(batches[0][:1] if batches else [0])
    local = (float(total), float(count), float(bool(arrays)), *parts.flatten().tolist())
    nats, n_targets, n_with_arrays, *others = world.all_reduce_sum(local)
    pairs = zip(metrics, others[::2], others[1::2], strict=True)
    means = {name: part / max(1, number) for name, part, number in pairs}
    gathered = world.gather_arrays(arrays, len(lengths), dtype) if n_with_arrays else []
    return EvaluationOutput(nats, int(n_targets), means, gathered)
