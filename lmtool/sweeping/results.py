"""What came of a sweep: a row for each setting, with the deviation over seeds, and the page about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf, nan
from statistics import mean, stdev

from markupsafe import Markup

from lmtool.recipe.document import parse_scalar
from lmtool.report.charts import Line, LineChart, spread
from lmtool.report.page import COLOURS, Section, TableCell, figure, page, table
from lmtool.report.training import losses
from lmtool.run.history import RunHistory, finite_number
from lmtool.run.listing import main_metric
from lmtool.sweeping.folder import HEADING
from lmtool.sweeping.grid import Axes, GridPoint, name_of
from lmtool.tasks.results import PARTS_OF_OTHER_MODELS

LOWER = ("loss", "bits per byte")
"""Figures of which the lower is the better."""


def validated(history: RunHistory) -> tuple[str, float | None]:
    """The figure that the best checkpoint of a run was chosen by, with its name: of validation, never of test rows."""
    metric, chosen = str(history.recipe.get("evaluation.metric")), history.best_checkpoint_record or {}
    measured = history.results.get("", {})
    if measured.get("part") in PARTS_OF_OTHER_MODELS and metric != "loss":
        return main_metric(measured)
    value = finite_number(chosen.get("valid_loss" if metric == "loss" else metric))
    if metric != "loss" or history.bits_per_nat is None:
        return metric, value
    bits = finite_number(measured.get("bits_per_byte"))
    return "bits per byte", value * history.bits_per_nat if bits is None and value is not None else bits


def goodness(history: RunHistory) -> float:
    """What is the higher the better a run is by validation."""
    metric, value = validated(history)
    return -inf if value is None else -value if metric in LOWER else value


@dataclass
class PointResults:
    """A setting. runs: with each seed. failures: why some have failed."""

    choice: GridPoint
    runs: list[RunHistory] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def rank(self) -> tuple[bool, bool, float]:
        """The order of rows: those that have failed come last, those that were not trained to the end before them."""
        stopped = any(run.run.state != "finished" for run in self.runs)
        return not self.runs, stopped, -mean(map(goodness, self.runs)) if self.runs else 0.0

    def figures(self) -> dict[str, float | str | None]:
        """What is told of the setting: means over its runs, and the sample standard deviation of the first figure."""
        columns: dict[str, list[float]] = {}
        for run in self.runs:
            metric, value = validated(run)
            other, beside = main_metric({**(run.best_checkpoint_record or {}), "loss": None})
            last = {
                name: finite_number(run.last_record.get({"steps": "step"}.get(name, name)))
                for name in ("steps", "seconds")
            }
            for name, of in {other: beside, metric: value, **last}.items():
                columns.setdefault(name, []).extend([] if of is None else [of])
        first = validated(self.runs[0])[0] if self.runs else ""
        told: dict[str, float | str | None] = {first: None, "deviation": None} if first else {}
        told |= {name: mean(values) for name, values in columns.items() if values}
        if first and len(columns[first]) > 1:
            told["deviation"] = stdev(columns[first])
        return {**told, "seeds": len(self.runs), **({"failed": "; ".join(self.failures)} if self.failures else {})}

    def record(self) -> dict[str, object]:
        """As JSON values."""
        runs = [{"path": str(run.run.path), "value": validated(run)[1], "state": run.run.state} for run in self.runs]
        return {"values": dict(self.choice), **self.figures(), "runs": runs}


def rows_of(runs: Sequence[tuple[GridPoint, RunHistory | None, str]]) -> list[PointResults]:
    """A row for all runs whose choices differ in nothing but the seed, the best first. A text says why one failed."""
    rows: dict[tuple[tuple[str, str], ...], PointResults] = {}
    for choice, run, failure in runs:
        setting = {key: value for key, value in choice.items() if key != "seed"}
        row = rows.setdefault(tuple(setting.items()), PointResults(setting))
        row.runs += [] if run is None or failure else [run]
        row.failures += [failure] if failure else []
    return sorted(rows.values(), key=PointResults.rank)


def tabulated(rows: Sequence[PointResults]) -> tuple[list[str], list[list[TableCell]]]:
    """The rows as a table: its columns, and its cells."""
    cells: list[Mapping[str, TableCell]] = [{**row.choice, **row.figures()} for row in rows]
    columns = list(dict.fromkeys(chain(*(row.choice for row in rows), *cells)))
    return columns, [[row.get(column) for column in columns] for row in cells]


def sweep_page(title: str, rows: Sequence[PointResults], axes: Axes) -> str:
    """The page: the table, the figure against each key that has numbers, and the losses over each other."""
    columns, cells = tabulated(rows)
    sections = [Section(HEADING, table(columns, cells))]
    for key in axes:
        measured = [row for row in rows if row.runs and _number(row.choice.get(key, "")) is not None]
        if len({row.choice[key] for row in measured}) > 1:
            sections.append(Section(f"By {key}", _against(key, measured)))
    best = [row.runs[0] for row in rows if row.runs][:COLOURS]
    if drawn := losses(best):
        sections.append(Section(f"Losses, of one run of each of the {len(best)} best", drawn))
    return page(title, sections)


def _number(text: str) -> float | None:
    return finite_number(parse_scalar(text))


def _against(key: str, rows: Sequence[PointResults]) -> Markup:
    """The figure over the values of a key: a line for each setting of the others, paler ones a deviation away."""
    metric, lines = validated(rows[0].runs[0])[0], dict[str, list[tuple[float, float, float]]]()
    for row in rows:
        told = row.figures()
        x, y, deviation = (
            _number(row.choice[key]) or 0.0,
            finite_number(told[metric]) or 0.0,
            finite_number(told["deviation"]) or 0.0,
        )
        others = name_of({other: value for other, value in row.choice.items() if other != key})
        lines.setdefault(others if len(row.choice) > 1 else metric, []).append((x, y, deviation))
    drawn = []
    for colour, (others, points) in enumerate(list(lines.items())[:COLOURS]):
        points.sort()
        drawn.append(Line(others, [point[:2] for point in points], colour))
        if any(deviation for *_, deviation in points):
            below, above = ([(x, y + sign * deviation) for x, y, deviation in points] for sign in (-1, 1))
            drawn.append(Line("± deviation", [*below, (points[0][0], nan), *above], colour, pale=True))
    xs = sorted({x for points in lines.values() for x, *_ in points})
    chart = LineChart(drawn, key, metric, f"{metric} by {key}", column=1, log=spread(xs))
    numbers = table(["others", key, metric, "deviation"], [[n, *point] for n, of in lines.items() for point in of])
    caption = f"{metric} of the best checkpoint on validation data; pale: a standard deviation over seeds."
    return figure(chart.for_page(), caption, numbers)
