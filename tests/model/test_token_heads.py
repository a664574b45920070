"""Heads of tags and of answers: the CRF against all sequences, and rows that do not change each other."""

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.model.heads import SpanReader, Tagger, TokenHeadModel
from lmtool.model.layers.crf import LinearChainCrf
from lmtool.recipe.spec.objective import QuestionAnswering, Tagging, supported_objectives
from tests.reference import annotated
from tests.support import tiny
from tests.support.cases import nightly_but

LENGTHS = (4, 1, 3)
BODIES = [name for name, of in tiny.FAMILIES.items() if "tagging" in supported_objectives(tiny.any_spec(**of))]


def chain(seed: int = 0) -> tuple[LinearChainCrf, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    torch.manual_seed(seed)
    layer = LinearChainCrf(3).double()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer, tuple(p.detach().numpy() for p in (layer.start_C, layer.end_C, layer.transition_PC))


def scored(n_tags: int = 3, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(len(LENGTHS), max(LENGTHS), n_tags, generator=generator, dtype=torch.float64)
    tags = torch.randint(n_tags, scores.shape[:2], generator=generator)
    keep = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]
    return scores, tags.where(keep, -100), keep


def test_the_probability_of_tags_is_that_of_all_sequences() -> None:
    layer, parts = chain()
    scores, tags, keep = scored()
    found = layer.log_probs(scores, tags, keep).tolist()
    for row, n in enumerate(LENGTHS):
        wanted = annotated.chain_log_p(scores[row, :n].numpy(), tags[row, :n].tolist(), *parts)
        assert found[row] == pytest.approx(wanted, rel=1e-12)


def test_the_best_tags_are_the_best_of_all_sequences() -> None:
    for seed in range(20):
        layer, parts = chain(seed)
        scores, _, keep = scored(seed=seed)
        found = layer.decode(scores, keep)
        for row, n in enumerate(LENGTHS):
            assert tuple(found[row, :n].tolist()) == annotated.chain_best(scores[row, :n].numpy(), *parts)


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


@pytest.mark.parametrize("layers", nightly_but(["last", "mix"], "last"))
@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(BODIES))
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


@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(BODIES))
def test_every_parameter_that_is_trained_gets_a_gradient(family: str) -> None:
    of = tiny.FAMILIES[family]
    model = tagger(family)
    batch = Batch(tiny.tokens(6)[None], places_BW=torch.tensor([[1, 4]]))
    model.tag_sequence_log_probs(
        model.run_head(batch).scores, torch.tensor([[0, 2]]), torch.ones(1, 2, dtype=torch.bool)
    ).sum().backward()
    reader = SpanReader(tiny.model(**of), QuestionAnswering(kind="question-answering"), tiny.any_spec(**of)).double()
    reader.run_head(Batch(tiny.tokens(6)[None])).scores.log_softmax(1)[0, 2].sum().backward()
    for found in (model, reader):
        without = [name for name, p in found.named_parameters() if p.requires_grad and p.grad is None]
        assert without == []
