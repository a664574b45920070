"""The page about runs: its figures are those of the run's files, and nothing in a run becomes HTML."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from lmtool.report.training import render_loss_figure, render_runs_page
from lmtool.runs.directory import Run
from lmtool.runs.files import ValidationState
from lmtool.runs.history import RunHistory, downsample_by_averaging, find_differing_recipe_values
from tests.support.pages import HOSTILE, Elements, make


def page_of(*runs: Run) -> str:
    return render_runs_page([RunHistory.from_run(run) for run in runs])


def write_results(run: Run, **results: Any) -> None:
    (run.path / "metrics.json").write_text(json.dumps({"part": "validation", **results}))


def rows_of(html: str, heading: str) -> list[list[str]]:
    """The values of the tables of a section, as the data attribute or the text of each cell."""
    part = re.search(rf"<h2>{re.escape(heading)}</h2>(.*?)</section>", html, re.DOTALL)
    assert part is not None
    return [
        [value or text for value, text in re.findall(r'<t[dh][^>]*?(?: data-v="([^"]*)")?>(.*?)</t[dh]>', row)]
        for row in re.findall(r"<tr>(.*?)</tr>", part[1], re.DOTALL)
    ]


def test_the_figures_are_those_of_the_files(tmp_path: Path) -> None:
    run = make(tmp_path)
    _, *rows = rows_of(page_of(run), "Loss")
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        expected = [record[name] for name in ("step", "tokens", "seconds", "loss", "valid_loss")]
        assert [float(value) if value else None for value in row] == pytest.approx(expected)


def test_losses_are_in_bits_per_byte_where_bytes_are_known(tmp_path: Path) -> None:
    """What is measured at the end is exact."""
    run = make(tmp_path, data={"lines": [], "bytes_per_token": 2.0})
    _, first, *_ = rows_of(page_of(run), "Loss")
    assert float(first[3]) == pytest.approx(4.9 / math.log(2) / 2)
    assert RunHistory.from_run(run).best_checkpoint_bits_per_byte == pytest.approx(0.5 / math.log(2) / 2)
    write_results(run, loss=2.0, bits_per_byte=1.25)
    assert RunHistory.from_run(run).best_checkpoint_bits_per_byte == 1.25
    assert RunHistory.from_run(run).bits_per_byte_per_nat == 0.625


@pytest.mark.parametrize(("steps", "first", "other"), [(40, "logarithmic", "linear"), (20, "linear", "logarithmic")])
def test_losses_over_steps_are_drawn_on_both_scales_first_on_that_which_suits_them(
    tmp_path: Path, steps: int, first: str, other: str
) -> None:
    """Losses from 4.9 to 0.5, and from 4.9 to 2.5."""
    html = render_loss_figure([RunHistory.from_run(make(tmp_path, steps=steps))])
    assert re.findall("<label[^>]*>(.*?)</label>", html) == ["Steps", "Tokens", "Time", f"Steps, {other}"]
    ticks = [set(re.findall(r'text-anchor="end">(.*?)<', panel)) for panel in html.split("<div>")[1:]]
    assert all({"1", "2"} <= found or {"3", "4"} <= found for found in ticks)
    assert ticks[0] == ticks[1] == ticks[2] != ticks[3]
    assert ("The axis is logarithmic" in html) == (first == "logarithmic")


def test_limit_and_ngram_are_lines_where_they_were_measured(tmp_path: Path) -> None:
    """On each of the four axes, in two widths."""
    run = make(tmp_path)
    for limit, names in ((None, ["5-gram model 1.750"]), (0.5, ["best possible model 0.500", "5-gram model 1.750"])):
        write_results(run, loss=2.0, bits_per_byte=1.5, ngram_bits_per_byte=1.75, limit_bits_per_byte=limit)
        html = page_of(run)
        assert html.count('class="level" d="M56') == 2 * 4 * len(names)
        assert all(name in html for name in names)


def test_many_steps_are_drawn_as_means() -> None:
    records: list[dict[str, Any]] = [
        {"step": i, "loss": float(i), "valid_loss": 7.0 if i == 500 else None, "lr": 0.1} for i in range(1, 1001)
    ]
    found = downsample_by_averaging(records, approximate_max_records=100)
    assert len(found) <= 102
    assert (found[0]["step"], found[0]["loss"]) == (10, 5.5)
    assert [record["step"] for record in found if record["valid_loss"] is not None] == [500]
    assert found[-1]["step"] == 1000


def results_of(text: str) -> dict[str, Any]:
    return {
        "accuracy": 0.5,
        "classes": {text: {"precision": 1, "recall": 1, "f1": 1, "support": 1}},
        "confusion": [[1]],
        "calibration": {"ece": 0.25, "bins": [{"confidence": 0.75, "accuracy": 0.5, "rows": 4}]},
        "mistakes": [{"row": 1, "label": text, "predicted": text, "probability": 0.9, "words": [text], "text": text}],
        "sentences": [{"row": 1, "source": text, "target": text, "predicted": text, "chrf": 3.0}],
    }


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_a_run_becomes_html(tmp_path: Path, text: str) -> None:
    pages = []
    for number, word in enumerate(("w0rd", text)):
        run = make(tmp_path, name=f"run{number}", text=word, steps=10, data={"lines": [word], "bytes_per_token": None})
        write_results(run, **results_of(word))
        pages.append(Elements(page_of(run)))
    harmless, hostile = pages
    assert hostile.tags() == harmless.tags()
    assert text in hostile.text


def test_the_results_of_a_classifier(tmp_path: Path) -> None:
    run = make(tmp_path, kind="classification")
    mistake = {"row": 7, "label": "bad", "predicted": "good", "probability": 0.96875, "words": ["bad", "so"]}
    write_results(
        run,
        part="test",
        rows=8,
        accuracy=0.75,
        classes={name: {"precision": 1.0, "recall": 0.5, "f1": 0.7, "support": 4} for name in ("bad", "good")},
        confusion=[[3, 1], [0, 4]],
        calibration={"ece": 0.125, "bins": [{"confidence": 0.75, "accuracy": 0.5, "rows": 8}]},
        mistakes=[mistake | {"text": "not bad"}],
    )
    page = page_of(run)
    # of 6 + 2 among 8 + 4 rows (Agresti and Coull 1998)
    far = 1.96 * (2 / 3 / 3 / 12) ** 0.5
    assert f"0.7500 (95 %: {2 / 3 - far:.4f} to {2 / 3 + far:.4f})" in page
    rows = rows_of(page, "Results")
    for row in (
        ["true, predicted", "bad", "good"],
        ["bad", "3", "1"],
        ["good", "0", "4"],
        ["0.75", "0.5", "8"],
        ["7", "bad", "good", "0.96875", "bad, so", "not bad"],
    ):
        assert row in rows


def test_logged_gradient_norms_are_drawn(tmp_path: Path) -> None:
    """Those of five steps, spread over the run."""
    run = make(tmp_path, steps=0)
    with Run.open(run.path) as opened:
        for step in range(10, 80, 10):
            norms = {"layer 1": [1.0, 0.5**step, 0.0], "layer 2": [None, 0.25, 0.125]}
            opened.metrics.append({"step": step, "loss": 1.0, "valid_loss": 1.0, "gradient_norms": norms})
    assert RunHistory.from_run(run).task_metrics == ()
    rows = rows_of(page_of(run), "How far back gradients reach")
    assert {row[0] for row in rows[1:]} == {"10", "20", "40", "50", "70"}
    for row in (["70", "layer 1", "0", "1.0"], ["70", "layer 2", "2", "0.125"], ["70", "layer 2", "0", ""]):
        assert row in rows


def test_several_runs_are_beside_each_other(tmp_path: Path) -> None:
    runs = [make(tmp_path, name=name, seed=seed) for name, seed in (("one", 1), ("two", 2))]
    assert find_differing_recipe_values(list(map(RunHistory.from_run, runs))) == {"seed": [1, 2]}
    html = page_of(*runs)
    rows = rows_of(html, "Beside each other")
    assert ["seed", "1", "2"] in rows
    assert ["best loss", "0.5", "0.5"] in rows
    assert {row[0] for row in rows_of(html, "Loss")[1:]} == {"one", "two"}


@pytest.mark.parametrize("steps", [0, 1])
def test_a_run_of_one_step_or_none_has_a_page_without_charts(tmp_path: Path, steps: int) -> None:
    short = make(tmp_path, name="short", steps=steps)
    html = page_of(short)
    assert 'data-chart="lines"' not in html
    assert "<h2>Recipe</h2>" in html
    assert 'data-chart="lines"' in page_of(short, make(tmp_path, name="long", steps=9))


def test_the_best_checkpoint_is_marked_on_the_curves(tmp_path: Path) -> None:
    """That which the metric has chosen, not the lowest loss; on each axis of the losses, and of a page of several."""
    run = make(tmp_path)
    steps = [record["step"] for record in run.metrics.read_records() if record.get("valid_loss") is not None]
    lowest = RunHistory.from_run(run).lowest_loss_validation
    assert lowest is not None
    other = next(step for step in steps if step != lowest["step"])
    run.lock()
    state = ValidationState(step=steps[-1], best_step=other, best_value=1.0, stale=0)
    run.record_validation_and_prune_checkpoints(state)
    run.release_lock()
    html = page_of(run)
    assert f"best checkpoint, step {other:,}" in html
    assert f"best checkpoint, step {lowest['step']:,}" not in html
    losses = html[html.index('id="loss-1"') : html.index("</figure>")]
    rings = re.findall(r'<circle class="mark" cx="([\d.]+)" cy="([\d.]+)" r="4.5"><title>', losses)
    assert len(rings) == 2 * 4
    lines = [points.split() for points in re.findall(r'points="([^"]*)"', losses)]
    for x, y in rings:
        assert any(f"{float(x)},{float(y)}" in points for points in lines)
    assert page_of(run, run).count(">best checkpoints</text>") >= 6


@pytest.mark.parametrize(
    ("kind", "unit"), [("causal", "token"), ("masked", "token"), ("skip-gram", "pair"), ("classification", "row")]
)
def test_losses_are_means_over_what_the_objective_counts(kind: str, unit: str, tmp_path: Path) -> None:
    assert RunHistory.from_run(make(tmp_path, kind=kind)).loss_unit == unit
