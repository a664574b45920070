"""Starting a training session: from a resolved recipe to a locked run directory and the training in it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lmtool.compute.device import Compute, choose_compute, device_memory
from lmtool.compute.processes import World, local_size
from lmtool.data.survey import DividedText, Report, resolve_for_text
from lmtool.durable import write_file
from lmtool.errors import UsageError
from lmtool.inference.base import Base
from lmtool.inference.embedding import Vectors
from lmtool.inference.load import Initialization, load_run
from lmtool.inference.pretrained import FeatureSource, open_vectors
from lmtool.interop.reference import with_runs
from lmtool.model.size import check_fits, outline, training_bytes
from lmtool.printable import counted
from lmtool.recipe.dump import dump
from lmtool.recipe.load import Resolved, Setting
from lmtool.recipe.pretraining import NAME
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.objective import Embedding, RowSpec, objectives_of
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.records import encode
from lmtool.run.creation import check_folder, create_run
from lmtool.run.directory import BASELINE, RECIPE, SPLIT, Run
from lmtool.run.files import RunInfo, describe_environment
from lmtool.search.index import text_vectors
from lmtool.tables.baseline import Baseline
from lmtool.tables.data import TableData
from lmtool.training.data import TextData, TrainingData, read_text
from lmtool.training.distillation import check_teacher, predicted, tokenizer_of, with_teacher
from lmtool.training.events import Event, Info, Started, Warn
from lmtool.training.length import with_length
from lmtool.training.train import TrainingLimits, train

ReadData = Callable[[Compute], tuple[TrainingData, tuple[str, ...]]]
"""Reads the data of a session, with descriptions of what was inferred from them."""


@dataclass(frozen=True)
class Invocation:
    """What the person who starts or resumes training says besides the recipe.

    command: as typed, for run.json.
    report: called with the progress of preparing the data.
    stop: called after each step; when True the run is saved and ends.
    output: the run directory; a new one under the runs directory when None.
    retry: it may hold a run that ended before its first checkpoint, which is replaced.
    began: when the command did, by time.perf_counter.
    until, is_baseline_least: see `TrainingLimits`, for a model that is trained further.
    """

    command: Sequence[str]
    report: Report
    stop: Callable[[], bool]
    output: Path | None = None
    retry: bool = False
    began: float = field(default_factory=lambda: time.perf_counter())
    until: float = 1.0
    is_baseline_least: bool = False


@dataclass(frozen=True)
class Sources:
    """The runs that a new one begins with, learns from, and reads the states of; None for none."""

    base: Base | None = None
    teacher: Base | None = None
    features: FeatureSource | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What of them was found damaged."""
        bases = (self.base, self.teacher, None if self.features is None else self.features.base)
        return tuple(warning for base in bases if base is not None for warning in base.warnings)


@dataclass(frozen=True)
class Pretraining:
    """A session on a text, before the text is read.

    recipe: its name or path; None for the default one, or for that of the base.
    base: the run whose training goes on with another text; from scratch when None.
    """

    recipe: str | None
    settings: Sequence[Setting]
    base: Base | None = None

    def _resolve(self, report: Report) -> tuple[Resolved, DividedText | None]:
        """The recipe, and the text that it is for, if it depends on one. Raises as `resolve_for_text` does."""
        if self.base is None:
            resolved, divided = resolve_for_text(self.recipe, self.settings, report)
            return with_runs(resolved), divided
        return with_runs(resolve(self.recipe, self.settings, parent=self.base.parent), self.base.recipe), None

    def data(self, report: Report) -> tuple[Recipe, TextData | None]:
        """The recipe, and the text that it names, if any, as training reads them."""
        resolved, divided = self._resolve(report)
        resolved, teacher = with_teacher(resolved, self.base)
        if not resolved.recipe.data.sources:
            return resolved.recipe, None
        _check_text(resolved, self.base)
        data = read_text(resolved.recipe, tokenizer_of(self.base, teacher), World(), report, divided)
        return data.recipe, data

    def run(self, invocation: Invocation) -> Iterator[Event]:
        """Prepare the text, create a run directory, and train.

        Raises the errors of every part; nothing is created before recipe, folder and memory are checked.
        """
        check_folder(invocation.output, invocation.retry)
        resolved, divided = self._resolve(invocation.report)
        _check_text(resolved, self.base)
        resolved, teacher = with_teacher(resolved, self.base)
        recipe, tokenizer = resolved.recipe, tokenizer_of(self.base, teacher)

        def read(compute: Compute) -> tuple[TrainingData, tuple[str, ...]]:
            return read_text(recipe, tokenizer, compute.world, invocation.report, divided), resolved.inferred

        yield from begin(resolved, read, Sources(self.base, teacher), invocation)


def _check_text(resolved: Resolved, base: Base | None) -> None:
    """Raise UsageError for a recipe that names no text, or cannot be trained on one."""
    recipe = resolved.recipe
    if not recipe.data.sources:
        fix = "name a file: lmtool pretrain TEXT; stories come with lmtool: lmtool pretrain data/stories.txt"
        raise UsageError("no text to train on", fix=fix)
    if recipe.data.split == "slice" and recipe.data.documents in ("line", "blank-line"):
        what = f"data.documents {recipe.data.documents} divides the text, but data.split slice makes one text of it"
        where = ", ".join(dict.fromkeys(resolved.origins[f"data.{key}"] for key in ("documents", "split")))
        raise UsageError(what, where=where, fix="set data.split=document, or data.documents=whole")
    if is_for_tables(recipe):
        named = "" if resolved.name == NAME else f" --recipe {resolved.name}"
        fix = f"lmtool finetune TABLE{named if base is None else f' --from {base.run.name}'}"
        raise UsageError(f"objective {recipe.objective.kind} is trained on a table, not on a text", fix=fix)


def begin(resolved: Resolved, read: ReadData, sources: Sources, invocation: Invocation) -> Iterator[Event]:
    """Create a run directory for the data of `read`, and train in it."""
    recipe, base, teacher = resolved.recipe, sources.base, sources.teacher
    if base is None:
        refuse_adapters_alone(recipe)
    else:
        _refuse_other_positions(recipe.model, base.recipe.model)
    vectors = open_vectors(recipe, base)
    with choose_compute(recipe.training.device, recipe.training.precision).joined() as compute:
        compute = checked(recipe, compute, resolved.origins)
        if compute.world.is_main:
            check_folder(invocation.output, invocation.retry)
        data, inferred = read(compute)
        agree(data.recipe, data.fingerprint, compute.world)
        if teacher is not None:
            check_teacher(teacher, data.recipe, data.prompt_format.tokenizer)
        frozen = None if sources.features is None else sources.features.model
        same = base is not None and predicted(base.recipe.objective) == predicted(data.recipe.objective)
        initialization = Initialization(base, teacher, features=frozen, same_labels=same)
        data.check()
        recipe, length = with_length(data.recipe, data)
        inferred = (*inferred, *filter(None, [length]))
        if vectors is not None:
            matched = vectors.match(data.prompt_format.tokenizer, data.token_counts())
            initialization = replace(initialization, vectors=matched)
            inferred = (*inferred, matched.line)
        lines = (*data.lines, *inferred)
        run = _created(resolved, recipe, data, lines, sources, invocation) if compute.world.is_main else None
        with run or nullcontext(), data.streaming(compute):
            if run is not None:
                if sources.features is not None:
                    run.keep_features(sources.features.base.run, sources.features.base.checkpoint)
                if data.split is not None:
                    write_file(run.path / SPLIT, encode(data.split.model_dump()))
                run.start(step=0, command=invocation.command, environment=describe_environment(str(compute.device)))
                yield Started(run.path, run.name, recipe, data.prompt_format.tokenizer, lines)
                yield from baselines(run, data, base if compute.world.size == 1 else None)
            yield from map(Warn, (*sources.warnings, *data.warnings))
            is_least = base is not None and invocation.is_baseline_least
            limits = TrainingLimits(invocation.stop, invocation.until, is_least)
            yield from train(run, recipe, data, compute, initialization, limits=limits, began=invocation.began)


def _created(
    resolved: Resolved,
    recipe: Recipe,
    data: TrainingData,
    lines: Sequence[str],
    sources: Sources,
    invocation: Invocation,
) -> Run:
    """A new run directory."""
    tokenizer = data.prompt_format.tokenizer
    valid_rows = data.n_valid if isinstance(data, TableData) else None
    candidates = data.candidates if isinstance(data, TableData) else ()
    features = [one.recipe.model_dump(mode="json", include={"model", "tokenizer"}) for one in candidates]
    info = RunInfo.new(
        recipe=resolved.name,
        summary=summary(recipe),
        fingerprints={"data": data.fingerprint, "tokenizer": tokenizer.fingerprint},
        base=sources.base and sources.base.record(),
        teacher=sources.teacher and sources.teacher.record(),
        data={
            "lines": list(lines),
            "bytes_per_token": data.bytes_per_token,
            "valid_rows": valid_rows,
            "features": features,
        },
    )
    files = {RECIPE: dump(recipe).encode(), **tokenizer.files()}
    return create_run(invocation.output, info, files, invocation.retry)


def baselines(run: Run, data: TrainingData, base: Base | None = None) -> Iterator[Event]:
    """Measure the baselines of tables with labels, or read those that the run has kept. base: that is fine-tuned."""
    if not isinstance(data, TableData):
        return
    kept = run.saved_baselines
    if kept is not None:
        data.baselines = {name: Baseline(**dict(figures)) for name, figures in kept.root.items()}
    else:
        is_encoder = base is not None and "embedding" in objectives_of(base.recipe.model)
        compute = choose_compute(data.recipe.training.device, "float32")
        data.measure_baselines(partial(_vectors_of, base, compute) if base is not None and is_encoder else None)
        if data.baselines:
            figures = {name: baseline.model_dump() for name, baseline in data.baselines.items()}
            write_file(run.path / BASELINE, encode(figures))
    for name, baseline in data.baselines.items():
        yield Info(f"{name}: {baseline.line()}" if name else baseline.line())


def _vectors_of(base: Base, compute: Compute, texts: Sequence[str]) -> Vectors:
    return text_vectors(load_run(str(base.checkpoint.path), compute), texts)


def is_for_tables(recipe: Recipe) -> bool:
    """Whether its examples are rows of a table, not windows of a text."""
    return isinstance(recipe.objective, RowSpec)


def summary(recipe: Recipe) -> str:
    """A short description of a model, for lists."""
    lm = outline(recipe.model, recipe.model.vocab_size or 0)
    count = sum(parameter.numel() for parameter in lm.parameters())
    size = f"{count / 1e6:.1f}M" if count >= 1e6 else f"{count / 1e3:.0f}k"
    return f"{lm.description}, {size} parameters" if count else lm.description


def _refuse_other_positions(spec: Model, base: Model) -> None:
    """Raise UsageError where the table of learned positions has another length than that of the run to begin with.

    base: the model of that run.
    """
    of_base, of_recipe = _position_rows(base), _position_rows(spec)
    if of_base is None or of_recipe is None or of_base == of_recipe:
        return
    assert isinstance(base, Transformer)
    assert isinstance(base.position, LearnedPosition)
    if of_recipe < of_base:
        what = f"the run has {of_base} learned positions, and the recipe has a table of {of_recipe}"
        fix = f"set model.position.size={of_base}; a shorter context reads its beginning"
        raise UsageError(what, where="model.position.size", fix=fix)
    last = of_base - base.position.offset
    what = f"the learned positions of the run end at {last}, and the recipe has {of_recipe - of_base} more"
    anew = f"train the run anew with model.position.size={of_recipe}"
    fix = f"set model.context={last} or less and model.position.size={of_base}, or {anew}"
    raise UsageError(what, where="model.context", fix=fix)


def _position_rows(spec: Model) -> int | None:
    """Rows of the table of learned positions; None without one."""
    if not isinstance(spec, Transformer) or not isinstance(spec.position, LearnedPosition):
        return None
    return spec.position.size or spec.context + spec.position.offset


def refuse_adapters_alone(recipe: Recipe) -> None:
    if recipe.tuning.lora is not None:
        what = "adapters need the weights of a run, and none is given"
        raise UsageError(what, where="tuning.lora", fix="name a run with --from, or omit the adapters")


def checked(recipe: Recipe, compute: Compute, origins: Mapping[str, str]) -> Compute:
    """The same processes, sharing the model where they have to.

    Raises UsageError for a recipe that cannot run on this device or with so many processes.
    """
    world = compute.world
    if recipe.training.batch_size % world.size:
        what = f"a batch of {counted(recipe.training.batch_size, 'row')} cannot be shared by {world.size} processes"
        raise UsageError(what, where="training.batch_size", fix=f"set it to a multiple of {world.size}")
    if recipe.training.carry_state and world.size > 1:
        what = f"states are carried in one process only, not in {world.size}"
        raise UsageError(what, where="training.carry_state", fix="run lmtool without torchrun, or set it to false")
    memory = device_memory(compute.device)
    sharded = _shards(recipe, compute, memory)
    if memory is not None:
        check_fits(recipe, memory, origins, world.size if sharded else 1)
    return replace(compute, world=replace(world, sharded=sharded))


def _shards(recipe: Recipe, compute: Compute, memory: int | None) -> bool:
    """Whether the processes shard the model. memory: of this one, in bytes, if known.

    Raises UsageError where they should, and the recipe has a part that does not allow it.
    """
    training = recipe.training
    if compute.world.size == 1 or training.shard == "none" or not isinstance(recipe.model, Transformer):
        return False
    if training.shard == "auto":
        share = None if memory is None else memory // (1 if compute.device.type == "cuda" else local_size())
        is_short = share is not None and training_bytes(recipe) > share
        # machines may differ, and all must do the same
        if not compute.world.sum((float(is_short),))[0]:
            return False
    for excluded, where in (
        (compute.scales_gradients, "training.precision=float16"),
        (training.compile is True, "training.compile=true"),
        (training.minutes is not None, "training.minutes"),
        (recipe.evaluation.gradient_norms, "evaluation.gradient_norms=true"),
        (recipe.tuning.quantizes, "tuning.lora.quantize"),
        # vectors are computed twice, once outside of the module that is sharded
        (getattr(recipe.objective, "contrastive", False), "objective.contrastive=true"),
        (isinstance(recipe.objective, Embedding), "objective.kind=embedding"),
    ):
        if excluded:
            what = "this setting does not allow the processes to shard the model"
            raise UsageError(what, where=where, fix="set it otherwise, or training.shard=none")
    return True


def agree(recipe: Recipe, fingerprint: str, world: World) -> None:
    """Raise UsageError in a process whose recipe or text differ from those of the main one. Files may lie elsewhere."""
    unnamed = recipe.with_values({"data.train": (), "data.valid": ()})
    mine = {"recipe": dump(unnamed), "training data": fingerprint}
    of_main = json.loads(world.from_main(json.dumps(mine)))
    if differs := [name for name in mine if mine[name] != of_main[name]]:
        what = f"process {world.rank} has another {' and another '.join(differs)} than process 0"
        raise UsageError(what, fix="start all processes with the same command, recipe and files")
