"""The page of `lmtool label` in a browser: keys alone, two windows, a failed request, several labels, phones."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.labelling.labelling import ActiveLearningSession
from lmtool.apps.labelling.page import build_labelling_app
from lmtool.serving.server import open_listener, running_server
from tests.apps.labelling.conftest import TRUTH, begin, table, write  # noqa: F401 - fixtures
from tests.browser.conftest import HITS, Opened
from tests.browser.pages import HOSTILE
from tests.support.cases import nightly_but

pytestmark = pytest.mark.browser
KEY = "a-key-of-some-length"


class Served:
    """A table that is labelled, and windows on it; at the end their consoles are silent, and asked nobody else."""

    def __init__(self, chromium: Any, labelling: ActiveLearningSession) -> None:
        self.labelling = labelling
        self._chromium, self._visits = chromium, list[Opened]()
        self._listener, self._loop, self._ending = (
            open_listener("127.0.0.1", 0),
            asyncio.new_event_loop(),
            asyncio.Event(),
        )
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._answer()))
        self._thread.start()

    async def _answer(self) -> None:
        async with running_server(build_labelling_app(self.labelling, KEY), self.labelling, self._listener):
            await self._ending.wait()

    def visit(self, **options: Any) -> Any:
        context = self._chromium.new_context(**options)
        context.set_default_timeout(30_000)
        context.add_init_script(HITS)
        self._visits.append(Opened(context.new_page(), f"{self.address}/#{KEY}"))
        page = self._visits[-1].page
        page.locator("#row:not([hidden])").wait_for()
        return page

    def close(self) -> None:
        hits = [one.page.evaluate("window.hits") for one in self._visits]
        for one in self._visits:
            one.page.context.close()
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._loop.close()
        assert not any(hits)
        for one in self._visits:
            assert all(url.startswith((f"{self.address}/", "data:,")) for url in one.requested)
            assert [text for text in one.complaints if "Failed to load resource" not in text] == []


@pytest.fixture
def serve(chromium: Any, begin: Callable[..., ActiveLearningSession]) -> Iterator[Callable[..., Served]]:  # noqa: F811
    served: list[Served] = []

    def call(source: Path, classes: tuple[str, ...] = (), **options: Any) -> Served:
        labelling = begin(source, **options)
        labelling.classes |= dict.fromkeys(classes)
        served.append(Served(chromium, labelling))
        return served[-1]

    yield call
    for one in served:
        one.close()


def text(page: Any) -> str:
    return str(page.locator("#texts .turn").last.text_content())


def press(page: Any, key: str) -> None:
    """A key that asks the server, and its answer."""
    with page.expect_response("**/answer"):
        page.keyboard.press(key)
    page.locator("#row[aria-busy=false]").wait_for(state="attached")


def test_a_table_is_labelled_by_keys_alone(serve: Callable[..., Served], table: Path) -> None:  # noqa: F811
    served = serve(table, ("animal", "fruit"))
    page = served.visit()
    truth = {}
    for _ in range(30):
        truth[text(page)] = TRUTH[text(page)]
        press(page, {"animal": "1", "fruit": "2"}[TRUTH[text(page)]])
    rows = served.labelling.table.rows
    assert {rows[i][1][0]: labels[0] for i, labels in served.labelling.answers().items()} == truth
    page.locator("#facts", has_text=re.compile(r"right on about \d+ %")).wait_for()
    assert "30 of 96 rows" in page.locator("#facts").text_content()

    last = text(page)
    press(page, "2")
    press(page, "Backspace")
    assert (text(page), len(served.labelling.answers())) == (last, 30)
    press(page, "1")
    press(page, "Space")
    assert len(served.labelling.answers()) == 31

    page.keyboard.press("+")
    page.keyboard.type("a new class")
    press(page, "Enter")
    assert page.get_by_role("button", name=re.compile("3 a new class")).count() == 1

    asked = text(page)
    page.keyboard.press("/")
    page.keyboard.type("pear large home")
    page.keyboard.press("Enter")
    page.locator("#found button").first.wait_for()
    assert page.locator("#found button").count() == 1
    page.keyboard.press("Enter")
    assert text(page) == "the large pear at home"
    page.keyboard.press("Escape")
    assert text(page) == asked
    page.keyboard.press("x")
    page.keyboard.press("Control+1")
    assert text(page) == asked


def test_labels_that_may_be_wrong_are_shown_and_set_right(
    serve: Callable[..., Served],
    table: Path,  # noqa: F811
) -> None:
    served = serve(table)
    wrong = "the old cat here"
    for i, (_, (label,)) in enumerate(served.labelling.table.rows):
        served.labelling.save_answer_and_assign_next("x", i, 0, ["fruit" if label == wrong else TRUTH[label]])
    served.labelling.fit_and_update_queue_and_estimates()
    page = served._chromium.new_page()
    page.goto(f"{served.address}/#{KEY}")
    page.locator("#wrong:not([hidden])").wait_for()
    assert "fruit, rather animal? the old cat here" in page.locator("#wrong button").first.text_content()
    page.keyboard.press("!")
    assert text(page) == wrong
    press(page, "1")
    assert served.labelling.row_and_version_to_json([*TRUTH].index(wrong))["labels"] == ("animal",)
    page.close()


def test_two_windows_label_different_rows_and_one_sees_what_the_other_has_done(
    serve: Callable[..., Served],
    table: Path,  # noqa: F811
) -> None:
    served = serve(table, ("animal", "fruit"))
    one, other = served.visit(), served.visit()
    assert text(one) != text(other)
    both = text(one)
    other.keyboard.press("/")
    other.keyboard.type(both)
    other.keyboard.press("Enter")
    other.locator("#found button").first.wait_for()
    other.keyboard.press("Enter")
    assert text(other) == both
    press(one, "1")
    press(other, "2")
    assert "another window has answered" in other.locator("#said").text_content()
    assert text(other) == both
    assert "answered: animal" in other.locator("#place").text_content()
    [labels] = served.labelling.answers().values()
    assert labels == ("animal",)


def test_a_failed_answer_stays_on_the_page(serve: Callable[..., Served], table: Path) -> None:  # noqa: F811
    served = serve(table, ("animal", "fruit"))
    page = served.visit()
    before = text(page)
    page.evaluate("""() => {
        const real = fetch;
        fetch = async (path, sent) => {
            if (path !== "answer") return real(path, sent);
            fetch = real;
            return new Response("no JSON", { status: 500 });
        };
    }""")
    page.keyboard.press("1")
    page.locator("#said", has_text="status 500").wait_for()
    page.locator("#row[aria-busy=false]").wait_for(state="attached")
    assert text(page) == before
    press(page, "1")
    assert text(page) != before
    assert len(served.labelling.answers()) == 1


def test_several_labels_a_row(serve: Callable[..., Served], table: Path) -> None:  # noqa: F811
    served = serve(table, ("animal", "small"), multi=True)
    page = served.visit()
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.keyboard.press("1")
    page.keyboard.press("+")
    page.keyboard.type("third")
    page.keyboard.press("Enter")
    press(page, "Enter")
    press(page, "Enter")
    assert [*served.labelling.answers().values()] in ([("small", "third"), ()], [(), ("small", "third")])


@pytest.mark.parametrize(
    "options", nightly_but([{"viewport": {"width": 360, "height": 640}}, {"color_scheme": "dark"}, {}], 0, 1)
)
def test_texts_and_names_are_no_markup_and_a_phone_scrolls_down_only(
    serve: Callable[..., Served], tmp_path: Path, options: dict[str, Any]
) -> None:
    cell = '"' + HOSTILE.replace('"', '""') + '"'
    page = serve(write(tmp_path / "hostile.csv", [f"{cell},other", f",{cell}"], "label,text")).visit(**options)
    assert text(page) == HOSTILE
    assert page.locator("#classes bdi").text_content() == HOSTILE
    assert page.locator("img, iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_the_key_nothing_is_shown(serve: Callable[..., Served], table: Path) -> None:  # noqa: F811
    served = serve(table)
    page = served._chromium.new_page()
    page.goto(served.address)
    page.locator("#said", has_text="API key").wait_for()
    assert page.locator("#row").is_hidden()
    page.close()
