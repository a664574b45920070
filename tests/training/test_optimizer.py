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
from lmtool.model import LanguageModel
from lmtool.model.layers.ngrams import find_ngram_embeddings
from lmtool.recipe.spec.training import Tuning
from lmtool.training.optimizer import Optimizers
from lmtool.training.updates import AdamUpdate, MomentumSgd, MuonMatrices, orthogonalise
from tests.reference import optimizers as reference
from tests.support import tiny
from tests.support.errors import refuses
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

Fields = dict[str, Any]
SPECS: dict[str, Fields] = {
    "sgd": {"kind": "sgd", "lr": 0.1, "weight_decay": 0.3},
    "momentum": {"kind": "sgd", "lr": 0.1, "momentum": 0.7, "weight_decay": 0.2},
    "adam": {"kind": "adam", "lr": 0.05, "beta1": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.2},
    "adamw": {"kind": "adamw", "lr": 0.05},
}
SLOW_ADAMW: Fields = {"lr": 1e-2, "beta2": 0.9, "weight_decay": 0.2}
MUON: Fields = {"kind": "muon", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.3, "adamw": SLOW_ADAMW}
ALL_SPECS = SPECS | {"muon": MUON}
HALF = ExecutionContext(torch.device("cpu"), "float16")
of_each_kind = pytest.mark.parametrize("fields", ALL_SPECS.values(), ids=ALL_SPECS.keys())


def gpt(dtype: torch.dtype = torch.float32, **changes: Any) -> LanguageModel:
    return tiny.model(dtype=dtype, tie_embeddings=False, **changes)


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


def learn_from_output(model: LanguageModel, optimizers: Optimizers, seed: int = 0, device: str = "cpu") -> None:
    """Compute gradients of some loss."""
    batch = Batch(tiny.tokens(2, 5, seed=seed)).to(torch.device(device))
    optimizers.backward(model.logits(model(batch).hidden_BTD).square().mean())


def norm_of(gradients: dict[str, Array]) -> Any:
    return pytest.approx(math.sqrt(sum(float((g**2).sum()) for g in gradients.values())))


def changed(model: nn.Module, before: dict[str, Array]) -> set[str]:
    return {name for name, w in weights_of(model).items() if not np.array_equal(w, before[name])}


@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS.keys())
def test_several_steps_equal_the_plain_optimizer(fields: Fields) -> None:
    """With changing learning rates, gradients summed over 8 targets; matrices decay, vectors do not."""
    model: Any = Toy()
    before, gradients = weights_of(model), drawn_gradients(model, len(MULTIPLIERS))
    optimizers = Optimizers(spec_of(fields), model, CPU)
    for multiplier, step in zip(MULTIPLIERS, gradients, strict=True):
        norm = take_step(model, optimizers, {name: 8 * g for name, g in step.items()}, multiplier, 1 / 8, None)
        assert norm == norm_of(step)
        assert all(parameter.grad is None for parameter in model.parameters())
    for name, w in weights_of(model).items():
        wanted = plain(fields, before[name], [step[name] for step in gradients], MULTIPLIERS)
        assert w == pytest.approx(wanted, rel=1e-9, abs=1e-12), name


@pytest.mark.parametrize(("fields", "is_sparse"), [(SPECS["adamw"], False), (SPECS["sgd"], True), (MUON, True)])
def test_embeddings_of_ngrams_are_updated_by_adagrad(fields: Fields, is_sparse: bool) -> None:
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
        assert optimizers.clip_and_step(multiplier, 1 / 8, None) == norm_of({"": gradients[-1]})
    wanted = reference.row_adagrad(before, gradients, [fields["lr"] * multiplier for multiplier in MULTIPLIERS])
    np.testing.assert_allclose(ngrams.weight.detach().numpy(), wanted, rtol=1e-7)
    assert optimizers.state_tensors()["square/ngrams.weight"].shape == (6, 1)


@pytest.mark.parametrize("limit", [0.1, 1e6, None])
def test_clipping(limit: float | None) -> None:
    """g min(1, c / norm(g)), the norm over all parameters, reported before clipping, of the mean gradient."""
    model: Any = Toy()
    before = weights_of(model)
    (step,) = drawn_gradients(model, 1)
    descent = Optimizers(spec_of({"kind": "sgd", "lr": 1.0}), model, CPU)
    norm = take_step(model, descent, {name: 5 * g for name, g in step.items()}, scale=0.2, limit=limit)
    assert norm == norm_of(step)
    clipped = list(step.values()) if limit is None else reference.clipped(list(step.values()), limit)
    for (name, w), g in zip(weights_of(model).items(), clipped, strict=True):
        assert w == pytest.approx(before[name] - g)


@settings(max_examples=30, deadline=None)
@given(scale=st.floats(1e-6, 1e6), limit=st.floats(1e-3, 1e3))
@example(scale=0.0, limit=1.0)
def test_no_step_is_longer_than_the_limit(scale: float, limit: float) -> None:
    model: Any = Toy()
    before = weights_of(model)
    (step,) = drawn_gradients(model, 1)
    descent = Optimizers(spec_of({"kind": "sgd", "lr": 1.0}), model, CPU)
    norm = take_step(model, descent, {name: scale * g for name, g in step.items()}, limit=limit)
    moved = math.sqrt(sum(float(((w - before[name]) ** 2).sum()) for name, w in weights_of(model).items()))
    assert moved == pytest.approx(min(norm, limit), rel=1e-4, abs=1e-9)


WAITING: Fields = {"unfreeze_every": 2, "layer_decay": 0.7}
RESUMED = [
    *((fields, {}, n) for fields, n in zip(ALL_SPECS.values(), (0, 3, 3, 3, 3), strict=True)),
    *((SPECS["momentum"], WAITING, n) for n in (0, 5)),
    *((MUON, WAITING, n) for n in (1, 3)),
]


@pytest.mark.parametrize(("fields", "tuning", "read_before"), RESUMED)
def test_resumed_steps_are_equal_bit_for_bit(fields: Fields, tuning: Fields, read_before: int) -> None:
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
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    one, two = ({key: t.tolist() for key, t in o.state_tensors().items()} for o in (optimizers, resumed))
    assert one == two
    # the loaded tensors are not modified: they may be memory-mapped
    assert kept == {name: tensor.tolist() for name, tensor in saved.items()}


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
    with refuses("checkpoint") as caught:
        Optimizers(spec_of(SPECS["adamw"]), model, CPU).load_state(state, 1, "here")
    assert key in str(caught.value)


ADAM: Fields = {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.2}
TORCH_ADAM: Fields = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2, "fused": True}
Make = Callable[[nn.Parameter], Any]
RULES: dict[str, tuple[Make, Make]] = {
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


def after_steps(make: Make, start: Tensor, gradients: list[Tensor]) -> Tensor:
    """A matrix after several steps of an optimizer with changing learning rates."""
    parameter = nn.Parameter(start.clone())
    optimizer = make(parameter)
    rate = optimizer.param_groups[0]["lr"]
    for multiplier, gradient in zip(MULTIPLIERS, gradients, strict=True):
        optimizer.param_groups[0]["lr"] = rate * multiplier
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
def test_the_bits_are_those_of_torch(rules: tuple[Make, Make]) -> None:
    start, *gradients = torch.randn(1 + len(MULTIPLIERS), 37, 11, generator=torch.Generator().manual_seed(0))
    assert torch.equal(*(after_steps(make, start, gradients) for make in rules))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 24), columns=st.integers(1, 24), scale=st.floats(1e-6, 1e6), seed=st.integers(0, 99))
def test_orthogonalised_matrices_have_their_singular_vectors_and_values_near_1(
    rows: int, columns: int, scale: float, seed: int
) -> None:
    """Against the same polynomial of exact singular values; bfloat16 has an error of about 0.01."""
    matrix = conditioned(rows, columns, 0.2, seed)
    found, zeros = orthogonalise(torch.stack([scale * matrix, torch.zeros(rows, columns)]))
    assert found.dtype == torch.float32
    assert not zeros.any()
    wanted = reference.orthogonalised(matrix.double().numpy())
    assert float(np.linalg.norm(found.double().numpy() - wanted)) < 0.05 * np.linalg.norm(wanted)
    singular = torch.linalg.svdvals(found)
    assert 0.65 < float(singular.min()) <= float(singular.max()) < 1.25


SETTINGS: Fields = {"lr": 0.02, "momentum": 0.95, "weight_decay": 0.3}


@pytest.mark.parametrize(("shape", "in_bfloat16"), [((6, 6), False), ((4, 9), True), ((12, 4), True)])
def test_muon_equals_the_plain_one(shape: tuple[int, int], in_bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch computes in bfloat16 on any processor."""
    monkeypatch.setattr("lmtool.training.updates.has_fast_bfloat16", lambda device: in_bfloat16)
    start, gradients = conditioned(*shape, 0.5, 50), gradients_like(shape, len(MULTIPLIERS))
    ours = after_steps(lambda p: MuonMatrices([{"params": [p]}], {p: [shape[0]]}, **SETTINGS), start, gradients)
    rates, as_arrays = [0.02 * share for share in MULTIPLIERS], [g.double().numpy() for g in gradients]
    wanted = reference.muon(start.double().numpy(), as_arrays, rates, 0.95, 0.3)
    moved = np.linalg.norm(wanted - start.double().numpy())
    assert np.linalg.norm(ours.double().numpy() - wanted) < 0.02 * moved
    theirs = after_steps(lambda p: torch.optim.Muon([p], **SETTINGS), start, gradients)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-3)


LAYERS: dict[str, Fields] = {
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


@of_each_kind
def test_scaled_gradients_give_the_same_step(fields: Fields) -> None:
    """The loss scale of float16 is a power of two, so it does not affect norm or weights."""
    results = []
    for compute in (CPU, HALF):
        model = gpt()
        optimizers = Optimizers(spec_of(fields), model, compute)
        for _ in range(3):
            learn_from_output(model, optimizers)
            norm = optimizers.clip_and_step(0.5, 0.25, 1.0)
        results.append((norm, [parameter.detach() for parameter in model.parameters()]))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-3, atol=1e-4)


def test_an_overflow_halves_the_scale_and_changes_no_weight() -> None:
    model = gpt()
    optimizers = Optimizers(spec_of(MUON), model, HALF)
    before = weights_of(model)
    scale = float(optimizers.state_tensors()["scaler/scale"])
    optimizers.backward(model.logits(model(Batch(tiny.tokens(2, 5))).hidden_BTD).sum() * 3e38)
    assert not math.isfinite(optimizers.clip_and_step(1.0, 1.0, 1.0))
    assert changed(model, before) == set()
    other = Optimizers(spec_of(MUON), gpt(), HALF)
    other.load_state(optimizers.state_tensors())
    assert float(other.state_tensors()["scaler/scale"]) == scale / 2


@pytest.mark.gpu
@of_each_kind
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_steps_on_a_gpu_equal_those_on_the_cpu(fields: Fields, precision: str) -> None:
    results = []
    for compute in (CPU, ExecutionContext(torch.device("cuda"), precision)):
        model = gpt().to(compute.device)
        optimizers = Optimizers(spec_of(fields), model, compute)
        for step in range(3):
            learn_from_output(model, optimizers, step, compute.device.type)
            optimizers.clip_and_step(0.5, 1.0, 1.0)
        again = Optimizers(spec_of(fields), model, compute)
        again.load_state({name: tensor.cpu() for name, tensor in optimizers.state_tensors().items()})
        learn_from_output(model, optimizers, device=compute.device.type)
        again.clip_and_step(0.5, 1.0, 1.0)
        results.append([parameter.detach().cpu() for parameter in model.parameters()])
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-3)


# Learning rates by layer


def depth_of(name: str) -> int:
    """In a decoder of two layers: embeddings, layers from the bottom up, head."""
    if name.startswith("inputs."):
        return 0
    if name.startswith("stack.sublayers."):
        return 1 + int(name.split(".")[2]) // 2
    return 2 if name.startswith("stack.norm") else 3


@pytest.mark.parametrize("tuning", [{"layer_decay": 0.6}, {"layer_decay": 0.6, "unfreeze_every": 2}])
@pytest.mark.parametrize("fields", SPECS.values(), ids=SPECS.keys())
def test_a_layer_learns_as_by_a_plain_optimizer_at_its_rate_from_its_first_step_on(
    fields: Fields, tuning: Fields
) -> None:
    """k layers below the head, the rate is d^k times the head's, and the first step is the one after 2 k."""
    model = gpt(torch.float64)
    optimizers = Optimizers(spec_of(fields), model, CPU, Tuning(**tuning))
    before = weights_of(model)
    steps, shares = drawn_gradients(model, 8), [*MULTIPLIERS, 0.5, 0.9]
    first = {name: tuning.get("unfreeze_every", 0) * (3 - depth_of(name)) for name in before}
    for number, (step, share) in enumerate(zip(steps, shares, strict=True)):
        norm = take_step(model, optimizers, step, share, number=number, limit=None)
        assert norm == norm_of({name: g for name, g in step.items() if number >= first[name]})
    for name, w in weights_of(model).items():
        rates = [share * tuning["layer_decay"] ** (3 - depth_of(name)) for share in shares]
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
    with refuses("checkpoint") as caught:
        fresh.load_state(state, 3)
    assert "/stack." in str(caught.value)


def test_an_optimizer_whose_layers_all_wait_does_nothing() -> None:
    """Muon's matrices are all in layers, which begin after the head."""
    model = gpt()
    optimizers = Optimizers(spec_of(MUON), model, HALF, Tuning(unfreeze_every=2))
    for number in range(3):
        before = weights_of(model)
        learn_from_output(model, optimizers)
        assert optimizers.clip_and_step(1.0, 1.0, None, number) > 0
        moved = changed(model, before)
        assert any("mixer" in name for name in moved) == (number == 2)
        assert "head.own" in moved
