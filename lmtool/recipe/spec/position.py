"""Positions of a Transformer."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from lmtool.recipe.spec.base import Spec


class LearnedPosition(Spec):
    """A learned embedding for each position (GPT, BERT)."""

    kind: Literal["learned"] = "learned"
    size: PositiveInt | None = None
    """Rows of the position table; the context and the offset by default."""
    offset: NonNegativeInt = 0
    """Row of the first position; those before it are unused (RoBERTa and BART have 2)."""


class SinusoidalPosition(Spec):
    """Fixed sines and cosines of geometrically spaced wavelengths (Vaswani et al. 2017)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    layout: Literal["alternating", "halves"] = "alternating"
    """Sines and cosines alternate as in the paper, or all cosines come after all sines (Marian)."""


class NoPosition(Spec):
    """No positional encoding: order is implicit in the causal mask (NoPE, Kazemnejad et al. 2023)."""

    kind: Literal["none"] = "none"


class AlibiPosition(Spec):
    """ALiBi: attention biases linear in distance, with a slope for each head (Press et al. 2022)."""

    kind: Literal["alibi"]


class RelativePosition(Spec):
    """Learned relative position biases for each head and bucket of distances (T5, Raffel et al. 2020)."""

    kind: Literal["relative"]
    buckets: Annotated[int, Field(ge=4)] = 32
    """Buckets of distances; short distances have one each."""
    max_distance: PositiveInt = 128
    """Distance from which all share one bucket."""

    def mistakes(self) -> Iterator[str]:
        if self.max_distance <= self.buckets // 2:
            yield f"max_distance {self.max_distance} is not above buckets / 2, the distances of their own"


class DisentangledPosition(Spec):
    """Contents attend to relative positions, and relative positions to contents (DeBERTa, He et al. 2021)."""

    kind: Literal["disentangled"]
    max_distance: PositiveInt = 128
    """Distance k from which all share an embedding with the last before it; 2 k embeddings are for both sides."""


class NoScaling(Spec):
    """Wavelengths as in training on the original context."""

    kind: Literal["none"] = "none"


class LinearScaling(Spec):
    """Position interpolation: all wavelengths are multiplied (Chen et al. 2023)."""

    kind: Literal["linear"]
    factor: PositiveFloat
    """Factor of the wavelengths."""


class Llama3Scaling(Spec):
    """Only wavelengths that are long for the original context are multiplied (Llama 3; Grattafiori et al. 2024)."""

    kind: Literal["llama3"]
    factor: PositiveFloat
    """Factor of the long wavelengths."""
    original_context: PositiveInt
    """Context before scaling."""
    low_frequency: PositiveFloat = 1.0
    """Turns within the original context up to which a wavelength is long."""
    high_frequency: PositiveFloat = 4.0
    """Turns within the original context from which a wavelength is short, and stays; those between are blended."""

    def mistakes(self) -> Iterator[str]:
        if self.low_frequency >= self.high_frequency:
            yield f"low_frequency {self.low_frequency} is not below high_frequency {self.high_frequency}"


class YarnScaling(Spec):
    """YaRN: short wavelengths stay, long ones are multiplied, attention is sharpened (Peng et al. 2024)."""

    kind: Literal["yarn"]
    factor: PositiveFloat
    """Factor of the long wavelengths."""
    original_context: PositiveInt
    """Context before scaling."""
    slow_turns: PositiveFloat = 1.0
    """Turns within the original context up to which a wavelength is multiplied (beta_slow)."""
    fast_turns: PositiveFloat = 32.0
    """Turns within the original context from which a wavelength stays (beta_fast); those between are blended."""
    attention_factor: PositiveFloat | None = None
    """Factor of rotated queries and keys; 0.1 ln(factor) + 1 by default."""

    def mistakes(self) -> Iterator[str]:
        if self.slow_turns >= self.fast_turns:
            yield f"slow_turns {self.slow_turns} is not below fast_turns {self.fast_turns}"


RotaryScaling = Annotated[NoScaling | LinearScaling | Llama3Scaling | YarnScaling, Field(discriminator="kind")]


class RotaryPosition(Spec):
    """Queries and keys are rotated by angles proportional to position (RoPE, Su et al. 2021)."""

    kind: Literal["rotary"]
    theta: PositiveFloat = 10_000.0
    """Base of the wavelengths."""
    window_theta: PositiveFloat | None = None
    """Base in layers whose attention is windowed, where others are not (ModernBERT); theta by default."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of a head's width that is rotated (GPT-NeoX has a quarter)."""
    scaling: RotaryScaling = NoScaling()
    """How wavelengths are changed for a context longer than the original one."""


Position = Annotated[
    LearnedPosition
    | SinusoidalPosition
    | AlibiPosition
    | RelativePosition
    | DisentangledPosition
    | RotaryPosition
    | NoPosition,
    Field(discriminator="kind"),
]
