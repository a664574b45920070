"""A model of which a process holds its rows begins with the bits of a whole one."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lmtool.compute.shards import (
    ShardNewParameters,
    get_local_row_range,
    get_local_rows,
    is_sharded,
    select_own_tensors,
)
from lmtool.model import build
from lmtool.model.heads import Classifier, SpanReader, Tagger
from lmtool.model.lora import add_adapters_and_freeze_
from lmtool.model.transformer import ReplacedTokenDetectorWithGenerator
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, ReplacedTokens, Tagging
from lmtool.recipe.spec.training import Lora
from lmtool.recipe.spec.transformer import Transformer
from tests.support import tiny

SIZE = 3


def assert_rows_are_shared(make: Callable[[], nn.Module]) -> None:
    """What `make` builds in the shares of each process has its rows of the whole one, and all else."""
    torch.manual_seed(3)
    whole = make()
    expected = dict(whole.named_parameters())
    n_rows: Counter[str] = Counter()
    for rank in range(SIZE):
        torch.manual_seed(3)
        with ShardNewParameters(rank, SIZE):
            shared = make()
        after = torch.rand(1)
        torch.manual_seed(3)
        make()
        assert torch.equal(after, torch.rand(1)), "as many random numbers are drawn"
        assert [name for name, _ in shared.named_parameters()] == list(expected)
        for name, parameter in shared.named_parameters():
            own = expected[name][get_local_row_range(parameter)] if is_sharded(parameter) else expected[name]
            assert torch.equal(get_local_rows(parameter), own), name
            if is_sharded(parameter):
                n_rows[name] += len(get_local_rows(parameter))
            assert parameter.shape == expected[name].shape
            assert parameter.is_meta == is_sharded(parameter)
            assert parameter.requires_grad == expected[name].requires_grad
        for (name, buffer), (_, other) in zip(shared.named_buffers(), whole.named_buffers(), strict=True):
            assert torch.equal(buffer, other), name
        n_held = sum(rows.numel() for rows in select_own_tensors(dict(shared.named_parameters()), rank).values())
        assert n_held < 0.6 * sum(parameter.numel() for parameter in expected.values())
    assert n_rows == {name: len(expected[name]) for name in n_rows}, "each row is held once"


@pytest.mark.parametrize("name", tiny.of_each_kind(tiny.TRANSFORMERS))
def test_rows_of_a_shared_model_begin_with_the_bits_of_a_whole_one(name: str) -> None:
    assert_rows_are_shared(lambda: build(tiny.spec(**tiny.TRANSFORMERS[name]), tiny.VOCAB))


def with_head(of: str, spec: Transformer) -> nn.Module:
    body: Any = build(spec, tiny.VOCAB)
    match of:
        case "tagging":
            return Tagger(body, Tagging(kind="tagging", labels=("a", "b", "c"), crf=True), spec)
        case "question-answering":
            return SpanReader(body, QuestionAnswering(kind="question-answering"), spec)
        case "replaced-tokens":
            return ReplacedTokenDetectorWithGenerator(body, ReplacedTokens(kind="replaced-tokens"), spec)
    layers: Any = "mix" if of == "mix" else "last"
    objective = Classification(kind="classification", labels=("a", "b"), dense="tanh", layers=layers)
    return Classifier(body, objective, spec)


HEADED: dict[str, dict[str, Any]] = {
    **{name: {} for name in ("class", "mix", "tagging", "question-answering", "replaced-tokens")},
    **{f"tagging, {score}": {"score": score} for score in ("bilinear", "reduced-rank", "additive")},
}


@pytest.mark.parametrize("name", HEADED)
def test_rows_of_a_shared_head_begin_with_the_bits_of_a_whole_one(name: str) -> None:
    spec = tiny.spec(**tiny.BERT | {"next_sentence_head": False} | HEADED[name])
    assert_rows_are_shared(lambda: with_head(name.partition(",")[0], spec))


def test_rows_of_embeddings_of_ngrams_begin_with_the_bits_of_whole_ones() -> None:
    spec = tiny.spec(ngram_embedding={"min_count": 2, "entries": 40})
    assert_rows_are_shared(lambda: with_head("mix", spec))


def test_adapters_of_a_shared_model_are_whole() -> None:
    spec, lora = tiny.spec(), Lora(rank=2)
    torch.manual_seed(3)
    whole = build(spec, tiny.VOCAB)
    with ShardNewParameters(1, SIZE):
        shared = build(spec, tiny.VOCAB)
    for one in (whole, shared):
        torch.manual_seed(4)
        add_adapters_and_freeze_(one, lora)
    expected = dict(whole.named_parameters())
    adapters = {name: p for name, p in shared.named_parameters() if p.requires_grad}
    assert len(adapters) == 4
    for name, parameter in adapters.items():
        assert torch.equal(parameter, expected[name])
    assert all(is_sharded(p) for name, p in shared.named_parameters() if name not in adapters)
