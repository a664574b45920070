"""Builds pages: single HTML files that request nothing, with all text escaped and a table of numbers for each picture.

A page consists of sections of HTML. The functions here and in `charts` return HTML as `Markup`; a plain `str` is text,
which is escaped wherever it is put.
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

from lmtool import __version__
from lmtool.printable import printable
from lmtool.report.numbers import format_number, format_tick
from lmtool.storage import durable

N_COLOURS = 8
"""Number of colours for lines of a chart."""

TableCell = str | int | float | None
"""A table cell: text (escaped unless it is Markup), a number, or nothing."""


class Section(NamedTuple):
    """A part of a page under its own heading. body: HTML, or text to escape."""

    title: str
    body: str


def page(
    title: str,
    sections: Iterable[Section],
    *,
    lead: str = "",
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    refresh_seconds: int | None = None,
) -> str:
    """Returns a complete HTML document.

    lead: a line or HTML below the title.
    styles, scripts: assets with CSS and JavaScript for this page, which follow those of all pages.
    refresh_seconds: interval at which a browser reads the file again.

    The Content-Security-Policy allows these styles and scripts, by their SHA-256, and nothing else: no request, no
    inline handler, no `style` attribute. So set `class`, SVG's own attributes, or `element.style` from a script.
    """
    all_styles = [Markup(read_asset(name)) for name in ("charts.css", "page.css", *styles)]
    all_scripts = [Markup(read_asset(name)) for name in ("page.js", *scripts)]
    style_hashes, script_hashes = (" ".join(map(_csp_hash, sources)) for sources in (all_styles, all_scripts))
    allowed = f"default-src 'none'; style-src {style_hashes}; script-src {script_hashes}"
    policy = Markup(f"{allowed}; base-uri 'none'; form-action 'none'")
    texts = {"title": title, "lead": lead, "sections": list(sections), "refresh": refresh_seconds}
    return str(render("page.html", policy=policy, styles=all_styles, scripts=all_scripts, **texts))


def write_page(path: Path, html: str) -> None:
    """Replaces a file by a page, atomically. Raises ResourceError."""
    durable.write_file(path, html.encode())


def is_lmtool_page(path: Path, heading: str) -> bool:
    """Returns whether a file is a page of lmtool with a section whose heading begins with `heading`."""
    with suppress(OSError):
        content = durable.read_file(path).decode("utf-8", "replace")
        return '<meta name="generator" content="lmtool ' in content and f"<h2>{heading}" in content
    return False


def check_page_is_replaceable(path: Path, heading: str) -> None:
    """Raises UsageError for a file that exists, unless it is a page of lmtool with such a section."""
    if not is_lmtool_page(path, heading):
        durable.check_path_does_not_exist(path)


def render(template: str, /, **values: object) -> Markup:
    """Renders a template of `lmtool/report/templates/` with these values, whose text is escaped."""
    return Markup(_make_environment().get_template(template).render(values))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[TableCell]], *, caption: str = "", row_headers: bool = False
) -> Markup:
    """Renders a table. Numbers are right-aligned; None is an empty cell. row_headers: the first cell of each row."""
    return render("table.html", columns=columns, rows=list(rows), caption=caption, headed=row_headers)


def facts(pairs: Iterable[tuple[str, TableCell]]) -> Markup:
    """Renders names and values as a description list."""
    return render("facts.html", pairs=list(pairs))


def figure(picture: str, caption: str, numbers: str) -> Markup:
    """Renders a picture with its caption, and its numbers in a part that opens.

    picture: one SVG of `charts`, or several in `switchable_panels`. numbers: a table. The pointer reads values from the
    table, which therefore needs the layout that the chart's docstring describes.
    """
    return render("figure.html", picture=picture, caption=caption, numbers=numbers)


def switchable_panels(name: str, panels: Mapping[str, str]) -> Markup:
    """Renders at most 8 panels, of which radio buttons show one, without script. name: unique on the page."""
    if len(panels) > 8:
        raise ValueError("at most 8 views")
    return render("views.html", name=name, panels=dict(panels))


def embed_json(identifier: str, value: object) -> Markup:
    """Renders data for a script, which reads it by JSON.parse(document.getElementById(identifier).textContent).

    No text in it can end the element. Raises ValueError for NaN and infinities.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return render("data.html", identifier=identifier, text=Markup(text))


def escape_controls(text: str) -> str:
    """Escapes control characters and lone surrogates, which HTML forbids, as Python does."""
    return printable(text, keep_line_breaks=True).encode("utf-8", "backslashreplace").decode()


def _to_template_text(value: object) -> object:
    """Returns what a template prints for a value, before HTML is escaped."""
    return value if isinstance(value, Markup) else "" if value is None else escape_controls(str(value))


@cache
def _make_environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("lmtool.report"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_to_template_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": format_number, "short": format_tick}
    environment.globals |= {"colours": N_COLOURS, "version": __version__}
    return environment


@cache
def read_asset(name: str) -> str:
    """Reads a style or a script of `lmtool/report/templates/`."""
    return (files("lmtool.report") / "templates" / name).read_text(encoding="utf-8")


def _csp_hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"
