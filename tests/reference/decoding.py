"""Decoding as the papers say it, with lists and loops, one request at a time, without a cache.

`logits_after(ids)` gives the model's logits of the next token as a list of floats.
"""

import hashlib
import math


def softmax(scores):
    highest = max(scores)
    powers = [math.exp(s - highest) for s in scores]
    return [power / sum(powers) for power in powers]


def order(scores):
    """Ids from the highest score to the lowest; of equal ones the lowest id first."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))


def temperature(scores, t):
    if t == 0:
        best = order(scores)[0]
        return [0.0 if i == best else -math.inf for i in range(len(scores))]
    return [s / t for s in scores]


def top_k(scores, k):
    kept = order(scores)[:k]
    return [s if i in kept else -math.inf for i, s in enumerate(scores)]


def top_p(scores, p):
    probabilities = softmax(scores)
    kept, mass = [], 0.0
    for i in order(scores):
        if mass >= p:
            break
        kept.append(i)
        mass += probabilities[i]
    return [s if i in kept else -math.inf for i, s in enumerate(scores)]


def uniform(seed, sample, prompt, n_written):
    """The random number for one token, as docs/generate.md says it."""
    words = " ".join(str(word) for word in [seed, sample, *prompt])
    key = hashlib.sha256(words.encode("ascii")).digest()
    number = int(hashlib.sha256(key + n_written.to_bytes(8, "big")).hexdigest()[:16], 16)
    return (number // 2**11) / 2**53


def inverse_cdf(probabilities, u):
    mass = 0.0
    for i, p in enumerate(probabilities):
        mass += p
        if u < mass:
            return i
    raise AssertionError("the number is not below 1")


def continuation(
    logits_after,
    prompt,
    *,
    max_new_tokens,
    context=None,
    end_ids=(),
    greedy=False,
    t=1.0,
    k=None,
    p=None,
    seed=1,
    sample=0,
):
    """Tokens, and log-probabilities before any filter, of one request."""
    window, tokens, logprobs = list(prompt), [], []
    while len(tokens) < max_new_tokens:
        scores = logits_after(window)
        own = softmax(scores)
        if greedy:
            token = order(scores)[0]
        else:
            scores = temperature(scores, t)
            scores = top_k(scores, k) if k is not None else scores
            scores = top_p(scores, p) if p is not None else scores
            token = inverse_cdf(softmax(scores), uniform(seed, sample, prompt, len(tokens)))
        tokens.append(token)
        logprobs.append(math.log(own[token]))
        if token in end_ids:
            break
        window.append(token)
        if context is not None and len(window) > context:
            window = window[-max(1, context // 2) :]
    return tokens, logprobs
