"""A training run from data to its last checkpoint: fit, save, validate, sample; yields events."""

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lmtool.compute.device import Compute
from lmtool.compute.processes import World
from lmtool.compute.shards import ShardedBuild
from lmtool.decoding.settings import MaskPredict, Options, Sample, Settings
from lmtool.decoding.text import complete, write
from lmtool.errors import NumericalError
from lmtool.inference.base import Base
from lmtool.inference.evaluation import Validation
from lmtool.inference.load import learner, load_weights
from lmtool.inference.sharding import Sharding
from lmtool.inference.vectors import MatchedVectors
from lmtool.model import DecodeState, LanguageModel
from lmtool.model.language_model import CountingModel
from lmtool.model.size import held_in_training
from lmtool.model.transformer import TransformerUnmasked
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Averaging
from lmtool.run.checkpoint import ALONE, Checkpoint, Peers
from lmtool.run.directory import Run
from lmtool.run.find import find
from lmtool.tables.results import Results
from lmtool.training import carried
from lmtool.training.data import TextData, TrainingData
from lmtool.training.events import Ended, EndReason, Event, Plan, Resized, Sampled, Stepped, Warned
from lmtool.training.fit import LossModule, Step, fit
from lmtool.training.keeper import RunKeeper, TrainingState
from lmtool.training.length import with_steps
from lmtool.training.optimizer import Optimizers
from lmtool.training.schedule import Pace, doubtful_rate
from lmtool.training.streamed import StreamedMixture, StreamedWindows
from lmtool.training.teaching import distilled
from lmtool.training.windows import ExampleSource

RISING = 2
"""Validations of a text without a new best after which a rising loss is told."""

TOLD = 1.005
"""Ratio to the best from which it is."""

LONG_RUN = 100_000_000
"""Tokens from which compiling the model pays off on a GPU."""


def train(
    run: Run | None,
    data: TrainingData,
    compute: Compute,
    world: World,
    *,
    checkpoint: Checkpoint | None = None,
    state: TrainingState | None = None,
    base: Base | None = None,
    teacher: Base | None = None,
    same_labels: bool = False,
    vectors: MatchedVectors | None = None,
    features: LanguageModel | None = None,
    sharded: bool = False,
    pace: Pace | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train on `data` with its recipe, from the start or from `checkpoint`, and save everything in `run`.

    run: locked and started; None in processes that only compute. Every process iterates to the end.
    state: of the checkpoint, when the run stopped.
    base: initial weights, of another run; same_labels: its head has the same labels. With `checkpoint` only for a run
    that saves only adapters to them. teacher: of a distilled model. vectors: that the embeddings of a new model begin
    with. features: the frozen model whose states the model reads, if it reads any. sharded: over the processes.
    pace: where time limits the steps. stop: called after each step; when True the run is saved and ends, in all
    processes at the same step.

    At a step that ends with a validation the checkpoint is saved first: no later error loses the step, and a run that
    is resumed there begins with that validation. A step at which the run is interrupted is validated as well, outside
    of the training: patience, the best step and the metrics are as if it had not been.

    Raises NumericalError, also when the first validation loss is not finite, ResourceError and CheckpointError. When
    saving fails, training continues with a warning, but a run whose last save fails ends with that error.
    """
    recipe = data.recipe
    superseded = None if checkpoint is None or _saves(recipe, checkpoint.step) else checkpoint.step
    peers = world.aside() if sharded else ALONE
    with RunKeeper(run, recipe.checkpoint, checkpoint, superseded, peers) as keeper:
        state = state or TrainingState()
        trainee = _Trainee.of(
            data, compute, world, state, checkpoint, base, teacher, same_labels, vectors, features, sharded
        )
        last = trainee.first_step
        yield from map(Warned, trainee.warnings)
        examples = data.examples(trainee.objective)
        per_epoch = examples.per_epoch
        steps, metric = recipe.training.steps, recipe.evaluation.metric
        counts = isinstance(trainee.lm, CountingModel)
        held = held_in_training(recipe, trainee.lm.vocab_size)
        yield Plan(
            parameters=sum(parameter.numel() for parameter in trainee.lm.parameters()),
            learning=sum(parameter.numel() for parameter in trainee.lm.parameters() if parameter.requires_grad),
            unit=data.unit,
            counted=trainee.objective.unit,
            batch_units=data.batch_units,
            steps=steps,
            first_step=last,
            epochs=1.0 if counts else steps * recipe.training.batch_size / per_epoch,
            device=compute.describe()
            + (f", {world.size} processes" if world.size > 1 else "")
            + (", sharded" if sharded else ""),
            held=0 if counts else held.sum // (world.size if sharded else 1),
        )
        if _compiles(recipe, compute, sharded):
            trainee.lm.compile()
        if state.pending is not None:
            yield from _validate(trainee, data, keeper, compute, world, None)
        aside: Validation | None = None
        reason: EndReason = "early" if last < steps and state.is_stale(recipe.evaluation) else "finished"
        began, recomputes = time.perf_counter(), False
        fitted = _saying(trainee.fit(examples, recipe, compute, world, last, trainee.carried, stop), keeper)
        while reason == "finished" and (step := next(fitted, None)) is not None:
            last = step.step
            if step.recomputes and not recomputes:
                recomputes = True
                yield Warned("out of memory: activations are computed again in the backward pass from now on")
            if step.micro_batch != state.micro_batch:
                yield Warned(f"out of memory: {step.micro_batch} rows at once from now on; the batch stays the same")
            record = state.advance(step)
            validates = _validates(recipe, last)
            if step.stop and last < recipe.training.steps:
                reason = "interrupted"
            state.pending = record if validates else None
            if not validates:
                yield from keeper.log(record)
                if reason != "interrupted":
                    yield Stepped(step, None, False)
            if _saves(recipe, last) or reason == "interrupted":
                moments = trainee.optimizers.state()
                moments |= {} if step.carried is None else carried.to_tensors(step.carried)
                if isinstance(examples, StreamedWindows | StreamedMixture) and keeper.keeps:
                    marks = examples.marks(last * recipe.training.batch_size)
                    state.stream = [mark.model_dump() for mark in marks]
                yield from keeper.save(last, trainee.lm, moments, state)
            if validates:
                yield from _validate(trainee, data, keeper, compute, world, step)
                if reason == "finished" and last < recipe.training.steps and state.is_stale(recipe.evaluation):
                    reason = "early"
                if reason == "finished" and pace is not None:
                    own = pace.steps(recipe, last, began) if world.is_main else 0
                    steps = int(world.sum((own,), compute)[0])
                    if last < recipe.training.steps != steps:
                        recipe = with_steps(recipe, steps)
                        data = data.with_recipe(recipe)
                        state.recipe = recipe.model_dump(mode="json")
                        yield from keeper.keep_recipe(recipe)
                        yield Resized(steps)
                        fitted.close()
                        fitted = _saying(
                            trainee.fit(examples, recipe, compute, world, last, step.carried, stop), keeper
                        )
            elif reason == "interrupted":
                with trainee.computing(data, world) as group:
                    aside = data.validate(trainee.lm, trainee.objective, compute, group)
                yield Stepped(step, aside, state.is_better(aside, metric))
        yield from keeper.settle()
        yield from keeper.tidy()
        best = state.best_step, state.best_value
        if aside is not None:
            is_best = state.is_better(aside, metric)
            best = (last, aside.value(metric)) if is_best else best
            keeper.close(reason, _note(last, aside) | {"is_best": is_best})
        else:
            keeper.close(reason)
        # when interrupted, torchrun treats the first process that ends as failed, and terminates the others
        world.wait()
        is_overfitted = data.unit == "token" and reason != "interrupted" and state.stale >= RISING
        dropout = ["more model.dropout"] if "dropout" in type(recipe.model).model_fields else []
        remedies = ("more text", *dropout, "fewer passes") if is_overfitted else ()
        yield Ended(reason, last, *best, metric, remedies)
        if data.is_measured and reason != "interrupted":
            yield from _measure(trainee, data, run, compute, world, peers)
        if reason != "interrupted" and not recipe.checkpoint.keep_optimizer:
            yield from keeper.drop_optimizers()


def _validates(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a validation."""
    return step % recipe.evaluation.every == 0 or step == recipe.training.steps


def _saves(recipe: Recipe, step: int) -> bool:
    """Whether a step ends with a checkpoint, also where nothing interrupts it."""
    return _validates(recipe, step) or step % recipe.checkpoint.every == 0


def _saying(steps: Iterator[Step], keeper: RunKeeper) -> Generator[Step]:
    """The same steps; a NumericalError among them also says what is saved."""
    try:
        yield from steps
    except NumericalError as error:
        where = "; ".join(filter(None, (error.where, keeper.saved)))
        raise NumericalError(error.what, where=where, fix=error.fix) from error


@dataclass
class _Trainee:
    """A model in training, and all that changes with it.

    taught: the objective with its teacher, if it has one. sharding: of a model that is sharded over the processes.
    """

    lm: LanguageModel
    objective: Objective
    taught: Objective
    sharding: Sharding | None
    optimizers: Optimizers
    state: TrainingState
    first_step: int
    carried: DecodeState | None
    warnings: list[str]

    def whole(self) -> AbstractContextManager[None]:
        """A context in which this process can compute with the model by itself."""
        return nullcontext() if self.sharding is None else self.sharding.whole()

    @contextmanager
    def computing(self, data: TrainingData, world: World, in_step: bool = True) -> Iterator[World]:
        """A context in which the processes evaluate the model, each its share. in_step: it takes each of them as many
        passes through the model as the others; then those that share it gather one layer at a time."""
        if self.sharding is not None and in_step and isinstance(data, TextData):
            with self.sharding.by_layer():
                yield replace(world, in_step=True)
        else:
            with self.whole():
                yield world

    @classmethod
    def of(
        cls,
        data: TrainingData,
        compute: Compute,
        world: World,
        state: TrainingState,
        checkpoint: Checkpoint | None,
        base: Base | None,
        teacher: Base | None,
        same_labels: bool,
        vectors: MatchedVectors | None,
        features: LanguageModel | None,
        sharded: bool,
    ) -> "_Trainee":
        """The initial state, or that of a checkpoint; see `train`."""
        recipe, tokenizer = data.recipe, data.framing.tokenizer
        warnings = []
        # shards move to the device layer by layer
        place = Compute(torch.device("cpu"), compute.precision) if sharded else compute
        # word vectors are put into a whole table
        shards = ShardedBuild(world.rank, world.size) if sharded and vectors is None else None
        lm, notice = learner(
            recipe, tokenizer, place, data.set_statistics, base, same_labels, checkpoint, features, shards
        )
        if vectors is not None:
            vectors.copy_to(lm)
        if isinstance(lm, TransformerUnmasked):
            warnings.append("without model.causal_mask the decoder sees what it predicts: its losses measure nothing")
        objective = build_objective(recipe, tokenizer, lm.counts_V)
        for parameter in objective.idle(lm):
            parameter.requires_grad_(False)
        taught = objective if teacher is None else distilled(objective, recipe, tokenizer, teacher, compute)
        sharding = Sharding(lm, LossModule(lm, taught), compute, world) if sharded else None
        optimizers = Optimizers(recipe.optimizer, lm, compute, recipe.tuning)
        first_step = 0
        states: DecodeState | None = None
        if checkpoint is not None and not checkpoint.has_optimizer:
            ends = checkpoint.step >= recipe.training.steps
            if not ends and any(parameter.requires_grad for parameter in lm.parameters()):
                warnings.append(
                    "the optimizer state was removed when the run finished, and starts anew: the result is not bitwise "
                    "that of an unbroken run (checkpoint.keep_optimizer=true keeps the state)"
                )
            first_step = checkpoint.step
        elif checkpoint is not None:
            tensors: Mapping[str, Tensor] = checkpoint.optimizer()
            where = str(checkpoint.path)
            if recipe.training.carry_state:
                like = carried.fresh(lm, recipe.training.batch_size, compute.device)
                states = carried.from_tensors(tensors, like, where)
                tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(carried.PREFIX)}
            optimizers.load_state(tensors, checkpoint.step, where)
            first_step = checkpoint.step
        else:
            warnings += filter(None, (notice, doubtful_rate(recipe)))
        setup = _setup(recipe, compute, world, sharded)
        keys = (setup | state.setup).keys()
        changed = [f"{k} {state.setup.get(k)} -> {setup.get(k)}" for k in keys if state.setup.get(k) != setup.get(k)]
        if changed:
            if checkpoint is not None:
                warnings.append(f"not bitwise reproducible, since the setup changed: {', '.join(changed)}")
            state.micro_batch = recipe.training.rows_at_once(world.size)
        state.setup, state.recipe = setup, recipe.model_dump(mode="json")
        return cls(lm, objective, taught, sharding, optimizers, state, first_step, states, warnings)

    def fit(
        self,
        examples: ExampleSource,
        recipe: Recipe,
        compute: Compute,
        world: World,
        first_step: int,
        carried: DecodeState | None,
        stop: Callable[[], bool],
    ) -> Generator[Step]:
        """The steps from `first_step` on; see `lmtool.training.fit.fit`."""
        return fit(
            self.lm,
            self.taught,
            self.optimizers,
            examples,
            recipe,
            compute,
            world if self.sharding is None else replace(world, in_step=True),
            first_step=first_step,
            micro_batch=self.state.micro_batch,
            carried=carried,
            module=None if self.sharding is None else self.sharding.module,
            stop=stop,
        )


def _validate(
    trainee: _Trainee, data: TrainingData, keeper: RunKeeper, compute: Compute, world: World, step: Step | None
) -> Iterator[Event]:
    """Validate the step whose record is pending, log it, and write samples. step: None if an earlier session did it."""
    state, evaluation = trainee.state, data.recipe.evaluation
    record, state.pending = state.pending, None
    assert record is not None
    number = int(str(record["step"]))
    with trainee.computing(data, world) as group:
        validation = data.validate(trainee.lm, trainee.objective, compute, group)
    before = state.best_value
    is_best = state.update_best(number, validation, evaluation.metric)
    norms: dict[str, object] = {}
    if evaluation.gradient_norms and isinstance(data, TextData):
        norms["gradient_norms"] = data.gradient_norms(trainee.lm)
    yield from keeper.log(record | {"valid_loss": validation.loss} | dict(validation.metrics) | norms)
    if step is not None:
        yield Stepped(step, validation, is_best)
    value = validation.value(evaluation.metric)
    if not math.isfinite(validation.loss) and before is None and not isinstance(trainee.lm, CountingModel):
        raise NumericalError(
            f"the first validation loss, of step {number}, is {validation.loss}: the weights are useless",
            where=keeper.saved,
            fix=f"start anew with optimizer.lr below {data.recipe.optimizer.lr:g}, more schedule.warmup_steps, or "
            "training.precision=float32",
        )
    if not math.isfinite(value):
        yield Warned(f"the validation {evaluation.metric} of step {number} is {value}, which is never the best")
    if data.unit == "token" and before is not None and state.stale == RISING and value > TOLD * before:
        yield Warned(
            f"the validation loss rises, {value:.4f} after {before:.4f} at step {state.best_step}; the best is kept"
        )
    if data.prompts:
        with trainee.whole():
            yield from _samples(keeper, trainee.lm, data, number)
    # last, so that a run that is killed before repeats all of it
    yield from keeper.note_validation(number, state)


def _note(step: int, validation: Validation) -> dict[str, object]:
    """A validation as JSON values; None for those that are not finite."""
    values = {"loss": validation.loss} | dict(validation.metrics)
    return {"step": step} | {name: value if math.isfinite(value) else None for name, value in values.items()}


def _measure(
    trainee: _Trainee, data: TrainingData, run: Run | None, compute: Compute, world: World, peers: Peers
) -> Iterator[Event]:
    """Evaluate the best checkpoint of a finished run; the results are saved in the run."""
    path = Path(world.from_main("" if run is None else str(run.path.resolve()), compute))
    checkpoint, _ = find(str(path)).best(optimizer=False, peers=peers)
    load_weights(trainee.lm, checkpoint)
    with trainee.computing(data, world, trainee.objective.measures_in_one_pass) as group:
        results = data.measure(trainee.lm, trainee.objective, checkpoint.step, compute, group)
    if run is not None:
        records = [result.record() for result in results]
        is_one = len(records) == 1
        run.write_results(records[0] if is_one else {"tasks": {record["task"]: record for record in records}})
        for result in results:
            remedies = _untried(run, data.recipe, result.step)
            yield replace(result, remedies=remedies) if isinstance(result, Results) else result


def _untried(run: Run, recipe: Recipe, best_step: int) -> tuple[str, ...]:
    """Options of `lmtool finetune` that may give a better model of a table, without those that this run was made with.

    More epochs are one of them where the last step was the best.
    """
    model = recipe.model
    is_linear = isinstance(model, Averaging) and model.one_hot and model.tf_idf
    remedies = {
        "--recipe linear": isinstance(recipe.objective, Classification) and not is_linear,
        "--from hf:ORG/NAME, a published model,": run.info.base is None,
        "more --epochs": best_step >= recipe.training.steps,
    }
    return tuple(remedy for remedy, helps in remedies.items() if helps)


def _samples(keeper: RunKeeper, lm: LanguageModel, data: TrainingData, step: int) -> Iterator[Sampled | Warned]:
    """Samples of the model for the prompts. No failure ends the training."""
    if not keeper.keeps:
        return
    recipe, n_tokens = data.recipe, data.recipe.evaluation.sample_tokens
    settings: Settings
    if lm.reads == "both":
        settings, options = MaskPredict(seed=recipe.seed), Options(length=n_tokens, overflow="cut")
    else:
        settings, options = Sample(seed=recipe.seed, max_new_tokens=n_tokens), Options(overflow="cut")
    try:
        for completion in complete(write(lm, data.framing, data.prompts, settings, options)):
            sampled = Sampled(step, completion.prompt, completion.text.removeprefix(completion.prompt))
            yield from keeper.log_sample(sampled)
            yield sampled
    except Exception as error:
        yield Warned(f"no samples at step {step}: {str(error).splitlines()[0] if str(error) else type(error).__name__}")


def _setup(recipe: Recipe, compute: Compute, world: World, sharded: bool) -> dict[str, object]:
    """What results depend on bitwise, besides the recipe and the data."""
    return {
        "device": compute.device.type,
        "precision": compute.precision,
        "threads": torch.get_num_threads(),
        "processes": world.size,
        "micro_batch": recipe.training.micro_batch,
        "micro_tokens": recipe.training.micro_tokens,
        "compile": _compiles(recipe, compute, sharded),
        "torch": torch.__version__,
    } | ({"sharded": True} if sharded else {})


def _compiles(recipe: Recipe, compute: Compute, sharded: bool) -> bool:
    asked = recipe.training.compile
    if sharded or recipe.distillation.teacher is not None:
        return False
    if asked != "auto":
        return asked
    tokens = recipe.training.steps * recipe.training.batch_size * recipe.model.context
    return compute.device.type == "cuda" and tokens >= LONG_RUN
