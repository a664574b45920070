"""Rows of a sweep, and the page about it."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.sweeping import results
from lmtool.runs.history import RunHistory
from tests.support import pages

HOSTILE = "<img src=x onerror=alert(1)>"
make: Any = pages.make


def ranked(*runs: Any) -> Any:
    return results.group_and_rank_by_grid_point(runs)


def history(folder: Path, name: str = "made", best: float | None = None, metric: str = "loss") -> Any:
    """A run whose best validation has this value."""
    run = make(folder, name=name, steps=20)
    records = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    records[-1] |= {"valid_loss": 1.0, **({} if best is None else {"valid_loss" if metric == "loss" else metric: best})}
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    with (run.path / "recipe.yaml").open("a") as file:
        file.write(f"evaluation:\n  metric: {metric}\n")
    return RunHistory.from_run(run)


def test_a_row_is_all_seeds_of_a_setting(tmp_path: Path) -> None:
    values = {("0.1", "1"): 2.0, ("0.1", "2"): 3.0, ("0.2", "1"): 1.0, ("0.2", "2"): 1.5}
    runs = [
        ({"seed": seed, "lr": rate}, history(tmp_path, f"{rate}-{seed}", value), "")
        for (rate, seed), value in values.items()
    ]
    failed = [({"seed": "1", "lr": "9"}, None, "the loss is nan"), ({"lr": "8"}, None, "")]
    rows = ranked(*runs, *failed)
    assert [row.point for row in rows[:2]] == [{"lr": "0.2"}, {"lr": "0.1"}]
    figures = rows[1].average_over_seeds()
    assert figures["loss"] == pytest.approx(statistics.mean([2.0, 3.0]))
    assert figures["deviation"] == pytest.approx(statistics.stdev([2.0, 3.0]))
    assert (figures["seeds"], figures["steps"], figures["seconds"]) == (2, 20, 10)
    assert rows[2].average_over_seeds() == {"seeds": 0, "failed": "the loss is nan"}
    assert rows[0].to_json_values()["runs"][0] == {"path": str(tmp_path / "0.2-1"), "value": 1.0, "state": "finished"}
    columns, cells = results.make_results_table(rows)
    assert columns == ["lr", "loss", "deviation", "steps", "seconds", "seeds", "failed"]
    assert cells[2] == ["9", None, None, None, None, 0, "the loss is nan"]


@pytest.mark.parametrize(("metric", "best"), [("accuracy", 0.9), ("loss", 0.2)])
def test_the_best_is_the_highest_accuracy_and_the_lowest_loss(tmp_path: Path, metric: str, best: float) -> None:
    pair = [history(tmp_path, f"{value}", value, metric) for value in (0.2, 0.9)]
    assert max(pair, key=results.score_by_validation).name == f"{best}"
    assert results.get_validation_metric(pair[0])[0] == metric


def test_what_was_measured_on_test_rows_chooses_nothing(tmp_path: Path) -> None:
    one = history(tmp_path, "one", 0.5, "accuracy")
    measured_on_test = {"part": "test", "step": 20, "rows": 9, "loss": 0.1, "accuracy": 1.0, "labels": []}
    (one.run.path / "metrics.json").write_text(json.dumps(measured_on_test))
    measured = RunHistory.from_run(one.run)
    assert measured.results[""]["accuracy"] == 1.0
    assert results.get_validation_metric(measured) == ("accuracy", 0.5)
    assert results.GridPointResults({}, [measured]).average_over_seeds()["accuracy"] == 0.5


def test_a_run_that_stopped_before_its_end_comes_after_those_that_did_not(tmp_path: Path) -> None:
    stopped, finished = history(tmp_path, "stopped", 0.1), history(tmp_path, "finished", 0.2)
    info = json.loads((stopped.run.path / "run.json").read_text())
    info["sessions"][0]["outcome"] = "stopped"
    del info["checksum"]
    (stopped.run.path / "run.json").write_text(json.dumps(info))
    stopped = RunHistory.from_run(type(stopped.run).open(stopped.run.path))
    rows = ranked(({"lr": "1"}, stopped, ""), ({"lr": "2"}, finished, ""))
    assert [row.point["lr"] for row in rows] == ["2", "1"]


def test_the_page_has_the_settings_the_figures_and_the_losses(tmp_path: Path) -> None:
    runs = [
        ({"seed": seed, "lr": rate, "kind": "a"}, history(tmp_path, f"{rate}-{seed}", float(rate) + int(seed)), "")
        for rate in ("0.001", "0.01", "0.1")
        for seed in ("1", "2")
    ]
    rows = ranked(*runs, ({"lr": "5", "kind": HOSTILE}, None, HOSTILE))
    html = results.render_sweep_page(HOSTILE, rows, {"seed": ["1", "2"], "lr": [], "kind": []})
    assert HOSTILE not in html
    titles = ["Settings, the best first", "By lr", "Losses, of one run of each of the 3 best"]
    assert re.findall("<h2>(.*?)</h2>", html) == titles
    chart = html[html.index("By lr") :].partition("</svg>")[0]
    ticks = [float(tick) for tick in re.findall(r'text-anchor="middle">([^<]+)<', chart)[:3]]
    assert ticks == [0.001, 0.01, 0.1]


@pytest.mark.parametrize(("values", "log"), [((2, 3, 4), False), ((16, 32, 64, 128), True), ((0, 1, 10), False)])
def test_the_axis_is_logarithmic_where_values_are_spread_by_factors(
    tmp_path: Path, values: tuple[int, ...], log: bool
) -> None:
    runs = [({"d": str(value)}, history(tmp_path, str(value), 1.0 + value), "") for value in values]
    assert ("data-log" in results.render_sweep_page("d", ranked(*runs), {"d": []})) is log
