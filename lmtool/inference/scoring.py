"""Log-probabilities of given texts, token by token, and of answers to prompts.

Shapes: B rows, T positions, V vocabulary, P prompts, A answers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lmtool.batch import Batch, padded
from lmtool.data.survey import Report
from lmtool.decoding.request import n_shared
from lmtool.errors import UsageError
from lmtool.inference.evaluation import Items, evaluate, not_reported
from lmtool.inference.load import Loaded
from lmtool.recipe.spec.objective import Classification, Embedding, Prefix, SpanCorruption

Logprobs = np.ndarray[tuple[int], np.dtype[np.float32]]


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

    tokens: inputs.
    positions, targets: of each scored token the position that predicts it, and its id.
    source: of an encoder-decoder.
    prefix: length of that of a prefix LM.
    """

    tokens: list[int]
    positions: list[int]
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
    loaded.check_likelihood()
    if loaded.prompt_format.answers != (sources is not None):
        needed = "scores targets of sources: give sources" if sources is None else "has no sources: give texts alone"
        raise UsageError(f"this model {needed}")
    if sources is not None and len(sources) != len(texts):
        raise UsageError(f"there are {len(texts)} texts, but {len(sources)} sources", fix="give one for each")
    ids = [loaded.tokenizer.encode(text) for text in texts]
    rows = [_rows(loaded, *pair) for pair in zip(ids, [None] * len(ids) if sources is None else sources, strict=True)]
    results = []
    for text, tokens, scored in zip(texts, ids, _logprobs(loaded, rows), strict=True):
        logprobs = [logprob for part in scored for logprob in part.tolist()]
        before: list[float | None] = [None] * (len(tokens) - len(logprobs))
        results.append(Scored(text, tuple(map(loaded.tokenizer.piece, tokens)), (*before, *logprobs)))
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
    origins: Sequence[str],
    report: Report = not_reported,
) -> ScoredAnswers:
    """log p(answer | prompt) of each answer to each prompt, without an end token, by all processes together.

    The answer follows the prompt after the whitespace at its end, or after a space where there is none. It is the
    target where a model has sources; where it was trained on removed spans, the span removed at the end of the prompt.
    Of tokens that are partly of the prompt and partly of an answer all are scored.

    origins: where each prompt is from, for messages. Raises UsageError for a prompt that, with its longest answer, is
    longer than the context, and for a model that does not generate text.
    """
    if isinstance(loaded.recipe.objective, Classification | Embedding) or loaded.model.reads in ("words", "both"):
        what = f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind} answers no prompts"
        raise UsageError(what, where=str(loaded.run_path), fix="name a language model, such as a decoder")
    rows = [_answer_rows(loaded, prompt, answers) for prompt in prompts]
    longest = loaded.model.longest or loaded.model.context
    if longest is not None:
        lengths = [(max(row.length for row in group), origin) for group, origin in zip(rows, origins, strict=True)]
        if long := [(length, origin) for length, origin in lengths if length > longest]:
            length, origin = long[0]
            what = f"{len(long):,} of {len(prompts):,} prompts do not fit the context of {longest} tokens"
            fix = "shorten the prompt or the texts, take fewer --shots, or a model with a longer context"
            raise UsageError(what, where=f"{origin}: {length:,} tokens with an answer", fix=fix)
    total_PA = np.zeros((len(prompts), len(answers)))
    tokens_PA = np.zeros((len(prompts), len(answers)), dtype=np.int64)
    for p, logprobs in enumerate(_logprobs(loaded, rows, report)):
        parts = logprobs[0][:, None] if len(logprobs) < len(answers) else logprobs
        for a, part in enumerate(parts):
            total_PA[p, a], tokens_PA[p, a] = part.sum(dtype=np.float64), len(part)
    return ScoredAnswers(total_PA, tokens_PA)


def _answer_rows(loaded: Loaded, prompt: str, answers: Sequence[str]) -> list[_Row]:
    """The rows that score answers: one for each, or one for all if each has one token."""
    prompt_format, tokenizer, objective = loaded.prompt_format, loaded.tokenizer, loaded.recipe.objective
    stem = prompt.rstrip()
    gap = prompt[len(stem) :] or " "
    source: list[int] | None = None
    if prompt_format.answers:
        continues = isinstance(objective, Prefix | SpanCorruption)
        opened = prompt_format.prompt(stem if continues else prompt)
        removed = list(tokenizer.sentinel_ids[:1]) if isinstance(objective, SpanCorruption) else []
        begun = [*opened.tokens, *removed]
        source = None if opened.source is None else [*opened.source, *removed]
        wholes = [[*begun, *tokenizer.encode(gap * continues + answer)] for answer in answers]
        shared = len(begun)
    else:
        wholes = [list(prompt_format.prompt(stem + gap + answer).text) for answer in answers]
        shared = n_shared(prompt_format.prompt(stem).text, *wholes)
        if not shared:
            wholes, shared = [[tokenizer.bos_id, *whole] for whole in wholes], 1
    rows = [_row(loaded, source, whole, shared) for whole in wholes]
    if all(len(row.targets) == 1 for row in rows):
        targets = [row.targets[0] for row in rows]
        return [replace(rows[0], positions=rows[0].positions * len(rows), targets=targets)]
    return rows


def _rows(loaded: Loaded, ids: list[int], source: str | None) -> list[_Row]:
    """The rows that score a text: one, or one for each token of a bidirectional model."""
    prompt_format, tokenizer = loaded.prompt_format, loaded.tokenizer
    if loaded.model.reads == "both":
        before, after = list(prompt_format.before), list(prompt_format.after)
        whole = [*before, *ids, *after]
        _check(loaded, len(whole))
        return [
            _Row([*whole[:position], tokenizer.mask_id, *whole[position + 1 :]], [position], [token])
            for position, token in enumerate(ids, len(before))
        ]
    read: list[int] = []
    if source is not None:
        prompt = prompt_format.prompt(source)
        opening, read = list(prompt.tokens), list(prompt.source or ())
    else:
        opening = list(prompt_format.opening) or [tokenizer.bos_id] * (tokenizer.published is not None)
    row = _row(loaded, read if read or _in_row(loaded) else None, [*opening, *ids], len(opening))
    _check(loaded, len(row.tokens))
    return [row] if row.positions else []


def _row(loaded: Loaded, source: list[int] | None, whole: list[int], first: int) -> _Row:
    """The row that scores a text from its token `first` on, the second one at the earliest."""
    prefix = None
    if _in_row(loaded):
        prefix = first - 1 if source is None else len(source)
        whole, first, source = [*(source or ()), *whole], first + len(source or ()), None
    first = max(1, first)
    return _Row(whole[:-1], list(range(first - 1, len(whole) - 1)), whole[first:], source, prefix)


def _in_row(loaded: Loaded) -> bool:
    """Whether a source is the prefix of the row."""
    return loaded.prompt_format.shares_row and loaded.model.reads == "source"


def _check(loaded: Loaded, length: int) -> None:
    longest = loaded.model.longest or loaded.model.context
    if longest is not None and length > longest:
        raise UsageError(f"a text has {length} tokens, but the model reads {longest}", fix="divide it")


def _logprobs(loaded: Loaded, groups: Sequence[Sequence[_Row]], report: Report = not_reported) -> list[list[Logprobs]]:
    """The log-probabilities of the scored tokens of each row, in the same groups."""
    rows, pad = [row for group in groups for row in group], loaded.tokenizer.pad_id

    def read(chosen: list[int]) -> tuple[None, list[Logprobs]]:
        group = [rows[i] for i in chosen]
        tokens_BT, keep_BT = padded([np.array(row.tokens, dtype=np.int64) for row in group], pad)
        batch = Batch(tokens_BT, keep_BT=keep_BT)
        if group[0].source is not None:
            source_BS, keep_BS = padded([np.array(row.source, dtype=np.int64) for row in group], pad)
            batch = replace(batch, source_BS=source_BS, source_keep_BS=keep_BS)
        elif group[0].prefix is not None:
            batch = replace(batch, prefix_B=torch.tensor([row.prefix for row in group]))
        logprobs = []
        for row, hidden_TD in zip(group, loaded.model(batch.to(loaded.device)).hidden_BTD, strict=True):
            logits_NV = loaded.model.logits(hidden_TD[row.positions]).float()
            targets_N1 = torch.tensor(row.targets, device=loaded.device)[:, None]
            logprobs.append(logits_NV.log_softmax(-1).gather(1, targets_N1)[:, 0].cpu().numpy())
        return None, logprobs

    lengths = [(len(row.tokens),) if row.source is None else (len(row.tokens), len(row.source)) for row in rows]
    arrays = iter(evaluate(loaded.model, Items(lengths, read, dtype=np.float32), loaded.compute, report).arrays)
    return [[next(arrays) for _ in group] for group in groups]
