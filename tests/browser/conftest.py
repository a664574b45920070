"""Pages in headless Chromium, without a network."""

import json
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
        self._listeners = {
            "console": self._said,
            "pageerror": lambda error: self.complaints.append(str(error)),
            "dialog": self._asked,
            "request": lambda request: self.requested.append(request.url),
        }
        for event, listener in self._listeners.items():
            page.on(event, listener)
        page.goto(address)
        self.requested.remove(address.partition("#")[0])

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def _asked(self, dialog: Any) -> None:
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def leave(self) -> None:
        """Listen no more to the page, which then shows nothing."""
        for event, listener in self._listeners.items():
            self.page.remove_listener(event, listener)
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)


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


class Pages:
    """Pages that show one file after the other: a context and a page take five times as long as what they show."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._free: dict[str, list[Any]] = {}
        self._opened: list[tuple[str, Opened]] = []

    def open(self, address: str, **options: Any) -> Opened:
        """Show an address without a network, in a context with these options, and as that had them at first."""
        key = json.dumps(options, sort_keys=True)
        free = self._free.setdefault(key, [])
        page = free.pop() if free else self._new(options)
        page.emulate_media(media="screen", color_scheme=options.get("color_scheme", "light"))
        self._opened.append((key, Opened(page, address)))
        return self._opened[-1][1]

    def _new(self, options: dict[str, Any]) -> Any:
        context = self._browser.new_context(offline=True, **options)
        context.set_default_timeout(120_000)
        context.add_init_script(HITS)
        return context.new_page()

    def leave_all(self) -> None:
        """Leave what was opened; it may be used anew."""
        for key, one in self._opened:
            one.leave()
            self._free[key].append(one.page)
        self._opened.clear()


@pytest.fixture(scope="session")
def _all_pages(chromium: Any) -> Pages:
    return Pages(chromium)


@pytest.fixture
def in_browser(_all_pages: Pages) -> Iterator[Pages]:
    yield _all_pages
    _all_pages.leave_all()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The file of each kind of page."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("pages"))
        patch.setenv("LMTOOL_RUNS", os.getcwd())
        return write_pages()


@pytest.fixture
def visit(in_browser: Pages, pages: dict[str, Path]) -> Iterator[Callable[..., Any]]:
    """Opens a kind of page, in a context with these options, and holds of it whatever the test does:

    it requests nothing but itself, its console is silent, and no text of a run is markup.
    """
    visits: list[Opened] = []

    def call(kind: str, **options: Any) -> Any:
        visits.append(in_browser.open(pages[kind].as_uri(), **options))
        return visits[-1].page

    yield call
    for one in visits:
        hits = one.page.evaluate("window.hits")
        assert (one.requested, one.complaints, hits) == ([], [], 0)


@pytest.fixture
def online(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens a page of a server, which alone is asked; its console is silent, and no text is markup."""
    visits: list[tuple[Opened, str]] = []

    def call(address: str, **options: Any) -> Any:
        context = chromium.new_context(**options)
        context.set_default_timeout(30_000)
        context.add_init_script(HITS)
        visits.append((Opened(context.new_page(), address), address.partition("/#")[0].rstrip("/")))
        return visits[-1][0].page

    yield call
    for one, address in visits:
        hits = one.page.evaluate("window.hits")
        one.page.context.close()
        assert all(url.startswith((f"{address}/", "data:,")) for url in one.requested)
        assert ([text for text in one.complaints if "Failed to load resource" not in text], hits) == ([], 0)
