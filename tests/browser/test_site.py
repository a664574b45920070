"""The site in a browser, as files and without a network: on phones and screens, its search, its colours."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Opened, Pages
from tests.support.site import build

pytestmark = pytest.mark.browser
KINDS = ["index", "course-1", "course-5", "generate", "cli", "recipe", "attention", "gallery/index", "gallery/names"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("site"))


@pytest.fixture
def open_page(in_browser: Pages, site: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page of the site without a network. It asks for nothing but files, and its console is silent."""
    opened: list[Opened] = []

    def call(name: str, width: int, **options: Any) -> Any:
        screen = {"width": width, "height": 740}
        opened.append(in_browser.open((site / f"{name}.html").as_uri(), viewport=screen, **options))
        return opened[-1].page

    yield call
    for one in opened:
        assert [url for url in one.requested if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
        assert one.complaints == []


@pytest.mark.parametrize("name", KINDS)
def test_a_page_fits_a_phone(open_page: Callable[..., Any], name: str) -> None:
    width = 360
    page = open_page(name, width)
    page.eval_on_selector_all("details", "all => all.forEach((details) => { details.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelectorAll('article h1').length") == 1
    images = "[...document.querySelectorAll('article img')].filter(i => i.loading != 'lazy' && !i.naturalWidth)"
    assert page.evaluate(f"{images}.map(i => i.src)") == []


@pytest.mark.parametrize("width", [360, 1200])
def test_a_word_is_found(open_page: Callable[..., Any], width: int) -> None:
    page = open_page("index", width)
    if width < 900:
        page.locator("label[for=__search]").first.click()
    page.locator("input.md-search__input").click()
    page.keyboard.type("perplexity", delay=20)
    found = page.locator(".md-search-result__link", has_text="Perplexity")
    found.first.wait_for()
    found.first.click()
    page.wait_for_url("**/*.html?h=*")


def test_colours_are_the_systems_and_change_by_a_click(open_page: Callable[..., Any]) -> None:
    scheme = "document.body.getAttribute('data-md-color-scheme')"
    light, dark = open_page("index", 1200, color_scheme="light"), open_page("index", 1200, color_scheme="dark")
    assert (light.evaluate(scheme), dark.evaluate(scheme)) == ("default", "slate")
    seen = set()
    for _ in range(3):
        light.locator("form[data-md-component=palette] label:not([hidden])").click()
        seen.add(light.evaluate(scheme))
    assert seen == {"default", "slate"}


def test_a_command_and_its_output_are_tabs(open_page: Callable[..., Any]) -> None:
    page = open_page("course-1", 1200)
    pair = page.locator(".tabbed-set").first
    assert pair.locator(".tabbed-labels label").all_text_contents() == ["Command", "Output"]
    assert pair.locator("pre").nth(0).is_visible()
    pair.locator(".tabbed-labels label").nth(1).click()
    assert pair.locator("pre").nth(1).is_visible()
    assert not pair.locator("pre").nth(0).is_visible()
