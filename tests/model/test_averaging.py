"""Averaging models against loops."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.model.averaging import AveragingModel
from lmtool.model.heads import Classifier
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Averaging
from tests.reference import classifiers as reference
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.vocabularies import VOCABULARY

EXACT: dict[str, Any] = {"rtol": 1e-12, "atol": 1e-12}
VOCAB = tiny.VOCAB
KEEP = torch.tensor([[True] * 6, [True, True, True, False, False, False], [False] * 6])


def model(**keys: Any) -> AveragingModel:
    torch.manual_seed(0)
    spec = Averaging.model_validate({"kind": "averaging", "d_model": 5, **keys})
    return AveragingModel(spec, VOCAB).double().eval()


def linear(**keys: Any) -> AveragingModel:
    return model(one_hot=True, n_layers=0, **keys)


def vectors(built: AveragingModel, batch: Batch) -> Tensor:
    """What the head reads: its scores, where it returns its input."""
    head = nn.Linear(built.head_input_width, built.head_input_width).double()
    with torch.no_grad():
        head.weight.copy_(torch.eye(built.head_input_width))
        head.bias.zero_()
    return built.score_texts(batch, head, 0.0).detach()


def expected(built: AveragingModel, texts: list[list[int]], ngrams: int = 1) -> Tensor:
    weights = {name: value.numpy() for name, value in built.state_dict().items()}
    layers = [(weights[f"dense.{i}.weight"], weights[f"dense.{i}.bias"]) for i in range(len(built.dense))]
    activation = "relu" if built.activation is torch.relu else "tanh"
    table = weights.get("embedding.weight", np.eye(built.head_input_width))
    features = [reference.features(text, VOCAB, ngrams, built.spec.buckets) for text in texts]
    return torch.from_numpy(np.array([reference.deep_average(text, table, layers, activation) for text in features]))


def texts_of(tokens_BT: Tensor, keep_BT: Tensor) -> list[list[int]]:
    return [tokens_T[keep_T].tolist() for tokens_T, keep_T in zip(tokens_BT, keep_BT, strict=True)]


NETWORKS: list[dict[str, Any]] = [
    {"n_layers": 0},
    {"n_layers": 1, "activation": "tanh"},
    {"n_layers": 3, "activation": "relu"},
    {"n_layers": 0, "one_hot": True, "buckets": 1000},
]


@pytest.mark.parametrize("keys", NETWORKS, ids=str)
@pytest.mark.parametrize("ngrams", [1, 2, 4, 8])
def test_it_equals_the_plain_network(ngrams: int, keys: dict[str, Any]) -> None:
    """One-hot words give their shares, without weights."""
    built, tokens_BT = model(**{"ngrams": ngrams, "buckets": 7, **keys}), tiny.tokens(3, 6)
    found = vectors(built, Batch(tokens_BT, keep_BT=KEEP))
    torch.testing.assert_close(found, expected(built, texts_of(tokens_BT, KEEP), ngrams), **EXACT)
    assert "one_hot" not in keys or not list(built.parameters())


@pytest.mark.parametrize("ngrams", [1, 2])
def test_word_dropout_leaves_out_its_share_and_never_a_whole_text(ngrams: int) -> None:
    built = linear(word_dropout=0.1, ngrams=ngrams, buckets=50).train()
    tokens_BT = torch.arange(10).repeat(4000, 1)
    left = (vectors(built, Batch(tokens_BT))[:, :10] > 0).double()
    assert float(left.mean()) == pytest.approx(0.9, abs=0.01)
    most = linear(word_dropout=0.75, ngrams=ngrams, buckets=50).train()
    left = (vectors(most, Batch(tokens_BT))[:, :10] > 0).double()
    n_features = 10 if ngrams == 1 else 19
    assert float(left.mean()) == pytest.approx(8 / n_features, abs=0.01), "a short text keeps eight"
    one_word = vectors(built, Batch(torch.full((500, 1), 3)))
    assert torch.equal(one_word[:, 3], torch.ones(500).double())
    found = vectors(built.eval(), Batch(tokens_BT[:1]))
    torch.testing.assert_close(found, expected(built, [list(range(10))], ngrams), **EXACT)


LINEAR = {"one_hot": True, "n_layers": 0}


@pytest.mark.parametrize(
    ("of_model", "of_head", "key"),
    [
        ({"one_hot": True}, {}, "n_layers"),
        ({"log_ratios": True, "word_dropout": 0.0}, {}, "log_ratios"),
        ({**LINEAR, "log_ratios": True}, {}, "word_dropout"),
        ({**LINEAR, "word_buckets": 9}, {}, "word_buckets"),
        ({"tf_idf": True, "word_buckets": 9}, {}, "model.word_buckets"),
        (LINEAR, {"pool": "max", "dropout": 0.0}, "objective.pool"),
        (LINEAR, {"layers": "mix", "dropout": 0.0}, "objective.layers"),
        (LINEAR, {"lm_weight": 0.5, "dropout": 0.0}, "objective.lm_weight"),
        (LINEAR, {}, "objective.dropout"),
    ],
)
def test_keys_that_have_no_use_are_refused(of_model: dict[str, Any], of_head: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Recipe.model_validate(
            {
                "model": {"kind": "averaging"} | of_model,
                "objective": {"kind": "classification"} | of_head,
                "training": {"steps": 1, "batch_size": 1},
            }
        )


def test_it_gives_vectors_of_words() -> None:
    built: Any = model(ngrams=2, buckets=7)
    batch = Batch(tiny.tokens(2, 3))
    assert torch.equal(built.hidden_states_by_layer(batch)[0], built.embedding.weight[batch.tokens_BT])
    assert built.token_vectors().shape == (VOCAB, 5)
    with refuses("usage"):
        linear().token_vectors()


def bayes(task: str) -> Any:
    """The body and the head of a classifier of three classes."""
    spec = Classification.model_validate({"kind": "classification", "task": task, "labels": ["a", "b", "c"]})
    more: Any = {"log_ratios": True, "word_dropout": 0.0, "ngrams": 3, "buckets": 11}
    body = Averaging(kind="averaging", one_hot=True, n_layers=0, **more)
    built = Classifier(AveragingModel(body, VOCAB), spec, body).double()
    return built.body, built.head


@pytest.mark.parametrize("task", ["class", "multi"])
def test_log_ratios_are_those_of_the_plain_counts_and_multiply_trained_weights(task: str) -> None:
    """Counted in two batches, one of them padded; a repeated feature of a text counts once."""
    body, head = bayes(task)
    tokens_BT = torch.cat((tiny.tokens(3, 6), torch.tensor([[5, 5, 5, 2, 5, 5]] * 2)))
    labels = [{0}, {2}, {1}, {2}, {0}] if task == "class" else [{0, 1}, set(), {1}, {0, 2}, {2}]
    keep_BT = torch.tensor([[True] * 6, [True] * 4 + [False] * 2, [True] * 6, [True] * 6, [True] * 5 + [False]])
    batches = []
    for rows in (slice(0, 2), slice(2, 5)):
        is_BC = torch.tensor([[float(c in has) for c in range(3)] for has in labels[rows]])
        answers = {"labels_B": is_BC.argmax(1)} if task == "class" else {"values_BC": is_BC}
        batches.append(Batch(tokens_BT[rows], keep_BT=keep_BT[rows], **answers))
    head.set_log_ratios_(body, batches)
    texts = [set(reference.features(text, VOCAB, 3, 11)) for text in texts_of(tokens_BT, keep_BT)]
    ratios = [reference.log_count_ratios(texts, [c in has for has in labels], VOCAB + 11) for c in range(3)]
    scores = np.array([[sum(ratios_F[f] for f in text) for ratios_F in ratios] for text in texts])
    scale = float(np.sqrt(np.mean(scores**2)))
    torch.testing.assert_close(head.ratios_CF, torch.tensor(ratios, dtype=torch.float64) / scale, **EXACT)
    # untrained, it predicts as naive Bayes with uniform class priors
    found = torch.cat([body.score_texts(batch, head, 0.0) for batch in batches])
    torch.testing.assert_close(found.detach(), torch.from_numpy(scores) / scale, **EXACT)
    nn.init.normal_(head.weight)
    nn.init.normal_(head.bias)
    found = torch.cat([body.score_texts(batch, head, 0.0) for batch in batches])
    weight_CF = (head.weight * head.ratios_CF).detach()
    wanted = torch.stack([weight_CF[:, sorted(text)].sum(1) for text in texts]) + head.bias
    torch.testing.assert_close(found, wanted, **EXACT)


def test_tf_idf_is_that_of_the_plain_counts() -> None:
    """Counted on some texts, weighted in others; padding has no weight, and a text without known features none."""
    built = linear(tf_idf=True, word_dropout=0.0)
    counted_BT = torch.cat((tiny.tokens(4, 6) % 9, torch.tensor([[5, 5, 5, 2, 5, 5]])))
    built.fit_idf_and_drop_hash_collisions_([Batch(counted_BT[:3]), Batch(counted_BT[3:])])
    tokens_BT = torch.tensor([[5, 5, 2, 3, 5, 0], [2, 2, 2, 12, 1, 1], [12, 12, 12, 12, 12, 12]])
    keep_BT = torch.tensor([[True] * 5 + [False], [True] * 4 + [False] * 2, [True] * 6])
    texts = texts_of(tokens_BT, keep_BT)
    expected_BF = torch.from_numpy(reference.tf_idf(texts, counted_BT.tolist(), VOCAB))
    found_BF = vectors(built, Batch(tokens_BT, keep_BT=keep_BT))
    torch.testing.assert_close(found_BF, expected_BF, rtol=1e-6, atol=1e-7)
    assert not found_BF[2].any()


def test_tf_idf_of_pairs_ignores_pairs_that_no_text_had() -> None:
    """In as few buckets as three, each stands for one of the pairs that were counted, the most frequent one."""
    built = linear(tf_idf=True, word_dropout=0.0, ngrams=2, buckets=3)
    built.fit_idf_and_drop_hash_collisions_([Batch(torch.tensor([[1, 2, 1, 2], [1, 2, 3, 3], [3, 1, 2, 1]]))])
    assert built.owner_K is not None
    known = {int(h) for h in built.owner_K if h >= 0}
    hashes = {(a, b): ((a * 1_000_003) ^ b) % 2_147_483_647 for a in range(9) for b in range(9)}
    in_texts = {(1, 2): 3, (2, 1): 2, (2, 3): 1, (3, 3): 1, (3, 1): 1}
    buckets = {hashes[pair] % 3 for pair in in_texts}
    assert len(known) == len(buckets)
    for bucket in buckets:
        own = {hashes[pair]: n for pair, n in in_texts.items() if hashes[pair] % 3 == bucket}
        assert known & {number for number, n in own.items() if n == max(own.values())}
    for pair, number in hashes.items():
        assert bool(vectors(built, Batch(torch.tensor([pair])))[0, VOCAB:].any()) == (number in known)


def test_words_and_ngrams_within_them_have_half_the_weight_each() -> None:
    """The products of texts are those of the plain features, whatever their hashes are."""
    alphabet = "_ .abcdefg"  # a token 0 first would not change a hash
    counted = ["abc de. abc de", "de  abcdefg a", "g.g.g", "... .", "fed fed fed", "abc"]
    texts = [*counted, "abc de abc", "de abc gfe", "", ". a"]
    built = linear(tf_idf=True, word_dropout=0.0, ngrams=4, buckets=2**20, word_buckets=2**18)
    assert built.in_word_V is not None
    built.in_word_V[3 : len(alphabet)] = True

    def batch(of: list[str]) -> Batch:
        longest = max(map(len, of))
        tokens = [[alphabet.index(char) for char in text.ljust(longest, "g")] for text in of]
        return Batch(torch.tensor(tokens), keep_BT=torch.tensor([[i < len(t) for i in range(longest)] for t in of]))

    # the last is shorter than n-grams are
    built.fit_idf_and_drop_hash_collisions_([batch(counted[:3]), batch(counted[3:5]), batch(counted[5:])])
    expected_BB = np.zeros((len(texts), len(texts)))
    for part in (0, 1):
        of_counted, of_texts = ([reference.words_and_ngrams(t, 4)[part] for t in some] for some in (counted, texts))
        names = sorted({name for counts in of_texts for name in counts})
        ids = [[[names.index(name) for name in counts.elements()] for counts in of] for of in (of_texts, of_counted)]
        plain_BF = reference.tf_idf(ids[0], ids[1], len(names))
        expected_BB += plain_BF @ plain_BF.T / 2
    x_BF = built.sparse_feature_matrix([batch(texts)])
    np.testing.assert_allclose((x_BF @ x_BF.T).toarray(), expected_BB, rtol=1e-6, atol=1e-7)
    alone_BF = built.sparse_feature_matrix([batch([text]) for text in texts if text])
    kept = [i for i, text in enumerate(texts) if text]
    np.testing.assert_allclose((alone_BF @ alone_BF.T).toarray(), expected_BB[np.ix_(kept, kept)], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("task", ["class", "multi"])
def test_linear_classifiers_have_the_gradients_of_their_closed_forms(task: str) -> None:
    """(p - y) x of each class, of a softmax, or of labels by themselves, of which the loss is a mean."""
    spec = Classification.model_validate({"kind": "classification", "task": task, "labels": list("abc"), "dropout": 0})
    body, tokens_BT = Averaging(kind="averaging", one_hot=True, n_layers=0), tiny.tokens(1, 6)
    built: Any = Classifier(AveragingModel(body, VOCAB), spec, body).double()
    y_C = torch.tensor([0.0, 1.0, 0.0] if task == "class" else [1.0, 1.0, 0.0]).double()
    batch = Batch(tokens_BT, labels_B=torch.tensor([1]), values_BC=y_C[None])
    scores_BC = built.body.score_texts(batch, built.head, 0.0)
    loss = ClassificationObjective(spec, VOCABULARY).head_loss(built, scores_BC, batch).total
    (found,) = torch.autograd.grad(loss, built.head.weight)
    x = reference.average(tokens_BT[0].tolist(), np.eye(VOCAB))
    wanted = reference.linear_gradient(built.head.weight.detach().numpy(), x, y_C.numpy(), task == "class")
    np.testing.assert_allclose(found, wanted, **EXACT)


@pytest.mark.parametrize("beside", [True, False])
def test_embeddings_that_nothing_reads_are_not_trained(beside: bool) -> None:
    """Processes would wait for their gradients."""
    built: Any = model(features={"run": "other", "width": 4, "mixed_layers": 2, "beside": beside})
    assert built.embedding.weight.requires_grad is beside
