"""`--start-or-resume`: one command begins a run, goes on with it, and ends when it is finished."""

import itertools
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from lmtool.cli.signals import StopAtStep
from lmtool.errors import UsageError
from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.creation import check_output_free_and_writable, has_checkpoint
from lmtool.runs.directory import Run
from lmtool.training import length
from tests.support.cli import CommandLine, contents
from tests.support.errors import refuses
from tests.support.processes import TOGETHER, rank
from tests.support.training import Work, after, lasting, metrics, warnings_in
from tests.training.programs import LMTOOL, TORCHRUN, output, pretraining, saved, start, wait_until


def command(work: Work, *overrides: str) -> list[str]:
    return [*pretraining(work, *overrides), "--start-or-resume"]


def test_one_command_begins_a_run_goes_on_with_it_and_ends(work: Work, lmtool: CommandLine) -> None:
    """An interrupted run continues exactly, whatever the command says by then; a finished one is left alone."""
    work.pretrain(name="whole")
    words = ("pretrain", work.text, "--recipe", work.recipe, "--start-or-resume")
    lmtool.refuses(2, *words, words=["-o DIR"])

    work.pretrain(stop=after(5))
    begun = Run.open(work.run()).info.created
    assert has_checkpoint(work.run())
    told = lmtool.succeeds(*command(work, "optimizer.lr=0.5"))
    assert "continues with the options that it began with" in told.err
    assert told.out == f"{work.run()}\n"
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
    assert Run.open(work.run()).info.created == begun
    sessions = Run.open(work.run()).info.sessions
    assert [session.outcome for session in sessions] == ["stopped", "finished"]

    told = lmtool.succeeds(*command(work))
    assert "has completed all 12 steps" in told.err
    assert told.out == f"{work.run()}\n"
    assert Run.open(work.run()).info.sessions == sessions


def test_a_run_without_a_checkpoint_is_begun_again(work: Work, lmtool: CommandLine) -> None:
    """As a session leaves it that ends in its first steps; nothing else is ever removed."""
    work.pretrain(name="whole")
    work.pretrain(stop=lambda: True)
    shutil.rmtree(work.run() / "checkpoints" / "step-000001")
    (work.run() / "checkpoints" / ".tmp-step-000001").mkdir()
    (work.run() / "notes.txt").write_text("mine")
    created = Run.open(work.run()).info.created
    assert not has_checkpoint(work.run())
    with pytest.raises(UsageError, match="already holds"):
        check_output_free_and_writable(work.run())
    lmtool.succeeds(*command(work))
    assert lasting(work.run(), 12) == lasting(work.run("whole"), 12)
    assert Run.open(work.run()).info.created != created
    assert (work.run() / "notes.txt").read_text() == "mine"


def test_other_folders_are_refused(tmp_path: Path) -> None:
    """A checkpoint that was set aside is work, and a file of that name may be anybody's."""
    (tmp_path / "report.html").write_text("mine")
    with refuses("output_exists"):
        check_output_free_and_writable(tmp_path, replace_aborted=True)
    (tmp_path / ".lock").touch()
    check_output_free_and_writable(tmp_path, replace_aborted=True)
    (tmp_path / "checkpoints" / "step-000005.aside-1").mkdir(parents=True)
    with refuses("output_exists"):
        check_output_free_and_writable(tmp_path, replace_aborted=True)


def test_a_share_of_the_steps_is_that_of_the_length_as_revised(
    work: Work, lmtool: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(length, "MAX_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(length.MeasuredDurations, "count_steps_within", lambda *_: 12 - length.MIN_PROBE_STEPS)
    monkeypatch.setattr(length, "count_steps_by_deadline", lambda *_: 24)
    lmtool.succeeds(*pretraining(work, "training.minutes=1"), "--until", "0.5")
    assert list_checkpoints(work.run() / "checkpoints")[-1][0] == 12
    assert Run.open(work.run()).state == "stopped"


@pytest.fixture
def seeds(run: Path) -> list[str]:
    """Three seeds of the last run on a table, which by the next time is another one."""
    rows = "".join(f"{'good' if i % 2 else 'bad'} map {i},{'ab'[i % 2]}\n" for i in range(60))
    Path("table.csv").write_text(f"text,label\n{rows}")
    keys = ("training.epochs=null", "training.steps=4", "checkpoint.every=1", "training.precision=float32")
    settings = [word for key in keys for word in ("-s", key)]
    return [
        *("finetune", "table.csv", "--from", "last", "--seeds", "3", "--lora-rank", "2", "--merge", "-q"),
        *settings,
        "-o",
    ]


def interrupted_in(monkeypatch: pytest.MonkeyPatch, lmtool: CommandLine, words: Sequence[object], after: int) -> None:
    """A signal comes at so many steps."""
    steps = itertools.count(1)
    with monkeypatch.context() as signalled:
        signalled.setattr(StopAtStep, "requested", lambda this: next(steps) >= after)
        assert lmtool(*words).code == 143


def test_seeds_that_were_interrupted_go_on_and_their_mean_is_made(
    lmtool: CommandLine, run: Path, seeds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lmtool.succeeds(*seeds, "whole").out.splitlines()
    shutil.rmtree("whole")  # its runs would be the last ones
    # the first seed takes four steps, and four for each of the models that score its folds
    interrupted_in(monkeypatch, lmtool, [*seeds, "parts"], 26)
    sessions = {seed: Run.open(Path(f"parts/seed-{seed}")).info.sessions for seed in (1, 2)}
    assert [each[-1].outcome for each in sessions.values()] == ["finished", "stopped"]
    assert not Path("parts/seed-3").exists()
    parts = lmtool.succeeds(*seeds, "parts").out.splitlines()
    assert parts[-1] == whole[-1]
    assert ", 3 runs: " in parts[-1]
    for seed in (1, 2, 3):
        done = Run.open(Path(f"parts/seed-{seed}"))
        assert done.state == "finished"
        assert len(done.info.sessions) == 1 + (seed == 2)
        assert done.info.base is not None
        assert done.info.base.run == run.name
        assert Path(f"parts/seed-{seed}-merged/run.json").exists()
    before = contents(Path("parts"))
    assert lmtool.succeeds(*seeds, "parts").out.splitlines()[-1] == whole[-1]
    assert {name: found for name, found in before.items() if ".lock" not in name} == {
        name: found for name, found in contents(Path("parts")).items() if ".lock" not in name
    }


def test_seeds_of_another_command_are_refused(
    lmtool: CommandLine, run: Path, seeds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the same one, where the run that they begin with is no longer the same."""
    interrupted_in(monkeypatch, lmtool, [*seeds, "runs/some"], 2)
    lmtool.refuses(2, *seeds, "runs/some", "-s", "optimizer.lr=0.5", words=["another command", "-o"])
    saved = list_checkpoints(run / "checkpoints")[-1][1] / "model.safetensors"
    changed = Run.open(Path("runs/some/seed-1")).info.base
    assert changed is not None
    interrupted_in(monkeypatch, lmtool, [*seeds[:4], "--from", run, *seeds[4:], "runs/named"], 2)
    lmtool.succeeds("resume", run, "-s", "training.steps=+2", "-s", "checkpoint.keep_last=1", "-q")
    assert not saved.exists()
    lmtool.refuses(2, *seeds[:4], "--from", run, *seeds[4:], "runs/named", words=["another model", "-o"])


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks through /proc")
@pytest.mark.slow
def test_a_killed_rank_restarts_by_itself(work: Work) -> None:
    """torchrun restarts all ranks, which go on from the last checkpoint: the losses of one unbroken process."""
    long = ("training.steps=60", *TOGETHER)
    launched = [*TORCHRUN[:4], "--max-restarts", "3", "--monitor-interval", "0.2", *TORCHRUN[4:], *command(work, *long)]
    process = start(work, launched)
    wait_until(saved(work.run(), 5), process, work)
    os.kill(rank(process.pid, 1), signal.SIGKILL)
    assert process.wait() == 0, output(work)
    sessions = Run.open(work.run()).info.sessions
    assert [session.outcome for session in sessions] == [None, "finished"]
    assert 5 <= sessions[1].step < 60
    assert list_checkpoints(work.run() / "checkpoints")[-1][0] == 60
    assert not warnings_in(work.pretrain(*long, name="whole"))
    found, expected = metrics(work.run()), metrics(work.run("whole"))
    assert [record["step"] for record in found] == list(range(1, 61))
    for key in ("loss", "valid_loss", "grad_norm"):
        assert [record[key] for record in found] == pytest.approx([record[key] for record in expected], abs=1e-5)


@pytest.mark.system
def test_of_three_at_once_one_trains(work: Work) -> None:
    """The others end with the code of a run that is in use, or find it finished, wherever they were when it began."""
    programs = [start(work, [*LMTOOL, *command(work, "training.steps=40")]) for _ in range(3)]
    codes = sorted(program.wait() for program in programs)
    assert codes[0] == 0, output(work)
    assert set(codes) <= {0, 4}, output(work)
    assert start(work, [*LMTOOL, *command(work, "training.steps=40")]).wait() == 0
    (session,) = [session for session in Run.open(work.run()).info.sessions if session.step == 0]
    assert session.outcome == "finished"
