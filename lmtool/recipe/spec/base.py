"""What all parts of the recipe language share: the base of specs, and types of values."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Fraction = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1e30)]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
PrecisionName = Literal["auto", "float32", "bfloat16", "float16"]
Strings = Annotated[
    tuple[str, ...],
    Field(strict=False),
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
]
"""A list of texts; a single text is a list of one."""


class Spec(BaseModel):
    """Base of all specs: immutable, strictly typed, finite, without unknown keys.

    A multi-field validator raises one ValueError with a line for each mistake, which starts with the key concerned.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
