"""A run's recipe.yaml is for people: what the model is comes from its checkpoint."""

import json

import pytest

EDITS = {
    "model.n_heads": ("n_heads: 2", "n_heads: 4"),
    "model.activation": ("activation: swiglu", "activation: geglu"),
    "model.norm.eps": ("eps: 1.0e-05", "eps: 0.5"),
    "model.scale_head": ("scale_head: false", "scale_head: true"),
    "model.ffn_dropout": ("ffn_dropout: 0.0", "ffn_dropout: 0.5"),
    "seed": ("seed: 1", "seed: 2"),
    "objective.label_smoothing": ("label_smoothing: 0.0", "label_smoothing: 0.5"),
}


def edited(run, before, after):
    recipe = run / "recipe.yaml"
    text = recipe.read_text()
    assert before in text
    recipe.write_text(text.replace(before, after))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("key", EDITS)
def test_an_edited_recipe_is_not_believed(lmtool, run, corpus, key):
    edited(run, *EDITS[key])
    for command in (
        ("eval", run, corpus),
        ("generate", "the", "--run", run),
        ("resume", run),
        ("pretrain", corpus, "--from", run),
        ("attention", run, "a moon"),
    ):
        code = 2 if command[0] == "resume" else 4  # there the recipe is a request
        lmtool.refuses(code, *command, words=[key, str(run / "recipe.yaml")])


def test_what_a_resumed_run_may_change_may_be_edited(lmtool, run, corpus):
    edited(run, "keep_last: 3", "keep_last: 2")
    lmtool.succeeds("eval", run, corpus)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("damage", ["missing", "cut", "binary", "other", "key"])
def test_a_run_works_without_its_recipe(lmtool, run, corpus, damage):
    before = json.loads(lmtool.succeeds("eval", run, corpus, "--json").out)
    recipe = run / "recipe.yaml"
    match damage:
        case "missing":
            recipe.unlink()
        case "cut":
            recipe.write_text(recipe.read_text()[:100])
        case "binary":
            recipe.write_bytes(bytes(range(256)))
        case "other":
            recipe.write_text("root:x:0:0")
        case "key":
            recipe.write_text(recipe.read_text() + "unknown: 1\n")
    told = "missing" if damage == "missing" else "damaged"
    done = lmtool.succeeds("eval", run, corpus, "--json")
    assert json.loads(done.out) == before
    assert f"recipe.yaml of {run.name} is {told}" in done.err
    done = lmtool.succeeds("generate", "the", "--run", run, "--max-new-tokens", "3")
    assert told in done.err
    done = lmtool.succeeds("resume", run, "-s", "training.steps=+2", "-s", "evaluation.baseline=false")
    assert told in done.err
    # it is written anew
    assert "recipe.yaml" not in lmtool.succeeds("eval", run, corpus).err
    assert "steps: 8" in recipe.read_text()
