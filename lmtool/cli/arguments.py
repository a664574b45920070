"""Arguments that several commands share."""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting
    from lmtool.recipe.spec.text import Data

DEFAULT_RECIPE = "default"
TEXT_HELP = "Files, folders or globs (.txt .jsonl .csv .parquet, also .gz or .zst), or hf:NAME."

Text = Annotated[list[str], typer.Argument(metavar="TEXT", help=TEXT_HELP, show_default=False)]
MixedText = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help=f"{TEXT_HELP} Omit it for a recipe with data.mixture.", show_default=False),
]
TypedText = Annotated[
    list[str] | None,
    typer.Option("--text", metavar="TEXT", help="A text itself. May be repeated.", show_default=False),
]
RECIPE_OPTION = typer.Option(
    "--recipe",
    "-r",
    metavar="NAME",
    help="A shipped recipe (lmtool recipes ls) or a YAML file.",
    show_default=DEFAULT_RECIPE,
)
RecipeName = Annotated[str, RECIPE_OPTION]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-s",
        metavar="KEY=VALUE",
        help="Override a key of the recipe; +N adds. May be repeated.",
        show_default=False,
    ),
]


RUN_HELP = (
    "A run's name or directory, RUN@STEP or a checkpoint directory, last, hf:ORG/NAME, or a published model's "
    "directory or .gguf."
)

RunName = Annotated[str, typer.Argument(metavar="RUN", help=RUN_HELP)]
Device = Annotated[Literal["auto", "cpu", "cuda", "mps"], typer.Option(help="Device to compute on.")]
Precision = Annotated[
    Literal["auto", "float32", "bfloat16", "bf16", "float16", "int8"],
    typer.Option(help="Data type of matrices and their products; bf16 is short for bfloat16."),
]
Column = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Text column of .jsonl, .csv and .parquet files.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON for other programs.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", metavar="", help="Print results and warnings only.")]
OutputDir = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Run directory; a new one in runs/ by default."),
]
START_OR_RESUME_HELP = "Continue the run in -o DIR, if there is one; do nothing if it is finished."
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write an HTML page that needs no network.", show_default=False
    ),
]
TaskName = Annotated[
    str,
    typer.Option("--task", metavar="NAME", help="One of the tasks that the run was trained on.", show_default=False),
]
NumBeams = Annotated[
    int | None,
    typer.Option(
        "--num-beams",
        metavar="N",
        min=1,
        help="Beam width of the search that generates output texts.",
        show_default=False,
    ),
]


def _of_data(metavar: str, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False, rich_help_panel="Data")


Labels = Annotated[
    Literal["auto", "class", "multi", "number", "tags", "answers"],
    typer.Option(
        help="One class per row, any number of labels (a;b), a number, a tag for each word, or answers in a "
        "context; inferred from the table.",
        rich_help_panel="Data",
    ),
]

READING: dict[str, Any] = {
    "text_columns": Annotated[list[str] | None, _of_data("NAME", "A text column. May be repeated.")],
    "label_column": Annotated[str | None, _of_data("NAME", "The label column.")],
    "source_column": Annotated[str | None, _of_data("NAME", "The column of source texts.")],
    "target_column": Annotated[str | None, _of_data("NAME", "The column of target texts.")],
    "input_column": Annotated[str | None, _of_data("NAME", "The column of inputs, which follow the source.")],
    "messages_column": Annotated[str | None, _of_data("NAME", "The column of conversations, for decoders.")],
    "encoding": Annotated[str | None, _of_data("NAME", "Encoding of tables; UTF-8 where the text is valid so.")],
    "delimiter": Annotated[str | None, _of_data("C", "The field delimiter; inferred from the table.")],
    "skip_bad_rows": Annotated[bool, _of_data("", "Skip bad rows and count them.", "--skip-bad-rows")],
}
"""The options of reading tables, by the keys of `Data` that they set."""


def reads_tables(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of READING, or those of some keys, in place of its argument `reading`.

    `reading` gets what is set of them, as settings.
    """
    names = {key: key.removesuffix("s") if key == "text_columns" else key for key in keys or READING}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_options(**given: Any) -> None:
            from lmtool.recipe.load import Setting

            values = [(key, f"--{name.replace('_', '-')}", given.pop(name)) for key, name in names.items()]
            stated = [one for one in values if one[2] not in (None, False, [])]
            command(**given, reading=[Setting(f"data.{key}", value, flag) for key, flag, value in stated])

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != "reading":
                parameters.append(parameter)
                continue
            for key, name in names.items():
                default = False if key == "skip_bad_rows" else None
                option = parameter.replace(name=name, default=default, annotation=READING[key])
                parameters.append(option)
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {one.name: one.annotation for one in parameters}
        return with_options

    return decorate


def label_settings(labels: str) -> "list[Setting]":
    """The setting of `--labels`; none where it is left to the table."""
    from lmtool.recipe.load import Setting

    if kind := {"tags": "tagging", "answers": "question-answering"}.get(labels):
        return [Setting("objective.kind", kind, "--labels")]
    return [] if labels == "auto" else [Setting("objective.task", labels, "--labels")]


def as_data(reading: "Sequence[Setting]") -> "Data":
    """The settings of `reads_tables` as a value."""
    from lmtool.recipe.spec.text import Data

    return Data.model_validate({one.key.removeprefix("data."): one.value for one in reading})
