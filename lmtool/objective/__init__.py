"""Objectives: examples to batches, and batches to losses."""

from torch import Tensor

from lmtool.errors import UsageError
from lmtool.objective.base import Cut, Example, Loss, Objective, Vocabulary
from lmtool.objective.bidirectional import BidirectionalObjective
from lmtool.objective.causal import CausalObjective
from lmtool.objective.classification import ClassificationObjective
from lmtool.objective.distillation import DistilledObjective
from lmtool.objective.glove import GloveObjective
from lmtool.objective.masked import MaskedObjective
from lmtool.objective.replaced import ReplacedTokensObjective
from lmtool.objective.skipgram import CbowObjective, SkipGramObjective
from lmtool.objective.sources import PrefixObjective, Seq2SeqObjective, SpanCorruptionObjective
from lmtool.objective.token_heads import AnswerSpanObjective, TaggingObjective
from lmtool.recipe.spec.objective import (
    Bidirectional,
    Causal,
    CbowWindow,
    Classification,
    Embedding,
    Masked,
    Prefix,
    QuestionAnswering,
    ReplacedTokens,
    Seq2Seq,
    SkipGramWindow,
    SpanCorruption,
    Tagging,
    WeightedCounts,
    WindowCounts,
)
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.words import Ppmi
from lmtool.text.tokenizer import Tokenizer

__all__ = [
    "AnswerSpanObjective",
    "CausalObjective",
    "ClassificationObjective",
    "Cut",
    "DistilledObjective",
    "Example",
    "Loss",
    "Objective",
    "Seq2SeqObjective",
    "SkipGramObjective",
    "TaggingObjective",
    "Vocabulary",
    "build",
    "build_objective",
]


def build_objective(recipe: Recipe, tokenizer: Tokenizer, counts_V: Tensor | None = None) -> Objective:
    """The objective of a recipe. counts_V: count of each id in the training text, for objectives that need it."""
    vocabulary = Vocabulary(
        size=tokenizer.vocab_size,
        pad=tokenizer.pad_id,
        bos=tokenizer.bos_id,
        eos=tokenizer.eos_id,
        mask=tokenizer.mask_id,
        sep=tokenizer.sep_id,
        cls=tokenizer.cls_id,
        starts=tokenizer.roles.starts,
        sentinels=tokenizer.sentinel_ids,
        specials=tokenizer.special_ids,
        counts=None if counts_V is None else counts_V.cpu().numpy(),
    )
    return build(recipe, vocabulary)


def build(recipe: Recipe, vocabulary: Vocabulary) -> Objective:
    """The objective of `recipe`, with a tokenizer of this vocabulary."""
    bos, predicts_bos = vocabulary.bos, vocabulary.start_of_text is None
    match recipe.objective:
        case Causal() as spec:
            return CausalObjective(spec, bos, recipe.data.isolate_documents, predicts_bos=predicts_bos)
        case Bidirectional():
            forth = CausalObjective(Causal(), bos, recipe.data.isolate_documents, predicts_bos=predicts_bos)
            return BidirectionalObjective(forth)
        case CbowWindow() as spec:
            return CbowObjective(spec, vocabulary)
        case WeightedCounts() as spec:
            return GloveObjective(spec, _pairs_within(spec.window, vocabulary))
        case WindowCounts():
            assert isinstance(recipe.model, Ppmi)
            return _pairs_within(recipe.model.window, vocabulary)
        case SkipGramWindow() as spec:
            return SkipGramObjective(spec, vocabulary)
        case Classification() as spec:
            return ClassificationObjective(spec, vocabulary)
        case Tagging():
            return TaggingObjective(vocabulary)
        case QuestionAnswering():
            return AnswerSpanObjective(vocabulary)
        case Masked() as spec:
            return MaskedObjective(spec, vocabulary)
        case ReplacedTokens() as spec:
            return ReplacedTokensObjective(spec, vocabulary)
        case Prefix() as spec:
            return PrefixObjective(spec, vocabulary, recipe.model.shares_row)
        case SpanCorruption() as spec:
            return SpanCorruptionObjective(spec, vocabulary, recipe.model.shares_row)
        case Seq2Seq() as spec:
            return Seq2SeqObjective(spec, vocabulary, recipe.model.shares_row, recipe.model.reads == "past")
        case Embedding():
            raise UsageError(
                "this model embeds whole texts, and is neither trained nor evaluated on a text",
                where="objective.kind",
                fix="use lmtool embed --whole, or fine-tune it further: lmtool finetune TABLE --from RUN",
            )


def _pairs_within(window: int, vocabulary: Vocabulary) -> SkipGramObjective:
    """The loss of all words within a window by the full softmax."""
    return SkipGramObjective(SkipGramWindow(kind="skip-gram", window=window, negatives=0, subsample=0.0), vocabulary)
