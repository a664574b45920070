"""Exported adapters: PEFT opens them on the exported base, with the same logits."""

import json
import os
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file

from lmtool.errors import CheckpointError, UsageError
from lmtool.interop.export.adapters import export_peft_adapters
from lmtool.interop.export.exporting import export
from lmtool.interop.importing import import_model_as_new_run
from lmtool.runs.load import load_run
from tests.interop.runs import SMALL, TEXTS, made, recipe_of, tokenizer_of
from tests.support.cases import nightly_but
from tests.support.cli import exit_code_of
from tests.support.errors import refuses
from tests.support.exporting import (
    BERT,
    CAUSAL,
    DOCUMENTS,
    GPT2,
    LLAMA,
    MASKED,
    MPT,
    NUMBER,
    ONE_TEXT,
    PEGASUS,
    ROBERTA,
    SEQ2SEQ,
    T5,
    auto_of,
    classes,
    close,
    ours,
    theirs,
)

# PEFT asks for it under its old name
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

ALL = ["query", "key", "value", "output", "feed-forward"]
NEOX = {**SMALL, "position": {"kind": "rotary", "share": 0.5}, "parallel": True, "tie_embeddings": False}
BLOOM = {**SMALL, "d_ff": None, "position": {"kind": "alibi"}, "activation": "gelu-tanh", "norm": {"embedding": True}}
MODERN = {
    **SMALL,
    "shape": "encoder",
    "norm": {"embedding": True, "first": False},
    "position": {"kind": "rotary"},
    "activation": "geglu-exact",
    "bias": False,
    "tie_embeddings": True,
    "head_transform": True,
    "head_bias": True,
}
TWO = classes("bad", "good")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str], dict[str, Any]]] = {
    "llama": (
        *(LLAMA, CAUSAL, CAUSAL, ["query", "value"]),
        {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {}, "fan_in_fan_out": False},
    ),
    "llama, everything": (LLAMA, CAUSAL, CAUSAL, ALL, {}),
    "gpt2": (
        *(GPT2, CAUSAL, CAUSAL, ["query", "value"]),
        {"target_modules": ["c_attn"], "rank_pattern": {"c_attn": 6}, "alpha_pattern": {"c_attn": 8.0}},
    ),
    "gpt2, one part": (
        *(GPT2, CAUSAL, CAUSAL, ["key"]),
        {"target_modules": ["c_attn"], "rank_pattern": {}, "fan_in_fan_out": True},
    ),
    "gpt2 of answers": (GPT2, CAUSAL, SEQ2SEQ, ALL, {}),
    "gpt2 classifier": (GPT2, CAUSAL, TWO, ["query", "value", "output"], {}),
    "neox": (NEOX, CAUSAL, CAUSAL, ["query", "value", "output"], {}),
    "bloom": (BLOOM, CAUSAL, CAUSAL, ["key", "value"], {}),
    "mpt": (MPT, CAUSAL, CAUSAL, ALL, {}),
    "bert classifier, temperature": (
        *(BERT, MASKED, classes("bad", "good", temperature=2.0), ["query", "value"]),
        {"target_modules": ["query", "value"], "task_type": "SEQ_CLS"},
    ),
    "bert classifier of pairs, networks": (
        {**BERT, "next_sentence_head": True},
        *({"kind": "masked", "next_sentence": True}, classes("x", "y", "z", task="multi"), ["feed-forward"]),
        {"target_modules": ["0.output.dense", "1.output.dense", "intermediate.dense"]},
    ),
    "bert of numbers": (BERT, MASKED, NUMBER, ALL, {}),
    "bert tagger": (BERT, MASKED, {"kind": "tagging", "labels": ("a", "b", "c")}, ["query", "value"], {}),
    "roberta classifier": (ROBERTA, MASKED, TWO, ALL, {"modules_to_save": ["classifier"]}),
    "distilbert classifier": (ONE_TEXT, MASKED, classes("a", "b", dense="relu"), ["value", "output"], {}),
    "modernbert classifier": (MODERN, MASKED, classes("a", "b", dense="gelu", dense_norm=True), ALL, {}),
    "t5": (T5, SEQ2SEQ, SEQ2SEQ, ["query", "value"], {}),
    "pegasus": (PEGASUS, SEQ2SEQ, SEQ2SEQ, ["key", "value", "output"], {}),
}
"""The model, the objective of its base, its own, what is adapted, and keys of the configuration."""


def config_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text())
    return found


def adapted_run(
    folder: Path, model: dict[str, Any], before: dict[str, Any], objective: dict[str, Any], targets: list[str]
) -> tuple[Path, Path]:
    """A base run, and a run that adapts it, with random weights."""
    tokenizer = tokenizer_of()
    data: dict[str, Any] = DOCUMENTS if before == CAUSAL else {}
    base = made(folder / "base run", recipe_of(model, before, **data), tokenizer)
    tuning = {"lora": {"rank": 3, "alpha": 4.0, "targets": targets, "dropout": 0.1}}
    recipe = recipe_of(model, objective, tuning=tuning, **(data if objective == CAUSAL else {}))
    return base, made(folder / "run", recipe, tokenizer, base)


@pytest.mark.parametrize(
    "case", nightly_but(CASES, "llama", "gpt2", "bert classifier, temperature", "bert classifier of pairs, networks")
)
def test_peft_computes_the_same_with_exported_adapters(case: str, tmp_path: Path) -> None:
    model, before, objective, targets, expected = CASES[case]
    base, run = adapted_run(tmp_path, model, before, objective, targets)
    export(str(base), tmp_path / "base")
    exported = export_peft_adapters(str(run), tmp_path / "out")
    loaded = load_run(str(run))
    kind = getattr(transformers, auto_of(loaded.recipe))
    labels = exported.config.get("id2label")
    more = {} if labels is None else {"num_labels": len(labels)}
    peer = kind.from_pretrained(tmp_path / "base", **more)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    if loaded.recipe.model.reads == "source":
        inputs["decoder_input_ids"] = torch.tensor([[1, 9, 30], [1, 40, 8], [1, 8, 8], [1, 60, 61]])
    unadapted = theirs(peer, inputs)
    both = peft.PeftModel.from_pretrained(peer, str(tmp_path / "out")).eval()
    wanted = ours(loaded, inputs) / (getattr(loaded.recipe.objective, "temperature", None) or 1.0)
    close(theirs(both, inputs), wanted)
    assert (unadapted - wanted).abs().max() > 0.01 * wanted.abs().max()
    # every tensor of the file has its place, and every adapter of the model its tensors
    state = peft.get_peft_model_state_dict(both, save_embedding_layers=False)
    file = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert {name for name in state if "lora_" in name} == {name for name in file if "lora_" in name}
    assert all(torch.equal(state[name], tensor) for name, tensor in file.items())
    close(theirs(both.merge_and_unload(), inputs), wanted)
    found = config_of(tmp_path / "out")
    assert {key: found[key] for key in expected} == expected
    assert (found["r"], found["lora_alpha"], found["lora_dropout"]) == (3, 4.0, 0.1)


def test_adapters_that_learnt_nothing_yet(tmp_path: Path) -> None:
    """Zeros are adapters all the same."""
    model, before, objective, targets, _ = CASES["gpt2"]
    tokenizer = tokenizer_of()
    base = made(tmp_path / "base run", recipe_of(model, before), tokenizer)
    recipe = recipe_of(model, objective, tuning={"lora": {"rank": 2, "targets": targets}})
    run = made(tmp_path / "run", recipe, tokenizer, base, std=0.0)
    export_peft_adapters(str(run), tmp_path / "out", "float16")
    file = load_file(tmp_path / "out" / "adapter_model.safetensors")
    assert len(file) == 4
    assert {tensor.dtype for tensor in file.values()} == {torch.float16}


def test_the_name_of_the_base(tmp_path: Path) -> None:
    """The name on the Hub of an imported model; otherwise a word that the card explains."""
    model, before, objective, targets, _ = CASES["llama"]
    base, run = adapted_run(tmp_path, model, before, objective, targets)
    export_peft_adapters(str(run), tmp_path / "out")
    assert config_of(tmp_path / "out")["base_model_name_or_path"] == "BASE"
    card = (tmp_path / "out" / "README.md").read_text()
    assert "`BASE` is the base model: base run, as `lmtool export` writes it" in card
    assert "base_model:" not in card
    info = json.loads((base / "run.json").read_text())
    info["origin"] = {"reference": "hf:some/model@main", "revision": "abc", "model_type": "llama", "sha256": {}}
    del info["checksum"]
    (base / "run.json").write_text(json.dumps(info))
    export_peft_adapters(str(run), tmp_path / "named")
    found = config_of(tmp_path / "named")
    assert (found["base_model_name_or_path"], found["revision"]) == ("some/model", "abc")
    card = (tmp_path / "named" / "README.md").read_text()
    assert "\nbase_model: some/model\n" in card
    assert "`BASE`" not in card


def test_an_imported_base(tmp_path: Path) -> None:
    """Adapters of an imported model fit the original one."""
    model, before, objective, *_ = CASES["llama"]
    first = made(tmp_path / "first", recipe_of(model, before, **DOCUMENTS), tokenizer_of())
    export(str(first), tmp_path / "original")
    base = import_model_as_new_run(str(tmp_path / "original"), tmp_path / "imported", lambda stage, done, total: None)
    imported = load_run(str(base))
    recipe = imported.recipe.model_copy(
        update={"tuning": recipe_of(model, objective, tuning={"lora": {"targets": ALL}}).tuning}
    )
    run = made(tmp_path / "run", recipe, imported.tokenizer, base)
    export_peft_adapters(str(run), tmp_path / "out")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "original")
    both = peft.PeftModel.from_pretrained(peer, str(tmp_path / "out")).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
    close(theirs(both, inputs), ours(load_run(str(run)), inputs))


def test_runs_without_adapters_used_folders_and_lost_bases_are_refused(tmp_path: Path) -> None:
    model, before, objective, targets, _ = CASES["llama"]
    base, run = adapted_run(tmp_path, model, before, objective, targets)
    there = sorted(os.listdir(tmp_path))
    with pytest.raises(UsageError, match="this run has no adapters"):
        export_peft_adapters(str(base), tmp_path / "out")
    (tmp_path / "run" / "notes").write_text("mine")
    with refuses("output_exists"):
        export_peft_adapters(str(run), tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == there
    (base / "run.json").unlink()
    with pytest.raises(CheckpointError, match="adapters only"):
        export_peft_adapters(str(run), tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == there


@pytest.mark.parametrize(
    ("model", "head", "what", "key"),
    [
        # a DistilBERT whose classifier has BERT's head
        (ONE_TEXT, {}, "exported as distilbert, which cannot express", ""),
        (BERT, {"pool": "mean"}, "no class of Transformers has this head", "objective.pool"),
    ],
)
def test_heads_that_no_class_has(
    model: dict[str, Any], head: dict[str, Any], what: str, key: str, tmp_path: Path
) -> None:
    _, run = adapted_run(tmp_path, model, MASKED, classes("a", "b", **head), ["query"])
    with pytest.raises(UsageError, match=what) as refusal:
        export_peft_adapters(str(run), tmp_path / "out")
    assert key in str(refusal.value.where)


def test_the_command(tmp_path: Path) -> None:
    _, run = adapted_run(tmp_path, *CASES["llama"][:4])
    words = ["lmtool", "export", str(run), str(tmp_path / "out"), "--adapters", "--dtype", "bfloat16"]
    assert exit_code_of(words) == 0
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert exit_code_of(words) == 2
