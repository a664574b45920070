"""Merging adapters into weights: what the merged run has of the one that it is made of."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from lmtool.interop.resolve import resolve_reference
from lmtool.runs.damage import find_damaged_run_files
from lmtool.runs.directory import BASELINE, METRICS, RESULTS, RUN_FILES, SAMPLES, SPLIT, Run
from lmtool.runs.listing import read_evaluations, save_evaluation_unless_training_data
from lmtool.runs.merging import merge_adapters_into_new_run
from lmtool.runs.reference import Reference
from lmtool.storage.durable import TEMPORARY_PREFIX
from tests.runs.killing import die_at_event, is_killed
from tests.support.errors import refuses
from tests.support.training import Work, metrics

LORA = "tuning.lora={rank: 2, targets: [query, value]}"
LINE = ("data.documents=line", "data.split=document", 'evaluation.prompts=["b"]')


def files_of(run: Path) -> set[str]:
    return {name for name in RUN_FILES if (run / name).exists()}


def merge(reference: Path | str, target: Path) -> Path:
    return merge_adapters_into_new_run(Reference.from_name(str(reference)), target, ["test"])


@pytest.fixture
def adapted(work: Work) -> Path:
    """A run of adapters on a list of short lines."""
    syllables = ("ba", "ce", "di", "fo", "gu", "ha", "je", "ki")
    work.text.write_text("".join(f"{a}{b}{c}\n" for a in syllables for b in syllables for c in syllables[:4]))
    work.pretrain("training.steps=4", *LINE, name="base")
    work.pretrain(LORA, *LINE, "optimizer.lr=0.02", name="adapted", source=work.run("base"))
    return work.run("adapted")


def test_a_merged_run_has_all_that_still_holds(work: Work, adapted: Path) -> None:
    old = Run.open(adapted)
    step = resolve_reference(str(adapted)).checkpoint.step
    for number, measured in enumerate((step, step + 2)):
        save_evaluation_unless_training_data(adapted, [f"{number}.txt"], [], {"step": measured, "loss": 1.0})
    merged = merge(adapted, work.run("merged"))
    new = Run.open(merged)
    assert [found.source for found in read_evaluations(new)] == ["0.txt"]
    assert step == old.best_step == new.best_step
    assert new.info.data == old.info.data
    assert metrics(merged) == [record for record in metrics(adapted) if record["step"] <= step] != []
    samples = [record for record in old.samples.read_records() if record["step"] <= step]
    assert [*new.samples.read_records()] == samples != []
    assert files_of(merged) == files_of(adapted) - {"report.html", "validated.json"}
    assert not [*find_damaged_run_files(merged)]
    state = resolve_reference(str(merged)).checkpoint.load_state()
    [record] = [record for record in metrics(adapted) if record["step"] == step]
    assert (state["best_step"], state["best_value"]) == (step, record["valid_loss"])  # also where validated later
    with refuses("output_exists"):
        merge(adapted, work.run("merged"))
    assert Run.open(merged).info == new.info
    (work.run("empty")).mkdir()
    other = merge(f"{adapted}@{10 if step != 10 else 12}", work.run("empty"))
    assert resolve_reference(str(other)).checkpoint.load_state()["best_step"] != step


@pytest.mark.slow
def test_what_was_measured_of_another_checkpoint_is_left_behind(work: Work) -> None:
    work.pretrain("training.steps=4", name="base")
    held = ("data.valid_fraction=0.1", "checkpoint.keep_last=2")
    work.finetune(LORA, *held, source=work.run("base"), name="tuned")
    tuned = Run.open(work.run("tuned"))
    best = tuned.results_by_task[""]["step"]
    other = next(step for step in (12, 10) if step != best)
    merge(work.run("tuned"), work.run("merged"))
    merge(f"{work.run('tuned')}@{other}", work.run("other"))
    for name in ("merged", "other"):
        for file in (BASELINE, SPLIT):
            assert (work.run(name) / file).read_bytes() == (work.run("tuned") / file).read_bytes()
    assert Run.open(work.run("merged")).results_by_task == tuned.results_by_task
    assert not Run.open(work.run("other")).results_by_task


@pytest.mark.slow
def test_a_merged_student_can_learn_on_from_its_teacher(work: Work) -> None:
    work.pretrain("training.steps=4", name="teacher")
    work.pretrain(LORA, name="adapted", source=work.run("teacher"), teacher=work.run("teacher"))
    merge(work.run("adapted"), work.run("merged"))
    assert Run.open(work.run("merged")).info.teacher == Run.open(work.run("adapted")).info.teacher
    work.resume("training.steps=+2", name="merged")
    assert metrics(work.run("merged"))[-1]["step"] >= 6


@pytest.mark.system
def test_a_kill_at_any_moment_leaves_nothing_that_a_repeat_refuses(work: Work, adapted: Path) -> None:
    """A run that is whole, or none; and the repeat removes what the killed one has left."""
    target = work.folder / "out" / "merged"
    target.parent.mkdir()

    def merge_until(event: int) -> None:
        die_at_event(event, target.parent)
        merge(adapted, target)

    event = 1
    while is_killed(partial(merge_until, event)):
        if target.exists() and any(target.iterdir()):
            assert not [*find_damaged_run_files(target)]
            shutil.rmtree(target)
        event += 7
    assert event > 30
    assert not [*find_damaged_run_files(target)]
    left = [path for path in target.parent.glob(f"{TEMPORARY_PREFIX}*") if any(path.iterdir())]
    assert left == []
    assert {METRICS, SAMPLES} <= files_of(target)
    assert RESULTS not in files_of(target)
