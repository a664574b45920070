"""Log-probabilities of given texts, token by token.

Shapes: B rows, T positions, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from lmtool.batch import Batch, padded
from lmtool.compute.processes import World
from lmtool.errors import UsageError
from lmtool.inference.evaluation import evaluate
from lmtool.inference.load import Loaded
from lmtool.recipe.spec import Embedding


@dataclass(frozen=True)
class Scored:
    """The log-probability of a text under a model.

    tokens: its tokens, as shown by `Tokenizer.piece`. logprobs: the natural log-probability of each, given all before
    it, and the source if there is one; given all others for a bidirectional model. None for a first token that nothing
    precedes.
    """

    text: str
    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]

    @property
    def total(self) -> float:
        """The log-probability of the text, in nats: the sum over its tokens."""
        return sum(logprob for logprob in self.logprobs if logprob is not None)


@dataclass(frozen=True)
class _Row:
    """A row to score.

    tokens: inputs. places, targets: position and id of each scored token. source: of an encoder-decoder. prefix: length
    of that of a prefix LM.
    """

    tokens: list[int]
    places: list[int]
    targets: list[int]
    source: list[int] | None = None
    prefix: int | None = None


def score(loaded: Loaded, texts: Sequence[str], sources: Sequence[str] | None = None) -> list[Scored]:
    """Score each text, without an end token. sources: one for each text, for a model that generates targets.

    A bidirectional model masks each token on its own (Salazar et al. 2020).
    Raises UsageError for a text longer than the context, and for a model that predicts no tokens.
    """
    if isinstance(loaded.recipe.objective, Embedding) or loaded.model.reads == "words":
        raise UsageError("this model predicts no tokens of a text", fix="name a language model")
    loaded.refuse_unpredictive()
    if loaded.framing.answers != (sources is not None):
        needed = "scores targets of sources: give sources" if sources is None else "has no sources: give texts alone"
        raise UsageError(f"this model {needed}")
    if sources is not None and len(sources) != len(texts):
        raise UsageError(f"there are {len(texts)} texts, but {len(sources)} sources", fix="give one for each")
    ids = [loaded.tokenizer.encode(text) for text in texts]
    made = [_rows(loaded, own, None if sources is None else sources[i]) for i, own in enumerate(ids)]
    flat = [row for rows in made for row in rows]
    found = iter(_logprobs(loaded, flat))
    results = []
    for text, own, rows in zip(texts, ids, made, strict=True):
        logprobs = [logprob for _ in rows for logprob in next(found).tolist()]
        before: list[float | None] = [None] * (len(own) - len(logprobs))
        results.append(Scored(text, tuple(map(loaded.tokenizer.piece, own)), (*before, *logprobs)))
    return results


def _rows(loaded: Loaded, ids: list[int], source: str | None) -> list[_Row]:
    """The rows that score a text: one, or one for each token of a bidirectional model."""
    framing, tokenizer = loaded.framing, loaded.tokenizer
    if loaded.model.reads == "both":
        before, after = list(framing.before), list(framing.after)
        whole = [*before, *ids, *after]
        _check(loaded, len(whole))
        rows = []
        for place, token in enumerate(ids, len(before)):
            masked = [*whole[:place], tokenizer.mask_id, *whole[place + 1 :]]
            rows.append(_Row(masked, [place], [token]))
        return rows
    read: list[int] = []
    if source is not None:
        prompt = framing.prompt(source)
        opening, read = list(prompt.tokens), list(prompt.source or ())
    else:
        opening = list(framing.opening) or [tokenizer.bos_id] * (tokenizer.published is not None)
    in_row = loaded.model.reads == "source" and framing.shares_row
    shared = [*read, *opening] if in_row else opening
    whole = [*shared, *ids]
    _check(loaded, len(whole) - 1)
    first = max(1, len(shared))
    places = list(range(first - 1, len(whole) - 1))
    if not places:
        return []
    return [
        _Row(whole[:-1], places, whole[first:], read if read and not in_row else None, len(read) if in_row else None)
    ]


def _check(loaded: Loaded, length: int) -> None:
    longest = loaded.model.longest or loaded.model.context
    if longest is not None and length > longest:
        raise UsageError(f"a text has {length} tokens, but the model reads {longest}", fix="divide it")


def _logprobs(loaded: Loaded, rows: Sequence[_Row]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """The log-probabilities of the scored tokens of each row."""
    pad = loaded.tokenizer.pad_id

    def read(chosen: list[int]) -> tuple[None, list[np.ndarray[tuple[int], np.dtype[np.float32]]]]:
        group = [rows[i] for i in chosen]
        tokens_BT, keep_BT = padded([np.array(row.tokens, dtype=np.int64) for row in group], pad)
        batch = Batch(tokens_BT, keep_BT=keep_BT)
        if group[0].source is not None:
            source_BS, keep_BS = padded([np.array(row.source, dtype=np.int64) for row in group], pad)
            batch = Batch(tokens_BT, keep_BT=keep_BT, source_BS=source_BS, source_keep_BS=keep_BS)
        elif group[0].prefix is not None:
            batch = Batch(tokens_BT, keep_BT=keep_BT, prefix_B=torch.tensor([row.prefix for row in group]))
        hidden_BTD = loaded.model(batch.to(loaded.device)).hidden_BTD
        found = []
        for row, hidden_TD in zip(group, hidden_BTD, strict=True):
            logits_NV = loaded.model.logits(hidden_TD[row.places]).float()
            targets_N1 = torch.tensor(row.targets, device=loaded.device)[:, None]
            found.append(logits_NV.log_softmax(-1).gather(1, targets_N1)[:, 0].cpu().numpy())
        return None, found

    lengths = [(len(row.tokens),) if row.source is None else (len(row.tokens), len(row.source)) for row in rows]
    return evaluate(loaded.model, lengths, read, loaded.compute, World(), dtype=np.float32).found
