"""Drawings of recipes: masks and position signals as their papers define them, and text that stays text."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lmtool.recipe.load import load
from lmtool.report.drawing import (
    DownsampledMask,
    ModelDrawingData,
    draw_model,
    format_model_lines,
    list_tree_rows,
    render_model_page,
)
from tests.support.errors import refuses
from tests.support.shipped import ONE_OF_EACH_KIND

SMALL = ("model.n_layers=2", "model.d_model=8", "model.n_heads=2", "model.context=32", "model.vocab_size=40")


def drawn(*overrides: str, name: str = "tiny") -> ModelDrawingData:
    return draw_model(load(name, (*SMALL, *overrides)).recipe, name)


def cells(mask: DownsampledMask) -> list[str]:
    return ["".join("#" if share == 1 else "." if not share else "-" for share in row) for row in mask.shares]


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_every_kind_of_recipe_is_drawn(name: str) -> None:
    drawing = draw_model(load(name).recipe, name)
    lines = list(map(str, format_model_lines(drawing, 80)))
    assert lines[0].startswith(f"{name}: ")
    assert any(f"{drawing.tree.parameters:,}" in line for line in lines)
    html = render_model_page(drawing)
    assert html.count("<figure>") == len(drawing.masks) + bool(drawing.signal.rows)


CAUSAL = ["#" * (i + 1) + "." * (15 - i) for i in range(16)]


@pytest.mark.parametrize(
    ("overrides", "title", "expected"),
    [
        ((), "causal", CAUSAL),
        (
            ("model.shape=prefix", "objective.kind=prefix"),
            "causal after a prefix of 8",
            ["#" * max(8, i + 1) + "." * (16 - max(8, i + 1)) for i in range(16)],
        ),
        (
            ("data.isolate_documents=true",),
            "causal",
            [("." * 8) * (i // 8) + "#" * (i % 8 + 1) + "." * (15 - i % 8 - 8 * (i // 8)) for i in range(16)],
        ),
    ],
)
def test_a_mask_has_what_each_position_sees(overrides: Sequence[str], title: str, expected: list[str]) -> None:
    """The past; a prefix, which sees itself both ways; its own document alone."""
    (mask,) = drawn(*overrides).masks
    assert mask.title.startswith(title)
    assert cells(mask) == expected


def test_a_window_is_drawn_with_its_global_tokens() -> None:
    keys = "kind=window", "size=2", "global_tokens=1"
    drawing = drawn("model.shape=encoder", "objective.kind=masked", *(f"model.pattern.{key}" for key in keys))
    (mask,) = drawing.masks
    near = [[abs(i - j) < 2 or 0 in (i, j) for j in range(16)] for i in range(16)]
    assert mask.shares == near
    assert mask.title == "bidirectional, in a window of 2, 1 global"


def test_masks_of_layers_that_differ_are_drawn_apart() -> None:
    keys = "kind=window", "size=2", "full_layers=[1]"
    drawing = drawn(*(f"model.pattern.{key}" for key in keys))
    assert [mask.title for mask in drawing.masks] == ["layers 1: causal", "all other layers: causal, in a window of 2"]


def test_a_wide_window_in_cells_of_several_positions() -> None:
    (mask,) = drawn("model.context=200", "model.pattern.kind=window", "model.pattern.size=40").masks
    assert mask.cell == 4
    assert len(mask.shares) == 25
    allowed = [[j <= i and i - j < 40 for j in range(100)] for i in range(100)]
    shares = [
        [sum(allowed[4 * i + a][4 * j + b] for a in range(4) for b in range(4)) / 16 for j in range(25)]
        for i in range(25)
    ]
    assert mask.shares == shares


def test_past_states_of_a_recurrent_model() -> None:
    (mask,) = draw_model(load("lstm-attention").recipe, "lstm").masks
    assert cells(mask) == ["#" * i + "." * (16 - i) for i in range(16)]


def test_sinusoids_of_positions_are_drawn() -> None:
    signal = drawn("model.position.kind=sinusoidal").signal
    for position, *components in signal.rows:
        for i, value in enumerate(components):
            angle = position / 10000 ** (i // 2 * 2 / 8)
            assert value == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)


def test_slopes_of_alibi_are_those_of_the_paper() -> None:
    signal = drawn("model.position.kind=alibi", "model.n_heads=8").signal
    assert [slope for _, slope in signal.rows] == [2.0**-i for i in range(1, 9)]
    assert signal.chart is not None
    assert signal.chart.lines[0].points[3] == (3, -1.5)


def test_buckets_of_relative_positions() -> None:
    keys = "kind=relative", "buckets=8", "max_distance=20"
    rows: Any = drawn(*(f"model.position.{key}" for key in keys)).signal.rows
    buckets = dict(rows)
    assert [buckets[-distance] for distance in range(5)] == [0, 1, 2, 3, 4]
    assert buckets[-20] == buckets[-21] == 7
    assert max(buckets) == 0


def test_places_of_disentangled_positions() -> None:
    signal = drawn("model.position={kind: disentangled, max_distance: 5}").signal
    assert "10 relative positions" in signal.sentence


def test_angles_of_rotary_positions() -> None:
    signal = drawn("model.position.kind=rotary", "model.position.theta=100").signal
    assert [row[1] for row in signal.rows] == pytest.approx([1.0, 100**-0.5])
    assert signal.rows[0][2] == pytest.approx(2 * math.pi)
    assert signal.rows[0][3] == pytest.approx(32 / (2 * math.pi))


def test_the_root_of_the_tree_has_all_operations() -> None:
    drawing = drawn()
    rows = list(list_tree_rows(drawing))
    assert rows[0][0] == "transformer decoder"
    assert rows[0][4] == 1.0
    assert rows[0][3] * 32 == drawing.tree.flops


def test_what_only_the_text_knows_is_said() -> None:
    drawing = draw_model(load("shakespeare-char").recipe, "shakespeare-char")
    assert "128 are assumed" in drawing.notes[0]
    assert draw_model(load("shakespeare-char", ["model.vocab_size=70"]).recipe, "s").notes == []


def test_a_hostile_name_stays_text() -> None:
    drawing = draw_model(load("tiny", SMALL).recipe, "</script><img src=x onerror=alert(1)>\u202e")
    html = render_model_page(drawing)
    assert "<img" not in html
    assert html.count("</script>") == html.count("<script")
    assert "\u202e" not in html


def test_models_that_cannot_be_drawn_are_refused(tmp_path: Path) -> None:
    with refuses("recipe"):
        draw_model(load("tiny", ["model.d_model=1000000000000", "model.n_heads=1"]).recipe, "tiny")
    with refuses("checkpoint"):
        draw_model(load("tiny", ["tokenizer.kind=file", f"tokenizer.path={tmp_path}"]).recipe, "tiny")
