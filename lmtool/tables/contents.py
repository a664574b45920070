"""What the cells of a column are: texts, or numbers, dates, names of files and the like."""

import re
from collections.abc import Sequence

from lmtool.tables.labels import MANY
from lmtool.text.table import Value

MOST = 0.9
"""Share of cells that decides for all of them."""

SEVERAL = 0.5
"""Share of cells of several words in a column of prose; and of different ones, up to MANY."""

LONGEST_CODE = 200
"""Characters of a cell that may be no text."""

_NUMBER = re.compile(r"[^\w\s]{0,2}\d[\d.,' ]*(?:[eE][+-]?\d+)?\s?[^\w\s]?")
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?"
_DATE = re.compile(
    rf"(?:\d{{1,4}}[-/.]\d{{1,2}}[-/.]\d{{1,4}}|\d{{1,2}}\.? {_MONTH},? \d{{2,4}}|{_MONTH} \d{{1,2}},? \d{{2,4}})"
    r"(?:[T ,]+\d{1,2}:\d{2}\S*(?: ?[ap]\.?m\.?)?(?: \S+)?)?",
    re.IGNORECASE,
)
_CODE = re.compile(r"\S*(?:\d|://|\S@\S)\S*")
"""One word with a digit, an address of mail, or one of a page."""


def is_code(cells: Sequence[Value]) -> bool:
    """Whether the cells are surely no texts: other values, numbers, dates, words with digits, or all the same.

    Empty cells do not count.
    """
    texts = _texts(cells)
    if len(texts) < MOST * sum(cell is not None and cell != "" for cell in cells) or not texts:
        return True
    short = [text for text in texts if len(text) <= LONGEST_CODE]
    n_codes = sum(any(shape.fullmatch(text) for shape in (_NUMBER, _DATE, _CODE)) for text in short)
    return n_codes >= MOST * len(texts) or (len(texts) > 1 and len(set(texts)) == 1)


def is_prose(cells: Sequence[Value]) -> bool:
    """Whether the cells are surely texts: of several words, and no categories."""
    texts = _texts(cells)
    n_several = sum(len(text.split()) > 1 for text in texts)
    return (
        not is_code(cells) and n_several >= SEVERAL * len(texts) and len(set(texts)) > min(MANY, SEVERAL * len(texts))
    )


def _texts(cells: Sequence[Value]) -> list[str]:
    return [text for cell in cells if isinstance(cell, str) and (text := cell.strip())]
