"""Recipes of papers have the papers' sizes: by arithmetic, as built, and in the words of their files."""

import pytest
import torch
from torch import nn

from lmtool.model import build
from lmtool.model.size import count_parameters
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile
from tests.support.cases import nightly_but
from tests.support.papers import PAPERS


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
