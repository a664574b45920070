"""Metrics of extracted answers, as the scripts of SQuAD 1.1 and 2.0 define them (Rajpurkar et al. 2016, 2018)."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """An answer in lower case, without punctuation, articles and extra white space."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(predicted: str, answers: Sequence[str]) -> float:
    """1 if the prediction equals one of the answers, normalized, else 0. No answers: it is to be empty."""
    return float(normalized(predicted) in {normalized(answer) for answer in _known(answers)})


def word_f1(predicted: str, answers: Sequence[str]) -> float:
    """The best F1 of the prediction's words against those of an answer, normalized. No answers: it is to be empty."""
    return max(_f1(normalized(predicted).split(), normalized(answer).split()) for answer in _known(answers))


def _known(answers: Sequence[str]) -> list[str]:
    """The answers that normalization leaves something of; else the empty one, which stands for none."""
    return [answer for answer in answers if normalized(answer)] or [""]


def _f1(predicted: Sequence[str], answer: Sequence[str]) -> float:
    if not predicted or not answer:
        return float(predicted == answer)
    n_common = (Counter(predicted) & Counter(answer)).total()
    return 2 * n_common / (len(predicted) + len(answer))


def best_null_threshold(null_scores: Sequence[float], scores: Sequence[float], has_answer: Sequence[bool]) -> float:
    """The null score up to which questions are answered that maximises the mean score (SQuAD 2.0's find_best_thresh).

    null_scores: score of the null span minus that of the best span. scores: of the best span. A question without an
    answer scores 1 where it is not answered. Infinite where all questions have answers.
    """
    if all(has_answer):
        return math.inf
    order = sorted(range(len(scores)), key=lambda i: null_scores[i])
    best = total = float(list(has_answer).count(False))
    threshold = null_scores[order[0]] - 1.0
    for place, i in enumerate(order):
        total += scores[i] if has_answer[i] else -1.0
        is_last_of_equals = place + 1 == len(order) or null_scores[order[place + 1]] > null_scores[i]
        if is_last_of_equals and total > best:
            best, threshold = total, null_scores[i]
    return threshold
