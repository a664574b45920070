"""From a run to a directory that Transformers opens: configuration, weights, tokenizer and model card."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
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
from lmtool.interop.families.config import Config
from lmtool.interop.families.tasks import write_labels
from lmtool.interop.forms import Form, form_of
from lmtool.interop.gguf.files import Quantization, write_gguf
from lmtool.interop.notes import HEAD, write_note
from lmtool.interop.reference import CONFIG, MODULES
from lmtool.interop.sources import POOLING
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run import tensors
from lmtool.text.chat import PAIRS, ChatFormat, own_template, standing_alone
from lmtool.text.disk import filling, refuse_used, refusing_disk
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


@dataclass(frozen=True, kw_only=True)
class Exportable(Form):
    """A run in the terms of a published family.

    config: of config.json, with the ids of special tokens.
    """

    base: Base
    config: dict[str, Any]

    @cached_property
    def _own(self) -> Mapping[str, Tensor]:
        return weights_of(self.base)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in the family's names."""
        for weight in self.weights():
            yield from zip(weight.theirs, weight.layout.split(self._own[weight.ours]), strict=True)
        yield from self.constants().items()

    def head(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a head beside its body, in our names."""
        if self.beside:
            yield from ((name, self._own[name]) for name in self._own if not name.startswith("body."))

    @property
    def generates(self) -> bool:
        """Whether it writes text."""
        return self.model.reads != "both" and not self.has_head

    def tokenizer_files(self, *, as_source: bool = True) -> dict[str, bytes]:
        """The tokenizer's files, whose template frames a text as in training.

        as_source: of a decoder that answers, as a prompt, which is else for the chat template alone.
        """
        tokenizer, recipe = self.base.tokenizer, self.recipe
        named = tokenizer.published
        whole, framing = tokenizer.to_json(), Framing.of(recipe, tokenizer)
        if named is None or (self.has_head and not _frames_alike(framing)):
            inner = Inner.from_str(whole)
            if (template := _template(framing, recipe, inner, as_source)) is not None:
                inner.post_processor = template
            whole = inner.to_str(pretty=True)
        if named is None:
            named = {f"{role}_token": name for role, name in OWN_ROLES.items()}
        present = {role: named[role] for role in ROLES if named.get(role) is not None}
        roles: dict[str, str] = {
            k: token["content"] if isinstance(token, dict) else token for k, token in present.items()
        }
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
        chat = _chat_template(framing, {role: roles[role] for role in ("bos_token", "eos_token") if role in roles})
        return files if chat is None else files | {CHAT: chat.encode()}


def express(reference: str) -> Exportable:
    """The best checkpoint of a run, or a given one, in the terms of the first family that can express it.

    Raises UsageError, with the keys that stand in the way, when none can.
    """
    base = open_base(reference)
    return expressed(base, base.run.origin.model_type if base.run.origin else None)


def expressed(base: Base, preferred: str | None) -> Exportable:
    """The same of an open checkpoint. preferred: the `model_type` to try first, such as that of an imported model."""
    form = form_of(_decided(base), base.tokenizer, preferred)
    names = {name for weight in form.weights() for name in weight.theirs}
    described = form.family.describe(Config(form.published.config, CONFIG), names)
    config = form.published.config | _token_ids(base.tokenizer, form.recipe) | write_note(form.recipe, described)
    if form.beside and (labels := getattr(form.recipe.objective, "labels", ())):
        config |= write_labels(labels)
    return Exportable(form.recipe, form.family, form.published, form.beside, base=base, config=config)


def _decided(base: Base) -> Recipe:
    """The recipe, with what the validation rows of the run have decided."""
    spec = base.recipe.objective
    if not isinstance(spec, QuestionAnswering) or spec.null_threshold is not None:
        return base.recipe
    decided = base.run.all_results.get("", {}).get("null_threshold")
    return base.recipe.model_copy(update={"objective": spec.model_copy(update={"null_threshold": decided})})


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
    files["README.md"] = model_card(exportable.base, exportable).encode()
    if exportable.generates:
        files["generation_config.json"] = to_json(_generation(exportable))
    if isinstance(exportable.recipe.objective, Embedding):
        files |= _modules(exportable.recipe.objective, exportable.model)
    head = {name: as_type(name, tensor, dtype).contiguous() for name, tensor in exportable.head()}
    with filling(folder) as place:
        _write_weights(place, weights, shard)
        if head:
            durable.write_new(place / HEAD, tensors.serialise(head, {"format": "pt"}))
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
    if exportable.has_head:
        raise UsageError(
            f"a GGUF file holds a language model, and this one has a head for {exportable.recipe.objective.kind}",
            where="objective.kind",
            fix="export it as a directory, by a name that does not end in .gguf",
        )
    written = exportable.tokenizer_files(as_source=False)
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


def _token_ids(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    if recipe.model.reads == "source":
        ids["decoder_start_token_id"] = tokenizer.roles.starts[0]
    return ids


def _generation(exportable: Exportable) -> dict[str, Any]:
    """generation_config.json: what starts and ends a text."""
    tokenizer = exportable.base.tokenizer
    ids: dict[str, Any] = _token_ids(tokenizer, exportable.recipe)
    ends = Framing.of(exportable.recipe, tokenizer).end_ids or tokenizer.roles.ends
    if len(ends) > 1:
        ids["eos_token_id"] = sorted(ends, key=lambda i: (i != tokenizer.eos_id, i))
    if len(tokenizer.roles.starts) > 1 and exportable.recipe.model.reads == "source":
        ids["forced_bos_token_id"] = tokenizer.roles.starts[1]
    return ids


def _frames_alike(framing: Framing) -> bool:
    """Whether the template of a published tokenizer frames two texts as the model was trained."""
    template = framing.tokenizer.roles.template
    ends = framing.reads == "both" or framing.after
    return bool(ends) and template == (framing.before, framing.between, framing.after)


def _chat_template(framing: Framing, known: Mapping[str, str]) -> str | None:
    """The template by which other programs prompt a model as it was trained. known: tokens that they give to it."""
    if not (framing.answers and framing.reads == "past"):
        return own_template(framing.tokenizer)
    if framing.chat is not None:
        return framing.chat.alone(known)
    if framing.tokenizer.published is None:
        return ChatFormat.of(framing.tokenizer).alone(known)
    names = framing.tokenizer.name
    tokens = {"opening": "".join(map(names, framing.around[0])), "eos_token": names(framing.tokenizer.eos_id)}
    return standing_alone(PAIRS, tokens, known)


def _template(framing: Framing, recipe: Recipe, inner: Inner, as_source: bool) -> TemplateProcessing | None:
    """The template of a tokenizer trained here: of rows of one text and of two, of prompts, or of sources.

    None where texts stay as they are.
    """
    before, between, after = framing.before, framing.between, framing.after
    if framing.answers:
        before, between, after = framing.around[0], (), framing.around[1] if as_source else ()
    elif framing.reads == "past" and not isinstance(recipe.objective, HeadSpec):
        before, between, after = framing.opening, (), ()
    elif framing.reads == "past" and isinstance(recipe.objective, QuestionAnswering):
        after = after or (framing.tokenizer.eos_id,)  # where the row has been read
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
