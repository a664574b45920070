"""Models: tokens to hidden states to logits. They know nothing of data, training or files."""

from lmtool.model.language_model import DecodeState, KeyValue, LanguageModel
from lmtool.model.transformer import TransformerDecoder
from lmtool.recipe.spec import Model

__all__ = ["DecodeState", "KeyValue", "LanguageModel", "build"]


def build(spec: Model, vocab_size: int) -> LanguageModel:
    """The model that `spec` describes, with fresh weights from torch's global generator."""
    return TransformerDecoder(spec, vocab_size)
