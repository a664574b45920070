"""The training loop: a generator of steps, and what takes them. Its caller logs, evaluates, samples and saves."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import Compute
from lmtool.compute.processes import peers_may_end
from lmtool.errors import NumericalError, ResourceError, UsageError
from lmtool.inference.evaluation import group_by_length
from lmtool.model import DecodeState, LanguageModel
from lmtool.model.heads import Classifier
from lmtool.model.language_model import CountingModel
from lmtool.model.layers.stack import recompute_layers
from lmtool.objective import Example, Objective
from lmtool.objective.contrastive import BatchObjective, cached_gradients, from_gradient
from lmtool.objective.heads import ClassificationObjective, ContrastiveObjective
from lmtool.printable import format_count
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs, Training
from lmtool.run.order import derive_seed, sample_numbers_for_rank
from lmtool.tasks.baseline import METRICS
from lmtool.tasks.labels import LabelKind
from lmtool.training.convex import PLAIN_PENALTY, Fitted, fit_head
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import multiplier
from lmtool.training.truncated_bptt import CarriedModel, fresh, rows_of
from lmtool.training.windows import ExampleSource, Windows

MOST_SKIPPED = 25
"""Consecutive updates that float16 may skip while its loss scale is halved until gradients are finite."""

AVERAGED = 64
"""Steps whose tokens are averaged, where rows have any length."""


@dataclass(frozen=True)
class Step:
    """One step of the optimizer, or of counting, done.

    step: steps done so far.
    loss: mean over the step's targets, before the update.
    lr: peak learning rate x schedule.
    grad_norm: before clipping; where it is not finite, no weight was changed. None, as lr, for a model that is not
        trained by gradients.
    tokens: targets of the step, over all processes.
    computed: tokens that they computed for it, padding included, which depends on micro-batches; see
        `Objective.count_computed`.
    seconds: duration of the step.
    micro_batch: rows computed at once.
    recomputes: activations were recomputed because memory ran out.
    stop: a stop was requested; the same in every process.
    carried: the initial state of the next step's rows; None unless the recipe carries states.
    told: what there is to say of the step, as a line.
    """

    step: int
    loss: float
    lr: float | None
    grad_norm: float | None
    tokens: int
    computed: int
    seconds: float
    micro_batch: int
    stop: bool
    carried: DecodeState | None = None
    recomputes: bool = False
    told: str = ""


class LossModule(nn.Module):
    """Model and objective as one module, so that gradients can be exchanged while the backward pass runs."""

    def __init__(self, model: LanguageModel, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(
        self, batch: Batch, before: DecodeState | None = None, gradient_NKD: Tensor | None = None
    ) -> tuple[Tensor, DecodeState | None]:
        """The summed loss; and, where rows continue from the states `before`, their final states.

        gradient_NKD: that of the loss of a batch, of which this is a part, in the vectors of these rows.
        """
        if gradient_NKD is not None:
            assert isinstance(self.objective, BatchObjective)
            return from_gradient(self.objective.vectors(self.model, batch), gradient_NKD), None
        if before is None:
            return self.objective.loss(self.model, batch).total, None
        carrying = CarriedModel(self.model, before)
        return self.objective.loss(carrying, batch).total, carrying.after


@dataclass(frozen=True)
class Trainable:
    """What is trained, and how.

    model: trained in place.
    objective: with its teacher, if it has one.
    optimizers: of the model's weights.
    module: model and objective, where they are sharded; replicated in each process when None.
    """

    model: LanguageModel
    objective: Objective
    optimizers: Optimizers
    module: nn.Module | None = None


def never() -> bool:
    """No stop is requested."""
    return False


def fit(
    trainable: Trainable,
    examples: ExampleSource,
    recipe: Recipe,
    compute: Compute,
    *,
    done: int = 0,
    micro_batch: int | None = None,
    carried: DecodeState | None = None,
    stop: Callable[[], bool] = never,
) -> Generator[Step]:
    """Train a model in place, up to the recipe's last step, and yield each step when it is done.

    done: steps before. micro_batch: rows at once; by default that of the recipe. carried: the final states of the last
    step before, when the recipe carries states.

    Step n is a function of weights, moments, carried states, recipe and n: samples, dropout and learning rates follow
    from the seed and n. When out of memory, activations are recomputed where the recipe lets them be, else the rows
    computed at once are halved, and the step is repeated; the batch size stays.

    Raises NumericalError, before any weight changes, when a loss or gradient is not finite, and ResourceError when one
    row does not fit into memory or another process ends; UsageError when all text is counted.
    """
    rows = micro_batch or recipe.training.rows_per_process(compute.world.size)
    with _stepper(trainable, examples, recipe, compute, rows, carried) as stepper:
        for step in range(done, recipe.training.steps):
            yield stepper.take(step, stop)


class Stepper(ABC):
    """Something that takes the steps of a training, as a context in which it does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Free what was held for the steps."""
        return

    @abstractmethod
    def take(self, step: int, stop: Callable[[], bool]) -> Step:
        """Take the step after the first `step` ones, and ask whether to stop."""


def _stepper(
    trainable: Trainable,
    examples: ExampleSource,
    recipe: Recipe,
    compute: Compute,
    rows: int,
    carried: DecodeState | None,
) -> Stepper:
    """What takes the steps of a model with its objective and optimizer."""
    if isinstance(trainable.model, CountingModel):
        assert isinstance(examples, Windows)
        return CountingSteps(trainable.model, examples, recipe, compute, rows)
    if isinstance(recipe.optimizer, Lbfgs):
        return FittedHead(trainable, examples, recipe, compute, recipe.optimizer.l2)
    if isinstance(trainable.objective, ContrastiveObjective):
        return ContrastiveSteps(trainable, examples, recipe, compute, rows, carried)
    return GradientSteps(trainable, examples, recipe, compute, rows, carried)


@dataclass(frozen=True)
class FittedHead(Stepper):
    """A step fits a head to all rows, by L-BFGS; each process does so."""

    trainable: Trainable
    examples: ExampleSource
    recipe: Recipe
    compute: Compute
    l2: float | None

    def take(self, step: int, stop: Callable[[], bool]) -> Step:
        started = time.perf_counter()
        fitted, told, computed = _fit_head(self.trainable, self.examples, self.recipe, self.l2)
        (stops,) = self.compute.world.sum((float(stop()),))
        return Step(
            step=step + 1,
            loss=fitted.loss,
            lr=None,
            grad_norm=None,
            tokens=fitted.n_rows,
            computed=computed,
            seconds=time.perf_counter() - started,
            micro_batch=self.recipe.training.batch_size,
            stop=stops > 0,
            told=told,
        )


def _fit_head(
    trainable: Trainable, examples: ExampleSource, recipe: Recipe, l2: float | None
) -> tuple[Fitted, str, int]:
    """Fit a head to all rows: the result, its line, and what was computed."""
    model, objective, rows = cast(Classifier, trainable.model), trainable.objective, recipe.training.batch_size
    every = examples.read(np.arange(examples.per_epoch))
    batches = [objective.collate(part) for part in micro_batches(every, rows, recipe.training.micro_tokens)]
    assert isinstance(objective, ClassificationObjective)
    fitted = fit_head(model, objective, batches, l2, recipe.seed)
    told = fitted.line(METRICS[cast(LabelKind, objective.spec.task)])
    return fitted, told, sum(map(objective.count_computed, batches))


def validates(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a validation."""
    return step % recipe.evaluation.every == 0 or step == recipe.training.steps


@dataclass(frozen=True)
class CountingSteps(Stepper):
    """A step counts the next part of the text; all steps together are one pass over it, in order.

    Every process counts everything, since each needs all the counts. rows: of `context` tokens, read at once.
    """

    model: CountingModel
    examples: Windows
    recipe: Recipe
    compute: Compute
    rows: int

    def take(self, step: int, stop: Callable[[], bool]) -> Step:
        """Its loss is the mean of -log p of the part's targets under the counts before it.

        Raises UsageError when the text is exhausted.
        """
        started, model, training = time.perf_counter(), self.model, self.recipe.training
        begin = int(model.n_read)
        left = self.examples.n_tokens - begin
        if not left:
            what = f"the whole text was counted in {format_count(step, 'step')}, and a token may be counted only once"
            raise UsageError(what, where="training.steps", fix=f"set it to {step}, or start a new run")
        end = begin + max(1, left // (training.steps - step))
        at_once = training.batch_size * self.recipe.model.context
        nats, n_targets = 0.0, 0

        def batches() -> Iterator[Batch]:
            nonlocal nats, n_targets
            for first in range(begin, end, at_once):
                part = self.examples.in_order(first, min(end, first + at_once), model.width)
                batch = part.to(self.compute.device)
                nats += _nats(model, batch)
                n_targets += batch.n_targets
                yield batch

        model.count(batches(), end - begin)
        (stops,) = self.compute.world.sum((float(stop()),))
        return Step(
            step=step + 1,
            loss=nats / max(1, n_targets),
            lr=None,
            grad_norm=None,
            tokens=n_targets,
            computed=n_targets,
            seconds=time.perf_counter() - started,
            micro_batch=self.rows,
            stop=stops > 0,
        )


@torch.no_grad()
def _nats(model: CountingModel, batch: Batch) -> float:
    """Sum of -log p over the targets."""
    targets_BT = batch.required_targets_BT
    scored_BT = targets_BT != IGNORE
    return -float(model.log_p(model(batch).hidden_BTD[scored_BT], targets_BT[scored_BT]).sum())


class GradientSteps(Stepper):
    """A step is one of the optimizer. What it has between two steps, besides weights and moments."""

    def __init__(
        self,
        trainable: Trainable,
        examples: ExampleSource,
        recipe: Recipe,
        compute: Compute,
        rows: int,
        carried: DecodeState | None,
    ) -> None:
        """rows: computed at once. carried: the final states of the step before."""
        self.trainable = trainable
        self.model, self.objective, self.optimizers = trainable.model, trainable.objective, trainable.optimizers
        self.examples, self.recipe, self.compute, self.world = examples, recipe, compute, compute.world
        module = trainable.module
        self.module = self.world.wrap(LossModule(self.model, self.objective)) if module is None else module
        self.loader = _Loader(examples, self.objective, recipe.training, compute)
        self.rows, self.carried = rows, carried
        self.recomputes, self.n_skipped = False, 0
        self.model.train()
        if recipe.training.recompute == "layers":
            recompute_layers(self.model)
        self.threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self.model.step_threads is not None:
            torch.set_num_threads(self.model.step_threads)
        return self

    def __exit__(self, *error: object) -> None:
        self.loader.close()
        if self.model.step_threads is not None:
            torch.set_num_threads(self.threads)

    def take(self, step: int, stop: Callable[[], bool]) -> Step:
        started = time.perf_counter()
        training, compute, before = self.recipe.training, self.compute, None
        if training.carry_state:
            restarts = self.carried is None or self.examples.restarts(step)
            before = fresh(self.model, training.batch_size, compute.device) if restarts else self.carried
        total, count, n_computed = self._gradients(step, before)
        total, n_targets, n_computed, stops = self.world.sum((total, count, n_computed, float(stop())))
        n_targets = max(1, n_targets)
        if not math.isfinite(total):
            raise self._not_finite("loss", total, step)
        rate = multiplier(self.recipe.schedule, step, training.steps, self.recipe.model.d_model)
        # backward passes summed over targets, and the all-reduce averaged over processes
        norm = self.optimizers.update(rate, self.world.size / n_targets, training.clip_norm, step)
        self.n_skipped = 0 if math.isfinite(norm) else self.n_skipped + 1
        if self.n_skipped and (not compute.scales_gradients or self.n_skipped > MOST_SKIPPED):
            raise self._not_finite("gradient", norm, step)
        return Step(
            step=step + 1,
            loss=total / n_targets,
            lr=self.optimizers.peak_rate * rate,
            grad_norm=norm,
            tokens=int(n_targets),
            computed=int(n_computed),
            seconds=time.perf_counter() - started,
            micro_batch=self.rows,
            stop=stops > 0,
            carried=self.carried,
            recomputes=self.recomputes,
        )

    def _gradients(self, step: int, before: DecodeState | None) -> tuple[float, int, float]:
        """As `_accumulate`, again with less memory where it was short."""
        while True:
            try:
                return self._accumulate(step, before)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                    raise
                alone = self.world.size == 1
                if self.recipe.training.recompute == "auto" and alone and recompute_layers(self.model):
                    self.recomputes = True
                elif self.rows > 1 and alone:
                    self.rows //= 2
                else:
                    fewer = f"set training.micro_batch below {self.rows}"
                    fix = "set model.context or model.d_model lower" if self.rows == 1 else fewer
                    what = f"out of memory with {format_count(self.rows, 'row')} of a batch at once"
                    raise ResourceError(what, fix=fix) from error
            # outside of the handler, because the error keeps the tensors of its micro-batch alive
            self.optimizers.forget_gradients()
            if self.compute.device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate(self, step: int, before: DecodeState | None) -> tuple[float, int, float]:
        """Accumulate the gradients of this process's micro-batches, and keep the final states of the rows.

        before: the initial states of the rows, if they are carried.
        Returns the summed loss, the number of targets, and the number of tokens computed.
        """
        losses, states, count, n_rows = [], [], 0, 0
        batches = self.loader.batches(step, self.rows)
        whole, gradients = self._of_whole_batch(step, batches)
        for index, batch in enumerate(batches):
            n_before, n_rows = n_rows, n_rows + len(batch.tokens_BT)
            part = None if before is None else rows_of(before, n_before, n_rows)
            self._seed(step, index)
            last = index == len(batches) - 1
            with peers_may_end(), nullcontext() if last else self.world.alone(self.module):
                with self.compute.autocast():
                    total, after = self.module(batch.to(self.compute.device), part, gradients[index])
                self.optimizers.backward(total)
            losses.append(total.detach())
            states += [] if after is None else [after]
            count += self.objective.count(batch)
        self.carried = DecodeState.join(states) if states else None
        n_computed = sum(map(self.objective.count_computed, batches))
        total = torch.stack(losses).sum(dtype=torch.float32) if whole is None else whole
        return float(total), count, n_computed

    def _of_whole_batch(self, step: int, batches: Sequence[Batch]) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """This process's share of a loss that is of all rows of a batch at once, and its gradients; see
        `BatchObjective`. None where each micro-batch has a loss of its own."""
        objective, is_whole = self.objective, len(batches) == self.world.size == 1
        if is_whole or not isinstance(objective, BatchObjective):
            return None, [None] * len(batches)
        vectors, on_device = [], [batch.to(self.compute.device) for batch in batches]
        for index, batch in enumerate(on_device):
            self._seed(step, index)
            with self.compute.autocast():
                # with a graph, which is freed at once, since kernels without one may draw other dropout
                vectors.append(objective.vectors(self.model, batch).detached())
        return cached_gradients(objective, vectors, [objective.answers(batch) for batch in on_device], self.world)

    def _seed(self, step: int, index: int) -> None:
        """Begin the random numbers of a micro-batch, such as those of dropout."""
        torch.manual_seed(derive_seed(self.recipe.seed, "step", step, self.world.rank, index))

    def _not_finite(self, what: str, value: float, step: int) -> NumericalError:
        documents = self.examples.documents(sample_numbers_for_rank(step, self.recipe.training.batch_size))
        listed = ", ".join(str(number) for number in documents[:8]) + (", ..." if len(documents) > 8 else "")
        return NumericalError(
            f"the {what} of step {step + 1} is {value}; no weight was changed",
            where=f"{self.examples.unit} {listed} of the training text",
            fix="try a lower optimizer.lr, more schedule.warmup_steps, or training.precision=float32",
        )


class ContrastiveSteps(GradientSteps):
    """Steps that train vectors, to which a head is fitted before each validation."""

    def take(self, step: int, stop: Callable[[], bool]) -> Step:
        done = super().take(step, stop)
        if not validates(self.recipe, done.step):
            return done
        told = _fit_head(self.trainable, self.examples, self.recipe, PLAIN_PENALTY)[1]
        return replace(done, told=told if done.step == self.recipe.training.steps else "")


@dataclass
class _Loader:
    """Prefetches the batches of the next step while the current one is computed."""

    examples: ExampleSource
    objective: Objective
    training: Training
    compute: Compute
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _ahead: dict[tuple[int, int], Future[list[Batch]]] = field(default_factory=dict)

    def batches(self, step: int, rows: int) -> list[Batch]:
        """The micro-batches of at most `rows` rows that this process computes in `step`.

        Processes in step have the same number: those with fewer divide theirs, as all have the same number of rows.
        """
        ahead = self._ahead.pop((step, rows), None)
        batches = self._read(step, rows) if ahead is None else ahead.result()
        if self.compute.world.in_step and self.training.micro_tokens is not None:
            most = self.compute.world.most(len(batches))
            batches = batches if len(batches) == most else self._read(step, rows, most)
        if step + 1 < self.training.steps:
            self._ahead = {(step + 1, rows): self._thread.submit(self._read, step + 1, rows)}
        return batches

    def _read(self, step: int, rows: int, least: int = 1) -> list[Batch]:
        training, world = self.training, self.compute.world
        examples = self.examples.read(sample_numbers_for_rank(step, training.batch_size, world.rank, world.size))
        parts = micro_batches(examples, rows, training.micro_tokens, least)
        batches = [self.objective.collate(part, step / training.steps) for part in parts]
        return [batch.pin() for batch in batches] if self.compute.device.type == "cuda" else batches

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def tokens_of_a_step(examples: ExampleSource, objective: Objective, recipe: Recipe) -> float:
    """Tokens that a step computes on average, by steps from all over an epoch."""
    training = recipe.training
    n_steps = max(1, examples.per_epoch // training.batch_size)
    steps = np.unique(np.linspace(0, n_steps - 1, AVERAGED).round().astype(int)).tolist()
    rows = training.rows_per_process(1)
    read = (examples.read(sample_numbers_for_rank(step, training.batch_size)) for step in steps)
    parts = (part for batch in read for part in micro_batches(batch, rows, training.micro_tokens))
    return sum(objective.count_computed(objective.collate(part)) for part in parts) / len(steps)


def micro_batches(examples: list[Example], rows: int, tokens: int | None, least: int = 1) -> list[list[Example]]:
    """Divide a batch into parts of at most `rows` rows and, unless None, `tokens` positions including padding.

    With a limit of tokens rows of similar length are grouped, to reduce padding. least: number of parts, of which a
    batch of as many rows can always be made.
    """
    if tokens is None:
        return [examples[i : i + rows] for i in range(0, len(examples), rows)]
    lengths = [(len(e.tokens), 0 if e.other is None else len(e.other)) for e in examples]
    parts = [[examples[i] for i in group] for group in group_by_length(lengths, tokens, rows)]
    while len(parts) < least:
        at = max(range(len(parts)), key=lambda i: len(parts[i]))
        middle = len(parts[at]) // 2
        parts[at : at + 1] = parts[at][:middle], parts[at][middle:]
    return parts
