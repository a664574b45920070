"""The Transformers against a plain reference, their gradients, initial weights and size."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.model import DecodeState, build
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.model.size import count_parameters
from lmtool.model.transformer import TransformerEncoder
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.position import LearnedPosition
from lmtool.recipe.spec.transformer import Init, Norm, Transformer
from tests.support import tiny
from tests.support.cases import nightly_but
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
SOURCES = [[3, 1, 4, 1], [5]]
SEGMENTS = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])


def segments_of(spec: Transformer) -> torch.Tensor | None:
    return SEGMENTS if spec.n_segments else None


@pytest.mark.parametrize(
    "changes",
    nightly_but(
        PLAIN.values(),
        0,
        4,
        8,
        12,
        17,
        21,
        26,
        30,
        34,
        38,
        42,
        46,
        51,
        55,
        59,
        63,
        69,
        74,
        77,
        81,
        86,
        90,
        94,
        98,
        102,
        106,
    ),
    ids=PLAIN.keys(),
)
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
                    assert isinstance(model, TransformerEncoder)
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


@pytest.mark.parametrize(
    "changes",
    nightly_but(
        CHOICES.values(),
        0,
        4,
        8,
        12,
        17,
        21,
        25,
        29,
        33,
        37,
        41,
        45,
        49,
        54,
        58,
        62,
        66,
        72,
        76,
        80,
        84,
        88,
        92,
        96,
        100,
        104,
        108,
        112,
    ),
    ids=CHOICES.keys(),
)
def test_every_parameter_gets_a_gradient(changes: dict[str, Any]) -> None:
    spec = tiny.spec(**changes)
    torch.manual_seed(0)
    model = build(spec, VOCAB).double()
    for ngrams in find_ngram_embeddings(model):
        ngrams.select_ngrams_(tiny.tokens(400))
    if spec.smear:
        nn.init.ones_(model.smear.scale)  # at first 0, and the gate has no gradient
    more = {"segments_BT": segments_of(spec)} if spec.shape == "encoder" else {}
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


@pytest.mark.parametrize(
    "changes",
    nightly_but(
        CHOICES.values(),
        0,
        4,
        8,
        12,
        17,
        21,
        25,
        29,
        33,
        37,
        41,
        45,
        49,
        54,
        58,
        62,
        66,
        72,
        76,
        80,
        84,
        88,
        92,
        96,
        100,
        104,
        108,
        112,
    ),
    ids=CHOICES.keys(),
)
def test_the_head_parameters_are_those_that_logits_uses(changes: dict[str, Any]) -> None:
    model = tiny.model(**changes)
    hidden = torch.randn(3, 16, dtype=torch.float64)
    model.logits(hidden).sum().backward()
    used = {name for name, parameter in model.named_parameters() if parameter.grad is not None}
    heads = {id(parameter) for parameter in model.head_parameters()}
    assert used == {name for name, parameter in model.named_parameters() if id(parameter) in heads}


@pytest.mark.parametrize(
    "changes",
    nightly_but(
        CHOICES.values(),
        0,
        4,
        8,
        12,
        17,
        21,
        25,
        29,
        33,
        37,
        41,
        45,
        49,
        54,
        58,
        62,
        66,
        72,
        76,
        80,
        84,
        88,
        92,
        96,
        100,
        104,
        108,
        112,
    ),
    ids=CHOICES.keys(),
)
def test_the_recipe_counts_the_parameters_that_are_there(changes: dict[str, Any]) -> None:
    model = build(tiny.spec(**changes), VOCAB)
    assert count_parameters(tiny.spec(**changes), VOCAB).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("family", nightly_but(["modern", "longformer", "2017", "t5"], "modern", 2))
def test_one_batch_is_learnt_by_heart(family: str) -> None:
    torch.manual_seed(0)
    model = build(tiny.spec(**TRANSFORMERS[family]), VOCAB)
    tokens_BT, targets_BT = tiny.tokens(3, 8), tiny.tokens(3, 8, seed=1)
    tokens_BT[:, 0] = torch.arange(3)  # so that rows differ from the first position on
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(120):
        logits = model.logits(tiny.read(model, tokens_BT))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets_BT.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
        if losses[-1] < 0.1:
            break
    assert losses[0] > 2
    assert losses[-1] < 0.1


def test_an_encoder_has_no_next_token() -> None:
    model = tiny.model(**tiny.BERT)
    with pytest.raises(UsageError, match="no next token"):
        model.initial_state(Batch(tiny.tokens(1, 1)))
    with pytest.raises(UsageError, match="no next token"):
        model.forward_incremental(tiny.tokens(1, 1), DecodeState(0, None, ()))


def test_an_encoder_without_the_head_has_no_next_sentence() -> None:
    model = tiny.model(shape="encoder")
    assert isinstance(model, TransformerEncoder)
    with pytest.raises(ValueError, match="next_sentence_head"):
        model.next_sentence_logits(model(Batch(tiny.tokens(1, 3))).hidden_BTD)


def test_an_encoder_decoder_needs_a_source() -> None:
    model = tiny.model(shape="encoder-decoder")
    with pytest.raises(ValueError, match="without a source"):
        model(Batch(tiny.tokens(1, 3)))


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


def test_first_weights_are_a_function_of_the_seed() -> None:
    def weights(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [parameter.detach() for parameter in build(tiny.spec(), VOCAB).parameters()]

    assert all(torch.equal(a, b) for a, b in zip(weights(3), weights(3), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(weights(3), weights(4), strict=True))


def test_sizes_that_a_model_tells() -> None:
    model = build(tiny.spec(context=9), VOCAB)
    assert (model.vocab_size, model.context) == (VOCAB, 9)


def test_the_position_table_can_be_longer_than_the_context() -> None:
    model = build(tiny.spec(position=LearnedPosition(size=40).model_dump()), VOCAB)
    assert dict(model.named_parameters())["inputs.position.table.weight"].shape == (40, 16)


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


def test_the_pages_name_every_key() -> None:
    pages = "".join(set(PAGES.values()))
    for spec in (Transformer, LearnedPosition, Norm, Init):
        for key in spec.model_fields:
            assert re.search(rf"[`.]{key}[`:]", pages), key


@pytest.mark.parametrize("shape", PAGES)
def test_a_page_has_a_recipe_of_each_shape(shape: str, tmp_path: Path) -> None:
    shapes = []
    for block in re.findall(r"^```yaml\n(model:\n.*?)^```", PAGES[shape], flags=re.MULTILINE | re.DOTALL):
        file = tmp_path / "page.yaml"
        file.write_text(f"{block}training: {{steps: 1, batch_size: 1}}\n", encoding="utf-8")
        model = load(file).recipe.model
        assert isinstance(model, Transformer)
        shapes.append(model.shape)
        with torch.device("meta"):
            assert sum(p.numel() for p in build(model, VOCAB).parameters()) > 1_000_000
    assert shape in shapes


@pytest.mark.parametrize("shape", PAGES)
def test_a_page_names_the_recipes_of_its_shape(shape: str) -> None:
    """With sizes given in their papers."""
    page = PAGES[shape]
    for recipe_name in shipped_recipes():
        recipe = load(recipe_name).recipe
        if isinstance(recipe.model, Transformer) and recipe.model.shape == shape:
            assert f"`{recipe_name}`" in page, recipe_name
            if recipe_name in PAPERS:
                assert f"{PAPERS[recipe_name][0]:,}" in page, recipe_name
