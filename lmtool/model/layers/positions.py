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
from lmtool.model.layers.scores import Disentangled, DisentangledAt, Score
from lmtool.recipe.spec import position as specs
from lmtool.recipe.spec.transformer import Transformer

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""A score, and the numbers of its row, head, query and key, to the score as it enters the softmax."""


class LearnedPositions(nn.Module):
    """A learned embedding per position; that of the first one is in row `offset` of the table."""

    def __init__(self, size: int, d_model: int, offset: int = 0) -> None:
        super().__init__()
        self.table = nn.Embedding(size, d_model)
        self.offset = offset

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        summed: Tensor = x_BTD + self.table(positions_PT + self.offset if self.offset else positions_PT)
        return summed


class SinusoidalPositions(nn.Module):
    """PE(pos, 2i) = sin(pos / 10000^(2i/D)), PE(pos, 2i+1) the cosine of the same (Vaswani et al. 2017).

    halves: the sines come first, in the order of i, and then the cosines.
    """

    def __init__(self, d_model: int, halves: bool = False) -> None:
        super().__init__()
        self.d_model = d_model
        self.halves = halves

    def forward(self, x_BTD: Tensor, positions_PT: Tensor) -> Tensor:
        angles_PTH = positions_PT[..., None] * _frequencies(self.d_model, 10_000.0, positions_PT.device)
        sines_PTD = torch.stack((angles_PTH.sin(), angles_PTH.cos()), -2 if self.halves else -1).flatten(-2)
        return x_BTD + sines_PTD.to(x_BTD.dtype)


def _frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """1 / theta^(2i/width) for i = 0 to width/2 - 1, in radians a position."""
    # float64, because float32 loses the phase of fast rotations at large positions
    exponents = torch.arange(0, width, 2, device=device, dtype=widest_float_dtype(device)) / width
    return theta**-exponents


class AttentionPositions(nn.Module):
    """A positional encoding inside attention; the base class has none."""

    def rotations(self, positions_PT: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines (P, 1, T, H) for `ops.rotary`; None without rotation."""
        return None

    def bias(self, query_PT: Tensor, key_PS: Tensor) -> Tensor | None:
        """Bias added to the attention scores: (P, N, T, S)."""
        return None

    def placed(self, score: Score, positions_PS: Tensor) -> Score:
        """The score of keys at these positions, and of queries at the last of them."""
        return score


class RotaryPositions(AttentionPositions):
    """Rotates the pairs (i, i + R/2) of queries and keys by pos / theta^(2i/R) (Su et al. 2021; the pairs of Llama).

    share: R components of a head of width H are rotated, those after them are not (Black et al. 2022, GPT-NeoX).
    """

    def __init__(self, theta: float, share: float = 1.0, scaling: specs.RotaryScaling = specs.NoScaling()) -> None:  # noqa: B008 - it is frozen
        super().__init__()
        self.theta = theta
        self.share = share
        self.scaling = scaling

    def frequencies(self, width: int, device: torch.device) -> tuple[Tensor, float]:
        """Radians a position of each pair of a head of `width` (R/2,), and the factor of rotated queries and keys."""
        n_rotated = int(width * self.share)
        return scaled(_frequencies(n_rotated, self.theta, device), self.scaling, 2 * math.log(self.theta) / n_rotated)

    def rotations(self, positions_PT: Tensor, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotated components (P, 1, T, R)."""
        frequencies, factor = self.frequencies(width, positions_PT.device)
        angles_P1TR = (positions_PT[..., None] * frequencies)[:, None]
        cos, sin = (factor * angles_P1TR.cos()).to(dtype), (factor * angles_P1TR.sin()).to(dtype)
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)


def scaled(frequencies: Tensor, scaling: specs.RotaryScaling, fall: float) -> tuple[Tensor, float]:
    """Frequencies (radians a position, descending) for a longer context, and the factor of rotated queries and keys.

    fall: the logarithm of how much each frequency is above the next.
    """
    match scaling:
        case specs.NoScaling():
            return frequencies, 1.0
        case specs.LinearScaling(factor=factor):
            return frequencies / factor, 1.0
        case specs.Llama3Scaling(factor=factor, low_frequency=low, high_frequency=high):
            turns = scaling.original_context * frequencies / (2 * math.pi)
            stays = ((turns - low) / (high - low)).clamp(0, 1)
            return frequencies * (stays + (1 - stays) / factor), 1.0
        case specs.YarnScaling(factor=factor, attention_factor=attention):
            # the blend is linear in the index of a frequency, between those of slow and fast turns
            n = len(frequencies)
            # at least a little, for a base that is hardly above 1
            fall = max(fall, 1e-12) if n > 1 else math.inf
            first, last = (
                math.log(scaling.original_context / (turns * 2 * math.pi)) / fall
                for turns in (scaling.fast_turns, scaling.slow_turns)
            )
            first, last = max(math.floor(first), 0), min(math.ceil(last), 2 * n - 1)
            index = torch.arange(n, device=frequencies.device, dtype=frequencies.dtype)
            stays = 1 - ((index - first) / max(last - first, 1e-3)).clamp(0, 1)
            sharpened = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
            return frequencies * (stays + (1 - stays) / factor), attention or sharpened


class AlibiPositions(AttentionPositions):
    """Adds -m |i - j| to the scores, with a slope m per head (ALiBi, Press et al. 2022).

    With n heads, n a power of two, the slopes are 2^(-8/n), 2^(-16/n), ...; for other n those of the next lower power,
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
        # a head probes shapes of a body without storage
        return -self.slopes_N.to(query_PT.device)[:, None, None] * distance_PTS[:, None]

    def score_mod(self, positions_PS: Tensor) -> ScoreMod:
        """The same for FlexAttention, which adds it to one score at a time. positions_PS: of queries and keys."""

        def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            text = row % len(positions_PS)
            return score - self.slopes_N[head] * (positions_PS[text, query] - positions_PS[text, key]).abs()

        return add


def alibi_slopes(n_heads: int) -> list[float]:
    """The ALiBi slope of each head."""
    below = 2 ** int(math.log2(n_heads))
    slopes = [2.0 ** (-8 * (i + 1) / below) for i in range(below)]
    between = [2.0 ** (-4 * (2 * i + 1) / below) for i in range(n_heads - below)]
    return slopes + between


class RelativePositions(AttentionPositions):
    """Adds a learned bias per head and relative-position bucket (T5, Raffel et al. 2020).

    Half of the buckets hold one distance each, the others grow logarithmically up to `max_distance`, beyond which all
    share the last. Bidirectional attention has half of the buckets for each side.
    """

    def __init__(self, n_heads: int, buckets: int, max_distance: int, both_sides: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, n_heads)
        self.max_distance = max_distance
        self.both_sides = both_sides

    def bias(self, query_PT: Tensor, key_PS: Tensor) -> Tensor:
        away_PTS = key_PS[:, None] - query_PT[:, :, None]
        bias_PTSN: Tensor = self.table(self.bucket(away_PTS))
        # contiguous in the layout of the scores, which it is added to in every layer
        return bias_PTSN.permute(0, 3, 1, 2).contiguous()

    def bucket(self, away: Tensor) -> Tensor:
        """The bucket of each distance from query to key, negative for keys before the query."""
        n = self.table.num_embeddings
        if self.both_sides:
            n //= 2
            first = torch.where(away > 0, n, 0)
            distance = away.abs()
        else:
            first = torch.zeros_like(away)
            distance = (-away).clamp(min=0)
        exact = n // 2
        growth = torch.log(distance.clamp(min=1).float() / exact) / math.log(self.max_distance / exact)
        wide = (exact + (growth * (n - exact)).long()).clamp(max=n - 1)
        return first + torch.where(distance < exact, distance, wide)


class DisentangledPositions(AttentionPositions):
    """Embeddings of 2 k relative positions, which the score of each layer maps to queries and keys (He et al. 2021)."""

    def __init__(self, d_model: int, max_distance: int) -> None:
        super().__init__()
        self.table = nn.Embedding(2 * max_distance, d_model)

    def placed(self, score: Score, positions_PS: Tensor) -> Score:
        assert isinstance(score, Disentangled)
        return cast(Score, DisentangledAt(score, self.table.weight, positions_PS))


def build_position(spec: Transformer) -> nn.Module | None:
    """The module of absolute position embeddings, or None."""
    width = spec.embedding_width or spec.d_model
    match spec.position:
        case specs.LearnedPosition(size=size, offset=offset):
            return LearnedPositions(size or spec.context + offset, width, offset)
        case specs.SinusoidalPosition(layout=layout):
            return SinusoidalPositions(width, halves=layout == "halves")
        case _:
            return None


def build_attention_position(spec: Transformer, both_sides: bool) -> AttentionPositions:
    """The positional encoding of a stack's attention. both_sides: whether attention is bidirectional."""
    match spec.position:
        case specs.AlibiPosition():
            return AlibiPositions(spec.n_heads)
        case specs.RelativePosition(buckets=buckets, max_distance=max_distance):
            return RelativePositions(spec.n_heads, buckets, max_distance, both_sides)
        case specs.DisentangledPosition(max_distance=max_distance):
            return DisentangledPositions(spec.d_model, max_distance)
        case specs.RotaryPosition(theta=theta, share=share, scaling=scaling):
            return RotaryPositions(theta, share, scaling)
        case specs.LearnedPosition() | specs.SinusoidalPosition() | specs.NoPosition():
            return AttentionPositions()


def build_window_position(spec: Transformer, of_others: AttentionPositions) -> AttentionPositions:
    """The positional encoding of windowed layers. of_others: that of layers with full attention."""
    match spec.position:
        case specs.RotaryPosition(window_theta=float(theta), share=share):
            return RotaryPositions(theta, share)
        case _:
            return of_others


def longest(spec: Transformer) -> int | None:
    """Maximum number of positions; None for no limit, regardless of the training length."""
    if not isinstance(spec.position, specs.LearnedPosition):
        return None
    return spec.position.size - spec.position.offset if spec.position.size else spec.context
