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
from lmtool.runs.load import load_run
from tests.interop.runs import SMALL, TEXTS, made, recipe_of, tokenizer_of
from tests.support.cases import nightly_but
from tests.support.errors import refuses
from tests.support.gguf import LLAMA, llama
from tests.support.peers import peer_in

GPT2 = recipe_of({**SMALL, "activation": "gelu-tanh"}, {"kind": "causal"}, data={"split": "document"})
SCALED = {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0}}


CASES = {
    "gpt2": GPT2,
    # which gives its usual width to the feed-forward network, by no number
    "gpt2 without a width": GPT2.with_unvalidated_values({"model.d_ff": None}),
    "llama": llama(),
    "llama, tied": llama(tie_embeddings=True),
    "scaled": llama(position=SCALED),
}


@pytest.mark.parametrize(
    ("quantization", "error"),
    nightly_but([("f16", 2e-3), ("q8_0", 3e-2), ("q4_0", 0.5), ("q4_1", 0.5)], "f16", unpack=True),
)
@pytest.mark.parametrize("case", nightly_but(CASES, "gpt2", "llama"))
def test_what_is_written_is_read_back(
    case: str, quantization: Any, error: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    run = made(tmp_path / "run", CASES[case], tokenizer_of(), std=0.1)
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


def test_what_gguf_does_not_have_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "run", recipe_of({**SMALL, "shape": "encoder"}, {"kind": "masked"}), tokenizer_of())
    with pytest.raises(UsageError, match="no family of GGUF files"):
        export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", "f16")
    assert not (tmp_path / "model.gguf").exists()
    (tmp_path / "there.gguf").touch()
    with refuses("output_exists"):
        export_gguf_and_modelfile(str(run), tmp_path / "there.gguf", "f16")


def test_keys_of_the_recipe_are_told_where_another_format_has_the_model(tmp_path: Path) -> None:
    mpt = recipe_of({**SMALL, "position": {"kind": "alibi"}, "bias": False, "d_ff": 64}, {"kind": "causal"})
    run = made(tmp_path / "run", mpt, tokenizer_of())
    assert prepare_export(resolve_reference(str(run))).family.model_type == "mpt"
    with pytest.raises(UsageError, match="no family of GGUF files") as refusal:
        export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", "f16")
    assert str(refusal.value.where).startswith(
        "gpt_neox: model.position.kind (alibi, where gpt_neox has rotary), model.bias"
    )
    assert "as a directory" in str(refusal.value.fix)
    neox = recipe_of({**SMALL, "position": {"kind": "rotary"}, "activation": "gelu"}, {"kind": "causal"})
    export_gguf_and_modelfile(str(made(tmp_path / "other", neox, tokenizer_of())), tmp_path / "model.gguf", "f16")


@pytest.mark.parametrize("case", ["own tokenizer", "published"])
def test_heads_are_not_lost(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A classifier is no language model, also where its body and its tokenizer could be written."""
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    spec = {"kind": "classification", "task": "class", "labels": ("a", "b"), "bias": False}
    if case == "published":
        peer_in(tmp_path / "published", "llama")
        base = load_run(str(import_to_cache(str(tmp_path / "published"))))
        tokenizer, model = base.tokenizer, base.recipe.model.model_dump()
    else:
        tokenizer, model = tokenizer_of(), {**LLAMA, "context": 40}
    run = made(tmp_path / "run", recipe_of(model, spec), tokenizer)
    with pytest.raises(UsageError, match="a head for classification"):
        export_gguf_and_modelfile(str(run), tmp_path / "model.gguf", "f16")
