"""Losses of text vectors, and objectives whose loss is of all rows of a batch at once.

The losses are means, as in the papers; similarity is the cosine, times `scale`, which is 1 / temperature.

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

from lmtool.batch import Batch, pad_rows
from lmtool.compute.processes import World
from lmtool.model import LanguageModel
from lmtool.model.heads import text_vectors, without_effect
from lmtool.objective.base import Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import with_auxiliary
from lmtool.recipe.spec.objective import Embedding

SCALE = 20.0
"""The usual one of sentence-transformers: a temperature of 0.05."""


def ranking(vectors_NKD: Tensor, scale: float = SCALE) -> Tensor:
    """InfoNCE with in-batch negatives (van den Oord et al. 2018; multiple negatives ranking, Henderson et al. 2017).

    The first text of a row is the anchor, the second its positive, and others its hard negatives. An anchor is to
    choose its positive among the positives and negatives of all rows.
    """
    unit_NKD = F.normalize(vectors_NKD, dim=-1)
    candidates_MD = unit_NKD[:, 1:].transpose(0, 1).flatten(0, 1)
    scores_NM = scale * unit_NKD[:, 0] @ candidates_MD.T
    return F.cross_entropy(scores_NM, torch.arange(len(scores_NM), device=scores_NM.device))


def cosent(vectors_NKD: Tensor, similarities_N: Tensor, scale: float = SCALE) -> Tensor:
    """CoSENT (Su 2022): log(1 + the sum of e^(s_i - s_j) over all pairs of rows of which j is more similar than i).

    s: the scaled cosine of the two texts of a row. similarities_N: the true ones, of which only the order counts.
    """
    scores_N = scale * F.cosine_similarity(vectors_NKD[:, 0], vectors_NKD[:, 1], dim=-1)
    wrong_M = (scores_N[:, None] - scores_N)[similarities_N[:, None] < similarities_N]
    return torch.cat((wrong_M.new_zeros(1), wrong_M)).logsumexp(0)


def triplet(vectors_NKD: Tensor, margin: float) -> Tensor:
    """max(0, d(anchor, positive) - d(anchor, negative) + margin) for the cosine distance d (Schroff et al. 2015)."""
    anchor_ND, positive_ND, negative_ND = vectors_NKD.unbind(1)
    nearer_N = F.cosine_similarity(anchor_ND, negative_ND, dim=-1) - F.cosine_similarity(anchor_ND, positive_ND, dim=-1)
    return F.relu(nearer_N + margin).mean()


def supervised_contrastive(vectors_ND: Tensor, labels_N: Tensor, scale: float = SCALE) -> Tensor:
    """-log p of a row of the same class among all other rows (L_out of Khosla et al. 2020).

    The mean over these rows, then over the rows that have one; 0 where none has.
    """
    unit_ND = F.normalize(vectors_ND, dim=-1)
    itself_NN = torch.eye(len(unit_ND), dtype=torch.bool, device=unit_ND.device)
    log_p_NN = (scale * unit_ND @ unit_ND.T).masked_fill(itself_NN, -torch.inf).log_softmax(-1)
    same_NN = (labels_N[:, None] == labels_N) & ~itself_NN
    n_same_N = same_NN.sum(1)
    loss_N = -log_p_NN.masked_fill(~same_NN, 0.0).sum(1) / n_same_N.clamp(min=1)
    return loss_N.sum() / (n_same_N > 0).sum().clamp(min=1)


def label_similarity(vectors_ND: Tensor, labels_N: Tensor) -> Tensor:
    """(cos - 1)^2 of pairs of rows of one class, and cos^2 of pairs of two (SetFit; Tunstall et al. 2022).

    The mean of both means, which SetFit samples as many pairs of each for; 0 for a kind without pairs.
    """
    unit_ND = F.normalize(vectors_ND, dim=-1)
    first_M, second_M = torch.triu_indices(len(unit_ND), len(unit_ND), 1, device=unit_ND.device)
    cosine_M = (unit_ND @ unit_ND.T)[first_M, second_M]
    same_M = labels_N[first_M] == labels_N[second_M]
    halves = [(1 - cosine_M[same_M]).square(), cosine_M[~same_M].square()]
    return torch.stack([half.sum() / max(1, len(half)) for half in halves]).mean()


def matryoshka(loss: Callable[[Tensor], Tensor], vectors: Tensor, dims: Sequence[int]) -> Tensor:
    """The sum of the losses of the first numbers of vectors, for each of `dims` (Kusupati et al. 2022)."""
    return torch.stack([loss(vectors[..., :dim]) for dim in dims]).sum()


class RowVectors(NamedTuple):
    """of_texts_NKD: the vectors of the texts of each row, in float32 or wider. auxiliary: as in `model.Output`, of each
    text."""

    of_texts_NKD: Tensor
    auxiliary: Tensor | None = None

    def detached(self) -> "RowVectors":
        """The same without a graph."""
        return RowVectors(self.of_texts_NKD.detach(), None if self.auxiliary is None else self.auxiliary.detach())


class BatchObjective(Objective):
    """An objective whose loss is of the vectors of all rows of a batch at once, as with in-batch negatives.

    Micro-batches and processes do not change it, by gradient caching (Gao et al. 2021): first all vectors are computed,
    then the loss of them all and its gradients in them (`cached_gradients`), and then each micro-batch
    again, backward from these (`from_gradient`).
    """

    @abstractmethod
    def vectors(self, model: LanguageModel, batch: Batch) -> RowVectors:
        """The vectors of the rows of a batch or a micro-batch."""

    @abstractmethod
    def batch_loss(self, vectors_NKD: Tensor, answers_N: Tensor | None) -> Tensor:
        """The mean loss of all rows of a batch. answers_N: as `answers` gives them."""

    def answers(self, batch: Batch) -> Tensor | None:
        """The class or the number of each row; None where rows have neither."""
        return batch.labels_B if batch.values_BC is None else batch.values_BC[:, 0]

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        """The loss of a batch that is computed at once."""
        vectors_NKD, auxiliary = self.vectors(model, batch)
        with torch.autocast(vectors_NKD.device.type, enabled=False):
            total = len(vectors_NKD) * self.batch_loss(vectors_NKD, self.answers(batch))
        return with_auxiliary(Loss(total, torch.tensor(len(vectors_NKD), device=total.device)), auxiliary, None)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.loss(model, batch)


def cached_gradients(
    objective: BatchObjective, vectors: Sequence[RowVectors], answers: Sequence[Tensor | None], world: World
) -> tuple[Tensor, list[Tensor]]:
    """This process's share of the loss summed over the rows of a batch, and the gradients in its vectors.

    vectors, answers: of each micro-batch of this process. The others' are gathered. The shares of all processes add up
    to the sum, and so do the gradients of the weights.
    """
    local_NKD = torch.cat([of_texts_NKD for of_texts_NKD, _ in vectors])
    every_NKD, first = _gathered(local_NKD.detach(), world)
    known = [answer for answer in answers if answer is not None]
    every_N = _gathered(torch.cat(known), world)[0] if known else None
    every_NKD.requires_grad_()
    total = len(every_NKD) * objective.batch_loss(every_NKD, every_N)
    (gradient_NKD,) = torch.autograd.grad(total, every_NKD)
    mine_NKD = gradient_NKD[first : first + len(local_NKD)]
    share = total.detach() / world.size + sum(part.auxiliary.sum() for part in vectors if part.auxiliary is not None)
    return share, list(torch.split(mine_NKD, [len(part.of_texts_NKD) for part in vectors]))


def from_gradient(vectors: RowVectors, gradient_NKD: Tensor) -> Tensor:
    """A loss that has this gradient in the vectors."""
    total = (vectors.of_texts_NKD * gradient_NKD).sum()
    return total if vectors.auxiliary is None else total + vectors.auxiliary.sum()


def _gathered(local: Tensor, world: World) -> tuple[Tensor, int]:
    """The rows of all processes, in the order of ranks, and the number of this one's first."""
    if world.size == 1:
        return local, 0
    rows = local.reshape(len(local), -1).cpu().numpy()
    parts = world.gather({world.rank: rows}, world.size, rows.dtype)
    every = torch.from_numpy(np.concatenate(parts)).to(local.device).view(-1, *local.shape[1:])
    return every, sum(map(len, parts[: world.rank]))


@dataclass(frozen=True)
class EmbeddingObjective(BatchObjective):
    """RowVectors of the texts of each row, by one of the losses above; see `Embedding`."""

    spec: Embedding
    vocabulary: Vocabulary

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Right-padded texts, those of a row one after the other; `Example.segments` numbers them."""
        texts = [
            part for example in examples for part in texts_of(example.tokens, cast(NDArray[np.int64], example.segments))
        ]
        tokens_BT, keep_BT = pad_rows(texts, self.vocabulary.pad)
        labels = [example.label for example in examples if example.label is not None]
        values_BC = torch.from_numpy(np.stack(labels)).float() if labels else None
        texts_NK = torch.arange(len(texts)).view(len(examples), -1)
        return Batch(tokens_BT, keep_BT=keep_BT, values_BC=values_BC, texts_NK=texts_NK)

    def count(self, batch: Batch) -> int:
        assert batch.texts_NK is not None
        return len(batch.texts_NK)

    def idle(self, model: LanguageModel) -> list[Parameter]:
        return without_effect(model, model)

    def vectors(self, model: LanguageModel, batch: Batch) -> RowVectors:
        hidden_BTD, auxiliary_B = model(batch)
        return RowVectors(text_vectors(self.spec, hidden_BTD, batch.keep_BT)[batch.texts_NK], auxiliary_B)

    def batch_loss(self, vectors_NKD: Tensor, answers_N: Tensor | None) -> Tensor:
        return matryoshka(partial(self._loss, answers_N), vectors_NKD, self.spec.dims or vectors_NKD.shape[-1:])

    def _loss(self, answers_N: Tensor | None, vectors_NKD: Tensor) -> Tensor:
        match self.spec.loss:
            case "ranking":
                return ranking(vectors_NKD, self.spec.scale)
            case "triplet":
                return triplet(vectors_NKD, self.spec.margin)
            case "cosent" if answers_N is not None:
                return cosent(vectors_NKD, answers_N, self.spec.scale)
            case "labels" if answers_N is not None:
                return supervised_contrastive(vectors_NKD[:, 0], answers_N, self.spec.scale)
        raise ValueError(f"loss {self.spec.loss} of rows that do not have what it needs")


def texts_of(tokens: NDArray[np.int64], segments: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The tokens of each text of a row. segments: the number of the text of each token."""
    return np.split(tokens, np.flatnonzero(np.diff(segments)) + 1)
