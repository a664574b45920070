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
CONTEXTS = ["Tom sat at home.", "Once upon a time the cat sat at home. " * 6]


def numbers(folder: Path) -> Path:
    table = folder / "numbers.csv"
    table.write_text("text,label\n" + "".join(f"the cat {words(i % 7)},{i % 5 + 0.5}\n" for i in range(24)))
    return table


def tags(folder: Path) -> Path:
    table = folder / "tags.conll"
    table.write_text("Tom\tNAME\nsat\tVERB\n.\tMARK\n\nthe\tOTHER\ncat\tOTHER\nran\tVERB\n\n" * 12)
    return table


def answers(folder: Path) -> Path:
    asked = {"question": "who?", "answers": [{"text": "the cat", "answer_start": 8}]}
    listed = [{"context": f"Tom saw the cat, {words(i)}.", "qas": [{**asked, "id": str(i)}]} for i in range(1, 25)]
    table = folder / "answers.json"
    table.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": listed}]}))
    return table


KINDS: dict[str, tuple[Callable[[Path], Path], list[Any], list[Any]]] = {
    "number": (numbers, SENTENCES, SENTENCES),
    "tagging": (tags, SENTENCES, SENTENCES),
    "answers": (
        answers,
        [{"question": "who?", "context": context} for context in CONTEXTS],
        [("who?", context) for context in CONTEXTS],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_python_and_of_predict(folder: Work, classifier: str, kind: str, tmp_path: Path) -> None:
    make, sent, rows = KINDS[kind]
    folder.finetune(source=folder.run("base"), table=make(tmp_path), name=kind)
    expected = load(str(folder.run(kind)), device="cpu").predict(rows)
    with served(str(folder.run(kind))) as server, server.http() as client:
        answer = client.post("/classify", json={"input": sent})
        assert answer.status_code == 200, answer.text
        assert client.get("/v1/models").json()["data"][0]["classifies"]
        found = answer.json()["data"]
        alone = [client.post("/classify", json={"input": one}).json()["data"][0] for one in sent]
    assert [one["index"] for one in found] == list(range(len(sent)))
    for one, by_itself, prediction in zip(found, alone, expected, strict=True):
        label = json.loads(json.dumps(prediction.label))
        label = pytest.approx(label, abs=1e-4) if kind == "number" else label
        assert one["label"] == label
        assert by_itself["label"] == label
        assert one["probabilities"] == {}
        assert ("words" in one, "start" in one) == (kind == "tagging", kind == "answers")
    if kind == "tagging":
        assert [one["words"] for one in found] == [sentence.split() for sentence in SENTENCES]
    if kind == "answers":
        for one, context in zip(found, CONTEXTS, strict=True):
            assert one["label"] == "" or context[one["start"] :].startswith(one["label"])
