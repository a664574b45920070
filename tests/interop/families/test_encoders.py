"""Encoders come in from Transformers, and go out again, with the same outputs and the same tensors."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import Batch
from lmtool.errors import CheckpointError
from lmtool.interop.families import EVERY
from lmtool.interop.families.bert import Bert, DistilBert, Electra, Roberta
from lmtool.interop.families.config import Config, Inexpressible
from lmtool.interop.families.encoder import Encoder
from lmtool.interop.families.family import Family
from lmtool.interop.families.layouts import ZeroRow
from lmtool.interop.families.modernbert import ModernBert
from lmtool.model import build
from lmtool.recipe.load import load
from lmtool.recipe.spec.objective import AnyObjective, Classification, Embedding, Masked, Tagging
from lmtool.recipe.spec.transformer import Transformer
from tests.interop.families.peers import (
    JUNK,
    VOCAB,
    Brought,
    assert_close,
    assert_same_tensors,
    described,
    peer_of,
    published,
    tensors_of,
    values_of,
)

BERT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
DISTIL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "dim": 16,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 24,
    "max_position_embeddings": 24,
}
MODERN: dict[str, Any] = {
    **BERT,
    "num_hidden_layers": 4,
    "local_attention": 8,
    **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0),
}
CASES: dict[str, tuple[Family, str, dict[str, Any]]] = {
    "bert": (Bert(), "Bert", BERT),
    "bert with one segment and ReLU": (Bert(), "Bert", {**BERT, "type_vocab_size": 1, "hidden_act": "relu"}),
    "bert, untied": (Bert(), "Bert", {**BERT, "tie_word_embeddings": False}),
    "roberta": (Roberta(), "Roberta", {**BERT, "type_vocab_size": 1, "layer_norm_eps": 1e-5}),
    "roberta, padded with 0": (Roberta(), "Roberta", {**BERT, "pad_token_id": 0}),
    "distilbert": (DistilBert(), "DistilBert", DISTIL),
    "distilbert, GELU by tanh": (DistilBert(), "DistilBert", {**DISTIL, "activation": "gelu_new"}),
    "electra": (Electra(), "Electra", {**BERT, "embedding_size": 12}),
    "electra, not narrow": (Electra(), "Electra", {**BERT, "embedding_size": 16, "tie_word_embeddings": False}),
    "modernbert": (ModernBert(), "ModernBert", MODERN),
    "modernbert with biases": (
        ModernBert(),
        "ModernBert",
        {**MODERN, **dict.fromkeys(("attention_bias", "mlp_bias", "norm_bias", "classifier_bias"), True)},
    ),
    "modernbert without output bias": (
        ModernBert(),
        "ModernBert",
        {**MODERN, "decoder_bias": False, "hidden_activation": "silu", "classifier_activation": "silu"},
    ),
    "modernbert, full": (ModernBert(), "ModernBert", {**MODERN, "layer_types": ["full_attention"] * 4}),
    "modernbert, windows": (ModernBert(), "ModernBert", {**MODERN, "layer_types": ["sliding_attention"] * 4}),
    "modernbert, its windows first": (
        ModernBert(),
        "ModernBert",
        {
            **MODERN,
            "layer_types": [*["sliding_attention"] * 3, "full_attention"],
            "global_rope_theta": 500.0,
            "local_rope_theta": 20.0,
        },
    ),
}
KEEP = torch.arange(20) < torch.tensor([[20], [13], [1]])


def rows(family: Family, peer: Any, seed: int = 0) -> Tensor:
    """Tokens (3, 20), which are the padding token where `KEEP` is not, and nowhere else."""
    padding = peer.config.pad_token_id or 0
    tokens = torch.randint(VOCAB - 1, (3, 20), generator=torch.Generator().manual_seed(seed))
    return torch.where(KEEP, tokens + (tokens >= padding), padding)


def segments_of(peer: Any) -> Tensor | None:
    """Second segments at the end of rows, if it has two."""
    if getattr(peer.config, "type_vocab_size", 1) < 2:
        return None
    return (torch.arange(20) >= torch.tensor([[7], [20], [12]])).long()


def theirs(peer: Any, tokens_BT: Tensor, keep_BT: Tensor | None) -> Any:
    segments = segments_of(peer)
    more = {} if segments is None else {"token_type_ids": segments}
    with torch.no_grad():
        return peer(tokens_BT, attention_mask=None if keep_BT is None else keep_BT.long(), **more)


def batch_of(peer: Any, tokens_BT: Tensor, keep_BT: Tensor | None) -> Batch:
    return Batch(tokens_BT, keep_BT=keep_BT, segments_BT=segments_of(peer))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_masked_language_models(case: str, tmp_path: Path) -> None:
    family, name, config = CASES[case]
    peer = peer_of(f"{name}ForMaskedLM", config)
    ours = Brought(family, peer)
    assert ours.objective.kind == "masked"
    again = ours.published(tmp_path)
    # without a tie, BERT has two output biases, and reads the other one
    unread = [] if ours.spec.tie_embeddings else ["cls.predictions.bias"]
    assert_same_tensors(again, peer, unread)
    tokens_BT = rows(family, peer)
    for keep_BT in (None, KEEP):
        # without a mask, padding tokens are tokens; RoBERTa's positions stop at them
        read_BT = tokens_BT if keep_BT is not None else tokens_BT[:1].expand(3, -1)
        wanted = theirs(peer, read_BT, keep_BT).logits
        kept = torch.ones_like(KEEP) if keep_BT is None else keep_BT
        with torch.no_grad():
            logits = ours.model.logits(ours.model(batch_of(peer, read_BT, keep_BT)).hidden_BTD)
        assert_close(logits[kept], wanted[kept])
        assert_close(theirs(again, read_BT, keep_BT).logits[kept], wanted[kept])


def test_next_sentences(tmp_path: Path) -> None:
    peer = peer_of("BertForPreTraining", BERT)
    ours = Brought(Bert(), peer)
    assert ours.spec.next_sentence_head
    again = ours.published(tmp_path)
    assert type(again) is type(peer)
    assert_same_tensors(again, peer)
    tokens_BT = rows(Bert(), peer)
    wanted = theirs(peer, tokens_BT, KEEP)
    with torch.no_grad():
        hidden_BTD = ours.model(batch_of(peer, tokens_BT, KEEP)).hidden_BTD
        assert_close(ours.model.logits(hidden_BTD)[KEEP], wanted.prediction_logits[KEEP])
        assert_close(ours.model.next_sentence_logits(hidden_BTD), wanted.seq_relationship_logits)  # type: ignore[operator]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", CASES)
def test_bodies(case: str, tmp_path: Path) -> None:
    """The discriminator of ELECTRA is a body with a head that no recipe has."""
    family, name, config = CASES[case]
    peer = peer_of("ElectraForPreTraining" if name == "Electra" else f"{name}Model", config)
    body = peer.electra if name == "Electra" else peer
    ours = Brought(family, peer)
    assert isinstance(ours.objective, Embedding)
    again = ours.published(tmp_path)
    tokens_BT = rows(family, peer)
    wanted = theirs(body, tokens_BT, KEEP).last_hidden_state
    with torch.no_grad():
        hidden_BTD = ours.model(batch_of(peer, tokens_BT, KEEP)).hidden_BTD
    assert_close(hidden_BTD[KEEP], wanted[KEEP])
    assert_close(theirs(again, tokens_BT, KEEP).last_hidden_state[KEEP], wanted[KEEP])


def scores_of(ours: Brought, hidden_BTD: Tensor) -> Tensor:
    """The head that the objective describes, without padding but that of `KEEP`."""
    head, of = ours.of_head, ours.objective
    assert isinstance(of, Classification)
    x_BD = hidden_BTD[:, 0]
    if of.pool == "mean":
        x_BD = torch.stack([row[kept].mean(0) for row, kept in zip(hidden_BTD, KEEP, strict=True)])
    x_BD = F.linear(x_BD, head["dense.weight"], head.get("dense.bias"))
    x_BD = {"tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu}[of.dense](x_BD)
    if of.dense_norm:
        x_BD = F.layer_norm(x_BD, x_BD.shape[1:], head["dense_norm.weight"], head.get("dense_norm.bias"), 1e-5)
    return F.linear(x_BD, head["head.weight"], head["head.bias"])


@pytest.mark.sampled(15)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("labels", "task"),
    [
        ({"num_labels": 3}, "class"),
        ({"id2label": {0: "no", 1: "yes"}, "problem_type": "multi_label_classification"}, "multi"),
        ({"num_labels": 1}, "number"),
    ],
)
def test_classifiers(case: str, labels: dict[str, Any], task: str, tmp_path: Path) -> None:
    family, name, config = CASES[case]
    if name == "ModernBert":
        labels = {
            **labels,
            "classifier_pooling": "mean" if task == "number" else "cls",
            "classifier_activation": "gelu",
        }
    peer = peer_of(f"{name}ForSequenceClassification", config | labels)
    ours = Brought(family, peer)
    assert isinstance(ours.objective, Classification)
    assert ours.objective.task == task
    names = {"class": ("LABEL_0", "LABEL_1", "LABEL_2"), "multi": ("no", "yes"), "number": ()}[task]
    assert ours.objective.labels == names
    assert (ours.objective.center, ours.objective.scale) == ((0.0, 1.0) if task == "number" else (None, None))
    again = ours.published(tmp_path, id2label=values_of(peer)["id2label"])
    assert_same_tensors(again, peer)
    tokens_BT = rows(family, peer)
    wanted = theirs(peer, tokens_BT, KEEP).logits
    with torch.no_grad():
        scores_BC = scores_of(ours, ours.model(batch_of(peer, tokens_BT, KEEP)).hidden_BTD)
    assert_close(scores_BC, wanted)
    assert_close(theirs(again, tokens_BT, KEEP).logits, wanted)


def test_a_number_is_published_in_its_own_unit(tmp_path: Path) -> None:
    peer = peer_of("BertForSequenceClassification", {**BERT, "num_labels": 1})
    ours = Brought(Bert(), peer)
    assert isinstance(ours.objective, Classification)
    ours.objective = ours.objective.model_copy(update={"center": 40.0, "scale": 2.5})
    again = ours.published(tmp_path, id2label={"0": "age"})
    tokens_BT = rows(Bert(), peer)
    assert_close(theirs(again, tokens_BT, KEEP).logits, 2.5 * theirs(peer, tokens_BT, KEEP).logits + 40)


def test_a_classifier_is_published_without_the_head_of_its_body(tmp_path: Path) -> None:
    """Fine-tuned from a model that fills masks and knows next sentences."""
    peer = peer_of("BertForSequenceClassification", BERT)
    ours = Brought(Bert(), peer)
    update = {"head_transform": True, "head_bias": True, "next_sentence_head": True}
    ours.spec = ours.spec.model_copy(update=update)
    assert_same_tensors(ours.published(tmp_path), peer)


SIZES: dict[str, Any] = {
    "kind": "transformer",
    "shape": "encoder",
    "n_layers": 2,
    "d_model": 16,
    "n_heads": 4,
    "context": 20,
    "vocab_size": VOCAB,
    "head_transform": True,
    "head_bias": True,
}


@pytest.mark.parametrize(("recipe", "expected"), [("roberta-base", Bert), ("bert-base", Bert)])
def test_recipes(recipe: str, expected: type[Family], tmp_path: Path) -> None:
    """Shrunken. Without segments it is a BERT whose only segment is zero."""
    small = {"n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 24, "context": 20, "vocab_size": VOCAB}
    loaded = load(recipe).recipe
    spec = Transformer.model_validate({**loaded.model.model_dump(), **small})
    family = first(spec, loaded.objective)
    assert isinstance(family, expected)
    assert_published(family, spec, loaded.objective, tmp_path)


def first(spec: Transformer, objective: AnyObjective) -> Family:
    """The first family that can express it. Raises StopIteration without one."""

    def can(family: Family) -> bool:
        try:
            family.publish(spec, objective)
        except Inexpressible:
            return False
        return True

    return next(family for family in EVERY if isinstance(family, Encoder) and can(family))


def assert_published(family: Family, spec: Transformer, objective: AnyObjective, folder: Path) -> None:
    """A model of ours with random weights has the same logits in Transformers."""
    model = build(spec, VOCAB).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    peer = published(family, spec, objective, model.state_dict(), folder)
    tokens_BT = rows(family, peer)
    for weight in family.weights(spec, objective):
        tensor = model.state_dict()[weight.ours]
        assert torch.equal(weight.layout.join(weight.layout.split(tensor)), tensor)
    found = theirs(peer, tokens_BT, KEEP)
    with torch.no_grad():
        wanted = model.logits(model(batch_of(peer, tokens_BT, KEEP)).hidden_BTD)
    assert_close(found["prediction_logits" if spec.next_sentence_head else "logits"][KEEP], wanted[KEEP])


POST: dict[str, Any] = {"place": "post", "embedding": True}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"norm": {**POST, "eps": 1e-12}}, DistilBert),
        ({"norm": POST}, Bert),
        ({"norm": POST, "position": {"kind": "learned", "size": 30, "offset": 3}}, Roberta),
        ({"norm": POST, "embedding_width": 6}, Electra),
        ({"norm": POST, "embedding_width": 6, "n_segments": 2, "tie_embeddings": False}, Electra),
        (
            {
                "norm": {"embedding": True, "first": False},
                "position": {"kind": "rotary"},
                "activation": "geglu",
                "pattern": {"kind": "window", "size": 3, "full_layers": [1]},
                "tie_embeddings": False,
            },
            ModernBert,
        ),
    ],
)
def test_models_of_ours(changes: dict[str, Any], expected: type[Family], tmp_path: Path) -> None:
    spec = Transformer.model_validate(SIZES | changes)
    family = first(spec, Masked(kind="masked"))
    assert isinstance(family, expected)
    assert_published(family, spec, Masked(kind="masked"), tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        (Bert(), {"position": {"kind": "alibi"}}, "model.position.kind"),
        (Bert(), {"position": {"kind": "learned", "offset": 2}}, "model.position.offset"),
        (Bert(), {"norm": {"embedding": True}}, "model.norm.place"),
        (Bert(), {"norm": {"place": "post"}}, "model.norm.embedding"),
        (Bert(), {"activation": "geglu"}, "model.activation"),
        (Bert(), {"bias": False}, "model.bias"),
        (Bert(), {"qkv_bias": False}, "model.qkv_bias"),
        (Bert(), {"n_kv_heads": 2}, "model.n_kv_heads"),
        (Bert(), {"head_width": 8}, "model.head_width"),
        (Bert(), {"score": "additive"}, "model.score"),
        (Bert(), {"scale_embedding": True}, "model.scale_embedding"),
        (Bert(), {"embedding_width": 8}, "model.embedding_width"),
        (Bert(), {"head_transform": False}, "model.head_transform"),
        (Bert(), {"head_bias": False}, "model.head_bias"),
        (Bert(), {"scale_head": True}, "model.scale_head"),
        (Bert(), {"qk_norm": "head"}, "model.qk_norm"),
        (Bert(), {"pattern": {"kind": "window", "size": 4}}, "model.pattern.kind"),
        (Bert(), {"shape": "decoder", "n_segments": 0}, "model.shape"),
        (Roberta(), {}, "model.position.offset"),
        (
            Roberta(),
            {"position": {"kind": "learned", "offset": 2}, "next_sentence_head": True},
            "model.next_sentence_head",
        ),
        (Roberta(), {"position": {"kind": "learned", "offset": 2}, "activation": "relu"}, "model.activation"),
        (DistilBert(), {}, "model.norm.eps"),
        (DistilBert(), {"norm": {**POST, "eps": 1e-12}, "n_segments": 2}, "model.n_segments"),
        (Electra(), {"embedding_width": 16}, "model.embedding_width"),
        (ModernBert(), {}, "model.position.kind"),
        (ModernBert(), {"position": {"kind": "rotary"}}, "model.activation"),
        (
            ModernBert(),
            {"position": {"kind": "rotary", "share": 0.5}, "activation": "swiglu", "norm": {"embedding": True}},
            "model.position.share",
        ),
        (
            ModernBert(),
            {
                "position": {"kind": "rotary"},
                "activation": "swiglu",
                "pattern": {"kind": "window", "size": 4, "dilation": 2},
            },
            "model.pattern.dilation",
        ),
        (
            ModernBert(),
            {"position": {"kind": "rotary"}, "activation": "swiglu", "pattern": {"kind": "window", "size": 1}},
            "model.pattern.size",
        ),
    ],
)
def test_what_a_family_cannot_express(family: Family, changes: dict[str, Any], key: str) -> None:
    spec = Transformer.model_validate({**SIZES, "norm": POST, **changes})
    with pytest.raises(Inexpressible) as refusal:
        family.publish(spec, Masked(kind="masked"))
    assert refusal.value.key == key


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"task": "auto"}, "objective.task"),
        ({"labels": ()}, "objective.labels"),
        ({"labels": ("one",)}, "objective.labels"),
        ({"pool": "mean", "dense": "tanh"}, "objective.pool"),
        ({"dense": "relu"}, "objective.dense"),
        ({"dense_norm": True}, "objective.dense_norm"),
        ({"bias": False}, "objective.bias"),
        ({"layers": "mix"}, "objective.layers"),
    ],
)
def test_heads_that_a_family_cannot_express(changes: dict[str, Any], key: str) -> None:
    spec = Transformer.model_validate({**SIZES, "norm": POST})
    head = Classification.model_validate(
        {"kind": "classification", "task": "class", "labels": ("a", "b"), "dense": "tanh"} | changes, strict=False
    )
    with pytest.raises(Inexpressible) as refusal:
        Bert().publish(spec, head)
    assert refusal.value.key == key


OF_TOKENS: list[tuple[Family, str, dict[str, Any]]] = [
    (Bert(), "BertForTokenClassification", BERT),
    (Bert(), "BertForQuestionAnswering", BERT),
    (Roberta(), "RobertaForTokenClassification", BERT),
    (Roberta(), "RobertaForQuestionAnswering", BERT),
    (DistilBert(), "DistilBertForTokenClassification", DISTIL),
    (DistilBert(), "DistilBertForQuestionAnswering", DISTIL),
    (Electra(), "ElectraForTokenClassification", BERT),
    (Electra(), "ElectraForQuestionAnswering", BERT),
]
"""Without their class they look like heads that no recipe has."""


@pytest.mark.parametrize(("family", "architecture", "config"), OF_TOKENS)
def test_heads_that_score_tokens(family: Family, architecture: str, config: dict[str, Any], tmp_path: Path) -> None:
    tags = architecture.endswith("TokenClassification")
    peer = peer_of(architecture, {**config, "num_labels": 3 if tags else 2})
    ours = Brought(family, peer)
    assert ours.objective.kind == ("tagging" if tags else "question-answering")
    if isinstance(ours.objective, Tagging):
        assert ours.objective.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    again = ours.published(tmp_path)
    assert_same_tensors(again, peer)
    tokens_BT = rows(family, peer)
    found = theirs(peer, tokens_BT, KEEP)
    wanted = found.logits if tags else torch.stack((found.start_logits, found.end_logits), -1)
    with torch.no_grad():
        hidden_BTD = ours.model(batch_of(peer, tokens_BT, KEEP)).hidden_BTD
    scores = F.linear(hidden_BTD, ours.of_head["head.weight"], ours.of_head["head.bias"])
    assert_close(scores[KEEP], wanted[KEEP])


OTHERS: list[tuple[Family, str, dict[str, Any]]] = [
    *OF_TOKENS,
    (Bert(), "BertForNextSentencePrediction", BERT),
    (Roberta(), "RobertaForMultipleChoice", BERT),
    (Electra(), "ElectraForMultipleChoice", BERT),
]


@pytest.mark.parametrize(("family", "architecture", "config"), OTHERS)
def test_other_heads_by_their_tensors(family: Family, architecture: str, config: dict[str, Any]) -> None:
    peer = peer_of(architecture, config)
    values = values_of(peer)
    del values["architectures"]
    with pytest.raises(CheckpointError, match="a recipe has no head with a tensor"):
        family.describe(Config(values, "config.json"), tensors_of(peer, family))


@pytest.mark.parametrize(
    ("family", "architecture", "config"),
    [
        *OTHERS[len(OF_TOKENS) :],
        # with the tensors of a classifier
        (Bert(), "BertForMultipleChoice", BERT),
        (DistilBert(), "DistilBertForMultipleChoice", DISTIL),
        (ModernBert(), "ModernBertForTokenClassification", MODERN),
    ],
)
def test_other_heads_by_name(family: Family, architecture: str, config: dict[str, Any]) -> None:
    peer = peer_of(architecture, config)
    with pytest.raises(CheckpointError, match=f"a recipe has no head as {architecture}"):
        family.describe(Config(values_of(peer), "config.json"), tensors_of(peer, family))


def test_old_names_of_norms() -> None:
    """As in bert-base-uncased."""
    names = set(tensors_of(peer_of("BertForMaskedLM", BERT), Bert()))
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        for name in names
    }
    assert old != names
    for part, now in Bert().renamed:
        old = {name.replace(part, now) for name in old}
    assert old == names


def test_a_segment_that_is_not_zero() -> None:
    one = torch.ones(3, 2)
    with pytest.raises(ValueError, match="not all zeros"):
        ZeroRow().join([one, one[:1]])


HUB: dict[str, tuple[Family, str, dict[str, Any]]] = {
    "bert-base-uncased": (
        Bert(),
        "cls.predictions.transform.dense.weight",
        {
            "architectures": ["BertForMaskedLM"],
            "attention_probs_dropout_prob": 0.1,
            "gradient_checkpointing": False,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "transformers_version": "4.6.0.dev0",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 30522,
        },
    ),
    "bert-base-multilingual-cased": (
        Bert(),
        "cls.predictions.transform.dense.weight",
        {
            "architectures": ["BertForMaskedLM"],
            "attention_probs_dropout_prob": 0.1,
            "directionality": "bidi",
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "pooler_fc_size": 768,
            "pooler_num_attention_heads": 12,
            "pooler_num_fc_layers": 3,
            "pooler_size_per_head": 128,
            "pooler_type": "first_token_transform",
            "position_embedding_type": "absolute",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 119547,
        },
    ),
    "sentence-transformers/all-MiniLM-L6-v2": (
        Bert(),
        "bert.pooler.dense.weight",
        {
            "_name_or_path": "nreimers/MiniLM-L6-H384-uncased",
            "architectures": ["BertModel"],
            "attention_probs_dropout_prob": 0.1,
            "gradient_checkpointing": False,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 384,
            "initializer_range": 0.02,
            "intermediate_size": 1536,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "bert",
            "num_attention_heads": 12,
            "num_hidden_layers": 6,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "transformers_version": "4.8.2",
            "type_vocab_size": 2,
            "use_cache": True,
            "vocab_size": 30522,
        },
    ),
    "roberta-base": (
        Roberta(),
        "lm_head.dense.weight",
        {
            "architectures": ["RobertaForMaskedLM"],
            "attention_probs_dropout_prob": 0.1,
            "bos_token_id": 0,
            "eos_token_id": 2,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 768,
            "initializer_range": 0.02,
            "intermediate_size": 3072,
            "layer_norm_eps": 1e-05,
            "max_position_embeddings": 514,
            "model_type": "roberta",
            "num_attention_heads": 12,
            "num_hidden_layers": 12,
            "pad_token_id": 1,
            "type_vocab_size": 1,
            "vocab_size": 50265,
        },
    ),
    "distilbert-base-uncased-finetuned-sst-2-english": (
        DistilBert(),
        "classifier.weight",
        {
            "activation": "gelu",
            "architectures": ["DistilBertForSequenceClassification"],
            "attention_dropout": 0.1,
            "dim": 768,
            "dropout": 0.1,
            "finetuning_task": "sst-2",
            "hidden_dim": 3072,
            "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
            "initializer_range": 0.02,
            "label2id": {"NEGATIVE": 0, "POSITIVE": 1},
            "max_position_embeddings": 512,
            "model_type": "distilbert",
            "n_heads": 12,
            "n_layers": 6,
            "output_past": True,
            "pad_token_id": 0,
            "qa_dropout": 0.1,
            "seq_classif_dropout": 0.2,
            "sinusoidal_pos_embds": False,
            "tie_weights_": True,
            "vocab_size": 30522,
        },
    ),
    "google/electra-small-discriminator": (
        Electra(),
        "discriminator_predictions.dense.weight",
        {
            "architectures": ["ElectraForPreTraining"],
            "attention_probs_dropout_prob": 0.1,
            "embedding_size": 128,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "hidden_size": 256,
            "initializer_range": 0.02,
            "intermediate_size": 1024,
            "layer_norm_eps": 1e-12,
            "max_position_embeddings": 512,
            "model_type": "electra",
            "num_attention_heads": 4,
            "num_hidden_layers": 12,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
            "summary_activation": "gelu",
            "summary_last_dropout": 0.1,
            "summary_type": "first",
            "summary_use_proj": True,
            "type_vocab_size": 2,
            "vocab_size": 30522,
        },
    ),
    "answerdotai/ModernBERT-base": (
        ModernBert(),
        "head.dense.weight",
        {
            "architectures": ["ModernBertForMaskedLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": 50281,
            "classifier_activation": "gelu",
            "classifier_bias": False,
            "classifier_dropout": 0.0,
            "classifier_pooling": "mean",
            "cls_token_id": 50281,
            "decoder_bias": True,
            "deterministic_flash_attn": False,
            "embedding_dropout": 0.0,
            "eos_token_id": 50282,
            "global_attn_every_n_layers": 3,
            "global_rope_theta": 160000.0,
            "gradient_checkpointing": False,
            "hidden_activation": "gelu",
            "hidden_size": 768,
            "initializer_cutoff_factor": 2.0,
            "initializer_range": 0.02,
            "intermediate_size": 1152,
            "layer_norm_eps": 1e-05,
            "local_attention": 128,
            "local_rope_theta": 10000.0,
            "max_position_embeddings": 8192,
            "mlp_bias": False,
            "mlp_dropout": 0.0,
            "model_type": "modernbert",
            "norm_bias": False,
            "norm_eps": 1e-05,
            "num_attention_heads": 12,
            "num_hidden_layers": 22,
            "pad_token_id": 50283,
            "position_embedding_type": "absolute",
            "sep_token_id": 50282,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "transformers_version": "4.47.0.dev0",
            "vocab_size": 50368,
        },
    ),
}


def names_for(family: Family, name: str) -> set[str]:
    more = {"pre_classifier.weight"} if name == "classifier.weight" else set()
    return {f"{family.prefix}embeddings.word_embeddings.weight", name, *more}


@pytest.mark.parametrize("published_as", HUB)
def test_published_configurations(published_as: str) -> None:
    family, name, values = HUB[published_as]
    model, objective = described(family, values, names_for(family, name))
    expected = {
        "distilbert-base-uncased-finetuned-sst-2-english": "classification",
        "google/electra-small-discriminator": "embedding",
        "sentence-transformers/all-MiniLM-L6-v2": "embedding",
    }
    assert objective.kind == expected.get(published_as, "masked")
    if isinstance(objective, Classification):
        assert (objective.labels, objective.dropout) == (("NEGATIVE", "POSITIVE"), 0.2)
    assert model.context == (8192 if family.model_type == "modernbert" else 512)
    # what is told again is told alike
    told = family.publish(model, objective)
    labels = {"id2label": values["id2label"]} if "id2label" in values else {}
    weights = family.weights(model, objective)
    names = {one for weight in weights for one in weight.theirs}
    again, _ = described(family, told | labels, names)
    assert again == model


@pytest.mark.parametrize(
    ("published_as", "changes", "what"),
    [
        ("bert-base-uncased", {"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
        ("bert-base-uncased", {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ("bert-base-uncased", {"is_decoder": True}, "is_decoder is True"),
        ("bert-base-uncased", {"add_cross_attention": True}, "add_cross_attention is True"),
        ("bert-base-uncased", {"is_encoder_decoder": True}, "is_encoder_decoder is True"),
        ("bert-base-uncased", {"hidden_size": 0}, "hidden_size is 0, not a positive number"),
        ("bert-base-uncased", {"hidden_size": "768"}, "hidden_size is '768', not of type int"),
        ("bert-base-uncased", {"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ("bert-base-uncased", {"type_vocab_size": 0}, "type_vocab_size is 0"),
        ("bert-base-uncased", {"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
        ("bert-base-uncased", {"rotary": True}, "unknown keys may change what it computes: rotary"),
        ("bert-base-uncased", {"architectures": [7, "\x1b[31mForQuestionAnswering"]}, None),
        ("bert-base-uncased", {"architectures": ["\x1b[31mForQuestionAnswering"]}, r"\x1b[31mFor"),
        ("roberta-base", {"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ("roberta-base", {"pad_token_id": -1}, "pad_token_id is -1"),
        ("roberta-base", {"max_position_embeddings": 2}, "max_position_embeddings 2 leaves no positions"),
        ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {"1": "x", "2": "y"}}, "id2label"),
        ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {}}, "id2label"),
        ("distilbert-base-uncased-finetuned-sst-2-english", {"id2label": {"0": 1, "1": 2}}, "id2label"),
        (
            "distilbert-base-uncased-finetuned-sst-2-english",
            {"problem_type": "regression"},
            "problem_type is 'regression' of 2 numbers",
        ),
        ("distilbert-base-uncased-finetuned-sst-2-english", {"problem_type": "ranking"}, "problem_type is 'ranking'"),
        ("answerdotai/ModernBERT-base", {"global_attn_every_n_layers": 0}, "global_attn_every_n_layers is 0"),
        ("answerdotai/ModernBERT-base", {"local_attention": 1}, "local_attention is 1"),
        ("answerdotai/ModernBERT-base", {"mlp_bias": True}, "mlp_bias is not as attention_bias"),
        ("answerdotai/ModernBERT-base", {"classifier_activation": "silu"}, "classifier_activation is not as"),
        ("answerdotai/ModernBERT-base", {"hidden_activation": "relu"}, "hidden_activation is 'relu'"),
        ("answerdotai/ModernBERT-base", {"layer_types": ["full_attention"]}, "layer_types"),
        ("answerdotai/ModernBERT-base", {"layer_types": [{}] * 22}, "layer_types"),
        ("answerdotai/ModernBERT-base", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        (
            "answerdotai/ModernBERT-base",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "rope_type is 'yarn'",
        ),
        ("answerdotai/ModernBERT-base", {"rope_parameters": {"full_attention": 3}}, "rope_parameters"),
        ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_theta": 3}}, "rope_parameters"),
        ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ("answerdotai/ModernBERT-base", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, None),
    ],
)
def test_refused_configurations(published_as: str, changes: dict[str, Any], what: str | None) -> None:
    family, name, values = HUB[published_as]
    names = names_for(family, name)
    if what is None:
        described(family, values | changes, names)
        return
    with pytest.raises(CheckpointError) as refusal:
        described(family, values | changes, names)
    assert what in refusal.value.what
    assert len(str(refusal.value).splitlines()) <= 3


@pytest.mark.parametrize("published_as", HUB)
def test_damaged_configurations(published_as: str) -> None:
    """They are described, or refused; nothing else."""
    family, name, values = HUB[published_as]
    more = ("id2label", "num_labels", "layer_types", "rope_parameters", "tie_word_embeddings", "problem_type")
    for key in (*values, *more):
        for junk in JUNK:
            with contextlib.suppress(CheckpointError):
                family.describe(Config({**values, key: junk}, "config.json"), names_for(family, name))


def test_null_is_the_base_of_other_layers() -> None:
    """As in ModernBERT's first configurations."""
    family, name, values = HUB["answerdotai/ModernBERT-base"]
    model, _ = described(family, values | {"local_rope_theta": None}, names_for(family, name))
    assert model.position.window_theta == 160_000.0  # type: ignore[union-attr]
