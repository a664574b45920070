"""Finding recipes, command-line overrides, and origins of values."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmtool.errors import RecipeError, UsageError
from lmtool.recipe.dump import iterate_values
from lmtool.recipe.grammar import iterate_dotted_keys, specs_by_kind
from lmtool.recipe.load import (
    MAX_RECIPE_BYTES,
    Setting,
    find_recipe,
    load,
    load_run_recipe,
    parse_settings,
    shipped_recipes,
)
from lmtool.recipe.spec.base import Spec
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import WordPieceTokenizer
from lmtool.recipe.spec.training import Linear, Sgd
from tests.recipe.reading import RECIPE, covering, mistakes, value
from tests.support.errors import refuses
from tests.support.examples import examples


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return "mine.yaml"


def test_a_recipe_is_found_by_path_and_by_name(file: str, tmp_path: Path) -> None:
    """A shipped name goes before a file of that name; a byte order mark is no mistake."""
    assert (load(file).recipe.description, load(file).name) == ("test", "mine")
    assert find_recipe("tiny") == shipped_recipes()["tiny"]
    (tmp_path / "tiny").write_text(RECIPE, encoding="utf-8-sig")
    assert load("tiny").recipe.description != "test"
    assert load("./tiny").recipe.description == "test"
    with refuses("usage"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tinny", "did you mean tiny"),
        ("mone.yaml", "did you mean mine.yaml"),
        ("nowhere/gpt-2.yaml", "did you mean gpt"),
        ("z" * 1000, ""),
    ],
)
def test_a_recipe_that_is_not_there_gives_the_nearest_names(file: str, name: str, nearest: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(name)
    assert str(caught.value.fix).startswith(nearest)
    assert len(caught.value.lines()) == 3


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"# only words\n", "x.yaml"),
        (b"- a\n", "x.yaml"),
        (b"root:x:0:0:root:/root\ndaemon:x:1:1\n", "x.yaml"),
        (b"description: caf\xe9\n", "x.yaml: byte 16"),
        (b"a: [1\n", "x.yaml:1:4"),
        (b"\n" * (MAX_RECIPE_BYTES + 1), "x.yaml"),
    ],
)
def test_a_file_that_is_no_recipe_is_refused_without_its_content(file: str, content: bytes, place: str) -> None:
    """Which may be where a link leads to."""
    Path("elsewhere").write_bytes(content)
    Path("x.yaml").symlink_to("elsewhere")
    (line,) = mistakes("x.yaml")
    assert line.startswith(place)
    assert "root" not in line


def test_very_many_mistakes_are_counted(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They took milliseconds each, for the nearest known key."""
    Path("x.yaml").write_text(RECIPE + "".join(f"key{i}: 1\n" for i in range(2000)))
    closest = Mock(return_value=[])
    monkeypatch.setattr("lmtool.recipe.grammar.get_close_matches", closest)
    with pytest.raises(RecipeError) as caught:
        load("x.yaml")
    assert len(caught.value.mistakes) == 2000
    assert caught.value.lines()[2:] == ["and 1,998 more mistakes: is this a recipe?"]
    assert closest.call_count < 100


def test_precedence_and_origins(file: str) -> None:
    overrides = ("training.steps=200", "training.batch_size=16", "training.batch_size=32", "data.column=body")
    flags = [Setting("training.steps", 300, "--steps"), Setting("data.train", ["a.txt"], "FILE")]
    resolved = load(file, parse_settings(overrides, flags))
    for key, wanted, origin in [
        ("seed", 1, "default"),
        ("model.d_model", 32, "mine.yaml:5"),
        ("training.batch_size", 32, "-s training.batch_size=32"),
        ("training.steps", 300, "--steps"),
        ("data.train", ("a.txt",), "FILE"),
        ("data.column", "body", "-s data.column=body"),
        ("model.position.size", 64, "mine.yaml:10"),
        ("model.norm.kind", "layer", "default"),
    ]:
        assert (value(resolved.recipe, key), resolved.origins[key]) == (wanted, origin)


@pytest.mark.parametrize(
    ("override", "key", "wanted"),
    [
        ("optimizer.lr=1e-4", "optimizer.lr", 1e-4),
        ("optimizer.lr=1", "optimizer.lr", 1.0),
        ("model.bias=false", "model.bias", False),
        (" training.steps = 7", "training.steps", 7),
        ("training.steps=+50", "training.steps", 150),
        ("optimizer.lr=+1e-3", "optimizer.lr", 2e-3),
        ("schedule.final_fraction=+.5", "schedule.final_fraction", 0.7),
        ("data.train=a=b.txt", "data.train", ("a=b.txt",)),
        ("data.train=[a.txt, 'b c.txt']", "data.train", ("a.txt", "b c.txt")),
        ("data.train=[ab]*.txt", "data.train", ("[ab]*.txt",)),
        ("evaluation.prompts='ROMEO: # hi'", "evaluation.prompts", ("ROMEO: # hi",)),
        ("description=+5", "description", "+5"),
        ("description=null", "description", "null"),
        ("tokenizer={kind: file, path: t.json}", "tokenizer.path", "t.json"),
        ("model.norm={place: post}", "model.norm.place", "post"),
        ("optimizer={lr: 0.5}", "optimizer.beta1", 0.8),
        ("optimizer={kind: sgd}", "optimizer.lr", 1e-3),
        ("optimizer={}", "optimizer.beta1", 0.8),
        ("tuning.lora={}", "tuning.lora.rank", 8),
        ("tuning={lora.rank: 2}", "tuning.lora.rank", 2),
        ("data={mixture: {a.b: 2.0}}", "data.mixture", {"a.b": 2.0}),
        ("data.label_column=2024", "data.label_column", "2024"),
        ("data.label_column=null", "data.label_column", None),
    ],
)
def test_overrides_are_read_as_the_type_of_their_key(file: str, override: str, key: str, wanted: object) -> None:
    got = value(load(file, [override]).recipe, key)
    assert got == wanted
    assert type(got) is type(wanted)


def one_by_one(given: object, path: str = "") -> list[str]:
    """A nested mapping as one override for each of its values."""
    if isinstance(given, dict):
        return [text for key in given for text in one_by_one(given[key], f"{path}.{key}" if path else key)]
    return [f"{path}={json.dumps(given)}"]


@pytest.mark.parametrize("name", covering())
def test_a_mapping_sets_its_keys_as_they_are_set_one_by_one(file: str, name: str) -> None:
    """Whatever was there before: all values of shipped recipes that have every key, over another."""
    parts = load(name).recipe.model_dump(mode="json")
    before = file if parts["model"].get("kind") != "transformer" else "t5-tiny"
    written = load(before, one_by_one(parts)).recipe
    whole = [f"{key}={json.dumps(part)}" for key, part in parts.items()]
    assert load(before, whole).recipe == written == load(name).recipe


def test_relative_values_add_up_in_order_and_values_inside_mappings_have_their_origin(file: str) -> None:
    mapping = "optimizer={kind: sgd, lr: 0.1}"
    resolved = load(file, ["training.steps=+50", "training.steps=+25", mapping])
    assert resolved.recipe.training.steps == 175
    assert resolved.origins["training.steps"] == "-s training.steps=+25"
    assert resolved.origins["optimizer.lr"] == f"-s {mapping}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=5", "unknown key; did you mean training.steps?"),
        ("training.steps.x=5", "unknown key; did you mean training.steps?"),
        ("x=5", "unknown key"),
        ("lr=5", "unknown key; did you mean optimizer.lr or optimizer.adamw.lr?"),
        ("training.steps", "write KEY=VALUE, such as training.steps=500"),
        ("=5", "write KEY=VALUE, such as training.steps=500"),
        ("training.steps=1e3", "training.steps: 1000.0 is not a whole number above 0; write 1000"),
        ("training.steps=+abc", "training.steps: '+abc' "),
        ("training.micro_batch=+4", "training.micro_batch: +4 adds to a number, and this is 'auto'"),
        ("optimizer.momentum=0.9", "optimizer.momentum: unknown key for kind adamw; sgd and muon have it"),
        ("model.norm={knd: rms}", "model.norm.knd: unknown key; did you mean model.norm.kind?"),
        ("training.steps=[1", "not YAML: "),
        ("model.d_model=5", "model.n_heads: 4 does not divide d_model 5"),
        ("model.position={size: 8}", "model.context: 16 is longer than position.size 8"),
        ("training.steps=5\x1b[31m", "not YAML: the character U+001B"),
    ],
)
def test_mistakes_of_overrides_and_flags_name_them(file: str, override: str, message: str) -> None:
    assert mistakes(file, [Setting("seed", -1, "--seed")])[0].startswith("--seed: seed: -1 ")
    (line,) = mistakes(file, [override])
    assert line.startswith(f"-s {override.replace(chr(27), chr(92) + 'x1b')}: {message}")


def test_another_kind_drops_what_it_does_not_have_and_keeps_the_rest(file: str) -> None:
    """And a part without a kind is of the default kind."""
    resolved = load(file, ["optimizer.kind=sgd", "schedule.kind=linear", "model.position.kind=none"])
    assert resolved.recipe.optimizer == Sgd(kind="sgd", lr=1e-3)
    assert resolved.recipe.schedule == Linear(kind="linear", warmup_steps=10, final_fraction=0.2)
    assert value(resolved.recipe, "model.position.kind") == "none"
    assert resolved.origins["optimizer.lr"] == "mine.yaml:14"
    resolved = load(file, ["tokenizer.vocab_size=5000"])
    assert (value(resolved.recipe, "tokenizer.kind"), resolved.origins["tokenizer.kind"]) == ("bpe", "default")
    word_piece = load(file, ["tokenizer.vocab_size=5000", "tokenizer.kind=wordpiece"]).recipe.tokenizer
    assert word_piece == WordPieceTokenizer(kind="wordpiece", vocab_size=5000)


@pytest.mark.parametrize("order", [1, -1])
def test_keys_of_another_kind_may_come_in_any_order(file: str, order: int) -> None:
    overrides = ["optimizer.kind=muon", "optimizer.momentum=0.5", "optimizer.adamw.lr=0.25"][::order]
    recipe = load(file, overrides).recipe
    found = [value(recipe, f"optimizer.{key}") for key in ("kind", "momentum", "adamw.lr", "lr")]
    assert found == ["muon", 0.5, 0.25, 1e-3]


def test_another_kind_hides_no_typo_of_the_recipe(file: str) -> None:
    Path("x.yaml").write_text(RECIPE.replace("beta1", "betta"))
    (line,) = mistakes("x.yaml", ["optimizer.kind=sgd"])
    assert line.startswith("x.yaml:15: optimizer.betta: unknown key")


KEYS = st.sampled_from([*iterate_dotted_keys(Recipe), "", "x", "model..n_layers", "training.steps.x"])
VALUES = ["+1", "+1e400", "+", "{}", "[]", "null", "sgd", "{kind: muon}", "+.inf", "1e400"]


@settings(max_examples=examples(100, 300), deadline=None)
@given(st.lists(st.tuples(KEYS, st.text() | st.sampled_from(VALUES)), max_size=4))
def test_any_override_gives_a_recipe_or_a_recipe_error(pairs: list[tuple[str, str]]) -> None:
    told, resolved = None, None
    try:
        resolved = load("tiny", [f"{key}={text}" for key, text in pairs])
    except RecipeError as error:
        told = error.mistakes
    if resolved:
        assert set(resolved.origins) == {".".join(map(str, path)) for path, _ in iterate_values(resolved.recipe)}
    else:
        assert told
        assert all(line.isprintable() and line.startswith("-s ") for line in told)


def every_spec(spec: type[Spec] = Recipe) -> Iterator[type[Spec]]:
    yield spec
    for field in spec.model_fields.values():
        for part in specs_by_kind(field).values():
            yield from every_spec(part)


def test_defaults_of_parts_are_the_defaults_of_their_fields() -> None:
    """Setting one key of a part that a recipe omits must not change the others."""
    defaults = [f.default for spec in every_spec() for f in spec.model_fields.values() if isinstance(f.default, Spec)]
    assert defaults
    assert all(default == type(default)() for default in defaults)


@pytest.mark.system
def test_reading_a_wrong_recipe_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(RECIPE.replace("n_heads", "n_haeds"))
    code = (
        "import sys\nfrom lmtool.errors import RecipeError\nfrom lmtool.recipe.load import load\n"
        f"try:\n    load({str(tmp_path / 'x.yaml')!r})\nexcept RecipeError as error:\n    print(error)\n"
        "heavy = {'torch', 'numpy', 'datasets', 'tokenizers', 'tiktoken', 'pyarrow', 'transformers', 'rich'}\n"
        "print(heavy & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path}/x.yaml:6: model.n_haeds: unknown key; did you mean n_heads?\nset()\n"


@pytest.mark.parametrize(
    ("overrides", "dropped"),
    [
        (["training.steps=7"], ["training.epochs", "training.min_steps"]),
        (["training.epochs=2"], ["training.min_steps"]),
        (["evaluation.every=3"], ["evaluation.epochs"]),
        (["training.epochs=2", "training.min_steps=5"], []),
        (["training.steps=7", "training.epochs=2"], ["training.min_steps"]),
    ],
)
def test_what_the_user_sets_is_not_overruled_by_the_recipe(overrides: list[str], dropped: list[str]) -> None:
    found = load("softmax", overrides).recipe
    keys = ("training.epochs", "training.min_steps", "evaluation.epochs")
    assert [key for key in keys if value(found, key) is None] == dropped


def test_a_tokenizer_beside_the_recipe_is_found_from_elsewhere(file: str, tmp_path: Path) -> None:
    """But the recipe of a run is read as it was written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tokenizer.json").write_text("{}")
    recipe = tmp_path / "run/recipe.yaml"
    recipe.write_text(RECIPE + "tokenizer: {kind: file, path: tokenizer.json}\n", encoding="utf-8")
    assert value(load("run/recipe.yaml").recipe, "tokenizer.path") == "run/tokenizer.json"
    assert value(load_run_recipe(recipe), "tokenizer.path") == "tokenizer.json"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert value(load("run/recipe.yaml").recipe, "tokenizer.path") == "tokenizer.json"
