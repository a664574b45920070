"""A headless Chromium that notices whatever a page should not do."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import write_pages

sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright, which `make test-browser` installs")

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

WATCH = """
window.hits = 0;
window.hit = () => { window.hits += 1; };
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if CHROMIUM is None:
                item.add_marker(pytest.mark.skip(reason="needs Chromium: on Debian, apt-get install chromium"))


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """The file of each kind of page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))
        patch.setenv("LMTOOL_RUNS", os.getcwd())
        yield write_pages()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Visit:
    """A page in a context of its own. requests: URLs it asked for. complaints: of the console, and uncaught errors."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self.url = file.as_uri()
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(10_000)
        self.context.add_init_script(WATCH)
        self.page = self.context.new_page()
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        self.page.goto(self.url)

    def end(self) -> None:
        self.context.close()


@pytest.fixture
def visit(browser: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a kind of page. When the test is over, the page may have requested itself only, and complained of nothing.

    Options are those of Playwright's `new_context`.
    """
    visits: list[Visit] = []

    def opened(kind: str, **options: Any) -> Any:
        visits.append(Visit(browser, pages[kind], **options))
        return visits[-1].page

    yield opened
    for one in visits:
        hits = one.page.evaluate("() => window.hits")
        one.end()
        assert (one.requests, one.complaints, hits) == ([one.url], [], 0)
