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
from lmtool.model import LanguageModel
from lmtool.objective import Loss
from lmtool.text.survey import Report

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

    total: of the losses of all targets. count: of targets. metrics: means, by name.
    """

    total: float
    count: int
    metrics: dict[str, float]
    found: list[NDArray[Any]]

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


def evaluate(
    model: LanguageModel,
    lengths: Sequence[RowLengths],
    read: Callable[[list[int]], tuple[Loss | None, Sequence[NDArray[Any]]]],
    compute: Compute,
    world: World = World(),  # noqa: B008 - it is frozen
    *,
    metrics: Sequence[str] = (),
    tokens: int = BATCH_TOKENS,
    dtype: DTypeLike = np.float64,
    report: Report = not_reported,
) -> Evaluated:
    """Evaluate a model on items of these lengths; each process computes its share, and all get the same sums.

    read: from the indices of some items, their summed loss and an array of `dtype` for each; either may be omitted,
        the same for all. metrics: names of those in the losses. tokens: positions computed at once.
    report: called with the tokens of this process done and in total.

    The model is in evaluation mode, and computes in the precision of `compute`.
    """
    was_training = model.training
    model.eval()
    groups, n_idle = _groups(lengths, tokens, world)
    total = torch.zeros((), dtype=compute.sum_dtype, device=compute.device)
    count = torch.zeros((), dtype=torch.int64, device=compute.device)
    parts = torch.zeros(len(metrics), 2, dtype=compute.sum_dtype, device=compute.device)
    found: dict[int, NDArray[Any]] = {}
    done, whole = 0, sum(sum(lengths[i]) for items in groups for i in items)
    # weights that processes share are gathered in here, and tensors of inference mode would stay useless for training
    mode = torch.no_grad if world.in_step else torch.inference_mode
    try:
        for items in groups:
            with mode(), compute.autocast():
                loss, arrays = read(items)
            if loss is not None:
                total += loss.total
                count += loss.count
                for part, name in zip(parts, metrics, strict=True):
                    part += torch.stack([torch.as_tensor(number).to(part) for number in loss.metrics[name]])
            if arrays:
                found.update(zip(items, arrays, strict=True))
            done += sum(sum(lengths[i]) for i in items)
            report("measuring", done, whole)
        for _ in range(n_idle):
            with mode(), compute.autocast():
                read(groups[0][:1] if groups else [0])
    finally:
        model.train(was_training)
    own_sums = (float(total), float(count), float(bool(found)), *parts.flatten().tolist())
    nats, n_targets, n_finders, *others = world.sum(own_sums, compute)
    pairs = zip(metrics, others[::2], others[1::2], strict=True)
    means = {name: part / max(1, number) for name, part, number in pairs}
    gathered = world.gather(found, len(lengths), dtype, compute) if n_finders else []
    return Evaluated(nats, int(n_targets), means, gathered)


def _groups(lengths: Sequence[RowLengths], tokens: int, world: World) -> tuple[list[list[int]], int]:
    """The items of each batch of this process; and how many more it computes for others, with which it is in step."""

    def of(rank: int) -> list[list[int]]:
        share = replace(world, rank=rank).share(len(lengths))
        return [[share[i] for i in group] for group in by_length([lengths[i] for i in share], tokens)]

    own = of(world.rank)
    most = max(len(of(rank)) for rank in range(world.size)) if world.in_step else len(own)
    return own, most - len(own)
