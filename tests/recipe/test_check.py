"""Messages for invalid recipes: every mistake at once, each with its line, in plain words."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmtool.errors import RecipeError
from lmtool.recipe.check import validate
from lmtool.recipe.document import Origin, parse_yaml
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from tests.recipe.strategies import texts
from tests.support.examples import examples

RECIPE = """\
model:
  kind: transformer
  n_layers: 2
  d_model: 32
  n_heads: 4
  context: 16
training:
  steps: 100
  batch_size: 8
"""


@pytest.fixture
def refused(tmp_path, monkeypatch):
    """The messages of loading a text."""

    def read(text: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "r.yaml").write_text(text)
        with pytest.raises(RecipeError) as caught:
            load("r.yaml")
        return caught.value.lines()

    return read


ACTIVATIONS = "relu, relu-squared, gelu, gelu-tanh, silu, swiglu, geglu or geglu-exact"
COUNT = "is not a whole number above 0"
SHARE = "is not a number of at least 0 and below 1"
KINDS = "transformer, recurrent, ngram, skipgram, glove, ppmi or averaging"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n_layers: abc", f"'abc' {COUNT}"),
        ("n_layers: 2.5", f"2.5 {COUNT}"),
        ("n_layers: 1e1", f"10.0 {COUNT}; write 10"),
        ("n_layers: 1_000", f"'1_000' {COUNT}; write 1000"),
        ("n_layers: true", f"true {COUNT}"),
        ("n_layers:", f"null {COUNT}"),
        ("n_layers: {a: 2}", f"{{'a': 2}} {COUNT}"),
        ("n_layers: " + "9" * 4500, "'" + "9" * 57 + f"...' {COUNT}"),
        ("dropout: 10%", f"'10%' {SHARE}"),
        ("dropout: .nan", "nan is not a finite number"),
        ("d_ff: x", "'x' is not a whole number of at least 0 or null"),
        ("bias: on", "'on' is not true or false"),
        ("activation: gelu_tanh", f"'gelu_tanh' is not {ACTIVATIONS}; did you mean gelu-tanh?"),
        ("activation: [a, b]", f"['a', 'b'] is not {ACTIVATIONS}"),
        ('activation: "\\e[31m"', f"'\\x1b[31m' is not {ACTIVATIONS}"),
        ("kind: gelu", f"'gelu' is not {KINDS}"),
        ("norm: rms", "'rms' is not a mapping; write {kind: rms}"),
        ("norm:", "null is not a mapping; write its keys below it, or leave it out"),
    ],
)
def test_wrong_values_of_the_model(refused, line, message):
    key = line.split(":")[0]
    model = "\n".join(row for row in RECIPE.splitlines()[1:6] if not row.startswith(f"  {key}:"))
    text = "training: {steps: 1, batch_size: 1}\nmodel:\n" + model
    text += "\n" * (10 - len(text.splitlines())) + f"  {line}\n"
    assert refused(text) == [f"r.yaml:10: model.{key}: {message}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimiser: {lr: 1}", "optimiser: unknown key; did you mean optimizer?"),
        ("n_layers: 2", "n_layers: unknown key; did you mean model.n_layers?"),
        ('"\\e[0m": 2', "\\x1b[0m: unknown key; known here: description"),
        ("schedule: {kind: [1]}", "schedule.kind: [1] is not constant, linear, cosine or inverse-square-root"),
        ("optimizer: [1]", "optimizer: [1] is not a mapping; write its keys below it, or leave it out"),
        ("optimizer: {kind: sgd}", "optimizer.lr: missing; a number above 0 and at most 1e+30"),
        ("optimizer: {lr: .inf}", "optimizer.lr: inf is not a finite number"),
        ("optimizer: {lr: 1" + "0" * 400 + "}", "optimizer.lr: the number is too large; at most 9007199254740992"),
        ("training: {tokens: 1e308}", "training: written twice"),
        ("tokenizer: {vocab_size: 0x" + "f" * 400 + "}", "tokenizer.vocab_size: the number is too large"),
        ("data: {mixture: {a.txt: -1e300}}", "data.mixture.a.txt: the number is too large"),
        ("optimizer: {kind: muon, adamw: {lr: -1}}", "optimizer.adamw.lr: -1 is not a number above 0"),
        ("optimizer: {kind: muon, adamw: {kind: adam}}", "optimizer.adamw.kind: 'adam' is not adamw; did you mean"),
        ("data: {train: [a, 3]}", "data.train: ['a', 3] is not text or a list of texts"),
        ("data: {column: 3}", "data.column: 3 is not text"),
        ('"a\\udcffb": {kind: 2}', "a\\udcffb: holds a character that UTF-8 cannot encode"),
        ('data: {"\\ud800": 1}', "data.\\ud800: holds a character that UTF-8 cannot encode"),
        ('data: {mixture: {"\\ud800": 1}}', "data.mixture.\\ud800: holds a character"),
        ('optimizer: {kind: "\\ud800"}', "optimizer.kind: holds a character"),
        ("model: {}", "model: written twice, first in line 1"),
        ("tokenizer: {sentinels: 4294967296}", "tokenizer.sentinels: 4294967296 is not a whole number"),
        ("tokenizer: {vocab_size: 3}", "tokenizer.vocab_size: 3 is not a whole number of at least 300"),
    ],
)
def test_wrong_parts(refused, line, message):
    (told,) = refused(RECIPE + line + "\n")
    assert told.startswith(f"r.yaml:10: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  steps: 100\n", "", "r.yaml:7: training.steps: missing; a whole number above 0"),
        ("  kind: transformer\n", "", f"r.yaml:1: model.kind: missing; {KINDS}"),
        ("training:\n  steps: 100\n  batch_size: 8\n", "", "r.yaml:1: training: missing; it needs steps, batch_size"),
        ("n_heads: 4", "n_heads: 3", "r.yaml:5: model.n_heads: 3 does not divide d_model 32"),
        ("n_heads", "n_haeds", "r.yaml:5: model.n_haeds: unknown key; did you mean n_heads?"),
    ],
)
def test_missing_keys_and_sizes_that_do_not_fit(refused, old, new, message):
    assert old in RECIPE
    assert refused(RECIPE.replace(old, new)) == [message]


ENCODER = "kind: transformer, shape: encoder, n_layers: 1, d_model: 8, n_heads: 2, context: 8"


@pytest.mark.parametrize(
    ("model", "objective", "writes"),
    [
        ("kind: averaging", "classification", False),
        ("kind: skipgram", "skip-gram", False),
        (ENCODER, "classification", False),
        ("kind: ngram", "causal", True),
        ("kind: recurrent, d_model: 8, context: 8", "classification", True),
        (ENCODER, "masked", True),
        ("kind: recurrent, shape: encoder-decoder, d_model: 8, context: 8", "seq2seq", True),
    ],
)
def test_prompts_are_for_what_writes(tmp_path, model, objective, writes):
    """Refused when the recipe is read, not when the first sample fails."""
    text = f"training: {{steps: 1, batch_size: 1}}\nmodel: {{{model}}}\nobjective: {{kind: {objective}}}\n"
    (tmp_path / "r.yaml").write_text(text + "evaluation: {prompts: [a]}\n")
    if writes:
        assert load(tmp_path / "r.yaml").recipe.evaluation.prompts == ("a",)
        return
    with pytest.raises(RecipeError, match=r"r.yaml:4: evaluation\.prompts: "):
        load(tmp_path / "r.yaml")


def test_all_mistakes_at_once_in_the_order_of_the_file(refused):
    text = """\
model:
  kind: transformer
  n_layer: 2
  d_model: 30
  n_heads: 4
  n_kv_heads: 3
  context: 16
  n_layers: 2
  droput: 0.1
  norm: {kind: root, plase: pre}
training:
  steps: abc
  steps: 5
optimizer: {kind: adma}
schedul: {kind: cosine}
"""
    assert refused(text) == [
        "r.yaml:3: model.n_layer: unknown key; did you mean n_layers?",
        "r.yaml:9: model.droput: unknown key; did you mean dropout?",
        "r.yaml:10: model.norm.kind: 'root' is not layer, rms or none",
        "r.yaml:10: model.norm.plase: unknown key; did you mean place?",
        "r.yaml:11: training.batch_size: missing; a whole number above 0 and at most 16777216",
        "r.yaml:12: training.steps: 'abc' is not a whole number above 0",
        "r.yaml:13: training.steps: written twice, first in line 12",
        "r.yaml:14: optimizer.kind: 'adma' is not adam, adamw, sgd, muon or lbfgs; did you mean adam?",
        "r.yaml:15: schedul: unknown key; did you mean schedule?",
    ]


def test_sizes_are_checked_beside_unknown_keys(refused):
    text = RECIPE.replace("n_heads: 4", "n_heads: 5\n  n_kv_heads: 3\n  droput: 0.1")
    assert refused(text) == [
        "r.yaml:5: model.n_heads: 5 does not divide d_model 32",
        "r.yaml:6: model.n_kv_heads: 3 does not divide n_heads 5",
        "r.yaml:7: model.droput: unknown key; did you mean dropout?",
    ]


scraps = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["adamw", "rms", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "lr", "size", "x"]), inner),
    max_leaves=6,
)


@settings(max_examples=examples(50, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_wrong_is_told_in_one_line_without_jargon(data):
    tree = parse_yaml(dump_yaml(load("tiny").recipe), "f").value
    for _ in range(data.draw(st.integers(1, 4))):
        part = tree
        while True:
            key = data.draw(st.sampled_from([*part, "unknown"]))
            if not isinstance(part.get(key), dict) or not part[key] or data.draw(st.integers(0, 3)) == 0:
                break
            part = part[key]
        if data.draw(st.booleans()):
            part[key] = data.draw(scraps)
        else:
            part.pop(key, None)
    recipe, mistakes = validate(tree, lambda path: Origin("f", 1), Recipe)
    assert (recipe is None) == bool(mistakes)
    for line in map(str, mistakes):
        assert line.isprintable()
        assert len(line) < 400
        assert not any(
            word in line for word in ("Input should", "a valid", "function-", "literal", "union", "pydantic")
        )


ROTARY = "model.position={kind: rotary}"
YARN = "kind: yarn, factor: 2, original_context: 8"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["model.head_width=5", ROTARY], "model.head_width"),
        ([ROTARY, "model.position.share=0.1"], "model.position.share"),
        ([ROTARY, "model.score=additive"], "model.score"),
        ([ROTARY, "model.position.window_theta=100"], "model.position.window_theta"),
        ([ROTARY, "model.position.theta=1", f"model.position.scaling={{{YARN}}}"], "model.position.theta"),
        (
            [ROTARY, "model.position.scaling={kind: llama3, factor: 2, original_context: 8, low_frequency: 4}"],
            "model.position.scaling.low_frequency",
        ),
        ([ROTARY, f"model.position.scaling={{{YARN}, slow_turns: 64}}"], "model.position.scaling.slow_turns"),
        (["model.pattern={kind: window, size: 3, full_layers: [9]}"], "model.pattern.full_layers"),
        (["model.pattern={kind: window, size: 3, full_layers: [-1]}"], "model.pattern.full_layers"),
        (["model.qk_norm=head", "model.score=bilinear"], "model.qk_norm"),
        (["model.norm={kind: layer, unit_offset: true}"], "model.norm.unit_offset"),
        (["model.norm={kind: rms, bias: true}"], "model.norm.bias"),
        (["model.norm={place: post, first: false}"], "model.norm.first"),
        (["model.norm={place: post}", "model.parallel=true"], "model.parallel"),
        (["model.position={kind: learned, size: 16, offset: 2}", "model.context=15"], "model.context"),
        (["model.d_model=15", "model.n_heads=3", "model.position={kind: sinusoidal}"], "model.d_model"),
        (["model.embedding_width=8", "model.tie_embeddings=true"], "model.tie_embeddings"),
        (["model.separate_inputs=true"], "model.separate_inputs"),
    ],
)
def test_parts_of_a_transformer_that_do_not_fit(overrides, key):
    small = ["model.n_layers=2", "model.d_model=16", "model.n_heads=4"]
    with pytest.raises(RecipeError) as refusal:
        load("tiny", [*small, *overrides])
    (line,) = refusal.value.mistakes
    assert line.startswith("-s model.")
    assert f" {key}: " in line


@pytest.mark.parametrize(("objective", "fits"), [("embedding", True), ("classification", True), ("masked", False)])
def test_narrow_embeddings_need_an_output_matrix_only_to_predict_tokens(objective, fits):
    narrow = ["model.embedding_width=8", "model.head_transform=false"]
    with contextlib.nullcontext() if fits else pytest.raises(RecipeError, match="tie_embeddings"):
        load("roberta-tiny", [*narrow, f"objective={{kind: {objective}}}"])


def test_an_escape_beyond_unicode_is_located(refused):
    (told,) = refused(RECIPE + 'description: "\\U0010ffff\\U00110000"\n')
    assert told == "r.yaml:10:25: not YAML: this escape names no character"


def test_values_of_state_json_are_in_range_too():
    """Where no text is parsed."""
    values = {"model": {"kind": "ngram"}, "training": {"steps": 1, "batch_size": 1}}
    for wrong in ({"seed": 10**400}, {"description": "\ud800"}, {"\udfff": 1}):
        with pytest.raises(ValidationError):
            Recipe.model_validate(values | wrong)
