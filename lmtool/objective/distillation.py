"""Distillation: learn the probabilities of a trained model, the teacher, as well as the targets (Hinton et al. 2015).

Shapes: B rows, T positions, M scored positions, D model width, V entries of the tokenizer, C classes or labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch
from lmtool.model import HiddenOutput, LanguageModel
from lmtool.model.heads import Classifier
from lmtool.objective.base import Example, Loss, Objective
from lmtool.objective.cross_entropy import add_auxiliary_loss, sum_loss_in_chunks
from lmtool.objective.heads import ClassificationObjective
from lmtool.recipe.spec.objective import Classification
from lmtool.recipe.spec.training import Distillation


@dataclass(frozen=True)
class DistillationObjective(Objective):
    """(1 - weight) x the loss of the targets + weight x T^2 KL(p || q), summed over the targets.

    p and q are the probabilities of teacher and student at temperature T, softmax(logits / T), over the vocabulary or
    the classes; for several labels those of each, and the mean over the labels. A number is learned from the teacher's
    by squared error. The term cosine x (1 - cos(h, h')) of the last hidden states of both, mean over the positions of
    a row, is added (Sanh et al. 2019, DistilBERT). Batches and scores are those of the student's own objective.

    teacher: in evaluation mode, never trained.
    teacher_task: of a teacher that predicts labels.
    vocab_size: number of entries of the tokenizer, which both share; models may have more logits.
    """

    student_objective: Objective
    spec: Distillation
    teacher: LanguageModel
    teacher_task: Classification | None
    vocab_size: int

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        return self.student_objective.collate(examples, training_fraction)

    def count_targets(self, batch: Batch) -> int:
        return self.student_objective.count_targets(batch)

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        return self.student_objective.score(model, batch)

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        if isinstance(self.student_objective, ClassificationObjective):
            return self._classification_loss(self.student_objective, model, batch)
        passes: list[tuple[Batch, HiddenOutput]] = []
        with model.register_forward_hook(lambda _, arguments, output: passes.append((arguments[0], output))):
            target_loss = self.student_objective.loss(model, batch)
        inputs, output = passes[-1]  # with scheduled sampling the last pass reads the tokens that it sampled
        with torch.no_grad():
            teacher_BTD = self.teacher(inputs).hidden_BTD
        is_target_BT = inputs.required_targets_BT != IGNORE
        teacher_MD = teacher_BTD[is_target_BT]

        def loss_from_logits(logits_MV: Tensor, part: slice) -> Tensor:
            with torch.no_grad():
                teacher_MV = self.teacher.logits(teacher_MD[part])
            size = self.vocab_size
            return sum_distillation_divergence(teacher_MV[:, :size], logits_MV[:, :size], self.spec.temperature)

        total = sum_loss_in_chunks(model, output.hidden_BTD[is_target_BT], loss_from_logits)
        return self._combine_losses(target_loss, total, output.hidden_BTD, teacher_BTD, inputs)

    def _classification_loss(self, objective: ClassificationObjective, model: LanguageModel, batch: Batch) -> Loss:
        assert isinstance(model, Classifier)
        assert isinstance(self.teacher, Classifier)
        output = model.run_head(batch)
        with torch.no_grad():
            teacher = self.teacher.run_head(batch)
        target_loss, scores_BC = objective.training_loss_from_output(model, output, batch), output.scores
        match objective.spec.task:
            case "class":
                total = sum_distillation_divergence(teacher.scores, scores_BC, self.spec.temperature)
            case "multi":
                logits = _binary_logits(teacher.scores), _binary_logits(scores_BC)
                total = sum_distillation_divergence(*logits, self.spec.temperature) / scores_BC.shape[1]
            case _:
                assert self.teacher_task is not None
                # both scores are (number - center) / scale of their own tables
                numbers_BC = teacher.scores * (self.teacher_task.scale or 1.0) + (self.teacher_task.center or 0.0)
                targets_BC = (numbers_BC - (objective.spec.center or 0.0)) / (objective.spec.scale or 1.0)
                total = (scores_BC - targets_BC).square().sum()
        return self._combine_losses(target_loss, total, output.hidden_BTD, teacher.hidden_BTD, batch)

    def _combine_losses(
        self, target_loss: Loss, divergence: Tensor, hidden_BTD: Tensor | None, teacher_BTD: Tensor | None, batch: Batch
    ) -> Loss:
        weight = self.spec.weight
        loss = replace(target_loss, total=(1 - weight) * target_loss.total + weight * divergence)
        if not self.spec.cosine or hidden_BTD is None or teacher_BTD is None:
            return loss
        distance_BT = 1 - F.cosine_similarity(hidden_BTD.float(), teacher_BTD.float(), dim=-1)
        keep_BT = torch.ones_like(distance_BT, dtype=torch.bool) if batch.keep_BT is None else batch.keep_BT
        distance_B = (distance_BT * keep_BT).sum(1) / keep_BT.sum(1).clamp(min=1)
        is_row = isinstance(self.student_objective, ClassificationObjective)
        return add_auxiliary_loss(loss, self.spec.cosine * distance_B, None if is_row else batch.targets_BT)


def sum_distillation_divergence(teacher_MC: Tensor, student_MC: Tensor, temperature: float) -> Tensor:
    """T^2 sum over rows of KL(p || q) for p = softmax(teacher / T), q = softmax(student / T), in float32 or wider.

    The factor T^2 keeps the size of its gradient, which falls with 1 / T^2 (Hinton et al. 2015, section 2).
    """
    dtype = torch.promote_types(student_MC.dtype, torch.float32)
    log_p_MC = (teacher_MC.to(dtype) / temperature).log_softmax(-1)
    log_q_MC = (student_MC.to(dtype) / temperature).log_softmax(-1)
    return temperature**2 * F.kl_div(log_q_MC, log_p_MC, reduction="sum", log_target=True)


def _binary_logits(scores_BC: Tensor) -> Tensor:
    """Returns the scores of "no" and "yes" of each label, whose softmax is the sigmoid: (B C, 2)."""
    return torch.stack((torch.zeros_like(scores_BC), scores_BC), -1).flatten(0, 1)
