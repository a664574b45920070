"""The evaluation loop: batches items by length under a budget of tokens, and distributes them over all processes."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from lmtool.compute.device import ExecutionContext
from lmtool.compute.processes import World
from lmtool.data.survey import Progress
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
class EvaluationSums:
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


def ignore_progress(stage: str, done: int, total: int) -> None:
    """Does nothing; a default for `report` callbacks."""


class AssignedBatches(NamedTuple):
    """The batches that a process computes, as indices of items, and how many more it has to join to keep step."""

    batches: list[list[int]]
    n_idle: int


@dataclass(frozen=True)
class EvaluationItems:
    """Items on which a model is evaluated.

    lengths: length of each item.
    read: computes the summed loss of some items, by their indices, and an array of `dtype` for each; either may be
        omitted, for all items alike.
    metrics: names of the metrics in the losses.
    tokens: maximum positions of a batch.
    one_pass: False if an item is read once for each of its tokens.
    """

    lengths: Sequence[RowLengths]
    read: Callable[[list[int]], tuple[Loss | None, Sequence[NDArray[Any]]]]
    metrics: Sequence[str] = ()
    tokens: int = BATCH_TOKENS
    dtype: DTypeLike = np.float64
    one_pass: bool = True

    def batches_of_this_process(self, world: World) -> AssignedBatches:
        """Returns the batches that this process computes."""

        def batches_of_rank(rank: int) -> list[list[int]]:
            share = replace(world, rank=rank).own_items(len(self.lengths))
            return [
                [share[i] for i in group] for group in group_by_length([self.lengths[i] for i in share], self.tokens)
            ]

        groups = batches_of_rank(world.rank)
        most = max(len(batches_of_rank(rank)) for rank in range(world.size)) if world.is_lockstep else len(groups)
        return AssignedBatches(groups, most - len(groups))

    def count_tokens(self, group: Sequence[int]) -> int:
        """Returns how many tokens are read for some items."""
        return sum(sum(self.lengths[i]) ** (1 if self.one_pass else 2) for i in group)


def evaluate_items(
    model: LanguageModel, items: EvaluationItems, compute: ExecutionContext, report: Progress = ignore_progress
) -> EvaluationSums:
    """Evaluates a model in evaluation mode; each process computes its share, and all get the same sums.

    report: called with the tokens of this process done and in total, from 0 on.
    """
    groups, n_idle = items.batches_of_this_process(compute.world)
    total = torch.zeros((), dtype=compute.widest_dtype, device=compute.device)
    count = torch.zeros((), dtype=torch.int64, device=compute.device)
    parts = torch.zeros(len(items.metrics), 2, dtype=compute.widest_dtype, device=compute.device)
    arrays: dict[int, NDArray[Any]] = {}
    done, whole = 0, sum(map(items.count_tokens, groups))
    # sharded weights are gathered here, and inference tensors could not be trained afterwards
    mode = torch.no_grad if compute.world.is_lockstep else torch.inference_mode
    with evaluation_mode(model):
        report("measuring", done, whole)
        for group in groups:
            with mode(), compute.autocast():
                loss, new = items.read(group)
            if loss is not None:
                total += loss.total
                count += loss.count
                for part, name in zip(parts, items.metrics, strict=True):
                    part += torch.stack([torch.as_tensor(number).to(part) for number in loss.metrics[name]])
            if new:
                arrays.update(zip(group, new, strict=True))
            done += items.count_tokens(group)
            report("measuring", done, whole)
        for _ in range(n_idle):
            with mode(), compute.autocast():
                items.read(groups[0][:1] if groups else [0])
    local = (float(total), float(count), float(bool(arrays)), *parts.flatten().tolist())
    nats, n_targets, n_with_arrays, *others = compute.world.all_reduce_sum(local)
    pairs = zip(items.metrics, others[::2], others[1::2], strict=True)
    means = {name: part / max(1, number) for name, part, number in pairs}
    gathered = compute.world.gather_arrays(arrays, len(items.lengths), items.dtype) if n_with_arrays else []
    return EvaluationSums(nats, int(n_targets), means, gathered)
