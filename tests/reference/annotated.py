"""Tags and answers, plainly: a CRF by all its sequences, the entities of conlleval, the metrics of SQuAD."""

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def chain_score(scores_WC: Array, tags: Sequence[int], start_C: Array, end_C: Array, transition_CC: Array) -> float:
    """The score of a sequence of tags: start, each word's, each transition's, end."""
    total = start_C[tags[0]] + end_C[tags[-1]]
    for t, tag in enumerate(tags):
        total += scores_WC[t, tag]
        if t:
            total += transition_CC[tags[t - 1], tag]
    return float(total)


def chain_log_p(scores_WC: Array, tags: Sequence[int], start_C: Array, end_C: Array, transition_CC: Array) -> float:
    """log p(tags), with Z summed over all sequences."""
    parts = (start_C, end_C, transition_CC)
    every = product(range(scores_WC.shape[1]), repeat=len(scores_WC))
    z = math.fsum(math.exp(chain_score(scores_WC, other, *parts)) for other in every)
    return chain_score(scores_WC, tags, *parts) - math.log(z)


def chain_best(scores_WC: Array, start_C: Array, end_C: Array, transition_CC: Array) -> tuple[int, ...]:
    """The sequence with the highest score of all."""
    every = product(range(scores_WC.shape[1]), repeat=len(scores_WC))
    return max(every, key=lambda tags: chain_score(scores_WC, tags, start_C, end_C, transition_CC))


def entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """Type, first word and last word, as conlleval.pl walks through a sentence."""
    found: list[tuple[str, int, int]] = []
    before = "O"
    for i, tag in enumerate(tags):
        place, _, of = tag.partition("-")
        place_before, _, of_before = before.partition("-")
        continues = place == "I" and place_before in ("B", "I") and of == of_before
        if place != "O" and not continues:
            found.append((of, i, i))
        elif continues:
            found[-1] = (of, found[-1][1], i)
        before = tag
    return found


def entity_scores(true: Sequence[Sequence[str]], given: Sequence[Sequence[str]]) -> tuple[float, float, float]:
    """Precision, recall and F1 of all entities; 0 where a denominator is."""
    wanted = {(row, *one) for row, tags in enumerate(true) for one in entities(tags)}
    found = {(row, *one) for row, tags in enumerate(given) for one in entities(tags)}
    both = len(wanted & found)
    precision = both / len(found) if found else 0.0
    recall = both / len(wanted) if wanted else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if both else 0.0


def squad_words(text: str) -> list[str]:
    """Lower case, no punctuation, no articles, one space: in this order."""
    text = text.lower()
    text = "".join(character for character in text if character not in set(string.punctuation))
    text = re.sub(r"\b(a|an|the)\b", " ", text)
    return text.split()


def squad_exact(predicted: str, answers: Sequence[str]) -> int:
    gold = [answer for answer in answers if squad_words(answer)] or [""]
    return max(int(squad_words(answer) == squad_words(predicted)) for answer in gold)


def squad_f1(predicted: str, answers: Sequence[str]) -> float:
    gold = [answer for answer in answers if squad_words(answer)] or [""]
    scores = []
    for answer in gold:
        left, right = squad_words(predicted), squad_words(answer)
        if not left or not right:
            scores.append(float(left == right))
            continue
        same = (Counter(left) & Counter(right)).total()
        if not same:
            scores.append(0.0)
            continue
        precision, recall = same / len(left), same / len(right)
        scores.append(2 * precision * recall / (precision + recall))
    return max(scores)
