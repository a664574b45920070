"""Text from outside as it may be printed: what would move a terminal's cursor or change its colours is escaped."""

import unicodedata


def plain(text: str, *, lines: bool = False) -> str:
    """`text` on one line and as it is: control characters, line ends and lone surrogates are escaped as in Python.

    With `lines`, for texts of several lines, newline and tab stay, and all that is no control character: the joiners
    inside emoji, for example.
    """
    if lines:
        # By its code, as the other control characters: `\r` beside real line ends would read as one of them.
        text = text.replace("\r", r"\x0d")

    def stays(character: str) -> bool:
        return lines and (character in "\n\t" or unicodedata.category(character) != "Cc")

    return "".join(c if c.isprintable() or stays(c) else c.encode("unicode_escape").decode("ascii") for c in text)
