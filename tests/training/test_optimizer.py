"""Optimizers against their reference versions: updates, clipping, gradients that are not finite, resuming."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lmtool.batch import Batch
from lmtool.compute.device import CPU, ExecutionContext
from lmtool.errors import CheckpointError
from lmtool.model import LanguageModel
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.recipe.spec.training import Tuning
from lmtool.training.optimizer import Optimizers
from lmtool.training.updates import AdamUpdate, MomentumSgd, MuonMatrices, orthogonalise
from tests.reference import optimizers as reference
from tests.support import tiny
from tests.support.cases import nightly_but
from tests.support.optimizers import (
    MULTIPLIERS,
    Array,
    Toy,
    conditioned,
    drawn_gradients,
    gradients_like,
    plain,
    set_gradients,
    spec_of,
    weights_of,
)

SPECS: dict[str, dict[str, Any]] = {
    "sgd": {"kind": "sgd", "lr": 0.1},
    "sgd with decay": {"kind": "sgd", "lr": 0.1, "weight_decay": 0.3},
    "momentum": {"kind": "sgd", "lr": 0.1, "momentum": 0.9},
    "momentum with decay": {"kind": "sgd", "lr": 0.1, "momentum": 0.7, "weight_decay": 0.2},
    "adam": {"kind": "adam", "lr": 0.05},
    "adam with decay": {"kind": "adam", "lr": 0.05, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.2},
    "adamw": {"kind": "adamw", "lr": 0.05, "beta2": 0.95, "weight_decay": 0.5},
    "adamw without decay": {"kind": "adamw", "lr": 0.05, "eps": 1e-4, "weight_decay": 0.0},
}
ADAM: dict[str, Any] = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.2}
TORCH_ADAM: dict[str, Any] = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "fused": True}
MUON: dict[str, Any] = {
    "kind": "muon",
    "lr": 0.02,
    "momentum": 0.9,
    "weight_decay": 0.3,
    "adamw": {"lr": 1e-2, "beta2": 0.9, "weight_decay": 0.2},
}


def take_step(
    model: nn.Module,
    optimizers: Optimizers,
    gradients: dict[str, Array],
    rate: float = 1.0,
    scale: float = 1.0,
    limit: float | None = 1.0,
    number: int = 0,
) -> float:
    """Set these gradients and do a step; returns the norm."""
    set_gradients(model, gradients)
    return optimizers.clip_and_step(rate, scale, limit, number)


@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS.keys())
def test_several_steps_equal_the_plain_optimizer(fields: dict[str, Any]) -> None:
    """With changing learning rates, gradients summed over 8 targets; matrices decay, vectors do not."""
    model = Toy()
    before = weights_of(model)
    optimizers = Optimizers(spec_of(fields), model, CPU)
    gradients = drawn_gradients(model, len(MULTIPLIERS))
    for multiplier, step in zip(MULTIPLIERS, gradients, strict=True):
        norm = take_step(model, optimizers, {name: 8 * g for name, g in step.items()}, multiplier, 1 / 8, None)
        assert norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in step.values())))
        assert all(parameter.grad is None for parameter in model.parameters())
    for name, w in weights_of(model).items():
        wanted = plain(fields, before[name], [step[name] for step in gradients], MULTIPLIERS)
        assert w == pytest.approx(wanted, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize("fields", [SPECS["sgd"], SPECS["adamw"], MUON], ids=["sgd", "adamw", "muon"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_embeddings_of_ngrams_are_updated_by_adagrad(fields: dict[str, Any], is_sparse: bool) -> None:
    """Whatever the optimizer, at its rate, without decay; a step has gradients of some rows, of some twice."""
    model = tiny.model(ngram_embedding={"entries": 6})
    (ngrams,) = find_ngram_embeddings(model)
    before = ngrams.weight.detach().numpy().copy()
    optimizers = Optimizers(spec_of(fields), model, CPU)
    rng, gradients = np.random.default_rng(3), []
    for multiplier in MULTIPLIERS:
        set_gradients(model, {name: np.zeros(p.shape) for name, p in model.named_parameters()})
        rows, values = torch.from_numpy(rng.integers(0, 5, 4)), torch.from_numpy(rng.normal(size=(4, 16)))
        grad = torch.sparse_coo_tensor(rows[None], 8 * values, (6, 16), check_invariants=True)
        gradients.append(grad.to_dense().numpy() / 8)
        ngrams.weight.grad = grad if is_sparse else grad.to_dense()
        norm = optimizers.clip_and_step(multiplier, 1 / 8, None)
        assert norm == pytest.approx(math.sqrt(float((gradients[-1] ** 2).sum())))
    wanted = reference.row_adagrad(before, gradients, [fields["lr"] * multiplier for multiplier in MULTIPLIERS])
    np.testing.assert_allclose(ngrams.weight.detach().numpy(), wanted, rtol=1e-7)
    assert optimizers.state_tensors()["square/ngrams.weight"].shape == (6, 1)


@pytest.mark.parametrize("limit", [0.1, 1.0, 3.0, 1e6, None])
def test_clipping(limit: float | None) -> None:
    """g min(1, c / norm(g)), the norm over all parameters, reported before clipping, of the mean gradient."""
    model = Toy()
    before = weights_of(model)
    (step,) = drawn_gradients(model, 1)
    descent = Optimizers(spec_of({"kind": "sgd", "lr": 1.0}), model, CPU)
    norm = take_step(model, descent, {name: 5 * g for name, g in step.items()}, scale=0.2, limit=limit)
    assert norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in step.values())))
    clipped = list(step.values()) if limit is None else reference.clipped(list(step.values()), limit)
    for (name, w), g in zip(weights_of(model).items(), clipped, strict=True):
        assert w == pytest.approx(before[name] - g)


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(1e-6, 1e6), limit=st.floats(1e-3, 1e3))
@example(scale=0.0, limit=1.0)
def test_no_step_is_longer_than_the_limit(scale: float, limit: float) -> None:
    model = Toy()
    before = weights_of(model)
    (step,) = drawn_gradients(model, 1)
    descent = Optimizers(spec_of({"kind": "sgd", "lr": 1.0}), model, CPU)
    norm = take_step(model, descent, {name: scale * g for name, g in step.items()}, limit=limit)
    moved = math.sqrt(sum(float(((w - before[name]) ** 2).sum()) for name, w in weights_of(model).items()))
    assert moved == pytest.approx(min(norm, limit), rel=1e-4, abs=1e-9)


def gpt(dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
    return tiny.model(dtype=dtype, tie_embeddings=False, **changes)


ALL_SPECS = SPECS | {"muon": MUON}


@pytest.mark.parametrize("fields", nightly_but(ALL_SPECS.values(), 0, 1, 3, 5, 7), ids=ALL_SPECS.keys())
@pytest.mark.parametrize("value", nightly_but([math.nan, math.inf, -math.inf], 0, 1))
def test_a_gradient_that_is_not_finite_changes_nothing(fields: dict[str, Any], value: float) -> None:
    """Neither weights nor moments change, and the next step is as without the bad one."""
    models = [gpt(), gpt()]
    both = [Optimizers(spec_of(fields), model, CPU) for model in models]
    good, bad, last = drawn_gradients(models[0], 3)
    bad["head.own"][3, 2] = value
    for model, optimizers, steps in zip(models, both, ([good, bad, last], [good, last]), strict=True):
        norms = [take_step(model, optimizers, step) for step in steps]
        assert [math.isfinite(norm) for norm in norms] == [step is not bad for step in steps]
    assert all(torch.equal(a, b) for a, b in zip(models[0].parameters(), models[1].parameters(), strict=True))


WAITING: dict[str, Any] = {"unfreeze_every": 2, "layer_decay": 0.7}
RESUMED = [
    *((fields, {}, n) for n in (0, 3) for fields in ALL_SPECS.values()),
    *((fields, WAITING, n) for n in (0, 1, 3, 5) for fields in (SPECS["adamw"], SPECS["momentum"], MUON)),
]


@pytest.mark.parametrize(
    ("fields", "tuning", "read_before"), nightly_but(RESUMED, 0, 3, 6, 8, 18, 19, 22, 23, 26, unpack=True)
)
def test_resumed_steps_are_equal_bit_for_bit(fields: dict[str, Any], tuning: dict[str, Any], read_before: int) -> None:
    """State is copied in float32, as in a file; also before the first step, and while layers wait."""
    model, other = gpt(), gpt()
    optimizers, resumed = (Optimizers(spec_of(fields), one, CPU, Tuning(**tuning)) for one in (model, other))
    gradients = list(enumerate(drawn_gradients(model, 8)))
    for number, step in gradients[:read_before]:
        take_step(model, optimizers, step, 0.7, number=number)
    other.load_state_dict(model.state_dict())
    saved = {name: tensor.clone() for name, tensor in optimizers.state_tensors().items()}
    kept = {name: tensor.tolist() for name, tensor in saved.items()}
    resumed.load_state(saved, read_before)
    for number, step in gradients[read_before:]:
        for m, o in ((model, optimizers), (other, resumed)):
            take_step(m, o, step, 0.3, number=number)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
    one, two = (o.state_tensors() for o in (optimizers, resumed))
    assert {name: tensor.tolist() for name, tensor in one.items()} == {
        name: tensor.tolist() for name, tensor in two.items()
    }
    # the loaded tensors are not modified: they may be memory-mapped
    assert kept == {name: tensor.tolist() for name, tensor in saved.items()}


def test_state_names_moment_and_parameter() -> None:
    model = gpt()
    optimizers = Optimizers(spec_of(MUON), model, CPU)
    assert optimizers.state_tensors() == {}
    take_step(model, optimizers, drawn_gradients(model, 1)[0])
    names = set(optimizers.state_tensors())
    assert "momentum/stack.sublayers.0.mixer.qkv.weight" in names
    assert {"exp_avg/head.own", "exp_avg_sq/head.own", "step/head.own"} <= names
    assert {name.partition("/")[2] for name in names} == {name for name, _ in model.named_parameters()}
    plain_descent = Optimizers(spec_of(SPECS["sgd"]), model, CPU)
    take_step(model, plain_descent, drawn_gradients(model, 1)[0])
    assert plain_descent.state_tensors() == {}


@pytest.mark.parametrize(
    ("moment", "forged"),
    [
        ("exp_avg", lambda weight: torch.zeros(3)),
        ("exp_avg", None),
        ("exp_avg_sq", lambda weight: weight.half()),
        ("step", lambda weight: torch.zeros(2)),
        ("step", lambda weight: torch.tensor(1)),
        ("velocity", lambda weight: weight),
    ],
)
def test_forged_moments_are_refused(moment: str, forged: Callable[[Tensor], Tensor] | None) -> None:
    """Of another shape or type, missing, or unknown."""
    model = gpt()
    optimizers = Optimizers(spec_of(SPECS["adamw"]), model, CPU)
    take_step(model, optimizers, drawn_gradients(model, 1)[0])
    state = optimizers.state_tensors()
    parameter, weight = next((n, p) for n, p in model.named_parameters() if p.ndim == 2)
    key = f"{moment}/{parameter}"
    if forged is None:
        del state[key]
    else:
        state[key] = forged(weight.detach())
    with pytest.raises(CheckpointError, match=key) as caught:
        Optimizers(spec_of(SPECS["adamw"]), model, CPU).load_state(state, 1, "here")
    assert len(caught.value.lines()) == 3


RULES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "adam": (
        lambda p: AdamUpdate([{"params": [p]}], decoupled=False, **ADAM),
        lambda p: torch.optim.Adam([p], **TORCH_ADAM),
    ),
    "adamw": (
        lambda p: AdamUpdate([{"params": [p]}], decoupled=True, **ADAM),
        lambda p: torch.optim.AdamW([p], **TORCH_ADAM),
    ),
    "sgd": (
        lambda p: MomentumSgd([{"params": [p]}], lr=0.1, momentum=0.0, weight_decay=0.0),
        lambda p: torch.optim.SGD([p], lr=0.1, foreach=True),
    ),
}


@pytest.mark.parametrize(("make_ours", "make_theirs"), RULES.values(), ids=RULES.keys())
def test_the_bits_are_those_of_torch(make_ours: Callable[[Any], Any], make_theirs: Callable[[Any], Any]) -> None:
    """With changing learning rates."""
    weights = []
    for make in (make_ours, make_theirs):
        generator = torch.Generator().manual_seed(0)
        parameter = nn.Parameter(torch.randn(37, 11, generator=generator))
        rule = make(parameter)
        rate = rule.param_groups[0]["lr"]
        for multiplier in MULTIPLIERS:
            parameter.grad = torch.randn(37, 11, generator=generator)
            rule.param_groups[0]["lr"] = rate * multiplier
            rule.step()
        weights.append(parameter.detach())
    assert torch.equal(*weights)


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 24), columns=st.integers(1, 24), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_orthogonalised_singular_values(rows: int, columns: int, scale: float, seed: int) -> None:
    matrix = conditioned(rows, columns, 0.1, seed)
    singular = torch.linalg.svdvals(orthogonalise((scale * matrix)[None])[0])
    assert float(singular.min()) > 0.65
    assert float(singular.max()) < 1.25


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1)])
def test_orthogonalised_keeps_its_singular_vectors(shape: tuple[int, int]) -> None:
    """Against the same polynomial of exact singular values; bfloat16 has an error of about 0.01."""
    matrices = torch.stack([*(conditioned(*shape, 0.2, seed) for seed in range(5)), torch.zeros(shape)])
    together = orthogonalise(matrices)
    assert together.dtype == torch.float32
    assert together.shape == matrices.shape
    assert not together[5].any(), "zero stays zero"
    for matrix, ours in zip(matrices[:5], together[:5], strict=True):
        wanted = reference.orthogonalised(matrix.double().numpy())
        assert float(np.linalg.norm(ours.double().numpy() - wanted)) < 0.05 * np.linalg.norm(wanted)


SETTINGS = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.3}


def muon_matrix(shape: tuple[int, int], make: Callable[[nn.Parameter], Any]) -> Tensor:
    """A matrix after several steps of an optimizer with changing learning rates."""
    parameter = nn.Parameter(conditioned(*shape, 0.5, 50))
    optimizer = make(parameter)
    for multiplier, gradient in zip(MULTIPLIERS, gradients_like(shape, 6), strict=True):
        optimizer.param_groups[0]["lr"] = 0.02 * multiplier
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (12, 4)])
def test_muon_equals_the_plain_one(shape: tuple[int, int]) -> None:
    ours = muon_matrix(shape, lambda p: MuonMatrices([{"params": [p]}], {p: [shape[0]]}, **SETTINGS))
    gradients = [g.double().numpy() for g in gradients_like(shape, 6)]
    start = conditioned(*shape, 0.5, 50).double().numpy()
    wanted = reference.muon(start, gradients, [0.02 * share for share in MULTIPLIERS], 0.95, 0.3)
    moved = np.linalg.norm(wanted - start)
    assert np.linalg.norm(ours.double().numpy() - wanted) < 0.02 * moved
    theirs = muon_matrix(shape, lambda p: torch.optim.Muon([p], lr=0.02, momentum=0.95, weight_decay=0.3))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("in_bfloat16", "near"), [(True, 1e-4), (False, 2e-3)])
def test_muon_takes_joined_matrices_apart(in_bfloat16: bool, near: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a fused matrix are updated as if each part were a matrix of its own, whatever the others' gradients.

    PyTorch computes in bfloat16 on any processor.
    """
    monkeypatch.setattr("lmtool.training.updates.has_fast_bfloat16", lambda device: in_bfloat16)
    rows = [6, 2, 2]
    start, gradient = conditioned(10, 6, 0.5, 1), conditioned(10, 6, 0.2, 2)
    gradient[6:8] *= 1e-4
    joined = nn.Parameter(start.clone())
    joined.grad = gradient.clone()
    MuonMatrices([{"params": [joined]}], {joined: rows}, **SETTINGS | {"weight_decay": 0.0}).step()
    for part, part_start, part_gradient in zip(
        torch.split(joined.detach(), rows), torch.split(start, rows), torch.split(gradient, rows), strict=True
    ):
        alone = nn.Parameter(part_start.clone())
        alone.grad = part_gradient.clone()
        torch.optim.Muon([alone], lr=0.02, momentum=0.95, weight_decay=0.0).step()
        torch.testing.assert_close(part, alone.detach(), rtol=0, atol=near)
        moved = torch.linalg.svdvals((part_start - part) / 0.02)
        assert 0.65 < float(moved.min()) <= float(moved.max()) < 1.25


LAYERS: dict[str, dict[str, Any]] = {
    **{name: {"activation": name, "n_kv_heads": 2, "d_ff": 24} for name in ("gelu", "swiglu")},
    **{cell: {**tiny.RECURRENT, "cell": cell, "d_model": 12} for cell in ("rnn", "gru", "lstm")},
}


def heights_of_parts(name: str, n_rows: int) -> list[int]:
    """The rows of each part of a matrix of a layer: of a gate, a projection, or a half; none of other weights."""
    if ".weight_" in name:
        return [12] * (n_rows // 12)
    if ".mixer." not in name or not name.endswith("weight"):
        return []
    return {"qkv": [16, 8, 8], "up": [24] * (n_rows // 24)}.get(name.split(".")[-2], [16])


@pytest.mark.parametrize("layer", LAYERS)
def test_muon_moves_the_matrices_of_layers_part_by_part_and_adamw_the_rest(layer: str) -> None:
    """The update of each part of a layer's matrix is orthogonal; all else is updated by AdamW."""
    model = gpt(**LAYERS[layer])
    fields = MUON | {"weight_decay": 0.0}
    before = weights_of(model)
    (step,) = drawn_gradients(model, 1)
    optimizers = Optimizers(spec_of(fields), model, CPU)
    take_step(model, optimizers, step, 0.5, limit=None)
    assert optimizers.peak_rate == fields["lr"]
    for name, w in weights_of(model).items():
        heights = heights_of_parts(name, len(w))
        for moved, height in zip(np.split(before[name] - w, np.cumsum(heights)[:-1]), heights, strict=bool(heights)):
            rate = 0.5 * 0.02 * max(1, height / w.shape[1]) ** 0.5
            singular = np.linalg.svd(moved / rate, compute_uv=False)
            assert 0.2 < singular.min() <= singular.max() < 1.25, name
        if not heights:
            wanted = plain(fields["adamw"] | {"kind": "adamw"}, before[name], [step[name]], [0.5])
            assert w == pytest.approx(wanted, rel=1e-4, abs=1e-6), name
    matrices = {name for name, w in before.items() if heights_of_parts(name, len(w))}
    moments = {key for key in optimizers.state_tensors() if key.startswith("momentum/")}
    assert moments == {f"momentum/{name}" for name in matrices}
    assert len(matrices) == (4 if ".weight_" in min(matrices) else 8)


# float16


HALF = ExecutionContext(torch.device("cpu"), "float16")


@pytest.mark.parametrize("fields", ALL_SPECS.values(), ids=ALL_SPECS.keys())
def test_scaled_gradients_give_the_same_step(fields: dict[str, Any]) -> None:
    """The loss scale of float16 is a power of two, so it does not affect norm or weights."""
    results = []
    for compute in (CPU, HALF):
        model = gpt()
        optimizers = Optimizers(spec_of(fields), model, compute)
        for _ in range(3):
            optimizers.backward(model.logits(model(Batch(tiny.tokens(2, 5))).hidden_BTD).square().mean())
            norm = optimizers.clip_and_step(0.5, 0.25, 1.0)
        results.append((norm, [parameter.detach() for parameter in model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    for one, two in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_an_overflow_halves_the_scale_and_changes_no_weight() -> None:
    model = gpt()
    optimizers = Optimizers(spec_of(MUON), model, HALF)
    before = weights_of(model)
    scale = float(optimizers.state_tensors()["scaler/scale"])
    optimizers.backward(model.logits(model(Batch(tiny.tokens(2, 5))).hidden_BTD).sum() * 3e38)
    assert not math.isfinite(optimizers.clip_and_step(1.0, 1.0, 1.0))
    assert all(np.array_equal(w, before[name]) for name, w in weights_of(model).items())
    assert float(optimizers.state_tensors()["scaler/scale"]) == scale / 2
    other = Optimizers(spec_of(MUON), gpt(), HALF)
    other.load_state(optimizers.state_tensors())
    assert float(other.state_tensors()["scaler/scale"]) == scale / 2


@pytest.mark.gpu
@pytest.mark.parametrize("fields", ALL_SPECS.values(), ids=ALL_SPECS.keys())
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_steps_on_a_gpu_equal_those_on_the_cpu(fields: dict[str, Any], precision: str) -> None:
    results = []
    for compute in (CPU, ExecutionContext(torch.device("cuda"), precision)):
        model = gpt().to(compute.device)
        optimizers = Optimizers(spec_of(fields), model, compute)
        for step in range(3):
            hidden = model(Batch(tiny.tokens(2, 5, seed=step)).to(compute.device)).hidden_BTD
            optimizers.backward(model.logits(hidden).square().mean())
            optimizers.clip_and_step(0.5, 1.0, 1.0)
        again = Optimizers(spec_of(fields), model, compute)
        again.load_state({name: tensor.cpu() for name, tensor in optimizers.state_tensors().items()})
        optimizers.backward(model.logits(model(Batch(tiny.tokens(2, 5)).to(compute.device)).hidden_BTD).square().mean())
        again.clip_and_step(0.5, 1.0, 1.0)
        results.append([parameter.detach().cpu() for parameter in model.parameters()])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=2e-2, atol=2e-3)


# Learning rates by layer


def depth_of(name: str) -> int:
    """In a decoder of two layers: embeddings, layers from the bottom up, head."""
    if name.startswith("inputs."):
        return 0
    if name.startswith("stack.sublayers."):
        return 1 + int(name.split(".")[2]) // 2
    return 2 if name.startswith("stack.norm") else 3


@pytest.mark.parametrize(
    "tuning", [{"layer_decay": 0.6}, {"unfreeze_every": 2}, {"layer_decay": 0.6, "unfreeze_every": 2}]
)
@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS.keys())
def test_a_layer_learns_as_by_a_plain_optimizer_at_its_rate_from_its_first_step_on(
    fields: dict[str, Any], tuning: dict[str, Any]
) -> None:
    """k layers below the head, the rate is d^k times the head's, and the first step is the one after 2 k."""
    model = gpt(torch.float64)
    optimizers = Optimizers(spec_of(fields), model, CPU, Tuning(**tuning))
    before = weights_of(model)
    steps, shares = drawn_gradients(model, 8), [*MULTIPLIERS, 0.5, 0.9]
    first = {name: tuning.get("unfreeze_every", 0) * (3 - depth_of(name)) for name in before}
    for number, (step, share) in enumerate(zip(steps, shares, strict=True)):
        norm = take_step(model, optimizers, step, share, number=number, limit=None)
        learning = [g for name, g in step.items() if number >= first[name]]
        assert norm == pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in learning)))
    for name, w in weights_of(model).items():
        rates = [share * tuning.get("layer_decay", 1) ** (3 - depth_of(name)) for share in shares]
        own = [step[name] for step in steps]
        wanted = plain(fields, before[name], own[first[name] :], rates[first[name] :])
        np.testing.assert_allclose(w, wanted, rtol=1e-6, atol=1e-8, err_msg=name)
    assert optimizers.peak_rate == pytest.approx(fields["lr"])


def test_muon_has_rates_by_layer_as_well() -> None:
    """With decay d, a step is that of the same gradients at d^k times both rates."""
    models = [gpt(), gpt()]
    steps = drawn_gradients(models[0], 1)
    before = weights_of(models[0])
    moved = []
    for model, tuning in zip(models, (Tuning(), Tuning(layer_decay=0.5)), strict=True):
        take_step(model, Optimizers(spec_of(MUON), model, CPU, tuning), steps[0], limit=None)
        moved.append({name: w - before[name] for name, w in weights_of(model).items()})
    for name, move in moved[1].items():
        np.testing.assert_allclose(move, moved[0][name] * 0.5 ** (3 - depth_of(name)), rtol=2e-3, atol=1e-6)


def test_state_that_lacks_what_has_learnt_is_refused() -> None:
    model = gpt()
    optimizers = Optimizers(spec_of(SPECS["adamw"]), model, CPU, Tuning(unfreeze_every=2))
    for number, step in enumerate(drawn_gradients(model, 2)):
        take_step(model, optimizers, step, number=number)
    state = optimizers.state_tensors()
    fresh = Optimizers(spec_of(SPECS["adamw"]), gpt(), CPU, Tuning(unfreeze_every=2))
    fresh.load_state(state, 2)
    # after a third step the upper layer would have been trained as well
    with pytest.raises(CheckpointError, match=r"/stack.* is missing"):
        fresh.load_state(state, 3)


def test_what_does_not_learn_has_no_optimizer() -> None:
    model = gpt()
    model.get_submodule("stack").requires_grad_(False)
    optimizers = Optimizers(spec_of(MUON), model, CPU)
    before = weights_of(model)
    take_step(model, optimizers, drawn_gradients(model, 1)[0])
    changed = {name for name, w in weights_of(model).items() if not np.array_equal(w, before[name])}
    assert changed == {name for name in before if not name.startswith("stack.")}


@pytest.mark.parametrize("compute", [CPU, HALF], ids=["float32", "float16"])
def test_an_optimizer_all_of_whose_layers_wait_rests(compute: ExecutionContext) -> None:
    """Muon's matrices are all in layers, which begin after the head."""
    model = gpt()
    optimizers = Optimizers(spec_of(MUON), model, compute, Tuning(unfreeze_every=2))
    for number in range(3):
        before = weights_of(model)
        optimizers.backward(model.logits(model(Batch(tiny.tokens(2, 5))).hidden_BTD).square().mean())
        assert optimizers.clip_and_step(1.0, 1.0, None, number) > 0
        changed = {name for name, w in weights_of(model).items() if not np.array_equal(w, before[name])}
        assert any("mixer" in name for name in changed) == (number == 2)
        assert "head.own" in changed
