"""Scores texts and continuations of contexts: log-probabilities of their tokens.

Shapes: B rows, T positions, S positions after a common prefix, N scored positions, D model width, V vocabulary.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from lmtool.batch import Batch, common_prefix_length, pad_right_with_keep_mask
from lmtool.data.survey import Progress, no_progress
from lmtool.errors import UsageError
from lmtool.evaluation.loop import BATCH_TOKENS, RowLengths, evaluate_items
from lmtool.recipe.spec.objective import Classification, Embedding, Prefix, SpanCorruption
from lmtool.runs.load import LoadedModel

MAX_LOGITS = 1 << 25
"""Maximum logits in memory."""

CPU_BATCH_TOKENS = 1024
"""Maximum positions of a batch on a CPU."""

Logprobs = np.ndarray[tuple[int], np.dtype[np.float32]]

ScoredTokens = np.ndarray[tuple[int, int], np.dtype[np.float32]]
"""Scores of N tokens (2, N): their log-probabilities, and 1 for the most probable token of its position, else 0."""

ReadScores = Callable[[list[int]], tuple[None, list[ScoredTokens]]]
"""Computes the scores of some items by their indices."""

ContextPair = tuple[str, str]
"""A context, and the continuation, which follows it as it is: a space between them is part of one or the other."""


@dataclass(frozen=True)
class ScoredText:
    """The log-probability of a text under a model.

    tokens: see `Tokenizer.display_token`. logprobs: the natural log-probability of each, given all before it, and the
    source if there is one; given all others for a bidirectional model. None for a first token without context.
    """

    text: str
    tokens: tuple[str, ...]
    logprobs: tuple[float | None, ...]

    @property
    def total(self) -> float:
        """The log-probability of the text, in nats: the sum over its tokens."""
        return sum(logprob for logprob in self.logprobs if logprob is not None)


@dataclass(frozen=True)
class _ScoringRow:
    """A row of model input with scored tokens.

    tokens: inputs.
    positions, targets: of each scored token the position that predicts it, and its id.
    source: of an encoder-decoder.
    prefix: length of that of a prefix LM.
    is_cut: whether it has lost its beginning.
    """

    tokens: list[int]
    positions: list[int]
    targets: list[int]
    source: list[int] | None = None
    prefix: int | None = None
    is_cut: bool = False

    @property
    def length(self) -> int:
        """Length of the row, or of its source if that is longer."""
        return max(len(self.tokens), len(self.source or ()))

    def keep_last_positions(self, n_positions: int) -> "_ScoringRow":
        """Returns the row of the last positions, which include all scored ones, with as many of its source."""
        if self.length <= n_positions:
            return self
        cut = max(0, len(self.tokens) - n_positions)
        prefix = None if self.prefix is None else max(0, self.prefix - cut)
        source = self.source and self.source[-n_positions:]
        positions = [at - cut for at in self.positions]
        return _ScoringRow(self.tokens[cut:], positions, self.targets, source, prefix, is_cut=True)


def score_texts(loaded: LoadedModel, texts: Sequence[str], sources: Sequence[str] | None = None) -> list[ScoredText]:
    """Scores each text, without an end token. sources: one for each text, for a model that generates targets.

    A bidirectional model masks each token on its own (Salazar et al. 2020).
    Raises UsageError for a text longer than the context, and for a model that predicts no tokens.
    """
    check_predicts_tokens(loaded)
    if loaded.prompt_format.answers != (sources is not None):
        needed = "scores targets of sources: give sources" if sources is None else "has no sources: give texts alone"
        raise UsageError(f"this model {needed}")
    if sources is not None and len(sources) != len(texts):
        raise UsageError(f"texts and sources are not as many: {len(texts)} and {len(sources)}", fix="give one for each")
    ids = [loaded.tokenizer.encode(text) for text in texts]
    pairs = zip(ids, [None] * len(ids) if sources is None else sources, strict=True)
    rows = [_make_single_window_rows(loaded, *pair) for pair in pairs]
    results = []
    read = iter(_score_rows(loaded, [row for of_text in rows for row in of_text]))
    for text, tokens, of_text in zip(texts, ids, rows, strict=True):
        logprobs = [logprob for _ in of_text for logprob in next(read)[0].tolist()]
        before: list[float | None] = [None] * (len(tokens) - len(logprobs))
        results.append(ScoredText(text, tuple(map(loaded.tokenizer.display_token, tokens)), (*before, *logprobs)))
    return results


@dataclass(frozen=True)
class ScoredContinuation:
    """The log-probabilities of the tokens of a continuation, in nats.

    logprobs: of the tokens of the continuation; one that is partly of the context is among them.
    is_best: which of them are the most probable ones at their places.
    is_cut: the beginning of the context was left out, for it does not fit.
    """

    logprobs: Logprobs
    is_best: Logprobs
    is_cut: bool

    @property
    def total(self) -> float:
        """log p(continuation | context)."""
        return float(self.logprobs.sum(dtype=np.float64))

    @property
    def n_tokens(self) -> int:
        """Tokens of the continuation."""
        return len(self.logprobs)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding writes it."""
        return bool(self.is_best.all())


def score_continuations(
    loaded: LoadedModel,
    groups: Sequence[Sequence[ContextPair]],
    group_locations: Sequence[str],
    *,
    truncate_contexts: bool = False,
    report: Progress = no_progress,
) -> list[list[ScoredContinuation]]:
    """Computes log p(continuation | context), without an end token, by all processes together.

    A continuation is the target of a model with sources, and the span removed at the end of the context for a model
    that was trained on removed spans. A bidirectional model masks each token on its own (Salazar et al. 2020). Tokens
    that begin in the context and end in the continuation are scored.

    groups: continuations to compare, of one context or of several; their common prefix is computed once.
    group_locations: where each group is from, for errors.
    truncate_contexts: a context that does not fit loses its beginning.
    Raises UsageError for what does not fit, or not even without its context; and for a model that predicts no tokens.
    """
    check_predicts_tokens(loaded)
    longest, encoded = _max_length(loaded), [_encode_continuations(loaded, group) for group in groups]
    if longest:
        needed = []
        for group in encoded:
            rows_of_group = [row for rows in group for row in rows]
            # a cut row begins at the latest with the position that predicts the first scored token
            lengths = [len(row.tokens) - row.positions[0] if truncate_contexts else row.length for row in rows_of_group]
            needed.append(max(lengths, default=0))
        if long := [pair for pair in zip(needed, group_locations, strict=True) if pair[0] > longest]:
            kind, with_what, fix = "answers", "alone", "shorten the answer, or take a model with a longer context"
            if not truncate_contexts:
                kind, with_what = "prompts", "with an answer"
                fix = "shorten the prompt or the texts, or take a model with a longer context"
            what = f"{len(long):,} of {len(groups):,} {kind} do not fit the context of {longest} tokens"
            raise UsageError(what, where=f"{long[0][1]}: {long[0][0]:,} tokens {with_what}", fix=fix)
        encoded = [[[row.keep_last_positions(longest) for row in rows] for rows in group] for group in encoded]
    can_share = loaded.sharding is None and loaded.model.reads != "both"
    shares = [can_share and all(group) and _common_prefix_length([rows[0] for rows in group]) > 0 for group in encoded]
    common = [[rows[0] for rows in group] for group, shared in zip(encoded, shares, strict=True) if shared]
    alone = [row for group, shared in zip(encoded, shares, strict=True) if not shared for rows in group for row in rows]
    of_groups = iter(_score_rows_sharing_prefix(loaded, common, report))
    of_rows = iter(_score_rows(loaded, alone, report))
    scored = []
    for group, shared in zip(encoded, shares, strict=True):
        if shared:
            ends = np.cumsum([len(rows[0].targets) for rows in group])
            parts = np.split(next(of_groups), ends[:-1], axis=1)
        else:
            none = np.zeros((2, 0), dtype=np.float32)
            parts = [np.concatenate([none, *(next(of_rows) for _ in rows)], 1) for rows in group]
        are_cut = [any(row.is_cut for row in rows) for rows in group]
        pairs = zip(parts, are_cut, strict=True)
        scored.append([ScoredContinuation(logprobs, is_best, is_cut) for (logprobs, is_best), is_cut in pairs])
    return scored


def check_predicts_tokens(loaded: LoadedModel) -> None:
    """Raises UsageError for a model that predicts no tokens of a text."""
    if isinstance(loaded.recipe.objective, Classification | Embedding) or loaded.model.reads == "words":
        model = f"a {loaded.recipe.model.title} with objective {loaded.recipe.objective.kind}"
        fix = "name a language model, such as a decoder"
        raise UsageError(f"{model} predicts no tokens of a text", where=str(loaded.run_path), fix=fix)
    loaded.check_has_likelihood()


def score_long_texts(loaded: LoadedModel, texts: Sequence[str], report: Progress = no_progress) -> list[float]:
    """Computes log p of texts of any length, without an end token, by all processes together; 0 for an empty one.

    Windows of the context follow each other, and the last one ends with the text; the first token is predicted from the
    token that begins a text. A bidirectional model masks each token in windows that do not overlap.
    Raises UsageError for a model that predicts no tokens, or only those of a target.
    """
    check_predicts_tokens(loaded)
    if loaded.prompt_format.answers:
        raise UsageError("this model scores targets of sources, not texts", where=str(loaded.run_path))
    rows = [_make_consecutive_window_rows(loaded, loaded.tokenizer.encode(text)) for text in texts]
    scores = iter(_score_rows(loaded, [row for of_text in rows for row in of_text], report))
    return [sum(float(next(scores)[0].sum(dtype=np.float64)) for _ in of_text) for of_text in rows]


def _make_consecutive_window_rows(loaded: LoadedModel, ids: list[int]) -> list[_ScoringRow]:
    """Makes the rows that score a text of any length."""
    prompt_format, n = loaded.prompt_format, _max_length(loaded) or len(ids) + 2
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
        start, prefix = max(0, stop - n), 0 if _source_is_prefix(loaded) else None
        positions = list(range(first - start, stop - start))
        rows.append(_ScoringRow(whole[start:stop], positions, whole[first + 1 : stop + 1], prefix=prefix))
    return rows


def _encode_continuations(loaded: LoadedModel, group: Sequence[ContextPair]) -> list[list[_ScoringRow]]:
    """Makes the rows of each continuation of a group: one, or one for each token of a bidirectional model; none without
    tokens. Continuations of one context are scored from the same token on."""
    texts = [_encode_pair(loaded, *pair) for pair in group]
    same_context = len({context for context, _ in group}) == 1
    earliest = min(first for _, _, first in texts)
    continuations = []
    for source, whole, first in texts:
        first = max(1, earliest if same_context else first)
        if loaded.model.reads == "both":
            rows = _masked_rows(loaded, [*whole, *loaded.prompt_format.after], range(first, len(whole)))
        else:
            rows = [_make_scored_suffix_row(loaded, source, whole, first)] if first < len(whole) else []
        continuations.append(rows)
    return continuations


class _EncodedPair(NamedTuple):
    """The ids of a context and its continuation, of which `first` is the first; or of a source and its target."""

    source: list[int] | None
    ids: list[int]
    first: int


def _encode_pair(loaded: LoadedModel, context: str, continuation: str) -> _EncodedPair:
    """Encodes a context and its continuation as the model was trained to read them.

    Whitespace at the end of a context belongs to the continuation, as most tokenizers have it, and as in lm-eval.
    """
    prompt_format, tokenizer, objective = loaded.prompt_format, loaded.tokenizer, loaded.recipe.objective
    stem = context.rstrip()
    ending = context[len(stem) :] + continuation
    if loaded.model.reads == "both":
        before = list(prompt_format.before) or [tokenizer.bos_id]
        whole = [*before, *tokenizer.encode(stem + ending)]
        return _EncodedPair(None, whole, common_prefix_length([*before, *tokenizer.encode(stem)], whole))
    if prompt_format.answers:
        continues = isinstance(objective, Prefix | SpanCorruption)
        opened = prompt_format.make_prompt(stem if continues else context)
        removed = list(tokenizer.sentinel_ids[:1]) if isinstance(objective, SpanCorruption) else []
        begun = [*opened.tokens, *removed]
        source = None if opened.source is None else [*opened.source, *removed]
        return _EncodedPair(source, [*begun, *tokenizer.encode(ending if continues else ending.lstrip())], len(begun))
    whole = list(prompt_format.make_prompt(stem + ending).text)
    first = common_prefix_length(prompt_format.make_prompt(stem).text, whole)
    opening = [_first_id(loaded)] * (first == 0)
    return _EncodedPair(None, [*opening, *whole], first + len(opening))


def _first_id(loaded: LoadedModel) -> int:
    """Returns the token before a text without a first token: the published bos_token, if there is one."""
    tokenizer = loaded.tokenizer
    return tokenizer.bos_id if tokenizer.roles.named_bos is None else tokenizer.roles.named_bos


def _make_single_window_rows(loaded: LoadedModel, ids: list[int], source: str | None) -> list[_ScoringRow]:
    """Makes the rows that score a text: one, or one for each token of a bidirectional model."""
    prompt_format, tokenizer = loaded.prompt_format, loaded.tokenizer
    if loaded.model.reads == "both":
        before, after = list(prompt_format.before), list(prompt_format.after)
        whole = [*before, *ids, *after]
        _check_length(loaded, len(whole))
        return _masked_rows(loaded, whole, range(len(before), len(before) + len(ids)))
    read: list[int] = []
    if source is not None:
        prompt = prompt_format.make_prompt(source)
        opening, read = list(prompt.tokens), list(prompt.source or ())
    else:
        opening = list(prompt_format.opening) or [tokenizer.bos_id] * (tokenizer.published is not None)
    row = _make_scored_suffix_row(
        loaded, read if read or _source_is_prefix(loaded) else None, [*opening, *ids], len(opening)
    )
    _check_length(loaded, len(row.tokens))
    return [row] if row.positions else []


def _masked_rows(loaded: LoadedModel, whole: list[int], positions: Iterable[int]) -> list[_ScoringRow]:
    """Makes a row for each position, in which its token is masked."""
    mask_id = loaded.tokenizer.mask_id
    return [_ScoringRow([*whole[:at], mask_id, *whole[at + 1 :]], [at], [whole[at]]) for at in positions]


def _make_scored_suffix_row(
    loaded: LoadedModel, source: list[int] | None, ids: list[int], first_scored: int
) -> _ScoringRow:
    """Makes the row that scores a text from its token `first_scored` on, the second one at the earliest."""
    prefix = None
    if _source_is_prefix(loaded):
        prefix = first_scored - 1 if source is None else len(source)
        ids, first_scored, source = [*(source or ()), *ids], first_scored + len(source or ()), None
    first_scored = max(1, first_scored)
    return _ScoringRow(ids[:-1], list(range(first_scored - 1, len(ids) - 1)), ids[first_scored:], source, prefix)


def _source_is_prefix(loaded: LoadedModel) -> bool:
    """Whether the model reads a source as the prefix of the row."""
    return loaded.prompt_format.shares_row and loaded.model.reads == "source"


def _max_length(loaded: LoadedModel) -> int | None:
    return loaded.model.max_positions or loaded.model.context


def _check_length(loaded: LoadedModel, length: int) -> None:
    longest = _max_length(loaded)
    if longest is not None and length > longest:
        raise UsageError(f"a text has {length} tokens, but the model reads {longest}", fix="divide it")


def _score_rows(loaded: LoadedModel, rows: Sequence[_ScoringRow], report: Progress = no_progress) -> list[ScoredTokens]:
    """Scores the targets of each row."""
    pad = loaded.tokenizer.pad_id

    def read(chosen: list[int]) -> tuple[None, list[ScoredTokens]]:
        group = [rows[i] for i in chosen]
        tokens_BT, keep_BT = pad_right_with_keep_mask([np.array(row.tokens, dtype=np.int64) for row in group], pad)
        batch = _add_sources(Batch(tokens_BT, keep_BT=keep_BT), group, pad)
        if group[0].prefix is not None:
            batch = replace(batch, prefix_B=torch.tensor([row.prefix for row in group]))
        states = zip(group, loaded.model(batch.to(loaded.device)).hidden_BTD, strict=True)
        scored = [hidden_TD[row.positions] for row, hidden_TD in states]
        return None, _score_targets_by_group(loaded, scored, [[row] for row in group])

    lengths = [(len(row.tokens),) if row.source is None else (len(row.tokens), len(row.source)) for row in rows]
    return _compute_scores_in_batches(loaded, lengths, read, report)


def _compute_scores_in_batches(
    loaded: LoadedModel, lengths: Sequence[RowLengths], compute_scores: ReadScores, report: Progress
) -> list[ScoredTokens]:
    """Evaluates items; on a CPU in small batches, which have less padding and are as fast."""
    n = CPU_BATCH_TOKENS if loaded.device.type == "cpu" else BATCH_TOKENS
    model, compute = loaded.model, loaded.compute
    return evaluate_items(model, lengths, compute_scores, compute, report, max_tokens=n, dtype=np.float32).arrays


def _common_prefix_length(rows: Sequence[_ScoringRow]) -> int:
    """Returns the length of the common prefix of rows; 0 if it cannot be computed once."""
    alone = len(rows) == 1 or rows[0].prefix is not None or any(row.source != rows[0].source for row in rows)
    return 0 if alone else common_prefix_length(*(row.tokens for row in rows))


def _score_rows_sharing_prefix(
    loaded: LoadedModel, groups: Sequence[Sequence[_ScoringRow]], report: Progress
) -> list[ScoredTokens]:
    """Scores the targets of all rows of each group, whose common prefix is read once."""
    n_common = [_common_prefix_length(rows) for rows in groups]
    n_apart = [max(len(row.tokens) for row in rows) - n for rows, n in zip(groups, n_common, strict=True)]
    lengths = [
        (n + len(rows[0].source or ()), len(rows) * m) for rows, n, m in zip(groups, n_common, n_apart, strict=True)
    ]

    def read(chosen: list[int]) -> tuple[None, list[ScoredTokens]]:
        return None, _score_group_batch_sharing_prefix(
            loaded, [groups[i] for i in chosen], [n_common[i] for i in chosen]
        )

    return _compute_scores_in_batches(loaded, lengths, read, report)


def _score_group_batch_sharing_prefix(
    loaded: LoadedModel, groups: Sequence[Sequence[_ScoringRow]], prefix_lengths: Sequence[int]
) -> list[ScoredTokens]:
    """Scores groups of rows. The decoding state of the prefix that the rows of a group share is computed once."""
    model, pad, longest = loaded.model, loaded.tokenizer.pad_id, _max_length(loaded)
    numbered = list(zip(groups, prefix_lengths, strict=True))
    rest = [np.array(row.tokens[n:], dtype=np.int64) for rows, n in numbered for row in rows]
    if len(groups) > 1 and longest is not None and max(prefix_lengths) + max(map(len, rest)) > longest:
        # padding would have positions that the model does not have
        return [scores for rows, n in numbered for scores in _score_group_batch_sharing_prefix(loaded, [rows], [n])]
    common = [np.array(rows[0].tokens[:n], dtype=np.int64) for rows, n in numbered]
    batch = Batch(pad_right_with_keep_mask(common, pad)[0])
    batch = _add_sources(batch, [rows[0] for rows in groups], pad).to(loaded.device)
    state = model.initial_state(batch)
    if not state.can_rewind and len(set(prefix_lengths)) > 1:
        # padding changes a recurrent state
        runs = [list(run) for _, run in groupby(numbered, itemgetter(1))]
        alike = [tuple(map(list, zip(*run, strict=True))) for run in runs]
        return [scores for run in alike for scores in _score_group_batch_sharing_prefix(loaded, *run)]
    hidden_BTD, state = model.forward_incremental(batch.tokens_BT, state)
    state = state.truncate_rows(prefix_lengths)
    apart = iter(hidden_BTD.new_zeros(len(rest), 0, hidden_BTD.shape[-1]))
    if any(map(len, rest)):
        state = state.select_rows([b for b, rows in enumerate(groups) for _ in rows])
        apart = iter(model.forward_incremental(pad_right_with_keep_mask(rest, pad)[0].to(loaded.device), state)[0])
    states = [
        torch.cat([torch.cat((hidden_TD[:n], next(apart)))[row.positions] for row in rows])
        for (rows, n), hidden_TD in zip(numbered, hidden_BTD, strict=True)
    ]
    return _score_targets_by_group(loaded, states, groups)


def _add_sources(batch: Batch, rows: Sequence[_ScoringRow], pad_id: int) -> Batch:
    """Adds the sources of its rows to a batch, if they have any."""
    if rows[0].source is None:
        return batch
    source_BS, keep_BS = pad_right_with_keep_mask([np.array(row.source, dtype=np.int64) for row in rows], pad_id)
    return replace(batch, source_BS=source_BS, source_keep_BS=keep_BS)


def _score_targets_by_group(
    loaded: LoadedModel, states: Sequence[torch.Tensor], groups: Sequence[Sequence[_ScoringRow]]
) -> list[ScoredTokens]:
    """Scores the targets of groups of rows from their hidden states (N, D), at most MAX_LOGITS logits at once."""
    n_at_once, interpolation = max(1, MAX_LOGITS // loaded.model.vocab_size), loaded.model.interpolation
    rows = [row for group in groups for row in group]
    ids = [token for row in rows for token in row.targets]
    texts: list[Sequence[int]] = []
    if interpolation is not None:
        texts = [context for row in rows for context in interpolation.get_contexts(row.tokens, row.positions)]
    scored = []
    for start, hidden_ND in zip(count(0, n_at_once), torch.split(torch.cat([*states]), n_at_once)):
        part = slice(start, start + n_at_once)
        logprob_NV = loaded.model.logits(hidden_ND).float()
        if interpolation is not None:
            logprob_NV = interpolation.interpolate_next_token_log_probs(logprob_NV, texts[part])
        logprob_NV = logprob_NV.log_softmax(-1)
        logprob_N = logprob_NV.gather(1, torch.tensor(ids[part], device=loaded.device)[:, None])[:, 0]
        scored.append(torch.stack((logprob_N, (logprob_N >= logprob_NV.amax(-1)).float())))
    lengths = [sum(len(row.targets) for row in group) for group in groups]
    return [part.numpy() for part in torch.split(torch.cat(scored, 1).cpu(), lengths, 1)]
