"""Perplexity against its definition, for documents and streams, any stride, any batching, any number of processes."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.compute.processes import World
from lmtool.data.prepare import tokenize_data, tokenize_files
from lmtool.data.store import TokenStore
from lmtool.evaluation import perplexity as measuring_text
from lmtool.evaluation.loop import evaluate_items
from lmtool.model import LanguageModel
from lmtool.objective import CausalObjective
from lmtool.recipe.spec.objective import Causal
from lmtool.recipe.spec.text import CharTokenizer, Data
from lmtool.tokenization.tokenizer import Tokenizer
from tests.compute.together import together
from tests.reference import perplexity as reference
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.training import MemoryStore, Work, ended, metrics

CONTEXT = 7
TEXTS = ["a naïve cat", "dogs", "x", "the dog sat on\tthe mat", "no"]


class Measuring:
    """A text in both modes, document and slice, and a model with large random weights for it."""

    def __init__(self, folder: Path, split: Any) -> None:
        texts = TEXTS if split == "document" else [" and ".join(TEXTS)]
        (folder / "text.txt").write_text("\n".join(texts), encoding="utf-8")
        data = Data(
            train=(str(folder / "text.txt"),),
            documents="line" if split == "document" else "whole",
            split=split,
            valid_fraction=0.4,
        )
        trained = tokenize_data(data, CharTokenizer(kind="char"), seed=1)
        self.tokenizer: Tokenizer = trained.tokenizer
        self.store: TokenStore = tokenize_files(data.train, trained.data, self.tokenizer)
        self.text = "".join(texts)
        self.words = sum(len(text.split()) for text in texts)
        self.model: LanguageModel = tiny.model(vocab_size=self.tokenizer.vocab_size)
        self.objective = CausalObjective(Causal(label_smoothing=0.1), self.tokenizer.bos_id, False)

    def ids(self) -> list[list[int]]:
        return [self.store.read(*self.store.document_range(i)).tolist() for i in range(self.store.n_documents)]

    def next_logits(self, ids: Sequence[int]) -> NDArray[np.float64]:
        with torch.no_grad():
            hidden_BTD = self.model(Batch(torch.tensor([list(ids)]))).hidden_BTD
            return tiny.array(self.model.logits(hidden_BTD)[0, -1])

    def evaluate(self, stride: int, world: World = World()) -> measuring_text.Perplexity:  # noqa: B008 - it is frozen
        compute = replace(CPU, world=world)
        where = self.store, self.tokenizer, compute
        return measuring_text.compute_perplexity(self.model, self.objective, *where, context=CONTEXT, stride=stride)


@pytest.fixture(params=["document", "slice"])
def measuring(request: pytest.FixtureRequest, tmp_path: Path) -> Measuring:
    return Measuring(tmp_path, request.param)


@pytest.mark.parametrize("stride", [1, 3, 7])
def test_perplexity_is_its_definition(measuring: Measuring, stride: int) -> None:
    nats, count = reference.nats(measuring.ids(), measuring.next_logits, CONTEXT, stride)
    found = measuring.evaluate(stride)
    streamed = measuring.store.n_documents == 1
    n_bytes = len((measuring.text[1:] if streamed else measuring.text).encode())
    assert found.tokens == count == sum(len(ids) - 1 for ids in measuring.ids())
    assert found.loss == pytest.approx(nats / count, rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(nats / count), rel=1e-4)
    assert found.word_perplexity == pytest.approx(math.exp(nats / measuring.words), rel=1e-3)
    assert found.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-5)
    assert (found.context, found.stride) == (CONTEXT, stride)


def test_how_windows_are_batched_changes_nothing(measuring: Measuring, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one batch, padded; a few; one at a time, without padding."""
    found = []
    for tokens in (10**6, 20, 1):
        monkeypatch.setattr(measuring_text, "evaluate_items", partial(evaluate_items, max_tokens=tokens))
        found.append(measuring.evaluate(2).nats)
    assert found[1:] == pytest.approx([found[0]] * 2, rel=1e-6)


@pytest.mark.parametrize(("context", "stride"), [(1, 1), (3, 2), (4, 4), (9, 1)])
def test_every_token_but_first_ones_is_scored_once(context: int, stride: int) -> None:
    store: Any = MemoryStore([[1], [1, 2], [1, *range(20)], [1, 2, 3, 4, 5], [1, *range(7)]])
    scored = [
        place
        for span in measuring_text.sliding_windows(store, context, stride)
        for place in range(span.first_scored, span.stop)
    ]
    firsts = {store.document_range(i)[0] for i in range(store.n_documents)}
    assert sorted(scored) == [place for place in range(len(store)) if place not in firsts]
    for span in measuring_text.sliding_windows(store, context, stride):
        begin, end = store.document_range(store.find_documents(span.start))
        assert begin <= span.start < span.first_scored < span.stop <= end
        assert span.stop - span.start <= context + 1
        assert span.start == begin or span.first_scored - span.start >= context - stride + 1


# Validation in training


def test_the_sample_is_fixed_by_the_seed_or_everything() -> None:
    store: Any = MemoryStore([[1, *range(2, 2 + n)] for n in (3, 40, 1, 17, 9, 25)])
    first, again, other = (
        measuring_text.EvaluationWindows.sample(store, 4, 30, seed=seed).windows for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first == sorted(first, key=lambda span: span.start)
    assert set(first) < set(measuring_text.sliding_windows(store, 4, 4))
    assert 30 <= sum(span.n_scored for span in first) < 34
    for tokens in (None, 10**6):
        assert measuring_text.EvaluationWindows.sample(
            store, 4, tokens, seed=1
        ).windows == measuring_text.sliding_windows(store, 4, 4)


def test_processes_share_a_text_that_is_measured(measuring: Measuring, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = measuring.evaluate(3)
    found = together(monkeypatch, 20, partial(measuring.evaluate, 3))
    assert len(set(found)) == 1
    assert found[0].nats == pytest.approx(alone.nats, rel=1e-6)
    assert found[0].to_record() == pytest.approx(alone.to_record(), rel=1e-5)


@pytest.mark.parametrize("split", ["document", "slice"])
def test_validation_equals_measuring_the_same_text(work: Work, split: str) -> None:
    """Without label smoothing, at the best checkpoint."""
    valid = work.folder / "valid.txt"
    valid.write_text("the cat sat on the naïve dog\n\nthe cat ran away and home\n\nno\n", encoding="utf-8")
    events = work.pretrain(
        f"data.split={split}", "evaluation.tokens=null", "objective.label_smoothing=0.1", valid=valid
    )
    best = ended(events)
    found = measuring_text.measure_perplexity(str(work.run()), [str(valid)]).perplexity
    assert best.best_value == pytest.approx(found.loss, rel=1e-6)
    assert {record["step"]: record["valid_loss"] for record in metrics(work.run())}[best.best_step] == best.best_value
    shorter = measuring_text.measure_perplexity(str(work.run()), [str(valid)], context=8, stride=3).perplexity
    assert (shorter.context, shorter.stride, shorter.tokens) == (8, 3, found.tokens)


@pytest.mark.parametrize("position", ["alibi", "relative"])
def test_without_learned_positions_more_is_read_than_in_training(work: Work, position: str) -> None:
    work.pretrain("training.steps=1", f"model.position.kind={position}", "data.split=slice")
    text = work.folder / "long.txt"
    text.write_text("the cat sat on the mat and ran away home " * 4, encoding="utf-8")
    short, long = (
        measuring_text.measure_perplexity(str(work.run()), [str(text)], context=context).perplexity
        for context in (None, 40)
    )
    assert (short.context, long.context) == (16, 40)
    assert long.tokens == short.tokens
    assert long.loss != short.loss


def test_as_many_learned_positions_are_read_as_there_are(work: Work) -> None:
    work.pretrain("training.steps=1", "model.position={kind: learned, size: 20}")
    assert measuring_text.measure_perplexity(str(work.run()), [str(work.text)], context=20).perplexity.context == 20
    with refuses("usage"):
        measuring_text.measure_perplexity(str(work.run()), [str(work.text)], context=21)
