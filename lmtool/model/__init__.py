"""Models: tokens to hidden states to logits. They know nothing of data, training or files."""

from lmtool.errors import RecipeError
from lmtool.model.language_model import DecodeState, KeyValue, LanguageModel, Memory
from lmtool.model.ngram import NGramModel
from lmtool.model.skipgram import SkipGramModel
from lmtool.model.transformer import TransformerDecoder
from lmtool.recipe.spec import Model, NGram, SkipGram, Transformer

__all__ = ["DecodeState", "KeyValue", "LanguageModel", "Memory", "NGramModel", "SkipGramModel", "build"]


def build(spec: Model, vocab_size: int) -> LanguageModel:
    """The model that `spec` describes, with fresh weights from torch's global generator."""
    match spec:
        case Transformer(shape="decoder"):
            return TransformerDecoder(spec, vocab_size)
        case NGram():
            return NGramModel(spec, vocab_size)
        case SkipGram():
            return SkipGramModel(spec, vocab_size)
        case _:
            raise RecipeError([f"model.kind: {spec.kind} is not there yet"])
