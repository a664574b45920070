"""Plans: what a command trains. A plan becomes a job once its data are read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lmtool.compute.device import ExecutionContext, device_memory_bytes
from lmtool.compute.processes import World, local_size
from lmtool.data.survey import Progress, ScannedTrainingText
from lmtool.errors import UsageError
from lmtool.interop.resolve import import_models_named_in_recipe, resolve_recipe_for_text, resolve_reference
from lmtool.model.size import check_training_fits_memory, estimate_min_training_bytes
from lmtool.printable import format_count
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import ResolvedRecipe, Setting
from lmtool.recipe.pretraining import DEFAULT_RECIPE
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.objective import Embedding, RowSpec
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.load import LoadedModel
from lmtool.runs.reference import Reference
from lmtool.tasks.prepare import OpenedTaskTables, read_and_encode_tables
from lmtool.training.data import TrainingData, tokenize_training_text
from lmtool.training.distillation import check_teacher, resolve_teacher_and_set_tokenizer
from lmtool.training.job import TrainingJob
from lmtool.training.length import set_steps_from_data
from lmtool.training.pretrained import describe_features, load_features_and_update_recipe, open_pretrained_vectors


@dataclass(frozen=True)
class TrainingPlan:
    """What a command trains, resolved once and before any weight exists: `lmtool plan` prints it, `train` runs it.

    resolved: the recipe and the origin of each value; values that depend on the data are still open.
    base: the run whose weights initialize the model; None from scratch.
    text: the training text, if the recipe depends on it.
    tables: the training table of each task, opened; empty for a text.
    choice: a description of what was chosen because the command does not name it; else empty.
    chosen_settings: those that cross-validation chose, so that repeats need not choose again.
    """

    resolved: ResolvedRecipe
    base: Reference | None = None
    text: ScannedTrainingText | None = None
    tables: tuple[OpenedTaskTables, ...] = ()
    choice: str = ""
    chosen_settings: tuple[Setting, ...] = ()

    @property
    def recipe(self) -> Recipe:
        return self.resolved.recipe

    def with_seed(self, seed: int) -> "TrainingPlan":
        """Returns the plan with another seed."""
        return replace(
            self, resolved=replace(self.resolved, recipe=self.recipe.with_unvalidated_values({"seed": seed}))
        )

    def read_data_teacher_and_features(
        self, report: Progress, world: World | None = None
    ) -> tuple[Recipe, TrainingData, Reference | None, LoadedModel | None]:
        """Reads the data that the plan names, and loads the model of features.

        Returns the recipe with the values that the data decide, the data, the teacher of a distilled model, and the
        model whose states the trained one reads.
        """
        if not self.tables:
            _check_trainable_on_text(self.resolved, self.base)
        resolved, teacher = resolve_teacher_and_set_tokenizer(self.resolved, self.base)
        recipe, features = load_features_and_update_recipe(resolved.recipe, self.base)
        source = self.base or teacher if features is None else features.reference
        tokenizer = None if source is None else source.tokenizer
        data: TrainingData
        if self.tables:
            report("reading", 0, 0)
            known = self.base or teacher
            order = () if known is None else getattr(known.recipe.objective, "labels", ())
            recipe, data = read_and_encode_tables(recipe, self.tables, tokenizer, label_order=order)
        else:
            recipe, data = tokenize_training_text(recipe, tokenizer, world or World(), report, self.text)
        return recipe, data, teacher, features

    def read_data_and_make_job(self, compute: ExecutionContext, report: Progress) -> TrainingJob:
        """Reads the data, all processes together, and checks them.

        compute: as `check_device_and_choose_sharding` returns it.

        Raises the errors of data, and UsageError for models that do not fit them.
        """
        if self.base is None:
            check_has_no_adapters(self.recipe)
        else:
            _check_same_learned_position_count(self.recipe.model, self.base.recipe.model)
        source = open_pretrained_vectors(self.recipe, self.base)
        recipe, data, teacher, features = self.read_data_teacher_and_features(report, compute.world)
        check_same_inputs_in_all_processes(recipe, data.fingerprint, compute.world)
        if teacher is not None:
            check_teacher(teacher, recipe, data.prompt_format.tokenizer)
        data.check_has_examples()
        recipe, length_line = set_steps_from_data(recipe, data)
        inferred = [] if self.tables else [*self.resolved.inferred]
        if features is not None:
            inferred.append(describe_features(recipe.model, features))
        if length_line:
            inferred.append(length_line)
        vectors = None
        if source is not None:
            vectors = source.match_vocabulary(data.prompt_format.tokenizer, data.count_training_tokens_per_id())
            inferred.append(vectors.line)
        models = [self.base, teacher, None if features is None else features.reference]
        warnings = [warning for one in models if one is not None for warning in one.warnings]
        return TrainingJob(
            recipe,
            data,
            compute,
            base=self.base,
            teacher=teacher,
            vectors=vectors,
            features=features,
            lines=(*data.description_lines, *inferred),
            warnings=(*warnings, *data.warnings),
        )


def plan_pretraining(
    base_run: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> TrainingPlan:
    """Plans training on a text, which is read if the recipe depends on it.

    base_run: the run whose weights initialize the model. recipe: a name or path; None for the default recipe, or
    for that of the run. report: None to resolve the recipe as for any text, without reading it.
    Raises UsageError, RecipeError, CheckpointError, and the errors of texts.
    """
    if base_run is not None:
        base = resolve_reference(base_run)
        return TrainingPlan(
            import_models_named_in_recipe(resolve(recipe, settings, parent=base.parent), base.recipe), base
        )
    resolved, text = resolve_recipe_for_text(recipe, settings, report)
    return TrainingPlan(resolved, text=text)


def _check_trainable_on_text(resolved: ResolvedRecipe, base: Reference | None) -> None:
    """Raises UsageError for a recipe that names no text, or cannot be trained on one."""
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
    """Whether the examples of a recipe are rows of a table, not windows of a text."""
    return isinstance(recipe.objective, RowSpec)


def _check_same_learned_position_count(model_spec: Model, base_spec: Model) -> None:
    """Raises UsageError if the table of learned positions has another length than that of the base run's model."""
    base_rows, rows = _count_learned_positions(base_spec), _count_learned_positions(model_spec)
    if base_rows is None or rows is None or base_rows == rows:
        return
    assert isinstance(base_spec, Transformer)
    assert isinstance(base_spec.position, LearnedPosition)
    if rows < base_rows:
        what = f"the run has {base_rows} learned positions, and the recipe has a table of {rows}"
        fix = f"set model.position.size={base_rows}; a shorter context reads its beginning"
        raise UsageError(what, where="model.position.size", fix=fix)
    last = base_rows - base_spec.position.offset
    what = f"the learned positions of the run end at {last}, and the recipe has {rows - base_rows} more"
    alternative = f"train the run anew with model.position.size={rows}"
    fix = f"set model.context={last} or less and model.position.size={base_rows}, or {alternative}"
    raise UsageError(what, where="model.context", fix=fix)


def _count_learned_positions(spec: Model) -> int | None:
    """Returns the rows of the table of learned positions; None without one."""
    if not isinstance(spec, Transformer) or not isinstance(spec.position, LearnedPosition):
        return None
    return spec.position.size or spec.context + spec.position.offset


def check_has_no_adapters(recipe: Recipe) -> None:
    """Raises UsageError for adapters without a run that they are for."""
    if recipe.tuning.lora is not None:
        what = "adapters need the weights of a run, and none is given"
        raise UsageError(what, where="tuning.lora", fix="name a run with --from, or omit the adapters")


def check_device_and_choose_sharding(
    recipe: Recipe, compute: ExecutionContext, origins: Mapping[str, str]
) -> ExecutionContext:
    """Checks that a recipe can be trained on a device. Returns the processes, which shard the model if they must.

    origins: where each value of the recipe comes from. Raises UsageError for a recipe that cannot run on this device or
    with so many processes.
    """
    world = compute.world
    if recipe.training.batch_size % world.size:
        rows = format_count(recipe.training.batch_size, "row")
        what = f"a batch of {rows} cannot be shared by {world.size} processes"
        raise UsageError(what, where="training.batch_size", fix=f"set it to a multiple of {world.size}")
    if recipe.training.carry_state and world.size > 1:
        what = f"states are carried in one process only, not in {world.size}"
        raise UsageError(what, where="training.carry_state", fix="run lmtool without torchrun, or set it to false")
    memory = device_memory_bytes(compute.device)
    sharded = _must_shard(recipe, compute, memory)
    if memory is not None:
        check_training_fits_memory(recipe, memory, origins, world.size if sharded else 1)
    return replace(compute, world=replace(world, sharded=sharded))


def _must_shard(recipe: Recipe, compute: ExecutionContext, memory: int | None) -> bool:
    """Whether the processes must shard the model. memory: bytes of this process, if known.

    Raises UsageError if they must, but the recipe has a setting that does not allow it.
    """
    training = recipe.training
    if compute.world.size == 1 or training.shard == "none" or not isinstance(recipe.model, Transformer):
        return False
    if training.shard == "auto":
        available = None if memory is None else memory // (1 if compute.device.type == "cuda" else local_size())
        is_short = available is not None and estimate_min_training_bytes(recipe) > available
        # machines may differ, and all must do the same
        if not compute.world.all_reduce_sum((float(is_short),))[0]:
            return False
    for excluded, where in (
        (compute.needs_loss_scaling, "training.precision=float16"),
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


def check_same_inputs_in_all_processes(recipe: Recipe, fingerprint: str, world: World) -> None:
    """Raises UsageError in a process whose recipe or data differ from those of the main one; paths may differ."""
    without_paths = recipe.with_unvalidated_values({"data.train": (), "data.valid": ()})
    own = {"recipe": dump_yaml(without_paths), "training data": fingerprint}
    main = json.loads(world.broadcast_text(json.dumps(own)))
    if differs := [name for name in own if own[name] != main[name]]:
        what = f"process {world.rank} has another {' and another '.join(differs)} than process 0"
        raise UsageError(what, fix="start all processes with the same command, recipe and files")
