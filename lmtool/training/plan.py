"""From what a command names to what is trained: a plan, and the job that it becomes once its data are read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmtool.compute.device import Compute, device_memory
from lmtool.compute.processes import World, local_size
from lmtool.data.survey import DividedText, Progress
from lmtool.errors import UsageError
from lmtool.inference.load import LoadedModel
from lmtool.inference.pretrained import describe_features, open_features, open_vectors
from lmtool.inference.reference import Reference, resolve_for_text, resolve_model_names, resolve_reference
from lmtool.model.size import check_fits, training_bytes
from lmtool.printable import format_count
from lmtool.recipe.dump import dump
from lmtool.recipe.load import ResolvedRecipe, Setting
from lmtool.recipe.pretraining import DEFAULT_RECIPE
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.objective import Embedding, RowSpec
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.tasks.prepare import TaskTables, read_tables
from lmtool.training.data import TrainingData, read_text
from lmtool.training.distillation import check_teacher, with_teacher
from lmtool.training.job import TrainingJob
from lmtool.training.length import with_length


@dataclass(frozen=True)
class Plan:
    """What a command trains, resolved once and before any weight is made: `lmtool plan` prints it, `start` runs it.

    resolved: the recipe, and where its values come from; what it leaves to the data is still open.
    base: the run that it begins with; from scratch when None.
    text: the training text, where the recipe depends on it.
    tables: the training table of each task, opened; empty for a text.
    choice: what was chosen where the command does not name it, in lines; else empty.
    features: the settings that cross-validation chose, which a repeat need not choose again.
    """

    resolved: ResolvedRecipe
    base: Reference | None = None
    text: DividedText | None = None
    tables: tuple[TaskTables, ...] = ()
    choice: str = ""
    features: tuple[Setting, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.resolved.recipe

    def with_seed(self, seed: int) -> "Plan":
        """The same with another seed."""
        return replace(self, resolved=replace(self.resolved, recipe=self.recipe.with_values({"seed": seed})))

    def read(
        self, report: Progress, world: World | None = None
    ) -> tuple[Recipe, TrainingData, Reference | None, LoadedModel | None]:
        """The recipe with what the data decide, the data, and the models that it names: its teacher, and that whose
        states it reads."""
        if not self.tables:
            _check_text(self.resolved, self.base)
        resolved, teacher = with_teacher(self.resolved, self.base)
        recipe, features = open_features(resolved.recipe, self.base)
        source = self.base or teacher if features is None else features.reference
        tokenizer = None if source is None else source.tokenizer
        data: TrainingData
        if self.tables:
            report("reading", 0, 0)
            recipe, data = read_tables(recipe, self.tables, tokenizer)
        else:
            recipe, data = read_text(recipe, tokenizer, world or World(), report, self.text)
        return recipe, data, teacher, features

    def job(self, compute: Compute, report: Progress) -> TrainingJob:
        """Read the data, all processes together. compute: as `checked_compute` gives it.

        Raises the errors of data, and UsageError for models that do not fit them.
        """
        if self.base is None:
            refuse_adapters_alone(self.recipe)
        else:
            _refuse_other_positions(self.recipe.model, self.base.recipe.model)
        source = open_vectors(self.recipe, self.base)
        recipe, data, teacher, features = self.read(report, compute.world)
        agree(recipe, data.fingerprint, compute.world)
        if teacher is not None:
            check_teacher(teacher, recipe, data.prompt_format.tokenizer)
        data.check()
        recipe, length = with_length(recipe, data)
        inferred = [
            *(self.resolved.inferred if not self.tables else ()),
            *([describe_features(recipe.model, features)] if features else ()),
        ]
        inferred += filter(None, [length])
        vectors = None
        if source is not None:
            vectors = source.match_vocabulary(data.prompt_format.tokenizer, data.token_counts())
            inferred.append(vectors.line)
        models = [self.base, teacher, None if features is None else features.reference]
        warnings = [warning for one in models if one is not None for warning in one.warnings]
        return TrainingJob(
            recipe,
            data,
            compute,
            self.base,
            teacher,
            vectors,
            features,
            lines=(*data.lines, *inferred),
            warnings=(*warnings, *data.warnings),
        )


def plan_pretraining(
    source: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> Plan:
    """A training on a text, which is read through where the recipe depends on it.

    source: the run whose training goes on with another text. recipe: its name or path; None for the default one, or for
    that of the run. report: None where the text is not read, and the recipe is as for any text.
    Raises UsageError, RecipeError, CheckpointError, and the errors of texts.
    """
    if source is not None:
        base = resolve_reference(source)
        return Plan(resolve_model_names(resolve(recipe, settings, parent=base.parent), base.recipe), base)
    resolved, text = resolve_for_text(recipe, settings, report)
    return Plan(resolved, text=text)


def _check_text(resolved: ResolvedRecipe, base: Reference | None) -> None:
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
        named = "" if resolved.name == DEFAULT_RECIPE else f" --recipe {resolved.name}"
        fix = f"lmtool finetune TABLE{named if base is None else f' --from {base.run.name}'}"
        raise UsageError(f"objective {recipe.objective.kind} is trained on a table, not on a text", fix=fix)


def is_for_tables(recipe: Recipe) -> bool:
    """Whether its examples are rows of a table, not windows of a text."""
    return isinstance(recipe.objective, RowSpec)


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


def checked_compute(recipe: Recipe, compute: Compute, origins: Mapping[str, str]) -> Compute:
    """The same processes, sharing the model where they have to.

    Raises UsageError for a recipe that cannot run on this device or with so many processes.
    """
    world = compute.world
    if recipe.training.batch_size % world.size:
        what = (
            f"a batch of {format_count(recipe.training.batch_size, 'row')} cannot be shared by {world.size} processes"
        )
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
