"""What the files of a run say of its training: numbers over steps, results, recipe, sessions. Reads no weights."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Self

from lmtool.recipe.document import dotted, parse
from lmtool.run.directory import Run
from lmtool.run.log import Record

MOST_POINTS = 300
"""Records of a run that are drawn: of more, each is the mean of several."""

LOGGED = ("step", "loss", "valid_loss", "lr", "grad_norm", "tokens", "tokens_per_second", "seconds")
"""Names of metrics.jsonl that every run has; those of a task's metrics come after them."""

GRADIENT_NORMS = "gradient_norms"
"""The name of what is logged by steps back."""

Values = Mapping[str, object]
"""The plain values of a recipe by dotted key."""


@dataclass(frozen=True)
class History:
    """One run as its files tell it.

    recipe: its values by dotted key. records: of metrics.jsonl, in order. samples: of samples.jsonl. results: of each
    task in metrics.json, by name, "" for a run with one.
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
    def best(self) -> Record | None:
        """The record of the lowest validation loss."""
        measured = [record for record in self.records if number(record.get("valid_loss")) is not None]
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

    def summary(self) -> dict[str, object]:
        """What `lmtool runs compare` says of the run, besides its recipe. Losses are in nats."""
        best, last = self.best, self.last
        seconds, tokens = number(last.get("seconds")), number(last.get("tokens"))
        return {
            "best_loss": None if best is None else best["valid_loss"],
            "best_step": None if best is None else best["step"],
            "bits_per_byte": self.best_bits,
            **{name: self._best_metric(name) for name in self.metrics},
            "steps": last.get("step", 0),
            "tokens": None if tokens is None else int(tokens),
            "seconds": seconds,
            "tokens_per_second": round(tokens / seconds) if tokens and seconds else None,
            "model": self.run.info.summary,
            "state": self.run.state,
        }

    def _best_metric(self, name: str) -> float | None:
        """The highest value of a validation metric."""
        found = [value for record in self.records if (value := number(record.get(name))) is not None]
        return max(found, default=None)


def read_values(run: Run) -> Values:
    """The values of a run's recipe, without judging them. Empty where it cannot be read."""
    try:
        text = run.recipe_path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return {}
    return dict(_leaves(parse(text, str(run.recipe_path)).value, ()))


def _leaves(value: object, path: tuple[str | int, ...]) -> Iterable[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield dotted(path), value


def differences(histories: Sequence[History]) -> dict[str, list[object]]:
    """The values of the recipe keys that are not the same in all runs; None where a run has no such key."""
    keys = dict.fromkeys(key for history in histories for key in history.recipe if key != "description")
    found = {key: [history.recipe.get(key) for history in histories] for key in keys}
    return {key: values for key, values in found.items() if any(value != values[0] for value in values)}


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
    found: list[Record] = []
    group: list[Record] = []
    for record in records:
        group.append(record)
        if len(group) >= size or record.get("valid_loss") is not None:
            found.append(_merged(group))
            group = []
    return [*found, _merged(group)] if group else found


def _merged(group: Sequence[Record]) -> Record:
    if len(group) == 1:
        return group[0]
    merged = dict(group[-1])
    for name in ("loss", "grad_norm", "tokens_per_second"):
        values = [value for record in group if (value := number(record.get(name))) is not None]
        merged[name] = sum(values) / len(values) if values else None
    return merged
