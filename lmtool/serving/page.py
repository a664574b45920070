"""The page of the server: prompts in, tokens with their probabilities out. It asks nobody but its own server."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from markupsafe import Markup

from lmtool import __version__


def _file(name: str) -> str:
    return files("lmtool.serving").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


_STYLE, _SCRIPT = _file("page.css"), _file("page.js")

POLICY = (
    f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy: this style, this script, and requests to this server."""


@cache
def as_page() -> str:
    """The page."""
    page = _file("page.html")
    for name, text in (("version", str(Markup.escape(__version__))), ("style", _STYLE), ("script", _SCRIPT)):
        page = page.replace(f"{{{{ {name} }}}}", text, 1)
    return page
