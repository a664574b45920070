"""The task of a table by its recipe."""

from lmtool.recipe.spec.objective import Classification, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.tables.columns import Columns
from lmtool.tables.tasks.classification import build_head_task
from lmtool.tables.tasks.spans import SpanTask
from lmtool.tables.tasks.tagging import build_tag_task
from lmtool.tables.tasks.task import Task
from lmtool.tables.tasks.text_to_text import AnswerTask
from lmtool.tokenization.prompt_format import PromptFormat


def build_task(
    recipe: Recipe, prompt_format: PromptFormat, name: str, columns: Columns, labels: tuple[str, ...]
) -> Task:
    """The task of a resolved recipe's table. labels: the classes that generated texts may name."""
    spec = recipe.objective
    if isinstance(spec, Tagging):
        return build_tag_task(prompt_format, spec)
    if isinstance(spec, QuestionAnswering):
        return SpanTask(prompt_format, spec)
    if not isinstance(spec, Classification):
        return AnswerTask(recipe, prompt_format, name, columns, labels)
    return build_head_task(prompt_format, spec)
