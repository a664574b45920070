"""Values of keys as they are typed, and their combinations."""

import pytest

from lmtool.apps.sweeping import grid
from lmtool.recipe.load import load
from tests.support.errors import refuses


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("optimizer.lr=1e-4,1e-3", ["0.0001", "0.001"]),
        ("model.n_layers=2..5", ["2", "3", "4", "5"]),
        ("optimizer.lr=1e-4..1e-2/3", ["0.0001", "0.001", "0.01"]),
        ("model.n_layers=1,4..6", ["1", "4", "5", "6"]),
        ("schedule.kind=cosine, linear", ["cosine", "linear"]),
        ("data.text_columns=[a,b],[c]", ['["a", "b"]', '["c"]']),
        ("schedule={kind: cosine, warmup_steps: 3},3", ['{"kind": "cosine", "warmup_steps": 3}', "3"]),
        ("evaluation.prompts='One, two','2..6'", ["One, two", "2", "3", "4", "5", "6"]),
        ("model.bias=true,false,true", ["true", "false"]),
        ("training.epochs=null,3", ["null", "3"]),
    ],
)
def test_several_values_are_an_axis(typed: str, values: list[str]) -> None:
    assert grid.parse_fixed_and_swept_settings([typed]) == ([], {typed.partition("=")[0]: values})


@pytest.mark.parametrize(
    "typed",
    [
        "optimizer.lr=1e-4",
        "data.text_columns=[a,b]",
        "model.position={kind: rotary}",
        "training.steps=+5",
        "a",
        "x=[1,",
    ],
)
def test_one_value_is_left_as_it_is(typed: str) -> None:
    assert grid.parse_fixed_and_swept_settings([typed]) == ([typed], {})


@pytest.mark.parametrize("value", ["6..2", "0.1..0.4", "0..1/3", "1..2/1", "1..9999", "1..2/2000", "-1..4/3", "1e..2"])
def test_a_range_without_values_is_refused(value: str) -> None:
    with refuses("usage") as refused:
        grid.parse_fixed_and_swept_settings([f"optimizer.lr={value}"])
    assert f"optimizer.lr={value}" in refused.value.where


def test_one_key_at_a_time_leaves_all_others_at_their_first_value() -> None:
    axes = {"a": ["1", "2", "3"], "b": ["x", "y"]}
    changed = [{"a": "1", "b": "x"}, {"a": "2", "b": "x"}, {"a": "3", "b": "x"}, {"a": "1", "b": "y"}]
    assert grid.list_one_at_a_time_points(axes, []) == changed
    of_seeds = [{"seed": seed, **point} for seed in "78" for point in changed]
    assert grid.list_one_at_a_time_points(axes, ["7", "8"]) == of_seeds
    with refuses("usage"):
        grid.list_one_at_a_time_points({"a": ["1"] * grid.MAX_SWEEP_RUNS}, ["1", "2"])


def test_every_combination_is_a_run_with_a_name() -> None:
    choices = grid.list_grid_points({"seed": ["1", "2"], "optimizer.lr": ["0.1", "0.2"], "model.bias": ["true"]})
    assert [choice["seed"] for choice in choices] == ["1", "1", "2", "2"]
    assert [grid.name_grid_point(choice) for choice in choices][:2] == [
        "seed=1,lr=0.1,bias=true",
        "seed=1,lr=0.2,bias=true",
    ]
    with refuses("usage"):
        grid.list_grid_points({"a": ["1"] * 100, "b": ["1"] * (grid.MAX_SWEEP_RUNS // 100 + 1)})


def test_names_differ_where_values_do() -> None:
    values = ["[a]", "{a}", "a b", "a  b", "x" * 200, "x" * 201, "é", "../up"]
    names = [grid.name_grid_point({"evaluation.prompts": value}) for value in values]
    assert len(set(names)) == len(values)
    assert not any("/" in name for name in names)
    assert grid.name_grid_point({"model.lr": "1", "optimizer.lr": "2"}) == "model.lr=1,optimizer.lr=2"
    assert grid.name_grid_point({}) == "default"


@pytest.mark.parametrize(
    ("recipe", "is_tuning", "keys"),
    [
        ("tiny", False, ["optimizer.lr", "model.dropout"]),
        ("dan", False, ["optimizer.lr", "model.word_dropout"]),
        ("softmax", False, ["optimizer.lr", "optimizer.weight_decay"]),
        ("linear", False, ["optimizer.l2"]),
        ("tiny", True, ["optimizer.lr", "training.epochs"]),
    ],
)
def test_the_usual_search_begins_with_the_values_of_the_recipe(recipe: str, is_tuning: bool, keys: list[str]) -> None:
    fixed = ["training.epochs=4"] if is_tuning else []
    base = load(recipe, fixed).recipe
    axes = grid.default_axes(base, is_tuning)
    assert [*axes] == keys
    points = [[f"{key}={value}" for key, value in choice.items()] for choice in grid.list_grid_points(axes)]
    assert len(points) == (9 if len(keys) > 1 else 5)
    first, *others = [load(recipe, [*fixed, *point]).recipe for point in points]
    assert first == base
    assert base not in others
