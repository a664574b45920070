"""From a run to a directory that Transformers opens: configuration, weights, tokenizer and model card."""

import json
import os
import secrets
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
from lmtool.interop.families.layouts import Weight
from lmtool.interop.gguf.files import Quantization, write_gguf
from lmtool.interop.reference import MODULES
from lmtool.interop.sources import POOLING
from lmtool.recipe.spec.objective import Classification, Embedding, QuestionAnswering, Tagging
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run import tensors
from lmtool.text.chat import PLAIN, own_template
from lmtool.text.disk import refusing_disk
from lmtool.text.tokenizer import TOKENIZER, TOKENIZER_CONFIG, Tokenizer

TypeName = Literal["float32", "bfloat16", "float16"]

SHARD = 5_000_000_000
"""Bytes of the largest file of weights, as Transformers has it."""

CHAT = "chat_template.jinja"

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

    recipe: without adapters. config: of config.json, with the ids of special tokens.
    """

    base: Base
    recipe: Recipe
    family: Family
    published: Published
    config: dict[str, Any]

    def weights(self) -> list[Weight]:
        """How the family's tensors are made of the run's."""
        return self.family.weights(self.model, self.recipe.objective)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in the family's names."""
        own = weights_of(self.base)
        for weight in self.weights():
            yield from zip(weight.theirs, weight.layout.split(own[weight.ours]), strict=True)
        yield from self.family.constants(self.model, self.recipe.objective).items()

    @property
    def model(self) -> Transformer:
        assert isinstance(self.recipe.model, Transformer)
        return self.recipe.model

    @property
    def generates(self) -> bool:
        """Whether it writes text."""
        return self.model.reads != "both" and not isinstance(self.recipe.objective, Classification)

    def tokenizer_files(self) -> dict[str, bytes]:
        """The tokenizer's files, whose template frames a text as in training."""
        tokenizer, recipe = self.base.tokenizer, self.recipe
        named = tokenizer.published
        whole, chat = tokenizer.to_json(), own_template(tokenizer)
        if named is None:
            named = {f"{role}_token": name for role, name in OWN_ROLES.items()}
            framing = Framing.of(recipe, tokenizer)
            inner = Inner.from_str(whole)
            if (template := _template(framing, recipe, inner)) is not None:
                inner.post_processor = template
            whole = inner.to_str(pretty=True)
            if framing.answers and framing.reads == "past":
                chat = PLAIN
        tokens = {role: name.get("content") if isinstance(name, dict) else name for role, name in named.items()}
        roles = {role: tokens[role] for role in ROLES if tokens.get(role) is not None}
        settings = {**roles, "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        settings["model_max_length"] = self.model.longest_row
        settings["model_input_names"] = [
            *("input_ids", *(["token_type_ids"] if self.model.has_segments else []), "attention_mask")
        ]
        files = {
            TOKENIZER: whole.encode(),
            TOKENIZER_CONFIG: to_json(settings),
            "special_tokens_map.json": to_json(roles),
        }
        return files if chat is None else files | {CHAT: chat.encode()}


def express(reference: str) -> Exportable:
    """The best checkpoint of a run, or a given one, in the terms of the first family that can express it.

    Raises UsageError, with the keys that stand in the way, when none can.
    """
    base = open_base(reference)
    return expressed(base, base.run.origin.model_type if base.run.origin else None)


def expressed(base: Base, preferred: str | None) -> Exportable:
    """The same of an open checkpoint. preferred: the `model_type` to try first, such as that of an imported model."""
    recipe = base.recipe.model_copy(update={"tuning": base.recipe.tuning.model_copy(update={"lora": None})})
    if isinstance(recipe.objective, Tagging | QuestionAnswering):
        raise UsageError(
            f"a head for {recipe.objective.kind} is not exported",
            where="objective.kind",
            fix="export the run that it was fine-tuned from",
        )
    if isinstance(recipe.model, Transformer):
        rows = base.tokenizer.embedding_rows(recipe.model.vocab_size)
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"vocab_size": rows})})
    family, published = _family(base, recipe, preferred)
    return Exportable(base, recipe, family, published, published.config | _token_ids(base.tokenizer, recipe))


def export(reference: str, folder: Path, *, dtype: TypeName = "float32", shard: int = SHARD) -> Exportable:
    """Write a run as a directory for Transformers. shard: most bytes of a file of weights.

    Raises UsageError for a model that no family can express, for weights that `dtype` cannot hold, and for a folder
    that is in use; ResourceError.
    """
    refuse_used(folder)
    exportable = express(reference)
    exportable.config["dtype"] = dtype
    weights = {name: as_type(name, tensor, dtype) for name, tensor in exportable.tensors()}
    files = {"config.json": to_json(exportable.config), **exportable.tokenizer_files()}
    files["README.md"] = model_card(exportable.base, exportable.published.architecture).encode()
    if exportable.generates:
        files["generation_config.json"] = to_json(_generation(exportable))
    if isinstance(exportable.recipe.objective, Embedding):
        files |= _modules(exportable.recipe.objective, exportable.model)
    with filling(folder) as place:
        _write_weights(place, weights, shard)
        for name, content in files.items():
            (place / name).parent.mkdir(exist_ok=True)
            durable.write_new(place / name, [content])
    return exportable


def _modules(spec: Embedding, model: Transformer) -> dict[str, bytes]:
    """The files by which sentence-transformers pools as the model does."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if spec.normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    modes = {mode: ours == spec.pool for mode, ours in POOLING.items()}
    return {
        MODULES: json.dumps(modules, indent=2).encode() + b"\n",
        "1_Pooling/config.json": to_json({"word_embedding_dimension": model.d_model, **modes}),
        "sentence_bert_config.json": to_json({"max_seq_length": model.context, "do_lower_case": False}),
    }


def refuse_used(folder: Path) -> None:
    """Raise UsageError for a path that is no new or empty folder."""
    with refusing_disk(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError("the output folder is not empty", where=str(folder), fix="name a new one")


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A hidden folder to write to, which becomes `folder` at the end; after an error nothing stays behind.

    Raises ResourceError for all errors of the operating system.
    """
    folder = Path(os.path.realpath(folder))
    temporary = folder.with_name(f"{durable.TEMPORARY}{folder.name}-{secrets.token_hex(4)}")
    with refusing_disk(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        try:
            yield temporary
            durable.sync_directory(temporary)
            temporary.rename(folder)
            durable.sync_directory(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def as_type(name: str, tensor: Tensor, dtype: TypeName) -> Tensor:
    """A tensor in another type. Raises UsageError when its values are too large for it."""
    converted = tensor.to(getattr(torch, dtype))
    if not torch.isfinite(converted).all():
        raise UsageError(f"{name} has values too large for {dtype}", where="--dtype", fix="take bfloat16")
    return converted


def export_gguf(reference: str, file: Path, quantization: Quantization) -> Exportable:
    """Write a run as a GGUF file.

    Raises UsageError for families that GGUF does not have, and for a file that exists; ResourceError.
    """
    if os.path.lexists(file):
        raise UsageError("the file exists already", where=str(file), fix="name another")
    exportable = express(reference)
    written = exportable.tokenizer_files()
    settings = json.loads(written[TOKENIZER_CONFIG])
    if (chat := written.get(CHAT)) is not None:
        settings["chat_template"] = chat.decode()
    with refusing_disk(file):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_gguf(
            file,
            exportable.config | _generation(exportable),
            {name: partial(_given, tensor) for name, tensor in exportable.tensors()},
            written[TOKENIZER].decode(),
            settings,
            quantization,
        )
    return exportable


def _given(tensor: Tensor) -> Tensor:
    return tensor


def _family(base: Base, recipe: Recipe, preferred: str | None) -> tuple[Family, Published]:
    """The first family that can express the recipe."""
    if not isinstance(recipe.model, Transformer):
        raise UsageError(
            f"no published family is a {recipe.model.title}",
            where="model.kind",
            fix="Transformers can be exported: docs/interop.md lists them",
        )
    obstacles: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for family in sorted(EVERY, key=lambda family: family.model_type != preferred):
        try:
            published = family.publish(recipe.model, recipe.objective)
            if published.config.get("pad_token_id") not in (None, base.tokenizer.pad_id):
                raise Inexpressible("model.position.offset", "it follows from the id of the padding token there")
            return family, published
        except Inexpressible as error:
            if error.key != "model.shape":
                obstacles[error.key].append((family.model_type, error.why))
    raise UsageError(
        f"no published family can express this {recipe.model.title}",
        where=_listed(obstacles),
        fix="docs/interop.md lists what can be exported; the keys named here stand in the way",
    )


def _listed(obstacles: Mapping[str, list[tuple[str, str]]]) -> str:
    """Keys that stand in the way, with the families and what they agree on as the reason; the fewest families first."""
    told = []
    for key, found in sorted(obstacles.items(), key=lambda item: len(item[1])):
        names = ", ".join(name for name, _ in found)
        values = {why.partition(", where ")[0] for _, why in found}
        why = found[0][1] if len(found) == 1 else ", ".join(values) if len(values) == 1 else ""
        told.append(f"{names}: {key}" + f" ({why})" * bool(why))
    return "; ".join(told)[:400] or "model.shape"


def _token_ids(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    if recipe.model.reads == "source":
        ids["decoder_start_token_id"] = tokenizer.roles.starts[0]
    return ids


def _generation(exportable: Exportable) -> dict[str, Any]:
    """generation_config.json: what starts and ends a text."""
    tokenizer = exportable.base.tokenizer
    ids: dict[str, Any] = _token_ids(tokenizer, exportable.recipe)
    if len(tokenizer.roles.ends) > 1:
        ids["eos_token_id"] = sorted(tokenizer.roles.ends, key=lambda i: (i != tokenizer.eos_id, i))
    if len(tokenizer.roles.starts) > 1 and exportable.recipe.model.reads == "source":
        ids["forced_bos_token_id"] = tokenizer.roles.starts[1]
    return ids


def _template(framing: Framing, recipe: Recipe, inner: Inner) -> TemplateProcessing | None:
    """The template of a tokenizer trained here: of rows of one text and of two, of prompts, or of sources.

    None where texts stay as they are.
    """
    before, between, after = framing.before, framing.between, framing.after
    if framing.answers:
        before, between, after = framing.around[0], (), framing.around[1]
    elif framing.reads == "past" and not isinstance(recipe.objective, Classification):
        before, between, after = framing.opening, (), ()
    if not (before or after):
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
        durable.write_new(folder / "model.safetensors.index.json", [to_json(content)])


def to_json(content: Mapping[str, Any]) -> bytes:
    """The content of a JSON file."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
