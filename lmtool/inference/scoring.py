"""Log-probabilities of given texts, token by token, and of answers to prompts.

Shapes: B rows, T positions, V vocabulary, P prompts, A answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import torch

from lmtool.batch import Batch, padded
from lmtool.compute.processes import World
from lmtool.errors import UsageError
from lmtool.inference.evaluation import evaluate, not_reported
from lmtool.inference.load import Loaded
from lmtool.recipe.spec.objective import Classification, Embedding, Prefix, SpanCorruption
from lmtool.text.survey import Report


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

    @property
    def length(self) -> int:
        """Positions in the context: of the row, or of a source beside it that is longer."""
        return max(len(self.tokens), len(self.source or ()))


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


@dataclass(frozen=True)
class ScoredAnswers:
    """Log-probabilities of the same answers to each prompt, in nats, and the number of tokens that they are of."""

    total_PA: np.ndarray[tuple[int, int], np.dtype[np.float64]]
    tokens_PA: np.ndarray[tuple[int, int], np.dtype[np.int64]]


def score_answers(
    loaded: Loaded,
    prompts: Sequence[str],
    answers: Sequence[str],
    places: Sequence[str],
    report: Report = not_reported,
    world: World = World(),  # noqa: B008 - it is frozen
) -> ScoredAnswers:
    """log p(answer | prompt) of each answer to each prompt, without an end token, by all processes together.

    The answer follows the prompt after the whitespace at its end, or after a space where there is none. It is the
    target where a model has sources; where it was trained on removed spans, the span removed at the end of the prompt.
    Of tokens that are partly of the prompt and partly of an answer all are scored.

    places: where each prompt is from, for messages. Raises UsageError for a prompt that, with its longest answer, is
    longer than the context, and for a model that does not generate text.
    """
    if isinstance(loaded.recipe.objective, Classification | Embedding) or loaded.model.reads in ("words", "both"):
        raise UsageError(
            f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind} answers no prompts",
            where=str(loaded.run_path),
            fix="name a language model, such as a decoder",
        )
    made = [_answer_rows(loaded, prompt, answers) for prompt in prompts]
    flat = [row for rows in made for row in rows]
    longest = loaded.model.longest or loaded.model.context
    if longest is not None:
        long = [(max(row.length for row in rows), place) for rows, place in zip(made, places, strict=True)]
        long = [(length, place) for length, place in long if length > longest]
        if long:
            length, place = long[0]
            raise UsageError(
                f"{len(long):,} of {len(prompts):,} prompts do not fit the context of {longest} tokens",
                where=f"{place}: {length:,} tokens with an answer",
                fix="shorten the prompt or the texts, take fewer --shots, or a model with a longer context",
            )
    found = iter(_logprobs(loaded, flat, report, world))
    total_PA = np.zeros((len(prompts), len(answers)))
    tokens_PA = np.zeros((len(prompts), len(answers)), dtype=np.int64)
    for p, rows in enumerate(made):
        logprobs = [next(found) for _ in rows]
        parts = logprobs[0][:, None] if len(rows) < len(answers) else logprobs
        for a, part in enumerate(parts):
            total_PA[p, a], tokens_PA[p, a] = part.sum(dtype=np.float64), len(part)
    return ScoredAnswers(total_PA, tokens_PA)


def _answer_rows(loaded: Loaded, prompt: str, answers: Sequence[str]) -> list[_Row]:
    """The rows that score answers: one for each, or one for all if each has one token."""
    framing, tokenizer, objective = loaded.framing, loaded.tokenizer, loaded.recipe.objective
    stem = prompt.rstrip()
    gap = prompt[len(stem) :] or " "
    source: list[int] | None = None
    if framing.answers:
        continues = isinstance(objective, Prefix | SpanCorruption)
        asked = framing.prompt(stem if continues else prompt)
        removed = list(tokenizer.sentinel_ids[:1]) if isinstance(objective, SpanCorruption) else []
        begun = [*asked.tokens, *removed]
        source = None if asked.source is None else [*asked.source, *removed]
        wholes = [[*begun, *tokenizer.encode(gap * continues + answer)] for answer in answers]
        shared = len(begun)
    else:
        wholes = [list(framing.prompt(stem + gap + answer).text) for answer in answers]
        columns = zip(framing.prompt(stem).text, *wholes, strict=False)
        shared = len(list(takewhile(lambda ids: len(set(ids)) == 1, columns)))
        if not shared:
            wholes, shared = [[tokenizer.bos_id, *whole] for whole in wholes], 1
    prefix = None
    if framing.shares_row and loaded.model.reads == "source":
        prefix = shared - 1 if source is None else len(source)
        wholes = [[*(source or ()), *whole] for whole in wholes]
        shared, source = shared + len(source or ()), None
    if all(len(whole) == shared + 1 for whole in wholes):
        targets = [whole[-1] for whole in wholes]
        return [_Row(wholes[0][:-1], [shared - 1] * len(wholes), targets, source, prefix)]
    return [
        _Row(whole[:-1], list(range(shared - 1, len(whole) - 1)), whole[shared:], source, prefix) for whole in wholes
    ]


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


def _logprobs(
    loaded: Loaded,
    rows: Sequence[_Row],
    report: Report = not_reported,
    world: World = World(),  # noqa: B008 - it is frozen
) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
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
    return evaluate(loaded.model, lengths, read, loaded.compute, world, dtype=np.float32, report=report).found
