"""Draws gradient norms by steps back, and the distance of two states by step, in a terminal or on a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lmtool.evaluation.gradients import GradientFlow, StateContraction
from lmtool.printable import printable
from lmtool.report.charts import Line, LineChart, Point
from lmtool.report.page import Section, TableCell, figure, page, switchable_panels, table
from lmtool.report.terminal import plot_lines
from lmtool.runs.load import LoadedModel

MAX_DRAWN_VALIDATIONS = 5
"""Validations of a run that a figure shows, spread over its steps."""

MAX_PRINTED_STEPS = 60
"""Steps whose numbers a terminal lists."""

MAX_STATE_KINDS = 8
"""Kinds of states that a figure shows."""

X, Y = "steps back", "log10 of the gradient norm"


def _to_log_points(norms: Sequence[float | None]) -> list[Point]:
    """Returns points of the logarithms of norms by steps back; leaves out zeros and None."""
    return [(k, math.log10(norm)) for k, norm in enumerate(norms) if norm]


class ChartAndTable(NamedTuple):
    """Measurements at each step, as a chart and as numbers.

    heading: that of the picture on a page. caption: text below the picture, or below the numbers in a terminal.
    columns, rows: a step, a token, and the measurements there, None where they are not finite.
    """

    title: str
    heading: str
    chart: LineChart
    caption: str
    columns: list[str]
    rows: list[list[TableCell]]


def plot_gradient_flow_through_time(flows: Mapping[str, GradientFlow]) -> ChartAndTable:
    """Returns the norms of gradients over the steps back.

    flows: of one text, by the name of each run; of several runs that name stands before the states.
    """
    flow = next(iter(flows.values()))
    norms = {
        name if len(flows) == 1 else f"{run}, {name}": of_states
        for run, one in flows.items()
        for name, of_states in one.gradient.norms.items()
    }
    losses = " and ".join(f"{one.gradient.loss:.4f}" for one in flows.values())
    lines = [Line(name, _to_log_points(of_states), colour) for colour, (name, of_states) in enumerate(norms.items())]
    return ChartAndTable(
        f"gradients of the loss of {flow.target!r}, {losses} nats",
        "How far back gradients reach",
        LineChart(lines, x=X, y=Y, label="Gradient norm by steps back"),
        "Norm of the gradient of the loss in the states that many steps before the prediction: what a small change of "
        "them would change. In a recurrent network whose every step shrinks it by λ it falls as λ^k, a straight line "
        "here; the cells of an LSTM shrink only as its forget gates say. Norms of zero are not drawn: a last layer is "
        "read at its own position alone.",
        ["back", "token", *norms],
        [
            [k, repr(piece), *row]
            for k, (piece, *row) in enumerate(zip(flow.pieces[::-1], *norms.values(), strict=True))
        ],
    )


def plot_contraction(contraction: StateContraction) -> ChartAndTable:
    """Returns the distance of two states over the tokens that they read."""
    tokens, distances, rate, bounds, largest = contraction
    lines = [Line("measured", _to_log_points(distances)), Line("λ^t", _to_log_points(bounds), 1, dashed=True)]
    pieces = ["", *map(repr, tokens)]
    return ChartAndTable(
        f"two states that read the same text, λ = {rate:.4f} a step",
        "How fast the first state is forgotten",
        LineChart(lines, x="step", y="log10 of the distance", label="Distance of two states by step"),
        "Distance of the states from two starts, zeros and random numbers, after each token; and λ^t times the first "
        "distance, where λ is the geometric mean of the ratios from step to step. Below 1e-13 of the first distance it "
        "is rounding. Beside it the largest singular value of the Jacobian of each step: where it is below 1, the step "
        "brings all states near the first one closer; above 1 some direction is stretched, though most may shrink.",
        ["step", "token", "distance", "λ^t distance", "singular value"],
        [list(row) for row in zip(range(len(pieces)), pieces, distances, bounds, ["", *largest], strict=True)],
    )


def format_curve_lines(
    curves: ChartAndTable, loaded: LoadedModel, width: int, *, ascii_only: bool = False
) -> Iterator[str | Text]:
    """Formats the chart and its numbers as lines of text. loaded: the model that was measured."""
    chart = curves.chart
    yield from (f"{loaded.model.description}: {curves.title}", "", f"{chart.y}, by {chart.x}")
    yield from plot_lines([(line.name, line.points) for line in chart.lines], width, ascii_only=ascii_only)
    yield ""
    first, second, *names = curves.columns
    wide = max(map(cell_len, [second, *(str(row[1]) for row in curves.rows)]))
    yield "  ".join([f"{first:>4}", set_cell_size(second, wide), *(f"{name:>14}" for name in names)])
    # of a long text a part, evenly
    for step, piece, *numbers in curves.rows[:: math.ceil(len(curves.rows) / MAX_PRINTED_STEPS)]:
        shown = (f"{one:.3e}" if isinstance(one, float) else "not finite" if one is None else one for one in numbers)
        yield "  ".join([f"{step:4}", set_cell_size(str(piece), wide), *(f"{text:>14}" for text in shown)])
    yield from ("", *wrap(curves.caption, width))


def render_curves_page(curves: ChartAndTable, loaded: LoadedModel) -> str:
    """Renders the chart as a complete HTML page."""
    numbers = table(curves.columns, curves.rows)
    section = Section(curves.heading, figure(curves.chart.page_svg(), curves.caption, numbers))
    lead = printable(f"{loaded.run_path}, step {loaded.step}")
    return page(printable(f"{loaded.model.description}: {curves.title}"), [section], lead=lead)


def render_gradient_figure(
    norms_by_step: Mapping[int, Mapping[str, Sequence[float | None]]], radio_group_name: str
) -> Markup:
    """Renders the norms of some validations, in a panel for each kind of state.

    norms_by_step: norms by kind, for each step. radio_group_name: unique on the page.
    """
    steps = list(norms_by_step)
    last = len(steps) - 1
    shown = sorted({steps[i * last // max(1, MAX_DRAWN_VALIDATIONS - 1)] for i in range(MAX_DRAWN_VALIDATIONS)})
    kinds = list(norms_by_step[steps[-1]])
    drawn = kinds if len(kinds) <= MAX_STATE_KINDS else [*kinds[: MAX_STATE_KINDS - 1], kinds[-1]]
    panels = {}
    for kind in drawn:
        lines = [
            Line(f"step {step}", _to_log_points(norms_by_step[step].get(kind, ())), i) for i, step in enumerate(shown)
        ]
        panels[kind] = LineChart(lines, X, Y, f"Gradient norm in {kind} by steps back", x_column=2).page_svg()
    norms = ((step, kind, norms_by_step[step].get(kind, ())) for step in shown for kind in drawn)
    rows = [[step, kind, k, norm] for step, kind, of_kind in norms for k, norm in enumerate(of_kind)]
    caption = "Norm of the gradient of one validation loss in the states that many steps before the prediction."
    numbers = table(["step", "states", X, "norm"], rows)
    return figure(switchable_panels(radio_group_name, panels), caption, numbers)
