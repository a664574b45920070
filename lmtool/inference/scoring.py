"""Log-probabilities of given texts, token by token, and of continuations of contexts.

Shapes: B rows, T positions, S positions after a common prefix, N scored positions, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import numpy as np
import torch

from lmtool.batch import Batch, n_shared, padded
from lmtool.data.survey import Progress
from lmtool.errors import UsageError
from lmtool.inference.evaluation import BATCH_TOKENS, Items, RowLengths, evaluate, not_reported
from lmtool.inference.load import LoadedModel
from lmtool.recipe.spec.objective import Classification, Embedding, Prefix, SpanCorruption

LOGITS = 1 << 25
"""Logits in memory."""

CPU_TOKENS = 1024
"""Positions computed at once on a CPU."""

Logprobs = np.ndarray[tuple[int], np.dtype[np.float32]]

ScoredTokens = np.ndarray[tuple[int, int], np.dtype[np.float32]]
"""Of N tokens their log-probabilities, and whether each is the most probable one, as 0 or 1: (2, N)."""

ReadScores = Callable[[list[int]], tuple[None, list[ScoredTokens]]]
"""The scores of some items, by their numbers."""

Continued = tuple[str, str]
"""A context, and the continuation that follows the whitespace at its end, or a space where it has none."""


@dataclass(frozen=True)
class Scored:
    """The log-probability of a text under a model.

    tokens: see `Tokenizer.display_token`. logprobs: the natural log-probability of each, given all before
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

    def last(self, n: int) -> "_Row":
        """The last n positions, all scored ones among them, and as many of its source."""
        cut = max(0, len(self.tokens) - n)
        prefix = None if self.prefix is None else max(0, self.prefix - cut)
        positions, source = [at - cut for at in self.positions], None if self.source is None else self.source[-n:]
        return replace(self, tokens=self.tokens[cut:], positions=positions, source=source, prefix=prefix)


def score(loaded: LoadedModel, texts: Sequence[str], sources: Sequence[str] | None = None) -> list[Scored]:
    """Score each text, without an end token. sources: one for each text, for a model that generates targets.

    A bidirectional model masks each token on its own (Salazar et al. 2020).
    Raises UsageError for a text longer than the context, and for a model that predicts no tokens.
    """
    if isinstance(loaded.recipe.objective, Embedding) or loaded.model.reads == "words":
        raise UsageError("this model does not predict tokens", fix="name a language model")
    loaded.check_likelihood()
    if loaded.prompt_format.answers != (sources is not None):
        needed = "scores targets of sources: give sources" if sources is None else "has no sources: give texts alone"
        raise UsageError(f"this model {needed}")
    if sources is not None and len(sources) != len(texts):
        raise UsageError(f"texts and sources are not as many: {len(texts)} and {len(sources)}", fix="give one for each")
    ids = [loaded.tokenizer.encode(text) for text in texts]
    rows = [_rows(loaded, *pair) for pair in zip(ids, [None] * len(ids) if sources is None else sources, strict=True)]
    results = []
    read = iter(_read_rows(loaded, [row for of_text in rows for row in of_text]))
    for text, tokens, of_text in zip(texts, ids, rows, strict=True):
        logprobs = [logprob for _ in of_text for logprob in next(read)[0].tolist()]
        before: list[float | None] = [None] * (len(tokens) - len(logprobs))
        results.append(Scored(text, tuple(map(loaded.tokenizer.display_token, tokens)), (*before, *logprobs)))
    return results


@dataclass(frozen=True)
class ScoredContinuation:
    """The log-probabilities of the tokens of a continuation, in nats.

    logprobs: of the last tokens of the text, at least `n_tokens` and `n_apart`.
    is_best: which of them are the most probable ones at their places.
    n_tokens: of the continuation; a token that is partly of the context is one of them.
    n_apart: tokens by which the texts of a group differ: those after their common prefix, or, where contexts differ,
        those of their common end.
    is_cut: the beginning of the context was left out, for it does not fit.
    """

    logprobs: Logprobs
    is_best: Logprobs
    n_tokens: int
    n_apart: int
    is_cut: bool

    @property
    def total(self) -> float:
        """log p(continuation | context)."""
        return float(self.logprobs[len(self.logprobs) - self.n_tokens :].sum(dtype=np.float64))

    @property
    def mean(self) -> float:
        """The mean over the tokens by which it differs, as in CORE (Li et al. 2024)."""
        return float(self.logprobs[-self.n_apart :].mean(dtype=np.float64))

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding writes it."""
        return bool(self.is_best[len(self.is_best) - self.n_tokens :].all())


def score_continuations(
    loaded: LoadedModel,
    groups: Sequence[Sequence[Continued]],
    origins: Sequence[str],
    *,
    begins: bool = False,
    cuts: bool = False,
    report: Progress = not_reported,
) -> list[list[ScoredContinuation]]:
    """log p(continuation | context), without an end token, by all processes together.

    groups: continuations that are compared, of one context, or of several; what they begin with is computed once. One
    is the target where a model has sources; where it was trained on removed spans, the span removed at the end of the
    context. A bidirectional model masks each of its tokens on its own (Salazar et al. 2020). Of tokens that are partly
    of the context and partly of a continuation all are scored.
    origins: where each group is from, for messages.
    begins: put the token that begins a text before each, also where a published tokenizer puts none.
    cuts: a context that does not fit loses its beginning.
    Raises UsageError for what does not fit, or not even without its context; and for a model that predicts no tokens.
    """
    check_continues(loaded)
    longest, whole = _longest(loaded), [_continuations(loaded, group, begins) for group in groups]
    if longest:
        # what is cut at most begins with the position that predicts the first scored token
        needed = [
            max(len(row.tokens) - row.positions[0] if cuts else row.length for one in group for row in one.rows)
            for group in whole
        ]
        if long := [pair for pair in zip(needed, origins, strict=True) if pair[0] > longest]:
            kind, with_what, fix = "answers", "alone", "shorten the answer, or take a model with a longer context"
            if not cuts:
                kind, with_what = "prompts", "with an answer"
                fix = "shorten the prompt or the texts, take fewer --shots, or a model with a longer context"
            what = f"{len(long):,} of {len(groups):,} {kind} do not fit the context of {longest} tokens"
            raise UsageError(what, where=f"{long[0][1]}: {long[0][0]:,} tokens {with_what}", fix=fix)
    return _scored(loaded, [[one.fitted(longest) for one in group] for group in whole], report)


def check_continues(loaded: LoadedModel) -> None:
    """Raise UsageError for a model that predicts no tokens of a text."""
    if isinstance(loaded.recipe.objective, Classification | Embedding) or loaded.model.reads == "words":
        what = (
            f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind} predicts no tokens of a text"
        )
        raise UsageError(what, where=str(loaded.run_path), fix="name a language model, such as a decoder")
    loaded.check_likelihood()


def score_whole(loaded: LoadedModel, texts: Sequence[str], report: Progress = not_reported) -> list[float]:
    """log p of each text of any length, without an end token, by all processes together; 0 for an empty one.

    Windows of the context follow each other, and the last one ends with the text; the first token is given the one that
    begins a text. A bidirectional model masks each token in windows that do not overlap.
    Raises UsageError for a model that predicts no tokens, or only those of a target.
    """
    check_continues(loaded)
    if loaded.prompt_format.answers:
        raise UsageError("this model scores targets of sources, not texts", where=str(loaded.run_path))
    rows = [_windows(loaded, loaded.tokenizer.encode(text)) for text in texts]
    scores = iter(_read_rows(loaded, [row for of_text in rows for row in of_text], report))
    return [sum(float(next(scores)[0].sum(dtype=np.float64)) for _ in of_text) for of_text in rows]


def _windows(loaded: LoadedModel, ids: list[int]) -> list[_Row]:
    """The rows that score a text of any length."""
    prompt_format, n = loaded.prompt_format, _longest(loaded) or len(ids) + 2
    rows = []
    if loaded.model.reads == "both":
        before, after = list(prompt_format.before), list(prompt_format.after)
        n = max(1, n - len(before) - len(after))
        for start in range(0, len(ids), n):
            part = ids[start : start + n]
            scored = range(len(before), len(before) + len(part))
            rows += _masked_rows(loaded, [*before, *part, *after], scored)
        return rows
    whole = [*(prompt_format.opening[-1:] or [_first_id(loaded)]), *ids]
    for first in range(0, len(ids), n):
        stop = min(first + n, len(ids))
        start, prefix = max(0, stop - n), 0 if _in_row(loaded) else None
        positions = list(range(first - start, stop - start))
        rows.append(_Row(whole[start:stop], positions, whole[first + 1 : stop + 1], prefix=prefix))
    return rows


@dataclass(frozen=True)
class _Continuation:
    """The rows that score a continuation: one, or one for each token of a bidirectional model."""

    rows: list[_Row]
    n_tokens: int
    n_apart: int
    is_cut: bool = False

    def fitted(self, longest: int | None) -> "_Continuation":
        """Without the beginning of rows that are longer."""
        if longest is None or max(row.length for row in self.rows) <= longest:
            return self
        return replace(self, rows=[row.last(longest) for row in self.rows], is_cut=True)


def _continuations(loaded: LoadedModel, group: Sequence[Continued], begins: bool = False) -> list[_Continuation]:
    """How the continuations of a group are scored."""
    texts = [_whole(loaded, *pair, begins) for pair in group]
    wholes, same_context = [whole for _, whole, _ in texts], len({context for context, _ in group}) == 1
    shared = n_shared(*wholes) if same_context else n_shared(*(whole[::-1] for whole in wholes))
    earliest = min(first for _, _, first in texts)
    continuations = []
    for source, whole, first in texts:
        first = max(1, earliest if same_context else first)
        n_tokens, n_apart = len(whole) - first, len(whole) - shared if same_context else shared
        n_apart = min(max(1, n_apart), len(whole) - 1)
        if loaded.model.reads == "both":
            rows = _masked_rows(
                loaded, [*whole, *loaded.prompt_format.after], range(len(whole) - max(n_tokens, n_apart), len(whole))
            )
        else:
            n_apart = min(n_apart, n_tokens) if _in_row(loaded) else n_apart
            rows = [_row(loaded, source, whole, first, max(n_tokens, n_apart))]
        continuations.append(_Continuation(rows, n_tokens, n_apart))
    return continuations


def _whole(
    loaded: LoadedModel, context: str, continuation: str, begins: bool
) -> tuple[list[int] | None, list[int], int]:
    """The source, if any; the ids of a context and its continuation, or of a target; and where the latter begins."""
    prompt_format, tokenizer, objective = loaded.prompt_format, loaded.tokenizer, loaded.recipe.objective
    stem = context.rstrip()
    gap = context[len(stem) :] or " "
    if loaded.model.reads == "both":
        before = list(prompt_format.before) or [tokenizer.bos_id]
        whole = [*before, *tokenizer.encode(stem + gap + continuation)]
        return None, whole, n_shared([*before, *tokenizer.encode(stem)], whole)
    if prompt_format.answers:
        continues = isinstance(objective, Prefix | SpanCorruption)
        opened = prompt_format.make_prompt(stem if continues else context)
        removed = list(tokenizer.sentinel_ids[:1]) if isinstance(objective, SpanCorruption) else []
        begun = [*opened.tokens, *removed]
        source = None if opened.source is None else [*opened.source, *removed]
        return source, [*begun, *tokenizer.encode(gap * continues + continuation)], len(begun)
    whole = list(prompt_format.make_prompt(stem + gap + continuation).text)
    first = n_shared(prompt_format.make_prompt(stem).text, whole)
    opening = [_first_id(loaded)] * (first == 0 or (begins and not prompt_format.opening))
    return None, [*opening, *whole], first + len(opening)


def _first_id(loaded: LoadedModel) -> int:
    """The token before a text that has none: the published bos_token, as other programs put it, if there is one."""
    tokenizer = loaded.tokenizer
    return tokenizer.bos_id if tokenizer.roles.named_bos is None else tokenizer.roles.named_bos


def _scored(
    loaded: LoadedModel, groups: Sequence[Sequence[_Continuation]], report: Progress
) -> list[list[ScoredContinuation]]:
    """The continuations of each group; those with a common prefix apart from those without."""
    can_share = loaded.sharding is None and loaded.model.reads != "both"
    shares = [can_share and _n_common([one.rows[0] for one in group]) > 0 for group in groups]
    common = [[one.rows[0] for one in group] for group, shared in zip(groups, shares, strict=True) if shared]
    alone = [
        row for group, shared in zip(groups, shares, strict=True) if not shared for one in group for row in one.rows
    ]
    of_groups, of_rows = iter(_read_common(loaded, common, report)), iter(_read_rows(loaded, alone, report))
    scored = []
    for group, shared in zip(groups, shares, strict=True):
        if shared:
            ends = np.cumsum([len(one.rows[0].targets) for one in group])
            parts = np.split(next(of_groups), ends[:-1], axis=1)
        else:
            parts = [np.concatenate([next(of_rows) for _ in one.rows], 1) for one in group]
        pairs = zip(group, parts, strict=True)
        scored.append(
            [ScoredContinuation(part[0], part[1], one.n_tokens, one.n_apart, one.is_cut) for one, part in pairs]
        )
    return scored


def _rows(loaded: LoadedModel, ids: list[int], source: str | None) -> list[_Row]:
    """The rows that score a text: one, or one for each token of a bidirectional model."""
    prompt_format, tokenizer = loaded.prompt_format, loaded.tokenizer
    if loaded.model.reads == "both":
        before, after = list(prompt_format.before), list(prompt_format.after)
        whole = [*before, *ids, *after]
        _check(loaded, len(whole))
        return _masked_rows(loaded, whole, range(len(before), len(before) + len(ids)))
    read: list[int] = []
    if source is not None:
        prompt = prompt_format.make_prompt(source)
        opening, read = list(prompt.tokens), list(prompt.source or ())
    else:
        opening = list(prompt_format.opening) or [tokenizer.bos_id] * (tokenizer.published is not None)
    row = _row(loaded, read if read or _in_row(loaded) else None, [*opening, *ids], len(opening))
    _check(loaded, len(row.tokens))
    return [row] if row.positions else []


def _masked_rows(loaded: LoadedModel, whole: list[int], positions: Iterable[int]) -> list[_Row]:
    """Of each of these positions the row in which its token is masked."""
    mask_id = loaded.tokenizer.mask_id
    return [_Row([*whole[:at], mask_id, *whole[at + 1 :]], [at], [whole[at]]) for at in positions]


def _row(loaded: LoadedModel, source: list[int] | None, whole: list[int], first: int, n_scored: int = 0) -> _Row:
    """The row that scores a text from its token `first` on, the second one at the earliest; or so many at its end."""
    prefix = None
    if _in_row(loaded):
        prefix = first - 1 if source is None else len(source)
        whole, first, source = [*(source or ()), *whole], first + len(source or ()), None
    first = max(1, len(whole) - n_scored if n_scored else first)
    return _Row(whole[:-1], list(range(first - 1, len(whole) - 1)), whole[first:], source, prefix)


def _in_row(loaded: LoadedModel) -> bool:
    """Whether a source is the prefix of the row."""
    return loaded.prompt_format.shares_row and loaded.model.reads == "source"


def _longest(loaded: LoadedModel) -> int | None:
    return loaded.model.longest or loaded.model.context


def _check(loaded: LoadedModel, length: int) -> None:
    longest = _longest(loaded)
    if longest is not None and length > longest:
        raise UsageError(f"a text has {length} tokens, but the model reads {longest}", fix="divide it")


def _read_rows(loaded: LoadedModel, rows: Sequence[_Row], report: Progress = not_reported) -> list[ScoredTokens]:
    """The scores of the tokens of each row."""
    pad = loaded.tokenizer.pad_id

    def read(chosen: list[int]) -> tuple[None, list[ScoredTokens]]:
        group = [rows[i] for i in chosen]
        tokens_BT, keep_BT = padded([np.array(row.tokens, dtype=np.int64) for row in group], pad)
        batch = _with_sources(Batch(tokens_BT, keep_BT=keep_BT), group, pad)
        if group[0].prefix is not None:
            batch = replace(batch, prefix_B=torch.tensor([row.prefix for row in group]))
        states = zip(group, loaded.model(batch.to(loaded.device)).hidden_BTD, strict=True)
        scored = [hidden_TD[row.positions] for row, hidden_TD in states]
        return None, _token_scores(loaded, scored, [row.targets for row in group])

    lengths = [(len(row.tokens),) if row.source is None else (len(row.tokens), len(row.source)) for row in rows]
    return _evaluated(loaded, lengths, read, report)


def _evaluated(
    loaded: LoadedModel, lengths: Sequence[RowLengths], read: ReadScores, report: Progress
) -> list[ScoredTokens]:
    """What is read of each item; on a CPU in small batches, which have less padding and are as fast."""
    tokens = CPU_TOKENS if loaded.device.type == "cpu" else BATCH_TOKENS
    items = Items(lengths, read, tokens=tokens, dtype=np.float32)
    return evaluate(loaded.model, items, loaded.compute, report).arrays


def _n_common(rows: Sequence[_Row]) -> int:
    """Tokens that all rows begin with, as far as they are computed once."""
    alone = len(rows) == 1 or rows[0].prefix is not None or any(row.source != rows[0].source for row in rows)
    return 0 if alone else n_shared(*(row.tokens for row in rows))


def _read_common(loaded: LoadedModel, groups: Sequence[Sequence[_Row]], report: Progress) -> list[ScoredTokens]:
    """The scores of the tokens of all rows of each group, whose common prefix is read once."""
    n_common = [_n_common(rows) for rows in groups]
    n_apart = [max(len(row.tokens) for row in rows) - n for rows, n in zip(groups, n_common, strict=True)]
    lengths = [
        (n + len(rows[0].source or ()), len(rows) * m) for rows, n, m in zip(groups, n_common, n_apart, strict=True)
    ]

    def read(chosen: list[int]) -> tuple[None, list[ScoredTokens]]:
        return None, _branched(loaded, [groups[i] for i in chosen], [n_common[i] for i in chosen])

    return _evaluated(loaded, lengths, read, report)


def _branched(loaded: LoadedModel, groups: Sequence[Sequence[_Row]], n_common: Sequence[int]) -> list[ScoredTokens]:
    """The scores of rows of groups that have n tokens in common, of which the decoding state is computed once."""
    model, pad = loaded.model, loaded.tokenizer.pad_id
    common = [np.array(rows[0].tokens[:n], dtype=np.int64) for rows, n in zip(groups, n_common, strict=True)]
    batch = _with_sources(Batch(padded(common, pad)[0]), [rows[0] for rows in groups], pad).to(loaded.device)
    state = model.start(batch)
    if not state.goes_back and len(set(n_common)) > 1:
        # a recurrent state after padding is another one
        runs = [list(run) for _, run in groupby(zip(groups, n_common, strict=True), itemgetter(1))]
        return [scores for run in runs for scores in _branched(loaded, *map(list, zip(*run, strict=True)))]
    hidden_BTD, state = model.advance(batch.tokens_BT, state)
    state = state.each_upto(n_common)
    rest = [np.array(row.tokens[n:], dtype=np.int64) for rows, n in zip(groups, n_common, strict=True) for row in rows]
    apart = iter(hidden_BTD.new_zeros(len(rest), 0, hidden_BTD.shape[-1]))
    if any(map(len, rest)):
        state = state.pick([b for b, rows in enumerate(groups) for _ in rows])
        apart = iter(model.advance(padded(rest, pad)[0].to(loaded.device), state)[0])
    states = [
        torch.cat([torch.cat((hidden_TD[:n], next(apart)))[row.positions] for row in rows])
        for rows, n, hidden_TD in zip(groups, n_common, hidden_BTD, strict=True)
    ]
    return _token_scores(loaded, states, [[token for row in rows for token in row.targets] for rows in groups])


def _with_sources(batch: Batch, rows: Sequence[_Row], pad: int) -> Batch:
    """A batch with the sources of its rows, if they have any."""
    if rows[0].source is None:
        return batch
    source_BS, keep_BS = padded([np.array(row.source, dtype=np.int64) for row in rows], pad)
    return replace(batch, source_BS=source_BS, source_keep_BS=keep_BS)


def _token_scores(
    loaded: LoadedModel, states: Sequence[torch.Tensor], targets: Sequence[Sequence[int]]
) -> list[ScoredTokens]:
    """Of each token, predicted from a state (D), its log-probability, and whether none is more probable.

    Tokens of many rows are predicted at once, for a row has few of them; never more than fit in `LOGITS`.
    """
    n_at_once = max(1, LOGITS // loaded.model.vocab_size)
    ids_N1 = torch.tensor([token for of_row in targets for token in of_row], device=loaded.device)[:, None]
    scored = []
    for hidden_ND, some_N1 in zip(
        torch.split(torch.cat([*states]), n_at_once), torch.split(ids_N1, n_at_once), strict=True
    ):
        logprob_NV = loaded.model.logits(hidden_ND).float().log_softmax(-1)
        logprob_N = logprob_NV.gather(1, some_N1)[:, 0]
        scored.append(torch.stack((logprob_N, (logprob_N >= logprob_NV.amax(-1)).float())))
    return [part.numpy() for part in torch.split(torch.cat(scored, 1).cpu(), [*map(len, targets)], 1)]
