"""From a recipe, or from a run, to a model that is ready to use."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lmtool import model, objective
from lmtool.compute.device import Compute, InferenceName, resolve
from lmtool.compute.processes import local_rank
from lmtool.decoding.framing import Framing
from lmtool.errors import CheckpointError
from lmtool.model import LanguageModel, lora
from lmtool.model.classifier import Classifier
from lmtool.model.packed import pack
from lmtool.objective import Objective, Vocabulary
from lmtool.recipe.load import load
from lmtool.recipe.spec import Classification, DeviceName, Recipe
from lmtool.run.checkpoint import MODEL, Checkpoint, verify
from lmtool.run.directory import CHECKPOINTS, Run
from lmtool.run.find import find
from lmtool.run.order import hash_key
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Loaded:
    """A trained model and all that belongs to it.

    warnings: what was skipped on the way to this checkpoint.
    """

    model: LanguageModel
    tokenizer: Tokenizer
    recipe: Recipe
    compute: Compute
    run_path: Path
    step: int
    checkpoint_hash: str
    warnings: tuple[str, ...]

    @property
    def device(self) -> torch.device:
        return self.compute.device

    def with_beams(self, num_beams: int | None) -> "Loaded":
        """The same model, which answers tables by a search of another width; of its recipe's width for None."""
        if num_beams is None:
            return self
        evaluation = self.recipe.evaluation.model_copy(update={"num_beams": num_beams})
        return replace(self, recipe=self.recipe.model_copy(update={"evaluation": evaluation}))

    @cached_property
    def objective(self) -> Objective:
        """What the model has learned."""
        return build_objective(self.recipe, self.tokenizer, counts_of(self.model))

    @cached_property
    def framing(self) -> Framing:
        """How the model saw text in training."""
        return Framing.of(self.recipe, self.tokenizer)


def build_model(recipe: Recipe, tokenizer: Tokenizer, compute: Compute) -> LanguageModel:
    """A fresh model for this tokenizer, on its device; its weights follow from the recipe's seed.

    Raises CheckpointError as `Tokenizer.embedding_rows` does.
    """
    rows = tokenizer.embedding_rows(recipe.model.vocab_size)
    torch.manual_seed(hash_key(recipe.seed, "weights"))
    built = model.build(recipe.model, rows)
    if isinstance(recipe.objective, Classification):
        built = Classifier(built, recipe.objective, recipe.model)
    return built.to(compute.device)


def build_objective(recipe: Recipe, tokenizer: Tokenizer, counts: NDArray[np.int64] | None = None) -> Objective:
    """What a model learns under this recipe. counts: of each id in the training text, for objectives that need it."""
    vocabulary = Vocabulary(
        size=tokenizer.vocab_size,
        pad=tokenizer.pad_id,
        bos=tokenizer.bos_id,
        eos=tokenizer.eos_id,
        mask=tokenizer.mask_id,
        sep=tokenizer.sep_id,
        cls=tokenizer.cls_id,
        sentinels=tokenizer.sentinel_ids,
        specials=tokenizer.n_specials,
        counts=counts,
    )
    return objective.build(recipe, vocabulary)


def counts_of(lm: LanguageModel) -> NDArray[np.int64] | None:
    """How often each id stands in the training text, for models that keep it."""
    return None if lm.counts_V is None else lm.counts_V.cpu().numpy()


def load_run(reference: str, *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Loaded:
    """The best checkpoint of a run, or the checkpoint that is named, ready for inference.

    reference: a run directory, a checkpoint directory, the name of a run, or `last`.
    Raises CheckpointError when there is none, or when its parts do not fit together.
    """
    found = find(reference)
    checkpoint, warnings = found.best(optimizer=False)
    compute = resolve(device, precision, local_rank())
    recipe, tokenizer = read_run(found.run)
    lm = trained_model(found.run, recipe, tokenizer, checkpoint, compute)
    lm.eval()
    return Loaded(lm, tokenizer, recipe, compute, found.run.path, checkpoint.step, checkpoint.digest, tuple(warnings))


def load_packed(reference: str, *, device: DeviceName = "auto", precision: InferenceName = "float32") -> Loaded:
    """The same with its matrices packed for the device: only to compute with, its weights cannot be had any more."""
    loaded = load_run(reference, device=device, precision=precision)
    pack(loaded.model, loaded.compute.precision, loaded.device)
    return loaded


def read_run(run: Run) -> tuple[Recipe, Tokenizer]:
    """The recipe and the tokenizer of a run. Raises CheckpointError when the tokenizer is not the run's own."""
    tokenizer = Tokenizer.load(run.tokenizer_path)
    if tokenizer.fingerprint != run.fingerprints["tokenizer"]:
        raise CheckpointError(
            "the tokenizer does not fit the model: it is not the one that the model was trained with",
            where=str(run.tokenizer_path),
            fix="put the run's own tokenizer.json back",
        )
    return load(run.recipe_path).recipe, tokenizer


@dataclass(frozen=True)
class Base:
    """A checkpoint whose weights another run begins with, and the run that it belongs to."""

    run: Run
    checkpoint: Checkpoint
    recipe: Recipe
    tokenizer: Tokenizer

    def tensors(self) -> dict[str, Tensor]:
        """All its weights by name, with adapters added to what they stand beside. Raises CheckpointError."""
        if self.recipe.tuning.lora is None:
            return self.checkpoint.model()
        lm = trained_model(self.run, self.recipe, self.tokenizer, self.checkpoint, resolve("cpu", "float32"))
        lora.merge(lm)
        return lm.state_dict()

    def record(self) -> dict[str, str]:
        """Where it is, and the SHA-256 of its weights: what `base_of` finds it by."""
        return {
            "run": self.run.name,
            "path": str(self.run.path.resolve()),
            "checkpoint": self.checkpoint.path.name,
            "sha256": self.checkpoint.files[MODEL].sha256,
        }


def open_base(reference: str) -> Base:
    """The best checkpoint of a run whose weights another run begins with, or the checkpoint that is named."""
    found = find(reference)
    checkpoint, _ = found.best(optimizer=False)
    return Base(found.run, checkpoint, *read_run(found.run))


def base_of(run: Run) -> Base:
    """The checkpoint that a run began with, where it was or in a run of its name.

    Raises CheckpointError when it is gone, or when its weights are not what they were.
    """
    told = run.info.get("base")
    if told is None:
        raise CheckpointError("the run does not say what its adapters belong to", where=str(run.path), fix="train anew")
    place = Path(told["path"])
    try:
        found = find(str(place) if place.exists() else told["run"])
        checkpoint = verify(found.run.path / CHECKPOINTS / told["checkpoint"], optimizer=False)
    except CheckpointError as error:
        raise CheckpointError(
            f"{run.name} holds adapters only, to {told['checkpoint']} of {told['run']}: {error.what}",
            where=told["path"],
            fix="put that run back where it was; `lmtool runs merge` makes a run that needs no other",
        ) from error
    if checkpoint.files[MODEL].sha256 != told["sha256"]:
        raise CheckpointError(
            f"{run.name} holds adapters only, to {told['checkpoint']} of {told['run']}, which has changed since",
            where=str(checkpoint.path),
            fix="put the checkpoint back as it was, or train anew",
        )
    return Base(found.run, checkpoint, *read_run(found.run))


def tune(lm: LanguageModel, recipe: Recipe) -> None:
    """Let only those weights of a model learn that the recipe says, in place; give it adapters if it is to have any."""
    body = lm.body if isinstance(lm, Classifier) else lm
    if recipe.tuning.lora is not None:
        torch.manual_seed(hash_key(recipe.seed, "adapters"))
        lora.adapt(body, recipe.tuning.lora)
    elif recipe.tuning.freeze == "body":
        body.requires_grad_(False)


def trained_model(
    run: Run, recipe: Recipe, tokenizer: Tokenizer, checkpoint: Checkpoint, compute: Compute
) -> LanguageModel:
    """The model of a run as it was at a checkpoint; where that holds adapters only, on the weights of the run's base.

    Raises CheckpointError when its parts do not fit together.
    """
    lm = build_model(recipe, tokenizer, compute)
    if recipe.tuning.lora is not None:
        load_body(lm, base_of(run), same_labels=False)
    tune(lm, recipe)
    load_weights(lm, checkpoint)
    return lm


def load_weights(lm: LanguageModel, checkpoint: Checkpoint) -> None:
    """Copy a checkpoint's weights into a model. Raises CheckpointError that names the first that does not fit."""
    _copy(lm, checkpoint.model(), checkpoint)


def _copy(lm: LanguageModel, tensors: dict[str, Tensor], checkpoint: Checkpoint) -> None:
    own = lora.kept(lm)
    for name in sorted(own.keys() | tensors.keys()):
        there, here = tensors.get(name), own.get(name)
        free = int(name in lm.any_length)
        if there is None or here is None or there.ndim != here.ndim or there.shape[free:] != here.shape[free:]:
            raise CheckpointError(
                f"the checkpoint does not fit the recipe: {name} is {_shape(there)}, not {_shape(here)}",
                where=str(checkpoint.path),
                fix="put the run's own recipe.yaml back",
            )
    # all that is kept is there; what is not kept stays
    lm.load_state_dict(tensors, strict=False)


def load_body(lm: LanguageModel, base: Base, same_labels: bool) -> str | None:
    """Copy the weights of another run into a model, and its head where both have one for the same labels.

    Returns what became of the head, if there is anything to say. Raises CheckpointError as `load_weights` does.
    """
    tensors, checkpoint = base.tensors(), base.checkpoint
    body, head = tensors, {}
    if isinstance(base.recipe.objective, Classification):
        # seen from the recipe, as a body that only counts words has no weights
        body = {name.removeprefix("body."): t for name, t in tensors.items() if name.startswith("body.")}
        head = {name: t for name, t in tensors.items() if not name.startswith("body.")}
    if not isinstance(lm, Classifier):
        _copy(lm, body, checkpoint)
        return None
    _copy(lm.body, body, checkpoint)
    own = {name: t for name, t in lm.state_dict().items() if not name.startswith("body.")}
    if not head:
        return None
    if same_labels and {name: t.shape for name, t in head.items()} == {name: t.shape for name, t in own.items()}:
        lm.load_state_dict(head, strict=False)
        return "the head is kept, since the labels are the same"
    return "the head is new, since the labels are not those of the run"


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else "x".join(map(str, tensor.shape))
