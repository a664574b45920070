"""Heads: of texts, of words and of answers, against loops, and padding that changes nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.model.heads import Classifier, Pooling, SpanReader, Tagger, TokenHeadModel, resolve_pooling
from lmtool.model.layers.crf import LinearChainCrf
from lmtool.model.layers.observing import record_attention_weights
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, Tagging, supported_objectives
from tests.reference import annotated
from tests.reference.recurrent import scalar_mix
from tests.support import tiny
from tests.support.errors import refuses

KEEP = torch.tensor([[True] * 5, [True, True, True, False, False], [False, True, True, True, False]])


@pytest.mark.parametrize("kind", ["first", "last", "mean", "max", "attention"])
def test_pools_equal_loops(kind: Any) -> None:
    torch.manual_seed(0)
    pool: Any = Pooling(kind, 4).double()
    hidden = torch.randn(3, 5, 4, dtype=torch.float64)
    with record_attention_weights(pool) as observed:
        found = pool(hidden, KEEP).detach().numpy()
    torch.testing.assert_close(pool(hidden, None), pool(hidden, torch.ones(3, 5, dtype=torch.bool)))
    for row in range(3):
        kept = [hidden[row, t].numpy() for t in range(5) if KEEP[row, t]]
        match kind:
            case "first":
                wanted = kept[0]
            case "last":
                wanted = kept[-1]
            case "mean":
                wanted = np.mean(kept, 0)
            case "max":
                wanted = np.array([max(h[d] for h in kept) for d in range(4)])
            case _:
                key, query = pool.key, pool.query
                weight, bias, v = (p.detach().numpy() for p in (key.weight, key.bias, query.weight))
                scores = [float(v[0] @ np.tanh(weight @ h + bias)) for h in kept]
                shares = np.exp(scores) / np.exp(scores).sum()
                wanted = shares @ np.array(kept)
                np.testing.assert_allclose(observed[""][row, 0, 0, KEEP[row]].detach(), shares, rtol=1e-9)
        np.testing.assert_allclose(found[row], wanted, rtol=1e-10)


FAMILIES: dict[str, dict[str, Any]] = {
    **{name: tiny.FAMILIES[name] for name in tiny.of_each_kind(tiny.FAMILIES)},
    "averaging": {"kind": "averaging", "d_model": 6},
    "one-hot words": {"kind": "averaging", "one_hot": True, "n_layers": 0},
}
WITH_HEAD = [name for name, of in FAMILIES.items() if "classification" in supported_objectives(tiny.any_spec(**of))]


def classifier(of: dict[str, Any], labels: str = "ab", **head: Any) -> Any:
    torch.manual_seed(0)
    spec = {"kind": "classification", "task": "class", "labels": list(labels), **head}
    return Classifier(tiny.model(**of), Classification.model_validate(spec), tiny.any_spec(**of)).double().eval()


@pytest.mark.parametrize("family", WITH_HEAD)
def test_neighbours_and_padding_do_not_change_the_scores_of_a_row(family: str) -> None:
    """Of a head above all layers, and of one that mixes them."""
    rows = [tiny.tokens(length, seed=length).tolist() for length in (6, 9, 1, 4)]
    tokens, keep = tiny.padded(rows)
    for layers in ["last"] if FAMILIES[family].get("kind") == "averaging" else ["last", "mix"]:
        model = classifier(FAMILIES[family], "abc", layers=layers)
        together = model.run_head(Batch(tokens, keep_BT=keep)).scores
        assert together.shape == (4, 3)
        alone = torch.cat([model.run_head(Batch(torch.tensor([row]))).scores for row in rows])
        torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("layers", "first"), [("mix", 0), ("mix-hidden", 1)])
def test_a_mix_is_of_all_layers_or_of_those_above_the_embeddings(layers: str, first: int) -> None:
    model, batch = classifier(tiny.FAMILIES["elmo"], layers=layers, pool="last"), Batch(tiny.tokens(1, 5))
    with torch.no_grad():
        model.mix.scalars_L.copy_(torch.arange(len(model.mix.scalars_L)).double())
        states = [layer[0].numpy() for layer in model.body.hidden_states_by_layer(batch)][first:]
        mixed = scalar_mix(states, model.mix.scalars_L.tolist(), 1.0)
        wanted = model.head.weight.numpy() @ mixed[-1] + model.head.bias.numpy()
        np.testing.assert_allclose(model.run_head(batch).scores[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("kind", ["classification", "tagging"])
@pytest.mark.parametrize(("family", "layer"), [("elmo", 0), ("bert", 1)])
def test_a_probe_reads_one_layer(family: str, kind: str, layer: int) -> None:
    """And what is above it has nothing to learn."""
    of, batch = tiny.FAMILIES[family], Batch(tiny.tokens(1, 5))
    if kind == "tagging":
        spec = Tagging(kind="tagging", labels=("a", "b"), layers=layer)
        model: Any = Tagger(tiny.model(**of), spec, tiny.any_spec(**of)).double().eval()
        scores = TokenHeadModel.run_head(model, batch).scores[0]
    else:
        model = classifier(of, layers=layer, pool="last")
        scores = model.run_head(batch).scores
    states = model.body.hidden_states_by_layer(batch)[layer][0, -scores.shape[0] :].detach()
    torch.testing.assert_close(scores, (states @ model.head.weight.T + model.head.bias).float())
    depths = model.body.parameter_depths()
    assert max(depths[parameter] for parameter in model.body.parameters() if parameter.requires_grad) == layer


def test_one_score_is_the_sigmoid_of_two_classes() -> None:
    model = classifier({"position": {"kind": "rotary"}}, single_score=True, dropout=0.0)
    assert len(model.head.weight) == 1
    single: list[torch.Tensor] = []
    model.head.register_forward_hook(lambda module, inputs, output: single.append(output))
    labels = torch.tensor([1, 0, 1])
    loss = F.cross_entropy(model.run_head(Batch(tiny.tokens(3, 6))).scores, labels, reduction="sum")
    wanted = F.binary_cross_entropy_with_logits(single[0][:, 0], labels.double(), reduction="sum")
    torch.testing.assert_close(loss.double(), wanted, rtol=1e-5, atol=0)
    gradients = [torch.autograd.grad(of, model.head.weight, retain_graph=True)[0] for of in (loss, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("changes", [{"layers": 9}, {"single_score": True}])
def test_a_head_that_does_not_fit_is_refused(changes: dict[str, Any]) -> None:
    """A layer that the body does not have; one score for three classes."""
    spec = Classification(kind="classification", labels=("a", "b", "c")).model_copy(update=changes)
    with refuses("usage"):
        Classifier(tiny.model(), spec, tiny.spec())


def test_auto_pooling_is_that_of_the_papers() -> None:
    spec = Classification(kind="classification")
    assert resolve_pooling(spec, tiny.spec(shape="encoder")) == "first"
    assert resolve_pooling(spec, tiny.spec(shape="decoder")) == "last"
    assert resolve_pooling(Classification(kind="classification", pool="max"), tiny.spec()) == "max"


def test_a_classifier_still_is_its_language_model() -> None:
    model, batch = classifier({}), Batch(tiny.tokens(2, 7))
    body = model.body
    for name in ("vocab_size", "context", "max_positions", "reads", "recurrent", "description"):
        assert getattr(model, name) == getattr(body, name)
    assert model.modules_by_depth() == body.modules_by_depth()
    hidden = body(batch).hidden_BTD
    assert torch.equal(model.logits(model(batch).hidden_BTD), body.logits(hidden))
    assert torch.equal(model.token_vectors(), body.token_vectors())
    layers = [one.hidden_states_by_layer(batch) for one in (model, body)]
    torch.testing.assert_close(*layers, rtol=0, atol=0)
    torch.testing.assert_close(model.forward_incremental(batch.tokens_BT, model.initial_state(batch))[0], hidden)


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
def test_neighbours_and_padding_do_not_change_the_tags_of_a_row(family: str, layers: str) -> None:
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
