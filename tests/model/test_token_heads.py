"""Heads of tags and of answers: the CRF against all sequences, and rows that do not change each other."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lmtool.batch import Batch
from lmtool.model.heads import SpanReader, Tagger, TokenHeadModel
from lmtool.model.layers.crf import LinearChainCrf
from lmtool.recipe.spec.objective import QuestionAnswering, Tagging, supported_objectives
from tests.reference import annotated
from tests.support import tiny

LENGTHS = (4, 1, 3)
BODIES = [
    name
    for name in tiny.of_each_kind(tiny.FAMILIES)
    if "tagging" in supported_objectives(tiny.any_spec(**tiny.FAMILIES[name]))
]


def chain(seed: int = 0) -> tuple[LinearChainCrf, Any]:
    torch.manual_seed(seed)
    layer = LinearChainCrf(3).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer, tuple(p.detach().numpy() for p in (layer.start_C, layer.end_C, layer.transition_PC))


def scored(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of three tags, tags, and which words there are."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(LENGTHS), max(LENGTHS), 3, generator=generator, dtype=torch.float64)
    tags = torch.randint(3, scores.shape[:2], generator=generator)
    keep = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return scores, tags.where(keep, -100), keep


def test_probabilities_and_the_best_tags_are_those_of_all_sequences() -> None:
    for seed in range(20):
        layer, parts = chain(seed)
        scores, tags, keep = scored(seed)
        log_p, best = layer.log_probs(scores, tags, keep).tolist(), layer.decode(scores, keep)
        for row, n in enumerate(LENGTHS):
            own = scores[row, :n].numpy()
            assert log_p[row] == pytest.approx(annotated.chain_log_p(own, tags[row, :n].tolist(), *parts), rel=1e-12)
            assert tuple(best[row, :n].tolist()) == annotated.chain_best(own, *parts)


def test_a_row_without_words_has_probability_one() -> None:
    layer, _ = chain()
    scores, tags, keep = scored()
    assert layer.log_probs(scores, tags, keep & torch.tensor([[True], [False], [True]]))[1] == 0


def test_a_new_chain_is_the_softmax_of_each_word() -> None:
    scores, tags, keep = scored()
    layer = LinearChainCrf(3).double()
    each = scores.log_softmax(-1).gather(2, tags.where(keep, 0)[..., None])[..., 0]
    torch.testing.assert_close(layer.log_probs(scores, tags, keep), (each * keep).sum(1))


def tagger(family: str, layers: str = "last") -> Tagger:
    of = tiny.FAMILIES[family]
    spec = Tagging.model_validate({"kind": "tagging", "labels": ["a", "b", "c"], "crf": True, "layers": layers})
    torch.manual_seed(0)
    return Tagger(tiny.model(**of), spec, tiny.any_spec(**of)).double().eval()


@pytest.mark.parametrize("layers", ["last", "mix"])
@pytest.mark.parametrize("family", BODIES)
def test_neighbours_and_padding_do_not_change_the_scores_of_a_row(family: str, layers: str) -> None:
    model = tagger(family, layers=layers)
    rows = [tiny.tokens(length, seed=length).tolist() for length in (6, 9, 4)]
    places = [[1, 3, 5], [0, 8], [2]]
    tokens, keep = tiny.padded(rows)
    padded = torch.tensor([own + [-1] * (3 - len(own)) for own in places])
    together = model.run_head(Batch(tokens, keep_BT=keep, places_BW=padded)).scores
    for row, own, found in zip(rows, places, together, strict=True):
        alone = model.run_head(Batch(torch.tensor([row]), places_BW=torch.tensor([own]))).scores[0]
        torch.testing.assert_close(found[: len(own)], alone, rtol=1e-4, atol=1e-5)
        every = TokenHeadModel.run_head(model, Batch(torch.tensor([row]))).scores[0]
        torch.testing.assert_close(alone, every[own])


@pytest.mark.parametrize("family", BODIES)
def test_every_parameter_that_is_trained_gets_a_gradient(family: str) -> None:
    of = tiny.FAMILIES[family]
    model, batch = tagger(family), Batch(tiny.tokens(1, 6), places_BW=torch.tensor([[1, 4]]))
    reader = SpanReader(tiny.model(**of), QuestionAnswering(kind="question-answering"), tiny.any_spec(**of)).double()
    keep_BW = torch.ones(1, 2, dtype=torch.bool)
    tags = model.tag_sequence_log_probs(model.run_head(batch).scores, torch.tensor([[0, 2]]), keep_BW).sum()
    start = reader.run_head(Batch(tiny.tokens(1, 6))).scores.log_softmax(1)[0, 2].sum()
    for found, loss in ((model, tags), (reader, start)):
        torch.autograd.backward(loss)
        assert [name for name, p in found.named_parameters() if p.requires_grad and p.grad is None] == []
