"""Finding recipes, command-line overrides, and origins of values."""

import json
import subprocess
import sys

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
from lmtool.recipe.spec.text import BpeTokenizer, WordPieceTokenizer
from lmtool.recipe.spec.training import Linear, Muon, Sgd
from tests.recipe.covering import covering
from tests.support.cases import nightly_but
from tests.support.errors import refuses
from tests.support.examples import examples

RECIPE = """\
description: test
model:
  kind: transformer
  n_layers: 2
  d_model: 32
  n_heads: 4
  context: 16
  position:
    kind: learned
    size: 64
training: {steps: 100, batch_size: 8}
optimizer:
  kind: adamw
  lr: 1e-3
  beta1: 0.8
schedule:
  kind: cosine
  warmup_steps: 10
  final_fraction: 0.2
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(RECIPE)
    return "mine.yaml"


def mistakes(name, overrides=(), flags=()):
    with pytest.raises(RecipeError) as caught:
        load(name, [*overrides, *flags])
    return caught.value.mistakes


def test_a_recipe_is_found_by_path_and_by_name(file):
    assert load(file).recipe.description == "test"
    assert load(file).name == "mine"
    assert find_recipe("tiny") == shipped_recipes()["tiny"]


def test_a_shipped_name_goes_before_a_file_of_that_name(file, tmp_path):
    (tmp_path / "tiny").write_text(RECIPE)
    assert load("tiny").recipe.description != "test"
    assert load("./tiny").recipe.description == "test"


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("tinny", "did you mean tiny?"),
        ("mone.yaml", "did you mean mine.yaml?"),
        ("nowhere/gpt-2.yaml", "did you mean gpt"),
        ("z" * 1000, ""),
    ],
)
def test_a_recipe_that_is_not_there_gives_the_nearest_names(file, name, nearest):
    with pytest.raises(UsageError) as caught:
        load(name)
    assert caught.value.fix.startswith(nearest.rstrip("?"))
    assert len(caught.value.lines()) == 3


def test_a_folder_is_not_a_recipe(tmp_path):
    with refuses("usage"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("content", "place"),
    [
        (b"", "x.yaml"),
        (b"# only words\n", "x.yaml"),
        (b"- a\n", "x.yaml"),
        (b"To be, or not to be", "x.yaml"),
        (b"0x7f", "x.yaml"),
        (b"description: caf\xe9\n", "x.yaml: byte 16"),
        (b"a: [1\n", "x.yaml:1:4"),
        (b"\n" * (MAX_RECIPE_BYTES + 1), "x.yaml"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path, monkeypatch, content, place):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_bytes(content)
    (line,) = mistakes("x.yaml")
    assert line.startswith(place)


def test_what_a_link_leads_to_is_not_printed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").write_text("root:x:0:0:root:/root\ndaemon:x:1:1\n")
    (tmp_path / "x.yaml").symlink_to("elsewhere")
    assert "root" not in " ".join(mistakes("x.yaml"))


def test_very_many_mistakes_are_counted(tmp_path, monkeypatch):
    """They took milliseconds each, for the nearest known key."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(RECIPE + "".join(f"key{i}: 1\n" for i in range(5000)))
    asked = []
    monkeypatch.setattr("lmtool.recipe.grammar.get_close_matches", lambda *given, **n: asked.append(given) or [])
    with pytest.raises(RecipeError) as caught:
        load("x.yaml")
    assert len(caught.value.mistakes) == 5000
    assert caught.value.lines()[2:] == ["and 4,998 more mistakes: is this a recipe?"]
    assert len(asked) < 100


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    (tmp_path / "x.yaml").write_text(RECIPE, encoding="utf-8-sig")
    assert load(tmp_path / "x.yaml").recipe.description == "test"


def test_precedence_and_origins(file):
    overrides = ("training.steps=200", "training.batch_size=16", "training.batch_size=32", "data.column=body")
    flags = [Setting("training.steps", 300, "--steps"), Setting("data.train", ["a.txt"], "FILE")]
    resolved = load(file, parse_settings(overrides, flags))
    recipe, origins = resolved.recipe, resolved.origins
    assert (recipe.seed, origins["seed"]) == (1, "default")
    assert (recipe.model.d_model, origins["model.d_model"]) == (32, "mine.yaml:5")
    assert (recipe.training.batch_size, origins["training.batch_size"]) == (32, "-s training.batch_size=32")
    assert (recipe.training.steps, origins["training.steps"]) == (300, "--steps")
    assert (recipe.data.train, origins["data.train"]) == (("a.txt",), "FILE")
    assert (recipe.data.column, origins["data.column"]) == ("body", "-s data.column=body")
    assert (recipe.model.position.size, origins["model.position.size"]) == (64, "mine.yaml:10")
    assert origins["model.norm.kind"] == "default"


@pytest.mark.parametrize(
    ("override", "read", "value"),
    [
        ("optimizer.lr=1e-4", lambda r: r.optimizer.lr, 1e-4),
        ("optimizer.lr=1", lambda r: r.optimizer.lr, 1.0),
        ("model.bias=false", lambda r: r.model.bias, False),
        (" training.steps = 7", lambda r: r.training.steps, 7),
        ("training.steps=+50", lambda r: r.training.steps, 150),
        ("optimizer.lr=+1e-3", lambda r: r.optimizer.lr, 2e-3),
        ("schedule.final_fraction=+.5", lambda r: r.schedule.final_fraction, 0.7),
        ("data.train=a.txt", lambda r: r.data.train, ("a.txt",)),
        ("data.train=[a.txt, 'b c.txt']", lambda r: r.data.train, ("a.txt", "b c.txt")),
        ("data.train=[ab]*.txt", lambda r: r.data.train, ("[ab]*.txt",)),
        ("data.train=a=b.txt", lambda r: r.data.train, ("a=b.txt",)),
        ("evaluation.prompts='ROMEO: # hi'", lambda r: r.evaluation.prompts, ("ROMEO: # hi",)),
        ("description=+5", lambda r: r.description, "+5"),
        ("description=null", lambda r: r.description, "null"),
        ("tokenizer={kind: file, path: t.json}", lambda r: r.tokenizer.path, "t.json"),
        ("model.norm={place: post}", lambda r: (r.model.norm.kind, r.model.norm.place), ("layer", "post")),
        ("optimizer={lr: 0.5}", lambda r: (r.optimizer.lr, r.optimizer.beta1), (0.5, 0.8)),
        ("optimizer={kind: sgd}", lambda r: (r.optimizer.kind, r.optimizer.lr), ("sgd", 1e-3)),
        ("optimizer={}", lambda r: (r.optimizer.lr, r.optimizer.beta1), (1e-3, 0.8)),
        ("tuning.lora={}", lambda r: r.tuning.lora.rank, 8),
        ("tuning={lora.rank: 2}", lambda r: r.tuning.lora.rank, 2),
        ("data={mixture: {a.b: 2.0}}", lambda r: r.data.mixture, {"a.b": 2.0}),
        ("data.label_column=2024", lambda r: r.data.label_column, "2024"),
        ("data.label_column=null", lambda r: r.data.label_column, None),
    ],
)
def test_overrides(file, override, read, value):
    got = read(load(file, [override]).recipe)
    assert got == value
    assert type(got) is type(value)


def one_by_one(value: object, path: str = "") -> list[str]:
    """A nested mapping as one override for each of its values."""
    if isinstance(value, dict):
        return [text for key in value for text in one_by_one(value[key], f"{path}.{key}" if path else key)]
    return [f"{path}={json.dumps(value)}"]


@pytest.mark.parametrize(
    "name",
    nightly_but(
        covering(),
        "longformer-tiny",
        "lstm-attention",
        "cbow",
        "ngram",
        "electra-tiny",
        "linear",
        "tagger",
        "prefix-lm",
    ),
)
def test_a_mapping_sets_its_keys_as_they_are_set_one_by_one(file, name):
    """Whatever was there before: all values of shipped recipes that have every key, over two others."""
    parts = load(name).recipe.model_dump(mode="json")
    whole = [f"{key}={json.dumps(value)}" for key, value in parts.items()]
    for before in (file, "t5-tiny"):
        written = load(before, one_by_one(parts)).recipe
        assert load(before, whole).recipe == written == load(name).recipe


def test_relative_values_add_up_in_order_and_values_inside_mappings_have_their_origin(file):
    mapping = "optimizer={kind: sgd, lr: 0.1}"
    resolved = load(file, ["training.steps=+50", "training.steps=+25", mapping])
    assert resolved.recipe.training.steps == 175
    assert resolved.origins["training.steps"] == "-s training.steps=+25"
    assert resolved.origins["optimizer.lr"] == f"-s {mapping}"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("steps=5", "unknown key; did you mean training.steps?"),
        ("optimiser.lr=5", "unknown key; did you mean optimizer.lr?"),
        ("training.steps.x=5", "unknown key; did you mean training.steps?"),
        ("x=5", "unknown key"),
        ("lr=5", "unknown key; did you mean optimizer.lr or optimizer.adamw.lr?"),
        ("training..steps=5", "unknown key; did you mean training.steps?"),
        ("training.steps", "write KEY=VALUE, such as training.steps=500"),
        ("=5", "write KEY=VALUE, such as training.steps=500"),
        ("training.steps=", "training.steps: null is not a whole number above 0"),
        ("training.steps=1e3", "training.steps: 1000.0 is not a whole number above 0; write 1000"),
        ("training.steps=+abc", "training.steps: '+abc' is not a whole number above 0"),
        ("training.micro_batch=+4", "training.micro_batch: +4 adds to a number, and this is 'auto'"),
        ("optimizer=sgd", "optimizer: 'sgd' is not a mapping; write {kind: sgd}"),
        ("optimizer.momentum=0.9", "optimizer.momentum: unknown key for kind adamw; sgd and muon have it"),
        ("tokenizer.kind=file", "tokenizer.path: missing; text"),
        ("model.norm={knd: rms}", "model.norm.knd: unknown key; did you mean model.norm.kind?"),
        ("training.steps=[1", "not YAML: a list that [ opened is not closed"),
        ("model.d_model=5", "model.n_heads: 4 does not divide d_model 5"),
        ("model.position={size: 8}", "model.context: 16 is longer than position.size 8"),
        ("training.steps=5\x1b[31m", "not YAML: the character U+001B, which YAML does not allow"),
    ],
)
def test_mistakes_of_overrides_name_the_override(file, override, message):
    (line,) = mistakes(file, [override])
    assert line == f"-s {override.replace(chr(27), chr(92) + 'x1b')}: {message}"


ALONE = "kind: masked, next_sentence: false"
PERMUTATION = f"objective={{{ALONE}, permutation: true}}"
DECODER = ("model.shape=decoder", "model.n_segments=0", "model.next_sentence_head=false", "objective={kind: causal}")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["objective.sentence_order=true"], "objective.sentence_order"),
        (["objective.span_boundary=true"], "objective.span_boundary"),
        ([f"objective={{{ALONE}, spans: {{}}, span_boundary: true}}"], "model.span_boundary_head"),
        ([f"objective={{{ALONE}, sentence_order: true}}", "model.n_segments=0"], "model.n_segments"),
        (["objective.permutation=true"], "objective.permutation"),
        ([f"objective={{{ALONE}, permutation: true, mask_share: 0.5}}"], "objective.permutation"),
        ([PERMUTATION, "model.pattern={kind: window, size: 4}"], "objective.permutation"),
        ([PERMUTATION, "evaluation.prompts=[a]"], "evaluation.prompts"),
        ([PERMUTATION, "distillation.teacher=last"], "distillation.teacher"),
        (["objective.whole_words=true", "tokenizer={kind: word}"], "objective.whole_words"),
        (["objective={kind: replaced-tokens, whole_words: true}"], "objective.whole_words"),
        ([*DECODER, "model.span_boundary_head=true"], "model.span_boundary_head"),
    ],
)
def test_ways_of_masking_that_do_not_go_together(overrides, key):
    (line,) = mistakes("bert-tiny", overrides)
    assert f": {key}: " in line


def test_mistakes_of_flags_name_the_flag(file):
    assert mistakes(file, [], [Setting("seed", -1, "--seed")]) == [
        "--seed: seed: -1 is not a whole number of at least 0 and below 9007199254740992"
    ]


def test_another_kind_drops_what_it_does_not_have_and_keeps_the_rest(file):
    resolved = load(file, ["optimizer.kind=sgd", "schedule.kind=linear", "model.position.kind=none"])
    assert resolved.recipe.optimizer == Sgd(kind="sgd", lr=1e-3)
    assert resolved.recipe.schedule == Linear(kind="linear", warmup_steps=10, final_fraction=0.2)
    assert resolved.recipe.model.position.kind == "none"
    assert resolved.origins["optimizer.lr"] == "mine.yaml:14"


@pytest.mark.parametrize("order", [1, -1])
def test_keys_of_another_kind_may_come_in_any_order(file, order):
    overrides = ["optimizer.kind=muon", "optimizer.momentum=0.5", "optimizer.adamw.lr=0.25"][::order]
    optimizer = load(file, overrides).recipe.optimizer
    assert isinstance(optimizer, Muon)
    assert (optimizer.momentum, optimizer.adamw.lr, optimizer.lr) == (0.5, 0.25, 1e-3)


def test_another_kind_hides_no_typo_of_the_recipe(tmp_path):
    (tmp_path / "x.yaml").write_text(RECIPE.replace("beta1", "betta"))
    assert mistakes(tmp_path / "x.yaml", ["optimizer.kind=sgd"]) == [
        f"{tmp_path}/x.yaml:15: optimizer.betta: unknown key; known here: kind, lr, momentum, weight_decay"
    ]


def test_a_part_without_a_kind_is_of_the_default_kind(file):
    resolved = load(file, ["tokenizer.vocab_size=5000"])
    assert resolved.recipe.tokenizer == BpeTokenizer(vocab_size=5000)
    assert resolved.origins["tokenizer.kind"] == "default"
    word_piece = load(file, ["tokenizer.vocab_size=5000", "tokenizer.kind=wordpiece"]).recipe.tokenizer
    assert word_piece == WordPieceTokenizer(kind="wordpiece", vocab_size=5000)


@settings(max_examples=examples(100, 300), deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([*iterate_dotted_keys(Recipe), "", "x", "model..n_layers", "training.steps.x"]),
            st.text()
            | st.sampled_from(["+1", "+1e400", "+", "{}", "[]", "null", "sgd", "{kind: muon}", "+.inf", "1e400"]),
        ),
        max_size=4,
    )
)
def test_any_override_gives_a_recipe_or_a_recipe_error(pairs):
    told, resolved = None, None
    try:
        resolved = load("tiny", [f"{key}={value}" for key, value in pairs])
    except RecipeError as error:
        told = error.mistakes
    if resolved:
        assert set(resolved.origins) == {".".join(path) for path, _ in iterate_values(resolved.recipe)}
    else:
        assert told
        assert all(line.isprintable() and line.startswith("-s ") for line in told)


def every_spec(spec: type[Spec] = Recipe):
    yield spec
    for field in spec.model_fields.values():
        for part in specs_by_kind(field).values():
            yield from every_spec(part)


def test_defaults_of_parts_are_the_defaults_of_their_fields():
    # Setting one key of a part that a recipe omits must not change the others.
    defaults = [f.default for spec in every_spec() for f in spec.model_fields.values() if isinstance(f.default, Spec)]
    assert defaults
    assert all(default == type(default)() for default in defaults)


@pytest.mark.system
def test_reading_a_wrong_recipe_imports_nothing_heavy(tmp_path):
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
    values = {
        "training.epochs": found.training.epochs,
        "training.min_steps": found.training.min_steps,
        "evaluation.epochs": found.evaluation.epochs,
    }
    assert [key for key, value in values.items() if value is None] == dropped


def test_a_tokenizer_beside_the_recipe_is_found_from_elsewhere(tmp_path, monkeypatch):
    """But the recipe of a run is read as it was written."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run/tokenizer.json").write_text("{}")
    recipe = tmp_path / "run/recipe.yaml"
    recipe.write_text(RECIPE + "tokenizer: {kind: file, path: tokenizer.json}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert load("run/recipe.yaml").recipe.tokenizer.path == "run/tokenizer.json"
    assert load_run_recipe(recipe).tokenizer.path == "tokenizer.json"
    (tmp_path / "tokenizer.json").write_text("{}")
    assert load("run/recipe.yaml").recipe.tokenizer.path == "tokenizer.json"
