"""Sizes without memory: equal to the built model, and refused when they cannot fit."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from lmtool.errors import RecipeError
from lmtool.model import build
from lmtool.model.layers.attention import find_layer_matrices_and_part_rows
from lmtool.model.lora import add_adapters_and_freeze_
from lmtool.model.size import (
    build_on_meta,
    check_training_fits_memory,
    count_adapter_parameters,
    count_parameters,
    estimate_min_training_bytes,
    estimate_persistent_memory,
)
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Model, make_generator_spec
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.training import Lora
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging
from tests.recipe.strategies import recurrents, transformers
from tests.support import tiny
from tests.support.examples import examples

GIGABYTE = 10**9


def holds(spec: Model) -> None:
    """The size of a spec equals that of the built model."""
    model = build(spec, vocab_size=50)
    assert count_parameters(spec, vocab_size=50).parameters == sum(p.numel() for p in model.parameters())
    assert count_parameters(spec, vocab_size=50).matrices == sum(
        p.numel() for p in find_layer_matrices_and_part_rows(model)
    )


@settings(max_examples=examples(40, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(transformers() | recurrents())
def test_the_size_is_that_of_the_built_model(spec):
    holds(spec)


@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(tiny.FAMILIES))
def test_more_layers_are_counted_without_being_built(family):
    spec = tiny.any_spec(**tiny.FAMILIES[family])
    holds(spec.model_copy(update={"n_layers": 5}) if isinstance(spec, Transformer | Recurrent) else spec)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"n_layers": 0},
        {"d_model": 7, "n_layers": 3, "ngrams": 2, "buckets": 11},
        {"one_hot": True, "n_layers": 0, "ngrams": 3, "buckets": 9},
    ],
)
def test_the_size_of_averages_is_that_of_the_built_model(keys):
    holds(Averaging(kind="averaging", **keys))


@pytest.mark.parametrize("family", tiny.mark_all_but_kinds_nightly(tiny.FAMILIES))
def test_an_outline_has_the_shapes_of_the_model(family):
    spec = tiny.any_spec(**tiny.FAMILIES[family])
    outlined, built = (model.state_dict() for model in (build_on_meta(spec, tiny.VOCAB), build(spec, tiny.VOCAB)))
    assert {name: tensor.shape for name, tensor in outlined.items()} == {
        name: tensor.shape for name, tensor in built.items()
    }
    assert all(tensor.is_meta for tensor in outlined.values())


@pytest.mark.system
def test_building_on_meta_loads_no_compiler():
    """The compiler takes longest to import; torch imports it for random numbers on the meta device."""
    program = (
        "import sys\n"
        "from lmtool.model.size import build_on_meta\n"
        "from tests.support import tiny\n"
        "for family in tiny.FAMILIES.values():\n"
        "    build_on_meta(tiny.any_spec(**family), tiny.VOCAB)\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("kind: adamw", 16), ("kind: adam", 16), ("kind: sgd, lr: 1", 8), ("kind: sgd, lr: 1, momentum: 0.9", 12)],
)
def test_training_holds_weights_gradients_and_moments(optimizer, bytes_per_parameter):
    recipe = load("gpt2-124m", [f"optimizer={{{optimizer}}}"]).recipe
    activations = estimate_min_training_bytes(recipe) - bytes_per_parameter * 124_439_808
    assert activations == 12 * 1024 * 34 * 768


def test_a_generator_is_trained_beside_its_discriminator():
    """Both have weights, gradients and moments; ELECTRA (Clark et al. 2020) discards the generator only afterwards."""
    kinds = ("kind: adamw", "kind: muon", "kind: sgd, lr: 1")
    adamw, muon, sgd = (load("electra-tiny", [f"optimizer={{{kind}}}"]).recipe for kind in kinds)
    sizes = [
        count_parameters(model, 4096) for model in (adamw.model, make_generator_spec(adamw.model, adamw.objective))
    ]
    assert estimate_min_training_bytes(adamw) - estimate_min_training_bytes(sgd) == 8 * sum(
        size.parameters for size in sizes
    )
    assert estimate_min_training_bytes(adamw) - estimate_min_training_bytes(muon) == 4 * sum(
        size.matrices for size in sizes
    )


def test_rows_of_the_model_go_before_the_tokenizer():
    model, tokenizer = (load("tiny", [f"{part}.vocab_size=5000"]).recipe for part in ("model", "tokenizer"))
    assert estimate_min_training_bytes(model) == estimate_min_training_bytes(tokenizer)


def test_activations_grow_with_the_micro_batch_and_nothing_else():
    one, two, four = (
        estimate_min_training_bytes(load("tiny", [f"training.micro_batch={n}"]).recipe) for n in (1, 2, 4)
    )
    assert four - two == 2 * (two - one) > 0


@pytest.mark.parametrize("tuning", ["tuning.lora.rank=8", "tuning.freeze=body"])
def test_what_stays_has_no_gradients_and_no_moments(tuning):
    """A body that is too large to be trained as a whole can have adapters or a head."""
    overrides = ["objective.kind=classification"]
    whole, part = (load("gpt2-1.5b", [*overrides, *more]).recipe for more in ((), (tuning,)))
    weights = 4 * count_parameters(whole.model, 50257).parameters
    # moments are Adam's two, of everything
    assert estimate_min_training_bytes(whole) - estimate_min_training_bytes(part) == pytest.approx(
        3 * weights, rel=0.01
    )
    with pytest.raises(RecipeError):
        check_training_fits_memory(whole, 16 * GIGABYTE)
    check_training_fits_memory(part, 16 * GIGABYTE)


@pytest.mark.parametrize("keys", [{}, {"n_layers": 1}, {"share_layers": True}, {"shape": "encoder-decoder"}])
@pytest.mark.parametrize("lora", [Lora(rank=3), Lora(rank=2, targets=("output", "feed-forward"), quantize="int8")])
def test_adapters_are_counted_with_their_gradients_and_moments(keys: dict[str, Any], lora: Lora) -> None:
    spec = tiny.any_spec(**{"n_layers": 5, **keys})
    model = build(spec, tiny.VOCAB)
    add_adapters_and_freeze_(model, lora)
    n = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert count_adapter_parameters(spec, lora) == n
    resolved = load("tiny", [f"tuning.lora.rank={lora.rank}", "optimizer.kind=adamw"]).recipe
    held = estimate_persistent_memory(resolved, 50)
    assert (held.gradients, held.moments) == tuple(
        k * 4 * count_adapter_parameters(resolved.model, resolved.tuning.lora) for k in (1, 2)
    )


def test_embeddings_that_stay_have_no_gradients_and_no_moments():
    whole, part = (load("gpt2-1.5b", [f"tuning.freeze={freeze}"]).recipe for freeze in ("none", "embeddings"))
    assert estimate_min_training_bytes(whole) - estimate_min_training_bytes(part) == 3 * 4 * 50257 * 1600


def test_a_refusal_names_the_line_of_the_largest_key():
    check_training_fits_memory(load("gpt2-124m").recipe, 4 * GIGABYTE)
    resolved = load("tiny", ["tokenizer.vocab_size=1000000000000"])
    with pytest.raises(RecipeError) as caught:
        check_training_fits_memory(resolved.recipe, 24 * GIGABYTE, key_origins=resolved.origins)
    n = count_parameters(resolved.recipe.model, 10**12).parameters
    (line,) = caught.value.lines()
    assert line.startswith("-s tokenizer.vocab_size=1000000000000: tokenizer.vocab_size: ")
    assert f"{n:,} parameters" in line


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("model.vocab_size=1000000000000", "model.vocab_size"),
        ("model.n_layers=1000000000", "model.n_layers"),
        ("model.d_model=1000000000000", "model.d_model"),
        ("model.d_ff=100000000000", "model.d_ff"),
        ("model.context=10000000000", "model.context"),
        ("model.position={kind: learned, size: 10000000000}", "model.position.size"),
        ("training.micro_batch=1000000000", "training.micro_batch"),
    ],
)
def test_the_key_that_matters_most_is_named(override, key):
    recipe = load("tiny", ["model.n_heads=1", override]).recipe
    with pytest.raises(RecipeError, match=rf"^{key}: "):
        check_training_fits_memory(recipe, 24 * GIGABYTE)


def test_a_vocabulary_that_only_the_text_gives_counts_when_it_is_known():
    recipe = load("shakespeare-char").recipe
    check_training_fits_memory(recipe, GIGABYTE)
    with pytest.raises(RecipeError):
        check_training_fits_memory(load("shakespeare-char", ["model.vocab_size=1000000000"]).recipe, GIGABYTE)
