"""`lmtool eval`: how well a model predicts a text."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from lmtool.cli.arguments import Column, Device, Json, Precision, Quiet, Run, Text
from lmtool.printable import plain

if TYPE_CHECKING:
    from lmtool.engine.device import InferenceName
    from lmtool.engine.evaluate import Perplexity
    from lmtool.recipe.spec import DeviceName


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
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Another run to show beside it, such as an n-gram model.", show_default=False),
    ] = None,
    column: Column = None,
    task: Annotated[
        str, typer.Option(metavar="NAME", help="One of the tasks that the run has learnt.", show_default=False)
    ] = "",
    num_beams: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Width of the beam search that writes answers.", show_default=False),
    ] = None,
    device: Device = "auto",
    precision: Precision = "float32",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Measure a model on text: perplexity per token and per word, and bits per byte.

    A run that was fine-tuned on a table is measured on tables: accuracy, macro F1, BLEU and so on.

    The text is divided into documents as the training text was. A stride below the context gives every token more
    text before it, at the cost of reading it again.
    """
    import json

    from lmtool.engine.results import answers_tables

    if answers_tables(run):
        _tables(run, text, task, num_beams, device, precision, as_json)
        return

    from lmtool.cli.progress import Display
    from lmtool.engine.measure import measure
    from lmtool.errors import UsageError

    with Display(shown=True, quiet=quiet) as display:
        ask = partial(measure, sources=text, column=column, device=device, precision=precision, report=display.report)
        measured = ask(run, context=context, stride=stride)
        beside = None if baseline is None else ask(baseline, context=None, stride=None)
    if beside is not None and "pair" in (measured.perplexity.unit, beside.perplexity.unit):
        raise UsageError("pairs of words cannot be compared with tokens", fix="leave out --baseline")
    loaded, result = measured.loaded, measured.perplexity
    for warning in loaded.warnings:
        typer.echo(plain(f"warning: {warning}"), err=True)
    if not quiet:
        typer.echo(plain(f"{loaded.run_path}, step {loaded.step}, {loaded.compute.describe()}"), err=True)
    if as_json:
        limits = {"limit_bits_per_byte": measured.limit} if result.unit == "token" else {}
        others = {} if beside is None else {"baseline": beside.perplexity.record()}
        typer.echo(json.dumps(result.record() | limits | others))
        return
    if result.unit == "pair":
        typer.echo(f"loss             {result.loss:.4f} nats per pair")
        typer.echo(f"pairs            {result.tokens:,}")
        return
    typer.echo(f"loss             {result.loss:.4f} nats per token")
    typer.echo(f"perplexity       {result.perplexity:.6g} per token, {_per_word(result)}")
    limit = "" if measured.limit is None else f"; the best possible model: {measured.limit:.4f}"
    typer.echo(f"bits per byte    {result.bits_per_byte:.4f}{limit}")
    if beside is not None:
        what = plain(f"{beside.loaded.run_path.name}, {beside.loaded.recipe.model.kind}")
        typer.echo(f"baseline         {beside.perplexity.bits_per_byte:.4f} bits per byte ({what})")
    typer.echo(f"tokens           {result.tokens:,} in {result.n_bytes:,} bytes")
    typer.echo(f"context, stride  {result.context}, {result.stride}")


def _tables(
    run: str,
    tables: list[str],
    task: str,
    num_beams: int | None,
    device: "DeviceName",
    precision: "InferenceName",
    as_json: bool,
) -> None:
    """How well a fine-tuned run answers tables."""
    import json

    from lmtool.engine.build import load_packed
    from lmtool.engine.results import measure_table

    loaded = load_packed(run, device=device, precision=precision).with_beams(num_beams)
    for table in tables:
        results = measure_table(loaded, table, task)
        lines = [json.dumps(results.record())] if as_json else results.lines()
        for line in lines:
            typer.echo(plain(line))


def _per_word(result: "Perplexity") -> str:
    return f"{result.word_perplexity:.6g} per word" if result.n_words else "no words"
