"""The page of `lmtool label` in a browser: keys alone, two windows, a failed request, several labels, phones."""

# ruff: noqa: F401, F811

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
from tests.apps.labelling.conftest import TRUTH, begin, table, write
from tests.browser.pages import HOSTILE

pytestmark = pytest.mark.browser
KEY = "a-key-of-some-length"


class Served:
    """A table that is labelled."""

    def __init__(self, labelling: ActiveLearningSession) -> None:
        self.labelling = labelling
        self._listener = open_listener("127.0.0.1", 0)
        self._loop, self._ending = asyncio.new_event_loop(), asyncio.Event()
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=[self._answer()])
        self._thread.start()

    async def _answer(self) -> None:
        async with running_server(build_labelling_app(self.labelling, KEY), self.labelling, self._listener):
            await self._ending.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        self._loop.close()


Serve = Callable[..., Served]
Visit = Callable[..., Any]


@pytest.fixture
def serve(begin: Callable[..., ActiveLearningSession]) -> Iterator[Serve]:
    served: list[Served] = []

    def call(source: Path, classes: tuple[str, ...] = (), **options: Any) -> Served:
        labelling = begin(source, **options)
        labelling.classes |= dict.fromkeys(classes)
        served.append(Served(labelling))
        return served[-1]

    yield call
    for one in served:
        one.close()


@pytest.fixture
def visit(serve: Serve, online: Visit) -> Visit:
    """Opens a window on a table, once it shows a row."""

    def call(served: Served, **options: Any) -> Any:
        page = online(f"{served.address}/#{KEY}", **options)
        page.locator("#row:not([hidden])").wait_for()
        return page

    return call


def text(page: Any) -> str:
    return str(page.locator("#texts .turn").last.text_content())


def press(page: Any, key: str) -> None:
    """A key that asks the server, and its answer."""
    with page.expect_response("**/answer"):
        page.keyboard.press(key)
    page.locator("#row[aria-busy=false]").wait_for(state="attached")


def test_a_table_is_labelled_by_keys_alone(serve: Serve, visit: Visit, table: Path) -> None:
    served = serve(table, ("animal", "fruit"))
    page = visit(served)
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


def test_labels_that_may_be_wrong_are_shown_and_set_right(serve: Serve, online: Visit, table: Path) -> None:
    served = serve(table)
    wrong = "the old cat here"
    for i, (_, (label,)) in enumerate(served.labelling.table.rows):
        served.labelling.save_answer_and_assign_next("x", i, 0, ["fruit" if label == wrong else TRUTH[label]])
    served.labelling.fit_and_update_queue_and_estimates()
    page = online(f"{served.address}/#{KEY}")
    page.locator("#wrong:not([hidden])").wait_for()
    assert "fruit, rather animal? the old cat here" in page.locator("#wrong button").first.text_content()
    page.keyboard.press("!")
    assert text(page) == wrong
    press(page, "1")
    assert served.labelling.row_and_version_to_json([*TRUTH].index(wrong))["labels"] == ("animal",)


def test_two_windows_label_different_rows_and_one_sees_what_the_other_has_done(
    serve: Serve, visit: Visit, table: Path
) -> None:
    served = serve(table, ("animal", "fruit"))
    one, other = visit(served), visit(served)
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


def test_a_failed_answer_stays_on_the_page(serve: Serve, visit: Visit, table: Path) -> None:
    served = serve(table, ("animal", "fruit"))
    page = visit(served)
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


def test_several_labels_a_row(serve: Serve, visit: Visit, table: Path) -> None:
    served = serve(table, ("animal", "small"), multi=True)
    page = visit(served)
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.keyboard.press("1")
    page.keyboard.press("+")
    page.keyboard.type("third")
    page.keyboard.press("Enter")
    press(page, "Enter")
    press(page, "Enter")
    assert [*served.labelling.answers().values()] in ([("small", "third"), ()], [(), ("small", "third")])


@pytest.mark.parametrize("options", [{"viewport": {"width": 360, "height": 640}}, {"color_scheme": "dark"}])
def test_texts_and_names_are_no_markup_and_a_phone_scrolls_down_only(
    serve: Serve, visit: Visit, tmp_path: Path, options: dict[str, Any]
) -> None:
    cell = '"' + HOSTILE.replace('"', '""') + '"'
    page = visit(serve(write(tmp_path / "hostile.csv", [f"{cell},other", f",{cell}"], "label,text")), **options)
    assert text(page) == HOSTILE
    assert page.locator("#classes bdi").text_content() == HOSTILE
    assert page.locator("img, iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_without_the_key_nothing_is_shown(serve: Serve, online: Visit, table: Path) -> None:
    page = online(f"{serve(table).address}/")
    page.locator("#said", has_text="API key").wait_for()
    assert page.locator("#row").is_hidden()
