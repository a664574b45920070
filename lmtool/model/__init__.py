"""Models: tokens to hidden states to logits. Independent of data, training and files."""

from lmtool.model.averaging import AveragingModel
from lmtool.model.bidirectional import BidirectionalModel
from lmtool.model.cooccurrence import PpmiModel
from lmtool.model.language_model import DecodeState, KeyValue, LanguageModel, Memory, Output
from lmtool.model.ngram import NGramModel, PlainNGramModel
from lmtool.model.recurrent import RecurrentDecoder
from lmtool.model.seq2seq import RecurrentEncoderDecoder
from lmtool.model.skipgram import GloveModel, SkipGramModel
from lmtool.model.transformer import (
    TransformerDecoder,
    TransformerEncoder,
    TransformerEncoderDecoder,
    TransformerPrefix,
    TransformerUnmasked,
)
from lmtool.recipe.spec.recipe import Model
from lmtool.recipe.spec.recurrent import Recurrent
from lmtool.recipe.spec.transformer import Transformer
from lmtool.recipe.spec.words import Averaging, Glove, NGram, Ppmi, SkipGram

__all__ = ["DecodeState", "KeyValue", "LanguageModel", "Memory", "NGramModel", "Output", "SkipGramModel", "build"]


def build(spec: Model, vocab_size: int) -> LanguageModel:
    """The model that `spec` describes, with fresh weights from torch's global generator."""
    match spec:
        case Transformer(shape="decoder", causal_mask=False):
            return TransformerUnmasked(spec, vocab_size)
        case Transformer(shape="decoder"):
            return TransformerDecoder(spec, vocab_size)
        case Transformer(shape="prefix"):
            return TransformerPrefix(spec, vocab_size)
        case Transformer(shape="encoder"):
            return TransformerEncoder(spec, vocab_size)
        case Transformer():
            return TransformerEncoderDecoder(spec, vocab_size)
        case NGram(smoothing="kneser-ney"):
            return NGramModel(spec, vocab_size)
        case NGram():
            return PlainNGramModel(spec, vocab_size)
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
            return BidirectionalModel(spec, vocab_size)
        case Averaging():
            return AveragingModel(spec, vocab_size)
