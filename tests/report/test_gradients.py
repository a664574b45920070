"""The curve of gradient norms; text stays text."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lmtool.evaluation.gradients import GradientFlow, GradientNormsByStepsBack
from lmtool.report.gradients import format_curve_lines, plot_gradient_flow_through_time, render_curves_page

FLOW = GradientFlow(
    ["</script><img src=x onerror=alert(1)>", "\u202eevil", "b"],
    "<b>\x1b",
    GradientNormsByStepsBack(1.5, {"layer 1": [1.0, 0.1, 0.01], "layer 2": [2.0, 0.0, None]}),
)
LOADED: Any = SimpleNamespace(model=SimpleNamespace(description="rnn"), run_path=Path("<i>"), step=3)


def test_numbers_by_steps_back() -> None:
    lines = list(map(str, format_curve_lines(plot_gradient_flow_through_time({"run": FLOW}), LOADED, 80)))
    head = next(i for i, line in enumerate(lines) if line.startswith("back"))
    rows = lines[head + 1 : head + 4]
    assert [line.split()[-2:] for line in rows] == [
        ["1.000e+00", "2.000e+00"],
        ["1.000e-01", "0.000e+00"],
        ["not", "finite"],
    ]
    assert [line.split()[0] for line in rows] == ["0", "1", "2"]
    assert "'b'" in rows[0]
    assert " ".join(lines[head + 5 :]) == plot_gradient_flow_through_time({"run": FLOW}).caption


def test_a_long_text_leaves_the_curve_on_the_screen() -> None:
    n = 1000
    flow = GradientFlow(["a"] * n, "b", GradientNormsByStepsBack(1.5, {"layer 1": [0.99**k for k in range(n)]}))
    listed = [
        line.split()
        for line in map(str, format_curve_lines(plot_gradient_flow_through_time({"run": flow}), LOADED, 80))
        if "'a'" in line
    ]
    assert [int(first) for first, *_ in listed] == list(range(0, n, 17))


def test_hostile_text_stays_text() -> None:
    html = render_curves_page(plot_gradient_flow_through_time({"run": FLOW}), LOADED)
    for wrong in ("<img", "<b>", "<i>", "\x1b", "\u202e"):
        assert wrong not in html
    assert html.count("</script>") == html.count("<script>")
    assert 'data-v="0.01"' in html
