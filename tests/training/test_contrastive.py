"""Vectors of few rows that are trained by contrast, and the head that is fitted to them."""

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch

from lmtool.errors import LmtoolError
from lmtool.model.heads import Classifier
from lmtool.objective import build_objective
from lmtool.objective.heads import SetFitObjective
from lmtool.recipe.load import load
from lmtool.runs.directory import Run
from lmtool.runs.load import load_run
from lmtool.tasks.prepare import open_training_tables, read_and_encode_tables
from lmtool.training.convex import CONTRASTIVE_PENALTY, fit_head_and_layer_mix_
from tests.support.errors import refuses
from tests.support.training import Work, assert_resumes_bit_for_bit, ended, metrics, words, write_table

CONTRASTIVE = "objective.contrastive=true"


@pytest.fixture
def base(work: Work) -> Path:
    work.pretrain("model.n_layers=2", "training.steps=4", name="base")
    return work.run("base")


def test_the_head_is_the_one_that_is_fitted_to_the_trained_vectors(work: Work, base: Path) -> None:
    work.finetune(CONTRASTIVE, "optimizer.lr=0.01", "data.valid_fraction=0.2", source=base, name="run")
    loaded = load_run(str(work.run("run")) + "@12")
    assert isinstance(loaded.model, Classifier)
    tables, split = open_training_tables(loaded.recipe.data), Run.open(work.run("run")).saved_split
    _, data = read_and_encode_tables(loaded.recipe, tables, loaded.tokenizer, split)
    objective = build_objective(loaded.recipe, loaded.tokenizer)
    assert isinstance(objective, SetFitObjective)
    batch = objective.collate([row.to_example() for row in data.tasks[0].train])
    assert batch.labels_B is not None
    # the loss by its definition, over all pairs of rows
    vectors = loaded.model.pool_head_input_states(batch).hidden_BTD.detach().double().numpy()
    classes = batch.labels_B.numpy()
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    pairs = [(unit[i] @ unit[j], classes[i] == classes[j]) for i, j in combinations(range(len(unit)), 2)]
    same, other = ([(cosine - alike) ** 2 for cosine, alike in pairs if alike == which] for which in (True, False))
    wanted = (np.mean(same) + np.mean(other)) / 2
    assert objective.loss(loaded.model, batch).total.item() / len(unit) == pytest.approx(wanted, rel=1e-4)
    # another beginning ends at a head with the same scores; weights may differ where vectors hardly do
    states_BD = loaded.model.pool_head_input_states(batch).hidden_BTD.detach()
    before = loaded.model.head(states_BD)
    with torch.no_grad():
        loaded.model.head.weight.normal_()
    fit_head_and_layer_mix_(loaded.model, objective, [batch], CONTRASTIVE_PENALTY, 1)
    torch.testing.assert_close(loaded.model.head(states_BD), before, rtol=5e-3, atol=5e-3)


def test_contrastive_training_learns_and_measures_its_head(work: Work, base: Path) -> None:
    rows = (f"{words(i % 5)} {'cat' if i % 2 else 'dog'},{'ab'[i % 2]}" for i in range(60))
    table = write_table(work.folder / "colours.csv", rows)
    events = work.finetune(CONTRASTIVE, "optimizer.lr=0.003", "data.valid_fraction=0.2", source=base, table=table)
    losses = [row["loss"] for row in metrics(work.run("tuned")) if "loss" in row]
    assert losses[-1] < losses[0] - 0.1
    assert ended(events).reason == "finished"
    measured = [row for row in metrics(work.run("tuned")) if "accuracy" in row]
    assert [row["step"] for row in measured] == [4, 8, 12]
    assert measured[-1]["accuracy"] == 1.0


def test_stopping_and_resuming_changes_no_bit(work: Work, base: Path) -> None:
    held_out = "data.valid_fraction=0.2"
    assert_resumes_bit_for_bit(work, partial(work.finetune, CONTRASTIVE, held_out, source=base), 5)


def test_parts_of_a_batch_make_no_difference(work: Work, base: Path) -> None:
    calm = (CONTRASTIVE, "model.dropout=0", "training.precision=float32", "data.valid_fraction=0.2")
    work.finetune(*calm, source=base, name="whole")
    work.finetune(*calm, "training.micro_batch=3", source=base, name="parts")
    one, other = (load_run(f"{work.run(name)}@12").model.state_dict() for name in ("whole", "parts"))
    for name in one:
        torch.testing.assert_close(one[name], other[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("tuning.freeze=body", "trains a body"),
        ("objective.dense=tanh", "fits a linear head"),
        ("objective.lm_weight=0.5", "no language-model loss"),
        ("objective.task=multi", "rows of one class each"),
    ],
)
def test_contrastive_training_refuses_other_heads_and_labels(settings: str, message: str) -> None:
    with refuses("recipe") as caught:
        load("bert-tiny", ["objective={kind: classification}", CONTRASTIVE, settings])
    assert message in str(caught.value)


def test_a_table_of_numbers_is_refused(work: Work, base: Path) -> None:
    table = write_table(work.folder / "numbers.csv", (f"the cat sat {i},{i / 7}" for i in range(40)))
    with pytest.raises(LmtoolError, match="one class per row"):
        work.finetune(CONTRASTIVE, source=base, table=table, name="run")
