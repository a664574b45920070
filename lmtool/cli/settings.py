"""Options that are settings: of the recipe, of reading tables, and of decoding strategies."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from lmtool.cli.help import flag, option
from lmtool.decoding.settings import Settings, described

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting
    from lmtool.recipe.spec.text import Data

_shared = partial(option, default=...)
DEFAULT_RECIPE = "default"
Overrides = Annotated[
    list[str] | None, _shared("KEY=VALUE", "Override a key of the recipe; +N adds. May be repeated.", "--set", "-s")
]
Column = Annotated[str | None, _shared("NAME", "Text column of .jsonl, .csv and .parquet files.")]
Valid = Annotated[list[str] | None, _shared("FILE", "Validation text, instead of part of TEXT. May be repeated.")]
Minutes = Annotated[float | None, _shared("N", "Train so many steps that the run takes N minutes here.")]
Epochs = Annotated[float | None, _shared("N", "Passes over the training text.")]
Tokens = Annotated[int | None, _shared("N", "Tokens to train on.")]
Labels = Annotated[
    Literal["auto", "class", "multi", "number", "tags", "answers"],
    _shared(
        "",
        "One class per row, any number of labels (a;b), a number, a tag for each word, or answers in a context; "
        "inferred from the table.",
        panel="Data",
    ),
]


def recipe_name(default: str | None) -> Any:
    """The option that names a recipe."""
    text = "A shipped recipe (lmtool recipes ls) or a YAML file."
    return option("NAME", text, "--recipe", "-r", default=default, shown=DEFAULT_RECIPE)


_of_data = partial(option, panel="Data")
READING: Mapping[str, tuple[Any, Any]] = {
    "text_column": (list[str] | None, _of_data("NAME", "A text column. May be repeated.")),
    "label_column": (str | None, _of_data("NAME", "The label column.")),
    "source_column": (str | None, _of_data("NAME", "The column of source texts.")),
    "target_column": (str | None, _of_data("NAME", "The column of target texts.")),
    "input_column": (str | None, _of_data("NAME", "The column of inputs, which follow the source.")),
    "messages_column": (str | None, _of_data("NAME", "The column of conversations, for decoders.")),
    "encoding": (str | None, _of_data("NAME", "Encoding of tables; UTF-8 where the text is valid so.")),
    "delimiter": (str | None, _of_data("C", "The field delimiter; inferred from the table.")),
    "skip_bad_rows": (bool, flag("Skip bad rows and count them.", "--skip-bad-rows", panel="Data")),
}
"""The options of reading tables, named as the keys of `Data` that they set: type and option."""

CommandFunction = Callable[..., None]


def with_options(options: Mapping[str, tuple[Any, Any]]) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command more options, by name: the type and what `option` makes.

    The command takes them as its last parameter, `**NAME`. They come before its keyword-only parameters.
    """

    def decorated(command: CommandFunction) -> CommandFunction:
        *parameters, _ = inspect.signature(command).parameters.values()
        first = [parameter for parameter in parameters if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        made = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type_)
            for name, (type_, default) in options.items()
        ]
        signature = inspect.Signature([*first, *made, *parameters[len(first) :]])
        command.__signature__ = signature  # type: ignore[attr-defined]  # Typer reads it in place of the function's own
        return command

    return decorated


def reads_tables(*names: str) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command the options of READING, or those with some names; see `with_options`."""
    return with_options({name: READING[name] for name in names or READING})


def with_settings(
    *strategies: type[Settings], defaults: Mapping[str, str] | None = None
) -> Callable[[CommandFunction], CommandFunction]:
    """A decorator that gives a command an option for each setting of these strategies, None by default.

    defaults: the default to display, of settings that have another than their own. See `with_options`.
    """
    options: dict[str, tuple[Any, Any]] = {}
    for strategy in strategies:
        for name, (type_, help) in described(strategy).items():
            default = str(getattr(strategy, name) or "") if help.default is None else help.default
            made = option(
                help.metavar or "",
                help.text,
                help.flag or f"--{name.replace('_', '-')}",
                shown=(defaults or {}).get(name, default) or False,
                panel=strategy.panel,
            )
            options.setdefault(name, (type_ | None, made))
    return with_options(options)


def stated(*options: tuple[str, object, str]) -> "list[Setting]":
    """The settings of those options that are used; each is a key of the recipe, a value, and the option as typed."""
    from lmtool.recipe.load import Setting

    return [Setting(key, value, name) for key, value, name in options if value is not None]


def reading_settings(reading: Mapping[str, Any]) -> "list[Setting]":
    """The settings of the options of `reads_tables`."""
    used = {name: value for name, value in reading.items() if value not in (None, False, [])}
    named = ((name, "text_columns" if name == "text_column" else name, value) for name, value in used.items())
    return stated(*((f"data.{key}", value, f"--{name.replace('_', '-')}") for name, key, value in named))


def label_settings(labels: str) -> "list[Setting]":
    """The setting of `--labels`; none where it is left to the table."""
    if kind := {"tags": "tagging", "answers": "question-answering"}.get(labels):
        return stated(("objective.kind", kind, "--labels"))
    return stated(("objective.task", None if labels == "auto" else labels, "--labels"))


def as_data(reading: "Sequence[Setting]") -> "Data":
    """Settings of `data` as a value."""
    from lmtool.recipe.spec.text import Data

    return Data.model_validate({one.key.removeprefix("data."): one.value for one in reading})
