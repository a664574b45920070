"""Runs that learn from a teacher: they are resumed exactly, and refuse a teacher that cannot teach them."""

import shutil
from functools import partial
from pathlib import Path

import pytest

from lmtool.compute.device import CPU
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.load import Setting, load, parse_settings
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.training import Distillation
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from lmtool.training.plan import plan_pretraining
from lmtool.training.train import train
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    assert_resumes_bit_for_bit,
    ended,
    lasting,
    metrics,
    no_report,
    taught_by,
    words,
    write_table,
)

ENCODER = "model={kind: transformer, shape: encoder, n_layers: 1, d_model: 16, n_heads: 2, context: 32, dropout: 0.1}"
SOFT = ("distillation.temperature=3", "distillation.cosine=0.5")


@pytest.fixture
def teacher(work: Work) -> Path:
    """Of the same tokenizer as any other run on the same text."""
    work.pretrain("model.n_layers=2", "training.steps=4", name="teacher")
    return work.run("teacher")


@pytest.fixture
def classifier(work: Work) -> Path:
    work.pretrain(ENCODER, "objective.kind=masked", "training.steps=2", name="body")
    work.finetune("training.steps=3", "data.valid_fraction=0.2", source=work.run("body"), name="classifier")
    return work.run("classifier")


def test_a_resumed_student_is_the_unbroken_one(work: Work, teacher: Path) -> None:
    assert_resumes_bit_for_bit(work, partial(work.pretrain, *SOFT, teacher=teacher), 7)


def test_a_resumed_student_of_labels_is_the_unbroken_one(work: Work, classifier: Path) -> None:
    settings = (*SOFT, "data.valid_fraction=0.2")
    learn = partial(work.finetune, *settings, source=work.run("body"), teacher=classifier)
    assert_resumes_bit_for_bit(work, learn, 7)


def test_what_is_validated_is_the_loss_of_the_targets(work: Work, teacher: Path) -> None:
    """The first step's training loss differs from that without a teacher; the weights before it do not."""
    work.pretrain("model.dropout=0", name="alone")
    work.pretrain("model.dropout=0", "distillation.weight=1.0", teacher=teacher)
    alone, taught = metrics(work.run("alone")), metrics(work.run())
    assert taught[0]["loss"] != pytest.approx(alone[0]["loss"], rel=0.1)
    assert taught[3]["valid_loss"] == pytest.approx(alone[3]["valid_loss"], rel=0.1)


def test_the_teacher_is_named_and_stays(work: Work, teacher: Path) -> None:
    before = lasting(teacher, 4)
    work.pretrain(teacher=teacher)
    assert lasting(teacher, 4) == before
    named = Run.open(work.run()).info.teacher
    assert named is not None
    assert named.run == "teacher"
    assert not any("teacher" in name for name in load_run(str(work.run()), CPU).model.state_dict())
    resolved = resolve(None, (), parent=resolve_reference(str(work.run())).parent)
    assert resolved.recipe.distillation == Distillation(), "training goes on without it"


def test_a_student_has_the_tokenizer_of_its_teacher(work: Work, teacher: Path) -> None:
    """Also one that begins with the weights of a run."""
    work.text.write_text("Quite another text, of other letters: XYZ. " * 200, encoding="utf-8")
    work.pretrain("training.steps=2", teacher=teacher)
    assert (work.run() / "tokenizer.json").read_bytes() == (teacher / "tokenizer.json").read_bytes()
    with refuses("usage") as caught:
        work.pretrain("tokenizer.sample_mb=7", teacher=teacher, name="own")
    assert "tokenizer.sample_mb" in caught.value.where
    work.pretrain("training.steps=2", name="other")
    with refuses("usage") as caught:
        work.pretrain(source=work.run("other"), teacher=teacher, name="further")
    assert "different tokenizers: teacher and other" in caught.value.what


def test_resuming_finds_a_teacher_or_stops(work: Work, teacher: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work.pretrain(teacher=teacher, stop=after(3))
    monkeypatch.setenv("LMTOOL_RUNS", str(work.folder / "runs"))
    gone = work.folder / "gone"
    teacher.rename(gone)
    with refuses("checkpoint"):
        work.resume()
    (work.folder / "runs").mkdir(exist_ok=True)
    shutil.copytree(gone, work.folder / "runs" / "teacher")
    assert ended(work.resume(stop=after(1))).step == 4
    work.pretrain("model.n_layers=2", "training.steps=4", "seed=9", name="teacher")
    with refuses("checkpoint"):
        work.resume()


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        ((ENCODER, "objective.kind=masked"), "objective causal, but the student has masked"),
        (("model.context=17",), "up to 17 positions, but its teacher has 16"),
        (("model.d_model=8", "distillation.cosine=1"), "16 wide, 8 wide"),
    ],
)
def test_a_run_that_cannot_teach_is_refused_before_anything_is_made(
    work: Work, teacher: Path, overrides: tuple[str, ...], why: str
) -> None:
    with refuses("usage") as caught:
        work.pretrain(*overrides, teacher=teacher)
    assert why in str(caught.value)
    assert not work.run().exists()


def test_other_labels_are_refused(work: Work, classifier: Path) -> None:
    table = write_table(work.folder / "other.csv", (f"the cat {words(i % 7, i)},{'xy'[i % 2]}" for i in range(40)))
    with refuses("usage"):
        work.finetune(source=work.run("body"), table=table, teacher=classifier)


def test_settings_without_a_teacher_are_refused(work: Work) -> None:
    with refuses("usage") as caught:
        work.pretrain("distillation.weight=0.9")
    assert caught.value.where == "-s distillation.weight=0.9"


def test_distilbert_learns_from_bert_by_soft_targets_masked_tokens_and_cosine(work: Work) -> None:
    """Sanh et al. 2019; its teacher has segments and has seen pairs of texts. Alone, it is its own baseline."""
    sizes = ("model.d_model=16", "model.n_heads=2", "model.context=16", "tokenizer.vocab_size=150")
    short = (*sizes, "training.steps=3", "training.batch_size=4", "training.device=cpu", "evaluation.tokens=200")
    teacher = work.run("bert-tiny")
    for name, recipe, of in (
        ("bert-tiny", "bert-tiny", None),
        ("alone", "distilbert-tiny", None),
        ("student", "distilbert-tiny", teacher),
    ):
        own = [one for one in short if of is None or not one.startswith("tokenizer.")]
        settings = parse_settings(own, [Setting("data.train", [str(work.text)], "TEXT"), *taught_by(of)])
        assert ended(list(train(plan_pretraining(None, recipe, settings, no_report), work.session(name)))).step == 3
    distillation = load(work.run("student") / "recipe.yaml").recipe.distillation
    assert distillation.weight / (1 - distillation.weight) == pytest.approx(5 / 2, rel=0.01)
    assert distillation.weight / distillation.cosine == pytest.approx(5, rel=0.01)
    alone, student = (metrics(work.run(name))[0] for name in ("alone", "student"))
    assert student["loss"] != alone["loss"]
