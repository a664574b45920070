"""Training on a GPU."""

import json

import pytest

from lmtool.compute.device import CPU
from lmtool.runs.load import load_run
from lmtool.training.events import StepCompleted, TrainingStarted
from tests.support.training import Work, after, documents, ended, metrics, of_kind, warnings_in

pytestmark = pytest.mark.gpu

LEARNS = ("training.device=cuda", "model.d_model=64", "optimizer.lr=0.01", "training.steps=60", "evaluation.every=20")


def losses(work: Work, name: str = "run") -> list[float]:
    return [record["loss"] for record in metrics(work.run(name))]


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "float32"])
def test_training_and_resuming(work: Work, precision: str) -> None:
    settings = (*LEARNS, f"training.precision={precision}")
    whole = work.pretrain(*settings, name="whole")
    assert ended(whole).step == 60
    (plan,) = of_kind(whole, TrainingStarted)
    assert plan.device.endswith(precision)
    assert sum(losses(work, "whole")[-5:]) < 0.8 * sum(losses(work, "whole")[:5])

    assert ended(work.pretrain(*settings, stop=after(31))).reason == "interrupted"
    resumed = work.resume()
    assert warnings_in(resumed) == []
    # sums on a GPU are not deterministic
    assert losses(work)[:31] == pytest.approx(losses(work, "whole")[:31], rel=0.05)
    assert ended(resumed).best_value == pytest.approx(ended(whole).best_value, rel=0.05)


def test_float16_keeps_its_gradient_scale(work: Work) -> None:
    work.pretrain(*LEARNS, "training.precision=float16", stop=after(30))
    loaded = work.run() / "checkpoints" / "step-000030"
    assert json.loads((loaded / "state.json").read_text())["setup"]["precision"] == "float16"
    skipped = [record for record in metrics(work.run()) if record["grad_norm"] is None]
    assert len(skipped) < 20


def test_a_gpu_run_on_the_cpu(work: Work) -> None:
    work.pretrain(*LEARNS, "training.precision=float32", stop=after(20))
    (warning,) = warnings_in(work.resume("training.device=cpu", "training.steps=30"))
    assert "device cuda -> cpu" in warning
    assert load_run(str(work.run()), CPU).device.type == "cpu"


def test_rows_that_do_not_fit(work: Work) -> None:
    """More rows at once than fit into GPU memory: the micro-batch is halved, and the batch size stays."""
    work.text.write_text(documents(3000), encoding="utf-8")
    batch = 1 << 18
    events = work.pretrain(
        *LEARNS, "model.context=128", "model.n_layers=8", "training.steps=1", f"training.batch_size={batch}"
    )
    assert any("rows at once from now on" in text for text in warnings_in(events))
    (step,) = [event.step for event in of_kind(events, StepCompleted)]
    assert step.micro_batch < batch
    assert step.tokens > 0.8 * batch * 128
