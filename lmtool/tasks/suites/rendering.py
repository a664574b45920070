"""Rows of a table as contexts and continuations: templates, right answers, and examples before them."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple

from lmtool.data.files import quote, quote_all
from lmtool.data.table import Row, Table
from lmtool.errors import DataError, UsageError
from lmtool.inference.scoring import Continued
from lmtool.printable import counted
from lmtool.tasks.suites.spec import AnyTask, ChoiceTask, MatchTask, PromptedTask, SchemaTask
from lmtool.tokenization.template import SandboxedTemplate

POOL = 50_000
"""Rows of a table among which examples are drawn, the first ones: they are in memory."""


class TaskItem(NamedTuple):
    """A row. pairs: what it compares, or all that is right. right: the number of the right one. bare: the same with the
    prompt without the question, for calibration."""

    pairs: list[Continued]
    right: int = 0
    bare: Sequence[Continued] = ()

    def after(self, before: str) -> "TaskItem":
        """The item after examples."""
        return self._replace(pairs=[(before + context, continuation) for context, continuation in self.pairs])


@dataclass(frozen=True)
class Rendering:
    """How the rows of a table become items. name: of the task. table: that is measured. pool: of its examples."""

    name: str
    task: AnyTask
    table: Table
    pool: Table | None = None

    @cached_property
    def templates(self) -> dict[str, list[SandboxedTemplate]]:
        """The templates of each key. Raises UsageError for one that cannot be read, or names what is no column."""
        keys = (
            "prompt",
            "choices",
            "contexts",
            "continuation",
            "answer",
            "answers",
            "calibrate",
            "text",
            "description",
        )
        return {key: self._compiled(key, value) for key in keys if (value := getattr(self.task, key, None)) is not None}

    def _compiled(self, key: str, value: str | Sequence[str]) -> list[SandboxedTemplate]:
        where = f"{self.name}.{key}"
        if _is_expression(value):
            value = f"{{{{ ({value[0]}) | tojson }}}}"
        try:
            templates = [
                SandboxedTemplate(text, trims_lines=False) for text in ([value] if isinstance(value, str) else value)
            ]
        except Exception as error:
            raise UsageError(f"not a template: {quote(str(error), 120)}", where=where, fix="correct it") from error
        for table in filter(None, (self.table, self.pool)):
            unknown = sorted({name for one in templates for name in one.variables} - {*table.names, "row"})
            if unknown:
                what = f"the template names {quote(unknown[0], 40)}, which is not a column"
                raise UsageError(what, where=where, fix=f"columns: {quote_all(table.names)}")
        return templates

    def item(self, table: Table, row: Row) -> TaskItem:
        """A row without examples. Raises DataError, which names the row, where a template or the answer fails."""
        values = dict(zip(table.names, row.values, strict=True))
        values["row"] = dict(values)

        def texts(key: str) -> list[str]:
            return self._texts(key, values, table.file.where(row.number, row.line, None))

        match self.task:
            case ChoiceTask():
                choices, (prompt,) = texts("choices"), texts("prompt")
                right = self._right(choices, texts("answer")[0], table, row)
                bare = [(context, one) for context in texts("calibrate") for one in choices]
                return TaskItem([(prompt, one) for one in choices], right, bare)
            case SchemaTask():
                contexts, (continuation,) = texts("contexts"), texts("continuation")
                right = self._right(contexts, texts("answer")[0], table, row)
                return TaskItem([(context, continuation) for context in contexts], right)
            case MatchTask():
                (prompt,) = texts("prompt")
                return TaskItem([(prompt, answer) for answer in texts("answers")])
            case PromptedTask():
                return TaskItem([(texts("prompt")[0], texts("continuation")[0])])
        return TaskItem([("", texts("text")[0])])

    def _texts(self, key: str, values: Mapping[str, Any], where: str) -> list[str]:
        """The texts of a key for a row; none where the task lacks it."""
        templates = self.templates.get(key, ())
        try:
            texts = [one.render(**values) for one in templates]
            if not _is_expression(getattr(self.task, key, None)):
                return texts
            listed = json.loads(texts[0])
            listed = listed if isinstance(listed, list) else [listed]
            return [one if isinstance(one, str) else json.dumps(one) for one in listed]
        except Exception as error:
            what = f"the template {self.name}.{key} fails: {quote(str(error), 120)}"
            raise DataError(what, where=where, fix="correct it, or the row") from error

    def _right(self, texts: Sequence[str], answer: str, table: Table, row: Row) -> int:
        """The number of the right text: one that is equal, or else the number itself."""
        if answer in texts and len(texts) > 1:
            return texts.index(answer)
        if answer.isdecimal() and int(answer) < len(texts) > 1:
            return int(answer)
        what = f"{self.name}: the answer {quote(answer, 40)} is none of {quote_all(texts)}, nor a number of one"
        fix = "give two or more, and the right one or its number from 0"
        raise DataError(what, where=table.file.where(row.number, row.line, None), fix=fix)

    def before(self, number: int) -> str:
        """The description and the examples before row `number`, from 0."""
        task = self.task
        if not isinstance(task, PromptedTask):
            return ""
        before = "".join(self._texts("description", {}, self.name))
        if not task.shots:
            return before
        apart = int(self.pool is None and number < len(self._pool))
        if len(self._pool) - apart < task.shots:
            pool = counted(len(self._pool), "row is", "rows are")
            what = f"{self.name}: {pool} too few for {counted(task.shots, 'example')} of others"
            raise UsageError(what, where=(self.pool or self.table).source, fix="take fewer shots")
        drawn = random.Random(task.seed + number).sample(range(len(self._pool) - apart), task.shots)
        texts = [self._pool[i + (apart and i >= number)] for i in drawn]
        return before + "".join(text + task.separator for text in texts)

    @cached_property
    def _pool(self) -> list[str]:
        """Examples as texts."""
        table = self.pool or self.table
        items = (self.item(table, row) for row in islice(table.rows(), POOL))
        return [joined(*item.pairs[item.right]) for item in items]


def _is_expression(value: object) -> bool:
    """Whether the value of a key, a text for a list of texts, is an expression rather than one template."""
    return isinstance(value, tuple) and len(value) == 1 and "{" not in value[0]


def joined(context: str, continuation: str) -> str:
    """A continuation after its context, with a space between unless that ends with whitespace."""
    return context + " " * (context == context.rstrip()) + continuation
