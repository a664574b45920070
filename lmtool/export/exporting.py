"""From a run to a directory that Transformers opens: configuration, weights, tokenizer and model card."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer as Inner
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from lmtool import durable
from lmtool.durable import atomic_output_folder, check_folder_is_empty, convert_write_errors
from lmtool.errors import UsageError
from lmtool.export.card import model_card
from lmtool.export.forms import Form, form_of
from lmtool.export.ollama import OllamaPrompt, beside_gguf, modelfile
from lmtool.inference.load import read_merged_weights
from lmtool.inference.reference import Reference, resolve_reference
from lmtool.interop.families import EVERY, GGUF_FAMILIES
from lmtool.interop.families.config import Config
from lmtool.interop.families.family import Described, Family
from lmtool.interop.families.rules import write_labels
from lmtool.interop.gguf.files import FREQUENCIES, Quantization, write_gguf
from lmtool.interop.gguf.vocabulary import express_tokenizer
from lmtool.interop.importing import COLUMNS
from lmtool.interop.names import AS_DIRECTORY, CONFIG, HEAD, MODULES, NOTE
from lmtool.interop.sources import POOLING
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering, Seq2Seq
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.run import tensors
from lmtool.tasks.build import with_decided
from lmtool.tasks.prepare import task_names
from lmtool.tokenization.chat import PAIR_TEMPLATE, ChatFormat, define_variables, find_chat_template
from lmtool.tokenization.inner import ROLE_KEYS, token_content
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE, Tokenizer

TypeName = Literal["float32", "bfloat16", "float16"]

SHARD = 5_000_000_000
"""Bytes of the largest file of weights, as Transformers has it."""

CHAT = "chat_template.jinja"

ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "bos", "eos", "unk", "mask", "sep", "cls")}
"""The special tokens of tokenizers that are trained here."""


@dataclass(frozen=True, kw_only=True)
class Exportable(Form):
    """A run in the terms of a published family, with the ids of special tokens among its `config`."""

    base: Reference

    @cached_property
    def _weights(self) -> Mapping[str, Tensor]:
        return self.divided(read_merged_weights(self.base))

    def divided(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights with the scores of a head divided by its temperature, which no configuration can hold."""
        temperature = getattr(self.recipe.objective, "temperature", None) or 1.0
        of_head = {"head.weight", "head.bias"} & weights.keys() if temperature != 1 else set()
        return {**weights, **{name: weights[name] / temperature for name in of_head}}

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All tensors in the family's names."""
        for weight in self.weights():
            yield from zip(weight.theirs, weight.layout.split(self._weights[weight.ours]), strict=True)
        yield from self.constants().items()

    def head(self) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a head beside its body, in our names."""
        if self.beside:
            yield from ((name, self._weights[name]) for name in self._weights if not name.startswith("body."))

    @property
    def generates(self) -> bool:
        """Whether it writes text."""
        return self.model.reads != "both" and not self.has_head

    def tokenizer_files(self, *, as_source: bool = True) -> dict[str, bytes]:
        """The tokenizer's files, whose template frames a text as in training.

        as_source: of a decoder that answers, as a prompt, which is else for the chat template alone.
        """
        tokenizer, recipe = self.base.tokenizer, self.recipe
        published = tokenizer.published
        whole, prompt_format = tokenizer.to_json(), PromptFormat.from_recipe(recipe, tokenizer)
        if published is None or (self.has_head and not _frames_alike(prompt_format)):
            inner = Inner.from_str(whole)
            if (template := _template(prompt_format, recipe, inner, as_source)) is not None:
                inner.post_processor = template
            whole = inner.to_str(pretty=True)
        roles = {role: text for role in ROLES if (text := token_content((published or ROLES).get(role))) is not None}
        settings = {
            **roles,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.model.longest_row,
            "model_input_names": ["input_ids", *["token_type_ids"] * self.model.has_segments, "attention_mask"],
        }
        files = {
            TOKENIZER_FILE: whole.encode(),
            TOKENIZER_CONFIG_FILE: to_json(settings),
            "special_tokens_map.json": to_json(roles),
        }
        known = {role: name for role, name in roles.items() if role in ("bos_token", "eos_token")}
        chat = _chat_template(prompt_format, known)
        return files if chat is None else files | {CHAT: chat.encode()}


def express(base: Reference, preferred: str | None = None, among: Sequence[Family] = EVERY) -> Exportable:
    """A checkpoint in the terms of the first of these families that can express it.

    preferred: the `model_type` to try first, by default of an imported model its. Raises UsageError, with the keys that
    stand in the way, when none can.
    """
    origin = base.run.info.origin
    recipe = with_decided(base.recipe, base.run.results_by_task.get("", {}), base.checkpoint.step)
    form = form_of(recipe, base.tokenizer, preferred or (origin.model_type if origin else None), among)
    names = {name for weight in form.weights() for name in weight.theirs}
    described = form.family.describe(Config(form.config, CONFIG, names))
    ids = {} if form.family.architecture else _token_ids(base.tokenizer, form.recipe)
    config = form.config | ids | _note(form.recipe, described)
    if form.beside and (labels := getattr(form.recipe.objective, "labels", ())):
        config |= write_labels(labels)
    return Exportable(form.recipe, form.family, config, form.beside, base=base)


def _note(recipe: Recipe, described: Described) -> dict[str, Any]:
    """The note on a recipe that is published as it is `described`; empty where nothing is to be noted."""
    note: dict[str, Any] = {}
    if described.model["context"] != recipe.model.context:
        note["context"] = recipe.model.context
    if isinstance(recipe.objective, HeadSpec | Seq2Seq):
        # a temperature is in the weights
        said = recipe.objective.model_dump(mode="json", exclude_defaults=True, exclude={"temperature"})
        note["objective"] = {"kind": recipe.objective.kind} | said
        note["data"] = recipe.data.model_dump(mode="json", include={*COLUMNS}, exclude_defaults=True)
        if recipe.data.tasks:
            note["data"]["tasks"] = [f"{name}:{name}" for name in task_names(recipe.data)]
    return {NOTE: note} if note else {}


def export(reference: str, folder: Path, *, dtype: TypeName = "float32", shard: int = SHARD) -> Exportable:
    """Write a run as a directory for Transformers. shard: most bytes of a file of weights.

    Raises UsageError for a model that no family can express, for weights that `dtype` cannot hold, and for a folder
    that is in use; ResourceError.
    """
    check_folder_is_empty(folder)
    exportable = express(resolve_reference(reference))
    exportable.config["dtype"] = dtype
    weights = {name: as_type(name, tensor, dtype) for name, tensor in exportable.tensors()}
    files = {"config.json": to_json(exportable.config), **exportable.tokenizer_files()}
    files["README.md"] = model_card(exportable.base, exportable).encode()
    if exportable.generates:
        files["generation_config.json"] = to_json(_generation(exportable))
    if isinstance(exportable.recipe.objective, Embedding):
        files |= _modules(exportable.recipe.objective, exportable.model)
    head = {name: as_type(name, tensor, dtype).contiguous() for name, tensor in exportable.head()}
    with atomic_output_folder(folder) as new:
        _write_weights(new, weights, shard)
        if head:
            durable.write_new_file(new / HEAD, tensors.serialize_safetensors(head, {"format": "pt"}))
        for name, content in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            durable.write_new_file(new / name, content)
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
        "config_sentence_transformers.json": to_json({"prompts": {}, "similarity_fn_name": "cosine"}),
        "sentence_bert_config.json": to_json({"max_seq_length": model.context, "do_lower_case": False}),
    }


def as_type(name: str, tensor: Tensor, dtype: TypeName) -> Tensor:
    """A tensor in another type. Raises UsageError when its values are too large for it."""
    converted = tensor.to(getattr(torch, dtype))
    if not torch.isfinite(converted).all():
        raise UsageError(f"{name} has values too large for {dtype}", where="--dtype", fix="take bfloat16")
    return converted


def export_gguf(reference: str, file: Path, quantization: Quantization) -> Exportable:
    """Write a run as a GGUF file, and a Modelfile for Ollama beside it.

    Raises UsageError for families that GGUF does not have, and for a file that exists; ResourceError.
    """
    durable.check_path_is_free(file)
    durable.check_path_is_free(beside := beside_gguf(file))
    base = resolve_reference(reference)
    if isinstance(base.recipe.objective, HeadSpec):
        what = f"a GGUF file holds a language model, and this one has a head for {base.recipe.objective.kind}"
        raise UsageError(what, where="objective.kind", fix=AS_DIRECTORY)
    exportable = express(base, among=GGUF_FAMILIES)
    written = exportable.tokenizer_files(as_source=False)
    settings = json.loads(written[TOKENIZER_CONFIG_FILE])
    if (chat := written.get(CHAT)) is not None:
        settings["chat_template"] = chat.decode()
    architecture, values = exportable.family.architecture, dict(exportable.config)
    note = {NOTE: json.dumps(values.pop(NOTE), ensure_ascii=False)} if NOTE in values else {}
    values = {key if key == FREQUENCIES else f"{architecture}.{key}": value for key, value in values.items()}
    values |= express_tokenizer(
        written[TOKENIZER_FILE].decode(),
        settings,
        architecture,
        exportable.model.vocab_size or 0,
        ends_of(_generation(exportable)["eos_token_id"]),
    )
    with convert_write_errors(file):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_gguf(file, architecture, values | note, dict(exportable.tensors()), quantization)
        durable.write_new_file(beside, modelfile(file.name, _prompting(exportable, settings)).encode())
    return exportable


def _prompting(exportable: Exportable, settings: Mapping[str, Any]) -> OllamaPrompt:
    """settings: of the written tokenizer."""
    tokenizer, ends = exportable.base.tokenizer, _generation(exportable)["eos_token_id"]
    inner = Inner.from_str(exportable.tokenizer_files(as_source=False)[TOKENIZER_FILE].decode())
    bos = settings.get("bos_token", "")
    begins = bos if bos in inner.encode("a").tokens[:1] else ""
    tokens = {role: text for role in ROLE_KEYS if (text := token_content(settings.get(role))) is not None}
    stops = [tokenizer.token_name(i) for i in ends_of(ends)]
    return OllamaPrompt(settings.get("chat_template"), tokens, begins, stops)


def ends_of(ids: list[int] | int | None) -> list[int]:
    """The ids of the tokens that end a text, by `eos_token_id`."""
    return ids if isinstance(ids, list) else [] if ids is None else [ids]


def _token_ids(tokenizer: Tokenizer, recipe: Recipe) -> dict[str, Any]:
    ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
    if recipe.model.reads == "source":
        ids["decoder_start_token_id"] = tokenizer.roles.starts[0]
    return ids


def _generation(exportable: Exportable) -> dict[str, Any]:
    """generation_config.json: what starts and ends a text."""
    tokenizer = exportable.base.tokenizer
    ids: dict[str, Any] = _token_ids(tokenizer, exportable.recipe)
    ends = PromptFormat.from_recipe(exportable.recipe, tokenizer).end_ids or tokenizer.roles.ends
    if len(ends) > 1:
        ids["eos_token_id"] = sorted(ends, key=lambda i: (i != tokenizer.eos_id, i))
    if len(tokenizer.roles.starts) > 1 and exportable.recipe.model.reads == "source":
        ids["forced_bos_token_id"] = tokenizer.roles.starts[1]
    return ids


def _frames_alike(prompt_format: PromptFormat) -> bool:
    """Whether the template of a published tokenizer frames two texts as the model was trained."""
    template = prompt_format.tokenizer.roles.template
    ends = prompt_format.reads == "both" or prompt_format.after
    return bool(ends) and template == (prompt_format.before, prompt_format.between, prompt_format.after)


def _chat_template(prompt_format: PromptFormat, known: Mapping[str, str]) -> str | None:
    """The template by which other programs prompt a model as it was trained. known: tokens that they give to it."""
    if not (prompt_format.answers and prompt_format.reads == "past"):
        return find_chat_template(prompt_format.tokenizer)
    if prompt_format.chat is not None:
        return prompt_format.chat.export_template(known)
    if prompt_format.tokenizer.published is None:
        return ChatFormat.from_tokenizer(prompt_format.tokenizer).export_template(known)
    names = prompt_format.tokenizer.token_name
    tokens = {
        "opening": "".join(map(names, prompt_format.source_delimiters[0])),
        "eos_token": names(prompt_format.tokenizer.eos_id),
    }
    return define_variables(PAIR_TEMPLATE, tokens, known)


def _template(prompt_format: PromptFormat, recipe: Recipe, inner: Inner, as_source: bool) -> TemplateProcessing | None:
    """The template of a tokenizer trained here: of rows of one text and of two, of prompts, or of sources.

    None where texts stay as they are.
    """
    before, between, after = prompt_format.before, prompt_format.between, prompt_format.after
    if prompt_format.answers:
        before, between, after = (
            prompt_format.source_delimiters[0],
            (),
            prompt_format.source_delimiters[1] if as_source else (),
        )
    elif prompt_format.reads == "past" and not isinstance(recipe.objective, HeadSpec):
        before, between, after = prompt_format.opening, (), ()
    elif prompt_format.reads == "past" and isinstance(recipe.objective, QuestionAnswering):
        after = after or (prompt_format.tokenizer.eos_id,)  # where the row has been read
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
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=shard)
    for file, names in split.filename_to_tensors.items():
        group = {name: weights[name].contiguous() for name in names}
        durable.write_new_file(folder / file, tensors.serialize_safetensors(group, {"format": "pt"}))
    if split.is_sharded:
        content = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        durable.write_new_file(folder / "model.safetensors.index.json", to_json(content))


def to_json(content: Mapping[str, Any]) -> bytes:
    """The content of a JSON file."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
