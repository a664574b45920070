"""Two processes, started by torchrun, train as one does."""

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from lmtool.inference.load import load_run
from lmtool.run.checkpoint import listed, verify
from lmtool.run.directory import Run
from lmtool.tables.predict import predict
from tests.training.programs import TORCHRUN, output, pretraining, saved, start, wait_until
from tests.training.tiny import Work, ended, metrics, warnings_in, words

# No dropout: every process draws its own mask.
TOGETHER = ("model.dropout=0", "training.micro_batch=3", "evaluation.every=5", "checkpoint.every=5")


def rank(parent: int, number: int) -> int:
    """Process id of a rank that torchrun started."""
    for folder in Path("/proc").iterdir():
        try:
            if not folder.name.isdigit() or f"\nPPid:\t{parent}\n" not in (folder / "status").read_text():
                continue
            if f"RANK={number}" in (folder / "environ").read_text().split("\0"):
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {number}")


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks through /proc")
def test_two_processes(work: Work) -> None:
    """SIGTERM to one stops both and saves; resumed by two or by one, losses are those of one process throughout."""
    long = ("training.steps=100000", *TOGETHER)
    process = start(work, [*TORCHRUN, *pretraining(work, *long)])
    wait_until(saved(work.run(), 5), process, work)
    os.kill(rank(process.pid, 1), signal.SIGTERM)
    assert process.wait() != 0
    stdout, stderr = output(work)
    (step, _) = listed(work.run() / "checkpoints")[-1]
    assert f"interrupted and saved at step {step}" in stderr
    assert stdout == f"{work.run()}\n", "one process prints"
    assert stderr.count("plan: steps 1 to") == 1
    assert "2 processes" in stderr
    assert [record["step"] for record in metrics(work.run())] == list(range(1, step + 1))
    assert Run.open(work.run()).state == "stopped"
    assert "lmtool.errors" not in stderr

    shutil.copytree(work.run(), work.run("one process"))
    more = f"training.steps={step + 10}"
    process = start(work, [*TORCHRUN, "resume", str(work.run()), "-s", more])
    assert process.wait() == 0, output(work)
    assert "not bitwise" not in output(work)[1]
    (warning,) = warnings_in(work.resume(more, name="one process"))
    assert "processes 2 -> 1" in warning

    # One process from the start, whose schedule is changed at the same step.
    asked = iter(range(1, 10**6))
    work.pretrain(*long, name="whole", stop=lambda: next(asked) == step)
    assert ended(work.resume(more, name="whole")).step == step + 10
    expected = metrics(work.run("whole"))
    for name in ("run", "one process"):
        found = metrics(work.run(name))
        for key in ("step", "tokens", "lr"):
            assert [record[key] for record in found] == [record[key] for record in expected]
        for key in ("loss", "valid_loss", "grad_norm"):
            assert [record[key] for record in found] == pytest.approx([record[key] for record in expected], abs=1e-5)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks through /proc")
def test_a_process_that_dies_ends_the_others(work: Work) -> None:
    process = start(work, [*TORCHRUN, *pretraining(work, "training.steps=100000", *TOGETHER)])
    wait_until(saved(work.run(), 5), process, work)
    os.kill(rank(process.pid, 1), signal.SIGKILL)
    assert process.wait() != 0
    found = listed(work.run() / "checkpoints")
    assert found
    for step, path in found:
        assert verify(path).step == step
    assert Run.open(work.run()).state == "stopped"
    assert ended(work.resume(f"training.steps={found[-1][0] + 2}")).reason == "finished"


HEADS = (
    "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 16, n_segments: 2, "
    "next_sentence_head: true}",
    "objective={kind: masked, next_sentence: false}",
    *TOGETHER[1:],
)


def test_heads_without_a_loss_and_runs_without_a_step(work: Work) -> None:
    """Only gradients of trainable parameters are reduced; and a finished run is reported by one process."""
    process = start(work, [*TORCHRUN, *pretraining(work, *HEADS)])
    assert process.wait() == 0, output(work)
    work.pretrain(*HEADS, name="whole")
    for found, expected in zip(metrics(work.run()), metrics(work.run("whole")), strict=True):
        assert found["tokens"] == expected["tokens"]
        assert found["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    first, last = (verify(work.run() / "checkpoints" / name).model() for name in ("step-000010", "step-000012"))
    assert {name.split(".")[0] for name in first if bool((first[name] == last[name]).all())} == {
        "pooler",
        "next_sentence",
    }
    assert ended(work.resume("training.steps=+2")).step == 14

    process = start(work, [*TORCHRUN, "resume", str(work.run())])
    assert process.wait() == 0, output(work)
    stdout, stderr = output(work)
    assert stdout == f"{work.run()}\n"
    assert stderr.count("has completed all 14 steps") == 1


def test_tables_are_learned_measured_and_answered_by_two(work: Work) -> None:
    table = work.folder / "table.csv"
    rows = [f"the cat {words(1 + i % 7, i)} {i},{'ab'[i % 2]}" for i in range(61)]
    table.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    still = ("model.dropout=0", "objective={kind: classification, dropout: 0}", "training.epochs=null")
    settings = [word for override in still for word in ("-s", override)]
    command = ["finetune", str(table), "--recipe", str(work.recipe), "-o", str(work.run()), *settings]
    process = start(work, [*TORCHRUN, *command])
    assert process.wait() == 0, output(work)
    stdout, _ = output(work)
    assert stdout.count("validation: 6 rows") == 1, "results are printed once"
    assert stdout.splitlines()[-1] == str(work.run())
    work.learn_table(work.recipe, table, *still, name="whole")
    found, expected = (json.loads((work.run(name) / "metrics.json").read_text()) for name in ("run", "whole"))
    assert found["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    assert found["confusion"] == expected["confusion"]

    process = start(work, [*TORCHRUN, "predict", str(work.run()), str(table), "-o", str(work.folder / "out.csv")])
    assert process.wait() == 0, output(work)
    with (work.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        answers = [list(row.values())[2:] for row in csv.DictReader(file)]
    alone = [cells for _, cells in predict(load_run(str(work.run())), str(table)).rows]
    assert [row[0] for row in answers] == [cells[0] for cells in alone]
    for row, cells in zip(answers, alone, strict=True):
        assert [float(p) for p in row[1:]] == pytest.approx([float(str(p)) for p in cells[1:]], abs=1e-5)
