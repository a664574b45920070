"""Recipes for fine-tuning on tables, and for continued training on another text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from lmtool.errors import UsageError
from lmtool.recipe.load import Resolved, Setting, lay_over
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, RowSpec, Seq2Seq, objectives_of
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.text import BpeTokenizer, Data
from lmtool.recipe.spec.training import (
    AdamW,
    Checkpointing,
    Constant,
    Distillation,
    Evaluation,
    Lbfgs,
    Linear,
    Training,
    Tuning,
)
from lmtool.recipe.spec.words import Averaging

BATCH_ROWS = 32

PUBLISHED_RATE = 1e-4
"""Peak learning rate of published weights where the model is PUBLISHED_WIDTH wide; inversely proportional to width."""

PUBLISHED_WIDTH = 384

RATE = 1e-3
"""Peak learning rate of weights trained here, up to WIDTH; times (WIDTH / width)^1.5 in wider models."""

PART_RATE = 5e-3
"""The same of adapters, or of a head on a frozen body."""

WIDTH = 160

MICRO_TOKENS = 8192
"""Positions per micro-batch: more are no faster on any device."""

ACTIVATION_BYTES = 10**9
"""Of a micro-batch, as `activation_bytes` counts them; in float32 they are twice as many."""

MOST_PASSES = 20

FEW = 500
"""Rows of labels or target texts below which none are held out: they are to be learnt, and few choose by chance."""

LEAST_HELD = 50
"""Held-out rows with a label below which none choose the checkpoint."""

FEW_BATCH, FEW_LABELLED_BATCH = 8, 16
"""Rows of a step over so few target texts, or labels: there are more steps in a pass than with BATCH_ROWS."""

FEW_STEPS = 300
"""Steps of FEW_BATCH rows at least, or half as many of twice the rows; twice as many for weights trained here."""

VALIDATION_STEPS = 500
"""Steps after which there is a validation at the latest; there is one after each pass."""

DECAY = 0.7
"""Share of the steps in which the rate decays where time limits them, as in the recipe `default`."""

PATIENCE = 5
"""Validations without improvement after which training ends."""


def passes(n_rows: int, published: bool) -> int:
    """Passes over a table of so many rows: fewer over a large one, and more over a small one, for enough steps.

    published: of weights that know their language already, which need half as many as those trained here.
    """
    usual, least_steps = (3, 300) if published else (6, 600)
    if n_rows > 50_000:
        usual //= 3
    elif n_rows > 6_000:
        usual = 2 * usual // 3
    return min(MOST_PASSES, max(usual, math.ceil(least_steps * BATCH_ROWS / max(1, n_rows))))


def passes_of_few(n_rows: int, published: bool) -> int:
    """Passes over a table of less than FEW rows. published: as for `passes`."""
    least_steps = FEW_STEPS if published else 2 * FEW_STEPS
    return max(MOST_PASSES, math.ceil(least_steps * FEW_BATCH / max(1, n_rows)))


HeadKind = Literal["classification", "tagging", "question-answering", "embedding"]
"""Kinds of objectives that put a head on a model, or train its vectors of texts."""


@dataclass(frozen=True)
class TableShape:
    """What recipes for tables depend on.

    n_rows: of the tables of all tasks.
    writes: the targets are text, not labels; always so for a model with a source.
    head: what labels train.
    has_words: words recur in its texts.
    per_class: rows of a class, the mean; 0 where rows do not have one class each, or are many.
    """

    n_rows: int
    writes: bool = False
    head: HeadKind = "classification"
    has_words: bool = True
    per_class: float = 0.0


@dataclass(frozen=True)
class Parent:
    """The run that another one begins with: its recipe and its name.

    is_published: the weights are those of a published model, maybe fine-tuned.
    """

    recipe: Recipe
    name: str
    is_published: bool = False


def fine_tuned(parent: Parent, shape: TableShape, settings: Sequence[Setting]) -> Resolved:
    """The recipe that fine-tunes a run on tables: usual settings, and a person's over them, on which others depend.

    Raises UsageError for a model that cannot generate targets.
    """
    recipe = recipe_for_tables(parent, shape)
    source, name = f"fine-tuning of {parent.name}", f"finetune-{parent.name}"
    if _by_contrast(recipe, shape, settings):
        batch_size = min(MOST_CONTRASTED, shape.n_rows)
        steps = max(CONTRASTIVE_STEPS, math.ceil(CONTRASTIVE_PASSES * shape.n_rows / batch_size))
        values = CONTRASTIVE | _linear_head(parent, recipe, is_frozen=False)
        recipe = recipe.with_values(values | {"training.batch_size": batch_size, "training.steps": steps})
    chosen = lay_over(recipe, source, name, settings).recipe
    if _is_fitted(chosen, settings):
        recipe = recipe.with_values(FITTED | _linear_head(parent, recipe, is_frozen=True))
        return lay_over(recipe, source, name, settings)
    return lay_over(with_choices(recipe, chosen, shape.n_rows, parent.is_published), source, name, settings)


FITTED = {
    "training.steps": 1,
    "training.epochs": None,
    "optimizer": Lbfgs(kind="lbfgs"),
    "schedule": Constant(kind="constant"),
    "evaluation.patience": None,
}
"""The recipe of a probe: logistic regression on the mean of the states of a text."""

CONTRASTIVE = {
    "objective.contrastive": True,
    "training.epochs": None,
}
"""The recipe of few rows: vectors trained by contrast, then logistic regression on them (Tunstall et al. 2022)."""

CONTRASTIVE_STEPS = 40
"""Steps of that at least."""

CONTRASTIVE_RATE = 0.5
"""Of the usual peak learning rate: near that of Tunstall et al. (2022)."""

FEW_OF_CLASS = 64
"""Rows of a class up to which that is chosen."""

MOST_CONTRASTED = 64
"""Rows that are contrasted with each other in a step."""

CONTRASTIVE_PASSES = 10
"""Passes over rows that are contrasted, where those are more than the least number of steps."""

_OF_STEPS = ("optimizer", "schedule", "training.steps", "training.min_steps", "training.epochs", "training.minutes")


def are_of_steps(settings: Sequence[Setting]) -> bool:
    """Whether some speak of training by steps, so that a head is trained by them instead of being fitted."""
    of_fit = (("optimizer.kind", "lbfgs"), ("training.steps", 1))
    return any(
        setting.key.startswith(_OF_STEPS)
        and setting.key != "optimizer.l2"
        and (setting.key, setting.value) not in of_fit
        for setting in settings
    )


def _linear_head(parent: Parent, recipe: Recipe, is_frozen: bool) -> dict[str, object]:
    """The head of a recipe as a linear one on the vector of a text: that which the model was trained to give, the last
    state of a decoder that stays, or else the mean."""
    gives_one = isinstance(parent.recipe.objective, Classification | Embedding)
    gives_one = gives_one or (is_frozen and recipe.model.title == "transformer decoder")
    return {"objective.dense": "none", "objective.dropout": 0.0} | ({} if gives_one else {"objective.pool": "mean"})


def _by_contrast(recipe: Recipe, shape: TableShape, settings: Sequence[Setting]) -> bool:
    """Whether vectors are trained by contrast: where it is named, or where an encoder gets few rows of a class, and
    nothing is named that is of another head, or of validations."""
    named = [setting.value for setting in settings if setting.key == "objective.contrastive"]
    if named:
        return isinstance(recipe.objective, Classification) and named[-1] is True
    of_others = ("objective.", "evaluation.", "distillation.", "tuning.", "data.valid", "training.minutes")
    of_classes = (("objective.kind", "classification"), ("objective.task", "class"))
    return (
        0 < shape.per_class <= FEW_OF_CLASS
        and recipe.model.title == "transformer encoder"
        and all(
            not setting.key.startswith(of_others) or (setting.key, setting.value) in of_classes for setting in settings
        )
    )


def _is_fitted(chosen: Recipe, settings: Sequence[Setting]) -> bool:
    """Whether a head on a frozen body is fitted to convergence: unless something else is named, or it is not linear."""
    head, tuning = chosen.objective, chosen.tuning
    return (
        tuning.freeze == "body"
        and isinstance(head, Classification)
        and head.layers not in ("mix", "mix-hidden")
        and head.pool != "attention"
        and chosen.distillation.teacher is None
        and not are_of_steps(settings)
        and not any(setting.key == "objective.dense" for setting in settings)
    )


def recipe_for_tables(parent: Parent, shape: TableShape) -> Recipe:
    """The recipe that fine-tunes a run on tables: its model and tokenizer, and usual settings for the rest.

    `with_choices` sets those that depend on others. ELMo is frozen, and a task learns its scalar mix of layers (Peters
    et al. 2018). An averaging model is trained as it was before.
    Raises UsageError for a model that cannot generate targets.
    """
    base, n_rows, published = parent.recipe, shape.n_rows, parent.is_published
    model = base.model
    epochs, batch_size, data = passes(n_rows, published), BATCH_ROWS, Data()
    if n_rows < FEW and (shape.writes or shape.head == "classification"):
        batch_size = FEW_BATCH if shape.writes else FEW_LABELLED_BATCH
        epochs, data = passes_of_few(n_rows, published), Data(valid_fraction=0)
    recipe = Recipe(
        description=f"fine-tuned from {parent.name}",
        seed=base.seed,
        model=model,
        objective=_objective(base, shape.writes, shape.head),
        tokenizer=base.tokenizer,
        data=data,
        training=Training(
            steps=math.ceil(epochs * n_rows / batch_size),
            epochs=epochs,
            batch_size=batch_size,
            micro_tokens=max(1, min(MICRO_TOKENS, ACTIVATION_BYTES // max(1, model.activation_bytes))),
            precision=base.training.precision,
        ),
        tuning=Tuning(freeze="body" if _gives_features(model) else "none"),
        optimizer=AdamW(lr=RATE, weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear"),
        evaluation=Evaluation(metric="auto", patience=PATIENCE),
        checkpoint=Checkpointing(keep_last=1),
    )
    if isinstance(model, Averaging):
        return recipe.with_values({key: getattr(base, key) for key in ("training", "optimizer", "schedule")})
    return recipe


def with_choices(recipe: Recipe, chosen: Recipe, n_rows: int, published: bool) -> Recipe:
    """A recipe for tables with what depends on a person's choices: learning rate, warm-up, validations.

    chosen: the recipe with these choices laid over. The others are as in `recipe_for_tables`.
    """
    training, tuning = chosen.training, chosen.tuning
    n_train = n_rows if chosen.data.valid else n_rows - round(n_rows * chosen.data.valid_fraction)
    steps = training.steps
    if training.epochs is not None:
        steps = math.ceil(training.epochs * n_train / training.batch_size)
    every = min(VALIDATION_STEPS, max(1, n_train // training.batch_size))
    values: dict[str, float | None] = {"evaluation.every": every, "checkpoint.every": every}
    if not isinstance(recipe.model, Averaging):
        is_part = tuning.lora is not None or tuning.freeze == "body"
        values["optimizer.lr"] = rate = _rate(recipe.model, published, is_part)
        values["schedule.warmup_steps"] = math.ceil(steps / 10)
        if isinstance(recipe.objective, Classification | Embedding):
            # a head is fitted for each validation; and few rows, or those that are learnt, choose by chance
            is_chosen = chosen.data.valid or training.minutes or n_rows - n_train >= LEAST_HELD
            is_contrastive = getattr(recipe.objective, "contrastive", False)
            if is_contrastive or not is_chosen:
                values |= {"evaluation.every": steps, "checkpoint.every": steps, "evaluation.patience": None}
            if is_contrastive:
                values["optimizer.lr"] = CONTRASTIVE_RATE * rate
        if training.minutes is not None:
            # before the rate decays the number of steps can follow the speed
            values["schedule.decay_fraction"] = DECAY
    return recipe.with_values(values)


def _rate(model: Model, published: bool, is_part: bool) -> float:
    """A rate that falls with the width: for published models as 1 / width, in the range of Devlin et al. (2019) for the
    widths of BERT-base and -large; for others, and for parts, as width^-1.5.
    """
    if published and not is_part:
        rate = PUBLISHED_RATE * PUBLISHED_WIDTH / model.d_model
    else:
        rate = (PART_RATE if is_part else RATE) * min(1.0, (WIDTH / model.d_model) ** 1.5)
    return float(f"{rate:.2g}")


def continued(parent: Parent, other: Recipe | None, settings: Sequence[Setting]) -> Resolved:
    """The recipe for continued training of a run on another text: its model and tokenizer.

    other: the recipe of all the rest; the run's own, without its teacher and its text, when None.
    """
    base, tokenizer = parent.recipe, parent.recipe.tokenizer
    if other is None:
        kept = {"column", "documents", "split", "valid_fraction", "isolate_documents"}
        other = base.with_values({"distillation": Distillation(), "data": Data(**base.data.model_dump(include=kept))})
    if isinstance(tokenizer, BpeTokenizer):
        tokenizer = tokenizer.with_values({"dropout": 0.0})  # for pairs only
    recipe = other.with_values({"model": base.model, "tokenizer": tokenizer})
    return lay_over(recipe, f"recipe of {parent.name}", f"from-{parent.name}", settings)


def _objective(base: Recipe, writes: bool, head: HeadKind) -> RowSpec:
    model = base.model
    learns = objectives_of(model)
    if head == "embedding":
        if head not in learns:
            what = f"a {model.title} does not learn vectors of texts"
            raise UsageError(what, where="objective.kind", fix="name an encoder with --from")
        return base.objective if isinstance(base.objective, Embedding) else Embedding(kind="embedding")
    layers: Literal["last", "mix"] = "mix" if _gives_features(model) else "last"
    if head != "classification" and not writes:
        if head not in learns:
            what = f"a {model.title} has no state for each word that a head for {head} could read"
            fix = "name an encoder, a decoder or a bidirectional recurrent model"
            raise UsageError(what, where="--from", fix=fix)
        return TypeAdapter[HeadSpec](HeadSpec).validate_python({"kind": head, "layers": layers})
    if "seq2seq" in learns and (writes or "classification" not in learns):
        return Seq2Seq(kind="seq2seq", label_smoothing=0.0 if model.reads == "past" else 0.1)
    if writes or "classification" not in learns:
        needed = "an encoder-decoder, a prefix LM or a decoder" if writes else "another run"
        what = f"a {model.title} does not {'generate targets' if writes else 'learn labels'}"
        raise UsageError(what, where="--from", fix=f"name {needed} with --from, or a recipe with --recipe")
    if isinstance(base.objective, Embedding):
        # the vector that the model has learnt to give
        return Classification(kind="classification", pool=base.objective.pool)
    if isinstance(base.objective, Classification):
        # the head that it has, which goes on where the labels are the same
        of_head = {"layers", "pool", "dense", "dense_norm", "bias", "dropout"}
        return Classification(kind="classification", **base.objective.model_dump(include=of_head))
    # as in the papers, and so in the published families
    dense: Literal["tanh", "none"] = "tanh" if model.title == "transformer encoder" else "none"
    bias, has_vector = model.title != "transformer decoder", not (isinstance(model, Averaging) and model.one_hot)
    dropout = Classification.model_fields["dropout"].default if has_vector else 0.0
    return Classification(kind="classification", layers=layers, dense=dense, bias=bias, dropout=dropout)


def _gives_features(model: Model) -> bool:
    return model.title == "recurrent bidirectional"
