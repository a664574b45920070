"""Byte-level and WordPiece tokenizers of the `tokenizers` library, as published models have them."""

from collections.abc import Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TEXTS = ["Tom and Anna went to the old harbour.", "It rained; the boats stayed!  Why?", "a", "¿Qué? 漢字 🙂 <s> [MASK]"]
CORPUS = [*TEXTS, "They waited for the rain to end, and then they walked home along the sea wall."] * 20


def byte_cut(words: str = "") -> Any:
    """The step that divides texts by a regular expression, or as GPT-2 does, and writes bytes."""
    if not words:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(Regex(words), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(
    specials: Sequence[str | AddedToken],
    template: tuple[str, str] | None = None,
    *,
    cut: Any = None,
    texts: Sequence[str] = CORPUS,
    vocab_size: int = 330,
    **options: Any,
) -> Tokenizer:
    """A byte-level BPE. template: one text and two, between special tokens. options: of the model."""
    inner = Tokenizer(models.BPE(**options))
    inner.pre_tokenizer = cut or byte_cut()
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(specials), initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(texts, trainer)
    if template:
        ids = [(str(name), inner.token_to_id(str(name))) for name in specials]
        inner.post_processor = processors.TemplateProcessing(single=template[0], pair=template[1], special_tokens=ids)
    return inner


def word_pieces(
    texts: Sequence[str] = CORPUS, vocab_size: int = 120, template: tuple[str, str] | None = None, **options: Any
) -> Tokenizer:
    """A WordPiece tokenizer as BERT's. options: of its normalizer."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    inner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    inner.normalizer = normalizers.BertNormalizer(**options)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=names, show_progress=False)
    inner.train_from_iterator(texts, trainer)
    single, pair = template or ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")
    ids = [(name, inner.token_to_id(name)) for name in names]
    inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return inner
