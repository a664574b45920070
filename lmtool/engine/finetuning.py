"""The recipes under which a trained run's weights are trained on: on another text, or on a labelled table."""

from collections.abc import Sequence

from lmtool.engine.build import read_run
from lmtool.recipe.dump import dump
from lmtool.recipe.load import Resolved, Setting, lay_over, load
from lmtool.recipe.spec import (
    AdamW,
    Checkpoint,
    Classification,
    Data,
    Evaluation,
    Linear,
    Recipe,
    Training,
)
from lmtool.run.find import find


def recipe_from_run(reference: str, n_rows: int, overrides: Sequence[str], flags: Sequence[Setting]) -> Resolved:
    """The recipe that fine-tunes a run on a labelled table: its model and tokenizer, and usual settings for the rest.

    n_rows: of the table, so that each pass over it ends with a validation.
    """
    found = find(reference)
    base, _ = read_run(found.run)
    per_pass = max(1, n_rows // 32)
    recipe = Recipe(
        description=f"fine-tuned from {found.run.name}",
        seed=base.seed,
        model=base.model,
        objective=Classification(kind="classification"),
        tokenizer=base.tokenizer,
        data=Data(),
        training=Training(steps=3 * per_pass, epochs=3, batch_size=32, precision=base.training.precision),
        optimizer=AdamW(lr=5e-4, weight_decay=0.01, beta2=0.98),
        schedule=Linear(kind="linear", warmup_steps=min(per_pass, 100)),
        evaluation=Evaluation(every=per_pass, metric="loss"),
        checkpoint=Checkpoint(every=per_pass, keep_last=1),
    )
    return lay_over(dump(recipe), f"fine-tuning of {found.run.name}", f"finetune-{found.run.name}", overrides, flags)


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
