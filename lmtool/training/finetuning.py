"""Plans of fine-tuning on tables: which model, of which columns, by which recipe; and whether data are for that."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, cast

from lmtool.checks.check import infer_subject
from lmtool.data.survey import Progress
from lmtool.data.table import open_table
from lmtool.errors import LmtoolError, UsageError
from lmtool.inference.evaluation import ignore_progress
from lmtool.inference.reference import Reference, resolve_model_names, resolve_reference
from lmtool.recipe.finetuning import FEW_ROWS, MAX_ROWS_OF_CLASS, HeadKind, TableShape
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.resolve import CHARACTER_SETTINGS, LINEAR_RECIPE, resolve
from lmtool.recipe.spec.objective import Classification, Embedding, HeadSpec, supported_objectives
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import TABLE_KEYS, Data
from lmtool.recipe.spec.training import Lbfgs, Tuning
from lmtool.recipe.spec.transformer import Transformer
from lmtool.tasks.baseline import MIN_KNOWN_WORD_SHARE, known_word_share
from lmtool.tasks.build import get_row_kind
from lmtool.tasks.language import choose_encoder
from lmtool.tasks.prepare import TaskTables, mean_rows_per_class, open_tables, read_tables, sample_texts
from lmtool.tasks.schema import RowKind, has_related_texts
from lmtool.training.folds import choose_features
from lmtool.training.job import RecipeWithData
from lmtool.training.plan import Plan, is_for_tables, plan_pretraining, refuse_adapters_alone


def plan_finetuning(
    source: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress = ignore_progress
) -> Plan:
    """Open the tables that the command line names, and resolve the recipe.

    source: the run that is fine-tuned. recipe: to train from scratch with, instead of a run. Without both, a linear
    model of a table of labels is trained, whatever runs there are.
    Raises UsageError for a recipe that is not for tables, and for a model that cannot be trained on them.
    """
    if recipe is not None and source is not None:
        raise UsageError("--from fine-tunes a run, --recipe trains from scratch", fix="give only one of them")
    if recipe is not None:
        plan = _plan_scratch(recipe, settings)
    elif source is not None:
        plan = _plan_tuning(resolve_reference(source), settings)
    else:
        plan = _plan_linear(settings, report)
    return replace(plan, resolved=resolve_model_names(plan.resolved, None if plan.base is None else plan.base.recipe))


def plan_training(
    source: str | None, recipe: str | None, settings: Sequence[Setting], report: Progress | None = None
) -> Plan:
    """What `lmtool finetune` would train, where recipe or data are for it, or else `lmtool pretrain`.

    A recipe of texts may name none. report: see `plan_pretraining`.
    Raises UsageError as `plan_finetuning` does, where neither recipe nor data are named, and for a text with settings
    of tables.
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
        subject = infer_subject(data.train, data, is_text=any(setting.key == "data.column" for setting in about_data))
        if subject == "run":
            raise UsageError("a run is planned on a text or a table", fix=f"lmtool plan TEXT --from {data.train[0]}")
        is_table = subject == "table" or bool(data.tasks)
    if is_table and sources:
        return plan_finetuning(source, recipe, settings, report or ignore_progress)
    if unread := next((setting for setting in settings if setting.key in TABLE_KEYS), None):
        what = f"{unread.flag} is for labelled tables, not for a text"
        raise UsageError(what, fix="omit it, or name the label of a table with --label-column")
    return plan_pretraining(source if sources else None, recipe, settings, report)


def _plan_scratch(name: str, settings: Sequence[Setting]) -> Plan:
    """A new model. name: of its recipe."""
    resolved = resolve(name, settings)
    recipe = resolved.recipe
    if not is_for_tables(recipe):
        what = f"recipe {resolved.name} is not for tables: its objective is {recipe.objective.kind}"
        raise UsageError(what, fix="add -s objective.kind=classification or seq2seq, or train it with lmtool pretrain")
    refuse_adapters_alone(recipe)
    tables = tuple(open_tables(recipe.data, get_row_kind(recipe.objective)))
    if name == LINEAR_RECIPE:  # of few rows none are held out
        resolved = resolve(name, settings, TableShape(tables[0].n_rows))
    return Plan(resolved, tables=tables)


def _plan_tuning(base: Reference, settings: Sequence[Setting]) -> Plan:
    """A run's model."""
    # settings of the data come first: the rest depends on them
    about_data = [setting for setting in settings if setting.key.partition(".")[0] == "data"]
    data = resolve(LINEAR_RECIPE, about_data).recipe.data
    kind, choice = named_kind(settings), ""
    if kind is None and (choice := _embeds(base, data, settings)):
        kind = "related"
    tables = tuple(open_tables(data, kind))
    columns = tables[0].columns
    n_rows = sum(task.n_rows for task in tables)
    per_class = mean_rows_per_class(tables[0], data) if len(tables) == 1 and columns.kind == "texts" else 0.0
    shape = TableShape(n_rows, bool(tables[0].name) or columns.has_targets, OF_ROWS[columns.kind], per_class=per_class)
    resolved = resolve(None, settings, shape, base.parent)
    spec, named = resolved.recipe.objective, {setting.key for setting in settings}
    if isinstance(spec, Classification) and spec.contrastive and "objective.contrastive" not in named:
        choice = f"{per_class:.3g} rows of a class: vectors are trained by contrast, then a head is fitted to them; "
        choice += "-s objective.contrastive=false trains both at once, --freeze body the head alone"
    elif per_class > MAX_ROWS_OF_CLASS and isinstance(spec, Classification) and _trains_all(resolved.recipe):
        choice = f"{per_class:,.0f} rows of a class: all weights are trained; --freeze body trains the head alone"
    return Plan(resolved, base, tables=tables, choice=choice)


def _trains_all(recipe: Recipe) -> bool:
    """Whether all weights are trained, none frozen, and not the head alone fitted."""
    return recipe.tuning == Tuning() and not isinstance(recipe.optimizer, Lbfgs)


def _embeds(base: Reference, data: Data, settings: Sequence[Setting]) -> str:
    """Why vectors of texts are trained, where no objective is named; empty where they are not.

    An encoder cannot write the second text of a row. A model that gives vectors also learns how near they should be.
    """
    if "embedding" not in supported_objectives(base.recipe.model) or len(data.train) != 1 or data.tasks:
        return ""
    of_others = {"objective." + key for key in Embedding.model_fields}
    if any(setting.key.startswith("objective.") and setting.key not in of_others for setting in settings):
        return ""
    table = open_table(data.train[0], data)
    if has_related_texts(table, data, scored=False):
        return "texts without a label: vectors of the texts of a row are trained to be near each other"
    if isinstance(base.recipe.objective, Embedding) and has_related_texts(table, data, scored=True):
        other = "-s objective.kind=classification trains a model that reads both texts at once"
        return f"texts with a number: vectors are trained to be as near as it says; {other}"
    return ""


OF_ROWS: Mapping[RowKind, HeadKind] = {
    "texts": "classification",
    "words": "tagging",
    "questions": "question-answering",
    "related": "embedding",
}
"""The objective that each kind of rows trains a head by."""


def named_kind(settings: Sequence[Setting]) -> RowKind | None:
    """What the rows of a table are, as the command line names the objective; None where it does not."""
    named = [str(setting.value) for setting in settings if setting.key == "objective.kind"]
    if not named:
        return None
    return next((kind for kind, objective in OF_ROWS.items() if objective == named[-1]), "texts")


def _last_body() -> str:
    """What the last run is, if it is a pretrained body for other tasks; else empty."""
    try:
        base = resolve_reference("last")
        recipe = base.recipe
    except LmtoolError:
        return ""
    if isinstance(recipe.objective, HeadSpec) or not isinstance(recipe.model, Transformer | Recurrent):
        return ""
    return f"{base.run.name}, a {recipe.model.title}"


FEATURES = ("words and word pairs", "words, word pairs and character n-grams")
"""Those of a linear model where words are known from other texts. N-grams of few characters tell less."""

LEAST_KNOWN = 0.05
"""Share of known words below which n-grams of characters are alone, as for names."""

MOST_NGRAM_PRODUCTS = 150_000_000
"""Products of characters with ten and the number of classes, above which n-grams would take many minutes: each
character begins some, which are made and counted, and then multiplied by a weight of each class."""

MOST_COMPARED = 4_000
"""Rows that features are compared on."""

FEATURE_SETTINGS = (
    tuple(parse_settings(["tokenizer.kind=word"])),
    tuple(
        parse_settings([*CHARACTER_SETTINGS, "model.ngrams=6", "model.buckets=1048576", "model.word_buckets=262144"])
    ),
)
"""The settings of FEATURES."""


def _plan_linear(settings: Sequence[Setting], report: Progress) -> Plan:
    """The linear model of a labelled table, for which neither a run nor a recipe is named."""
    last = _last_body()
    named = "name one: --from RUN or --from hf:ORG/NAME"
    if last:
        named = f"name one: --from last ({last}), --from RUN or --from hf:ORG/NAME"
    if part := next((setting for setting in settings if setting.key.startswith("tuning.")), None):
        raise UsageError(f"{part.flag} is for a trained model, and none is named", fix=named)
    data = resolve(LINEAR_RECIPE, [setting for setting in settings if setting.key != "objective.kind"]).recipe.data
    tables = tuple(open_tables(data, named_kind(settings)))
    if tables[0].columns.kind != "texts":
        return _plan_other_rows(tables[0].columns.kind, last, settings)
    if tables[0].name or tables[0].columns.has_targets:
        fix = f"{named}; or train one from scratch: --recipe transformer-tiny"
        raise UsageError("a table of target texts needs a model that writes", fix=fix)
    texts = sample_texts(tables[0], data.skip_bad_rows)
    known = known_word_share(texts)
    shape = TableShape(tables[0].n_rows, has_words=known >= MIN_KNOWN_WORD_SHARE)
    features: tuple[Setting, ...] = ()
    by = f"of {FEATURES[0] if shape.has_words else 'character n-grams'}"
    are_named = any(setting.key in ("tokenizer.kind", "model.ngrams") for setting in settings)
    of_words = replace(shape, has_words=True)
    if (
        known >= LEAST_KNOWN
        and not are_named
        and (found := _choose_features(settings, of_words, tables, sum(map(len, texts)) / len(texts), report))
    ):
        best, why = found
        features, shape, by = FEATURE_SETTINGS[best], of_words, f"of {FEATURES[best]} ({why})"
        settings = [*features, *settings]
    published = choose_encoder(texts) if tables[0].n_rows < FEW_ROWS else "hf:ORG/NAME"
    choice = f"a linear model {by} is trained; {_other_models(last, published, 'a published model')}"
    return Plan(resolve(None, settings, shape), tables=tables, choice=choice, features=features)


def _other_models(last: str, published: str, what: str) -> str:
    """How the command line names a model to fine-tune instead. last: as `_last_body` describes it."""
    if last:
        return f"--from last fine-tunes {last}, and --from {published} {what}"
    return f"--from {published} fine-tunes {what}, and --from RUN one trained here"


class FromScratch(NamedTuple):
    """The recipe that trains on a table where nothing is to be fine-tuned. settings: over the recipe. rows: what the
    table holds."""

    recipe: str
    settings: tuple[str, ...]
    rows: str


FROM_SCRATCH: Mapping[RowKind, FromScratch] = {
    "texts": FromScratch(LINEAR_RECIPE, (), "labelled texts"),
    "words": FromScratch("tagger", (), "tagged words"),
    "questions": FromScratch("bert-tiny", ("objective.kind=question-answering",), "questions"),
    "related": FromScratch("bert-tiny", ("objective.kind=embedding",), "related texts"),
}


def _plan_other_rows(kind: RowKind, last: str, settings: Sequence[Setting]) -> Plan:
    """The usual model of a table of other rows than labelled texts, for which neither a run nor a recipe is named."""
    chosen = FROM_SCRATCH[kind]
    plan = _plan_scratch(chosen.recipe, [*parse_settings(chosen.settings), *settings])
    recipe = " ".join((chosen.recipe, *(f"-s {setting}" for setting in chosen.settings)))
    choice = f"a table of {chosen.rows}: the recipe {recipe} is trained from scratch; "
    choice += _other_models(last, "hf:ORG/NAME", "a published encoder of its language")
    return replace(plan, choice=choice)


def open_for_training(settings: Sequence[Setting]) -> tuple[Recipe, tuple[TaskTables, ...]]:
    """The tables that the command line names, and the recipe that `lmtool finetune` trains on them without --from.

    Of the recipe of labelled texts the features are not chosen, which need not be known to read the rows. Raises as
    `plan_finetuning`.
    """
    of_texts = [setting for setting in settings if setting.key != "objective.kind"]
    tables = tuple(open_tables(resolve(LINEAR_RECIPE, of_texts).recipe.data, named_kind(settings)))
    chosen = FROM_SCRATCH[tables[0].columns.kind]
    if chosen.recipe == LINEAR_RECIPE:
        return resolve(LINEAR_RECIPE, of_texts, TableShape(tables[0].n_rows)).recipe, tables
    return resolve(chosen.recipe, [*parse_settings(chosen.settings), *settings]).recipe, tables


def _choose_features(
    settings: Sequence[Setting], shape: TableShape, tables: tuple[TaskTables, ...], length: float, report: Progress
) -> tuple[int, str] | None:
    """The index of the best features of a linear model, and why they are; None where n-grams would take too long.

    length: characters of a text, the mean.
    """
    recipes = [resolve(None, [*chosen, *settings], shape).recipe for chosen in FEATURE_SETTINGS]
    if shape.n_rows * length * 10 > MOST_NGRAM_PRODUCTS:
        return None
    if shape.n_rows < FEW_ROWS:
        return 1, "too few rows to compare others"
    if not recipes[0].data.holds_out:
        return 1, "no rows are held out to compare others"
    words = RecipeWithData(*read_tables(recipes[0], tables, None))
    n_rows, n_classes = len(words.data.tasks[0].train), len(cast(Classification, words.recipe.objective).labels or "1")
    if n_rows * length * (10 + n_classes) > MOST_NGRAM_PRODUCTS:
        return None
    sample = random.Random(0).sample(range(n_rows), min(MOST_COMPARED, n_rows))
    candidates = []
    for recipe, data in (words, RecipeWithData(*read_tables(recipes[1], tables, None))):
        (task,) = data.tasks
        some = replace(task, train=[task.train[i] for i in sample])
        candidates.append(RecipeWithData(recipe, replace(data, tasks=[some])))
    best, reached = choose_features(candidates, report)
    figures = [f"{FEATURES[i]} {one.loss or 0.0:.4f}" for i, one in enumerate(reached)]
    figures = [figures.pop(best).removeprefix(f"{FEATURES[best]} "), *figures]
    return best, f"chosen by cross-validation on {len(sample):,} rows: loss {', '.join(figures)}"
