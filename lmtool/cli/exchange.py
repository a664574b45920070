"""`lmtool import` and `lmtool export`: published models in, published models out."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.arguments import OutputDir, Quiet, RunName
from lmtool.cli.output import warn
from lmtool.errors import UsageError
from lmtool.printable import plain

GGUF = ".gguf"


def import_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file.",
            show_default=False,
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


def export_run(
    run: RunName,
    output: Annotated[
        Path, typer.Argument(metavar="OUTPUT", help="A new directory, or a new .gguf file.", show_default=False)
    ],
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16"] | None,
        typer.Option(help="Data type of the weights in a directory.", show_default="float32"),
    ] = None,
    shard_size: Annotated[
        float | None,
        typer.Option(
            "--shard-size", metavar="GB", min=0.001, help="Size of the largest file of weights.", show_default="5.0"
        ),
    ] = None,
    gguf: Annotated[
        Literal["f16", "q8_0"] | None,
        typer.Option(
            "--gguf", help="Write a GGUF file with matrices of this type.", show_default="f16 for a name with .gguf"
        ),
    ] = None,
    adapters: Annotated[
        bool, typer.Option("--adapters", help="Write only adapters and head, as a directory for PEFT.")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Write a run as a directory that Transformers opens, or as a GGUF file, also where OUTPUT ends in .gguf.

    Adapters are merged into the weights, unless only they are asked for. Prints the output.
    """
    from lmtool.interop.adapters import export_adapters
    from lmtool.interop.exporting import SHARD, export, export_gguf
    from lmtool.interop.reference import run_of

    if output.suffix.lower() == GGUF:
        gguf = gguf or "f16"
    if gguf is not None:
        where = "--gguf" if output.suffix.lower() != GGUF else str(output)
        if adapters:
            raise UsageError("GGUF files hold whole models", where=where, fix="omit --adapters, which are merged")
        for option, value in (("--dtype", dtype), ("--shard-size", shard_size)):
            if value is not None:
                raise UsageError(
                    f"{option} is for a directory, and this is a GGUF file",
                    where=where,
                    fix=f"omit {option}; --gguf f16 or q8_0 is the type of its matrices",
                )
        exported = export_gguf(run_of(run), output, gguf)
    elif adapters:
        exported = export_adapters(run_of(run), output, dtype or "float32")
    else:
        shard = SHARD if shard_size is None else round(shard_size * 1e9)
        exported = export(run_of(run), output, dtype=dtype or "float32", shard=shard)
    warn(exported.base.warnings)
    if not quiet:
        typer.echo(plain(f"exported as {exported.describe()}"), err=True)
    typer.echo(plain(str(output)))
