from pathlib import Path

from lmtool.run.listing import summaries, summarise
from tests.run.conftest import MakeRun


def test_a_summary_of_a_run(make: MakeRun) -> None:
    run = make(finished=True)
    summary = summarise(run.path)
    assert (summary.name, summary.recipe, summary.model) == (run.name, "tiny", "decoder, 4 x 128")
    assert (summary.step, summary.valid_loss, summary.best_valid_loss) == (20, 1.2, 1.1)
    assert (summary.state, summary.problem) == ("finished", "")
    assert summary.bytes == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert [(saved.name, saved.best) for saved in summary.checkpoints] == [
        ("step-000010", True),
        ("step-000020", False),
    ]


def test_the_last_started_comes_first(make: MakeRun) -> None:
    first, second = make(), make()
    assert [summary.name for summary in summaries()] == [second.name, first.name]


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
    found = {summary.recipe or summary.problem.split(": ")[1]: summary for summary in summaries()}
    assert set(found) == {"tiny", "torn", "bare", "run.json is damaged", "run.json cannot be read"}
    assert found["run.json is damaged"].state == "damaged"
    assert "metrics.jsonl:1" in found["torn"].problem
    assert [saved.problem for saved in found["torn"].checkpoints] == ["", "model.safetensors is missing"]
    assert [saved.best for saved in found["torn"].checkpoints] == [True, False]
    assert found["torn"].step == 20
    assert found["bare"].problem.startswith("cannot list the checkpoints")
    assert (found["bare"].step, found["bare"].valid_loss) == (0, None)


def test_no_runs_directory(runs: Path) -> None:
    assert summaries() == []
