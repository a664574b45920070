"""ELMo's fine-tuning: a frozen body, and a head with a learned mix of its layers (Peters et al. 2018)."""

import pytest
import torch

from lmtool.recipe.finetuning import ParentRun, TableProperties, make_table_recipe
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Classification
from lmtool.runs.load import load_run
from tests.support.training import Work

LSTM = "model={kind: recurrent, shape: SHAPE, cell: lstm, n_layers: 2, d_model: 16, context: 16}"
ELMO = (LSTM.replace("SHAPE", "bidirectional"), "objective={kind: bidirectional}")


def test_a_task_mixes_the_layers_of_a_body_that_stays(work: Work) -> None:
    """Unless it is asked to learn."""
    work.pretrain(*ELMO, "training.steps=2", name="elmo")
    held_out = ("data.valid_fraction=0.2", "evaluation.baseline=false")
    work.finetune(*held_out, source=work.run("elmo"), name="tuned")
    work.finetune("tuning.freeze=none", *held_out, source=work.run("elmo"), name="whole")
    before, after, whole = (load_run(str(work.run(name))).model.state_dict() for name in ("elmo", "tuned", "whole"))
    assert not all(torch.equal(weight, whole[f"body.{name}"]) for name, weight in before.items())
    assert all(torch.equal(weight, after[f"body.{name}"]) for name, weight in before.items())
    # the embeddings and two layers
    assert after["mix.scalars_L"].shape == (3,)
    assert bool(after["mix.scalars_L"].any())
    assert float(after["mix.gamma"]) != 1


@pytest.mark.parametrize("model", [LSTM.replace("SHAPE", "decoder"), "model.n_layers=1"])
def test_other_bodies_learn_below_their_last_layer(model: str, work: Work) -> None:
    recipe = make_table_recipe(ParentRun(load(work.recipe, [model]).recipe, "run"), TableProperties(60))
    assert isinstance(recipe.objective, Classification)
    assert (recipe.objective.layers, recipe.tuning.freeze) == ("last", "none")
