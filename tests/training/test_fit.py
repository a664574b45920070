"""The training loop: the update of a step, in any split of its batch; errors; and states that are carried along."""

import math
import threading
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool.batch import Batch
from lmtool.compute.device import CPU, ExecutionContext
from lmtool.compute.processes import World
from lmtool.errors import ResourceError
from lmtool.model import DecodeState, build
from lmtool.objective import CausalObjective, Example
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training import truncated_bptt as carry
from lmtool.training.fit import MAX_SKIPPED_UPDATES, CompletedStep, ModelAndOptimizers, fit, split_into_micro_batches
from lmtool.training.optimizer import Optimizers
from lmtool.training.plan import check_device_and_choose_sharding
from lmtool.training.windows import Windows
from tests.support.errors import refuses
from tests.support.training import MemoryStore, Work, assert_resumes_bit_for_bit, lasting

VOCAB, BOS = 11, 1
SGD = {"kind": "sgd", "lr": 0.5, "momentum": 0.9}


def a_store() -> MemoryStore:
    """Documents of unequal lengths, so that rows have unequal numbers of targets."""
    rng = np.random.default_rng(0)
    return MemoryStore([[BOS, *rng.integers(2, VOCAB, rng.choice([1, 2, 4, 12])).tolist()] for _ in range(40)])


MODEL = {"kind": "transformer", "n_layers": 2, "d_model": 8, "n_heads": 2, "context": 12}
FLOAT16 = ExecutionContext(torch.device("cpu"), "float16")


def a_recipe(dropout: float = 0.0, seed: int = 1, optimizer: dict[str, Any] = SGD, **training: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "seed": seed,
            "model": MODEL | {"dropout": dropout},
            "training": {"steps": 3, "batch_size": 8, **training},
            "optimizer": optimizer,
            "schedule": {"kind": "linear", "warmup_steps": 2},
        }
    )


class Trainer:
    """All that `fit` needs, in float64 by default.

    lanes: of a text that is read in order.
    """

    def __init__(
        self,
        recipe: Recipe,
        compute: ExecutionContext = CPU,
        dtype: torch.dtype = torch.float64,
        store: MemoryStore | None = None,
        lanes: int | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.recipe, self.compute, self.store = recipe, compute, store or a_store()
        self.model: Any = build(recipe.model, VOCAB).to(dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.objective = CausalObjective(Causal(), BOS, False)
        self.optimizers = Optimizers(recipe.optimizer, self.model, compute)
        cut: Any = self.objective.choose_text_cut(recipe.model.context)
        self.examples = Windows(self.store, cut, recipe.seed, lanes)  # type: ignore[arg-type]

    def steps(self, **options: Any) -> Any:
        trainable = ModelAndOptimizers(self.model, self.objective, self.optimizers)
        return fit(trainable, self.examples, self.recipe, self.compute, **options)

    def train(self, **options: Any) -> list[CompletedStep]:
        return list(self.steps(**options))

    def weights(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def everything(self) -> dict[str, Tensor]:
        return self.weights() | {key: tensor.clone() for key, tensor in self.optimizers.state_tensors().items()}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor.nan_to_num(), second[name].nan_to_num()), name


def assert_near(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-8, atol=1e-10)


def test_a_step_is_the_gradient_of_the_mean_over_all_targets() -> None:
    """Over the whole batch, by hand: every target has the same weight, whatever its row."""
    trainer, by_hand = (Trainer(a_recipe(micro_batch=3)) for _ in range(2))
    step = next(trainer.steps())
    examples = by_hand.examples.read(np.arange(8))
    batch = by_hand.objective.collate(examples)
    assert batch.targets_BT is not None
    per_row: Any = (batch.targets_BT >= 0).sum(1)
    assert len(per_row.unique()) > 2, "the rows should differ in their numbers of targets"
    logits = by_hand.model.logits(by_hand.model(batch).hidden_BTD)
    mean: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten())
    mean.backward()
    norm = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in by_hand.model.parameters()]))
    assert step.tokens == int(per_row.sum())
    assert step.loss == pytest.approx(mean.item(), rel=1e-6)
    assert step.grad_norm == pytest.approx(float(norm), rel=1e-9)
    with torch.no_grad():
        for parameter in by_hand.model.parameters():
            assert parameter.grad is not None
            parameter -= 0.25 * parameter.grad * min(1.0, 1.0 / float(norm))  # half the peak rate in the warm-up
    assert_near(by_hand.weights(), trainer.weights())


@pytest.mark.parametrize("micro_batch", [3, 1])
def test_any_split_of_a_batch_is_the_same_step(micro_batch: int) -> None:
    whole, split = (Trainer(a_recipe(micro_batch=rows)) for rows in (8, micro_batch))
    for one, other in zip(whole.train(), split.train(), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-8)
        assert (other.step, other.lr, other.tokens) == (one.step, one.lr, one.tokens)
        assert (one.micro_batch, other.micro_batch) == (8, micro_batch)
    assert_near(whole.everything(), split.everything())


def test_the_same_seed_is_the_same_run() -> None:
    first, second, other = (Trainer(a_recipe(dropout=0.3, micro_batch=3, seed=seed)) for seed in (1, 1, 2))
    losses = [[step.loss for step in trainer.train()] for trainer in (first, second, other)]
    torch.manual_seed(99)
    assert losses[0] == losses[1] != losses[2]
    assert_same(first.everything(), second.everything())


def test_closing_the_loop_ends_its_thread() -> None:
    before = threading.active_count()
    steps = Trainer(a_recipe()).steps()
    next(steps)
    assert threading.active_count() > before
    steps.close()
    assert threading.active_count() == before


# Values that are not finite


@pytest.mark.parametrize(("part", "poison"), [("loss", float("nan")), ("gradient", float("inf"))])
def test_a_loss_or_gradient_that_is_not_finite_changes_nothing(part: str, poison: float) -> None:
    """And is told with the documents of its step."""
    trainer = Trainer(a_recipe(optimizer={"kind": "muon"}, micro_batch=3))
    steps = trainer.steps()
    next(steps)
    next(steps)
    weight: Any = next(p for p in trainer.model.parameters() if p.ndim == 2)
    if part == "loss":
        with torch.no_grad():
            weight[0, 0] = poison
    else:
        weight.register_hook(lambda gradient: gradient * poison)
    before = trainer.everything()
    with refuses("numerical") as caught:
        list(steps)
    assert caught.value.what.startswith(f"the {part} of step 3 is ")
    named = trainer.examples.list_distinct_document_numbers(np.arange(16, 24))
    assert ", ".join(map(str, named[:8])) in caught.value.where
    assert ("..." in caught.value.where) == (len(named) > 8)
    assert_same(before, trainer.everything())


def float16_trainer(*spells: tuple[int, bool]) -> Trainer:
    """Its gradients overflow, or do not, in a sequence of steps."""
    trainer = Trainer(a_recipe(steps=sum(n for n, _ in spells)), FLOAT16, dtype=torch.float32)
    coming = (bad for n, bad in spells for bad in [bad] * n)
    weight: Any = next(trainer.model.parameters())
    weight.register_hook(lambda gradient: gradient * (float("inf") if next(coming) else 1.0))
    return trainer


def test_gradients_that_never_become_finite_end_the_training() -> None:
    """Although float16 skips some, which its loss scale may cause."""
    trainer = float16_trainer((100, True))
    before = trainer.weights()
    with refuses("numerical") as caught:
        list(trainer.steps())
    assert f"step {MAX_SKIPPED_UPDATES + 1} " in caught.value.what
    assert_same(before, trainer.weights())


def test_gradients_that_overflow_for_a_while_do_not() -> None:
    spells = [(MAX_SKIPPED_UPDATES, True), (1, False), (MAX_SKIPPED_UPDATES, True), (MAX_SKIPPED_UPDATES, False)]
    skipped = [not math.isfinite(step.grad_norm or 0) for step in float16_trainer(*spells).train()]
    assert skipped == [bad for n, bad in spells for _ in range(n)]


# Out of memory


def limit_memory(
    monkeypatch: pytest.MonkeyPatch, trainer: Trainer, rows: int, error: Exception, at_call: int = 0
) -> None:
    """From the given forward pass, more than `rows` rows do not fit."""
    genuine, calls = trainer.model.forward, 0

    def forward(batch: Batch) -> Any:
        nonlocal calls
        calls += 1
        if calls > at_call and batch.tokens_BT.shape[0] > rows:
            raise error
        return genuine(batch)

    monkeypatch.setattr(trainer.model, "forward", forward)


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
]


@pytest.mark.parametrize("error", ERRORS, ids=["gpu", "cpu"])
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_batch(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    plenty, tight = Trainer(a_recipe(dropout=0.2, micro_batch=2)), Trainer(a_recipe(dropout=0.2))
    limit_memory(monkeypatch, tight, 3, error)
    expected, found = plenty.train(), tight.train()
    assert [step.micro_batch for step in found] == [2, 2, 2]
    assert [(step.loss, step.tokens) for step in found] == [(step.loss, step.tokens) for step in expected]
    assert_same(plenty.everything(), tight.everything())


def test_out_of_memory_recomputes_activations_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before fewer rows are computed at once, with the same result; unless the recipe keeps them."""
    plenty = Trainer(a_recipe(dropout=0.2, recompute="none"))
    tight = Trainer(a_recipe(dropout=0.2))
    genuine = tight.model.forward

    def forward(batch: Batch) -> Any:
        if not tight.model.stack.recomputes_activations:
            raise ERRORS[0]
        return genuine(batch)

    monkeypatch.setattr(tight.model, "forward", forward)
    expected, found = plenty.train(), tight.train()
    assert [step.recomputes for step in found] == [True] * 3
    assert [step.recomputes for step in expected] == [False] * 3
    assert [(step.loss, step.micro_batch) for step in found] == [(step.loss, 8) for step in expected]
    assert_same(plenty.everything(), tight.everything())

    kept = Trainer(a_recipe(recompute="none"))
    limit_memory(monkeypatch, kept, 3, ERRORS[0])
    assert [(step.micro_batch, step.recomputes) for step in kept.train()] == [(2, False)] * 3
    assert not kept.model.stack.recomputes_activations
    asked = Trainer(a_recipe(recompute="layers"))
    asked.train()
    assert asked.model.stack.recomputes_activations


def test_gradients_from_before_memory_ran_out_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Out of memory in the second step's second micro-batch, when the first has accumulated gradients."""
    trainer, reference = Trainer(a_recipe(micro_batch=4)), Trainer(a_recipe(micro_batch=4))
    limit_memory(monkeypatch, trainer, 2, ERRORS[0], at_call=3)
    found, expected = trainer.train(), reference.train()
    assert [step.micro_batch for step in found] == [4, 2, 2]
    for one, other in zip(found, expected, strict=True):
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-8)
    assert_near(reference.weights(), trainer.weights())


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ERRORS[0], "out of memory with 1 row "), (RuntimeError("cannot be multiplied"), "cannot be multiplied")],
)
def test_one_row_that_does_not_fit_and_other_errors_end_training(
    monkeypatch: pytest.MonkeyPatch, raised: Exception, expected: str
) -> None:
    trainer = Trainer(a_recipe())
    limit_memory(monkeypatch, trainer, 0, raised)
    before = trainer.everything()
    with pytest.raises((ResourceError, RuntimeError), match=expected):
        trainer.train()
    assert_same(before, trainer.everything())


RNG = np.random.default_rng(0)


def example(length: int, other: int | None = None) -> Example:
    second = None if other is None else np.full(other, 9)
    return Example(np.full(length, 8), RNG, second=second)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.one_of(st.none(), st.integers(1, 30))), min_size=1, max_size=40),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 200)),
)
def test_no_part_is_above_its_limits_and_no_row_is_lost(
    sizes: list[tuple[int, int | None]], rows: int, tokens: int | None
) -> None:
    examples = [example(*size) for size in sizes]
    parts = list(split_into_micro_batches(examples, rows, tokens))
    assert sorted(map(id, examples)) == sorted(id(one) for part in parts for one in part)
    for part in parts:
        assert 1 <= len(part) <= rows
        widest = max(len(one.tokens) for one in part) + max(
            0 if one.second is None else len(one.second) for one in part
        )
        assert tokens is None or len(part) == 1 or len(part) * widest <= tokens
    if tokens is None:
        assert [one for part in parts for one in part] == examples


def test_rows_of_like_length_go_together() -> None:
    """Fifteen short rows and one long one: the long one pads no other."""
    lengths = [3, 4, 5] * 5
    parts = list(split_into_micro_batches([example(length) for length in [*lengths[:7], 60, *lengths[7:]]], 100, 80))
    assert [len(part) for part in parts] == [15, 1]
    assert [len(one.tokens) for one in parts[0]] == sorted(lengths)


LANES = 4
RNN = "model={kind: recurrent, cell: lstm, n_layers: 2, d_model: 12, context: 8, dropout: 0.1}"


def lstm(lr: float = 0.1, **training: Any) -> Trainer:
    """Carries its states through a text of four lanes of five windows, and a little more."""
    fields = {"steps": 5, "batch_size": LANES, "carry_state": True, **training}
    recipe = Recipe.model_validate(
        {
            "model": {"kind": "recurrent", "n_layers": 2, "d_model": 5, "context": 6},
            "training": fields,
            "optimizer": {"kind": "sgd", "lr": lr},
            "schedule": {"kind": "constant"},
        }
    )
    tokens = np.random.default_rng(0).integers(2, VOCAB, (LANES * 5 + 4) * 6 - 1).tolist()
    return Trainer(recipe, store=MemoryStore([[BOS, *tokens]]), lanes=LANES)


def lane_rows(trainer: Trainer, steps: range) -> Tensor:
    """The tokens of each lane in some steps, and its last target."""
    samples = [np.arange(LANES) + LANES * step for step in steps]
    read = [np.stack([example.tokens for example in trainer.examples.read(numbers)]) for numbers in samples]
    for before, after in pairwise(read):
        assert (before[:, -1] == after[:, 0]).all()
    return torch.from_numpy(np.concatenate([*(tokens[:, :-1] for tokens in read), read[-1][:, -1:]], 1))


def losses_of(trainer: Trainer, rows: Tensor) -> Any:
    """Nats of each target of rows that are read from their beginning."""
    logits = trainer.model.logits(trainer.model(Batch(rows[:, :-1])).hidden_BTD)
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").detach()


def test_steps_of_a_model_that_stays_as_it_is_are_one_long_row_which_begins_anew_with_each_epoch() -> None:
    trainer = lstm(lr=1e-30, steps=6)
    *steps, last = trainer.train()
    for step, part in zip(steps, losses_of(trainer, lane_rows(trainer, range(5))).split(6, 1), strict=True):
        assert step.loss == pytest.approx(float(part.mean()), rel=1e-6)
    assert [trainer.examples.restarts(number) for number in (4, 5)] == [False, True]
    assert last.loss == pytest.approx(float(losses_of(trainer, lane_rows(trainer, range(5, 6))).mean()), rel=1e-6)


def test_gradients_end_where_the_step_begins() -> None:
    """The second step by hand: its initial state is that of the first, detached."""
    trainer, by_hand = lstm(lr=1e-30), lstm()
    _, second, *_ = trainer.train()
    rows = lane_rows(by_hand, range(2))
    with torch.no_grad():
        start = by_hand.model.initial_state(Batch(rows))
        _, state = by_hand.model.forward_incremental(rows[:, :6], start)
    hidden, _ = by_hand.model.forward_incremental(rows[:, 6:-1], state)
    logits = by_hand.model.logits(hidden)
    mean: Any = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 7:].flatten())
    mean.backward()
    norm = torch.stack([p.grad.norm() for p in by_hand.model.parameters() if p.grad is not None]).norm()
    assert second.grad_norm == pytest.approx(float(norm), rel=1e-9)
    assert not any(tensor.requires_grad for layer in carried(second).layers for tensor in layer)


def carried(step: CompletedStep) -> Any:
    assert isinstance(step.carried_state, DecodeState)
    return step.carried_state


def test_any_split_of_a_batch_carries_the_same_states() -> None:
    whole, split = lstm(steps=7), lstm(steps=7, micro_batch=3)
    for one, other in zip(whole.train(), split.train(), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        torch.testing.assert_close(carried(one).layers, carried(other).layers, rtol=1e-9, atol=1e-9)
    assert_near(whole.weights(), split.weights())


def test_a_state_comes_back_from_its_tensors() -> None:
    state = carried(lstm().train()[-1])
    like, fewer_rows = (carry.make_initial_state(lstm().model, n, torch.device("cpu")) for n in (LANES, 3))
    tensors = carry.state_to_tensors(state)
    back: Any = carry.state_from_tensors(tensors, like, "here")
    torch.testing.assert_close(back.layers, state.layers, rtol=0, atol=0)
    with refuses("checkpoint"):
        carry.state_from_tensors(tensors, fewer_rows, "")
    del tensors["carried/1/0"]
    with refuses("checkpoint") as caught:
        carry.state_from_tensors(tensors, like, "here")
    assert "carried/1/0" in str(caught.value)


def test_a_stopped_run_that_carries_states_goes_on_bit_for_bit(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(work.pretrain, RNN, "training.carry_state=true"), 5)
    work.pretrain(RNN, name="apart")
    assert lasting(work.run("apart"), 12)["model"] != lasting(work.run(), 12)["model"]


def test_several_processes_carry_no_states() -> None:
    recipe = load("tiny", [RNN, "training.carry_state=true"]).recipe
    with refuses("usage"):
        check_device_and_choose_sharding(recipe, replace(CPU, world=World(0, 2)), {})
