"""Where published models lie: a Hugging Face directory, a GGUF file, or a repository of the Hugging Face Hub."""

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

from lmtool import durable
from lmtool.data.hub import import_hub
from lmtool.errors import CheckpointError
from lmtool.interop.families import FAMILIES, GGUF_FAMILIES
from lmtool.interop.families.config import Config
from lmtool.interop.families.family import Family
from lmtool.interop.gguf.container import Container
from lmtool.interop.gguf.files import FREQUENCIES
from lmtool.interop.gguf.vocabulary import describe_tokenizer
from lmtool.interop.names import CONFIG, HEAD, MODULES, NOTE, parse_hub
from lmtool.interop.tokenization.reading import PublishedTokenizer, read_tokenizer
from lmtool.printable import printable
from lmtool.run.tensors import open_safetensors
from lmtool.tokenization.tokenizer import MAX_TOKENIZER_BYTES

GENERATION = "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
LENGTH = "sentence_bert_config.json"

_READ = (
    *(CONFIG, GENERATION, MODULES, WEIGHTS, INDEX, HEAD, "model-*.safetensors", LENGTH),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "source.spm", "target.spm"),
    *("chat_template.jinja", "chat_template.json", "1_Pooling/config.json"),
)
"""Patterns of the files of a repository that are read."""

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"

POOLING = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Keys of sentence-transformers, and the pooling that each sets."""
_FIX = "download it again, or name another model"
_LISTED = "docs/serve.md lists what can be imported"


def _refusal(what: str, where: Path | str, fix: str = _FIX) -> CheckpointError:
    return CheckpointError(what, where=str(where), fix=fix)


class Source(ABC):
    """A published model on disk.

    path: its directory or file.
    family: its rows.
    config: its configuration, with the names of its tensors, as in a model with a head.
    settings: config.json and generation_config.json, which name special tokens by their ids.
    files: everything that the model is made of.
    head_names: of the tensors of a head beside the body.
    embedding: keys of the objective of a sentence-transformers model; empty for others.
    context: tokens that a sentence-transformers model reads; None for others.
    """

    family: Family
    config: Config

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings: dict[str, Any] = {}
        self.files = [path]
        self.head_names: Sequence[str] = ()
        self.embedding: dict[str, Any] = {}
        self.context: int | None = None

    @abstractmethod
    def read(self, name: str) -> Tensor:
        """A tensor, in CPU memory. Raises CheckpointError when it is damaged."""

    @abstractmethod
    def tokenizer(self) -> PublishedTokenizer:
        """The tokenizer. Raises CheckpointError."""


def open_source(path: Path) -> Source:
    """The model in a directory or a GGUF file. Raises CheckpointError when it is neither, or of no known family."""
    if path.is_dir():
        return HuggingFaceDirectory(path)
    return GgufFile(path)


class HuggingFaceDirectory(Source):
    """A directory as `save_pretrained` of Transformers writes it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._opened: dict[str, Any] = {}
        with durable.convert_os_errors("cannot list the model's files", path, error_type=CheckpointError):
            here = sorted(entry.name for entry in os.scandir(path))
        if CONFIG not in here:
            raise _refusal(
                f"this is not a model: it has no {CONFIG}", path, "name a directory, a .gguf file or hf:NAME"
            )
        values = read_json(path / CONFIG)
        self.settings = values | (read_json(path / GENERATION) if GENERATION in here else {})
        modules = self._modules(here)
        shards = self._find_shards(here)
        kind = Config(values, str(path)).take("model_type", str)
        if kind not in FAMILIES:
            fix = f"those that can: {', '.join(FAMILIES)}"
            raise _refusal(f"the model_type {printable(kind)[:60]!r} cannot be imported", path, fix)
        self.family = FAMILIES[kind]
        self._stored = self.family.canonical_names(shards)
        self.config = Config(values, str(path), self._stored.keys())
        self.head_names = [*self._open(HEAD).keys()] if HEAD in here else []
        self._stored |= {name: name for name in self.head_names}
        self._file_of = {**dict.fromkeys(self.head_names, HEAD), **shards}
        weights = {*shards.values(), HEAD}
        used = [name for name in here if name in _READ] + sorted(weights - {WEIGHTS, HEAD})
        pooling = [path / str(module["path"]) / CONFIG for module in modules[1:2]]
        self.files = [path / name for name in used] + pooling
        for file in self.files:
            try:
                durable.open_regular_file(file, None if file.name in weights else MAX_TOKENIZER_BYTES).close()
            except OSError as error:
                raise self._damaged(str(file.relative_to(path)), error) from error
        if pooling:
            self.embedding = {"kind": "embedding", "pool": _pool(pooling[0]), "normalize": len(modules) == 3}
            length = read_json(path / LENGTH).get("max_seq_length") if LENGTH in here else None
            self.context = length if isinstance(length, int) and length > 0 else None

    def _find_shards(self, here: Sequence[str]) -> dict[str, str]:
        """The file of each tensor."""
        if INDEX not in here or WEIGHTS in here:
            if WEIGHTS not in here:
                if any(name.startswith("pytorch_model") and name.endswith(".bin") for name in here):
                    raise _pickled(str(self.path))
                raise _refusal(f"there is no {WEIGHTS}", self.path)
            return dict.fromkeys(self._open(WEIGHTS).keys(), WEIGHTS)
        shards = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
            raise _refusal("the index names no files", self.path / INDEX)
        for file in sorted(set(shards.values())):
            if file not in here:
                raise _refusal(f"the index names {printable(file)[:80]}, which is not there", self.path / INDEX)
            inside = set(self._open(file).keys())
            lost = next((name for name, its in shards.items() if its == file and name not in inside), None)
            if lost is not None:
                raise _refusal(
                    f"the index names {printable(lost)[:80]}, which this file does not have", self.path / file
                )
        return shards

    def _open(self, file: str) -> Any:
        if file not in self._opened:
            try:
                durable.open_regular_file(self.path / file).close()
                self._opened[file] = open_safetensors(self.path / file)
            except (SafetensorError, OSError) as error:
                raise self._damaged(file, error) from error
        return self._opened[file]

    def _damaged(self, file: str, error: Exception) -> CheckpointError:
        told = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)[:120]
        return _refusal(f"{file} cannot be read: {told}", self.path / file)

    def read(self, name: str) -> Tensor:
        stored = self._stored[name]
        file = self._file_of[stored]
        try:
            tensor: Tensor = self._open(file).get_tensor(stored)
        except (SafetensorError, OSError) as error:
            raise self._damaged(file, error) from error
        if not tensor.is_floating_point():
            what = f"{printable(name)[:80]} is of type {tensor.dtype}, a quantization that is not known"
            raise _refusal(what, self.path / file, "name the original model, or a .gguf file of it")
        return tensor

    def tokenizer(self) -> PublishedTokenizer:
        return read_tokenizer(self.path, self.family.model_type)

    def _modules(self, here: Sequence[str]) -> list[dict[str, Any]]:
        """The modules of a sentence-transformers model: a Transformer, its pooling, and maybe a normalization."""
        if MODULES not in here:
            return []
        modules = read_json(self.path / MODULES, list)
        kinds = [str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            what = f"this sentence-transformers model has the modules {printable(', '.join(kinds))[:80]}"
            importable = "those that can be imported have Transformer, Pooling and maybe Normalize"
            raise _refusal(f"{what}; {importable}", self.path / MODULES, _LISTED)
        folder = str(modules[1].get("path"))
        if re.fullmatch(r"[0-9]+_Pooling", folder) is None or folder not in here:
            raise _refusal("its pooling is not there", self.path / MODULES)
        return list(modules)


def _pool(file: Path) -> str:
    """The pooling that a file of sentence-transformers sets."""
    settings = read_json(file)
    chosen = [name for name, value in settings.items() if name.startswith("pooling_mode") and value is True]
    if isinstance(mode := settings.get("pooling_mode"), str):
        chosen = [f"pooling_mode_{mode}"]
    known = {**POOLING, "pooling_mode_cls": "first", "pooling_mode_mean": "mean", "pooling_mode_max": "max"}
    if len(chosen) != 1 or chosen[0] not in known:
        told = printable(", ".join(chosen))[:80] or "none"
        raise _refusal(f"its pooling is {told}; first, last, mean and max are known", file, _LISTED)
    return known[chosen[0]]


class GgufFile(Source):
    """A GGUF file; it stays on disk."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError for what is damaged, unknown or would compute something else."""
        super().__init__(path)
        container = self._container = Container(path)
        where, name = printable(str(path)), container.values.get("general.architecture")
        by_name = {family.architecture: family for family in GGUF_FAMILIES}
        if name not in by_name:
            raise Config({}, where).refusal(f"architecture {printable(str(name))[:40]} is none of {', '.join(by_name)}")
        self.family = by_name[name]
        if EMBEDDING not in container.tensors:
            raise container.damage(f"the tensor {EMBEDDING} is missing")
        names = container.tensors.keys() - {FREQUENCIES}
        if OUTPUT in names and container.same(OUTPUT, EMBEDDING):  # as older converters write tied ones
            names -= {OUTPUT}
        rows = container.tensors[EMBEDDING].shape[0]
        values = {
            key.removeprefix(f"{name}."): value for key, value in container.values.items() if key.startswith(f"{name}.")
        }
        values["vocab_size"] = rows
        if FREQUENCIES in container.tensors:
            values[FREQUENCIES] = container.read(FREQUENCIES).numpy()
        if (note := container.values.get(NOTE)) is not None:
            try:
                values[NOTE] = json.loads(note)
            except (TypeError, ValueError, RecursionError):
                raise container.damage(f"{NOTE} is not the note of an export") from None
        self.config = Config(values, where, names, inside=name)
        self._tokenizer, self.settings = describe_tokenizer(container, name, rows)

    def read(self, name: str) -> Tensor:
        return self._container.read(name)

    def tokenizer(self) -> PublishedTokenizer:
        return self._tokenizer


def read_json(path: Path, kind: type = dict) -> Any:
    """The object, or the list, in a JSON file. Raises CheckpointError."""
    with durable.convert_os_errors(f"{path.name} cannot be read", path, _FIX, CheckpointError):
        raw = durable.read_file(path)
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise _refusal(f"{path.name} is not a JSON {kind.__name__}", path)
    return content


def download(reference: str) -> tuple[Path, str]:
    """The directory of a repository of the Hub in the cache of `huggingface_hub`, and its commit; downloaded if needed.

    Raises CheckpointError when the Hub does not have it, or it cannot be reached and the cache does not have it, and
    when it holds no weights that can be read.
    """
    huggingface_hub = import_hub()
    from huggingface_hub.errors import RepositoryNotFoundError

    name, revision = parse_hub(reference)
    where = printable(reference)[:120]
    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_READ)))
    except RepositoryNotFoundError as error:
        fix = "check its name; for a private or gated one, log in with `hf auth login`"
        raise _refusal(f"the Hub has no model {name}, or it is not public", where, fix) from error
    except Exception as error:  # the library raises whatever its back ends raise
        told = printable(str(error).splitlines()[0] if str(error) else type(error).__name__)[:120]
        fix = "check name, revision and network; what was downloaded before is used offline"
        raise _refusal(f"cannot download the model: {told}", where, fix) from error
    if not any(path.glob("*.safetensors")):
        others: list[str] = []
        with suppress(Exception):  # if the Hub can be reached, to say what it holds instead
            others = huggingface_hub.list_repo_files(name, revision=revision)
        if any(file.endswith(".bin") for file in others):
            raise _pickled(where)
        if any(file.endswith(".gguf") for file in others):
            raise _refusal("the repository holds GGUF files", where, "download one of them, and name the file")
        raise _refusal(f"the repository has no {WEIGHTS}", where, "name another model")
    return path, path.name


def _pickled(where: str) -> CheckpointError:
    fix = "convert it where you trust it: from_pretrained(DIR), then save_pretrained(DIR), with Transformers"
    return _refusal("pytorch_model.bin is a pickle, which can run code when it is read: it is not read", where, fix)
