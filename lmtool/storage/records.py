"""JSON files of runs and caches as pydantic models."""

import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from lmtool.storage.checksum import xxh3


class JsonModel(BaseModel):
    """Base of the models of JSON files and lines: refuses other types, unknown keys, NaN and infinities."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ChecksummedModel(JsonModel):
    """Base of the models of JSON files that contain their own checksum; files of earlier versions lack it."""

    checksum: str | None = None

    @model_validator(mode="after")
    def _verify_checksum(self) -> Self:
        if self.checksum not in (None, xxh3(encode_json(self._content_without_checksum()))):
            raise ValueError("it does not match the checksum that it states")
        return self

    def to_json_bytes(self) -> bytes:
        """Returns the JSON file with its checksum."""
        return encode_with_checksum(self._content_without_checksum())

    def _content_without_checksum(self) -> dict[str, Any]:
        return self.model_dump(exclude={"checksum"}, exclude_unset=True)


ModelT = TypeVar("ModelT", bound=BaseModel)

MAX_INTEGER_DIGITS = 100
MAX_SHOWN_CHARACTERS = 100
"""Characters of a key or a value that an error shows."""


def parse_model(kind: type[ModelT], raw: bytes) -> ModelT:
    """Parses and validates a JSON file. Raises ValueError, whose message is one short line."""
    return validate_model(kind, parse_json(raw))


def parse_json(raw: bytes) -> Any:
    """Parses a JSON file or line. Raises ValueError, also for integers that are too long for a float."""
    try:
        return json.loads(raw, parse_int=_parse_integer)
    except (ValueError, RecursionError):
        raise ValueError(f"it is not JSON ({len(raw)} bytes)") from None


def _parse_integer(digits: str) -> int:
    if len(digits) > MAX_INTEGER_DIGITS:
        raise ValueError("an integer is too long")
    return int(digits)


def validate_model(kind: type[ModelT], content: object) -> ModelT:
    """Validates parsed JSON. Raises ValueError, whose message is one short line about the first key that is wrong."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))[:MAX_SHOWN_CHARACTERS]
        message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")[:MAX_SHOWN_CHARACTERS]
        what = {"missing": "is missing", "extra_forbidden": "is unknown"}.get(first["type"], message)
        value = f", not {first['input']!r:.20}" if first["type"] == "literal_error" else ""
        raise ValueError(f"{key} {what}{value}".strip()) from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def replace_nonfinite(value: Any) -> Any:
    """Returns a JSON value with None in place of NaN and infinities."""
    if isinstance(value, Mapping):
        return {key: replace_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_nonfinite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encode_with_checksum(
    content: Mapping[str, Any], key: str = "checksum", digest: Callable[[bytes], str] = xxh3
) -> bytes:
    """Returns an object as a JSON file that contains its own checksum under `key`."""
    return encode_json({**content, key: digest(encode_json(content))})


def encode_json(content: Any) -> bytes:
    """Returns a value as a JSON file. Raises ValueError for NaN and infinities."""
    return json.dumps(content, indent=1, allow_nan=False).encode("ascii") + b"\n"


def is_nested_deeper(value: Any, max_depth: int) -> bool:
    """Returns whether a JSON value has more than `max_depth` levels of lists and objects within each other."""
    level = [value]
    for _ in range(max_depth):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, dict | list))
        level = [one for ones in inner for one in ones]
    return bool(level)
