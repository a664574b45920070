"""The Transformers against a plain reference, their gradients, initial weights and size."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lmtool.batch import Batch
from lmtool.model import build
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.model.transformer import TransformerEncoder
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.transformer import Transformer
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.errors import refuses
from tests.support.papers import PAPERS
from tests.support.tiny import TRANSFORMERS, VOCAB

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    shape: (DOCS / f"{'objectives' if shape == 'encoder' else 'transformer'}.md").read_text(encoding="utf-8")
    for shape in ("decoder", "encoder", "encoder-decoder", "prefix")
}
NORMS = [{"kind": kind, "place": place} for kind in ("layer", "rms") for place in ("pre", "post")]
SHAPES = ("decoder", "encoder", "encoder-decoder", "prefix")
POSITIONS = ("learned", "sinusoidal", "alibi", "relative", "disentangled", "rotary", "none")
CHOICES: dict[str, dict[str, Any]] = {
    **{f"norm {n['kind']} {n['place']}": {"norm": n} for n in NORMS},
    **{f"norm {n['kind']} {n['place']} without bias": {"norm": n, "bias": False} for n in NORMS},
    **{f"position {kind}": {"position": {"kind": kind}} for kind in POSITIONS},
    **{
        f"activation {name}": {"activation": name}
        for name in ("relu", "relu-squared", "gelu", "gelu-tanh", "swiglu", "geglu")
    },
    "swiglu without bias": {"activation": "swiglu", "bias": False, "d_ff": 10},
    **{f"{n} heads of keys and values": {"n_kv_heads": n} for n in (1, 2, 4)},
    "one head": {"n_heads": 1},
    "untied": {"tie_embeddings": False},
    "tied, head bias": {"head_bias": True},
    "untied, head bias": {"tie_embeddings": False, "head_bias": True},
    "scaled embedding": {"scale_embedding": True},
    "normed embedding": {"norm": {"embedding": True}},
    "scaled head": {"scale_head": True},
    "transformed head": {"head_transform": True},
    "one layer, narrow": {"n_layers": 1, "d_ff": 3},
    "eps": {"norm": {"eps": 0.5}},
    **{f"{shape}, relative": {"shape": shape, "position": {"kind": "relative", "buckets": 6}} for shape in SHAPES},
    **{f"{shape}, post-norm": {"shape": shape, "norm": {"place": "post"}} for shape in SHAPES},
    **{
        f"{shape}, everything in the head": {
            "shape": shape,
            "head_transform": True,
            "head_bias": True,
            "scale_head": True,
            "tie_embeddings": False,
        }
        for shape in SHAPES
    },
    **TRANSFORMERS,
}
PLAIN = {name: of for name, of in CHOICES.items() if of.get("score") not in ("bilinear", "reduced-rank", "additive")}
"""Learned scores are tested in test_scores.py."""
choices = pytest.mark.parametrize(
    "changes", nightly_but(CHOICES.values(), *range(0, len(CHOICES), 4)), ids=CHOICES.keys()
)
SOURCES = [[3, 1, 4, 1], [5]]
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])


def segments_of(spec: Transformer) -> torch.Tensor | None:
    return SEGMENTS if spec.n_segments else None


@pytest.mark.parametrize("changes", nightly_but(PLAIN.values(), *range(0, len(PLAIN), 4)), ids=PLAIN.keys())
def test_logits_equal_the_plain_model(changes: dict[str, Any]) -> None:
    spec, model = tiny.spec(**changes), tiny.model(**changes)
    tokens_BT = tiny.tokens(2, 5)
    more = {"segments_BT": segments_of(spec)} if spec.shape == "encoder" else {}
    hidden = tiny.read(model, tokens_BT, SOURCES, **more)
    logits_BTV = model.logits(hidden)
    assert logits_BTV.shape == (2, 5, VOCAB)
    plain = tiny.as_reference(model, spec)
    for i, row in enumerate(tokens_BT.tolist()):
        match spec.shape:
            case "decoder":
                wanted = plain.causal(row)
            case "prefix":
                wanted = plain.prefix([*SOURCES[i], *row], len(SOURCES[i]))[len(SOURCES[i]) :]
            case "encoder-decoder":
                wanted = plain.answer(SOURCES[i], row)
            case "encoder":
                wanted, pair = plain.both_sides(row, SEGMENTS[i].tolist() if spec.n_segments else None)
                if pair is not None:
                    found = tiny.array(model.next_sentence_logits(hidden)[i])
                    assert found == pytest.approx(pair, rel=1e-9, abs=1e-9)
        assert tiny.array(logits_BTV[i]) == pytest.approx(wanted, rel=1e-8, abs=1e-9)
    with torch.no_grad():
        without_grad = model.logits(tiny.read(model, tokens_BT, SOURCES, **more))
    torch.testing.assert_close(without_grad, logits_BTV, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("n", nightly_but([0, 1, 3, 5], 0, 2))
@pytest.mark.parametrize("position", nightly_but(POSITIONS, "learned", "alibi", "disentangled"))
def test_a_prefix_of_any_length_equals_the_plain_model(n: int, position: str) -> None:
    """Also the scores inside the prefix."""
    changes: dict[str, Any] = {"shape": "prefix", "position": {"kind": position}}
    model = tiny.model(**changes)
    tokens_BT = tiny.tokens(1, 5)
    logits = model.logits(model(Batch(tokens_BT, prefix_B=torch.tensor([n]))).hidden_BTD)
    wanted = tiny.as_reference(model, tiny.spec(**changes)).prefix(tokens_BT[0].tolist(), n)
    assert tiny.array(logits[0]) == pytest.approx(wanted, rel=1e-8, abs=1e-9)


def test_without_segments_all_tokens_belong_to_the_first() -> None:
    model = tiny.model(**tiny.BERT)
    tokens_BT = tiny.tokens(2, 5)
    zeros = torch.zeros_like(tokens_BT)
    torch.testing.assert_close(
        model(Batch(tokens_BT)).hidden_BTD, model(Batch(tokens_BT, segments_BT=zeros)).hidden_BTD
    )
    assert not torch.allclose(
        model(Batch(tokens_BT)).hidden_BTD, model(Batch(tokens_BT, segments_BT=1 - zeros)).hidden_BTD
    )


@choices
def test_every_parameter_gets_a_gradient_and_those_of_the_head_from_logits(changes: dict[str, Any]) -> None:
    spec = tiny.spec(**changes)
    torch.manual_seed(0)
    model = build(spec, VOCAB).double()
    for ngrams in find_ngram_embeddings(model):
        ngrams.select_ngrams_(tiny.tokens(400))
    if spec.smear:
        nn.init.ones_(model.smear.scale)  # at first 0, and the gate has no gradient
    more = {"segments_BT": segments_of(spec)} if spec.shape == "encoder" else {}
    model.logits(torch.randn(3, 16, dtype=torch.float64)).sum().backward()
    used = {id(parameter) for parameter in model.parameters() if parameter.grad is not None}
    assert used == set(map(id, model.head_parameters()))
    hidden = tiny.read(model, tiny.tokens(2, 5), [[3, 1, 4, 1, 5, 9], [5, 0, 2]], **more)
    loss = model.logits(hidden).log_softmax(-1)[..., 1].sum()
    if isinstance(model, TransformerEncoder) and spec.next_sentence_head:
        loss = loss + model.next_sentence_logits(hidden).log_softmax(-1)[..., 1].sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        grad = parameter.grad.to_dense()
        assert torch.isfinite(grad).all(), name
        assert grad.abs().sum() > 0, name


def test_what_a_shape_does_not_have_is_refused() -> None:
    encoder, batch = tiny.model(shape="encoder"), Batch(tiny.tokens(1, 3))
    with refuses("usage"):
        encoder.forward_incremental(batch.tokens_BT, None)
    with pytest.raises(ValueError, match="next_sentence_head"):
        encoder.next_sentence_logits(encoder(batch).hidden_BTD)
    with pytest.raises(ValueError, match="source"):
        tiny.model(shape="encoder-decoder")(batch)


def deviation(parameter: torch.Tensor) -> float:
    return float(parameter.detach().square().mean().sqrt())


@pytest.mark.parametrize("changes", [{}, {"tie_embeddings": False, "activation": "swiglu", "n_kv_heads": 2}])
@pytest.mark.parametrize("std", [0.02, 0.1])
@pytest.mark.parametrize("scale_residual", [True, False])
def test_first_weights(changes: dict[str, Any], std: float, scale_residual: bool) -> None:
    torch.manual_seed(1)
    init = {"std": std, "scale_residual": scale_residual}
    model = build(tiny.spec(n_layers=3, d_model=64, context=64, init=init, head_bias=True, **changes), 211)
    seen = set()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            is_gain = name.endswith("norm.weight")
            assert torch.equal(parameter, torch.ones_like(parameter) if is_gain else torch.zeros_like(parameter)), name
        else:
            into_stream = name.endswith("mixer.out.weight")
            wanted = std * (2 * 3) ** -0.5 if into_stream and scale_residual else std
            assert deviation(parameter) == pytest.approx(wanted, rel=0.05), name
            assert abs(float(parameter.detach().mean())) < 4 * wanted * parameter.numel() ** -0.5, name
            seen.add(into_stream)
    assert seen == {True, False}


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_may_start_wider_than_matrices(tied: bool) -> None:
    init = {"std": 0.02, "embedding_std": 1.5}
    position = {"kind": "learned"}
    spec = tiny.spec(
        shape="encoder", n_segments=40, d_model=64, context=64, position=position, tie_embeddings=tied, init=init
    )
    model = build(spec, 211)
    wide = {name for name, parameter in model.named_parameters() if parameter.ndim > 1 and deviation(parameter) > 0.2}
    assert wide == {"inputs.tokens.weight", "inputs.segments.weight", "inputs.position.table.weight"}
    for name in wide:
        assert deviation(model.get_parameter(name)) == pytest.approx(1.5, rel=0.05), name


def test_dropout_of_embeddings_zeroes_some_and_scales_the_rest() -> None:
    """With every sublayer zeroed, the residual stream is the embedding after dropout."""
    model = tiny.model(dropout=0.25)
    for name, parameter in model.named_parameters():
        if ".mixer.out." in name:
            nn.init.zeros_(parameter)
    model.stack.norm = nn.Identity()
    batch = Batch(tiny.tokens(50, 20))
    with torch.no_grad():
        whole = model(batch).hidden_BTD
        model.train()
        torch.manual_seed(0)
        ratio = model(batch).hidden_BTD / whole
    assert torch.isclose(ratio, torch.tensor(0.0).double()).logical_or(torch.isclose(ratio, ratio.max())).all()
    assert float(ratio.max()) == pytest.approx(1 / 0.75)
    assert float(ratio.mean()) == pytest.approx(1, abs=0.02)


def test_dropout_is_off_in_evaluation() -> None:
    model = tiny.model(dropout=0.5, ffn_dropout=0.5)
    batch = Batch(tiny.tokens(2, 6))
    assert torch.equal(model(batch).hidden_BTD, model(batch).hidden_BTD)
    plain = tiny.model()
    assert torch.equal(model(batch).hidden_BTD, plain(batch).hidden_BTD)
    model.train()
    assert not torch.equal(model(batch).hidden_BTD, model(batch).hidden_BTD)


@pytest.mark.parametrize("shape", PAGES)
def test_a_page_has_a_recipe_of_each_shape_and_names_those_that_are_shipped(shape: str, tmp_path: Path) -> None:
    """With sizes given in their papers."""
    page, shapes = PAGES[shape], []
    for block in re.findall(r"^```yaml\n(model:\n.*?)^```", page, flags=re.MULTILINE | re.DOTALL):
        file = tmp_path / "page.yaml"
        file.write_text(f"{block}training: {{steps: 1, batch_size: 1}}\n", encoding="utf-8")
        shapes.append(load(file).recipe.model.shape)
    assert shape in shapes
    for name in shipped_recipes():
        if getattr(load(name).recipe.model, "shape", None) == shape and load(name).recipe.model.kind == "transformer":
            assert f"`{name}`" in page
            assert name not in PAPERS or f"{PAPERS[name][0]:,}" in page
