"""Runs with random weights, as training leaves them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lmtool.compute.device import configure_compute
from lmtool.interop.resolve import resolve_reference
from lmtool.model import lora
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.load import load
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import BpeTokenizer, TrainedTokenizerSpecBase, WordPieceTokenizer
from lmtool.runs.creation import create_and_lock_run
from lmtool.runs.files import RunInfo
from lmtool.runs.load import build_for_training
from lmtool.runs.saving import CheckpointContent
from lmtool.tokenization.tokenizer import Tokenizer

CORPUS = ["They waited for the rain to end, and then they walked home along the sea wall.", "Why? ¿Qué! 漢字 🙂"] * 20
TEXTS = ["They waited, and then the rain!", "a", "home along the sea", "¿Qué? 🙂 they"]
SMALL: dict[str, Any] = {"kind": "transformer", "n_layers": 2, "d_model": 16, "n_heads": 4, "d_ff": 24, "context": 40}


def tokenizer_of(kind: str = "bpe") -> Tokenizer:
    specs: dict[str, TrainedTokenizerSpecBase] = {
        "bpe": BpeTokenizer(vocab_size=340),
        "wordpiece": WordPieceTokenizer(kind="wordpiece", vocab_size=120),
    }
    return Tokenizer.train(specs[kind], CORPUS)


def shipped(name: str) -> dict[str, Any]:
    """The model of a shipped recipe, as plain values."""
    return load(name).recipe.model.model_dump()


def recipe_of(model: Mapping[str, Any], objective: Mapping[str, Any], **more: Any) -> Recipe:
    """A recipe; of a classifier, with the head that fine-tuning gives it where nothing else is asked."""
    if objective["kind"] == "classification":
        shape = model.get("shape", "decoder")
        objective = {"dense": "tanh" if shape == "encoder" else "none", "bias": shape == "encoder", **objective}
    return Recipe.model_validate(
        {"model": model, "objective": objective, "training": {"steps": 1, "batch_size": 2}, **more}
    )


def made(
    folder: Path,
    recipe: Recipe,
    tokenizer: Tokenizer,
    base: Path | None = None,
    std: float = 0.3,
    biases: float | None = None,
) -> Path:
    """A run whose weights are random: all of them, or with adapters only these and the head. biases: their deviation,
    where it is not that of all weights."""
    rows = tokenizer.resolve_embedding_rows(recipe.model.vocab_size)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"vocab_size": rows})})
    found = None if base is None else resolve_reference(str(base))
    cpu = configure_compute("cpu", "float32")
    lm, _ = build_for_training(recipe, tokenizer, cpu, lambda lm: None, base=found)
    torch.manual_seed(2)
    trained = lora.adapter_or_full_state_dict(lm)
    with torch.no_grad():
        for name, tensor in trained.items():
            nn.init.normal_(tensor, std=std if biases is None or not name.endswith("bias") else biases)
    with create_and_lock_run(
        folder,
        RunInfo.create(
            recipe="small",
            summary="a small model",
            fingerprints={"data": "0" * 64, "tokenizer": tokenizer.fingerprint},
            base=None if found is None else found.to_source_record(),
        ),
        {"recipe.yaml": dump_yaml(recipe).encode(), **tokenizer.serialize_files()},
    ) as run:
        run.save_checkpoint(CheckpointContent(1, trained, {}, {"recipe": recipe.model_dump(mode="json")}), keep_last=1)
    return folder
