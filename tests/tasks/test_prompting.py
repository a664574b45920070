"""Tasks by prompting: what prompts are made of, and calibration against its formula."""

from pathlib import Path

import numpy as np
import pytest

from lmtool.data.table import open_table
from lmtool.errors import UsageError
from lmtool.recipe.spec.text import Data
from lmtool.tasks.prompting import PromptTemplate, calibrate_scores, parse_answers_or_use_labels
from tests.reference.prompting import calibrated


def test_calibration_divides_by_what_an_empty_prompt_gives() -> None:
    rng = np.random.default_rng(0)
    score_RA, free_FA = rng.normal(size=(6, 3)) - 4, rng.normal(size=(2, 3)) - 4
    found_RA = np.exp(calibrate_scores(score_RA, free_FA))
    wanted_RA = [calibrated(np.exp(own).tolist(), np.exp(free_FA).tolist()) for own in score_RA]
    np.testing.assert_allclose(found_RA / found_RA.sum(1, keepdims=True), wanted_RA, rtol=1e-12)


def test_braces_stand_for_columns(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a b,label\nit rains,a\n")
    table = open_table(str(tmp_path / "rows.csv"))
    prompt = PromptTemplate("{{x}} {a b}: ")
    assert prompt.fill(prompt.choose_columns(table, Data()), ("it rains",)) == "{x} it rains: "
    with pytest.raises(UsageError):
        PromptTemplate("{{text}}").choose_columns(table, Data())


def test_text_stands_for_one_column_alone(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("premise,hypothesis\nit rains,it is wet\n")
    table = open_table(str(tmp_path / "pairs.csv"))
    with pytest.raises(UsageError):
        PromptTemplate("{text}: ").choose_columns(table, Data(), labelled=False)


def test_answers_are_named_by_labels_or_stand_in_their_order() -> None:
    assert parse_answers_or_use_labels(["a=b", "c"], ["a=b", "c"]) == {"a=b": "a=b", "c": "c"}
