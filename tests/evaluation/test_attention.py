"""The attention of texts by name: which tokens are on the axes, what is read, and what is refused."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.evaluation import attribution
from lmtool.evaluation.attention import AttentionWeights, TextAttention, compute_attention, make_row_forward_pass_input
from lmtool.model.heads import Classifier
from lmtool.model.layers.attention import CrossAttention
from lmtool.model.layers.memory_attention import RecurrentStateAttention
from lmtool.model.layers.observing import record_attention_weights
from lmtool.runs.load import LoadedModel, load_run
from tests.interop.runs import SMALL, made, recipe_of, tokenizer_of
from tests.reference import attribution as plain
from tests.support.errors import refuses

RECURRENT: dict[str, Any] = {"kind": "recurrent", "n_layers": 2, "d_model": 8, "context": 24}
CLASSES: dict[str, Any] = {"kind": "classification", "task": "class", "labels": ["good", "bad", "so so"]}
CAUSAL, PAIRS = {"kind": "causal"}, {"kind": "seq2seq"}
ENCODER = {**SMALL, "shape": "encoder"}
ATTENTIVE = {"score": "additive", "feed": "input"}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "decoder": (SMALL, CAUSAL),
    "documents": (SMALL, CAUSAL),
    "prefix": ({**SMALL, "shape": "prefix"}, {"kind": "prefix"}),
    "masked": (ENCODER, {"kind": "masked"}),
    "answering decoder": (SMALL, PAIRS),
    "answering prefix": ({**SMALL, "shape": "prefix"}, PAIRS),
    "2017": ({**SMALL, "shape": "encoder-decoder"}, PAIRS),
    "bahdanau": ({**RECURRENT, "shape": "encoder-decoder", "attention": ATTENTIVE}, PAIRS),
    "memory": ({**RECURRENT, "attention": {"select": "multi-hot", "k": 2}}, CAUSAL),
    "classes": ({**ENCODER, "n_segments": 2}, CLASSES),
    "classes of two": (ENCODER, CLASSES),
    "decoder of classes": (SMALL, CLASSES),
    "decoder of a number": (SMALL, {**CLASSES, "task": "number", "labels": [], "center": 3.0, "scale": 2.0}),
    "pooled lstm": (RECURRENT, {**CLASSES, "pool": "attention"}),
    "pooled encoder": (ENCODER, {**CLASSES, "task": "multi", "pool": "attention"}),
    "pooled by maximum": (ENCODER, {**CLASSES, "pool": "max"}),
    "mix of layers": ({**RECURRENT, "attention": {"score": "dot"}}, {**CLASSES, "pool": "mean", "layers": "mix"}),
    "elman": ({**RECURRENT, "cell": "rnn"}, CAUSAL),
    "averages": ({"kind": "averaging", "d_model": 8}, CLASSES),
}
DATA: dict[str, dict[str, Any]] = {
    "documents": {"data": {"split": "document"}},
    "classes of two": {"data": {"text_columns": ["a", "b"]}},
}
TEXT = "They waited for rain"


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loads a model by name, once."""

    @cache
    def by_name(name: str) -> LoadedModel:
        folder = tmp_path_factory.mktemp("runs") / name.replace(" ", "-")
        made(folder, recipe_of(*MODELS[name], **DATA.get(name, {})), tokenizer_of())
        return load_run(str(folder), CPU)

    return by_name


def axes(found: TextAttention) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    for part in found.parts:
        assert part.weights_LNTS.shape[2:] == (len(part.queries), len(part.keys))
    return {part.kind: (part.queries, part.keys) for part in found.parts}


def pieces(loaded: LoadedModel, text: str) -> tuple[str, ...]:
    return tuple(map(loaded.tokenizer.display_token, loaded.tokenizer.encode(text)))


@pytest.mark.parametrize(
    ("name", "kind", "before", "after"),
    [
        ("decoder", "self", (), ()),
        ("documents", "self", ("[BOS]",), ()),
        ("prefix", "self", (), ()),
        ("masked", "self", ("[CLS]",), ("[SEP]",)),
        ("memory", "memory", (), ()),
        ("classes", "self", ("[CLS]",), ("[SEP]",)),
        ("decoder of classes", "self", ("[BOS]",), ("[CLS]",)),
    ],
)
def test_a_text_attends_to_itself(load: Any, name: str, kind: str, before: Any, after: Any) -> None:
    loaded = load(name)
    tokens = (*before, *pieces(loaded, TEXT), *after)
    assert axes(compute_attention(loaded, [TEXT])) == {kind: (tokens, tokens)}


def test_a_prefix_sees_itself_both_ways(load: Any) -> None:
    """But the last token, which generated text would follow."""
    weights_NTS = compute_attention(load("prefix"), [TEXT]).parts[0].weights_LNTS[0]
    assert (weights_NTS[:, :-1, :-1] > 0).all()
    assert not weights_NTS[:, :-1, -1].any()


@pytest.mark.parametrize("name", ["2017", "bahdanau"])
def test_a_target_attends_to_its_source(load: Any, name: str) -> None:
    loaded = load(name)
    found = compute_attention(loaded, source=TEXT, target="the sea")
    source, target = pieces(loaded, TEXT), pieces(loaded, "the sea")
    wanted = {"cross": ((*target, "[EOS]"), source)}
    if name == "2017":
        read = ("[BOS]", *target)
        wanted |= {"decoder": (read, read), "encoder": (source, source)}
    assert axes(found) == wanted
    assert found.parts[0].kind == "cross"
    ids = loaded.tokenizer.encode
    batch = Batch(torch.tensor([[loaded.tokenizer.bos_id, *ids("the sea")]]), source_BS=torch.tensor([ids(TEXT)]))
    with torch.no_grad(), record_attention_weights(loaded.model) as alone:
        loaded.model(batch)
    of_kind: dict[str, Any] = {part.kind: part.weights_LNTS for part in found.parts}
    for module, weights_BNTS in alone.items():
        across = isinstance(loaded.model.get_submodule(module), CrossAttention | RecurrentStateAttention)
        part = "cross" if across else module.split(".")[0]
        assert any(np.array_equal(weights_BNTS[0], layer) for layer in of_kind[part])


@pytest.mark.parametrize(("name", "marks"), [("answering prefix", ()), ("answering decoder", ("[BOS]",))])
def test_without_a_target_a_source_is_continued(load: Any, name: str, marks: tuple[str, ...]) -> None:
    part = compute_attention(load(name), source=TEXT).part("self")
    source = (*marks, *pieces(load(name), TEXT))
    assert part.queries == part.keys
    assert part.queries[: len(source)] == source


@pytest.mark.parametrize("name", ["2017", "bahdanau"])
def test_without_a_target_it_is_the_model_s_own(load: Any, name: str) -> None:
    """Each token of it is the most probable one after those before."""
    loaded = load(name)
    part = compute_attention(loaded, source=TEXT).part("cross")
    t = loaded.tokenizer
    allowed = [i for i in range(t.vocab_size) if i not in t.special_ids or i in loaded.prompt_format.end_ids]
    read, source_BS = [t.bos_id], torch.tensor([t.encode(TEXT)])
    with torch.no_grad():
        for _ in part.queries:
            hidden_BTD = loaded.model(Batch(torch.tensor([read]), source_BS=source_BS)).hidden_BTD
            logits_V = loaded.model.logits(hidden_BTD)[0, -1]
            read.append(max(allowed, key=lambda i: float(logits_V[i])))
    assert tuple(map(t.display_token, read[1:])) == part.queries


def test_rows_of_a_table(load: Any) -> None:
    loaded = load("classes of two")
    (queries, _) = axes(compute_attention(loaded, ["a", "home"]))["self"]
    assert queries == ("[CLS]", *pieces(loaded, "a"), "[SEP]", *pieces(loaded, "home"), "[SEP]")
    pooled = compute_attention(load("pooled encoder"), [TEXT])
    assert [part.kind for part in pooled.parts] == ["self", "pooling"]
    assert pooled.part("pooling").queries == ("pooled",)
    assert pooled.part("pooling").weights_LNTS.sum() == pytest.approx(1)
    assert [part.kind for part in compute_attention(load("pooled lstm"), [TEXT]).parts] == ["pooling"]


def test_as_json_and_as_arrays(load: Any, tmp_path: Path) -> None:
    found = compute_attention(load("2017"), source=TEXT, target='</script> "\u2028 漢字')
    record = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert record["step"] == 1
    found.save_npz(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as arrays:
        for part, one in zip(found.parts, record["attention"], strict=True):
            assert one["kind"] == part.kind
            np.testing.assert_array_equal(arrays[part.kind], part.weights_LNTS)
            np.testing.assert_allclose(one["weights"], part.weights_LNTS, atol=1e-6)
            assert tuple(arrays[f"{part.kind}_queries"]) == tuple(one["queries"]) == part.queries
            assert tuple(arrays[f"{part.kind}_keys"]) == tuple(one["keys"]) == part.keys


def test_a_head_and_the_mean_of_heads(load: Any) -> None:
    part = compute_attention(load("decoder"), [TEXT]).parts[0]
    np.testing.assert_array_equal(part.head(0, 3), part.weights_LNTS[0, 3])
    np.testing.assert_allclose(part.head(-1, None), sum(part.weights_LNTS[1]) / 4, rtol=1e-5)
    with refuses("usage"):
        part.head(-3, None)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        *((name, {"texts": [TEXT]}) for name in ("elman", "averages", "mix of layers", "2017", "classes of two")),
        ("decoder", {"texts": ["a", "b"]}),
        ("classes", {"source": TEXT}),
        ("2017", {"texts": [TEXT], "source": TEXT}),
        ("2017", {"target": TEXT}),
        # of which the context is 40
        ("2017", {"source": "rain " * 50}),
        ("2017", {"source": "a", "target": "rain " * 50}),
        ("answering prefix", {"source": "a " * 25, "target": "rain " * 25}),
        ("classes", {"texts": ["rain " * 50]}),
    ],
)
def test_what_a_model_does_not_read_is_refused(load: Any, name: str, asked: dict[str, Any]) -> None:
    with refuses("usage"):
        compute_attention(load(name), **asked)


# Which words decided

EXPLAINED = [name for name in MODELS if name.startswith(("pooled", "decoder of"))] + ["classes"]


@pytest.mark.parametrize("name", EXPLAINED)
def test_words_that_decided(load: Any, name: str) -> None:
    """Each measure against a plain computation: rows without a word, one by one; gradients at scaled embeddings."""
    loaded = load(name)
    model = loaded.model
    assert isinstance(model, Classifier)
    text = "They walked home, alone"
    found = attribution.attribute_words(loaded, [text], compute_attention(loaded, [text]))
    row = make_row_forward_pass_input(loaded, [text])

    def score(ids: list[int]) -> torch.Tensor:
        scores_C = model.run_head(Batch(torch.tensor([ids]))).scores[0]
        if found.label == "":
            return 2.0 * scores_C[0] + 3.0
        index = CLASSES["labels"].index(found.label)
        return scores_C[index] if name == "pooled encoder" else scores_C.log_softmax(0)[index]

    ids = list(row.tokens)
    assert len(set(ids)) == len(ids)
    assert found.score == pytest.approx(float(score(ids).detach()), rel=1e-5)
    if found.label:
        scores_C = model.run_head(Batch(torch.tensor([ids]))).scores[0]
        assert CLASSES["labels"][int(scores_C.argmax())] == found.label
    assert "".join(found.words) == "Theywalkedhome,alone"
    first = len(loaded.prompt_format.before)
    counts = [len(loaded.tokenizer.encode(part)) for part in ("They", " walked", " home", ",", " alone")]
    starts = np.cumsum([first, *counts])[:-1]
    weight = model.token_vectors()
    kept = weight.detach().clone()

    def gradient(at: float) -> Any:
        with torch.no_grad():
            weight.copy_(at * kept)
        weight.requires_grad_()
        (grad,) = torch.autograd.grad(score(ids), weight)
        with torch.no_grad():
            weight.copy_(kept)
        return grad[ids].double().numpy()

    per_token = plain.integrated_gradients(gradient, kept[ids].double().numpy(), attribution.PATH_STEPS)
    for w, (start, n) in enumerate(zip(starts, counts, strict=True)):
        without = ids[:start] + ids[start + n :]
        assert found.leave_one_out[w] == pytest.approx(found.score - float(score(without).detach()), abs=1e-5)
        assert found.integrated_gradients[w] == pytest.approx(sum(per_token[start : start + n]), abs=1e-5)
    if name in ("pooled lstm", "pooled by maximum"):
        assert found.rollout is None
        return
    of_self = compute_attention(loaded, [text]).part("self").weights_LNTS.astype(np.float64)
    rolled = plain.rollout([list(layer) for layer in of_self])
    assert rolled.sum(1) == pytest.approx(np.ones(len(rolled)))
    if name == "pooled encoder":
        arriving = compute_attention(loaded, [text]).part("pooling").weights_LNTS[0, 0, 0] @ rolled
    else:
        arriving = rolled[0 if name == "classes" else -1]
    assert found.rollout is not None
    for w, (start, n) in enumerate(zip(starts, counts, strict=True)):
        assert found.rollout[w] == pytest.approx(arriving[start : start + n].sum(), abs=1e-6)


@pytest.mark.parametrize("text", ["", " ", "\x1b[31m red \udc80", "</b>&"])
def test_odd_texts_have_words_that_can_be_printed(load: Any, text: str) -> None:
    loaded = load("classes")
    found = attribution.attribute_words(loaded, [text], compute_attention(loaded, [text]))
    assert len(found.words) == len(found.leave_one_out) == len(found.integrated_gradients)
    assert all(word.isprintable() for word in found.words)
    assert bool(found.words) == bool(text.strip())


def test_empty_texts_sources_and_targets_are_read(load: Any) -> None:
    assert axes(compute_attention(load("decoder"), [""])) == {"self": (("[BOS]",), ("[BOS]",))}
    assert axes(compute_attention(load("2017"), source="", target=""))["cross"] == (("[EOS]",), ("[EOS]",))
    assert not compute_attention(load("memory"), [""]).parts[0].weights_LNTS.any()


def test_integrated_gradients_add_up_to_the_difference_from_nothing() -> None:
    """Completeness, for a smooth function of the embeddings of a row, in several parts of the path."""
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(5, 3).double()
    matrix = torch.randn(3, 3, dtype=torch.float64)

    def score(batch: Batch) -> torch.Tensor:
        return torch.tanh(embedding(batch.tokens_BT) @ matrix).sum((1, 2)) ** 2

    batch = Batch(torch.tensor([[1, 3, 3]]))
    shares_T = attribution.compute_integrated_gradients(score, embedding, batch, 400)
    assert shares_T.sum() == pytest.approx(float(score(batch).detach()), rel=1e-4)
    assert shares_T[1] == pytest.approx(shares_T[2])


def test_the_only_word_of_a_text_without_special_tokens_can_be_left_out() -> None:
    def score(batch: Batch) -> torch.Tensor:
        return batch.tokens_BT.sum(1).double()

    scores = attribution.score_without_each_word(score, Batch(torch.tensor([[3, 4]])), [[0], [0, 1]], 9)
    assert scores.tolist() == [4, 9]


def test_heads_are_summarized_by_where_their_weight_is() -> None:
    on_itself, on_the_one_before = np.eye(4), np.eye(4, k=-1)
    on_the_one_before[0, 0] = 1
    equal = np.tri(4) / np.tri(4).sum(1, keepdims=True)
    words = tuple("abcd")
    weights = np.array([[on_itself, on_the_one_before], [equal, equal]], np.float32)
    own, before, mean, _ = AttentionWeights("self", words, words, weights).summarize_heads()
    assert (own.layer, own.head, mean.layer, mean.head) == (0, 0, 1, 0)
    assert (own.itself, own.previous, own.distance, own.entropy, own.largest) == (1, 0, 0, 0, 1)
    assert (before.itself, before.previous, before.distance) == (0, 1, 1)
    assert before.first == pytest.approx(1 / 3)
    assert mean.entropy == pytest.approx((1 + np.log2(3) + 2) / 3)
    assert mean.largest == mean.first == pytest.approx((1 / 2 + 1 / 3 + 1 / 4) / 3)
    (across, *_) = AttentionWeights("cross", words, tuple("wxyz"), weights).summarize_heads()
    assert (across.largest, across.entropy, across.itself) == (1, 0, None)
    assert own.next is None
    following, preceding = (np.array([[np.eye(4, k=k)]], np.float32) for k in (1, -1))
    (both_ways,) = AttentionWeights("encoder", words, words, following).summarize_heads()
    assert (both_ways.next, both_ways.previous, both_ways.distance) == (1, 0, 1)
    # the first state of a memory attends to nothing
    (memory,) = AttentionWeights("memory", words, words, preceding).summarize_heads()
    assert (memory.previous, memory.largest, memory.entropy) == (1, 1, 0)
