"""Figures of a task, from what is kept of each of its rows."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from lmtool.printable import aligned
from lmtool.records import parse
from lmtool.run.uncertainty import Z_95, confidence_interval, standard_error
from lmtool.tasks.suites.spec import AnyTask, ChoiceTask, SchemaTask, TextTask

RowScores = dict[str, Any]
"""What is kept of a row, as JSON values: its number and text, what was scored or generated, and whether it is right."""

WAYS = ("sum", "per_token", "per_byte", "calibrated")


@dataclass
class TaskFigures:
    """Sums over the rows of a task. kept: the file of its rows."""

    task: AnyTask
    kept: Path
    sums: Counter[str] = field(default_factory=Counter)

    def add(self, row: RowScores) -> None:
        """One more row."""
        sums = self.sums
        sums["rows"] += 1
        sums["cut"] += row["cut"]
        sums["right"] += row.get("right", False)
        if (n := row.get("choices")) is not None:
            sums["chance"] += 1 / n
            for way, pick in row["picks"].items():
                sums[way] += pick == row["answer"]
        for name in ("nats", "words", "bytes"):
            sums[name] += row.get(name, 0)
        sums["nats * nats"] += row.get("nats", 0) ** 2
        sums["nats * bytes"] += row.get("nats", 0) * row.get("bytes", 0)
        sums["bytes * bytes"] += row.get("bytes", 0) ** 2

    def rows(self) -> Iterator[RowScores]:
        """What is kept of each row."""
        with self.kept.open("rb") as file:
            yield from map(parse, islice(file, self.task.limit))

    @property
    def chance(self) -> float:
        """The accuracy of guessing."""
        stated = getattr(self.task, "chance", None)
        return float(self.sums["chance"] / self.sums["rows"] if stated is None else stated)

    @property
    def centred(self) -> float | None:
        """The accuracy as a share of the way from guessing to all right, as in CORE (Li et al. 2024)."""
        if isinstance(self.task, TextTask):
            return None
        return (self.sums["right"] / self.sums["rows"] - self.chance) / (1 - self.chance)

    def record(self) -> dict[str, Any]:
        """All figures, for JSON."""
        task, sums, n = self.task, self.sums, self.sums["rows"]
        told = {"kind": task.kind, "table": task.table, "rows": n, "cut": sums["cut"]}
        if isinstance(task, TextTask):
            return told | self._perplexity()
        accuracy = sums["right"] / n
        low, high = confidence_interval("accuracy", accuracy, n) or (0.0, 1.0)
        told |= {"shots": task.shots, "seed": task.seed, "accuracy": accuracy}
        told |= {"standard_error": standard_error("accuracy", accuracy, n), "interval": [low, high]}
        told |= {"chance": self.chance, "centred": self.centred}
        told["centred_interval"] = [(one - self.chance) / (1 - self.chance) for one in (low, high)]
        if isinstance(task, ChoiceTask | SchemaTask):
            told["score"] = task.score
            told["accuracies"] = {way: sums[way] / n for way in WAYS if way in sums}
        return told

    def _perplexity(self) -> dict[str, Any]:
        """Figures of texts; the standard error of a ratio of two sums over rows by linearization."""
        sums, per_byte = self.sums, self.sums["nats"] / max(1, self.sums["bytes"])
        spread = sums["nats * nats"] - 2 * per_byte * sums["nats * bytes"] + per_byte**2 * sums["bytes * bytes"]
        bits, error = per_byte / math.log(2), math.sqrt(max(0.0, spread)) / max(1, sums["bytes"]) / math.log(2)
        words = sums["nats"] / max(1, sums["words"])
        return {
            "bits_per_byte": bits,
            "standard_error": error,
            "interval": [bits - Z_95 * error, bits + Z_95 * error],
            "byte_perplexity": math.exp(per_byte) if per_byte < 700 else math.inf,
            "word_perplexity": math.exp(words) if words < 700 else math.inf,
        }


@dataclass(frozen=True)
class SuiteResults:
    """Results of the tasks of a suite, by name."""

    suite: str
    tasks: Mapping[str, TaskFigures]

    @property
    def centred(self) -> float | None:
        """The mean of centred accuracy over tasks, as CORE is; None where no task has one."""
        each = [one.centred for one in self.tasks.values() if one.centred is not None]
        return sum(each) / len(each) if each else None

    def record(self) -> dict[str, Any]:
        """All figures, for JSON."""
        tasks = {name: one.record() for name, one in self.tasks.items()}
        return {"suite": self.suite, "centred": self.centred, "tasks": tasks}

    def lines(self) -> list[str]:
        """A line for each task, and one for the mean."""
        return aligned(self.cells())

    def notices(self) -> Iterator[str]:
        """What a reader of the figures should know."""
        for name, one in self.tasks.items():
            if n := one.sums["cut"]:
                yield f"{name}: {n:,} of {one.sums['rows']:,} rows lost the beginning of their context"

    def cells(self) -> list[list[str]]:
        """The results as a table, header first and the mean of centred accuracy last."""
        header = ["task", "rows", "accuracy, %", "95 % interval", "chance", "centred"]
        rows = [[*header, "sum", "per token", "per byte", "calibrated"]]
        for name, one in self.tasks.items():
            figures = one.record()
            cells, (low, high) = [name, f"{figures['rows']:,}"], figures["interval"]
            if isinstance(one.task, TextTask):
                cells += [f"{figures['bits_per_byte']:.3f} bits per byte", f"{low:.3f} to {high:.3f}"]
            else:
                others = figures.get("accuracies", {})
                cells += [_percent(figures["accuracy"]), f"{_percent(low)} to {_percent(high)}"]
                cells += map(_percent, (one.chance, figures["centred"], *map(others.get, WAYS)))
            rows.append(cells + [""] * (len(rows[0]) - len(cells)))
        if self.centred is not None:
            rows.append(["mean", "", "", "", "", _percent(self.centred), *[""] * 4])
        return rows


def _percent(value: float | None) -> str:
    return "" if value is None else f"{round(100 * value, 1) + 0:.1f}"
