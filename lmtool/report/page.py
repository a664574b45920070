"""Pages: single HTML files that request nothing, with all text escaped and the numbers behind each picture.

A page is sections of HTML, each a `Markup` made by the functions here and in `charts`, or by `render` from a template.
A plain `str` is text: it is escaped wherever it is put.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from lmtool import __version__, durable
from lmtool.printable import printable
from lmtool.report.numbers import short, shown

COLOURS = 8
"""Colours that pages have, numbered from 0."""

TableCell = str | int | float | None
"""A table cell: text (escaped unless it is Markup), a number, or nothing."""


class Section(NamedTuple):
    """A part of a page under a heading of its own. body: HTML, or text to escape."""

    title: str
    body: str


def page(
    title: str,
    sections: Iterable[Section],
    *,
    lead: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    refresh: int | None = None,
) -> str:
    """An HTML document that stands alone.

    lead: a line or HTML below the title. styles, scripts: CSS and JavaScript of this page, after those of all pages.
    refresh: seconds after which a browser reads the file again.
    The Content-Security-Policy allows these styles and scripts, by their SHA-256, and nothing else: no request, no
    inline handler, no `style` attribute. So set `class`, SVG's own attributes, or `element.style` from a script.
    """
    all_styles = [Markup(style) for style in (asset("charts.css"), asset("page.css"), *styles)]
    all_scripts = [Markup(script) for script in (asset("page.js"), *scripts)]
    for source in (*all_styles, *all_scripts):
        if "</" in source:
            raise ValueError("CSS and JavaScript of a page must not contain '</'")
    hashes = " ".join(map(_hash, all_styles)), " ".join(map(_hash, all_scripts))
    sources = "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'".format(*hashes)
    told = {"title": title, "lead": lead, "sections": list(sections), "refresh": refresh}
    return str(render("page.html", policy=Markup(sources), styles=all_styles, scripts=all_scripts, **told))


def write_page(path: Path, html: str) -> None:
    """Write a page to a file, replacing it atomically. Raises ResourceError."""
    with durable.convert_os_errors("cannot write the page", path, durable.suggest_write_fix):
        durable.replace_file(path, html.encode())


def is_page(path: Path, heading: str) -> bool:
    """Whether a file is a page of lmtool with a section whose heading begins so."""
    with suppress(OSError):
        content = durable.read_file(path).decode("utf-8", "replace")
        return '<meta name="generator" content="lmtool ' in content and f"<h2>{heading}" in content
    return False


def refuse_other(path: Path, heading: str) -> None:
    """Raise UsageError for a file that exists and is not such a page; see `is_page`."""
    if not is_page(path, heading):
        durable.check_path_is_free(path)


def render(template: str, /, **values: object) -> Markup:
    """A template of `lmtool/report/templates/` with these values, all text in it escaped."""
    return Markup(_environment().get_template(template).render(values))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[TableCell]], *, caption: str = "", headed: bool = False
) -> Markup:
    """A table. Numbers are right-aligned; None is an empty cell. headed: the first cell of each row is its header."""
    return render("table.html", columns=columns, rows=list(rows), caption=caption, headed=headed)


def facts(pairs: Iterable[tuple[str, TableCell]]) -> Markup:
    """Names and values as a description list."""
    return render("facts.html", pairs=list(pairs))


def figure(picture: str, caption: str, numbers: str) -> Markup:
    """A picture with its caption, and its numbers, a `table`, behind a line that opens them.

    picture: one SVG of `charts`, or several in `views`. What is pointed at is read from the table, which therefore
    has the layout that the chart's docstring says.
    """
    return render("figure.html", picture=picture, caption=caption, numbers=numbers)


def views(name: str, panels: Mapping[str, str]) -> Markup:
    """Panels of which one is shown, chosen by radio buttons, without script. name: unique on the page; at most 8."""
    if len(panels) > 8:
        raise ValueError("at most 8 views")
    return render("views.html", name=name, panels=dict(panels))


def embed(identifier: str, value: object) -> Markup:
    """Data for a script of the page: JSON.parse(document.getElementById(identifier).textContent).

    No text in it can end the element. Raises ValueError for NaN and infinities.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return render("data.html", identifier=identifier, text=Markup(text))


def clean(text: str) -> str:
    """`text` with control characters and lone surrogates, which no page may hold, escaped as in Python."""
    return printable(text, keep_line_breaks=True).encode("utf-8", "backslashreplace").decode()


def _finalize(value: object) -> object:
    """What a template prints of a value; the text is escaped afterwards."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return ""
    return clean(str(value))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("lmtool.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": shown, "short": short}
    environment.globals |= {"colours": COLOURS, "version": __version__}
    return environment


@cache
def asset(name: str) -> str:
    """A style or a script of `lmtool/report/templates/`."""
    return (files("lmtool.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
