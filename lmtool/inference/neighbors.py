"""`neighbors`: the nearest tokens of a word by cosine similarity of their vectors.

Shapes: V vocabulary, D model width.
"""

from dataclasses import dataclass
from difflib import get_close_matches

import torch
from torch.nn import functional as F

from lmtool.errors import UsageError
from lmtool.inference.load import Loaded, load_run
from lmtool.recipe.spec import DeviceName
from lmtool.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Neighbor:
    """A token, as shown by `Tokenizer.piece`, and the cosine similarity of its vector to the word's."""

    word: str
    similarity: float


@dataclass(frozen=True)
class Neighbors:
    """The nearest tokens of a word, the nearest first. word: its token."""

    word: str
    nearest: list[Neighbor]
    loaded: Loaded


def neighbors(reference: str, word: str, k: int, *, device: DeviceName = "auto") -> Neighbors:
    """The k tokens nearest to a word by cosine, among the static token vectors of a run's model.

    Raises UsageError when the word is not a token of the run's tokenizer, or the model has no vectors.
    """
    loaded = load_run(reference, device=device, precision="float32")
    return Neighbors(loaded.tokenizer.piece(find_token(loaded.tokenizer, word)), nearest(loaded, word, k), loaded)


@torch.inference_mode()
def nearest(loaded: Loaded, word: str, k: int) -> list[Neighbor]:
    """The same for a loaded model: the neighbours alone, the nearest first."""
    tokenizer = loaded.tokenizer
    token = find_token(tokenizer, word)
    unit_VD = F.normalize(loaded.model.token_vectors()[: tokenizer.vocab_size], dim=-1)
    similarity_V = unit_VD @ unit_VD[token]
    similarity_V[list(tokenizer.special_ids)] = -torch.inf
    similarity_V[token] = -torch.inf
    best = similarity_V.topk(min(k, tokenizer.vocab_size - len(tokenizer.special_ids) - 1))
    return [Neighbor(tokenizer.piece(i), s) for i, s in zip(best.indices.tolist(), best.values.tolist(), strict=True)]


def find_token(tokenizer: Tokenizer, word: str) -> int:
    """The token of a word: after a space, or else at the beginning of a text.

    Raises UsageError, with similarly spelled words, when there is none.
    """
    for text in (f" {word}", word):
        ids = tokenizer.encode(text)
        if len(ids) == 1 and ids[0] not in tokenizer.special_ids:
            return ids[0]
    words = {tokenizer.piece(i).strip() for i in range(tokenizer.vocab_size) if i not in tokenizer.special_ids}
    alike = get_close_matches(word, sorted(words), n=3, cutoff=0.6)
    raise UsageError(
        f"{word!r} is not a token of this run",
        fix=f"did you mean {' or '.join(alike)}?" if alike else "name a single word of the training text",
    )
