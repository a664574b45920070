"""Plans of training on tables: the model, the columns and the recipe."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from lmtool.data.survey import Progress, no_progress
from lmtool.data.table import open_table
from lmtool.errors import LmtoolError, UsageError
from lmtool.interop.resolve import import_models_named_in_recipe, resolve_reference
from lmtool.recipe.finetuning import FEW_ROWS, MAX_ROWS_OF_CLASS, HeadKind, TableProperties
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.resolve import CHARACTER_SETTINGS, LINEAR_RECIPE, resolve
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, supported_objectives
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import TABLE_KEYS, Data
from lmtool.recipe.spec.training import Lbfgs, Tuning
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.reference import Reference
from lmtool.tasks.baseline import MIN_KNOWN_WORD_SHARE, compute_split_half_word_coverage
from lmtool.tasks.build import get_row_kind
from lmtool.tasks.language import choose_encoder
from lmtool.tasks.prepare import (
    OpenedTaskTables,
    mean_rows_per_class_or_zero,
    open_training_tables,
    read_and_encode_tables,
    sample_texts,
)
from lmtool.tasks.schema import RowKind, has_related_texts
from lmtool.tasks.subject import infer_subject_kind
from lmtool.training.folds import compute_cross_validated_head_losses
from lmtool.training.plan import TrainingPlan, check_has_no_adapters, is_for_tables, plan_pretraining


def plan_finetuning(
    base_run: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress = no_progress
) -> TrainingPlan:
    """Opens the tables that the command line names, and resolves the recipe.

    base_run: the run to fine-tune. recipe: to train from scratch instead. Without both, a linear model of a table of
    labels is trained, whatever runs there are.
    Raises UsageError for a recipe that is not for tables, and for a model that cannot be trained on them.
    """
    if recipe is not None and base_run is not None:
        raise UsageError("--from fine-tunes a run, --recipe trains from scratch", fix="give only one of them")
    if recipe is not None:
        plan = _plan_from_scratch(recipe, settings)
    elif base_run is not None:
        plan = _plan_finetuning_of_run(resolve_reference(base_run), settings)
    else:
        plan = _plan_default_recipe_for_table(settings, report)
    return replace(
        plan, resolved=import_models_named_in_recipe(plan.resolved, None if plan.base is None else plan.base.recipe)
    )


def plan_training_for_data(
    base_run: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> TrainingPlan:
    """Plans what `lmtool finetune` would train if recipe or data are for it, or else `lmtool pretrain`.

    A recipe of texts may name none. report: see `plan_pretraining`.
    Raises UsageError as `plan_finetuning` does, if neither recipe nor data are named, and for a text with settings of
    tables.
    """
    if recipe is not None:
        scratch = resolve(recipe, settings).recipe
        sources = [*scratch.data.sources, *scratch.data.tasks]
        is_table = is_for_tables(scratch)
    else:
        about_data = [setting for setting in settings if setting.key.startswith("data.")]
        data = resolve(LINEAR_RECIPE, about_data).recipe.data
        sources = [*data.sources, *data.tasks]
        if not sources:
            raise UsageError("nothing to plan", fix="name a text, a table or a recipe: lmtool plan book.txt")
        subject = infer_subject_kind(
            data.train, data, is_text=any(setting.key == "data.column" for setting in about_data)
        )
        if subject == "run":
            raise UsageError("a run is planned on a text or a table", fix=f"lmtool plan TEXT --from {data.train[0]}")
        is_table = subject == "table" or bool(data.tasks)
    if is_table and sources:
        return plan_finetuning(base_run, recipe, settings, report or no_progress)
    if unread := next((setting for setting in settings if setting.key in TABLE_KEYS), None):
        what = f"{unread.flag} is for labelled tables, not for a text"
        raise UsageError(what, fix="omit it, or name the label of a table with --label-column")
    return plan_pretraining(base_run if sources else None, recipe, settings, report)


def _plan_from_scratch(recipe_name: str, settings: Sequence[Setting]) -> TrainingPlan:
    """Plans training from scratch with a recipe of this name."""
    resolved = resolve(recipe_name, settings)
    recipe = resolved.recipe
    if not is_for_tables(recipe):
        what = f"recipe {resolved.name} is not for tables: its objective is {recipe.objective.kind}"
        raise UsageError(what, fix="add -s objective.kind=classification or seq2seq, or train it with lmtool pretrain")
    check_has_no_adapters(recipe)
    tables = tuple(open_training_tables(recipe.data, get_row_kind(recipe.objective)))
    if recipe_name == LINEAR_RECIPE:  # of few rows none are held out
        resolved = resolve(recipe_name, settings, TableProperties(tables[0].n_labelled_training_rows))
    return TrainingPlan(resolved, tables=tables)


def _plan_finetuning_of_run(base: Reference, settings: Sequence[Setting]) -> TrainingPlan:
    """Plans fine-tuning of a run."""
    # settings of the data come first, since the others depend on them
    about_data = [setting for setting in settings if setting.key.partition(".")[0] == "data"]
    data = resolve(LINEAR_RECIPE, about_data).recipe.data
    kind, choice = row_kind_from_objective_setting(settings), ""
    if kind is None and (choice := _explain_embedding_objective_or_empty(base, data, settings)):
        kind = "related"
    tables = tuple(open_training_tables(data, kind))
    columns = tables[0].columns
    n_rows = sum(task.n_labelled_training_rows for task in tables)
    per_class = mean_rows_per_class_or_zero(tables[0], data) if len(tables) == 1 and columns.kind == "texts" else 0.0
    shape = TableProperties(
        n_rows, bool(tables[0].name) or columns.has_targets, OBJECTIVE_OF_ROWS[columns.kind], per_class=per_class
    )
    resolved = resolve(None, settings, shape, base.parent)
    trains_all_weights = resolved.recipe.tuning == Tuning() and not isinstance(resolved.recipe.optimizer, Lbfgs)
    spec, named = resolved.recipe.objective, {setting.key for setting in settings}
    if isinstance(spec, Classification) and spec.contrastive and "objective.contrastive" not in named:
        choice = f"{per_class:.3g} rows of a class: vectors are trained by contrast, then a head is fitted to them; "
        choice += "-s objective.contrastive=false trains both at once, --freeze body the head alone"
    elif per_class > MAX_ROWS_OF_CLASS and isinstance(spec, Classification) and trains_all_weights:
        choice = f"{per_class:,.0f} rows of a class: all weights are trained; --freeze body trains the head alone"
    return TrainingPlan(resolved, base, tables=tables, choice=choice)


def _explain_embedding_objective_or_empty(base: Reference, data: Data, settings: Sequence[Setting]) -> str:
    """Explains why vectors of texts are trained although no objective is named; empty if they are not.

    They are for texts without labels, since an encoder cannot write the second one of a row, and, by a model that is
    for vectors, for texts with a number, which says how near their vectors should be.
    """
    if "embedding" not in supported_objectives(base.recipe.model) or len(data.train) != 1 or data.tasks:
        return ""
    embedding_keys = {"objective." + key for key in Embedding.model_fields}
    if any(setting.key.startswith("objective.") and setting.key not in embedding_keys for setting in settings):
        return ""
    table = open_table(data.train[0], data)
    if has_related_texts(table, data, allow_scores=False):
        return "texts without a label: vectors of the texts of a row are trained to be near each other"
    if isinstance(base.recipe.objective, Embedding) and has_related_texts(table, data, allow_scores=True):
        other = "-s objective.kind=classification trains a model that reads both texts at once"
        return f"texts with a number: vectors are trained to be as near as it says; {other}"
    return ""


OBJECTIVE_OF_ROWS: Mapping[RowKind, HeadKind] = {
    "texts": "classification",
    "words": "tagging",
    "questions": "question-answering",
    "related": "embedding",
}
"""The objective that trains a head on each kind of rows."""


def row_kind_from_objective_setting(settings: Sequence[Setting]) -> RowKind | None:
    """Returns the kind of rows by the objective that the command line names; None if it names none."""
    objectives = [str(setting.value) for setting in settings if setting.key == "objective.kind"]
    if not objectives:
        return None
    return next((kind for kind, objective in OBJECTIVE_OF_ROWS.items() if objective == objectives[-1]), "texts")


def _describe_last_run_if_pretrained() -> str:
    """Describes the last run if it is a pretrained model without a head; else empty."""
    try:
        base = resolve_reference("last")
        recipe = base.recipe
    except LmtoolError:
        return ""
    if isinstance(recipe.objective, HeadSpec) or not isinstance(recipe.model, Transformer | Recurrent):
        return ""
    return f"{base.run.name}, a {recipe.model.title}"


FEATURE_NAMES = ("words and word pairs", "words, word pairs and character n-grams")
"""The features that a linear model of known words may read. Character n-grams alone are never better."""

MIN_KNOWN_FRACTION = 0.05
"""Fraction of known words below which character n-grams are the only features, as for names."""

MAX_NGRAM_PRODUCTS = 150_000_000
"""Maximum characters x (10 + classes) for character n-grams, which would take many minutes for more: each character
begins some n-grams, which are made and counted, and then multiplied by a weight of each class."""

MAX_COMPARED_ROWS = 4_000
"""Maximum rows on which features are compared."""

FEATURE_SETTINGS = (
    tuple(parse_settings(["tokenizer.kind=word"])),
    tuple(
        parse_settings([*CHARACTER_SETTINGS, "model.ngrams=6", "model.buckets=1048576", "model.word_buckets=262144"])
    ),
)
"""The settings of FEATURE_NAMES."""


def _plan_default_recipe_for_table(settings: Sequence[Setting], report: Progress) -> TrainingPlan:
    """Plans the default recipe of a table, as neither a run nor a recipe is named: a linear model of labelled texts,
    else that of FROM_SCRATCH.
    """
    last = _describe_last_run_if_pretrained()
    fix = "name one: --from RUN or --from hf:ORG/NAME"
    if last:
        fix = f"name one: --from last ({last}), --from RUN or --from hf:ORG/NAME"
    if part := next((setting for setting in settings if setting.key.startswith("tuning.")), None):
        raise UsageError(f"{part.flag} is for a trained model, and none is named", fix=fix)
    data, tables = _open_tables_for_linear_model(settings)
    if tables[0].columns.kind != "texts":
        chosen = FROM_SCRATCH[tables[0].columns.kind]
        plan = _plan_from_scratch(chosen.recipe, [*parse_settings(chosen.settings), *settings])
        recipe = " ".join((chosen.recipe, *(f"-s {setting}" for setting in chosen.settings)))
        choice = f"a table of {chosen.rows}: the recipe {recipe} is trained from scratch; "
        choice += _suggest_fine_tuning_instead(last, "hf:ORG/NAME", "a published encoder of its language")
        return replace(plan, choice=choice)
    if tables[0].name or tables[0].columns.has_targets:
        fix = f"{fix}; or train one from scratch: --recipe transformer-tiny"
        raise UsageError("a table of target texts needs a model that writes", fix=fix)
    texts = sample_texts(tables[0], data.skip_bad_rows)
    known_fraction = compute_split_half_word_coverage(texts)
    shape = TableProperties(tables[0].n_labelled_training_rows, has_words=known_fraction >= MIN_KNOWN_WORD_SHARE)
    features: tuple[Setting, ...] = ()
    description = f"of {FEATURE_NAMES[0] if shape.has_words else 'character n-grams'}"
    are_named = any(setting.key in ("tokenizer.kind", "model.ngrams") for setting in settings)
    word_shape = replace(shape, has_words=True)
    if (
        known_fraction >= MIN_KNOWN_FRACTION
        and not are_named
        and (
            found := _choose_text_feature_set_index(
                settings, word_shape, tables, sum(map(len, texts)) / len(texts), report
            )
        )
    ):
        best, why = found
        features, shape, description = FEATURE_SETTINGS[best], word_shape, f"of {FEATURE_NAMES[best]} ({why})"
        settings = [*features, *settings]
    published = choose_encoder(texts) if tables[0].n_labelled_training_rows < FEW_ROWS else "hf:ORG/NAME"
    choice = (
        f"a linear model {description} is trained; {_suggest_fine_tuning_instead(last, published, 'a published model')}"
    )
    return TrainingPlan(resolve(None, settings, shape), tables=tables, choice=choice, chosen_settings=features)


def _suggest_fine_tuning_instead(last_run: str, published_name: str, published_kind: str) -> str:
    """Says how to fine-tune a model instead: the last run, described by
    `_describe_last_run_if_pretrained`, or a published one, of this name and kind."""
    if last_run:
        return f"--from last fine-tunes {last_run}, and --from {published_name} {published_kind}"
    return f"--from {published_name} fine-tunes {published_kind}, and --from RUN one trained here"


class DefaultTableRecipe(NamedTuple):
    """The recipe for a table without a model to fine-tune. settings: over the recipe. rows: what the table holds."""

    recipe: str
    settings: tuple[str, ...]
    rows: str


FROM_SCRATCH: Mapping[RowKind, DefaultTableRecipe] = {
    "texts": DefaultTableRecipe(LINEAR_RECIPE, (), "labelled texts"),
    "words": DefaultTableRecipe("tagger", (), "tagged words"),
    "questions": DefaultTableRecipe("bert-tiny", ("objective.kind=question-answering",), "questions"),
    "related": DefaultTableRecipe("bert-tiny", ("objective.kind=embedding",), "related texts"),
}


def _open_tables_for_linear_model(settings: Sequence[Setting]) -> tuple[Data, tuple[OpenedTaskTables, ...]]:
    """Opens the tables that the command line names. Returns them with the `data` of the recipe of linear models."""
    data = resolve(LINEAR_RECIPE, _without_objective_kind(settings)).recipe.data
    return data, tuple(open_training_tables(data, row_kind_from_objective_setting(settings)))


def _without_objective_kind(settings: Sequence[Setting]) -> list[Setting]:
    return [setting for setting in settings if setting.key != "objective.kind"]


def open_finetuning_tables(settings: Sequence[Setting]) -> tuple[Recipe, tuple[OpenedTaskTables, ...]]:
    """Opens the table of each task that the command line names; returns them after the recipe of `lmtool finetune`
    without --from.

    The features of a linear model are not chosen, since they are not needed to read the rows. Raises as
    `plan_finetuning`.
    """
    _, tables = _open_tables_for_linear_model(settings)
    chosen = FROM_SCRATCH[tables[0].columns.kind]
    if chosen.recipe == LINEAR_RECIPE:
        shape = TableProperties(tables[0].n_labelled_training_rows)
        return resolve(LINEAR_RECIPE, _without_objective_kind(settings), shape).recipe, tables
    return resolve(chosen.recipe, [*parse_settings(chosen.settings), *settings]).recipe, tables


def _choose_text_feature_set_index(
    settings: Sequence[Setting],
    shape: TableProperties,
    tables: tuple[OpenedTaskTables, ...],
    mean_characters: float,
    report: Progress,
) -> tuple[int, str] | None:
    """Chooses the features of a linear model by cross-validation.

    Returns an index of FEATURE_NAMES, and the reason for it; None if n-grams take too long. mean_characters: characters
    of a text.
    """
    recipes = [resolve(None, [*chosen, *settings], shape).recipe for chosen in FEATURE_SETTINGS]
    if shape.n_rows * mean_characters * 10 > MAX_NGRAM_PRODUCTS:
        return None
    if shape.n_rows < FEW_ROWS:
        return 1, "too few rows to compare others"
    if not recipes[0].data.holds_out:
        return 1, "no rows are held out to compare others"
    words = read_and_encode_tables(recipes[0], tables, None)
    word_recipe, word_data = words
    n_rows = len(word_data.tasks[0].train)
    n_classes = len(cast(Classification, word_recipe.objective).labels or "1")
    if n_rows * mean_characters * (10 + n_classes) > MAX_NGRAM_PRODUCTS:
        return None
    sample = random.Random(0).sample(range(n_rows), min(MAX_COMPARED_ROWS, n_rows))
    candidates = []
    for recipe, data in (words, read_and_encode_tables(recipes[1], tables, None)):
        (task,) = data.tasks
        sampled = replace(task, train=[task.train[i] for i in sample])
        candidates.append((recipe, replace(data, tasks=[sampled])))
    losses = compute_cross_validated_head_losses(candidates, report)
    best = losses.index(min(losses))
    figures = [f"{FEATURE_NAMES[i]} {loss:.4f}" for i, loss in enumerate(losses)]
    figures = [figures.pop(best).removeprefix(f"{FEATURE_NAMES[best]} "), *figures]
    return best, f"chosen by cross-validation on {len(sample):,} rows: loss {', '.join(figures)}"
