"""Recipes for fine-tuning on tables, and for continued training on another text."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from lmtool.errors import UsageError
from lmtool.recipe.load import ResolvedRecipe, Setting, apply_settings
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, RowSpec, Seq2Seq, supported_objectives
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

PUBLISHED_LR = 1e-4
"""Peak learning rate of published weights at PUBLISHED_WIDTH; inversely proportional to the width."""

PUBLISHED_WIDTH = 384

TRAINED_LR = 1e-3
"""Peak learning rate of weights trained by lmtool; times (TRAINED_WIDTH / width)^1.5 in wider models."""

ADAPTER_LR = 5e-3
"""Peak learning rate of adapters, or of a head on a frozen body."""

TRAINED_WIDTH = 160

MICRO_TOKENS = 8192
"""Positions per micro-batch; more are no faster on any device."""

MAX_ACTIVATION_BYTES = 10**9
"""Limit of a micro-batch, as `activation_bytes` counts it; float32 needs twice as much."""

MAX_EPOCHS = 20

FEW_ROWS = 500
"""Below this number of rows none are held out, because few rows would select a checkpoint by chance."""

MIN_HELD_OUT_ROWS = 50
"""Minimal number of held-out labelled rows that select the checkpoint."""

FEW_TARGETS_BATCH, FEW_LABELS_BATCH = 8, 16
"""Batch sizes for few target texts and few labels, with more steps per epoch than BATCH_ROWS."""

MIN_STEPS_OF_FEW_ROWS = 300
"""Minimal number of steps of FEW_TARGETS_BATCH rows, half as many of twice the rows; doubled for weights of lmtool."""

MAX_VALIDATION_STEPS = 500
"""Limit of the steps between validations; there is one after each epoch too."""

DECAY_FRACTION = 0.7
"""Fraction of the steps in which the learning rate decays if time is limited, as in the recipe `default`."""

PATIENCE = 5
"""Validations without improvement after which training ends."""


def choose_epochs(n_rows: int, is_published: bool) -> int:
    """Chooses the epochs over a table: fewer for a large table, more for a small one.

    is_published: whether the weights are pretrained on much text, which halves the epochs.
    """
    epochs, least_steps = (3, 300) if is_published else (6, 600)
    if n_rows > 50_000:
        epochs //= 3
    elif n_rows > 6_000:
        epochs = 2 * epochs // 3
    return min(MAX_EPOCHS, max(epochs, math.ceil(least_steps * BATCH_ROWS / max(1, n_rows))))


HeadKind = Literal["classification", "tagging", "question-answering", "embedding"]
"""Kinds of objectives that put a head on a model, or train its vectors of texts."""


@dataclass(frozen=True)
class TableProperties:
    """Properties of tables on which recipes depend.

    n_rows: of the tables of all tasks.
    targets_are_text: whether the targets are text, not labels; always true for a model with a source.
    head: the head that labels train.
    has_words: whether words recur in the texts.
    per_class: mean rows of a class; 0 if rows do not have one class each, or are many.
    """

    n_rows: int
    targets_are_text: bool = False
    head: HeadKind = "classification"
    has_words: bool = True
    per_class: float = 0.0


@dataclass(frozen=True)
class ParentRun:
    """The run that another run is initialized from.

    is_published: whether the weights are those of a published model, maybe fine-tuned.
    """

    recipe: Recipe
    name: str
    is_published: bool = False


def resolve_finetuning(parent: ParentRun, table: TableProperties, settings: Sequence[Setting]) -> ResolvedRecipe:
    """Resolves the recipe that fine-tunes a run on tables, with the user's settings, on which other values depend.

    Raises UsageError for a model that cannot generate targets.
    """
    recipe = make_table_recipe(parent, table)
    source, name = f"fine-tuning of {parent.name}", f"finetune-{parent.name}"
    if _should_train_classifier_contrastively(recipe, table, settings):
        batch_size = min(CONTRASTIVE_BATCH, table.n_rows)
        steps = max(MIN_CONTRASTIVE_STEPS, math.ceil(CONTRASTIVE_EPOCHS * table.n_rows / batch_size))
        values = CONTRASTIVE_VALUES | _linear_head_objective_values(parent, recipe, is_frozen=False)
        recipe = recipe.with_unvalidated_values(values | {"training.batch_size": batch_size, "training.steps": steps})
    penalties = [setting for setting in settings if setting.key == "optimizer.l2"]
    if isinstance(recipe.optimizer, Lbfgs) or any(one.key in ("optimizer", "optimizer.kind") for one in settings):
        penalties = []  # of the optimizer that takes them
    chosen = apply_settings(recipe, source, name, [one for one in settings if one not in penalties]).recipe
    is_probe = _should_fit_probe_by_lbfgs(chosen, settings)
    if penalties and not is_probe:
        what = (
            f"optimizer.l2 is the penalty of a head that is fitted, and this one is trained by {chosen.optimizer.kind}"
        )
        fit = "add --freeze body, which fits a linear head alone"
        if chosen.tuning.freeze == "body":
            fit = "leave out what is not for a linear head that is fitted, such as training.epochs and objective.dense"
        raise UsageError(what, where=penalties[-1].flag, fix=f"{fit}, or set optimizer.weight_decay instead")
    if is_probe:
        recipe = recipe.with_unvalidated_values(
            FITTED_HEAD_VALUES | _linear_head_objective_values(parent, recipe, is_frozen=True)
        )
        return apply_settings(recipe, source, name, settings)
    return apply_settings(
        with_settings_dependent_values(recipe, chosen, table.n_rows, parent.is_published), source, name, settings
    )


FITTED_HEAD_VALUES = {
    "training.steps": 1,
    "training.epochs": None,
    "optimizer": Lbfgs(kind="lbfgs"),
    "schedule": Constant(kind="constant"),
    "evaluation.patience": None,
}
"""Values of the recipe of a probe: logistic regression on the mean of the states of a text."""

CONTRASTIVE_VALUES = {"objective.contrastive": True, "training.epochs": None}
"""Values of the recipe for few rows: contrastive training, then logistic regression (Tunstall et al. 2022)."""

MIN_CONTRASTIVE_STEPS = 40
"""Minimal number of contrastive steps."""

CONTRASTIVE_LR_FACTOR = 0.5
"""Factor of the peak learning rate in contrastive training, which is then near that of Tunstall et al. (2022)."""

MAX_ROWS_OF_CLASS = 64
"""Limit of the mean rows of a class for contrastive training."""

CONTRASTIVE_BATCH = 64
"""Rows of a contrastive step."""

CONTRASTIVE_EPOCHS = 10
"""Epochs of contrastive training, if they have more than MIN_CONTRASTIVE_STEPS."""

_GRADIENT_KEYS = (
    "optimizer",
    "schedule",
    "training.steps",
    "training.min_steps",
    "training.epochs",
    "training.minutes",
)


def requests_gradient_training(settings: Sequence[Setting]) -> bool:
    """Returns whether some settings ask for training by gradients instead of fitting a head."""
    of_fit = (("optimizer.kind", "lbfgs"), ("training.steps", 1))
    return any(
        setting.key.startswith(_GRADIENT_KEYS)
        and setting.key != "optimizer.l2"
        and (setting.key, setting.value) not in of_fit
        for setting in settings
    )


def _linear_head_objective_values(parent: ParentRun, recipe: Recipe, is_frozen: bool) -> dict[str, object]:
    """Returns the values of a linear head on the vector of a text: the vector that the model was trained to give, the
    last state of a frozen decoder, or else the mean."""
    gives_one = isinstance(parent.recipe.objective, Classification | Embedding)
    gives_one = gives_one or (is_frozen and recipe.model.title == "transformer decoder")
    return {"objective.dense": "none", "objective.dropout": 0.0} | ({} if gives_one else {"objective.pool": "mean"})


def _should_train_classifier_contrastively(recipe: Recipe, table: TableProperties, settings: Sequence[Setting]) -> bool:
    """Returns whether training is contrastive: if a setting says so, or if an encoder gets few rows of a class and no
    setting is for another head or for validations."""
    named = [setting.value for setting in settings if setting.key == "objective.contrastive"]
    if named:
        return isinstance(recipe.objective, Classification) and named[-1] is True
    of_others = ("objective.", "evaluation.", "distillation.", "tuning.", "data.valid", "training.minutes")
    of_classes = (("objective.kind", "classification"), ("objective.task", "class"))
    return (
        0 < table.per_class <= MAX_ROWS_OF_CLASS
        and recipe.model.title == "transformer encoder"
        and all(
            not setting.key.startswith(of_others)
            or (setting.key, setting.value) in of_classes
            or setting.key == "evaluation.baseline"
            for setting in settings
        )
    )


def _should_fit_probe_by_lbfgs(recipe: Recipe, settings: Sequence[Setting]) -> bool:
    """Returns whether a linear head on a frozen body is fitted to convergence; settings may ask for gradients."""
    head, tuning = recipe.objective, recipe.tuning
    return (
        tuning.freeze == "body"
        and isinstance(head, Classification)
        and head.pool != "attention"
        and not (head.pool == "max" and head.mixes_layers)
        and recipe.distillation.teacher is None
        and not requests_gradient_training(settings)
        and not any(setting.key == "objective.dense" for setting in settings)
    )


def make_table_recipe(parent: ParentRun, table: TableProperties) -> Recipe:
    """Makes the recipe that fine-tunes a run on tables: its model and tokenizer, and default values for the rest.

    `with_settings_dependent_values` sets those that depend on others. ELMo is frozen, and a task learns its scalar
    mix of layers (Peters et al. 2018). An averaging model is trained as before.
    Raises UsageError for a model that cannot generate targets.
    """
    base, n_rows, is_published = parent.recipe, table.n_rows, parent.is_published
    model = base.model
    epochs, batch_size, data = choose_epochs(n_rows, is_published), BATCH_ROWS, Data()
    if n_rows < FEW_ROWS and (table.targets_are_text or table.head == "classification"):
        batch_size = FEW_TARGETS_BATCH if table.targets_are_text else FEW_LABELS_BATCH
        least_steps = MIN_STEPS_OF_FEW_ROWS if is_published else 2 * MIN_STEPS_OF_FEW_ROWS
        epochs = max(MAX_EPOCHS, math.ceil(least_steps * FEW_TARGETS_BATCH / max(1, n_rows)))
        data = Data(valid_fraction=0)
    recipe = Recipe(
        description=f"fine-tuned from {parent.name}",
        seed=base.seed,
        model=model,
        objective=_choose_objective(base, table.targets_are_text, table.head),
        tokenizer=base.tokenizer,
        data=data,
        training=Training(
            steps=math.ceil(epochs * n_rows / batch_size),
            epochs=epochs,
            batch_size=batch_size,
            micro_tokens=max(1, min(MICRO_TOKENS, MAX_ACTIVATION_BYTES // max(1, model.activation_bytes))),
            precision=base.training.precision,
        ),
        tuning=Tuning(freeze="body" if _is_feature_model(model) else "none"),
        optimizer=AdamW(lr=TRAINED_LR, weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear"),
        evaluation=Evaluation(metric="auto", patience=PATIENCE),
        checkpoint=Checkpointing(keep_last=1),
    )
    if isinstance(model, Averaging):
        return recipe.with_unvalidated_values(
            {key: getattr(base, key) for key in ("training", "optimizer", "schedule")}
        )
    return recipe


def with_settings_dependent_values(
    recipe: Recipe, recipe_with_settings: Recipe, n_rows: int, is_published: bool
) -> Recipe:
    """Returns the recipe with the values that depend on the user's settings: learning rate, warm-up, validations.

    recipe_with_settings: the recipe with these settings. n_rows, is_published: see `TableProperties` and
        `choose_epochs`.
    """
    training, tuning = recipe_with_settings.training, recipe_with_settings.tuning
    data, n_train = recipe_with_settings.data, n_rows
    if not data.valid:
        n_train -= round(n_rows * data.valid_fraction)
    steps = training.steps
    if training.epochs is not None:
        steps = math.ceil(training.epochs * n_train / training.batch_size)
    every = min(MAX_VALIDATION_STEPS, max(1, n_train // training.batch_size))
    values: dict[str, float | None] = {"evaluation.every": every, "checkpoint.every": every}
    if not isinstance(recipe.model, Averaging):
        trains_part = tuning.lora is not None or tuning.freeze == "body"
        values["optimizer.lr"] = rate = _choose_learning_rate(recipe.model, is_published, trains_part)
        values["schedule.warmup_steps"] = math.ceil(steps / 10)
        if isinstance(recipe.objective, Classification | Embedding):
            # each validation fits a head, and few or training rows would select by chance
            is_chosen = data.valid or training.minutes or n_rows - n_train >= MIN_HELD_OUT_ROWS
            is_contrastive = getattr(recipe.objective, "contrastive", False)
            if is_contrastive or not is_chosen:
                values |= {"evaluation.every": steps, "checkpoint.every": steps, "evaluation.patience": None}
            if is_contrastive:
                values["optimizer.lr"] = CONTRASTIVE_LR_FACTOR * rate
        if training.minutes is not None:
            # the number of steps follows the speed until the rate decays
            values["schedule.decay_fraction"] = DECAY_FRACTION
    return recipe.with_unvalidated_values(values)


def _choose_learning_rate(model: Model, is_published: bool, trains_adapter_or_head: bool) -> float:
    """Chooses a learning rate that falls with the width: for published models as 1 / width, in the range of Devlin et
    al. (2019) for BERT-base and -large; for others, for adapters and heads as width^-1.5.
    """
    if is_published and not trains_adapter_or_head:
        rate = PUBLISHED_LR * PUBLISHED_WIDTH / model.d_model
    else:
        rate = (ADAPTER_LR if trains_adapter_or_head else TRAINED_LR) * min(1.0, (TRAINED_WIDTH / model.d_model) ** 1.5)
    return float(f"{rate:.2g}")


def resolve_continued_training(
    parent: ParentRun, training_recipe: Recipe | None, settings: Sequence[Setting]
) -> ResolvedRecipe:
    """Resolves the recipe for continued training of a run on another text, with its model and tokenizer.

    training_recipe: the recipe of all other values; by default that of the run, without its teacher and its text.
    """
    base, tokenizer = parent.recipe, parent.recipe.tokenizer
    if training_recipe is None:
        kept = {"column", "documents", "split", "valid_fraction", "isolate_documents"}
        training_recipe = base.with_unvalidated_values(
            {"distillation": Distillation(), "data": Data(**base.data.model_dump(include=kept))}
        )
    if isinstance(tokenizer, BpeTokenizer):
        tokenizer = tokenizer.with_unvalidated_values({"dropout": 0.0})  # for pairs only
    recipe = training_recipe.with_unvalidated_values({"model": base.model, "tokenizer": tokenizer})
    return apply_settings(recipe, f"recipe of {parent.name}", f"from-{parent.name}", settings)


def _choose_objective(base: Recipe, targets_are_text: bool, head: HeadKind) -> RowSpec:
    model = base.model
    learns = supported_objectives(model)
    if head == "embedding":
        if head not in learns:
            what = f"a {model.title} does not learn vectors of texts"
            raise UsageError(what, where="objective.kind", fix="name an encoder with --from")
        return base.objective if isinstance(base.objective, Embedding) else Embedding(kind="embedding")
    layers: Literal["last", "mix"] = "mix" if _is_feature_model(model) else "last"
    if head != "classification" and not targets_are_text:
        if head not in learns:
            what = f"a {model.title} has no state for each word that a head for {head} could read"
            fix = "name an encoder, a decoder or a bidirectional recurrent model"
            raise UsageError(what, where="--from", fix=fix)
        return TypeAdapter[HeadSpec](HeadSpec).validate_python({"kind": head, "layers": layers})
    if "seq2seq" in learns and (targets_are_text or "classification" not in learns):
        return Seq2Seq(kind="seq2seq", label_smoothing=0.0 if model.reads == "past" else 0.1)
    if targets_are_text or "classification" not in learns:
        needed = "an encoder-decoder, a prefix LM or a decoder" if targets_are_text else "another run"
        what = f"a {model.title} does not {'generate targets' if targets_are_text else 'learn labels'}"
        raise UsageError(what, where="--from", fix=f"name {needed} with --from, or a recipe with --recipe")
    if isinstance(base.objective, Embedding):
        # the vector that the model has learned to give
        return Classification(kind="classification", pool=base.objective.pool)
    if isinstance(base.objective, Classification):
        # the existing head, which is trained further if the labels are equal
        of_head = {"layers", "pool", "dense", "dense_norm", "bias", "dropout"}
        return Classification(kind="classification", **base.objective.model_dump(include=of_head))
    # as in the papers, and so in the published families
    dense: Literal["tanh", "none"] = "tanh" if model.title == "transformer encoder" else "none"
    bias, has_vector = model.title != "transformer decoder", not (isinstance(model, Averaging) and model.one_hot)
    dropout = Classification.model_fields["dropout"].default if has_vector else 0.0
    return Classification(kind="classification", layers=layers, dense=dense, bias=bias, dropout=dropout)


def _is_feature_model(model: Model) -> bool:
    return model.title == "recurrent bidirectional"
