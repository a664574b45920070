"""Positional encodings: added to the embeddings, or applied in every attention layer.

Positions count the tokens of a text. Shapes: B rows, P is B or 1 where all rows have the same positions, T queries, S
keys, N heads, H head width, D model width.
"""

import math
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from lmtool.batch import widest_float_dtype
from lmtool.model.layers.scores import DisentangledScore, DisentangledScoreAtPositions, Score
from lmtool.recipe.spec import position as specs
from lmtool.recipe.spec.transformer import Transformer

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""Maps a score, and the indices of its row, head, query and key, to the score as it enters the softmax."""


class LearnedPositions(nn.Module):
    """Adds a learned embedding of each position; that of the first one is in row `offset` of the table."""

    def __init__(self, size: int, d_model: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(size, d_model)
        self.offset = offset

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        summed: Tensor = x_BTD + self.table(positions_PT + self.offset if self.offset else positions_PT)
        return summed


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) the cosine of the same (Vaswani et al. 2017).

    sines_first: all sines come first, in the order of i, and then the cosines.
    """

    def __init__(self, d_model: int, sines_first: bool = False) -> None:
        super().__init__()
        self.d_model = d_model
        self.sines_first = sines_first

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        angles_PTH = positions_PT[..., None] * _inverse_frequencies(self.d_model, 10_000.0, positions_PT.device)
        sines_PTD = torch.stack((angles_PTH.sin(), angles_PTH.cos()), -2 if self.sines_first else -1).flatten(-2)
        return x_BTD + sines_PTD.to(x_BTD.dtype)


def _inverse_frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """Returns 1 / theta^(2i/width) for i = 0 to width/2 - 1, in radians per position."""
    # float64, because float32 loses the phase of fast rotations at large positions
    exponents = torch.arange(0, width, 2, device=device, dtype=widest_float_dtype(device)) / width
    return theta**-exponents


class AttentionPositions(nn.Module):
    """A positional encoding inside attention; the base class has none."""

    def cosines_and_sines(self, positions_PT: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Returns cosines and sines (P, 1, T, H) for `ops.rotary`; None without rotation."""
        return None

    def bias(self, query_PT: Tensor, key_PS: Tensor) -> Tensor | None:
        """Returns the bias that is added to the attention scores (P, N, T, S); None for none."""
        return None

    def bind_to_positions(self, score: Score, positions_PS: Tensor) -> Score:
        """Returns the score for keys at these positions and queries at the last of them."""
        return score


class RotaryPositions(AttentionPositions):
    """Rotates the pairs (i, i + R/2) of queries and keys by pos / theta^(2i/R) (Su et al. 2021; the pairs of Llama).

    rotated_fraction: R / H, for heads of width H, whose last H - R components are not rotated (Black et al. 2022,
        GPT-NeoX).
    """

    def __init__(self, theta: float, rotated_fraction: float = 1.0, scaling: specs.RotaryScaling | None = None) -> None:
        super().__init__()
        self.theta = theta
        self.rotated_fraction = rotated_fraction
        self.scaling = scaling or specs.NoScaling()

    def scaled_frequencies(self, width: int, device: torch.device) -> tuple[Tensor, float]:
        """Returns `scale_rotary_frequencies` of heads of `width`."""
        n_rotated = int(width * self.rotated_fraction)
        frequencies = _inverse_frequencies(n_rotated, self.theta, device)
        return scale_rotary_frequencies(frequencies, self.scaling, 2 * math.log(self.theta) / n_rotated)

    def cosines_and_sines(self, positions_PT: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines of the rotated components (P, 1, T, R)."""
        frequencies, factor = self.scaled_frequencies(width, positions_PT.device)
        angles_P1TR = (positions_PT[..., None] * frequencies)[:, None]
        cos, sin = (factor * angles_P1TR.cos()).to(dtype), (factor * angles_P1TR.sin()).to(dtype)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def scale_rotary_frequencies(
    frequencies: Tensor, scaling: specs.RotaryScaling, log_frequency_ratio: float
) -> tuple[Tensor, float]:
    """Scales frequencies for a longer context.

    Returns the radians per position of each pair of components (R/2,), and the factor of rotated queries and keys.

    Args:
        frequencies: in radians per position, descending.
        log_frequency_ratio: logarithm of the ratio of each frequency to the next.
    """
    match scaling:
        case specs.NoScaling():
            return frequencies, 1.0
        case specs.LinearScaling(factor=factor):
            return frequencies / factor, 1.0
        case specs.Llama3Scaling(factor=factor, low_frequency=low, high_frequency=high):
            turns = scaling.original_context * frequencies / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
            return frequencies * (kept + (1 - kept) / factor), 1.0
        case specs.YarnScaling(factor=factor, attention_factor=attention):
            # the kept share is linear in the index of a frequency, between those of fast and slow turns
            n = len(frequencies)
            # above 0, for a base that is hardly above 1
            log_frequency_ratio = max(log_frequency_ratio, 1e-12) if n > 1 else math.inf
            first, last = (
                math.log(scaling.original_context / (turns * 2 * math.pi)) / log_frequency_ratio
                for turns in (scaling.fast_turns, scaling.slow_turns)
            )
            first, last = max(math.floor(first), 0), min(math.ceil(last), 2 * n - 1)
            index = torch.arange(n, device=frequencies.device, dtype=frequencies.dtype)
            kept = 1 - ((index - first) / max(last - first, 1e-3)).clamp(0, 1)
            sharpened = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
            return frequencies * (kept + (1 - kept) / factor), attention or sharpened


class AlibiPositions(AttentionPositions):
    """Adds -m |i - j| to the scores, with a slope m per head (ALiBi, Press et al. 2022).

    For n heads, n a power of two, the slopes are 2^(-8/n), 2^(-16/n), ...; for other n those of the next lower power,
    and every second one of the next higher, as in the paper's code.
    """

    slopes_N: Tensor

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        # on the meta device n_heads may be too large to allocate
        on_meta = torch.get_default_device().type == "meta"
        slopes_N = torch.empty(n_heads) if on_meta else torch.tensor(alibi_slopes(n_heads))
        self.register_buffer("slopes_N", slopes_N, persistent=False)

    def bias(self, query_PT: Tensor, key_PS: Tensor) -> Tensor:
        distance_PTS = (query_PT[:, :, None] - key_PS[:, None]).abs()
        # the body may be on the meta device while a head learns its shapes
        return -self.slopes_N.to(query_PT.device)[:, None, None] * distance_PTS[:, None]

    def score_mod(self, positions_PS: Tensor) -> ScoreMod:
        """Returns a function that adds the bias to one score, for FlexAttention. positions_PS: of queries and keys."""

        def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            text = row % len(positions_PS)
            return score - self.slopes_N[head] * (positions_PS[text, query] - positions_PS[text, key]).abs()

        return add_bias


def alibi_slopes(n_heads: int) -> list[float]:
    """Returns the ALiBi slope of each head."""
    below = 2 ** int(math.log2(n_heads))
    slopes = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2.0 ** (-4 * (2 * i + 1) / below) for i in range(n_heads - below)]
    return slopes + between


class RelativePositions(AttentionPositions):
    """Adds a learned bias per head and relative-position bucket (T5, Raffel et al. 2020).

    Half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`, beyond which all
    distances share the last. Bidirectional attention has half of the buckets for each side.
    """

    def __init__(self, n_heads: int, buckets: int, max_distance: int, bidirectional: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, n_heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def bias(self, query_PT: Tensor, key_PS: Tensor) -> Tensor:
        offset_PTS = key_PS[:, None] - query_PT[:, :, None]
        bias_PTSN: Tensor = self.table(self.relative_position_bucket(offset_PTS))
        # contiguous in the layout of the scores, which it is added to in every layer
        return bias_PTSN.permute(0, 3, 1, 2).contiguous()

    def relative_position_bucket(self, offset: Tensor) -> Tensor:
        """Returns the bucket of each offset from query to key, which is negative for keys before the query."""
        n = self.table.num_embeddings
        if self.bidirectional:
            n //= 2
            first = torch.where(offset > 0, n, 0)
            distance = offset.abs()
        else:
            first = torch.zeros_like(offset)
            distance = (-offset).clamp(min=0)
        exact = n // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        far = (exact + (growth * (n - exact)).long()).clamp(max=n - 1)
        return first + torch.where(distance < exact, distance, far)


class DisentangledPositions(AttentionPositions):
    """Embeddings of 2 k relative positions, which the score of each layer maps to queries and keys (He et al. 2021)."""

    def __init__(self, d_model: int, max_distance: int) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * max_distance, d_model)

    def bind_to_positions(self, score: Score, positions_PS: Tensor) -> Score:
        assert isinstance(score, DisentangledScore)
        return cast(Score, DisentangledScoreAtPositions(score, self.table.weight, positions_PS))


def build_position_embedding(spec: Transformer) -> nn.Module | None:
    """Builds the module that adds position embeddings; None for other encodings."""
    width = spec.embedding_width or spec.d_model
    match spec.position:
        case specs.LearnedPosition(size=size, offset=offset):
            return LearnedPositions(size or spec.context + offset, width, offset)
        case specs.SinusoidalPosition(layout=layout):
            return SinusoidalPositions(width, sines_first=layout == "halves")
        case _:
            return None


def build_attention_position(spec: Transformer, bidirectional: bool) -> AttentionPositions:
    """Builds the positional encoding of a stack's attention. bidirectional: whether keys may follow a query."""
    match spec.position:
        case specs.AlibiPosition():
            return AlibiPositions(spec.n_heads)
        case specs.RelativePosition(buckets=buckets, max_distance=max_distance):
            return RelativePositions(spec.n_heads, buckets, max_distance, bidirectional)
        case specs.DisentangledPosition(max_distance=max_distance):
            return DisentangledPositions(spec.d_model, max_distance)
        case specs.RotaryPosition(theta=theta, share=share, scaling=scaling):
            return RotaryPositions(theta, share, scaling)
        case specs.LearnedPosition() | specs.SinusoidalPosition() | specs.NoPosition():
            return AttentionPositions()


def build_window_position(spec: Transformer, full_position: AttentionPositions) -> AttentionPositions:
    """Builds the positional encoding of windowed layers. full_position: that of layers with full attention."""
    match spec.position:
        case specs.RotaryPosition(window_theta=float(theta), share=share):
            return RotaryPositions(theta, share)
        case _:
            return full_position


def max_positions(spec: Transformer) -> int | None:
    """Returns the maximum number of positions; None for no limit, whatever the training length."""
    if not isinstance(spec.position, specs.LearnedPosition):
        return None
    return spec.position.size - spec.position.offset if spec.position.size else spec.context
