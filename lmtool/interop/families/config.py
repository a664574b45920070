"""Configurations of published models: values, tasks and labels of config.json, and what cannot be written to it."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lmtool.errors import CheckpointError
from lmtool.printable import printable

T = TypeVar("T")
Number = TypeVar("Number", int, float)

HARMLESS = frozenset(yaml.safe_load(Path(__file__).with_name("harmless.yaml").read_text(encoding="utf-8")))
"""Keys of any configuration that do not change the logits: names, labels and tokens read elsewhere, options of
generation and training."""


class Config:
    """The values of a config.json. Remembers which ones were read, since an unread one could change the logits.

    where: the file, for errors. names: of the tensors, as in a model with a head. inside: the key of the object that
    holds these values, if they are not the whole file.
    """

    def __init__(self, values: Mapping[str, Any], where: str, names: Collection[str] = (), inside: str = "") -> None:
        self.values = values
        self.where = where
        self.names = frozenset(names)
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
            told = f"{self._inside}{other} is {self._shown(value)} and {name} {self._shown(self.values[name])}"
            raise self.refusal(f"{told}, which no recipe can express")

    def section(self, name: str) -> "Config":
        """The object under a key, empty when it is missing or null. `check_all_read` of this one covers it as well."""
        section = Config(self.take(name, dict, {}), self.where, inside=f"{self._inside}{name}")
        self._sections.append(section)
        return section

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
        typed: T = value
        return typed

    def positive(self, name: str, kind: type[Number], default: Number | None = None) -> Number:
        """The number of a key, which must be above 0. Raises CheckpointError."""
        value = self.take(name, kind, default)
        if not 0 < value < math.inf:
            raise self.refusal(f"{self._inside}{name} is {self._shown(value)}, not a positive number")
        return value

    def expect(self, name: str, *allowed: object) -> None:
        """Read a key that must be missing, null, or one of these values. Raises CheckpointError."""
        self._read.add(name)
        value = self.values.get(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise self.inexpressible(name)

    def architecture(self) -> str:
        """Name of the class that it was saved from; empty when it is not given."""
        listed = self.optional("architectures", list) or [""]
        return str(listed[0])

    def ignore(self, *names: str) -> None:
        """Keys of this family that do not change the logits, such as dropout in training."""
        self._read.update(names)

    def check_all_read(self) -> None:
        """Raise CheckpointError when a key was not read and is not known to be harmless."""
        unread = sorted(self._unread())
        if unread:
            raise self.refusal(f"unknown keys may change what it computes: {printable(', '.join(unread))[:160]}")

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
            f"this model cannot be imported: {what}", where=self.where, fix="docs/serve.md lists what can be imported"
        )

    @staticmethod
    def _shown(value: object) -> str:
        return printable(repr(value))[:60]
