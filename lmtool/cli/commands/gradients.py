"""`lmtool gradients`: how far back the gradient of a loss reaches."""

from functools import partial

from lmtool.cli.arguments import Device, HtmlFile, Json, Quiet, RunName
from lmtool.cli.help import argument, option
from lmtool.cli.output import check_new, describe, show_picture


def gradients(
    run: RunName,
    text: str = argument("TEXT", "A text; the loss is that of its last token.", ..., shown=True),
    token: int | None = option("N", "The token whose loss it is, counted from 1.", shown="the last one", min=1),
    output: HtmlFile = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how the gradient of the loss of one token reaches the states before it, as a curve over the steps back.

    For Transformer decoders and recurrent language models, in which it may vanish or explode.

    Examples:
    lmtool gradients last "One day it rained, so the cat stayed in."
    lmtool gradients last "One day" --json
    """
    from lmtool.analysis.gradients import gradients as compute
    from lmtool.report import gradients as report

    check_new(output)
    flow = compute(run, text, token, device=device)
    describe(flow.loaded, quiet)
    value = {"tokens": flow.pieces, "target": flow.target, "loss": flow.gradient.loss, "norms": flow.gradient.norms}
    show_picture(partial(report.as_lines, flow), partial(report.as_page, flow), output, value if as_json else None)
