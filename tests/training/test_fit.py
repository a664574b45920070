"""The training loop: the update of a step, in any split of its batch, and errors."""

import math
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lmtool.batch import Batch
from lmtool.compute.device import CPU, ExecutionContext
from lmtool.errors import ResourceError
from lmtool.model import build
from lmtool.objective import CausalObjective, Example
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training.fit import MAX_SKIPPED_UPDATES, CompletedStep, ModelAndOptimizers, fit, split_into_micro_batches
from lmtool.training.optimizer import Optimizers
from lmtool.training.windows import Windows
from tests.support.errors import refuses
from tests.support.training import MemoryStore

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
    """All that `fit` needs, in float64 by default."""

    def __init__(self, recipe: Recipe, compute: ExecutionContext = CPU, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        self.recipe = recipe
        self.model: Any = build(recipe.model, VOCAB).to(dtype)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        self.objective = CausalObjective(Causal(), BOS, False)
        self.optimizers = Optimizers(recipe.optimizer, self.model, compute)
        self.store = a_store()
        self.examples = Windows(self.store, self.objective.choose_text_cut(recipe.model.context), recipe.seed)  # type: ignore[arg-type]
        self.compute = compute

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
    for name, weight in by_hand.model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], weight, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("micro_batch", [3, 1])
def test_any_split_of_a_batch_is_the_same_step(micro_batch: int) -> None:
    whole, split = (Trainer(a_recipe(micro_batch=rows)) for rows in (8, micro_batch))
    for one, other in zip(whole.train(), split.train(), strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-8)
        assert (other.step, other.lr, other.tokens) == (one.step, one.lr, one.tokens)
        assert (one.micro_batch, other.micro_batch) == (8, micro_batch)
    for name, weight in whole.everything().items():
        torch.testing.assert_close(split.everything()[name], weight, rtol=1e-8, atol=1e-10)


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


def test_the_documents_of_a_batch_are_those_it_is_cut_from() -> None:
    trainer = Trainer(a_recipe())
    sample_S = np.arange(8)
    touched = set()
    positions = {
        tuple(trainer.store.read(start, start + 13).tolist()): start for start in range(len(trainer.store) - 12)
    }
    for row in trainer.examples.read(sample_S):
        start = positions[tuple(row.tokens.tolist())]
        for number in range(trainer.store.n_documents):
            begin, end = trainer.store.document_range(number)
            if begin < start + 13 and start < end:
                touched.add(number)
    assert trainer.examples.list_distinct_document_numbers(sample_S) == sorted(touched)


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
    for name, weight in reference.weights().items():
        torch.testing.assert_close(trainer.weights()[name], weight, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [(ERRORS[0], "out of memory with 1 row "), (RuntimeError("cannot be multiplied"), "cannot be multiplied")],
)
def test_one_row_that_does_not_fit_is_told_and_so_are_other_errors(
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
