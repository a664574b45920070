"""A small tokenizer of each kind, trained once a process."""

from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
    WordTokenizer,
)
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.texts import prose

SPECS: dict[str, TrainedTokenizerSpecBase] = {
    "bpe": BpeTokenizer(vocab_size=600, sentinels=3),
    "wordpiece": WordPieceTokenizer(kind="wordpiece", vocab_size=400, sentinels=3),
    "wordpiece-lower": WordPieceTokenizer(kind="wordpiece", vocab_size=400, lowercase=True, sentinels=3),
    "char": CharTokenizer(kind="char", sentinels=3),
    "char-lower": CharTokenizer(kind="char", lowercase=True, sentinels=3),
    "word": WordTokenizer(kind="word", vocab_size=200, sentinels=3),
    "word-lower": WordTokenizer(kind="word", vocab_size=200, lowercase=True, sentinels=3),
}
TOKENIZERS = {name: Tokenizer.train(spec, [prose(4000)]) for name, spec in SPECS.items()}
BPE = TOKENIZERS["bpe"]
