"""`lmtool pretrain --from`: what is taken from the base run, and what from the recipe."""

import pytest

from lmtool.recipe.load import load
from tests.cli.conftest import SMALL, contents

SHORT = ["-s", "training.steps=2", "-s", "evaluation.tokens=200", "-s", "training.precision=float32", "-q"]

GRU = ["-s", "training.carry_state=false"]


@pytest.fixture
def other(home):
    path = home / "other.txt"
    path.write_text("\n".join(f"The sailor sold {i} maps at dawn." for i in range(200)), encoding="utf-8")
    return path


def continued(lmtool, *arguments):
    run = lmtool.succeeds("pretrain", *arguments).out.strip()
    return load(f"{run}/recipe.yaml").recipe


@pytest.mark.parametrize("named", ["tiny", "shakespeare-char"])
def test_all_but_the_model_is_that_of_the_recipe_that_is_named(lmtool, run, other, named):
    """Also where that is the default one."""
    base, recipe = load(run / "recipe.yaml").recipe, load(named).recipe
    found = continued(lmtool, other, "--from", run, "--recipe", named, *SHORT)
    assert found.model == base.model
    assert found.tokenizer == base.tokenizer
    assert (found.optimizer, found.schedule) == (recipe.optimizer, recipe.schedule)
    assert found.training.batch_size == recipe.training.batch_size != base.training.batch_size
    assert found.evaluation.every == recipe.evaluation.every != base.evaluation.every
    assert found.checkpoint == recipe.checkpoint


def test_without_a_recipe_all_is_that_of_the_run(lmtool, run, other):
    base = load(run / "recipe.yaml").recipe
    found = continued(lmtool, other, "--from", run, "-q")
    assert found.model_dump(exclude={"data"}) == base.model_dump(exclude={"data"})
    assert found.data.train == (str(other),)


def test_what_is_added_is_added_once(lmtool, run, other):
    found = continued(lmtool, other, "--from", run, "-r", "tiny", *SHORT, "-s", "evaluation.every=+7")
    assert found.evaluation.every == load("tiny").recipe.evaluation.every + 7
    found = continued(lmtool, other, "--from", run, *SHORT, "-s", "evaluation.every=+7")
    assert found.evaluation.every == load(run / "recipe.yaml").recipe.evaluation.every + 7


def test_the_model_of_the_run_need_not_fit_the_recipe(lmtool, run, other):
    """Overrides of the model apply to that of the run."""
    found = continued(lmtool, other, "--from", run, "-r", "gru", *SHORT, *GRU, "-s", "model.n_heads=4")
    assert (found.model.kind, found.model.n_heads) == ("transformer", 4)


def test_the_run_stays_as_it_was(lmtool, run, other):
    before = contents(run)
    continued(lmtool, other, "--from", run, *SMALL, "-q")
    assert contents(run) == before


def test_a_second_phase_has_longer_rows(lmtool, run, other):
    """As BERT's: the weights of the first phase, in a longer context. A table of learned positions has all rows."""
    learned = ["-s", "model.position={kind: learned, size: 32}", "-q"]
    for base in (run, lmtool.succeeds("pretrain", other, *SMALL, *learned).out.strip()):
        model = load(f"{base}/recipe.yaml").recipe.model
        found = continued(lmtool, other, "--from", base, *SHORT, "-s", "model.context=32")
        assert found.model == model.model_copy(update={"context": 32}) != model


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("model.context=32", ("end at 16", "16 more", "model.position.size=32")),
        ("model.context=8", ("16 learned positions", "model.position.size=16")),
        ("model.position.size=64", ("end at 16", "model.context=16")),
    ],
)
def test_learned_positions_of_another_number_are_refused(lmtool, other, setting, said):
    """The run is not damaged: what is told is where its positions end, and what to set."""
    learned = ["-s", "model.position={kind: learned}", "-s", "model.context=16", "-q"]
    base = lmtool.succeeds("pretrain", other, *SMALL, *learned).out.strip()
    lmtool.refuses(2, "pretrain", other, "--from", base, *SHORT, "-s", setting, words=said)


def test_a_shorter_context_reads_the_beginning_of_learned_positions(lmtool, other):
    learned = ["-s", "model.position={kind: learned}", "-s", "model.context=16", "-q"]
    base = lmtool.succeeds("pretrain", other, *SMALL, *learned).out.strip()
    found = continued(lmtool, other, "--from", base, *SHORT, "-s", "model.context=8", "-s", "model.position.size=16")
    assert (found.model.context, found.model.position.size) == (8, 16)
