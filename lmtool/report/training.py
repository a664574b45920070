"""Renders the page about runs: losses, results, samples, recipes and how they were trained."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lmtool.printable import printable
from lmtool.report.charts import HeatMap, HorizontalLine, Line, LineChart, RingMark, needs_log_scale
from lmtool.report.gradients import render_gradient_figure
from lmtool.report.page import (
    Section,
    TableCell,
    escape_controls,
    facts,
    figure,
    page,
    render,
    switchable_panels,
    table,
    write_page,
)
from lmtool.runs.directory import REPORT, Run
from lmtool.runs.history import (
    RunHistory,
    collect_summary_values,
    downsample_by_averaging,
    explain_indistinguishable_scores,
    find_differing_recipe_values,
    finite_number,
)
from lmtool.runs.listing import describe_fingerprints_and_lineage, validation_part
from lmtool.runs.log import LogRecord
from lmtool.runs.uncertainty import PARTS_OF_OTHER_MODELS, confidence_interval_95, effective_sample_size

MAX_CONFUSION_CLASSES = 30
"""Classes that a confusion matrix shows, those with the most rows."""

RUN_PAGE_HEADING = "How it was trained"
"""Heading that all pages about runs have."""

TRAINING_ROWS = "the rows trained on"
"""Name of the rows that are validated if none are held out."""

PROGRESS_AXES = {"step": ("Steps", "steps"), "tokens": ("Tokens", "tokens"), "seconds": ("Time", "seconds of training")}
"""Numbers of the records that losses are plotted over: title of the chart and name of its axis."""

MAX_SAMPLES = 40
"""Samples of a run that a page shows, spread over its steps."""

SPEED_CHARTS = {
    "lr": ("rate", "Learning rate", "learning rate"),
    "grad_norm": ("norm", "Gradient norm", "norm before clipping"),
    "tokens_per_second": ("speed", "Speed", "tokens per second, padding included"),
    "mfu": ("utilization", "Utilization", "model FLOPs utilization"),
}
"""Charts over steps, by number of the records: column of their table, title, and name of the axis."""


def write_run_page(run: Run) -> Path:
    """Writes the page of a run into its directory and returns its path. Raises LmtoolError."""
    path = run.path / REPORT
    write_page(path, render_runs_page([RunHistory.from_run(run)]))
    return path


def render_runs_page(histories: Sequence[RunHistory], *, refresh_seconds: int | None = None) -> str:
    """Renders a page about one run, or about several beside each other. refresh_seconds: see `page`."""
    several = len(histories) > 1
    title = f"{len(histories)} runs" if several else printable(histories[0].name)
    loss_figure = render_loss_figure(histories)
    sections = [Section("Loss", loss_figure)] if loss_figure else []
    sections += _render_validation_metric_charts(histories)
    caption = "Peak learning rate by schedule, the gradient's norm, and tokens computed per second."
    plotted = _select_records(histories)
    sections += _render_charts_over_steps("Rate, gradient and speed", "pace", plotted, SPEED_CHARTS, caption)
    if several:
        sections.append(Section("Beside each other", _render_run_comparison(histories)))
    for colour, history in enumerate(histories):
        of = f" of {printable(history.name)}" if several else ""
        for task, results in history.results.items():
            named = f" {task}" if task else ""
            sections.append(Section(f"Results{named}{of}", _render_results(results)))
        if history.gradient_norms:
            drawn = render_gradient_figure(history.gradient_norms, f"gradients-{colour}")
            sections.append(Section(f"How far back gradients reach{of}", drawn))
        if samples := history.samples:
            if (n := len(samples)) > MAX_SAMPLES:
                samples = [samples[i * (n - 1) // (MAX_SAMPLES - 1)] for i in range(MAX_SAMPLES)]
            newest_first = [(one["step"], one.get("prompt") or "", one.get("text") or "") for one in reversed(samples)]
            sections.append(Section(f"Samples{of}", render("samples.html", rows=newest_first)))
        values = table(
            ["key", "value"], [[key, _format_value_as_in_recipe(value)] for key, value in history.recipe.items()]
        )
        sections.append(Section(f"Recipe{of}", render("recipe.html", numbers=values)))
        sections.append(Section(f"{RUN_PAGE_HEADING}{of}", _render_provenance_and_sessions(history)))
    state = f"{history.run.info.summary}; {history.run.state}, step {history.last_record.get('step', 0)}"
    return page(title, sections, lead="" if several else state, refresh_seconds=refresh_seconds)


@dataclass(frozen=True)
class _PlottedRun:
    """A run in a chart.

    records: those that the chart shows.
    colour: index of its colour.
    loss_factor: factor that converts losses from nats to the unit of the chart.
    """

    history: RunHistory
    records: Sequence[LogRecord]
    colour: int
    loss_factor: float = 1.0

    def value(self, record: LogRecord, name: str) -> float | None:
        """Returns a number of a record, and losses in the unit of the chart."""
        value = finite_number(record.get(name))
        return value if value is None or name not in ("loss", "valid_loss") else value * self.loss_factor

    def points(self, x: str, y: str, records: Sequence[LogRecord] | None = None) -> list[tuple[float, float]]:
        """Returns the points of records, by default all of the chart, that have both numbers."""
        pairs = ((self.value(one, x), self.value(one, y)) for one in (self.records if records is None else records))
        return [(left, up) for left, up in pairs if left is not None and up is not None]


def _select_records(histories: Sequence[RunHistory]) -> list[_PlottedRun]:
    return [_PlottedRun(history, downsample_by_averaging(history.records), i) for i, history in enumerate(histories)]


def _render_records_table(drawn: Sequence[_PlottedRun], key_by_column: Mapping[str, str]) -> Markup:
    """Renders a table with a row for each record. key_by_column: the key of each column in the records."""
    several = len(drawn) > 1
    rows = [
        [*([part.history.name] if several else []), *(part.value(record, name) for name in key_by_column.values())]
        for part in drawn
        for record in part.records
    ]
    return table([*(["run"] if several else []), *key_by_column], rows)


def render_loss_figure(histories: Sequence[RunHistory]) -> Markup:
    """Renders a figure of the training and validation losses of runs, or "" if no run has logged two steps."""
    drawn = _select_records(histories)
    factors = [history.bits_per_byte_per_nat for history in histories]
    in_bits = all(factor is not None for factor in factors)
    if in_bits:
        drawn = [replace(part, loss_factor=factor or 1.0) for part, factor in zip(drawn, factors, strict=True)]
    units = {history.loss_unit for history in histories}
    unit = "bits per byte" if in_bits else f"nats per {units.pop() if len(units) == 1 else 'target'}"
    several = len(histories) > 1
    charts, levels = {}, _list_reference_bits_per_byte(histories) if in_bits else []
    for column, (x, (name, axis)) in enumerate(PROGRESS_AXES.items(), int(several)):
        lines = [line for part in drawn for line in _make_loss_lines(part, x, several)]
        label = f"Training and validation loss in {unit} over {axis}"
        marks = _mark_best_checkpoints(drawn, x, "valid_loss")
        charts[name] = LineChart(lines, axis, unit, label, levels, marks, column)
    heights = charts["Steps"].y_values
    is_log = needs_log_scale(heights)
    charts = {name: replace(chart, log_y=is_log) for name, chart in charts.items()}
    if min(heights, default=0.0) > 0:
        charts[f"Steps, {'linear' if is_log else 'logarithmic'}"] = replace(charts["Steps"], log_y=not is_log)
    panels = _render_charts(charts)
    if not panels:
        return Markup("")
    held_out = [validation_part(history.recipe) == "validation" for history in histories]
    validated = "validation" if any(held_out) else TRAINING_ROWS
    columns = {**{x: x for x in PROGRESS_AXES}, "training": "loss", validated: "valid_loss"}
    of = "the validation part" if all(held_out) else f"{TRAINING_ROWS}, as none are held out"
    of = f"the validation part, or of {of}" if any(held_out) and not all(held_out) else of
    caption = f"Loss in {unit}: of the steps, before their update, and of {of}."
    if any(history.best_checkpoint_or_lowest_loss_record for history in histories):
        caption += " A ring marks the best checkpoint."
    if is_log:
        caption += " The axis is logarithmic."
    merged = max(len(part.history.records) / len(part.records) for part in drawn if part.records)
    if merged > 1.01:
        caption += " Each point of the training loss is a mean of several steps."
    if in_bits:
        caption += " Bits per byte compare models with different tokenizers."
    return figure(switchable_panels("loss", panels), caption, _render_records_table(drawn, columns))


def _render_charts(charts: Mapping[str, LineChart]) -> dict[str, Markup]:
    """Renders the charts that have lines."""
    return {name: chart.page_svg() for name, chart in charts.items() if chart.has_lines}


def _make_loss_lines(run: _PlottedRun, x: str, several: bool) -> list[Line]:
    trained, valid = run.points(x, "loss"), run.points(x, "valid_loss")
    if not several:
        held_out = validation_part(run.history.recipe) == "validation"
        return [Line("training", trained, 0, pale=True), Line("validation" if held_out else TRAINING_ROWS, valid, 1)]
    name = run.history.name
    return [Line(f"{name}, training", trained, run.colour, pale=True), Line(name, valid, run.colour)]


def _mark_best_checkpoints(drawn: Sequence[_PlottedRun], x: str, y: str) -> list[RingMark]:
    """Returns rings around the best checkpoints."""
    several, marks = len(drawn) > 1, []
    for part in drawn:
        chosen = part.history.best_checkpoint_or_lowest_loss_record or {}
        record = next((record for record in part.records if record.get("step") == chosen.get("step")), chosen)
        for point in part.points(x, y, [record]):
            name = "best checkpoints" if several else f"best checkpoint, step {record['step']:,}"
            marks.append(RingMark(name, point, part.colour if several or y != "valid_loss" else 1))
    return marks


def _list_reference_bits_per_byte(histories: Sequence[RunHistory]) -> list[HorizontalLine]:
    """Returns the bits per byte of the best possible model and of n-gram models, each once."""
    names = {"limit_bits_per_byte": ("best possible model", 2), "ngram_bits_per_byte": ("5-gram model", 3)}
    levels = (
        HorizontalLine(f"{name} {value:.3f}", value, colour)
        for key, (name, colour) in names.items()
        for history in histories
        if (value := finite_number(history.results.get("", {}).get(key))) is not None
    )
    return list(dict.fromkeys(levels))


def _render_validation_metric_charts(histories: Sequence[RunHistory]) -> list[Section]:
    """Renders charts of the metrics of validations, if there are any."""
    names = list(dict.fromkeys(name for history in histories for name in history.task_metrics))
    drawn = []
    for colour, history in enumerate(histories):
        records = [one for one in history.records if any(finite_number(one.get(name)) is not None for name in names)]
        drawn.append(_PlottedRun(history, records, colour))
    charts = {name: (name, f"Validation {name}", name) for name in names}
    return _render_charts_over_steps("Metrics", "metric", drawn, charts, "Of the validation rows.")


def _render_charts_over_steps(
    title: str,
    radio_group_name: str,
    drawn: Sequence[_PlottedRun],
    charts: Mapping[str, tuple[str, str, str]],
    caption: str,
) -> list[Section]:
    """Renders a section with a chart for each number that was logged; none if no number was logged at two steps.

    charts: see `SPEED_CHARTS`. radio_group_name: unique on the page.
    """
    line_charts, columns = {}, {"step": "step"}
    for key, (column, chart_title, axis) in charts.items():
        lines = [Line(part.history.name, part.points("step", key), part.colour) for part in drawn]
        if not any(line.points for line in lines):
            continue
        columns[column] = key
        marks, label = _mark_best_checkpoints(drawn, "step", key), f"{chart_title} over steps"
        line_charts[chart_title] = LineChart(lines, "steps", axis, label, marks=marks, x_column=int(len(drawn) > 1))
    panels = _render_charts(line_charts)
    if not panels:
        return []
    body = figure(switchable_panels(radio_group_name, panels), caption, _render_records_table(drawn, columns))
    return [Section(title, body)]


def _render_run_comparison(histories: Sequence[RunHistory]) -> Markup:
    """Renders runs as columns: their figures, and the values of their recipes that differ."""
    names = [history.name for history in histories]
    figures = [[name, *map(_to_cell, values)] for name, values in collect_summary_values(histories).items()]
    different = [
        [key, *map(_format_value_as_in_recipe, values)]
        for key, values in find_differing_recipe_values(histories).items()
    ]
    parts = [table(["", *names], figures, caption="Figures; losses in nats", row_headers=True)]
    parts += [
        Markup("<p>{}.</p>").format(escape_controls(note)) for note in explain_indistinguishable_scores(histories)
    ]
    if different:
        parts.append(table(["key", *names], different, caption="What differs in their recipes", row_headers=True))
    else:
        parts.append(Markup("<p>Their recipes are the same.</p>"))
    return Markup("").join(parts)


def _render_results(results: Mapping[str, Any]) -> Markup:
    """Renders the scores of the best checkpoint, with 95 % intervals where these can be computed."""
    n_rows = effective_sample_size(results.get("rows") or 0, str(results.get("part")))
    pairs: list[tuple[str, TableCell]] = []
    for name, value in results.items():
        if isinstance(value, str | int | float) and name != "task":
            limits = confidence_interval_95(name, value, n_rows) if isinstance(value, float) else None
            shown = _to_cell(value)
            if limits is not None:
                shown = f"{value:.4f} (95 %: {limits[0]:.4f} to {limits[1]:.4f})"
            pairs.append((name.replace("_", " "), shown))
    if baseline := results.get("baseline"):
        names = ("metric", "constant", "linear", "features")
        pairs += [(f"baseline, {name}", _to_cell(baseline[name])) for name in names]
    if how := PARTS_OF_OTHER_MODELS.get(str(results.get("part"))):
        pairs.append(("how", how))
    parts = [facts(pairs)]
    classes = results.get("classes")
    scores = ("precision", "recall", "f1", "support")
    groups = ("class", "Classes", classes), ("entity", "Entities by type", results.get("entities"))
    for noun, caption, figures_by_name in groups:
        if figures_by_name:
            rows = [[name, *(figures[score] for score in scores)] for name, figures in figures_by_name.items()]
            parts.append(table([noun, *scores], rows, caption=caption, row_headers=True))
    if confusion := results.get("confusion"):
        parts.append(_render_confusion(confusion, list(classes or results["labels"])))
    if calibration := results.get("calibration"):
        parts.append(_render_calibration(calibration, "rows" if confusion else "pairs of a row and a label"))
    mistakes = results.get("mistakes")
    if mistakes and "probability" not in mistakes[0]:
        caption = "Rows with the most mistakes: what is missed, and what is wrongly found"
        parts.append(_render_rows(mistakes, ["row", "label", "predicted", "text"], caption))
    elif mistakes:
        caption = "Most confident mistakes; words: those without which it would be least certain, by leave-one-out"
        parts.append(_render_rows(mistakes, ["row", "label", "predicted", "probability", "words", "text"], caption))
    if sentences := results.get("sentences"):
        texts, score = ("Generated texts", "chrf") if "chrf" in sentences[0] else ("Answers", "f1")
        caption = f"{texts}, the worst first, then the best, by {'chrF' if score == 'chrf' else 'F1'}"
        parts.append(_render_rows(sentences, ["row", "source", "target", "predicted", score], caption))
    return Markup("").join(parts)


def _render_rows(records: Sequence[Mapping[str, Any]], columns: Sequence[str], caption: str) -> Markup:
    return table(columns, [[_to_cell(record.get(name, "")) for name in columns] for record in records], caption=caption)


def _render_confusion(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    largest = sorted(range(len(names)), key=lambda i: (-sum(confusion[i]), i))[:MAX_CONFUSION_CLASSES]
    shown = sorted(largest)
    shares = [[confusion[i][j] / max(1, sum(confusion[i])) for j in shown] for i in shown]
    counts = [[confusion[i][j] for j in shown] for i in shown]
    labels = [names[i] for i in shown]
    picture = HeatMap(shares, labels, labels, "Confusion matrix", 1.0, 26, x="predicted", y="true")
    caption = "Rows of each true class by the class predicted; the darker, the larger the share of the true class."
    if len(names) > len(shown):
        caption += f" {len(shown)} of {len(names)} classes, those with the most rows."
    return picture.figure(caption, "true, predicted", counts)


def _render_calibration(calibration: Mapping[str, Any], counted: str) -> Markup:
    bins = calibration["bins"]
    points = [(one["confidence"], one["accuracy"]) for one in bins]
    lines = [Line("accuracy", [(0.0, float("nan")), *points, (1.0, float("nan"))])]
    label = "Reliability diagram: accuracy over confidence"
    chart = LineChart(lines, "confidence", "accuracy", label, y_range=(0.0, 1.0), diagonal=True)
    caption = (
        f"Reliability diagram: {counted} in bins by the probability of their answer. On the diagonal it can be "
        f"believed. Expected calibration error: {calibration['ece']:.3f}"
    )
    if before := calibration.get("before"):
        caption += f"; {before['ece']:.3f} before the scores were divided by the temperature"
    rows = [[one["confidence"], one["accuracy"], one["rows"]] for one in bins]
    return figure(chart.page_svg(), caption, table(["confidence", "accuracy", counted], rows))


def _render_provenance_and_sessions(history: RunHistory) -> Markup:
    """Renders data, tokenizer, machine, and each start and resumption of a run."""
    info = history.run.info
    shown: list[tuple[str, TableCell]] = [("made", _format_time(info.created)), ("state", history.run.state)]
    shown += [("data", line) for line in (info.data.lines if info.data else ())]
    shown += describe_fingerprints_and_lineage(history.run)
    rows = [
        [
            _format_time(session.started),
            "start" if session.step == 0 else f"resumed at step {session.step}",
            "" if session.ended is None else _format_time(session.ended),
            session.outcome or "",
            shlex.join(session.command),
            ", ".join(f"{k} {v}" for k, v in session.environment.items() if v is not None),
        ]
        for session in info.sessions
    ]
    columns = ["started", "from", "ended", "outcome", "command", "machine"]
    return Markup("").join([facts(shown), table(columns, rows, caption="Sessions")])


def _format_time(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def _to_cell(value: object) -> TableCell:
    """Converts a value of a JSON file to a table cell."""
    if isinstance(value, list):
        return ", ".join(map(_format_value_as_in_recipe, value))
    return (
        value
        if isinstance(value, str | int | float) and not isinstance(value, bool)
        else _format_value_as_in_recipe(value)
    )


def _format_value_as_in_recipe(value: object) -> str:
    """Formats a value as in a recipe."""
    if isinstance(value, list):
        return f"[{', '.join(map(_format_value_as_in_recipe, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
