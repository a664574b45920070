"""Replaced-token detection: tell which tokens of a text a small generator has replaced (Clark et al. 2020, ELECTRA).

Shapes: B rows, T positions, D model width, M masked positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Parameter
from torch.nn import functional as F

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.model.language_model import summed
from lmtool.model.transformer import ReplacedTokenDetector
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.cross_entropy import loss_of_hidden, with_auxiliary
from lmtool.objective.masked import MaskedObjective
from lmtool.objective.scheduled import draw
from lmtool.recipe.spec.objective import Masked, ReplacedTokens

ACCURACY = "detection-accuracy"
"""Metric: share of the positions that are told rightly."""

FOUND = "replaced-found"
"""Metric: share of the replaced tokens that are told."""

Ints = NDArray[np.int64]


class _Detection(NamedTuple):
    """tokens_BT: made by the generator. is_right_BT, is_replaced_BT, keep_BT: of what is told of them."""

    loss: Loss
    tokens_BT: Tensor
    is_right_BT: Tensor
    is_replaced_BT: Tensor
    keep_BT: Tensor


@dataclass(frozen=True)
class ReplacedTokensObjective(Objective):
    """The loss of a masked language model, the generator, plus weight times the loss of detecting what it filled in.

    In rows [CLS] text [SEP], round(rate N) of N tokens become [MASK], anew in each epoch. The generator's own samples
    take their place, through which no gradient passes; a sample that equals the original token counts as original. The
    detection loss is the binary cross-entropy, mean over all positions of a row, whose weight in a batch is its number
    of masks, so that it does not depend on how the batch is split.
    """

    metrics = (ACCURACY, FOUND)

    spec: ReplacedTokens
    vocabulary: Vocabulary

    @cached_property
    def _masking(self) -> MaskedObjective:
        masked = Masked(kind="masked", rate=self.spec.rate, mask_share=1.0, random_share=0.0)
        return MaskedObjective(masked, self.vocabulary)

    def cut(self, context: int) -> Cut:
        """Windows, less the room for [CLS] and [SEP]."""
        return self._masking.cut(context)

    def window(self, context: int) -> int:
        return self._masking.window(context)

    def collate(self, examples: Sequence[Example], done: float = 0.0) -> Batch:
        """Masked rows, and the random numbers by which the generator fills them; targets are the original tokens."""
        return _with_draws(self._masking.collate(examples), [example.rng for example in examples])

    def collate_validation(self, spans: Sequence[tuple[Ints, int]]) -> Batch:
        """As in training, but with the same masks and random numbers each time."""
        rngs = [np.random.Generator(np.random.PCG64([len(tokens), *tokens.tolist()])) for tokens, _ in spans]
        return _with_draws(self._masking.collate_validation(spans), rngs)

    def idle(self, model: LanguageModel) -> list[Parameter]:
        return model.untrained() if isinstance(model, ReplacedTokenDetector) else []

    def loss(self, model: LanguageModel, batch: Batch) -> Loss:
        return self._detect(model, batch, trains=True).loss

    def score(self, model: LanguageModel, batch: Batch) -> Loss:
        """The same loss, and how many positions are told rightly."""
        detected = self._detect(model, batch)
        right_BT, is_replaced_BT = detected.is_right_BT, detected.is_replaced_BT
        metrics = {
            ACCURACY: (right_BT.sum(), int(detected.keep_BT.sum())),
            FOUND: ((right_BT & is_replaced_BT).sum(), int(is_replaced_BT.sum())),
        }
        return replace(detected.loss, metrics=metrics)

    def as_read(self, model: LanguageModel, batch: Batch) -> Batch:
        """The batch as the discriminator reads it."""
        return replace(batch, tokens_BT=self._detect(model, batch).tokens_BT)

    def _detect(self, model: LanguageModel, batch: Batch, trains: bool = False) -> _Detection:
        """trains: with the auxiliary losses of both models."""
        if not isinstance(model, ReplacedTokenDetector):
            raise ValueError("only a generator and its discriminator have replaced tokens")
        if batch.targets_BT is None or batch.draws_BT is None:
            raise ValueError("a batch without masks has no loss")
        chosen_BT = batch.targets_BT != IGNORE
        filled = model.generator(replace(batch, draws_BT=None))
        hidden_MD = filled.hidden_BTD[chosen_BT]
        generator = loss_of_hidden(model.generator, hidden_MD, batch.targets_BT[chosen_BT])
        tokens_BT = batch.tokens_BT.clone()
        if len(hidden_MD):
            with torch.no_grad():
                tokens_BT[chosen_BT] = draw(model.generator, hidden_MD, batch.draws_BT[chosen_BT])
            # torch 2.10 would reuse weights that autocast cast here, without gradients
            torch.clear_autocast_cache()
        is_replaced_BT = chosen_BT & (tokens_BT != batch.targets_BT)
        hidden_BTD, auxiliary_B = model(Batch(tokens_BT, keep_BT=batch.keep_BT))
        scores_BT = model.detections(hidden_BTD)
        scores_BT = scores_BT.to(torch.promote_types(scores_BT.dtype, torch.float32))
        keep_BT = torch.ones_like(chosen_BT) if batch.keep_BT is None else batch.keep_BT
        nats_BT = F.binary_cross_entropy_with_logits(scores_BT, is_replaced_BT.to(scores_BT.dtype), reduction="none")
        nats_B = (nats_BT * keep_BT).sum(1) / keep_BT.sum(1)
        auxiliary_B = summed((filled.auxiliary_B, auxiliary_B)) if trains else None
        loss = with_auxiliary(generator, auxiliary_B, batch.targets_BT)
        loss = with_auxiliary(loss, self.spec.weight * nats_B, batch.targets_BT)
        is_right_BT = keep_BT & ((scores_BT > 0) == is_replaced_BT)
        return _Detection(loss, tokens_BT, is_right_BT, is_replaced_BT, keep_BT)


def _with_draws(batch: Batch, rngs: Sequence[np.random.Generator]) -> Batch:
    """With a number from each row's generator for each of its masks, from left to right."""
    draws_BT = torch.full(batch.tokens_BT.shape, -1.0)
    for draws_T, targets_T, rng in zip(draws_BT, batch.required_targets_BT, rngs, strict=True):
        is_mask_T = targets_T != IGNORE
        draws_T[is_mask_T] = torch.from_numpy(rng.random(int(is_mask_T.sum())).astype(np.float32))
    return replace(batch, draws_BT=draws_BT)
