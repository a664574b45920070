"""What a suite says: tasks on tables, by name, in YAML."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lmtool import durable
from lmtool.errors import RecipeError, ResourceError, UsageError
from lmtool.recipe.check import validate
from lmtool.recipe.document import KeyPath, Origin, parse_yaml, shorten
from lmtool.recipe.grammar import did_you_mean, find_nearest
from lmtool.recipe.load import MAX_RECIPE_BYTES, bundled_path
from lmtool.recipe.spec.base import Fraction, Spec, Strings

FOLDER = "data/suites"
ENDINGS = (".yaml", ".yml")

Way = Literal["sum", "per_token", "per_byte", "calibrated"]
"""How a choice is scored: by the log-probability of its tokens; by the mean over those by which it differs from others;
by the log-probability for a byte of it; by the log-probability less that without the question."""


class TableTask(Spec):
    """What all kinds have. Templates are of Jinja; the columns of the table are their variables, and `row` has all."""

    table: str
    """Any that `finetune` reads: a file, also beside the suite, data/NAME, or hf:NAME[:CONFIG][@SPLIT]."""
    limit: Annotated[int, Field(gt=0)] | None = None
    """The first rows, so many."""
    encoding: str | None = None
    """Of its file; UTF-8 where it is valid so."""
    delimiter: str | None = None
    """Of its fields; inferred from the table."""


class PromptedTask(TableTask):
    """A task whose rows are prompts, with examples before them."""

    shots: Annotated[int, Field(ge=0)] = 0
    """Examples before each row."""
    examples: str | None = None
    """Their table; by default the same one, without the row itself."""
    seed: Annotated[int, Field(ge=0)] = 1234
    """With the number of a row it draws its examples, as in CORE (Li et al. 2024)."""
    separator: str = "\n\n"
    """Between examples."""
    description: str = ""
    """A text before all of them."""
    begins: bool = False
    """The token that begins a text is before it also where a published tokenizer puts none, as in CORE."""


class ChoiceTask(PromptedTask):
    """Multiple choice: the most probable of several continuations of one prompt."""

    kind: Literal["choice"]
    prompt: str
    """Template of the text before a choice."""
    choices: Strings
    """A template for each; or one expression, the name of a column for example, that is a list."""
    answer: str
    """Template of the right choice, or of its number from 0."""
    score: Way = "sum"
    """What the accuracy is of; the others are listed too."""
    calibrate: str | None = None
    """Template of the prompt without the question, whose log-probabilities are taken off (Holtzman et al. 2021)."""
    chance: Fraction | None = None
    """The accuracy of guessing; by default the mean over rows of one in so many choices."""

    def mistakes(self) -> Iterable[str]:
        if self.score == "calibrated" and self.calibrate is None:
            yield "score is calibrated, but calibrate has no prompt without the question"


class SchemaTask(PromptedTask):
    """The context, of several, after which a continuation is most probable, as in Winograd schemas."""

    kind: Literal["schema"]
    contexts: Strings
    """A template for each; or one expression that is a list."""
    continuation: str
    """Template of the text after them."""
    answer: str
    """Template of the right context, or of its number from 0."""
    score: Literal["sum", "per_token"] = "sum"
    """Per token: the mean over all tokens with which the texts end alike."""
    chance: Fraction | None = None
    """As of choice."""


class ContinuationTask(PromptedTask):
    """Whether greedy decoding writes exactly this continuation, as in LAMBADA (Paperno et al. 2016)."""

    kind: Literal["continuation"]
    prompt: str
    continuation: str


class MatchTask(PromptedTask):
    """Whether a generated answer is one of those that are right."""

    kind: Literal["match"]
    prompt: str
    answers: Strings
    """A template for each right answer; or one expression that is a list."""
    pattern: str | None = None
    """A regular expression, whose first group, or else whole, is the answer in the generated text."""
    stop: Strings = ("\n",)
    """Texts that end the answer."""
    max_new_tokens: Annotated[int, Field(gt=0)] = 32

    def mistakes(self) -> Iterable[str]:
        try:
            re.compile(self.pattern or "")
        except re.error as error:
            yield f"pattern is not a regular expression: {error}"


class TextTask(TableTask):
    """Perplexity per word and per byte of texts, each scored in windows of the context."""

    kind: Literal["perplexity"]
    text: str
    """Template of a text."""


AnyTask = ChoiceTask | SchemaTask | ContinuationTask | MatchTask | TextTask


class _Task(Spec):
    task: ChoiceTask | SchemaTask | ContinuationTask | MatchTask | TextTask = Field(discriminator="kind")


def shipped() -> list[str]:
    """The names of the suites that come with lmtool."""
    return sorted(path.stem for path in bundled_path(FOLDER).glob("*.yaml"))


def read_suite(name: str, only: str = "") -> dict[str, AnyTask]:
    """The tasks of a suite, by name, or one of them.

    name: one that comes with lmtool, or a file; tables beside it are found.
    Raises UsageError where there is none, RecipeError with one line for each mistake in it.
    """
    path = bundled_path(FOLDER) / f"{name}.yaml" if name in shipped() else Path(name)
    if name not in shipped() and path.suffix not in ENDINGS:
        fix = f"name a YAML file, or one of {', '.join(shipped())}{did_you_mean(find_nearest(name, shipped()))}"
        raise UsageError(f"there is no suite {shorten(name)}", where="--suite", fix=fix)
    source = path.name if name in shipped() else shorten(name, 200)
    try:
        document = parse_yaml(durable.read(path, MAX_RECIPE_BYTES).decode("utf-8-sig"), source)
    except OSError as error:
        raise ResourceError(f"cannot read the suite: {error.strerror}", where=source) from error
    except UnicodeDecodeError as error:
        raise RecipeError([f"{source}: byte {error.start} is not UTF-8; a suite is YAML text"]) from error
    mistakes, tasks = list(map(str, document.mistakes)), {}
    if not mistakes and (not isinstance(document.value, dict) or not document.value):
        mistakes.append(f"{source}: a suite is a mapping of names to tasks, such as NAME: {{kind: choice, ...}}")
    for title, task in document.value.items() if not mistakes else ():

        def origin(at: KeyPath, title: str = title) -> Origin:
            written = ((title, *at[1:n]) for n in range(len(at), 0, -1))
            return next(document.origins[key] for key in written if key in document.origins)

        checked, wrong = validate({"task": task}, origin, _Task)
        mistakes += [f"{one.origin}: {title}{one.what.removeprefix('task')}" for one in sorted(wrong)]
        if checked is not None:
            tasks[title] = _beside(checked.task, path.parent)
    if mistakes:
        raise RecipeError(mistakes)
    if only and only not in tasks:
        fix = f"name one of {', '.join(tasks)}{did_you_mean(find_nearest(only, tasks))}"
        raise UsageError(f"the suite has no task {shorten(only)}", where="--task", fix=fix[:200])
    return {only: tasks[only]} if only else tasks


def _beside(task: AnyTask, folder: Path) -> AnyTask:
    """The task with its tables found beside the suite."""
    tables = {key: value for key in ("table", "examples") if (value := getattr(task, key, None)) is not None}
    beside: dict[str, Any] = {key: str(folder / value) for key, value in tables.items() if (folder / value).is_file()}
    return task.with_values(beside)
