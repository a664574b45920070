"""Imports a published model as an ordinary run: its recipe, its tokenizer, and a checkpoint at step 0.

Weights go from file to file, one tensor at a time. What a RUN argument names is imported once into the cache, and found
again there by the content of its files.
"""

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from lmtool.data.survey import Progress, no_progress
from lmtool.errors import CheckpointError
from lmtool.interop import references
from lmtool.interop.families.family import BODY_OBJECTIVE
from lmtool.interop.families.layouts import ParameterMapping
from lmtool.interop.families.rules import HEAD_OBJECTIVES, read_labels_or_default_names
from lmtool.interop.files import import_error
from lmtool.interop.published_models import PublishedModel, download_hub_model, open_published_model
from lmtool.model import add_objective_head
from lmtool.model.size import UNCOUNTABLE, build_on_meta, count_parameters
from lmtool.printable import printable
from lmtool.recipe.dump import dump_yaml
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.transformer import Transformer
from lmtool.runs.creation import check_output_free_and_writable, create_and_lock_run, make_run_path
from lmtool.runs.directory import RECIPE
from lmtool.runs.files import RunInfo
from lmtool.runs.paths import RUN_INFO_FILE, add_to_runs_index
from lmtool.runs.saving import CheckpointContent
from lmtool.runs.tensors import ComputedTensors
from lmtool.storage.checksum import sha256_of_file, sha256_of_json
from lmtool.storage.durable import (
    atomic_output_folder,
    check_folder_is_empty,
    convert_os_errors,
    convert_write_errors,
    hold_lock,
)
from lmtool.tokenization.inner import SPECIAL_TOKENS, convert_panics_to_exceptions, parse_tokenizer_json
from lmtool.tokenization.tokenizer import Tokenizer

NOTED_COLUMNS = (
    *("text_columns", "label_column", "source_column", "target_column", "input_column", "messages_column"),
)
"""Keys of `data` in the note of an export."""
VERSION = 1
"""Part of the key of the cache: incremented when the same files would give another run."""


def import_to_cache(reference: str) -> Path:
    """Imports a published model into the cache, if it is not there yet. Returns its run.

    reference: hf:ORG/NAME[@REVISION], a Hugging Face directory, or a .gguf file. The Hub is asked for the newest commit
    of a name. Raises CheckpointError for what cannot be imported.
    """
    if not reference.startswith(references.HUB_PREFIX):
        return _find_or_write_cached_run(open_published_model(Path(reference)), reference, None)
    path, commit = download_hub_model(reference)
    run = _find_or_write_cached_run(open_published_model(path), reference, commit)
    references.try_write_cache_line(references.hub_note_file(reference), run.name)
    return run


def import_model_as_new_run(reference: str, output: Path | None, report: Progress) -> Path:
    """Makes a run of a published model, in `output`, or in a new one of the runs directory. Asks the Hub for updates.

    report: gets the bytes of float32 done and in total.
    """
    commit = None
    path = Path(reference)
    if reference.startswith(references.HUB_PREFIX):
        path, commit = download_hub_model(reference)
        with convert_write_errors(references.imports_folder()):
            references.hub_note_file(reference).unlink(missing_ok=True)  # what was downloaded may be newer
    run = output or make_run_path(_derive_run_name(reference))
    check_folder_is_empty(run)
    check_output_free_and_writable(run)
    model = open_published_model(path)
    _write_run(model, reference, commit, run, _digest_files_with_cache(model), report)
    add_to_runs_index(run)
    return run


def _derive_run_name(reference: str) -> str:
    """Derives a name for the run of a model from its path or its name on the Hub."""
    name = Path(reference).resolve().stem
    if reference.startswith(references.HUB_PREFIX):
        name = references.parse_hub_reference(reference)[0].replace("/", "--")
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:60] or "model"


def _find_or_write_cached_run(model: PublishedModel, reference: str, commit: str | None) -> Path:
    """Finds the run of these files in the cache, or writes it."""
    digests = _digest_files_with_cache(model)
    key = sha256_of_json([VERSION, sorted(digests.items())])
    run = references.imports_folder() / f"{_derive_run_name(reference)}-{key[:12]}"
    if (run / RUN_INFO_FILE).exists():  # a run is there whole or not at all; the cache may be read-only
        return run
    with hold_lock(references.imports_folder() / "locks" / key):
        if not (run / RUN_INFO_FILE).exists():
            shutil.rmtree(run, ignore_errors=True)
            _write_run(model, reference, commit, run, digests, no_progress)
    return run


def _digest_files_with_cache(model: PublishedModel) -> dict[str, str]:
    """Returns the SHA-256 of each file of a model, which is computed and cached when a file is new or has changed."""
    digests = {}
    for file in model.files:
        real = Path(os.path.realpath(file))  # resolve() raises what is no OSError for a link to itself
        with convert_os_errors("cannot read a file of the model", file, "download or copy it again", CheckpointError):
            entry = real.stat()
            state = [str(real), entry.st_size, entry.st_mtime_ns, entry.st_ino]
            note = references.imports_folder() / "digests" / sha256_of_json(state)
            digest = references.read_cache_line_or_empty(note)
            if re.fullmatch("[0-9a-f]{64}", digest) is None:
                digest = sha256_of_file(real)
                references.try_write_cache_line(note, digest)
        digests[str(file.relative_to(model.path)) if model.path.is_dir() else file.name] = digest
    return digests


def _write_run(
    model: PublishedModel,
    reference: str,
    commit: str | None,
    folder: Path,
    digests: Mapping[str, str],
    report: Progress,
) -> None:
    """Writes the run hidden beside `folder`, then renames it: a failed import leaves nothing."""
    sections, has_separate_head = read_recipe_sections(model)
    tokenizer = _build_tokenizer(model, sections["objective"]["kind"])
    recipe = _build_recipe(model, sections, tokenizer, reference)
    spec = recipe.model
    assert isinstance(spec, Transformer)
    if count_parameters(spec, spec.vocab_size or 0) == UNCOUNTABLE:
        raise import_error("its configuration is of a model larger than what any program could hold", model.path)
    with torch.device("meta"):
        outlines = add_objective_head(recipe, build_on_meta(spec, spec.vocab_size or 0)).state_dict()
    mappings = model.family.list_parameter_mappings(spec, BODY_OBJECTIVE if has_separate_head else recipe.objective)
    if has_separate_head:
        body = (replace(mapping, name=f"body.{mapping.name}") for mapping in mappings)
        mappings = [*body, *(ParameterMapping(name, (name,)) for name in model.head_tensor_names)]
    tensors = _convert_weights_lazily(model, mappings, outlines, report)
    millions = sum(parameter.numel() for parameter in outlines.values()) / 1e6
    info = RunInfo.create(
        recipe=_derive_run_name(reference),
        summary=f"{spec.title}, {spec.n_layers} x {spec.d_model}, {millions:.1f}M parameters",
        fingerprints={"data": "", "tokenizer": tokenizer.fingerprint},
        origin={"reference": reference, "revision": commit, "model_type": model.family.model_type, "sha256": digests},
    )
    files = {RECIPE: dump_yaml(recipe).encode(), **tokenizer.serialize_files()}
    with atomic_output_folder(folder) as new, create_and_lock_run(new, info, files) as run:
        run.save_checkpoint(CheckpointContent(0, tensors, {}, {"recipe": recipe.model_dump(mode="json")}), keep_last=1)


def read_recipe_sections(model: PublishedModel) -> tuple[dict[str, dict[str, Any]], bool]:
    """Reads the sections of a recipe from the configuration of a model.

    Returns the sections `model`, `objective` and `data`, and whether the head is stored beside the body.

    The note of an export adds what Transformers does not read. Labels and the kind of the head are still those that
    Transformers reads, because they may have changed since. Raises CheckpointError for what no recipe expresses.
    """
    config, sections = model.config, model.family.read_recipe_from_config(model.config)
    note = config.read_section(references.NOTE_KEY)
    objective, published = note.read("objective", dict, {}), sections["objective"]
    data = {key: value for key, value in note.read("data", dict, {}).items() if key in (*NOTED_COLUMNS, "tasks")}
    has_separate_head = bool(model.head_tensor_names) and objective.get("kind") in HEAD_OBJECTIVES
    if has_separate_head:
        objective = objective | ({"labels": read_labels_or_default_names(config)} if objective.get("labels") else {})
    elif objective.get("kind") == published["kind"]:
        objective = objective | published
    elif (objective.get("kind"), published["kind"]) != ("seq2seq", "causal"):
        objective, data = published, {}
    spec = sections["model"]
    contexts = [spec["context"], note.read_positive("context", int, spec["context"])]
    config.check_all_read()
    if model.embedding_objective and not has_separate_head:
        objective = model.embedding_objective
    if model.max_context:
        contexts.append(model.max_context)
    sections = {"model": {**spec, "context": min(contexts)}, "objective": objective, "data": data}
    return sections, has_separate_head


def _build_tokenizer(model: PublishedModel, objective_kind: str) -> Tokenizer:
    """Builds the tokenizer, with the tokens that begin and end generated text."""
    published, settings = model.read_tokenizer(), model.token_settings
    try:
        inner = parse_tokenizer_json(published.json)
        config = dict(published.config)
        token_ids, ends = {}, settings.get("eos_token_id")
        if objective_kind == "seq2seq":
            token_ids["start_tokens"] = [settings.get("decoder_start_token_id"), settings.get("forced_bos_token_id")]
        token_ids["end_tokens"] = ends if isinstance(ends, list) else [ends]
        for key, ids in token_ids.items():
            names = [inner.id_to_token(i) for i in ids if type(i) is int and 0 <= i < 2**31]
            config[key] = [name for name in names if name is not None]
        with convert_panics_to_exceptions():
            tokenizer = Tokenizer(inner, config)
    except Exception as error:  # the library raises bare Exception
        raise import_error(f"the tokenizer cannot be used: {printable(str(error))[:120]}", model.path) from error
    if objective_kind == "masked" and published.config.get("mask_token") is None:
        raise import_error("the tokenizer has no mask_token", model.path, "name another model")
    return tokenizer


DOCUMENTS, ONE_TEXT = {"split": "document"}, {"split": "slice", "documents": "whole"}
"""How a text is read: [BOS] text [EOS] for each document, or all as one text."""


def _build_recipe(
    model: PublishedModel, sections: Mapping[str, dict[str, Any]], tokenizer: Tokenizer, reference: str
) -> Recipe:
    n_rows = sections["model"].get("vocab_size")
    if isinstance(n_rows, int) and n_rows < tokenizer.vocab_size:
        what = f"the tokenizer has {tokenizer.vocab_size} entries, but the embedding has {n_rows} rows"
        raise import_error(what, model.path, "name a model with its own tokenizer")
    n_special = min(len(SPECIAL_TOKENS), tokenizer.vocab_size)
    is_own = tuple(map(tokenizer.token_name, range(n_special))) == SPECIAL_TOKENS
    adds_start = tokenizer.roles.template is not None and bool(tokenizer.roles.template.before)
    # the export of a run that was trained on one text, not on documents that [BOS] begins
    reads_one_text = is_own and sections["objective"]["kind"] == "causal" and not adds_start
    try:
        return Recipe.model_validate(
            {
                **sections,
                "description": f"imported from {printable(reference)[:100]}",
                "tokenizer": {"kind": "file", "path": "tokenizer.json"},
                "data": {**(ONE_TEXT if reads_one_text else DOCUMENTS), **sections["data"]},
                "training": {"steps": 1, "batch_size": 8},
            }
        )
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        what = printable(f"{key}: " * bool(key) + first["msg"])[:160]
        raise import_error(f"its configuration is of no model: {what}", model.path) from error


def _convert_weights_lazily(
    model: PublishedModel, mappings: Sequence[ParameterMapping], meta_tensors: Mapping[str, Tensor], report: Progress
) -> ComputedTensors:
    """Returns the weights of the run, each of which is converted when it is written.

    meta_tensors: the parameters, without storage.
    Raises CheckpointError when tensors are missing, left over, or of other shapes.
    """

    def misfit_error(what: str) -> CheckpointError:
        return import_error(f"the weights do not fit the configuration: {what}", model.path)

    stored = {*model.config.tensor_names, *model.head_tensor_names}
    used = {name: None for mapping in mappings for name in mapping.published_names}
    if missing := [name for name in used if name not in stored]:
        raise misfit_error(f"{printable(missing[0])[:100]} is missing")
    (embedding, *_) = next(m.published_names for m in mappings if m.name.endswith("inputs.tokens.weight"))
    for name in sorted(stored - used.keys()):
        if not any(re.fullmatch(pattern, name) for pattern in model.family.redundant):
            raise misfit_error(f"{printable(name)[:100]} has no place in it")
        if name.endswith("weight"):
            tensor, tied = model.read_tensor(name), model.read_tensor(embedding)
            if tensor.shape == tied.shape and not torch.equal(tensor, tied):
                raise misfit_error(f"{printable(name)[:100]} differs from the embedding that it is tied to")
    if odd := meta_tensors.keys() ^ {mapping.name for mapping in mappings}:
        if not model.head_tensor_names:
            raise AssertionError(f"{model.family.model_type}: {odd}")
        raise misfit_error(f"{printable(min(odd))[:100]} is missing in its head, or has no place in it")
    n_bytes, done = sum(4 * parameter.numel() for parameter in meta_tensors.values()), 0
    mapping_by_name = {mapping.name: mapping for mapping in mappings}

    def convert(name: str) -> Tensor:
        nonlocal done
        mapping = mapping_by_name[name]
        first, names = printable(mapping.published_names[0])[:100], printable(", ".join(mapping.published_names))[:100]
        tensors = [model.read_tensor(published_name) for published_name in mapping.published_names]
        try:
            tensor = mapping.layout.join(tensors)
        except (ValueError, RuntimeError, IndexError) as error:
            raise misfit_error(f"{first}: {printable(str(error))[:80]}") from error
        if tensor.shape != meta_tensors[name].shape:
            shape, wanted = (" x ".join(map(str, one.shape)) or "a number" for one in (tensor, meta_tensors[name]))
            raise misfit_error(f"{names} is {shape}, not {wanted}")
        if not torch.isfinite(tensor).all():
            raise misfit_error(f"{first} has values that are not finite numbers")
        done += 4 * tensor.numel()
        report("importing", done, n_bytes)
        return tensor.float().contiguous()

    return ComputedTensors(meta_tensors, convert)
