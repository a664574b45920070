"""What is suspicious but usable: texts that were cut, texts that a tokenizer was not made for, names of classes that
seem to be misspelt, and unequal numbers of rows."""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lmtool.batch import common_prefix_length
from lmtool.data.files import quote
from lmtool.data.rowfile import fold_name
from lmtool.printable import format_count
from lmtool.tokenization.tokenizer import Tokenizer

CUT_LENGTH = 100
"""Characters from which many texts of one length are taken to be cut."""

CUT_SHARE = 0.01
"""Share of texts of exactly the greatest length from which they are taken to be cut; and at least 5."""

FEW_BYTES = 0.5
"""A text whose tokens have less than this part of the usual bytes is not in the tokenizer's language."""

LEAST_BYTES = 40
"""Bytes of a text from which its tokens are counted: those of a few words vary."""

LARGE, USUAL = 8192, 3.0
"""Tokens of a vocabulary of so many entries have so many bytes, in a language that it was made for."""

UNKNOWN = 0.02
"""Share of unknown tokens from which they are told."""


IMBALANCE = 10
"""Ratio of the largest class to the smallest from which a notice is given."""

TOLD = 3
"""Misspelt labels that a notice names, and lines of each."""

MOST_LABELS, LONGEST = 20_000, 100
"""Labels that are compared by letters, and their characters; there may be more and longer ones."""

WORD = 4
"""Letters of a word of which one may be wrong; shorter ones, and numbers, tell labels apart: cat and car, grade A."""

_RIVALS = 3
"""Labels that one is compared with, of those that are alike without the same letter."""


@dataclass(frozen=True)
class Notice:
    """Something suspicious but usable: a key for programs, a count of what is concerned, and a sentence."""

    kind: str
    count: int
    text: str

    def __str__(self) -> str:
        return self.text


def cut_texts(lengths: Iterable[int], noun: str) -> Iterator[Notice]:
    """A notice where many texts have exactly the greatest number of characters. noun: what a text is called."""
    counts = Counter(lengths)
    longest = max(counts, default=0)
    if longest >= CUT_LENGTH and counts[longest] >= max(5, CUT_SHARE * counts.total()):
        what = f"{counts[longest]:,} of {format_count(counts.total(), noun)} have exactly {longest:,} characters"
        yield Notice("texts cut at one length", counts[longest], f"{what}, the most of all: they seem to be cut")


def foreign_texts(texts: Sequence[str], tokenizer: Tokenizer, usual: float | None, noun: str) -> Iterator[Notice]:
    """Notices of texts in which tokens have far fewer bytes than usual, or are unknown.

    usual: bytes of a token of the text that the tokenizer's model was trained on. Where that is unknown, the median of
    `texts` is taken, and USUAL or more for a large vocabulary.
    """
    ids, lengths = tokenizer.encode_many(texts)
    n_bytes = np.array([len(text.encode()) for text in texts])
    long = (n_bytes >= LEAST_BYTES) & (lengths > 0)
    if not long.any():
        return
    n_unknown = int((ids == tokenizer.unk_id).sum()) if tokenizer.kind != "bpe" else 0
    if n_unknown > UNKNOWN * len(ids):
        text = f"{100 * n_unknown / len(ids):.0f} % of the tokens are unknown to the tokenizer"
        yield Notice("unknown tokens", n_unknown, text)
    per_token = n_bytes[long] / lengths[long]
    least = USUAL if tokenizer.vocab_size >= LARGE else 0.0
    expected = max(float(np.median(per_token)), least) if usual is None else usual
    foreign = np.flatnonzero(per_token < FEW_BYTES * expected)
    if len(foreign):
        first = int(np.flatnonzero(long)[foreign[0]]) + 1
        usage = n_bytes[long][foreign].sum() / lengths[long][foreign].sum()
        text = (
            f"{len(foreign):,} of {format_count(len(texts), noun)} are not in the language of the tokenizer: "
            f"{usage:.1f} bytes per token, where {expected:.1f} are usual; first: {noun} {first:,}"
        )
        yield Notice("texts in another language", len(foreign), text)


def misspelt(counts: Mapping[str, int]) -> dict[str, str]:
    """For each label that seems to be misspelt the commoner one that it should be.

    counts: rows by label. Labels differ in case, spaces, hyphens and underscores; or one letter of a word is missing,
    added, wrong, or exchanged with its neighbour. Linear in the characters of all labels (symmetric deletion).
    """
    ordered = sorted(counts, key=lambda name: (-counts[name], name.swapcase()))
    right: dict[str, str] = {}
    commonest: dict[str, str] = {}
    for name in ordered:
        if (common := commonest.setdefault(fold_name(name), name)) != name:
            right[name] = common
    spelt = {name: re.sub(r"[\s_-]+", " ", name.casefold()) for name in commonest.values()}
    alike: dict[str, list[str]] = {}
    for name, letters in spelt.items() if len(spelt) <= MOST_LABELS else ():
        if len(letters) > LONGEST:
            continue
        shorter = [letters[:i] + letters[i + 1 :] for i, letter in enumerate(letters) if letter.isalpha()]
        rivals = dict.fromkeys(rival for key in (letters, *shorter) for rival in alike.get(key, ()))
        for rival in sorted(rivals, key=lambda rival: -counts[rival]):
            if counts[rival] > counts[name] and _is_one_letter(letters, spelt[rival]):
                right[name] = right.get(rival, rival)
                break
        for key in (letters, *shorter):
            if len(known := alike.setdefault(key, [])) < _RIVALS:
                known.append(name)
    return {name: right.get(right[name], right[name]) for name in ordered if name in right}


def _is_one_letter(one: str, other: str) -> bool:
    """Whether texts differ in one letter of a word, or in the order of two."""
    start = common_prefix_length(one, other)
    end = common_prefix_length(one[start:][::-1], other[start:][::-1])
    rests = [text[start : len(text) - end] for text in (one, other)]
    is_swap = len(rests[0]) == 2 and rests[0] == rests[1][::-1]
    if not "".join(rests).isalpha() or (max(map(len, rests)) > 1 and not is_swap):
        return False
    longer = max(one, other, key=len)
    word = re.search(r"[^\W\d_]*$", longer[:start]), re.match(r"[^\W\d_]*", longer[start:])
    return sum(len(part[0]) for part in word if part) >= WORD


def merge_option(name: str, other: str) -> str:
    """The words of a command that read a label as another one; a file of them where the sign = is in its name."""
    return f"--merge-labels {'FILE.csv' if '=' in name else shlex.quote(f'{name}={other}')}"


def label_notices(rows: Iterable[tuple[tuple[str, ...], str]]) -> Iterator[Notice]:
    """Notices of the classes of a training table. rows: the classes of each, and where it is, such as "line 5"."""
    counts: Counter[str] = Counter()
    lines: dict[str, list[str]] = {}
    is_multi = False
    for names, line in rows:
        is_multi |= len(names) != 1
        for name in names:
            counts[name] += 1
            if len(first := lines.setdefault(name, [])) < TOLD:
                first.append(line)
    similar = misspelt(counts)
    if similar:
        n_rows = sum(counts[name] for name in similar)
        text = f"{format_count(n_rows, 'row')} with labels that differ in a letter or in case from commoner ones: "
        text += " ".join(
            f"{quote(name, 40)} ({format_count(counts[name], 'row')}: {', '.join(lines[name])}"
            f"{', …' * (counts[name] > TOLD)}), "
            f"did you mean {quote(common, 40)} ({format_count(counts[common], 'row')})?"
            for name, common in list(similar.items())[:TOLD]
        )
        more = f"; and {format_count(len(similar) - TOLD, 'more label')}" if len(similar) > TOLD else ""
        options = dict.fromkeys(merge_option(*pair) for pair in list(similar.items())[:TOLD])
        text += f"{more}; to read them so: {' '.join(options)}"
        yield Notice("similar labels", n_rows, text)
    together = Counter(counts)
    for name, common in similar.items():
        together[common] += together.pop(name)
    most, least = max(together, key=lambda name: together[name]), min(together, key=lambda name: together[name])
    if together[most] >= IMBALANCE * together[least]:
        text = (
            f"{quote(most, 40)} has {format_count(together[most], 'row')}, {quote(least, 40)} has {together[least]:,}"
        )
        text += " (similar labels counted together)" if {most, least} & {*similar.values()} else ""
        text = f"heavy imbalance: {text}; macro F1 weights both equally"
        yield Notice("heavy imbalance", together[most] // together[least], text)
    alone = sorted(name for name, count in counts.items() if count == 1 and name not in similar)
    if is_multi and alone:
        text = f"labels with one row: {len(alone):,}; first: {quote(alone[0])}"
        yield Notice("labels with one row", len(alone), text)
