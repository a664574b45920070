"""What files of runs and caches say, as pydantic models."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lmtool.checksum import xxh3


class FileModel(BaseModel):
    """Base of the models of JSON files and lines: exact types, no unknown keys, no NaN and infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class SealedModel(FileModel):
    """Base of the models of files that state their own checksum; those of earlier versions lack it."""

    checksum: str | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.checksum not in (None, xxh3(encode(self._content()))):
            raise ValueError("it does not match the checksum that it states")
        return self

    def sealed(self) -> bytes:
        """The file."""
        return sealed(self._content())

    def _content(self) -> dict[str, Any]:
        return self.model_dump(exclude={"checksum"}, exclude_unset=True)


Content = TypeVar("Content", bound=BaseModel)

MOST_DIGITS = 100
"""Digits of an integer."""

SHOWN = 100
"""Characters of what is wrong with a file that an error shows."""


def read(kind: type[Content], raw: bytes) -> Content:
    """The content of a JSON file. Raises ValueError, whose message is one short line."""
    return check(kind, parse(raw))


def parse(raw: bytes) -> Any:
    """The JSON values of a file or a line. Raises ValueError, also for numbers that no float can hold."""
    try:
        return json.loads(raw, parse_int=_integer)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON ({len(raw)} bytes)") from None


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError("an integer is too long")
    return int(digits)


def check(kind: type[Content], content: object) -> Content:
    """Parsed JSON as its model. Raises ValueError, whose message is one short line: the first key that is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))[:SHOWN]
        what = _WORDS.get(first["type"], first["msg"].removeprefix("Value error, ").removeprefix("Input ")[:SHOWN])
        value = f", not {first['input']!r:.20}" if first["type"] == "literal_error" else ""
        raise ValueError(f"{key} {what}{value}".strip()) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


_WORDS = {"missing": "is missing", "extra_forbidden": "is unknown"}
"""Pydantic's types of errors in plain words; others in pydantic's own."""


def finite(value: Any) -> Any:
    """JSON values in which NaN and infinities are null."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def sealed(content: Mapping[str, Any], key: str = "checksum", digest: Callable[[bytes], str] = xxh3) -> bytes:
    """An object as the JSON of a file that states its own checksum: XXH3, 64 bits."""
    return encode({**content, key: digest(encode(content))})


def encode(content: Any) -> bytes:
    """A value as the JSON of a file. Raises ValueError for NaN and infinities."""
    return json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n"


def is_deep(value: Any, deepest: int) -> bool:
    """Whether a JSON value has others within others, more than so many of them."""
    level = [value]
    for _ in range(deepest):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [one for ones in inner for one in ones]
    return bool(level)
