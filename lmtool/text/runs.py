"""Cuts very long runs of letters, marks or white space, on which training a tokenizer takes quadratic time."""

import re
from collections.abc import Iterator

LONGEST_RUN = 1024
"""Characters of a run of one class from which it is cut. Ordinary text has none: long words have some 50 letters."""

_LETTER_OR_SPACE = re.compile(r"[^\W_]|\s")


def cut_runs(text: str) -> Iterator[str]:
    """`text` in pieces without long runs of letters and digits, of other visible characters, or of white space.

    Every run of twice LONGEST_RUN characters or more is cut, none below LONGEST_RUN is, and a text without one is
    yielded as it is. The pieces concatenated are the text. A tokenizer trained on them is as one trained on the text,
    but for tokens of more than LONGEST_RUN characters.
    """
    done = 0
    for start in range(0, len(text) - LONGEST_RUN + 1, LONGEST_RUN):
        part = text[start : start + LONGEST_RUN]
        if part.isalnum() or part.isspace() or not _LETTER_OR_SPACE.search(part):
            if start > done:
                yield text[done:start]
            yield part
            done = start + LONGEST_RUN
    if done < len(text) or not text:
        yield text[done:]
