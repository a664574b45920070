"""Options that set keys of the recipe, read tables, or set parameters of decoding strategies."""

import inspect
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lmtool.cli.help import flag, option, shared
from lmtool.errors import UsageError
from lmtool.generation.params import StrategyName, default_value, get_strategy_options

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


def recipe_option(default: str | None) -> Any:
    """Declares the option that names a recipe."""
    text = "A shipped recipe (lmtool recipes ls) or a YAML file."
    return option("RECIPE", text, "--recipe", "-r", default=default, shown=DEFAULT_RECIPE)


def is_recipe(name: str) -> bool:
    """Whether a name is a recipe rather than a text; if neither exists, similar names decide."""
    from lmtool.recipe.load import find_similar_recipes, shipped_recipes

    if name in shipped_recipes() or name.endswith((".yaml", ".yml")):
        return True

    from lmtool.data.files import FORMATS, suggest_similar_files
    from lmtool.data.hub import HUB_PREFIX

    is_other = name == "last" or os.path.exists(name) or name.startswith(HUB_PREFIX) or name.endswith(FORMATS)
    return not is_other and bool(find_similar_recipes(name)) and not suggest_similar_files(Path(name))


def with_stdin(kind: Literal["text", "table", "text or table"], *names: Any) -> Sequence[Any]:
    """Returns file names, lists of them and Nones, with `-` replaced; see `replace_stdin_by_cached_file`."""
    if "-" not in [one for name in names for one in (name if isinstance(name, list) else [name])]:
        return names
    from lmtool.data.stdin import replace_stdin_by_cached_file  # it imports much

    return replace_stdin_by_cached_file(kind, *names)


KeyOptions = dict[str, tuple[Any, Any]]
"""Options that set keys of the recipe, by dotted key: the type, and the result of `option`."""

_data = partial(option, panel="Data")
READ_OPTIONS: KeyOptions = {
    "data.text_columns": (list[str], _data("NAME", "A text column. May be repeated.", "--text-column")),
    "data.label_column": (str, _data("NAME", "The label column.")),
    "data.source_column": (str, _data("NAME", "The column of source texts.")),
    "data.target_column": (str, _data("NAME", "The column of target texts.")),
    "data.input_column": (str, _data("NAME", "The column of inputs, which follow the source.")),
    "data.messages_column": (str, _data("NAME", "The column of conversations, for decoders.")),
    "data.encoding": (str, _data("NAME", "Encoding of tables; UTF-8 where the text is valid so.")),
    "data.delimiter": (str, _data("C", "The field delimiter; inferred from the table.")),
    "data.skip_bad_rows": (bool, flag("Skip bad rows and count them.", "--skip-bad-rows", panel="Data")),
    "data.merge_labels": (
        list[str],
        _data("A=B", "Read label A as B; or a FILE.csv, .yaml or .json of such pairs. May be repeated."),
    ),
}
"""The options of reading tables."""

TEXTS_OPTIONS: KeyOptions = {
    "data.text_columns": (list[str], _data("NAME", "A text column. May be repeated.", "--text-column", "--column")),
    **{f"data.{key}": READ_OPTIONS[f"data.{key}"] for key in ("encoding", "delimiter", "skip_bad_rows")},
}
"""Options for reading texts, each a line of a file or a row of a table."""

_LABELS_HELP = (
    "One class per row, any number of labels (a;b), a number, a tag for each word, or answers in a context; "
    "inferred from the table."
)
_LabelsName = Literal["auto", "class", "multi", "number", "tags", "answers"]
LABEL_OPTIONS: KeyOptions = {"objective.task": (_LabelsName, _data("", _LABELS_HELP, "--labels", default="auto"))}
"""The option for the kind of labels, which `to_settings` reads."""

TEXT_OPTIONS: KeyOptions = {
    "data.valid": (list[str], option("FILE", "Validation text, instead of part of TEXT. May be repeated.")),
    "data.column": (str, option("NAME", COLUMN_HELP)),
    "training.minutes": (float, option("N", "Train so many steps that the run takes N minutes here.")),
    "training.epochs": (float, option("N", "Passes over the training text.")),
    "training.tokens": (int, option("N", "Tokens to train on.")),
}
"""Options for the training text and the length of training."""

NO_OPTIONS: Mapping[str, tuple[Any, Any]] = {}
CommandFunction = Callable[..., None]


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[CommandFunction], CommandFunction]:
    """Decorates a command with more options, by name: the type and the result of `option`.

    The command gets them as its last parameter, `**NAME`. They precede its keyword-only parameters.
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


def key_options(
    options: KeyOptions, others: Mapping[str, tuple[Any, Any]] = NO_OPTIONS
) -> Callable[[CommandFunction], CommandFunction]:
    """Decorates a command with options that set keys of the recipe, each named by its flag or else its key.

    others: further options, as for `with_options`. See `with_options`, and `to_settings` for what they set.
    """
    of_keys = {}
    for key, (type_, made) in options.items():
        _, name = _flag_and_parameter(key, made)
        of_keys[name] = (type_ | None if made.default is None else type_, made)
    return with_options(of_keys | dict(others))


def with_sampling_options(
    *strategies: StrategyName, defaults: Mapping[str, str] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """Decorates a command with an option for each parameter of these strategies, and for forms; see `with_options`.

    All are None by default. Errors name the options. defaults: displayed defaults that differ from the parameters' own.
    """
    options: dict[str, tuple[Any, Any]] = {}
    flags: dict[str, str] = {}
    for strategy in strategies:
        for name, (type_, help) in get_strategy_options(strategy).items():
            default = str(default_value(strategy, name) or "") if help.default is None else help.default
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
                # a name counts as that of a parameter if it has an underscore or a value follows it
                words = "|".join(name if "_" in name else rf"{name}(?= is [-\d.]| [-\d.])" for name in flags)
                name_of_parameter = re.compile(rf"(?<![-\w])({words})(?![-\w])")
                error.what, error.where, error.fix = (
                    name_of_parameter.sub(lambda found: flags[found[1]], part)
                    for part in (error.what, error.where, error.fix)
                )
                raise

        return with_options(options | FORM_OPTIONS)(named)

    return decorated


_form_option = partial(option, panel="Form of the text")
FORM_OPTIONS: dict[str, tuple[Any, Any]] = {
    "choices": (str | None, _form_option("A,B,C", "The text is one of these, without the spaces around each.")),
    "regex": (str | None, _form_option("REGEX", "The whole text matches this regular expression.")),
    "json_schema": (Path | None, _form_option("FILE", "The text is JSON that this schema describes.")),
    "grammar": (Path | None, _form_option("FILE", "The text is of this grammar, in Lark's syntax.")),
    "complete": (
        bool,
        flag("Close the form before the maximum of new tokens cuts it.", "--complete", panel="Form of the text"),
    ),
}
"""Options for the form of a text, which `pop_form` reads."""


def pop_form(values: dict[str, Any], *, stop: Sequence[str] | None = None, prefix: str = "") -> "TextForm | None":
    """Removes the form options from the values, and returns their form.

    Raises UsageError for several forms, and for one beside `stop` or `prefix`, which would be no part of it.
    """
    from lmtool.generation.forms import TextForm
    from lmtool.generation.prompts import read_lines

    stated = {name: values.pop(name) for name in FORM_OPTIONS if name in values}
    flags = {name: f"--{name.replace('_', '-')}" for name in FORM_OPTIONS if name != "complete"}
    given = [flag for name, flag in flags.items() if stated.get(name) is not None]
    if len(given) > 1:
        raise UsageError(f"a text can have only one form, not {' and '.join(given)}", fix="give one of them")
    if not given and stated.get("complete"):
        raise UsageError("--complete needs a form", fix="give --choices, --regex, --json-schema or --grammar")
    for name in ("json_schema", "grammar"):
        if stated.get(name) is not None:
            path = str(stated[name])
            stated |= {name: "\n".join(read_lines(path)), "file": "standard input" if path == "-" else path}
    if stated.get("choices") is not None:
        stated["choices"] = [one.strip() for one in stated["choices"].split(",")]
    if given and (stop or prefix):
        others = " and ".join(flag for flag, value in (("--stop", stop), ("--prefix", prefix)) if value)
        what = f"{given[0]} contradicts {others}, which would be no part of the form"
        raise UsageError(what, fix="leave out one or the other, or write it into the form")
    return TextForm.from_sources(**stated)


StatedSetting = tuple[str, object, str]
"""A key of the recipe, a value, and the option as typed. None, False and an empty list mean that it was not used."""


def to_settings(
    values: Mapping[str, Any],
    options: KeyOptions = READ_OPTIONS,
    *others: StatedSetting,
    overrides: Sequence[str] | None = None,
) -> "list[Setting]":
    """Returns the settings of a command line: overrides, other settings, and the used options of `key_options`.

    values: values of the options, by name; those of `LABEL_OPTIONS` are read, too, if there are any.
    """
    from lmtool.recipe.load import Setting, parse_settings

    labels = values.get("labels", "auto")
    kind = {"tags": "tagging", "answers": "question-answering"}.get(labels)
    label_setting = ("objective.kind", kind) if kind else ("objective.task", None if labels == "auto" else labels)
    stated = [*others, (*label_setting, "--labels")]
    for key, (_, made) in options.items():
        if key in LABEL_OPTIONS:
            continue
        flag, name = _flag_and_parameter(key, made)
        value = values.get(name)
        if key == "data.merge_labels" and value:
            from lmtool.tasks.merges import read_label_merges

            value = read_label_merges(value)
        stated.append((key, value, flag))
    used = [one for one in stated if one[1] is not None and one[1] is not False and one[1] != []]
    return parse_settings(overrides or (), [Setting(*one) for one in used])


def _flag_and_parameter(key: str, made: Any) -> tuple[str, str]:
    """Returns the flag of an option that sets a key, and the parameter for its value."""
    flag = [*made.param_decls, f"--{key.rpartition('.')[2].replace('_', '-')}"][0]
    return flag, flag.removeprefix("--").replace("-", "_")


def to_data(reading: "Sequence[Setting]") -> "Data":
    """Makes a `Data` spec of its settings."""
    from lmtool.recipe.spec.text import Data

    return Data.model_validate({one.key.removeprefix("data."): one.value for one in reading})
