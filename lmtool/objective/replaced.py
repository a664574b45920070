"""Replaced-token detection: tell which tokens of a text a small generator has replaced (Clark et al. 2020, ELECTRA).

Shapes: B rows, T positions, D model width, M masked positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.arrays import Ints
from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.model.language_model import sum_auxiliary_losses
from lmtool.model.transformer import ReplacedTokenDetectorWithGenerator
from lmtool.objective.base import Example, Loss, Objective, TextCutSettings, VocabularyInfo
from lmtool.objective.cross_entropy import add_auxiliary_loss, cross_entropy_from_hidden
from lmtool.objective.masked import MaskedObjective
from lmtool.objective.scheduled import sample_tokens
from lmtool.recipe.spec.objective import Masked, ReplacedTokens

DETECTION_ACCURACY = "detection-accuracy"
"""Metric: share of the positions that are rightly classified as original or replaced."""

REPLACED_RECALL = "replaced-found"
"""Metric: share of the replaced tokens that are detected."""


@dataclass(frozen=True)
class ReplacedTokensObjective(Objective):
    """The loss of a masked language model, the generator, plus weight times the loss of detecting what it filled in.

    In rows [CLS] text [SEP], round(rate N) of N tokens become [MASK], anew in each epoch. Samples of the generator take
    their place; no gradient passes through them, and a sample that equals the original token counts as original. The
    detection loss is the binary cross-entropy, mean over all positions of a row. A row's weight in a batch is its
    number of masks, so that the loss does not depend on how the batch is split.
    """

    metric_names = (DETECTION_ACCURACY, REPLACED_RECALL)

    spec: ReplacedTokens
    vocabulary: VocabularyInfo

    @cached_property
    def _masking(self) -> MaskedObjective:
        masked = Masked(kind="masked", rate=self.spec.rate, mask_share=1.0, random_share=0.0)
        return MaskedObjective(masked, self.vocabulary)

    def choose_text_cut(self, context: int) -> TextCutSettings:
        """Cuts windows that leave room for [CLS] and [SEP]."""
        return self._masking.choose_text_cut(context)

    def max_scored_tokens(self, context: int) -> int:
        return self._masking.max_scored_tokens(context)

    def collate(self, examples: Sequence[Example], training_fraction: float = 0.0) -> Batch:
        """Masks rows, and draws the numbers by which the generator fills them; targets are the original tokens."""
        return _add_draws_for_masks(self._masking.collate(examples), [example.rng for example in examples])

    def collate_validation(self, tokens_and_first_scored: Sequence[tuple[Ints, int]]) -> Batch:
        """Collates rows as in training, but with the same masks and random numbers each time."""
        rngs = [
            np.random.Generator(np.random.PCG64([len(tokens), *tokens.tolist()]))
            for tokens, _ in tokens_and_first_scored
        ]
        return _add_draws_for_masks(self._masking.collate_validation(tokens_and_first_scored), rngs)

    def unused_parameters(self, model: LanguageModel) -> list[Parameter]:
        return model.unused_head_parameters() if isinstance(model, ReplacedTokenDetectorWithGenerator) else []

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        loss, _ = self._compute_loss_and_filled_tokens(model, batch, is_training=True)
        return loss

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """Returns the training loss without auxiliary losses, and the metrics."""
        loss, _ = self._compute_loss_and_filled_tokens(model, batch)
        return loss

    def sample_inputs(self, model: LanguageModel, batch: Batch) -> Batch:
        """Returns the batch as the discriminator reads it."""
        _, tokens_BT = self._compute_loss_and_filled_tokens(model, batch)
        return replace(batch, tokens_BT=tokens_BT)

    def _compute_loss_and_filled_tokens(
        self, model: LanguageModel, batch: Batch, is_training: bool = False
    ) -> tuple[Loss, Tensor]:
        """Fills the masks by the generator, and detects the replaced tokens by the discriminator.

        Returns the loss of both, with auxiliary losses in training and else with metrics, and the tokens (B, T) that
        the discriminator has read.
        """
        if not isinstance(model, ReplacedTokenDetectorWithGenerator):
            raise ValueError("only a generator and its discriminator have replaced tokens")
        if batch.targets_BT is None or batch.draws_BT is None:
            raise ValueError("a batch without masks has no loss")
        chosen_BT = batch.targets_BT != IGNORE
        filled = model.generator(replace(batch, draws_BT=None))
        hidden_MD = filled.hidden_BTD[chosen_BT]
        generator = cross_entropy_from_hidden(model.generator, hidden_MD, batch.targets_BT[chosen_BT])
        tokens_BT = batch.tokens_BT.clone()
        if len(hidden_MD):
            with torch.no_grad():
                tokens_BT[chosen_BT] = sample_tokens(model.generator, hidden_MD, batch.draws_BT[chosen_BT])
            # torch 2.10 would reuse weights that autocast cast here, without gradients
            torch.clear_autocast_cache()
        is_replaced_BT = chosen_BT & (tokens_BT != batch.targets_BT)
        hidden_BTD, auxiliary_B = model(Batch(tokens_BT, keep_BT=batch.keep_BT))
        scores_BT = model.detection_logits(hidden_BTD)
        scores_BT = scores_BT.to(torch.promote_types(scores_BT.dtype, torch.float32))
        keep_BT = torch.ones_like(chosen_BT) if batch.keep_BT is None else batch.keep_BT
        nats_BT = F.binary_cross_entropy_with_logits(scores_BT, is_replaced_BT.to(scores_BT.dtype), reduction="none")
        nats_B = (nats_BT * keep_BT).sum(1) / keep_BT.sum(1)
        auxiliary_B = sum_auxiliary_losses((filled.auxiliary_B, auxiliary_B)) if is_training else None
        loss = add_auxiliary_loss(generator, auxiliary_B, batch.targets_BT)
        loss = add_auxiliary_loss(loss, self.spec.weight * nats_B, batch.targets_BT)
        if is_training:
            return loss, tokens_BT
        is_right_BT = keep_BT & ((scores_BT > 0) == is_replaced_BT)
        metrics = {
            DETECTION_ACCURACY: (is_right_BT.sum(), int(keep_BT.sum())),
            REPLACED_RECALL: ((is_right_BT & is_replaced_BT).sum(), int(is_replaced_BT.sum())),
        }
        return replace(loss, metrics=metrics), tokens_BT


def _add_draws_for_masks(batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
    """Adds a number from each row's generator for each of its masks, from left to right."""
    draws_BT = torch.full(batch.tokens_BT.shape, -1.0)
    for draws_T, targets_T, rng in zip(draws_BT, batch.required_targets_BT, rngs, strict=True):
        is_mask_T = targets_T != IGNORE
        draws_T[is_mask_T] = torch.from_numpy(rng.random(int(is_mask_T.sum())).astype(np.float32))
    return replace(batch, draws_BT=draws_BT)
