"""Objectives: examples to batches, and batches to losses."""

from lmtool.objective.causal import CausalObjective, Loss
from lmtool.recipe.spec import Objective

__all__ = ["CausalObjective", "Loss", "build"]


def build(spec: Objective, bos_id: int, isolate_documents: bool) -> CausalObjective:
    """The objective that `spec` describes, for a tokenizer whose documents start with `bos_id`."""
    return CausalObjective(spec, bos_id, isolate_documents)
