"""Summaries of runs: their figures, and the damage that hides no other run."""

import json
from pathlib import Path
from typing import Any

import pytest

from lmtool.runs.damage import find_damaged_record_files
from lmtool.runs.listing import (
    collect_best_checkpoint_test_scores,
    read_evaluations,
    save_evaluation_unless_training_data,
    summarize_all_runs,
    summarize_run,
)
from tests.support.runs import MakeRun


def test_a_summary_of_a_run(make: MakeRun) -> None:
    assert summarize_all_runs() == []
    run = make(finished=True)
    summary = summarize_run(run.path)
    assert (summary.name, summary.recipe, summary.model) == (run.name, "tiny", "decoder, 4 x 128")
    assert (summary.step, summary.valid_loss, summary.best_valid_loss) == (20, 1.2, 1.1)
    assert (summary.state, summary.problem) == ("finished", "")
    assert summary.bytes == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    checkpoints = [(saved.name, saved.best) for saved in summary.checkpoints]
    assert checkpoints == [("step-000010", True), ("step-000020", False)]
    second = make()
    assert [summary.name for summary in summarize_all_runs()] == [second.name, run.name]


def test_damage_does_not_hide_the_others(make: MakeRun, runs: Path) -> None:
    make()
    (make("broken").path / "run.json").write_bytes(b"\xff")
    torn = make("torn")
    torn.metrics.path.write_bytes(b"\0\n")
    (torn.path / "checkpoints" / "step-000020" / "model.safetensors").unlink()
    bare = make("bare", steps=())
    (bare.path / "checkpoints").rmdir()
    (bare.path / "checkpoints").write_text("a file")
    (runs / "foreign").mkdir()
    (runs / "file").write_text("")
    (runs / "dangling").symlink_to("nowhere")
    (runs / "json" / "run.json").mkdir(parents=True)
    found = {summary.recipe: summary for summary in summarize_all_runs() if summary.recipe}
    damaged = [summary for summary in summarize_all_runs() if not summary.recipe]
    assert set(found) == {"tiny", "torn", "bare"}
    assert [(summary.state, "run.json" in summary.problem) for summary in damaged] == [("damaged", True)] * 2
    assert "metrics.jsonl:1" in found["torn"].problem
    assert [bool(saved.problem) for saved in found["torn"].checkpoints] == [False, True]
    assert [saved.best for saved in found["torn"].checkpoints] == [True, False]
    assert found["torn"].step == 20
    assert found["bare"].problem
    assert (found["bare"].step, found["bare"].valid_loss) == (0, None)


BLEU = {"part": "test", "loss": 1.0, "bleu": 3.0}


@pytest.mark.parametrize(
    ("records", "results", "expected"),
    [
        ([{"valid_loss": 2.0}, {"valid_loss": 2.5}], None, ("loss", 2.0, "validation")),
        ([{"valid_loss": None}], None, ("loss", None, "validation")),
        ([{"valid_loss": 2.0, "accuracy": 0.5, "macro-f1": 0.4}] * 2, None, ("accuracy", 0.5, "validation")),
        ([{"valid_loss": 2.0, "next-sentence-accuracy": 0.9}] * 2, None, ("loss", 2.0, "validation")),
        ([{"valid_loss": 2.0, "accuracy": 0.5}], {"part": "test", "accuracy": 0.75}, ("accuracy", 0.75, "test")),
        ([], {"part": "validation", "subset_accuracy": 0.25}, ("accuracy", 0.25, "validation")),
        ([], {"part": "test", "loss": 1.0, "mse": 2.0, "pearson": 0.8}, ("correlation", 0.8, "test")),
        ([], {"part": "test", "loss": 1.5, "mse": 2.0, "pearson": None}, ("loss", 1.5, "test")),
        ([{"valid_loss": 2.0}], BLEU | {"exact": 0.1}, ("bleu", 3.0, "test")),
        ([], {"tasks": {"a": BLEU, "b": BLEU | {"bleu": 4.0}}}, ("bleu", 3.0, "test")),
    ],
)
def test_the_figure_that_counts_for_a_run(
    make: MakeRun, records: list[dict[str, Any]], results: dict[str, Any] | None, expected: tuple[str, float, str]
) -> None:
    """The records are those of steps 10 and 20; the first is the best."""
    run = make()
    lines = [{"step": 10 * i, "loss": 3.0, **record} for i, record in enumerate(records, 1)]
    run.metrics.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if results is not None:
        (run.path / "metrics.json").write_text(json.dumps(results))
    summary = summarize_run(run.path)
    assert (summary.metric, summary.value, summary.part) == expected
    assert summary.problem == ""


def test_a_test_table_of_the_run_counts_before_validation_and_other_data_never(make: MakeRun) -> None:
    """What `lmtool eval` has measured at the best checkpoint is listed beside."""
    run = make()

    def figures(results: dict[str, Any]) -> tuple[Any, ...]:
        (run.path / "metrics.json").write_text(json.dumps({"loss": 1.0} | results))
        found = summarize_run(run.path)
        return found.value, found.part, found.rows, round(found.standard_error or 0, 2), found.test

    validation = {"part": "validation", "rows": 12, "accuracy": 0.9}
    assert figures(validation) == (0.9, "validation", 12, 0.1, {})
    for step, accuracy in ((20, 0.1), (10, 0.5), (10, 0.6)):
        record = {"step": step, "rows": 400, "accuracy": accuracy, "classes": {}}
        save_evaluation_unless_training_data(run.path, ["data/new.csv"], [], record)
    new = {"new.csv": {"rows": 400, "accuracy": 0.6}}
    assert figures(validation) == (0.9, "validation", 12, 0.1, new)
    test = {"rows": 100, "loss": 1.0, "accuracy": 0.7}
    assert figures(test | {"part": "test"}) == (0.7, "test", 100, 0.05, {"test": test} | new)
    assert list(collect_best_checkpoint_test_scores(run)) == ["test", "new.csv"]
    (run.path / "evaluations.json").write_text("[{}]")
    assert "evaluations.json" in summarize_run(run.path).problem
    assert "evaluations.json" in [name for name, _ in find_damaged_record_files(run)]


@pytest.mark.parametrize("source", ["other/train.csv", "texts/a.txt", "texts", "part-1.jsonl", "./valid.csv"])
def test_data_of_the_training_are_no_test_set(make: MakeRun, source: str) -> None:
    run = make()
    known = ["train.csv", "texts", "shards/part-*.jsonl", "valid.csv"]
    save_evaluation_unless_training_data(run.path, [source], known, {"step": 10, "loss": 1.0})
    assert read_evaluations(run) == []
    save_evaluation_unless_training_data(run.path, ["new.csv"], known, {"step": 10, "loss": float("nan")})
    assert [found.source for found in read_evaluations(run)] == ["new.csv"]


@pytest.mark.parametrize("content", [b"[]", b"\xff", b'{"tasks": {}}', b'{"tasks": [1]}'])
def test_damaged_results_are_a_problem_of_their_run(make: MakeRun, content: bytes) -> None:
    run = make()
    (run.path / "metrics.json").write_bytes(content)
    assert "metrics.json" in summarize_run(run.path).problem
