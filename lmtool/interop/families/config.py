"""Reads configurations of published models, and rejects what may change their outputs and no recipe expresses."""

import math
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from lmtool.errors import CheckpointError
from lmtool.printable import printable, printable_repr

T = TypeVar("T")
Number = TypeVar("Number", int, float)

HARMLESS_KEYS = frozenset(yaml.safe_load(Path(__file__).with_name("harmless.yaml").read_text(encoding="utf-8")))
"""Keys of any configuration that do not change the logits: names, labels and tokens read elsewhere, options of
generation and training."""


class StrictConfigReader:
    """Reads typed values of a config.json, and remembers which, because one left unread could change the logits.

    where: the file, for errors.
    tensor_names: names of the model's tensors, as in a model with a head.
    section: the key of the object that holds these values; empty when they are the whole file.
    """

    def __init__(
        self, values: Mapping[str, Any], where: str, tensor_names: Collection[str] = (), section: str = ""
    ) -> None:
        self.values = values
        self.where = where
        self.tensor_names = frozenset(tensor_names)
        self._prefix = f"{section}." if section else ""
        self._read_keys: set[str] = set()
        self._sections: list[StrictConfigReader] = []

    def set_defaults_(self, defaults: Mapping[str, Any]) -> None:
        """Sets the values of keys that are missing. A null stays."""
        self.values = {**defaults, **self.values}

    def merge_alias_or_raise_(self, alias: str, key: str) -> None:
        """Moves the value of `alias` to `key`. Raises CheckpointError when both are there and differ."""
        value = self.values.get(alias)
        self._read_keys.add(alias)
        if value is None:
            return
        self.set_defaults_({key: value})
        if self.values[key] != value:
            both = f"{self._prefix}{alias} is {printable_repr(value)} and {key} {printable_repr(self.values[key])}"
            raise self.import_error(f"{both}, which no recipe can express")

    def read_section(self, key: str) -> "StrictConfigReader":
        """Reads an object, empty when it is missing or null. `check_all_read` of the whole covers it as well."""
        section = StrictConfigReader(self.read(key, dict, {}), self.where, section=f"{self._prefix}{key}")
        self._sections.append(section)
        return section

    def read(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Reads a value. Raises CheckpointError when it is of another type, or missing without a default."""
        value = self.read_optional(key, kind)
        if value is not None:
            return value
        if default is None:
            raise self.import_error(f"{self._prefix}{key} is missing")
        return default

    def read_optional(self, key: str, kind: type[T]) -> T | None:
        """Reads a value, None when it is missing or null. Raises CheckpointError when it is of another type."""
        self._read_keys.add(key)
        value = self.values.get(key)
        if value is None:
            return None
        if type(value) is int and abs(value) >= 2**63:
            raise self.import_error(f"{self._prefix}{key} has more than 64 bits")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.import_error(f"{self._prefix}{key} is {printable_repr(value)}, not of type {kind.__name__}")
        typed: T = value
        return typed

    def read_positive(self, key: str, kind: type[Number], default: Number | None = None) -> Number:
        """Reads a number. Raises CheckpointError when it is not above 0, and as `read` does."""
        value = self.read(key, kind, default)
        if not 0 < value < math.inf:
            raise self.import_error(f"{self._prefix}{key} is {printable_repr(value)}, not a positive number")
        return value

    def check_value_if_set(self, key: str, *allowed: object) -> None:
        """Raises CheckpointError for a value that is none of `allowed`; one that is missing or null passes."""
        self._read_keys.add(key)
        value = self.values.get(key)
        if value is not None and not any(type(value) is type(one) and value == one for one in allowed):
            raise self.inexpressible_value_error(key)

    def read_architecture(self) -> str:
        """Reads the name of the class that the model was saved from; empty when the file does not say."""
        listed = self.read_optional("architectures", list) or [""]
        return str(listed[0])

    def ignore_keys(self, *keys: str) -> None:
        """Accepts any value of keys that do not change the logits, such as dropout in training."""
        self._read_keys.update(keys)

    def check_all_read(self) -> None:
        """Raises CheckpointError when a key was not read and is not known to be harmless."""
        unread = sorted(self._iterate_unread())
        if unread:
            raise self.import_error(f"unknown keys may change what it computes: {printable(', '.join(unread))[:160]}")

    def _iterate_unread(self) -> Iterator[str]:
        for key, value in self.values.items():
            if key not in self._read_keys and key not in HARMLESS_KEYS and value is not None:
                yield f"{self._prefix}{key}"
        for section in self._sections:
            yield from section._iterate_unread()

    def inexpressible_value_error(self, key: str) -> CheckpointError:
        """An error about a value that no recipe can express."""
        return self.import_error(
            f"{self._prefix}{key} is {printable_repr(self.values[key])}, which no recipe can express"
        )

    def import_error(self, what: str) -> CheckpointError:
        """An error about this file."""
        return CheckpointError(
            f"this model cannot be imported: {what}", where=self.where, fix="docs/serve.md lists what can be imported"
        )
