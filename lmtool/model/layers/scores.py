"""Attention score functions, with one signature for all.

Shapes: B rows, N heads, T queries, S keys, H head width, R rank or relative positions, D model width, P is B, or 1
where all rows have the same positions.
"""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from lmtool.recipe.spec.transformer import ScoreName


class Score(nn.Module):
    """scale * q . k, the dot product (Luong et al. 2015), scaled by 1 / sqrt(H) in Transformers (Vaswani et al. 2017).

    Queries and keys are transformed separately, so that transformed keys can be cached. Scores that are dot products of
    these, times `scale`, work with any attention kernel; others have no scale.
    """

    scale: float | None

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.scale = scale

    def transform_queries(self, q_BNTH: Tensor) -> Tensor:
        """Returns the queries as `compute_scores` needs them."""
        return q_BNTH

    def transform_keys(self, k_BNSH: Tensor) -> Tensor:
        """Returns the keys as `compute_scores` needs them, and as they are cached."""
        return k_BNSH

    def compute_scores(self, queries_BNTH: Tensor, keys_BNSH: Tensor) -> Tensor:
        """Returns the scores (B, N, T, S) of transformed queries and keys."""
        assert self.scale is not None
        return queries_BNTH @ keys_BNSH.transpose(-1, -2) * self.scale

    def forward(self, q_BNTH: Tensor, keys_BNSH: Tensor) -> Tensor:
        """Returns the scores (B, N, T, S) of queries and transformed keys."""
        return self.compute_scores(self.transform_queries(q_BNTH), keys_BNSH)


class BilinearScore(Score):
    """q' W k, with W per head (Luong et al. 2015, "general")."""

    def __init__(self, n_heads: int, width: int) -> None:
        super().__init__(1.0)
        self.weight_NHH = _variance_preserving_weight(n_heads, width, width)

    def transform_queries(self, q_BNTH: Tensor) -> Tensor:
        return q_BNTH @ self.weight_NHH


class ReducedRankScore(Score):
    """(U q) . (V k), in R dimensions: a bilinear score whose matrix U'V has rank R."""

    def __init__(self, n_heads: int, width: int, rank: int) -> None:
        super().__init__(1.0)
        self.query_NHR = _variance_preserving_weight(n_heads, width, rank)
        self.key_NHR = _variance_preserving_weight(n_heads, width, rank)

    def transform_queries(self, q_BNTH: Tensor) -> Tensor:
        return q_BNTH @ self.query_NHR

    def transform_keys(self, k_BNSH: Tensor) -> Tensor:
        return k_BNSH @ self.key_NHR


class AdditiveScore(Score):
    """v' tanh(W q + U k), with v of the width of a hidden layer (Bahdanau et al. 2015)."""

    def __init__(self, n_heads: int, width: int, hidden: int) -> None:
        super().__init__(None)
        self.query_NHH = _variance_preserving_weight(n_heads, width, hidden)
        self.key_NHH = _variance_preserving_weight(n_heads, width, hidden)
        self.out_NH1 = _variance_preserving_weight(n_heads, hidden, 1)

    def transform_queries(self, q_BNTH: Tensor) -> Tensor:
        return q_BNTH @ self.query_NHH

    def transform_keys(self, k_BNSH: Tensor) -> Tensor:
        return k_BNSH @ self.key_NHH

    def compute_scores(self, queries_BNTH: Tensor, keys_BNSH: Tensor) -> Tensor:
        sums_BNTSH = queries_BNTH[:, :, :, None] + keys_BNSH[:, :, None]
        return torch.squeeze(sums_BNTSH.tanh() @ self.out_NH1[:, None], -1)


class DisentangledScore(Score):
    """(q_i . k_j + q_i . r_k[d(i, j)] + k_j . r_q[d(j, i)]) / (3 H)^0.5, of contents and relative positions.

    d(i, j) is i - j + k within 0 to 2 k - 1, r_k = P W_k and r_q = P W_q for embeddings P that all layers share (He et
    al. 2021, DeBERTa: Decoding-enhanced BERT with Disentangled Attention, equations 2 to 4).
    """

    def __init__(self, n_heads: int, width: int, d_model: int, n_embeddings: int) -> None:
        super().__init__(None)
        self.n_embeddings = n_embeddings
        self.query_NDH = _variance_preserving_weight(n_heads, d_model, width)
        self.key_NDH = _variance_preserving_weight(n_heads, d_model, width)


class DisentangledScoreAtPositions(NamedTuple):
    """A disentangled score for keys at these positions and queries at the last of them, as kernels need it.

    It is no copy of the module, because torch.compile would stop there. table_RD: the embeddings P.
    """

    score: DisentangledScore
    table_RD: Tensor
    positions_PS: Tensor
    scale: None = None

    def compute_scores(self, queries_BNTH: Tensor, keys_BNSH: Tensor) -> Tensor:
        """Returns the scores (B, N, T, S) of keys at the first S positions and queries at the last of those."""
        B, N, T, H = queries_BNTH.shape
        S, R = keys_BNSH.shape[2], self.score.n_embeddings
        key_PS = self.positions_PS[:, :S]
        offset_P1TS = (key_PS[:, S - T :, None] - key_PS[:, None])[:, None]
        by_key, by_query = ((offset_P1TS * sign + R // 2).clamp(0, R - 1).expand(B, N, T, S) for sign in (1, -1))
        # matmul rounds in another order where nothing is trained
        r_k_NHR, r_q_NHR = (
            torch.einsum("rd,ndh->nhr", self.table_RD, weight_NDH).to(queries_BNTH.dtype)
            for weight_NDH in (self.score.key_NDH, self.score.query_NDH)
        )
        score_BNTS = queries_BNTH @ keys_BNSH.mT
        score_BNTS = score_BNTS + (queries_BNTH @ r_k_NHR).gather(3, by_key)
        score_BNTS = score_BNTS + (keys_BNSH @ r_q_NHR).mT.gather(2, by_query)
        return cast(Tensor, score_BNTS * (3 * H) ** -0.5)


def build_score(kind: ScoreName, n_heads: int, width: int, rank: int, hidden: int) -> Score:
    """Builds a score for heads of `width`. rank: of the reduced-rank score. hidden: width of the additive score's v."""
    match kind:
        case "dot":
            return Score(1.0)
        case "scaled-dot":
            return Score(width**-0.5)
        case "bilinear":
            return BilinearScore(n_heads, width)
        case "reduced-rank":
            return ReducedRankScore(n_heads, width, rank)
        case "additive":
            return AdditiveScore(n_heads, width, hidden)


def _variance_preserving_weight(n_heads: int, n_rows: int, n_columns: int) -> nn.Parameter:
    """Returns initial weights that preserve the variance of their inputs."""
    weight = nn.Parameter(torch.empty(n_heads, n_rows, n_columns))
    nn.init.normal_(weight, std=n_rows**-0.5)
    return weight
