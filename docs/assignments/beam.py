"""Assignment 4: greedy decoding and beam search (as in Sutskever, Vinyals and Le 2014).

The course: docs/course.md, "Greedy decoding" and "Beam search". `log_p(ids)` returns the log-probability of each
token as the next one.
"""

from collections.abc import Callable, Sequence

LogP = Callable[[Sequence[int]], Sequence[float]]


def greedy(log_p: LogP, end: int, longest: int) -> list[int]:
    """The most probable token at each step, up to and including the end token, or `longest` tokens."""
    raise NotImplementedError


def beam_search(log_p: LogP, end: int, longest: int, k: int) -> list[tuple[float, list[int]]]:
    """The k best finished texts as (mean log-probability per token, tokens), the best first.

    Each step takes the k most probable continuations of all live texts. Those that end (with the end token, or because
    they have `longest` tokens) are finished; the others live on, together with the next most probable continuations
    that do not end, so that k texts stay alive. The search ends when k texts are finished and the log-probability of
    the best live one, divided by its present length, is no better than the worst of the k.
    """
    raise NotImplementedError
