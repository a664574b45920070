"""The page about runs: losses, results, samples, recipes and how they were trained."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lmtool.printable import printable
from lmtool.report.charts import HeatMap, Level, Line, LineChart, Mark, spread
from lmtool.report.gradients import training_figure
from lmtool.report.page import Section, TableCell, clean, facts, figure, page, render, table, views, write_page
from lmtool.run.directory import REPORT, Run
from lmtool.run.history import (
    RunHistory,
    compare_recipes,
    compare_summaries,
    downsample_records,
    find_indistinct_scores,
    finite_number,
)
from lmtool.run.listing import describe_lineage, validation_part
from lmtool.run.log import LogRecord
from lmtool.run.uncertainty import confidence_interval, effective_sample_size
from lmtool.tasks.results import SCORED_BY_OTHERS

MOST_CLASSES = 30
"""Classes of a confusion matrix that is drawn, those with the most rows."""

TRAINED = "How it was trained"
"""The heading that all pages about runs have."""

LOSSES = ("loss", "valid_loss")

TRAINED_ON = "the rows trained on"
"""What a loss is of where no rows are held out."""

EXTENTS = {"step": ("Steps", "steps"), "tokens": ("Tokens", "tokens"), "seconds": ("Time", "seconds of training")}
"""Numbers of the records that losses are drawn over: title of the chart, name of its axis."""

MOST_SAMPLES = 40
"""Samples of a run that are shown, spread over its steps."""


def write_report(run: Run) -> Path:
    """Write the page of a run into its directory; returns its path. Raises LmtoolError."""
    path = run.path / REPORT
    write_page(path, training_page([RunHistory.from_run(run)]))
    return path


def training_page(histories: Sequence[RunHistory], *, refresh: int | None = None) -> str:
    """A page about one run, or about several beside each other. refresh: as for `page`."""
    several = len(histories) > 1
    title = f"{len(histories)} runs" if several else printable(histories[0].name)
    over_time = losses(histories)
    sections = [*([Section("Loss", over_time)] if over_time else []), *_metrics(histories), *_pace(histories)]
    if several:
        sections.append(Section("Beside each other", _beside(histories)))
    for colour, history in enumerate(histories):
        of = f" of {printable(history.name)}" if several else ""
        for task, results in history.results.items():
            named = f" {task}" if task else ""
            sections.append(Section(f"Results{named}{of}", _results(results)))
        if history.gradient_norms:
            drawn = training_figure(history.gradient_norms, f"gradients-{colour}")
            sections.append(Section(f"How far back gradients reach{of}", drawn))
        if history.samples:
            sections.append(Section(f"Samples{of}", _samples(history.samples)))
        sections.append(Section(f"Recipe{of}", _recipe(history)))
        sections.append(Section(f"{TRAINED}{of}", _sessions(history)))
    lead = (
        "" if several else f"{history.run.info.summary}; {history.run.state}, step {history.last_record.get('step', 0)}"
    )
    return page(title, sections, lead=lead, refresh=refresh)


@dataclass(frozen=True)
class _Drawn:
    """A run that is drawn.

    records: those that are drawn.
    colour: its number.
    factor: of losses, from nats to the unit of the chart.
    """

    history: RunHistory
    records: Sequence[LogRecord]
    colour: int
    factor: float = 1.0

    def value(self, record: LogRecord, name: str) -> float | None:
        """A number of a record, a loss in the unit of the chart."""
        value = finite_number(record.get(name))
        return value if value is None or name not in LOSSES else value * self.factor

    def points(self, x: str, y: str, records: Sequence[LogRecord] | None = None) -> list[tuple[float, float]]:
        """The points of records that have both numbers."""
        pairs = ((self.value(one, x), self.value(one, y)) for one in (self.records if records is None else records))
        return [(left, up) for left, up in pairs if left is not None and up is not None]


def _drawn(histories: Sequence[RunHistory]) -> list[_Drawn]:
    return [_Drawn(history, downsample_records(history.records), i) for i, history in enumerate(histories)]


def _numbers(drawn: Sequence[_Drawn], columns: Mapping[str, str]) -> Markup:
    """The table of a figure, a row for each record. columns: from their names to those in records."""
    several = len(drawn) > 1
    rows = [
        [*([part.history.name] if several else []), *(part.value(record, name) for name in columns.values())]
        for part in drawn
        for record in part.records
    ]
    return table([*(["run"] if several else []), *columns], rows)


def losses(histories: Sequence[RunHistory]) -> Markup:
    """A figure of the training and validation losses of runs; empty where no run has logged two steps."""
    drawn = _drawn(histories)
    factors = [history.bits_per_nat for history in histories]
    in_bits = all(factor is not None for factor in factors)
    if in_bits:
        drawn = [replace(part, factor=factor or 1.0) for part, factor in zip(drawn, factors, strict=True)]
    units = {history.loss_unit for history in histories}
    unit = "bits per byte" if in_bits else f"nats per {units.pop() if len(units) == 1 else 'target'}"
    several = len(histories) > 1
    charts, levels = {}, _levels(histories) if in_bits else []
    for column, (x, (name, axis)) in enumerate(EXTENTS.items(), int(several)):
        lines = [line for part in drawn for line in _loss_lines(part, x, several)]
        label, marks = f"Training and validation loss in {unit} over {axis}", _marks(drawn, x, "valid_loss")
        charts[name] = LineChart(lines, axis, unit, label, levels, marks, column)
    heights = charts["Steps"].heights
    is_log = spread(heights)
    charts = {name: replace(chart, log_y=is_log) for name, chart in charts.items()}
    if min(heights, default=0.0) > 0:
        charts[f"Steps, {'linear' if is_log else 'logarithmic'}"] = replace(charts["Steps"], log_y=not is_log)
    panels = _panels(charts)
    if not panels:
        return Markup("")
    held_out = [validation_part(history.recipe) == "validation" for history in histories]
    shown = {x: x for x in EXTENTS} | {"training": "loss", "validation" if any(held_out) else TRAINED_ON: "valid_loss"}
    of = "the validation part" if all(held_out) else f"{TRAINED_ON}, as none are held out"
    of = f"the validation part, or of {of}" if any(held_out) and not all(held_out) else of
    caption = f"Loss in {unit}: of the steps, before their update, and of {of}."
    caption += (
        " A ring marks the best checkpoint." if any(history.best_checkpoint_record for history in histories) else ""
    )
    if is_log:
        caption += " The axis is logarithmic."
    merged = max(len(part.history.records) / len(part.records) for part in drawn if part.records)
    if merged > 1.01:
        caption += " Each point of the training loss is a mean of several steps."
    if in_bits:
        caption += " Bits per byte compare models with different tokenizers."
    return figure(views("loss", panels), caption, _numbers(drawn, shown))


def _panels(charts: Mapping[str, LineChart]) -> dict[str, Markup]:
    """The charts that have a line, for a page."""
    return {name: chart.for_page() for name, chart in charts.items() if chart.is_drawn}


def _loss_lines(part: _Drawn, x: str, several: bool) -> list[Line]:
    trained, valid = part.points(x, "loss"), part.points(x, "valid_loss")
    if not several:
        held_out = validation_part(part.history.recipe) == "validation"
        return [Line("training", trained, 0, pale=True), Line("validation" if held_out else TRAINED_ON, valid, 1)]
    name = part.history.name
    return [Line(f"{name}, training", trained, part.colour, pale=True), Line(name, valid, part.colour)]


def _marks(drawn: Sequence[_Drawn], x: str, y: str) -> list[Mark]:
    """Rings around the best checkpoints, whose steps are named."""
    several, marks = len(drawn) > 1, []
    for part in drawn:
        chosen = part.history.best_checkpoint_record or {}
        record = next((record for record in part.records if record.get("step") == chosen.get("step")), chosen)
        for point in part.points(x, y, [record]):
            name = "best checkpoints" if several else f"best checkpoint, step {record['step']:,}"
            marks.append(Mark(name, point, part.colour if several or y != "valid_loss" else 1))
    return marks


def _levels(histories: Sequence[RunHistory]) -> list[Level]:
    """The limit and the n-gram models' bits per byte, each once."""
    names = {"limit_bits_per_byte": ("best possible model", 2), "ngram_bits_per_byte": ("5-gram model", 3)}
    levels = (
        Level(f"{name} {value:.3f}", value, colour)
        for key, (name, colour) in names.items()
        for history in histories
        if (value := finite_number(history.results.get("", {}).get(key))) is not None
    )
    return list(dict.fromkeys(levels))


def _metrics(histories: Sequence[RunHistory]) -> list[Section]:
    """The metrics of validations, where there are any."""
    names = list(dict.fromkeys(name for history in histories for name in history.task_metrics))
    if not names:
        return []

    def measured(record: LogRecord) -> bool:
        return any(finite_number(record.get(name)) is not None for name in names)

    drawn = [_Drawn(history, list(filter(measured, history.records)), i) for i, history in enumerate(histories)]
    charts = {name: (name, name, name, f"Validation {name} over steps") for name in names}
    return _over_steps("Metrics", "metric", drawn, charts, "Of the validation rows.")


PACE = {
    "lr": ("rate", "Learning rate", "learning rate"),
    "grad_norm": ("norm", "Gradient norm", "norm before clipping"),
    "tokens_per_second": ("speed", "Speed", "tokens per second, padding included"),
}
"""Numbers of the records that tell how training goes: column of their table, title of their chart, name of its axis."""


def _pace(histories: Sequence[RunHistory]) -> list[Section]:
    """Learning rate, gradient norm and speed."""
    drawn = _drawn(histories)
    charts = {name: (column, title, axis, f"{title} over steps") for name, (column, title, axis) in PACE.items()}
    caption = "Peak learning rate by schedule, the gradient's norm, and tokens computed per second."
    return _over_steps("Rate, gradient and speed", "pace", drawn, charts, caption)


def _over_steps(
    title: str, name: str, drawn: Sequence[_Drawn], charts: Mapping[str, tuple[str, str, str, str]], caption: str
) -> list[Section]:
    """A section with a chart for each of several numbers of the records; none where no number has two steps.

    charts: by number the column of the table, and title, name of the axis and label of its chart.
    """
    drawable, columns = {}, {"step": "step"}
    for key, (column_name, shown, axis, label) in charts.items():
        columns[column_name] = key
        lines = [Line(part.history.name, part.points("step", key), part.colour) for part in drawn]
        marks, column = _marks(drawn, "step", key), int(len(drawn) > 1)
        drawable[shown] = LineChart(lines, "steps", axis, label, marks=marks, column=column)
    panels = _panels(drawable)
    return [Section(title, figure(views(name, panels), caption, _numbers(drawn, columns)))] if panels else []


def _beside(histories: Sequence[RunHistory]) -> Markup:
    """Runs as columns: their figures, and the values of their recipes that differ."""
    names = [history.name for history in histories]
    told = [[name, *map(_cell, values)] for name, values in compare_summaries(histories).items()]
    different = [[key, *map(_value, values)] for key, values in compare_recipes(histories).items()]
    parts = [table(["", *names], told, caption="Figures; losses in nats", headed=True)]
    parts += [Markup("<p>{}.</p>").format(clean(note)) for note in find_indistinct_scores(histories)]
    if different:
        parts.append(table(["key", *names], different, caption="What differs in their recipes", headed=True))
    else:
        parts.append(Markup("<p>Their recipes are the same.</p>"))
    return Markup("").join(parts)


def _results(results: Mapping[str, Any]) -> Markup:
    """The scores of the best checkpoint."""
    n_rows = effective_sample_size(results.get("rows") or 0, str(results.get("part")))
    shown = [
        (name.replace("_", " "), _with_interval(name, value, n_rows))
        for name, value in results.items()
        if isinstance(value, str | int | float) and name != "task"
    ]
    if baseline := results.get("baseline"):
        shown += [(f"baseline, {name}", _cell(baseline[name])) for name in ("metric", "constant", "linear", "features")]
    if how := SCORED_BY_OTHERS.get(str(results.get("part"))):
        shown.append(("how", how))
    parts = [facts(shown)]
    classes = results.get("classes")
    for each, scored in (("class", classes), ("entity", results.get("entities"))):
        if scored:
            scores = ("precision", "recall", "f1", "support")
            rows = [[name, *(figures[score] for score in scores)] for name, figures in scored.items()]
            caption = "Classes" if each == "class" else "Entities by type"
            parts.append(table([each, *scores], rows, caption=caption, headed=True))
    if confusion := results.get("confusion"):
        parts.append(_confusion(confusion, list(classes or results["labels"])))
    if calibration := results.get("calibration"):
        parts.append(_calibration(calibration, "rows" if confusion else "pairs of a row and a label"))
    mistakes = results.get("mistakes")
    if mistakes and "probability" not in mistakes[0]:
        caption = "Rows with the most mistakes: what is missed, and what is wrongly found"
        parts.append(_listed(mistakes, ["row", "label", "predicted", "text"], caption))
    elif mistakes:
        caption = "Most confident mistakes; words: those without which it would be least certain, by leave-one-out"
        parts.append(_listed(mistakes, ["row", "label", "predicted", "probability", "words", "text"], caption))
    if sentences := results.get("sentences"):
        texts, score = ("Generated texts", "chrf") if "chrf" in sentences[0] else ("Answers", "f1")
        caption = f"{texts}, the worst first, then the best, by {'chrF' if score == 'chrf' else 'F1'}"
        parts.append(_listed(sentences, ["row", "source", "target", "predicted", score], caption))
    return Markup("").join(parts)


def _with_interval(name: str, value: object, rows: int) -> TableCell:
    """A figure, with its 95 % interval where that follows from it."""
    limits = confidence_interval(name, value, rows) if isinstance(value, float) else None
    return _cell(value) if limits is None else f"{value:.4f} (95 %: {limits[0]:.4f} to {limits[1]:.4f})"


def _listed(records: Sequence[Mapping[str, Any]], columns: Sequence[str], caption: str) -> Markup:
    return table(columns, [[_cell(record.get(name, "")) for name in columns] for record in records], caption=caption)


def _confusion(confusion: Sequence[Sequence[int]], names: Sequence[str]) -> Markup:
    largest = sorted(range(len(names)), key=lambda i: (-sum(confusion[i]), i))[:MOST_CLASSES]
    shown = sorted(largest)
    shares = [[confusion[i][j] / max(1, sum(confusion[i])) for j in shown] for i in shown]
    counts = [[confusion[i][j] for j in shown] for i in shown]
    labels = [names[i] for i in shown]
    picture = HeatMap(shares, labels, labels, "Confusion matrix", 1.0, 26, x="predicted", y="true")
    caption = "Rows of each true class by the class predicted; the darker, the larger the share of the true class."
    if len(names) > len(shown):
        caption += f" {len(shown)} of {len(names)} classes, those with the most rows."
    return picture.figure(caption, "true, predicted", counts)


def _calibration(calibration: Mapping[str, Any], counted: str) -> Markup:
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
    return figure(chart.for_page(), caption, table(["confidence", "accuracy", counted], rows))


def _samples(samples: Sequence[LogRecord]) -> Markup:
    """Texts over time, the newest first."""
    n = len(samples)
    chosen = samples if n <= MOST_SAMPLES else [samples[i * (n - 1) // (MOST_SAMPLES - 1)] for i in range(MOST_SAMPLES)]
    rows = [(sample["step"], sample.get("prompt") or "", sample.get("text") or "") for sample in reversed(chosen)]
    return render("samples.html", rows=rows)


def _recipe(history: RunHistory) -> Markup:
    return render("recipe.html", numbers=table(["key", "value"], [[k, _value(v)] for k, v in history.recipe.items()]))


def _sessions(history: RunHistory) -> Markup:
    """Data, tokenizer, machine, and each start and resumption."""
    info = history.run.info
    shown: list[tuple[str, TableCell]] = [("made", _time(info.created)), ("state", history.run.state)]
    shown += [("data", line) for line in (info.data.lines if info.data else ())]
    shown += describe_lineage(history.run)
    rows = [
        [
            _time(session.started),
            "start" if session.step == 0 else f"resumed at step {session.step}",
            "" if session.ended is None else _time(session.ended),
            session.outcome or "",
            shlex.join(session.command),
            ", ".join(f"{k} {v}" for k, v in session.environment.items() if v is not None),
        ]
        for session in info.sessions
    ]
    columns = ["started", "from", "ended", "outcome", "command", "machine"]
    return Markup("").join([facts(shown), table(columns, rows, caption="Sessions")])


def _time(stamp: str) -> str:
    return f"{datetime.fromisoformat(stamp).astimezone():%Y-%m-%d %H:%M:%S}"


def _cell(value: object) -> TableCell:
    """A value of a JSON file as a table cell, a list with commas."""
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    return value if isinstance(value, str | int | float) and not isinstance(value, bool) else _value(value)


def _value(value: object) -> str:
    """A value of a recipe as it is written there."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
