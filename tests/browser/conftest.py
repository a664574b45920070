"""Pages in headless Chromium, without a network."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.pages import write_pages

NAMES = ("chromium", "chromium-browser", "google-chrome")


HITS = "window.hits = 0; window.hit = () => { window.hits += 1; };"
"""What hostile texts of `pages` call where they are markup."""


class Opened:
    """A page in the browser. complaints: errors of its console; requested: all but the page itself."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requested: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", lambda dialog: (self.complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: self.requested.append(request.url))
        page.goto(address)
        self.requested.remove(address.partition("#")[0])

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def readout(self, figure: int = 0) -> str:
        """What is read out below a figure."""
        return str(self.page.locator("figure").nth(figure).locator(".readout").text_content())


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    found = next(filter(None, map(shutil.which, NAMES)), None)
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    # its sandbox does not start for root
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens HTML as a file, in a context with these options, such as color_scheme or viewport."""
    contexts = []

    def call(html: str, **options: Any) -> Opened:
        context = chromium.new_context(offline=True, **options)
        contexts.append(context)
        file = tmp_path / f"page-{len(contexts)}.html"
        file.write_text(html, encoding="utf-8")
        return Opened(context.new_page(), file.as_uri())

    yield call
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each kind of page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))
        patch.setenv("LMTOOL_RUNS", os.getcwd())
        return write_pages()


@pytest.fixture
def visit(chromium: Any, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a kind of page, in a context with these options, and holds of it whatever the test does:

    it requests nothing but itself, its console is silent, and no text of a run is markup.
    """
    visits = []

    def call(kind: str, **options: Any) -> Any:
        context = chromium.new_context(offline=True, **options)
        context.set_default_timeout(10_000)
        context.add_init_script(HITS)
        visits.append(Opened(context.new_page(), pages[kind].as_uri()))
        return visits[-1].page

    yield call
    for one in visits:
        hits = one.page.evaluate("window.hits")
        one.page.context.close()
        assert (one.requested, one.complaints, hits) == ([], [], 0)
