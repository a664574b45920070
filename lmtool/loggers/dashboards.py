"""Other people's dashboards: TensorBoard, Weights & Biases and MLflow, fed by the events of a training session.

Each gets the numbers of metrics.jsonl under the same names, samples as text, the recipe, and the results of the best
checkpoint under the part that they are of, such as validation/bits_per_byte.
"""

import time
from collections.abc import Mapping
from typing import Any, Protocol

from lmtool.checksum import sha256
from lmtool.recipe.document import flatten_mapping
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import LoggerName
from lmtool.run.directory import Run
from lmtool.run.history import finite_number
from lmtool.tasks.results import Results
from lmtool.training.comparison import TextResults
from lmtool.training.events import Event, Logged, Sampled, Started

PROJECT = "lmtool"
"""Name of the project, or experiment, in which runs are logged."""

PACKAGES: Mapping[LoggerName, str] = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""The package that each logger needs, which an extra of the same name installs."""

MLFLOW_SECONDS = 5.0
"""Seconds between two requests to MLflow, which take many numbers at once."""

MLFLOW_MOST = 1000
"""Numbers of one request."""


class Logger(Protocol):
    """Where a run is logged. Any method may raise any exception."""

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Log numbers of a step."""

    def log_sample(self, sampled: Sampled) -> None:
        """Log a text."""

    def close(self) -> None:
        """Finish: all is written."""


class Loggers:
    """The loggers that a recipe names. One that fails is closed, told once, and gets no more."""

    def __init__(self) -> None:
        self._started: Started | None = None
        self._open: dict[LoggerName, Logger] | None = None

    def take(self, event: Event) -> list[str]:
        """Log an event; returns warnings."""
        match event:
            case Started():
                self._started = event
            case Logged():
                step = int(event.record["step"])
                warnings = self._opened(step)
                return warnings + self._each("log", _numbers(event.record, ""), step)
            case Sampled():
                return self._each("log_sample", event)
            case Results() | TextResults():
                record = event.record()
                of = "".join(f"{record[name]}/" for name in ("task", "part") if name in record)
                return self._each("log", _numbers(record, of), event.step)
        return []

    def close(self) -> list[str]:
        """Close all; returns warnings."""
        return self._each("close")

    def _opened(self, step: int) -> list[str]:
        """Open the loggers with the first record of the session, which is of this step."""
        if self._open is not None or self._started is None:
            return []
        self._open, warnings = {}, []
        run = Run.open(self._started.path)
        for name in self._started.recipe.logging:
            try:
                self._open[name] = _open(name, run, self._started.recipe, step)
            except ModuleNotFoundError as error:
                missing = f"{name} is not installed" if error.name == PACKAGES[name] else str(error)
                warnings.append(f"nothing is logged to {name}: {missing}; pip install 'lmtool[{name}]'")
            except Exception as error:
                warnings.append(f"nothing is logged to {name}: {_line(error)}")
        return warnings

    def _each(self, method: str, *arguments: Any) -> list[str]:
        warnings = []
        for name, logger in list((self._open or {}).items()):
            try:
                getattr(logger, method)(*arguments)
            except Exception as error:
                assert self._open is not None
                del self._open[name]
                warnings.append(f"no more is logged to {name}: {_line(error)}")
        return warnings


def _open(name: LoggerName, run: Run, recipe: Recipe, step: int) -> Logger:
    match name:
        case "tensorboard":
            return _TensorBoard(run, recipe, step)
        case "wandb":
            return _WeightsAndBiases(run, recipe)
        case "mlflow":
            return _MLflow(run, recipe)


def _line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__


def _numbers(record: Mapping[str, object], prefix: str) -> dict[str, float]:
    """The finite numbers of a record by name, without its step."""
    pairs = ((f"{prefix}{name}", finite_number(value)) for name, value in record.items() if name != "step")
    return {name: value for name, value in pairs if value is not None}


def identity(run: Run) -> str:
    """A name of a run for other programs, which stays when the run is resumed."""
    return sha256(f"{run.name} {run.info.created}".encode())[:16]


class _TensorBoard:
    """Event files in the run directory. What an earlier session logged from `step` on is hidden."""

    def __init__(self, run: Run, recipe: Recipe, step: int) -> None:
        import tensorboard  # noqa: F401 - torch's error does not name what is missing
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.path / "tensorboard"), purge_step=step)
        self._add_text("recipe", run.recipe_path.read_text(encoding="utf-8"), step)

    def log(self, values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_sample(self, sampled: Sampled) -> None:
        self._add_text("samples", f"{sampled.prompt}{sampled.text}", sampled.step)

    def close(self) -> None:
        self._writer.close()

    def _add_text(self, name: str, text: str, step: int) -> None:
        # indented, it is code in Markdown, and shown as it is
        code = "\n".join(f"    {line}" for line in text.splitlines())
        self._writer.add_text(name, code, step)


class _WeightsAndBiases:
    """A run of Weights & Biases; its files are in the run directory."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        import wandb

        self._wandb = wandb
        self._run = wandb.init(
            project=PROJECT,
            name=run.name,
            id=identity(run),
            dir=str(run.path),
            config=recipe.model_dump(mode="json"),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        # not wandb's own count, which cannot go back when a run is resumed
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({"step": step, **values})

    def log_sample(self, sampled: Sampled) -> None:
        row = [sampled.step, sampled.prompt, sampled.text]
        table = self._wandb.Table(columns=["step", "prompt", "text"], data=[row])
        self._run.log({"step": sampled.step, "samples": table})

    def close(self) -> None:
        self._run.finish()


class _MLflow:
    """A run of MLflow, where MLFLOW_TRACKING_URI says, by default in the working directory."""

    def __init__(self, run: Run, recipe: Recipe) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric = Metric
        self._client = MlflowClient()
        project = self._client.get_experiment_by_name(PROJECT)
        experiment = self._client.create_experiment(PROJECT) if project is None else project.experiment_id
        known = self._client.search_runs([experiment], f"tags.`lmtool.run` = '{identity(run)}'", max_results=1)
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            created = self._client.create_run(experiment, tags={"lmtool.run": identity(run)}, run_name=run.name)
            self._id = created.info.run_id
            params = [
                Param(key, str(value)[:500]) for key, value in flatten_mapping(recipe.model_dump(mode="json")).items()
            ]
            for start in range(0, len(params), 100):
                self._client.log_batch(self._id, params=params[start : start + 100])
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def log(self, values: Mapping[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        self._waiting += [self._metric(name, value, now, step) for name, value in values.items()]
        if time.monotonic() - self._sent > MLFLOW_SECONDS:
            self._send()

    def log_sample(self, sampled: Sampled) -> None:
        digest = sha256(sampled.prompt.encode())[:8]
        file = f"samples/step-{sampled.step:06}-{digest}.txt"
        self._client.log_text(self._id, f"{sampled.prompt}{sampled.text}", file)

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._id)

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._id, metrics=self._waiting[:MLFLOW_MOST])
            del self._waiting[:MLFLOW_MOST]
        self._sent = time.monotonic()
