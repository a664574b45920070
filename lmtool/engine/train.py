"""A training run from prepared text or tables to its last checkpoint: fit, validate, sample, save; told as events."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, Self

import torch
from torch import Tensor

from lmtool.decoding.prompts import form_of
from lmtool.decoding.settings import MaskPredict, Sample, Settings
from lmtool.decoding.text import Options, complete, write
from lmtool.engine import carry
from lmtool.engine.build import Base, build_model, build_objective, counts_of, load_body, load_weights, tune
from lmtool.engine.device import Compute
from lmtool.engine.distributed import World
from lmtool.engine.fit import Step, fit, rows_at_once
from lmtool.engine.material import Material, Validation
from lmtool.engine.optimizer import Optimizers
from lmtool.errors import CheckpointError, ResourceError
from lmtool.model.language_model import CountingModel, DecodeState, LanguageModel
from lmtool.model.lora import kept
from lmtool.recipe.spec import Evaluation, Recipe
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import Run

LONG_RUN = 100_000_000
"""Tokens from which compiling the model pays on a GPU."""


@dataclass(frozen=True)
class Plan:
    """What is about to happen, known before the first step.

    learning: of the parameters, how many. batch_units: of `unit`, in one step. counted: what a target of the loss is,
    which the speed is told in.
    """

    parameters: int
    learning: int
    unit: str
    counted: str
    batch_units: int
    steps: int
    first_step: int
    epochs: float
    device: str


@dataclass(frozen=True)
class Stepped:
    """A step is done and logged. validation: how good the model is now, when the step ended with one."""

    step: Step
    validation: Validation | None
    is_best: bool


@dataclass(frozen=True)
class Sampled:
    """What the model makes of a prompt at this step."""

    step: int
    prompt: str
    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on disk."""

    path: Path


@dataclass(frozen=True)
class Warned:
    """Something went wrong that training survives."""

    text: str


@dataclass(frozen=True)
class Ended:
    """The run is over: all steps done, stopped early by patience, or interrupted by a signal."""

    reason: Literal["finished", "early", "interrupted"]
    step: int
    best_step: int | None
    best_value: float | None
    metric: str


Event = Plan | Stepped | Sampled | Saved | Warned | Ended


@dataclass
class Progress:
    """What a checkpoint holds besides weights and moments, so that a resumed run goes on as if never stopped.

    stale: validations since the best one. micro_batch: rows at once, which memory may have made smaller. setup: as from
    `setup`. recipe: all its values.
    """

    tokens: int = 0
    seconds: float = 0.0
    best_step: int | None = None
    best_value: float | None = None
    stale: int = 0
    micro_batch: int | None = None
    setup: dict[str, object] = field(default_factory=dict)
    recipe: dict[str, object] = field(default_factory=dict)

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> Self:
        """What a checkpoint holds. Raises CheckpointError when another version of lmtool wrote it."""
        try:
            return cls(**checkpoint.state())  # type: ignore[arg-type]  # its keys are checked by the call
        except TypeError as error:
            raise CheckpointError(
                "state.json is not of this version of lmtool", where=str(checkpoint.path), fix="train anew"
            ) from error

    def judge(self, step: int, validation: Validation, metric: str) -> bool:
        """Take note of a validation; True when it is the best so far: of least loss, or of the highest metric."""
        value = validation.loss if metric == "loss" else validation.metrics[metric]
        sign = 1 if metric == "loss" else -1
        is_best = self.best_value is None or sign * value < sign * self.best_value
        if is_best:
            self.best_step, self.best_value, self.stale = step, value, 0
        else:
            self.stale += 1
        return is_best

    def is_stale(self, evaluation: Evaluation) -> bool:
        """True when patience has run out."""
        return evaluation.patience is not None and self.stale >= evaluation.patience


def setup(recipe: Recipe, compute: Compute, world: World) -> dict[str, object]:
    """What results may depend on, to the last bit, besides the recipe and the text."""
    return {
        "device": compute.device.type,
        "precision": compute.precision,
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "micro_batch": recipe.training.micro_batch,
        "micro_tokens": recipe.training.micro_tokens,
        "compile": _compiles(recipe, compute),
        "torch": torch.__version__,
    }


def train(
    run: Run | None,
    recipe: Recipe,
    material: Material,
    compute: Compute,
    world: World,
    *,
    checkpoint: Checkpoint | None = None,
    base: Base | None = None,
    same_labels: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train under `recipe`, from the start or from `checkpoint`, and keep everything in `run`.

    run: locked and started; None in processes that only compute. Every process iterates to the end.
    base: weights to begin with, of another run; same_labels: its head answers the same labels. With `checkpoint` only
    for a run that keeps nothing but adapters to them.
    stop: asked after each step; the run is then saved and ended, in all processes at the same step.

    Raises NumericalError, ResourceError and CheckpointError. When a save fails training goes on with a warning, but a
    run whose last save fails ends with that error.
    """
    keeper = _Keeper(run, recipe.checkpoint.keep_last)
    lm = build_model(recipe, material.tokenizer, compute)
    material.inform(lm)
    objective = build_objective(recipe, material.tokenizer, counts_of(lm))
    notice = None if base is None else load_body(lm, base, same_labels)
    tune(lm, recipe)
    optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
    progress, first_step = Progress(), 0
    carried: DecodeState | None = None
    if checkpoint is not None:
        load_weights(lm, checkpoint)
        tensors = checkpoint.optimizer()
        moments = {name: tensors[name] for name in tensors if not name.startswith(carry.PREFIX)}
        optimizers.load_state(moments, checkpoint.step)
        if recipe.training.carry_state:
            like = carry.fresh(lm, recipe.training.batch_size, compute.device)
            carried = carry.from_tensors(tensors, like, str(checkpoint.path))
        progress, first_step = Progress.read(checkpoint), checkpoint.step
    elif notice:
        yield Warned(notice)
    here = setup(recipe, compute, world)
    if changed := _setup_changes(progress.setup, here):
        if checkpoint is not None:
            yield Warned(f"not bit for bit as without the stop, because the setup changed: {', '.join(changed)}")
        progress.micro_batch = rows_at_once(recipe.training, world)
    progress.setup, progress.recipe = here, recipe.model_dump(mode="json")
    steps = recipe.training.steps
    examples = material.source(objective)
    yield Plan(
        parameters=sum(parameter.numel() for parameter in lm.parameters()),
        learning=sum(parameter.numel() for parameter in lm.parameters() if parameter.requires_grad),
        unit=material.unit,
        counted=objective.unit,
        batch_units=material.batch_units,
        steps=steps,
        first_step=first_step,
        epochs=1.0 if isinstance(lm, CountingModel) else steps * recipe.training.batch_size / examples.per_epoch,
        device=compute.describe() + (f", {world.size} processes" if world.size > 1 else ""),
    )
    if _compiles(recipe, compute):
        lm.compile()
    reason: Literal["finished", "early", "interrupted"] = "finished"
    last = first_step
    for step in fit(
        lm,
        objective,
        optimizers,
        examples,
        recipe,
        compute,
        world,
        first_step=first_step,
        micro_batch=progress.micro_batch,
        carried=carried,
        stop=stop,
    ):
        last = step.step
        if step.micro_batch != progress.micro_batch:
            yield Warned(f"out of memory: {step.micro_batch} rows at once from now on; the batch stays the same")
        progress.micro_batch = step.micro_batch
        progress.tokens += step.tokens
        progress.seconds += step.seconds
        validation, is_best = None, False
        if last % recipe.evaluation.every == 0 or last == steps:
            validation = material.validate(lm, objective, compute, world)
            is_best = progress.judge(last, validation, recipe.evaluation.metric)
            if progress.is_stale(recipe.evaluation) and last < steps:
                reason = "early"
        if step.stop and last < steps:
            reason = "interrupted"
        yield from keeper.log(_record(step, validation, progress))
        yield Stepped(step, validation, is_best)
        if validation is not None:
            for sampled in _samples(run, lm, material, recipe, last):
                yield from keeper.log_sample(sampled)
                yield sampled
        if last % recipe.checkpoint.every == 0 or last == steps or is_best or reason != "finished":
            moments = optimizers.state() | ({} if step.carried is None else carry.to_tensors(step.carried))
            yield from keeper.save(last, lm, moments, progress)
        if reason != "finished":
            break
    keeper.close(reason)
    # torchrun takes the first process that ends for a failed one when it was interrupted, and ends the others
    world.wait()
    yield Ended(reason, last, progress.best_step, progress.best_value, recipe.evaluation.metric)


class _Keeper:
    """Writes to the run, if this process has one; a failure becomes a warning, and an error at the end of the run."""

    def __init__(self, run: Run | None, keep_last: int) -> None:
        self._run = run
        self._keep_last = keep_last
        self._unsaved: ResourceError | None = None
        self._log_failed = False

    def log(self, record: Mapping[str, object]) -> Iterator[Event]:
        if self._run is not None:
            yield from self._append(self._run.metrics.append, record)

    def log_sample(self, sampled: Sampled) -> Iterator[Event]:
        if self._run is not None:
            yield from self._append(self._run.samples.append, asdict(sampled))

    def _append(self, append: Callable[[Mapping[str, object]], None], record: Mapping[str, object]) -> Iterator[Event]:
        try:
            append(record)
            self._log_failed = False
        except ResourceError as error:
            if not self._log_failed:
                yield Warned(f"{error.what} ({error.where}); training goes on")
            self._log_failed = True

    def save(self, step: int, lm: LanguageModel, moments: dict[str, Tensor], progress: Progress) -> Iterator[Event]:
        if self._run is None:
            return
        try:
            saved = self._run.save(
                step,
                kept(lm),
                moments,
                asdict(progress),
                best_step=progress.best_step,
                keep_last=self._keep_last,
            )
            self._unsaved = None
            yield Saved(saved.path)
        except ResourceError as error:
            self._unsaved = error
            yield Warned(f"{error.what} ({error.fix}); training goes on, the last checkpoint is intact")

    def close(self, reason: str) -> None:
        if self._unsaved is not None:
            raise self._unsaved
        if self._run is not None:
            self._run.end("stopped" if reason == "interrupted" else "finished")


def _record(step: Step, validation: Validation | None, progress: Progress) -> dict[str, object]:
    """One line of metrics.jsonl, by the names that other programs read."""
    return {
        "step": step.step,
        "loss": step.loss,
        "valid_loss": None if validation is None else validation.loss,
        "lr": step.lr,
        "grad_norm": step.grad_norm,
        "tokens": progress.tokens,
        "tokens_per_second": round(step.tokens / step.seconds),
        "seconds": round(progress.seconds, 3),
        **({} if validation is None else validation.metrics),
    }


def _samples(run: Run | None, lm: LanguageModel, material: Material, recipe: Recipe, step: int) -> Iterator[Sampled]:
    if run is None or not recipe.evaluation.prompts:
        return
    n_tokens = recipe.evaluation.sample_tokens
    settings: Settings
    if lm.reads == "both":
        settings, options = MaskPredict(seed=recipe.seed), Options(length=n_tokens, overflow="cut")
    else:
        settings, options = Sample(seed=recipe.seed, max_new_tokens=n_tokens), Options(overflow="cut")
    form = form_of(recipe, documents=material.documents)
    for completion in complete(write(lm, material.tokenizer, recipe.evaluation.prompts, settings, options, form=form)):
        yield Sampled(step, completion.prompt, completion.text.removeprefix(completion.prompt))


def _setup_changes(before: dict[str, object], now: dict[str, object]) -> list[str]:
    """What will make the rest of the run differ in the last bits from one that was never stopped."""
    return [f"{key} {before.get(key)} -> {now[key]}" for key in now if before.get(key) != now[key]]


def _compiles(recipe: Recipe, compute: Compute) -> bool:
    asked = recipe.training.compile
    if asked != "auto":
        return asked
    tokens = recipe.training.steps * recipe.training.batch_size * recipe.model.context
    return compute.device.type == "cuda" and tokens >= LONG_RUN
