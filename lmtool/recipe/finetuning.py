"""Recipes for fine-tuning on tables, and for continued training on another text."""

from lmtool.errors import UsageError
from lmtool.recipe.spec import (
    AdamW,
    Averaging,
    BpeTokenizer,
    Checkpointing,
    Classification,
    Data,
    Evaluation,
    Linear,
    Model,
    Recipe,
    Recurrent,
    Seq2Seq,
    Training,
    Transformer,
    Tuning,
    objectives_of,
)

RATE = 5e-4
"""Peak learning rate where all weights are trained, for models up to WIDTH; see `_rate`."""

PART_RATE = 5e-3
"""The same of adapters, or of a head on a frozen body."""

WIDTH = 160
"""Width of the model from which wider ones take smaller rates."""

MICRO_TOKENS = 8192
"""Positions per micro-batch: more are no faster on any device."""

ACTIVATION_BYTES = 10**9
"""Of a micro-batch, as `activation_bytes` counts them; in float32 they are twice as many."""

BATCH_ROWS = 32


def recipe_for_tables(base: Recipe, name: str, n_rows: int, writes: bool) -> Recipe:
    """The recipe that fine-tunes a run on tables: its model and tokenizer, and usual settings for the rest.

    base: the run's own recipe. name: the run's. n_rows: of the tables, so that each epoch ends with a validation.
        writes: the targets are text, not labels; always so for a model with a source. ELMo is frozen, and a task learns
        its scalar mix of layers (Peters et al. 2018). Raises UsageError for a model that cannot generate targets.
    """
    model = base.model
    per_pass = max(1, n_rows // BATCH_ROWS)
    return Recipe(
        description=f"fine-tuned from {name}",
        seed=base.seed,
        model=model,
        objective=_objective(model, writes),
        tokenizer=base.tokenizer,
        data=Data(),
        training=Training(
            steps=3 * per_pass,
            epochs=3,
            batch_size=BATCH_ROWS,
            micro_tokens=_micro_tokens(model),
            precision=base.training.precision,
        ),
        tuning=Tuning(freeze="body" if _gives_features(model) else "none"),
        optimizer=AdamW(lr=_rate(model, RATE), weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear", warmup_steps=min(per_pass, 100)),
        evaluation=Evaluation(every=per_pass, metric="loss"),
        checkpoint=Checkpointing(every=per_pass, keep_last=1),
    )


def with_rate(recipe: Recipe, tuning: Tuning) -> Recipe:
    """The recipe with the learning rate that suits what is trained under `tuning`."""
    is_part = tuning.lora is not None or tuning.freeze != "none"
    rate = _rate(recipe.model, PART_RATE if is_part else RATE)
    return recipe.model_copy(update={"optimizer": recipe.optimizer.model_copy(update={"lr": rate})})


def _rate(model: Model, rate: float) -> float:
    """A rate for narrow models, times (WIDTH / d_model)^1.5 for wider ones.

    That gives 5e-5 and 3e-5 for the widths of BERT-base and -large, for which Devlin et al. 2019 advise 2e-5 to 5e-5.
    """
    scaled = rate * min(1.0, (WIDTH / model.d_model) ** 1.5)
    return float(f"{scaled:.2g}")


def _micro_tokens(model: Model) -> int:
    """Positions per micro-batch, fewer for models whose activations take much memory."""
    return max(1, min(MICRO_TOKENS, ACTIVATION_BYTES // max(1, model.activation_bytes)))


def recipe_for_text(base: Recipe, other: Recipe) -> Recipe:
    """The recipe for continued training of a run on another text: its model and tokenizer, all else from `other`."""
    kept = {"column", "documents", "split", "valid_fraction", "isolate_documents"}
    data = Data(**other.data.model_dump(include=kept))
    tokenizer = base.tokenizer
    if isinstance(tokenizer, BpeTokenizer):
        tokenizer = tokenizer.model_copy(update={"dropout": 0.0})  # for pairs only
    return other.model_copy(update={"model": base.model, "tokenizer": tokenizer, "data": data})


def _objective(model: Model, writes: bool) -> Classification | Seq2Seq:
    learns = objectives_of(model)
    if "seq2seq" in learns and (writes or "classification" not in learns):
        return Seq2Seq(kind="seq2seq", label_smoothing=0.0 if model.reads == "past" else 0.1)
    if writes or "classification" not in learns:
        needed = "an encoder-decoder, a prefix LM or a decoder" if writes else "another run"
        raise UsageError(
            f"a {model.title} does not {'generate targets' if writes else 'learn labels'}",
            where="--from",
            fix=f"name {needed} with --from, or a recipe with --recipe",
        )
    no_vector = isinstance(model, Averaging) and model.one_hot
    return Classification(
        kind="classification",
        layers="mix" if _gives_features(model) else "last",
        # as in the papers, and so in the published families
        dense="tanh" if isinstance(model, Transformer) and model.shape == "encoder" else "none",
        bias=not (isinstance(model, Transformer) and model.shape == "decoder"),
        dropout=0.0 if no_vector else Classification.model_fields["dropout"].default,
    )


def _gives_features(model: Model) -> bool:
    return isinstance(model, Recurrent) and model.shape == "bidirectional"
