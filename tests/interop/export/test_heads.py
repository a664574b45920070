"""Heads fine-tuned on published models: exported in their family's own class or beside its body, opened as the model
card says, and read back, with the same predictions."""

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from lmtool.compute.device import CPU
from lmtool.errors import CheckpointError
from lmtool.interop.export.exporting import export
from lmtool.interop.importing import import_to_cache
from lmtool.recipe.spec.recipe import Recipe
from lmtool.runs.load import LoadedModel, load_run
from lmtool.tasks.predict import LabelPredictor, predict_table_lazily
from lmtool.tasks.task import Prediction
from tests.interop.runs import made
from tests.support.exporting import executed
from tests.support.peers import BODIES, peer_in

TEXTS = ["Tom and Anna went to the old harbour.", "It rained", "the boats stayed!  Why?", "sea wall " * 90]
"""The last one is longer than the context."""


Bases = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """The published model of a body with random weights, imported once."""

    @cache
    def base(body: str) -> LoadedModel:
        folder = tmp_path_factory.mktemp("published")
        peer_in(folder, BODIES[body])
        return load_run(str(import_to_cache(str(folder))), CPU)

    return base


def tuned(
    folder: Path,
    body: str,
    bases: Bases,
    objective: dict[str, Any],
    context: int | None = None,
    **data: Any,
) -> Path:
    """A run as fine-tuning a published model leaves it, with random weights. context: shorter than its positions."""
    base = bases(body)
    model = base.recipe.model.model_dump()
    values = {"model": {**model, "context": context or model["context"]}, "objective": objective, "data": data}
    recipe = Recipe.model_validate({**values, "training": {"steps": 1, "batch_size": 2}})
    return made(folder / "run", recipe, base.tokenizer, biases=0.05)


def head(kind: str = "classification", /, **values: Any) -> dict[str, Any]:
    return {"kind": kind, **values}


def back(folder: Path) -> LoadedModel:
    return load_run(str(import_to_cache(str(folder))), CPU)


def close(found: torch.Tensor, wanted: list[Any]) -> None:
    torch.testing.assert_close(found.float(), torch.tensor(wanted), rtol=1e-4, atol=1e-4)


THREE: dict[str, Any] = {"task": "class", "labels": ("bad", "so so", "good")}
TANH = {**THREE, "dense": "tanh"}
MEAN = {**THREE, "pool": "mean"}
OWN = {"bert": "tanh", "distilbert": "relu", "electra": "gelu"}
"""Bodies with classes of their own for heads on the first token, and the layer of that head."""
NUMBER = {"task": "number", "center": 20.0, "scale": 3.0}
HEADS: dict[str, dict[str, Any]] = {
    **{f"own of {body}": {**THREE, "dense": dense, "temperature": 3.0} for body, dense in OWN.items()},
    "number": {**NUMBER, "dense": "tanh"},
    "mean": {**MEAN, "temperature": 3.0},
    "several labels": {**MEAN, "task": "multi", "dense": "relu", "layers": "mix"},
    "number by attention": {**NUMBER, "pool": "attention", "layers": "mix-hidden"},
    "one score": {**MEAN, "labels": ("no", "yes"), "single_score": True, "layers": 1, "temperature": 3.0},
    "max": {**THREE, "pool": "max", "dense": "gelu", "dense_norm": True},
    "last": {**THREE, "pool": "last", "bias": False},
}
ROWS = [(text,) for text in TEXTS]


def classified(loaded: LoadedModel, rows: Sequence[tuple[str, ...]] = ROWS) -> list[Prediction]:
    classifier = LabelPredictor.from_model(loaded)
    return classifier.predict(classifier.encode(rows))


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        *((body, f"own of {body}") for body in OWN),
        *(("bert", kind) for kind in ("number", "several labels", "number by attention", "one score", "max")),
        *(("modernbert", "mean"), ("gpt2", "last")),
    ],
)
def test_classifiers_of_any_head(body: str, kind: str, tmp_path: Path, bases: Bases) -> None:
    """The temperature is in the weights: no note divides a second time. A class of its own has what it can express."""
    run = tuned(tmp_path, body, bases, head(**HEADS[kind]))
    exported = export(str(run), tmp_path / "out")
    own = kind in (f"own of {body}", "number", "last")
    assert exported.architecture.endswith("ForSequenceClassification") == own
    assert (tmp_path / "out" / "head.safetensors").exists() != own
    loaded, again = load_run(str(run), CPU), back(tmp_path / "out")
    wanted = classified(loaded)
    for found, one in zip(classified(again), wanted, strict=True):
        assert found.label == (pytest.approx(one.label) if HEADS[kind]["task"] == "number" else one.label)
        assert found.probabilities == pytest.approx(one.probabilities, abs=1e-6)
    if HEADS[kind]["task"] == "number":
        close(executed(tmp_path / "out", texts=TEXTS)["numbers"], [one.label for one in wanted])
    else:
        probabilities = executed(tmp_path / "out", texts=TEXTS)["probabilities"]
        close(probabilities, [list(one.probabilities.values()) for one in wanted])


def test_thresholds_are_in_the_note(tmp_path: Path, bases: Bases) -> None:
    labels: dict[str, Any] = {"task": "multi", "labels": ("a", "b", "c"), "thresholds": (0.1, 0.9, 0.9)}
    run = tuned(tmp_path, "bert", bases, head(**labels, dense="tanh"))
    export(str(run), tmp_path / "out")
    assert back(tmp_path / "out").recipe.objective.thresholds == (0.1, 0.9, 0.9)  # type: ignore[union-attr]
    found = classified(back(tmp_path / "out"))
    assert found == classified(load_run(str(run), CPU))
    assert {one.label for one in found} == {("a",)}
    assert any(one.probabilities["c"] > 0.5 for one in found)
    card = executed(tmp_path / "out", texts=TEXTS)
    assert card["predicted"].tolist() == (card["probabilities"] > torch.tensor([0.1, 0.9, 0.9])).tolist()


def test_a_head_beside_its_body_has_its_labels(tmp_path: Path, bases: Bases) -> None:
    """Also in another type, and in several files."""
    run = tuned(tmp_path, "bert", bases, head(**MEAN))
    exported = export(str(run), tmp_path / "out", dtype="bfloat16", max_shard_bytes=8_000)
    assert exported.architecture == "BertModel"
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.id2label == {0: "bad", 1: "so so", 2: "good"}
    again, wanted = back(tmp_path / "out"), load_run(str(run), CPU)
    assert again.recipe.objective == wanted.recipe.objective
    for found, one in zip(classified(again), classified(wanted), strict=True):
        assert found.probabilities == pytest.approx(one.probabilities, abs=0.05)
    assert "head.safetensors" in (tmp_path / "out" / "README.md").read_text()


def test_two_texts_a_row_have_their_segments_and_columns(tmp_path: Path, bases: Bases) -> None:
    """With their segments, and their columns."""
    columns = ("the first", "the second")
    run = tuned(tmp_path, "bert", bases, head(**TANH), text_columns=columns)
    export(str(run), tmp_path / "out")
    rows = list(zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))
    wanted = classified(load_run(str(run), CPU), rows)
    assert back(tmp_path / "out").recipe.data.text_columns == columns
    assert classified(back(tmp_path / "out"), rows) == wanted
    found = executed(tmp_path / "out", texts=rows)["probabilities"]
    close(found, [list(one.probabilities.values()) for one in wanted])


@pytest.mark.parametrize(("body", "spec"), [("bert", TANH), ("modernbert", MEAN)])
def test_a_context_shorter_than_the_positions(body: str, spec: dict[str, Any], tmp_path: Path, bases: Bases) -> None:
    run = tuned(tmp_path, body, bases, head(**spec), context=20)
    export(str(run), tmp_path / "out")
    again = back(tmp_path / "out")
    assert again.recipe.model.longest_row == 20
    assert classified(again) == classified(load_run(str(run), CPU))


@pytest.fixture(scope="module")
def exported_mean(tmp_path_factory: pytest.TempPathFactory, bases: Bases) -> Path:
    folder = tmp_path_factory.mktemp("mean")
    export(str(tuned(folder, "bert", bases, head(**MEAN))), folder / "out")
    return folder / "out"


def damaged(exported: Path, folder: Path, **changes: Any) -> Path:
    """A copy of an exported directory, with another note."""
    shutil.copytree(exported, folder / "out")
    config = json.loads((folder / "out" / "config.json").read_text())
    config["lmtool"] |= changes
    (folder / "out" / "config.json").write_text(json.dumps(config))
    return folder / "out"


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"objective": {**head(**MEAN), "dense": "tanh"}}, "dense.* is missing in its head"),
        ({"objective": {**head(**MEAN), "pool": "middle"}}, "its configuration is of no model: objective"),
        ({"objective": 3}, "objective is 3, not of type dict"),
        ({"context": -1}, "context is -1"),
        ({"more": 1}, "unknown keys may change what it computes: lmtool.more"),
    ],
)
def test_notes_that_do_not_fit(changes: dict[str, Any], what: str, tmp_path: Path, exported_mean: Path) -> None:
    folder = damaged(exported_mean, tmp_path, **changes)
    with pytest.raises(CheckpointError, match=what):
        back(folder)


def test_a_note_names_no_files_and_no_labels_but_those_of_transformers(tmp_path: Path, exported_mean: Path) -> None:
    """Which may have been given other names; and a body without its head is a body."""
    notes = {"data": {"text_columns": ["review"], "train": ["other.csv"]}}
    folder = damaged(exported_mean, tmp_path, **notes, objective={**head(**MEAN), "labels": ("a",)})
    recipe = back(folder).recipe
    assert (recipe.data.text_columns, recipe.data.train) == (("review",), ())
    assert recipe.objective.labels == ("bad", "so so", "good")  # type: ignore[union-attr]
    (folder / "head.safetensors").unlink()
    assert back(folder).recipe.objective.kind == "embedding"


# Tags and answers

WORDS = [["Tom", "and", "Anna", "went", "to", "the", "old", "harbour", "."], ["a"], ["It", "rained", "漢字", "Why"]]
TAGS: dict[str, Any] = {"labels": ("O", *(f"{part}-{name}" for name in ("PER", "LOC", "ORG", "BOAT") for part in "BI"))}


@pytest.mark.parametrize(("body", "crf"), [("bert", False), ("modernbert", False), ("llama", True)])
def test_exported_taggers_give_the_same_tags(body: str, crf: bool, tmp_path: Path, bases: Bases) -> None:
    run = tuned(tmp_path, body, bases, head("tagging", **TAGS, crf=crf))
    exported = export(str(run), tmp_path / "out")
    own = body in OWN and not crf
    assert exported.architecture.endswith("ForTokenClassification") == own
    table = tmp_path / "words.jsonl"
    table.write_text("\n".join(json.dumps({"tokens": words, "tags": ["O"] * len(words)}) for words in WORDS))
    wanted: list[Any] = [cells[0] for _, cells in predict_table_lazily(load_run(str(run), CPU), str(table)).rows]
    assert [cells[0] for _, cells in predict_table_lazily(back(tmp_path / "out"), str(table)).rows] == wanted
    assert [executed(tmp_path / "out", words=words)["tags"] for words in WORDS] == wanted
    assert len({tag for tags in wanted for tag in tags}) > 1


ASKED = [("Why?", "Tom and Anna went to the old harbour."), ("Who?", "It rained; the boats stayed!  Why?")]


@pytest.mark.parametrize(("body", "threshold"), [("bert", None), ("gpt2", 0.5)])
def test_exported_readers_give_the_same_answers(
    body: str, threshold: float | None, tmp_path: Path, bases: Bases
) -> None:
    spec = {"max_answer": 4, "stride": 5, "null_threshold": threshold}
    run = tuned(tmp_path, body, bases, head("question-answering", **spec))
    exported = export(str(run), tmp_path / "out")
    assert exported.architecture.endswith("ForQuestionAnswering") == (body in OWN)
    table = tmp_path / "asked.jsonl"
    table.write_text("\n".join(json.dumps({"question": q, "context": c, "answers": []}) for q, c in ASKED))
    wanted = list(predict_table_lazily(load_run(str(run), CPU), str(table)).rows)
    again = back(tmp_path / "out")
    for (_, one), (_, other) in zip(predict_table_lazily(again, str(table)).rows, wanted, strict=True):
        assert one[:2] == other[:2]
        assert float(one[2]) == pytest.approx(float(other[2]), rel=1e-4, abs=1e-4)  # type: ignore[arg-type]
    same = {"dropout": 0, "layers": "last"}
    assert again.recipe.objective.model_dump() | same == head("question-answering", **spec, **same)
    answers = [executed(tmp_path / "out", question=q, context=c)["answer"] for q, c in ASKED]
    assert answers == [cells[0] for _, cells in wanted]
