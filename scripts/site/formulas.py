"""Formulas between dollar signs as MathML, which browsers draw without a script."""

import html
import re

from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|pre) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)


def rendered(page: str) -> str:
    """The HTML of a page with its formulas drawn; those in lines of their own can be scrolled where they are wide."""

    def drawn(found: re.Match[str]) -> str:
        is_block = found["open"] == "["
        formula = convert(html.unescape(found["latex"]).strip(), display="block" if is_block else "inline")
        return f'<div class="formula" tabindex="0">{formula}</div>' if is_block else formula

    return FORMULA.sub(drawn, page)
