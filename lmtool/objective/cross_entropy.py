"""Cross-entropy over a vocabulary, in chunks, so that the logits of a whole batch never exist at once.

Shapes: M positions that are scored, D model width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.model import LanguageModel
from lmtool.objective.base import Loss


def chunk_rows(device: torch.device, vocab_size: int) -> int:
    """How many rows of logits are computed at once.

    On a CPU as many as its cache holds, but enough for matrix products to be fast; on a GPU as keep it busy.
    """
    return max(256, 2**20 // vocab_size) if device.type == "cpu" else max(1, 2**25 // vocab_size)


def smoothed_cross_entropy(
    logits_MV: Tensor, targets_M: Tensor, label_smoothing: float, weights_M: Tensor | None = None
) -> Tensor:
    """Sum over positions of -sum_k q(k) log p(k), computed in float32 or wider.

    q is 1 - eps at the target and eps / (V - 1) at every other entry (Szegedy et al. 2016, but eps is not given to the
    target as well, as F.cross_entropy does). Positions whose target is IGNORE count nothing. weights_M: what each
    position counts; 1 when None.
    """
    scored_M = targets_M != IGNORE
    total: Tensor = _SmoothedCrossEntropy.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        logits_MV, targets_M, label_smoothing, scored_M if weights_M is None else scored_M * weights_M
    )
    return total


class _SmoothedCrossEntropy(torch.autograd.Function):
    """With the gradient p - q in closed form, which takes half the passes over the logits that autograd takes."""

    @staticmethod
    def forward(ctx: Any, logits_MV: Tensor, targets_M: Tensor, label_smoothing: float, weights_M: Tensor) -> Tensor:
        log_p_MV = logits_MV.log_softmax(-1, dtype=torch.promote_types(logits_MV.dtype, torch.float32))
        target_M1 = targets_M.clamp(min=0)[:, None]
        spread = label_smoothing / max(1, logits_MV.shape[-1] - 1)
        beyond = 1 - label_smoothing - spread  # what the target has beyond what all entries have
        loss_M = -beyond * log_p_MV.gather(-1, target_M1)[:, 0]
        if spread:
            loss_M = loss_M - spread * log_p_MV.sum(-1)
        if ctx.needs_input_grad[0]:
            slope_MV = log_p_MV.exp_()
            if spread:
                slope_MV -= spread
            slope_MV.scatter_add_(-1, target_M1, slope_MV.new_full(target_M1.shape, -beyond))
            ctx.save_for_backward(slope_MV.to(logits_MV.dtype), weights_M)
        return (loss_M * weights_M).sum()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (grad_total,) = grad_outputs
        slope_MV, weights_M = ctx.saved_tensors
        return slope_MV * (grad_total * weights_M)[:, None].to(slope_MV.dtype), None, None, None


def chunked_cross_entropy(
    logits: Callable[[Tensor], Tensor],
    head_parameters: tuple[Tensor, ...],
    hidden_MD: Tensor,
    targets_M: Tensor,
    vocab_size: int,
    label_smoothing: float = 0.0,
) -> Tensor:
    """`smoothed_cross_entropy` of logits(hidden), with the logits of a chunk alive at any time.

    Each chunk's gradient is taken while its logits exist, so that they are neither kept nor computed twice.
    head_parameters are the parameters that `logits` uses; those that are not trained get no gradient.
    """
    rows = chunk_rows(hidden_MD.device, vocab_size)
    if len(hidden_MD) <= rows:
        return smoothed_cross_entropy(logits(hidden_MD), targets_M, label_smoothing)
    if not torch.is_grad_enabled():
        chunks = zip(torch.split(hidden_MD, rows), torch.split(targets_M, rows), strict=True)
        return torch.stack([smoothed_cross_entropy(logits(h), t, label_smoothing) for h, t in chunks]).sum()
    trained = [parameter for parameter in head_parameters if parameter.requires_grad]
    total: Tensor = _ChunkedLoss.apply(  # type: ignore[no-untyped-call]  # torch leaves it untyped
        logits, rows, label_smoothing, targets_M, hidden_MD, *trained
    )
    return total


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx,
        logits: Callable[[Tensor], Tensor],
        rows: int,
        label_smoothing: float,
        targets_M: Tensor,
        hidden_MD: Tensor,
        *trained: Tensor,
    ) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden_MD.device)
        hidden_grads = []
        head_grads = [torch.zeros_like(p) for p in trained]
        for hidden, targets in zip(torch.split(hidden_MD, rows), torch.split(targets_M, rows), strict=True):
            with torch.enable_grad():
                hidden = hidden.detach().requires_grad_()
                loss = smoothed_cross_entropy(logits(hidden), targets, label_smoothing)
                hidden_grad, *grads = torch.autograd.grad(loss, (hidden, *trained))
            hidden_grads.append(hidden_grad)
            for sum_so_far, grad in zip(head_grads, grads, strict=True):
                sum_so_far += grad
            total = total + loss.detach()
        ctx.save_for_backward(torch.cat(hidden_grads), *head_grads)
        return total

    @staticmethod
    def backward(ctx, grad_total):  # type: ignore[no-untyped-def]  # autograd gives contexts no type
        grads = (grad_total * grad for grad in ctx.saved_tensors)
        return None, None, None, None, *grads


def summed_loss(model: LanguageModel, batch: Batch, label_smoothing: float = 0.0) -> Loss:
    """The cross-entropy of all targets of a batch. Raises ValueError when it has none."""
    if batch.targets_BT is None:
        raise ValueError("a batch without targets has no loss")
    return loss_of_hidden(model, model(batch).flatten(0, 1), batch.targets_BT.flatten(), label_smoothing)


def loss_of_hidden(model: LanguageModel, hidden_MD: Tensor, targets_M: Tensor, label_smoothing: float = 0.0) -> Loss:
    """The cross-entropy of all targets, from hidden states that are there already."""
    total = chunked_cross_entropy(
        model.logits,
        model.head_parameters(),
        hidden_MD,
        targets_M,
        model.vocab_size,
        label_smoothing,
    )
    return Loss(total, (targets_M != IGNORE).sum())
