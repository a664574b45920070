"""From a run to a directory that Transformers opens: configuration, weights, tokenizer and model card."""

import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer as Inner
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from lmtool import durable
from lmtool.decoding.framing import Framing
from lmtool.errors import UsageError
from lmtool.inference.base import Base, open_base
from lmtool.inference.load import weights_of
from lmtool.interop.card import model_card
from lmtool.interop.families import EVERY
from lmtool.interop.families.config import Inexpressible
from lmtool.interop.families.family import Family, Published
from lmtool.interop.gguf_files import Quantization, write_gguf
from lmtool.recipe.spec import Classification, Recipe, Transformer
from lmtool.run import tensors
from lmtool.text.disk import refusing_disk
from lmtool.text.tokenizer import TOKENIZER, Tokenizer

TypeName = Literal["float32", "bfloat16", "float16"]

SHARD = 5_000_000_000
"""Bytes of the largest file of weights, as Transformers has it."""

OWN_ROLES = {
    "pad": "[PAD]",
    "bos": "[BOS]",
    "eos": "[EOS]",
    "unk": "[UNK]",
    "mask": "[MASK]",
    "sep": "[SEP]",
    "cls": "[CLS]",
}
ROLES = tuple(f"{role}_token" for role in OWN_ROLES)


@dataclass(frozen=True)
class Exportable:
    """A run in the terms of a published family.

    config: of config.json. recipe: without adapters.
    """

    base: Base
    recipe: Recipe
    family: Family
    published: Published
    config: dict[str, Any]

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All weights in the family's names."""
        assert isinstance(self.recipe.model, Transformer)
        own = weights_of(self.base)
        for weight in self.family.weights(self.recipe.model, self.recipe.objective):
            yield from zip(weight.theirs, weight.layout.split(own[weight.ours]), strict=True)


def express(reference: str) -> Exportable:
    """The best checkpoint of a run, or a given one, in the terms of the first family that can express it.

    Raises UsageError, with the keys that stand in the way, when none can.
    """
    base = open_base(reference)
    recipe = base.recipe.model_copy(update={"tuning": base.recipe.tuning.model_copy(update={"lora": None})})
    family, published = _family(base, recipe)
    config = {
        "architectures": [published.architecture],
        "model_type": family.model_type,
        **published.config,
        **_token_ids(base.tokenizer, recipe),
        **_labels(recipe),
    }
    return Exportable(base, recipe, family, published, config)


def export(reference: str, folder: Path, *, dtype: TypeName = "float32", shard: int = SHARD) -> Exportable:
    """Write a run as a directory for Transformers. shard: most bytes of a file of weights.

    Raises UsageError for a model that no family can express, and for a folder that is in use; ResourceError.
    """
    _refuse_used(folder)
    expressed = express(reference)
    element = getattr(torch, dtype)
    expressed.config["dtype"] = dtype
    files = {
        "config.json": _json(expressed.config),
        "generation_config.json": _json(_generation(expressed)),
        **_tokenizer_files(expressed),
        "README.md": model_card(expressed.base, expressed.published.architecture).encode(),
    }
    temporary = folder.with_name(f"{durable.TEMPORARY}{folder.name}-{secrets.token_hex(4)}")
    with refusing_disk(folder):
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
    try:
        with refusing_disk(folder):
            _write_weights(temporary, {name: tensor.to(element) for name, tensor in expressed.tensors()}, shard)
            for name, content in files.items():
                durable.write_new(temporary / name, [content])
            durable.sync_directory(temporary)
            temporary.rename(folder)
            durable.sync_directory(folder.absolute().parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return expressed


def export_gguf(reference: str, file: Path, quantization: Quantization) -> Exportable:
    """Write a run as a GGUF file.

    Raises UsageError for families that GGUF does not have, and for a file that exists; ResourceError.
    """
    if file.exists():
        raise UsageError("the file exists already", where=str(file), fix="name another")
    expressed = express(reference)
    written = _tokenizer_files(expressed)
    with refusing_disk(file):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
    write_gguf(
        file,
        expressed.config,
        {name: partial(_given, tensor) for name, tensor in expressed.tensors()},
        written[TOKENIZER].decode(),
        json.loads(written["tokenizer_config.json"]),
        quantization,
    )
    return expressed


def _given(tensor: Tensor) -> Tensor:
    return tensor


def _refuse_used(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError("the output folder is not empty", where=str(folder), fix="name a new one")


def _family(base: Base, recipe: Recipe) -> tuple[Family, Published]:
    """The family of an imported model, or else the first that can express the recipe."""
    if not isinstance(recipe.model, Transformer):
        raise UsageError(
            f"no published family is a {recipe.model.title}",
            where="model.kind",
            fix="Transformers can be exported: docs/interop.md lists them",
        )
    first = (base.run.origin or {}).get("model_type")
    obstacles = []
    for family in sorted(EVERY, key=lambda family: family.model_type != first):
        try:
            published = family.publish(recipe.model, recipe.objective)
            if published.config.get("pad_token_id") not in (None, base.tokenizer.pad_id):
                raise Inexpressible("model.position.offset", "it follows from the id of the padding token there")
            return family, published
        except Inexpressible as error:
            if error.key != "model.shape":
                obstacles.append(f"{family.model_type}: {error.key} ({error.why})")
    raise UsageError(
        f"no published family can express this {recipe.model.title}",
        where="; ".join(obstacles)[:400],
        fix="docs/interop.md lists what can be exported; the keys named here stand in the way",
    )


def _labels(recipe: Recipe) -> dict[str, Any]:
    spec = recipe.objective
    if not isinstance(spec, Classification):
        return {}
    kinds = {"class": "single_label_classification", "multi": "multi_label_classification", "number": "regression"}
    names = spec.labels if spec.task != "number" else ("number",)
    return {
        "problem_type": kinds[spec.task],
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }


def _token_ids(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    if recipe.model.reads == "source":
        ids["decoder_start_token_id"] = tokenizer.roles.starts[0]
    return ids


def _generation(expressed: Exportable) -> dict[str, Any]:
    """generation_config.json: what starts and ends a text."""
    tokenizer = expressed.base.tokenizer
    ids: dict[str, Any] = _token_ids(tokenizer, expressed.recipe)
    if len(tokenizer.roles.ends) > 1:
        ids["eos_token_id"] = sorted(tokenizer.roles.ends, key=lambda i: (i != tokenizer.eos_id, i))
    if len(tokenizer.roles.starts) > 1 and expressed.recipe.model.reads == "source":
        ids["forced_bos_token_id"] = tokenizer.roles.starts[1]
    return ids


def _tokenizer_files(expressed: Exportable) -> dict[str, bytes]:
    """The tokenizer's files, whose template frames a text as in training."""
    tokenizer, recipe = expressed.base.tokenizer, expressed.recipe
    named = tokenizer.published
    whole = tokenizer.to_json()
    if named is None:
        named = {f"{role}_token": name for role, name in OWN_ROLES.items()}
        inner = Inner.from_str(whole)
        frame = _template(recipe, tokenizer, inner)
        if frame is not None:
            inner.post_processor = frame
        whole = inner.to_str(pretty=True)
    roles = {role: name for role, name in named.items() if role in ROLES}
    settings = {**roles, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    if (context := recipe.model.longest_row) is not None:
        settings["model_max_length"] = context
    files = {TOKENIZER: whole.encode(), "special_tokens_map.json": _json(roles)}
    if template := named.get("chat_template"):
        files["chat_template.jinja"] = template.encode()
    inputs = ["input_ids", *(["token_type_ids"] if recipe.model.has_segments else []), "attention_mask"]
    return files | {"tokenizer_config.json": _json({**settings, "model_input_names": inputs})}


def _template(recipe: Recipe, tokenizer: Tokenizer, inner: Inner) -> TemplateProcessing | None:
    """The template of a tokenizer trained here: of rows of one text and of two, or of prompts.

    None where texts stay as they are.
    """
    framing = Framing.of(recipe, tokenizer)
    before, between, after = framing.before, framing.between, framing.after
    if framing.reads == "past" and not isinstance(recipe.objective, Classification):
        before, between, after = framing.opening, (), ()
    if framing.answers or not (before or after):
        return None
    opened, closed = [*map(inner.id_to_token, before), "$A"], list(map(inner.id_to_token, after))
    return TemplateProcessing(
        single=[*opened, *closed],
        pair=[*opened, *map(inner.id_to_token, between), "$B:1", *(f"{name}:1" for name in closed)],
        special_tokens=[(inner.id_to_token(i), i) for i in sorted({*before, *between, *after})],
    )


def _write_weights(folder: Path, weights: Mapping[str, Tensor], shard: int) -> None:
    """model.safetensors, or several files and their index where they are larger than `shard` bytes."""
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in weights.items():
        if groups[-1] and size + tensor.nbytes > shard:
            groups.append({})
            size = 0
        groups[-1][name] = tensor.contiguous()
        size += tensor.nbytes
    names = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    if len(groups) == 1:
        names = ["model.safetensors"]
    for name, group in zip(names, groups, strict=True):
        durable.write_new(folder / name, tensors.serialise(group, {"format": "pt"}))
    if len(groups) > 1:
        index = {tensor: name for name, group in zip(names, groups, strict=True) for tensor in group}
        total = sum(tensor.nbytes for tensor in weights.values())
        content = {"metadata": {"total_size": total}, "weight_map": index}
        durable.write_new(folder / "model.safetensors.index.json", [_json(content)])


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
