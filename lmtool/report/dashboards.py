"""Logs the events of a training session to dashboards: TensorBoard, Weights & Biases and MLflow.

Each gets the numbers of metrics.jsonl under the same names, samples as text, the recipe, and the results of the best
checkpoint with the part of the data as a prefix, such as validation/bits_per_byte.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Protocol

from lmtool.recipe.document import flatten_mapping
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import LoggerName
from lmtool.runs.directory import Run
from lmtool.runs.history import finite_number
from lmtool.storage.checksum import sha256
from lmtool.tasks.results import Results
from lmtool.training.comparison import BitsPerByteResults
from lmtool.training.events import Event, MetricsLogged, RunStarted, SampleGenerated

PROJECT_NAME = "lmtool"
"""Project, or experiment, to which runs are logged."""

MLFLOW_INTERVAL_SECONDS = 5.0
"""Time between two requests to MLflow, which take many numbers at once."""

MLFLOW_BATCH_SIZE = 1000
"""Numbers in one request to MLflow."""


Warnings = list[str]
"""Messages about dashboards to which nothing, or no more, is logged."""


class DashboardLogger(Protocol):
    """A dashboard that a run is logged to. Any method may raise any exception."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Logs numbers of a step."""

    def log_sample(self, sampled: SampleGenerated) -> None:
        """Logs a generated text."""

    def close(self) -> None:
        """Writes what is left and closes the connection."""


class DashboardLoggers:
    """The loggers that a recipe names. A logger that fails is closed with one warning and gets no more events."""

    def __init__(self) -> None:
        self._started: RunStarted | None = None
        self._open: dict[LoggerName, DashboardLogger] | None = None

    def log_event(self, event: Event) -> Warnings:
        """Logs an event; returns warnings."""
        match event:
            case RunStarted():
                self._started = event
            case MetricsLogged():
                step = int(event.record["step"])
                return [
                    *self._open_all_once(step),
                    *self._call_each_or_drop("log", _select_numbers(event.record), step),
                ]
            case SampleGenerated():
                return self._call_each_or_drop("log_sample", event)
            case Results() | BitsPerByteResults():
                record = event.to_record()
                prefix = "".join(f"{record[name]}/" for name in ("task", "part") if name in record)
                return self._call_each_or_drop("log", _select_numbers(record, prefix), event.step)
        return []

    def close(self) -> Warnings:
        """Closes all loggers; returns warnings."""
        return self._call_each_or_drop("close")

    def _open_all_once(self, step: int) -> Warnings:
        """Opens the loggers, unless they are open, before the first record of the session, which is of this step."""
        if self._open is not None or self._started is None:
            return []
        self._open, warnings = {}, []
        run, recipe = Run.open(self._started.path), self._started.recipe
        for name in recipe.logging:
            try:
                match name:
                    case "tensorboard":
                        self._open[name] = _TensorBoard(run, step)
                    case "wandb":
                        self._open[name] = _WeightsAndBiases(run, recipe)
                    case "mlflow":
                        self._open[name] = _BufferedMLflow(run, recipe)
            except Exception as error:
                reason = _format_error(error)
                if isinstance(error, ModuleNotFoundError):
                    missing = f"{name} is not installed" if error.name == name else str(error)
                    reason = f"{missing}; pip install 'lmtool[{name}]'"
                warnings.append(f"nothing is logged to {name}: {reason}")
        return warnings

    def _call_each_or_drop(self, method: str, *arguments: Any) -> Warnings:
        """Calls a method of each open logger; closes and drops those that fail, and returns warnings about them."""
        warnings = []
        for name, logger in list((self._open or {}).items()):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                assert self._open is not None
                del self._open[name]
                if method != "close":
                    with suppress(Exception):  # the warning is that of the first failure
                        logger.close()
                warnings.append(f"no more is logged to {name}: {_format_error(error)}")
        return warnings


def _format_error(error: Exception) -> str:
    """Returns the type of an error and the first line of its message."""
    message = str(error).strip().partition("\n")[0][:200]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _select_numbers(record: Mapping[str, object], prefix: str = "") -> dict[str, float]:
    """Returns the finite numbers of a record by name, without its step."""
    pairs = ((f"{prefix}{name}", finite_number(value)) for name, value in record.items() if name != "step")
    return {name: value for name, value in pairs if value is not None}


def make_dashboard_run_id(run: Run) -> str:
    """Returns an identifier of a run for dashboards, which stays the same when the run is resumed."""
    return sha256(f"{run.name} {run.info.created}".encode())[:16]


class _TensorBoard:
    """Event files in the run directory. Hides what an earlier session logged from `step` on."""

    def __init__(self, run: Run, step: int) -> None:
        import tensorboard  # noqa: F401 - torch's error does not name what is missing
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=step)
        self._add_text("recipe", run.recipe_path.read_text(encoding="utf-8"), step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_sample(self, sampled: SampleGenerated) -> None:
        self._add_text("samples", f"{sampled.prompt}{sampled.text}", sampled.step)

    def close(self) -> None:
        self._writer.close()

    def _add_text(self, name: str, text: str, step: int) -> None:
        # indented lines are code in Markdown, which is shown unchanged
        code = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.add_text(name, code, step)


class _WeightsAndBiases:
    """A run of Weights & Biases; its files are in the run directory."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=PROJECT_NAME,
            name=run.name,
            id=make_dashboard_run_id(run),
            dir=str(run.path),
            config=recipe.model_dump(mode="json"),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        # wandb's own step cannot go back when a run is resumed
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def log_sample(self, sampled: SampleGenerated) -> None:
        row = [sampled.step, sampled.prompt, sampled.text]
        table = self._wandb.Table(columns=["step", "prompt", "text"], data=[row])
        self._run.log({"step": sampled.step, "samples": table})

    def close(self) -> None:
        self._run.finish()


class _BufferedMLflow:
    """A run of MLflow at MLFLOW_TRACKING_URI, by default in the working directory."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        experiment = self._client.get_experiment_by_name(PROJECT_NAME)
        experiment_id = self._client.create_experiment(PROJECT_NAME) if experiment is None else experiment.experiment_id
        run_id = make_dashboard_run_id(run)
        earlier = self._client.search_runs([experiment_id], f"tags.`lmtool.run` = '{run_id}'", max_results=1)
        if earlier:
            self._id = earlier[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            created = self._client.create_run(experiment_id, tags={"lmtool.run": run_id}, run_name=run.name)
            self._id = created.info.run_id
            values = flatten_mapping(recipe.model_dump(mode="json"))
            params = [Param(key, str(value)[:500]) for key, value in values.items()]
            for start in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[start : start + 100])
        self._pending: list[Any] = []
        self._sent_at = time.monotonic()

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._pending += [self._metric(name, value, now, step) for name, value in values.items()]
        if time.monotonic() - self._sent_at > MLFLOW_INTERVAL_SECONDS:
            self._send_pending_metrics()

    def log_sample(self, sampled: SampleGenerated) -> None:
        digest = sha256(sampled.prompt.encode())[:8]
        file = f"samples/step-{sampled.step:06}-{digest}.txt"
        self._client.log_text(self._id, f"{sampled.prompt}{sampled.text}", file)

    def close(self) -> None:
        self._send_pending_metrics()
        self._client.set_terminated(self._id)

    def _send_pending_metrics(self) -> None:
        while self._pending:
            self._client.log_batch(self._id, metrics=self._pending[:MLFLOW_BATCH_SIZE])
            del self._pending[:MLFLOW_BATCH_SIZE]
        self._sent_at = time.monotonic()
