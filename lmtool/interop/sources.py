"""Where published models lie: a Hugging Face directory, a GGUF file, or a repository of the Hugging Face Hub."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from torch import Tensor

from lmtool import durable
from lmtool.errors import CheckpointError, ResourceError
from lmtool.interop.gguf.files import open_gguf
from lmtool.interop.notes import HEAD
from lmtool.interop.reference import CONFIG, MODULES, parse_hub
from lmtool.interop.tokenization.reading import PublishedTokenizer, read_tokenizer
from lmtool.printable import plain
from lmtool.text.tokenizer import LARGEST_FILE

GENERATION = "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"

_READ = (
    *(CONFIG, GENERATION, MODULES, WEIGHTS, INDEX, HEAD, "model-*.safetensors", "sentence_bert_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "vocab.txt", "spiece.model", "tokenizer.model", "source.spm", "target.spm"),
    *("chat_template.jinja", "chat_template.json", "1_Pooling/config.json"),
)
"""Patterns of the files of a repository that are read."""

POOLING = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Keys of sentence-transformers, and the pooling that each sets."""
_FIX = "download it again, or name another model"


class Source(Protocol):
    """A published model on disk.

    path: its directory or file. config: of config.json. generation: of generation_config.json. files: everything that
    the model is made of.
    """

    @property
    def path(self) -> Path: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    @property
    def generation(self) -> Mapping[str, Any]: ...

    @property
    def files(self) -> Sequence[Path]: ...

    def names(self) -> Sequence[str]:
        """Names of the tensors."""

    def head_names(self) -> Sequence[str]:
        """Names of those of a head beside the body, which `names` are not."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""

    def read(self, name: str) -> Tensor:
        """A tensor, in CPU memory. Raises CheckpointError when it is damaged."""

    def tokenizer(self) -> PublishedTokenizer:
        """The tokenizer. Raises CheckpointError."""

    def embedding(self) -> dict[str, Any]:
        """Keys of the objective of a sentence-transformers model; empty for others."""

    def context(self) -> int | None:
        """Tokens that a sentence-transformers model reads; None for others."""


def open_source(path: Path) -> Source:
    """The model in a directory or a GGUF file. Raises CheckpointError when it is neither."""
    if path.is_dir():
        return HuggingFaceDirectory(path)
    return GgufFile(path)


class HuggingFaceDirectory:
    """A directory as `save_pretrained` of Transformers writes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._opened: dict[str, Any] = {}
        try:
            here = sorted(entry.name for entry in os.scandir(path))
        except OSError as error:
            raise CheckpointError(f"cannot list the model's files: {error.strerror}", where=str(path)) from error
        if CONFIG not in here:
            raise CheckpointError(
                f"this is no model: it has no {CONFIG}",
                where=str(path),
                fix="name a directory, a .gguf file or hf:NAME",
            )
        self.config = read_json(path / CONFIG)
        self.generation = read_json(path / GENERATION) if GENERATION in here else {}
        self._pooling = self._find_pooling(here)
        self._shards = self._find_shards(here)
        self._head = dict.fromkeys(self._open(HEAD).keys(), HEAD) if HEAD in here else {}
        weights = {*self._shards.values(), HEAD}
        used = [name for name in here if name in _READ] + sorted(weights - {WEIGHTS, HEAD})
        self.files = [path / name for name in used] + ([] if self._pooling is None else [self._pooling])
        for file in self.files:
            try:
                durable.open_regular(file, None if file.name in weights else LARGEST_FILE).close()
            except OSError as error:
                raise self._damaged(str(file.relative_to(path)), error) from error

    def _find_shards(self, here: Sequence[str]) -> dict[str, str]:
        """The file of each tensor."""
        if INDEX not in here or WEIGHTS in here:
            if WEIGHTS not in here:
                raise self._no_weights(here)
            return dict.fromkeys(self._open(WEIGHTS).keys(), WEIGHTS)
        shards = read_json(self.path / INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(file, str) for file in shards.values()):
            raise CheckpointError("the index names no files", where=str(self.path / INDEX), fix=_FIX)
        for file in sorted(set(shards.values())):
            if file not in here:
                raise CheckpointError(
                    f"the index names {plain(file)[:80]}, which is not there", where=str(self.path / INDEX), fix=_FIX
                )
            inside = set(self._open(file).keys())
            lost = next((name for name, its in shards.items() if its == file and name not in inside), None)
            if lost is not None:
                raise CheckpointError(
                    f"the index names {plain(lost)[:80]}, which this file does not have",
                    where=str(self.path / file),
                    fix=_FIX,
                )
        return shards

    def _no_weights(self, here: Sequence[str]) -> CheckpointError:
        if any(name.startswith("pytorch_model") and name.endswith(".bin") for name in here):
            return _pickled(str(self.path))
        return CheckpointError(f"there is no {WEIGHTS}", where=str(self.path), fix=_FIX)

    def _open(self, file: str) -> Any:
        if file not in self._opened:
            try:
                durable.open_regular(self.path / file).close()
                self._opened[file] = safe_open(self.path / file, framework="pt")
            except (SafetensorError, OSError) as error:
                raise self._damaged(file, error) from error
        return self._opened[file]

    def _damaged(self, file: str, error: Exception) -> CheckpointError:
        told = plain(str(error).splitlines()[0] if str(error) else type(error).__name__)[:120]
        return CheckpointError(f"{file} cannot be read: {told}", where=str(self.path / file), fix=_FIX)

    def names(self) -> Sequence[str]:
        return list(self._shards)

    def head_names(self) -> Sequence[str]:
        return list(self._head)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._open(self._file(name)).get_slice(name).get_shape())

    def _file(self, name: str) -> str:
        return self._shards.get(name) or self._head[name]

    def read(self, name: str) -> Tensor:
        file = self._file(name)
        try:
            tensor: Tensor = self._open(file).get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise self._damaged(file, error) from error
        if not tensor.is_floating_point():
            raise CheckpointError(
                f"{plain(name)[:80]} is of type {tensor.dtype}, a quantization that is not known",
                where=str(self.path / file),
                fix="name the original model, or a .gguf file of it",
            )
        return tensor

    def tokenizer(self) -> PublishedTokenizer:
        return read_tokenizer(self.path, str(self.config.get("model_type")))

    def _find_pooling(self, here: Sequence[str]) -> Path | None:
        """The file of the pooling of a sentence-transformers model."""
        if MODULES not in here:
            return None
        modules = read_json(self.path / MODULES, list)
        kinds = [str(module.get("type")).rpartition(".")[2] if isinstance(module, dict) else "?" for module in modules]
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
            raise CheckpointError(
                f"this sentence-transformers model has the modules {plain(', '.join(kinds))[:80]}; those that can be "
                "imported have Transformer, Pooling and maybe Normalize",
                where=str(self.path / MODULES),
                fix="docs/interop.md lists what can be imported",
            )
        folder = str(modules[1].get("path"))
        if re.fullmatch(r"[0-9]+_Pooling", folder) is None or folder not in here:
            raise CheckpointError("its pooling is not there", where=str(self.path / MODULES), fix=_FIX)
        self._normalizes = len(kinds) == 3
        return self.path / folder / CONFIG

    def embedding(self) -> dict[str, Any]:
        if self._pooling is None:
            return {}
        settings = read_json(self._pooling)
        chosen = [name for name, value in settings.items() if name.startswith("pooling_mode") and value is True]
        if isinstance(mode := settings.get("pooling_mode"), str):
            chosen = [f"pooling_mode_{mode}"]
        known = {**POOLING, "pooling_mode_cls": "first", "pooling_mode_mean": "mean", "pooling_mode_max": "max"}
        if len(chosen) != 1 or chosen[0] not in known:
            raise CheckpointError(
                f"its pooling is {plain(', '.join(chosen))[:80] or 'none'}; first, last, mean and max are known",
                where=str(self._pooling),
                fix="docs/interop.md lists what can be imported",
            )
        return {"kind": "embedding", "pool": known[chosen[0]], "normalize": self._normalizes}

    def context(self) -> int | None:
        file = self.path / "sentence_bert_config.json"
        length = read_json(file).get("max_seq_length") if self._pooling and file.exists() else None
        return length if isinstance(length, int) and length > 0 else None


class GgufFile:
    """A GGUF file, in the names of a Hugging Face directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = [path]
        self._model = open_gguf(path)
        self.config: Mapping[str, Any] = self._model.config
        self.generation: Mapping[str, Any] = {}

    def names(self) -> Sequence[str]:
        return list(self._model.names())

    def head_names(self) -> Sequence[str]:
        return ()

    def shape(self, name: str) -> tuple[int, ...]:
        shape: tuple[int, ...] = self._model.shape(name)
        return shape

    def read(self, name: str) -> Tensor:
        tensor: Tensor = self._model.read(name)
        return tensor

    def tokenizer(self) -> PublishedTokenizer:
        return PublishedTokenizer(self._model.tokenizer_json, self._model.tokenizer_config)

    def embedding(self) -> dict[str, Any]:
        return {}

    def context(self) -> int | None:
        return None


def read_json(path: Path, kind: type = dict) -> Any:
    """The object, or the list, in a JSON file. Raises CheckpointError."""
    try:
        content = json.loads(durable.read(path))
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}", where=str(path), fix=_FIX) from error
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, kind):
        raise CheckpointError(f"{path.name} is not a JSON {kind.__name__}", where=str(path), fix=_FIX)
    return content


def digest(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal. Raises ResourceError."""
    try:
        with durable.open_regular(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ResourceError(f"cannot read: {error.strerror}", where=str(path), fix="check its permissions") from error


def download(reference: str) -> tuple[Path, str]:
    """The directory of a repository of the Hub in the cache of `huggingface_hub`, and its commit; downloaded if needed.

    Raises CheckpointError when the Hub does not have it, or it cannot be reached and the cache does not have it, and
    when it holds no weights that can be read.
    """
    import huggingface_hub
    from huggingface_hub.errors import RepositoryNotFoundError

    name, revision = parse_hub(reference)
    where = plain(reference)[:120]
    try:
        path = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=list(_READ)))
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"the Hub has no model {name}, or it is not public",
            where=where,
            fix="check its name; for a private or gated one, log in with `hf auth login`",
        ) from error
    except Exception as error:  # the library raises whatever its back ends raise
        told = plain(str(error).splitlines()[0] if str(error) else type(error).__name__)[:120]
        raise CheckpointError(
            f"cannot download the model: {told}",
            where=where,
            fix="check name, revision and network; what was downloaded before is used offline",
        ) from error
    if not any(path.glob("*.safetensors")):
        others: list[str] = []
        with suppress(Exception):  # if the Hub can be reached, to say what it holds instead
            others = huggingface_hub.list_repo_files(name, revision=revision)
        if any(file.endswith(".bin") for file in others):
            raise _pickled(where)
        if any(file.endswith(".gguf") for file in others):
            raise CheckpointError(
                "the repository holds GGUF files", where=where, fix="download one of them, and name the file"
            )
        raise CheckpointError(f"the repository has no {WEIGHTS}", where=where, fix="name another model")
    return path, path.name


def _pickled(where: str) -> CheckpointError:
    return CheckpointError(
        "pytorch_model.bin is a pickle, which can run code when it is read: it is not read",
        where=where,
        fix="convert it where you trust it: from_pretrained(DIR), then save_pretrained(DIR), with Transformers",
    )
