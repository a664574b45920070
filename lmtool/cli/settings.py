"""Options that are settings: of the recipe, of reading tables, and of decoding strategies."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lmtool.cli.help import flag, option, shared
from lmtool.errors import UsageError
from lmtool.generation.params import StrategyName, default_of, options_of

if TYPE_CHECKING:
    from lmtool.generation.forms import TextForm
    from lmtool.recipe.load import Setting
    from lmtool.recipe.spec.text import Data

DEFAULT_RECIPE = "default"
Overrides = Annotated[
    list[str] | None, shared("KEY=VALUE", "Override a key of the recipe; +N adds. May be repeated.", "--set", "-s")
]
COLUMN_HELP = "Text column of .jsonl, .json, .csv and .parquet files."
Column = Annotated[str | None, shared("NAME", COLUMN_HELP)]


def recipe_name(default: str | None) -> Any:
    """The option that names a recipe."""
    text = "A shipped recipe (lmtool recipes ls) or a YAML file."
    return option("RECIPE", text, "--recipe", "-r", default=default, shown=DEFAULT_RECIPE)


def is_recipe(name: str) -> bool:
    """Whether a recipe is named rather than a text; where there is neither, what the name is like decides."""
    from lmtool.recipe.load import find_similar_recipes, shipped_recipes

    if name in shipped_recipes() or name.endswith((".yaml", ".yml")):
        return True

    from lmtool.data.files import FORMATS, suggest_files
    from lmtool.data.hub import HUB_PREFIX

    is_other = name == "last" or os.path.exists(name) or name.startswith(HUB_PREFIX) or name.endswith(FORMATS)
    return not is_other and bool(find_similar_recipes(name)) and not suggest_files(Path(name))


def with_stdin(kind: Literal["text", "table", "text or table"], *names: Any) -> Sequence[Any]:
    """The names of files, lists of them and Nones, with a file in place of `-`; see `cache_stdin`."""
    if "-" not in [one for name in names for one in (name if isinstance(name, list) else [name])]:
        return names
    from lmtool.data.stdin import cache_stdin  # it imports much

    return cache_stdin(kind, *names)


KeyOptions = dict[str, tuple[Any, Any]]
"""Options that set keys of the recipe, by dotted key: the type, and what `option` makes; None too without a default."""

_of_data = partial(option, panel="Data")
READING: KeyOptions = {
    "data.text_columns": (list[str], _of_data("NAME", "A text column. May be repeated.", "--text-column")),
    "data.label_column": (str, _of_data("NAME", "The label column.")),
    "data.source_column": (str, _of_data("NAME", "The column of source texts.")),
    "data.target_column": (str, _of_data("NAME", "The column of target texts.")),
    "data.input_column": (str, _of_data("NAME", "The column of inputs, which follow the source.")),
    "data.messages_column": (str, _of_data("NAME", "The column of conversations, for decoders.")),
    "data.encoding": (str, _of_data("NAME", "Encoding of tables; UTF-8 where the text is valid so.")),
    "data.delimiter": (str, _of_data("C", "The field delimiter; inferred from the table.")),
    "data.skip_bad_rows": (bool, flag("Skip bad rows and count them.", "--skip-bad-rows", panel="Data")),
    "data.merge_labels": (
        list[str],
        _of_data("A=B", "Read label A as B; or a FILE.csv, .yaml or .json of such pairs. May be repeated."),
    ),
}
"""The options of reading tables."""

OF_TEXTS: KeyOptions = {
    "data.text_columns": (list[str], _of_data("NAME", "A text column. May be repeated.", "--text-column", "--column")),
    **{f"data.{key}": READING[f"data.{key}"] for key in ("encoding", "delimiter", "skip_bad_rows")},
}
"""The options of reading texts, each a line of a file or a row of a table."""

_LABELS_HELP = (
    "One class per row, any number of labels (a;b), a number, a tag for each word, or answers in a context; inferred "
    "from the table."
)
_LabelsName = Literal["auto", "class", "multi", "number", "tags", "answers"]
LABELS: KeyOptions = {"objective.task": (_LabelsName, _of_data("", _LABELS_HELP, "--labels", default="auto"))}
"""The option that names the kind of labels, whose value `stated_labels` reads."""

OF_TEXT: KeyOptions = {
    "data.valid": (list[str], option("FILE", "Validation text, instead of part of TEXT. May be repeated.")),
    "data.column": (str, option("NAME", COLUMN_HELP)),
    "training.minutes": (float, option("N", "Train so many steps that the run takes N minutes here.")),
    "training.epochs": (float, option("N", "Passes over the training text.")),
    "training.tokens": (int, option("N", "Tokens to train on.")),
}
"""The options that say which text is trained on, and for how long."""

NO_OPTIONS: Mapping[str, tuple[Any, Any]] = {}
CommandFunction = Callable[..., None]


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command more options, by name: the type and what `option` makes.

    The command takes them as its last parameter, `**NAME`. They come before its keyword-only parameters.
    """

    def decorated(command: CommandFunction) -> CommandFunction:
        *parameters, _ = inspect.signature(command).parameters.values()
        by_name = inspect.Parameter.KEYWORD_ONLY
        first = [parameter for parameter in parameters if parameter.kind is not by_name]
        items = options.items()
        made = [inspect.Parameter(name, by_name, default=default, annotation=kind) for name, (kind, default) in items]
        signature = inspect.Signature([*first, *made, *parameters[len(first) :]])
        command.__signature__ = signature  # type: ignore[attr-defined]  # Typer reads it in place of the function's own
        return command

    return decorated


def sets(
    options: KeyOptions, others: Mapping[str, tuple[Any, Any]] = NO_OPTIONS
) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command options that set keys of the recipe, each named by its flag or else its key.

    others: further options, as for `with_options`. See `with_options`, and `settings_in` for what they set.
    """
    types = {key: type_ | None if made.default is None else type_ for key, (type_, made) in options.items()}
    of_keys = {_typed(key, made)[1]: (types[key], made) for key, (_, made) in options.items()}
    return with_options(of_keys | dict(others))


def with_sampling_options(
    *strategies: StrategyName, defaults: Mapping[str, str] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command an option for each parameter of these strategies, and for forms.

    All are None by default. Errors name them as they are typed. defaults: the default to display, of parameters that
    have another than their own. See `with_options`.
    """
    options: dict[str, tuple[Any, Any]] = {}
    flags: dict[str, str] = {}
    for strategy in strategies:
        for name, (type_, help) in options_of(strategy).items():
            default = str(default_of(strategy, name) or "") if help.default is None else help.default
            shown = (defaults or {}).get(name, default) or False
            names = [help.flag] if help.flag else []
            made = option(help.metavar or "", help.text, *names, shown=shown, panel=help.panel)
            options.setdefault(name, (type_ | None, made))
            flags.setdefault(name, help.flag or f"--{name.replace('_', '-')}")

    def decorated(command: CommandFunction) -> CommandFunction:
        @wraps(command)
        def named(*arguments: Any, **values: Any) -> None:
            try:
                command(*arguments, **values)
            except UsageError as error:
                error.what, error.where, error.fix = (
                    _with_flags(s, flags) for s in (error.what, error.where, error.fix)
                )
                raise

        return with_options(options | FORMS)(named)

    return decorated


def _with_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message with options in place of the names of settings: those that are no word, or that have a value there."""
    words = "|".join(name if "_" in name else rf"{name}(?= is [-\d.]| [-\d.])" for name in flags)
    return re.sub(rf"(?<![-\w])({words})(?![-\w])", lambda found: flags[found[1]], message)


_of_form, _complete = (partial(made, panel="Form of the text") for made in (option, flag))
FORMS: dict[str, tuple[Any, Any]] = {
    "choices": (str | None, _of_form("A,B,C", "The text is one of these, without the spaces around each.")),
    "regex": (str | None, _of_form("REGEX", "The whole text matches this regular expression.")),
    "json_schema": (Path | None, _of_form("FILE", "The text is JSON that this schema describes.")),
    "grammar": (Path | None, _of_form("FILE", "The text is of this grammar, in Lark's syntax.")),
    "complete": (
        bool,
        flag("Close the form before the maximum of new tokens cuts it.", "--complete", panel="Form of the text"),
    ),
}
"""The options of what a text must be, whose values `form_in` reads."""


def form_in(values: dict[str, Any]) -> "TextForm | None":
    """The form that the options of FORMS state, which are taken out of the values. Raises UsageError."""
    from lmtool.generation.forms import TextForm
    from lmtool.generation.prompts import read_lines

    stated = {name: values.pop(name) for name in FORMS if name in values}
    for name in ("json_schema", "grammar"):
        if stated.get(name) is not None:
            path = str(stated[name])
            stated |= {name: "\n".join(read_lines(path)), "file": "standard input" if path == "-" else path}
    if stated.get("choices") is not None:
        stated["choices"] = [one.strip() for one in stated["choices"].split(",")]
    return TextForm.of(**stated)


Stated = tuple[str, object, str]
"""A key of the recipe, a value, and the option as typed. None, False and an empty list are of options not used."""


def settings_in(
    values: Mapping[str, Any], options: KeyOptions = READING, *others: Stated, overrides: Sequence[str] | None = None
) -> "list[Setting]":
    """The settings of a command line: the overrides, and those options of `sets` and others that are used.

    values: of the options, by name.
    """
    from lmtool.recipe.load import Setting, parse_settings

    flags = {key: _typed(key, made) for key, (_, made) in options.items()}
    stated = [*others, *((key, _stated_value(key, values.get(name)), flag) for key, (flag, name) in flags.items())]
    used = [one for one in stated if one[1] is not None and one[1] is not False and one[1] != []]
    return parse_settings(overrides or (), [Setting(*one) for one in used])


def _stated_value(key: str, value: Any) -> Any:
    """The value of a key, of what its option states."""
    if key == "data.merge_labels" and value:
        from lmtool.tasks.merges import read_merges

        return read_merges(value)
    return value


def _typed(key: str, made: Any) -> tuple[str, str]:
    """An option that sets a key, as it is typed, and the parameter for its value."""
    flag = [*made.param_decls, f"--{key.rpartition('.')[2].replace('_', '-')}"][0]
    return flag, flag.removeprefix("--").replace("-", "_")


def stated_labels(labels: str) -> Stated:
    """What `--labels` sets; nothing where it is left to the table."""
    if kind := {"tags": "tagging", "answers": "question-answering"}.get(labels):
        return "objective.kind", kind, "--labels"
    return "objective.task", None if labels == "auto" else labels, "--labels"


def as_data(reading: "Sequence[Setting]") -> "Data":
    """Settings of `data` as a value."""
    from lmtool.recipe.spec.text import Data

    return Data.model_validate({one.key.removeprefix("data."): one.value for one in reading})
