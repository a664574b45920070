"""A run's recipe.yaml is for people: what the model is comes from its checkpoint."""

from pathlib import Path

import pytest

from tests.support.cli import CommandLine

EDITS = {
    "model.n_heads": ("n_heads: 2", "n_heads: 4"),
    "model.norm.eps": ("eps: 1.0e-05", "eps: 0.5"),
    "objective.label_smoothing": ("label_smoothing: 0.0", "label_smoothing: 0.5"),
}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_recipe_is_not_believed(lmtool: CommandLine, run: Path, corpus: Path, key: str) -> None:
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(*EDITS[key]))
    for command in (
        ("eval", run, corpus),
        ("generate", "the", "--run", run),
        ("resume", run),
        ("pretrain", corpus, "--from", run),
        ("attention", run, "a moon"),
    ):
        code = 2 if command[0] == "resume" else 4  # there the recipe is a request
        lmtool.refuses(code, *command, words=[key, recipe])


def test_what_a_resumed_run_may_change_may_be_edited(lmtool: CommandLine, run: Path, corpus: Path) -> None:
    recipe = run / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("keep_last: 3", "keep_last: 2"))
    lmtool.succeeds("eval", run, corpus)


@pytest.mark.parametrize("damage", [None, b"model:", bytes(range(256)), b"root:x:0:0", b"unknown: 1\n"])
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
    more = ("-s", "training.steps=+2", "-s", "evaluation.baseline=false")
    assert told in lmtool.succeeds("resume", run, *more).err
    assert "recipe.yaml" not in lmtool.succeeds("eval", run, corpus).err
    assert "steps: 8" in recipe.read_text()
