"""Recipes of papers have the papers' sizes: by arithmetic, as built, and as Transformers or torch build them."""

from typing import Any

import pytest
import torch
from torch import nn

from lmtool.model import build
from lmtool.model.size import count_parameters
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile
from tests.support.cases import nightly_but
from tests.support.papers import PAPERS, WIDTH


def rows_of(recipe: Recipe) -> int:
    assert not isinstance(recipe.tokenizer, CharTokenizer | TokenizerFile)
    return recipe.model.vocab_size or recipe.tokenizer.vocab_size


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", nightly_but(PAPERS, "gpt1", "gpt2-355m", "bert-base", "t5-small"))
def test_a_recipe_of_a_paper_has_its_size(name: str) -> None:
    recipe = load(name).recipe
    wanted, _ = PAPERS[name]
    assert count_parameters(recipe.model, rows_of(recipe)).parameters == wanted
    with torch.device("meta"):
        assert count(build(recipe.model, rows_of(recipe))) == wanted


@pytest.mark.parametrize("name", PAPERS)
def test_a_recipe_names_its_size(name: str) -> None:
    text = shipped_recipes()[name].read_text(encoding="utf-8")
    assert f"{PAPERS[name][0]:,}" in text


def test_every_recipe_of_a_paper_is_here() -> None:
    """Those too large for a laptop."""
    recipes = {name: load(name).recipe for name in shipped_recipes()}
    large = {
        name
        for name, recipe in recipes.items()
        if not isinstance(recipe.tokenizer, CharTokenizer)
        and count_parameters(recipe.model, rows_of(recipe)).parameters > 5e7
    }
    assert large == set(PAPERS)


def built_elsewhere() -> dict[str, Any]:
    """The classes and configurations that the published checkpoints are loaded with."""
    import transformers as hf

    bert_large = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    roberta = {"vocab_size": 50265, "max_position_embeddings": 514, "type_vocab_size": 1}
    t5: dict[str, Any] = {"vocab_size": 32128, "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
    return {
        "gpt1": (hf.OpenAIGPTLMHeadModel, hf.OpenAIGPTConfig()),
        "gpt2-124m": (hf.GPT2LMHeadModel, hf.GPT2Config()),
        "gpt2-355m": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1024, n_layer=24, n_head=16)),
        "gpt2-774m": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1280, n_layer=36, n_head=20)),
        "gpt2-1.5b": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
        "bert-base": (hf.BertForPreTraining, hf.BertConfig()),
        "bert-large": (hf.BertForPreTraining, hf.BertConfig(**bert_large)),
        "roberta-base": (hf.RobertaForMaskedLM, hf.RobertaConfig(**roberta)),
        "t5-small": (hf.T5ForConditionalGeneration, hf.T5Config(**t5)),
    }


@pytest.mark.parametrize(
    "name", nightly_but([name for name in PAPERS if name not in ("prefix-lm", "transformer-base")], "gpt1", "gpt2-1.5b")
)
def test_transformers_builds_the_same_size(name: str) -> None:
    kind, config = built_elsewhere()[name]
    with torch.device("meta"):
        theirs = count(kind(config))
    assert theirs - (3 * WIDTH if name == "roberta-base" else 0) == PAPERS[name][0]


def test_torch_builds_the_layers_of_2017_alike() -> None:
    with torch.device("meta"):
        layers = [nn.TransformerEncoderLayer(512, 8, 2048), nn.TransformerDecoderLayer(512, 8, 2048)]
    assert PAPERS["transformer-base"][0] == 37_000 * 512 + 6 * sum(count(layer) for layer in layers)
