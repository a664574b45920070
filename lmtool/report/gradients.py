"""Gradient norms by steps back, and the distance of two states by step, as curves: in a terminal, or on a page."""

import math
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import NamedTuple

from markupsafe import Markup
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from lmtool.analysis.gradients import Contraction, GradientFlow
from lmtool.inference.load import LoadedModel
from lmtool.printable import printable
from lmtool.report.charts import Line, LineChart, Point
from lmtool.report.page import Section, TableCell, figure, page, table, views
from lmtool.report.terminal import plot

CURVES = 5
"""Validations of a run that are drawn, spread over its steps."""

MOST_ROWS = 60
"""Steps whose numbers are listed in a terminal."""

MOST_KINDS = 8
"""Kinds of states of a run that are drawn."""

X, Y = "steps back", "log10 of the gradient norm"


def _points(norms: Sequence[float | None]) -> list[Point]:
    """Logarithms of norms by steps back; zeros, which have none, and what is not finite are left out."""
    return [(k, math.log10(norm)) for k, norm in enumerate(norms) if norm]


class Curves(NamedTuple):
    """What is measured at each step, as lines and as numbers.

    heading, caption: of the picture on a page; the caption also stands below the numbers in a terminal.
    columns, rows: a number, a token, and what is measured there, None where it is not finite.
    """

    title: str
    heading: str
    chart: LineChart
    caption: str
    columns: list[str]
    rows: list[list[TableCell]]


def of_gradients(flow: GradientFlow) -> Curves:
    """Norms over the steps back."""
    norms = flow.gradient.norms
    lines = [Line(name, _points(of_states), colour) for colour, (name, of_states) in enumerate(norms.items())]
    return Curves(
        f"gradients of the loss of {flow.target!r}, {flow.gradient.loss:.4f} nats",
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


def of_starts(starts: Contraction) -> Curves:
    """The distance of two states over the tokens that they read."""
    tokens, distances, rate, bounds, largest = starts
    lines = [Line("measured", _points(distances)), Line("λ^t", _points(bounds), 1, dashed=True)]
    pieces = ["", *map(repr, tokens)]
    return Curves(
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


def as_lines(curves: Curves, loaded: LoadedModel, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The curves, and the numbers below them. loaded: what they are of."""
    chart = curves.chart
    yield from (f"{loaded.model.description}: {curves.title}", "", f"{chart.y}, by {chart.x}")
    yield from plot([(line.name, line.points) for line in chart.lines], width, ascii_only=ascii_only)
    yield ""
    first, second, *names = curves.columns
    wide = max(map(cell_len, [second, *(str(row[1]) for row in curves.rows)]))
    yield "  ".join([f"{first:>4}", set_cell_size(second, wide), *(f"{name:>14}" for name in names)])
    # of a long text a part, evenly
    for step, piece, *numbers in curves.rows[:: math.ceil(len(curves.rows) / MOST_ROWS)]:
        shown = (f"{one:.3e}" if isinstance(one, float) else "not finite" if one is None else one for one in numbers)
        yield "  ".join([f"{step:4}", set_cell_size(str(piece), wide), *(f"{text:>14}" for text in shown)])
    yield from ("", *wrap(curves.caption, width))


def as_page(curves: Curves, loaded: LoadedModel) -> str:
    """The curves as an HTML page that stands alone."""
    numbers = table(curves.columns, curves.rows)
    section = Section(curves.heading, figure(curves.chart.for_page(), curves.caption, numbers))
    lead = printable(f"{loaded.run_path}, step {loaded.step}")
    return page(printable(f"{loaded.model.description}: {curves.title}"), [section], lead=lead)


def training_figure(logged: Mapping[int, Mapping[str, Sequence[float | None]]], name: str) -> Markup:
    """The curves of some validations of a run, for each kind of state. logged: by step. name: unique on the page."""
    steps = list(logged)
    last = len(steps) - 1
    shown = sorted({steps[i * last // max(1, CURVES - 1)] for i in range(CURVES)})
    kinds = list(logged[steps[-1]])
    drawn = kinds if len(kinds) <= MOST_KINDS else [*kinds[: MOST_KINDS - 1], kinds[-1]]
    panels = {}
    for kind in drawn:
        lines = [Line(f"step {step}", _points(logged[step].get(kind, ())), i) for i, step in enumerate(shown)]
        panels[kind] = LineChart(lines, X, Y, f"Gradient norm in {kind} by steps back", column=2).for_page()
    rows = [
        [step, kind, k, norm] for step in shown for kind in drawn for k, norm in enumerate(logged[step].get(kind, ()))
    ]
    caption = "Norm of the gradient of one validation loss in the states that many steps before the prediction."
    numbers = table(["step", "states", X, "norm"], rows)
    return figure(views(name, panels), caption, numbers)
