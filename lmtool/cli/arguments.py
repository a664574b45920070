"""Arguments that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from lmtool.recipe.load import Setting

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


def teacher_setting(reference: str) -> "Setting":
    """The setting of `--teacher`; a published model is imported. Raises CheckpointError where it cannot be."""
    from lmtool.interop.reference import run_of
    from lmtool.recipe.load import Setting

    return Setting("distillation.teacher", run_of(reference), "--teacher")
