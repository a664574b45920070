"""A session of training: the steps, and the saving, validation and samples after them; yields events."""

import math
import shlex
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from lmtool.compute.device import ExecutionContext
from lmtool.compute.fsdp import ShardedModel
from lmtool.compute.kernels import ops
from lmtool.compute.shards import ShardNewParameters
from lmtool.data.order import sample_numbers_for_rank
from lmtool.errors import LmtoolError, NumericalError
from lmtool.evaluation.loop import ValidationResult
from lmtool.model import DecodeState
from lmtool.model.language_model import CountingModel
from lmtool.model.size import count_training_flops_per_token, estimate_persistent_memory
from lmtool.model.transformer import TransformerDecoderWithoutCausalMask
from lmtool.recipe.spec.objective import Causal, Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Lbfgs
from lmtool.recipe.spec.words import Averaging
from lmtool.runs.checkpoint import Checkpoint
from lmtool.runs.directory import PROFILE, Run
from lmtool.runs.interpolation import replace_saved_ngram_model
from lmtool.runs.load import load_weights
from lmtool.runs.uncertainty import CROSS_VALIDATION, HELD_OUT_QUARTER, N_FOLDS, are_indistinguishable_scores
from lmtool.storage.records import replace_nonfinite
from lmtool.tasks.data import TableData
from lmtool.tasks.results import Results
from lmtool.training import truncated_bptt
from lmtool.training.checkpoint_manager import CheckpointManager
from lmtool.training.comparison import BitsPerByteResults
from lmtool.training.compiling import compile_or_return_warning_, should_compile
from lmtool.training.data import TextData
from lmtool.training.distillation import add_distillation_loss
from lmtool.training.events import (
    EndReason,
    Event,
    Info,
    StepCompleted,
    StepCountChanged,
    TrainingEnded,
    TrainingStarted,
    Warn,
)
from lmtool.training.fit import (
    CompletedStep,
    LossModule,
    ModelAndOptimizers,
    fit,
    is_checkpoint_step,
    is_validation_step,
)
from lmtool.training.folds import ScoringStopped, is_cross_validated, make_job_from_run_start, train_folds
from lmtool.training.job import SessionOptions, TrainingJob
from lmtool.training.length import RunLengthController, fix_steps_and_intervals, revise_steps_and_intervals
from lmtool.training.optimizer import Optimizers
from lmtool.training.profiling import StepTracer
from lmtool.training.samples import choose_sample_prompts, generate_and_log_samples
from lmtool.training.schedule import tiny_inverse_sqrt_rate_warning
from lmtool.training.streamed import StreamedMixture, StreamedWindows

N_RISING_VALIDATIONS, RISING_RATIO = 2, 1.005
"""A loss is reported as rising after so many validations without a new best, if it exceeds the best by this factor."""

NO_SCORE = "the run has no score, since all rows were trained on"

MIN_STEPS_FRACTION = 0.25
"""Fraction of the steps, longer than the warm-up, after which a model that will be good is near the baseline."""

MIN_SAVED_FLOPS = 1e13
"""Remaining floating-point operations, about ten seconds on two cores, below which a run is not stopped early."""


class TrainingSession:
    """A model in training and everything that changes with it.

    recipe: as the number of steps and the intervals of validations and checkpoints are revised.
    length: what sets and revises this number, if time limits it.
    trainable: with the distilled objective, if there is a teacher.
    sharding: None unless the model is sharded over the processes.
    last_step: the last completed step.
    carried_state: the final states of its rows, if the recipe carries states.
    validation_at_interruption: that of the step at which the run was interrupted; it is shown, and noted in run.json.
    last_validation: that of the last step that ends with one by the recipe.
    """

    def __init__(self, job: TrainingJob, manager: CheckpointManager, options: SessionOptions) -> None:
        """Builds the model, at the checkpoint of the job if there is one."""
        recipe, data, compute = job.recipe, job.data, job.compute
        checkpoint, state, world = job.checkpoint, job.state, compute.world
        self.job, self.data, self.compute, self.manager, self.state = job, data, compute, manager, state
        self.is_stop_requested, self.until, self.profiles = options.is_stop_requested, options.until, options.profiles
        self.stops_below_baseline = options.stops_below_baseline and checkpoint is None and job.base is not None
        self.prompts = choose_sample_prompts(recipe, data)
        self.length = RunLengthController(recipe, data, world, options.started_at if checkpoint is None else None)
        self.recipe = recipe = self.length.recipe_until_timed
        self.end_reason: EndReason | None = None
        self.validation_at_interruption: ValidationResult | None = None
        self.last_validation: ValidationResult | None = None
        self.carried_state: DecodeState | None = None
        self.last_step = 0 if checkpoint is None else checkpoint.step
        # shards move to the device layer by layer, and word vectors are put into a whole table
        device = replace(compute, device=torch.device("cpu")) if world.sharded else compute
        shards = ShardNewParameters(world.rank, world.size) if world.sharded and job.vectors is None else None
        self.lm, self.objective, notice = replace(job, recipe=recipe).build_model(device, shards)
        distilled = add_distillation_loss(self.objective, recipe, data.prompt_format.tokenizer, job.teacher, compute)
        self.sharding = ShardedModel(self.lm, LossModule(self.lm, distilled), compute) if world.sharded else None
        module = None if self.sharding is None else self.sharding.module
        self.trainable = ModelAndOptimizers(
            self.lm, distilled, Optimizers(recipe.optimizer, self.lm, compute, recipe.tuning), module
        )
        self.warnings: list[str] = []
        if isinstance(self.lm, TransformerDecoderWithoutCausalMask):
            self.warnings.append(
                "without model.causal_mask the decoder sees what it predicts: its losses measure nothing"
            )
        if checkpoint is None:
            self.warnings += filter(None, (notice, tiny_inverse_sqrt_rate_warning(recipe)))
        else:
            self._restore_optimizer_and_carried_states(checkpoint)
        setup = _describe_numerical_setup(recipe, compute)
        keys = (setup | state.setup).keys()
        changed = [f"{k} {state.setup.get(k)} -> {setup.get(k)}" for k in keys if state.setup.get(k) != setup.get(k)]
        if changed:
            if checkpoint is not None:
                self.warnings.append(f"not bitwise reproducible, since the setup changed: {', '.join(changed)}")
            state.micro_batch = recipe.training.rows_per_process(world.size)
        state.setup, state.recipe = setup, self.recipe.model_dump(mode="json")

    def run(self) -> Iterator[Event]:
        """Runs the steps up to the last one, or to a reason to end before. See `events`."""
        self.examples = self.data.make_training_examples(self.objective)
        yield self.make_training_started_event()
        if should_compile(self.recipe, self.compute) and self.last_step < self.recipe.training.steps:
            samples = sample_numbers_for_rank(self.last_step, self.recipe.training.batch_size)[:1]
            batch = self.objective.collate(self.examples.read(samples), 0.0).to(self.compute.device)
            if warning := compile_or_return_warning_(self.lm, batch, self.compute):
                yield Warn(warning)
        if self.state.pending is not None:  # the last session saved its last step, and ended before this
            yield from self._run_pending_validation_and_log(None)
        trace_path = None
        if self.profiles:
            run, world = self.manager.run, self.compute.world
            folder = Path(world.broadcast_text("" if run is None else str(run.path)))
            trace_path = folder / PROFILE / f"step-{self.last_step:06d}-rank-{world.rank}.json.gz"
        with StepTracer(trace_path) as tracer:
            yield from self._run_steps(tracer)
            yield from tracer.finish_trace()

    def _restore_optimizer_and_carried_states(self, checkpoint: Checkpoint) -> None:
        """Loads the optimizer and carried states of a checkpoint. Warns if they were removed and training goes on."""
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
            initial = truncated_bptt.make_initial_state(self.lm, recipe.training.batch_size, self.compute.device)
            self.carried_state = truncated_bptt.state_from_tensors(tensors, initial, where)
            tensors = {
                name: tensor for name, tensor in tensors.items() if not name.startswith(truncated_bptt.TENSOR_PREFIX)
            }
        self.trainable.optimizers.load_state(tensors, checkpoint.step, where)

    def make_training_started_event(self) -> TrainingStarted:
        """Describes the model, the length of the run and the device."""
        recipe, world = self.recipe, self.compute.world
        steps = None if self.length.minutes is not None else recipe.training.steps
        counts, fits = isinstance(self.lm, CountingModel), isinstance(recipe.optimizer, Lbfgs)
        epochs: float | None = 1.0
        if not counts and not fits:
            epochs = None if steps is None else steps * recipe.training.batch_size / self.examples.examples_per_epoch
        held = estimate_persistent_memory(recipe, self.lm.vocab_size)
        processes = f", {world.size} processes" if world.size > 1 else ""
        return TrainingStarted(
            parameters=sum(parameter.numel() for parameter in self.lm.parameters()),
            learning=sum(parameter.numel() for parameter in self.lm.parameters() if parameter.requires_grad),
            unit=self.data.unit,
            counted=self.objective.unit,
            batch_units=self.units_per_step,
            steps=steps,
            minutes=self.length.minutes,
            first_step=self.last_step,
            epochs=epochs,
            device=self.compute.describe() + processes + (", sharded" if world.sharded else ""),
            held=0 if counts else held.sum // (world.size if world.sharded else 1),
            warmup_steps=0 if counts or fits else recipe.schedule.warmup_steps,
            peak_speed=self.tokens_per_second_at_peak_flops,
        )

    @cached_property
    def tokens_per_second_at_peak_flops(self) -> float | None:
        """Tokens per second at the peak of the devices, of which the speed is the model FLOPs utilization."""
        is_causal = isinstance(self.recipe.objective, Causal) and isinstance(self.data, TextData)
        flops = count_training_flops_per_token(self.lm, self.recipe.model) if is_causal else None
        peak = self.compute.total_peak_flops
        return None if flops is None or peak is None else peak / flops

    @property
    def units_per_step(self) -> int:
        """Tokens of a text, or rows of a table, in one step."""
        recipe, data = self.recipe, self.data
        if isinstance(recipe.optimizer, Lbfgs):
            return data.examples_per_epoch
        if isinstance(data, TableData):
            return recipe.training.batch_size
        if isinstance(self.lm, CountingModel):
            return data.n_train // recipe.training.steps
        return recipe.training.batch_size * recipe.model.context

    def _run_steps(self, tracer: StepTracer) -> Iterator[Event]:
        """Takes the steps, and logs, saves and validates after each as the recipe says."""
        started_at, recomputes = time.perf_counter(), False
        if self.last_step < self.recipe.training.steps and self.state.is_stale(self.recipe.evaluation):
            self.end_reason = "early"
        stepping = self._iterate_steps()
        while self.end_reason is None and (step := next(stepping, None)) is not None:
            recipe = self.recipe
            self.last_step, self.carried_state = step.step, step.carried_state
            if step.recomputes and not recomputes:
                recomputes = True
                yield Warn("out of memory: activations are computed again in the backward pass from now on")
            if step.micro_batch != self.state.micro_batch:
                yield Warn(f"out of memory: {step.micro_batch} rows at once from now on; the batch stays the same")
            if step.message:
                yield Info(step.message)
            yield from tracer.finish_step()
            # with a time limit the number of steps is set at the first checkpoint at the latest
            is_due = step.stop or is_checkpoint_step(recipe, step.step)
            if self.length.add_step_and_set_durations(step, self.examples, self.objective, must_finish=is_due):
                if self.length.minutes is not None:
                    steps, why = self.length.choose_steps_for_time_limit(step.step, recipe.evaluation.every)
                    yield from self._replace_recipe_and_report_steps(
                        fix_steps_and_intervals(recipe, max(steps, step.step)), why
                    )
                if self.length.durations is not None:
                    yield self.length.estimate_duration(self.recipe, step.step, self.examples.examples_per_epoch)
            if self._reaches_stop_fraction(step.step):
                # by the length as it is now known
                yield from self._revise_step_count_by_speed(started_at)
                step = replace(step, stop=step.stop or self._reaches_stop_fraction(step.step))
            yield from self._log_save_and_validate(step)
            if self.end_reason is None and is_validation_step(self.recipe, self.last_step):
                yield from self._revise_step_count_by_speed(started_at)
            if self.recipe is not recipe:
                stepping.close()
                stepping = self._iterate_steps()
        yield from self.manager.finish_pending_save()
        yield from self.manager.remove_leftover_checkpoints()

    def _reaches_stop_fraction(self, step: int) -> bool:
        """Whether a step completes the fraction of all steps at which the session stops (`--until`)."""
        return self.until < 1 and step >= math.ceil(self.until * self.recipe.training.steps)

    def _revise_step_count_by_speed(self, started_at: float) -> Iterator[Event]:
        """Revises the number of steps of a run with a time limit by the speed so far.

        started_at: when the steps of this session started, by time.perf_counter.
        """
        steps = self.length.compute_revised_steps(self.recipe, self.last_step, started_at)
        if steps != self.recipe.training.steps:
            yield from self._replace_recipe_and_report_steps(
                revise_steps_and_intervals(self.recipe, steps), "by the speed so far"
            )

    def _replace_recipe_and_report_steps(self, recipe: Recipe, why: str) -> Iterator[Event]:
        """Replaces the recipe by one with another number of steps and the intervals that follow from it."""
        self.recipe = recipe
        self.state.recipe = recipe.model_dump(mode="json")
        yield from self.manager.write_recipe(recipe)
        yield StepCountChanged(recipe.training.steps, why)

    def _iterate_steps(self) -> Generator[CompletedStep]:
        """Returns an iterator of the steps after the last one."""
        return fit(
            self.trainable,
            self.examples,
            self.recipe,
            self.compute if self.sharding is None else self.compute.with_lockstep(),
            steps_done=self.last_step,
            micro_batch=self.state.micro_batch,
            carried_state=self.carried_state,
            is_stop_requested=self.is_stop_requested,
        )

    def _log_save_and_validate(self, step: CompletedStep) -> Iterator[Event]:
        """Logs a completed step; saves and validates if the recipe says so or the session ends here."""
        recipe, state = self.recipe, self.state
        record = state.add_step(step, self.tokens_per_second_at_peak_flops)
        is_validated = is_validation_step(recipe, step.step)
        is_last = step.step >= recipe.training.steps
        if step.stop and not is_last:
            self.end_reason = "interrupted"
        state.pending = record if is_validated else None
        if not is_validated:
            yield from self.manager.log_metrics(record)
            if self.end_reason != "interrupted":
                yield StepCompleted(step, None, False)
        if is_checkpoint_step(recipe, step.step) or self.end_reason == "interrupted":
            moments = self.trainable.optimizers.state_tensors()
            if step.carried_state is not None:
                moments |= truncated_bptt.state_to_tensors(step.carried_state)
            if isinstance(self.examples, StreamedWindows | StreamedMixture) and self.manager.run is not None:
                state.stream = self.examples.stream_positions_before(step.step * recipe.training.batch_size)
            yield from self.manager.save_checkpoint(step.step, self.lm, moments, state)
        if is_validated:
            yield from self._run_pending_validation_and_log(step)
            if self.end_reason is None and not is_last and state.is_stale(recipe.evaluation):
                self.end_reason = "early"
            if self.end_reason is None and not is_last and self.stops_below_baseline:
                yield from self._stop_if_below_baseline(step.step)
        elif self.end_reason == "interrupted":
            with self.gather_weights_for_evaluation() as compute:
                validation = self.data.validate(self.lm, self.objective, compute)
            self.validation_at_interruption = validation
            yield StepCompleted(step, validation, state.is_better(validation, recipe.evaluation.metric))

    def _run_pending_validation_and_log(self, step: CompletedStep | None) -> Iterator[Event]:
        """Validates the step whose record is pending, logs it, and writes samples.

        step: None if an earlier session took it.
        """
        state, evaluation = self.state, self.recipe.evaluation
        record, state.pending = state.pending, None
        assert record is not None
        number = int(str(record["step"]))
        started = time.perf_counter()
        with self.gather_weights_for_evaluation() as compute:
            validation = self.data.validate(self.lm, self.objective, compute)
        self.length.record_validation_seconds(time.perf_counter() - started)
        best, self.last_validation = state.best_value, validation
        is_best = state.update_best(number, validation, evaluation.metric)
        norms: dict[str, object] = {}
        if evaluation.gradient_norms and isinstance(self.data, TextData):
            norms["gradient_norms"] = self.data.compute_gradient_norms_by_steps_back(self.lm)
        # metrics of rows that are trained on tell nothing
        metrics = dict(validation.metrics) if self.data.holds_out else {}
        yield from self.manager.log_metrics(record | {"valid_loss": validation.loss} | metrics | norms)
        if step is not None:
            yield StepCompleted(step, validation, is_best)
        yield from self._check_validation(number, validation, best)
        if self.prompts:
            with self.gather_weights():
                yield from generate_and_log_samples(
                    self.manager, self.lm, self.data.prompt_format, self.recipe, self.prompts, number
                )
        # last, so that a run that is killed before repeats all of it
        yield from self.manager.record_validation_and_prune_checkpoints(number, state)

    def _check_validation(self, step: int, validation: ValidationResult, best_before: float | None) -> Iterator[Warn]:
        """Warns of a validation that is not finite or whose loss rises. best_before: the best value before it.

        Raises NumericalError when the first one is not finite.
        """
        metric, value = self.recipe.evaluation.metric, validation.value(self.recipe.evaluation.metric)
        if not math.isfinite(validation.loss) and best_before is None and not isinstance(self.lm, CountingModel):
            what = f"the first validation loss, of step {step}, is {validation.loss}: the weights are useless"
            lower = f"optimizer.lr below {self.recipe.optimizer.lr:g}"
            fix = f"start anew with {lower}, more schedule.warmup_steps, or training.precision=float32"
            raise NumericalError(what, fix=fix)
        if not math.isfinite(value):
            yield Warn(f"the validation {metric} of step {step} is {value}, which cannot be the best")
        if (
            self.data.unit == "token"
            and best_before is not None
            and self.state.stale == N_RISING_VALIDATIONS
            and value > RISING_RATIO * best_before
        ):
            yield Warn(
                f"the validation loss rises, {value:.4f} after {best_before:.4f} at step {self.state.best_step}; "
                "the best is kept"
            )

    def _stop_if_below_baseline(self, step: int) -> Iterator[Warn]:
        """Ends the session if the first validation after a pass over the rows and MIN_STEPS_FRACTION of the steps is
        significantly worse than the baseline: the remaining steps take long, and seldom make up for that."""
        recipe, data = self.recipe, self.data
        least = max(
            self.examples.examples_per_epoch / recipe.training.batch_size, MIN_STEPS_FRACTION * recipe.training.steps
        )
        if not step - recipe.evaluation.every < least <= step or not isinstance(data, TableData) or not data.holds_out:
            return
        n_parameters = sum(parameter.numel() for parameter in self.lm.parameters())
        if 6 * n_parameters * self.units_per_step * (recipe.training.steps - step) < MIN_SAVED_FLOPS:
            return
        finding, baseline = "", data.baselines.get("")  # of the main process alone
        if baseline is not None and baseline.kind in ("class", "tags") and self.last_validation is not None:
            value, best = self.last_validation.metrics.get(baseline.metric), max(baseline.constant, baseline.linear)
            if (
                value is not None
                and value < best
                and not are_indistinguishable_scores(baseline.metric, (value, data.n_valid), (best, data.n_valid))
            ):
                finding = f"{baseline.metric} {100 * value:.1f} % where the baseline has {100 * best:.1f} %"
        if self.compute.world.all_reduce_sum((float(bool(finding)),))[0]:
            self.end_reason = "below"
            path = "RUN" if self.manager.run is None else str(self.manager.run.path)
            yield Warn(
                f"after {step:,} of {recipe.training.steps:,} steps validation has {finding}: the run is saved and "
                f"stops; {shlex.join(['lmtool', 'resume', path])} goes on to the end"
            )

    def finish_and_evaluate_best_checkpoint(self) -> Iterator[Event]:
        """Ends the session, and evaluates the best checkpoint of a finished run."""
        recipe, state, metric = self.recipe, self.state, self.recipe.evaluation.metric
        best = (state.best_step, state.best_value)
        note = None
        validation = self.validation_at_interruption
        if validation is not None:
            is_best = state.is_better(validation, metric)
            best = (self.last_step, validation.value(metric)) if is_best else best
            figures = {"loss": validation.loss, **(validation.metrics if self.data.holds_out else {})}
            note = replace_nonfinite({"step": self.last_step, **figures, "is_best": is_best})
        reason = self.end_reason or "finished"
        self.manager.end_session(reason, note)
        # when interrupted, torchrun treats the first process that ends as failed, and terminates the others
        self.compute.world.barrier()
        is_stopped = reason in ("interrupted", "below")
        is_overfitted = self.data.unit == "token" and not is_stopped and state.stale >= N_RISING_VALIDATIONS
        dropout = ["more model.dropout"] if "dropout" in type(recipe.model).model_fields else []
        remedies = ("more text", *dropout, "fewer passes") if is_overfitted else ()
        yield TrainingEnded(reason, self.last_step, *best, metric, remedies)
        if is_stopped:
            return
        if self.data.is_measured:
            yield from self._evaluate_best_checkpoint()
        if not recipe.checkpoint.keep_optimizer:
            yield from self.manager.remove_optimizer_states()

    def _evaluate_best_checkpoint(self) -> Iterator[Event]:
        """Evaluates the best checkpoint of a finished run, and saves the results in the run."""
        run, peers = self.manager.run, self.manager.peers
        named = Run.open(Path(self.compute.world.broadcast_text("" if run is None else str(run.path.resolve()))))
        checkpoint, warnings = named.find_best_or_newest_checkpoint(peers)
        yield from map(Warn, warnings)
        of_folds: list[Results] = []
        if isinstance(self.data, TableData) and self.data.needs_folds:
            try:
                of_folds = yield from self._train_and_score_folds(self.data, named, checkpoint.step)
            except ScoringStopped:
                yield TrainingEnded("interrupted", self.last_step, None, None, self.recipe.evaluation.metric)
                return
        load_weights(self.lm, checkpoint)
        with self.gather_weights_for_evaluation(self.objective.scores_text_in_one_pass) as compute:
            results = self.data.compute_results(self.lm, self.objective, checkpoint.step, compute)
        measured = {result.task for result in results if isinstance(result, Results)}
        results = [*(result for result in of_folds if result.task not in measured), *results]
        if run is not None and isinstance(self.data, TextData):
            kept = next((result.interpolation for result in results if isinstance(result, BitsPerByteResults)), None)
            replace_saved_ngram_model(run, self.recipe, self.data.prompt_format.tokenizer, kept.ngram if kept else None)
        if run is not None and results:
            records = [result.to_record() for result in results]
            is_one = len(records) == 1
            run.write_results(records[0] if is_one else {"tasks": {record["task"]: record for record in records}})
            for result in results:
                remedies = _suggest_finetuning_options(run, self.recipe, result.step)
                yield replace(result, remedies=remedies) if isinstance(result, Results) else result

    def _train_and_score_folds(self, data: TableData, run: Run, step: int) -> Generator[Event, None, list[Results]]:
        """Returns results of models that are trained for as many steps on a part of the rows and score the others.

        Empty, with a warning, if no such model can be trained. Raises ScoringStopped.
        """
        if self.sharding is not None:
            yield Warn(f"{NO_SCORE}: processes share the model, which is trained once; --test FILE measures it")
            return []
        part, how = HELD_OUT_QUARTER, f"a quarter is scored by a model that does the same {step:,} steps on the others"
        if is_cross_validated(self.job.recipe, data):
            part, how = CROSS_VALIDATION, f"each of {N_FOLDS} parts is scored by a model of the others"
        yield Info(f"scoring: no rows are held out, so {how}")
        results: list[Results] = []
        self.lm.cpu()
        del self.trainable  # whose moments take memory
        try:
            job = replace(make_job_from_run_start(run, self.job), recipe=self.recipe)  # of as many steps as this run
            folds = train_folds(job, data, step, self.is_stop_requested)
            results = data.calibrate_and_compute_pooled_results(folds, part, step)
        except LmtoolError as error:
            yield Warn(f"{NO_SCORE}: {error.what}")
        else:
            if not results:
                yield Warn(f"{NO_SCORE}: its rows cannot be divided, having the same text; --test FILE measures it")
        self.lm.to(self.compute.device)
        return results

    def gather_weights(self) -> AbstractContextManager[None]:
        """Returns a context in which this process has all weights of a sharded model."""
        return nullcontext() if self.sharding is None else self.sharding.gather_all_for_inference()

    @contextmanager
    def gather_weights_for_evaluation(self, in_lockstep: bool = True) -> Iterator[ExecutionContext]:
        """Returns a context in which each process evaluates its part of the data.

        in_lockstep: each process makes as many forward passes as the others, so that a sharded model can gather one
        layer at a time instead of all weights.
        """
        if self.sharding is not None and in_lockstep and isinstance(self.data, TextData):
            with self.sharding.gather_by_layer():
                yield self.compute.with_lockstep()
        else:
            with self.gather_weights():
                yield self.compute


def _suggest_finetuning_options(run: Run, recipe: Recipe, best_step: int) -> tuple[str, ...]:
    """Returns options of `lmtool finetune` that this run did not use and that may give a better model of its table.

    More epochs are suggested if the last step was the best.
    """
    model = recipe.model
    is_linear = isinstance(model, Averaging) and model.one_hot and model.tf_idf
    remedies = {
        "--recipe linear": isinstance(recipe.objective, Classification) and not is_linear,
        "--from hf:ORG/NAME, a published model,": run.info.base is None,
        "more --epochs": best_step >= recipe.training.steps and not isinstance(recipe.optimizer, Lbfgs),
    }
    return tuple(remedy for remedy, helps in remedies.items() if helps)


def _describe_numerical_setup(recipe: Recipe, compute: ExecutionContext) -> dict[str, str | int | bool | None]:
    """Returns everything besides recipe and data that the results depend on bitwise."""
    return {
        "device": compute.device.type,
        "precision": compute.precision,
        "threads": torch.get_num_threads(),
        "processes": compute.world.size,
        "micro_batch": recipe.training.micro_batch,
        "micro_tokens": recipe.training.micro_tokens,
        "compile": should_compile(recipe, compute),
        "torch": torch.__version__,
        **({"kernels": True} if compute.device.type == "cpu" and ops.has_kernels() else {}),
        **({"sharded": True} if compute.world.sharded else {}),
    }
