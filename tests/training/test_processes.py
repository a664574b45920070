"""Signals to training programs, and two processes that train as one; tests/crossings has more of these."""

import csv
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from lmtool.runs.checkpoint import list_checkpoints, open_and_verify_checkpoint
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from lmtool.tasks.predict import predict_table_lazily
from tests.support.processes import TOGETHER, rank
from tests.support.training import Work, after, ended, lasting, metrics, warnings_in, words, write_table
from tests.training.programs import FORKED, LMTOOL, TORCHRUN, output, pretraining, saved, start, wait_until

pytestmark = pytest.mark.system

IMPORTS = ("torch.distributed.run", "torch._dynamo")
"""What torchrun and the processes of a group import, which takes seconds."""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks through /proc")
def test_two_processes(work: Work) -> None:
    """SIGTERM to one stops both and saves; resumed by two or by one, losses are those of one process throughout.

    SIGKILL to one ends both.
    """
    long = ("training.steps=100000", *TOGETHER)
    process = start(work, [*TORCHRUN, *pretraining(work, *long)])
    wait_until(saved(work.run(), 5), process, work)
    os.kill(rank(process.pid, 1), signal.SIGTERM)
    assert process.wait() != 0
    stdout, stderr = output(work)
    (step, _) = list_checkpoints(work.run() / "checkpoints")[-1]
    assert f"interrupted and saved at step {step}" in stderr
    assert stdout == f"{work.run()}\n", "one process prints"
    assert stderr.count("plan: steps 1 to") == 1
    assert "2 processes" in stderr
    assert [record["step"] for record in metrics(work.run())] == list(range(1, step + 1))
    assert Run.open(work.run()).state == "stopped"
    assert "lmtool.errors" not in stderr

    # Two go on, of which one is killed; one goes on, and one process goes the whole way, changing the schedule there.
    shutil.copytree(work.run(), work.run("one process"))
    fewer, n = "training.steps=50000", 10 - step % 5
    process = start(work, [*FORKED, "resume", str(work.run()), "-s", fewer], IMPORTS)
    wait_until(saved(work.run(), step + n + 5), process, work)  # a step's record is written after its checkpoint
    os.kill(rank(process.pid, 1), signal.SIGKILL)
    assert process.wait() != 0
    assert "not bitwise" not in output(work)[1]
    (warning,) = warnings_in(work.resume(fewer, name="one process", stop=after(n)))
    assert "processes 2 -> 1" in warning
    asked = iter(range(1, 10**6))
    work.pretrain(*long, name="whole", stop=lambda: next(asked) == step)
    assert ended(work.resume(fewer, name="whole", stop=after(n))).step == step + n
    expected = metrics(work.run("whole"))
    for name in ("run", "one process"):
        found = metrics(work.run(name))[: step + n]
        for key in ("step", "tokens", "lr"):
            assert [record[key] for record in found] == [record[key] for record in expected]
        for key in ("loss", "valid_loss", "grad_norm"):
            assert [record[key] for record in found] == pytest.approx([record[key] for record in expected], abs=1e-5)

    # What the killed ones saved is whole, and the run goes on.
    left = list_checkpoints(work.run() / "checkpoints")
    assert left
    for at, path in left:
        assert open_and_verify_checkpoint(path).step == at
    assert Run.open(work.run()).state == "stopped"
    assert ended(work.resume(f"training.steps={left[-1][0] + 2}")).reason == "finished"


def test_two_processes_answer_the_rows_of_a_table_as_one_does(work: Work) -> None:
    """And one of them writes the answers."""
    table = write_table(work.folder / "table.csv", (f"the cat {words(1 + i % 7, i)},{'ab'[i % 2]}" for i in range(61)))
    still = ("model.dropout=0", "objective={kind: classification, dropout: 0}", "training.epochs=null")
    work.learn_table(work.recipe, table, *still)
    process = start(work, [*TORCHRUN, "predict", str(work.run()), "table.csv", "-o", "out.csv"])
    assert process.wait() == 0, output(work)
    with (work.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        answers = [list(row.values())[2:] for row in csv.DictReader(file)]
    alone = [cells for _, cells in predict_table_lazily(load_run(str(work.run())), str(table)).rows]
    assert [row[0] for row in answers] == [cells[0] for cells in alone]
    for row, cells in zip(answers, alone, strict=True):
        assert [float(p) for p in row[1:]] == pytest.approx([float(str(p)) for p in cells[1:]], abs=1e-5)


LONG = ("training.steps=100000", "evaluation.every=7", "checkpoint.every=5")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_finishes_the_step_and_saves(work: Work, number: signal.Signals, code: int) -> None:
    process = start(work, [*LMTOOL, *pretraining(work, *LONG)])
    wait_until(saved(work.run(), 5), process, work)
    process.send_signal(number)
    assert process.wait() == code
    stdout, stderr = output(work)
    assert stdout == f"{work.run()}\n"
    assert "Traceback" not in stderr
    step = list_checkpoints(work.run() / "checkpoints")[-1][0]
    assert f"interrupted and saved at step {step}" in stderr
    assert metrics(work.run())[-1]["step"] == step
    assert Run.open(work.run()).state == "stopped"
    # and it equals the run of a session in this process
    work.pretrain(*LONG, name="here", stop=after(step))
    assert lasting(work.run(), step) == lasting(work.run("here"), step)


STUCK = """
import time
from pathlib import Path
from lmtool.training.data import TextData
validate = TextData.validate
def stuck(*arguments):
    if list(Path("run/checkpoints").glob("step-*")):  # before that, the speed is measured
        time.sleep(1e6)
    return validate(*arguments)
TextData.validate = stuck
from lmtool.cli import main
main()
"""


def test_a_second_signal_leaves_at_once(work: Work) -> None:
    """While a validation hangs, whose step was saved before."""
    process = start(work, ["-c", STUCK, *pretraining(work, "training.steps=50", "evaluation.every=6")])
    wait_until(saved(work.run(), 6), process, work)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None, "the first signal waits for the step"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    (*_, (step, path)) = list_checkpoints(work.run() / "checkpoints")
    assert (step, open_and_verify_checkpoint(path).step) == (6, 6)
    assert [record["step"] for record in metrics(work.run())] == list(range(1, 6))
    assert ended(work.resume("training.steps=8")).step == 8


def test_a_signal_ends_all_seeds(work: Work) -> None:
    """The current run is saved; no other is started after it."""
    work.pretrain("training.steps=1", name="base")
    rows = (f"the cat {'ran' if i % 2 else 'sat'} {i},{'ab'[i % 2]}" for i in range(60))
    write_table(work.folder / "table.csv", rows)
    settings = ("-s", "checkpoint.every=5", "-s", "training.device=cpu", "-s", "training.precision=float32")
    seeds = ("--seeds", "3", "--epochs", "100000", "-o", str(work.run()))
    process = start(work, [*LMTOOL, "finetune", "table.csv", "--from", str(work.run("base")), *seeds, *settings])
    wait_until(saved(work.run() / "seed-1", 5), process, work)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    stdout, stderr = output(work)
    assert "interrupted and saved at step" in stderr
    assert stdout == f"{work.run() / 'seed-1'}\n"
    assert [path.name for path in work.run().iterdir()] == ["seed-1"]
    assert Run.open(work.run() / "seed-1").state == "stopped"
