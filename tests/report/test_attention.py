"""Pictures of attention: the weights that a page holds, text that stays text, and the matrix of a terminal."""

import base64
import io
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from lmtool.evaluation.attention import AttentionKind, AttentionWeights, TextAttention
from lmtool.evaluation.attribution import WordAttribution
from lmtool.report import attention
from lmtool.report.attention import format_attention_head, format_attribution, render_attention_page
from tests.support.errors import refuses
from tests.support.pages import HOSTILE, Elements

KEYS = ("Ein", " Hund", "läuft", "漢字", ".")
QUERIES = ("A", " dog", "runs")


def part(
    kind: AttentionKind = "cross", queries: Sequence[str] = QUERIES, keys: Sequence[str] = KEYS
) -> AttentionWeights:
    """Weights of two layers of three heads."""
    scores = np.random.default_rng(0).normal(size=(2, 3, len(queries), len(keys))) * 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    return AttentionWeights(kind, tuple(queries), tuple(keys), weights.astype(np.float32))


def of(*parts: AttentionWeights) -> TextAttention:
    return TextAttention("runs/a", 7, parts)


def data_of(html: str) -> Any:
    (found,) = re.findall(r'<script type="application/json" id="attention-data">(.*?)</script>', html, re.DOTALL)
    return json.loads(found)


def test_a_page_holds_all_weights_to_16_bits() -> None:
    parts = part(), part("decoder", QUERIES, QUERIES)
    data = data_of(render_attention_page(of(*parts)))
    assert [one["kind"] for one in data["parts"]] == ["cross", "decoder"]
    for one, wanted in zip(data["parts"], parts, strict=True):
        values = np.frombuffer(base64.b64decode(one["weights"]), dtype="<u2") / 65535
        shape = one["layers"], one["heads"], len(one["queries"]), len(one["keys"])
        np.testing.assert_allclose(values.reshape(shape), wanted.weights_LNTS, atol=1e-5)
        assert (tuple(one["queries"]), tuple(one["keys"])) == (wanted.queries, wanted.keys)


def test_a_page_begins_with_what_is_asked_for() -> None:
    attended = of(part(), part("decoder", QUERIES, QUERIES))
    assert data_of(render_attention_page(attended))["start"] == {"part": 0, "layer": 1, "head": -1}
    chosen = render_attention_page(attended, initial_kind="decoder", initial_layer=0, initial_head=-1)
    assert data_of(chosen)["start"] == {"part": 1, "layer": 0, "head": 2}
    wrong: list[dict[str, Any]] = [{"initial_kind": "self"}, {"initial_layer": 2}, {"initial_head": 3}]
    for options in wrong:
        with refuses("usage"):
            render_attention_page(attended, **options)


def test_text_of_a_hostile_run_stays_text() -> None:
    tokens = (*HOSTILE, "\u2028", "\ud800", "\x1b[31m")
    plain, hostile = (
        render_attention_page(
            TextAttention(run, 1, (part("self", words, words),)),
            WordAttribution(words[0], -0.5, words, (0.0,) * len(words), (0.0,) * len(words), None),
        )
        for run, words in (("run", tuple(f"w{i}" for i in range(len(tokens)))), (HOSTILE[0], tokens))
    )
    assert Elements(hostile).tags() == Elements(plain).tags()
    assert data_of(hostile)["parts"][0]["keys"] == list(tokens)
    assert HOSTILE[0] in Elements(hostile).text
    hostile.replace("\ud800", "").encode()


def test_words_that_decided_are_a_table() -> None:
    decided = WordAttribution("good", -0.25, ("not", "bad"), (0.5, -0.125), (0.25, 0.75), (0.1, 0.9))
    text = Elements(render_attention_page(of(part("self", QUERIES, QUERIES)), decided)).text
    for word in ("good", "-0.25", "leave-one-out", "integrated gradients", "rollout", "not", "0.5", "0.75", "0.9"):
        assert word in text


def test_a_text_too_long_for_a_page_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_PAGE_WEIGHTS", 89)
    with refuses("usage"):
        render_attention_page(of(part()))


def printed(lines: Iterable[str | Text], width: int = 80, **options: Any) -> list[str]:
    """The lines that a console shows."""
    shown = io.StringIO()
    console = Console(file=shown, width=width, highlight=False, **options)
    for line in lines:
        console.print(line, no_wrap=True, crop=False, overflow="ignore")
    return shown.getvalue().splitlines()


def test_a_matrix_is_in_percent_with_numbers_for_keys() -> None:
    one = part()
    title, keys, head, *rows = printed(format_attention_head(one, 1, 2, 80))
    assert title == "Attention of the target to its source, layer 1, head 2, in percent"
    assert keys == "0 Ein  1  Hund  2 läuft  3 漢字  4 ."
    assert head.split() == list("01234")
    for i, row in enumerate(rows):
        number, name, *cells = row.split()
        assert (int(number), name) == (i, QUERIES[i].strip())
        assert [0 if cell == "·" else int(cell) for cell in cells] == [
            round(100 * w) for w in one.head(1, 2)[i].tolist()
        ]
    assert "mean of 3 heads" in printed(format_attention_head(one, 0, None, 80))[0]


@pytest.mark.parametrize("width", [20, 33, 80])
def test_a_matrix_fits_the_terminal(width: int) -> None:
    tokens = [f"word{i}" if i % 2 else "漢字漢字漢字漢字漢字漢字" for i in range(30)]
    _, *lines = printed(format_attention_head(part("self", tokens, tokens), 0, None, width), width)
    assert all(cell_len(line) <= max(width, 23) for line in lines)
    cells = [line.split()[2:] for line in lines if re.match(r" ?7 ", line) and "word7" in line]
    assert sum(map(len, cells)) == 30


def test_sums_of_states_do_not_touch() -> None:
    ones = AttentionWeights("memory", ("a", "b", "c"), ("a", "b", "c"), np.tri(3, k=-1, dtype=np.float32)[None, None])
    assert printed(format_attention_head(ones, 0, None, 80))[-1].split() == ["2", "c", "100", "100", "·"]


def test_colour_is_shade_only() -> None:
    one = part()
    coloured = printed(format_attention_head(one, 0, 0, 80), force_terminal=True, color_system="truecolor")
    assert any("\x1b[" in line for line in coloured)
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == printed(format_attention_head(one, 0, 0, 80))


def test_markup_in_tokens_is_text() -> None:
    tokens = ("[bold]", "[/bold]", "\\[", "[link=https://example.com]")
    lines = printed(format_attention_head(part("self", tokens, tokens), 0, None, 80))
    assert "0 [bold] " in lines[2]
    decided = WordAttribution("[red]", 0.0, tokens, (0.0,) * 4, (0.0,) * 4, None)
    assert printed(format_attribution(decided))[0].startswith("[red] 0")
