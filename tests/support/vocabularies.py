"""Vocabularies of the small models, with every special token."""

from typing import Any

import numpy as np

from lmtool.objective import VocabularyInfo
from tests.support import tiny

_IDS: dict[str, Any] = {"pad": 0, "bos": 1, "eos": 2, "mask": 4, "sep": 5, "cls": 6, "target_start_ids": (1,)}
VOCABULARY = VocabularyInfo(tiny.VOCAB, **_IDS, sentinels=(), specials=frozenset(range(7)))
"""Without sentinels."""

COUNTED = VocabularyInfo(
    tiny.VOCAB, **_IDS, sentinels=(7, 8), specials=frozenset(range(9)), counts=np.arange(tiny.VOCAB)
)
"""With sentinels and the counts of its tokens."""
