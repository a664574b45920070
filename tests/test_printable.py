"""Text that comes from outside, as it is printed."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from lmtool.printable import first_line, format_count, printable, printable_repr


def test_what_does_not_print_is_escaped() -> None:
    assert printable("a\tb\nc\x1b[31m\r\x9b\u200b\ud83d é日 \\n") == r"a\tb\nc\x1b[31m\r\x9b\u200b\ud83d é日 \n"
    lines = printable("a\tb\nc\x1b[31m\x07\r\x7f\x9b é日👩‍👧[bold]", keep_line_breaks=True)
    assert lines == "a\tb\n" + r"c\x1b[31m\x07\x0d\x7f\x9b é日👩‍👧[bold]"


@given(text=st.text())
def test_no_control_character_is_left(text: str) -> None:
    assert printable(text).isprintable()
    assert all(c in "\n\t" or unicodedata.category(c) != "Cc" for c in printable(text, keep_line_breaks=True))
    if text.isprintable():
        assert printable(text) == printable(text, keep_line_breaks=True) == text


def test_a_number_has_its_noun() -> None:
    assert [format_count(n, "row") for n in (0, 1, 2, 1234)] == ["0 rows", "1 row", "2 rows", "1,234 rows"]
    assert [format_count(n, "class", "classes") for n in (1, 2)] == ["1 class", "2 classes"]


def test_the_first_line_of_an_error_is_printable() -> None:
    assert first_line(ValueError("\n no\x07 such file \nand more"), 12) == r"no\x07 such "
    assert first_line(ValueError(), 12) == "ValueError"


def test_a_value_of_a_file_is_shortened() -> None:
    assert printable_repr("a\u200b") == r"'a\u200b'"
    assert len(printable_repr(["é\x00"] * 1000)) == 60
    assert printable_repr("abc", 3) == "'ab"
