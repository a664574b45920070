"""What a recipe takes before it is run: parameters, FLOPs, memory of a device, steps and time."""

import math
import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import ExecutionContext, configure_compute
from lmtool.compute.device_kinds import DEVICE_KINDS
from lmtool.data.store import TokenStore
from lmtool.data.survey import Progress
from lmtool.errors import NumericalError, RecipeError, UsageError
from lmtool.model import LanguageModel, build
from lmtool.model.size import UNCOUNTABLE, count_parameters, estimate_persistent_memory
from lmtool.objective import Objective, VocabularyInfo
from lmtool.objective import build_objective_for_vocabulary as objective_of
from lmtool.recipe.spec.objective import Embedding, HeadSpec, Masked, ReplacedTokens, SkipGramPrediction
from lmtool.recipe.spec.recipe import Model, Recipe, make_generator_spec
from lmtool.recipe.spec.training import Lbfgs
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.reference import Reference
from lmtool.tasks.data import TableData
from lmtool.tokenization.tokenizer import resolve_recipe_embedding_rows
from lmtool.training.cost.devices import DeviceGroup, resolve_device_group
from lmtool.training.cost.footprint import BatchToTrace, MemoryEstimate, estimate_training_memory_per_device
from lmtool.training.cost.summary import summarize_model
from lmtool.training.data import TextData
from lmtool.training.fit import CompletedStep, ModelAndOptimizers, fit
from lmtool.training.job import TrainingJob
from lmtool.training.length import (
    ESTIMATE_SECONDS,
    N_VALIDATIONS,
    UNKNOWN_STEPS,
    TimedFirstSteps,
    convert_epochs_and_tokens_to_steps,
)
from lmtool.training.optimizer import Optimizers
from lmtool.training.plan import TrainingPlan, is_for_tables
from lmtool.training.windows import ExampleSource, Windows

TOKENS_PER_PARAMETER = 20
"""Training tokens at which a given compute is best spent, for each parameter (Hoffmann et al. 2022)."""

ASSUMED_VOCAB_SIZE = 100
"""Entries of a vocabulary that only the text decides on, without one."""

USABLE_MEMORY_FRACTION = 0.9
"""Share of a device's memory that training may take; the rest is for kernels and fragmentation."""

AVERAGED_ROWS = 64
"""Rows over which the targets of a masked objective are averaged."""

MAX_MEASURED_FLOPS = 3e10
"""FLOPs of a step that is measured whole; of a larger one, fewer rows."""


@dataclass(frozen=True)
class TrainingForecast:
    """What a run takes.

    flops_per_token: of forward and backward pass.
    device: its name.
    memory: its bytes, None if unknown.
    footprint: with micro-batches of `rows` rows, of which a step has `micro_batches` on each device.
    fits: whether it does.
    examples: rows of all steps.
    tokens: in them; None for tables, whose rows have any length.
    epochs: None without data.
    step_seconds: None if unknown;
    basis: what it comes from.
    seconds: of all steps and validations.
    optimal_tokens: by TOKENS_PER_PARAMETER; None for tables.
    notes: what was assumed.
    """

    title: str
    vocab_size: int
    parameters: int
    flops_per_token: int
    device: str
    n_devices: int
    precision: str
    memory: int | None
    footprint: MemoryEstimate | None
    rows: int
    micro_batches: int
    fits: bool | None
    steps: int
    examples: int
    tokens: int | None
    epochs: float | None
    step_seconds: float | None
    basis: str
    seconds: float | None
    optimal_tokens: int | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """As JSON values."""
        return asdict(self)


def forecast_training(
    plan: TrainingPlan, *, n_devices: int, device_kind: str | None, utilisation: float, report: Progress
) -> TrainingForecast:
    """Forecasts what a training takes, on this machine or on `n_devices` of a named kind.

    The data that it names, if any, are read as for training. Here, some steps are measured; elsewhere, time follows
    from peak and utilisation.
    Raises UsageError for what cannot be planned, a recipe without gradients, and a batch that the devices cannot share,
    RecipeError for a model that no machine holds, and the errors of reading data.
    """
    if device_kind is not None and device_kind not in DEVICE_KINDS:
        raise UsageError(f"there is no device kind {device_kind!r}", fix=f"name one of {', '.join(DEVICE_KINDS)}")
    if not 0 < utilisation <= 1:
        raise UsageError(f"a utilization of {utilisation:g} is not a share of a peak", fix="for example 0.4")
    recipe, data = plan.recipe, None
    if plan.tables or recipe.data.sources:
        recipe, data, *_ = plan.read_data_teacher_and_features(report)
    report("measuring", 0, 0)
    spec, batch_size = recipe.model, recipe.training.batch_size
    if spec.counts:
        what = f"a model of kind {spec.kind} is a table of counts, whose size depends on the text"
        raise UsageError(what, fix="train it: it is one pass over the text")
    if batch_size % n_devices:
        what = f"a batch of {batch_size} rows cannot be shared by {n_devices} devices"
        raise UsageError(what, where="training.batch_size", fix=f"set it to a multiple of {n_devices}")
    vocab_size = spec.vocab_size or resolve_recipe_embedding_rows(recipe)
    if count_parameters(spec, vocab_size or ASSUMED_VOCAB_SIZE) == UNCOUNTABLE:
        raise RecipeError(["the model has a tensor of more bytes than can be counted"])
    work = _TrainingWorkload(
        recipe, vocab_size or ASSUMED_VOCAB_SIZE, resolve_device_group(recipe, n_devices, device_kind), data, plan.base
    )
    choices = plan.choice.splitlines()
    rows, memory, fits = work.choose_fitting_micro_batch()
    seconds, basis = work.measure_or_estimate_step_seconds(utilisation, fits)
    steps = recipe.training.steps
    if not work.has_table or recipe.training.minutes is not None:
        # of several limits the one that ends first, as in training
        steps = min(work.convert_budgets_to_steps(seconds), default=steps)
    n_examples = steps * batch_size
    if data is not None and isinstance(recipe.optimizer, Lbfgs):  # reads all in a step
        n_examples = steps * data.examples_per_epoch
    every = recipe.evaluation.every
    if recipe.training.has_budget and not (work.is_for_tables and recipe.training.minutes is None):
        every = min(every, math.ceil(steps / N_VALIDATIONS))
    total_seconds = None
    if seconds is not None:
        total_seconds = steps * seconds + math.ceil(steps / every) * work.estimate_validation_seconds(seconds)
    parameters = work.n_parameters or work.held.parameters
    return TrainingForecast(
        title=spec.title,
        vocab_size=work.vocab_size,
        parameters=parameters,
        flops_per_token=round(work.training_flops_per_row / spec.context),
        device=work.devices.name,
        n_devices=n_devices,
        precision=work.devices.precision,
        memory=work.devices.memory,
        footprint=memory,
        rows=rows,
        micro_batches=-(-work.rows_per_device // rows),
        fits=fits,
        steps=steps,
        examples=n_examples,
        tokens=None if work.is_for_tables else n_examples * spec.context,
        epochs=None if data is None else n_examples / data.examples_per_epoch,
        step_seconds=seconds,
        basis=basis,
        seconds=total_seconds,
        optimal_tokens=None if work.is_for_tables else TOKENS_PER_PARAMETER * parameters,
        notes=(*_list_forecast_assumptions(work, seconds, is_vocab_size_assumed=vocab_size is None), *choices),
    )


def _list_forecast_assumptions(
    workload: "_TrainingWorkload", step_seconds: float | None, *, is_vocab_size_assumed: bool
) -> Iterator[str]:
    """Yields what a forecast assumes, in sentences."""
    objective, training = workload.recipe.objective, workload.recipe.training
    if is_vocab_size_assumed:
        yield f"the vocabulary depends on the text; {ASSUMED_VOCAB_SIZE} entries are assumed where none is named"
    if not workload.is_traced:
        yield "activations are not known for this model; weights, gradients and moments are the most of it"
    if workload.reads_features:
        yield "memory and operations are without those of the model that it reads features of"
    if isinstance(objective, ReplacedTokens):
        yield "activations are those of the detector; its generator takes some more"
    if isinstance(objective, SkipGramPrediction) and objective.negatives:
        yield "operations are those of the full softmax; negative samples take far fewer"
    if (
        training.has_budget
        and not workload.convert_budgets_to_steps(step_seconds)
        and (not workload.has_table or training.minutes is not None)
    ):
        kind = "table" if workload.is_for_tables else "text"
        yield f"the number of steps depends on the {kind}; {training.steps:,} are assumed where none is named"
    if isinstance(objective, HeadSpec) and not workload.n_parameters:
        yield "the labels depend on the table; the head for them is not among the parameters"


class _TrainingWorkload:
    """A recipe's model and rows: of the data, if there are any, where time is measured, and else of invented tokens.

    n_parameters: of the model that was measured, all its heads included; 0 before.
    """

    def __init__(
        self,
        recipe: Recipe,
        vocab_size: int,
        devices: DeviceGroup,
        data: TextData | TableData | None,
        base: Reference | None,
    ) -> None:
        self.recipe, self.vocab_size, self.devices, self.data, self.base = recipe, vocab_size, devices, data, base
        self.spec: Model = recipe.model
        self.held = estimate_persistent_memory(recipe, vocab_size)
        self.rows_per_device = recipe.training.batch_size // devices.count
        self.is_traced = self.spec.reads != "words"
        self.is_for_tables, self.has_table = is_for_tables(recipe), isinstance(data, TableData)
        self.reads_features = dict(self.spec).get("features") is not None
        self.n_parameters = 0

    @property
    def placeholder_objective(self) -> Objective:
        """Builds the objective, for a vocabulary of which the first entries are special."""
        n_special = min(6 + 100, self.vocab_size // 2)
        special = tuple(range(n_special))
        pad, bos, eos, mask, sep, cls = (*special, *[0] * 6)[:6]
        vocabulary = VocabularyInfo(
            self.vocab_size, pad, bos, eos, mask, sep, cls, (bos,), special[6:], frozenset(special)
        )
        # each token as a word, of which as large a share is masked
        words = replace(vocabulary, word_continuations_2V=np.zeros((2, self.vocab_size), dtype=bool))
        return objective_of(self.recipe, words)

    def make_training_examples(self, objective: Objective) -> Windows:
        cut = objective.choose_text_cut(self.spec.context)
        store = cast(TokenStore, _RandomTokenStore(self.vocab_size, max(1 << 16, 4 * cut.length)))
        return Windows(store, cut, 0)

    def make_micro_batch_to_trace(self, n_rows: int, accumulates: bool) -> BatchToTrace:
        """Makes a micro-batch to trace; for tables, rows and sources as long as the context."""
        if self.is_for_tables:
            tokens_BT = torch.zeros(n_rows, self.spec.context, dtype=torch.int64)
            has_source = self.spec.reads == "source" and not self.spec.shares_row
            prefix_B = torch.full((n_rows,), self.spec.context // 2) if self.spec.shares_row else None
            scored = 0.0 if isinstance(self.recipe.objective, HeadSpec | Embedding) else 1.0
            batch = Batch(tokens_BT, source_BS=tokens_BT if has_source else None, prefix_B=prefix_B)
            return BatchToTrace(batch, scored, accumulates)
        objective = self.placeholder_objective
        batch = objective.collate(self.make_training_examples(objective).read(np.arange(n_rows)))
        return BatchToTrace(batch, self._mean_scored_fraction, accumulates)

    @cached_property
    def _mean_scored_fraction(self) -> float:
        """Share of the positions of a row of text whose logits are computed, on average."""
        if not isinstance(self.recipe.objective, Masked | ReplacedTokens):
            return 1.0
        objective = self.placeholder_objective
        batch = objective.collate(self.make_training_examples(objective).read(np.arange(AVERAGED_ROWS)))
        return float((batch.required_targets_BT != IGNORE).float().mean())

    @cached_property
    def training_flops_per_row(self) -> float:
        """FLOPs of forward and backward pass of a row: a backward pass has two products for each one of the forward."""
        if not self.is_traced:
            return 3.0 * summarize_model(self.spec, self.vocab_size, self.spec.context).flops
        row = self.make_micro_batch_to_trace(1, False)
        source_BS = row.batch.source_BS
        n_tokens = row.batch.tokens_BT.shape[1]
        n_source = n_tokens if source_BS is None else source_BS.shape[1]
        models: list[tuple[Model, float]] = [(self.spec, row.scored_fraction)]
        objective = self.recipe.objective
        if isinstance(objective, ReplacedTokens) and isinstance(self.spec, Transformer):
            models = [(self.spec, 0.0), (make_generator_spec(self.spec, objective), row.scored_fraction)]
        flops = 0.0
        for spec, scored in models:
            tree = summarize_model(spec, self.vocab_size, n_tokens, n_source)
            head = sum(part.flops for part in tree.children if part.name == "head")
            flops += tree.flops - (1 - scored) * head
        return 3.0 * flops

    def choose_fitting_micro_batch(self) -> tuple[int, MemoryEstimate | None, bool | None]:
        """Returns the rows of a training's micro-batch, which is halved when memory runs out, their memory, and whether
        it fits the device; None for what is unknown."""
        training, memory = self.recipe.training, self.devices.memory
        rows = min(training.rows_per_process(self.devices.count), self.rows_per_device)
        if not self.is_traced:
            fits = None if memory is None else self.held.sum <= USABLE_MEMORY_FRACTION * memory
            return rows, None, fits
        while True:
            make_batch = partial(self.make_micro_batch_to_trace, accumulates=rows < self.rows_per_device)
            taken = estimate_training_memory_per_device(
                self.spec, self.vocab_size, self.held, make_batch, rows, self.devices
            )
            fits = None if memory is None else taken.peak <= USABLE_MEMORY_FRACTION * memory
            if fits is not False or rows == 1 or training.micro_batch != "auto":
                return rows, taken, fits
            rows //= 2

    def measure_median_step_seconds(self, compute: ExecutionContext, n_rows: int) -> float:
        """Returns the median time of some steps of `n_rows` rows on this machine."""
        torch.manual_seed(0)
        if self.data is None:
            objective = self.placeholder_objective
            examples: ExampleSource = self.make_training_examples(objective)
            lm = build(self.spec, self.vocab_size).to(compute.device)
        else:
            data = self.data
            lm, objective, _ = TrainingJob(self.recipe, data, compute, self.base).build_model()
            examples = (
                data.make_windows_of_stored_text(objective)
                if isinstance(data, TextData)
                else data.make_training_examples(objective)
            )
            self.n_parameters = sum(parameter.numel() for parameter in lm.parameters())
        recipe = self.recipe.with_unvalidated_values({"training.batch_size": n_rows})
        steps = _train_and_time_later_steps(lm, objective, examples, recipe, compute)
        return statistics.median(step.seconds for step in steps)

    def measure_or_estimate_step_seconds(self, utilisation: float, fits: bool | None) -> tuple[float | None, str]:
        """Measures steps on this machine, or computes their time from the peak of a named kind of device.

        Returns the seconds of a step, None if unknown, and what they come from, or why they are unknown.
        """
        training, n_devices, row_flops = self.recipe.training, self.devices.count, self.training_flops_per_row
        if (peak := self.devices.peak_flops) is not None:
            if not self.is_traced:
                return None, "look-ups take longer than products in this model"
            basis = f"{100 * utilisation:g} % of {peak / 1e12:,.0f} TFLOP/s" + (" each" if n_devices > 1 else "")
            return training.batch_size * row_flops / (n_devices * utilisation * peak), basis
        for holds, why in (
            (fits is False, "it does not fit"),
            (n_devices > 1, "several devices are not measured here: name their kind with --device-kind"),
            (self.is_for_tables and self.data is None, "its rows are not known: name a table"),
            (self.reads_features, "the model that it reads features of is not measured"),
        ):
            if holds:
                return None, why
        compute = configure_compute(training.device, training.precision)
        n_rows = max(1, min(training.batch_size // 2, int(MAX_MEASURED_FLOPS / max(1.0, row_flops))))
        if 2 * n_rows >= training.batch_size or training.carry_state:
            return self.measure_median_step_seconds(compute, training.batch_size), "measured"
        one, two = (self.measure_median_step_seconds(compute, n) for n in (n_rows, 2 * n_rows))
        # an update takes as long for any number of rows
        seconds = one + max(0.0, two - one) * (training.batch_size - n_rows) / n_rows
        return seconds, f"measured with {2 * n_rows} rows"

    def convert_budgets_to_steps(self, step_seconds: float | None) -> list[int]:
        """Returns the steps that each known limit of the recipe allows: of epochs, tokens and minutes."""
        minutes = self.recipe.training.minutes
        limits = [n_steps for n_steps, _ in convert_epochs_and_tokens_to_steps(self.recipe, self.data)]
        if minutes is not None and step_seconds is not None:
            left = 60 * minutes - N_VALIDATIONS * self.estimate_validation_seconds(step_seconds)
            limits.append(max(1, int(left / step_seconds)))
        return limits

    def estimate_validation_seconds(self, step_seconds: float) -> float:
        """Estimates the time of a validation: a third of a training step for as many tokens or rows."""
        data, training = self.data, self.recipe.training
        if isinstance(data, TableData):
            return data.n_valid * step_seconds / (3 * training.batch_size)
        wanted = self.recipe.evaluation.tokens
        n_tokens = (wanted or 0) if data is None else min(wanted or data.n_valid, data.n_valid)
        return n_tokens * step_seconds / (3 * training.batch_size * self.spec.context)


class _RandomTokenStore:
    """Random tokens in documents of equal length, with what training reads of a `TokenStore`."""

    _LENGTH = 512

    def __init__(self, vocab_size: int, n_tokens: int) -> None:
        self._tokens = np.random.default_rng(0).integers(vocab_size // 2, vocab_size, n_tokens)
        self.n_documents = -(-n_tokens // self._LENGTH)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        return self._tokens[start:stop]

    def document_range(self, i: int) -> tuple[int, int]:
        return i * self._LENGTH, min(len(self), (i + 1) * self._LENGTH)

    def find_documents(self, token: int | NDArray[np.int64]) -> NDArray[np.int64]:
        return np.asarray(token) // self._LENGTH


def _train_and_time_later_steps(
    scratch_lm: LanguageModel, objective: Objective, examples: ExampleSource, recipe: Recipe, compute: ExecutionContext
) -> list[CompletedStep]:
    """Trains a scratch model for some steps, and returns the later half; of those before a loss that is not finite."""
    for parameter in objective.unused_parameters(scratch_lm):
        parameter.requires_grad_(False)
    # as many weights as are trained in the end
    optimizers = Optimizers(
        recipe.optimizer, scratch_lm, compute, recipe.tuning.with_unvalidated_values({"unfreeze_every": None})
    )
    endless = recipe.with_unvalidated_values({"training.steps": UNKNOWN_STEPS})
    first = TimedFirstSteps(ESTIMATE_SECONDS)
    with suppress(NumericalError):
        for step in fit(ModelAndOptimizers(scratch_lm, objective, optimizers), examples, endless, compute):
            if first.add_and_check_enough(step, compute.world):
                break
    return first.later_half
