"""A published family of models, as the recipe language describes it: configuration and weights, in both directions."""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from lmtool.errors import CheckpointError
from lmtool.printable import plain
from lmtool.recipe.spec import AnyObjective, Transformer

T = TypeVar("T")
Number = TypeVar("Number", int, float)

HARMLESS = frozenset(
    (
        *("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "model_type"),
        *("use_cache", "output_attentions", "output_hidden_states", "return_dict", "return_dict_in_generate"),
        *("torchscript", "tf_legacy_loss", "use_bfloat16", "pruned_heads", "chunk_size_feed_forward", "problem_type"),
        *("finetuning_task", "task_specific_params", "tokenizer_class", "prefix", "gradient_checkpointing"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id"),
        *("forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "begin_suppress_tokens", "suppress_tokens"),
        *("do_sample", "num_beams", "num_beam_groups", "max_length", "min_length", "length_penalty", "early_stopping"),
        *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "diversity_penalty"),
        *("encoder_no_repeat_ngram_size", "num_return_sequences", "exponential_decay_length_penalty", "output_scores"),
        *("remove_invalid_values", "id2label", "label2id", "num_labels", "initializer_range", "initializer_factor"),
        *("no_repeat_ngram_size", "unk_token_id", "mask_token_id", "_num_labels", "transformers.js_config"),
    )
)
"""Keys of any configuration that do not change the logits: names, labels and tokens read elsewhere, options of
generation and training."""


class Config:
    """The values of a config.json. Remembers which ones were read, since an unread one could change the logits.

    where: the file, for errors. inside: the key of the object that holds these values, if they are not the whole file.
    """

    def __init__(self, values: Mapping[str, Any], where: str, inside: str = "") -> None:
        self.values = values
        self.where = where
        self._inside = f"{inside}." if inside else ""
        self._read: set[str] = set()
        self._sections: list[Config] = []

    def assume(self, defaults: Mapping[str, Any]) -> None:
        """Values of keys that are missing; a null stays."""
        self.values = {**defaults, **self.values}

    def rename(self, other: str, name: str) -> None:
        """Read a key under another name. Raises CheckpointError when both are there and differ."""
        value = self.values.get(other)
        self._read.add(other)
        if value is None:
            return
        self.assume({name: value})
        if self.values[name] != value:
            raise self.refusal(f"{self._inside}{other} and {self._inside}{name} differ")

    def section(self, name: str) -> "Config":
        """The object under a key, empty when it is missing or null. `check_all_read` of this one covers it as well."""
        found = Config(self.take(name, dict, {}), self.where, f"{self._inside}{name}")
        self._sections.append(found)
        return found

    def take(self, name: str, kind: type[T], default: T | None = None) -> T:
        """The value of a key. Raises CheckpointError when it is of another type, or missing without a default."""
        value = self.optional(name, kind)
        if value is not None:
            return value
        if default is None:
            raise self.refusal(f"{self._inside}{name} is missing")
        return default

    def optional(self, name: str, kind: type[T]) -> T | None:
        """The value of a key; None when it is missing or null. Raises CheckpointError when it is of another type."""
        self._read.add(name)
        value = self.values.get(name)
        if value is None:
            return None
        if type(value) is int and abs(value) >= 2**63:
            raise self.refusal(f"{self._inside}{name} has more than 64 bits")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refusal(f"{self._inside}{name} is {self._shown(value)}, not of type {kind.__name__}")
        found: T = value
        return found

    def positive(self, name: str, kind: type[Number], default: Number | None = None) -> Number:
        """The number of a key, which must be above 0. Raises CheckpointError."""
        value = self.take(name, kind, default)
        if not 0 < value < math.inf:
            raise self.refusal(f"{name} is {self._shown(value)}, not a positive number")
        return value

    def expect(self, name: str, *allowed: object) -> None:
        """Read a key that must be missing, null, or one of these values. Raises CheckpointError."""
        self._read.add(name)
        value = self.values.get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise self.inexpressible(name)

    def pick(self, name: str, choices: Mapping[str, T]) -> T:
        """What a table has for the value of a key. Raises CheckpointError when it has nothing."""
        value = self.take(name, str)
        if value not in choices:
            raise self.inexpressible(name)
        return choices[value]

    def ignore(self, *names: str) -> None:
        """Keys of this family that do not change the logits, such as dropout in training."""
        self._read.update(names)

    def check_all_read(self) -> None:
        """Raise CheckpointError when a key was not read and is not known to be harmless."""
        unread = sorted(self._unread())
        if unread:
            raise self.refusal(f"unknown keys may change what it computes: {plain(', '.join(unread))[:160]}")

    def _unread(self) -> Iterator[str]:
        for key, value in self.values.items():
            if key not in self._read and key not in HARMLESS and value is not None:
                yield f"{self._inside}{key}"
        for section in self._sections:
            yield from section._unread()

    def inexpressible(self, name: str) -> CheckpointError:
        """An error about the value of a key."""
        return self.refusal(f"{self._inside}{name} is {self._shown(self.values[name])}, which no recipe can express")

    def refusal(self, what: str) -> CheckpointError:
        """An error about this file."""
        return CheckpointError(
            f"this model cannot be imported: {what}",
            where=self.where,
            fix="docs/interop.md lists what can be imported",
        )

    @staticmethod
    def _shown(value: object) -> str:
        return plain(repr(value))[:60]


class Layout(ABC):
    """How one tensor of ours is made of theirs. `join` and `split` are inverse, bit for bit.

    `join` raises ValueError when theirs have other shapes than the layout says; it does not know all of them.
    """

    @abstractmethod
    def join(self, theirs: Sequence[Tensor]) -> Tensor: ...

    @abstractmethod
    def split(self, ours: Tensor) -> list[Tensor]: ...


@dataclass(frozen=True)
class Joined(Layout):
    """Theirs follow one another in the first dimension, with these widths."""

    widths: tuple[int, ...]

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        widths = [width for one in theirs for width in one.shape[:1]]
        if widths != list(self.widths):
            raise ValueError(f"widths {widths} instead of {list(self.widths)}")
        return torch.cat(list(theirs))

    def split(self, ours: Tensor) -> list[Tensor]:
        return list(torch.split(ours, list(self.widths)))


class Same(Layout):
    """One tensor, as it is."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        (one,) = theirs
        return one

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours]


class Transposed(Same):
    """A matrix as (in, out) (GPT-2's Conv1D); ours are (out, in)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one = super().join(theirs)
        if one.ndim != 2:
            raise ValueError(f"{one.ndim} dimensions instead of 2")
        return one.T

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours.T]


@dataclass(frozen=True)
class ByHead(Same):
    """Query, key and value interleaved by head (GPT-NeoX, BLOOM); ours has all queries first."""

    n_heads: int

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one = super().join(theirs)
        if not one.ndim or len(one) % (3 * self.n_heads):
            raise ValueError(f"shape {list(one.shape)} is not divisible by 3 x {self.n_heads} heads")
        return one.reshape(self.n_heads, 3, -1, *one.shape[1:]).transpose(0, 1).reshape(one.shape)

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours.reshape(3, self.n_heads, -1, *ours.shape[1:]).transpose(0, 1).reshape(ours.shape)]


class AsRow(Same):
    """A vector as a matrix of one row (the output bias of BART and Marian)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return super().join(theirs).squeeze(0)

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours[None]]


class ZeroRow(Layout):
    """Theirs has a table of one row of zeros after the tensor (segments, of a recipe without any)."""

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        one, zeros = theirs
        if zeros.any():
            raise ValueError("a row that is not all zeros")
        return one

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours, ours.new_zeros(1, *ours.shape[1:])]


@dataclass(frozen=True)
class Halves(Layout):
    """The even entries of a dimension of ours come before the odd ones in theirs; otherwise as in `layout`."""

    dim: int
    layout: Layout

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        halves = torch.unflatten(self.layout.join(theirs), self.dim, (2, -1))
        return halves.transpose(self.dim, self.dim + 1).flatten(self.dim, self.dim + 1)

    def split(self, ours: Tensor) -> list[Tensor]:
        pairs = torch.unflatten(ours, self.dim, (-1, 2))
        return self.layout.split(pairs.transpose(self.dim, self.dim + 1).flatten(self.dim, self.dim + 1))


@dataclass(frozen=True)
class Rescaled(Same):
    """Theirs is ours times `scale`, plus `shift`; `join` and `split` are inverse up to rounding."""

    scale: float
    shift: float = 0.0

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return (super().join(theirs) - self.shift) / self.scale

    def split(self, ours: Tensor) -> list[Tensor]:
        return [ours * self.scale + self.shift]


SAME = Same()


@dataclass(frozen=True)
class Weight:
    """A tensor of ours, the names of theirs that it is made of, and how."""

    ours: str
    theirs: tuple[str, ...]
    layout: Layout = SAME


@dataclass(frozen=True)
class Described:
    """Sections `model` and `objective` of the recipe of a published model, as plain values."""

    model: dict[str, Any]
    objective: dict[str, Any]


@dataclass(frozen=True)
class Published:
    """The configuration of an exported model.

    architecture: name of Transformers' class. config: content of config.json, without labels and special tokens.
    """

    architecture: str
    config: dict[str, Any]


class Inexpressible(Exception):
    """A family cannot express a recipe. key: the key that stands in the way. why: in a few words."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why


class Family(ABC):
    """One `model_type` of Transformers.

    prefix: of the body in the names of a model with a head, which files of the body alone omit.
    redundant: regular expressions of names of tensors that are not needed: buffers, and copies of tied ones.
    renamed: parts of names in old files, with what they are called now.
    """

    model_type: ClassVar[str]
    prefix: ClassVar[str] = ""
    redundant: ClassVar[tuple[str, ...]] = ()
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()

    @abstractmethod
    def describe(self, config: Config, names: Collection[str]) -> Described:
        """The recipe of a model with this configuration.

        names: of its tensors, as in a model with a head (with `prefix`), which tell the heads that it has.
        Reads every key that changes the logits. Raises CheckpointError, as `Config` does, for what no recipe expresses.
        """

    @abstractmethod
    def publish(self, model: Transformer, objective: AnyObjective) -> Published:
        """The inverse of `describe`, for a model with a `vocab_size`.

        Raises Inexpressible with the first key that stands in the way.
        """

    @abstractmethod
    def weights(self, model: Transformer, objective: AnyObjective) -> list[Weight]:
        """All tensors that the objective reads; theirs are named with `prefix`.

        A classifier has those of its head and, named `body.`, of its model, whose own head is not read.
        """
