"""Assignment 4: greedy decoding and beam search (as in Sutskever, Vinyals and Le 2014).

The course: docs/course.md, "Greedy decoding" and "Beam search". `log_p(ids)` gives the log-probabilities of all tokens
as the next one.
"""

from collections.abc import Callable, Sequence

LogP = Callable[[Sequence[int]], Sequence[float]]


def greedy(log_p: LogP, end: int, longest: int) -> list[int]:
    """The most probable token at each step, until the end token (which is part of the text) or `longest` tokens."""
    raise NotImplementedError


def beam_search(log_p: LogP, end: int, longest: int, k: int) -> list[tuple[float, list[int]]]:
    """The k best finished texts as (mean log-probability per token, tokens), the best first.

    At each step the k most probable continuations of all live texts are looked at. One of them that ends (by the end
    token, or as it has `longest` tokens) is set aside as finished; the others live on, filled up from the next
    continuations that do not end, so that k texts stay alive. The search ends when k texts are finished and the best
    live one, divided by its present length, is no better than the worst of the k.
    """
    raise NotImplementedError
