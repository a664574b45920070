"""Notices about the labels of a table: misspelt class names, and classes of unequal numbers of rows."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from lmtool.batch import common_prefix_length
from lmtool.data.files import quote
from lmtool.data.notices import Notice
from lmtool.data.rowfile import fold_name
from lmtool.printable import format_count

IMBALANCE_RATIO = 10
"""Rows of the largest class, divided by those of the smallest, from which a notice is given."""

MAX_LISTED_LABELS = 3
"""Misspelt labels that a notice lists, and lines of each."""

MAX_COMPARED_LABELS, MAX_COMPARED_CHARACTERS = 20_000, 100
"""More labels, and longer ones, are not compared by letters."""

MIN_WORD_LETTERS = 4
"""A letter of a shorter word, or of a number, tells labels apart: cat and car, grade A."""

_MAX_RIVALS = 3
"""Labels that are alike without the same letter, of those that one is compared with."""


def find_misspelt_labels(counts: Mapping[str, int]) -> dict[str, str]:
    """Returns for each label that seems misspelt the more frequent one that it should be.

    Such labels differ in case, spaces, hyphens and underscores; or one letter of a word is missing, added, wrong, or
    exchanged with its neighbour. Linear in the characters of all labels (symmetric deletion).

    counts: rows by label.
    """
    ordered = sorted(counts, key=lambda name: (-counts[name], name.swapcase()))
    correct: dict[str, str] = {}
    most_frequent: dict[str, str] = {}
    for name in ordered:
        if (other := most_frequent.setdefault(fold_name(name), name)) != name:
            correct[name] = other
    spelled = {name: re.sub(r"[\s_-]+", " ", name.casefold()) for name in most_frequent.values()}
    by_deletion: dict[str, list[str]] = {}
    for name, letters in spelled.items() if len(spelled) <= MAX_COMPARED_LABELS else ():
        if len(letters) > MAX_COMPARED_CHARACTERS:
            continue
        shorter = [letters[:i] + letters[i + 1 :] for i, letter in enumerate(letters) if letter.isalpha()]
        rivals = dict.fromkeys(rival for key in (letters, *shorter) for rival in by_deletion.get(key, ()))
        for rival in sorted(rivals, key=lambda rival: -counts[rival]):
            if counts[rival] > counts[name] and _differ_in_one_letter_or_swap(letters, spelled[rival]):
                correct[name] = correct.get(rival, rival)
                break
        for key in (letters, *shorter):
            if len(similar := by_deletion.setdefault(key, [])) < _MAX_RIVALS:
                similar.append(name)
    return {name: correct.get(correct[name], correct[name]) for name in ordered if name in correct}


def _differ_in_one_letter_or_swap(one: str, other: str) -> bool:
    """Returns whether texts differ in one letter of a word, or in the order of two."""
    start = common_prefix_length(one, other)
    end = common_prefix_length(one[start:][::-1], other[start:][::-1])
    rests = [text[start : len(text) - end] for text in (one, other)]
    is_swap = len(rests[0]) == 2 and rests[0] == rests[1][::-1]
    if not "".join(rests).isalpha() or (max(map(len, rests)) > 1 and not is_swap):
        return False
    longer = max(one, other, key=len)
    word = re.search(r"[^\W\d_]*$", longer[:start]), re.match(r"[^\W\d_]*", longer[start:])
    return sum(len(part[0]) for part in word if part) >= MIN_WORD_LETTERS


def format_merge_option(old: str, new: str) -> str:
    """Formats the option that reads one label as another; names a file if the old label has the sign =."""
    return f"--merge-labels {'FILE.csv' if '=' in old else shlex.quote(f'{old}={new}')}"


def make_label_notices(labels_and_places: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[Notice]:
    """Yields notices of the classes of a training table.

    labels_and_places: the classes of each row, and where it is, such as "line 5".
    """
    counts: Counter[str] = Counter()
    lines: dict[str, list[str]] = {}
    is_multi = False
    for names, line in labels_and_places:
        is_multi |= len(names) != 1
        for name in names:
            counts[name] += 1
            if len(first := lines.setdefault(name, [])) < MAX_LISTED_LABELS:
                first.append(line)
    similar = find_misspelt_labels(counts)
    if similar:
        n_rows = sum(counts[name] for name in similar)
        listed = list(similar.items())[:MAX_LISTED_LABELS]
        text = f"{format_count(n_rows, 'row')} with labels that differ in a letter or in case from more frequent ones: "
        text += " ".join(
            f"{quote(name, 40)} ({format_count(counts[name], 'row')}: {', '.join(lines[name])}"
            f"{', …' * (counts[name] > MAX_LISTED_LABELS)}), did you mean {quote(other, 40)} "
            f"({format_count(counts[other], 'row')})?"
            for name, other in listed
        )
        if len(similar) > MAX_LISTED_LABELS:
            text += f"; and {format_count(len(similar) - MAX_LISTED_LABELS, 'more label')}"
        options = dict.fromkeys(format_merge_option(*pair) for pair in listed)
        yield Notice("similar labels", n_rows, f"{text}; to merge them: {' '.join(options)}")
    merged = Counter(counts)
    for name, other in similar.items():
        merged[other] += merged.pop(name)
    largest, smallest = max(merged, key=lambda name: merged[name]), min(merged, key=lambda name: merged[name])
    if merged[largest] >= IMBALANCE_RATIO * merged[smallest]:
        text = f"heavy imbalance: {quote(largest, 40)} has {format_count(merged[largest], 'row')}, "
        text += f"{quote(smallest, 40)} has {merged[smallest]:,}"
        text += " (similar labels counted together)" if {largest, smallest} & {*similar.values()} else ""
        ratio = merged[largest] // merged[smallest]
        yield Notice("heavy imbalance", ratio, f"{text}; macro F1 weights both equally")
    single = sorted(name for name, count in counts.items() if count == 1 and name not in similar)
    if is_multi and single:
        text = f"labels with one row: {len(single):,}; first: {quote(single[0])}"
        yield Notice("labels with one row", len(single), text)
