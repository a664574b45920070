"""Text that comes from outside, as it is printed."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from lmtool.printable import counted, plain


def test_one_line_is_printable():
    assert plain("a\tb\nc\x1b[31m\r\x9b\u200b\ud83d é日 \\n") == r"a\tb\nc\x1b[31m\r\x9b\u200b\ud83d é日 \n"


def test_lines_stay_lines():
    assert (
        plain("a\tb\nc\x1b[31m\x07\r\x7f\x9b é日👩‍👧[bold]", lines=True) == r"a"
        "\tb\n"
        r"c\x1b[31m\x07\x0d\x7f\x9b é日👩‍👧[bold]"
    )


@given(text=st.text())
def test_no_control_character_is_left(text):
    assert plain(text).isprintable()
    assert all(c in "\n\t" or unicodedata.category(c) != "Cc" for c in plain(text, lines=True))
    if text.isprintable():
        assert plain(text) == plain(text, lines=True) == text


def test_a_number_has_its_noun():
    assert [counted(n, "row") for n in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert [counted(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]
