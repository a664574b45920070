"""What a model is given: every recipe is described, and what each objective does to a text can be undone by hand."""

import json
import re
from ast import literal_eval
from pathlib import Path

import pytest
import torch

from lmtool.batch import IGNORE
from lmtool.data import bundled
from lmtool.errors import DataError
from lmtool.recipe.load import load, parse_settings, shipped_recipes
from lmtool.recipe.spec.objective import Classification, Seq2Seq, Tagging
from lmtool.report.batch import collate_batch_of_step, format_batch_lines, render_batch_page, tabulate_batch_rows
from lmtool.training.finetuning import plan_training_for_data
from tests.support.cases import nightly_but
from tests.support.shipped import ONE_OF_EACH_KIND

WHO, WHAT = ("baker", "sailor", "twin", "fox"), ("kettle", "map", "moon")
SENTENCES = [f"The {who} sold a {what} at dawn and then ran home ." for who in WHO for what in WHAT]
STORIES = "\n\n".join(" ".join(SENTENCES[i:] + SENTENCES[:i]) for i in 4 * list(range(12)))
BERT = ("tokenizer.kind=word", "model.context=30")
APART = ("data.documents=blank-line", "data.split=document", "data.valid_fraction=0.2")


@pytest.fixture(autouse=True)
def folder(work, monkeypatch):
    monkeypatch.chdir(work.folder)


@pytest.fixture
def text(folder):
    file = Path("stories.txt")
    file.write_text(STORIES, encoding="utf-8")
    return str(file)


@pytest.fixture
def tables(folder):
    """A small table for each objective that is trained on one."""
    reviews = "".join(
        f"the {who} was {word},{label}\n" for who in WHO for word, label in (("good", "yes"), ("bad", "no"))
    )
    Path("reviews.csv").write_text(f"text,label\n{3 * reviews}", encoding="utf-8")
    pairs = "".join(f"{sentence}\t{sentence[::-1]}\n" for sentence in SENTENCES)
    Path("pairs.tsv").write_text(f"source\ttarget\n{pairs}", encoding="utf-8")
    Path("tags.conll").write_text(
        "".join(f"The O\n{who} B-WHO\nhas O\n{n} O\n\n" for who in WHO for n in range(4)), encoding="utf-8"
    )
    Path("two.csv").write_text(
        "premise,hypothesis,label\n" + "".join(f"a {who} ran,it slept,{n}\n" for who in WHO for n in (0, 1) * 3)
    )
    context = "In May the fox sold a map to the twin ."
    answers = [{"text": "the fox", "answer_start": context.index("the fox")}]
    qas = [{"id": str(i), "question": f"Who sold a map ? {i}", "answers": answers} for i in range(20)]
    Path("questions.json").write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": qas}]}]}))
    return {Classification: "reviews.csv", Seq2Seq: "pairs.tsv", Tagging: "tags.conll"}


def given(name, source, *overrides, step=1, rows=1, typed=()):
    settings = parse_settings([f"data.train={source}", *overrides])
    return collate_batch_of_step(
        plan_training_for_data(None, name, settings), typed, step, rows, lambda stage, done, total: None
    )


def rows_of(described):
    return list(tabulate_batch_rows(described))


def only(described):
    (part,) = tabulate_batch_rows(described)
    return part


def pieces(column):
    return [None if piece is None else literal_eval(piece) for piece in column]


def are_of_the_stories(words):
    """Whether all is text of the stories, from one end of a document to the next."""
    parts = re.split(r"\[EOS\]|\[BOS\]", " ".join(words))
    return all(part.strip() in STORIES for part in parts)


@pytest.mark.parametrize("name", nightly_but(shipped_recipes(), *ONE_OF_EACH_KIND))
def test_every_shipped_recipe_is_described(name, text, tables):
    source = tables.get(type(load(name).recipe.objective), text)
    described = given(name, source, "model.context=24", *(() if source != text else APART))
    lines = list(map(str, format_batch_lines(described, ascii_only=True)))
    assert load(name).recipe.objective.kind in lines[0]
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
def test_columns_are_the_tensors_of_the_batch(text, tables, what):
    described = given(*ROWS[what], rows=8)
    batch, tokenizer = described.batch, described.tokenizer
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
            shown = [None if token == IGNORE else tokenizer.display_token(token) for token in targets]
            assert pieces(columns["target"]) == shown
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
            tags = {at: int(tag.split()[0]) for at, tag in enumerate(columns["tag"]) if tag}
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
            is_encoder = described.recipe.model.shape == "encoder"
            n_prefix = int(batch.prefix_B[row]) if batch.prefix_B is not None else 0
            keeps = batch.keep_BT[row].tolist() if batch.keep_BT is not None else [True] * len(ids)
            for query, shares in enumerate(part.masks[0].shares):
                allowed = [is_encoder or key <= query or key < n_prefix for key in range(len(ids))]
                expected = [float(one and kept) for one, kept in zip(allowed, keeps, strict=True)]
                assert shares == expected or not keeps[query]
        if "target backwards" in columns:
            assert columns["target backwards"][1:] == columns["piece"][:-1]


def test_masks_are_those_of_the_targets(text):
    columns = only(given("roberta-tiny", text, *BERT)).columns
    tokens, targets = pieces(columns["piece"]), pieces(columns["target"])
    original = [piece if target is None else target for piece, target in zip(tokens, targets, strict=True)]
    assert are_of_the_stories(original[1:-1])
    for token, target, change in zip(tokens, targets, columns["input is"], strict=True):
        assert (target is None) == (change is None)
        assert (token == "[MASK]") == (change == "mask")
        assert (token == target) == (change == "kept")


def test_selected_tokens_are_masked_replaced_or_kept(text):
    masked = given(
        "roberta-tiny", text, *BERT, "objective.rate=0.9", "objective.random_share=0.2", "objective.mask_share=0.5"
    )
    assert {"mask", "random", "kept", None} == set(only(masked).columns["input is"])


@pytest.mark.parametrize(
    ("recipe", "centre", "context"), [("skipgram", "input", "targets"), ("cbow", "targets", "input")]
)
def test_pairs_of_a_centre_and_its_context(recipe, centre, context, text):
    overrides = "objective.subsample=0", "objective.fixed=true", "objective.window=2", "objective.negatives=3"
    columns = only(given(recipe, text, "model.context=20", *overrides)).columns
    words = [literal_eval(word) for word in columns[centre]]
    for i, listed in enumerate(columns[context]):
        near = [words[j] for j in range(max(0, i - 2), min(len(words), i + 3)) if j != i]
        assert set(literal_eval(word) for word in listed.split()) <= set(near) | {"[EOS]"}
        assert len(listed.split()) <= 4
    assert all(len(noise.split()) == 3 for noise in columns["noise words"])


def test_counted_pairs_are_those_of_the_text(text):
    columns = only(given("glove", text, "objective.window=1")).columns
    counts = {pair[:2]: pair[2] for pair in zip(*columns.values(), strict=True)}
    pairs = list(zip(STORIES.lower().split(), STORIES.lower().split()[1:], strict=False))
    assert counts["'sold'", "'a'"] == pytest.approx(pairs.count(("sold", "a")), rel=0.2)


def test_sampled_inputs_grow_with_the_steps(text):
    scheduled = "objective.scheduled_sampling.growth=linear", "objective.scheduled_sampling.k=0.01"
    overrides = "model.context=32", "training.steps=100", "model.n_layers=1", "model.d_model=16", "model.n_heads=2"

    def sampled(step):
        columns = only(given("tiny", text, *overrides, *scheduled, step=step)).columns
        assert all(
            drawn is not None for drawn, piece in zip(columns["number drawn"], columns["sampled"], strict=True) if piece
        )
        return sum(drawn is not None for drawn in columns["number drawn"]), columns["sampled"][0]

    assert sampled(1) == (0, None)
    assert 5 < sampled(50)[0] < sampled(100)[0]


def test_replaced_tokens_are_told_from_original_ones(text):
    overrides = "model.n_layers=1", "model.d_model=16", "model.n_heads=2", "objective.rate=0.5"
    columns = only(given("electra-tiny", text, *BERT, *overrides)).columns
    lines = zip(columns["sampled"], columns["target"], columns["is"], columns["piece"], strict=True)
    chosen = [line for line in lines if line[1] is not None]
    assert chosen
    for sampled, target, fate, piece in chosen:
        assert sampled is not None
        assert piece == "'[MASK]'"
        assert fate == ("original" if sampled == target else "replaced")


def test_typed_texts_are_documents_of_their_own(text):
    first, second = "The fox sold a map", "The twin ran home"
    part = only(given("bert-tiny", text, *BERT, *APART, "objective.rate=0.01", typed=[first, second]))
    tokens = [b or a for a, b in zip(pieces(part.columns["piece"]), pieces(part.columns["target"]), strict=True)]
    one, other, _ = " ".join(tokens[1:]).split("[SEP]")
    texts = [one.strip() in typed and other.strip() in typed for typed in (first, second)]
    assert sum(texts) == (dict(note.split(": ") for note in part.notes)["the second text is the next"] == "yes")
    with pytest.raises(DataError, match="two documents"):
        given("bert-tiny", text, *BERT, *APART, typed=[first])


def test_the_batch_is_that_of_training(text):
    described = given("tiny", text, "model.context=16", rows=3)
    assert described.batch.tokens_BT.shape == (3, 16)
    again = given("tiny", text, "model.context=16", rows=3)
    assert torch.equal(described.batch.tokens_BT, again.batch.tokens_BT)
    other = given("tiny", text, "model.context=16", rows=3, step=2)
    assert not torch.equal(described.batch.tokens_BT, other.batch.tokens_BT)
    assert bundled.data_folder().is_dir()
    assert (described.batch.targets_BT != IGNORE).any()


def test_counted_pairs_have_no_noise(text):
    columns = only(given("ppmi", text, "model.window=2", "model.context=20")).columns
    assert "noise words" not in columns
    words = [literal_eval(word) for word in columns["input"]]
    contexts = [[literal_eval(word) for word in listed.split()] for listed in columns["targets"]]
    whole = [contexts[i] == words[i - 2 : i] + words[i + 1 : i + 3] for i in range(2, len(words) - 2)]
    assert whole.count(False) <= 4, "those beside the end of a document"
    assert whole.count(True) > 4
