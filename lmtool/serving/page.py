"""Pages of servers, for prompts and for labelling. They send requests only to their own server."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

from markupsafe import Markup
from starlette.responses import HTMLResponse

from lmtool import __version__


def _read_template(name: str) -> str:
    return files("lmtool.serving").joinpath("templates", name).read_text(encoding="utf-8")


def _csp_hash(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def _render_page_and_csp(name: str) -> tuple[str, str]:
    """Returns the HTML of a page and its Content-Security-Policy, which allows its style, script and this server."""
    page, style, script = _read_template(f"{name}.html"), _read_template("page.css"), _read_template(f"{name}.js")
    for part, text in (("version", str(Markup.escape(__version__))), ("style", style), ("script", script)):
        page = page.replace(f"{{{{ {part} }}}}", text, 1)
    policy = (
        f"default-src 'none'; style-src {_csp_hash(style)}; script-src {_csp_hash(script)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return page, policy


def page_response(name: str) -> HTMLResponse:
    """Returns the page of a template."""
    page, policy = _render_page_and_csp(name)
    return HTMLResponse(page, headers={"content-security-policy": policy, "referrer-policy": "no-referrer"})
