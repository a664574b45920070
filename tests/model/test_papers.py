"""Recipes of papers have the papers' sizes, which their files and pages name."""

import re
from pathlib import Path

from lmtool.model.size import count_parameters
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.text import CharTokenizer, TokenizerFile
from lmtool.recipe.spec.transformer import Transformer
from tests.support.papers import PAPERS

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
