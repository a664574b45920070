"""`lmtool sweep`: a run for each combination of values, resumed where it stopped, compared by validation."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.sweeping import sweep
from lmtool.apps.sweeping.halving import RunSeconds
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.creation import has_checkpoint
from lmtool.runs.directory import Run
from tests.support.cli import SMALL, CommandLine, exit_code_of, film_rows, write_table
from tests.support.training import Work
from tests.training.programs import LMTOOL, output, start, wait_until

Trained = list[tuple[str, float]]


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> Trained:
    """Trains in this process, one after the other; returns what was trained, with the share of the steps."""
    trained: Trained = []

    def processes(
        this: Any, names: list[str], until: float, stop: Callable[[], bool]
    ) -> Iterator[tuple[str, int, float]]:
        for name in names:
            if stop():
                return
            trained.append((name, until))
            how = ["-o", str(this.folder / name), "--start-or-resume", "-q", "--until", str(until)]
            code = run_here([*this.commands[name], *how], this.folder / f"{name}.log")
            yield name, code, 0.01

    def run_here(words: list[str], log: Path) -> int:
        with open(log, "a") as file, redirect_stdout(file), redirect_stderr(file):
            return exit_code_of(words)

    monkeypatch.setattr(sweep.Sweep, "_run_processes", processes)
    return trained


def weights(run: str | Path) -> bytes:
    """The bytes of the weights of the last checkpoint."""
    return (list_checkpoints(Path(run) / "checkpoints")[-1][1] / "model.safetensors").read_bytes()


def test_a_sweep_is_removed_with_all_of_its_runs(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained
) -> None:
    """And without what is not its own."""
    lmtool.succeeds("sweep", corpus, *SMALL, "--seeds", "2", "-o", "runs/grid", "-q")
    folder = home / "runs/grid"
    (folder / "mine").write_text("mine")
    lmtool.refuses(2, "runs", "rm", "grid", words=["--yes"])
    done = lmtool.succeeds("runs", "rm", "grid", "--yes")
    removed = [line.split(",")[0] for line in done.out.splitlines()][:2]
    assert removed == [f"removed runs/grid/seed={seed}" for seed in (1, 2)]
    assert [path.name for path in folder.iterdir()] == ["mine"]
    assert "kept in" in done.err


def test_each_combination_is_a_run_like_any_other(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained
) -> None:
    def swept(rates: str, *more: str) -> Any:
        values = ("-s", f"optimizer.lr={rates}", "--seeds", "2", "-o", "runs/grid")
        return lmtool.succeeds("sweep", corpus, *SMALL, *values, "--json", *more).json()

    told = swept("0.01,0.02")
    assert len(inside) == 4
    assert told["keys"] == ["seed", "optimizer.lr"]
    assert len(told["rows"]) == 2
    assert all(row["seeds"] == 2 and row["deviation"] > 0 and row["steps"] == 6 for row in told["rows"])
    means = [row["bits per byte"] for row in told["rows"]]
    assert means == sorted(means)
    plain = ("-s", "seed=2", "-s", "optimizer.lr=0.02", "-o", "runs/alone", "-q")
    lmtool.succeeds("pretrain", corpus, *SMALL, *plain)
    assert weights("runs/alone") == weights("runs/grid/seed=2,lr=0.02")
    assert Path(told["page"]).exists()
    assert swept("0.01,0.02") == told
    inside.clear()
    swept("0.01,0.02,0.04")
    assert len([name for name, _ in inside if "0.04" in name]) == 2
    best = lmtool.succeeds("pretrain", "-r", "runs/grid/best.yaml", "-o", "runs/best", "-q")
    assert best.out.strip() == "runs/best"
    lmtool.succeeds("runs", "rm", "grid", "--yes")
    assert not Path("runs/grid").exists()


def test_a_sweep_says_what_its_differences_are_worth(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained
) -> None:
    """Two steps of both are in the warm-up, so that the schedules are one."""
    swept = ("sweep", corpus, *SMALL, "-s", "training.steps=2", "-s", "schedule.warmup_steps=2")
    same = lmtool.succeeds(*swept, "-s", "schedule.kind=constant,linear", "-o", "runs/same")
    assert "every setting gave the same result" in same.err
    varied = (*swept, "-s", "optimizer.lr=0.01,0.02", "-o")
    assert "one seed each" in lmtool.succeeds(*varied, "runs/one").err
    inside.clear()
    apart = ("-s", "model.n_layers=1,2", "--one-at-a-time", "--seeds", "2")
    assert "one seed each" not in lmtool.succeeds(*varied, "runs/two", *apart).err
    assert len(inside) == 3 * 2


def test_other_files_and_sweeps_are_not_overwritten(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained
) -> None:
    words = ("sweep", corpus, *SMALL, "-s", "training.steps=1", "-s", "seed=1,2", "-o")
    for name in ("sweep.html", "best.yaml"):
        file = Path("runs") / name / name
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        lmtool.refuses(2, *words, file.parent, words=[name])
        assert file.read_text() == "mine"
    assert not inside
    lmtool.succeeds(*words, "runs/one", "-q")
    lmtool.refuses(2, *words, "runs/one", "-s", "model.d_model=32", words=["another run of this name", "-o"])


def test_a_search_trains_all_a_little_and_the_better_ones_on(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = iter([RunSeconds(1.0, 100.0)] * 9)
    monkeypatch.setattr(sweep.Sweep, "extrapolate_longest_run_seconds", lambda this, names: next(planned))
    words = ("sweep", corpus, *SMALL, "--minutes", "5", "--jobs", "1", "-o", "runs/search", "--json")
    told = json.loads(lmtool.succeeds(*words).out)
    assert told["keys"] == ["optimizer.lr", "model.dropout"]
    shares = [share for _, share in inside]
    assert shares[0] == 1 / 9
    assert inside[0][0].startswith("lr=0.02,dropout=")
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    steps = [row.get("steps") for row in told["rows"]]
    assert steps[0] == 6
    assert all(row["bits per byte"] > 0 for row in told["rows"]), "also before their first own validation"
    assert min(steps) < 6
    best = Run.open(Path(told["rows"][0]["runs"][0]["path"]))
    assert best.state == "finished"
    assert (best.path / "recipe.yaml").read_bytes() == Path("runs/search/best.yaml").read_bytes()


def test_tables_are_swept_as_finetune_trains_them(lmtool: CommandLine, home: Path, inside: Trained) -> None:
    write_table(Path("rows.csv"), film_rows())
    values = ("-s", "model.ngrams=1,2", "-s", "optimizer.l2=1", "-s", "evaluation.baseline=false")
    done = lmtool.succeeds("sweep", "rows.csv", *values, "-o", "runs/table")
    header, first, second, page = done.out.splitlines()
    assert header.split("\t")[:3] == ["model.ngrams", "loss", "deviation"]
    assert {first[0], second[0]} == {"1", "2"}
    assert page == "runs/table/sweep.html"
    assert "lmtool finetune -r runs/table/best.yaml" in done.err
    lmtool.succeeds("finetune", "-r", "runs/table/best.yaml", "-q", "-o", "runs/again")


def test_a_run_is_tuned_with_several_values(lmtool: CommandLine, run: Path, inside: Trained) -> None:
    """The last one, which by then is one of the sweep."""
    write_table(Path("rows.csv"), film_rows())
    values = ("-s", "training.epochs=0.1,0.2", "-s", "training.precision=float32", "-s", "evaluation.baseline=false")
    done = lmtool.succeeds("sweep", "rows.csv", "--from", "last", *values, "-o", "runs/tuned")
    assert {json.loads(path.read_text())["base"]["run"] for path in Path("runs/tuned").glob("*/run.json")} == {run.name}
    assert (
        f"lmtool finetune rows.csv --from runs/{run.name} -s data.valid_fraction=0.25 -s training.precision=float32 "
        "-s evaluation.baseline=false -s training.epochs=0." in done.err
    )


def test_what_fails_is_a_row_and_the_others_are_trained(
    lmtool: CommandLine, home: Path, corpus: Path, inside: Trained
) -> None:
    values = ("-s", "optimizer.lr=1e29,0.01", "-s", "training.clip_norm=null", "-s", "optimizer.kind=sgd")
    done = lmtool("sweep", corpus, *SMALL, *values, "-o", "runs/some")
    assert done.code == 6
    _, best, failed, page = done.out.splitlines()
    assert best.startswith("0.01\t")
    assert failed.startswith("1e+29\t")
    assert "of step" in failed
    assert page
    assert "optimizer.lr" in Path("runs/some/lr=1e+29.log").read_text()


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_runs_of_a_sweep_that_is_ended_save_and_the_same_command_goes_on(work: Work, number: int) -> None:
    """In processes of their own, two at once. Where the sweep is killed, also while they still save."""
    settings = [str(work.text), "--recipe", str(work.recipe), "-s", "training.steps=600"]
    settings += ["-s", "checkpoint.every=600", "-s", "evaluation.every=20"]
    alone = [*LMTOOL, "pretrain", *settings, "-s", "optimizer.lr=0.001", "-o", str(work.folder / "one")]
    sweep = [*LMTOOL, "sweep", *settings, "-s", "optimizer.lr=0.001,0.003", "-o", str(work.folder / "all")]
    runs = [work.folder / "all" / f"lr={rate}" for rate in ("0.001", "0.003")]
    process = start(work, [*sweep, "--jobs", "2"])
    for run in runs:
        wait_until(partial(has_checkpoint, run), process, work)
    process.send_signal(number)
    assert process.wait() == (130 if number == signal.SIGINT else -number)
    assert start(work, [*sweep, "--jobs", "2"]).wait() == 0, output(work)
    for run in runs:
        sessions = Run.open(run).info.sessions
        assert [session.outcome for session in sessions] == ["stopped", "finished"]
        assert sessions[1].step < 600
    assert start(work, alone).wait() == 0
    assert weights(runs[0]) == weights(work.folder / "one")
