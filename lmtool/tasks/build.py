"""The task of a table by its recipe. A task is a file here, and a line in `task_class`."""

from collections.abc import Mapping
from typing import Any

from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tasks.cells import has_entities
from lmtool.tasks.classification import ClassTask
from lmtool.tasks.embedding import NeighborTask, RankingTask, ScoredTask, TripletTask
from lmtool.tasks.multi_label import LabelsTask
from lmtool.tasks.questions import SpanTask
from lmtool.tasks.reading import LabelledTexts
from lmtool.tasks.regression import NumberTask
from lmtool.tasks.schema import Columns, RowKind
from lmtool.tasks.tagging import EntityTask, TagTask
from lmtool.tasks.task import Task
from lmtool.tasks.text_to_text import AnswerTask
from lmtool.tokenization.prompt_format import PromptFormat


def task_class(objective: AnyObjective, n_texts: int = 0) -> type[Task]:
    """The task of an objective, on rows of so many texts."""
    match objective:
        case Classification(task="multi"):
            return LabelsTask
        case Classification(task="number"):
            return NumberTask
        case Classification():
            return ClassTask
        case Tagging(labels=tags):
            return EntityTask if has_entities(tags) else TagTask
        case QuestionAnswering():
            return SpanTask
        case Embedding(loss="cosent"):
            return ScoredTask
        case Embedding(loss="labels"):
            return NeighborTask
        case Embedding(loss=loss):
            return TripletTask if loss == "triplet" or n_texts > 2 else RankingTask
    return AnswerTask


def kind_of_rows(objective: AnyObjective) -> RowKind:
    """What the rows are that train a model with this objective."""
    return task_class(objective).rows


def usual_metric(objective: AnyObjective) -> str:
    """The metric that chooses the best checkpoint where the recipe leaves it to the table."""
    return task_class(objective).usual_metric


def resolve_objective(objective: AnyObjective, train: LabelledTexts) -> AnyObjective:
    """The objective with what follows from the training rows. Raises UsageError where it is not for them."""
    if isinstance(objective, Classification) and train.labels is not None:
        objective = objective.with_values({"task": train.labels.kind})
    resolved: AnyObjective = task_class(objective).resolve(objective, train)
    return resolved


def build_task(
    recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """The task of a resolved recipe's table. labels: the classes that generated texts may name."""
    spec = recipe.objective
    if isinstance(spec, Classification) and spec.task == "auto":
        raise ValueError("the labels have not been inferred from the table yet")
    return task_class(spec, len(columns.texts)).build(recipe, prompt_format, name, columns, labels)


def with_decided(recipe: Recipe, figures: Mapping[str, Any], step: int) -> Recipe:
    """The recipe with what held-out rows have decided of the checkpoint of a step, where it does not say it itself.

    figures: the results of the run. A temperature and thresholds are of the probabilities of one checkpoint; others
    have none.
    """
    keys = ("null_threshold", "temperature", "thresholds") if figures.get("step") == step else ("null_threshold",)
    open_keys = (key for key in keys if getattr(recipe.objective, key, "") is None)
    return recipe.with_values({f"objective.{key}": figures.get(key) for key in open_keys})
