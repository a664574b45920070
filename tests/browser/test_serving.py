"""The page of `lmtool serve` in a browser: it asks its own server alone."""

# ruff: noqa: F401, F811

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lmtool.generation.params import SamplingParams
from lmtool.serving.guard import AccessPolicy
from lmtool.serving.server import ServerConfig
from tests.serving.conftest import folder, talker
from tests.serving.harness import Served, served

pytestmark = pytest.mark.browser
KEY = "a-key-of-some-length"
BRIEF = {"New_tokens": "8", "Temperature": "0"}
"""Some seeds give an answer without text."""


@pytest.fixture(scope="module")
def server(talker: str) -> Iterator[Served]:
    with served(talker) as found:
        yield found


Visit = Callable[[Served], Any]


@pytest.fixture
def visit(online: Callable[..., Any]) -> Visit:
    """Opens the page of a server."""

    def call(found: Served) -> Any:
        return online(f"{found.address}/")

    return call


def ready(page: Any, way: str, **settings: str) -> None:
    """Choose one of the ways to generate, and settings by their labels."""
    page.locator("#ways:not([hidden])").wait_for()
    page.get_by_label(way).check()
    page.get_by_text("Settings").click()
    for name, value in settings.items():
        page.get_by_label(name.replace("_", " ")).fill(value)


def told(page: Any, words: str) -> None:
    """Wait until the page says so."""
    page.locator("#said", has_text=words).wait_for()


def test_a_text_is_generated_with_its_probabilities(visit: Visit, server: Served) -> None:
    page = visit(server)
    ready(page, "Continue a text", New_tokens="12", Seed="7")
    page.get_by_label("Prompt").fill("Who saw <img src=x onerror=hit()>")
    page.get_by_role("button", name="Generate").click()
    told(page, "tokens/s")
    settings = SamplingParams(seed=7, temperature=0.8, max_new_tokens=12)
    [text] = server.generator.complete("Who saw <img src=x onerror=hit()>", settings)
    written = page.locator("#written").evaluate("element => element.textContent")
    assert written == "Who saw <img src=x onerror=hit()>" + text
    assert page.locator("#written img").count() == 0
    page.locator("#written .token[tabindex='0']").focus()
    assert "most probable: " in page.locator("#readout").text_content()
    before = page.locator("#readout").text_content()
    page.keyboard.press("ArrowRight")
    assert page.locator("#readout").text_content() != before
    page.get_by_role("button", name="Another seed").click()
    told(page, "tokens/s")
    assert "Seed 7," not in page.locator("#said").text_content()


def test_a_text_is_stopped(visit: Visit, server: Served) -> None:
    page = visit(server)
    ready(page, "Continue a text", New_tokens="4000", Temperature="0")  # this model then repeats itself without an end
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("#written .token >> nth=3")
    page.get_by_role("button", name="Stop").click()
    told(page, "stopped after")


def test_a_conversation_with_a_key(visit: Visit, talker: str) -> None:
    with served(talker, ServerConfig(access=AccessPolicy("127.0.0.1", KEY))) as found:
        page = visit(found)
        page.get_by_label("API key").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        page.wait_for_selector("#door:not([hidden])")
        page.get_by_label("API key").fill(KEY)
        page.get_by_role("button", name="Use it").click()
        page.locator("#ways:not([hidden])").wait_for()
        assert page.get_by_label("Chat").is_checked()
        ready(page, "Chat", **BRIEF)
        for n in (1, 2):
            page.get_by_label("Message").fill(f"Who saw the ball {n}?")
            page.get_by_role("button", name="Generate").click()
            told(page, "tokens/s")
            page.locator(".turn").nth(2 * n - 1).wait_for()
        assert page.locator(".turn.user").all_text_contents() == ["Who saw the ball 1?", "Who saw the ball 2?"]
        page.get_by_role("button", name="Begin anew").click()
        assert page.locator(".turn").count() == 0


def event(text: str) -> str:
    """An event of a stream, with a token."""
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}, "logprobs": None}]}) + "\n\n"


FAULTS: dict[str, Callable[[Any], None]] = {
    "refused": lambda route: route.fulfill(status=429, json={"error": {"message": "too many requests"}}),
    "failed": lambda route: route.fulfill(status=500, body="no JSON"),
    "no network": lambda route: route.abort(),
    "a stream that fails": lambda route: route.fulfill(
        body=event("half an ") + 'data: {"error": {"message": "no"}}\n\n'
    ),
    "a stream that breaks off": lambda route: route.fulfill(body=event("half an ")),
    "no text": lambda route: route.fulfill(body=event("") + "data: [DONE]\n\n"),
}
CHAT = "**/v1/chat/completions"


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_message_is_back_in_the_input_and_the_conversation_as_before(
    visit: Visit, server: Served, fault: str
) -> None:
    page = visit(server)
    ready(page, "Chat", **BRIEF)
    message, turns = page.get_by_label("Message"), page.locator(".turn")
    send = page.get_by_role("button", name="Generate")

    def fail(press: str) -> None:
        page.route(CHAT, FAULTS[fault])
        page.evaluate("document.getElementById('said').textContent = ''")
        page.get_by_role("button", name=press).click()
        page.locator("#said.wrong:not(:empty)").wait_for()
        page.unroute(CHAT)

    for n in range(2):
        asked = [f"Who saw {k}?" for k in range(n)]
        before = turns.all_text_contents()
        message.fill(f"Who saw {n}?")
        for _ in range(2):
            fail("Generate")
            assert (turns.all_text_contents(), message.input_value()) == (before, f"Who saw {n}?")
        send.click()
        told(page, "tokens/s")
        turns.nth(2 * n + 1).wait_for()
        assert page.locator(".turn.user").all_text_contents() == [*asked, f"Who saw {n}?"]
        assert message.input_value() == ""
    whole = turns.all_text_contents()
    message.fill("not yet sent")
    fail("Another seed")
    assert (turns.all_text_contents(), message.input_value()) == (whole, "not yet sent")
    page.get_by_role("button", name="Another seed").click()
    told(page, "tokens/s")
    assert turns.count() == 4
    assert turns.all_text_contents()[:3] == whole[:3]
    assert message.input_value() == "not yet sent"


def test_what_is_stopped_or_typed_meanwhile_is_not_lost(visit: Visit, server: Served) -> None:
    page = visit(server)
    page.locator("#ways:not([hidden])").wait_for()
    page.get_by_label("Chat").check()
    message = page.get_by_label("Message")
    page.route(CHAT, lambda route: None)  # never answered
    message.fill("first")
    page.get_by_role("button", name="Generate").click()
    assert page.locator(".turn").all_text_contents() == ["first"]
    assert page.get_by_role("button", name="Begin anew").is_disabled()
    message.fill("second")
    page.get_by_role("button", name="Stop").click()
    told(page, "stopped after 0")
    assert message.input_value() == "first\nsecond"
    assert page.locator(".turn").count() == 0
    page.get_by_role("button", name="Another seed").click()
    assert page.locator(".turn").all_text_contents() == ["first\nsecond"]
    page.get_by_role("button", name="Stop").click()
    told(page, "stopped after 0")
