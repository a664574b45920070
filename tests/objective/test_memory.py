"""No objective holds the logits of a whole batch, neither in the forward nor in the backward pass."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from lmtool.batch import Batch
from lmtool.objective import cross_entropy, scheduled
from lmtool.objective.distillation import DistillationObjective
from lmtool.recipe.spec.training import Distillation
from tests.support import tiny
from tests.support.heads import HEAD, LABELS, MODEL, built
from tests.support.vocabularies import COUNTED

B, T, V, ROWS = 3, 40, 509, 4
"""ROWS of logits at once, of 120. No other tensor of a model has V as its last dimension, but for transposed tables."""

TARGETS = tiny.tokens(B, T, seed=2, vocab_size=V)
DRAWS = torch.rand(B, T, generator=torch.Generator().manual_seed(3))
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "causal": (MODEL, {"kind": "causal"}, {}),
    "scheduled sampling": (MODEL, {"kind": "causal", "scheduled_sampling": {"k": 0.01}}, {"draws_BT": DRAWS}),
    "prefix": ({**MODEL, "shape": "prefix"}, {"kind": "prefix"}, {"prefix_B": torch.tensor([1, 2, 3])}),
    "both directions": ({**tiny.RECURRENT, "shape": "bidirectional"}, {"kind": "bidirectional"}, {}),
    "a language model beside a head": (MODEL, {**HEAD, "lm_weight": 0.5}, LABELS),
    "distillation": (MODEL, {"kind": "causal"}, {}),
}


class Logits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """peak: most rows of V numbers that were alive at once, as logits, probabilities and gradients."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._alive: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor) and tensor.ndim > 1 and tensor.shape[-1] == V and tensor.is_contiguous():
                storage: Any = StorageWeakRef
                self._alive[storage(tensor.untyped_storage())] = tensor.numel() // V
        self._alive = {storage: rows for storage, rows in self._alive.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._alive.values()))
        return made


def setting(case: str) -> tuple[Any, Any, Batch]:
    of, spec, more = CASES[case]
    of = {**of, "context": 64} if "context" in of else of
    model, objective = built(of, spec, replace(COUNTED, size=V))
    if case == "distillation":
        teacher = built(of, spec, replace(COUNTED, size=V))[0].eval()
        objective = DistillationObjective(objective, Distillation(teacher="run"), teacher, None, V)
    return model, objective, Batch(tiny.tokens(B, T, vocab_size=V), TARGETS, **more)


def peak(case: str, monkeypatch: pytest.MonkeyPatch, rows: int) -> int:
    for module in (cross_entropy, scheduled):
        monkeypatch.setattr(module, "rows_per_chunk", lambda *_: rows)
    model, objective, batch = setting(case)
    with Logits() as logits:
        objective.loss(model, batch).total.backward()
        with torch.no_grad():
            objective.score(model, batch)
    return int(logits.peak)


@pytest.mark.parametrize("case", CASES)
def test_logits_of_a_few_chunks_are_alive(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ROWS <= peak(case, monkeypatch, ROWS) <= 8 * ROWS


def test_logits_of_a_whole_batch_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the test above would see nothing."""
    assert peak("causal", monkeypatch, B * T) >= 2 * B * T
