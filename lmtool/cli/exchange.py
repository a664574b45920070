"""`lmtool import` and `lmtool export`: published models in, published models out."""

from pathlib import Path
from typing import Annotated

import typer

from lmtool.cli.arguments import OutputDir, Quiet
from lmtool.printable import plain


def import_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.", show_default=False
        ),
    ],
    output: OutputDir = None,
    quiet: Quiet = False,
) -> None:
    """Make a run of a published model: its recipe, its tokenizer, and its weights as a checkpoint at step 0.

    Wherever a RUN is taken, a published model is taken too, and imported into the cache. Prints the run directory.
    """
    from lmtool.cli.progress import Display
    from lmtool.interop.importing import import_run

    with Display(shown=True, quiet=quiet) as display:
        run = import_run(model, output, display.report)
    typer.echo(plain(str(run)))
