"""The training loop: a generator of steps. Its caller logs, evaluates, samples and saves."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple, Self, cast

import numpy as np
import torch
from torch import Tensor, nn

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import ExecutionContext
from lmtool.compute.processes import convert_peer_errors
from lmtool.data.order import derive_seed, sample_numbers_for_rank
from lmtool.errors import NumericalError, ResourceError, UsageError
from lmtool.evaluation.loop import group_by_length
from lmtool.model import DecodeState, LanguageModel
from lmtool.model.heads import Classifier
from lmtool.model.language_model import CountingModel
from lmtool.model.layers.stack import enable_activation_recomputation_
from lmtool.objective import Example, Objective
from lmtool.objective.contrastive import (
    LossWithVectorGradients,
    WholeBatchObjective,
    compute_vector_gradients,
    surrogate_loss,
)
from lmtool.objective.heads import ClassificationObjective, SetFitObjective
from lmtool.printable import format_count
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs, Training
from lmtool.training.convex import CONTRASTIVE_PENALTY, fit_head_and_layer_mix_
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import learning_rate_factor
from lmtool.training.truncated_bptt import StateCarryingModel, make_initial_state
from lmtool.training.windows import ExampleSource, Windows

MAX_SKIPPED_UPDATES = 25
"""Maximum consecutive updates that float16 may skip while it halves its loss scale until gradients are finite."""

N_AVERAGED_STEPS = 64
"""Steps whose tokens are averaged if rows have different lengths."""


@dataclass(frozen=True)
class CompletedStep:
    """A completed step of the optimizer, or of counting.

    step: number of completed steps.
    loss: mean over the step's targets, before the update.
    lr: peak learning rate x schedule.
    grad_norm: before clipping; if it is not finite, no weight was changed. None, as lr, for a model that is not trained
        by gradients.
    tokens: targets of the step, over all processes.
    n_computed: tokens computed, over all processes, with padding, which depends on micro-batches; see
        `Objective.count_computed_units`.
    seconds: duration of the step.
    micro_batch: rows computed at once.
    recomputes: activations were recomputed because memory ran out.
    stop: a stop was requested; the same in every process.
    carried_state: initial state of the next step's rows; None unless the recipe carries states.
    message: a line for the user, or empty.
    """

    step: int
    loss: float
    lr: float | None
    grad_norm: float | None
    tokens: int
    n_computed: int
    seconds: float
    micro_batch: int
    stop: bool
    carried_state: DecodeState | None = None
    recomputes: bool = False
    message: str = ""


class LossModule(nn.Module):
    """Model and objective as one module, so that gradients can be exchanged while the backward pass runs."""

    def __init__(self, model: LanguageModel, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(
        self, batch: Batch, initial_state: DecodeState | None = None, vector_gradient_NKD: Tensor | None = None
    ) -> tuple[Tensor, DecodeState | None]:
        """Returns the summed loss, and the final states of the rows if they continue from an initial state.

        vector_gradient_NKD: gradient of the loss of the whole batch with respect to the vectors of these rows, if its
        rows have a loss in common.
        """
        if vector_gradient_NKD is not None:
            assert isinstance(self.objective, WholeBatchObjective)
            return surrogate_loss(self.objective.embed_texts_by_row(self.model, batch), vector_gradient_NKD), None
        if initial_state is None:
            return self.objective.loss(self.model, batch).total, None
        carrying = StateCarryingModel(self.model, initial_state)
        return self.objective.loss(carrying, batch).total, carrying.final_state


@dataclass(frozen=True)
class ModelAndOptimizers:
    """A model with everything that trains it.

    model: trained in place.
    objective: with its teacher, if it has one.
    optimizers: of the model's weights.
    module: the sharded model with its objective; None if each process has a replica.
    """

    model: LanguageModel
    objective: Objective
    optimizers: Optimizers
    module: nn.Module | None = None


def fit(
    trainable: ModelAndOptimizers,
    examples: ExampleSource,
    recipe: Recipe,
    compute: ExecutionContext,
    *,
    steps_done: int = 0,
    micro_batch: int | None = None,
    carried_state: DecodeState | None = None,
    is_stop_requested: Callable[[], bool] = lambda: False,
) -> Generator[CompletedStep]:
    """Trains a model in place up to the recipe's last step, and yields each completed step.

    steps_done: steps completed before. micro_batch: rows computed at once; by default that of the recipe.
    carried_state: the final states of the step before, if the recipe carries states.
    is_stop_requested: asked after each step; see `CompletedStep.stop`.

    Step n is a function of weights, moments, carried states, recipe and n: samples, dropout and learning rates follow
    from the seed and n. When memory runs out, activations are recomputed if the recipe allows it, else the rows
    computed at once are halved, and the step is repeated; the batch size stays.

    Raises NumericalError, before any weight changes, when a loss or gradient is not finite, and ResourceError when one
    row does not fit into memory or another process ends; UsageError when all text is counted.
    """
    rows = micro_batch or recipe.training.rows_per_process(compute.world.size)
    model, optimizer = trainable.model, recipe.optimizer
    with ExitStack() as stack:
        # of the number of steps done, and is_stop_requested
        take_step: Callable[[int, Callable[[], bool]], CompletedStep]
        if isinstance(model, CountingModel):
            assert isinstance(examples, Windows)
            take_step = partial(_count_next_part_, model, examples, recipe, compute, rows)
        elif isinstance(optimizer, Lbfgs):
            take_step = partial(_fit_head_to_all_rows_, trainable, examples, recipe, compute, optimizer.l2)
        else:
            contrasts = isinstance(trainable.objective, SetFitObjective)
            make_stepper = ContrastiveStepperWithHeadFitting if contrasts else GradientStepper
            stepper = make_stepper(trainable, examples, recipe, compute, rows, carried_state)
            take_step = stack.enter_context(stepper).take_step
        for step in range(steps_done, recipe.training.steps):
            yield take_step(step, is_stop_requested)


def _collate_all_rows(objective: Objective, examples: ExampleSource, recipe: Recipe) -> list[Batch]:
    """Returns all rows of a table, as batches."""
    all_examples = examples.read(np.arange(examples.examples_per_epoch))
    parts = split_into_micro_batches(all_examples, recipe.training.batch_size, recipe.training.micro_tokens)
    return [objective.collate(part) for part in parts]


def _fit_head_to_all_rows_(
    trainable: ModelAndOptimizers,
    examples: ExampleSource,
    recipe: Recipe,
    compute: ExecutionContext,
    l2: float | None,
    step: int,
    is_stop_requested: Callable[[], bool],
) -> CompletedStep:
    """Fits a head to all rows, by L-BFGS, which is one step. Every process fits the same head."""
    started, objective = time.perf_counter(), cast(ClassificationObjective, trainable.objective)
    batches = _collate_all_rows(objective, examples, recipe)
    fitted = fit_head_and_layer_mix_(cast(Classifier, trainable.model), objective, batches, l2, recipe.seed)
    (stops,) = compute.world.all_reduce_sum((float(is_stop_requested()),))
    return CompletedStep(
        step=step + 1,
        loss=fitted.loss,
        lr=None,
        grad_norm=None,
        tokens=fitted.n_rows,
        n_computed=sum(map(objective.count_computed_units, batches)),
        seconds=time.perf_counter() - started,
        micro_batch=recipe.training.batch_size,
        stop=stops > 0,
        message=fitted.describe(),
    )


def is_validation_step(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a validation by the recipe."""
    return step % recipe.evaluation.every == 0 or step == recipe.training.steps


def is_checkpoint_step(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a checkpoint by the recipe."""
    return is_validation_step(recipe, step) or step % recipe.checkpoint.every == 0


def _count_next_part_(
    model: CountingModel,
    examples: Windows,
    recipe: Recipe,
    compute: ExecutionContext,
    micro_batch_rows: int,
    step: int,
    is_stop_requested: Callable[[], bool],
) -> CompletedStep:
    """Counts the next part of the text; all steps together are one pass over it, in order.

    Every process counts all of it, since each needs all counts. The loss is the mean of -log p of the targets under the
    counts before this part. micro_batch_rows: only reported in the step.

    Raises UsageError when the text is exhausted.
    """
    started, training = time.perf_counter(), recipe.training
    begin = int(model.n_read)
    left = examples.n_tokens - begin
    if not left:
        what = f"the whole text was counted in {format_count(step, 'step')}, and a token may be counted only once"
        raise UsageError(what, where="training.steps", fix=f"set it to {step}, or start a new run")
    end = begin + max(1, left // (training.steps - step))
    at_once = training.batch_size * recipe.model.context
    nats, n_targets = 0.0, 0

    def batches() -> Iterator[Batch]:
        nonlocal nats, n_targets
        for first in range(begin, end, at_once):
            batch = examples.read_span(first, min(end, first + at_once), model.n_context_tokens).to(compute.device)
            targets_BT = batch.required_targets_BT
            scored_BT = targets_BT != IGNORE
            with torch.no_grad():
                log_p_M = model.token_log_probs(model(batch).hidden_BTD[scored_BT], targets_BT[scored_BT])
            nats -= float(log_p_M.sum())
            n_targets += batch.n_targets
            yield batch

    model.partial_fit_(batches(), end - begin)
    (stops,) = compute.world.all_reduce_sum((float(is_stop_requested()),))
    return CompletedStep(
        step=step + 1,
        loss=nats / max(1, n_targets),
        lr=None,
        grad_norm=None,
        tokens=n_targets,
        n_computed=n_targets,
        seconds=time.perf_counter() - started,
        micro_batch=micro_batch_rows,
        stop=stops > 0,
    )


class AccumulatedLossWithCounts(NamedTuple):
    """The loss of this process's rows, whose gradients are accumulated: as a sum over targets, and their number.

    n_computed: computed units, see `Objective.count_computed_units`.
    """

    total: float
    n_targets: int
    n_computed: float


class GradientStepper:
    """A context that takes steps, each of which updates the weights by the gradient of a batch."""

    def __init__(
        self,
        trainable: ModelAndOptimizers,
        examples: ExampleSource,
        recipe: Recipe,
        compute: ExecutionContext,
        rows: int,
        carried_state: DecodeState | None,
    ) -> None:
        """rows: computed at once. carried_state: the final states of the step before."""
        self.model, self.objective, self.optimizers = trainable.model, trainable.objective, trainable.optimizers
        self.examples, self.recipe, self.compute, self.world = examples, recipe, compute, compute.world
        module = trainable.module
        if module is None:
            module = self.world.wrap_data_parallel(LossModule(self.model, self.objective))
        self.module = module
        self.prefetcher = _BatchPrefetcher(examples, self.objective, recipe.training, compute)
        self.rows, self.carried_state = rows, carried_state
        self.recomputes, self.n_skipped = False, 0
        self.model.train()
        if recipe.training.recompute == "layers":
            enable_activation_recomputation_(self.model)
        self.threads = torch.get_num_threads()

    def __enter__(self) -> Self:
        if self.model.step_threads is not None:
            torch.set_num_threads(self.model.step_threads)
        return self

    def __exit__(self, *error: object) -> None:
        self.prefetcher.close()
        if self.model.step_threads is not None:
            torch.set_num_threads(self.threads)

    def take_step(self, step: int, is_stop_requested: Callable[[], bool]) -> CompletedStep:
        """Takes the step after the first `step` ones, and asks whether to stop."""
        started = time.perf_counter()
        training, compute, initial_state = self.recipe.training, self.compute, None
        if training.carry_state:
            initial_state = self.carried_state
            if initial_state is None or self.examples.restarts(step):
                initial_state = make_initial_state(self.model, training.batch_size, compute.device)
        total, count, n_computed = self._accumulate_gradients_within_memory(step, initial_state)
        total, n_targets, n_computed, stops = self.world.all_reduce_sum(
            (total, count, n_computed, float(is_stop_requested()))
        )
        n_targets = max(1, n_targets)
        if not math.isfinite(total):
            raise self._nonfinite_error("loss", total, step)
        rate = learning_rate_factor(self.recipe.schedule, step, training.steps, self.recipe.model.d_model)
        # backward passes summed over targets, and the all-reduce averaged over processes
        norm = self.optimizers.clip_and_step(rate, self.world.size / n_targets, training.clip_norm, step)
        self.n_skipped = 0 if math.isfinite(norm) else self.n_skipped + 1
        if self.n_skipped and (not compute.needs_loss_scaling or self.n_skipped > MAX_SKIPPED_UPDATES):
            raise self._nonfinite_error("gradient", norm, step)
        return CompletedStep(
            step=step + 1,
            loss=total / n_targets,
            lr=self.optimizers.peak_rate * rate,
            grad_norm=norm,
            tokens=int(n_targets),
            n_computed=int(n_computed),
            seconds=time.perf_counter() - started,
            micro_batch=self.rows,
            stop=stops > 0,
            carried_state=self.carried_state,
            recomputes=self.recomputes,
        )

    def _accumulate_gradients_within_memory(
        self, step: int, initial_state: DecodeState | None
    ) -> AccumulatedLossWithCounts:
        """Does `_accumulate_gradients`, again with less memory if it ran out."""
        while True:
            try:
                return self._accumulate_gradients(step, initial_state)
            except RuntimeError as error:
                if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
                    raise
                alone = self.world.size == 1
                if self.recipe.training.recompute == "auto" and alone and enable_activation_recomputation_(self.model):
                    self.recomputes = True
                elif self.rows > 1 and alone:
                    self.rows //= 2
                else:
                    fewer = f"set training.micro_batch below {self.rows}"
                    fix = "set model.context or model.d_model lower" if self.rows == 1 else fewer
                    what = f"out of memory with {format_count(self.rows, 'row')} of a batch at once"
                    raise ResourceError(what, fix=fix) from error
            # outside of the handler, because the error keeps the tensors of its micro-batch alive
            self.optimizers.clear_gradients()
            if self.compute.device.type == "cuda":
                torch.cuda.empty_cache()

    def _accumulate_gradients(self, step: int, initial_state: DecodeState | None) -> AccumulatedLossWithCounts:
        """Accumulates the gradients of this process's micro-batches, and keeps the final states of the rows.

        initial_state: of the rows, if states are carried.
        """
        losses, states, count, n_rows = [], [], 0, 0
        batches = self.prefetcher.get_micro_batches(step, self.rows)
        whole_batch = self._compute_whole_batch_gradients(step, batches)
        for index, batch in enumerate(batches):
            n_before, n_rows = n_rows, n_rows + len(batch.tokens_BT)
            state = None if initial_state is None else initial_state.select_rows(range(n_before, n_rows))
            gradient = None if whole_batch is None else whole_batch.by_micro_batch[index]
            self._seed_micro_batch(step, index)
            is_last = index == len(batches) - 1
            with convert_peer_errors(), nullcontext() if is_last else self.world.skip_gradient_sync(self.module):
                with self.compute.autocast():
                    total, final_state = self.module(batch.to(self.compute.device), state, gradient)
                self.optimizers.backward(total)
            losses.append(total.detach())
            states += [] if final_state is None else [final_state]
            count += self.objective.count_targets(batch)
        self.carried_state = DecodeState.join_rows(states) if states else None
        n_computed = sum(map(self.objective.count_computed_units, batches))
        total = torch.stack(losses).sum(dtype=torch.float32) if whole_batch is None else whole_batch.loss_share
        return AccumulatedLossWithCounts(float(total), count, n_computed)

    def _compute_whole_batch_gradients(self, step: int, batches: Sequence[Batch]) -> LossWithVectorGradients | None:
        """Computes the gradients of a loss that all rows of a batch have in common, see `WholeBatchObjective`.

        None if each micro-batch has its own loss.
        """
        objective, is_one = self.objective, len(batches) == self.world.size == 1
        if is_one or not isinstance(objective, WholeBatchObjective):
            return None
        vectors, on_device = [], [batch.to(self.compute.device) for batch in batches]
        for index, batch in enumerate(on_device):
            self._seed_micro_batch(step, index)
            with self.compute.autocast():
                # with a graph, which is freed at once, since kernels without one may draw other dropout
                vectors.append(objective.embed_texts_by_row(self.model, batch).detach())
        return compute_vector_gradients(
            objective, vectors, [objective.row_labels(batch) for batch in on_device], self.world
        )

    def _seed_micro_batch(self, step: int, index: int) -> None:
        """Seeds the random numbers of a micro-batch, such as those of dropout."""
        torch.manual_seed(derive_seed(self.recipe.seed, "step", step, self.world.rank, index))

    def _nonfinite_error(self, quantity: str, value: float, step: int) -> NumericalError:
        documents = self.examples.list_distinct_document_numbers(
            sample_numbers_for_rank(step, self.recipe.training.batch_size)
        )
        listed = ", ".join(str(number) for number in documents[:8]) + (", ..." if len(documents) > 8 else "")
        return NumericalError(
            f"the {quantity} of step {step + 1} is {value}; no weight was changed",
            where=f"{self.examples.unit} {listed} of the training text",
            fix="try a lower optimizer.lr, more schedule.warmup_steps, or training.precision=float32",
        )


class ContrastiveStepperWithHeadFitting(GradientStepper):
    """A step trains vectors by contrast. A head is fitted to them before each validation."""

    def take_step(self, step: int, is_stop_requested: Callable[[], bool]) -> CompletedStep:
        done = super().take_step(step, is_stop_requested)
        if not is_validation_step(self.recipe, done.step):
            return done
        objective = cast(ClassificationObjective, self.objective)
        batches = _collate_all_rows(objective, self.examples, self.recipe)
        fitted = fit_head_and_layer_mix_(
            cast(Classifier, self.model), objective, batches, CONTRASTIVE_PENALTY, self.recipe.seed
        )
        return replace(done, message=fitted.describe() if done.step == self.recipe.training.steps else "")


@dataclass
class _BatchPrefetcher:
    """Prefetches the batches of the next step while the current one is computed."""

    examples: ExampleSource
    objective: Objective
    training: Training
    compute: ExecutionContext
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    _prefetched: dict[tuple[int, int], Future[list[Batch]]] = field(default_factory=dict)

    def get_micro_batches(self, step: int, max_rows: int) -> list[Batch]:
        """Returns the micro-batches of at most `max_rows` rows that this process computes in `step`.

        Processes in step have equally many: those with fewer divide theirs, as all have the same number of rows.
        """
        prefetched = self._prefetched.pop((step, max_rows), None)
        batches = self._read_and_collate(step, max_rows) if prefetched is None else prefetched.result()
        if self.compute.world.is_lockstep and self.training.micro_tokens is not None:
            n_parts = self.compute.world.all_reduce_max(len(batches))
            batches = batches if len(batches) == n_parts else self._read_and_collate(step, max_rows, n_parts)
        if step + 1 < self.training.steps:
            self._prefetched = {(step + 1, max_rows): self._thread.submit(self._read_and_collate, step + 1, max_rows)}
        return batches

    def _read_and_collate(self, step: int, max_rows: int, min_parts: int = 1) -> list[Batch]:
        training, world = self.training, self.compute.world
        examples = self.examples.read(sample_numbers_for_rank(step, training.batch_size, world.rank, world.size))
        parts = split_into_micro_batches(examples, max_rows, training.micro_tokens, min_parts)
        batches = [self.objective.collate(part, step / training.steps) for part in parts]
        return [batch.pin() for batch in batches] if self.compute.device.type == "cuda" else batches

    def close(self) -> None:
        self._thread.shutdown(cancel_futures=True)


def estimate_tokens_per_step(examples: ExampleSource, objective: Objective, recipe: Recipe) -> float:
    """Estimates the mean number of tokens that a step computes, by steps throughout an epoch."""
    training = recipe.training
    n_steps = max(1, examples.examples_per_epoch // training.batch_size)
    steps = np.unique(np.linspace(0, n_steps - 1, N_AVERAGED_STEPS).round().astype(int)).tolist()
    rows = training.rows_per_process(1)
    read = (examples.read(sample_numbers_for_rank(step, training.batch_size)) for step in steps)
    parts = (part for batch in read for part in split_into_micro_batches(batch, rows, training.micro_tokens))
    return sum(objective.count_computed_units(objective.collate(part)) for part in parts) / len(steps)


def split_into_micro_batches(
    examples: list[Example], max_rows: int, max_tokens: int | None, min_parts: int = 1
) -> list[list[Example]]:
    """Divides a batch into parts of at most `max_rows` rows and, unless None, `max_tokens` positions with padding.

    With a limit of tokens rows of similar length are grouped, to reduce padding. min_parts: at most the number of rows.
    """
    if max_tokens is None:
        return [examples[i : i + max_rows] for i in range(0, len(examples), max_rows)]
    lengths = [(len(e.tokens), 0 if e.second is None else len(e.second)) for e in examples]
    parts = [[examples[i] for i in group] for group in group_by_length(lengths, max_tokens, max_rows)]
    while len(parts) < min_parts:
        at = max(range(len(parts)), key=lambda i: len(parts[i]))
        middle = len(parts[at]) // 2
        parts[at : at + 1] = parts[at][:middle], parts[at][middle:]
    return parts
