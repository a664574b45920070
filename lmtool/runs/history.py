"""Reads the training history of runs from their files: metrics over steps, results, recipe. Reads no weights."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, NamedTuple, Self

from lmtool.runs.directory import Run
from lmtool.runs.listing import (
    MAIN_METRICS,
    Values,
    collect_best_checkpoint_test_scores,
    iterate_run_and_ancestors,
    main_metric,
    read_recipe_values,
    validation_part,
)
from lmtool.runs.log import LogRecord
from lmtool.runs.uncertainty import are_indistinguishable_scores, standard_error

MAX_POINTS = 300
"""Limit of the points of a chart; more records are averaged."""

COMMON_METRICS = ("step", "loss", "valid_loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds", "mfu")
"""Keys of metrics.jsonl that any run may have; a task adds its metrics."""

GRADIENT_NORMS = "gradient_norms"
"""Key of the gradient norms by steps back."""


@dataclass(frozen=True)
class RunHistory:
    """The content of the files of a run.

    recipe: values by dotted key.
    records: of metrics.jsonl, in order.
    samples: of samples.jsonl.
    results: of metrics.json by the name of the task, "" for the only one.
    """

    run: Run
    recipe: Values
    records: Sequence[LogRecord]
    samples: Sequence[LogRecord]
    results: Mapping[str, Mapping[str, Any]]

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Reads the files of a run. Raises CheckpointError for a damaged one."""
        return cls(
            run,
            read_recipe_values(run),
            tuple(run.metrics.read_records()),
            tuple(run.samples.read_records()),
            run.results_by_task,
        )

    @property
    def name(self) -> str:
        """Returns the name of the run's directory."""
        return self.run.name

    @cached_property
    def bits_per_byte_per_nat(self) -> float | None:
        """Returns the factor from losses to bits per byte; None if the losses are not of tokens of a text.

        It is exact for the whole validation text; the records are of a sample of it.
        """
        results = self.results.get("", {})
        if results.get("bits_per_byte") and results.get("loss"):
            return float(results["bits_per_byte"]) / float(results["loss"])
        bytes_per_token = self.run.info.data and self.run.info.data.bytes_per_token
        return None if not bytes_per_token else 1 / (math.log(2) * bytes_per_token)

    @property
    def _interrupted_record(self) -> LogRecord | None:
        """Returns the validation of the step at which the run was interrupted, which the records do not have."""
        aside = self.run.validation_at_interruption
        return None if aside is None else {**aside.model_dump(exclude={"is_best", "loss"}), "valid_loss": aside.loss}

    @property
    def lowest_loss_validation(self) -> LogRecord | None:
        """Returns the record of the lowest validation loss."""
        records = (*self.records, *filter(None, [self._interrupted_record]))
        measured = [record for record in records if finite_number(record.get("valid_loss")) is not None]
        return min(measured, key=lambda record: float(record["valid_loss"]), default=None)

    @property
    def best_checkpoint_bits_per_byte(self) -> float | None:
        """Returns the bits per byte of the best checkpoint from the final evaluation, or else the best validation."""
        measured = finite_number(self.results.get("", {}).get("bits_per_byte"))
        if measured is not None or self.bits_per_byte_per_nat is None or self.lowest_loss_validation is None:
            return measured
        return float(self.lowest_loss_validation["valid_loss"]) * self.bits_per_byte_per_nat

    @property
    def last_record(self) -> LogRecord:
        """Returns the last record; an empty one before the first."""
        return self.records[-1] if self.records else {}

    @property
    def loss_unit(self) -> Literal["token", "pair", "row"]:
        """Returns what the losses are means over."""
        match self.recipe.get("objective.kind"):
            case "classification":
                return "row"
            case "skip-gram" | "cbow" | "glove" | "cooccurrence":
                return "pair"
        return "token"

    @property
    def task_metrics(self) -> tuple[str, ...]:
        """Returns the names of the metrics that validations have besides the loss."""
        names = dict.fromkeys(name for record in self.records for name in record)
        return tuple(name for name in names if name not in {*COMMON_METRICS, GRADIENT_NORMS})

    @property
    def gradient_norms(self) -> dict[int, Mapping[str, Sequence[float | None]]]:
        """Returns by step the norms of `evaluation.gradient_norms`: for each kind of state those by steps back."""
        return {record["step"]: norms for record in self.records if (norms := record.get(GRADIENT_NORMS))}

    @cached_property
    def best_checkpoint_or_lowest_loss_record(self) -> LogRecord | None:
        """Returns the record of the best checkpoint, or before there is one that of the lowest validation loss."""
        step, aside = self.run.best_step, self._interrupted_record
        if aside is not None and aside["step"] == step:
            return aside
        return next((record for record in self.records if record.get("step") == step), self.lowest_loss_validation)

    @cached_property
    def best_checkpoint_test_scores(self) -> dict[str, dict[str, float]]:
        """Returns the scores of the best checkpoint by test data, the main metric first."""
        tests = {}
        for source, results in collect_best_checkpoint_test_scores(self.run).items():
            names = sorted(results, key=lambda name: (name not in MAIN_METRICS, name == "rows"))
            measured = {
                name: results[name] for name in names if name != "step" and finite_number(results[name]) is not None
            }
            table = self.recipe.get("data.test") if source == "test" else None
            tests[os.path.basename(str(table)) if table else source] = measured
        return tests

    @property
    def n_valid_rows(self) -> int | None:
        """Returns the number of validation rows of tables; None for a text, or if it is unknown."""
        measured = self.results.get("", {})
        if measured.get("part") == "validation" and isinstance(rows := measured.get("rows"), int):
            return rows
        return None if self.run.info.data is None else self.run.info.data.valid_rows

    def summary(self) -> dict[str, object]:
        """Returns what `lmtool runs compare` shows besides the recipe, test scores first. Losses are in nats."""
        best, last = self.lowest_loss_validation, self.last_record
        chosen = self.best_checkpoint_or_lowest_loss_record or {}
        seconds, batch_size = finite_number(last.get("seconds")), finite_number(self.recipe.get("training.batch_size"))
        is_table = self.loss_unit == "row" or self.n_valid_rows is not None
        n_tokens = finite_number(last.get("tokens")) or 0
        fits = self.recipe.get("optimizer.kind") == "lbfgs"  # each row is one target, and all are in a step
        counts = {"rows": n_tokens if fits else last.get("step", 0) * (batch_size or 0)} if is_table else {}
        counts["tokens"] = n_tokens
        return {
            **({"test": self.best_checkpoint_test_scores} if self.best_checkpoint_test_scores else {}),
            "part": validation_part(self.recipe),
            "best_loss": None if best is None else best["valid_loss"],
            "best_step": chosen.get("step"),
            "bits_per_byte": self.best_checkpoint_bits_per_byte,
            **{name: finite_number(chosen.get(name)) for name in self.task_metrics},
            **({} if self.n_valid_rows is None else {"valid_rows": self.n_valid_rows}),
            "steps": last.get("step", 0),
            **{name: int(n) or None for name, n in counts.items()},
            "seconds": seconds,
            **{f"{name}_per_second": round(n / seconds) if n and seconds else None for name, n in counts.items()},
            "model": self.run.info.summary,
            "state": self.run.state,
        }


def collect_summary_values(histories: Sequence[RunHistory]) -> dict[str, list[object]]:
    """Returns by name the values of the summaries of all runs, None for a run without one; test scores first."""
    summaries = [history.summary() for history in histories]
    tests = [
        {
            f"{source} {name.replace('_', ' ')}": value
            for source, measured in history.best_checkpoint_test_scores.items()
            for name, value in measured.items()
        }
        for history in histories
    ]
    told: dict[str, list[object]] = {name: [test.get(name) for test in tests] for name in chain.from_iterable(tests)}
    for name in dict.fromkeys(name for summary in summaries for name in summary if name != "test"):
        told[name.replace("_", " ")] = [summary.get(name) for summary in summaries]
    return {name: values for name, values in told.items() if any(value is not None for value in values)}


class _ScoredRun(NamedTuple):
    """A score of a run on a number of rows."""

    run: str
    metric: str
    value: float
    rows: int


def explain_indistinguishable_scores(
    histories: Sequence[RunHistory], *, has_paired_comparison: bool = False
) -> list[str]:
    """Returns a line for each metric whose rows are too few to find the best run, or if runs share no test data.

    has_paired_comparison: whether the runs are also compared on the same rows.
    """
    boards: dict[str, list[_ScoredRun]] = {}
    for history in histories:
        chosen = history.best_checkpoint_or_lowest_loss_record or {}
        validation = {**chosen, "loss": chosen.get("valid_loss"), "rows": history.n_valid_rows}
        for source, measured in {
            **history.best_checkpoint_test_scores,
            f"{validation_part(history.recipe)} rows": validation,
        }.items():
            metric, value = main_metric(measured)
            if value is not None and (rows := measured.get("rows")):
                boards.setdefault(f"{metric} on {source}", []).append(
                    _ScoredRun(history.name, metric, value, int(rows))
                )
    lines = []
    for board, entries in boards.items():
        best = max(entries, key=lambda entry: -entry.value if entry.metric == "loss" else entry.value)
        others = [entry for entry in entries if entry is not best]
        alike = [
            one.run
            for one in others
            if are_indistinguishable_scores(best.metric, (best.value, best.rows), (one.value, one.rows))
        ]
        counts = sorted({entry.rows for entry in entries})
        rows = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1]))) + " rows"
        if alike:
            lines.append(f"{board}: {rows} are too few to tell {best.run} from {', '.join(alike)}")
        elif others and standard_error(best.metric, best.value, best.rows) is None:
            lines.append(f"{board}: of {rows}; lmtool finetune --seeds 5 shows how far it varies")
    has_tests = any(history.best_checkpoint_test_scores for history in histories)
    if (
        has_tests
        and not has_paired_comparison
        and not set.intersection(*(set(h.best_checkpoint_test_scores) for h in histories))
    ):
        lines.append("the runs have no test figures of the same data: lmtool eval RUN FILE measures them")
    return lines


def describe_training_data_of_lineage(run: Run) -> list[tuple[str, str]]:
    """Returns the training data of a run and of its ancestors, as lines with their names."""
    facts = []
    for trained in iterate_run_and_ancestors(run):
        values = read_recipe_values(trained)
        sources = [key.removeprefix("data.mixture.") for key in values if key.startswith("data.mixture.")]
        lists = (values.get(key) for key in ("data.train", "data.tasks"))
        sources += [str(source) for listed in lists if isinstance(listed, list) for source in listed]
        of = "trained on" if trained is run else f"{trained.name} trained on"
        lines = trained.info.data.lines if trained.info.data else []
        facts += [(of if number == 0 else "", line) for number, line in enumerate([", ".join(sources), *lines]) if line]
    return facts


def find_differing_recipe_values(histories: Sequence[RunHistory]) -> dict[str, list[object]]:
    """Returns the values of the recipe keys that differ between runs; None for a run without the key."""
    keys = dict.fromkeys(key for history in histories for key in history.recipe if key != "description")
    values_of = {key: [history.recipe.get(key) for history in histories] for key in keys}
    return {key: values for key, values in values_of.items() if any(value != values[0] for value in values)}


def finite_number(value: object) -> float | None:
    """Returns a finite number as a float; None for other values."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def downsample_by_averaging(records: Sequence[LogRecord], approximate_max_records: int = MAX_POINTS) -> list[LogRecord]:
    """Averages groups of records, so that about `approximate_max_records` are left; keeps the last value of counters.

    A record of a validation ends its group.
    """
    size = -(-len(records) // approximate_max_records)
    means: list[LogRecord] = []
    group: list[LogRecord] = []
    for record in records:
        group.append(record)
        if len(group) >= size or record.get("valid_loss") is not None:
            means.append(_average_records(group))
            group = []
    return [*means, _average_records(group)] if group else means


def _average_records(group: Sequence[LogRecord]) -> LogRecord:
    if len(group) == 1:
        return group[0]
    merged = dict(group[-1])
    for name in {"loss", "grad_norm", "tokens_per_second", "mfu"} & merged.keys():
        values = [value for record in group if (value := finite_number(record.get(name))) is not None]
        merged[name] = sum(values) / len(values) if values else None
    return merged
