"""Models: tokens to hidden states to logits. Independent of data, training and files."""

from lmtool.model import transformer
from lmtool.model.averaging import AveragingModel
from lmtool.model.heads import Classifier, SpanReader, Tagger
from lmtool.model.language_model import DecodeState, HiddenOutput, LanguageModel
from lmtool.model.ngram import AddKNGramModel, NGramModel
from lmtool.model.recurrent import BidirectionalLanguageModel, RecurrentDecoder
from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.model.word_vectors import GloveModel, PpmiModel, SkipGramModel
from lmtool.recipe.spec.objective import Classification, QuestionAnswering, ReplacedTokens, Tagging
from lmtool.recipe.spec.recipe import Model, Recipe
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging, Glove, NGram, Ppmi, SkipGram

__all__ = ["DecodeState", "HiddenOutput", "LanguageModel", "NGramModel", "SkipGramModel", "add_objective_head", "build"]


def build(spec: Model, vocab_size: int) -> LanguageModel:
    """Builds the model of a spec, with random weights from torch's global generator."""
    match spec:
        case Transformer(shape="decoder", causal_mask=False):
            return transformer.TransformerDecoderWithoutCausalMask(spec, vocab_size)
        case Transformer(shape="decoder"):
            return transformer.TransformerDecoder(spec, vocab_size)
        case Transformer(shape="prefix"):
            return transformer.TransformerPrefixLm(spec, vocab_size)
        case Transformer(shape="encoder"):
            return transformer.TransformerEncoder(spec, vocab_size)
        case Transformer():
            return transformer.TransformerEncoderDecoder(spec, vocab_size)
        case NGram(smoothing="kneser-ney"):
            return NGramModel(spec, vocab_size)
        case NGram():
            return AddKNGramModel(spec, vocab_size)
        case SkipGram():
            return SkipGramModel(spec, vocab_size)
        case Glove():
            return GloveModel(spec, vocab_size)
        case Ppmi():
            return PpmiModel(spec, vocab_size)
        case Recurrent(shape="decoder"):
            return RecurrentDecoder(spec, vocab_size)
        case Recurrent(shape="encoder-decoder"):
            return RecurrentEncoderDecoder(spec, vocab_size)
        case Recurrent():
            return BidirectionalLanguageModel(spec, vocab_size)
        case Averaging():
            return AveragingModel(spec, vocab_size)


def add_objective_head(recipe: Recipe, body: LanguageModel) -> LanguageModel:
    """Returns the body with the head of the recipe's objective; the body itself if the objective has no head."""
    match recipe.objective:
        case Classification() as spec:
            return Classifier(body, spec, recipe.model)
        case Tagging() as spec:
            return Tagger(body, spec, recipe.model)
        case QuestionAnswering() as spec:
            return SpanReader(body, spec, recipe.model)
        case ReplacedTokens() as spec:
            assert isinstance(body, transformer.TransformerEncoder)
            assert isinstance(recipe.model, Transformer)
            return transformer.ReplacedTokenDetectorWithGenerator(body, spec, recipe.model)
    return body
