"""Builds models from recipes, and loads them from runs."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from lmtool import model
from lmtool.compute.device import CPU, ExecutionContext, configure_compute, device_memory_bytes
from lmtool.compute.fsdp import ShardedModel
from lmtool.compute.processes import local_size
from lmtool.compute.shards import ShardNewParameters, get_local_row_range, get_local_rows, is_sharded
from lmtool.data.order import derive_seed
from lmtool.errors import CheckpointError, NumericalError
from lmtool.model import LanguageModel, lora
from lmtool.model.averaging import AveragingModel
from lmtool.model.features import find_frozen_features
from lmtool.model.heads import Classifier, LanguageModelWithTaskHead
from lmtool.model.interpolation import NGramInterpolation
from lmtool.model.language_model import CountingModel, ModelWithoutLikelihood
from lmtool.model.ngram import NGramModel
from lmtool.model.packed import pack_weights_
from lmtool.model.transformer import ReplacedTokenDetectorWithGenerator, TransformerEncoder
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.model import InitialEmbeddingsModelSpec
from lmtool.recipe.spec.objective import (
    AnyObjective,
    Classification,
    HeadSpec,
    Masked,
    ReplacedTokens,
    Tagging,
)
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import PretrainedStatesModelSpec
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.checkpoint import Checkpoint
from lmtool.runs.directory import FEATURES, NGRAMS, Run
from lmtool.runs.reference import Reference, find_unchanged_base
from lmtool.runs.tensors import get_meta_tensors, read_tensor_rows, select_and_strip_prefix
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class LoadedModel:
    """A trained model with its recipe, tokenizer and device.

    reference: its run and checkpoint.
    recipe: the recipe of the run; evaluation keys may differ.
    sharding: how processes share its weights; None if each has all.
    """

    model: LanguageModel
    reference: Reference
    recipe: Recipe
    compute: ExecutionContext
    sharding: ShardedModel | None = None

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reference.tokenizer

    @property
    def run_path(self) -> Path:
        return self.reference.run.path

    @property
    def step(self) -> int:
        return self.reference.checkpoint.step

    @property
    def checkpoint_hash(self) -> str:
        return self.reference.checkpoint.digest

    def to_record(self) -> dict[str, Any]:
        """Returns its run, step and checkpoint, as JSON values."""
        return {"run": str(self.run_path), "step": self.step, "checkpoint": self.checkpoint_hash}

    @contextmanager
    def join_process_group_once(self) -> "Iterator[LoadedModel]":
        """Yields the same model joined with the processes of torchrun, each of which computes its share."""
        with self.compute.join_process_group_once() as compute:
            yield replace(self, compute=compute)

    @contextmanager
    def gather_weights_by_layer(self) -> Iterator[ExecutionContext]:
        """Yields the compute context of the model; processes that share its weights compute in step."""
        if self.sharding is None:
            yield self.compute
        else:
            with self.sharding.gather_by_layer():
                yield self.compute.with_lockstep()

    @property
    def device(self) -> torch.device:
        return self.compute.device

    def check_has_likelihood(self) -> None:
        """Raises UsageError for a model that has no probabilities of the tokens of a text."""
        lm = self.model.body if isinstance(self.model, Classifier) else self.model
        if isinstance(lm, ModelWithoutLikelihood):
            raise lm.no_next_token_error()

    def with_evaluation_num_beams(self, num_beams: int | None) -> "LoadedModel":
        """Returns the model with another beam width for tables; None keeps that of its recipe."""
        if num_beams is None:
            return self
        return replace(self, recipe=self.recipe.with_unvalidated_values({"evaluation.num_beams": num_beams}))

    @cached_property
    def objective(self) -> Objective:
        """The training objective of the model."""
        return build_objective(self.recipe, self.tokenizer, self.model.counts_V)

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """The format of the model's inputs, as in training."""
        return PromptFormat.from_recipe(self.recipe, self.tokenizer)


def build_model(
    recipe: Recipe,
    tokenizer: Tokenizer,
    compute: ExecutionContext,
    feature_model: LoadedModel | None = None,
    shards: ShardNewParameters | None = None,
) -> LanguageModel:
    """Builds a new model for a tokenizer, on its device, initialized from the recipe's seed.

    feature_model: the model whose states it reads, if the recipe has features.
    shards: builds only the rows of this process.
    Raises CheckpointError as `Tokenizer.resolve_embedding_rows` does.
    """
    rows = tokenizer.resolve_embedding_rows(recipe.model.vocab_size)
    torch.manual_seed(derive_seed(recipe.seed, "weights"))
    if shards is not None:
        with shards:
            return model.add_objective_head(recipe, model.build(recipe.model, rows))
    built = model.build(recipe.model, rows)
    if isinstance(built, AveragingModel) and built.in_word_V is not None:
        in_word = [tokenizer.has_only_word_characters(token) for token in range(tokenizer.vocab_size)]
        built.in_word_V[: len(in_word)] = torch.tensor(in_word)
    if feature_model is not None and (reading := find_frozen_features(built)) is not None:
        reading.attach_source(feature_model.model)
    return model.add_objective_head(recipe, built).to(compute.device)


@dataclass(frozen=True)
class PretrainedTokenVectors:
    """Pretrained vectors (N, D) of the tokens `ids`. line: says how much of the text they cover."""

    ids: list[int]
    vectors_ND: Tensor
    line: str

    @torch.no_grad()
    def set_embeddings_and_rescale_others_(self, lm: LanguageModel) -> None:
        """Sets these embeddings of a new model, and scales all others, which are random, to the same deviation."""
        table_VD = lm.token_vectors()
        deviation, before = float(self.vectors_ND.std(correction=0)), float(table_VD.std(correction=0))
        if deviation and before:
            table_VD.mul_(deviation / before)
        table_VD[self.ids] = self.vectors_ND.to(table_VD)


def build_for_training(
    recipe: Recipe,
    tokenizer: Tokenizer,
    compute: ExecutionContext,
    set_data_statistics_: Callable[[LanguageModel], None],
    *,
    base: Reference | None = None,
    vectors: PretrainedTokenVectors | None = None,
    feature_model: LoadedModel | None = None,
    shards: ShardNewParameters | None = None,
) -> tuple[LanguageModel, str | None]:
    """Builds a model to train, with the trainable weights that the recipe sets.

    set_data_statistics_: initializes the model with statistics of the data.
    base: a run to initialize its weights. vectors: initialize its embeddings.
    feature_model, shards: see `build_model`.
    Returns the model, and a notice about the head of the base, if any.
    """
    lm = build_model(recipe, tokenizer, compute, feature_model, shards)
    set_data_statistics_(lm)
    notice = None if base is None else _load_base_weights_and_explain_head(lm, base, recipe.objective)
    _freeze_untrained_and_add_adapters_(lm, recipe, store_quantized=True)
    if vectors is not None:
        vectors.set_embeddings_and_rescale_others_(lm)
    return lm, notice


def load_run(reference: str | Reference, compute: ExecutionContext | None = None) -> LoadedModel:
    """Loads the best checkpoint of a run, or a given checkpoint, for inference.

    reference: of a run, or the name of one, as for `Reference.from_name`; published models are resolved before.
    compute: the best device, in float32, by default. Its processes share a model that does not fit the memory of one,
        and then compute in step; see `LoadedModel.gather_weights_by_layer`.
    Raises CheckpointError if there is none, or if its parts are inconsistent.
    """
    source = Reference.from_name(reference) if isinstance(reference, str) else reference
    checkpoint, recipe, tokenizer = source.checkpoint, source.recipe, source.tokenizer
    compute = compute or configure_compute("auto", "float32")
    sharding = None
    if _needs_sharding(recipe, checkpoint, compute):
        lm = build_model(recipe, tokenizer, compute, shards=ShardNewParameters(compute.world.rank, compute.world.size))
        load_weights(lm, checkpoint)
        sharding = ShardedModel(lm, lm, compute)
    else:
        lm = load_trained_model(source, compute)
    return LoadedModel(lm.eval(), source, recipe, compute, sharding)


def _needs_sharding(recipe: Recipe, checkpoint: Checkpoint, compute: ExecutionContext) -> bool:
    """Whether processes must share a model because its weights do not fit the memory of one of them."""
    is_one_pass = not isinstance(recipe.objective, Masked)
    is_whole = isinstance(recipe.model, Transformer) and recipe.tuning.lora is None
    if compute.world.size == 1 or not is_one_pass or not is_whole:
        return False
    memory = device_memory_bytes(compute.device)
    room = None if memory is None else memory // (1 if compute.device.type == "cuda" else local_size())
    is_short = room is not None and sum(checkpoint.files[name].bytes for name in checkpoint.model_files) > room
    # machines may differ, but all must do the same
    return bool(compute.world.all_reduce_sum((float(is_short),))[0]) and compute.precision in ("float32", "bfloat16")


def load_packed_for_inference(reference: str | Reference, compute: ExecutionContext | None = None) -> LoadedModel:
    """Loads as `load_run`, merges adapters, and packs matrices for the device, so weights are no longer accessible.

    The model is interpolated with the n-grams that its run keeps, if any. One that processes share is not packed.
    """
    loaded = load_run(reference, compute)
    loaded.model.interpolation = _load_ngram_interpolation(loaded.reference)
    if loaded.sharding is None:
        lora.merge_adapters_(loaded.model)
        pack_weights_(loaded.model, loaded.compute.precision, loaded.device)
    return loaded


def _load_ngram_interpolation(source: Reference) -> NGramInterpolation | None:
    """Loads the n-grams that a run keeps; None without any, and for another checkpoint than the evaluated one.

    Raises CheckpointError if they are damaged.
    """
    folder = source.run.path / NGRAMS
    if not folder.exists():
        return None
    results = source.run.results_by_task.get("", {})
    weight = results.get("ngram_weight")
    if weight is None or results.get("step") != source.checkpoint.step:
        return None
    try:
        ngram = load_run(str(folder), CPU).model
    except CheckpointError as error:
        fix = "restore this folder from a copy, or delete it: the model then predicts alone"
        raise CheckpointError(
            f"the n-grams of the run are damaged: {error.what}", where=str(folder), fix=fix
        ) from error
    assert isinstance(ngram, NGramModel)
    return NGramInterpolation(ngram, weight)


def load_trained_model(reference: Reference, compute: ExecutionContext) -> LanguageModel:
    """Loads the model of a checkpoint; a checkpoint of adapters only is applied to the run's base.

    Raises CheckpointError if its parts are inconsistent.
    """
    recipe = reference.recipe
    lm = build_model(recipe, reference.tokenizer, compute, load_feature_model(reference.run, recipe, compute))
    if recipe.tuning.lora is not None:
        _load_base_weights_and_explain_head(lm, find_unchanged_base(reference.run), recipe.objective)
    _freeze_untrained_and_add_adapters_(lm, recipe, store_quantized=False)
    load_weights(lm, reference.checkpoint)
    return lm


def load_feature_model(run: Run, recipe: Recipe, compute: ExecutionContext) -> LoadedModel | None:
    """Loads the model whose states a run reads, from its copy in the run; None if it reads no features.

    Raises CheckpointError if the copy is missing or damaged.
    """
    if not isinstance(recipe.model, PretrainedStatesModelSpec) or recipe.model.features is None:
        return None
    copy = Reference.from_name(str(run.path / FEATURES))
    return LoadedModel(load_trained_model(copy, compute), copy, copy.recipe, compute)


def read_merged_weights(reference: Reference) -> Mapping[str, Tensor]:
    """Reads all weights of a checkpoint by name, with adapters merged into them.

    Raises CheckpointError, and NumericalError for weights that are not finite.
    """
    tensors = _read_merged_weights_allowing_nonfinite(reference)
    for name, tensor in tensors.items():
        _check_finite(name, tensor, reference.checkpoint)
    return tensors


def _read_merged_weights_allowing_nonfinite(reference: Reference) -> Mapping[str, Tensor]:
    """Reads weights, merged with adapters if there are any; without adapters they may be not finite."""
    if reference.recipe.tuning.lora is None:
        return reference.checkpoint.load_model()
    lm = load_trained_model(reference, CPU)
    lora.merge_adapters_(lm)
    return lm.state_dict()


def load_weights(lm: LanguageModel, checkpoint: Checkpoint) -> None:
    """Copies a checkpoint's weights into a model.

    Raises CheckpointError for weights that do not fit, and NumericalError for weights that are not finite.
    """
    _copy_weights(lm, checkpoint.load_model(), checkpoint)


def _copy_weights(lm: LanguageModel, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Copies tensors into a model; of a sharded parameter only the rows of this process. Raises as `load_weights`."""
    kept, saved = lora.adapter_or_full_state_dict(lm), get_meta_tensors(tensors)
    for name in sorted(kept.keys() | saved.keys()):
        old, new = saved.get(name), kept.get(name)
        free = int(name in lm.variable_length_tensors)
        if old is None or new is None or old.ndim != new.ndim or old.shape[free:] != new.shape[free:]:
            what = f"the checkpoint does not fit the recipe: {name} is {_format_shape(old)}, not {_format_shape(new)}"
            raise CheckpointError(what, where=str(checkpoint.path), fix="restore the run from a copy, or train anew")
    parameters = dict(lm.named_parameters())
    for name, parameter in kept.items():
        if name not in lm.variable_length_tensors:
            _check_finite(name, _copy_local_rows_(parameters.get(name, parameter), tensors, name), checkpoint)
    if lm.variable_length_tensors:
        lm.load_state_dict({name: tensors[name] for name in lm.variable_length_tensors}, strict=False)


@torch.no_grad()
def _copy_local_rows_(parameter: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Copies a tensor into a parameter; of a sharded one, the rows of this process. Returns the copied part."""
    tensor = read_tensor_rows(tensors, name, get_local_row_range(parameter)) if is_sharded(parameter) else tensors[name]
    get_local_rows(parameter).copy_(tensor)
    return tensor


def _check_finite(name: str, tensor: Tensor, checkpoint: Checkpoint) -> None:
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        what = f"the weights are not finite: {name} holds NaN or infinity"
        fix = "name an earlier checkpoint, RUN@STEP, or train anew"
        raise NumericalError(what, where=str(checkpoint.path), fix=fix)


def _freeze_untrained_and_add_adapters_(lm: LanguageModel, recipe: Recipe, *, store_quantized: bool) -> None:
    """Freezes the weights that the recipe does not train, and adds adapters if the recipe has any, in place."""
    body = lm.body if isinstance(lm, LanguageModelWithTaskHead) else lm
    if isinstance(recipe.model, InitialEmbeddingsModelSpec) and recipe.model.freeze_embeddings:
        cast(nn.Parameter, body.token_vectors()).requires_grad_(False)
    if recipe.tuning.lora is not None:
        torch.manual_seed(derive_seed(recipe.seed, "adapters"))
        lora.add_adapters_and_freeze_(body, recipe.tuning.lora, store_quantized=store_quantized)
    elif recipe.tuning.freeze == "body":
        body.requires_grad_(False)
    elif recipe.tuning.freeze == "embeddings":
        for parameter in (parameter for parameter, depth in body.parameter_depths().items() if depth == 0):
            parameter.requires_grad_(False)


def _load_base_weights_and_explain_head(lm: LanguageModel, base: Reference, objective: AnyObjective) -> str | None:
    """Copies the weights of another run into a model, and its head if both have one for the same labels.

    objective: objective of the model. Returns a notice about the head, if any. Raises as `load_weights` does.
    """
    tensors, checkpoint = _read_merged_weights_allowing_nonfinite(base), base.checkpoint
    body, head = tensors, {}
    if isinstance(base.recipe.objective, HeadSpec | ReplacedTokens):
        # the recipe decides, because a body that only counts words has no weights
        body = select_and_strip_prefix(tensors, "body.")
        head = {name: t.shape for name, t in get_meta_tensors(tensors).items() if not name.startswith("body.")}
    if isinstance(lm, ReplacedTokenDetectorWithGenerator):
        if isinstance(base.recipe.objective, ReplacedTokens):
            _copy_weights(lm, tensors, checkpoint)
            return None
        _copy_weights(lm.body, body, checkpoint)
        return "the generator and the detector are new"
    if not isinstance(lm, LanguageModelWithTaskHead):
        _copy_weights(lm, body, checkpoint)
        if isinstance(lm, CountingModel):
            lm.n_read.zero_()  # counts tokens of the new text; the counts of the other text stay
        return None
    _copy_weights(lm.body, body, checkpoint)
    pooler = lm.body.pooler if isinstance(lm.body, TransformerEncoder) else None
    if pooler is not None and isinstance(lm, Classifier) and lm.activation == "tanh":
        # the pooler of next-sentence prediction becomes the dense layer of the head (Devlin et al. 2019)
        assert lm.dense is not None
        with torch.no_grad():
            for new, old in zip(lm.dense.parameters(), pooler.parameters(), strict=True):
                get_local_rows(new).copy_(get_local_rows(old))
    new_head = {name: t for name, t in lm.state_dict(keep_vars=True).items() if not name.startswith("body.")}
    if not isinstance(base.recipe.objective, HeadSpec):
        return None
    same_labels = _get_task_and_labels(objective) == _get_task_and_labels(base.recipe.objective)
    if same_labels and head == {name: t.shape for name, t in new_head.items()}:
        for name, parameter in new_head.items():
            _check_finite(name, _copy_local_rows_(parameter, tensors, name), checkpoint)
        return "the head is reused, since the labels are the same"
    return "the head is new, since the labels differ from those of the run"


def _get_task_and_labels(objective: AnyObjective) -> tuple[str, tuple[str, ...]]:
    """Returns what a head predicts: the scores of equal heads mean the same."""
    match objective:
        case Classification(task=task, labels=labels):
            return task, labels
        case Tagging(labels=labels):
            return "tagging", labels
    return objective.kind, ()


def _format_shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else "x".join(map(str, tensor.shape))
