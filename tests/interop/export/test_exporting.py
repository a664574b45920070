"""Exported runs: Transformers opens them without code of ours, with the same ids and the same logits."""

import json
import logging
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors import safe_open

from lmtool.errors import LmtoolError, NumericalError, ResourceError, UsageError
from lmtool.evaluation.perplexity import measure_perplexity
from lmtool.generation.generate import TextGenerator
from lmtool.generation.params import SamplingParams
from lmtool.interop.export import exporting
from lmtool.interop.export.exporting import export
from lmtool.recipe.load import load, shipped_recipes
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.load import LoadedModel, load_run
from tests.interop.runs import TEXTS, made, recipe_of, shipped, tokenizer_of
from tests.support.exporting import (
    BERT,
    CASES,
    CAUSAL,
    GPT2,
    MASKED,
    MPT,
    ROBERTA,
    SEQ2SEQ,
    T5,
    auto_of,
    classes,
    close,
    ours,
    theirs,
)


@pytest.fixture
def told() -> Iterator[list[str]]:
    """Warnings of Transformers."""
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers")
    logger.addHandler(handler)
    yield lines
    logger.removeHandler(handler)


def opened(folder: Path, recipe: Recipe, **more: Any) -> Any:
    """The model, by the class for its task, of which all tensors must be there."""
    pairs = getattr(recipe.objective, "next_sentence", False)
    kind = getattr(transformers, "BertForPreTraining" if pairs else auto_of(recipe))
    peer, found = kind.from_pretrained(folder, output_loading_info=True, trust_remote_code=False, **more)
    assert not found["missing_keys"]
    assert not found["mismatched_keys"]
    assert not found["unexpected_keys"]
    return peer.eval()


def rows_of(loaded: LoadedModel, *texts: list[str]) -> list[tuple[list[int], list[int] | None]]:
    """Complete rows of one text or of two, as lmtool frames them: ids and segments."""
    rows = []
    for parts in zip(*texts, strict=True):
        ids, segments, _ = loaded.prompt_format.encode_and_truncate_row(
            [np.array(loaded.tokenizer.encode(text)) for text in parts]
        )
        rows.append((ids.tolist(), None if segments is None else segments.tolist()))
    return rows


@pytest.mark.parametrize("case", CASES)
def test_transformers_computes_the_same_with_exported_runs(case: str, tmp_path: Path, told: list[str]) -> None:
    """The same ids, of texts as they are, of framed ones and of pairs; the same logits of all of them, and texts."""
    architecture, recipe, kind = CASES[case]
    run = made(tmp_path / "run", recipe, tokenizer_of(kind))
    exported = export(str(run), tmp_path / "out")
    assert exported.architecture == architecture
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"# {architecture}" in card
    assert f"from transformers import {auto_of(recipe)}, AutoTokenizer" in card
    loaded = load_run(str(run))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", trust_remote_code=False)
    peer = opened(tmp_path / "out", recipe)
    assert not told
    assert [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS] == [
        loaded.tokenizer.encode(text) for text in TEXTS
    ]
    if kind == "bpe":
        assert [tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) for text in TEXTS] == TEXTS
    if recipe.objective.kind in ("classification", "masked"):
        for texts in ((TEXTS,), (TEXTS, TEXTS[1:] + TEXTS[:1])):
            inputs = tokenizer(*texts, padding=True, return_tensors="pt")
            framed, wanted = tokenizer(*texts), rows_of(loaded, *texts)
            assert framed["input_ids"] == [ids for ids, _ in wanted]
            if loaded.recipe.model.has_segments:
                assert framed["token_type_ids"] == [segments for _, segments in wanted]
            close(theirs(peer, inputs), ours(loaded, inputs))
        return
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    for text, ids, keep in zip(TEXTS, inputs["input_ids"], inputs["attention_mask"], strict=True):
        prompt = loaded.prompt_format.make_prompt(text)
        if recipe.objective.kind != "embedding":
            assert tuple(ids[keep.bool()].tolist()) == (prompt.source or prompt.tokens)
    if recipe.model.reads == "source":
        inputs["decoder_input_ids"] = torch.tensor([[1, 9, 30], [1, 40, 8], [1, 8, 8], [1, 60, 61]])
    close(theirs(peer, inputs), ours(loaded, inputs))
    assert (tmp_path / "out" / "generation_config.json").exists() == exported.is_generative
    if exported.is_generative:
        found = peer.generate(**tokenizer("They waited", return_tensors="pt"), max_new_tokens=8, do_sample=False)[0]
        prompt = loaded.prompt_format.make_prompt("They waited")
        (wanted_text,) = TextGenerator(loaded).completions(["They waited"], SamplingParams("greedy", max_new_tokens=8))
        written = found[len(prompt.tokens) :].tolist()
        assert [i for i in written if i not in loaded.prompt_format.end_ids] == list(wanted_text.tokens)


# Files


@pytest.mark.parametrize("case", ["gpt2", "gpt2 of one stream"])
def test_texts_are_evaluated_like_those_of_the_run(case: str, tmp_path: Path) -> None:
    """As documents between [BOS] and [EOS], or as one text without them."""
    _, recipe, kind = CASES[case]
    if case == "gpt2 of one stream":
        recipe = recipe.with_unvalidated_values({"data.split": "slice", "data.documents": "whole"})
    run = made(tmp_path / "run", recipe, tokenizer_of(kind))
    export(str(run), tmp_path / "out")
    (tmp_path / "text.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    (mine, theirs) = (
        measure_perplexity(str(name), [str(tmp_path / "text.txt")]).perplexity for name in (run, tmp_path / "out")
    )
    assert (theirs.tokens, theirs.n_bytes) == (mine.tokens, mine.n_bytes)
    assert theirs.loss == pytest.approx(mine.loss, rel=1e-4)


@pytest.mark.parametrize(("case", "dtype"), [("gpt2", "float16"), ("bert of numbers", "bfloat16")])
def test_tensors_are_rounded_once_to_the_type_asked_for(case: str, dtype: str, tmp_path: Path) -> None:
    """The tensors are rounded once, and load as they are."""
    _, recipe, kind = CASES[case]
    run = made(tmp_path / "run", recipe, tokenizer_of(kind))
    export(str(run), tmp_path / "whole")
    export(str(run), tmp_path / "half", dtype=dtype)  # type: ignore[arg-type]
    half, whole = (opened(tmp_path / name, recipe, dtype="auto") for name in ("half", "whole"))
    assert half.dtype == getattr(torch, dtype)
    assert whole.dtype == torch.float32
    with safe_open(tmp_path / "half" / "model.safetensors", "pt") as file:
        for name, tensor in whole.state_dict().items():
            if name in file.keys():  # noqa: SIM118 - no dictionary
                assert torch.equal(file.get_tensor(name), tensor.to(half.dtype)), name
                assert torch.equal(half.state_dict()[name], tensor.to(half.dtype)), name


def test_values_that_a_type_cannot_hold_and_weights_that_are_not_finite(tmp_path: Path) -> None:
    """They are told for what they are, whatever the type."""
    _, recipe, _ = CASES["gpt2"]
    large, infinite = (made(tmp_path / str(std), recipe, tokenizer_of(), std=std) for std in (1e5, math.inf))
    with pytest.raises(UsageError, match="too large for float16"):
        export(str(large), tmp_path / "out", dtype="float16")
    for dtype in ("float32", "bfloat16"):
        with pytest.raises(NumericalError, match="the weights are not finite"):
            export(str(infinite), tmp_path / "out", dtype=dtype)
    assert not (tmp_path / "out").exists()
    export(str(large), tmp_path / "out", dtype="bfloat16")


def test_files_are_no_larger_than_asked_for(tmp_path: Path) -> None:
    """Files no larger than asked for, but for single tensors, and an index that Transformers reads."""
    _, recipe, _ = CASES["gpt2"]
    run = made(tmp_path / "run", recipe, tokenizer_of())
    export(str(run), tmp_path / "one")
    export(str(run), tmp_path / "many", max_shard_bytes=8_000)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 3
    assert files == [f"model-{i:05d}-of-{len(files):05d}.safetensors" for i in range(1, len(files) + 1)]
    total = 0
    for name in files:
        with safe_open(tmp_path / "many" / name, "pt") as file:
            sizes = [file.get_tensor(key).nbytes for key in file.keys()]  # noqa: SIM118 - no dictionary
            assert {key for key, at in index["weight_map"].items() if at == name} == set(file.keys())
        assert sum(sizes) <= 8_000 or len(sizes) == 1
        total += sum(sizes)
    assert index["metadata"]["total_size"] == total
    assert not (tmp_path / "many" / "model.safetensors").exists()
    one, many = (opened(tmp_path / name, recipe).state_dict() for name in ("one", "many"))
    assert one.keys() == many.keys()
    assert all(torch.equal(one[name], many[name]) for name in one)


def test_labels_and_what_starts_and_ends_texts_are_in_the_configuration(tmp_path: Path) -> None:
    for case in ("bert classifier", "bert of numbers", "marian"):
        _, recipe, kind = CASES[case]
        export(str(made(tmp_path / f"{case} run", recipe, tokenizer_of(kind))), tmp_path / case)
    config = transformers.AutoConfig.from_pretrained(tmp_path / "bert classifier")
    assert config.id2label == {0: "bad", 1: "so so", 2: "good"}
    assert config.problem_type == "single_label_classification"
    assert transformers.AutoConfig.from_pretrained(tmp_path / "bert of numbers").num_labels == 1
    started = transformers.GenerationConfig.from_pretrained(tmp_path / "marian")
    assert (started.decoder_start_token_id, started.eos_token_id, started.pad_token_id) == (1, 2, 0)


def test_a_card_that_does_not_say_where_files_lay(tmp_path: Path) -> None:
    named = {"train": [str(tmp_path / "my data" / "a.csv")], "valid": [f"{tmp_path}/b.csv", "hf:org/name"]}
    export(
        str(made(tmp_path / "run", recipe_of(BERT, classes("a", "b"), data=named), tokenizer_of())), tmp_path / "out"
    )
    card = (tmp_path / "out" / "README.md").read_text()
    assert str(tmp_path) not in card
    assert 'train: ["a.csv"]' in card
    assert "hf:org/name" in card
    tasks = {"tasks": [f"nli:{tmp_path}/c.csv:2"]}
    export(str(made(tmp_path / "tasks", recipe_of(T5, SEQ2SEQ, data=tasks), tokenizer_of())), tmp_path / "many")
    assert 'tasks: ["nli:c.csv:2"]' in (tmp_path / "many" / "README.md").read_text()
    config = json.loads((tmp_path / "many" / "config.json").read_text())
    assert config["lmtool"]["data"] == {"tasks": ["nli:nli"]}


# Refusals

REFUSED: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({**MPT, "bias": True}, CAUSAL, ["mpt: model.bias (true, where mpt has false)"]),
    ({**ROBERTA, "position": {"kind": "learned", "offset": 5}}, MASKED, ["xlm-roberta: model.position.offset"]),
    (shipped("lstm"), CAUSAL, ["model.kind"]),
    (shipped("prefix-tiny"), SEQ2SEQ, ["model.shape"]),
    (
        {**BERT, "position": {"kind": "alibi"}, "share_layers": True, "activation": "swiglu", "bias": False},
        classes("a", "b", pool="mean", layers="mix"),
        ["model.position.kind", "model.share_layers", "model.activation", "model.bias"],
    ),
    (
        {**GPT2, "position": {"kind": "sinusoidal"}, "residual": False, "d_ff": 0},
        CAUSAL,
        ["model.position.kind", "model.residual", "model.d_ff"],
    ),
    ({**T5, "position": {"kind": "alibi"}, "bias": True}, SEQ2SEQ, ["model.position.kind", "model.bias"]),
]


@pytest.mark.parametrize(("model", "objective", "keys"), REFUSED)
def test_all_obstacles_are_told_at_once(
    model: dict[str, Any], objective: dict[str, Any], keys: list[str], tmp_path: Path
) -> None:
    """Without those that go with others: who changes these keys can export."""
    run = made(tmp_path / "run", recipe_of(model, objective), tokenizer_of())
    with pytest.raises(UsageError) as refusal:
        export(str(run), tmp_path / "deep" / "out")
    told = str(refusal.value.where)
    assert all(key in told for key in keys), told
    assert len(refusal.value.lines()) <= 3
    assert os.listdir(tmp_path) == ["run"]


def test_only_a_new_or_an_empty_folder_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new or an empty one, wherever it is, and no other."""
    _, recipe, _ = CASES["gpt2"]
    run = str(made(tmp_path / "run", recipe, tokenizer_of()))
    export(run, tmp_path / "deep" / "er")
    (tmp_path / "empty").mkdir()
    export(run, tmp_path / "empty")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    export(run, Path("."))
    assert (tmp_path / "here" / "config.json").exists()
    (tmp_path / "file").write_text("mine")
    for used in ("deep/er", "deep", "file", "here/../empty"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UsageError, match="not empty"):
            export(run, tmp_path / used)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(ResourceError):
        export(run, tmp_path / "file" / "out")


def failing(error: BaseException) -> Callable[..., None]:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "where", ["tensors.serialize_safetensors", "durable.write_and_sync_new_file", "durable.sync_directory"]
)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(
    where: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, recipe, _ = CASES["gpt2"]
    run = str(made(tmp_path / "run", recipe, tokenizer_of()))
    monkeypatch.setattr(f"lmtool.interop.export.exporting.{where}", failing(error))
    with pytest.raises((LmtoolError, KeyboardInterrupt)):
        export(run, tmp_path / "out")
    assert os.listdir(tmp_path) == ["run"]


# What is shipped

SHIPPED = {
    "gpt2": "gpt2-124m gpt2-355m gpt2-774m gpt2-1.5b",
    "llama": "default llama-tiny",
    "qwen3": "shakespeare-char",
    "bert": "bert-base bert-large roberta-base",
    "t5": "t5-small t5-tiny",
    "marian": "transformer-base transformer-tiny",
    "pegasus": "transformer-small",
    "mpt": "tiny distil-tiny",
    "gpt2: model.norm.place (post, where gpt2 has pre)": "gpt1",
    "model.position.kind (alibi": "bert-tiny roberta-tiny longformer-tiny electra-tiny distilbert-tiny",
    "bert: model.share_layers, model.position.kind": "albert-tiny",
    "model.shape": "prefix-lm prefix-tiny",
}
EXPECTED = {name: expected for expected, names in SHIPPED.items() for name in names.split()}
"""The family of each shipped recipe, or the key that stands in the way; model.kind for all others."""


@pytest.mark.parametrize("name", sorted({*shipped_recipes(), *EXPECTED}))
def test_the_family_of_each_shipped_recipe(name: str) -> None:
    recipe = load(name).recipe
    if isinstance(recipe.model, Transformer):
        small = {"n_layers": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": None, "vocab_size": 400, "context": 20}
        small["d_ff"] = recipe.model.d_ff and 24
        model = Transformer.model_validate({**recipe.model.model_dump(), **small}, strict=False)
        recipe = recipe.model_copy(update={"model": model})
    expected = EXPECTED.get(name, "model.kind")
    open_run: Any = SimpleNamespace(info=SimpleNamespace(origin=None), results_by_task={}, step=1)
    base: Any = SimpleNamespace(run=open_run, checkpoint=open_run, recipe=recipe, tokenizer=tokenizer_of())
    if "." not in expected:
        assert exporting.prepare_export(base).family.model_type == expected
        return
    with pytest.raises(UsageError) as refusal:
        exporting.prepare_export(base)
    assert expected in str(refusal.value.where)
