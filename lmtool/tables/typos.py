"""What is suspicious about the classes of a table: names that seem to be misspelt, and unequal numbers of rows."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from lmtool.text.files import shown
from lmtool.text.notices import Notice, counted
from lmtool.text.rowfile import bare_name

IMBALANCE = 10
"""Ratio of the largest class to the smallest from which a notice is given."""

TOLD = 3
"""Misspelt labels that a notice names, and lines of each."""

MOST, LONGEST = 20_000, 100
"""Labels that are compared by letters, and their characters; there may be more and longer ones."""

WORD = 4
"""Letters of a word of which one may be wrong; shorter ones, and numbers, tell labels apart: cat and car, grade A."""

_RIVALS = 3
"""Labels that one is compared with, of those that are alike without the same letter."""


def misspelt(counts: Mapping[str, int]) -> dict[str, str]:
    """For each label that seems to be misspelt the commoner one that it should be.

    counts: rows by label. Labels differ in case, spaces, hyphens and underscores; or one letter of a word is missing,
    added, wrong, or exchanged with its neighbour. Linear in the characters of all labels (symmetric deletion).
    """
    ordered = sorted(counts, key=lambda name: (-counts[name], name.swapcase()))
    found: dict[str, str] = {}
    commonest: dict[str, str] = {}
    for name in ordered:
        if (common := commonest.setdefault(bare_name(name), name)) != name:
            found[name] = common
    spelt = {name: re.sub(r"[\s_-]+", " ", name.casefold()) for name in commonest.values()}
    alike: dict[str, list[str]] = {}
    for name, letters in spelt.items() if len(spelt) <= MOST else ():
        if len(letters) > LONGEST:
            continue
        shorter = [letters[:i] + letters[i + 1 :] for i, letter in enumerate(letters) if letter.isalpha()]
        rivals = dict.fromkeys(rival for key in (letters, *shorter) for rival in alike.get(key, ()))
        for rival in sorted(rivals, key=lambda rival: -counts[rival]):
            if counts[rival] > counts[name] and _is_one_letter(letters, spelt[rival]):
                found[name] = found.get(rival, rival)
                break
        for key in (letters, *shorter):
            if len(known := alike.setdefault(key, [])) < _RIVALS:
                known.append(name)
    return {name: found.get(found[name], found[name]) for name in ordered if name in found}


def _is_one_letter(one: str, other: str) -> bool:
    """Whether texts differ in one letter of a word, or in the order of two."""
    start = _n_equal(one, other)
    end = _n_equal(one[start:][::-1], other[start:][::-1])
    rests = [text[start : len(text) - end] for text in (one, other)]
    is_swap = len(rests[0]) == 2 and rests[0] == rests[1][::-1]
    if not "".join(rests).isalpha() or (max(map(len, rests)) > 1 and not is_swap):
        return False
    longer = max(one, other, key=len)
    word = re.search(r"[^\W\d_]*$", longer[:start]), re.match(r"[^\W\d_]*", longer[start:])
    return sum(len(part[0]) for part in word if part) >= WORD


def _n_equal(one: str, other: str) -> int:
    """The length of their common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def label_notices(rows: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[Notice]:
    """Notices of the classes of a training table. rows: the classes of each, and where it is, such as "line 5"."""
    counts: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    is_multi = False
    for names, place in rows:
        is_multi |= len(names) != 1
        for name in names:
            counts[name] += 1
            if len(known := places.setdefault(name, [])) < TOLD:
                known.append(place)
    similar = misspelt(counts)
    if similar:
        n_rows = sum(counts[name] for name in similar)
        text = f"{counted(n_rows, 'row')} with labels that differ in a letter or in case from commoner ones: "
        text += " ".join(
            f"{shown(name, 40)} ({counted(counts[name], 'row')}: {', '.join(places[name])}"
            f"{', …' * (counts[name] > TOLD)}), did you mean {shown(common, 40)} ({counted(counts[common], 'row')})?"
            for name, common in list(similar.items())[:TOLD]
        )
        more = f"; and {counted(len(similar) - TOLD, 'more label')}" if len(similar) > TOLD else ""
        yield Notice("similar labels", n_rows, text + more)
    together = Counter(counts)
    for name, common in similar.items():
        together[common] += together.pop(name)
    most, least = max(together, key=lambda name: together[name]), min(together, key=lambda name: together[name])
    if together[most] >= IMBALANCE * together[least]:
        text = f"{shown(most, 40)} has {counted(together[most], 'row')}, {shown(least, 40)} has {together[least]:,}"
        text += " (similar labels counted together)" if {most, least} & {*similar.values()} else ""
        text = f"heavy imbalance: {text}; macro F1 weights both equally"
        yield Notice("heavy imbalance", together[most] // together[least], text)
    alone = sorted(name for name, count in counts.items() if count == 1 and name not in similar)
    if is_multi and alone:
        text = f"labels with one row: {len(alone):,}; first: {shown(alone[0])}"
        yield Notice("labels with one row", len(alone), text)
