"""`lmtool gradients`: how far back the gradient of a loss reaches."""

from functools import partial

from lmtool.cli.arguments import Device, HtmlFile, Json, Quiet, RunName
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, describe, show_picture
from lmtool.errors import UsageError


def gradients(
    run: RunName,
    text: str = argument("TEXT", "A text; the loss is that of its last token.", ..., shown=True),
    token: int | None = option("N", "The token whose loss it is, counted from 1.", shown="the last one", min=1),
    starts: bool = flag("Show instead how two first states, zeros and random numbers, come together.", "--starts"),
    seed: int = option("N", "With --starts: the seed of the random state.", default=0, min=0),
    output: HtmlFile = None,
    device: Device = "auto",
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Show how the gradient of the loss of one token reaches the states before it, as a curve over the steps back.

    For Transformer decoders and recurrent language models, in which it may vanish or explode.

    Two states of a contractive recurrent network that read the same text come together as λ^t: see --starts.

    Examples:
    lmtool gradients last "One day it rained, so the cat stayed in."
    lmtool gradients last "One day" --json
    lmtool gradients elman "One day it rained, so the cat stayed in." --starts
    """
    from lmtool.analysis.contraction import two_starts
    from lmtool.analysis.gradients import gradients as compute
    from lmtool.report import gradients as report

    check_new(output)
    if starts and token is not None:
        raise UsageError("--token names a loss, and two states have none", fix="omit --token, or --starts")
    if starts:
        pair = two_starts(run, text, seed)
        loaded, curves = pair.loaded, report.of_starts(pair)
        value = {"tokens": pair.pieces, **pair.contraction._asdict()}
    else:
        flow = compute(run, text, token, device=device)
        loaded, curves = flow.loaded, report.of_gradients(flow)
        value = {"tokens": flow.pieces, "target": flow.target, **flow.gradient._asdict()}
    describe(loaded, quiet)
    show_picture(partial(report.as_lines, curves), partial(report.as_page, curves), output, value if as_json else None)
