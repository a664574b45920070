"""The site: built without a dead link, whole, of the pages and of the program; and what its hooks make of a page."""

import posixpath
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmtool.cli import COMMANDS
from lmtool.recipe.load import shipped_recipes
from tests.support.site import ROOT, build

FILES = "https://example.org/r/blob/main/"
MOST_PAGES = 28
"""In the four parts, without the gallery."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


QUESTIONS = {
    "How do I install it?": "index.html#install",
    "How do I train on my own text?": "pretrain.html",
    "Does that fit into my machine, and how long does it take?": "pretrain.html#planning-a-run",
    "How do I go on after an interruption?": "runs.html#resuming",
    "How do I choose how it writes?": "generate.html#decoding-strategies",
    "How do I classify the rows of my table?": "finetuning.html#fine-tuning-on-a-table",
    "How good is my model?": "eval.html",
    "Can I use a model from Hugging Face?": "serve.html#published-models",
    "How do I call it from a program?": "python.html",
    "What does this key of a recipe mean, and which paper is it from?": "recipe.html#every-key",
}
MOST_CLICKS = 3


class Links(HTMLParser):
    """The addresses that a page names. inside: those of its text and of the contents beside it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        text = page.read_text(encoding="utf-8")
        self.feed(text)
        article = text[text.index("<article") : text.index("</article>")]
        self.inside = re.findall(r'href="([^"]+)"', article) + re.findall(r'href="(#[^"]+)"', text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.found += [value for name in ("href", "src") if (value := named.get(name))]
        assert tag == "a" or not re.match(r"(https?:)?//", named.get("href") or named.get("src") or ""), attrs
        self.ids.add(named.get("id") or "")


@pytest.mark.system
def test_every_link_of_the_site_leads_to_a_file_and_a_heading(site: Path) -> None:
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, links in pages.items():
        for link in links.found:
            path, _, anchor = link.partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            target = (page.parent / path).resolve() if path else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor.startswith("__") or anchor in pages[target].ids, f"{page.name}: {link}"
    for link in {link for links in pages.values() for link in links.found if link.startswith(FILES)}:
        assert (ROOT / link.removeprefix(FILES).partition("#")[0]).exists(), link


@pytest.mark.system
@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_is_answered_in_few_clicks(site: Path, question: str) -> None:
    """By links of the text and the contents of a page; the menu has every page, too."""
    reached = {"index.html", "index.html#install"}
    for _ in range(MOST_CLICKS):
        if QUESTIONS[question] in reached:
            return
        for page in {place.partition("#")[0] for place in reached}:
            links = [link for link in Links(site / page).inside if not re.match(r"[a-z]+:", link)]
            folder = posixpath.dirname(page)
            places = {page + link if link[0] == "#" else posixpath.join(folder, link) for link in links}
            places = {posixpath.normpath(place) for place in places if ".html" in place}
            reached |= places | {place.partition("#")[0] for place in places}
    assert QUESTIONS[question] in reached


@pytest.mark.system
def test_the_reference_is_of_the_program(site: Path) -> None:
    commands = (site / "cli.html").read_text(encoding="utf-8")
    assert all(f'id="lmtool-{name}"' in commands for name in COMMANDS)
    keys = (site / "recipe.html").read_text(encoding="utf-8")
    assert "model.head_width" in keys
    assert "Vaswani et al. 2017" in keys
    assert all(f'id="{name.replace(".", "")}"' in keys for name in shipped_recipes())
    python = (site / "python.html").read_text(encoding="utf-8")
    assert 'id="lmtoolapitrainedmodel"' in python
    assert "NumericalError" in python


@pytest.mark.system
def test_models_that_read_the_site_find_each_page(site: Path) -> None:
    text = (site / "llms.txt").read_text(encoding="utf-8")
    links = re.findall(r"^- \[.+\]\((.+)\): \S.{9,}$", text, flags=re.MULTILINE)
    assert text.startswith("# lmtool\n\n> ")
    assert len(links) == len(set(links)) == text.count("\n- ")
    assert {site / link for link in links} == {*site.rglob("*.html")} - {site / "404.html"}


def test_the_four_parts_have_no_more_pages_than_a_reader_can_overlook() -> None:
    text = re.sub(r"!\S+ ", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    parts = {name: pages for part in yaml.safe_load(text)["nav"] for name, pages in part.items()}
    assert list(parts) == ["Tutorial", "How-to", "Reference", "Explanation", "Gallery"]
    assert sum(len(pages) for name, pages in parts.items() if name != "Gallery") <= MOST_PAGES


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What MkDocs calls while it builds the site."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "site"))
    return __import__("hooks")


COURSE = """# The course

Words.

## Contents

| question | topic | command |
|---|---|---|
| **1. One** | | |
| What? | [A](#a) | `x` |
"""


def test_the_course_becomes_chapters(hooks: Any) -> None:
    names = ("One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")
    text = COURSE + "".join(f"| **{n}. {name}** | | |\n" for n, name in enumerate(names[1:], 2))
    for number, name in enumerate(names, 1):
        text += f"\n## {number}. {name}\n\n### {'ABCDEFGHIJ'[number - 1]}\nText {number}.\n"
    text += "\n## Models behind the topics\n\nModels.\n"
    pages = hooks.split_course(text)
    assert list(pages) == [f"course-{number}.md" for number in range(1, 9)]
    head = '---\n{"description": "A"}\n---\n# The course, 1: One\n\nWords.\n\n\n| question |'
    assert pages["course-1.md"].startswith(head)
    assert pages["course-8.md"].endswith("## Models behind the topics\n\nModels.\n")
    for name, parts in {
        "course-1.md": ("| What? |", "\n## A\nText 1."),
        "course-3.md": ("\n# The course, 3: Three, four\n", "## Four", "### D\nText 4."),
    }.items():
        assert [part for part in parts if part not in pages[name]] == []
    assert hooks.ANCHORS["j"] == hooks.ANCHORS["10-ten"] == "course-6.md"


@pytest.mark.parametrize(
    ("source", "link", "led"),
    [
        ("eval.md", "[A](course.md#perplexity)", "[A](course-1.md#perplexity)"),
        ("gallery/book.md", "[A](../course.md)", "[A](../course-1.md)"),
        ("course-1.md", "[A](#gpt)", "[A](course-5.md#gpt)"),
        ("course-1.md", "[`A [b]`](../lmtool/a.py)", "[`A [b]`](https://x/blob/main/lmtool/a.py)"),
        ("runs.md", "[A](notebooks/b.ipynb)", "[A](notebooks/b.md)"),
        ("runs.md", "[A](decisions/b.md#c)", "[A](https://x/blob/main/docs/decisions/b.md#c)"),
        ("runs.md", "[A](../README.md)", "[A](https://x/blob/main/README.md)"),
        *(
            ("runs.md", same, same)
            for same in (
                *("![A](pictures/a.svg)", "[A](https://y/course.md)", "[A](course.md#no-such-topic)"),
                *("    [A](course.md#gpt)", "`[A](course.md#gpt)`", "```\n[A](course.md)\n```"),
            )
        ),
    ],
)
def test_links_lead_to_pages_of_the_site(hooks: Any, source: str, link: str, led: str) -> None:
    hooks.split_course((ROOT / "docs" / "course.md").read_text(encoding="utf-8"))
    assert hooks.with_links(link, source, "https://x") == led


def test_without_a_repository_its_files_are_no_links(hooks: Any) -> None:
    assert hooks.with_links("[`a`](../lmtool/a.py) and [b](eval.md)", "runs.md", "") == "`a` and [b](eval.md)"


def test_a_command_and_its_output_are_tabs(hooks: Any) -> None:
    tabbed = hooks.with_tabs
    page = "```sh\nls\n\nls\n```\n<!-- output: last 2 -->\n```text\na\n```\n\nText.\n"
    command = '===! "Command"\n\n    ```sh\n    ls\n\n    ls\n    ```\n\n'
    assert tabbed(page) == command + '=== "Output"\n\n    ```text\n    a\n    ```\n\n\n\nText.\n'
    assert tabbed(page.removesuffix("\nText.\n") * 2).count('===! "Command"') == 2, "each a set of its own"
    alone = "```sh\nls\n```\n\nText.\n\n```sh\nls\n```\n\n<!-- picture -->\n\n```text\na\n```\n"
    assert tabbed(alone) == alone


def test_formulas_become_mathml(hooks: Any) -> None:
    pytest.importorskip("latex2mathml", reason="needs latex2mathml: pip install -e '.[docs]'")
    page = r'<p>a <span class="arithmatex">\(x_1 &lt; y\)</span> <pre class="arithmatex">\[\sum_t p_t\]</pre></p>'
    drawn = hooks.with_formulas(page)
    assert drawn.count("<math ") == 2
    assert "&#x0003C;" in drawn
    assert '<div class="formula"' in drawn
    assert "arithmatex" not in drawn
