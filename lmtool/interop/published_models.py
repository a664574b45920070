"""Published models on disk: a Hugging Face directory, a GGUF file, or a repository downloaded from the Hub."""

import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from lmtool.data.hub import import_hub_even_without_home
from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.config import StrictConfigReader
from lmtool.interop.families.family import Family
from lmtool.interop.files import import_error, read_json, read_json_if_exists
from lmtool.interop.gguf.container import GgufContainer
from lmtool.interop.gguf.vocabulary import read_gguf_tokenizer
from lmtool.interop.gguf.writing import ROPE_DIVISORS_TENSOR
from lmtool.interop.references import CONFIG_FILE, HEAD_FILE, MODULES_FILE, NOTE_KEY, parse_hub_reference
from lmtool.interop.tokenization.reading import PublishedTokenizer, read_published_tokenizer
from lmtool.printable import first_line, printable
from lmtool.runs.tensors import open_safetensors
from lmtool.storage import durable

GENERATION_FILE = "generation_config.json"
WEIGHTS_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"
LENGTH_FILE = "sentence_bert_config.json"

_FILES_READ = (
    *(CONFIG_FILE, GENERATION_FILE, MODULES_FILE, WEIGHTS_FILE, INDEX_FILE, HEAD_FILE, LENGTH_FILE),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "source.spm", "target.spm"),
    *("chat_template.jinja", "chat_template.json", "1_Pooling/config.json", "model-*.safetensors"),
)
"""Patterns of the files of a repository that are read."""

EMBEDDING_TENSOR, OUTPUT_TENSOR = "token_embd.weight", "output.weight"
"""Names in GGUF files."""

POOLING_KEYS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Keys of sentence-transformers, and the pooling that each sets."""
_NEW_POOLING_KEYS = {"pooling_mode_cls": "first", "pooling_mode_mean": "mean", "pooling_mode_max": "max"}
_PAGE_FIX = "docs/serve.md lists what can be imported"


class PublishedModel(ABC):
    """A published model on disk.

    path: its directory or file.
    family: how its configuration and tensors are read.
    config: its configuration, with the names of its tensors, as in a model with a head.
    token_settings: values of config.json and generation_config.json, which name special tokens by their ids.
    files: all files that the model is read from.
    head_tensor_names: tensors of a head that is stored beside the body.
    embedding_objective: keys of the objective of a sentence-transformers model; empty for others.
    max_context: number of tokens that a sentence-transformers model reads; None for others.
    """

    family: Family
    config: StrictConfigReader

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token_settings: dict[str, Any] = {}
        self.files = [path]
        self.head_tensor_names: Sequence[str] = ()
        self.embedding_objective: dict[str, Any] = {}
        self.max_context: int | None = None

    @abstractmethod
    def read_tensor(self, name: str) -> Tensor:
        """Reads a tensor to CPU memory. Raises CheckpointError when it is damaged."""

    @abstractmethod
    def read_tokenizer(self) -> PublishedTokenizer:
        """Reads the tokenizer. Raises CheckpointError."""


def open_published_model(path: Path) -> PublishedModel:
    """Opens a directory or a GGUF file. Raises CheckpointError when it is neither, or of no known family."""
    return HuggingFaceModel(path) if path.is_dir() else GgufModel(path)


class HuggingFaceModel(PublishedModel):
    """A directory as `save_pretrained` of Transformers writes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._opened: dict[str, Any] = {}
        with durable.convert_os_errors("cannot list the model's files", path, error_type=CheckpointError):
            here = sorted(entry.name for entry in os.scandir(path))
        if CONFIG_FILE not in here:
            fix = "name a directory, a .gguf file or hf:NAME"
            raise import_error(f"this is not a model: it has no {CONFIG_FILE}", path, fix)
        values = read_json(path / CONFIG_FILE)
        self.token_settings = values | read_json_if_exists(path / GENERATION_FILE)
        pooling = self._find_pooling_config(here)
        shards = self._find_tensor_files(here)
        model_type = StrictConfigReader(values, str(path)).read("model_type", str)
        if model_type not in FAMILIES:
            fix = f"those that can: {', '.join(FAMILIES)}"
            raise import_error(f"the model_type {printable(model_type)[:60]!r} cannot be imported", path, fix)
        self.family = FAMILIES[model_type]
        self._stored_names = self.family.map_canonical_to_stored_names(shards)
        self.config = StrictConfigReader(values, str(path), self._stored_names.keys())
        self.head_tensor_names = [*self._open_safetensors_cached(HEAD_FILE).keys()] if HEAD_FILE in here else []
        self._stored_names |= {name: name for name in self.head_tensor_names}
        self._shards = {**dict.fromkeys(self.head_tensor_names, HEAD_FILE), **shards}
        names = [name for name in here if name in _FILES_READ] + sorted({*shards.values()} - {WEIGHTS_FILE})
        self.files = [path / name for name in names]
        if pooling is not None:
            self.files.append(pooling)
            normalizes = len(read_json(path / MODULES_FILE, list)) == 3
            self.embedding_objective = {
                "kind": "embedding",
                "pool": _read_pooling_kind(pooling),
                "normalize": normalizes,
            }
            lengths = StrictConfigReader(read_json_if_exists(path / LENGTH_FILE), str(path / LENGTH_FILE))
            length = lengths.read_optional("max_seq_length", int)
            self.max_context = length if length is not None and length > 0 else None

    def _find_pooling_config(self, local_file_names: Sequence[str]) -> Path | None:
        """Finds the file with the pooling of a sentence-transformers model; None in other models."""
        if MODULES_FILE not in local_file_names:
            return None
        modules = read_json(self.path / MODULES_FILE, list)
        kinds = [str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            what = f"this sentence-transformers model has the modules {printable(', '.join(kinds))[:80]}"
            importable = "those that can be imported have Transformer, Pooling and maybe Normalize"
            raise import_error(f"{what}; {importable}", self.path / MODULES_FILE, _PAGE_FIX)
        folder = str(modules[1].get("path"))
        if re.fullmatch(r"[0-9]+_Pooling", folder) is None or folder not in local_file_names:
            raise import_error("its pooling is not there", self.path / MODULES_FILE)
        return self.path / folder / CONFIG_FILE

    def _find_tensor_files(self, local_file_names: Sequence[str]) -> dict[str, str]:
        """Returns the file of each tensor. Raises CheckpointError when there are no weights, or files are missing."""
        files = [WEIGHTS_FILE]
        if WEIGHTS_FILE not in local_file_names and INDEX_FILE in local_file_names:
            shards = read_json(self.path / INDEX_FILE).get("weight_map")
            if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
                raise import_error("the index names no files", self.path / INDEX_FILE)
            files = sorted({*shards.values()})
            if missing := [printable(file)[:80] for file in files if file not in local_file_names]:
                raise import_error(f"the index names {missing[0]}, which is not there", self.path / INDEX_FILE)
        elif WEIGHTS_FILE not in local_file_names:
            if any(name.startswith("pytorch_model") and name.endswith(".bin") for name in local_file_names):
                raise _pickle_error(str(self.path))
            raise import_error(f"there is no {WEIGHTS_FILE}", self.path)
        return {name: file for file in files for name in [*self._open_safetensors_cached(file).keys()]}

    def _open_safetensors_cached(self, file: str) -> Any:
        if file not in self._opened:
            try:
                durable.open_regular_file(self.path / file).close()
                self._opened[file] = open_safetensors(self.path / file)
            except (SafetensorError, OSError) as error:
                raise self._damage_error(file, error) from error
        return self._opened[file]

    def _damage_error(self, file: str, error: Exception) -> CheckpointError:
        return import_error(f"{file} cannot be read: {first_line(error, 120)}", self.path / file)

    def read_tensor(self, name: str) -> Tensor:
        stored = self._stored_names[name]
        file = self._shards[stored]
        try:
            tensor: Tensor = self._open_safetensors_cached(file).get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise self._damage_error(file, error) from error
        if not tensor.is_floating_point():
            what = f"{printable(name)[:80]} is of type {tensor.dtype}, a quantization that is not known"
            raise import_error(what, self.path / file, "name the original model, or a .gguf file of it")
        return tensor

    def read_tokenizer(self) -> PublishedTokenizer:
        return read_published_tokenizer(self.path, self.family.model_type)


def _read_pooling_kind(file: Path) -> str:
    """Reads the pooling from a file of sentence-transformers."""
    settings = read_json(file)
    chosen = [name for name, value in settings.items() if name.startswith("pooling_mode") and value is True]
    if isinstance(mode := settings.get("pooling_mode"), str):
        chosen = [f"pooling_mode_{mode}"]
    known = {**POOLING_KEYS, **_NEW_POOLING_KEYS}
    if len(chosen) != 1 or chosen[0] not in known:
        found = printable(", ".join(chosen))[:80] or "none"
        raise import_error(f"its pooling is {found}; first, last, mean and max are known", file, _PAGE_FIX)
    return known[chosen[0]]


class GgufModel(PublishedModel):
    """A GGUF file; it stays on disk."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for what is damaged, unknown or would compute something else."""
        super().__init__(path)
        container = self._container = GgufContainer(path)
        where, architecture = printable(str(path)), container.values.get("general.architecture")
        by_architecture = {family.architecture: family for family in GGUF_FAMILIES.values()}
        if architecture not in by_architecture:
            what = f"architecture {printable(str(architecture))[:40]} is none of {', '.join(by_architecture)}"
            raise StrictConfigReader({}, where).import_error(what)
        self.family = by_architecture[architecture]
        if EMBEDDING_TENSOR not in container.tensors:
            raise container.damage_error(f"the tensor {EMBEDDING_TENSOR} is missing")
        names = container.tensors.keys() - {ROPE_DIVISORS_TENSOR}
        # as older converters write tied ones
        if OUTPUT_TENSOR in names and container.has_equal_tensors(OUTPUT_TENSOR, EMBEDDING_TENSOR):
            names -= {OUTPUT_TENSOR}
        n_rows = container.tensors[EMBEDDING_TENSOR].shape[0]
        prefix = f"{architecture}."
        values = {key.removeprefix(prefix): value for key, value in container.values.items() if key.startswith(prefix)}
        values["vocab_size"] = n_rows
        if ROPE_DIVISORS_TENSOR in container.tensors:
            values[ROPE_DIVISORS_TENSOR] = container.read_tensor_dequantized_if_needed(ROPE_DIVISORS_TENSOR).numpy()
        if (note := container.values.get(NOTE_KEY)) is not None:
            try:
                values[NOTE_KEY] = json.loads(note)
            except (TypeError, ValueError, RecursionError):
                raise container.damage_error(f"{NOTE_KEY} is not the note of an export") from None
        self.config = StrictConfigReader(values, where, names, section=architecture)
        self._tokenizer, self.token_settings = read_gguf_tokenizer(container, architecture, n_rows)

    def read_tensor(self, name: str) -> Tensor:
        return self._container.read_tensor_dequantized_if_needed(name)

    def read_tokenizer(self) -> PublishedTokenizer:
        return self._tokenizer


def download_hub_model(reference: str) -> tuple[Path, str]:
    """Downloads a repository of the Hub to the cache of `huggingface_hub`, if it is not there.

    Returns its directory and commit. Raises CheckpointError when the Hub does not have it, or it cannot be reached and
    the cache does not have it, and when it holds no weights that can be read.
    """
    huggingface_hub = import_hub_even_without_home()
    from huggingface_hub.errors import RepositoryNotFoundError

    name, revision = parse_hub_reference(reference)
    where = printable(reference)[:120]
    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_FILES_READ)))
    except RepositoryNotFoundError as error:
        fix = "check its name; for a private or gated one, log in with `hf auth login`"
        raise import_error(f"the Hub has no model {name}, or it is not public", where, fix) from error
    except Exception as error:  # the library raises whatever its back ends raise
        fix = "check name, revision and network; what was downloaded before is used offline"
        raise import_error(f"cannot download the model: {first_line(error, 120)}", where, fix) from error
    if not any(path.glob("*.safetensors")):
        others: list[str] = []
        with suppress(Exception):  # if the Hub can be reached, to say what it holds instead
            others = huggingface_hub.list_repo_files(name, revision=revision)
        if any(file.endswith(".bin") for file in others):
            raise _pickle_error(where)
        if any(file.endswith(".gguf") for file in others):
            raise import_error("the repository holds GGUF files", where, "download one of them, and name the file")
        raise import_error(f"the repository has no {WEIGHTS_FILE}", where, "name another model")
    return path, path.name


def _pickle_error(where: str) -> CheckpointError:
    fix = "convert it where you trust it: from_pretrained(DIR), then save_pretrained(DIR), with Transformers"
    return import_error("pytorch_model.bin is a pickle, which can run code when it is read: it is not read", where, fix)
