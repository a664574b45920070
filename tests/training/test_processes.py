"""Two processes that torchrun starts train as one does; tests/crossings has more of what they train and measure."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from lmtool.runs.checkpoint import list_checkpoints, open_and_verify_checkpoint
from lmtool.runs.directory import Run
from tests.support.processes import TOGETHER, rank
from tests.support.training import Work, after, ended, metrics, warnings_in
from tests.training.programs import FORKED, TORCHRUN, output, pretraining, saved, start, wait_until

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
