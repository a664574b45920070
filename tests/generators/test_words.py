"""The word lists and phrase tables of the generators can be read, and what is wrong in one is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import telling  # type: ignore[import-not-found]
import words  # type: ignore[import-not-found]

TOPICS = sorted(path.stem for path in (Path(words.__file__).parent / "words").glob("*.yaml"))


def texts(value: Any) -> Iterator[str]:
    """All strings of what a file holds, line by line."""
    if isinstance(value, str):
        yield from value.splitlines()
    else:
        for below in value.values() if isinstance(value, dict) else value:
            yield from texts(below)


@pytest.mark.parametrize("topic", TOPICS)
def test_lines_are_whole_words_and_their_brackets_match(topic: str) -> None:
    for text in texts(words.load(topic)):
        assert text == text.strip() or text.endswith(" "), text
        telling.compiled(text)


def test_blocks_are_read_line_by_line_and_refused_where_a_part_is_missing() -> None:
    assert words.fork("2 kept: one\n0.5 lost: two: three\n") == [(2.0, "one", "kept"), (0.5, "two: three", "lost")]
    with pytest.raises(ValueError, match="one"):
        words.fork("2 one\n")
    [row] = words.table("noun | plural\nfox | foxes\n")
    assert (row.noun, row.plural, str(row)) == ("fox", "foxes", "fox")
    with pytest.raises(TypeError):
        words.table("noun | plural\nfox\n")
    assert words.load("numbers")["numbers"][0] == "no"  # not False
