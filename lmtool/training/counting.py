"""Training by counting: the steps of a model without gradients."""

from collections.abc import Iterator

import torch

from lmtool.batch import IGNORE, Batch
from lmtool.compute.device import Compute
from lmtool.errors import UsageError
from lmtool.model.language_model import CountingModel
from lmtool.recipe.spec.recipe import Recipe
from lmtool.training.windows import Windows


def count_part(
    model: CountingModel, examples: Windows, recipe: Recipe, step: int, compute: Compute
) -> tuple[float, int]:
    """Count the next part of the text; all steps together are one pass over it, in order.

    Returns the sum of -log p of the part's targets under the counts before it, and the number of targets. Every process
    counts everything, since each needs all the counts. `batch_size` rows of `context` tokens are read at once.

    Raises UsageError when the text is exhausted.
    """
    begin = int(model.n_read)
    left = examples.n_tokens - begin
    if not left:
        raise UsageError(
            f"all text is counted after {step} steps, and no token may be counted twice",
            where="training.steps",
            fix=f"set it to {step}, or start a new run",
        )
    end = begin + max(1, left // (recipe.training.steps - step))
    at_once = recipe.training.batch_size * recipe.model.context
    nats, n_targets = 0.0, 0

    def batches() -> Iterator[Batch]:
        nonlocal nats, n_targets
        for start in range(begin, end, at_once):
            batch = examples.in_order(start, min(end, start + at_once), model.width).to(compute.device)
            nats += _nats(model, batch)
            n_targets += batch.n_targets
            yield batch

    model.count(batches(), end - begin)
    return nats, n_targets


@torch.no_grad()
def _nats(model: CountingModel, batch: Batch) -> float:
    """Sum of -log p over the targets."""
    assert batch.targets_BT is not None
    scored_BT = batch.targets_BT != IGNORE
    return -float(model.log_p(model(batch).hidden_BTD[scored_BT], batch.targets_BT[scored_BT]).sum())
