"""The recipes under which a trained run's weights are trained on: on another text, or on a labelled table."""

from collections.abc import Sequence

from lmtool.errors import UsageError
from lmtool.inference.load import read_run
from lmtool.recipe.dump import dump
from lmtool.recipe.load import Resolved, Setting, lay_over, load
from lmtool.recipe.spec import (
    AdamW,
    Averaging,
    Checkpoint,
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
from lmtool.run.find import find
from lmtool.tables.columns import choose_columns
from lmtool.tables.pairs import tasks_of
from lmtool.text.prepare import default_cache
from lmtool.text.table import open_table

RATE = 5e-4
"""Peak learning rate of a run whose weights are all trained on."""

PART_RATE = 5e-3
"""Peak learning rate of adapters or a head on weights that stay."""

MICRO_TOKENS = 8192
"""Positions of rows computed at once: memory for this many is little, and more of them are no faster on any device."""


def look_at(data: Data) -> tuple[int, bool]:
    """How many rows the tables have that `data` names, and whether what is learnt from them is to write text."""
    tables = [
        open_table(task.train, cache=default_cache(), encoding=data.encoding, delimiter=data.delimiter)
        for task in tasks_of(data)
    ]
    writes = bool(data.tasks or data.source_column or data.target_column)
    if not writes and not (data.text_columns or data.label_column):
        writes = choose_columns(tables[0]).target is not None
    return sum(table.n_rows for table in tables), writes


def recipe_from_run(
    reference: str, n_rows: int, writes: bool, overrides: Sequence[str], flags: Sequence[Setting]
) -> Resolved:
    """The recipe that fine-tunes a run on tables: its model and tokenizer, and usual settings for the rest.

    n_rows: of the tables, so that each pass over them ends with a validation. writes: text is the answer, not a label;
    so it is always for a model that reads a source. A Transformer decoder then becomes a prefix LM, which has the same
    weights. ELMo stays as it is, and a task learns how to mix its layers (Peters et al. 2018). Raises UsageError for a
    model that cannot write answers.
    """
    found = find(reference)
    base, _ = read_run(found.run)
    model = base.model
    gives_features = isinstance(model, Recurrent) and model.shape == "bidirectional"
    counts_words = isinstance(model, Averaging) and model.one_hot
    objective: Classification | Seq2Seq = Classification(
        kind="classification",
        layers="mix" if gives_features else "last",
        dropout=0.0 if counts_words else Classification.model_fields["dropout"].default,
    )
    if writes and isinstance(model, Transformer) and model.shape == "decoder":
        model = model.model_copy(update={"shape": "prefix"})
    if "seq2seq" in objectives_of(model):
        objective = Seq2Seq(kind="seq2seq", label_smoothing=0.1)
    elif writes or "classification" not in objectives_of(model):
        shape = f" {model.shape}" if isinstance(model, Transformer | Recurrent) else ""
        raise UsageError(
            f"a {model.kind}{shape} does not {'write answers' if writes else 'learn labels'}",
            where=str(found.run.path),
            fix=f"name {'an encoder-decoder, a prefix LM or a Transformer decoder' if writes else 'another run'} with "
            "--from, or a recipe with --recipe",
        )
    per_pass = max(1, n_rows // 32)
    tuning = Tuning(freeze="body" if gives_features else "none")

    def resolved(lr: float) -> Resolved:
        recipe = _recipe(found.run.name, base, model, objective, tuning, per_pass, lr)
        return lay_over(
            dump(recipe), f"fine-tuning of {found.run.name}", f"finetune-{found.run.name}", overrides, flags
        )

    whole = resolved(RATE)
    wanted = whole.recipe.tuning
    return whole if wanted.lora is None and wanted.freeze == "none" else resolved(PART_RATE)


def _recipe(
    name: str,
    base: Recipe,
    model: Model,
    objective: Classification | Seq2Seq,
    tuning: Tuning,
    per_pass: int,
    lr: float,
) -> Recipe:
    """Usual settings to fine-tune the run `name` with, whose recipe is `base`. per_pass: steps."""
    return Recipe(
        description=f"fine-tuned from {name}",
        seed=base.seed,
        model=model,
        objective=objective,
        tokenizer=base.tokenizer,
        data=Data(),
        training=Training(
            steps=3 * per_pass,
            epochs=3,
            batch_size=32,
            micro_tokens=MICRO_TOKENS,
            precision=base.training.precision,
        ),
        tuning=tuning,
        optimizer=AdamW(lr=lr, weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear", warmup_steps=min(per_pass, 100)),
        evaluation=Evaluation(every=per_pass, metric="loss"),
        checkpoint=Checkpoint(every=per_pass, keep_last=1),
    )


def recipe_continued(reference: str, name: str | None, overrides: Sequence[str], flags: Sequence[Setting]) -> Resolved:
    """The recipe that trains a run's weights on with its own model and tokenizer, on another text.

    name: the recipe that all else comes from; that of the run when None.
    """
    found = find(reference)
    base, _ = read_run(found.run)
    other = base if name is None else load(name).recipe
    data = Data(column=other.data.column, documents=other.data.documents, split=other.data.split)
    recipe = other.model_copy(update={"model": base.model, "tokenizer": base.tokenizer, "data": data})
    return lay_over(dump(recipe), f"recipe of {found.run.name}", f"from-{found.run.name}", overrides, flags)
