"""The page of generated texts: what is shown is what the model said, and text stays text."""

import json
import re
from math import log
from typing import Any

import pytest

from lmtool.generation.generate import generate
from lmtool.generation.mask_predict import fill_masks
from lmtool.generation.params import MaskPredict, SamplingParams
from lmtool.generation.request import Alternative, BeamNode, Completion
from lmtool.report.generated import assign_steps_and_lanes, render_completions_page
from tests.generation.models import HistoryModel, SidesModel, TableModel

TABLE = [[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]]
HOSTILE = ["</script><img src=x onerror=alert(1)>", "\u202eevil", "a\x1b[2J", '"><b>']


class Names:
    """Stands for a tokenizer."""

    def display_token(self, token: int) -> str:
        return HOSTILE[token]


NAMES: Any = Names()


def completion(**changes: Any) -> Completion:
    numbers = {"request": 0, "sample": 0, "draw": 0, "steps": 2, "seed": 0, "score": None}
    texts = {"prompt": "<script>alert(1)</script>", "text": "", "finish_reason": "length"}
    tokens = {"tokens": (0, 1), "logprobs": (log(0.6), log(0.04)), "ranks": (1, 3), "removed": (0.0, 0.25)}
    first = (Alternative(0, log(0.6), True), Alternative(2, log(0.3), False))
    second = (Alternative(3, log(0.9), True), Alternative(1, log(0.04), True))
    told: dict[str, Any] = numbers | texts | tokens | {"alternatives": (first, second)}
    return Completion(**(told | changes))


def test_alternatives_are_the_most_probable_tokens() -> None:
    (event,) = generate(TableModel(TABLE), [[0]], SamplingParams(max_new_tokens=1, top_k=2, seed=3), details=True)
    assert event.alternatives is not None
    assert [other.id for other in event.alternatives] == [0, 1, 2, 3]
    assert [other.logprob for other in event.alternatives] == pytest.approx([log(p) for p in TABLE[0]], abs=1e-5)
    assert [other.kept for other in event.alternatives] == [True, True, False, False]
    (event,) = generate(
        HistoryModel(), [[1]], SamplingParams("greedy", max_new_tokens=1), banned_ids=range(5), details=True
    )
    assert event.alternatives is not None
    assert len(event.alternatives) == 5
    assert all(other.kept == (other.id >= 5) for other in event.alternatives)


def test_alternatives_of_filled_masks() -> None:
    (filled,) = fill_masks(SidesModel(), [[1, 10, 2]], 10, MaskPredict(rounds=1), details=True)
    assert filled.alternatives is not None
    (alternatives,) = filled.alternatives
    best = max(alternatives, key=lambda other: (other.kept, other.logprob))
    assert (best.id,) == filled.tokens
    assert (best.logprob,) == filled.logprobs


def test_a_page_has_probabilities_and_alternatives() -> None:
    html = render_completions_page([("One", completion())], NAMES, "run, step 1")
    (data,) = re.findall(r'<script type="application/json" id="tokens-1">(.*?)</script>', html)
    first, second = json.loads(data)
    assert first["text"].endswith("p 0.6000, rank 1, filters removed 0.0000")
    assert [other["kept"] for other in first["alternatives"]] == [True, False]
    assert [other["taken"] for other in second["alternatives"]] == [False, True]
    assert 'class="token p6" tabindex="0"' in html
    assert 'class="token p0" tabindex="-1"' in html


def test_hostile_tokens_stay_text() -> None:
    tree = (BeamNode(None, 0, -1.0), BeamNode(0, 1, -2.0, "end", -1.0, 0), BeamNode(0, 3, -3.0))
    told = completion(tree=tree, score=-1.0)
    html = render_completions_page([("<script>alert(1)</script>\u2066", told)], NAMES, "<i>\u202e")
    assert not any(wrong in html for wrong in ("<img", "<i>", "<b>", "\x1b"))
    assert html.count("</script>") == len(re.findall(r"<script( type=\"application/json\" id=\"[\w-]+\")?>", html))
    assert "alert(1)</script>" not in html


def test_a_tree_has_a_place_for_every_hypothesis() -> None:
    """The texts that are returned run straight from where they begin."""
    tree = [
        BeamNode(None, 1, -1.0),
        BeamNode(None, 2, -2.0),
        BeamNode(0, 3, -3.0),
        BeamNode(1, 3, -3.0),
        BeamNode(1, 4, -3.5),
        BeamNode(4, 5, -4.0, "end", -1.0, 0),
        BeamNode(4, 6, -5.0, "end", -1.3, 1),
        BeamNode(2, 6, -6.0),
    ]
    placed = assign_steps_and_lanes(tree)
    assert len(set(placed)) == len(tree)
    assert [step for step, _ in placed] == [0, 0, 1, 1, 1, 2, 2, 2]
    lane = [lane for _, lane in placed]
    assert lane[1] == lane[4] == lane[5]
    assert lane[0] == lane[2] == lane[7]


def test_a_tree_shows_the_probability_of_each_token_after_those_before_it() -> None:
    tree = (
        BeamNode(None, 0, log(0.5)),
        BeamNode(0, 1, log(0.5 * 0.31), "end", -0.931, 0),
        BeamNode(0, 2, log(0.5 * 0.07), "end", -1.676),
    )
    html = render_completions_page([("One", completion(tree=tree, score=-0.931))], NAMES, "run, step 1")
    (picture,) = re.findall(r'<svg class="picture.*?</svg>', html, re.DOTALL)
    shown = re.findall(r'<text class="tick".*?>(.*?)</text>', picture)
    assert shown == ["0.50", "score -0.931", "score -1.676"]
