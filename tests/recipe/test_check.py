"""Messages for invalid recipes: every mistake at once, each with its line, in plain words."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from lmtool.recipe.check import validate
from lmtool.recipe.document import Origin, parse_yaml
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from tests.recipe.reading import mistakes
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
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The messages of loading a text."""
    monkeypatch.chdir(tmp_path)

    def read(text: str) -> list[str]:
        (tmp_path / "r.yaml").write_text(text)
        return mistakes("r.yaml")

    return read


Refused = Callable[[str], list[str]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("n_layers: abc", "'abc' is not a whole number above 0"),
        ("n_layers: 2.5", "2.5 is not"),
        ("n_layers: 1e1", "10.0 is not a whole number above 0; write 10"),
        ("n_layers: 1_000", "'1_000' is not a whole number above 0; write 1000"),
        ("n_layers:", "null is not"),
        ("n_layers: {a: 2}", "{'a': 2} is not"),
        ("n_layers: " + "9" * 4500, "'" + "9" * 57 + "...' is not"),
        ("dropout: 10%", "'10%' is not a number of at least 0 and below 1"),
        ("dropout: .nan", "nan is not a finite number"),
        ("d_ff: x", "'x' is not a whole number of at least 0 or null"),
        ("bias: on", "'on' is not true or false"),
        ("activation: gelu_tanh", "'gelu_tanh' is not relu, relu-squared, "),
        ("activation: [a, b]", "['a', 'b'] is not relu"),
        ('activation: "\\e[31m"', "'\\x1b[31m' is not relu"),
        ("kind: gelu", "'gelu' is not transformer, "),
        ("norm: rms", "'rms' is not a mapping; write {kind: rms}"),
    ],
)
def test_wrong_values_of_the_model(refused: Refused, line: str, message: str) -> None:
    key = line.split(":")[0]
    model = "\n".join(row for row in RECIPE.splitlines()[1:6] if not row.startswith(f"  {key}:"))
    text = "training: {steps: 1, batch_size: 1}\nmodel:\n" + model
    text += "\n" * (10 - len(text.splitlines())) + f"  {line}\n"
    (told,) = refused(text)
    assert told.startswith(f"r.yaml:10: model.{key}: {message}")
    assert told.endswith("; did you mean gelu-tanh?") == ("gelu_tanh" in line)


SURROGATE = "holds a character that UTF-8 cannot encode"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("optimiser: {lr: 1}", "optimiser: unknown key; did you mean optimizer?"),
        ('"\\e[0m": 2', "\\x1b[0m: unknown key; known here: description"),
        ("schedule: {kind: [1]}", "schedule.kind: [1] is not constant, linear, "),
        ("optimizer: {kind: sgd}", "optimizer.lr: missing; a number above 0"),
        ("optimizer: {lr: .inf}", "optimizer.lr: inf is not a finite number"),
        ("optimizer: {lr: 1" + "0" * 400 + "}", "optimizer.lr: the number is too large; at most 9007199254740992"),
        ("training: {tokens: 1e308}", "training: written twice, first in line 7"),
        ("tokenizer: {vocab_size: 0x" + "f" * 400 + "}", "tokenizer.vocab_size: the number is too large"),
        ("data: {mixture: {a.txt: -1e300}}", "data.mixture.a.txt: the number is too large"),
        ("optimizer: {kind: muon, adamw: {lr: -1}}", "optimizer.adamw.lr: -1 is not a number above 0"),
        ("optimizer: {kind: muon, adamw: {kind: adam}}", "optimizer.adamw.kind: 'adam' is not adamw"),
        ("data: {train: [a, 3]}", "data.train: ['a', 3] is not text or a list of texts"),
        ('"a\\udcffb": {kind: 2}', f"a\\udcffb: {SURROGATE}"),
        ('data: {"\\ud800": 1}', f"data.\\ud800: {SURROGATE}"),
        ('data: {mixture: {"\\ud800": 1}}', f"data.mixture.\\ud800: {SURROGATE}"),
        ('optimizer: {kind: "\\ud800"}', f"optimizer.kind: {SURROGATE}"),
        ("tokenizer: {sentinels: 4294967296}", "tokenizer.sentinels: 4294967296 is not a whole number"),
        ('description: "\\U00110000"', "not YAML"),
    ],
)
def test_wrong_parts(refused: Refused, line: str, message: str) -> None:
    (told,) = refused(RECIPE + line + "\n")
    place = "r.yaml:10:15" if message == "not YAML" else "r.yaml:10"
    assert told.startswith(f"{place}: {message}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("  steps: 100\n", "", "r.yaml:7: training.steps: missing; a whole number above 0"),
        ("  kind: transformer\n", "", "r.yaml:1: model.kind: missing; transformer, "),
        ("training:\n  steps: 100\n  batch_size: 8\n", "", "r.yaml:1: training: missing; it needs steps, batch_size"),
        ("n_heads", "n_haeds", "r.yaml:5: model.n_haeds: unknown key; did you mean n_heads?"),
    ],
)
def test_missing_keys(refused: Refused, old: str, new: str, message: str) -> None:
    assert old in RECIPE
    (told,) = refused(RECIPE.replace(old, new))
    assert told.startswith(message)


def test_all_mistakes_at_once_in_the_order_of_the_file(refused: Refused) -> None:
    """Sizes are checked beside unknown keys, but not beside values that cannot be read."""
    text = """\
model: {kind: transformer, n_layers: 2, n_layer: 2, d_model: 30,
  n_heads: 4, context: 16, droput: 0.1,
  norm: {kind: root, plase: pre}}
training:
  steps: abc
  steps: 5
optimizer: {kind: adma}
schedul: {kind: cosine}
"""
    told = [line.split(";")[0].split(" is not ")[0] for line in refused(text)]
    assert told == [
        "r.yaml:1: model.n_layer: unknown key",
        "r.yaml:2: model.droput: unknown key",
        "r.yaml:3: model.norm.kind: 'root'",
        "r.yaml:3: model.norm.plase: unknown key",
        "r.yaml:4: training.batch_size: missing",
        "r.yaml:5: training.steps: 'abc'",
        "r.yaml:6: training.steps: written twice, first in line 5",
        "r.yaml:7: optimizer.kind: 'adma'",
        "r.yaml:8: schedul: unknown key",
    ]
    assert refused(RECIPE.replace("n_heads: 4", "n_heads: 5\n  n_kv_heads: 3\n  droput: 0.1")) == [
        "r.yaml:5: model.n_heads: 5 does not divide d_model 32",
        "r.yaml:6: model.n_kv_heads: 3 does not divide n_heads 5",
        "r.yaml:7: model.droput: unknown key; did you mean dropout?",
    ]


scraps = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts | st.sampled_from(["adamw", "rms", "auto"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "lr", "size", "x"]), inner),
    max_leaves=6,
)
JARGON = ("Input should", "a valid", "function-", "literal", "union", "pydantic")


@settings(max_examples=examples(50, 100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_wrong_is_told_in_one_line_without_jargon(data: st.DataObject) -> None:
    tree: Any = parse_yaml(dump_yaml(load("tiny").recipe), "f").value
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
    recipe, told = validate(tree, lambda path: Origin("f", 1), Recipe)
    assert (recipe is None) == bool(told)
    for line in map(str, told):
        assert line.isprintable()
        assert len(line) < 400
        assert not any(word in line for word in JARGON)


ROTARY = "model.position={kind: rotary}"
DISENTANGLED = "model.position={kind: disentangled}"
YARN = "kind: yarn, factor: 2, original_context: 8"
LLAMA3 = "kind: llama3, factor: 2, original_context: 8, low_frequency: 4"
ALONE = "kind: masked, next_sentence: false"
PERMUTATION = f"objective={{{ALONE}, permutation: true}}"
DECODER = ("model.shape=decoder", "model.n_segments=0", "model.next_sentence_head=false", "objective={kind: causal}")
PROMPTS = "evaluation.prompts=[a]"
NARROW = ("model.embedding_width=8", "model.head_transform=false")
OF_TINY: list[tuple[list[str], str]] = [
    (["model.head_width=5", ROTARY], "model.head_width"),
    ([ROTARY, "model.position.share=0.1"], "model.position.share"),
    ([ROTARY, "model.score=additive"], "model.score"),
    ([ROTARY, "model.position.window_theta=100"], "model.position.window_theta"),
    ([ROTARY, "model.position.theta=1", f"model.position.scaling={{{YARN}}}"], "model.position.theta"),
    ([ROTARY, f"model.position.scaling={{{LLAMA3}}}"], "model.position.scaling.low_frequency"),
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
    (["model.freeze_embeddings=true"], "model.freeze_embeddings"),
    (["model.position={kind: relative, buckets: 8, max_distance: 4}"], "model.position.max_distance"),
    ([DISENTANGLED, "model.score=dot"], "model.score"),
    ([DISENTANGLED, "model.n_kv_heads=2"], "model.n_kv_heads"),
    ([DISENTANGLED, "model.pattern={kind: window, size: 4}"], "model.pattern"),
    (["model.score=bilinear", "model.n_kv_heads=2"], "model.n_kv_heads"),
    (["model.norm={kind: none, embedding: true}"], "model.norm.embedding"),
    (["model.residual=false", "model.residual_from=layer"], "model.residual_from"),
    (["model.parallel=true", "model.residual_from=layer"], "model.residual_from"),
    (["model.d_ff=0", "model.residual_from=layer"], "model.residual_from"),
    (["model.mixer=plain-attention", "model.n_kv_heads=2"], "model.n_kv_heads"),
    (["evaluation.baseline=true", "objective={kind: prefix}", "model.shape=prefix"], "evaluation.baseline"),
    (["objective.scheduled_sampling={growth: exponential, k: 2}"], "objective.scheduled_sampling.k"),
    (["objective.scheduled_sampling={growth: inverse-sigmoid, k: 0.5}"], "objective.scheduled_sampling.k"),
    (["data.stream=true", "training.epochs=2"], "data.stream"),
    (["data.mixture=3"], "data.mixture"),
]
OF_BERT: list[tuple[list[str], str]] = [
    (["objective.sentence_order=true"], "objective.sentence_order"),
    (["objective.span_boundary=true"], "objective.span_boundary"),
    ([f"objective={{{ALONE}, spans: {{}}, span_boundary: true}}"], "model.span_boundary_head"),
    ([f"objective={{{ALONE}, sentence_order: true}}", "model.n_segments=0"], "model.n_segments"),
    (["objective.permutation=true"], "objective.permutation"),
    ([f"objective={{{ALONE}, permutation: true, mask_share: 0.5}}"], "objective.permutation"),
    ([PERMUTATION, "model.pattern={kind: window, size: 4}"], "objective.permutation"),
    ([PERMUTATION, PROMPTS], "evaluation.prompts"),
    ([PERMUTATION, "distillation.teacher=last"], "distillation.teacher"),
    (["objective.whole_words=true", "tokenizer={kind: word}"], "objective.whole_words"),
    (["objective={kind: replaced-tokens, whole_words: true}"], "objective.whole_words"),
    ([*DECODER, "model.span_boundary_head=true"], "model.span_boundary_head"),
    (["objective={kind: classification}", PROMPTS], "evaluation.prompts"),
    (["objective={kind: embedding, dims: [100000]}"], "objective.dims"),
    (["tuning.freeze=body"], "tuning.freeze"),
    (["data.stream=true"], "data.stream"),
]
OF_DAN: list[tuple[list[str], str]] = [
    ([PROMPTS], "evaluation.prompts"),
    (["objective.pool=mean"], "objective.pool"),
    (["objective.layers=mix"], "objective.layers"),
    (["objective.dense=tanh"], "objective.dense"),
    (["objective.contrastive=true"], "objective.contrastive"),
    (["training.tokens=1000"], "training.tokens"),
    (["model.ngrams=2", "model.embeddings=a.vec", "model.freeze_embeddings=true"], "model.freeze_embeddings"),
    (["model.one_hot=true"], "model.n_layers"),
    (["model.embeddings=a.vec", "model.one_hot=true", "model.n_layers=0"], "model.embeddings"),
]
SMALL = ["model.n_layers=2", "model.d_model=16", "model.n_heads=4"]


@pytest.mark.parametrize(
    ("name", "overrides", "key"),
    [
        *(("tiny", [*SMALL, *overrides], key) for overrides, key in OF_TINY),
        *(("bert-tiny", overrides, key) for overrides, key in OF_BERT),
        *(("dan", overrides, key) for overrides, key in OF_DAN),
        ("cbow", [PROMPTS], "evaluation.prompts"),
        ("ngram", ["objective.scheduled_sampling={}"], "objective.scheduled_sampling"),
        ("ngram", ["data.stream=true"], "data.stream"),
        ("lstm", ["data.stream=true", "training.carry_state=true", "training.steps=5"], "data.stream"),
        ("t5-tiny", ["model.residual_from=layer"], "model.residual_from"),
        ("softmax", ["model.word_buckets=10", "model.tf_idf=false"], "model.word_buckets"),
        ("roberta-tiny", [*NARROW, "objective={kind: masked}"], "model.tie_embeddings"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_a_key(name: str, overrides: list[str], key: str) -> None:
    """Prompts are for what writes, and refused when the recipe is read, not when the first sample fails."""
    (line,) = mistakes(name, overrides)
    assert f": {key}: " in line


@pytest.mark.parametrize("name", ["ngram", "lstm", "bert-tiny", "t5-tiny"])
def test_models_that_write_have_prompts(name: str) -> None:
    assert load(name, [PROMPTS]).recipe.evaluation.prompts == ("a",)


@pytest.mark.parametrize("objective", ["embedding", "classification"])
def test_narrow_embeddings_need_an_output_matrix_only_to_predict_tokens(objective: str) -> None:
    load("roberta-tiny", [*NARROW, f"objective={{kind: {objective}}}"])


def test_values_of_state_json_are_in_range_too() -> None:
    """Where no text is parsed."""
    values: dict[str, Any] = {"model": {"kind": "ngram"}, "training": {"steps": 1, "batch_size": 1}}
    for wrong in ({"seed": 10**400}, {"description": "\ud800"}, {"\udfff": 1}):
        with pytest.raises(ValidationError):
            Recipe.model_validate(values | wrong)
