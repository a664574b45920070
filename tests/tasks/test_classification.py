"""Tasks on tables: their files, rows as token ids, predictions of heads and as text, and their metrics."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from sklearn import metrics as sklearn

from lmtool.evaluation.loop import ValidationResult
from lmtool.generation.generate import complete
from lmtool.generation.params import SamplingParams
from lmtool.model.heads import HeadOutput
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, Data
from lmtool.runs.files import TaskScores
from lmtool.tasks import heads, text_to_text
from lmtool.tasks.classification import SingleLabelTask
from lmtool.tasks.labels import Label
from lmtool.tasks.metrics import NO_LABEL, class_metrics, translation_metrics
from lmtool.tasks.prepare import open_training_tables
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import MAX_LISTED_ROWS, ModelWithObjective
from lmtool.tasks.text_to_text import choose_hypothesis_without_repeats, format_source, format_target
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.errors import refuses
from tests.tasks.models import model_of, recipe_of, task_of

TOKENIZER = Tokenizer.train(CharTokenizer(kind="char"), ["abcdefgh "])
MODELS: dict[str, dict[str, Any]] = {
    "transformer": {"shape": "encoder-decoder"},
    "prefix": {"shape": "prefix"},
    "decoder": {"shape": "decoder"},
    "bahdanau": {"kind": "recurrent", "shape": "encoder-decoder", "attention": {"score": "additive", "feed": "input"}},
}
ENCODER = {"shape": "encoder"}


def answering(name: str, num_beams: int = 1, labels: tuple[str, ...] = ()) -> tuple[Any, ModelWithObjective]:
    """A task whose rows are answered as text, and a model for it."""
    recipe = recipe_of(MODELS[name], {"kind": "seq2seq"}, evaluation={"num_beams": num_beams})
    return task_of(recipe, TOKENIZER, labels=labels), model_of(recipe, TOKENIZER)


def items(texts: list[str], labels: Sequence[Any] | None = None) -> list[LabelledRow]:
    pairs = zip(texts, labels or [None] * len(texts), strict=True)
    return [LabelledRow((text,), label, None, i) for i, (text, label) in enumerate(pairs, 1)]


# Tasks and their files


def test_tasks_are_a_name_a_file_and_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "dir:b.csv", "c.csv:x.csv"):
        (tmp_path / name).write_text("text,label\na,x\nb,y\n")
    data = Data(tasks=("nli:a.csv", "sst:dir:b.csv:0.5", "c:c.csv:x.csv"), task_tests=("nli:t.csv",))
    found = [(task.name, task.table.source, task.test, task.weight) for task in open_training_tables(data)]
    assert found == [("nli", "a.csv", "t.csv", 1.0), ("sst", "dir:b.csv", None, 0.5), ("c", "c.csv:x.csv", None, 1.0)]
    assert data.task_names == ["nli", "sst", "c"]
    alone = Data(train=("a.csv",), valid=("v.csv",), test="t.csv")
    (one,) = open_training_tables(alone)
    assert (one.name, one.table.source, one.valid, one.test) == ("", "a.csv", "v.csv", "t.csv")
    assert one.columns == Columns(("text",), label="label")
    assert alone.task_names == [""]


@pytest.mark.parametrize(
    "data",
    [
        Data(train=("a.csv", "b.csv")),
        Data(tasks=(":a.csv",)),
        Data(tasks=("a:a.csv", "a:b.csv")),
        Data(tasks=("a:a.csv",), task_tests=("b:b.csv",)),
        Data(tasks=("a:a.csv",), task_tests=("b.csv",)),
    ],
)
def test_tasks_that_cannot_be_told_are_refused(data: Data) -> None:
    with refuses("usage"):
        open_training_tables(data)


# Rows as token ids


def test_sources_and_answers_are_text() -> None:
    assert format_source("", ["text"], ["It rains."]) == "It rains."
    assert format_source("sst", ["text"], ["It rains."]) == "sst: It rains."
    assert format_source("nli", ["premise", "hypothesis"], ["a", "b"]) == "nli: premise: a hypothesis: b"
    for label, target, text in ((None, "b", "b"), ("yes", None, "yes"), (("x", "y"), None, "x;y"), (2.5, None, "2.5")):
        assert format_target(LabelledRow(("a",), label, target, 1)) == text
    assert format_target(LabelledRow(("a",), None, None, 1)) is None


PAIR = Columns(("text",), target="target")
BPE = Tokenizer.train(BpeTokenizer(vocab_size=340), ["the cat sat on the mat with another cat"] * 9)


def bpe_task(name: str, dropout: float, **data: object) -> Any:
    """A task on pairs for a tokenizer of pieces."""
    recipe = recipe_of(MODELS[name], {"kind": "seq2seq"}, tokenizer={"kind": "bpe", "dropout": dropout}, data=data)
    return task_of(recipe, BPE, PAIR)


@pytest.mark.parametrize("name", ["transformer", "prefix", "decoder"])
def test_training_pairs_are_segmented_anew(name: str) -> None:
    """With the same texts, special tokens and other fields; but not those that are truncated, or without a target."""
    task = bpe_task(name, 0.5)
    assert task.resample_row is not None
    texts = ("the cat", "the mat"), ("", "cat"), ("cat", ""), ("the cat sat on the mat " * 20, "sat"), ("cat", None)
    rows = task.encode([LabelledRow((source,), None, target, i) for i, (source, target) in enumerate(texts)])
    differ = set()
    for seed in range(20):
        for row in rows:
            other = task.resample_row(row, np.random.default_rng(seed))
            assert (other.number, other.answer) == (row.number, row.answer)
            for ids, own in ((other.tokens, row.tokens), (other.target, row.target)):
                assert (ids is None) == (own is None)
                if ids is not None and own is not None:
                    assert BPE.decode(ids.tolist()) == BPE.decode(own.tolist())
                    special = [[i for i in part.tolist() if i in BPE.special_ids] for part in (ids, own)]
                    assert special[0] == special[1]
                    differ |= {row.number} if ids.tolist() != own.tolist() else set()
    assert differ == {0, 1, 2}


def test_pairs_are_segmented_anew_where_the_recipe_says_so() -> None:
    assert bpe_task("transformer", 0.0).resample_row is None
    assert told({"a": [0.0, 0.0]}, task="class", labels=("x", "y"))[0].resample_row is None
    with refuses("usage"):
        bpe_task("decoder", 0.1, messages_column="messages")
    with pytest.raises(ValidationError, match="dropout is for objective seq2seq"):
        recipe_of(MODELS["decoder"], {"kind": "causal"}, tokenizer={"kind": "bpe", "dropout": 0.1})


def test_a_pair_as_ids() -> None:
    task = task_of(recipe_of(MODELS["transformer"], {"kind": "seq2seq"}), TOKENIZER, PAIR, "nli")
    first, second = task.encode([LabelledRow(("ab",), None, "cde", 7), LabelledRow(("",), None, None, 9)])
    assert first.tokens.tolist() == TOKENIZER.encode("nli: ab")
    assert first.target is not None
    assert first.target.tolist() == [*TOKENIZER.encode("cde"), TOKENIZER.eos_id]
    assert (first.number, first.answer, first.is_truncated, first.lengths) == (7, "cde", False, (len(first.tokens), 4))
    assert (second.number, second.target, second.answer) == (9, None, "")


@pytest.mark.parametrize(
    ("spec", "labels", "numbers"),
    [
        ({"task": "class", "labels": ("no", "yes", "so")}, ["yes", "no"], [[1.0], [0.0]]),
        ({"task": "multi", "labels": ("x", "y")}, [("y",), ()], [[0.0, 1.0], [0.0, 0.0]]),
        ({"task": "number", "center": 10.0, "scale": 4.0}, [12.0, 8.0], [[0.5], [-0.5]]),
    ],
)
def test_labels_are_the_numbers_that_a_head_learns(
    spec: dict[str, Any], labels: list[Label], numbers: list[list[float]]
) -> None:
    task = task_of(recipe_of(ENCODER, {"kind": "classification", **spec}), TOKENIZER)
    rows = task.encode(items(["ab", "cde"], labels))
    assert [row.number for row in rows] == [1, 2]
    assert [None if row.label is None else row.label.tolist() for row in rows] == numbers
    assert [row.label for row in task.encode(items(["ab"]))] == [None]


# Predictions of heads


class Scripted(torch.nn.Module):
    """A head whose scores are the sums of those given for single letters."""

    def __init__(self, scores: dict[str, list[float]]) -> None:
        super().__init__()
        self.scores = {TOKENIZER.encode(letter)[0]: torch.tensor(given) for letter, given in scores.items()}

    def run_head(self, batch: Any) -> HeadOutput:
        zero_C = torch.zeros(len(next(iter(self.scores.values()))))
        return HeadOutput(
            torch.stack([sum((self.scores.get(i, zero_C) for i in row), zero_C) for row in batch.tokens_BT.tolist()])
        )


def told(scores: dict[str, list[float]], **spec: Any) -> tuple[Any, ModelWithObjective]:
    """A task of a head, and a model with these scores of letters."""
    recipe = recipe_of(ENCODER, {"kind": "classification", **spec})
    scripted: Any = Scripted(scores)
    return task_of(recipe, TOKENIZER), replace(model_of(recipe, TOKENIZER), lm=scripted)


TEXTS = ["a", "b hh", "c hhhh", "d h", "e hhh"]
"""Of unequal lengths."""


def test_classes_are_measured() -> None:
    scores = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0], [0.0, 0.5, 4.0], [0.0, 5.0, 0.0]]
    true, given = ["no", "yes", "yes", "yes", "no"], ["no", "so", "no", "yes", "so"]
    task, model = told(dict(zip("abcde", scores, strict=True)), task="class", labels=("no", "so", "yes"))
    rows = task.encode(items(TEXTS, [*true]))
    found = task.compute_results(model, rows, "test", 7)
    assert (found.part, found.step, found.rows, found.labels) == ("test", 7, 5, ("no", "so", "yes"))
    assert found.figures["accuracy"] == pytest.approx(0.4)
    assert found.figures["macro_f1"] == pytest.approx(sklearn.f1_score(true, given, average="macro", zero_division=0))
    log_p = torch.tensor(scores).log_softmax(1)
    answers = [["no", "so", "yes"].index(name) for name in true]
    assert found.loss == pytest.approx(-float(log_p[torch.arange(5), answers].mean()))
    # the most confident first
    mistakes = [tuple(one[key] for key in ("row", "label", "predicted", "text")) for one in found.mistakes]
    assert mistakes == [(5, "no", "so", "e hhh"), (3, "yes", "no", "c hhhh"), (2, "yes", "so", "b hh")]
    assert found.mistakes[0]["probability"] == pytest.approx(float(log_p[4].exp()[1]))
    assert sum(one["rows"] for one in found.figures["calibration"]["bins"]) == 5
    validation = task.validate(model, rows)
    assert validation.loss == found.loss
    assert validation.metrics == {"accuracy": found.figures["accuracy"], "macro-f1": found.figures["macro_f1"]}
    assert task.output_columns == ("predicted", "p_no", "p_so", "p_yes")
    answered = task.predict_cells(model, rows)
    assert [cells[0] for cells in answered] == given
    p = np.array([[float(str(cell)) for cell in cells[1:]] for cells in answered])
    np.testing.assert_allclose(p, log_p.exp().numpy(), atol=1e-6)
    of_many = task.compute_results(model, task.encode(items(["e"] * 99, ["no"] * 99)), "test", 1)
    assert len(of_many.mistakes) == MAX_LISTED_ROWS


@pytest.mark.parametrize(
    ("kind", "labels"), [("class", ["no", "no", "no"]), ("multi", [(), ("no", "yes"), ("no",)])]
)  # the second row of several labels is wrong in the one that is missing
def test_beside_a_mistake_are_the_words_that_decided(kind: str, labels: list[Label]) -> None:
    weights = {"a": [0.0, 0.25], "b": [0.0, 4.0], "c": [0.0, 2.0], "d": [-1.0, 0.5]}
    task, model = told(weights, task=kind, labels=("no", "yes"))
    rows = task.encode(items(["a b c d", "d", "a a"], labels))
    found = {one["row"]: one["words"] for one in task.compute_results(model, rows, "test", 1).mistakes}
    assert found == {1: ["b", "c", "d"], 2: ["d"], 3: ["a"]}


def test_words_of_rows_that_are_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "MIN_ATTRIBUTION_POSITIONS", 0)
    task, model = told({"b": [0.0, 1.0]}, task="class", labels=("no", "yes"))
    rows = task.encode(items(["a b", "b " * 20, "b"], ["no"] * 3))
    found = {one["row"]: one["words"] for one in task.compute_results(model, rows, "test", 1).mistakes}
    assert (found[2], found[3]) == ([], ["b"])


def test_several_labels_are_measured() -> None:
    task, model = told({"a": [1.0, -1.0], "b": [2.0, 3.0], "c": [-1.0, -2.0]}, task="multi", labels=("x", "y"))
    rows = task.encode(items(TEXTS[:3], [("x",), ("y",), ()]))
    found = task.compute_results(model, rows, "test", 1)
    assert found.figures["subset_accuracy"] == pytest.approx(2 / 3)
    (mistake,) = found.mistakes
    assert (mistake["row"], mistake["label"], mistake["predicted"], mistake["text"]) == (2, "y", "x;y", "b hh")
    assert mistake["probability"] == pytest.approx(1 / (1 + np.exp(-2)))
    # of the six answers one is wrong
    bins = found.figures["calibration"]["bins"]
    assert sum(one["rows"] for one in bins) == 6
    assert sum(one["rows"] * one["accuracy"] for one in bins) == pytest.approx(5)
    assert task.validate(model, rows).metrics["accuracy"] == found.figures["subset_accuracy"]
    answered = task.predict_cells(model, rows)
    assert [cells[0] for cells in answered] == ["x", "x;y", ";"]
    assert float(str(answered[0][1])) == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)


def test_numbers_are_measured_on_their_own_scale() -> None:
    scores = {"a": [0.5], "b": [0.0], "c": [4.0], "d": [-2.0]}
    task, model = told(scores, task="number", center=10.0, scale=4.0)
    true, given = [12.0, 8.0, 30.0, -2.0], [12.0, 10.0, 26.0, 2.0]
    rows = task.encode(items(TEXTS[:4], [*true]))
    found = task.compute_results(model, rows, "test", 1)
    assert found.figures["pearson"] == pytest.approx(stats.pearsonr(true, given).statistic)
    assert task.validate(model, rows).metrics == {"correlation": pytest.approx(found.figures["pearson"])}
    assert [float(str(cell)) for (cell,) in task.predict_cells(model, rows)] == given
    assert task.output_columns == ("predicted",)


# Predictions as text


@pytest.mark.parametrize("name", ["transformer", "decoder", "bahdanau"])
def test_answers_are_those_of_each_source_alone(name: str) -> None:
    task, model = answering(name)
    sources = ["abc", "", "h", "abcdefgh", "abcdefgh" * 4]
    rows = task.encode(items(sources))
    found = task.generate(model, rows)
    assert task.predict_cells(model, rows) == [(answer,) for answer in found]
    for source, answer in zip(sources[:-1], found, strict=False):
        settings = SamplingParams("greedy", max_new_tokens=150)
        (alone,) = complete(model.lm, [source], settings, task.prompt_format)
        assert alone.text.startswith(answer)
    assert any(found)
    by_beams, _ = answering(name, num_beams=3)
    assert len(by_beams.generate(model, rows)) == len(sources)


def test_the_hypotheses_of_each_row_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a search finds fewer than there are beams: of each row, the first that repeats no phrase."""
    ranked = [(0, "ab cd ab cd"), (1, "ab cd"), (2, "ab"), (0, "e"), (0, "f g f g"), (1, "f")]
    asked: list[Any] = []

    def generated(*arguments: Any, **options: Any) -> list[SimpleNamespace]:
        asked.append(arguments[2])
        return [SimpleNamespace(sample=sample, text=text) for sample, text in ranked]

    monkeypatch.setattr(text_to_text, "complete", generated)
    task, model = answering("transformer", num_beams=3)
    assert task.generate(model, task.encode(items(["a", "bb", "ccc"]))) == ["ab cd", "e", "f"]
    (settings,) = asked
    assert (settings.strategy, settings.num_beams, settings.num_return) == ("beam", 3, 3)
    # the first of all where every one repeats a phrase, or the source itself does
    assert choose_hypothesis_without_repeats(["a b a b", "c d c d"], "x y") == "a b a b"
    assert choose_hypothesis_without_repeats(["a b a b", "a b"], "x y x y") == "a b a b"


def measured(monkeypatch: pytest.MonkeyPatch, answers: list[str], true: list[str], *labels: str) -> Any:
    """The results of rows whose source is `ab` and that are answered with these texts."""
    task, model = answering("transformer", labels=labels)
    monkeypatch.setattr(task, "generate", lambda *_: answers)
    monkeypatch.setattr(task, "validate", lambda *_: ValidationResult(1.5))
    source = np.array(TOKENIZER.encode("ab"))
    rows = [EncodedRow(i, source, is_truncated=False, target=source, answer=text) for i, text in enumerate(true)]
    return task.compute_results(model, rows, "test", 3)


def test_the_worst_and_best_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    true = [f"the cat number {i} sat on the mat" for i in range(3 * MAX_LISTED_ROWS)]
    answers = [text[: len(text) - i // 2] for i, text in enumerate(true)]
    found = measured(monkeypatch, answers, true)
    assert found.figures["bleu"] == translation_metrics(answers, true)["bleu"]
    kept = found.to_record()["sentences"]
    assert len(kept) == 2 * MAX_LISTED_ROWS
    assert [one["chrf"] for one in kept] == sorted(one["chrf"] for one in kept)
    assert kept[0]["row"] >= 3 * MAX_LISTED_ROWS - 3
    assert kept[-1]["chrf"] == pytest.approx(100)
    for one in kept:
        assert (one["source"], one["target"], one["predicted"]) == ("ab", true[one["row"]], answers[one["row"]])


def test_labels_as_text_are_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = measured(monkeypatch, ["yes", " no ", "maybe", "no"], ["yes", "no", "no", "yes"], "no", "yes")
    assert (found.part, found.step, found.rows, found.loss) == ("test", 3, 4, 1.5)
    assert (found.labels, found.decoding, found.mistakes) == (("no", "yes"), "greedy", [])
    assert found.figures["accuracy"] == 0.5
    assert list(found.figures["classes"]) == ["no", "yes", NO_LABEL]
    assert found.figures["confusion"] == [[1, 0, 1], [1, 1, 0], [0, 0, 0]]
    perfect = measured(monkeypatch, ["yes", "no"], ["yes", "no"], "no", "yes").figures
    assert (list(perfect["classes"]), perfect["accuracy"]) == (["no", "yes"], 1.0)


@pytest.mark.parametrize("name", ["transformer", "prefix"])
def test_sources_with_and_without_a_target_have_the_same_ids(name: str) -> None:
    """Also where a source is longer than half of the context that it shares with its target."""
    task, _ = answering(name)
    asking = items(["ab", "", "abcdefgh abcdefgh"[:11]])
    learned = task.encode([item._replace(target="h") for item in asking])
    assert [row.tokens.tolist() for row in learned] == [row.tokens.tolist() for row in task.encode(asking)]


# What held-out rows decide


def test_only_held_out_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    task, model = told({"a": [5.0, 0.0]}, task="class", labels=["a", "b"])
    assert isinstance(task, SingleLabelTask)
    rows = task.encode(items(["a"] * 200, list("aaab" * 50)))
    monkeypatch.setattr(task, "compute_scores", lambda *_: (np.tile([5.0, 0.0], (200, 1)), 1.0))
    task.calibrate(model, rows, held_out=False)
    assert task.temperature == 1
    task.calibrate(model, rows, held_out=True)
    assert task.temperature == pytest.approx(5 / np.log(3), rel=0.05)


def test_a_class_that_no_row_has_is_read_back() -> None:
    """scikit-learn counts it in floats, which no results of a run may have."""
    figures = class_metrics(np.array([0, 1]), np.array([0, 0]), ("a", "b", "c"))
    assert [type(scores["support"]) for scores in figures["classes"].values()] == [int] * 3
    old = {"part": "test", "classes": {"c": figures["classes"]["c"] | {"support": 0.0}}}
    assert TaskScores.model_validate_json(json.dumps(old)).classes["c"].support == 0
