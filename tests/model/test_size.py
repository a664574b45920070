"""Sizes without memory: equal to the built model and to those of papers, and refused when they cannot fit."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from lmtool.errors import RecipeError
from lmtool.model import LanguageModel, build
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
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.objective import ReplacedTokens
from lmtool.recipe.spec.recipe import Model, make_generator_spec
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile
from lmtool.recipe.spec.training import Lora
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging
from tests.recipe.strategies import recurrents, transformers
from tests.support import tiny
from tests.support.errors import refuses
from tests.support.examples import examples

GIGABYTE = 10**9
SPECS: dict[str, Model] = {name: tiny.any_spec(**tiny.FAMILIES[name]) for name in tiny.of_each_kind(tiny.FAMILIES)}
SPECS |= {
    name: spec.model_copy(update={"n_layers": 5})
    for name, spec in SPECS.items()
    if isinstance(spec, Transformer | Recurrent)
}
SPECS |= {
    "shared layers": tiny.spec(n_layers=5, share_layers=True),
    "a head of span boundaries": tiny.spec(shape="encoder", span_boundary_head=True),
    "mean of words": Averaging(kind="averaging", n_layers=0),
    "deep averages of pairs": Averaging(kind="averaging", d_model=7, n_layers=3, ngrams=2, buckets=11),
    "one-hot words": Averaging(kind="averaging", one_hot=True, n_layers=0, ngrams=3, buckets=9),
}


def assert_counted(spec: Model, model: LanguageModel) -> None:
    size = count_parameters(spec, model.vocab_size)
    assert size.parameters == sum(p.numel() for p in model.parameters())
    assert size.matrices == sum(p.numel() for p in find_layer_matrices_and_part_rows(model))


@settings(max_examples=examples(25, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(transformers() | recurrents())
def test_the_size_of_any_spec_is_that_of_the_built_model(spec: Model) -> None:
    assert_counted(spec, build(spec, vocab_size=50))


@pytest.mark.parametrize("name", SPECS)
def test_size_and_shapes_without_memory_are_those_of_the_built_model(name: str) -> None:
    model = build(SPECS[name], tiny.VOCAB)
    assert_counted(SPECS[name], model)
    outlined = build_on_meta(SPECS[name], tiny.VOCAB).state_dict()
    assert all(tensor.is_meta for tensor in outlined.values())
    assert {n: tensor.shape for n, tensor in outlined.items()} == {n: t.shape for n, t in model.state_dict().items()}


@pytest.mark.system
def test_building_on_meta_loads_no_compiler() -> None:
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


def training_bytes(recipe: str, *settings: str) -> int:
    return estimate_min_training_bytes(load(recipe, settings).recipe)


@pytest.mark.parametrize(
    ("optimizer", "bytes_per_parameter"),
    [("kind: adamw", 16), ("kind: sgd, lr: 1", 8), ("kind: sgd, lr: 1, momentum: 0.9", 12)],
)
def test_training_holds_weights_gradients_moments_and_activations(optimizer: str, bytes_per_parameter: int) -> None:
    activations = training_bytes("gpt2-124m", f"optimizer={{{optimizer}}}") - bytes_per_parameter * 124_439_808
    assert activations == 12 * 1024 * 34 * 768


def test_a_generator_is_trained_beside_its_discriminator() -> None:
    """Both have weights, gradients and moments; ELECTRA (Clark et al. 2020) discards the generator only afterwards."""
    recipe = load("electra-tiny").recipe
    assert isinstance(recipe.model, Transformer)
    assert isinstance(recipe.objective, ReplacedTokens)
    sizes = [count_parameters(of, 4096) for of in (recipe.model, make_generator_spec(recipe.model, recipe.objective))]
    adamw, muon, sgd = (
        training_bytes("electra-tiny", f"optimizer={{{kind}}}")
        for kind in ("kind: adamw", "kind: muon", "kind: sgd, lr: 1")
    )
    assert adamw - sgd == 8 * sum(size.parameters for size in sizes)
    assert adamw - muon == 4 * sum(size.matrices for size in sizes)


def test_rows_of_the_model_go_before_the_tokenizer() -> None:
    assert training_bytes("tiny", "model.vocab_size=5000") == training_bytes("tiny", "tokenizer.vocab_size=5000")


def test_activations_grow_with_the_micro_batch_and_nothing_else() -> None:
    one, two, four = (training_bytes("tiny", f"training.micro_batch={n}") for n in (1, 2, 4))
    assert four - two == 2 * (two - one) > 0


@pytest.mark.parametrize("tuning", ["tuning.lora.rank=8", "tuning.freeze=body"])
def test_what_stays_has_no_gradients_and_no_moments(tuning: str) -> None:
    """A body that is too large to be trained as a whole can have adapters or a head."""
    whole, part = (load("gpt2-1.5b", ["objective.kind=classification", *more]).recipe for more in ((), (tuning,)))
    weights = 4 * count_parameters(whole.model, 50257).parameters
    # moments are Adam's two, of everything
    saved = estimate_min_training_bytes(whole) - estimate_min_training_bytes(part)
    assert saved == pytest.approx(3 * weights, rel=0.01)
    with refuses("recipe"):
        check_training_fits_memory(whole, 16 * GIGABYTE)
    check_training_fits_memory(part, 16 * GIGABYTE)


def test_embeddings_that_stay_have_no_gradients_and_no_moments() -> None:
    whole, part = (training_bytes("gpt2-1.5b", f"tuning.freeze={freeze}") for freeze in ("none", "embeddings"))
    assert whole - part == 3 * 4 * 50257 * 1600


@pytest.mark.parametrize("keys", [{}, {"n_layers": 1}, {"share_layers": True}, {"shape": "encoder-decoder"}])
@pytest.mark.parametrize("lora", [Lora(rank=3), Lora(rank=2, targets=("output", "feed-forward"), quantize="int8")])
def test_adapters_are_counted_without_memory(keys: dict[str, Any], lora: Lora) -> None:
    spec = tiny.spec(**{"n_layers": 5, **keys})
    model = build(spec, tiny.VOCAB)
    add_adapters_and_freeze_(model, lora)
    assert count_adapter_parameters(spec, lora) == sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_adapters_have_gradients_and_moments() -> None:
    recipe = load("tiny", ["tuning.lora.rank=3", "optimizer.kind=adamw"]).recipe
    held = estimate_persistent_memory(recipe, 50)
    assert isinstance(recipe.model, Transformer)
    assert recipe.tuning.lora is not None
    n = count_adapter_parameters(recipe.model, recipe.tuning.lora)
    assert (held.gradients, held.moments) == (4 * n, 2 * 4 * n)


def test_a_refusal_names_the_line_of_the_largest_key() -> None:
    check_training_fits_memory(load("gpt2-124m").recipe, 4 * GIGABYTE)
    resolved = load("tiny", ["tokenizer.vocab_size=1000000000000"])
    with pytest.raises(RecipeError) as caught:
        check_training_fits_memory(resolved.recipe, 24 * GIGABYTE, key_origins=resolved.origins)
    n = count_parameters(resolved.recipe.model, 10**12).parameters
    (line,) = caught.value.lines()
    assert line.startswith("-s tokenizer.vocab_size=1000000000000: tokenizer.vocab_size: ")
    assert f"{n:,} parameters" in line


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.vocab_size", "1000000000000"),
        ("model.n_layers", "1000000000"),
        ("model.d_model", "1000000000000"),
        ("model.d_ff", "100000000000"),
        ("model.context", "10000000000"),
        ("model.position.size", "10000000000"),
        ("training.micro_batch", "1000000000"),
    ],
)
def test_the_key_that_matters_most_is_named(key: str, value: str) -> None:
    with pytest.raises(RecipeError, match=rf"^{key}: "):
        check_training_fits_memory(
            load("tiny", ["model.n_heads=1", "model.position.kind=learned", f"{key}={value}"]).recipe, 24 * GIGABYTE
        )


def test_a_vocabulary_that_only_the_text_gives_counts_when_it_is_known() -> None:
    check_training_fits_memory(load("shakespeare-char").recipe, GIGABYTE)
    with refuses("recipe"):
        check_training_fits_memory(load("shakespeare-char", ["model.vocab_size=1000000000"]).recipe, GIGABYTE)


PAPERS: dict[str, tuple[int, str]] = {
    "gpt1": (116_534_784, "checkpoint openai-gpt; 117M in Radford et al. 2019, table 2"),
    "gpt2-124m": (124_439_808, "checkpoint gpt2"),
    "gpt2-355m": (354_823_168, "checkpoint gpt2-medium; 345M in Radford et al. 2019, table 2, corrected later"),
    "gpt2-774m": (774_030_080, "checkpoint gpt2-large; 762M in the same table"),
    "gpt2-1.5b": (1_557_611_200, "checkpoint gpt2-xl; 1542M in the same table"),
    "bert-base": (110_106_428, "checkpoint bert-base-uncased with its heads; 110M in Devlin et al. 2019, section 3"),
    "bert-large": (336_226_108, "checkpoint bert-large-uncased with its heads; 340M in the same section"),
    "roberta-base": (124_697_433 - 3 * 768, "checkpoint roberta-base with its head, less 2 positions and a segment"),
    "t5-small": (60_506_624, "checkpoint t5-small; about 60 million in Raffel et al. 2020, section 3.7"),
    "prefix-lm": (109_628_544, "P of Raffel et al. 2020, section 3.2.2: half of 220 million"),
    "transformer-base": (63_082_496, "65 million in Vaswani et al. 2017, table 3"),
}
"""The sizes of models as their papers and checkpoints have them."""
DOCS = Path(__file__).parents[2] / "docs"
PAGE_OF = {"decoder": "transformer", "encoder": "objectives", "encoder-decoder": "transformer", "prefix": "transformer"}


def test_recipes_too_large_for_a_laptop_have_the_sizes_of_their_papers_and_name_them() -> None:
    large = set()
    for name, path in shipped_recipes().items():
        recipe = load(name).recipe
        if isinstance(recipe.tokenizer, CharTokenizer | TokenizerFile):
            continue
        size = count_parameters(recipe.model, recipe.model.vocab_size or recipe.tokenizer.vocab_size).parameters
        if size > 5e7:
            large.add(name)
            assert size == PAPERS[name][0], name
            assert f"{size:,}" in path.read_text(encoding="utf-8"), name
    assert large == set(PAPERS)


def test_the_page_of_a_shape_has_a_recipe_of_it_and_names_all_that_are_shipped(tmp_path: Path) -> None:
    """With sizes given in their papers."""
    pages = {shape: (DOCS / f"{page}.md").read_text(encoding="utf-8") for shape, page in PAGE_OF.items()}
    shapes = set()
    for block in re.findall(r"^```yaml\n(model:\n.*?)^```", "".join(pages.values()), flags=re.MULTILINE | re.DOTALL):
        (tmp_path / "page.yaml").write_text(f"{block}training: {{steps: 1, batch_size: 1}}\n", encoding="utf-8")
        shapes.add(getattr(load(tmp_path / "page.yaml").recipe.model, "shape", None))
    assert shapes >= pages.keys()
    for name in shipped_recipes():
        model = load(name).recipe.model
        if isinstance(model, Transformer):
            assert f"`{name}`" in pages[model.shape], name
            assert name not in PAPERS or f"{PAPERS[name][0]:,}" in pages[model.shape], name
