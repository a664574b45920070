"""What a model is given: every recipe is described, and what each objective does to a text can be undone by hand."""

import json
import re
from ast import literal_eval
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from lmtool.batch import IGNORE
from lmtool.recipe.load import load, parse_settings
from lmtool.report.batch import (
    BatchTable,
    CollatedBatch,
    collate_batch_of_step,
    format_batch_lines,
    render_batch_page,
    tabulate_batch_rows,
)
from lmtool.training.finetuning import plan_training_for_data
from tests.support.cli import write_table
from tests.support.errors import refuses
from tests.support.shipped import ONE_OF_EACH_KIND
from tests.support.training import no_report

WHO, WHAT = ("baker", "sailor", "twin", "fox"), ("kettle", "map", "moon")
SENTENCES = [f"The {who} sold a {what} at dawn and then ran home ." for who in WHO for what in WHAT]
STORIES = "\n\n".join(" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in 4 * list(range(12)))
BERT = ("tokenizer.kind=word", "model.context=30")
APART = ("data.documents=blank-line", "data.split=document", "data.valid_fraction=0.2")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text, and a small table for each objective that is trained on one."""
    monkeypatch.chdir(tmp_path)
    reviews = [f"the {who} was {word}" for who in WHO for word in ("good", "bad")]
    write_table(Path("reviews.csv"), [(text, "yes" if text.endswith("good") else "no") for text in 3 * reviews])
    write_table(Path("pairs.tsv"), [(text, text[::-1]) for text in SENTENCES], "source\ttarget", "\t")
    pairs = [(f"a {who} ran", "it slept", n) for who in WHO for n in (0, 1) * 3]
    write_table(Path("two.csv"), pairs, "premise,hypothesis,label")
    tags = "".join(f"The O\n{who} B-WHO\nhas O\n{n} O\n\n" for who in WHO for n in range(4))
    context = "In May the fox sold a map to the twin ."
    answers = [{"text": "the fox", "answer_start": context.index("the fox")}]
    qas = [{"id": str(i), "question": f"Who sold a map ? {i}", "answers": answers} for i in range(20)]
    asked = json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]})
    for name, content in {"stories.txt": STORIES, "tags.conll": tags, "questions.json": asked}.items():
        Path(name).write_text(content, encoding="utf-8")


def given(
    name: str, source: str = "stories.txt", *overrides: str, step: int = 1, rows: int = 1, typed: Sequence[str] = ()
) -> CollatedBatch:
    plan = plan_training_for_data(None, name, parse_settings([f"data.train={source}", *overrides]))
    return collate_batch_of_step(plan, typed, step, rows, no_report)


def only(described: CollatedBatch) -> BatchTable:
    (part,) = tabulate_batch_rows(described)
    return part


def pieces(column: Sequence[Any]) -> list[str | None]:
    return [None if piece is None else literal_eval(piece) for piece in column]


@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_every_kind_of_recipe_is_described(name: str) -> None:
    kind = load(name).recipe.objective.kind
    source = {"classification": "reviews.csv", "seq2seq": "pairs.tsv", "tagging": "tags.conll"}.get(kind)
    overrides = () if source else APART
    described = given(name, source or "stories.txt", "model.context=24", *overrides)
    lines = list(map(str, format_batch_lines(described, ascii_only=True)))
    assert kind in lines[0]
    html = render_batch_page(described)
    for part in tabulate_batch_rows(described):
        assert len({len(column) for column in part.columns.values()}) == 1
        assert part.title.capitalize() in html
        assert " ".join(lines).count(part.title)


ORDER = ("objective.next_sentence=false", "objective.sentence_order=true")
ROWS = {
    "causal": ("tiny", "stories.txt", "model.context=16"),
    "both directions": ("elmo-tiny", "stories.txt", "model.context=16"),
    "documents apart": ("tiny", "stories.txt", *BERT, "model.context=300", "data.isolate_documents=true", *APART),
    "masked": ("roberta-tiny", "stories.txt", *BERT),
    "next sentence": ("bert-tiny", "stories.txt", *BERT, *APART),
    "order": ("bert-tiny", "stories.txt", *BERT, *APART, *ORDER),
    "prefix": ("prefix-tiny", "stories.txt", "model.context=16"),
    "spans": ("t5-tiny", "stories.txt", *BERT),
    "pairs": ("transformer-tiny", "pairs.tsv", *BERT),
    "classes": ("bert-tiny", "reviews.csv", *BERT, "objective.kind=classification"),
    "two texts": ("bert-tiny", "two.csv", *BERT, "objective.kind=classification"),
    "tags": ("tagger", "tags.conll"),
    "answers": ("bert-tiny", "questions.json", *BERT, "objective.kind=question-answering"),
}
"""Recipes, what they read, and overrides, by what a row has."""


@pytest.mark.parametrize("what", ROWS)
def test_columns_are_the_tensors_of_the_batch(what: str) -> None:
    name, source, *overrides = ROWS[what]
    described = given(name, source, *overrides, rows=8)
    batch: Any = described.batch
    tokenizer, model = described.tokenizer, described.recipe.model
    parts = list(tabulate_batch_rows(described))
    if batch.source_BS is not None:
        sources, parts = parts[::2], parts[1::2]
        assert [part.columns["id"] for part in sources] == batch.source_BS.tolist()
    assert len(parts) == len(batch.tokens_BT) == 8
    lines = [str(line).split() for line in format_batch_lines(described, ascii_only=True)]
    for row, part in enumerate(parts):
        ids, columns = batch.tokens_BT[row].tolist(), part.columns
        assert columns["id"] == ids
        assert " ".join(str(column[0]) for column in columns.values() if column[0] is not None).split() in lines
        assert pieces(columns["piece"]) == [tokenizer.display_token(token) for token in ids]
        for name, values in (("segment", batch.segments_BT), ("document", batch.documents_BT)):
            assert columns.get(name) == (None if values is None else values[row].tolist())
        if batch.targets_BT is not None:
            targets = batch.targets_BT[row].tolist()
            expected = [None if token == IGNORE else tokenizer.display_token(token) for token in targets]
            assert pieces(columns["target"]) == expected
            n = sum(token != IGNORE for token in targets)
            assert part.notes[-1] == f"targets in the loss: {n} of {len(targets)} positions"
        if batch.prefix_B is not None:
            assert columns["prefix"].count("prefix") == columns["prefix"].index(None) == batch.prefix_B[row]
        if "padding" in columns:
            assert [mark is None for mark in columns["padding"]] == batch.keep_BT[row].tolist()
        if batch.spans_B2 is not None:
            first, last = batch.spans_B2[row].tolist()
            assert [i for i, mark in enumerate(columns["answer"]) if mark] == list(range(first, last + 1))
        if batch.tags_BW is not None:
            tags = {at: int(str(tag).split()[0]) for at, tag in enumerate(columns["tag"]) if tag}
            assert tags == dict(zip(batch.places_BW[row].tolist(), batch.tags_BW[row].tolist(), strict=True))
        if batch.labels_B is not None:
            told = {"next sentence": "second text is the next", "order": "texts are in order"}.get(what, "label")
            shown = str(int(batch.labels_B[row])) if told == "label" else ["no", "yes"][int(batch.labels_B[row])]
            assert f"{told}: {shown}" in part.notes[0]
        if columns.get("document") and len(set(columns["document"])) > 1:
            assert f"{len(set(columns['document']))} documents in the row, apart" in part.masks[0].title
        elif batch.source_BS is not None:
            assert part.masks[-1].title.startswith("decoder to encoder: all of the source")
            assert len(part.masks[-1].shares[0]) == batch.source_BS.shape[1]
        elif part.masks and part.masks[0].cell == 1:
            is_encoder = getattr(model, "shape", "") == "encoder"
            n_prefix = int(batch.prefix_B[row]) if batch.prefix_B is not None else 0
            keeps = batch.keep_BT[row].tolist() if batch.keep_BT is not None else [True] * len(ids)
            for query, shares in enumerate(part.masks[0].shares):
                allowed = [is_encoder or key <= query or key < n_prefix for key in range(len(ids))]
                seen = [float(one and kept) for one, kept in zip(allowed, keeps, strict=True)]
                assert shares == seen or not keeps[query]
        if "target backwards" in columns:
            assert columns["target backwards"][1:] == columns["piece"][:-1]


def test_masks_are_those_of_the_targets() -> None:
    rates = ("objective.rate=0.9", "objective.random_share=0.2", "objective.mask_share=0.5")
    columns = only(given("roberta-tiny", "stories.txt", *BERT, *rates)).columns
    tokens, targets = pieces(columns["piece"]), pieces(columns["target"])
    original = [piece if target is None else target for piece, target in zip(tokens, targets, strict=True)]
    documents = re.split(r"\[EOS\]|\[BOS\]", " ".join(map(str, original[1:-1])))
    assert all(part.strip() in STORIES for part in documents)
    assert {*columns["input is"]} == {"mask", "random", "kept", None}
    for token, target, change in zip(tokens, targets, columns["input is"], strict=True):
        assert (target is None) == (change is None)
        assert (token == "[MASK]") == (change == "mask")
        assert (token == target) == (change == "kept")


@pytest.mark.parametrize(
    ("recipe", "centre", "context"), [("skipgram", "input", "targets"), ("cbow", "targets", "input")]
)
def test_pairs_of_a_centre_and_its_context(recipe: str, centre: str, context: str) -> None:
    overrides = "objective.subsample=0", "objective.fixed=true", "objective.window=2", "objective.negatives=3"
    columns = only(given(recipe, "stories.txt", "model.context=20", *overrides)).columns
    words = pieces(columns[centre])
    for i, listed in enumerate(columns[context]):
        near = [words[j] for j in range(max(0, i - 2), min(len(words), i + 3)) if j != i]
        assert set(pieces(str(listed).split())) <= {*near, "[EOS]"}
        assert len(str(listed).split()) <= 4
    assert all(len(str(noise).split()) == 3 for noise in columns["noise words"])


def test_counted_pairs_are_those_of_the_text_without_noise() -> None:
    columns = only(given("glove", "stories.txt", "objective.window=1")).columns
    counts = {pair[:2]: pair[2] for pair in zip(*columns.values(), strict=True)}
    pairs = list(pairwise(STORIES.lower().split()))
    assert counts["'sold'", "'a'"] == pytest.approx(pairs.count(("sold", "a")), rel=0.2)
    columns = only(given("ppmi", "stories.txt", "model.window=2", "model.context=20")).columns
    assert "noise words" not in columns
    words = pieces(columns["input"])
    contexts = [pieces(str(listed).split()) for listed in columns["targets"]]
    whole = [contexts[i] == words[i - 2 : i] + words[i + 1 : i + 3] for i in range(2, len(words) - 2)]
    assert whole.count(False) <= 4, "those beside the end of a document"
    assert whole.count(True) > 4


TINY = ("model.n_layers=1", "model.d_model=16", "model.n_heads=2")


def test_sampled_inputs_grow_with_the_steps() -> None:
    scheduled = "objective.scheduled_sampling.growth=linear", "objective.scheduled_sampling.k=0.01"
    overrides = ("model.context=32", "training.steps=100", *TINY, *scheduled)

    def count_drawn(step: int) -> int:
        columns = only(given("tiny", "stories.txt", *overrides, step=step)).columns
        drawn = columns["number drawn"]
        assert all(one is not None for one, piece in zip(drawn, columns["sampled"], strict=True) if piece)
        assert step > 1 or columns["sampled"][0] is None
        return sum(one is not None for one in drawn)

    assert count_drawn(1) == 0
    assert 5 < count_drawn(50) < count_drawn(100)


def test_replaced_tokens_are_told_from_original_ones() -> None:
    columns = only(given("electra-tiny", "stories.txt", *BERT, *TINY, "objective.rate=0.5")).columns
    lines = zip(columns["sampled"], columns["target"], columns["is"], columns["piece"], strict=True)
    chosen = [line for line in lines if line[1] is not None]
    assert chosen
    for sampled, target, fate, piece in chosen:
        assert sampled is not None
        assert piece == "'[MASK]'"
        assert fate == ("original" if sampled == target else "replaced")


def test_typed_texts_are_documents_of_their_own() -> None:
    first, second = "The fox sold a map", "The twin ran home"
    words = ("bert-tiny", "stories.txt", *BERT, *APART)
    part = only(given(*words, "objective.rate=0.01", typed=[first, second]))
    tokens = [b or a for a, b in zip(pieces(part.columns["piece"]), pieces(part.columns["target"]), strict=True)]
    one, other, _ = " ".join(map(str, tokens[1:])).split("[SEP]")
    texts = [one.strip() in typed and other.strip() in typed for typed in (first, second)]
    assert sum(texts) == (dict(note.split(": ") for note in part.notes)["the second text is the next"] == "yes")
    with refuses("data"):
        given(*words, typed=[first])


def test_the_batch_is_that_of_the_step() -> None:
    found, again, other = (given("tiny", "stories.txt", "model.context=16", rows=3, step=n).batch for n in (1, 1, 2))
    assert found.tokens_BT.shape == (3, 16)
    assert torch.equal(found.tokens_BT, again.tokens_BT)
    assert not torch.equal(found.tokens_BT, other.tokens_BT)
    assert found.targets_BT is not None
    assert (found.targets_BT != IGNORE).any()
