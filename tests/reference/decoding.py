"""Decoding as the papers say it, with lists and loops, one request at a time, without a cache.

`logits_after(ids)` gives the model's logits of the next token as a list of floats.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

from tests.reference.losses import log_softmax
from tests.reference.transformer import softmax

Scores = list[float]
Ids = Sequence[int]
LogitsAfter = Callable[[list[int]], Any]
Hypotheses = list[tuple[float, list[int]]]


def order(scores: Sequence[float]) -> list[int]:
    """Ids from the highest score to the lowest; of equal ones the lowest id first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def temperature(scores: Sequence[float], t: float) -> Scores:
    if t == 0:
        best = order(scores)[0]
        return [0.0 if i == best else -math.inf for i in range(len(scores))]
    return [s / t for s in scores]


def top_k(scores: Sequence[float], k: int) -> Scores:
    kept = order(scores)[:k]
    return [s if i in kept else -math.inf for i, s in enumerate(scores)]


def top_p(scores: Sequence[float], p: float) -> Scores:
    probabilities = softmax(scores)
    kept, mass = [], 0.0
    for i in order(scores):
        if mass >= p:
            break
        kept.append(i)
        mass += probabilities[i]
    return [s if i in kept else -math.inf for i, s in enumerate(scores)]


def distribution(scores: Sequence[float], t: float, k: int | None, p: float | None) -> Scores:
    scores = temperature(scores, t)
    scores = top_k(scores, k) if k is not None else scores
    return softmax(top_p(scores, p) if p is not None else scores)


def number(key: bytes, n: int) -> float:
    """The n-th number from 0 to 1 of a key."""
    return (int(hashlib.sha256(key + n.to_bytes(8, "big")).hexdigest()[:16], 16) // 2**11) / 2**53


def key_of(seed: int, sample: int, prompt: Ids) -> bytes:
    return hashlib.sha256(" ".join(str(word) for word in [seed, sample, *prompt]).encode("ascii")).digest()


def uniform(seed: int, sample: int, prompt: Ids, n_written: int) -> float:
    """The random number for one token, as docs/generate.md says it."""
    return number(key_of(seed, sample, prompt), n_written)


def inverse_cdf(probabilities: Sequence[float], u: float) -> int:
    mass = 0.0
    for i, p in enumerate(probabilities):
        mass += p
        if u < mass:
            return i
    raise AssertionError("the number is not below 1")


def continuation(
    logits_after: LogitsAfter,
    prompt: Ids,
    *,
    max_new_tokens: int,
    context: int | None = None,
    end_ids: Collection[int] = (),
    greedy: bool = False,
    t: float = 1.0,
    k: int | None = None,
    p: float | None = None,
    seed: int = 1,
    sample: int = 0,
    read: Ids | None = None,
) -> tuple[list[int], list[float]]:
    """Tokens, and log-probabilities before any filter, of one request.

    read: the ids that the randomness starts from, when they are more than the prompt.
    """
    window = list(prompt)
    tokens: list[int] = []
    logprobs: list[float] = []
    while len(tokens) < max_new_tokens:
        scores = logits_after(window)
        own = softmax(scores)
        if greedy:
            token = order(scores)[0]
        else:
            token = inverse_cdf(distribution(scores, t, k, p), uniform(seed, sample, read or prompt, len(tokens)))
        tokens.append(token)
        logprobs.append(math.log(own[token]))
        if token in end_ids:
            break
        window.append(token)
        if context is not None and len(window) > context:
            window = window[-max(1, context // 2) :]
    return tokens, logprobs


def named_uniform(seed: int, sample: int, prompt: Ids, name: str, n_written: int) -> float:
    """The further random numbers of a draft and of acceptance, as docs/generate.md says it."""
    return number(hashlib.sha256(key_of(seed, sample, prompt) + name.encode("ascii")).digest(), n_written)


def speculative(
    logits_after: LogitsAfter,
    draft_after: LogitsAfter,
    prompt: Ids,
    *,
    n: int,
    max_new_tokens: int,
    context: int | None = None,
    end_ids: Collection[int] = (),
    t: float = 1.0,
    k: int | None = None,
    p: float | None = None,
    seed: int = 1,
    sample: int = 0,
) -> tuple[list[int], int, int]:
    """Tokens of one request, how many were proposed, and how many accepted: Leviathan et al. 2023, Algorithm 1.

    Draft and model have the same context. The token after a window that was read anew comes without a proposal.
    """
    window, n_proposed, n_accepted = list(prompt), 0, 0
    tokens: list[int] = []
    is_new = True
    while True:
        room = 0 if is_new else n if context is None else min(n, context - len(window))
        is_new = False
        proposed: list[int] = []
        q: list[Scores] = []
        while len(proposed) < room and not (proposed and proposed[-1] in end_ids):
            q.append(distribution(draft_after([*window, *proposed]), t, k, p))
            u = named_uniform(seed, sample, prompt, "draft", len(tokens) + len(proposed))
            proposed.append(inverse_cdf(q[-1], u))
        n_proposed += len(proposed)
        for i in range(len(proposed) + 1):
            target = distribution(logits_after(window), t, k, p)
            u = uniform(seed, sample, prompt, len(tokens))
            r = named_uniform(seed, sample, prompt, "accept", len(tokens))
            is_accepted = i < len(proposed) and r < target[proposed[i]] / q[i][proposed[i]]
            if is_accepted:
                token = proposed[i]
                n_accepted += 1
            elif i < len(proposed):
                rest = [max(0.0, a - b) for a, b in zip(target, q[i], strict=True)]
                token = inverse_cdf([mass / sum(rest) for mass in rest], u)
            else:
                token = inverse_cdf(target, u)
            tokens.append(token)
            if token in end_ids or len(tokens) == max_new_tokens:
                return tokens, n_proposed, n_accepted
            window.append(token)
            if not is_accepted:
                break
        if context is not None and len(window) > context:
            window, is_new = window[-max(1, context // 2) :], True


def looked_up(text: list[int], n: int, end_ids: Collection[int] = ()) -> list[int]:
    """What followed the longest suffix of 4, 3 or 2 tokens that stood before, where it stood last."""
    for length in (4, 3, 2):
        places = [i for i in range(len(text) - length) if text[i : i + length] == text[-length:]]
        if places:
            longer = list(text)
            for _ in range(n):
                longer.append(longer[places[-1] + length + len(longer) - len(text)])
                if longer[-1] in end_ids:
                    break
            return longer[len(text) :]
    return []


def min_p(scores: Sequence[float], p: float) -> Scores:
    probabilities = softmax(scores)
    return [s if q >= p * max(probabilities) else -math.inf for s, q in zip(scores, probabilities, strict=True)]


def typical_p(scores: Sequence[float], p: float) -> Scores:
    probabilities = softmax(scores)
    entropy = -sum(q * math.log(q) for q in probabilities if q > 0)
    possible = [i for i, q in enumerate(probabilities) if q > 0]
    kept, mass = [], 0.0
    for i in sorted(possible, key=lambda i: (abs(-math.log(probabilities[i]) - entropy), i)):
        if mass >= p:
            break
        kept.append(i)
        mass += probabilities[i]
    return [s if i in kept else -math.inf for i, s in enumerate(scores)]


def repetition_penalty(scores: Sequence[float], penalty: float, text: Ids) -> Scores:
    return [(s * penalty if s < 0 else s / penalty) if i in text else s for i, s in enumerate(scores)]


def apply_count_penalties(scores: Sequence[float], frequency: float, presence: float, new: Ids) -> Scores:
    """mu[j] -> mu[j] - c[j] * alpha_frequency - float(c[j] > 0) * alpha_presence, as OpenAI's API documents it."""
    return [s - new.count(i) * frequency - float(new.count(i) > 0) * presence for i, s in enumerate(scores)]


def no_repeat_ngram(scores: Sequence[float], n: int, text: Ids) -> Scores:
    """A token may not come when the last n tokens would then be a stretch of the text."""
    stretches = [tuple(text[i : i + n]) for i in range(len(text) - n + 1)]
    return [
        -math.inf if len(text) >= n - 1 and (*text[len(text) - n + 1 :], i) in stretches else s
        for i, s in enumerate(scores)
    ]


def logit_bias(scores: Sequence[float], biases: Sequence[tuple[Ids, float]], text: Ids) -> Scores:
    scores = list(scores)
    for ids, bias in biases:
        if list(text[len(text) - len(ids) + 1 :]) == list(ids[:-1]) and len(text) >= len(ids) - 1:
            scores[ids[-1]] += bias
    return scores


def beam_search(
    logits_after: LogitsAfter,
    prompt: Ids,
    *,
    k: int,
    max_new_tokens: int,
    length_penalty: float = 1.0,
    early_stopping: str = "no",
    end_ids: Collection[int] = (),
    groups: int = 1,
    diversity: float = 0.0,
    change: Callable[[Scores, Ids, int], Sequence[float]] = lambda scores, text, n_written: scores,
    ends: Callable[[list[int]], bool] = lambda written: False,
) -> Hypotheses:
    """(score, tokens) of the finished hypotheses of all groups, best first; live ones are (total, tokens)."""
    width = k // groups
    live: list[Hypotheses] = [[(0.0, [])] for _ in range(groups)]
    finished: list[Hypotheses] = [[] for _ in range(groups)]
    for n in range(1, max_new_tokens + 1):
        chosen_before: list[int] = []
        for g in range(groups):
            candidates = []
            for total, tokens in live[g]:
                own = log_softmax(logits_after([*prompt, *tokens]))
                for token, s in enumerate(change(own, [*prompt, *tokens], n - 1)):
                    if s > -math.inf:
                        candidates.append((total + s, [*tokens, token]))
            candidates.sort(key=lambda c: -(c[0] - diversity * chosen_before.count(c[1][-1])))
            continued: Hypotheses = []
            for place, (total, tokens) in enumerate(candidates[: (1 + max(1, len(end_ids))) * width]):
                if tokens[-1] in end_ids or ends(tokens) or n == max_new_tokens:
                    if place < width:
                        finished[g].append((total / n**length_penalty, tokens))
                elif len(continued) < width:
                    continued.append((total, tokens))
            finished[g] = sorted(finished[g], key=lambda f: -f[0])[:width]
            if len(finished[g]) == width and continued:
                length = max_new_tokens if early_stopping == "never" and length_penalty > 0 else n
                hope = max(total for total, _ in continued) / length**length_penalty
                if early_stopping == "yes" or hope <= finished[g][-1][0]:
                    continued = []
            chosen_before += [tokens[-1] for _, tokens in continued]
            live[g] = continued
    return sorted((f for group in finished for f in group), key=lambda f: -f[0])


def all_texts(
    logits_after: LogitsAfter, prompt: Ids, *, max_new_tokens: int, length_penalty: float, end_ids: Collection[int]
) -> Hypotheses:
    """(score, tokens) of every text that there is, best first."""
    found: Hypotheses = []
    live: Hypotheses = [(0.0, [])]
    for n in range(1, max_new_tokens + 1):
        longer: Hypotheses = []
        for total, tokens in live:
            own = log_softmax(logits_after([*prompt, *tokens]))
            for token, s in enumerate(own):
                is_end = token in end_ids or n == max_new_tokens
                text = (total + s, [*tokens, token])
                (found if is_end else longer).append(text)
        live = longer
    ranked = [(total / len(tokens) ** length_penalty, tokens) for total, tokens in found]
    return sorted(ranked, key=lambda f: -f[0])


def mask_predict(
    logits_of: Callable[[list[int]], Sequence[Sequence[float]]],
    ids: Ids,
    mask: int,
    rounds: int,
    banned: Collection[int] = (),
) -> list[int]:
    """Ghazvininejad et al. 2019, section 3; `logits_of(ids)` gives a list for each position."""
    ids = list(ids)
    places = [i for i, token in enumerate(ids) if token == mask]
    confidence: dict[int, float] = {}
    for t in range(rounds):
        n = len(places) if t == 0 else int(len(places) * (rounds - t) / rounds)
        again = sorted(places, key=lambda i: (confidence.get(i, 0.0), i))[:n]
        for i in again:
            ids[i] = mask
        logits = logits_of(ids)
        for i in again:
            p = softmax(logits[i])
            best = max((v for v in range(len(p)) if v not in banned), key=lambda v: (p[v], -v))
            ids[i], confidence[i] = best, p[best]
    return ids


def gibbs(
    logits_of: Callable[[list[int]], Sequence[Sequence[float]]],
    ids: Ids,
    mask: int,
    rounds: int,
    key: bytes,
    banned: Collection[int],
    t: float,
) -> list[int]:
    """Wang and Cho 2019, each round every mask once; numbers of the key in the order of their use."""
    ids = list(ids)
    places = [i for i, token in enumerate(ids) if token == mask]
    used = 0
    for _ in range(rounds):
        drawn = [number(key, used + i) for i in range(len(places))]
        used += len(places)
        for _, i in sorted(zip(drawn, places, strict=True)):
            ids[i] = mask
            scores = [-math.inf if v in banned else s for v, s in enumerate(logits_of(ids)[i])]
            ids[i] = inverse_cdf(softmax(temperature(scores, t)), number(key, used))
            used += 1
    return ids
