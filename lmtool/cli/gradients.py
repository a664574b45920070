"""`lmtool gradients`: how far back the gradient of a loss reaches."""

from functools import partial
from typing import Annotated

import typer

from lmtool.cli.arguments import Device, HtmlFile, Json, Quiet, RunName
from lmtool.cli.output import check_new, describe, show_lines
from lmtool.printable import plain


def gradients(
    run: RunName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A text; the loss is that of its last token.")],
    token: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="The token whose loss it is, counted from 1.", show_default="the last one"
        ),
    ] = None,
    output: HtmlFile = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how the gradient of the loss of one token reaches the states before it, as a curve over the steps back.

    For Transformer decoders and recurrent language models, in which it may vanish or explode.
    """
    import json

    from lmtool.inference.gradients import gradients as compute
    from lmtool.interop.reference import run_of
    from lmtool.report import gradients as report
    from lmtool.report.page import write_page

    check_new(output)
    flow = compute(run_of(run), text, token, device=device)
    describe(flow.loaded, quiet)
    if output is not None:
        write_page(output, report.as_page(flow))
    if as_json:
        typer.echo(
            json.dumps(
                {"tokens": flow.pieces, "target": flow.target, "loss": flow.found.loss, "norms": flow.found.norms}
            )
        )
    elif output is not None:
        typer.echo(plain(str(output)))
    else:
        show_lines(partial(report.as_lines, flow))
