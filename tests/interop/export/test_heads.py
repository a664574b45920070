"""Heads fine-tuned on published models: exported in their family's own class or beside its body, opened as the model
card says, and read back, with the same predictions."""

import json
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
from tests.support import peers
from tests.support.cases import nightly_but
from tests.support.exporting import executed
from tests.support.peers import BODIES, peer_in

ROWS = ["Tom and Anna went to the old harbour.", "It rained", "the boats stayed!  Why?", "sea wall " * 90]
"""The last one is longer than the context."""

ENCODERS = ["bert", "roberta", "distilbert", "electra", "modernbert"]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LMTOOL_RUNS", str(tmp_path / "runs"))


Bases = Callable[[str], LoadedModel]


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Bases:
    """The published model of a body with random weights, imported once."""

    @cache
    def base(body: str) -> LoadedModel:
        folder = tmp_path_factory.mktemp("published")
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(peers.CASES, body, BODIES[body])
            peer_in(folder, body)
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


def head(kind: str = "classification", **values: Any) -> dict[str, Any]:
    return {"kind": kind, **values}


def back(folder: Path) -> LoadedModel:
    return load_run(str(import_to_cache(str(folder))), CPU)


def close(found: torch.Tensor, wanted: list[list[float]]) -> None:
    torch.testing.assert_close(found.float(), torch.tensor(wanted), rtol=1e-4, atol=1e-4)


THREE = {"task": "class", "labels": ("bad", "so so", "good")}
TANH = {**THREE, "dense": "tanh"}
MEAN = {**THREE, "pool": "mean"}
HEADS: dict[str, dict[str, Any]] = {
    "of the paper": TANH,
    "mean": MEAN,
    "mean of labels": {**MEAN, "task": "multi", "dense": "relu"},
    "mean of numbers": {"task": "number", "center": 20.0, "scale": 3.0, "pool": "mean"},
    "first of numbers": {"task": "number", "center": 20.0, "scale": 3.0, "dense": "tanh"},
    "one score": {**MEAN, "labels": ("no", "yes"), "single_score": True},
    "max": {**THREE, "pool": "max", "dense": "gelu"},
    "last": {**THREE, "pool": "last", "bias": False},
    "attention": {**THREE, "pool": "attention"},
    "mixed": {**THREE, "pool": "mean", "layers": "mix"},
    "mixed, without embeddings": {**THREE, "pool": "first", "layers": "mix-hidden"},
    "a layer of several": {**THREE, "pool": "mean", "layers": 1},
    "normed": {**THREE, "pool": "mean", "dense": "gelu", "dense_norm": True},
}


def classified(loaded: LoadedModel, rows: Sequence[tuple[str, ...]]) -> list[Prediction]:
    classifier = LabelPredictor.from_model(loaded)
    return classifier.predict(classifier.encode(rows))


@pytest.mark.parametrize(
    ("body", "kind"),
    nightly_but(
        [
            *(("bert", kind) for kind in HEADS),
            *((body, kind) for body in BODIES for kind in ("of the paper", "mean", "mixed") if body != "bert"),
            *(("gpt2", kind) for kind in ("last", "first of numbers", "attention")),
        ],
        0,
        17,
        unpack=True,
    ),
)
def test_classifiers_of_any_head(body: str, kind: str, tmp_path: Path, bases: Bases) -> None:
    run = tuned(tmp_path, body, bases, head(**HEADS[kind]))
    export(str(run), tmp_path / "out")
    loaded, again = load_run(str(run), CPU), back(tmp_path / "out")
    rows = [(text,) for text in ROWS]
    wanted = classified(loaded, rows)
    for found, one in zip(classified(again, rows), wanted, strict=True):
        assert found.label == (pytest.approx(one.label) if HEADS[kind]["task"] == "number" else one.label)
        assert found.probabilities == pytest.approx(one.probabilities, abs=1e-6)
    if HEADS[kind]["task"] == "number":
        close(executed(tmp_path / "out", texts=ROWS)["numbers"], [float(one.label) for one in wanted])
    else:
        found = executed(tmp_path / "out", texts=ROWS)["probabilities"]
        close(found, [list(one.probabilities.values()) for one in wanted])


@pytest.mark.parametrize("kind", nightly_but(["of the paper", "mean", "one score"], "of the paper", "mean"))
def test_a_temperature_is_in_the_weights(kind: str, tmp_path: Path, bases: Bases) -> None:
    """Of a head of its own class, of one beside its body, and of one score; no note divides a second time."""
    spec = {**THREE, "dense": "tanh"} if kind == "of the paper" else MEAN
    if kind == "one score":
        spec = {"task": "class", "labels": ("no", "yes"), "single_score": True, "dense": "tanh"}
    run = tuned(tmp_path, "bert", bases, head(**spec, temperature=3.0))
    export(str(run), tmp_path / "out")
    loaded, again = load_run(str(run), CPU), back(tmp_path / "out")
    rows = [(text,) for text in ROWS]
    wanted = [list(one.probabilities.values()) for one in classified(loaded, rows)]
    close(executed(tmp_path / "out", texts=ROWS)["probabilities"], wanted)
    close(torch.tensor([list(one.probabilities.values()) for one in classified(again, rows)]), wanted)
    plain = tuned(tmp_path / "plain", "bert", bases, head(**spec))
    for p, other in zip(wanted, classified(load_run(str(plain), CPU), rows), strict=True):
        powers = [one ** (1 / 3) for one in other.probabilities.values()]
        assert p == pytest.approx([one / sum(powers) for one in powers], abs=1e-5)


def test_thresholds_are_in_the_note(tmp_path: Path, bases: Bases) -> None:
    labels = {"task": "multi", "labels": ("a", "b", "c"), "thresholds": (0.1, 0.9, 0.9)}
    run = tuned(tmp_path, "bert", bases, head(**labels, dense="tanh"))
    export(str(run), tmp_path / "out")
    rows = [(text,) for text in ROWS]
    assert back(tmp_path / "out").recipe.objective.thresholds == (0.1, 0.9, 0.9)  # type: ignore[union-attr]
    found = classified(back(tmp_path / "out"), rows)
    assert found == classified(load_run(str(run), CPU), rows)
    assert {one.label for one in found} == {("a",)}
    assert any(one.probabilities["c"] > 0.5 for one in found)
    probabilities = executed(tmp_path / "out", texts=ROWS)["probabilities"]
    above = executed(tmp_path / "out", texts=ROWS)["predicted"].tolist()
    assert above == (probabilities > torch.tensor([0.1, 0.9, 0.9])).tolist()


OWN = {
    "bert": ("tanh", "BertForSequenceClassification"),
    "roberta": ("tanh", "RobertaForSequenceClassification"),
    "distilbert": ("relu", "DistilBertForSequenceClassification"),
    "electra": ("gelu", "ElectraForSequenceClassification"),
}


@pytest.mark.parametrize("body", OWN)
def test_what_a_class_expresses_is_of_that_class(body: str, tmp_path: Path, bases: Bases) -> None:
    dense, architecture = OWN[body]
    run = tuned(tmp_path, body, bases, head(**THREE, dense=dense))
    assert export(str(run), tmp_path / "out").architecture == architecture
    assert not (tmp_path / "out" / "head.safetensors").exists()


def test_a_head_beside_its_body_has_its_labels(tmp_path: Path, bases: Bases) -> None:
    """Also in another type, and in several files."""
    run = tuned(tmp_path, "bert", bases, head(**MEAN))
    exported = export(str(run), tmp_path / "out", dtype="bfloat16", max_shard_bytes=8_000)
    assert exported.architecture == "BertModel"
    config = transformers.AutoConfig.from_pretrained(tmp_path / "out")
    assert config.id2label == {0: "bad", 1: "so so", 2: "good"}
    again, wanted = back(tmp_path / "out"), load_run(str(run), CPU)
    assert again.recipe.objective == wanted.recipe.objective
    rows = [(text,) for text in ROWS]
    for found, one in zip(classified(again, rows), classified(wanted, rows), strict=True):
        assert found.probabilities == pytest.approx(one.probabilities, abs=0.05)
    assert "head.safetensors" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize("kind", nightly_but(["of the paper", "mean"], 0))
def test_two_texts_a_row(kind: str, tmp_path: Path, bases: Bases) -> None:
    """With their segments, and their columns."""
    columns = ("the first", "the second")
    run = tuned(tmp_path, "bert", bases, head(**HEADS[kind]), text_columns=columns)
    export(str(run), tmp_path / "out")
    rows = list(zip(ROWS, ROWS[1:] + ROWS[:1], strict=True))
    wanted = classified(load_run(str(run), CPU), rows)
    assert back(tmp_path / "out").recipe.data.text_columns == columns
    assert classified(back(tmp_path / "out"), rows) == wanted
    found = executed(tmp_path / "out", texts=rows)["probabilities"]
    close(found, [list(one.probabilities.values()) for one in wanted])


@pytest.mark.parametrize("kind", nightly_but(["of the paper", "mean"], "of the paper"))
@pytest.mark.parametrize("body", nightly_but(["bert", "roberta", "modernbert", "gpt2"], "bert", "modernbert"))
def test_a_context_shorter_than_the_positions(kind: str, body: str, tmp_path: Path, bases: Bases) -> None:
    run = tuned(tmp_path, body, bases, head(**HEADS[kind]), context=20)
    export(str(run), tmp_path / "out")
    loaded, again = load_run(str(run), CPU), back(tmp_path / "out")
    assert again.recipe.model.longest_row == 20
    rows = [(text,) for text in ROWS]
    assert classified(again, rows) == classified(loaded, rows)


def damaged(folder: Path, bases: Bases, **changes: Any) -> Path:
    """An exported directory, with another note."""
    export(str(tuned(folder, "bert", bases, head(**MEAN))), folder / "out")
    config = json.loads((folder / "out" / "config.json").read_text())
    config["lmtool"] |= changes
    (folder / "out" / "config.json").write_text(json.dumps(config))
    return folder / "out"


@pytest.mark.parametrize(
    ("changes", "what"),
    nightly_but(
        [
            ({"objective": {**head(**MEAN), "dense": "tanh"}}, "dense.* is missing in its head"),
            ({"objective": {**head(**MEAN), "pool": "middle"}}, "its configuration is of no model: objective"),
            ({"objective": {**head(**MEAN), "labels": ("a",)}}, None),
            ({"objective": 3}, "objective is 3, not of type dict"),
            ({"context": -1}, "context is -1"),
            ({"more": 1}, "unknown keys may change what it computes: lmtool.more"),
        ],
        0,
        3,
        unpack=True,
    ),
)
def test_notes_that_do_not_fit(changes: dict[str, Any], what: str | None, tmp_path: Path, bases: Bases) -> None:
    """The labels are those of Transformers, which may have been given other names."""
    folder = damaged(tmp_path, bases, **changes)
    if what is None:
        assert back(folder).recipe.objective.labels == ("bad", "so so", "good")  # type: ignore[union-attr]
        return
    with pytest.raises(CheckpointError, match=what):
        back(folder)


def test_a_note_names_no_files(tmp_path: Path, bases: Bases) -> None:
    folder = damaged(tmp_path, bases, data={"text_columns": ["review"], "train": ["other.csv"]})
    assert back(folder).recipe.data.text_columns == ("review",)
    assert back(folder).recipe.data.train == ()


def test_a_body_without_its_head_is_a_body(tmp_path: Path, bases: Bases) -> None:
    folder = damaged(tmp_path, bases)
    (folder / "head.safetensors").unlink()
    assert back(folder).recipe.objective.kind == "embedding"


# Tags and answers

WORDS = [["Tom", "and", "Anna", "went", "to", "the", "old", "harbour", "."], ["a"], ["It", "rained", "漢字", "Why"]]
TAGS = {"labels": ("O", *(f"{part}-{name}" for name in ("PER", "LOC", "ORG", "BOAT") for part in "BI"))}


@pytest.mark.parametrize(
    ("body", "crf"),
    nightly_but([*((body, False) for body in BODIES), ("bert", True), ("llama", True)], 0, "modernbert", unpack=True),
)
def test_tags(body: str, crf: bool, tmp_path: Path, bases: Bases) -> None:
    run = tuned(tmp_path, body, bases, head("tagging", **TAGS, crf=crf))
    exported = export(str(run), tmp_path / "out")
    own = body in OWN and not crf
    assert exported.architecture.endswith("ForTokenClassification") == own
    table = tmp_path / "words.jsonl"
    table.write_text("\n".join(json.dumps({"tokens": words, "tags": ["O"] * len(words)}) for words in WORDS))
    wanted = [cells[0] for _, cells in predict_table_lazily(load_run(str(run), CPU), str(table)).rows]
    assert [cells[0] for _, cells in predict_table_lazily(back(tmp_path / "out"), str(table)).rows] == wanted
    assert [executed(tmp_path / "out", words=words)["tags"] for words in WORDS] == wanted
    assert len({tag for tags in wanted for tag in tags}) > 1


ASKED = [("Why?", "Tom and Anna went to the old harbour."), ("Who?", "It rained; the boats stayed!  Why?")]


@pytest.mark.parametrize(
    ("body", "threshold"),
    nightly_but(
        [*((body, None) for body in BODIES), ("bert", 0.5), ("modernbert", 0.5), ("gpt2", 0.5)], 0, 5, unpack=True
    ),
)
def test_answers(body: str, threshold: float | None, tmp_path: Path, bases: Bases) -> None:
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
    assert again.recipe.objective.model_dump() | {"dropout": 0, "layers": "last"} == {
        **head("question-answering", **spec),
        "dropout": 0,
        "layers": "last",
    }
    answers = [executed(tmp_path / "out", question=q, context=c)["answer"] for q, c in ASKED]
    assert answers == [cells[0] for _, cells in wanted]
