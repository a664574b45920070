"""Pages: nothing is requested, text stays text, and the policy allows what the page holds and no more."""

import base64
import hashlib
import json
import re
from importlib.resources import files

import pytest
from markupsafe import Markup

from lmtool.errors import ResourceError
from lmtool.report.page import (
    Section,
    embed_json,
    facts,
    figure,
    page,
    switchable_panels,
    table,
    write_page,
)
from tests.support.pages import HOSTILE, Elements

TEMPLATES = files("lmtool.report") / "templates"


def a_page(text="w0rd", **options):
    numbers = table([text, "n"], [[text, 1.5], [text, None]], caption=text, row_headers=True)
    sections = [
        Section(text, text),
        Section("table", figure(switchable_panels("v", {text: "a", "other": "b"}), text, numbers)),
        Section("facts", facts([(text, text)]) + embed_json("data", {text: text})),
    ]
    return page(text, sections, lead=text, **options)


def policy_of(read):
    (policy,) = [a["content"] for tag, a in read.elements if a.get("http-equiv") == "Content-Security-Policy"]
    return dict(directive.split(" ", 1) for directive in policy.split("; "))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_makes_no_element_and_no_attribute(text):
    harmless, hostile = Elements(a_page()), Elements(a_page(text))
    assert [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    assert [set(a) for _, a in hostile.elements] == [set(a) for _, a in harmless.elements]
    assert hostile.text.count(text) == harmless.text.count("w0rd")
    (data,) = [source for _, a, source in hostile.sources if a.get("id") == "data"]
    assert json.loads(data) == {text: text}


def test_control_characters_and_lone_surrogates_are_escaped():
    html = a_page("a\x00\x1b[31m\udc80\nb")
    assert html.encode()
    assert "a\\x00\\x1b[31m\\udc80\nb" in html


def test_the_policy_allows_only_the_styles_and_scripts_of_the_page():
    read = Elements(a_page(styles=["tokens.css"], scripts=["tokens.js"]))
    policy = policy_of(read)
    for kind in ("style", "script"):
        sources = [text for tag, a, text in read.sources if tag == kind and a.get("type") != "application/json"]
        hashes = [base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources]
        assert policy.pop(f"{kind}-src").split() == [f"'sha256-{digest}'" for digest in hashes]
    assert policy == {"default-src": "'none'", "base-uri": "'none'", "form-action": "'none'"}
    # it holds from the start: nothing that it restricts comes before it
    assert [tag for tag, _ in read.elements[:4]] == ["html", "head", "meta", "meta"]


def test_nothing_is_requested():
    html = a_page(refresh_seconds=5)
    read = Elements(html)
    assert not re.search(r"https?:|@import|url\(|//[a-z]", html)
    for tag, attributes in read.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "audio", "video", "base", "form")
        assert not {"src", "srcset", "style", "action", "data"} & attributes.keys()
        assert attributes.get("href", "#").startswith("#")
        assert not any(name.startswith("on") for name in attributes)


def test_a_body_is_text_unless_it_is_markup():
    html = page("t", [Section("a", "<i>"), Section("b", Markup("<i>x</i>"))])
    assert "&lt;i&gt;" in html
    assert "<i>x</i>" in html


def test_no_style_or_script_ends_its_element():
    assets = [path for path in TEMPLATES.iterdir() if path.name.endswith((".css", ".js"))]
    assert assets
    assert not any("</" in path.read_text(encoding="utf-8") for path in assets)


def test_embedded_data_are_finite():
    with pytest.raises(ValueError, match="JSON"):
        embed_json("x", float("nan"))


def test_a_page_that_cannot_be_written_says_where(tmp_path):
    with pytest.raises(ResourceError) as raised:
        write_page(tmp_path / "none" / "page.html", "x")
    assert str(tmp_path / "none") in str(raised.value.lines())


def test_writing_replaces(tmp_path):
    for text in ("one", "two"):
        write_page(tmp_path / "page.html", text)
    assert (tmp_path / "page.html").read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
