"""Objectives: examples to batches, and batches to losses."""

from dataclasses import replace

from torch import Tensor

from lmtool.errors import UsageError
from lmtool.objective.base import Example, Loss, Objective, TextCutSettings, VocabularyInfo
from lmtool.objective.causal import BidirectionalObjective, CausalObjective
from lmtool.objective.contrastive import EmbeddingObjective
from lmtool.objective.heads import (
    AnswerSpanObjective,
    ClassificationObjective,
    SetFitObjective,
    TaggingObjective,
)
from lmtool.objective.masked import MaskedObjective
from lmtool.objective.replaced import ReplacedTokensObjective
from lmtool.objective.skipgram import CbowObjective, GloveObjective, SkipGramObjective
from lmtool.objective.sources import PrefixObjective, Seq2SeqObjective, SpanCorruptionObjective
from lmtool.recipe.spec import objective as specs
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Ppmi
from lmtool.tokenization.tokenizer import Tokenizer

__all__ = ["CausalObjective", "Example", "Loss", "Objective", "TextCutSettings", "VocabularyInfo", "build_objective"]


def build_objective(recipe: Recipe, tokenizer: Tokenizer, token_counts_V: Tensor | None = None) -> Objective:
    """Returns the objective of a recipe.

    Raises UsageError for whole words, if the tokenizer does not mark where words begin.

    Args:
        token_counts_V: count of each id in the training text; only word vectors need it.
    """
    counts = None if token_counts_V is None else token_counts_V.cpu().numpy()
    vocabulary = VocabularyInfo.from_tokenizer(tokenizer, counts)
    if isinstance(recipe.objective, specs.Masked) and recipe.objective.whole_words:
        vocabulary = replace(vocabulary, word_continuations_2V=tokenizer.find_continuing_and_continuable_tokens())
        if vocabulary.word_continuations_2V is None:
            what = "this WordPiece tokenizer has no mark of pieces inside a word, such as ##"
            raise UsageError(what, where="objective.whole_words", fix="set it to false, or take another tokenizer")
    return build_objective_for_vocabulary(recipe, vocabulary)


def build_objective_for_vocabulary(recipe: Recipe, vocabulary: VocabularyInfo) -> Objective:
    """Returns the objective of a recipe whose tokenizer has this vocabulary."""
    match recipe.objective:
        case specs.Causal() as spec:
            return CausalObjective.from_vocabulary(spec, vocabulary, recipe.data.isolate_documents)
        case specs.Bidirectional():
            return BidirectionalObjective.from_vocabulary(specs.Causal(), vocabulary, recipe.data.isolate_documents)
        case specs.CbowPrediction() as spec:
            return CbowObjective(spec, vocabulary)
        case specs.WeightedCounts() as spec:
            return GloveObjective(_all_pairs_spec(spec.window), vocabulary, spec)
        case specs.WindowCounts():
            assert isinstance(recipe.model, Ppmi)
            return SkipGramObjective(_all_pairs_spec(recipe.model.window), vocabulary)
        case specs.SkipGramPrediction() as spec:
            return SkipGramObjective(spec, vocabulary)
        case specs.Classification() as spec:
            return (SetFitObjective if spec.contrastive else ClassificationObjective)(spec, vocabulary)
        case specs.Tagging():
            return TaggingObjective(vocabulary)
        case specs.QuestionAnswering():
            return AnswerSpanObjective(vocabulary)
        case specs.Masked() as spec:
            return MaskedObjective(spec, vocabulary)
        case specs.ReplacedTokens() as spec:
            return ReplacedTokensObjective(spec, vocabulary)
        case specs.Prefix() as spec:
            return PrefixObjective(spec, vocabulary, recipe.model.shares_row)
        case specs.SpanCorruption() as spec:
            return SpanCorruptionObjective(spec, vocabulary, recipe.model.shares_row)
        case specs.Seq2Seq() as spec:
            return Seq2SeqObjective(spec, vocabulary, recipe.model.shares_row, recipe.model.reads == "past")
        case specs.Embedding() as spec:
            return EmbeddingObjective(spec, vocabulary)


def _all_pairs_spec(window: int) -> specs.SkipGramPrediction:
    """Returns the settings for all pairs of words within a window, scored by the full softmax."""
    return specs.SkipGramPrediction(kind="skip-gram", window=window, negatives=0, subsample=0.0)
