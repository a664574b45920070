"""Pages as a browser shows them: alone, as text, answering pointer, keys and fingers, on narrow and dark screens.

The fixture `visit` holds in every test here that a page requests nothing and breaks no policy.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Pages
from tests.browser.pages import FILE, HOSTILE, PAGES

pytestmark = pytest.mark.browser
SOME = pytest.mark.parametrize("kind", ["attention of two stacks", "report", "recipe", "gradients"])
PHONE = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}
OPEN_ALL = "document.querySelectorAll('details').forEach((details) => { details.open = true; })"

Visit = Callable[..., Any]


def drawn(locator: Any) -> Any:
    """What a picture or an answer is at the moment."""
    return locator.evaluate("element => element.outerHTML")


def said(picture: Any) -> str:
    """What is read out below a picture."""
    return str(picture.locator("xpath=ancestor::figure").locator(".readout").text_content())


def test_what_a_page_should_not_do_is_noticed(in_browser: Pages, tmp_path: Path) -> None:
    policy = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'">"""
    for head in ("", policy):
        (tmp_path / "page.html").write_text(f"<!doctype html>{head}<p>{HOSTILE}<script>window.ran = true</script>")
        found = in_browser.open((tmp_path / "page.html").as_uri())
        found.page.wait_for_timeout(100)
        assert [address.rpartition("/")[2] for address in found.requested] == ["x"]
        assert found.complaints
        assert found.page.evaluate("window.ran === true") is not bool(head)


@pytest.mark.parametrize("kind", PAGES)
@pytest.mark.parametrize("bypass_csp", [False, True], ids=["policy", "escapes alone"])
def test_text_stays_text(visit: Visit, kind: str, bypass_csp: bool) -> None:
    page = visit(kind, bypass_csp=bypass_csp)
    page.evaluate(OPEN_ALL)
    assert page.locator("img, iframe, object, embed, link, base, form, a:not([href^='#'])").count() == 0
    attributes = "[...document.querySelectorAll('*')].flatMap((element) => element.getAttributeNames())"
    assert not [name for name in set(page.evaluate(attributes)) if name.startswith("on")]
    assert page.locator("h1").count() == 1
    if kind not in ("recipe with windows", "recipe with buckets", "recipe with sinusoids"):
        text = page.locator("body").text_content() + "".join(page.locator("svg text").all_text_contents())
        assert HOSTILE[:30] in text or FILE[:30] in text


def test_a_page_is_read_without_scripts(in_browser: Pages, pages: dict[str, Path]) -> None:
    shown = in_browser.open(pages["report"].as_uri(), java_script_enabled=False)
    assert (shown.complaints, shown.requested) == ([], [])
    details = shown.page.locator("figure details").first
    assert not details.locator("table").is_visible()
    details.locator("summary").press("Enter")
    assert details.locator("table").is_visible()


@pytest.mark.parametrize("kind", ["report", "report of a classifier", "recipe with buckets"])
def test_charts_are_read_out_by_pointer_keys_and_fingers(visit: Visit, kind: str) -> None:
    """Within the axes, which the names of rows and columns may push far to the right."""
    for page, is_phone in ((visit(kind), False), (visit(kind, **PHONE), True)):
        charts = [chart for chart in page.locator("svg[data-chart]").all() if chart.is_visible()]
        assert charts
        for chart in charts:
            assert said(chart) == ""
            blank, box = drawn(chart), chart.bounding_box()
            corner = {"x": box["width"] - 12, "y": box["height"] - 12}
            if is_phone:
                chart.tap(position=corner)
            else:
                chart.hover(position=corner)
            assert said(chart)
            assert drawn(chart) != blank
            if not is_phone:
                chart.focus()
                chart.press("Home")
                first = said(chart)
                chart.press("ArrowRight")
                assert (said(chart) != first) is (chart.locator("xpath=ancestor::figure//tbody/tr").count() > 1)
                chart.press("ArrowLeft")
                assert said(chart) == first


def test_numbers_that_are_read_out_are_those_of_the_run(visit: Visit) -> None:
    """Of six steps, and of the cells of a confusion matrix."""
    page = visit("report of a classifier")
    chart = page.locator("svg[data-chart=lines]").first
    chart.focus()
    for key, step in (("ArrowRight", 1), ("ArrowRight", 2), ("End", 6)):
        page.keyboard.press(key)
        assert said(chart).startswith(f"step {step} ·")
    assert "validation" in said(chart)
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    assert int(said(chart).split()[1]) in (3, 4)
    matrix = page.locator("svg[data-chart=heat]")
    rows = matrix.locator("xpath=ancestor::figure//tbody/tr").all()
    cells = [[int(cell) for cell in row.locator("td").all_text_contents()[-2:]] for row in rows]
    matrix.focus()
    for key, (row, column) in (("ArrowDown", (0, 0)), ("ArrowRight", (0, 1)), ("ArrowDown", (1, 1))):
        page.keyboard.press(key)
        assert int(said(matrix).rpartition(": ")[2]) == cells[row][column]


@pytest.mark.parametrize("width", [360, 641])
def test_a_chart_is_as_wide_as_the_page_and_is_read_without_scrolling(visit: Visit, width: int) -> None:
    page = visit("report", viewport={"width": width, "height": 700})
    charts = [chart for chart in page.locator("svg[data-chart=lines]").all() if chart.is_visible()]
    assert charts
    for chart in charts:
        room, wide = chart.evaluate("e => [e.closest('figure').clientWidth, e.getBoundingClientRect().width]")
        assert wide == pytest.approx(room, abs=1)
        sizes = "e => [...e.querySelectorAll('text')].map((t) => t.getBoundingClientRect().height)"
        assert min(chart.evaluate(sizes)) > 8


@pytest.mark.parametrize("kind", ["beams", "neighbours"])
def test_points_are_read_out_by_pointer_keys_and_fingers(visit: Visit, kind: str) -> None:
    for page in (visit(kind), visit(kind, **PHONE)):
        picture = page.locator("svg[data-chart=points]")
        points = picture.locator(".point")
        second = points.nth(1)
        second.locator("circle").or_(second).last.click()
        assert picture.locator(".here").count() == 1
        assert second.evaluate("point => point.classList.contains('here')")
        pointed = said(picture)
        assert pointed
        picture.press("ArrowLeft")
        assert points.first.evaluate("point => point.classList.contains('here')")
        assert said(picture) not in ("", pointed)
        picture.press("ArrowRight")
        assert said(picture) == pointed


def test_views_are_chosen_by_pointer_and_keys(visit: Visit) -> None:
    page = visit("report of two runs")
    for views in page.locator(".views").all():
        panels = views.locator(".panels > div")

        def shown(panels: Any = panels) -> list[bool]:
            return [panel.is_visible() for panel in panels.all()]

        assert shown()[0]
        assert sum(shown()) == 1
        views.locator("label").nth(1).click()
        assert shown().index(True) == 1
        views.locator("input").nth(1).press("ArrowRight")
        assert shown().index(True) == 2
        assert sum(shown()) == 1


def test_heads_and_stacks_are_chosen_and_read_out(visit: Visit) -> None:
    page = visit("attention of two stacks")
    heat, links, spoken = (page.locator(f"#attention-{name}") for name in ("heat", "links", "said"))
    before = drawn(heat), drawn(links)
    page.locator("#attention-all button").first.click()
    assert drawn(heat) != before[0]
    assert drawn(links) != before[1]
    before = drawn(heat), drawn(links)
    page.locator("#attention-all button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert drawn(heat) != before[0]
    heat.focus()
    page.keyboard.press("ArrowRight")
    first = spoken.text_content()
    page.keyboard.press("ArrowDown")
    assert spoken.text_content() not in ("", first)
    assert re.search(r" → .*: [01]\.\d{4}$", first, re.DOTALL)
    heat.hover()
    assert spoken.text_content() != first
    choice = page.locator("#attention-part")
    seen = {drawn(heat)}
    for number in range(1, choice.locator("option").count()):
        choice.select_option(index=number)
        seen.add(drawn(heat))
    assert len(seen) == 3


def test_links_of_one_word_are_shown_by_keys_and_fingers(visit: Visit) -> None:
    links = visit("attention of two stacks").locator("#attention-links")
    everything = links.locator(".link").count()
    links.focus()
    links.press("ArrowDown")
    assert 0 < links.locator(".link").count() < everything
    one = drawn(links)
    links.press("ArrowDown")
    assert drawn(links) != one
    links.press("Escape")
    assert links.locator(".link").count() == everything
    phone = visit("attention", **PHONE)
    phone.locator("#attention-heat").tap()
    assert "→" in phone.locator("#attention-said").text_content()
    links = phone.locator("#attention-links")
    everything = links.locator(".link").count()
    links.locator(".word").nth(3).tap()
    assert 0 < links.locator(".link").count() < everything
    links.tap()
    assert links.locator(".link").count() == everything


@pytest.mark.parametrize("kind", ["samples", "beams"])
def test_tokens_show_what_else_was_probable(visit: Visit, kind: str) -> None:
    page = visit(kind)
    tokens, chosen = page.locator(".token[tabindex]"), page.locator(".chosen").first
    tokens.nth(1).hover()
    pointed = chosen.text_content()
    tokens.first.focus()
    read = [chosen.text_content()]
    for _ in range(tokens.count() - 1):
        page.keyboard.press("ArrowRight")
        read.append(chosen.text_content())
    assert len(set(read)) == len(read)
    assert read[1] == pointed
    assert any(HOSTILE[:9] in text for text in read)
    assert chosen.locator("meter").count() >= 3


@SOME
def test_a_phone_scrolls_down_only(visit: Visit, kind: str) -> None:
    page = visit(kind, **PHONE)
    page.evaluate(OPEN_ALL)
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]


@SOME
def test_dark_and_print(visit: Visit, kind: str) -> None:
    page = visit(kind, color_scheme="light")
    colours = """() => {
        const brightness = (colour) => {
            const [red, green, blue] = colour.match(/[\\d.]+/g).map((value) => {
                const share = value / 255;
                return share <= 0.03928 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
        };
        const paper = brightness(getComputedStyle(document.body).backgroundColor);
        const contrasts = [...document.querySelectorAll("h1, p, td, th, summary, figcaption, svg text, dt, dd, a")]
            .map((element) => {
                const style = getComputedStyle(element);
                const ink = brightness(element.closest("svg") ? style.fill : style.color);
                return (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
            });
        return [paper, Math.min(...contrasts)];
    }"""
    (light, on_light) = page.evaluate(colours)
    page.emulate_media(color_scheme="dark")
    (dark, on_dark) = page.evaluate(colours)
    assert dark < 0.02 < 0.9 < light
    # as WCAG asks of text
    assert min(on_light, on_dark) >= 4.5
    page.emulate_media(color_scheme="dark", media="print")
    (printed, on_print) = page.evaluate(colours)
    assert printed > 0.9
    assert on_print >= 4.5
