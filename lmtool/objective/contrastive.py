"""Losses of text vectors, and objectives whose loss depends on all rows of a batch at once.

The losses are means, as in the papers. Similarity is the cosine times `scale`, which is 1 / temperature.

Shapes: N rows of a whole batch, K texts of a row, M candidates, D width of vectors.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.batch import Batch, pad_right_with_keep_mask
from lmtool.compute.processes import World
from lmtool.model import LanguageModel
from lmtool.model.heads import find_unused_parameters, pool_text_vectors
from lmtool.objective.base import Example, Loss, Objective, VocabularyInfo
from lmtool.objective.cross_entropy import add_auxiliary_loss
from lmtool.recipe.spec.objective import Embedding

DEFAULT_SCALE = 20.0
"""The default of sentence-transformers: a temperature of 0.05."""


def multiple_negatives_ranking_loss(vectors_NKD: Tensor, scale: float = DEFAULT_SCALE) -> Tensor:
    """InfoNCE with in-batch negatives (van den Oord et al. 2018; multiple negatives ranking, Henderson et al. 2017).

    The first text of a row is the anchor, the second its positive, and others its hard negatives. The loss is the
    cross-entropy of choosing an anchor's positive among the positives and negatives of all rows.
    """
    unit_NKD = F.normalize(vectors_NKD, dim=-1)
    candidates_MD = unit_NKD[:, 1:].transpose(0, 1).flatten(0, 1)
    scores_NM = scale * unit_NKD[:, 0] @ candidates_MD.T
    return F.cross_entropy(scores_NM, torch.arange(len(scores_NM), device=scores_NM.device))


def cosent_loss(vectors_NKD: Tensor, similarities_N: Tensor, scale: float = DEFAULT_SCALE) -> Tensor:
    """CoSENT (Su 2022): log(1 + the sum of e^(s_i - s_j) over all pairs of rows of which j is more similar than i).

    s is the scaled cosine of the two texts of a row. similarities_N: the true ones, of which only the order counts.
    """
    scores_N = scale * F.cosine_similarity(vectors_NKD[:, 0], vectors_NKD[:, 1], dim=-1)
    wrong_M = (scores_N[:, None] - scores_N)[similarities_N[:, None] < similarities_N]
    return torch.cat((wrong_M.new_zeros(1), wrong_M)).logsumexp(0)


def triplet_loss(vectors_N3D: Tensor, margin: float) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for the cosine distance d (Schroff et al. 2015)."""
    anchor_ND, positive_ND, negative_ND = vectors_N3D.unbind(1)
    nearer_N = F.cosine_similarity(anchor_ND, negative_ND, dim=-1) - F.cosine_similarity(anchor_ND, positive_ND, dim=-1)
    return F.relu(nearer_N + margin).mean()


def supervised_contrastive_loss(vectors_ND: Tensor, labels_N: Tensor, scale: float = DEFAULT_SCALE) -> Tensor:
    """-log p of a row of the same class among all other rows (L_out of Khosla et al. 2020).

    It is the mean over the rows of the same class, and then over the rows that have such; 0 if no row has.
    """
    unit_ND = F.normalize(vectors_ND, dim=-1)
    is_self_NN = torch.eye(len(unit_ND), dtype=torch.bool, device=unit_ND.device)
    log_p_NN = (scale * unit_ND @ unit_ND.T).masked_fill(is_self_NN, -torch.inf).log_softmax(-1)
    same_NN = (labels_N[:, None] == labels_N) & ~is_self_NN
    n_same_N = same_NN.sum(1)
    loss_N = -log_p_NN.masked_fill(~same_NN, 0.0).sum(1) / n_same_N.clamp(min=1)
    return loss_N.sum() / (n_same_N > 0).sum().clamp(min=1)


def class_cosine_pair_loss(vectors_ND: Tensor, labels_N: Tensor) -> Tensor:
    """(cos - 1)^2 of pairs of rows of one class, and cos^2 of pairs of two (SetFit; Tunstall et al. 2022).

    It is the mean of the means of both kinds, because SetFit samples equally many pairs of each; 0 for a kind without
    pairs.
    """
    unit_ND = F.normalize(vectors_ND, dim=-1)
    first_M, second_M = torch.triu_indices(len(unit_ND), len(unit_ND), 1, device=unit_ND.device)
    cosine_M = (unit_ND @ unit_ND.T)[first_M, second_M]
    same_M = labels_N[first_M] == labels_N[second_M]
    halves = [(1 - cosine_M[same_M]).square(), cosine_M[~same_M].square()]
    return torch.stack([half.sum() / max(1, len(half)) for half in halves]).mean()


def matryoshka_loss(loss_function: Callable[[Tensor], Tensor], vectors: Tensor, dims: Sequence[int]) -> Tensor:
    """Returns the sum of the losses of vectors truncated to each of `dims` (Kusupati et al. 2022)."""
    return torch.stack([loss_function(vectors[..., :dim]) for dim in dims]).sum()


class RowVectorsAndAuxiliary(NamedTuple):
    """The vectors of the texts of each row, in float32 or wider.

    auxiliary: auxiliary loss of each text, as in `model.HiddenOutput`.
    """

    vectors_NKD: Tensor
    auxiliary: Tensor | None = None

    def detach(self) -> "RowVectorsAndAuxiliary":
        """Returns the same values without their computation graph."""
        return RowVectorsAndAuxiliary(
            self.vectors_NKD.detach(), None if self.auxiliary is None else self.auxiliary.detach()
        )


class WholeBatchObjective(Objective):
    """An objective whose loss depends on the vectors of all rows of a batch at once, as with in-batch negatives.

    Gradient caching (Gao et al. 2021) makes it independent of micro-batches and processes. First all vectors are
    computed, then their loss and its gradients with respect to them (`compute_vector_gradients`). Then each micro-batch
    is computed again, and the gradients are propagated from its vectors (`surrogate_loss`).
    """

    @abstractmethod
    def embed_texts_by_row(self, model: LanguageModel, batch: Batch) -> RowVectorsAndAuxiliary:
        """Returns the vectors of the texts of each row of a batch or a micro-batch."""

    @abstractmethod
    def batch_loss(self, vectors_NKD: Tensor, labels_N: Tensor | None) -> Tensor:
        """Returns the mean loss of all rows of a batch. labels_N: from `row_labels`."""

    def row_labels(self, batch: Batch) -> Tensor | None:
        """Returns the class or the number of each row; None where rows have neither."""
        return batch.labels_B if batch.values_BC is None else batch.values_BC[:, 0]

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the loss of a batch that is computed at once."""
        vectors_NKD, auxiliary = self.embed_texts_by_row(model, batch)
        with torch.autocast(vectors_NKD.device.type, enabled=False):
            total = len(vectors_NKD) * self.batch_loss(vectors_NKD, self.row_labels(batch))
        return add_auxiliary_loss(Loss(total, torch.tensor(len(vectors_NKD), device=total.device)), auxiliary, None)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.loss(model, batch)


class LossWithVectorGradients(NamedTuple):
    """The gradients of a loss with respect to vectors, by gradient caching.

    loss_share: this process's share of the loss summed over the rows of a batch; the shares of all processes add up to
        the sum. by_micro_batch: gradients with respect to the vectors of each micro-batch of this process.
    """

    loss_share: Tensor
    by_micro_batch: list[Tensor]


def compute_vector_gradients(
    objective: WholeBatchObjective,
    vectors: Sequence[RowVectorsAndAuxiliary],
    labels: Sequence[Tensor | None],
    world: World,
) -> LossWithVectorGradients:
    """Computes the loss of all rows of a batch, and its gradients with respect to the vectors of this process.

    Args:
        vectors: of each micro-batch of this process; those of the others are gathered.
        labels: from `row_labels`, of each of these micro-batches.
    """
    local_NKD = torch.cat([part.vectors_NKD for part in vectors])
    all_NKD, first = _gather_detached_rows(local_NKD.detach(), world)
    known = [label_N for label_N in labels if label_N is not None]
    all_labels_N = None
    if known:
        all_labels_N, _ = _gather_detached_rows(torch.cat(known), world)
    all_NKD.requires_grad_()
    total = len(all_NKD) * objective.batch_loss(all_NKD, all_labels_N)
    (gradient_NKD,) = torch.autograd.grad(total, all_NKD)
    local_gradient_NKD = gradient_NKD[first : first + len(local_NKD)]
    share = total.detach() / world.size + sum(part.auxiliary.sum() for part in vectors if part.auxiliary is not None)
    parts = torch.split(local_gradient_NKD, [len(part.vectors_NKD) for part in vectors])
    return LossWithVectorGradients(share, list(parts))


def surrogate_loss(vectors: RowVectorsAndAuxiliary, gradient_NKD: Tensor) -> Tensor:
    """Returns a loss whose gradient with respect to the vectors is `gradient_NKD`, plus their auxiliary losses."""
    total = (vectors.vectors_NKD * gradient_NKD).sum()
    return total if vectors.auxiliary is None else total + vectors.auxiliary.sum()


def _gather_detached_rows(tensor: Tensor, world: World) -> tuple[Tensor, int]:
    """Returns the rows of all processes, in the order of ranks, and the index of the first row of this process."""
    if world.size == 1:
        return tensor, 0
    rows = tensor.reshape(len(tensor), -1).cpu().numpy()
    parts = world.gather_arrays({world.rank: rows}, world.size, rows.dtype)
    gathered = torch.from_numpy(np.concatenate(parts)).to(tensor.device).view(-1, *tensor.shape[1:])
    return gathered, sum(map(len, parts[: world.rank]))


@dataclass(frozen=True)
class EmbeddingObjective(WholeBatchObjective):
    """Trains the vectors of the texts of each row by one of the losses above; see `Embedding`."""

    spec: Embedding
    vocabulary: VocabularyInfo

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Right-pads the texts, those of a row one after the other; `Example.segments` numbers them."""
        texts = [text for one in examples for text in split_texts(one.tokens, cast(NDArray[np.int64], one.segments))]
        tokens_BT, keep_BT = pad_right_with_keep_mask(texts, self.vocabulary.pad)
        labels = [example.label for example in examples if example.label is not None]
        values_BC = torch.from_numpy(np.stack(labels)).float() if labels else None
        texts_NK = torch.arange(len(texts)).view(len(examples), -1)
        return Batch(tokens_BT, keep_BT=keep_BT, values_BC=values_BC, texts_NK=texts_NK)

    def count_targets(self, batch: Batch) -> int:
        assert batch.texts_NK is not None
        return len(batch.texts_NK)

    def unused_parameters(self, model: LanguageModel) -> list[Parameter]:
        return find_unused_parameters(model, model)

    def embed_texts_by_row(self, model: LanguageModel, batch: Batch) -> RowVectorsAndAuxiliary:
        hidden_BTD, auxiliary_B = model(batch)
        return RowVectorsAndAuxiliary(
            pool_text_vectors(self.spec, hidden_BTD, batch.keep_BT)[batch.texts_NK], auxiliary_B
        )

    def batch_loss(self, vectors_NKD: Tensor, labels_N: Tensor | None) -> Tensor:
        return matryoshka_loss(
            partial(self._loss_chosen_by_spec, labels_N), vectors_NKD, self.spec.dims or vectors_NKD.shape[-1:]
        )

    def _loss_chosen_by_spec(self, labels_N: Tensor | None, vectors_NKD: Tensor) -> Tensor:
        match self.spec.loss:
            case "ranking":
                return multiple_negatives_ranking_loss(vectors_NKD, self.spec.scale)
            case "triplet":
                return triplet_loss(vectors_NKD, self.spec.margin)
            case "cosent" if labels_N is not None:
                return cosent_loss(vectors_NKD, labels_N, self.spec.scale)
            case "labels" if labels_N is not None:
                return supervised_contrastive_loss(vectors_NKD[:, 0], labels_N, self.spec.scale)
        raise ValueError(f"rows without similarities or classes have no loss {self.spec.loss}")


def split_texts(tokens: NDArray[np.int64], segments: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Returns the tokens of each text of a row. segments: the number of the text of each token."""
    return np.split(tokens, np.flatnonzero(np.diff(segments)) + 1)
