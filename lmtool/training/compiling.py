"""Compilation of a model by torch.compile, where it pays off and changes no result."""

import torch

from lmtool.batch import Batch
from lmtool.compute.agreement import agrees, relative_difference
from lmtool.compute.device import ExecutionContext
from lmtool.model import LanguageModel
from lmtool.model.language_model import evaluation_mode
from lmtool.recipe.spec.recipe import Recipe

MIN_COMPILED_TOKENS = 100_000_000
"""Training tokens from which compiling the model pays off on a GPU."""


def should_compile(recipe: Recipe, compute: ExecutionContext) -> bool:
    """Whether a recipe has its model compiled on a device."""
    setting = recipe.training.compile
    if compute.world.sharded or recipe.distillation.teacher is not None or recipe.tuning.quantizes:
        return False
    if setting != "auto":
        return setting
    tokens = recipe.training.steps * recipe.training.batch_size * recipe.model.context
    return compute.device.type == "cuda" and tokens >= MIN_COMPILED_TOKENS


def compile_or_return_warning_(model: LanguageModel, sample_batch: Batch, compute: ExecutionContext) -> str | None:
    """Compiles a model in place, and undoes it if this fails or changes the hidden states of a batch.

    Returns a warning that says why it is undone, else None.
    """
    # what fails later is computed without being compiled; private names, read in torch 2.13
    torch._dynamo.config.suppress_errors = True
    with torch.no_grad(), evaluation_mode(model), compute.autocast():
        plain_BTD = model(sample_batch).hidden_BTD
        model.compile()
        try:
            compiled_BTD = model(sample_batch).hidden_BTD
        except Exception as error:  # a compiler's, of any kind
            why = f"does not compile here ({str(error).strip().partition(chr(10))[0]})"
        else:
            if agrees(compiled_BTD, plain_BTD, in_float32=compute.dtype == torch.float32):
                return None
            why = f"differs by {100 * relative_difference(compiled_BTD, plain_BTD):.0f} % when it is compiled"
    model._compiled_call_impl = None
    return f"the model {why}, and is trained without: training.compile=false"
