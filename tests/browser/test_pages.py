"""Pages as a browser shows them: alone, as text, answering pointer, keys and fingers, on narrow and dark screens.

The fixture `visit` holds in every test here that a page requests nothing and breaks no policy.
"""

import re

import pytest

from tests.browser.pages import FILE, HOSTILE, PAGES
from tests.support.cases import nightly_but

pytestmark = pytest.mark.browser
EVERY = pytest.mark.parametrize("kind", PAGES)
SOME = pytest.mark.parametrize("kind", nightly_but(PAGES, "attention of two stacks", "report", "recipe", "gradients"))
ATTENTION = ["attention", "attention of two stacks", "attention of a classifier"]
CHARTS = ["report", "report of two runs", "report of a classifier", "report of a translator", "recipe with windows"]
CHARTS += ["recipe with buckets", "recipe with sinusoids", "gradients"]
PHONE = {"viewport": {"width": 360, "height": 640}, "is_mobile": True, "has_touch": True}


def drawn(locator):
    """What a picture or an answer is at the moment."""
    return locator.evaluate("element => element.outerHTML")


def test_what_a_page_should_not_do_is_noticed(opened):
    policy = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'">"""
    for head in ("", policy):
        found = opened(f"<!doctype html>{head}<p>{HOSTILE}<script>window.ran = true</script>")
        found.page.wait_for_timeout(100)
        assert [address.rpartition("/")[2] for address in found.requested] == ["x"]
        assert found.complaints
        assert found.page.evaluate("window.ran === true") is not bool(head)


@EVERY
@pytest.mark.parametrize("bypass_csp", [False, True], ids=["policy", "escapes alone"])
def test_text_stays_text(visit, kind, bypass_csp):
    page = visit(kind, bypass_csp=bypass_csp)
    page.eval_on_selector_all("details", "all => all.forEach((details) => { details.open = true; })")
    assert page.locator("img, iframe, object, embed, link, base, form, a:not([href^='#'])").count() == 0
    attributes = "[...document.querySelectorAll('*')].flatMap((element) => element.getAttributeNames())"
    assert not [name for name in set(page.evaluate(attributes)) if name.startswith("on")]
    assert page.locator("h1").count() == 1
    if kind not in ("recipe with windows", "recipe with buckets", "recipe with sinusoids"):
        text = page.locator("body").text_content() + "".join(page.locator("svg text").all_text_contents())
        assert HOSTILE[:30] in text or FILE[:30] in text


@pytest.mark.parametrize("kind", nightly_but(CHARTS, "report", "report of a classifier", "recipe with buckets"))
def test_charts_are_read_out_by_pointer_keys_and_fingers(visit, kind):
    page, phone = visit(kind), visit(kind, **PHONE)
    for one in (page, phone):
        charts = [chart for chart in one.locator("svg[data-chart]").all() if chart.is_visible()]
        assert charts
        for chart in charts:
            said = chart.locator("xpath=ancestor::figure").locator(".readout")
            assert said.text_content() == ""
            blank, box = drawn(chart), chart.bounding_box()
            # within the axes, which the names of rows and columns may push far to the right
            corner = {"x": box["width"] - 12, "y": box["height"] - 12}
            if one is phone:
                chart.tap(position=corner)
                assert drawn(chart) != blank
                assert said.text_content()
                continue
            chart.hover(position=corner)
            assert said.text_content()
            assert drawn(chart) != blank
            chart.focus()
            chart.press("Home")
            first = said.text_content()
            chart.press("ArrowRight")
            assert (said.text_content() != first) is (chart.locator("xpath=ancestor::figure//tbody/tr").count() > 1)
            chart.press("ArrowLeft")
            assert said.text_content() == first


@pytest.mark.parametrize("kind", ["beams", "neighbours"])
def test_points_are_read_out_by_pointer_keys_and_fingers(visit, kind):
    for page in (visit(kind), visit(kind, **PHONE)):
        picture = page.locator("svg[data-chart=points]")
        said = picture.locator("xpath=ancestor::figure").locator(".readout")
        points = picture.locator(".point")
        second = points.nth(1)
        second.locator("circle").or_(second).last.click()
        assert picture.locator(".here").count() == 1
        assert second.evaluate("point => point.classList.contains('here')")
        pointed = said.text_content()
        assert pointed
        picture.press("ArrowLeft")
        assert points.first.evaluate("point => point.classList.contains('here')")
        assert said.text_content() not in ("", pointed)
        picture.press("ArrowRight")
        assert said.text_content() == pointed


@pytest.mark.parametrize("kind", ["report", "report of two runs"])
def test_views_are_chosen_by_pointer_and_keys(visit, kind):
    page = visit(kind)
    for views in page.locator(".views").all():
        panels = views.locator(".panels > div")

        def shown(panels=panels):
            return [panel.is_visible() for panel in panels.all()]

        assert shown()[0]
        assert sum(shown()) == 1
        views.locator("label").nth(1).click()
        assert shown().index(True) == 1
        views.locator("input").nth(1).press("ArrowRight")
        assert shown().index(True) == 2
        assert sum(shown()) == 1


@pytest.mark.parametrize("kind", nightly_but(ATTENTION, "attention of two stacks"))
def test_heads_are_chosen_and_read_out(visit, kind):
    page = visit(kind)
    heat, links, said = (page.locator(f"#attention-{name}") for name in ("heat", "links", "said"))
    before = drawn(heat), drawn(links)
    page.locator("#attention-all button").first.click()
    assert drawn(heat) != before[0]
    assert drawn(links) != before[1]
    before = drawn(heat)
    page.locator("#attention-all button").first.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert drawn(heat) != before
    heat.focus()
    page.keyboard.press("ArrowRight")
    first = said.text_content()
    page.keyboard.press("ArrowDown")
    assert said.text_content() not in ("", first)
    assert re.search(r" → .*: [01]\.\d{4}$", first, re.DOTALL)
    heat.hover()
    assert said.text_content() != first


@pytest.mark.parametrize("kind", nightly_but(ATTENTION, "attention of two stacks"))
def test_links_of_one_word(visit, kind):
    links = visit(kind).locator("#attention-links")
    everything = links.locator(".link").count()
    links.focus()
    links.press("ArrowDown")
    assert 0 < links.locator(".link").count() < everything
    one = drawn(links)
    links.press("ArrowDown")
    assert drawn(links) != one
    links.press("Escape")
    assert links.locator(".link").count() == everything


def test_stacks_are_chosen(visit):
    page = visit("attention of two stacks")
    heat, choice = page.locator("#attention-heat"), page.locator("#attention-part")
    seen = {drawn(heat)}
    for number in range(1, choice.locator("option").count()):
        choice.select_option(index=number)
        seen.add(drawn(heat))
    assert len(seen) == 3


def test_pictures_of_attention_answer_a_finger(visit):
    page = visit("attention", **PHONE)
    page.locator("#attention-heat").tap()
    assert "→" in page.locator("#attention-said").text_content()
    links = page.locator("#attention-links")
    everything = links.locator(".link").count()
    links.locator(".word").nth(3).tap()
    assert 0 < links.locator(".link").count() < everything
    links.tap()
    assert links.locator(".link").count() == everything


@pytest.mark.parametrize("kind", ["samples", "beams"])
def test_tokens_show_what_else_was_probable(visit, kind):
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
def test_a_phone_scrolls_down_only(visit, kind):
    page = visit(kind, **PHONE)
    page.eval_on_selector_all("details", "all => all.forEach((details) => { details.open = true; })")
    assert page.evaluate("[innerWidth, document.documentElement.scrollWidth]") == [360, 360]


@SOME
def test_dark_and_print(visit, kind):
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
