"""Pages: nothing is requested, text stays text, and the policy allows what the page holds and no more."""

import base64
import hashlib
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from lmtool.report.page import Section, embed_json, facts, figure, page, switchable_panels, table, write_page
from tests.support.errors import refuses
from tests.support.pages import HOSTILE, Elements


def a_page(text: str = "w0rd", **options: Any) -> str:
    numbers = table([text, "n"], [[text, 1.5], [text, None]], caption=text, row_headers=True)
    sections = [
        Section(text, text),
        Section("table", figure(switchable_panels("v", {text: "a", "other": "b"}), text, numbers)),
        Section("facts", facts([(text, text)]) + embed_json("data", {text: text})),
    ]
    return page(text, sections, lead=text, **options)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_makes_no_element_and_no_attribute(text: str) -> None:
    harmless, hostile = Elements(a_page()), Elements(a_page(text))
    assert hostile.tags() == harmless.tags()
    assert hostile.text.count(text) == harmless.text.count("w0rd")
    (data,) = [source for _, a, source in hostile.sources if a.get("id") == "data"]
    assert json.loads(data) == {text: text}


def test_control_characters_and_lone_surrogates_are_escaped() -> None:
    html = a_page("a\x00\x1b[31m\udc80\nb")
    assert html.encode()
    assert "a\\x00\\x1b[31m\\udc80\nb" in html


def test_the_policy_allows_only_the_styles_and_scripts_of_the_page() -> None:
    read = Elements(a_page(styles=["tokens.css"], scripts=["tokens.js"]))
    (content,) = [a["content"] for _, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    policy: dict[str, str] = dict(re.findall(r"([\w-]+) ([^;]+)", str(content)))
    for kind in ("style", "script"):
        sources = [text for tag, a, text in read.sources if tag == kind and a.get("type") != "application/json"]
        hashes = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources]
        assert policy.pop(f"{kind}-src").split() == [f"'sha256-{digest}'" for digest in hashes]
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    # it holds from the start: nothing that it restricts comes before it
    assert [tag for tag, _ in read.elements[:4]] == ["html", "head", "meta", "meta"]


def test_nothing_is_requested() -> None:
    html = a_page(refresh_seconds=5)
    read = Elements(html)
    assert not re.search(r"https?:|@import|url\(|//[a-z]", html)
    for tag, attributes in read.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "audio", "video", "base", "form")
        assert not {"src", "srcset", "style", "action", "data"} & attributes.keys()
        assert str(attributes.get("href", "#")).startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_a_body_is_text_unless_it_is_markup() -> None:
    html = page("t", [Section("a", "<i>"), Section("b", Markup("<i>x</i>"))])
    assert "&lt;i&gt;" in html
    assert "<i>x</i>" in html


def test_no_style_or_script_ends_its_element() -> None:
    assets = [path for path in (files("lmtool.report") / "templates").iterdir() if path.name.endswith((".css", ".js"))]
    assert assets
    assert not any("</" in path.read_text(encoding="utf-8") for path in assets)


def test_embedded_data_are_finite() -> None:
    with pytest.raises(ValueError, match="JSON"):
        embed_json("x", float("nan"))


def test_writing_replaces_and_says_where_it_cannot(tmp_path: Path) -> None:
    for text in ("one", "two"):
        write_page(tmp_path / "page.html", text)
    assert (tmp_path / "page.html").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    with refuses("file_not_found") as raised:
        write_page(tmp_path / "none" / "page.html", "x")
    assert str(tmp_path / "none") in str(raised.value.lines())
