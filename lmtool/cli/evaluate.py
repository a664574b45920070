"""`lmtool eval`: how well a model predicts a text."""

from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Column, Device, Json, Precision, Quiet, Run, Text
from lmtool.cli.output import plain

if TYPE_CHECKING:
    from lmtool.engine.evaluate import Perplexity


def evaluate(
    run: Run,
    text: Text,
    stride: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Tokens from one window to the next; the context by default, so that none overlap."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens read at once; the model's context by default.")
    ] = None,
    column: Column = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on text: perplexity per token and per word, and bits per byte.

    The text is divided into documents as the training text was. A stride below the context gives every token more
    text before it, at the cost of reading it again.
    """
    import json

    from lmtool.cli.progress import Display
    from lmtool.engine.measure import measure

    with Display(shown=True, quiet=quiet) as display:
        measured = measure(
            run,
            text,
            context=context,
            stride=stride,
            column=column,
            device=device,
            precision=precision,
            report=display.report,
        )
    loaded, result = measured.loaded, measured.perplexity
    for warning in loaded.warnings:
        typer.echo(plain(f"warning: {warning}"), err=True)
    if not quiet:
        typer.echo(plain(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}"), err=True)
    if as_json:
        limits = {"limit_bits_per_byte": measured.limit} if result.unit == "token" else {}
        typer.echo(json.dumps(result.record() | limits))
        return
    if result.unit == "pair":
        typer.echo(f"loss             {result.loss:.4f} nats per pair")
        typer.echo(f"pairs            {result.tokens:,}")
        return
    typer.echo(f"loss             {result.loss:.4f} nats per token")
    typer.echo(f"perplexity       {result.perplexity:.6g} per token, {_per_word(result)}")
    limit = "" if measured.limit is None else f"; the best possible model: {measured.limit:.4f}"
    typer.echo(f"bits per byte    {result.bits_per_byte:.4f}{limit}")
    typer.echo(f"tokens           {result.tokens:,} in {result.n_bytes:,} bytes")
    typer.echo(f"context, stride  {result.context}, {result.stride}")


def _per_word(result: "Perplexity") -> str:
    return f"{result.word_perplexity:.6g} per word" if result.n_words else "no words"
