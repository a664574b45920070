"""The rules by which fine-tuning chooses rate, passes, warm-up and validations."""

from typing import Any

import pytest

from lmtool.errors import RecipeError, UsageError
from lmtool.recipe.finetuning import (
    MAX_ROWS_OF_CLASS,
    ParentRun,
    TableProperties,
    choose_epochs,
    make_table_recipe,
)
from lmtool.recipe.load import load, parse_settings
from lmtool.recipe.resolve import resolve
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.training import AdamW, Lbfgs, Tuning


def base(width: int = 128, *settings: str) -> Recipe:
    return load("tiny", [f"model.d_model={width}", *settings]).recipe


def chosen(
    n_rows: int, *settings: str, source: Recipe | None = None, published: bool = True, writes: bool = False
) -> Any:
    """The recipe for a table, with a person's settings, as `lmtool finetune` resolves it."""
    parent = ParentRun(source or base(), "run", published)
    return resolve(None, parse_settings(settings), TableProperties(n_rows, writes), parent).recipe


def rate(recipe: Any) -> float:
    return float(recipe.optimizer.lr)


@pytest.mark.parametrize("published", [True, False])
def test_small_tables_are_read_often_and_large_ones_seldom(published: bool) -> None:
    counts = [choose_epochs(n, published) for n in (1, 100, 500, 1_000, 3_000, 5_000, 7_000, 40_000, 60_000, 10**7)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 20
    assert counts[-1] == (1 if published else 2)
    for n in (1_000, 2_000, 3_000):
        assert choose_epochs(n, published) * n / 32 >= 300
    for n in (3_200, 5_000, 7_000, 60_000):
        assert choose_epochs(n, False) == 2 * choose_epochs(n, True), "weights trained here learn for longer"


def test_rates_of_published_models_fall_with_their_width() -> None:
    rates = {width: rate(chosen(5_000, source=base(width))) for width in (128, 384, 768)}
    assert rates[128] == pytest.approx(3 * rates[384], rel=0.02)
    assert rates[768] == pytest.approx(rates[384] / 2, rel=0.02)
    # of BERT-base: Devlin et al. 2019 advise 2e-5 to 5e-5, Turc et al. 2019 up to 3e-4 for small ones
    assert 2e-5 <= rates[768] <= 5e-5


def test_a_penalty_is_that_of_a_head_that_is_fitted() -> None:
    """The optimizer follows from --freeze body, so nobody has to name it."""
    fitted = chosen(6_000, "tuning.freeze=body", "optimizer.l2=0.5")
    assert fitted.optimizer == Lbfgs(kind="lbfgs", l2=0.5)
    encoder = base(128, "model.shape=encoder", "objective={kind: masked}")
    assert chosen(6_000, "tuning.freeze=body", "optimizer.l2=2", source=encoder).optimizer.l2 == 2
    for settings, advice in ([], "--freeze body"), (["tuning.freeze=body", "training.epochs=3"], "training.epochs"):
        with pytest.raises(UsageError) as refused:
            chosen(6_000, "optimizer.l2=2", "optimizer.l2=0.5", *settings)
        assert refused.value.where == "-s optimizer.l2=0.5"
        assert advice in refused.value.fix
    # the last of two counts, and a run that is fitted anyway has its own optimizer
    assert chosen(6_000, "optimizer.l2=2", "optimizer.l2=0.5", "tuning.freeze=body") == fitted
    assert chosen(6_000, "optimizer.l2=0.5", source=load("linear").recipe).optimizer.l2 == 0.5
    with pytest.raises(RecipeError, match=r"optimizer\.l2"):
        chosen(6_000, "optimizer.l2=0.5", "optimizer.kind=adamw")


def test_what_is_chosen_decides_the_rest() -> None:
    usual = chosen(6_000)
    assert usual.tuning == Tuning()
    # a tenth is held out
    assert usual.schedule.warmup_steps == 51
    assert usual.evaluation.every == usual.checkpoint.every == 5_400 // 32
    long = chosen(6_000, "training.epochs=10", "training.batch_size=8", "data.valid=[other.csv]")
    assert (long.schedule.warmup_steps, long.evaluation.every) == (750, 500)
    assert chosen(6_000, "training.epochs=null", "training.steps=40").schedule.warmup_steps == 4
    by_steps = chosen(6_000, "tuning.freeze=body", "training.epochs=3")
    assert rate(chosen(6_000, "tuning.lora.rank=4")) == rate(by_steps) > rate(usual)
    assert isinstance(chosen(6_000, "tuning.freeze=body").optimizer, Lbfgs)
    assert rate(chosen(6_000, "tuning.lora.rank=4", "optimizer.lr=0.5")) == 0.5
    assert chosen(6_000, "schedule.warmup_steps=7", "evaluation.every=9").schedule.warmup_steps == 7


def test_an_embedding_model_keeps_its_pooling() -> None:
    source = load("bert-tiny", ["objective={kind: embedding, pool: max}"]).recipe
    objective = chosen(600, source=source).objective
    assert (objective.pool, objective.dense) == ("max", "none")


@pytest.mark.parametrize("layers", ["last", "mix", "mix-hidden"])
def test_any_layers_of_an_elmo_are_fitted_alike(layers: str) -> None:
    """So that they can be compared."""
    source = load("elmo-tiny").recipe
    assert chosen(600, source=source).objective.layers == "mix"
    assert isinstance(chosen(600, f"objective.layers={layers}", source=source).optimizer, Lbfgs)
    assert isinstance(chosen(600, f"objective.layers={layers}", "training.epochs=3", source=source).optimizer, AdamW)


def test_an_averaging_model_is_trained_as_it_was() -> None:
    source = load("dan", ["optimizer.lr=0.123", "training.epochs=7", "training.batch_size=10"]).recipe
    recipe = chosen(600, source=source, published=False)
    assert recipe.optimizer == source.optimizer
    assert recipe.schedule == source.schedule
    assert (recipe.training.epochs, recipe.training.batch_size) == (7, 10)
    assert recipe.evaluation.every == 54


@pytest.mark.parametrize("published", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_few_rows_are_learnt(published: bool, writes: bool) -> None:
    """All of them are trained on, for enough steps; of more rows some are held out. Of few labels nothing is chosen."""
    for n_rows in (1, 20, 100, 250, 499):
        few = chosen(n_rows, published=published, writes=writes)
        assert few.data.valid_fraction == 0
        assert few.training.epochs * n_rows >= 8 * (300 if published else 600)
        assert few.training.batch_size == (8 if writes else 16)
        if not writes:
            assert few.evaluation.patience is None
            assert few.evaluation.every >= few.training.epochs * n_rows / few.training.batch_size
    assert chosen(500, published=published, writes=writes).data.valid_fraction == 0.1
    assert chosen(500, published=published, writes=writes).evaluation.patience == 5
    assert chosen(500, published=published, writes=writes).training.epochs == choose_epochs(500, published)
    counts = [chosen(n, published=published, writes=writes).training.epochs for n in (1, 20, 100, 250, 499, 500, 4000)]
    assert counts == sorted(counts, reverse=True)
    held = chosen(100, "data.valid_fraction=0.2", published=published, writes=writes)
    assert (held.data.valid_fraction, held.evaluation.every) == (0.2, 10 if writes else held.training.epochs * 80 / 16)
    many = chosen(400, "data.valid_fraction=0.2", published=published, writes=writes)
    assert (many.evaluation.patience, many.evaluation.every) == (5, 320 // many.training.batch_size)


@pytest.mark.parametrize(("per_class", "published"), [(1, True), (8, False), (MAX_ROWS_OF_CLASS, True)])
def test_few_rows_of_a_class_are_contrasted(per_class: int, published: bool) -> None:
    n_rows = 3 * per_class
    shape = TableProperties(n_rows, per_class=per_class)
    encoder = ParentRun(load("bert-tiny").recipe, "run", published)

    def contrasts(*settings: str, parent: ParentRun = encoder, shape: TableProperties = shape) -> bool:
        head: Any = resolve(None, parse_settings(settings), shape, parent).recipe.objective
        return bool(head.contrastive)

    assert contrasts()
    assert contrasts("optimizer.lr=1e-4")
    assert contrasts("evaluation.baseline=false")
    assert contrasts("objective.task=class", "objective.kind=classification")
    assert not contrasts("objective.task=multi")
    recipe = resolve(None, [], shape, encoder).recipe
    assert recipe.data.valid_fraction == 0.0
    assert recipe.training.batch_size == min(64, n_rows)
    assert recipe.evaluation.every == recipe.training.steps
    usual = resolve(None, parse_settings(["objective.contrastive=false"]), shape, encoder).recipe
    assert rate(recipe) == pytest.approx(rate(usual) / 2, rel=0.05)
    # what is named comes first, and others have no such rule
    assert not contrasts("objective.contrastive=false")
    assert not contrasts("objective.class_weights=balanced")
    assert not contrasts("evaluation.metric=loss")
    assert not contrasts(parent=ParentRun(base(), "run", published))
    assert not contrasts(shape=TableProperties(3 * MAX_ROWS_OF_CLASS + 3, per_class=MAX_ROWS_OF_CLASS + 1))
    assert not contrasts(shape=TableProperties(n_rows))
    assert contrasts("objective.contrastive=true", parent=ParentRun(base(), "run", published))
    assert isinstance(resolve(None, parse_settings(["tuning.freeze=body"]), shape, encoder).recipe.optimizer, Lbfgs)


@pytest.mark.parametrize(
    ("shape", "objective", "pool"),
    [
        ("encoder", "masked", "mean"),
        ("encoder", "classification", "auto"),
        ("encoder", "embedding", "mean"),
        ("decoder", "causal", "auto"),
    ],
)
def test_a_head_alone_reads_what_its_body_was_trained_to_give(shape: str, objective: str, pool: str) -> None:
    """Auto is [CLS] of an encoder, the last state of a decoder."""
    model = {"kind": "transformer", "shape": shape, "n_layers": 1, "d_model": 16, "n_heads": 2, "context": 16}
    labels = {"labels": ["a", "b"], "task": "class"} if objective == "classification" else {}
    rest = {"tokenizer": {"kind": "char"}, "training": {"steps": 1, "batch_size": 1}}
    source = Recipe.model_validate({"model": model, "objective": {"kind": objective, **labels}, **rest})
    head = chosen(100, "tuning.freeze=body", source=source)
    assert (head.objective.pool, head.objective.dense, head.optimizer.kind) == (pool, "none", "lbfgs")


@pytest.mark.parametrize(
    ("width", "layers", "wanted"),
    # a gigabyte of 12 x (18 x 768 + 4 x 3072) = 313,344 bytes for each position
    [(768, 12, 3191), (384, 6, 8192)],
    ids=["BERT-base", "MiniLM"],
)
def test_micro_batches_of_large_models_are_small(width: int, layers: int, wanted: int) -> None:
    sizes = [f"model.d_model={width}", f"model.n_layers={layers}", "model.n_heads=12", "model.context=128"]
    source = load("bert-tiny", [*sizes, "objective={kind: classification}"]).recipe
    assert make_table_recipe(ParentRun(source, "run"), TableProperties(1000)).training.micro_tokens == wanted
