"""A run's recipe.yaml is for people: what the model is comes from its checkpoint."""

from pathlib import Path

import pytest

from tests.support.cli import CommandLine


@pytest.mark.parametrize(
    ("key", "old", "new"),
    [
        ("model.n_heads", "n_heads: 2", "n_heads: 4"),
        ("model.norm.eps", "eps: 1.0e-05", "eps: 0.5"),
        ("objective.label_smoothing", "label_smoothing: 0.0", "label_smoothing: 0.5"),
    ],
)
def test_an_edited_recipe_is_not_believed(
    lmtool: CommandLine, run: Path, corpus: Path, key: str, old: str, new: str
) -> None:
    """But for what a resumed run may change, for which the recipe is a request."""
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("keep_last: 3", "keep_last: 2"))
    lmtool.succeeds("generate", "the", "--run", run, "--max-new-tokens", "1")
    recipe.write_text(recipe.read_text().replace(old, new))
    for command in (("generate", "the", "--run", run), ("pretrain", corpus, "--from", run), ("attention", run, "a")):
        lmtool.refuses(4, *command, words=[key, recipe])
    lmtool.refuses(2, "resume", run, words=[key, recipe])


@pytest.mark.parametrize("damage", [None, b"model:", bytes(range(256))])
def test_a_run_works_without_its_recipe(lmtool: CommandLine, run: Path, corpus: Path, damage: bytes | None) -> None:
    """Each command warns; a session writes it anew."""
    before = lmtool.succeeds("eval", run, corpus, "--json").json()
    recipe = run / "recipe.yaml"
    recipe.unlink()
    if damage is not None:
        recipe.write_bytes(damage)
    done = lmtool.succeeds("eval", run, corpus, "--json")
    assert done.json() == before
    told = "missing" if damage is None else "damaged"
    assert f"recipe.yaml of {run.name} is {told}" in done.err
    assert told in lmtool.succeeds("resume", run, "-s", "training.steps=+2").err
    assert "recipe.yaml" not in lmtool.succeeds("eval", run, corpus).err
    assert "steps: 8" in recipe.read_text()
