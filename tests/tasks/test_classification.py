"""Tasks on tables: their files, rows as token ids, predictions of heads and as text, and their metrics."""

import json
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

from lmtool.compute.device import configure_compute
from lmtool.errors import UsageError
from lmtool.evaluation.loop import ValidationResult
from lmtool.generation.generate import complete
from lmtool.generation.params import SamplingParams
from lmtool.model import build
from lmtool.model.heads import HeadOutput
from lmtool.objective import build_objective
from lmtool.recipe.spec.recipe import Recipe
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, Data
from lmtool.runs.files import TaskScores
from lmtool.tasks import heads, text_to_text
from lmtool.tasks.build import build_task
from lmtool.tasks.classification import SingleLabelTask
from lmtool.tasks.labels import Label
from lmtool.tasks.metrics import NO_LABEL, class_metrics, translation_metrics
from lmtool.tasks.prepare import open_training_tables
from lmtool.tasks.reading import LabelledRow
from lmtool.tasks.rows import EncodedRow
from lmtool.tasks.schema import Columns
from lmtool.tasks.task import MAX_LISTED_ROWS, ModelWithObjective, Task
from lmtool.tasks.text_to_text import TextToTextTask, choose_hypothesis_without_repeats, format_source, format_target
from lmtool.tokenization.prompt_format import PromptFormat
from lmtool.tokenization.tokenizer import Tokenizer
from tests.support.cases import nightly_but

TOKENIZER = Tokenizer.train(CharTokenizer(kind="char"), ["abcdefgh "])
BODY = {"n_layers": 1, "d_model": 16, "context": 24}
MODELS = {
    "transformer": BODY | {"kind": "transformer", "shape": "encoder-decoder", "n_heads": 2},
    "prefix": BODY | {"kind": "transformer", "shape": "prefix", "n_heads": 2},
    "bottleneck": BODY | {"kind": "recurrent", "shape": "encoder-decoder", "cell": "lstm"},
    "luong": BODY | {"kind": "recurrent", "shape": "encoder-decoder", "attention": {"score": "bilinear"}},
    "bahdanau": BODY
    | {"kind": "recurrent", "shape": "encoder-decoder", "attention": {"score": "additive", "feed": "input"}},
}
DECODERS = {
    "decoder": BODY | {"kind": "transformer", "shape": "decoder", "n_heads": 2},
    "lstm": BODY | {"kind": "recurrent", "shape": "decoder"},
}
ENCODER = BODY | {"kind": "transformer", "shape": "encoder", "n_heads": 2}


def a_recipe(model: dict[str, Any], objective: dict[str, Any], num_beams: int = 1) -> Recipe:
    return Recipe.model_validate(
        {
            "model": model,
            "objective": objective,
            "tokenizer": {"kind": "char"},
            "training": {"steps": 1, "batch_size": 1},
            "evaluation": {"num_beams": num_beams},
        }
    )


def a_model(recipe: Recipe, precision: Any = "float32") -> ModelWithObjective:
    compute = configure_compute("cpu", precision)
    torch.manual_seed(0)
    lm = build(recipe.model, TOKENIZER.vocab_size)
    return ModelWithObjective(lm, build_objective(recipe, TOKENIZER), compute)


def a_task(recipe: Recipe, labels: tuple[str, ...] = ()) -> Task:
    return build_task(recipe, PromptFormat.from_recipe(recipe, TOKENIZER), "", Columns(("text",)), labels)


def items(texts: list[str], labels: list[Label] | None = None) -> list[LabelledRow]:
    return [
        LabelledRow((text,), label, None, i)
        for i, (text, label) in enumerate(zip(texts, labels or [None] * len(texts), strict=True), 1)
    ]


# Tasks and their files


def test_tasks_are_a_name_a_file_and_a_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.csv", "dir:b.csv", "c.csv:x.csv"):
        (tmp_path / name).write_text("text,label\na,x\nb,y\n")
    data = Data(tasks=("nli:a.csv", "sst:dir:b.csv:0.5", "c:c.csv:x.csv"), task_tests=("nli:t.csv",))
    found = [(task.name, task.table.source, task.test, task.weight) for task in open_training_tables(data)]
    assert found == [("nli", "a.csv", "t.csv", 1.0), ("sst", "dir:b.csv", None, 0.5), ("c", "c.csv:x.csv", None, 1.0)]
    assert data.task_names == ["nli", "sst", "c"]
    (one,) = open_training_tables(Data(train=("a.csv",), valid=("v.csv",), test="t.csv"))
    assert (one.name, one.table.source, one.valid, one.test) == ("", "a.csv", "v.csv", "t.csv")
    assert one.columns == Columns(("text",), label="label")
    assert Data(train=("a.csv",)).task_names == [""]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (Data(train=("a.csv", "b.csv")), "one table"),
        (Data(tasks=("a.csv",)), "is not NAME:FILE"),
        (Data(tasks=(":a.csv",)), "is not NAME:FILE"),
        (Data(tasks=("a:a.csv", "a:b.csv")), "two tasks"),
        (Data(tasks=("a:a.csv",), task_tests=("b:b.csv",)), "no task is named b"),
        (Data(tasks=("a:a.csv",), task_tests=("b.csv",)), "is not NAME:FILE"),
    ],
)
def test_tasks_that_cannot_be_told_are_refused(data: Data, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        open_training_tables(data)


# Rows as token ids


def test_sources_and_answers_are_text() -> None:
    assert format_source("", ["text"], ["It rains."]) == "It rains."
    assert format_source("sst", ["text"], ["It rains."]) == "sst: It rains."
    assert format_source("nli", ["premise", "hypothesis"], ["a", "b"]) == "nli: premise: a hypothesis: b"
    assert format_target(LabelledRow(("a",), None, "b", 1)) == "b"
    assert format_target(LabelledRow(("a",), "yes", None, 1)) == "yes"
    assert format_target(LabelledRow(("a",), ("x", "y"), None, 1)) == "x;y"
    assert format_target(LabelledRow(("a",), 2.5, None, 1)) == "2.5"
    assert format_target(LabelledRow(("a",), None, None, 1)) is None


BPE = Tokenizer.train(BpeTokenizer(vocab_size=340), ["the cat sat on the mat with another cat"] * 9)


def bpe_task(name: str, dropout: float, **data: object) -> Task:
    """A task on pairs for a tokenizer of pieces."""
    plain = a_recipe((MODELS | DECODERS)[name], {"kind": "seq2seq"}).model_dump(mode="json")
    recipe = Recipe.model_validate(plain | {"tokenizer": {"kind": "bpe", "dropout": dropout}, "data": data})
    return build_task(recipe, PromptFormat.from_recipe(recipe, BPE), "", Columns(("text",), target="target"), ())


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
    assert (
        a_task(a_recipe(ENCODER, {"kind": "classification", "task": "class", "labels": ("x", "y")})).resample_row
        is None
    )
    with pytest.raises(UsageError, match="not for conversations"):
        bpe_task("decoder", 0.1, messages_column="messages")
    with pytest.raises(ValidationError, match="dropout is for objective seq2seq"):
        Recipe.model_validate(
            {
                "model": DECODERS["decoder"],
                "tokenizer": {"kind": "bpe", "dropout": 0.1},
                "training": {"steps": 1, "batch_size": 1},
            }
        )


def test_a_pair_as_ids() -> None:
    recipe = a_recipe(MODELS["transformer"], {"kind": "seq2seq"})
    columns = Columns(("text",), target="target")
    task = build_task(recipe, PromptFormat.from_recipe(recipe, TOKENIZER), "nli", columns, ())
    first, second = task.encode([LabelledRow(("ab",), None, "cde", 7), LabelledRow(("",), None, None, 9)])
    assert first.tokens.tolist() == TOKENIZER.encode("nli: ab")
    assert first.target is not None
    assert first.target.tolist() == [*TOKENIZER.encode("cde"), TOKENIZER.eos_id]
    assert (first.number, first.answer, first.is_truncated, first.lengths) == (7, "cde", False, (len(first.tokens), 4))
    assert (second.number, second.target, second.answer) == (9, None, "")


LABELLED: dict[str, tuple[dict[str, Any], list[Label], list[list[float]]]] = {
    "class": ({"task": "class", "labels": ("no", "yes", "so")}, ["yes", "no"], [[1.0], [0.0]]),
    "multi": ({"task": "multi", "labels": ("x", "y")}, [("y",), ()], [[0.0, 1.0], [0.0, 0.0]]),
    "number": ({"task": "number", "center": 10.0, "scale": 4.0}, [12.0, 8.0], [[0.5], [-0.5]]),
}


@pytest.mark.parametrize("kind", LABELLED)
def test_labels_are_the_numbers_that_a_head_learns(kind: str) -> None:
    spec, labels, numbers = LABELLED[kind]
    task = a_task(a_recipe(ENCODER, {"kind": "classification", **spec}))
    rows = task.encode(items(["ab", "cde"], labels))
    assert [row.number for row in rows] == [1, 2]
    assert [None if row.label is None else row.label.tolist() for row in rows] == numbers
    assert [row.label for row in task.encode(items(["ab"]))] == [None]


# Predictions of heads


class Told(torch.nn.Module):
    """A head with given scores for each first letter."""

    def __init__(self, scores: list[list[float]]) -> None:
        super().__init__()
        self.scores = torch.tensor(scores)

    def run_head(self, batch: Any) -> HeadOutput:
        letter_B = batch.tokens_BT[:, 1] - TOKENIZER.encode("a")[0]
        known_B = (letter_B >= 0) & (letter_B < len(self.scores))
        return HeadOutput(self.scores[letter_B.where(known_B, 0)] * known_B[:, None])


class Summed(torch.nn.Module):
    """A head whose scores are sums over the tokens of a row."""

    def __init__(self, weights: dict[str, list[float]]) -> None:
        super().__init__()
        self.weights = {TOKENIZER.encode(text)[0]: torch.tensor(weight) for text, weight in weights.items()}
        self.n = len(next(iter(weights.values())))

    def run_head(self, batch: Any) -> HeadOutput:
        zero_C = torch.zeros(self.n)
        return HeadOutput(
            torch.stack([sum((self.weights.get(i, zero_C) for i in row), zero_C) for row in batch.tokens_BT.tolist()])
        )


def told(task: Task, recipe: Recipe, scores: list[list[float]], labels: list[Label]) -> Any:
    """A model with these scores, and a row for each, of unequal lengths."""
    model = ModelWithObjective(
        Told(scores),  # type: ignore[arg-type]  # it has the interface of a head
        build_objective(recipe, TOKENIZER),
        configure_compute("cpu", "float32"),
    )
    texts = [f"{letter} {'h' * (7 * i % 5)}" for i, letter in enumerate("abcdefgh"[: len(scores)])]
    return model, task.encode(items(texts, labels))


def test_classes_are_measured() -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "class", "labels": ("no", "so", "yes")})
    scores = [[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [2.0, 0.0, 1.0], [0.0, 0.5, 4.0], [0.0, 5.0, 0.0]]
    true, given = ["no", "yes", "yes", "yes", "no"], ["no", "so", "no", "yes", "so"]
    task = a_task(recipe)
    model, rows = told(task, recipe, scores, list(true))
    found = task.compute_results(model, rows, "test", 7)
    assert (found.part, found.step, found.rows, found.labels) == ("test", 7, 5, ("no", "so", "yes"))
    assert found.figures["accuracy"] == pytest.approx(0.4)
    assert found.figures["macro_f1"] == pytest.approx(sklearn.f1_score(true, given, average="macro", zero_division=0))
    log_p = torch.tensor(scores).log_softmax(1)
    answers = [["no", "so", "yes"].index(name) for name in true]
    assert found.loss == pytest.approx(-float(log_p[torch.arange(5), answers].mean()))
    # the most confident first
    assert [(one["row"], one["label"], one["predicted"]) for one in found.mistakes] == [
        (5, "no", "so"),
        (3, "yes", "no"),
        (2, "yes", "so"),
    ]
    assert found.mistakes[0]["probability"] == pytest.approx(float(log_p[4].exp()[1]))
    assert [one["text"] for one in found.mistakes] == ["e hhh", "c hhhh", "b hh"]
    assert sum(one["rows"] for one in found.figures["calibration"]["bins"]) == 5
    validation = task.validate(model, rows)
    assert validation.loss == found.loss
    assert validation.metrics == {"accuracy": found.figures["accuracy"], "macro-f1": found.figures["macro_f1"]}
    assert task.output_columns == ("predicted", "p_no", "p_so", "p_yes")
    answered = task.predict_cells(model, rows)
    assert [cells[0] for cells in answered] == given
    assert [[float(str(cell)) for cell in cells[1:]] for cells in answered] == [
        pytest.approx(row, abs=1e-6) for row in log_p.exp().tolist()
    ]


def test_only_some_mistakes_are_listed() -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "class", "labels": ("no", "yes")})
    task = a_task(recipe)
    model, rows = told(task, recipe, [[1.0, 0.0]] * 8, ["yes"] * 8)
    assert len(task.compute_results(model, rows * 2, "test", 1).mistakes) == MAX_LISTED_ROWS


# a word that a row has twice is listed once
DECIDED = [
    ("class", [("a b c d", "no"), ("d", "no"), ("a a", "no")], [["b", "c", "d"], ["d"], ["a"]]),
    # the second is wrong in the label that is missing
    ("multi", [("a b c d", ()), ("d", ("no", "yes")), ("a a", ("no",))], [["b", "c", "d"], ["d"], ["a"]]),
]


@pytest.mark.parametrize(("kind", "table", "words"), DECIDED)
def test_beside_a_mistake_are_the_words_that_decided(
    kind: str, table: list[tuple[str, Label]], words: list[list[str]]
) -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": kind, "labels": ("no", "yes")})
    task = a_task(recipe)
    weights = {"a": [0.0, 0.25], "b": [0.0, 4.0], "c": [0.0, 2.0], "d": [-1.0, 0.5]}
    model, _ = told(task, recipe, [[0.0, 0.0]], ["no"] if kind == "class" else [()])
    model = replace(model, lm=Summed(weights))  # type: ignore[arg-type]  # it has the interface of a head
    rows = task.encode(items([text for text, _ in table], [label for _, label in table]))
    found = {one["row"]: one["words"] for one in task.compute_results(model, rows, "test", 1).mistakes}
    assert found == dict(enumerate(words, start=1))


def test_words_of_rows_that_are_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "class", "labels": ("no", "yes")})
    task = a_task(recipe)
    monkeypatch.setattr(heads, "MIN_ATTRIBUTION_POSITIONS", 0)
    model, _ = told(task, recipe, [[0.0, 0.0]], ["no"])
    model = replace(model, lm=Summed({"b": [0.0, 1.0]}))  # type: ignore[arg-type]
    rows = task.encode(items(["a b", "b " * 20, "b"], ["no"] * 3))
    found = {one["row"]: one["words"] for one in task.compute_results(model, rows, "test", 1).mistakes}
    assert found[2] == []
    assert found[3] == ["b"]


def test_several_labels_are_measured() -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "multi", "labels": ("x", "y")})
    task = a_task(recipe)
    model, rows = told(task, recipe, [[1.0, -1.0], [2.0, 3.0], [-1.0, -2.0]], [("x",), ("y",), ()])
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
    assert [cells[0] for cells in task.predict_cells(model, rows)] == ["x", "x;y", ";"]
    assert float(str(task.predict_cells(model, rows)[0][1])) == pytest.approx(1 / (1 + np.exp(-1)), abs=1e-6)


def test_numbers_are_measured_on_their_own_scale() -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "number", "center": 10.0, "scale": 4.0})
    task = a_task(recipe)
    true = [12.0, 8.0, 30.0, -2.0]
    model, rows = told(task, recipe, [[0.5], [0.0], [4.0], [-2.0]], list(true))
    given = [12.0, 10.0, 26.0, 2.0]
    found = task.compute_results(model, rows, "test", 1)
    assert found.figures["pearson"] == pytest.approx(stats.pearsonr(true, given).statistic)
    assert task.validate(model, rows).metrics == {"correlation": pytest.approx(found.figures["pearson"])}
    assert [float(str(cell)) for (cell,) in task.predict_cells(model, rows)] == given
    assert task.output_columns == ("predicted",)


# Predictions as text


def pairs(task: Task, sources: list[str]) -> list[EncodedRow]:
    return task.encode(items(sources))


def answer_task(recipe: Recipe) -> TextToTextTask:
    task = a_task(recipe)
    assert isinstance(task, TextToTextTask)
    return task


@pytest.mark.parametrize(
    ("name", "precision"),
    nightly_but(
        [*((name, "float32") for name in MODELS | DECODERS), ("transformer", "bfloat16"), ("lstm", "bfloat16")],
        0,
        "bahdanau",
        unpack=True,
    ),
)
def test_answers_are_those_of_each_source_alone(name: str, precision: str) -> None:
    greedy, beams = (a_recipe((MODELS | DECODERS)[name], {"kind": "seq2seq"}, num_beams) for num_beams in (1, 3))
    model, task = a_model(greedy, precision), answer_task(greedy)
    sources = ["abc", "", "h", "abcdefgh", "ab ab ab", "abcdefgh" * 4]
    rows = pairs(task, sources)
    found = task.generate(model, rows)
    assert len(found) == len(sources)
    assert task.predict_cells(model, rows) == [(answer,) for answer in found]
    if precision == "float32":
        for source, answer in zip(sources[:-1], found, strict=False):
            settings = SamplingParams("greedy", max_new_tokens=150)
            (alone,) = complete(model.lm, [source], settings, PromptFormat.from_recipe(greedy, TOKENIZER))
            assert alone.text.startswith(answer)
            assert answer
    assert len(answer_task(beams).generate(model, rows)) == len(sources)


@pytest.mark.parametrize(
    ("hypotheses", "source", "wanted"),
    [
        (["in a market in a market", "in a market", "at a market"], "auf dem markt", 1),
        (["in a market", "in a market in a market"], "auf dem markt", 0),
        (["a b a b", "c d c d"], "x y", 0),
        (["a b a b", "a b"], "x y x y", 0),
    ],
)
def test_a_hypothesis_that_repeats_a_phrase_gives_way(hypotheses: list[str], source: str, wanted: int) -> None:
    assert choose_hypothesis_without_repeats(hypotheses, source) == hypotheses[wanted]


def test_the_hypotheses_of_each_row_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a search finds fewer than there are beams: of each row, the first that repeats no phrase."""
    recipe = a_recipe(MODELS["transformer"], {"kind": "seq2seq"}, num_beams=3)
    ranked = [(0, "ab cd ab cd"), (1, "ab cd"), (2, "ab"), (0, "e"), (0, "f g f g"), (1, "f")]
    asked: list[Any] = []

    def generated(*arguments: Any, **options: Any) -> list[SimpleNamespace]:
        asked.append(arguments[2])
        return [SimpleNamespace(sample=sample, text=text) for sample, text in ranked]

    monkeypatch.setattr(text_to_text, "complete", generated)
    task = answer_task(recipe)
    assert task.generate(a_model(recipe), pairs(task, ["a", "bb", "ccc"])) == ["ab cd", "e", "f"]
    (settings,) = asked
    assert settings.strategy == "beam"
    assert (settings.num_beams, settings.num_return) == (3, 3)


def measured(
    answers: list[str], true: list[str], labels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The metrics of these texts."""
    recipe = a_recipe(MODELS["transformer"], {"kind": "seq2seq"})
    task = a_task(recipe, labels)
    monkeypatch.setattr(task, "generate", lambda *_: answers)
    monkeypatch.setattr(task, "validate", lambda *_: ValidationResult(1.5))
    nothing = np.zeros(1, dtype=np.int64)
    rows = [EncodedRow(i, nothing, is_truncated=False, target=nothing, answer=text) for i, text in enumerate(true, 1)]
    found = task.compute_results(a_model(recipe), rows, "test", 3)
    assert (found.part, found.step, found.rows, found.loss) == ("test", 3, len(true), 1.5)
    assert (found.labels, found.decoding, found.mistakes) == (labels, "greedy", [])
    return found.figures


def test_the_worst_and_best_texts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = a_recipe(MODELS["transformer"], {"kind": "seq2seq"})
    task = answer_task(recipe)
    true = [f"the cat number {i} sat on the mat" for i in range(3 * MAX_LISTED_ROWS)]
    answers = [text[: len(text) - i // 2] for i, text in enumerate(true)]
    monkeypatch.setattr(task, "generate", lambda *_: answers)
    monkeypatch.setattr(task, "validate", lambda *_: ValidationResult(1.5))
    source = np.array(task.prompt_format.tokenizer.encode("ab"))
    rows = [EncodedRow(i, source, is_truncated=False, target=source, answer=text) for i, text in enumerate(true)]
    measured = task.compute_results(a_model(recipe), rows, "test", 3)
    assert measured.figures["bleu"] == translation_metrics(answers, true)["bleu"]
    kept = measured.to_record()["sentences"]
    assert len(kept) == 2 * MAX_LISTED_ROWS
    assert [one["chrf"] for one in kept] == sorted(one["chrf"] for one in kept)
    assert kept[0]["row"] >= 3 * MAX_LISTED_ROWS - 3
    assert kept[-1]["chrf"] == pytest.approx(100)
    assert all(one["source"] == "ab" for one in kept)
    assert all(one["target"] == true[one["row"]] and one["predicted"] == answers[one["row"]] for one in kept)


def test_labels_as_text_are_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    true = ["yes", "no", "no", "yes"]
    found = measured(["yes", " no ", "maybe", "no"], true, ("no", "yes"), monkeypatch)
    assert found["accuracy"] == 0.5
    assert list(found["classes"]) == ["no", "yes", NO_LABEL]
    assert found["confusion"] == [[1, 0, 1], [1, 1, 0], [0, 0, 0]]
    perfect = measured(["yes", "no"], ["yes", "no"], ("no", "yes"), monkeypatch)
    assert list(perfect["classes"]) == ["no", "yes"]
    assert perfect["accuracy"] == 1.0


@pytest.mark.parametrize("name", nightly_but(MODELS, "transformer", "bottleneck"))
@pytest.mark.parametrize("size", nightly_but([1, 2, 20], 0, 1))
def test_answers_are_written_from_the_ids_of_training(name: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a source is longer than half of the context that it shares with its target."""
    recipe = a_recipe(MODELS[name], {"kind": "seq2seq"})
    task, model = answer_task(recipe), a_model(recipe)
    rows = pairs(task, ["ab", "", "abcdefgh" * size, "abcdefgh abcdefgh"])
    asked = []

    def spy(lm: Any, prompts: Any, *more: Any, **options: Any) -> Any:
        asked.extend(prompts)
        return complete(lm, prompts, *more, **options)

    monkeypatch.setattr(text_to_text, "complete", spy)
    task.generate(model, rows)
    assert sorted(prompt.source for prompt in asked) == sorted(tuple(row.tokens.tolist()) for row in rows)
    assert {prompt.tokens for prompt in asked} == {(TOKENIZER.bos_id,)}
    # and so do training rows with targets, as long as they fit
    learned = task.encode([item._replace(target="h") for item in items(["ab", "", "abcdefgh abcdefgh"[:11]])])
    again = pairs(task, ["ab", "", "abcdefgh abcdefgh"[:11]])
    assert [row.tokens.tolist() for row in learned] == [row.tokens.tolist() for row in again]


# What held-out rows decide


def test_only_held_out_rows_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = a_recipe(ENCODER, {"kind": "classification", "task": "class", "labels": ["a", "b"]})
    task, model = a_task(recipe), a_model(recipe)
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
