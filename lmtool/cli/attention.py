"""`lmtool attention`: the attention weights of a model on a text, in the terminal, as a page, or as numbers."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from lmtool.cli.arguments import Device, Json, Quiet, RunName


def attention(
    run: RunName,
    text: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TEXT",
            help="The text itself; one for each text of a row, for a classifier of several.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT", help="For a model that answers sources, in place of TEXT: the source.", show_default=False
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Its target; the model's own by default, decoded greedily."),
    ] = None,
    kind: Annotated[
        Literal["self", "encoder", "decoder", "cross", "memory", "pooling"] | None,
        typer.Option(help="Which attention to show, where there are several; of a target to its source first."),
    ] = None,
    layer: Annotated[
        int, typer.Option("--layer", metavar="K", help="Layer to show, counted from 0; -1 is the last.")
    ] = -1,
    head: Annotated[
        int | None,
        typer.Option("--head", metavar="K", help="Head to show, counted from 0; the mean of all by default."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A new .html page with all layers and heads."),
    ] = None,
    npz: Annotated[
        Path | None,
        typer.Option(
            "--npz", metavar="FILE", help="A new .npz file: layers, heads, queries, keys.", show_default=False
        ),
    ] = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show which tokens a model attends to: Transformers, and recurrent models with attention.

    The weights are those of the forward pass that computes. For a classifier, also the words that decided.
    """
    import json

    from rich.console import Console

    from lmtool.cli.output import describe
    from lmtool.inference.attention import attention as attend
    from lmtool.inference.attention import check_output
    from lmtool.inference.attribution import attribution
    from lmtool.inference.load import load_run
    from lmtool.interop.reference import run_of
    from lmtool.model.classifier import Classifier
    from lmtool.printable import plain
    from lmtool.report.attention import attention_page, attribution_lines, matrix_lines
    from lmtool.report.page import write_page

    check_output(output, ".html")
    check_output(npz, ".npz")
    loaded = load_run(run_of(run), device=device)
    describe(loaded, quiet)
    texts = text or []
    attended = attend(loaded, texts, source=source, target=target)
    decided = attribution(loaded, texts, attended) if isinstance(loaded.model, Classifier) else None
    shown = attended.part(kind)
    shown.head(layer, head)
    if output is not None:
        write_page(output, attention_page(attended, decided, kind=kind, layer=layer, head=head))
    if npz is not None:
        attended.save(npz)
    if as_json:
        value = attended.to_json() | ({} if decided is None else {"attribution": decided.to_json()})
        typer.echo(json.dumps(value))
        return
    for path in filter(None, (output, npz)):
        typer.echo(plain(str(path)))
    if output is None and npz is None:
        console = Console(highlight=False)
        for line in matrix_lines(shown, layer, head, console.width):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
        for line in [] if decided is None else attribution_lines(decided):
            console.print(line, no_wrap=True, crop=False, overflow="ignore")
