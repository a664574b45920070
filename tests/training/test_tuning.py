"""Runs with some weights frozen: what changes, what is saved, and the base of what is saved."""

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from torch import Tensor

from lmtool.compute.device import CPU
from lmtool.interop.resolve import resolve_reference
from lmtool.model import LanguageModel
from lmtool.model.lora import adapter_parameter_names
from lmtool.recipe.finetuning import ADAPTER_LR, TRAINED_LR
from lmtool.recipe.load import Setting, parse_settings
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.training import AdamW
from lmtool.runs.checkpoint import open_and_verify_checkpoint
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run, load_trained_model, read_merged_weights
from lmtool.storage.records import encode_with_checksum
from lmtool.training.events import TrainingStarted
from lmtool.training.finetuning import plan_finetuning
from tests.support.damage import flip_bit
from tests.support.errors import refuses
from tests.support.training import (
    Work,
    after,
    assert_resumes_bit_for_bit,
    lasting,
    of_kind,
    warnings_in,
    words,
    write_table,
)

LORA = "tuning.lora={rank: 3, dropout: 0.1}"
HOT = "optimizer.lr=0.01"
KEPT = "checkpoint.keep_last=9"
SHORT = "training.steps=4"
REUSED = "the head is reused, since the labels are the same"
NEW = "the head is new, since the labels differ from those of the run"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = Work(tmp_path_factory.mktemp("pretrained"))
    work.pretrain("model.n_layers=2", SHORT, name="base")
    return work.run("base")


@pytest.fixture
def base(work: Work, pretrained: Path) -> Path:
    """A run, which a test may damage."""
    return Path(shutil.copytree(pretrained, work.run("base")))


def tune(work: Work, *overrides: str, source: Path, **more: Any) -> list[Any]:
    """Of which rows are held out, so that no other models are trained to score it."""
    return work.finetune("data.valid_fraction=0.2", *overrides, source=source, **more)


def weights(run: Path, step: int) -> dict[str, Tensor]:
    return dict(open_and_verify_checkpoint(run / "checkpoints" / f"step-{step:06d}").load_model())


def model_of(run: Path) -> LanguageModel:
    """The model of a run's best checkpoint, as in training."""
    return load_trained_model(resolve_reference(str(run)), CPU)


def changed(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name in before if not torch.equal(before[name], after[name])}


def body_of(found: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("body."): tensor for name, tensor in found.items() if name.startswith("body.")}


@pytest.mark.parametrize(
    "variant",
    [
        (LORA, "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.003}}", "tuning.unfreeze_every=3"),
        ("tuning.freeze=embeddings", "tuning.layer_decay=0.5", "tuning.unfreeze_every=4", "training.micro_batch=3"),
        ("tuning.freeze=body", "training.micro_tokens=64"),
    ],
)
def test_stopping_and_resuming_changes_no_bit(work: Work, base: Path, variant: tuple[str, ...]) -> None:
    assert_resumes_bit_for_bit(work, partial(tune, work, *variant, source=base), 3, 4)


def test_a_language_model_with_adapters_goes_on_bit_for_bit(work: Work, base: Path) -> None:
    assert_resumes_bit_for_bit(work, partial(work.pretrain, "model.n_layers=2", LORA, source=base), 5)
    assert all(name.endswith(("down_RI", "up_OR")) for name in weights(work.run(), 12))


# Trainable weights


def test_only_the_head_learns_on_a_frozen_body(work: Work, base: Path) -> None:
    events = tune(work, "tuning.freeze=body", "objective.pool=attention", KEPT, source=base)
    (plan,) = of_kind(events, TrainingStarted)
    last = weights(work.run("tuned"), 12)
    learnt = changed(weights(work.run("tuned"), 10), last)
    assert learnt == {"head.weight", "pool.key.weight", "pool.key.bias", "pool.query.weight"}
    assert plan.learning == sum(last[name].numel() for name in learnt)
    assert changed(body_of(last), weights(base, 4)) == set()


def test_another_task_takes_the_body_and_gets_a_new_head(work: Work, base: Path) -> None:
    tune(work, KEPT, source=base, name="first")
    rows = (f"the cat {words(i % 7)} {'ran home' if i % 2 else 'sat'},{'xy'[i % 2]}" for i in range(60))
    table, first = write_table(work.folder / "other.csv", rows), work.run("first")
    events = tune(work, "tuning.freeze=body", KEPT, source=first, table=table, name="second")
    assert NEW in warnings_in(events)
    learnt, begun = dict(read_merged_weights(resolve_reference(str(first)))), weights(work.run("second"), 2)
    assert changed(body_of(learnt), body_of(begun)) == set()
    assert changed(weights(base, 4), body_of(begun))
    assert "head.weight" in changed(learnt, begun)


TAGGED = "".join(f"the DET\n{noun} NOUN\n\n" for noun in ["cat", "dog", "sun", "hat"] * 10)
ANSWERS = "".join(
    json.dumps({"id": str(i), "question": "who ran?", "context": f"the {noun} ran home", "answers": answers}) + "\n"
    for i, noun in enumerate(["cat", "dog", "sun", "hat"] * 10)
    for answers in [{"text": [noun], "answer_start": [4]}]
)
GRADES = "text,label\n" + "".join(
    f"the {noun} was {grade},{grade}\n" for noun in ["cat", "dog", "sun", "hat"] * 5 for grade in ("bad", "good")
)


@pytest.mark.parametrize(
    ("name", "content", "other"),
    [
        ("tags.conll", TAGGED, TAGGED.replace("NOUN", "NAME")),
        ("answers.jsonl", ANSWERS, TAGGED),
        ("grades.csv", GRADES, TAGGED),
    ],
)
def test_heads_are_reused_for_the_same_labels(work: Work, base: Path, name: str, content: str, other: str) -> None:
    """In the order of their classes, which of a published classifier are seldom sorted."""
    table = work.folder / name
    table.write_text(content)
    labels = ["objective.labels=[good,bad]"] * (name == "grades.csv")
    tune(work, SHORT, *labels, source=base, table=table, name="first")
    kept, first = ("tuning.freeze=body", "optimizer.lr=1e-9", KEPT, SHORT), work.run("first")
    assert REUSED in warnings_in(tune(work, *kept, source=first, table=table, name="second"))
    learnt, again = weights(first, 4), weights(work.run("second"), 2)
    assert torch.allclose(learnt["head.weight"], again["head.weight"], atol=1e-5)
    objective = load_run(str(work.run("second"))).recipe.objective
    assert not labels or (isinstance(objective, Classification) and objective.labels == ("good", "bad"))
    (work.folder / "other.conll").write_text(other)
    assert NEW in warnings_in(tune(work, *kept, source=first, table=work.folder / "other.conll", name="third"))
    if labels:
        reordered = "objective.labels=[bad,good]"
        assert NEW in warnings_in(tune(work, SHORT, reordered, source=first, table=table, name="fourth"))


def test_embeddings_can_stay(work: Work, base: Path) -> None:
    (plan,) = of_kind(tune(work, "tuning.freeze=embeddings", HOT, KEPT, source=base), TrainingStarted)
    run = work.run("tuned")
    before, after = weights(run, 2), weights(run, 12)
    stay = {name for name in before if name.startswith("body.inputs.")}
    assert stay == {name for name in before if name not in changed(before, after)} - {"body.head.own"}
    assert stay
    assert plan.learning == sum(after[name].numel() for name in changed(before, after))
    moments = open_and_verify_checkpoint(run / "checkpoints" / "step-000012").load_optimizer()
    assert {key.partition("/")[2] for key in moments} == changed(before, after)


def test_published_weights_are_told_from_those_trained_here(work: Work, base: Path) -> None:
    """They are recognized in runs that were fine-tuned from them, too."""
    assert not resolve_reference(str(base)).is_published
    info = json.loads((base / "run.json").read_text())
    info["origin"] = {"reference": "hf:somebody/model", "revision": None, "model_type": "gpt2", "sha256": {}}
    del info["checksum"]
    (base / "run.json").write_text(json.dumps(info))
    source = base
    for name in ("first", "second"):
        tune(work, SHORT, source=source, name=name)
        source = work.run(name)
        assert resolve_reference(str(source)).is_published


def test_layers_begin_to_learn_from_the_top(work: Work, base: Path) -> None:
    """One layer of the two after each 3 steps, and the embeddings last."""
    tune(work, "tuning.unfreeze_every=3", "checkpoint.every=1", "checkpoint.keep_last=20", HOT, source=base)
    run = work.run("tuned")
    parts = ("head.weight", "body.stack.sublayers.2.", "body.stack.sublayers.0.", "body.inputs.")
    for step in (3, 4, 6, 7, 9, 10, 12):
        learnt = changed(weights(run, step - 1), weights(run, step))
        learning = [any(name.startswith(part) for name in learnt) for part in parts]
        assert learning == [part <= (step - 1) // 3 for part in range(4)]


# Adapters


@pytest.fixture
def tuned(work: Work, base: Path) -> Path:
    tune(work, LORA, HOT, SHORT, source=base)
    return work.run("tuned")


def test_only_adapters_and_the_head_are_kept(work: Work, base: Path) -> None:
    (plan,) = of_kind(tune(work, LORA, HOT, source=base), TrainingStarted)
    tuned = work.run("tuned")
    told = Run.open(tuned).info.base
    assert told is not None
    assert (told.run, told.checkpoint, Run.open(base).info.base) == ("base", "step-000004", None)
    kept, model = weights(tuned, 12), model_of(tuned)
    assert plan.learning == sum(tensor.numel() for tensor in kept.values()) < plan.parameters / 5
    assert set(kept) == set(adapter_parameter_names(model)) | {"head.weight"}
    assert all(bool(tensor.any()) for tensor in kept.values()), "all of them were trained"
    # the rest is the base's
    rest = {name.removeprefix("body."): t for name, t in model.state_dict().items() if name not in kept}
    assert changed(rest, weights(base, 4)) == set()


def refused(work: Work, what: str) -> None:
    with refuses("checkpoint") as caught:
        load_run(str(work.run("tuned")))
    assert what in caught.value.what
    with refuses("checkpoint"):
        work.resume("training.steps=+1", name="tuned")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("gone", "holds adapters only, to step-000004 of base: no run"),
        ("changed", "to step-000004 of base, which has"),
        ("damaged", "of base: model.safetensors has changed"),
    ],
)
def test_adapters_without_their_base_are_refused(work: Work, base: Path, tuned: Path, wrong: str, said: str) -> None:
    match wrong:
        case "gone":
            base.rename(work.run("elsewhere"))
        case "changed":
            shutil.rmtree(base)
            work.pretrain("model.n_layers=2", SHORT, "seed=2", name="base")
        case "damaged":
            flip_bit(base / "checkpoints/step-000004/model.safetensors", at=-1)
    refused(work, said)


def test_adapters_open_no_connection_to_find_their_base(
    work: Work, tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("a connection is opened"))
    content = json.loads((tuned / "run.json").read_bytes())
    del content["checksum"]
    content["base"] |= {"run": "hf:some/model", "path": "nowhere"}
    (tuned / "run.json").write_bytes(encode_with_checksum(content))
    refused(work, "holds adapters only")


def test_a_base_that_has_moved_with_all_runs_is_found_by_its_name(work: Work, base: Path, tuned: Path) -> None:
    before = model_of(tuned).state_dict()
    (work.folder / "runs").mkdir(exist_ok=True)
    base.rename(work.folder / "runs" / "base")
    assert changed(before, model_of(tuned).state_dict()) == set()


def test_adapters_are_trained_on_from_as_if_they_were_merged(work: Work, tuned: Path) -> None:
    """Their head is reused, and adapters to adapters are resumed bitwise."""
    events = tune(work, LORA, source=tuned, name="again", stop=after(5))
    assert REUSED in warnings_in(events)
    assert set(weights(work.run("again"), 5)) == set(weights(tuned, 4))
    work.resume(name="again")
    tune(work, LORA, source=tuned, name="whole")
    assert lasting(work.run("again"), 12) == lasting(work.run("whole"), 12)
    model = model_of(work.run("again")).state_dict()
    merged = read_merged_weights(resolve_reference(str(tuned)))
    shared = [name for name in model if name in merged and name.startswith("body.")]
    assert shared
    assert all(torch.equal(model[name], merged[name]) for name in shared)


def test_adapters_need_weights_to_stand_beside(work: Work) -> None:
    with refuses("usage"):
        work.pretrain(LORA)


def test_what_learns_decides_the_rate_unless_it_is_given(work: Work, base: Path) -> None:
    table = write_table(work.folder / "rows.csv", (f"{words(3, i)},{'ab'[i % 2]}" for i in range(100)))

    def rate(*settings: str) -> float:
        flags = [Setting("data.train", [str(table)], "TABLE")]
        optimizer = plan_finetuning(str(base), None, parse_settings(settings, flags)).resolved.recipe.optimizer
        assert isinstance(optimizer, AdamW)
        return optimizer.lr

    assert rate() == rate("tuning.layer_decay=0.8") == TRAINED_LR
    assert rate(LORA) == rate("tuning.freeze=body", "training.epochs=3") == ADAPTER_LR > TRAINED_LR
    assert rate(LORA, "optimizer.lr=0.1") == rate("optimizer.lr=0.1") == 0.1
