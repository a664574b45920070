"""Builds the task of a table from a recipe. Each task is a file of this room, and a line in `get_task_class`."""

from typing import Any

from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.cells import has_bio_tags
from lmtool.tasks.classification import SingleLabelTask
from lmtool.tasks.embedding import NeighborTask, RankingTask, SimilarityTask, TripletTask
from lmtool.tasks.multi_label import MultiLabelTask
from lmtool.tasks.questions import SpanTask
from lmtool.tasks.reading import LabelledTable
from lmtool.tasks.regression import RegressionTask
from lmtool.tasks.schema import Columns, RowKind
from lmtool.tasks.tagging import EntityTask, TaggingTask
from lmtool.tasks.task import Task
from lmtool.tasks.text_to_text import TextToTextTask
from lmtool.tokenization.prompt_format import PromptFormat


def get_task_class(objective: AnyObjective, n_texts: int = 0) -> type[Task]:
    """Returns the task of an objective, on rows of `n_texts` texts."""
    match objective:
        case Classification(task="multi"):
            return MultiLabelTask
        case Classification(task="number"):
            return RegressionTask
        case Classification():
            return SingleLabelTask
        case Tagging(labels=tags):
            return EntityTask if has_bio_tags(tags) else TaggingTask
        case QuestionAnswering():
            return SpanTask
        case Embedding(loss="cosent"):
            return SimilarityTask
        case Embedding(loss="labels"):
            return NeighborTask
        case Embedding(loss=loss):
            return TripletTask if loss == "triplet" or n_texts > 2 else RankingTask
    return TextToTextTask


def get_row_kind(objective: AnyObjective) -> RowKind:
    """Returns what the rows hold that train a model with this objective."""
    return get_task_class(objective).row_kind


def get_default_metric(objective: AnyObjective) -> str:
    """Returns the metric that chooses the best checkpoint unless the recipe names one."""
    return get_task_class(objective).default_metric


def resolve_objective(objective: AnyObjective, train: LabelledTable) -> AnyObjective:
    """Returns the objective with what follows from the training rows. Raises UsageError if it does not fit them."""
    if isinstance(objective, Classification) and train.labels is not None:
        objective = objective.with_unvalidated_values({"task": train.labels.kind})
    resolved: AnyObjective = get_task_class(objective).resolve_spec_from_rows(objective, train)
    return resolved


def build_task(
    recipe: Recipe, prompt_format: PromptFormat, task_name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """Builds the task of a resolved recipe.

    task_name: one of several. labels: classes that generated texts may name.
    """
    spec = recipe.objective
    if isinstance(spec, Classification) and spec.task == "auto":
        raise ValueError("the labels have not been inferred from the table yet")
    task_class: Any = get_task_class(spec, len(columns.texts))
    task: Task
    if issubclass(task_class, TextToTextTask):
        task = task_class(recipe, prompt_format, task_name, columns, labels)
    else:
        task = task_class(prompt_format, spec)
    return task
