"""What the files of a run say of its training: numbers over steps, results, recipe, sessions. Reads no weights."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, Self

from lmtool.run.directory import Run
from lmtool.run.listing import COUNTING, Values, counting, figures_on_tests, part_of, read_values, with_bases
from lmtool.run.log import Record
from lmtool.run.uncertainty import are_alike, standard_error

MOST_POINTS = 300
"""Records of a run that are drawn: of more, each is the mean of several."""

LOGGED = ("step", "loss", "valid_loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds")
"""Names of metrics.jsonl that every run has; those of a task's metrics come after them."""

GRADIENT_NORMS = "gradient_norms"
"""The name of what is logged by steps back."""


@dataclass(frozen=True)
class History:
    """One run as its files tell it.

    recipe: its values by dotted key.
    records: of metrics.jsonl, in order.
    samples: of samples.jsonl.
    results: of each task in metrics.json, by name, "" for a run with one.
    """

    run: Run
    recipe: Values
    records: Sequence[Record]
    samples: Sequence[Record]
    results: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, run: Run) -> Self:
        """Read the files of a run. Raises CheckpointError for a damaged one."""
        return cls(run, read_values(run), tuple(run.metrics.read()), tuple(run.samples.read()), run.all_results)

    @property
    def name(self) -> str:
        """Name of the run's directory."""
        return self.run.name

    @cached_property
    def bits_per_nat(self) -> float | None:
        """Factor from the losses of the records to bits per byte; None where these are not of tokens of a text.

        Exact for the validation text as a whole; the records are of a sample of it.
        """
        results = self.results.get("", {})
        if results.get("bits_per_byte") and results.get("loss"):
            return float(results["bits_per_byte"]) / float(results["loss"])
        bytes_per_token = self.run.info.data and self.run.info.data.bytes_per_token
        return None if not bytes_per_token else 1 / (math.log(2) * bytes_per_token)

    @property
    def _aside(self) -> Record | None:
        """The validation outside of the records, of a step at which the run was interrupted."""
        aside = self.run.interrupted
        return None if aside is None else {**aside.model_dump(exclude={"is_best", "loss"}), "valid_loss": aside.loss}

    @property
    def best(self) -> Record | None:
        """The record of the lowest validation loss."""
        records = (*self.records, *filter(None, [self._aside]))
        measured = [record for record in records if number(record.get("valid_loss")) is not None]
        return min(measured, key=lambda record: float(record["valid_loss"]), default=None)

    @property
    def best_bits(self) -> float | None:
        """Bits per byte of the best checkpoint, as measured at the end, or else from the best validation."""
        measured = number(self.results.get("", {}).get("bits_per_byte"))
        if measured is not None or self.bits_per_nat is None or self.best is None:
            return measured
        return float(self.best["valid_loss"]) * self.bits_per_nat

    @property
    def last(self) -> Record:
        """The last record; empty before the first."""
        return self.records[-1] if self.records else {}

    @property
    def unit(self) -> Literal["token", "pair", "row"]:
        """What the losses are means over."""
        match self.recipe.get("objective.kind"):
            case "classification":
                return "row"
            case "skip-gram" | "cbow" | "glove" | "cooccurrence":
                return "pair"
        return "token"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics that validations have besides the loss."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return tuple(name for name in names if name not in {*LOGGED, GRADIENT_NORMS})

    @property
    def gradient_norms(self) -> dict[int, Mapping[str, Sequence[float | None]]]:
        """What `evaluation.gradient_norms` has logged, by step: for each kind of state the norms by steps back."""
        return {record["step"]: norms for record in self.records if (norms := record.get(GRADIENT_NORMS))}

    @cached_property
    def chosen(self) -> Record | None:
        """The record of the best checkpoint; before there is one, of the lowest validation loss."""
        step, aside = self.run.best_step, self._aside
        if aside is not None and aside["step"] == step:
            return aside
        return next((record for record in self.records if record.get("step") == step), self.best)

    @cached_property
    def tests(self) -> dict[str, dict[str, float]]:
        """The figures of the best checkpoint on test data, by the name of these, what counts first."""
        tests = {}
        for source, results in figures_on_tests(self.run).items():
            names = sorted(results, key=lambda name: (name not in COUNTING, name == "rows"))
            measured = {name: results[name] for name in names if name != "step" and number(results[name]) is not None}
            table = self.recipe.get("data.test") if source == "test" else None
            tests[os.path.basename(str(table)) if table else source] = measured
        return tests

    @property
    def valid_rows(self) -> int | None:
        """Rows of tables that validation is on; None of a text, and where they were not noted."""
        measured = self.results.get("", {})
        if measured.get("part") == "validation" and isinstance(rows := measured.get("rows"), int):
            return rows
        return None if self.run.info.data is None else self.run.info.data.valid_rows

    def summary(self) -> dict[str, object]:
        """What `lmtool runs compare` says of the run, besides its recipe, test figures first. Losses are in nats."""
        best, chosen, last = self.best, self.chosen or {}, self.last
        seconds, batch_size = number(last.get("seconds")), number(self.recipe.get("training.batch_size"))
        is_table = self.unit == "row" or self.valid_rows is not None
        n_tokens = number(last.get("tokens")) or 0
        fits = self.recipe.get("optimizer.kind") == "lbfgs"  # each row is one target, and all are in a step
        counts = {"rows": n_tokens if fits else last.get("step", 0) * (batch_size or 0)} if is_table else {}
        counts["tokens"] = n_tokens
        return {
            **({"test": self.tests} if self.tests else {}),
            "part": part_of(self.recipe),
            "best_loss": None if best is None else best["valid_loss"],
            "best_step": chosen.get("step"),
            "bits_per_byte": self.best_bits,
            **{name: number(chosen.get(name)) for name in self.metrics},
            **({} if self.valid_rows is None else {"valid_rows": self.valid_rows}),
            "steps": last.get("step", 0),
            **{name: int(n) or None for name, n in counts.items()},
            "seconds": seconds,
            **{f"{name}_per_second": round(n / seconds) if n and seconds else None for name, n in counts.items()},
            "model": self.run.info.summary,
            "state": self.run.state,
        }


def figures(histories: Sequence[History]) -> dict[str, list[object]]:
    """The summaries of runs by name, those on test data first: of each run, None where it has none but others do."""
    summaries = [history.summary() for history in histories]
    tests = [
        {
            f"{source} {name.replace('_', ' ')}": value
            for source, measured in history.tests.items()
            for name, value in measured.items()
        }
        for history in histories
    ]
    told: dict[str, list[object]] = {name: [test.get(name) for test in tests] for name in chain.from_iterable(tests)}
    for name in dict.fromkeys(name for summary in summaries for name in summary if name != "test"):
        told[name.replace("_", " ")] = [summary.get(name) for summary in summaries]
    return {name: values for name, values in told.items() if any(value is not None for value in values)}


class _Entry(NamedTuple):
    """A figure of a run on so many rows."""

    run: str
    metric: str
    value: float
    rows: int


def doubts(histories: Sequence[History], *, are_tested: bool = False) -> list[str]:
    """What figures cannot tell of runs, a line each: which is the best, where there are few rows or no common ones.

    are_tested: on the same rows, apart from the figures that the runs have.
    """
    boards: dict[str, list[_Entry]] = {}
    for history in histories:
        chosen = history.chosen or {}
        validation = {**chosen, "loss": chosen.get("valid_loss"), "rows": history.valid_rows}
        for source, measured in {**history.tests, f"{part_of(history.recipe)} rows": validation}.items():
            metric, value = counting(measured)
            if value is not None and (rows := measured.get("rows")):
                boards.setdefault(f"{metric} on {source}", []).append(_Entry(history.name, metric, value, int(rows)))
    lines = []
    for board, entries in boards.items():
        best = max(entries, key=lambda entry: -entry.value if entry.metric == "loss" else entry.value)
        others = [entry for entry in entries if entry is not best]
        alike = [one.run for one in others if are_alike(best.metric, (best.value, best.rows), (one.value, one.rows))]
        counts = sorted({entry.rows for entry in entries})
        rows = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1]))) + " rows"
        if alike:
            lines.append(f"{board}: {rows} are too few to tell {best.run} from {', '.join(alike)}")
        elif others and standard_error(best.metric, best.value, best.rows) is None:
            lines.append(f"{board}: of {rows}; lmtool finetune --seeds 5 shows how far it varies")
    has_tests = any(history.tests for history in histories)
    if has_tests and not are_tested and not set.intersection(*(set(h.tests) for h in histories)):
        lines.append("the runs have no test figures of the same data: lmtool eval RUN FILE measures them")
    return lines


def trained_on(run: Run) -> list[tuple[str, str]]:
    """What a run, and each that it was initialized from, was trained on, as lines with their names."""
    facts = []
    for trained in with_bases(run):
        values = read_values(trained)
        sources = [key.removeprefix("data.mixture.") for key in values if key.startswith("data.mixture.")]
        lists = (values.get(key) for key in ("data.train", "data.tasks"))
        sources += [str(source) for listed in lists if isinstance(listed, list) for source in listed]
        of = "trained on" if trained is run else f"{trained.name} trained on"
        lines = trained.info.data.lines if trained.info.data else []
        facts += [(of if number == 0 else "", line) for number, line in enumerate([", ".join(sources), *lines]) if line]
    return facts


def differences(histories: Sequence[History]) -> dict[str, list[object]]:
    """The values of the recipe keys that are not the same in all runs; None where a run has no such key."""
    keys = dict.fromkeys(key for history in histories for key in history.recipe if key != "description")
    values_of = {key: [history.recipe.get(key) for history in histories] for key in keys}
    return {key: values for key, values in values_of.items() if any(value != values[0] for value in values)}


def number(value: object) -> float | None:
    """A finite number of a record; None for anything else."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def thinned(records: Sequence[Record], most: int = MOST_POINTS) -> list[Record]:
    """At most about `most` records: each the mean of those since the last, but for what counts up, which is its last.

    A validation stays what it is, in a record of its own step.
    """
    size = -(-len(records) // most)
    means: list[Record] = []
    group: list[Record] = []
    for record in records:
        group.append(record)
        if len(group) >= size or record.get("valid_loss") is not None:
            means.append(_merged(group))
            group = []
    return [*means, _merged(group)] if group else means


def _merged(group: Sequence[Record]) -> Record:
    if len(group) == 1:
        return group[0]
    merged = dict(group[-1])
    for name in ("loss", "grad_norm", "tokens_per_second"):
        values = [value for record in group if (value := number(record.get(name))) is not None]
        merged[name] = sum(values) / len(values) if values else None
    return merged
