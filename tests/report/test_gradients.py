"""The curve of gradient norms; text stays text."""

from pathlib import Path
from types import SimpleNamespace

from lmtool.analysis.gradients import GradientFlow, GradientNorms
from lmtool.report.gradients import as_lines, as_page, of_gradients

FLOW = GradientFlow(
    ["</script><img src=x onerror=alert(1)>", "\u202eevil", "b"],
    "<b>\x1b",
    GradientNorms(1.5, {"layer 1": [1.0, 0.1, 0.01], "layer 2": [2.0, 0.0, None]}),
)
LOADED = SimpleNamespace(model=SimpleNamespace(description="rnn"), run_path=Path("<i>"), step=3)


def test_numbers_by_steps_back():
    lines = list(map(str, as_lines(of_gradients(FLOW), LOADED, 80)))
    assert [line.split()[-2:] for line in lines[-3:]] == [
        ["1.000e+00", "2.000e+00"],
        ["1.000e-01", "0.000e+00"],
        ["not", "finite"],
    ]
    assert [line.split()[0] for line in lines[-3:]] == ["0", "1", "2"]
    assert "'b'" in lines[-3]


def test_hostile_text_stays_text():
    html = as_page(of_gradients(FLOW), LOADED)
    for wrong in ("<img", "<b>", "<i>", "\x1b", "\u202e"):
        assert wrong not in html
    assert html.count("</script>") == html.count("<script>")
    assert 'data-v="0.01"' in html
