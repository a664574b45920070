"""Escapes control characters of untrusted text, which would move a terminal's cursor or change its colours."""

import unicodedata


def plain(text: str, *, lines: bool = False) -> str:
    """`text` on one line, with control characters, line ends and lone surrogates escaped as in Python.

    With `lines`, for multi-line texts, newline, tab and all non-control characters, such as emoji joiners, are kept.
    """
    if text.isprintable():
        return text  # nearly always, and fast
    if lines:
        # By its code, as other control characters: `\r` could be mistaken for a line end.
        text = text.replace("\r", r"\x0d")

    def stays(character: str) -> bool:
        return lines and (character in "\n\t" or unicodedata.category(character) != "Cc")

    return "".join(c if c.isprintable() or stays(c) else c.encode("unicode_escape").decode("ascii") for c in text)
