"""/classify of models of numbers, tags and answers: as `lmtool predict` of the same rows."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lmtool.api import load
from tests.serving.harness import served
from tests.support.training import Work, words

SENTENCES = ["Tom saw Anna .", "the cat ran home", "Anna and Tom sat ."]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Work:
    work = Work(tmp_path_factory.mktemp("labels"))
    work.pretrain(name="base")
    return work


def numbers(folder: Path) -> Path:
    rows = [f"the cat {words(i % 7)},{i % 5 + 0.5}" for i in range(60)]
    table = folder / "numbers.csv"
    table.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return table


def tags(folder: Path) -> Path:
    sentences = [
        [("Tom", "NAME"), ("sat", "VERB"), (".", "MARK")],
        [("the", "OTHER"), ("cat", "OTHER"), ("ran", "VERB")],
    ]
    table = folder / "tags.conll"
    lines = ["\n".join("\t".join(pair) for pair in sentence) + "\n" for sentence in sentences * 20]
    table.write_text("\n".join(lines), encoding="utf-8")
    return table


def answers(folder: Path) -> Path:
    contexts = [("Tom saw the cat at home.", "the cat", 8), ("Anna sat near the house.", "Anna", 0)]
    listed = [
        {
            "context": context,
            "qas": [{"id": str(n), "question": "who?", "answers": [{"text": text, "answer_start": at}]}],
        }
        for n, (context, text, at) in enumerate(contexts * 15)
    ]
    table = folder / "answers.json"
    table.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": listed}]}), encoding="utf-8")
    return table


CONTEXT = "Once upon a time the cat sat at home. " * 6
KINDS: dict[str, tuple[Callable[[Path], Path], list[Any], list[Any]]] = {
    "number": (numbers, SENTENCES, SENTENCES),
    "tagging": (tags, SENTENCES, SENTENCES),
    "answers": (
        answers,
        [{"question": "who?", "context": "Tom sat at home."}, {"question": "where?", "context": CONTEXT}],
        [("who?", "Tom sat at home."), ("where?", CONTEXT)],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_python_and_of_predict(base: Work, kind: str, tmp_path: Path) -> None:
    make, sent, rows = KINDS[kind]
    base.finetune(source=base.run("base"), table=make(tmp_path), name=kind)
    expected = load(str(base.run(kind)), device="cpu").predict(rows)
    with served(str(base.run(kind))) as server, server.http() as client:
        answer = client.post("/classify", json={"input": sent})
        assert answer.status_code == 200, answer.text
        assert client.get("/v1/models").json()["data"][0]["classifies"]
        found = answer.json()["data"]
        alone = [client.post("/classify", json={"input": one}).json()["data"][0] for one in sent]
    assert [one["index"] for one in found] == list(range(len(sent)))
    for one, by_itself, prediction in zip(found, alone, expected, strict=True):
        if kind == "number":
            assert one["label"] == pytest.approx(prediction.label, abs=1e-4)
            assert by_itself["label"] == pytest.approx(prediction.label, abs=1e-4)
        else:
            assert one["label"] == by_itself["label"] == json.loads(json.dumps(prediction.label))
        assert one["probabilities"] == {}
        assert ("words" in one, "start" in one) == (kind == "tagging", kind == "answers")
    if kind == "tagging":
        assert [one["words"] for one in found] == [sentence.split() for sentence in SENTENCES]
    if kind == "answers":
        for one, (_, context) in zip(found, rows, strict=True):
            assert one["label"] == "" or context[one["start"] :].startswith(one["label"])
