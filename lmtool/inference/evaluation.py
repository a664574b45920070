"""The evaluation loop: items batched by length under a budget of tokens, distributed over all processes.

Validation, `eval`, `predict` and `embed` use it, each with a `read` of its own.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.data.survey import Progress
from lmtool.model import LanguageModel
from lmtool.model.language_model import evaluating
from lmtool.objective import Loss

BATCH_TOKENS = 16_384
"""Positions computed at once."""

RowLengths = tuple[int, ...]
"""Tokens of an item; several numbers where parts of it are padded separately."""


@dataclass(frozen=True)
class Validation:
    """Loss and metrics of a model. loss: nats per target or row. metrics: by name, higher is better."""

    loss: float
    metrics: Mapping[str, float] = field(default_factory=dict)

    def value(self, metric: str) -> float:
        """The loss, or one of the metrics."""
        return self.loss if metric == "loss" else self.metrics[metric]


@dataclass(frozen=True)
class Evaluated:
    """Sums over all items and all processes, and the array of each item, in the order of the items.

    total: of the losses of all targets.
    count: of targets.
    metrics: means, by name.
    """

    total: float
    count: int
    metrics: dict[str, float]
    arrays: list[NDArray[Any]]

    @property
    def loss(self) -> float:
        """Mean per target; NaN without targets."""
        return self.total / self.count if self.count else math.nan


def by_length(lengths: Sequence[RowLengths], tokens: int, rows: int | None = None) -> Iterator[list[int]]:
    """Indices of items grouped by length, to reduce padding.

    tokens: most positions of a group, padding included; an item above it is alone. rows: most items of a group.
    """
    group: list[int] = []
    widest: RowLengths = ()
    for i in sorted(range(len(lengths)), key=lambda i: sum(lengths[i])):
        wider = tuple(map(max, lengths[i], widest)) if group else lengths[i]
        if group and (len(group) == rows or (len(group) + 1) * sum(wider) > tokens):
            yield group
            group, wider = [], lengths[i]
        group.append(i)
        widest = wider
    if group:
        yield group


def not_reported(stage: str, done: int, total: int) -> None:
    """A report that does nothing."""


@dataclass(frozen=True)
class Items:
    """What a model is evaluated on.

    lengths: of each item.
    read: from the indices of some items, their summed loss and an array of `dtype` for each; either may be omitted, the
        same for all.
    metrics: names of those in the losses.
    tokens: positions computed at once.
    one_pass: False where an item is read once for each of its tokens.
    """

    lengths: Sequence[RowLengths]
    read: Callable[[list[int]], tuple[Loss | None, Sequence[NDArray[Any]]]]
    metrics: Sequence[str] = ()
    tokens: int = BATCH_TOKENS
    dtype: DTypeLike = np.float64
    one_pass: bool = True

    def groups(self, world: World) -> tuple[list[list[int]], int]:
        """The items of each batch of this process; and how many more it computes for others that it is in step with."""

        def of(rank: int) -> list[list[int]]:
            share = replace(world, rank=rank).share(len(self.lengths))
            return [[share[i] for i in group] for group in by_length([self.lengths[i] for i in share], self.tokens)]

        groups = of(world.rank)
        most = max(len(of(rank)) for rank in range(world.size)) if world.in_step else len(groups)
        return groups, most - len(groups)

    def size(self, group: Sequence[int]) -> int:
        """Tokens that are read of some items."""
        return sum(sum(self.lengths[i]) ** (1 if self.one_pass else 2) for i in group)


def evaluate(model: LanguageModel, items: Items, compute: Compute, report: Progress = not_reported) -> Evaluated:
    """Evaluate a model; each process computes its share, and all get the same sums.

    report: called with the tokens of this process done and in total, from 0 on.

    The model is in evaluation mode, and computes in the precision of `compute`.
    """
    groups, n_idle = items.groups(compute.world)
    total = torch.zeros((), dtype=compute.sum_dtype, device=compute.device)
    count = torch.zeros((), dtype=torch.int64, device=compute.device)
    parts = torch.zeros(len(items.metrics), 2, dtype=compute.sum_dtype, device=compute.device)
    arrays: dict[int, NDArray[Any]] = {}
    done, whole = 0, sum(map(items.size, groups))
    # weights that processes share are gathered in here, and tensors of inference mode would stay useless for training
    mode = torch.no_grad if compute.world.in_step else torch.inference_mode
    with evaluating(model):
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
            done += items.size(group)
            report("measuring", done, whole)
        for _ in range(n_idle):
            with mode(), compute.autocast():
                items.read(groups[0][:1] if groups else [0])
    local = (float(total), float(count), float(bool(arrays)), *parts.flatten().tolist())
    nats, n_targets, n_with_arrays, *others = compute.world.sum(local)
    pairs = zip(items.metrics, others[::2], others[1::2], strict=True)
    means = {name: part / max(1, number) for name, part, number in pairs}
    gathered = compute.world.gather(arrays, len(items.lengths), items.dtype) if n_with_arrays else []
    return Evaluated(nats, int(n_targets), means, gathered)
