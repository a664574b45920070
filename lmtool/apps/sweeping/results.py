"""Results of a sweep: a row for each setting, with the deviation over seeds, and the page about them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import inf, nan
from statistics import mean, stdev
from typing import NamedTuple

from markupsafe import Markup

from lmtool.apps.sweeping.folder import SWEEP_PAGE_HEADING
from lmtool.apps.sweeping.grid import Axes, GridPoint, name_grid_point
from lmtool.recipe.document import parse_plain_scalar
from lmtool.report.charts import Line, LineChart, needs_log_scale
from lmtool.report.page import N_COLOURS, Section, TableCell, figure, page, table
from lmtool.report.training import render_loss_figure
from lmtool.runs.history import RunHistory, finite_number
from lmtool.runs.listing import main_metric
from lmtool.runs.uncertainty import PARTS_OF_OTHER_MODELS

LOWER_IS_BETTER = ("loss", "bits per byte")
"""Figures whose lower values are better."""


def get_validation_metric(history: RunHistory) -> tuple[str, float | None]:
    """Returns the name and value of the figure that chose the best checkpoint: of validation, never of test rows."""
    metric, chosen = str(history.recipe.get("evaluation.metric")), history.best_checkpoint_or_lowest_loss_record or {}
    measured = history.results.get("", {})
    if measured.get("part") in PARTS_OF_OTHER_MODELS and metric != "loss":
        return main_metric(measured)
    value = finite_number(chosen.get("valid_loss" if metric == "loss" else metric))
    if metric != "loss" or history.bits_per_byte_per_nat is None:
        return metric, value
    bits = finite_number(measured.get("bits_per_byte"))
    return "bits per byte", value * history.bits_per_byte_per_nat if bits is None and value is not None else bits


def score_by_validation(history: RunHistory) -> float:
    """Returns a score of a run that is higher for better validation."""
    metric, value = get_validation_metric(history)
    return -inf if value is None else -value if metric in LOWER_IS_BETTER else value


@dataclass
class GridPointResults:
    """A setting of the keys. runs: one for each seed. failures: why runs have failed."""

    point: GridPoint
    runs: list[RunHistory] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def sort_key(self) -> tuple[bool, bool, float]:
        """Returns a key that sorts rows by score, then those that were stopped early, then those that failed."""
        was_stopped = any(run.run.state != "finished" for run in self.runs)
        return not self.runs, was_stopped, -mean(map(score_by_validation, self.runs)) if self.runs else 0.0

    def average_over_seeds(self) -> dict[str, float | str | None]:
        """Returns means over the runs, and the sample standard deviation of the validation metric."""
        columns: dict[str, list[float]] = {}
        for run in self.runs:
            metric, value = get_validation_metric(run)
            other_metric, other_value = main_metric({**(run.best_checkpoint_or_lowest_loss_record or {}), "loss": None})
            steps, seconds = (finite_number(run.last_record.get(name)) for name in ("step", "seconds"))
            figures = {other_metric: other_value, metric: value, "steps": steps, "seconds": seconds}
            for name, number in figures.items():
                columns.setdefault(name, []).extend([] if number is None else [number])
        first = get_validation_metric(self.runs[0])[0] if self.runs else ""
        summary: dict[str, float | str | None] = {first: None, "deviation": None} if first else {}
        summary |= {name: mean(values) for name, values in columns.items() if values}
        if first and len(columns[first]) > 1:
            summary["deviation"] = stdev(columns[first])
        return {**summary, "seeds": len(self.runs), **({"failed": "; ".join(self.failures)} if self.failures else {})}

    def to_json_values(self) -> dict[str, object]:
        """Returns the results as JSON values."""
        runs = [
            {"path": str(run.run.path), "value": get_validation_metric(run)[1], "state": run.run.state}
            for run in self.runs
        ]
        return {"values": dict(self.point), **self.average_over_seeds(), "runs": runs}


class RunOutcome(NamedTuple):
    """A run of a sweep: its grid point, its history if it has one, and why it failed, or ""."""

    point: GridPoint
    history: RunHistory | None
    failure: str


def group_and_rank_by_grid_point(runs: Sequence[RunOutcome]) -> list[GridPointResults]:
    """Groups runs that differ only in the seed, and sorts the groups, the best first."""
    rows: dict[tuple[tuple[str, str], ...], GridPointResults] = {}
    for choice, run, failure in runs:
        setting = {key: value for key, value in choice.items() if key != "seed"}
        row = rows.setdefault(tuple(setting.items()), GridPointResults(setting))
        row.runs += [] if run is None or failure else [run]
        row.failures += [failure] if failure else []
    return sorted(rows.values(), key=GridPointResults.sort_key)


def make_results_table(rows: Sequence[GridPointResults]) -> tuple[list[str], list[list[TableCell]]]:
    """Returns the columns and the cells of a table of the results."""
    cells: list[Mapping[str, TableCell]] = [{**row.point, **row.average_over_seeds()} for row in rows]
    columns = list(dict.fromkeys(chain(*(row.point for row in rows), *cells)))
    return columns, [[row.get(column) for column in columns] for row in cells]


def render_sweep_page(title: str, rows: Sequence[GridPointResults], axes: Axes) -> str:
    """Renders the table, a chart of the metric over each key that has numbers, and the losses of the best runs."""
    columns, cells = make_results_table(rows)
    sections = [Section(SWEEP_PAGE_HEADING, table(columns, cells))]
    for key in axes:
        measured = [row for row in rows if row.runs and _parse_number(row.point.get(key, "")) is not None]
        if len({row.point[key] for row in measured}) > 1:
            sections.append(Section(f"By {key}", _plot_against_key(key, measured)))
    best = [row.runs[0] for row in rows if row.runs][:N_COLOURS]
    if drawn := render_loss_figure(best):
        sections.append(Section(f"Losses, of one run of each of the {len(best)} best", drawn))
    return page(title, sections)


def _parse_number(text: str) -> float | None:
    return finite_number(parse_plain_scalar(text))


def _plot_against_key(key: str, rows: Sequence[GridPointResults]) -> Markup:
    """Renders the metric over a key: a line for each setting of the other keys, and pale ones a deviation away."""
    metric, lines = get_validation_metric(rows[0].runs[0])[0], dict[str, list[tuple[float, float, float]]]()
    for row in rows:
        summary = row.average_over_seeds()
        x = _parse_number(row.point[key]) or 0.0
        y, deviation = (finite_number(summary[name]) or 0.0 for name in (metric, "deviation"))
        others = name_grid_point({other: value for other, value in row.point.items() if other != key})
        lines.setdefault(others if len(row.point) > 1 else metric, []).append((x, y, deviation))
    drawn = []
    for colour, (others, points) in enumerate(list(lines.items())[:N_COLOURS]):
        points.sort()
        drawn.append(Line(others, [point[:2] for point in points], colour))
        if any(deviation for *_, deviation in points):
            below, above = ([(x, y + sign * deviation) for x, y, deviation in points] for sign in (-1, 1))
            drawn.append(Line("± deviation", [*below, (points[0][0], nan), *above], colour, pale=True))
    xs = sorted({x for points in lines.values() for x, *_ in points})
    chart = LineChart(drawn, key, metric, f"{metric} by {key}", x_column=1, log_x=needs_log_scale(xs))
    numbers = table(["others", key, metric, "deviation"], [[n, *point] for n, of in lines.items() for point in of])
    caption = f"{metric} of the best checkpoint on validation data; pale: a standard deviation over seeds."
    return figure(chart.page_svg(), caption, numbers)
