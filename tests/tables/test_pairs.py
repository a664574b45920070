"""Pairs of texts from tables: tasks, what is read and written, and how answers are measured."""

import numpy as np
import pytest
import torch
from sacrebleu.metrics.bleu import BLEU

from lmtool.compute.device import resolve
from lmtool.decoding.prompts import form_of
from lmtool.decoding.settings import Greedy
from lmtool.decoding.text import complete, write
from lmtool.errors import UsageError
from lmtool.model import build
from lmtool.recipe.spec import CharTokenizer, Data, Recipe
from lmtool.tables.examples import Example
from lmtool.tables.pairs import OTHER, as_answer_text, as_source, measure_answers, tasks_of, write_answers
from lmtool.tables.rows import PairLayout, PairRow
from lmtool.text.tokenizer import Tokenizer

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


def recipe(name: str, num_beams: int = 1) -> Recipe:
    return Recipe.model_validate(
        {
            "model": MODELS[name],
            "objective": {"kind": "seq2seq"},
            "tokenizer": {"kind": "char"},
            "training": {"steps": 1, "batch_size": 1},
            "evaluation": {"num_beams": num_beams},
        }
    )


def pairs(name: str, sources: list[str]) -> list[PairRow]:
    return PairLayout(recipe(name).model, TOKENIZER).rows([(s, None) for s in sources], range(1, len(sources) + 1))


def test_tasks_are_a_name_a_file_and_a_weight() -> None:
    data = Data(tasks=("nli:a.csv", "sst:dir:b.csv:0.5", "c:c.csv:x.csv"), task_tests=("nli:t.csv",))
    found = [(task.name, task.train, task.test, task.weight) for task in tasks_of(data)]
    assert found == [("nli", "a.csv", "t.csv", 1.0), ("sst", "dir:b.csv", None, 0.5), ("c", "c.csv:x.csv", None, 1.0)]
    (one,) = tasks_of(Data(train="a.csv", valid="v.csv", test="t.csv"))
    assert (one.name, one.train, one.valid, one.test) == ("", "a.csv", "v.csv", "t.csv")


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (Data(train=("a.csv", "b.csv")), "one table"),
        (Data(tasks=("a.csv",)), "no name:file"),
        (Data(tasks=(":a.csv",)), "no name:file"),
        (Data(tasks=("a:a.csv", "a:b.csv")), "two tasks"),
        (Data(tasks=("a:a.csv",), task_tests=("b:b.csv",)), "no task is named b"),
        (Data(tasks=("a:a.csv",), task_tests=("b.csv",)), "no name:file"),
    ],
)
def test_tasks_that_cannot_be_told_are_refused(data: Data, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        tasks_of(data)


def test_sources_and_answers_are_text() -> None:
    assert as_source("", ["text"], ["It rains."]) == "It rains."
    assert as_source("sst", ["text"], ["It rains."]) == "sst: It rains."
    assert as_source("nli", ["premise", "hypothesis"], ["a", "b"]) == "nli: premise: a hypothesis: b"
    assert as_answer_text(Example(("a",), None, "b", 1)) == "b"
    assert as_answer_text(Example(("a",), "yes", None, 1)) == "yes"
    assert as_answer_text(Example(("a",), ("x", "y"), None, 1)) == "x;y"
    assert as_answer_text(Example(("a",), 2.5, None, 1)) == "2.5"
    assert as_answer_text(Example(("a",), None, None, 1)) is None


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_answers_are_those_of_each_source_alone(name: str, precision: str) -> None:
    torch.manual_seed(0)
    of = recipe(name)
    lm = build(of.model, TOKENIZER.vocab_size)
    compute = resolve("cpu", precision)  # type: ignore[arg-type]
    sources = ["abc", "", "h", "abcdefgh", "ab ab ab ab", "abcdefgh" * 4]
    found = write_answers(lm, TOKENIZER, of, pairs(name, sources), compute)
    assert len(found) == len(sources)
    if precision == "float32":
        for source, answer in zip(sources[:-1], found, strict=False):
            settings = Greedy(max_new_tokens=150)
            (alone,) = complete(write(lm, TOKENIZER, [source], settings, form=form_of(of, documents=True)))
            assert alone.text.startswith(answer)
            assert answer
    assert len(write_answers(lm, TOKENIZER, recipe(name, 3), pairs(name, sources), compute)) == len(sources)


def answered(*texts: str) -> list[PairRow]:
    nothing = np.zeros(1, dtype=np.int64)
    return [PairRow(nothing, None, None, i, False, nothing, "", text) for i, text in enumerate(texts, 1)]


def test_free_text_is_measured_by_sacrebleu() -> None:
    references = ["the cat sat on the mat today", "a dog ran far away from home", "it rains"]
    answers = ["the cat sat on a mat today", "a dog ran far away from here", "it rains"]
    found = measure_answers(answers, answered(*references), ())
    assert found["bleu"] == pytest.approx(BLEU().corpus_score(answers, [references]).score)
    assert found["exact"] == pytest.approx(1 / 3)
    assert 0 < found["chrf"] < 100


def test_labels_as_text_are_classes() -> None:
    found = measure_answers(["yes", " no ", "maybe", "no"], answered("yes", "no", "no", "yes"), ("no", "yes"))
    assert found["accuracy"] == 0.5
    assert list(found["classes"]) == ["no", "yes", OTHER]
    assert found["confusion"] == [[1, 0, 1], [1, 1, 0], [0, 0, 0]]
    perfect = measure_answers(["yes", "no"], answered("yes", "no"), ("no", "yes"))
    assert list(perfect["classes"]) == ["no", "yes"]
    assert perfect["accuracy"] == 1.0
