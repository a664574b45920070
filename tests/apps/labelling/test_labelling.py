"""Which rows are asked, two windows, what is estimated and doubted, and a simulated annotator."""

import csv
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binomtest

from lmtool.apps.labelling import learning
from lmtool.apps.labelling.labelling import ActiveLearningSession, RowVersionConflict
from lmtool.serving.errors import BadRequest
from tests.apps.labelling.conftest import TEXTS, TRUTH, write

Begin = Callable[..., ActiveLearningSession]


def text_of(row: dict[str, Any]) -> str:
    return str(row["texts"][-1][1])


def ask(labelling: ActiveLearningSession, window: str = "a") -> Any:
    return labelling.assign_next_row(window)["row"]


def annotate(
    labelling: ActiveLearningSession, n: int, truth: dict[str, str] = TRUTH, every: int = 1
) -> list[dict[str, Any]]:
    """Answers the next n rows, and learns when so many of them are answered."""
    rows = []
    for i in range(1, n + 1):
        row = ask(labelling)
        rows.append(row)
        labelling.save_answer_and_assign_next("a", row["row"], row["version"], [truth[text_of(row)]])
        if i % every == 0 or i == n:
            labelling.fit_and_update_queue_and_estimates()
    return rows


def result(labelling: ActiveLearningSession, path: Path) -> list[dict[str, str]]:
    """The file that is written when the session ends."""
    labelling.open(None)  # type: ignore[arg-type]  # it needs no loop
    labelling.close()
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_each_row_is_asked_once_until_none_is_left(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    asked = annotate(labelling, len(TEXTS), every=4)
    assert sorted(row["row"] for row in asked) == list(range(len(TEXTS)))
    assert ask(labelling) is None
    assert labelling.to_record()["answers"] == len(TEXTS)


def test_the_result_has_all_columns_and_the_input_stays(table: Path, begin: Begin, tmp_path: Path) -> None:
    before = table.read_bytes()
    labelling = begin(table)
    asked = annotate(labelling, 5)
    rows = result(labelling, tmp_path / "out.csv")
    assert [(row["number"], row["text"]) for row in rows] == [(str(i), text) for i, (_, text) in enumerate(TEXTS)]
    assert {int(row["number"]): row["label"] for row in rows if row["label"]} == {
        row["row"]: TRUTH[text_of(row)] for row in asked
    }
    assert table.read_bytes() == before


def test_labels_of_the_table_are_answers_and_stay_in_their_column(begin: Begin, tmp_path: Path) -> None:
    source = write(tmp_path / "some.csv", ["good,one text,1", ",another text,2", "bad,,3"], "label,text,number")
    labelling = begin(source)
    assert labelling.answers() == {0: ("good",), 2: ("bad",)}
    assert ask(labelling)["row"] == 1
    assert [name for name, _ in labelling.progress_with_doubted_answers()["classes"]] == ["bad", "good"]
    labelling.save_answer_and_assign_next("a", 1, 0, ['new, "class"'])
    rows = [list(row.values()) for row in result(labelling, tmp_path / "out.csv")]
    assert rows == [["good", "one text", "1"], ['new, "class"', "another text", "2"], ["bad", "", "3"]]


def test_labels_are_found_by_the_cells_of_a_column(begin: Begin, tmp_path: Path) -> None:
    """Where its name does not tell; what has other cells in each row is none."""
    for name, cell, n in (("mood", "{mood}", len(TEXTS)), ("own", "{i}-x", 0)):
        rows = [f"{i},{text},{cell.format(i=i, mood=mood)}" for i, (mood, text) in enumerate(TEXTS)]
        labelling = begin(write(tmp_path / "moods.csv", rows, f"number,text,{name}"))
        assert labelling.table.label == (name if n else "label")
        assert len(labelling.answers()) == n


def test_two_windows_get_different_rows_and_never_overwrite_each_other(
    table: Path, begin: Begin, tmp_path: Path
) -> None:
    labelling = begin(table)
    windows = {name: ask(labelling, name) for name in "abcdefgh"}
    assert len({row["row"] for row in windows.values()}) == len(windows)
    assert ask(labelling) == windows["a"], "a page that is loaded again is asked the same"
    row = windows["a"]
    labelling.save_answer_and_assign_next("a", row["row"], row["version"], ["fruit"])
    with pytest.raises(RowVersionConflict) as refused:
        labelling.save_answer_and_assign_next("b", row["row"], row["version"], ["animal"])
    assert refused.value.status == 409
    assert refused.value.body["row"] == {**row, "labels": ("fruit",), "version": 1}
    assert labelling.answers() == {row["row"]: ("fruit",)}
    labelling.save_answer_and_assign_next("b", row["row"], 1, ["animal"])
    assert labelling.answers() == {row["row"]: ("animal",)}
    # the last row is asked in each
    (tmp_path / "out.answers.jsonl").unlink()
    alone = begin(write(tmp_path / "one.csv", ["1,alone"]))
    assert ask(alone) == ask(alone, "b")


def test_an_answer_is_taken_back_and_a_row_passed_over(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    first = ask(labelling)
    labelling.save_answer_and_assign_next("a", first["row"], 0, ["fruit"])
    labelling.save_answer_and_assign_next("a", first["row"], 1, None)
    second = ask(labelling)
    labelling.save_answer_and_assign_next("a", second["row"], 0, None)
    assert labelling.answers() == {}
    again = begin(table)
    asked = annotate(again, len(TEXTS) - 2, every=12)
    assert not {first["row"], second["row"]} & {row["row"] for row in asked}
    assert ask(again) is None


def test_what_is_no_answer_is_refused(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    for row, labels in ((10**6, ["a"]), (-1, ["a"]), (0, []), (0, ["a", "b"]), (0, [" "]), (0, ["a;b"])):
        with pytest.raises(BadRequest):
            labelling.save_answer_and_assign_next("a", row, 0, labels)
    assert labelling.answers() == {}


def test_several_labels_a_row(begin: Begin, tmp_path: Path) -> None:
    source = write(tmp_path / "films.csv", ["a;b,first", ";,second", ",third", ",fourth"], "genre,text")
    labelling = begin(source, multi=True)
    assert labelling.answers() == {0: ("a", "b"), 1: ()}
    labelling.save_answer_and_assign_next("a", 2, 0, [])
    labelling.save_answer_and_assign_next("a", 3, 0, ["c", "a"])
    rows = result(begin(source, multi=True), tmp_path / "out.csv")
    assert [row["genre"] for row in rows] == ["a;b", ";", ";", "c;a"]


def test_several_labels_are_learned(table: Path, begin: Begin) -> None:
    labelling = begin(table, multi=True)
    for i in range(60):
        row = ask(labelling)
        words = text_of(row).split()
        labels: list[str] = [name for name in ("cat", "small", "here") if name in words]
        labelling.save_answer_and_assign_next("a", row["row"], 0, labels)
        if i % 20 == 19:
            labelling.fit_and_update_queue_and_estimates()
    assert labelling.estimate is not None
    assert labelling.estimate[0] > 0.5


def test_the_estimate_is_of_random_rows_and_close_to_the_truth(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    annotate(labelling, 50)
    assert labelling.estimate is not None
    share, low, high, n = labelling.estimate
    assert 10 <= n < 50
    assert share > 0.8
    order, answered = labelling._order, labelling.answers().keys()
    assert set(order[:n]) <= answered
    assert order[n] not in answered
    interval = binomtest(round(share * n), n).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((interval.low, interval.high))


def test_labels_that_are_wrong_are_found_and_kept_if_confirmed(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    wrong = {text: "fruit" for _, text in TEXTS if text in ("the old cat here", "the new dog outside")}
    annotate(labelling, len(TEXTS), truth=TRUTH | wrong, every=12)
    doubted = labelling.progress_with_doubted_answers()["wrong"]
    assert {text_of(row) for row in doubted[:2]} == set(wrong)
    assert all(row["labels"] == ("fruit",) and row["suggested"] == ("animal",) for row in doubted[:2])
    first = doubted[0]
    labelling.save_answer_and_assign_next("a", first["row"], first["version"], ["fruit"])
    labelling.fit_and_update_queue_and_estimates()
    assert text_of(first) not in {text_of(row) for row in labelling.progress_with_doubted_answers()["wrong"]}


def test_rows_are_found_by_their_words(table: Path, begin: Begin) -> None:
    rows = begin(table).find_rows_with_all_words("PEAR  large")
    assert {text_of(row) for row in rows} == {text for _, text in TEXTS if "large pear" in text}


def test_the_thread_learns_and_goes_on_after_an_error(
    table: Path, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelling = begin(table)
    with monkeypatch.context() as patch:
        patch.setattr(labelling, "fit_and_update_queue_and_estimates", lambda: 1 / 0)
        labelling.open(None)  # type: ignore[arg-type]
        time.sleep(0.1)
    for _ in range(40):
        row = ask(labelling)
        labelling.save_answer_and_assign_next("a", row["row"], row["version"], [TRUTH[text_of(row)]])
    deadline = time.monotonic() + 60
    while labelling.estimate is None and time.monotonic() < deadline:
        time.sleep(0.05)
    labelling.close()
    assert labelling.estimate is not None


def needed(labelling: ActiveLearningSession, choosing: bool) -> int:
    """Answers until a model of them is right on all rows."""
    classes = sorted(set(TRUTH.values()))
    truth_N = np.array([classes.index(TRUTH[texts[-1]]) for _, texts in labelling.table.rows])
    for n in range(1, len(truth_N)):
        if choosing:
            annotate(labelling, 1)
            rows = [*labelling.answers()]
        else:
            rows = labelling._order[:n]
        if len(set(truth_N[rows])) > 1:
            features = labelling._features
            p_QJK = learning.fit_and_predict_probabilities(features[rows], truth_N[rows, None], features, 2)
            if (p_QJK[:, 0].argmax(1) == truth_N).all():
                return n
    return len(truth_N)


def test_a_simulated_annotator_needs_fewer_labels_than_in_random_order(table: Path, begin: Begin) -> None:
    labelling = begin(table)
    by_chance = needed(labelling, choosing=False)
    assert needed(labelling, choosing=True) < by_chance


def test_cells_may_be_lists_and_conversations(begin: Begin, tmp_path: Path) -> None:
    """A list of one class is that class, and a conversation is one text."""
    source = tmp_path / "lists.jsonl"
    source.write_text('{"text": "one", "label": ["a"]}\n{"text": "two", "label": []}\n', encoding="utf-8")
    assert begin(source).answers() == {0: ("a",)}
    said = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "good day"}]
    source.write_text(json.dumps({"messages": said}) + "\n", encoding="utf-8")
    (tmp_path / "out.answers.jsonl").unlink()
    assert ask(begin(source))["texts"] == [("messages", "user: hello")]
