"""Pages of servers, to write prompts in, or to label in. They ask nobody but their own server."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from markupsafe import Markup
from starlette.responses import HTMLResponse

from lmtool import __version__


def _file(name: str) -> str:
    return files("lmtool.serving").joinpath("templates", name).read_text(encoding="utf-8")


def _hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def _page(name: str) -> tuple[str, str]:
    """A page, and its Content-Security-Policy: this style, this script, and requests to this server."""
    page, style, script = _file(f"{name}.html"), _file("page.css"), _file(f"{name}.js")
    for part, text in (("version", str(Markup.escape(__version__))), ("style", style), ("script", script)):
        page = page.replace(f"{{{{ {part} }}}}", text, 1)
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def page_response(name: str) -> HTMLResponse:
    """The page of a template of this name."""
    page, policy = _page(name)
    return HTMLResponse(page, headers={"content-security-policy": policy, "referrer-policy": "no-referrer"})
