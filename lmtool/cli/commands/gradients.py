"""`lmtool gradients`: how far back the gradient of a loss reaches."""

from functools import partial

from lmtool.cli.arguments import Device, HtmlFile, Json, Quiet, RunName
from lmtool.cli.help import argument, flag, option
from lmtool.cli.output import check_new, describe, show_picture, warn_of_file_names
from lmtool.errors import UsageError


def gradients(
    run: RunName,
    text: str = argument("SENTENCE", "A text itself, or -; the loss is that of its last token.", ..., shown=True),
    token: int | None = option("N", "The token whose loss it is, counted from 1.", shown="the last one", min=1),
    source: str | None = option("TEXT", "For a decoder that answers sources: the source that SENTENCE answers."),
    beside: list[str] | None = option("RUN", "Another run with the same tokenizer, drawn beside it. May be repeated."),
    starts: bool = flag("Show instead how states that start from zeros and from random numbers converge.", "--starts"),
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
    lmtool gradients elman "One day it rained, so the cat stayed in." --beside lstm
    lmtool gradients elman "One day it rained, so the cat stayed in." --starts
    """
    from lmtool.compute.device import configure_compute
    from lmtool.evaluation.gradients import compute_gradient_flow_of_text, measure_state_contraction_on_text
    from lmtool.generation.prompts import resolve_stdin_text
    from lmtool.interop.resolve import resolve_reference
    from lmtool.report import gradients as report
    from lmtool.runs.load import load_run

    check_new(output)
    of_gradients = {"--token": token, "--source": source, "--beside": beside}
    if starts and (named := next((n for n, v in of_gradients.items() if v), None)):
        raise UsageError(f"{named} cannot be combined with --starts", fix=f"omit {named}, or --starts")
    warn_of_file_names([text] if source is None else [text, source])
    text = resolve_stdin_text(text)
    loaded = load_run(resolve_reference(run), configure_compute(device, "float32"))
    describe(loaded, quiet)
    value: dict[str, object]
    if starts:
        contraction = measure_state_contraction_on_text(loaded, text, seed)
        value, curves = contraction._asdict(), report.plot_contraction(contraction)
    else:
        flow = compute_gradient_flow_of_text(loaded, text, token, source)
        value = {"tokens": flow.pieces, "target": flow.target, **flow.gradient._asdict()}
        flows = {loaded.run_path.name: flow}
        for name in beside or ():
            other = load_run(resolve_reference(name), configure_compute(device, "float32"))
            describe(other, quiet)
            name = other.run_path.name if other.run_path.name not in flows else name
            flows[name] = compute_gradient_flow_of_text(other, text, token, source)
            if flows[name].pieces != flow.pieces:
                what = f"{name} reads other tokens than {run}, so that their steps are not the same"
                raise UsageError(what, where="--beside", fix="name a run with the same tokenizer")
        if beside:
            value["beside"] = {name: flows[name].gradient._asdict() for name in [*flows][1:]}
        curves = report.plot_gradient_flow_through_time(flows)
    lines, page = partial(report.format_curve_lines, curves, loaded), partial(report.render_curves_page, curves, loaded)
    show_picture(lines, page, output, value if as_json else None)
