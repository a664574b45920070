"""Objectives: examples to batches, and batches to losses."""

from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.bidirectional import BidirectionalObjective
from lmtool.objective.causal import CausalObjective
from lmtool.objective.classification import ClassificationObjective
from lmtool.objective.masked import MaskedObjective
from lmtool.objective.skipgram import SkipGramObjective
from lmtool.objective.sources import Form, PrefixObjective, Seq2SeqObjective, SpanCorruptionObjective
from lmtool.recipe.spec import (
    Bidirectional,
    Causal,
    Classification,
    Masked,
    Prefix,
    Recipe,
    Seq2Seq,
    SkipGramWindow,
    SpanCorruption,
    Transformer,
)

__all__ = [
    "CausalObjective",
    "ClassificationObjective",
    "Cut",
    "Example",
    "Loss",
    "Objective",
    "Seq2SeqObjective",
    "SkipGramObjective",
    "Vocabulary",
    "build",
]


def build(recipe: Recipe, vocabulary: Vocabulary) -> Objective:
    """What a model learns under `recipe`, with a tokenizer of this vocabulary."""
    match recipe.objective:
        case Causal() as spec:
            return CausalObjective(spec, vocabulary.bos, recipe.data.isolate_documents)
        case Bidirectional():
            return BidirectionalObjective(CausalObjective(Causal(), vocabulary.bos, recipe.data.isolate_documents))
        case SkipGramWindow() as spec:
            return SkipGramObjective(spec, vocabulary)
        case Classification() as spec:
            return ClassificationObjective(spec, vocabulary)
        case Masked() as spec:
            return MaskedObjective(spec, vocabulary)
        case Prefix() as spec:
            return PrefixObjective(spec, vocabulary, _form(recipe))
        case SpanCorruption() as spec:
            return SpanCorruptionObjective(spec, vocabulary, _form(recipe))
        case Seq2Seq() as spec:
            return Seq2SeqObjective(spec, vocabulary, _form(recipe))


def _form(recipe: Recipe) -> Form:
    model = recipe.model
    return "prefix" if isinstance(model, Transformer) and model.shape == "prefix" else "encoder-decoder"
