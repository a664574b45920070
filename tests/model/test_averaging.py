"""Averaging models against loops, and the gradients of linear classifiers against their closed forms."""

from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.model.averaging import AveragingModel, NaiveBayesScaledHead
from lmtool.model.heads import Classifier
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import Training
from lmtool.recipe.spec.words import Averaging
from tests.reference import classifiers as reference
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.vocabularies import VOCABULARY

EXACT: dict[str, float] = {"rtol": 1e-12, "atol": 1e-12}
VOCAB = tiny.VOCAB
KEEP = torch.tensor([[True] * 6, [True, True, True, False, False, False], [False] * 6])


def model(**keys: Any) -> AveragingModel:
    torch.manual_seed(0)
    built = AveragingModel(Averaging.model_validate({"kind": "averaging", "d_model": 5, **keys}), VOCAB).double()
    return built.eval()


def same(built: AveragingModel) -> nn.Linear:
    """A head that returns its input."""
    head = nn.Linear(built.head_input_width, built.head_input_width).double()
    with torch.no_grad():
        head.weight.copy_(torch.eye(built.head_input_width))
        head.bias.zero_()
    return head


def vectors(built: AveragingModel, batch: Batch) -> Tensor:
    return built.score_texts(batch, same(built), 0.0).detach()


def expected(built: AveragingModel, texts: list[list[int]], ngrams: int = 1) -> Tensor:
    weights = {name: value.numpy() for name, value in built.state_dict().items()}
    layers = [(weights[f"dense.{i}.weight"], weights[f"dense.{i}.bias"]) for i in range(len(built.dense))]
    activation = "relu" if built.activation is torch.relu else "tanh"
    table = weights.get("embedding.weight", np.eye(built.head_input_width))
    features = [reference.features(text, VOCAB, ngrams, built.spec.buckets) for text in texts]
    return torch.from_numpy(np.array([reference.deep_average(text, table, layers, activation) for text in features]))


def texts_of(tokens_BT: Tensor, keep_BT: Tensor) -> list[list[int]]:
    return [tokens_T[keep_T].tolist() for tokens_T, keep_T in zip(tokens_BT, keep_BT, strict=True)]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("n_layers", [0, 1, 3])
@pytest.mark.parametrize("ngrams", [1, 2, 4, 8])
def test_it_equals_the_plain_network(ngrams: int, n_layers: int, activation: str) -> None:
    keys = {"ngrams": ngrams, "buckets": 7, "n_layers": n_layers, "activation": activation}
    built, tokens_BT = model(**keys), tiny.tokens(3, 6)
    found = vectors(built, Batch(tokens_BT, keep_BT=KEEP))
    torch.testing.assert_close(found, expected(built, texts_of(tokens_BT, KEEP), ngrams), **EXACT)


@pytest.mark.parametrize("ngrams", [1, 2, 4])
def test_one_hot_words_give_their_shares(ngrams: int) -> None:
    built, tokens_BT = model(one_hot=True, n_layers=0, ngrams=ngrams, buckets=1000), tiny.tokens(3, 6)
    found = vectors(built, Batch(tokens_BT, keep_BT=KEEP))
    torch.testing.assert_close(found, expected(built, texts_of(tokens_BT, KEEP), ngrams), **EXACT)
    assert found.shape[1] == VOCAB + (1000 if ngrams > 1 else 0)
    assert list(built.parameters()) == []


def test_the_order_of_words_matters_to_sequences_alone() -> None:
    tokens_BT = torch.arange(6)[None]
    mixed = tokens_BT.flip(1)
    plain, pairs = model(), model(ngrams=2, buckets=50)
    torch.testing.assert_close(vectors(plain, Batch(mixed)), vectors(plain, Batch(tokens_BT)), **EXACT)
    assert not torch.allclose(vectors(pairs, Batch(mixed)), vectors(pairs, Batch(tokens_BT)))


@pytest.mark.parametrize("ngrams", [1, 2])
def test_word_dropout_leaves_out_its_share_and_never_a_whole_text(ngrams: int) -> None:
    built = model(one_hot=True, n_layers=0, word_dropout=0.1, ngrams=ngrams, buckets=50).train()
    tokens_BT = torch.arange(10).repeat(4000, 1)
    left = (vectors(built, Batch(tokens_BT))[:, :10] > 0).double()
    assert float(left.mean()) == pytest.approx(0.9, abs=0.01)
    most = model(one_hot=True, n_layers=0, word_dropout=0.75, ngrams=ngrams, buckets=50).train()
    left = (vectors(most, Batch(tokens_BT))[:, :10] > 0).double()
    n_features = 10 if ngrams == 1 else 19
    assert float(left.mean()) == pytest.approx(8 / n_features, abs=0.01), "a short text keeps eight"
    one_word = vectors(built, Batch(torch.full((500, 1), 3)))
    assert torch.equal(one_word[:, 3], torch.ones(500).double())
    found = vectors(built.eval(), Batch(tokens_BT[:1]))
    torch.testing.assert_close(found, expected(built, [list(range(10))], ngrams), **EXACT)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"one_hot": True}, "n_layers"),
        ({"log_ratios": True, "word_dropout": 0.0}, "log_ratios"),
        ({"one_hot": True, "n_layers": 0, "log_ratios": True}, "word_dropout"),
        ({"one_hot": True, "n_layers": 0, "word_buckets": 9}, "word_buckets"),
    ],
)
def test_keys_of_the_model_that_have_no_use_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        Averaging(kind="averaging", **changes)


@pytest.mark.parametrize(
    ("model_changes", "head", "key"),
    [
        ({"tf_idf": True, "word_buckets": 9}, {}, "model.word_buckets"),
        ({"one_hot": True, "n_layers": 0}, {"pool": "max", "dropout": 0.0}, "objective.pool"),
        ({"one_hot": True, "n_layers": 0}, {"layers": "mix", "dropout": 0.0}, "objective.layers"),
        ({"one_hot": True, "n_layers": 0}, {"lm_weight": 0.5, "dropout": 0.0}, "objective.lm_weight"),
        ({"one_hot": True, "n_layers": 0}, {}, "objective.dropout"),
    ],
)
def test_keys_of_the_head_that_have_no_use_are_refused(
    model_changes: dict[str, Any], head: dict[str, Any], key: str
) -> None:
    with pytest.raises(ValidationError, match=key):
        Recipe(
            model=Averaging(kind="averaging", **model_changes),
            objective=Classification.model_validate({"kind": "classification"} | head),
            training=Training(steps=1, batch_size=1),
        )


def test_it_gives_vectors_of_words() -> None:
    built, batch = model(ngrams=2, buckets=7), Batch(tiny.tokens(2, 3))
    assert torch.equal(built.hidden_states_by_layer(batch)[0], built.embedding.weight[batch.tokens_BT])
    assert built.token_vectors().shape == (VOCAB, 5)
    with refuses("usage"):
        model(one_hot=True, n_layers=0).token_vectors()


def linear(task: str, n: int) -> tuple[Classifier, ClassificationObjective]:
    spec = Classification.model_validate(
        {"kind": "classification", "task": task, "labels": list("abcde"[:n]), "dropout": 0.0}
    )
    body = Averaging(kind="averaging", one_hot=True, n_layers=0)
    torch.manual_seed(0)
    model = Classifier(AveragingModel(body, VOCAB), spec, body).double().eval()
    return model, ClassificationObjective(spec, VOCABULARY)


def bayes(task: str, n: int) -> tuple[AveragingModel, NaiveBayesScaledHead]:
    spec = Classification.model_validate({"kind": "classification", "task": task, "labels": list("abcde"[:n])})
    body = Averaging(
        kind="averaging", one_hot=True, n_layers=0, log_ratios=True, word_dropout=0.0, ngrams=3, buckets=11
    )
    built = Classifier(AveragingModel(body, VOCAB), spec, body).double()
    return built.body, built.head


@pytest.mark.parametrize("task", ["class", "multi"])
def test_log_ratios_are_those_of_the_plain_counts(task: str) -> None:
    """Counted in two batches, one of them padded; a repeated feature of a text counts once."""
    body, head = bayes(task, 3)
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


def test_tf_idf_is_that_of_the_plain_counts() -> None:
    """Counted on some texts, weighted in others; padding has no weight, and a text without known features none."""
    built = model(one_hot=True, n_layers=0, tf_idf=True, word_dropout=0.0)
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
    built = model(one_hot=True, n_layers=0, tf_idf=True, word_dropout=0.0, ngrams=2, buckets=3)
    built.fit_idf_and_drop_hash_collisions_([Batch(torch.tensor([[1, 2, 1, 2], [1, 2, 3, 3], [3, 1, 2, 1]]))])
    known = {int(h) for h in built.owner_K if h >= 0}
    hashes = {(a, b): ((a * 1_000_003) ^ b) % 2_147_483_647 for a in range(9) for b in range(9)}
    in_texts = {(1, 2): 3, (2, 1): 2, (2, 3): 1, (3, 3): 1, (3, 1): 1}
    for bucket in range(3):
        own = {pair: n for pair, n in in_texts.items() if hashes[pair] % 3 == bucket}
        most = {hashes[pair] for pair, n in own.items() if n == max(own.values())}
        assert not own or most & known
    assert len(known) == len({hashes[pair] % 3 for pair in in_texts})
    for pair, number in hashes.items():
        weight = vectors(built, Batch(torch.tensor([pair])))[0, VOCAB:]
        assert bool(weight.any()) == (number in known)


def test_words_and_ngrams_within_them_have_half_the_weight_each() -> None:
    """The products of texts are those of the plain features, whatever their hashes are."""
    alphabet = "_ .abcdefg"  # a token 0 first would not change a hash
    counted = ["abc de. abc de", "de  abcdefg a", "g.g.g", "... .", "fed fed fed", "abc"]
    texts = [*counted, "abc de abc", "de abc gfe", "", ". a"]
    built = model(one_hot=True, n_layers=0, tf_idf=True, word_dropout=0.0, ngrams=4, buckets=2**20, word_buckets=2**18)
    built.in_word_V[3 : len(alphabet)] = True

    def batch(of: list[str]) -> Batch:
        longest = max(map(len, of))
        tokens = [[alphabet.index(char) for char in text.ljust(longest, "g")] for text in of]
        return Batch(torch.tensor(tokens), keep_BT=torch.tensor([[i < len(t) for i in range(longest)] for t in of]))

    built.fit_idf_and_drop_hash_collisions_(
        [batch(counted[:3]), batch(counted[3:5]), batch(counted[5:])]
    )  # the last is shorter than n-grams are
    plain = []
    for part in (0, 1):
        of_counted, of_texts = ([reference.words_and_ngrams(t, 4)[part] for t in some] for some in (counted, texts))
        names = sorted({name for counts in of_texts for name in counts})
        ids = [[[names.index(name) for name in counts.elements()] for counts in of] for of in (of_texts, of_counted)]
        plain.append(reference.tf_idf(*ids, len(names)))
    expected_BB = sum(x_BF @ x_BF.T for x_BF in plain) / 2
    x_BF = built.sparse_feature_matrix([batch(texts)])
    np.testing.assert_allclose((x_BF @ x_BF.T).toarray(), expected_BB, rtol=1e-6, atol=1e-7)
    alone_BF = built.sparse_feature_matrix([batch([text]) for text in texts if text])
    kept = [i for i, text in enumerate(texts) if text]
    np.testing.assert_allclose((alone_BF @ alone_BF.T).toarray(), expected_BB[np.ix_(kept, kept)], rtol=1e-6, atol=1e-7)


def test_a_feature_counts_its_ratio_times_its_trained_weight() -> None:
    body, head = bayes("class", 2)
    torch.manual_seed(0)
    with torch.no_grad():
        head.weight.normal_()
        head.ratios_CF.normal_()
        head.bias.normal_()
    text = [3, 4, 3, 4, 3]
    weight = (head.weight * head.ratios_CF).detach().numpy()
    has = sorted(set(reference.features(text, VOCAB, 3, 11)))
    expected_C = torch.from_numpy(weight[:, has].sum(1)) + head.bias.detach()
    torch.testing.assert_close(
        body.score_texts(Batch(torch.tensor([text])), head, 0.0)[0].detach(), expected_C, **EXACT
    )


@pytest.mark.parametrize("label", range(3))
def test_the_softmax_classifier_has_the_gradient_of_its_closed_form(label: int) -> None:
    """p x for every class, minus x for the true one, with x the relative frequencies of words."""
    (built, objective), tokens_BT = linear("class", 3), tiny.tokens(1, 6)
    batch = Batch(tokens_BT, labels_B=torch.tensor([label]))
    loss = objective.head_loss(built, built.body.score_texts(batch, built.head, 0.0), batch).total
    loss.backward()
    x = reference.average(tokens_BT[0].tolist(), np.eye(VOCAB))
    expected_loss, gradient = reference.softmax_gradient(built.head.weight.detach().numpy(), x, label)
    assert float(loss.detach()) == pytest.approx(expected_loss, rel=1e-12)
    torch.testing.assert_close(built.head.weight.grad, torch.from_numpy(gradient), **EXACT)


def test_the_sigmoid_classifier_has_the_gradient_of_its_closed_form() -> None:
    """-x + p x where the label holds, and p x where it does not; the loss is the mean over labels."""
    (built, objective), tokens_BT, labels = linear("multi", 2), tiny.tokens(1, 6), [1, 0]
    batch = Batch(tokens_BT, values_BC=torch.tensor([labels]).double())
    loss = objective.head_loss(built, built.body.score_texts(batch, built.head, 0.0), batch).total
    loss.backward()
    x = reference.average(tokens_BT[0].tolist(), np.eye(VOCAB))
    parts = [
        reference.sigmoid_gradient(row, x, label)
        for row, label in zip(built.head.weight.detach().numpy(), labels, strict=True)
    ]
    assert float(loss.detach()) == pytest.approx(sum(loss for loss, _ in parts) / 2, rel=1e-12)
    gradient = np.array([gradient / 2 for _, gradient in parts])
    torch.testing.assert_close(built.head.weight.grad, torch.from_numpy(gradient), **EXACT)


@pytest.mark.parametrize("beside", [True, False])
def test_embeddings_that_nothing_reads_are_not_trained(beside: bool) -> None:
    """Processes would wait for their gradients."""
    built = model(features={"run": "other", "width": 4, "mixed_layers": 2, "beside": beside})
    assert built.embedding.weight.requires_grad is beside
