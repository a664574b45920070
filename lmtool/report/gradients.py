"""Gradient norms over the steps back to each state, as a curve: in a terminal, or on a page."""

import math
from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup
from rich.text import Text

from lmtool.analysis.gradients import GradientFlow
from lmtool.printable import plain
from lmtool.report.charts import Line, LineChart, Point
from lmtool.report.page import Section, figure, page, table, views
from lmtool.report.terminal import plot

CURVES = 5
"""Validations of a run that are drawn, spread over its steps."""

MOST_KINDS = 8
"""Kinds of states of a run that are drawn."""

X, Y = "steps back", "log10 of the gradient norm"


def _points(norms: Sequence[float | None]) -> list[Point]:
    """Logarithms of norms by steps back; zeros, which have none, and what is not finite are left out."""
    return [(k, math.log10(norm)) for k, norm in enumerate(norms) if norm]


def _lines(flow: GradientFlow) -> list[Line]:
    """A line for each kind of state."""
    return [Line(name, _points(norms), colour) for colour, (name, norms) in enumerate(flow.gradient.norms.items())]


def _title(flow: GradientFlow) -> str:
    model = flow.loaded.model.description
    return f"{model}: gradients of the loss of {flow.target!r}, {flow.gradient.loss:.4f} nats"


def as_lines(flow: GradientFlow, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The curve, and the numbers below it: steps back, the piece read there, a norm for each kind of state."""
    yield _title(flow)
    yield ""
    yield f"{Y}, by {X}"
    yield from plot([(line.name, line.points) for line in _lines(flow)], width, ascii_only=ascii_only)
    yield ""
    names = list(flow.gradient.norms)
    pieces = [repr(piece) for piece in reversed(flow.pieces)]
    wide = max(map(len, ["token", *pieces]))
    yield "  ".join([f"{'back':>4}", f"{'token':{wide}}", *(f"{name:>14}" for name in names)])
    for k, piece in enumerate(pieces):
        norms = [flow.gradient.norms[name][k] for name in names]
        shown = ("not finite" if norm is None else f"{norm:.3e}" for norm in norms)
        yield "  ".join([f"{k:4}", f"{piece:{wide}}", *(f"{text:>14}" for text in shown)])


def as_page(flow: GradientFlow) -> str:
    """The curve as an HTML page that stands alone."""
    names = list(flow.gradient.norms)
    picture = LineChart(_lines(flow), x=X, y=Y, label="Gradient norm by steps back")
    rows = [
        [k, repr(piece), *(flow.gradient.norms[name][k] for name in names)]
        for k, piece in enumerate(reversed(flow.pieces))
    ]
    caption = (
        "Norm of the gradient of the loss in the states that many steps before the prediction. Norms of exactly zero "
        "are not drawn: a last layer is read at its own position alone."
    )
    numbers = table([X, "token read", *names], rows)
    lead = plain(f"{flow.loaded.run_path}, step {flow.loaded.step}")
    section = Section("How far back gradients reach", figure(picture.for_page(), caption, numbers))
    return page(plain(_title(flow)), [section], lead=lead)


def training_figure(logged: Mapping[int, Mapping[str, Sequence[float | None]]], name: str) -> Markup:
    """The curves of some validations of a run, for each kind of state. logged: by step. name: unique on the page."""
    steps = list(logged)
    last = len(steps) - 1
    shown = sorted({steps[i * last // max(1, CURVES - 1)] for i in range(CURVES)})
    kinds = list(logged[steps[-1]])
    drawn = kinds if len(kinds) <= MOST_KINDS else [*kinds[: MOST_KINDS - 1], kinds[-1]]
    panels = {
        kind: LineChart(
            [Line(f"step {step}", _points(logged[step].get(kind, ())), i) for i, step in enumerate(shown)],
            x=X,
            y=Y,
            label=f"Gradient norm in {kind} by steps back",
            column=2,
        ).for_page()
        for kind in drawn
    }
    rows = [
        [step, kind, k, norm] for step in shown for kind in drawn for k, norm in enumerate(logged[step].get(kind, ()))
    ]
    caption = "Norm of the gradient of one validation loss in the states that many steps before the prediction."
    numbers = table(["step", "states", X, "norm"], rows)
    return figure(views(name, panels), caption, numbers)
