"""`lmtool embed`: contextual embeddings of words, or embeddings of whole texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.arguments import Column, Device, Precision, Quiet, RunName, TypedText


def embed(
    run: RunName,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="Files, folders or globs (.txt .jsonl .csv .parquet, also .gz or .zst), or hf:NAME; - is standard "
            "input, the default.",
            show_default=False,
        ),
    ] = None,
    given: TypedText = None,
    layer: Annotated[
        int, typer.Option("--layer", metavar="K", help="0 for the embeddings, 1 for the first layer, -1 for the last.")
    ] = -1,
    pool: Annotated[
        Literal["none", "mean", "max", "first", "last"],
        typer.Option(help="How to pool each text into one vector; none gives one per word."),
    ] = "none",
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            metavar="",
            help="One vector per text, pooled as the model was trained to; by mean where it was not.",
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="A new .npz or .jsonl file; JSON lines on stdout by default."
        ),
    ] = None,
    truncate: Annotated[bool, typer.Option("--truncate", metavar="", help="Truncate texts to the context.")] = False,
    column: Column = None,
    device: Device = "auto",
    precision: Precision = "float32",
    quiet: Quiet = False,
) -> None:
    """Write a model's contextual embeddings of words, or its embeddings of whole texts.

    Each line of a .txt file and each row of a table is one text.
    """
    from lmtool.cli.output import describe
    from lmtool.compute.processes import is_main
    from lmtool.errors import UsageError
    from lmtool.inference import embedding
    from lmtool.inference.load import load_packed
    from lmtool.interop.reference import run_of
    from lmtool.printable import plain

    if whole and pool != "none":
        raise UsageError(f"--whole pools as the model does, not by --pool {pool}", fix="give only one of them")
    if output is not None:
        embedding.check_output(output)
    loaded = load_packed(run_of(run), device=device, precision=precision)
    if is_main():
        describe(loaded, quiet or output is None)
    texts = embedding.read_texts(text or [], column or loaded.recipe.data.column, given or [])
    found = embedding.embed(loaded, texts, layer, "own" if whole else pool, truncate=truncate)
    if output is None or not is_main():
        for line in embedding.as_lines(found):
            if is_main():
                typer.echo(line)
        return
    embedding.save(output, found)
    typer.echo(plain(str(output)))
