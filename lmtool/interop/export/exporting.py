"""Exports a run as a directory that Transformers opens, or as a GGUF file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer as Inner
from tokenizers.processors import TemplateProcessing
from torch import Tensor

from lmtool.errors import UsageError
from lmtool.interop.export.card import format_model_card
from lmtool.interop.export.forms import FamilyRepresentation, find_full_or_body_representation
from lmtool.interop.export.ollama import format_modelfile, modelfile_path
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.rules import make_labels_config
from lmtool.interop.gguf.vocabulary import convert_tokenizer_to_gguf_keys
from lmtool.interop.gguf.writing import ROPE_DIVISORS_TENSOR, Quantization, write_gguf
from lmtool.interop.importing import NOTED_COLUMNS
from lmtool.interop.published_models import GENERATION_FILE, INDEX_FILE, LENGTH_FILE, POOLING_KEYS
from lmtool.interop.references import CONFIG_FILE, HEAD_FILE, MODULES_FILE, NOTE_KEY, USE_DIRECTORY_FIX
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.spec.objective import Embedding, HeadSpec, QuestionAnswering, Seq2Seq
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs import tensors
from lmtool.runs.load import read_merged_weights
from lmtool.runs.reference import Reference, with_unset_calibration_filled
from lmtool.storage import durable
from lmtool.storage.durable import atomic_output_folder, check_folder_is_empty, convert_write_errors
from lmtool.tokenization.chat import PAIR_TEMPLATE, ChatFormat, define_variables, get_own_chat_template
from lmtool.tokenization.inner import ROLE_KEYS, token_content
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import TOKENIZER_CONFIG_FILE, TOKENIZER_FILE

ExportDtype = Literal["float32", "bfloat16", "float16"]

MAX_SHARD_BYTES = 5_000_000_000
"""Bytes of the largest file of weights, as in Transformers."""

CHAT_TEMPLATE_FILE = "chat_template.jinja"

TRAINED_ROLES = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "bos", "eos", "unk", "mask", "sep", "cls")}
"""The special tokens of tokenizers that are trained here."""


@dataclass(frozen=True, kw_only=True)
class ExportableRun(FamilyRepresentation):
    """A run in the terms of a published family, with the ids of special tokens among its `config`."""

    base: Reference

    @cached_property
    def weights(self) -> Mapping[str, Tensor]:
        """The weights by lmtool's names, with adapters merged, as they are published."""
        return self.divide_head_by_temperature(read_merged_weights(self.base))

    @cached_property
    def prompt_format(self) -> PromptFormat:
        """How the model is prompted."""
        return PromptFormat.from_recipe(self.recipe, self.base.tokenizer)

    def divide_head_by_temperature(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Returns weights with the head divided by its temperature, which no configuration can hold."""
        temperature = getattr(self.recipe.objective, "temperature", None) or 1.0
        names = {"head.weight", "head.bias"} & weights.keys() if temperature != 1 else set()
        return {**weights, **{name: weights[name] / temperature for name in names}}

    def iterate_published_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Iterates over all tensors by the family's names."""
        for mapping in self.list_parameter_mappings():
            yield from zip(mapping.published_names, mapping.layout.split(self.weights[mapping.name]), strict=True)
        yield from self.constant_tensors().items()

    @property
    def is_generative(self) -> bool:
        """Whether it writes text."""
        return self.model.reads != "both" and not self.has_head

    def special_token_ids(self) -> dict[str, Any]:
        """The ids of the tokens that pad, start and end a text, by the keys of config.json."""
        tokenizer = self.base.tokenizer
        ids = {"pad_token_id": tokenizer.pad_id, "bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.eos_id}
        if self.model.reads == "source":
            ids["decoder_start_token_id"] = tokenizer.roles.starts[0]
        return ids

    def eos_token_ids(self) -> list[int]:
        """The ids of all tokens that end a generated text, the tokenizer's own first."""
        tokenizer = self.base.tokenizer
        ends = self.prompt_format.end_ids or tokenizer.roles.ends
        return sorted({*ends} if len(ends) > 1 else {tokenizer.eos_id}, key=lambda i: (i != tokenizer.eos_id, i))

    def serialize_tokenizer(self, *, adds_source_closing: bool = True) -> dict[str, bytes]:
        """Returns the contents of the tokenizer's files, whose template frames a text as in training.

        adds_source_closing: puts what follows a source behind each text; otherwise the chat template alone does.
        """
        tokenizer, prompt_format = self.base.tokenizer, self.prompt_format
        published = tokenizer.published
        tokenizer_json = tokenizer.to_json()
        frame = (prompt_format.before, prompt_format.between, prompt_format.after)
        # whether the template of a published tokenizer frames two texts as in training
        is_framed = (prompt_format.reads == "both" or prompt_format.after) and tokenizer.roles.template == frame
        if published is None or (self.has_head and not is_framed):
            inner = Inner.from_str(tokenizer_json)
            if (template := _build_row_template(prompt_format, self.recipe, inner, adds_source_closing)) is not None:
                inner.post_processor = template
            tokenizer_json = inner.to_str(pretty=True)
        named = published or TRAINED_ROLES
        roles = {role: text for role in TRAINED_ROLES if (text := token_content(named.get(role))) is not None}
        settings = {
            **roles,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": self.model.longest_row,
            "model_input_names": ["input_ids", *["token_type_ids"] * self.model.has_segments, "attention_mask"],
        }
        files = {
            TOKENIZER_FILE: tokenizer_json.encode(),
            TOKENIZER_CONFIG_FILE: format_json_file(settings),
            "special_tokens_map.json": format_json_file(roles),
        }
        variables = {role: text for role, text in roles.items() if role in ("bos_token", "eos_token")}
        chat_template = _build_chat_template(prompt_format, variables)
        return files if chat_template is None else files | {CHAT_TEMPLATE_FILE: chat_template.encode()}


def prepare_export(
    reference: Reference, preferred_model_type: str | None = None, *, is_gguf: bool = False
) -> ExportableRun:
    """Expresses a checkpoint in the terms of the first family that can.

    preferred_model_type: tried first; by default that of an imported model. is_gguf: a GGUF file is wanted.
    Raises UsageError with the keys that no family can express.
    """
    origin = reference.run.info.origin
    recipe = with_unset_calibration_filled(
        reference.recipe, reference.run.results_by_task.get("", {}), reference.checkpoint.step
    )
    preferred_model_type = preferred_model_type or (origin.model_type if origin else None)
    form = find_full_or_body_representation(recipe, reference.tokenizer, preferred_model_type, is_gguf=is_gguf)
    exportable = ExportableRun(form.recipe, form.family, form.config, form.head_obstacles, base=reference)
    config = form.config | ({} if is_gguf else exportable.special_token_ids()) | _build_round_trip_metadata(form)
    if form.has_separate_head and (labels := getattr(form.recipe.objective, "labels", ())):
        config |= make_labels_config(labels)
    return replace(exportable, config=config)


def _build_round_trip_metadata(form: FamilyRepresentation) -> dict[str, Any]:
    """Builds the entry of a configuration from which an import restores what other keys do not say. It may be empty."""
    recipe, note = form.recipe, dict[str, Any]()
    names = {name for mapping in form.list_parameter_mappings() for name in mapping.published_names}
    published = form.family.read_recipe_from_config(StrictConfigReader(form.config, CONFIG_FILE, names))
    if published["model"]["context"] != recipe.model.context:
        note["context"] = recipe.model.context
    if isinstance(recipe.objective, HeadSpec | Seq2Seq):
        # a temperature is in the weights
        values = recipe.objective.model_dump(mode="json", exclude_defaults=True, exclude={"temperature"})
        note["objective"] = {"kind": recipe.objective.kind} | values
        note["data"] = recipe.data.model_dump(mode="json", include={*NOTED_COLUMNS}, exclude_defaults=True)
        if recipe.data.tasks:
            note["data"]["tasks"] = [f"{name}:{name}" for name in recipe.data.task_names]
    return {NOTE_KEY: note} if note else {}


def export(
    reference: str, folder: Path, *, dtype: ExportDtype = "float32", max_shard_bytes: int = MAX_SHARD_BYTES
) -> ExportableRun:
    """Writes a run as a directory for Transformers. max_shard_bytes: of each file of weights.

    Raises UsageError for a model that no family can express, for weights that `dtype` cannot hold, and for a folder
    that is in use; ResourceError.
    """
    check_folder_is_empty(folder)
    exportable = prepare_export(resolve_reference(reference))
    weights = {
        name: cast_checking_overflow(name, tensor, dtype) for name, tensor in exportable.iterate_published_tensors()
    }
    config = {**exportable.config, "dtype": dtype}
    files = {CONFIG_FILE: format_json_file(config), **exportable.serialize_tokenizer()}
    files["README.md"] = format_model_card(exportable.base, exportable).encode()
    if exportable.is_generative:
        # what starts and ends a text
        ids, starts = exportable.special_token_ids(), exportable.base.tokenizer.roles.starts
        if len(ends := exportable.eos_token_ids()) > 1:
            ids["eos_token_id"] = ends
        if len(starts) > 1 and exportable.model.reads == "source":
            ids["forced_bos_token_id"] = starts[1]
        files[GENERATION_FILE] = format_json_file(ids)
    if isinstance(exportable.recipe.objective, Embedding):
        files |= _sentence_transformers_files(exportable.recipe.objective, exportable.model)
    head = {
        name: cast_checking_overflow(name, exportable.weights[name], dtype)
        for name in (exportable.weights if exportable.has_separate_head else ())
        if not name.startswith("body.")
    }
    with atomic_output_folder(folder) as new:
        _write_weights(new, weights, max_shard_bytes)
        if head:
            write_safetensors(new / HEAD_FILE, head)
        for name, content in files.items():
            (new / name).parent.mkdir(exist_ok=True)
            durable.write_and_sync_new_file(new / name, content)
    return exportable


def _sentence_transformers_files(spec: Embedding, model: Transformer) -> dict[str, bytes]:
    """The files by which sentence-transformers pools as the model does."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if spec.normalize else [])]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    modes = {key: pooling == spec.pool for key, pooling in POOLING_KEYS.items()}
    return {
        MODULES_FILE: json.dumps(modules, indent=2).encode() + b"\n",
        "1_Pooling/config.json": format_json_file({"word_embedding_dimension": model.d_model, **modes}),
        "config_sentence_transformers.json": format_json_file({"prompts": {}, "similarity_fn_name": "cosine"}),
        LENGTH_FILE: format_json_file({"max_seq_length": model.context, "do_lower_case": False}),
    }


def cast_checking_overflow(name: str, tensor: Tensor, dtype: ExportDtype) -> Tensor:
    """Converts a tensor to another type. Raises UsageError when its values are too large for it."""
    converted = tensor.to(getattr(torch, dtype))
    if not torch.isfinite(converted).all():
        raise UsageError(f"{name} has values too large for {dtype}", where="--dtype", fix="take bfloat16")
    return converted


def export_gguf_and_modelfile(reference: str, file: Path, quantization: Quantization) -> ExportableRun:
    """Writes a run as a GGUF file, and a Modelfile for Ollama beside it.

    Raises UsageError for families that GGUF does not have, and for a file that exists; ResourceError.
    """
    durable.check_path_does_not_exist(file)
    durable.check_path_does_not_exist(modelfile := modelfile_path(file))
    base = resolve_reference(reference)
    if isinstance(base.recipe.objective, HeadSpec):
        what = f"a GGUF file holds a language model, and this one has a head for {base.recipe.objective.kind}"
        raise UsageError(what, where="objective.kind", fix=USE_DIRECTORY_FIX)
    exportable = prepare_export(base, is_gguf=True)
    written = exportable.serialize_tokenizer(adds_source_closing=False)
    tokenizer_json, settings = written[TOKENIZER_FILE].decode(), json.loads(written[TOKENIZER_CONFIG_FILE])
    if (chat_template := written.get(CHAT_TEMPLATE_FILE)) is not None:
        settings["chat_template"] = chat_template.decode()
    architecture, values = exportable.family.architecture, dict(exportable.config)
    note = {NOTE_KEY: json.dumps(values.pop(NOTE_KEY), ensure_ascii=False)} if NOTE_KEY in values else {}
    values = {key if key == ROPE_DIVISORS_TENSOR else f"{architecture}.{key}": value for key, value in values.items()}
    values |= convert_tokenizer_to_gguf_keys(
        tokenizer_json, settings, architecture, exportable.model.vocab_size or 0, exportable.eos_token_ids()
    )
    bos = settings.get("bos_token", "")
    modelfile_text = format_modelfile(
        file.name,
        settings.get("chat_template"),
        template_variables={
            role: text for role in ROLE_KEYS if (text := token_content(settings.get(role))) is not None
        },
        bos=bos if bos in Inner.from_str(tokenizer_json).encode("a").tokens[:1] else "",
        stop_tokens=[base.tokenizer.token_name(i) for i in exportable.eos_token_ids()],
    )
    with convert_write_errors(file):
        file.absolute().parent.mkdir(parents=True, exist_ok=True)
        write_gguf(file, architecture, values | note, dict(exportable.iterate_published_tensors()), quantization)
        durable.write_and_sync_new_file(modelfile, modelfile_text.encode())
    return exportable


def _build_chat_template(prompt_format: PromptFormat, template_variables: Mapping[str, str]) -> str | None:
    """Builds the template by which other programs prompt a model as it was trained.

    template_variables: the tokens that these programs give to it.
    """
    tokenizer = prompt_format.tokenizer
    if not (prompt_format.answers and prompt_format.reads == "past"):
        return get_own_chat_template(tokenizer)
    if prompt_format.chat is not None:
        return prompt_format.chat.export_template(template_variables)
    if tokenizer.published is None:
        return ChatFormat.from_tokenizer_or_plain(tokenizer).export_template(template_variables)
    opening = "".join(map(tokenizer.token_name, prompt_format.source_delimiters[0]))
    tokens = {"opening": opening, "eos_token": tokenizer.token_name(tokenizer.eos_id)}
    return define_variables(PAIR_TEMPLATE, tokens, template_variables)


def _build_row_template(
    prompt_format: PromptFormat, recipe: Recipe, fast_tokenizer: Inner, adds_source_closing: bool
) -> TemplateProcessing | None:
    """Builds the template of a tokenizer trained here: of rows of one text and of two, of prompts, or of sources.

    None where texts stay as they are.
    """
    before, between, after = prompt_format.before, prompt_format.between, prompt_format.after
    if prompt_format.answers:
        opening, closing = prompt_format.source_delimiters
        before, between, after = opening, (), closing if adds_source_closing else ()
    elif prompt_format.reads == "past" and not isinstance(recipe.objective, HeadSpec):
        before, between, after = prompt_format.opening, (), ()
    elif prompt_format.reads == "past" and isinstance(recipe.objective, QuestionAnswering):
        after = after or (prompt_format.tokenizer.eos_id,)  # where the row has been read
    if not (before or after):
        return None
    opened, closed = [*map(fast_tokenizer.id_to_token, before), "$A"], list(map(fast_tokenizer.id_to_token, after))
    return TemplateProcessing(
        single=[*opened, *closed],
        pair=[*opened, *map(fast_tokenizer.id_to_token, between), "$B:1", *(f"{name}:1" for name in closed)],
        special_tokens=[(fast_tokenizer.id_to_token(i), i) for i in sorted({*before, *between, *after})],
    )


def _write_weights(folder: Path, weights: Mapping[str, Tensor], max_shard_bytes: int) -> None:
    """Writes model.safetensors, or several files and their index where they are larger than one may be."""
    from huggingface_hub import split_torch_state_dict_into_shards

    split = split_torch_state_dict_into_shards(dict(weights), max_shard_size=max_shard_bytes)
    for file, names in split.filename_to_tensors.items():
        write_safetensors(folder / file, {name: weights[name] for name in names})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        durable.write_and_sync_new_file(folder / INDEX_FILE, format_json_file(index))


def write_safetensors(file: Path, weights: Mapping[str, Tensor]) -> None:
    """Writes a new file of weights for PyTorch. Raises OSError."""
    durable.write_and_sync_new_file(file, tensors.serialize_safetensors(weights, {"format": "pt"}))


def format_json_file(content: Mapping[str, Any]) -> bytes:
    """Encodes the content of a JSON file."""
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"
