"""Dashboards get the numbers of metrics.jsonl under the same names; one that fails is a warning."""

import json
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.report.dashboards import DashboardLoggers, make_dashboard_run_id
from lmtool.runs.directory import Run
from tests.support.training import Work, after

Numbers = dict[str, dict[int, float]]
"""By name and step."""


def logged(loggers: DashboardLoggers, told: Iterable[Any]) -> list[str]:
    """Log events, and close; returns the warnings."""
    return [line for event in told for line in loggers.log_event(event)] + loggers.close()


def trained(work: Work, *overrides: str, **options: Any) -> tuple[Path, list[str]]:
    """A run of 12 steps whose events were logged, and the warnings."""
    warned = logged(DashboardLoggers(), work.pretrain("evaluation.prompts=['a cat']", *overrides, **options))
    return work.run(), warned


def numbers_of(run: Path) -> Numbers:
    """The numbers of metrics.jsonl."""
    found: Numbers = {}
    for record in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()):
        for name, value in record.items():
            if name != "step" and value is not None:
                found.setdefault(name, {})[record["step"]] = value
    return found


def close_to(expected: dict[int, float]) -> Any:
    """TensorBoard keeps 32 bits."""
    return pytest.approx(expected, rel=1e-6)


def leveldb_records(content: bytes) -> Iterator[bytes]:
    """The records of a file of wandb: a header of 7 bytes, then LevelDB's log format in blocks of 32 kB."""
    at, parts = 7, b""
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield parts
            parts = b""


@pytest.fixture
def quiet() -> Iterator[None]:
    """Without the warnings of other people's libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def tensorboard_of(run: Path) -> Any:
    """What TensorBoard reads of a run."""
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "tensorboard"), {"scalars": 0, "tensors": 0})
    read.Reload()
    return read


def scalars(read: Any, name: str) -> dict[int, float]:
    return {event.step: event.value for event in read.Scalars(name)}


@pytest.mark.usefixtures("quiet")
def test_tensorboard_reads_the_same_numbers(work: Work) -> None:
    run, warned = trained(work, "logging=[tensorboard]", "evaluation.baseline=true")
    read = tensorboard_of(run)
    assert warned == []
    expected = numbers_of(run)
    assert expected.keys() <= set(read.Tags()["scalars"])
    for name, values in expected.items():
        assert scalars(read, name) == close_to(values)
    (bits,) = read.Scalars("validation/bits_per_byte")
    assert bits.value == pytest.approx(json.loads((run / "metrics.json").read_text())["bits_per_byte"], rel=1e-6)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    texts = {event.step: event.tensor_proto.string_val[0].decode() for event in read.Tensors("samples/text_summary")}
    for sample in samples:
        assert texts[sample["step"]].replace("    ", "", 1).startswith("a cat")
    assert len(texts) == len(samples) == 3


@pytest.mark.usefixtures("quiet")
def test_tensorboard_hides_what_a_resumed_run_repeats(work: Work) -> None:
    run, _ = trained(work, "logging=[tensorboard]", "checkpoint.every=4", stop=after(7))
    (run / "checkpoints" / "step-000007" / "MANIFEST.json").write_text("damaged")
    assert logged(DashboardLoggers(), work.resume()) == []
    assert scalars(tensorboard_of(run), "loss") == close_to(numbers_of(run)["loss"])


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_mlflow_has_the_same_numbers_in_files(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{work.folder / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    run, warned = trained(work, "logging=[mlflow]")
    assert warned == []
    client = MlflowClient()
    (experiment,) = [found for found in client.search_experiments() if found.name == "lmtool"]
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.data.tags["lmtool.run"] == make_dashboard_run_id(Run.open(run))
    assert found.data.params["model.d_model"] == "16"
    for name, values in numbers_of(run).items():
        history = client.get_metric_history(found.info.run_id, name)
        assert {metric.step: metric.value for metric in history} == close_to(values)
    assert len(client.list_artifacts(found.info.run_id, "samples")) == 3


@pytest.mark.slow  # its service of its own loses records on a machine that is very busy
@pytest.mark.usefixtures("quiet")
def test_wandb_writes_the_same_numbers_offline(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    from wandb.proto import wandb_internal_pb2

    run, warned = trained(work, "logging=[wandb]")
    assert warned == []
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    found: Numbers = {}
    for data in leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if "step" in items and isinstance(value, int | float):
                found.setdefault(name, {})[items["step"]] = value
    for name, values in numbers_of(run).items():
        assert found[name] == close_to(values)


def test_a_logger_that_is_not_installed_is_a_warning(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    _, warned = trained(work, "logging=[tensorboard]")
    assert len(warned) == 1
    assert "pip install 'lmtool[tensorboard]'" in warned[0]


@pytest.mark.usefixtures("quiet")
def test_a_logger_that_fails_is_told_once_closed_and_gets_no_more(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    calls: list[object] = []
    closed: list[object] = []

    def fails(*arguments: object) -> None:
        calls.append(arguments)
        raise OSError("the disk is full")

    def closes(writer: object) -> None:
        closed.append(writer)
        raise OSError("the disk is still full")

    monkeypatch.setattr(SummaryWriter, "add_scalar", fails)
    monkeypatch.setattr(SummaryWriter, "close", closes)
    run, warned = trained(work, "logging=[tensorboard]")
    assert warned == ["no more is logged to tensorboard: OSError: the disk is full"]
    assert (len(calls), len(closed)) == (1, 1)
    assert len(numbers_of(run)["loss"]) == 12


def test_logging_changes_no_step(work: Work) -> None:
    """Also where it fails; and a run may be resumed with other loggers."""
    work.pretrain(name="plain")
    work.pretrain("logging=[tensorboard]")
    losses = [numbers_of(work.run(name))["loss"] for name in ("plain", "run")]
    assert losses[0] == losses[1]
