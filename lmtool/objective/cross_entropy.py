"""Cross-entropy over a vocabulary, in chunks, so that the logits of a whole batch never exist at once.

Shapes: B rows, T positions, M scored positions, D model width, V vocabulary.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from lmtool.batch import IGNORE, Batch
from lmtool.compute.kernels import ops
from lmtool.model import HiddenOutput, LanguageModel
from lmtool.model.language_model import CountingModel
from lmtool.objective.base import Loss

FLOAT16_CHUNK_SCALE = 2.0**10
"""Loss scale of a chunk in float16: derivatives are at most 1, and their sums must not overflow."""


def rows_per_chunk(device: torch.device, vocab_size: int) -> int:
    """Returns the number of rows of logits per chunk.

    On a CPU enough for fast matrix products, with logits of 8 MB in bfloat16; on a GPU enough to saturate it.
    """
    return max(256, 2**22 // vocab_size) if device.type == "cpu" else max(1, 2**25 // vocab_size)


def sum_smoothed_cross_entropy(
    logits_MV: Tensor, targets_M: Tensor, label_smoothing: float, weights_M: Tensor | None = None
) -> Tensor:
    """Returns the sum over positions of -sum_k q(k) log p(k), computed in float32 or wider.

    q is 1 - eps at the target and eps / (V - 1) at every other entry (Szegedy et al. 2016; unlike in F.cross_entropy,
    eps is not spread over the target too). Positions with target IGNORE are skipped.

    Args:
        weights_M: weight of each position; None for 1.
    """
    scored_M = targets_M != IGNORE
    spread = label_smoothing / max(1, logits_MV.shape[-1] - 1)
    # the target's mass beyond the uniform part, and the uniform part
    target_mass = 1 - label_smoothing - spread
    weights_M = scored_M if weights_M is None else scored_M * weights_M
    return ops.cross_entropy(logits_MV, targets_M.clamp(min=0), weights_M, target_mass, spread)


class LogitHead(Protocol):
    """Anything that computes logits from hidden states: a model, or a head of its own."""

    vocab_size: int

    def logits(self, hidden: Tensor) -> Tensor: ...

    def head_parameters(self) -> tuple[Tensor, ...]: ...


def sum_cross_entropy_in_chunks(
    model: LogitHead, hidden_MD: Tensor, targets_M: Tensor, label_smoothing: float = 0.0
) -> Tensor:
    """Returns `sum_smoothed_cross_entropy` of the logits of hidden states, with the logits of one chunk in memory."""
    return sum_loss_in_chunks(
        model,
        hidden_MD,
        lambda logits_MV, part: sum_smoothed_cross_entropy(logits_MV, targets_M[part], label_smoothing),
    )


def sum_loss_in_chunks(
    model: LogitHead, hidden_MD: Tensor, loss_from_logits: Callable[[Tensor, slice], Tensor]
) -> Tensor:
    """Returns a summed loss of the logits of hidden states, with the logits of one chunk in memory at a time.

    Each chunk's gradient is computed while its logits exist, so they are neither kept nor recomputed. Frozen parameters
    of the head get no gradient.

    Args:
        loss_from_logits: returns the summed loss of the logits of a chunk, which are at this slice of the positions.
    """
    n, rows = len(hidden_MD), rows_per_chunk(hidden_MD.device, model.vocab_size)
    if n <= rows:
        return loss_from_logits(model.logits(hidden_MD), slice(0, n))
    parts = [slice(start, min(start + rows, n)) for start in range(0, n, rows)]
    if not torch.is_grad_enabled():
        return torch.stack([loss_from_logits(model.logits(hidden_MD[part]), part) for part in parts]).sum()
    trained = [parameter for parameter in model.head_parameters() if parameter.requires_grad]
    apply: Callable[..., Tensor] = _ChunkedLoss.apply
    return apply(model.logits, parts, loss_from_logits, hidden_MD, *trained)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Any, parts: Any, loss_fn: Any, hidden_MD: Tensor, *trained: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float32, device=hidden_MD.device)
        hidden_grads = []
        head_grads = [torch.zeros_like(p) for p in trained]
        for part in parts:
            with torch.enable_grad():
                hidden = hidden_MD[part].detach().requires_grad_()
                scores = logits(hidden)
                loss = loss_fn(scores, part)
                # the loss scale of float16 is not known yet, so chunks use a scale of their own
                scale = FLOAT16_CHUNK_SCALE if scores.dtype == torch.float16 else 1.0
                hidden_grad, *grads = torch.autograd.grad(loss * scale, (hidden, *trained))
            hidden_grads.append(hidden_grad if scale == 1 else hidden_grad.float() / scale)
            for sum_so_far, grad in zip(head_grads, grads, strict=True):
                sum_so_far.add_(grad, alpha=1 / scale)
            total = total + loss.detach()
        ctx.save_for_backward(torch.cat(hidden_grads), *head_grads)
        return total

    @staticmethod
    def backward(ctx, grad_total):  # type: ignore[no-untyped-def]  # autograd gives contexts no type
        grads = (grad_total * grad for grad in ctx.saved_tensors)
        return None, None, None, *grads


def token_loss_and_output(
    model: LanguageModel, batch: Batch, label_smoothing: float = 0.0
) -> tuple[Loss, HiddenOutput]:
    """Returns the cross-entropy of a batch's targets, and the model's output. Raises ValueError without targets."""
    targets_M = batch.required_targets_BT.flatten()
    output: HiddenOutput = model(batch)
    hidden_MD = output.hidden_BTD.flatten(0, 1)
    return cross_entropy_from_hidden(model, hidden_MD, targets_M, label_smoothing), output


def add_auxiliary_loss(loss: Loss, auxiliary_B: Tensor | None, targets_BT: Tensor | None) -> Loss:
    """Adds each row's auxiliary loss, weighted by its number of targets; by 1 if `targets_BT` is None.

    So the sum does not depend on how a batch is split.
    """
    if auxiliary_B is None:
        return loss
    weighted_B = auxiliary_B if targets_BT is None else (targets_BT != IGNORE).sum(1) * auxiliary_B
    return replace(loss, total=loss.total + weighted_B.sum())


def cross_entropy_from_hidden(
    model: LanguageModel, hidden_MD: Tensor, targets_M: Tensor, label_smoothing: float = 0.0
) -> Loss:
    """Returns the cross-entropy of all targets, from the hidden states at their positions."""
    if isinstance(model, CountingModel) and not label_smoothing:
        scored_M = targets_M != IGNORE
        return Loss(-model.token_log_probs(hidden_MD[scored_M], targets_M[scored_M]).sum(), scored_M.sum())
    total = sum_cross_entropy_in_chunks(model, hidden_MD, targets_M, label_smoothing)
    return Loss(total, (targets_M != IGNORE).sum())
