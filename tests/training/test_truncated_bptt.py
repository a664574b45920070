"""Carried states: the losses of one long row, gradients truncated at the step, and bitwise resumed runs."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.model import DecodeState, build
from lmtool.objective import CausalObjective
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training import truncated_bptt as carry
from lmtool.training.fit import CompletedStep, ModelAndOptimizers, fit
from lmtool.training.optimizer import Optimizers
from lmtool.training.plan import check_device_and_choose_sharding
from lmtool.training.windows import Windows
from tests.support.errors import refuses
from tests.support.training import MemoryStore, Work, assert_resumes_bit_for_bit, lasting

VOCAB, BOS, ROWS, CONTEXT = 11, 1, 4, 6
RNN = "model={kind: recurrent, cell: lstm, n_layers: 2, d_model: 12, context: 8, dropout: 0.1}"


class Trainer:
    """All that `fit` needs to train an LSTM, in float64, on a text of four lanes and a little more."""

    def __init__(self, n_windows: int = 4 * 5 + 3, lr: float = 0.1, dropout: float = 0.0, **training: Any) -> None:
        torch.manual_seed(0)
        model = {"kind": "recurrent", "n_layers": 2, "d_model": 5, "context": CONTEXT, "dropout": dropout}
        self.recipe = Recipe.model_validate(
            {
                "model": model,
                "training": {"steps": 5, "batch_size": ROWS, "carry_state": True, **training},
                "optimizer": {"kind": "sgd", "lr": lr},
                "schedule": {"kind": "constant"},
            }
        )
        self.model: Any = build(self.recipe.model, VOCAB).double()
        rng = np.random.default_rng(0)
        self.store = MemoryStore([[BOS, *rng.integers(2, VOCAB, (n_windows + 1) * CONTEXT - 1).tolist()]])
        self.objective = CausalObjective(Causal(), BOS, False)
        self.examples = Windows(self.store, self.objective.choose_text_cut(CONTEXT), 1, ROWS)  # type: ignore[arg-type]
        self.optimizers = Optimizers(self.recipe.optimizer, self.model, CPU)

    def steps(self, **options: Any) -> Any:
        trainable = ModelAndOptimizers(self.model, self.objective, self.optimizers)
        return fit(trainable, self.examples, self.recipe, CPU, **options)

    def train(self, **options: Any) -> list[CompletedStep]:
        return list(self.steps(**options))

    def rows(self, n_steps: int) -> Tensor:
        """The tokens of each lane in so many steps, and its last target."""
        read = [
            np.stack([example.tokens for example in self.examples.read(np.arange(ROWS) + ROWS * step)])
            for step in range(n_steps)
        ]
        for before, after in pairwise(read):
            assert (before[:, -1] == after[:, 0]).all()
        return torch.from_numpy(np.concatenate([*(tokens[:, :-1] for tokens in read), read[-1][:, -1:]], 1))


def test_steps_of_a_model_that_stays_as_it_is_are_one_long_row() -> None:
    trainer = Trainer(lr=1e-30)
    rows = trainer.rows(5)
    logits = trainer.model.logits(trainer.model(Batch(rows[:, :-1])).hidden_BTD)
    nats: Any = torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
    for step, part in zip(trainer.train(), nats.split(CONTEXT, 1), strict=True):
        assert step.loss == pytest.approx(float(part.detach().mean()), rel=1e-6)


def test_gradients_end_where_the_step_begins() -> None:
    """The second step by hand: its initial state is that of the first, detached."""
    trainer, by_hand = Trainer(lr=1e-30), Trainer()
    steps = trainer.steps()
    next(steps)
    second = next(steps)
    rows = by_hand.rows(2)
    with torch.no_grad():
        start = by_hand.model.initial_state(Batch(rows))
        _, state = by_hand.model.forward_incremental(rows[:, :CONTEXT], start)
    hidden, _ = by_hand.model.forward_incremental(rows[:, CONTEXT:-1], state)
    logits = by_hand.model.logits(hidden)
    mean: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, CONTEXT + 1 :].flatten())
    mean.backward()
    norm = torch.stack([p.grad.norm() for p in by_hand.model.parameters() if p.grad is not None]).norm()
    assert second.grad_norm == pytest.approx(float(norm), rel=1e-9)
    assert second.carried_state is not None
    assert not any(tensor.requires_grad for layer in second.carried_state.layers for tensor in layer)


def test_rows_start_anew_with_each_epoch() -> None:
    trainer = Trainer(lr=1e-30, steps=6)
    last = trainer.train()[-1]
    rows = torch.from_numpy(np.stack([e.tokens for e in trainer.examples.read(np.arange(20, 24))]))
    logits = trainer.model.logits(trainer.model(Batch(rows[:, :-1])).hidden_BTD)
    nats = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
    assert trainer.examples.restarts(5)
    assert not trainer.examples.restarts(4)
    assert last.loss == pytest.approx(float(nats.detach()), rel=1e-6)


def test_any_split_of_a_batch_is_the_same() -> None:
    whole, split = Trainer(steps=7), Trainer(steps=7, micro_batch=3)
    for one, other in zip(whole.train(), split.train(), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert one.carried_state is not None
        assert other.carried_state is not None
        for layer, same in zip(one.carried_state.layers, other.carried_state.layers, strict=True):
            torch.testing.assert_close(layer, same, rtol=1e-9, atol=1e-9)
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


def test_a_state_comes_back_from_its_tensors() -> None:
    (*_, last) = Trainer().train()
    assert last.carried_state is not None
    like = carry.make_initial_state(Trainer().model, ROWS, torch.device("cpu"))
    tensors = carry.state_to_tensors(last.carried_state)
    back = carry.state_from_tensors(tensors, like, "here")
    assert isinstance(back, DecodeState)
    for layer, other in zip(last.carried_state.layers, back.layers, strict=True):
        assert all(torch.equal(one, two) for one, two in zip(layer, other, strict=True))
    fewer_rows = carry.make_initial_state(Trainer().model, 3, torch.device("cpu"))
    with refuses("checkpoint"):
        carry.state_from_tensors(tensors, fewer_rows, "")
    del tensors["carried/1/0"]
    with refuses("checkpoint") as caught:
        carry.state_from_tensors(tensors, like, "here")
    assert "carried/1/0" in str(caught.value)


def test_a_stopped_run_goes_on_bit_for_bit(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(work.pretrain, RNN, "training.carry_state=true"), 5)
    work.pretrain(RNN, name="apart")
    assert lasting(work.run("apart"), 12)["model"] != lasting(work.run(), 12)["model"]


def test_several_processes_are_refused() -> None:
    recipe = load("tiny", [RNN, "training.carry_state=true"]).recipe
    with refuses("usage"):
        check_device_and_choose_sharding(recipe, replace(CPU, world=World(0, 2)), {})
