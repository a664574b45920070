"""The task of a table by its recipe."""

from collections.abc import Mapping
from typing import Any

from lmtool.recipe.spec.objective import Classification, Embedding, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tables.annotations import has_entities
from lmtool.tables.schema import Columns
from lmtool.tables.tasks.classification import HEADS
from lmtool.tables.tasks.embedding import embedding_task
from lmtool.tables.tasks.spans import SpanTask
from lmtool.tables.tasks.tagging import EntityTask, TagTask
from lmtool.tables.tasks.task import Task
from lmtool.tables.tasks.text_to_text import AnswerTask
from lmtool.tokenization.prompt_format import PromptFormat


def build_task(
    recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """The task of a resolved recipe's table. labels: the classes that generated texts may name."""
    match recipe.objective:
        case Classification(task="auto"):
            raise ValueError("the labels have not been inferred from the table yet")
        case Classification() as spec:
            return HEADS[spec.task](prompt_format, spec)
        case Tagging() as spec:
            return (EntityTask if has_entities(spec.labels) else TagTask)(prompt_format, spec)
        case QuestionAnswering() as spec:
            return SpanTask(prompt_format, spec)
        case Embedding() as spec:
            return embedding_task(prompt_format, spec, len(columns.texts))
    return AnswerTask(recipe, prompt_format, name, columns, labels)


def with_decided(recipe: Recipe, figures: Mapping[str, Any], step: int) -> Recipe:
    """The recipe with what held-out rows have decided of the checkpoint of a step, where it does not say it itself.

    figures: the results of the run. A temperature and thresholds are of the probabilities of one checkpoint; others
    have none.
    """
    keys = ("null_threshold", "temperature", "thresholds") if figures.get("step") == step else ("null_threshold",)
    open_keys = (key for key in keys if getattr(recipe.objective, key, "") is None)
    return recipe.with_values({f"objective.{key}": figures.get(key) for key in open_keys})
