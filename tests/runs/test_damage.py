"""Every file of a run is verified."""

import json
from pathlib import Path

import pytest
import torch

from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import Run
from lmtool.runs.files import ValidationState
from lmtool.runs.saving import CheckpointContent
from lmtool.storage.records import encode_json
from tests.support.damage import flip_bit, forge
from tests.support.runs import FILES, locked, run_info, start_session

STATE = {"tokens": 4, "seconds": 0.5, "best_step": 2, "best_value": 1.5, "recipe": {"seed": 1}}
COUNTED = {"kind": "class", "part": "test", "metric": "accuracy", "constant": 0.5, "linear": 0.75, "features": "words"}
BASELINE = {"": {**COUNTED, "fitted": 2, "rows": 2}}
RESULTS = {
    "part": "test",
    "step": 2,
    "loss": 0.5,
    "accuracy": 0.75,
    "labels": ["a", "b"],
    "confusion": [[1, 0], [0, 1]],
}


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with all files."""
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))
    with create_and_lock_run(tmp_path / "run", run_info(), FILES) as run:
        start_session(run)
        for step in (1, 2):
            run.metrics.append({"step": step, "loss": 2.0, "gradient_norms": {"h": [1.0, None]}})
            run.samples.append({"step": step, "prompt": "One", "text": " day"})
            saved = CheckpointContent(step, {"w": torch.ones(2)}, {"m": torch.ones(2)}, STATE, 2)
            run.save_checkpoint(saved, keep_last=9)
        run.record_validation_and_prune_checkpoints(ValidationState(step=2, best_step=2, best_value=1.5, stale=0))
        run.write_results(RESULTS)
        (run.path / "split.json").write_text(json.dumps({"table": "a.csv", "train": [1, 2], "test": [3]}))
        (run.path / "baseline.json").write_text(json.dumps(BASELINE))
        run.record_session_end("finished")
    return run.path


def found(run: Path) -> list[str]:
    """Names of the files that are reported."""
    return [str(path.relative_to(run)) for path, why in find_damaged_run_files(run) if why and "\n" not in why]


def test_a_whole_run_is_not_reported(whole: Path) -> None:
    assert list(find_damaged_run_files(whole)) == []
    with locked(Run.open(whole)) as run:
        run.remove_optimizer_states()
    assert list(find_damaged_run_files(whole)) == []


def test_damage_of_any_file_of_a_checkpoint_is_reported(whole: Path) -> None:
    files = [*(whole / "checkpoints" / "step-000001").iterdir()]
    assert len(files) == 4
    for file in files:
        flip_bit(file)
        assert found(whole) == [str(file.relative_to(whole))]
        flip_bit(file)


@pytest.mark.parametrize("name", ["run.json", "validated.json", "metrics.json", "split.json", "baseline.json"])
@pytest.mark.parametrize("content", [b"{", b"3", b"\xff", b"[" * 100_000])
def test_other_files_are_reported_when_they_are_no_such_file(name: str, content: bytes, whole: Path) -> None:
    (whole / name).write_bytes(content)
    assert found(whole) == [name]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run.json", {"sessions": [{"started": "2026-01-01T00:00:00+00:00", "step": -1}]}),
        ("run.json", {"fingerprints": {"data": "d"}}),
        ("validated.json", {"best_value": "1"}),
        ("validated.json", {"more": 1}),
        ("metrics.json", {"loss": "low"}),
        ("metrics.json", {"confusion": [[1, 0]]}),
        ("metrics.json", {"labels": ["a"]}),
        ("metrics.json", {"baseline": {}}),
        ("metrics.json", {"mistakes": [{"text": 10**200}]}),  # which no float holds
        ("metrics.json", {"tasks": {"a": {"loss": "low"}}}),
        ("split.json", {"train": [1.5]}),
        ("baseline.json", {"": {"kind": "class"}}),
    ],
)
def test_forged_values_are_reported(name: str, change: dict[str, object], whole: Path) -> None:
    if name in ("run.json", "validated.json"):
        forge(whole / name, **change)
    else:
        (whole / name).write_bytes(encode_json(json.loads((whole / name).read_bytes()) | change))
    assert found(whole) == [name]


def test_a_forged_state_with_the_right_checksum_is_reported(whole: Path) -> None:
    with locked(Run.open(whole)) as run:
        for step, state in enumerate(({}, {"recipe": {}, "stale": -1}, {"recipe": {}, "new": 1}), start=3):
            run.save_checkpoint(CheckpointContent(step, {}, {}, state, 2), keep_last=9)
    steps = [f"checkpoints/step-00000{step}/state.json" for step in (3, 4, 5)]
    assert found(whole) == steps


def test_missing_records_are_reported(whole: Path) -> None:
    (whole / "metrics.jsonl").write_bytes((whole / "metrics.jsonl").read_bytes().splitlines(keepends=True)[1])
    assert [why for _, why in find_damaged_run_files(whole)] == ["metrics.jsonl has no record of step 1"]
