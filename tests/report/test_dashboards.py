"""Dashboards get the numbers of metrics.jsonl under the same names; one that fails is a warning."""

import json
import math
import sys
import warnings
from pathlib import Path

import pytest

from lmtool.report.dashboards import DashboardLoggers, make_dashboard_run_id
from lmtool.runs.directory import Run
from tests.support.training import Work, after


def trained(work: Work, *overrides: str, **options) -> tuple[Path, list[str]]:
    """A run of 12 steps whose events were logged, and the warnings."""
    loggers = DashboardLoggers()
    warned = []
    for event in work.pretrain("evaluation.prompts=['a cat']", *overrides, **options):
        warned += loggers.log_event(event)
    return work.run(), warned + loggers.close()


def numbers_of(run: Path) -> dict[str, dict[int, float]]:
    """The numbers of metrics.jsonl by name and step."""
    found: dict[str, dict[int, float]] = {}
    for line in (run / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        for name, value in record.items():
            if name != "step" and value is not None:
                found.setdefault(name, {})[record["step"]] = value
    return found


def close_to(found, expected):
    assert found.keys() == expected.keys()
    for step, value in expected.items():
        assert math.isclose(found[step], value, rel_tol=1e-6)  # TensorBoard keeps 32 bits


def leveldb_records(content: bytes):
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
def quiet():
    """Without the warnings of other people's libraries."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.usefixtures("quiet")
def test_tensorboard_reads_the_same_numbers(work):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run, warned = trained(work, "logging=[tensorboard]", "evaluation.baseline=true")
    assert warned == []
    read = EventAccumulator(str(run / "tensorboard"), {"scalars": 0, "tensors": 0})
    read.Reload()
    expected = numbers_of(run)
    assert expected.keys() <= set(read.Tags()["scalars"])
    for name, values in expected.items():
        close_to({event.step: event.value for event in read.Scalars(name)}, values)
    (bits,) = read.Scalars("validation/bits_per_byte")
    assert math.isclose(bits.value, json.loads((run / "metrics.json").read_text())["bits_per_byte"], rel_tol=1e-6)
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    texts = {event.step: event.tensor_proto.string_val[0].decode() for event in read.Tensors("samples/text_summary")}
    for sample in samples:
        assert texts[sample["step"]].replace("    ", "", 1).startswith("a cat")
    assert len(texts) == len(samples) == 3


@pytest.mark.usefixtures("quiet")
def test_tensorboard_hides_what_a_resumed_run_repeats(work):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    trained(work, "logging=[tensorboard]", "checkpoint.every=4", stop=after(7))
    run = work.run()
    (run / "checkpoints" / "step-000007" / "MANIFEST.json").write_text("damaged")
    loggers = DashboardLoggers()
    warned = [line for event in work.resume() for line in loggers.log_event(event)] + loggers.close()
    assert warned == []
    read = EventAccumulator(str(run / "tensorboard"), {"scalars": 0})
    read.Reload()
    close_to({event.step: event.value for event in read.Scalars("loss")}, numbers_of(run)["loss"])


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
def test_mlflow_has_the_same_numbers_in_files(work, monkeypatch):
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{work.folder / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    run, warned = trained(work, "logging=[mlflow]")
    assert warned == []
    client = MlflowClient()
    (experiment,) = [found for found in client.search_experiments() if found.name == "lmtool"]
    (logged,) = client.search_runs([experiment.experiment_id])
    assert logged.info.status == "FINISHED"
    assert logged.data.tags["lmtool.run"] == make_dashboard_run_id(Run.open(run))
    assert logged.data.params["model.d_model"] == "16"
    for name, values in numbers_of(run).items():
        history = client.get_metric_history(logged.info.run_id, name)
        close_to({metric.step: metric.value for metric in history}, values)
    assert len(client.list_artifacts(logged.info.run_id, "samples")) == 3


@pytest.mark.slow  # its service of its own loses records on a machine that is very busy
@pytest.mark.usefixtures("quiet")
def test_wandb_writes_the_same_numbers_offline(work, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    from wandb.proto import wandb_internal_pb2

    run, warned = trained(work, "logging=[wandb]")
    assert warned == []
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    found: dict[str, dict[int, float]] = {}
    for data in leveldb_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for name, value in items.items():
            if "step" in items and isinstance(value, int | float):
                found.setdefault(name, {})[items["step"]] = value
    for name, values in numbers_of(run).items():
        close_to(found[name], values)


def test_a_logger_that_is_not_installed_is_a_warning(work, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    _, warned = trained(work, "logging=[tensorboard]")
    assert len(warned) == 1
    assert "pip install 'lmtool[tensorboard]'" in warned[0]


@pytest.mark.usefixtures("quiet")
def test_a_logger_that_fails_is_told_once_closed_and_gets_no_more(work, monkeypatch):
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed")
    from torch.utils.tensorboard import SummaryWriter

    calls, closed = [], []

    def fails(*arguments):
        calls.append(arguments)
        raise OSError("the disk is full")

    def closes(writer):
        closed.append(writer)
        raise OSError("the disk is still full")

    monkeypatch.setattr(SummaryWriter, "add_scalar", fails)
    monkeypatch.setattr(SummaryWriter, "close", closes)
    run, warned = trained(work, "logging=[tensorboard]")
    assert warned == ["no more is logged to tensorboard: OSError: the disk is full"]
    assert (len(calls), len(closed)) == (1, 1)
    assert len(numbers_of(run)["loss"]) == 12


def test_logging_changes_no_step(work):
    """Also where it fails; and a run may be resumed with other loggers."""
    work.pretrain(name="plain")
    work.pretrain("logging=[tensorboard]")
    losses = [numbers_of(work.run(name))["loss"] for name in ("plain", "run")]
    assert losses[0] == losses[1]
