"""The page about runs in a browser: no request, no error, no HTML from a run; pictures that answer."""

import json

import pytest

from lmtool.report.training import render_runs_page
from lmtool.runs.history import RunHistory
from tests.support.cases import nightly_but
from tests.support.pages import HOSTILE, make

pytestmark = pytest.mark.browser
NARROW = {"width": 360, "height": 700}


@pytest.fixture(scope="module")
def html(tmp_path_factory):
    """The page of a hostile run of a classifier."""
    text = " ".join(HOSTILE)
    run = make(tmp_path_factory.mktemp("run"), text=text, data={"lines": [text], "bytes_per_token": 2.0})
    names = [text, "other"]
    results = {
        "part": "validation",
        "accuracy": 0.5,
        "classes": {name: {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 4} for name in names},
        "confusion": [[3, 1], [2, 2]],
        "calibration": {"ece": 0.25, "bins": [{"confidence": 0.75, "accuracy": 0.5, "rows": 8}]},
        "mistakes": [{"row": 1, "label": text, "predicted": text, "probability": 0.9, "words": [text], "text": text}],
    }
    (run.path / "metrics.json").write_text(json.dumps(results))
    return render_runs_page([RunHistory.from_run(run)])


@pytest.mark.parametrize(
    "options", [{}, {"color_scheme": "dark"}, {"viewport": NARROW}, {"java_script_enabled": False}]
)
def test_a_page_opens_without_errors_and_requests(opened, html, options):
    shown = opened(html, **options)
    assert shown.page.title() == "made"
    assert shown.complaints == []
    assert shown.requested == []


def test_text_of_a_hostile_run_is_text(opened, html):
    shown = opened(html)
    texts = shown.page.locator("blockquote").all_text_contents()
    assert len(texts) == 4
    assert all(word in text for text in texts for word in HOSTILE)
    assert shown.page.locator("img, iframe, svg[onload], [onfocus], [onerror]").count() == 0
    assert shown.page.locator("script").count() == 1


def test_the_policy_forbids_requests_and_scripts(opened, html):
    shown = opened(html)
    refused = "fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"
    assert shown.page.evaluate(refused) == "refused"
    script = """() => { const node = document.createElement('script'); node.textContent = 'window.ran = true';
        document.body.append(node); return window.ran }"""
    assert shown.page.evaluate(script) is None
    assert all("Content Security Policy" in complaint for complaint in shown.complaints)
    assert len(shown.complaints) >= 2


def test_radio_buttons_change_the_picture_by_click_and_keyboard(opened, html):
    shown = opened(html)
    panels = shown.page.locator("figure").first.locator(".panels > div")
    visible = lambda: [panels.nth(i).is_visible() for i in range(4)]  # noqa: E731
    assert visible() == [True, False, False, False]
    shown.page.get_by_label("Tokens", exact=True).click()
    assert visible() == [False, True, False, False]
    shown.page.keyboard.press("ArrowRight")
    assert visible() == [False, False, True, False]


@pytest.mark.parametrize("width", nightly_but([360, 639, 641, 820, 1200], 0, 2))
def test_a_chart_is_as_wide_as_the_page_and_is_read_without_scrolling(opened, html, width):
    shown = opened(html, viewport={"width": width, "height": 700})
    charts = [chart for chart in shown.page.locator("svg[data-chart=lines]").all() if chart.is_visible()]
    assert len(charts) == 3
    for chart in charts:
        room, drawn = chart.evaluate("e => [e.closest('figure').clientWidth, e.getBoundingClientRect().width]")
        assert drawn == pytest.approx(room, abs=1)
        sizes = "e => [...e.querySelectorAll('text')].map((t) => t.getBoundingClientRect().height)"
        assert min(chart.evaluate(sizes)) > 8


def test_arrow_keys_and_the_pointer_read_numbers_out(opened, html):
    shown = opened(html)
    chart = shown.page.locator("svg[data-chart=lines]").first
    chart.focus()
    shown.page.keyboard.press("ArrowRight")
    first = shown.readout()
    shown.page.keyboard.press("ArrowRight")
    second = shown.readout()
    assert first.startswith("step 1 ·")
    assert second.startswith("step 2 ·")
    shown.page.keyboard.press("End")
    assert shown.readout().startswith("step 40 ·")
    assert "validation" in shown.readout()
    box = chart.bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    step = int(shown.readout().split()[1])
    assert 15 < step < 25


def test_cells_of_the_confusion_matrix_are_read_out(opened, html):
    shown = opened(html)
    shown.page.locator("svg[data-chart=heat]").focus()
    for key, count in (("ArrowDown", "3"), ("ArrowRight", "1"), ("ArrowDown", "2"), ("ArrowLeft", "2")):
        shown.page.keyboard.press(key)
        figure = shown.page.locator("figure", has=shown.page.locator("svg[data-chart=heat]"))
        assert figure.locator(".readout").text_content().rsplit(": ", 1)[1] == count


def test_a_phone_shows_all_without_scrolling_sideways(opened, html):
    shown = opened(html, viewport=NARROW)
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]


def test_dark_and_light_follow_the_reader(opened, html):
    colours = [
        opened(html, color_scheme=scheme).page.evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert colours == ["rgb(255, 255, 255)", "rgb(20, 23, 28)"]


def test_numbers_are_in_a_table_that_opens(opened, html):
    shown = opened(html)
    details = shown.page.locator("figure details").first
    assert not details.locator("table").is_visible()
    details.locator("summary").press("Enter")
    assert details.locator("table").is_visible()
