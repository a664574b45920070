"""Distillation: learn the probabilities of a trained model, the teacher, beside the targets (Hinton et al. 2015).

Shapes: B rows, T positions, M scored positions, D model width, V entries of the tokenizer, C classes or labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel, Output
from lmtool.model.heads import Classifier
from lmtool.objective.base import Cut, Example, Loss, Objective
from lmtool.objective.cross_entropy import chunked_loss, with_auxiliary
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.training import Distillation


@dataclass(frozen=True)
class DistilledObjective(Objective):
    """(1 - weight) x the loss of the targets + weight x T^2 KL(p || q), summed over the targets.

    p and q are the probabilities of teacher and student at temperature T, softmax(logits / T), over the vocabulary or
    the classes; of several labels those of each, and the mean over them. A number is learnt from the teacher's, by
    squared error. To this adds cosine x (1 - cos(h, h')) of the last hidden states of both, mean over the positions of
    a row (Sanh et al. 2019, DistilBERT). Batches are those of the student, whose own objective is what is measured.

    teacher: in evaluation mode, never trained.
    head: of a teacher that predicts labels.
    size: entries of the tokenizer, which both have; models may have more logits.
    """

    student: Objective
    spec: Distillation
    teacher: LanguageModel
    head: Classification | None
    size: int

    def cut(self, context: int) -> Cut:
        return self.student.cut(context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        return self.student.collate(examples, done)

    def collate_spans(self, spans: Sequence[tuple[NDArray[np.int64], int]]) -> Batch:
        return self.student.collate_spans(spans)

    def count(self, batch: Batch) -> int:
        return self.student.count(batch)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.student.score(model, batch)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if isinstance(self.student, ClassificationObjective):
            return self._of_labels(self.student, model, batch)
        passes: list[tuple[Batch, Output]] = []
        with model.register_forward_hook(lambda _, arguments, output: passes.append((arguments[0], output))):
            hard = self.student.loss(model, batch)
        read, output = passes[-1]  # with scheduled sampling the last one is of the tokens that it sampled
        with torch.no_grad():
            known_BTD = self.teacher(read).hidden_BTD
        chosen_BT = read.required_targets_BT != IGNORE
        known_MD = known_BTD[chosen_BT]

        def soft(logits_MV: Tensor, part: slice) -> Tensor:
            with torch.no_grad():
                known_MV = self.teacher.logits(known_MD[part])
            return divergence(known_MV[:, : self.size], logits_MV[:, : self.size], self.spec.temperature)

        total = chunked_loss(model, output.hidden_BTD[chosen_BT], soft)
        return self._joined(hard, total, output.hidden_BTD, known_BTD, read)

    def _of_labels(self, student: ClassificationObjective, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        assert isinstance(self.teacher, Classifier)
        answer = model.answer(batch)
        with torch.no_grad():
            known = self.teacher.answer(batch)
        hard = student.loss_of(model, answer, batch)
        temperature = self.spec.temperature
        match student.spec.task:
            case "class":
                total = divergence(known.scores_BC, answer.scores_BC, temperature)
            case "multi":
                total = divergence(_two_sided(known.scores_BC), _two_sided(answer.scores_BC), temperature)
                total = total / answer.scores_BC.shape[1]
            case _:
                assert self.head is not None
                total = (answer.scores_BC - _rescaled(known.scores_BC, self.head, student.spec)).square().sum()
        return self._joined(hard, total, answer.hidden_BTD, known.hidden_BTD, batch)

    def _joined(
        self, hard: Loss, soft: Tensor, hidden_BTD: Tensor | None, known_BTD: Tensor | None, batch: Batch
    ) -> Loss:
        weight = self.spec.weight
        loss = replace(hard, total=(1 - weight) * hard.total + weight * soft)
        if not self.spec.cosine or hidden_BTD is None or known_BTD is None:
            return loss
        away_BT = 1 - F.cosine_similarity(hidden_BTD.float(), known_BTD.float(), dim=-1)
        keep_BT = torch.ones_like(away_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT
        away_B = (away_BT * keep_BT).sum(1) / keep_BT.sum(1).clamp(min=1)
        is_row = isinstance(self.student, ClassificationObjective)
        return with_auxiliary(loss, self.spec.cosine * away_B, None if is_row else batch.targets_BT)


def divergence(known_MC: Tensor, logits_MC: Tensor, temperature: float) -> Tensor:
    """T^2 sum over rows of KL(p || q) for p = softmax(known / T) and q = softmax(logits / T), in float32 or wider.

    The factor T^2 keeps the size of its gradient, which falls with 1 / T^2 (Hinton et al. 2015, section 2).
    """
    wide = torch.promote_types(logits_MC.dtype, torch.float32)
    log_p_MC = (known_MC.to(wide) / temperature).log_softmax(-1)
    log_q_MC = (logits_MC.to(wide) / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q_MC, log_p_MC, reduction="sum", log_target=True)


def _two_sided(scores_BC: Tensor) -> Tensor:
    """Scores of "no" and "yes" of each label, whose softmax is the sigmoid: (B C, 2)."""
    return torch.stack((torch.zeros_like(scores_BC), scores_BC), -1).flatten(0, 1)


def _rescaled(known_BC: Tensor, head: Classification, spec: Classification) -> Tensor:
    """What a teacher's score is in the units of the student: both are (number - center) / scale of their own tables."""
    number_BC = known_BC * (head.scale or 1.0) + (head.center or 0.0)
    return (number_BC - (spec.center or 0.0)) / (spec.scale or 1.0)
