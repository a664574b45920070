"""What all parts of the recipe language share: the base of specs, and types of values."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _wrap_in_list(value: object) -> object:
    return [value] if isinstance(value, str) else value


Fraction = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]
Strings = Annotated[
    tuple[str, ...], Field(strict=False), BeforeValidator(_wrap_in_list, json_schema_input_type=str | list[str])
]
"""A list of texts; a single text is a list of one."""


MAX_INTEGER = 2**53
"""No integer of a recipe is beyond it, up to which floats hold every one."""
MAX_FLOAT = 1e30
"""No other number is beyond it: squares of what training computes with it are finite in float64."""


def find_surrogates_and_too_large_numbers(
    value: object, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Path and mistake of each text and number that no recipe can hold.

    Such as a lone surrogate, by which Python has the bytes of a file name that are not UTF-8.
    """
    match value:
        case Mapping():
            for name, item in value.items():
                yield from find_surrogates_and_too_large_numbers(name, (*path, name))
                yield from find_surrogates_and_too_large_numbers(item, (*path, name))
        case list() | tuple():
            for item in value:
                yield from find_surrogates_and_too_large_numbers(item, path)
        case str() if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            yield path, "holds a character that UTF-8 cannot encode"
        case int() | float() if not is_representable(value) and (isinstance(value, int) or math.isfinite(value)):
            yield path, f"the number is too large; at most {MAX_INTEGER if isinstance(value, int) else MAX_FLOAT}"


def is_representable(number: float) -> bool:
    """Whether a number is finite, and one that all code can hold."""
    return abs(number) <= (MAX_INTEGER if isinstance(number, int) else MAX_FLOAT)


class Spec(BaseModel):
    """Base of all specs: immutable, strictly typed, finite, without unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    def mistakes(self) -> Iterable[str]:
        """Values that do not fit together, a line for each mistake, which starts with the key concerned."""
        return ()

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        if mistakes := list(self.mistakes()):
            raise ValueError("\n".join(mistakes))
        return self

    def with_unvalidated_values(self, values_by_dotted_key: Mapping[str, Any]) -> Self:
        """A copy with other values by dotted key, such as {"training.steps": 5}; they are not validated."""
        update: dict[str, Any] = {}
        for key, value in values_by_dotted_key.items():
            name, _, below = key.partition(".")
            part = update.get(name, getattr(self, name))
            update[name] = part.with_unvalidated_values({below: value}) if below else value
        return self.model_copy(update=update)
