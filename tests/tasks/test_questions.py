"""Tasks of questions: windows, spans, the null span and its threshold."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lmtool.data.table import open_table
from lmtool.model.heads import HeadOutput
from lmtool.tasks.cells import AnswerSpan
from lmtool.tasks.questions import ContextWindow, ExtractedAnswer
from lmtool.tasks.reading import LabelledRow, read_labelled_table
from lmtool.tasks.schema import Columns, choose_columns
from lmtool.tasks.split import apply_split, hold_out_stratified
from lmtool.tasks.task import ModelWithObjective
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.errors import refuses
from tests.tasks.labelled import KINDS
from tests.tasks.models import model_of, recipe_of, task_of

CONTEXT = "On Monday Otto gave the brass key to naïve Ida's hen, because it rained. Ida sold it."
TOKENIZERS = {kind: Tokenizer.train(spec, [CONTEXT + " Who?"]) for kind, spec in KINDS.items()}
WORD = TOKENIZERS["word"]
TOKENS = np.array(WORD.encode_with_offsets(CONTEXT)[1])


def setting(kind: str = "word", context: int = 128, shape: str = "encoder", **spec: Any) -> Any:
    """A task, and a model for it."""
    recipe = recipe_of({"shape": shape, "context": context}, {"kind": "question-answering"} | spec)
    columns = Columns(("question", "context"), "answers", kind="questions")
    return task_of(recipe, TOKENIZERS[kind], columns), model_of(recipe, TOKENIZERS[kind])


def question(answer: str | None = "the brass key", row: int = 1, context: str = CONTEXT) -> LabelledRow:
    spans = () if answer is None else (AnswerSpan(context.index(answer), answer),)
    return LabelledRow(("Who?", context), None, None, row, answers=spans)


def labels(row: ContextWindow) -> list[int]:
    assert row.label is not None
    return [int(place) for place in row.label]


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
@pytest.mark.parametrize("answer", ["the brass key", "Ida", "naïve", "On Monday", "it"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_of_an_answer_are_its_characters(kind: str, answer: str, shape: str) -> None:
    task, _ = setting(kind, shape=shape)
    (row,) = task.encode([question(answer)])
    first, last = (place - row.first for place in labels(row))
    found = CONTEXT[row.characters_N2[first, 0] : row.characters_N2[last, 1]].strip()
    # a tokenizer of words has no token for a part of one
    assert found == answer or (kind == "word" and found.startswith(answer))


@pytest.mark.parametrize("shape", ["encoder", "decoder"])
def test_a_question_without_an_answer_is_the_null_span(shape: str) -> None:
    task, _ = setting(shape=shape)
    (row,) = task.encode([question(None)])
    assert labels(row) == [row.null, row.null]
    assert row.null == (0 if shape == "encoder" else len(row.tokens) - 1)
    assert int(row.tokens[row.null]) == WORD.cls_id


@pytest.mark.parametrize("stride", [None, 1, 3, 99])
def test_windows_cover_the_context_and_overlap(stride: int | None) -> None:
    task, _ = setting(context=14, stride=stride)
    ids, room = WORD.encode(CONTEXT), 14 - 3 - 2
    rows = task.encode([question("brass"), question("sold", row=2, context="Ida sold it")])
    answer = next(i for i, (a, b) in enumerate(TOKENS.tolist()) if CONTEXT[a:b] == "brass")
    seen: set[int] = set()
    places = []
    for row in (row for row in rows if row.number == 1):
        inside = [int(np.flatnonzero(TOKENS[:, 0] == start).item()) for start, _ in row.characters_N2]
        assert row.tokens[row.first : row.first + len(inside)].tolist() == [ids[i] for i in inside]
        assert inside == list(range(inside[0], inside[-1] + 1))
        assert len(row.tokens) <= 14
        seen |= set(inside)
        places.append(inside[0])
        wanted = row.first + answer - inside[0] if answer in inside else row.null
        assert labels(row) == [wanted, wanted]
    assert seen == set(range(len(ids)))
    assert {b - a for a, b in pairwise(places)} == {min(room, stride or room // 2)}
    assert len([row for row in rows if row.number == 2]) == 1


class Scripted(torch.nn.Module):
    """A model whose scores are given: of each token of the vocabulary as the first and as the last of an answer."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.scores_V2 = np.random.default_rng(seed).normal(size=(WORD.vocab_size, 2))

    def run_head(self, batch: Any) -> HeadOutput:
        return HeadOutput(torch.from_numpy(self.scores_V2)[batch.tokens_BT].float())


@pytest.mark.parametrize("seed", range(3))
def test_the_answer_is_the_best_span_of_all_windows(seed: int) -> None:
    task, model = setting(context=14, stride=4, max_answer=3)
    scripted: Any = Scripted(seed)
    task.threshold = np.inf
    scores = ModelWithObjective(scripted, model.objective, model.compute)
    ((text, start, null_score),) = task.predict_cells(scores, task.encode([question()]))
    first_V, last_V = scripted.scores_V2.T
    ids, n_room = WORD.encode(CONTEXT), 14 - 3 - 2
    best, span = max(
        (first_V[ids[i]] + last_V[ids[j]], (i, j))
        for begin in range(0, len(ids), 4)
        for i in range(begin, min(begin + n_room, len(ids)))
        for j in range(i, min(i + 3, begin + n_room, len(ids)))
    )
    assert (text, start) == (CONTEXT[TOKENS[span[0], 0] : TOKENS[span[1], 1]], TOKENS[span[0], 0])
    assert float(str(null_score)) == pytest.approx(scripted.scores_V2[WORD.cls_id].sum() - best, rel=1e-4)


def test_validation_chooses_the_threshold_and_the_recipe_overrules_it() -> None:
    items = [question(), question(None, row=2)]
    found = [ExtractedAnswer("the brass key", 20, -1.0), ExtractedAnswer("key", 30, 0.5)]
    task, _ = setting()
    assert task.threshold == np.inf
    task._fit_null_threshold(found, items)
    assert task.threshold == -1
    task._fit_null_threshold(found[:1], items[:1])
    assert task.threshold == np.inf
    fixed, _ = setting(null_threshold=0.75)
    fixed._fit_null_threshold(found, items)
    assert fixed.threshold == 0.75


def test_figures_of_questions_with_and_without_answers() -> None:
    task, model = setting()
    rows = task.encode([question(), question(None, row=2), question("Ida", row=3)])
    task.validate(model, rows)
    assert np.isfinite(task.threshold)
    chosen, task.threshold = task.threshold, np.inf
    task.calibrate(model, rows, held_out=True)
    assert task.threshold == chosen
    results = task.compute_results(model, rows, "test", 2)
    assert results.rows == 3
    parts = results.figures
    assert parts["f1"] == pytest.approx((2 * parts["has_answer_f1"] + parts["no_answer_accuracy"]) / 3)
    assert parts["null_threshold"] == task.threshold
    assert [one["f1"] for one in results.sentences] == sorted(one["f1"] for one in results.sentences)
    assert task.validate(model, rows).metrics["exact"] == parts["exact"]


def test_an_empty_context_has_no_answer_and_one_without_room_is_refused() -> None:
    task, model = setting()
    task.threshold = np.inf
    empty = LabelledRow(("Who?", ""), None, None, 1, answers=())
    assert task.predict_cells(model, task.encode([empty]))[0][0] == ""
    task, _ = setting(context=4)
    with refuses("usage"):
        task.encode([question()])


@pytest.mark.parametrize(("n_contexts", "n_train", "n_test"), [(8, 6, 2), (1, 1, 1)])
def test_questions_about_one_context_stay_on_one_side(
    n_contexts: int, n_train: int, n_test: int, tmp_path: Path
) -> None:
    """Unless all are about it."""
    rows = [{"question": f"Who {i}?", "context": f"Otto {i % n_contexts}", "answers": []} for i in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    table = open_table(str(tmp_path / "a.jsonl"))
    texts = read_labelled_table(table, choose_columns(table, kind="questions"))
    train, test = apply_split(texts, hold_out_stratified(texts, 0.25, seed=1))
    assert len(test) == 10
    assert [len({item.texts[1] for item in part.items}) for part in (train, test)] == [n_train, n_test]
