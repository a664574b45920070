"""From a recipe, or from a run, to a model that is ready to use."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from lmtool import model
from lmtool.compute.device import Compute, InferenceName, device_memory, resolve
from lmtool.compute.processes import World, local_rank, local_size
from lmtool.compute.shards import ShardedBuild, is_sharded, own_rows, own_slice
from lmtool.decoding.framing import Framing
from lmtool.errors import CheckpointError, NumericalError
from lmtool.inference.base import Base, base_of, open_base, read_run
from lmtool.inference.sharding import Sharding
from lmtool.model import LanguageModel, lora
from lmtool.model.classifier import Classifier, HeadedModel
from lmtool.model.features import find_features
from lmtool.model.language_model import CountingModel, UnpredictiveModel
from lmtool.model.packed import pack
from lmtool.model.parameters import depths
from lmtool.model.replaced import ReplacedTokenDetector
from lmtool.model.token_heads import SpanReader, Tagger
from lmtool.model.transformer import TransformerEncoder
from lmtool.objective import Objective, build_objective
from lmtool.recipe.spec.base import DeviceName
from lmtool.recipe.spec.objective import Classification, HeadSpec, Masked, QuestionAnswering, ReplacedTokens, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging
from lmtool.run.checkpoint import Checkpoint
from lmtool.run.directory import FEATURES, Run
from lmtool.run.find import find
from lmtool.run.order import hash_key
from lmtool.run.tensors import below, outlines, rows_of
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A trained model with its recipe, tokenizer and device.

    newer: the step of the run's newest checkpoint, where it is after this one, the best. warnings: damaged checkpoints
    that were skipped, and a damaged recipe.yaml. sharding: where processes share it.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    recipe: Recipe
    compute: Compute
    run_path: Path
    step: int
    checkpoint_hash: str
    newer: int | None
    warnings: tuple[str, ...]
    sharding: Sharding | None = None

    @contextmanager
    def computing(self, world: World) -> Iterator[World]:
        """A context in which processes compute with the model, each its share, in step where they share it."""
        if self.sharding is None:
            yield world
        else:
            with self.sharding.by_layer():
                yield replace(world, in_step=True)

    @property
    def device(self) -> torch.device:
        return self.compute.device

    def refuse_unpredictive(self) -> None:
        """Raise UsageError for a model that has no probabilities of the tokens of a text."""
        lm = self.model.body if isinstance(self.model, Classifier) else self.model
        if isinstance(lm, UnpredictiveModel):
            raise lm.refusal()

    def with_beams(self, num_beams: int | None) -> "Loaded":
        """The same model with another beam width for tables; that of its recipe for None."""
        if num_beams is None:
            return self
        evaluation = self.recipe.evaluation.model_copy(update={"num_beams": num_beams})
        return replace(self, recipe=self.recipe.model_copy(update={"evaluation": evaluation}))

    @cached_property
    def objective(self) -> Objective:
        """The training objective of the model."""
        return build_objective(self.recipe, self.tokenizer, self.model.counts_V)

    @cached_property
    def framing(self) -> Framing:
        """How texts become inputs of the model, as in training."""
        return Framing.of(self.recipe, self.tokenizer)


def build_model(
    recipe: Recipe,
    tokenizer: Tokenizer,
    compute: Compute,
    features: LanguageModel | None = None,
    shards: ShardedBuild | None = None,
) -> LanguageModel:
    """A new model for this tokenizer, on its device, initialized from the recipe's seed.

    features: the model whose states it reads, if the recipe has features; it is frozen. shards: where it holds only the
    rows of this process.
    Raises CheckpointError as `Tokenizer.embedding_rows` does.
    """
    rows = tokenizer.embedding_rows(recipe.model.vocab_size)
    torch.manual_seed(hash_key(recipe.seed, "weights"))
    if shards is not None:
        with shards:
            return with_head(recipe, model.build(recipe.model, rows))
    built = model.build(recipe.model, rows)
    reading = find_features(built)
    if reading is not None and features is not None:
        reading.attach(features)
    return with_head(recipe, built).to(compute.device)


def with_head(recipe: Recipe, built: LanguageModel) -> LanguageModel:
    """A body, with the head of the recipe's objective if that has one."""
    match recipe.objective:
        case Classification() as spec:
            return Classifier(built, spec, recipe.model)
        case Tagging() as spec:
            return Tagger(built, spec, recipe.model)
        case QuestionAnswering() as spec:
            return SpanReader(built, spec, recipe.model)
        case ReplacedTokens() as spec:
            assert isinstance(built, TransformerEncoder)
            assert isinstance(recipe.model, Transformer)
            return ReplacedTokenDetector(built, spec, recipe.model)
    return built


def learner(
    recipe: Recipe,
    tokenizer: Tokenizer,
    compute: Compute,
    set_statistics: Callable[[LanguageModel], None],
    base: Base | None,
    same_labels: bool,
    checkpoint: Checkpoint | None,
    features: LanguageModel | None = None,
    shards: ShardedBuild | None = None,
) -> tuple[LanguageModel, str | None]:
    """A model to train with a recipe, with the trainable weights that the recipe sets.

    set_statistics: initializes a new model with statistics of the data. base: initial weights, of another run;
    same_labels: its head has the same labels. checkpoint: weights to continue from, of the same run.
    features, shards: see `build_model`.
    Returns the model, and a notice about the head of `base`, if any.
    """
    lm = build_model(recipe, tokenizer, compute, features, shards)
    set_statistics(lm)
    notice = None if base is None else _load_body(lm, base, same_labels)
    _tune(lm, recipe)
    if checkpoint is not None:
        load_weights(lm, checkpoint)
    return lm, notice


def load_run(
    reference: str,
    *,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    world: World = World(),  # noqa: B008 - it is frozen
) -> Loaded:
    """The best checkpoint of a run, or a given checkpoint, ready for inference.

    reference: as for `find`. world: processes that share the model where it does not fit into the memory of one; they
    then measure it in step, see `Loaded.computing`.
    Raises CheckpointError when there is none, or when its parts are inconsistent.
    """
    found = find(reference)
    checkpoint, warnings = found.best(optimizer=False)
    compute = resolve(device, precision, local_rank())
    recipe, tokenizer, doubts = read_run(found.run, checkpoint)
    sharding = None
    if _shares(recipe, checkpoint, compute, world):
        lm = build_model(recipe, tokenizer, compute, shards=ShardedBuild(world.rank, world.size))
        load_weights(lm, checkpoint)
        sharding = Sharding(lm, lm, compute, world)
    else:
        lm = trained_model(found.run, recipe, tokenizer, checkpoint, compute)
    lm.eval()
    step, newer, said = checkpoint.step, found.newer_than(checkpoint.step), (*warnings, *doubts)
    return Loaded(lm, tokenizer, recipe, compute, found.run.path, step, checkpoint.digest, newer, said, sharding)


def _shares(recipe: Recipe, checkpoint: Checkpoint, compute: Compute, world: World) -> bool:
    """Whether processes share a model, since the weights do not fit into the memory of one of them."""
    is_one_pass = not isinstance(recipe.objective, Masked)
    if (
        world.size == 1
        or not isinstance(recipe.model, Transformer)
        or not is_one_pass
        or recipe.tuning.lora is not None
    ):
        return False
    memory = device_memory(compute.device)
    own = None if memory is None else memory // (1 if compute.device.type == "cuda" else local_size())
    is_short = own is not None and sum(checkpoint.files[name].bytes for name in checkpoint.model_files) > own
    # machines may differ, and all must do the same
    return bool(world.sum((float(is_short),), compute)[0]) and compute.precision in ("float32", "bfloat16")


def load_packed(
    reference: str,
    *,
    device: DeviceName = "auto",
    precision: InferenceName = "float32",
    world: World = World(),  # noqa: B008 - it is frozen
) -> Loaded:
    """The same with its matrices packed for the device: for inference only, its weights are no longer accessible.

    Those that processes share are not packed.
    """
    loaded = load_run(reference, device=device, precision=precision, world=world)
    if loaded.sharding is None:
        pack(loaded.model, loaded.compute.precision, loaded.device)
    return loaded


def trained_model(
    run: Run, recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint, compute: Compute
) -> LanguageModel:
    """The model of a run at a checkpoint; a checkpoint of adapters only is applied to the run's base.

    Raises CheckpointError when its parts are inconsistent.
    """
    lm = build_model(recipe, tokenizer, compute, features_of(run, recipe, compute))
    if recipe.tuning.lora is not None:
        _load_body(lm, base_of(run), same_labels=False)
    _tune(lm, recipe)
    load_weights(lm, checkpoint)
    return lm


def features_of(run: Run, recipe: Recipe, compute: Compute) -> LanguageModel | None:
    """The model whose states the model of a run reads, from its copy in the run; None where it reads no features.

    Raises CheckpointError where the copy is missing or damaged.
    """
    if not isinstance(recipe.model, Recurrent | Averaging) or recipe.model.features is None:
        return None
    copy = open_base(str(run.path / FEATURES))
    return trained_model(copy.run, copy.recipe, copy.tokenizer, copy.checkpoint, compute)


def weights_of(base: Base) -> Mapping[str, Tensor]:
    """All weights of a checkpoint by name, with adapters merged into them.

    Raises CheckpointError, and NumericalError for weights that are not finite.
    """
    tensors = _merged(base)
    for name, tensor in tensors.items():
        _refuse_not_finite(name, tensor, base.checkpoint)
    return tensors


def _merged(base: Base) -> Mapping[str, Tensor]:
    """The same, also where they are not finite."""
    if base.recipe.tuning.lora is None:
        return base.checkpoint.model()
    lm = trained_model(base.run, base.recipe, base.tokenizer, base.checkpoint, resolve("cpu", "float32"))
    lora.merge(lm)
    return lm.state_dict()


def load_weights(lm: LanguageModel, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's weights into a model.

    Raises CheckpointError that names the first that does not fit, NumericalError the first that is not finite.
    """
    _copy(lm, checkpoint.model(), checkpoint)


def _copy(lm: LanguageModel, tensors: Mapping[str, Tensor], checkpoint: Checkpoint) -> None:
    """Copy tensors into a model, one after the other; of one that is sharded the rows of this process only."""
    own, saved = lora.kept(lm), outlines(tensors)
    for name in sorted(own.keys() | saved.keys()):
        there, here = saved.get(name), own.get(name)
        free = int(name in lm.any_length)
        if there is None or here is None or there.ndim != here.ndim or there.shape[free:] != here.shape[free:]:
            raise CheckpointError(
                f"the checkpoint does not fit the recipe: {name} is {_shape(there)}, not {_shape(here)}",
                where=str(checkpoint.path),
                fix="restore the run from a copy, or train anew",
            )
    parameters = dict(lm.named_parameters())
    for name, here in own.items():
        if name not in lm.any_length:
            _refuse_not_finite(name, _set(parameters.get(name, here), tensors, name), checkpoint)
    if lm.any_length:
        lm.load_state_dict({name: tensors[name] for name in lm.any_length}, strict=False)


@torch.no_grad()
def _set(here: Tensor, tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Copy a tensor into one of a model; of one that is sharded the rows of this process. Returns what was copied."""
    tensor = rows_of(tensors, name, own_slice(here)) if is_sharded(here) else tensors[name]
    own_rows(here).copy_(tensor)
    return tensor


def _refuse_not_finite(name: str, tensor: Tensor, checkpoint: Checkpoint) -> None:
    if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
        raise NumericalError(
            f"the weights are not finite: {name} holds NaN or infinity",
            where=str(checkpoint.path),
            fix="name an earlier checkpoint, RUN@STEP, or train anew",
        )


def _tune(lm: LanguageModel, recipe: Recipe) -> None:
    """Freeze, in place, the weights of a model that the recipe does not train; add adapters if the recipe has any."""
    body = lm.body if isinstance(lm, HeadedModel) else lm
    if isinstance(recipe.model, Transformer | Recurrent | Averaging) and recipe.model.freeze_embeddings:
        cast(nn.Parameter, body.token_vectors()).requires_grad_(False)
    if recipe.tuning.lora is not None:
        torch.manual_seed(hash_key(recipe.seed, "adapters"))
        lora.adapt(body, recipe.tuning.lora)
    elif recipe.tuning.freeze == "body":
        body.requires_grad_(False)
    elif recipe.tuning.freeze == "embeddings":
        for parameter in (parameter for parameter, depth in depths(body).items() if depth == 0):
            parameter.requires_grad_(False)


def _load_body(lm: LanguageModel, base: Base, same_labels: bool) -> str | None:
    """Copy the weights of another run into a model, and its head where both have one for the same labels.

    Returns a notice about the head, if any. Raises CheckpointError as `load_weights` does.
    """
    tensors, checkpoint = _merged(base), base.checkpoint
    body, head = tensors, {}
    if isinstance(base.recipe.objective, HeadSpec | ReplacedTokens):
        # from the recipe, since a body that only counts words has no weights
        body = below(tensors, "body.")
        head = {name: t.shape for name, t in outlines(tensors).items() if not name.startswith("body.")}
    if isinstance(lm, ReplacedTokenDetector):
        if isinstance(base.recipe.objective, ReplacedTokens):
            _copy(lm, tensors, checkpoint)
            return None
        _copy(lm.body, body, checkpoint)
        return "the generator and the detector are new"
    if not isinstance(lm, HeadedModel):
        _copy(lm, body, checkpoint)
        if isinstance(lm, CountingModel):
            lm.n_read.zero_()  # of this text; what was counted of the other one stays
        return None
    _copy(lm.body, body, checkpoint)
    pooler = lm.body.pooler if isinstance(lm.body, TransformerEncoder) else None
    if pooler is not None and isinstance(lm, Classifier) and lm.activation == "tanh":
        # the pooler of next-sentence prediction goes on as the dense layer of the head (Devlin et al. 2019)
        assert lm.dense is not None
        with torch.no_grad():
            for here, there in zip(lm.dense.parameters(), pooler.parameters(), strict=True):
                own_rows(here).copy_(own_rows(there))
    own = {name: t for name, t in lm.state_dict(keep_vars=True).items() if not name.startswith("body.")}
    if not isinstance(base.recipe.objective, Classification):
        return None
    if same_labels and head == {name: t.shape for name, t in own.items()}:
        for name, here in own.items():
            _refuse_not_finite(name, _set(here, tensors, name), checkpoint)
        return "the head is reused, since the labels are the same"
    return "the head is new, since the labels differ from those of the run"


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else "x".join(map(str, tensor.shape))
