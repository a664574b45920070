"""Runs as GGUF files: what is read back has the same ids, and the weights rounded to the type of the file."""

from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.batch import Batch
from lmtool.compute.device import CPU
from lmtool.errors import UsageError
from lmtool.interop.export.exporting import export_gguf_and_modelfile, prepare_export
from lmtool.interop.importing import import_to_cache
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import load_run
from tests.interop.runs import SMALL, TEXTS, made, recipe_of, tokenizer_of
from tests.support.gguf import LLAMA, llama

GPT2 = recipe_of({**SMALL, "activation": "gelu-tanh"}, {"kind": "causal"}, data={"split": "document"})


@pytest.mark.parametrize(
    ("recipe", "quantization", "error"),
    [
        # which gives its usual width to the feed-forward network, by no number
        (GPT2.with_unvalidated_values({"model.d_ff": None}), "f16", 2e-3),
        (llama(), "f16", 2e-3),
        (llama(tie_embeddings=True), "q8_0", 3e-2),
        (llama(), "q4_0", 0.5),
        (llama(), "q4_1", 0.5),
    ],
)
def test_what_is_written_is_read_back(recipe: Recipe, quantization: Any, error: float, tmp_path: Path) -> None:
    run = made(tmp_path / "run", recipe, tokenizer_of(), std=0.1)
    export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", quantization)
    before = load_run(str(run), CPU)
    after = load_run(str(import_to_cache(str(tmp_path / "model.gguf"))), CPU)
    assert [after.tokenizer.encode(text) for text in TEXTS] == [before.tokenizer.encode(text) for text in TEXTS]
    assert after.prompt_format.make_prompt("They waited") == before.prompt_format.make_prompt("They waited")
    assert after.prompt_format.end_ids == before.prompt_format.end_ids
    tokens_BT = torch.arange(30)[None]
    with torch.no_grad():
        wanted, found = (one.model.logits(one.model(Batch(tokens_BT)).hidden_BTD) for one in (before, after))
    assert float((found - wanted).norm() / wanted.norm()) < error
    if quantization == "f16":
        state = before.model.state_dict()
        for name, tensor in after.model.state_dict().items():
            torch.testing.assert_close(tensor, state[name], rtol=1e-3, atol=1e-6)


def test_what_gguf_does_not_have_is_refused_with_the_keys_where_another_format_has_the_model(tmp_path: Path) -> None:
    mpt = recipe_of({**SMALL, "position": {"kind": "alibi"}, "bias": False, "d_ff": 64}, {"kind": "causal"})
    encoder = recipe_of({**SMALL, "shape": "encoder"}, {"kind": "masked"})
    for name, recipe in (("mpt", mpt), ("encoder", encoder)):
        run = made(tmp_path / name, recipe, tokenizer_of())
        with pytest.raises(UsageError, match="no family of GGUF files") as refusal:
            export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", "f16")
        if recipe is mpt:
            told = "gpt_neox: model.position.kind (alibi, where gpt_neox has rotary), model.bias"
            assert str(refusal.value.where).startswith(told)
            assert "as a directory" in str(refusal.value.fix)
            assert prepare_export(resolve_reference(str(run))).family.model_type == "mpt"
    assert not (tmp_path / "model.gguf").exists()


def test_heads_are_not_lost(tmp_path: Path) -> None:
    """A classifier is no language model, also where its body and its tokenizer could be written."""
    spec = {"kind": "classification", "task": "class", "labels": ("a", "b"), "bias": False}
    run = made(tmp_path / "run", recipe_of({**LLAMA, "context": 40}, spec), tokenizer_of())
    with pytest.raises(UsageError, match="a head for classification"):
        export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", "f16")
