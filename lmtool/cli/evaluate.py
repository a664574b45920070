"""`lmtool eval`: how well a model predicts a text."""

from typing import Annotated

import typer

from lmtool.cli.arguments import Device, Json, Precision, Run, Text


def evaluate(
    run: Run,
    text: Text,
    stride: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens from one window to the next; the context by default, so that none overlap."),
    ] = None,
    context: Annotated[
        int | None, typer.Option(min=1, help="Tokens read at once; the model's context by default.")
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
) -> None:
    """Measure a model on text: perplexity per token and per word, and bits per byte.

    The text is divided into documents as the training text was. A stride below the context gives every token more
    text before it, at the cost of reading it again.
    """
    import json

    from lmtool.engine.measure import measure

    measured = measure(run, text, context=context, stride=stride, device=device, precision=precision)
    loaded, result = measured.loaded, measured.perplexity
    for warning in loaded.warnings:
        typer.echo(f"warning: {warning}", err=True)
    if as_json:
        typer.echo(json.dumps(result.record()))
        return
    typer.echo(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}", err=True)
    typer.echo(f"loss             {result.loss:.4f} nats per token")
    typer.echo(f"perplexity       {result.perplexity:.3f} per token, {result.word_perplexity:.2f} per word")
    typer.echo(f"bits per byte    {result.bits_per_byte:.4f}")
    typer.echo(f"tokens           {result.tokens:,} in {result.n_bytes:,} bytes")
    typer.echo(f"context, stride  {result.context}, {result.stride}")
