"""Gradient norms over the steps back to each state, as a curve: in a terminal, or on a page."""

import math
from collections.abc import Iterator

from rich.text import Text

from lmtool.inference.gradients import GradientFlow
from lmtool.printable import plain
from lmtool.report.charts import Line, line_chart
from lmtool.report.page import Section, figure, page, table
from lmtool.report.terminal import plot

X, Y = "steps back", "log10 of the gradient norm"


def _lines(flow: GradientFlow) -> list[Line]:
    """A line for each kind of state; zeros, which have no logarithm, are left out."""
    return [
        Line(name, [(k, math.log10(norm)) for k, norm in enumerate(norms) if norm], colour)
        for colour, (name, norms) in enumerate(flow.found.norms.items())
    ]


def _title(flow: GradientFlow) -> str:
    model = flow.loaded.model.describe()
    return f"{model}: gradients of the loss of {flow.target!r}, {flow.found.loss:.4f} nats"


def as_lines(flow: GradientFlow, width: int, *, ascii_only: bool = False) -> Iterator[str | Text]:
    """The curve, and the numbers below it: steps back, the piece read there, a norm for each kind of state."""
    yield _title(flow)
    yield ""
    yield f"{Y}, by {X}"
    yield from plot([(line.name, line.points) for line in _lines(flow)], width, ascii_only=ascii_only)
    yield ""
    names = list(flow.found.norms)
    pieces = [repr(piece) for piece in reversed(flow.pieces)]
    wide = max(map(len, ["token", *pieces]))
    yield "  ".join([f"{'back':>4}", f"{'token':{wide}}", *(f"{name:>14}" for name in names)])
    for k, piece in enumerate(pieces):
        norms = [flow.found.norms[name][k] for name in names]
        shown = ("not finite" if norm is None else f"{norm:.3e}" for norm in norms)
        yield "  ".join([f"{k:4}", f"{piece:{wide}}", *(f"{text:>14}" for text in shown)])


def as_page(flow: GradientFlow) -> str:
    """The curve as an HTML page that stands alone."""
    names = list(flow.found.norms)
    picture = line_chart(_lines(flow), x=X, y=Y, label="Gradient norm by steps back")
    rows = [
        [k, repr(piece), *(flow.found.norms[name][k] for name in names)]
        for k, piece in enumerate(reversed(flow.pieces))
    ]
    caption = (
        "Norm of the gradient of the loss in the states that many steps before the prediction. Norms of exactly zero "
        "are not drawn: a last layer is read at its own position alone."
    )
    numbers = table([X, "token read", *names], rows)
    lead = plain(f"{flow.loaded.run_path}, step {flow.loaded.step}")
    section = Section("How far back gradients reach", figure(picture, caption, numbers))
    return page(plain(_title(flow)), [section], lead=lead)
