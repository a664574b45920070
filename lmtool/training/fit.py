"""The training loop: a generator of steps. Its caller logs, evaluates, samples and saves."""

import math
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.compute.device import Compute
from lmtool.compute.processes import World, peers_may_end
from lmtool.errors import NumericalError, ResourceError
from lmtool.inference.evaluation import by_length
from lmtool.model import DecodeState, LanguageModel
from lmtool.model.language_model import CountingModel
from lmtool.model.layers.stack import recompute_layers
from lmtool.objective import Example, Objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.run.order import hash_key, rank_samples
from lmtool.training.carried import CarriedModel, fresh, rows_of
from lmtool.training.counting import count_part
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import multiplier
from lmtool.training.windows import ExampleSource, Windows

MOST_SKIPPED = 25
"""Consecutive updates that float16 may skip while its loss scale is halved until gradients are finite."""

AVERAGED = 64
"""Steps whose tokens are averaged, where rows have any length."""


@dataclass(frozen=True)
class Step:
    """One step of the optimizer, or of counting, done.

    step: steps done so far. loss: mean over the step's targets, before the update. lr: peak learning rate x schedule.
    grad_norm: before clipping; like lr it is 0 for a model that counts. Where it is not finite, no weight was changed.
    tokens: targets of the step, over all processes. computed: tokens that they computed for it, padding included, which
    depends on micro-batches; see `Objective.count_computed`. seconds: duration of the step. micro_batch: rows computed
    at once. recomputes: activations were recomputed because memory ran out. stop: a stop was requested; the same in
    every process. carried: the initial state of the next step's rows; None unless the recipe carries states.
    """

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens: int
    computed: int
    seconds: float
    micro_batch: int
    stop: bool
    carried: DecodeState | None = None
    recomputes: bool = False


class LossModule(nn.Module):
    """Model and objective as one module, so that gradients can be exchanged while the backward pass runs."""

    def __init__(self, model: LanguageModel, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, before: DecodeState | None = None) -> tuple[Tensor, DecodeState | None]:
        """The summed loss; and, where rows continue from the states `before`, their final states."""
        if before is None:
            return self.objective.loss(self.model, batch).total, None
        carrying = CarriedModel(self.model, before)
        return self.objective.loss(carrying, batch).total, carrying.after


def fit(
    model: LanguageModel,
    objective: Objective,
    optimizers: Optimizers,
    examples: ExampleSource,
    recipe: Recipe,
    compute: Compute,
    world: World,
    *,
    first_step: int = 0,
    micro_batch: int | None = None,
    carried: DecodeState | None = None,
    module: nn.Module | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Step]:
    """Train `model` in place, from `first_step` to the recipe's last, and yield each step when it is done.

    Step n is a function of weights, moments, carried states, recipe and n: samples, dropout and learning rates follow
    from the seed and n.

    micro_batch: rows at once; by default that of the recipe. When out of memory, activations are recomputed where the
    recipe lets them be, else the rows are halved, and the step is repeated; the batch size stays. carried: the final
    states of the step before `first_step`, when the recipe carries states. module: model and objective, where they are
    sharded; replicated in each process when None. A model that counts has no gradient: its steps are one pass over the
    text, see `count_part`.

    Raises NumericalError, before any weight changes, when a loss or gradient is not finite, and ResourceError when one
    row does not fit into memory or another process ends.
    """
    training = recipe.training
    rows = micro_batch or training.rows_at_once(world.size)
    if isinstance(model, CountingModel):
        assert isinstance(examples, Windows)
        for step in range(first_step, training.steps):
            started = time.perf_counter()
            total, count = count_part(model, examples, recipe, step, compute)
            (stops,) = world.sum((float(stop()),), compute)
            seconds = time.perf_counter() - started
            yield Step(step + 1, total / max(1, count), 0.0, 0.0, count, count, seconds, rows, stops > 0)
        return
    if module is None:
        module = world.wrap(LossModule(model, objective), compute)
    loader = _Loader(examples, objective, recipe, world, compute)
    model.train()
    recomputes, n_skipped = False, 0
    if training.recompute == "layers":
        recompute_layers(model)
    threads = torch.get_num_threads()
    if model.step_threads is not None:
        torch.set_num_threads(model.step_threads)
    try:
        for step in range(first_step, training.steps):
            started = time.perf_counter()
            before = None
            if training.carry_state:
                restarts = carried is None or examples.restarts(step)
                before = fresh(model, training.batch_size, compute.device) if restarts else carried
            while True:
                try:
                    batches = loader.batches(step, rows)
                    total, count, carried, n_computed = _accumulate(
                        module, objective, optimizers, batches, before, recipe.seed, step, compute, world
                    )
                    break
                except RuntimeError as error:
                    if not _out_of_memory(error):
                        raise
                    if training.recompute == "auto" and world.size == 1 and recompute_layers(model):
                        recomputes = True
                    else:
                        rows = _halve(rows, world, error)
                # outside of the handler, because the error keeps the tensors of its micro-batch alive
                optimizers.forget_gradients()
                if compute.device.type == "cuda":
                    torch.cuda.empty_cache()
            total, n_targets, n_computed, stops = world.sum((total, count, n_computed, float(stop())), compute)
            n_targets = max(1, n_targets)
            if not math.isfinite(total):
                raise _not_finite("loss", total, step, loader)
            rate = multiplier(recipe.schedule, step, training.steps, recipe.model.d_model)
            # backward passes summed over targets, and the all-reduce averaged over processes
            norm = optimizers.update(rate, world.size / n_targets, training.clip_norm, step)
            n_skipped = 0 if math.isfinite(norm) else n_skipped + 1
            if n_skipped and (not compute.scales_gradients or n_skipped > MOST_SKIPPED):
                raise _not_finite("gradient", norm, step, loader)
            seconds = time.perf_counter() - started
            lr = optimizers.peak_rate * rate
            loss, stopped = total / n_targets, stops > 0
            counts = int(n_targets), int(n_computed)
            yield Step(step + 1, loss, lr, norm, *counts, seconds, rows, stopped, carried, recomputes)
    finally:
        loader.close()
        if model.step_threads is not None:
            torch.set_num_threads(threads)


def _accumulate(
    module: nn.Module,
    objective: Objective,
    optimizers: Optimizers,
    batches: list[Batch],
    before: DecodeState | None,
    seed: int,
    step: int,
    compute: Compute,
    world: World,
) -> tuple[float, int, DecodeState | None, float]:
    """Accumulate the gradients of this process's micro-batches.

    before: the initial states of the rows, if they are carried.
    Returns the summed loss, the number of targets, the final states of the rows, and the number of tokens computed.
    """
    losses, states, count, n_rows = [], [], 0, 0
    for index, batch in enumerate(batches):
        n_before, n_rows = n_rows, n_rows + len(batch.tokens_BT)
        part = None if before is None else rows_of(before, n_before, n_rows)
        torch.manual_seed(hash_key(seed, "step", step, world.rank, index))
        last = index == len(batches) - 1
        with peers_may_end(), nullcontext() if last else world.alone(module):
            with compute.autocast():
                total, after = module(batch.to(compute.device), part)
            optimizers.backward(total)
        losses.append(total.detach())
        states += [] if after is None else [after]
        count += objective.count(batch)
    after = DecodeState.join(states) if states else None
    n_computed = sum(map(objective.count_computed, batches))
    return float(torch.stack(losses).sum(dtype=torch.float32)), count, after, n_computed


class _Loader:
    """Prefetches the batches of the next step while the current one is computed."""

    def __init__(
        self, examples: ExampleSource, objective: Objective, recipe: Recipe, world: World, compute: Compute
    ) -> None:
        self._examples = examples
        self._objective = objective
        self._batch_size = recipe.training.batch_size
        self._micro_tokens = recipe.training.micro_tokens
        self._last_step = recipe.training.steps - 1
        self._world = world
        self._compute = compute
        self._pin = compute.device.type == "cuda"
        self._thread = ThreadPoolExecutor(1)
        self._ahead: dict[tuple[int, int], Future[list[Batch]]] = {}

    def batches(self, step: int, rows: int) -> list[Batch]:
        """The micro-batches of at most `rows` rows that this process computes in `step`.

        Processes in step have the same number: those with fewer divide theirs, as all have the same number of rows.
        """
        ahead = self._ahead.pop((step, rows), None)
        batches = self._read(step, rows) if ahead is None else ahead.result()
        if self._world.in_step and self._micro_tokens is not None:
            most = self._world.most(len(batches), self._compute)
            batches = batches if len(batches) == most else self._read(step, rows, most)
        if step < self._last_step:
            self._ahead = {(step + 1, rows): self._thread.submit(self._read, step + 1, rows)}
        return batches

    def samples(self, step: int) -> NDArray[np.int64]:
        """Sample numbers of this process in `step`."""
        return rank_samples(step, self._batch_size, self._world.rank, self._world.size)

    @property
    def unit(self) -> str:
        """The unit of `documents`."""
        return self._examples.unit

    def documents(self, step: int) -> list[int]:
        """Numbers of the documents in the whole batch of `step`, over all processes."""
        return self._examples.documents(rank_samples(step, self._batch_size))

    def _read(self, step: int, rows: int, least: int = 1) -> list[Batch]:
        found = self._examples.read(self.samples(step))
        done = step / (self._last_step + 1)
        parts = micro_batches(found, rows, self._micro_tokens, least)
        batches = [self._objective.collate(part, done) for part in parts]
        return [batch.pin() for batch in batches] if self._pin else batches

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def tokens_of_a_step(examples: ExampleSource, objective: Objective, recipe: Recipe) -> float:
    """Tokens that a step computes on average, by steps from all over an epoch."""
    training = recipe.training
    n_steps = max(1, examples.per_epoch // training.batch_size)
    steps = np.unique(np.linspace(0, n_steps - 1, AVERAGED).round().astype(int)).tolist()
    rows = training.rows_at_once(1)
    read = (examples.read(rank_samples(step, training.batch_size)) for step in steps)
    parts = (part for found in read for part in micro_batches(found, rows, training.micro_tokens))
    return sum(objective.count_computed(objective.collate(part)) for part in parts) / len(steps)


def micro_batches(examples: list[Example], rows: int, tokens: int | None, least: int = 1) -> list[list[Example]]:
    """Divide a batch into parts of at most `rows` rows and, unless None, `tokens` positions including padding.

    With a limit of tokens rows of similar length are grouped, to reduce padding. least: number of parts, of which a
    batch of as many rows can always be made.
    """
    if tokens is None:
        return [examples[i : i + rows] for i in range(0, len(examples), rows)]
    lengths = [(len(e.tokens), 0 if e.other is None else len(e.other)) for e in examples]
    parts = [[examples[i] for i in group] for group in by_length(lengths, tokens, rows)]
    while len(parts) < least:
        at = max(range(len(parts)), key=lambda i: len(parts[i]))
        middle = len(parts[at]) // 2
        parts[at : at + 1] = parts[at][:middle], parts[at][middle:]
    return parts


def _out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _halve(rows: int, world: World, error: RuntimeError) -> int:
    if rows > 1 and world.size == 1:
        return rows // 2
    fix = "set model.context or model.d_model lower" if rows == 1 else f"set training.micro_batch below {rows}"
    raise ResourceError(f"out of memory with {rows} rows of a batch at once", fix=fix) from error


def _not_finite(what: str, value: float, step: int, loader: _Loader) -> NumericalError:
    documents = loader.documents(step)
    listed = ", ".join(str(number) for number in documents[:8]) + (", ..." if len(documents) > 8 else "")
    return NumericalError(
        f"the {what} of step {step + 1} is {value}; no weight was changed",
        where=f"{loader.unit} {listed} of the training text",
        fix="try a lower optimizer.lr, more schedule.warmup_steps, or training.precision=float32",
    )
