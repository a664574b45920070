"""Features: opening the run whose states another model reads."""

from dataclasses import dataclass

import torch

from lmtool.batch import Batch
from lmtool.compute.device import resolve
from lmtool.errors import UsageError
from lmtool.inference.base import Base, open_base
from lmtool.inference.load import trained_model
from lmtool.model import LanguageModel
from lmtool.printable import plain
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.words import Averaging
from lmtool.run.directory import FEATURES


@dataclass(frozen=True)
class FeatureSource:
    """An opened run, and its model in CPU memory, whose states another model reads.

    recipe: of that other model, with the sizes of the states and with the run's tokenizer.
    """

    base: Base
    model: LanguageModel
    recipe: Recipe

    @property
    def line(self) -> str:
        """What is read, for people."""
        assert isinstance(self.recipe.model, Recurrent | Averaging)
        features = self.recipe.model.features
        assert features is not None
        name = plain(features.run)
        where = "beside" if features.beside else "in place of"
        return (
            f"features: {name}, {self.model.describe()}, {features.mixed_layers} layers of {features.width}, frozen, "
            f"{where} the embeddings; with its tokenizer"
        )


def open_features(recipe: Recipe, base: Base | None) -> FeatureSource | None:
    """The run whose states the model of a recipe reads; None where the recipe has no features.

    base: the run that the model is initialised from, which keeps a copy of what its own model reads.
    Raises UsageError for a model without states, for one that reads features itself, for adapters without their base,
    and for features that `base` does not have; CheckpointError where there is no such run.
    """
    model = recipe.model
    if not isinstance(model, Recurrent | Averaging) or (features := model.features) is None:
        return None
    if base is not None:
        old = base.recipe.model.features if isinstance(base.recipe.model, Recurrent | Averaging) else None
        if old is None or old.run != features.run or old.beside != features.beside:
            raise UsageError(
                f"{base.run.name} was trained without these features, for which its layers are too narrow",
                where="model.features",
                fix="train from scratch with --recipe, or omit them",
            )
    source = open_base(features.run if base is None else str(base.run.path / FEATURES))
    own = source.recipe.model
    if source.recipe.tuning.lora is not None:
        raise UsageError(
            f"{source.run.name} holds adapters only",
            where="model.features.run",
            fix=f"make a whole run first: lmtool runs merge {source.run.name}",
        )
    if isinstance(own, Recurrent | Averaging) and own.features is not None:
        raise UsageError(
            f"{source.run.name} reads features of another run itself",
            where="model.features.run",
            fix="name that run, or one without features",
        )
    lm = trained_model(source.run, source.recipe, source.tokenizer, source.checkpoint, resolve("cpu", "float32"))
    with torch.no_grad():
        layers = lm.eval().layers(Batch(torch.zeros(1, 2, dtype=torch.int64)))
    sizes = {"width": layers[-1].shape[-1], "mixed_layers": len(layers), "longest": lm.longest}
    settled = model.model_copy(update={"features": features.model_copy(update=sizes)})
    return FeatureSource(source, lm, recipe.model_copy(update={"model": settled, "tokenizer": source.recipe.tokenizer}))
