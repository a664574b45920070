"""A model that writes what it is told, and tokenizers of bytes and of words."""

from collections.abc import Mapping, Sequence
from typing import cast

import torch

from lmtool.tokenization.decoder import ByteDecoder, WordDecoder
from lmtool.tokenization.inner import SpecialTokenIdsByRole
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.generation.models import HistoryModel

SPECIAL = 7


class ByteTokenizer:
    """Seven special tokens, then one for each byte."""

    kind = "bpe"
    bos_id, eos_id, mask_id, sep_id, cls_id = 1, 2, 4, 5, 6
    special_ids = frozenset(range(SPECIAL))
    roles = SpecialTokenIdsByRole(0, 1, 2, 3, 4, 5, 6, (1,), frozenset({2}), (), special_ids)
    vocab_size = SPECIAL + 256

    def encode(self, text: str) -> list[int]:
        return [SPECIAL + byte for byte in text.encode()]

    def find_unknown_parts(self, text: str) -> list[str]:
        return []

    def display_token(self, token: int) -> str:
        return f"<{token}>" if token < SPECIAL else chr(token - SPECIAL)

    def make_stream_decoder(self, names: Mapping[int, str] | None = None) -> ByteDecoder | WordDecoder:
        return ByteDecoder([b""] * SPECIAL + [bytes([i]) for i in range(256)])


class WordTokenizer(ByteTokenizer):
    words = ("once", "upon", "a", "time", ",", ".", "'")
    vocab_size = SPECIAL + len(words)

    def encode(self, text: str) -> list[int]:
        return [SPECIAL + self.words.index(word) for word in text.split()]

    def make_stream_decoder(self, names: Mapping[int, str] | None = None) -> WordDecoder:
        return WordDecoder([""] * SPECIAL + list(self.words))


BYTES = cast(Tokenizer, ByteTokenizer())
TEXTS = PromptFormat(BYTES, "past")
DOCUMENTS = PromptFormat(BYTES, "past", opening=(1,), documents=True)
"""Of a model that was trained on texts, and of one that was trained on documents."""


class ScriptModel(HistoryModel):
    """Continues with a text of bytes, whatever the prompt, which begins with its number of tokens."""

    def __init__(self, script: Sequence[int], vocab_size: int = ByteTokenizer.vocab_size, n_prompt: int = 1) -> None:
        super().__init__(vocab_size)
        self.script = script
        self.n_prompt = n_prompt

    def logits_after(self, ids: list[int]) -> torch.Tensor:
        logits = super().logits_after(ids)
        logits[self.script[len(ids) - self.n_prompt]] = 100.0
        return logits
