"""A training run from data to its last checkpoint: fit, save, validate, sample; yields events."""

import math
import shlex
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from lmtool.compute.agreement import agree, away
from lmtool.compute.device import Compute, choose_compute
from lmtool.compute.fsdp import Sharding
from lmtool.compute.kernels import ops
from lmtool.compute.shards import ShardedBuild
from lmtool.durable import write_file
from lmtool.errors import LmtoolError, NumericalError
from lmtool.generation.generate import complete
from lmtool.generation.params import AnyParams, MaskPredict, SamplingParams
from lmtool.inference.embedding import Vectors
from lmtool.inference.evaluation import Validation
from lmtool.inference.load import load_run, load_weights
from lmtool.inference.reference import Reference
from lmtool.model import DecodeState, LanguageModel
from lmtool.model.language_model import CountingModel, evaluating
from lmtool.model.size import held_in_training
from lmtool.model.transformer import TransformerUnmasked
from lmtool.recipe.dump import dump
from lmtool.recipe.spec.objective import Classification, supported_objectives
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.recipe.spec.words import Averaging
from lmtool.records import encode_json, replace_nonfinite
from lmtool.run.checkpoint import SINGLE_PROCESS, Checkpoint
from lmtool.run.directory import BASELINE, Run
from lmtool.run.files import describe_environment
from lmtool.run.order import sample_numbers_for_rank
from lmtool.run.uncertainty import CROSS_VALIDATION, N_FOLDS, are_equivalent
from lmtool.search.index import embed_texts
from lmtool.tasks.baseline import Baseline
from lmtool.tasks.data import TableData
from lmtool.tasks.results import QUARTER, Results
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.training import truncated_bptt
from lmtool.training.checkpoint_manager import CheckpointManager
from lmtool.training.data import TextData, TrainingData
from lmtool.training.distillation import distilled
from lmtool.training.events import (
    Ended,
    EndReason,
    Event,
    FitStarted,
    Info,
    Sampled,
    Started,
    Stepped,
    StepsChanged,
    Warn,
)
from lmtool.training.fit import LossModule, Step, Trainable, fit, validates
from lmtool.training.folds import ScoringStopped, is_cross_validated, rewind_job, train_folds
from lmtool.training.job import Invocation, TrainingJob
from lmtool.training.length import (
    LEAST_SHARE,
    FirstSteps,
    Speed,
    is_timed,
    most_steps,
    timed,
    with_known_steps,
    with_steps,
)
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import TimeBudget, doubtful_rate
from lmtool.training.streamed import StreamedMixture, StreamedWindows
from lmtool.training.windows import ExampleSource

RISING = 2
"""Validations of a text without a new best after which a rising loss is told."""

TOLD = 1.005
"""Ratio to the best from which it is."""

UNSCORED = "the run has no score, since all rows were trained on"

LEAST_TRAINED = 0.25
"""Share of the steps, more than the warm-up takes, after which a model that will be good is near the baseline."""

LEAST_SAVED = 1e13
"""Floating-point operations that are left, some ten seconds of two cores, below which training goes on to its end."""

LONG_RUN = 100_000_000
"""Tokens from which compiling the model pays off on a GPU."""


def train(job: TrainingJob, run: Run | None, invocation: Invocation, changed: tuple[str, ...] = ()) -> Iterator[Event]:
    """Begin a session of a run, train from the start or from a checkpoint, and evaluate the best checkpoint.

    run: locked; everything is saved in it. None in processes that only compute. changed: what of its recipe is another
    than before, in words. Every process iterates to the end. Where time limits the run, its first steps tell the number
    of steps.

    At a step that ends with a validation the checkpoint is saved first: no later error loses the step, and a run that
    is resumed there begins with that validation. A step at which the run is interrupted is validated as well, outside
    of the training: patience, the best step and the metrics are as if it had not been.

    Raises NumericalError, also when the first validation loss is not finite, ResourceError and CheckpointError. When
    saving fails, training continues with a warning, but a run whose last save fails ends with that error.
    """
    recipe, data, state, checkpoint, world = job.recipe, job.data, job.state, job.checkpoint, job.compute.world
    superseded = None if checkpoint is None or _saves(recipe, checkpoint.step) else checkpoint.step
    peers = world.side_group() if world.sharded else SINGLE_PROCESS
    with data.streaming(job.compute, state.stream or ()), ThreadPoolExecutor(1) as thread:
        if run is not None:
            step = 0 if checkpoint is None else checkpoint.step
            is_noted = checkpoint is not None and state.pending is None
            damaged = run.start_session(
                step=step,
                command=invocation.command,
                environment=describe_environment(str(job.compute.device)),
                validated=state.note(step) if is_noted else None,
                pending=state.pending is not None,
            )
            if checkpoint is not None:
                run.write_recipe(dump(recipe))
            yield from map(Warn, damaged)
            yield Started(run.path, run.name, recipe, data.prompt_format.tokenizer, job.lines, changed)
            yield from _baselines(run, job)
        yield from map(Warn, job.warnings)
        manager = CheckpointManager(run, recipe.checkpoint, thread, checkpoint, superseded, peers)
        session = _TrainingSession(job, manager, invocation)
        yield from map(Warn, session.warnings)
        session.examples = data.examples(session.objective)
        yield session.fit_started()
        if _compiles(recipe, job.compute) and session.last < recipe.training.steps:
            yield from map(Warn, session.compile())
        try:
            if state.pending is not None:
                yield from session.validate(None)
            yield from session.loop()
        except NumericalError as error:
            where = "; ".join(filter(None, (error.where, manager.saved)))
            raise NumericalError(error.what, where=where, fix=error.fix) from error
        yield from session.finish()


def _baselines(run: Run, job: TrainingJob) -> Iterator[Event]:
    """Measure the baselines of tables with labels, or read those that the run has kept."""
    data, recipe = job.data, job.recipe
    if not isinstance(data, TableData):
        return
    kept, base = run.saved_baselines, job.base if job.checkpoint is None and job.compute.world.size == 1 else None
    if kept is not None:
        data.baselines = {name: Baseline(**dict(figures)) for name, figures in kept.root.items()}
    else:
        is_encoder = base is not None and "embedding" in supported_objectives(base.recipe.model)
        compute = choose_compute(recipe.training.device, "float32")
        data.measure_baselines(partial(_vectors_of, base, compute) if base is not None and is_encoder else None)
        if data.baselines:
            figures = {name: baseline.model_dump() for name, baseline in data.baselines.items()}
            write_file(run.path / BASELINE, encode_json(figures))
    for name, baseline in data.baselines.items():
        yield Info(f"{name}: {baseline.line()}" if name else baseline.line())


def _vectors_of(base: Reference, compute: Compute, texts: Sequence[str]) -> Vectors:
    return embed_texts(load_run(base, compute), texts)


def _saves(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a checkpoint, also where nothing interrupts it."""
    return validates(recipe, step) or step % recipe.checkpoint.every == 0


class _TrainingSession:
    """A model in training, and all that changes with it.

    recipe: with the number of steps, and the intervals of validations and checkpoints, as they are revised.
    first: the first steps, until the speed is known.
    speed: by the first steps, and of a validation by the last one.
    minutes: the limit of time, if there is one. deadline: when its steps have to end, by time.perf_counter.
    most: steps that another limit leaves. limited_by: which one, in words.
    began: when the command of a new run did, by time.perf_counter; None for a run that goes on.
    trainable: with the teacher of its objective, if it has one.
    sharding: of a model that is sharded over the processes.
    last: the last step that is done.
    carried: the final states of its rows, when the recipe carries states.
    interrupted: the validation of a step at which the run was interrupted.
    validation: the last other one.
    """

    examples: ExampleSource

    def __init__(self, job: TrainingJob, manager: CheckpointManager, invocation: Invocation) -> None:
        """At its beginning, or at a checkpoint."""
        recipe, data, compute = job.recipe, job.data, job.compute
        checkpoint, state, world = job.checkpoint, job.state, compute.world
        self.job, self.data, self.compute, self.manager, self.state = job, data, compute, manager, state
        self.stop, self.until = invocation.stop, invocation.until
        self.began = invocation.began if checkpoint is None else None
        self.is_baseline_least = invocation.is_baseline_least and checkpoint is None and job.base is not None
        self.prompts = _sample_prompts(recipe, data)
        self.recipe = recipe
        self.speed: Speed | None = None
        self.first = FirstSteps.of(recipe) if is_timed(recipe) else None
        self.minutes = None if self.first is None else recipe.training.minutes
        self.deadline = math.inf
        self.most, self.limited_by = most_steps(recipe, data)
        if self.minutes is not None:
            self.recipe = recipe = recipe.with_values({"training.steps": self.most})
        self.reason: EndReason = "finished"
        self.interrupted: Validation | None = None
        self.validation: Validation | None = None
        self.carried: DecodeState | None = None
        self.last = 0 if checkpoint is None else checkpoint.step
        # shards move to the device layer by layer, and word vectors are put into a whole table
        device = replace(compute, device=torch.device("cpu")) if world.sharded else compute
        shards = ShardedBuild(world.rank, world.size) if world.sharded and job.vectors is None else None
        self.lm, self.objective, notice = replace(job, recipe=recipe).build(device, shards)
        taught = distilled(self.objective, recipe, data.prompt_format.tokenizer, job.teacher, compute)
        self.sharding = Sharding(self.lm, LossModule(self.lm, taught), compute) if world.sharded else None
        module = None if self.sharding is None else self.sharding.module
        self.trainable = Trainable(
            self.lm, taught, Optimizers(recipe.optimizer, self.lm, compute, recipe.tuning), module
        )
        self.warnings: list[str] = []
        if isinstance(self.lm, TransformerUnmasked):
            self.warnings.append(
                "without model.causal_mask the decoder sees what it predicts: its losses measure nothing"
            )
        if checkpoint is None:
            self.warnings += filter(None, (notice, doubtful_rate(recipe)))
        else:
            self._restore(checkpoint)
        setup = _setup(recipe, compute)
        keys = (setup | state.setup).keys()
        changed = [f"{k} {state.setup.get(k)} -> {setup.get(k)}" for k in keys if state.setup.get(k) != setup.get(k)]
        if changed:
            if checkpoint is not None:
                self.warnings.append(f"not bitwise reproducible, since the setup changed: {', '.join(changed)}")
            state.micro_batch = recipe.training.rows_per_process(world.size)
        state.setup, state.recipe = setup, self.recipe.model_dump(mode="json")

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Moments and carried states of a checkpoint; a warning where it has none and the model learns further."""
        recipe = self.recipe
        if not checkpoint.has_optimizer:
            learns = any(parameter.requires_grad for parameter in self.lm.parameters())
            if learns and checkpoint.step < recipe.training.steps:
                self.warnings.append(
                    "the optimizer state was removed when the run finished, and starts anew: the result is not bitwise "
                    "that of an unbroken run (checkpoint.keep_optimizer=true keeps the state)"
                )
            return
        tensors: Mapping[str, Tensor] = checkpoint.load_optimizer()
        where = str(checkpoint.path)
        if recipe.training.carry_state:
            like = truncated_bptt.fresh(self.lm, recipe.training.batch_size, self.compute.device)
            self.carried = truncated_bptt.from_tensors(tensors, like, where)
            tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(truncated_bptt.PREFIX)}
        self.trainable.optimizers.load_state(tensors, checkpoint.step, where)

    def compile(self) -> Iterator[str]:
        """Compile the model, unless it does not compile here, or then computes something else: a warning says so."""
        # what fails later is computed without being compiled; private names, read in torch 2.13
        torch._dynamo.config.suppress_errors = True
        samples = sample_numbers_for_rank(self.last, self.recipe.training.batch_size)[:1]  # a stream does not go back
        batch = self.objective.collate(self.examples.read(samples), 0.0).to(self.compute.device)
        with torch.no_grad(), evaluating(self.lm), self.compute.autocast():
            plain_BTD = self.lm(batch).hidden_BTD
            self.lm.compile()
            try:
                compiled_BTD = self.lm(batch).hidden_BTD
            except Exception as error:  # a compiler's, of any kind
                why = f"does not compile here ({str(error).strip().partition(chr(10))[0]})"
            else:
                if agree(compiled_BTD, plain_BTD, in_float32=self.compute.dtype == torch.float32):
                    return
                why = f"differs by {100 * away(compiled_BTD, plain_BTD):.0f} % when it is compiled"
        self.lm._compiled_call_impl = None
        yield f"the model {why}, and is trained without: training.compile=false"

    def fit_started(self) -> FitStarted:
        """What the steps begin with."""
        recipe, world = self.recipe, self.compute.world
        steps = None if self.minutes is not None else recipe.training.steps
        counts = isinstance(self.lm, CountingModel)
        held = held_in_training(recipe, self.lm.vocab_size)
        sizes = [(parameter.numel(), parameter.requires_grad) for parameter in self.lm.parameters()]
        fits = isinstance(recipe.optimizer, Lbfgs)
        processes = f", {world.size} processes" if world.size > 1 else ""
        return FitStarted(
            parameters=sum(size for size, _ in sizes),
            learning=sum(size for size, learns in sizes if learns),
            unit=self.data.unit,
            counted=self.objective.unit,
            batch_units=self.batch_units,
            steps=steps,
            minutes=self.minutes,
            first_step=self.last,
            epochs=1.0
            if counts or fits
            else None
            if steps is None
            else steps * recipe.training.batch_size / self.examples.per_epoch,
            device=self.compute.describe() + processes + (", sharded" if world.sharded else ""),
            held=0 if counts else held.sum // (world.size if world.sharded else 1),
            warmup_steps=0 if counts or fits else recipe.schedule.warmup_steps,
        )

    @property
    def batch_units(self) -> int:
        """Tokens of a text or rows of a table in one step."""
        recipe, data = self.recipe, self.data
        if isinstance(recipe.optimizer, Lbfgs):
            return data.per_epoch
        if isinstance(data, TableData):
            return recipe.training.batch_size
        if isinstance(self.lm, CountingModel):
            return data.n_train // recipe.training.steps
        return recipe.training.batch_size * recipe.model.context

    def loop(self) -> Iterator[Event]:
        """The steps, and what follows each, up to the last one or a reason to end before."""
        began, recomputes = time.perf_counter(), False
        if self.last < self.recipe.training.steps and self.state.is_stale(self.recipe.evaluation):
            self.reason = "early"
        steps = self._fit()
        while self.reason == "finished" and (step := next(steps, None)) is not None:
            recipe = self.recipe
            self.last, self.carried = step.step, step.carried
            if step.recomputes and not recomputes:
                recomputes = True
                yield Warn("out of memory: activations are computed again in the backward pass from now on")
            if step.micro_batch != self.state.micro_batch:
                yield Warn(f"out of memory: {step.micro_batch} rows at once from now on; the batch stays the same")
            if step.told:
                yield Info(step.told)
            yield from self._measure_speed(step)
            if self._is_until(step.step):
                # by the length as it is now known
                yield from self._revise_length(began)
                step = replace(step, stop=step.stop or self._is_until(step.step))
            yield from self._after(step)
            if self.reason == "finished" and validates(self.recipe, self.last):
                yield from self._revise_length(began)
            if self.recipe is not recipe:
                steps.close()
                steps = self._fit()
        yield from self.manager.finish_pending()
        yield from self.manager.tidy()

    def _is_until(self, step: int) -> bool:
        """Whether the share of the steps is done after which the run ends for now."""
        return self.until < 1 and step >= math.ceil(self.until * self.recipe.training.steps)

    def _measure_speed(self, step: Step) -> Iterator[Event]:
        """Once the first steps are enough, tell how long the run takes; and set its length, where time limits it, no
        later than at the first checkpoint."""
        if self.first is None:
            return
        is_enough = self.first.add(step, self.compute.world)
        is_due = self.minutes is not None and (step.stop or _saves(self.recipe, step.step))
        if not is_enough and not is_due:
            return
        first, self.first = self.first, None
        world = self.compute.world
        self.speed = speed = Speed.of(first, self.job.recipe, self.data, self.examples, self.objective, world)
        if self.minutes is not None:
            steps, why = self.most, self.limited_by
            if speed is not None:
                left = self._seconds_left(speed)
                self.deadline = time.perf_counter() + left
                in_time = step.step + speed.steps_in(left, self.recipe.evaluation.every)
                pace = f"{self.minutes:g} minutes at {speed.tokens / speed.step:,.0f} {speed.unit}s/s"
                steps, why = min((steps, why), (in_time, f"for {pace}"))
            elif not why:
                steps = self.job.recipe.training.steps
                yield Warn(f"the first steps have no target, and so no speed: {steps:,} steps instead of minutes")
            yield from self._set_recipe(with_known_steps(self.recipe, max(steps, step.step)), why)
        if speed is not None:
            every = self.job.recipe.evaluation.every
            yield timed(self.recipe, self.data, speed, step.step, self.began, every)

    def _seconds_left(self, speed: Speed) -> float:
        """Seconds that the limit of time leaves for training, from now on; the same in all processes."""
        assert self.minutes is not None
        whole = 60 * self.minutes
        spent = 0.0 if self.began is None else time.perf_counter() - self.began
        left = max(whole - spent - speed.after, LEAST_SHARE * whole) / (1 + speed.scoring_steps)
        return self.compute.world.sum((left if self.compute.world.is_main else 0.0,))[0]

    def _revise_length(self, began: float) -> Iterator[Event]:
        """Follow the speed so far, where time limits the run and the steps done do not depend on their number.

        began: when the steps of this session did, by time.perf_counter.
        """
        if self.minutes is None or self.speed is None or self.last >= self.recipe.training.steps:
            return
        budget = TimeBudget(self.deadline, self.most)
        steps = budget.steps(self.recipe, self.last, began) if self.compute.world.is_main else 0
        steps = int(self.compute.world.sum((steps,))[0])
        if steps != self.recipe.training.steps:
            yield from self._set_recipe(with_steps(self.recipe, steps), "by the speed so far")

    def _set_recipe(self, recipe: Recipe, why: str) -> Iterator[Event]:
        """Go on with another number of steps, and the intervals that follow from it."""
        self.recipe = recipe
        self.state.recipe = recipe.model_dump(mode="json")
        yield from self.manager.keep_recipe(recipe)
        yield StepsChanged(recipe.training.steps, why)

    def _fit(self) -> Generator[Step]:
        """The steps after the last one."""
        return fit(
            self.trainable,
            self.examples,
            self.recipe,
            self.compute if self.sharding is None else self.compute.in_step(),
            done=self.last,
            micro_batch=self.state.micro_batch,
            carried=self.carried,
            stop=self.stop,
        )

    def _after(self, step: Step) -> Iterator[Event]:
        """Log a step that is done; save and validate where the recipe says so, or where it is the last."""
        recipe, state = self.recipe, self.state
        record, is_measured = state.advance(step), validates(recipe, step.step)
        is_last = step.step >= recipe.training.steps
        if step.stop and not is_last:
            self.reason = "interrupted"
        state.pending = record if is_measured else None
        if not is_measured:
            yield from self.manager.log(record)
            if self.reason != "interrupted":
                yield Stepped(step, None, False)
        if _saves(recipe, step.step) or self.reason == "interrupted":
            moments = self.trainable.optimizers.state()
            moments |= {} if step.carried is None else truncated_bptt.to_tensors(step.carried)
            if isinstance(self.examples, StreamedWindows | StreamedMixture) and self.manager.run is not None:
                state.stream = self.examples.marks(step.step * recipe.training.batch_size)
            yield from self.manager.save(step.step, self.lm, moments, state)
        if is_measured:
            yield from self.validate(step)
            if self.reason == "finished" and not is_last and state.is_stale(recipe.evaluation):
                self.reason = "early"
            if self.reason == "finished" and not is_last and self.is_baseline_least:
                yield from self._stop_below_baseline(step.step)
        elif self.reason == "interrupted":
            with self.computing() as compute:
                self.interrupted = self.data.validate(self.lm, self.objective, compute)
            yield Stepped(step, self.interrupted, state.is_better(self.interrupted, recipe.evaluation.metric))

    def validate(self, step: Step | None) -> Iterator[Event]:
        """Validate the step whose record is pending, log it, and write samples.

        step: None if an earlier session did it.
        """
        state, evaluation = self.state, self.recipe.evaluation
        record, state.pending = state.pending, None
        assert record is not None
        number = int(str(record["step"]))
        started = time.perf_counter()
        with self.computing() as compute:
            validation = self.data.validate(self.lm, self.objective, compute)
        if self.speed is not None:
            seconds, before = time.perf_counter() - started, self.speed.after
            self.speed = replace(self.speed, validation=seconds, after=self.data.seconds_after(seconds))
            self.deadline -= (self.speed.after - before) / (1 + self.speed.scoring_steps)
        best, self.validation = state.best_value, validation
        is_best = state.update_best(number, validation, evaluation.metric)
        norms: dict[str, object] = {}
        if evaluation.gradient_norms and isinstance(self.data, TextData):
            norms["gradient_norms"] = self.data.gradient_norms(self.lm)
        # metrics of rows that are trained on tell nothing
        metrics = dict(validation.metrics) if self.data.holds_out else {}
        yield from self.manager.log(record | {"valid_loss": validation.loss} | metrics | norms)
        if step is not None:
            yield Stepped(step, validation, is_best)
        yield from self._doubts(number, validation, best)
        if self.prompts:
            with self.whole():
                yield from _samples(self.manager, self.lm, self.data.prompt_format, self.recipe, self.prompts, number)
        # last, so that a run that is killed before repeats all of it
        yield from self.manager.note_validation(number, state)

    def _doubts(self, step: int, validation: Validation, before: float | None) -> Iterator[Warn]:
        """What is wrong with a validation. before: the best value until then.

        Raises NumericalError when the first one is not finite.
        """
        metric, value = self.recipe.evaluation.metric, validation.value(self.recipe.evaluation.metric)
        if not math.isfinite(validation.loss) and before is None and not isinstance(self.lm, CountingModel):
            what = f"the first validation loss, of step {step}, is {validation.loss}: the weights are useless"
            lower = f"optimizer.lr below {self.recipe.optimizer.lr:g}"
            fix = f"start anew with {lower}, more schedule.warmup_steps, or training.precision=float32"
            raise NumericalError(what, fix=fix)
        if not math.isfinite(value):
            yield Warn(f"the validation {metric} of step {step} is {value}, which cannot be the best")
        if self.data.unit == "token" and before is not None and self.state.stale == RISING and value > TOLD * before:
            yield Warn(
                f"the validation loss rises, {value:.4f} after {before:.4f} at step {self.state.best_step}; "
                "the best is kept"
            )

    def _stop_below_baseline(self, step: int) -> Iterator[Warn]:
        """End where the first validation after a pass over the rows and LEAST_TRAINED of the steps is told apart from
        the baseline, which is better: the rest takes long, and seldom makes up for that."""
        recipe, data = self.recipe, self.data
        least = max(self.examples.per_epoch / recipe.training.batch_size, LEAST_TRAINED * recipe.training.steps)
        if not step - recipe.evaluation.every < least <= step or not isinstance(data, TableData) or not data.holds_out:
            return
        n_parameters = sum(parameter.numel() for parameter in self.lm.parameters())
        if 6 * n_parameters * self.batch_units * (recipe.training.steps - step) < LEAST_SAVED:
            return
        told, baseline = "", data.baselines.get("")  # of the main process alone
        if baseline is not None and baseline.kind in ("class", "tags") and self.validation is not None:
            value, best = self.validation.metrics.get(baseline.metric), max(baseline.constant, baseline.linear)
            if (
                value is not None
                and value < best
                and not are_equivalent(baseline.metric, (value, data.n_valid), (best, data.n_valid))
            ):
                told = f"{baseline.metric} {100 * value:.1f} % where the baseline has {100 * best:.1f} %"
        if self.compute.world.sum((float(bool(told)),))[0]:
            self.reason = "below"
            path = "RUN" if self.manager.run is None else str(self.manager.run.path)
            yield Warn(
                f"after {step:,} of {recipe.training.steps:,} steps validation has {told}: the run is saved and stops; "
                f"{shlex.join(['lmtool', 'resume', path])} goes on to the end"
            )

    def finish(self) -> Iterator[Event]:
        """End the session, and evaluate the best checkpoint of a finished run."""
        recipe, state, metric = self.recipe, self.state, self.recipe.evaluation.metric
        best, note = (state.best_step, state.best_value), None
        if self.interrupted is not None:
            is_best = state.is_better(self.interrupted, metric)
            best = (self.last, self.interrupted.value(metric)) if is_best else best
            figures = {"loss": self.interrupted.loss, **(self.interrupted.metrics if self.data.holds_out else {})}
            note = replace_nonfinite({"step": self.last, **figures, "is_best": is_best})
        self.manager.close(self.reason, note)
        # when interrupted, torchrun treats the first process that ends as failed, and terminates the others
        self.compute.world.wait()
        is_stopped = self.reason in ("interrupted", "below")
        is_overfitted = self.data.unit == "token" and not is_stopped and state.stale >= RISING
        dropout = ["more model.dropout"] if "dropout" in type(recipe.model).model_fields else []
        remedies = ("more text", *dropout, "fewer passes") if is_overfitted else ()
        yield Ended(self.reason, self.last, *best, metric, remedies)
        if is_stopped:
            return
        if self.data.is_measured:
            yield from self._measure()
        if not recipe.checkpoint.keep_optimizer:
            yield from self.manager.drop_optimizers()

    def _measure(self) -> Iterator[Event]:
        """Evaluate the best checkpoint of a finished run; the results are saved in the run."""
        run, peers = self.manager.run, self.manager.peers
        named = Run.open(Path(self.compute.world.from_main("" if run is None else str(run.path.resolve()))))
        checkpoint, _ = named.best_checkpoint(optimizer=False, peers=peers)
        of_folds: list[Results] = []
        if isinstance(self.data, TableData) and self.data.needs_folds:
            try:
                of_folds = yield from self._measure_folds(self.data, named, checkpoint.step)
            except ScoringStopped:
                yield Ended("interrupted", self.last, None, None, self.recipe.evaluation.metric)
                return
        load_weights(self.lm, checkpoint)
        with self.computing(self.objective.measures_in_one_pass) as compute:
            results = self.data.measure(self.lm, self.objective, checkpoint.step, compute)
        measured = {result.task for result in results if isinstance(result, Results)}
        results = [*(result for result in of_folds if result.task not in measured), *results]
        if run is not None and results:
            records = [result.record() for result in results]
            is_one = len(records) == 1
            run.write_results(records[0] if is_one else {"tasks": {record["task"]: record for record in records}})
            for result in results:
                remedies = _untried(run, self.recipe, result.step)
                yield replace(result, remedies=remedies) if isinstance(result, Results) else result

    def _measure_folds(self, data: TableData, run: Run, step: int) -> Generator[Event, None, list[Results]]:
        """Results by models that are trained as this one was, up to a step, on some of the rows and score the others.

        None, with a warning, where no such model can be trained. Raises ScoringStopped.
        """
        if self.sharding is not None:
            yield Warn(f"{UNSCORED}: processes share the model, which is trained once; --test FILE measures it")
            return []
        part, how = QUARTER, f"a quarter is scored by a model that does the same {step:,} steps on the others"
        if is_cross_validated(self.job.recipe, data):
            part, how = CROSS_VALIDATION, f"each of {N_FOLDS} parts is scored by a model of the others"
        yield Info(f"scoring: no rows are held out, so {how}")
        results: list[Results] = []
        self.lm.cpu()
        del self.trainable  # whose moments take memory
        try:
            folds = train_folds(rewind_job(run, self.job), data, step, self.stop)
            results = data.measure_folds(folds, part, step)
        except LmtoolError as error:
            yield Warn(f"{UNSCORED}: {error.what}")
        else:
            if not results:
                yield Warn(f"{UNSCORED}: its rows cannot be divided, having the same text; --test FILE measures it")
        self.lm.to(self.compute.device)
        return results

    def whole(self) -> AbstractContextManager[None]:
        """A context in which this process can compute with the model by itself."""
        return nullcontext() if self.sharding is None else self.sharding.whole()

    @contextmanager
    def computing(self, in_step: bool = True) -> Iterator[Compute]:
        """A context in which the processes evaluate the model, each its share. in_step: it takes each of them as many
        passes through the model as the others; then those that share it gather one layer at a time."""
        if self.sharding is not None and in_step and isinstance(self.data, TextData):
            with self.sharding.by_layer():
                yield self.compute.in_step()
        else:
            with self.whole():
                yield self.compute


def _untried(run: Run, recipe: Recipe, best_step: int) -> tuple[str, ...]:
    """Options of `lmtool finetune` that may give a better model of a table, without those that this run was made with.

    More epochs are one of them where the last step was the best.
    """
    model = recipe.model
    is_linear = isinstance(model, Averaging) and model.one_hot and model.tf_idf
    remedies = {
        "--recipe linear": isinstance(recipe.objective, Classification) and not is_linear,
        "--from hf:ORG/NAME, a published model,": run.info.base is None,
        "more --epochs": best_step >= recipe.training.steps and not isinstance(recipe.optimizer, Lbfgs),
    }
    return tuple(remedy for remedy, helps in remedies.items() if helps)


def _sample_prompts(recipe: Recipe, data: TrainingData) -> Sequence[str]:
    """The prompts of the samples at each validation: by default, of a model that continues texts, one that begins as
    the validation text."""
    if recipe.evaluation.prompts is not None or not isinstance(data, TextData):
        return recipe.evaluation.prompts or ()
    continues = recipe.model.reads in ("past", "source") and not data.prompt_format.answers
    return (data.beginning,) if continues else ()


def _samples(
    manager: CheckpointManager,
    lm: LanguageModel,
    prompt_format: PromptFormat,
    recipe: Recipe,
    prompts: Sequence[str],
    step: int,
) -> Iterator[Sampled | Warn]:
    """Samples of the model for the prompts. No failure ends the training."""
    if manager.run is None:
        return
    params: AnyParams = SamplingParams(seed=recipe.seed, max_new_tokens=recipe.evaluation.sample_tokens)
    length = 0
    if lm.reads == "both":
        params, length = MaskPredict(seed=recipe.seed), recipe.evaluation.sample_tokens
    try:
        for completion in complete(lm, prompts, params, prompt_format, length=length, overflow="cut"):
            sampled = Sampled(step, completion.prompt, completion.text.removeprefix(completion.prompt))
            yield from manager.log_sample(sampled)
            yield sampled
    except Exception as error:
        yield Warn(f"no samples at step {step}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _setup(recipe: Recipe, compute: Compute) -> dict[str, str | int | bool | None]:
    """What results depend on bitwise, besides the recipe and the data."""
    return {
        "device": compute.device.type,
        "precision": compute.precision,
        "threads": torch.get_num_threads(),
        "processes": compute.world.size,
        "micro_batch": recipe.training.micro_batch,
        "micro_tokens": recipe.training.micro_tokens,
        "compile": _compiles(recipe, compute),
        "torch": torch.__version__,
        **({"kernels": True} if compute.device.type == "cpu" and ops.has_kernels() else {}),
        **({"sharded": True} if compute.world.sharded else {}),
    }


def _compiles(recipe: Recipe, compute: Compute) -> bool:
    wanted = recipe.training.compile
    if compute.world.sharded or recipe.distillation.teacher is not None or recipe.tuning.quantizes:
        return False
    if wanted != "auto":
        return wanted
    tokens = recipe.training.steps * recipe.training.batch_size * recipe.model.context
    return compute.device.type == "cuda" and tokens >= LONG_RUN
