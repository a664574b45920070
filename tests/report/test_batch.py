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
from lmtool.report.batch import format_lines, make_batch_of_step, render_page, tabulate_batch
from lmtool.training.finetuning import plan_training
from tests.support.cases import nightly_but

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
    return {Classification: "reviews.csv", Seq2Seq: "pairs.tsv", Tagging: "tags.conll"}


def given(name, source, *overrides, step=1, rows=1, typed=()):
    settings = parse_settings([f"data.train={source}", *overrides])
    return make_batch_of_step(plan_training(None, name, settings), typed, step, rows, lambda stage, done, total: None)


def rows_of(described):
    return list(tabulate_batch(described))


def only(described):
    (part,) = tabulate_batch(described)
    return part


def pieces(column):
    return [None if piece is None else literal_eval(piece) for piece in column]


def are_of_the_stories(words):
    """Whether all is text of the stories, from one end of a document to the next."""
    parts = re.split(r"\[EOS\]|\[BOS\]", " ".join(words))
    return all(part.strip() in STORIES for part in parts)


@pytest.mark.parametrize(
    "name",
    nightly_but(
        shipped_recipes(),
        "albert-tiny",
        "bilstm",
        "distil-tiny",
        "elmo-tiny",
        "gpt2-124m",
        "linear",
        "lstm",
        "prefix-lm",
        "seq2seq-bahdanau",
        "skipgram",
        "tagger",
    ),
)
def test_every_shipped_recipe_is_described(name, text, tables):
    source = tables.get(type(load(name).recipe.objective), text)
    described = given(name, source, "model.context=24", *(() if source != text else APART))
    lines = list(map(str, format_lines(described, 80, ascii_only=True)))
    assert load(name).recipe.objective.kind in lines[0]
    html = render_page(described)
    for part in tabulate_batch(described):
        assert len({len(column) for column in part.columns.values()}) == 1
        assert part.title.capitalize() in html
        assert " ".join(lines).count(part.title)


def test_masks_are_those_of_the_targets(text):
    columns = only(given("roberta-tiny", text, *BERT)).columns
    tokens, targets = pieces(columns["piece"]), pieces(columns["target"])
    original = [piece if target is None else target for piece, target in zip(tokens, targets, strict=True)]
    assert are_of_the_stories(original[1:-1])
    for token, target, change in zip(tokens, targets, columns["input is"], strict=True):
        assert (target is None) == (change is None)
        assert (token == "[MASK]") == (change == "mask")
        assert (token == target) == (change == "kept")


def test_all_three_fates_of_selected_tokens_occur(text):
    masked = given(
        "roberta-tiny", text, *BERT, "objective.rate=0.9", "objective.random_share=0.2", "objective.mask_share=0.5"
    )
    assert {"mask", "random", "kept", None} == set(only(masked).columns["input is"])


def test_a_second_text_follows_or_does_not(text):
    parts = rows_of(given("bert-tiny", text, *BERT, *APART, "objective.rate=0.01", rows=16))
    told = {
        name: value
        for part in parts
        for note in part.notes
        if note.startswith("the second")
        for name, value in [note.split(": ")]
    }
    assert set(told) == {"the second text is the next"}
    answers = set()
    for part in parts:
        tokens = pieces(part.columns["piece"])
        tokens = [b if b is not None else a for a, b in zip(tokens, pieces(part.columns["target"]), strict=True)]
        joined = " ".join(t for t in tokens if t not in ("[CLS]", "[PAD]"))
        first, second, _ = joined.split("[SEP]")
        n_first = len(first.split()) + 2
        assert [segment for segment in part.columns["segment"][:n_first]] == [0] * n_first
        assert part.columns["segment"][n_first] == 1
        is_next = dict(note.split(": ") for note in part.notes)["the second text is the next"]
        answers.add(is_next)
        if is_next == "yes":
            assert f"{first.strip()} {second.strip()}" in " ".join(STORIES.split())
    assert answers == {"yes", "no"}


def test_the_causal_target_is_the_next_piece(text):
    part = only(given("tiny", text, "model.context=16"))
    assert part.columns["target"][:-1] == part.columns["piece"][1:]
    assert dict(note.split(": ") for note in part.notes)["targets in the loss"] == "16 of 16 positions"
    assert part.masks[0].shares == [[float(key <= query) for key in range(16)] for query in range(16)]


def test_forwards_and_backwards(text):
    columns = only(given("elmo-tiny", text, "model.context=16", "data.documents=whole", "data.split=slice")).columns
    assert columns["target backwards"][1:] == columns["piece"][:-1]
    assert columns["target backwards"][0] is None


def test_packed_documents_are_apart(text):
    part = only(given("tiny", text, *BERT, "model.context=300", "data.isolate_documents=true", "data.split=document"))
    documents, positions = part.columns["document"], part.columns["position"]
    assert len(set(documents)) > 1
    at = next(t for t in range(300) if documents[t] != documents[0])
    assert positions[: at + 2] == [*range(at), 0, 1]
    described = given("tiny", text, *BERT, "model.context=300", "data.isolate_documents=true", "data.split=document")
    assert f"{len(set(documents))} documents in the row, apart" in only(described).masks[0].title


def test_spans_and_their_sentinels(text):
    source, target = tabulate_batch(given("t5-tiny", text, *BERT, "objective.rate=0.3"))
    spans, wanted = {}, pieces(target.columns["target"])
    assert target.columns["piece"][1:] == target.columns["target"][:-1]
    for piece in wanted[:-1]:
        if piece.startswith("<extra_id_"):
            spans[piece] = []
        else:
            spans[list(spans)[-1]].append(piece)
    restored = [word for piece in pieces(source.columns["piece"]) for word in spans.get(piece, [piece])]
    assert len(spans) > 1
    assert are_of_the_stories(restored)
    assert [mask.title for mask in target.masks][-1] == "decoder to encoder: all of the source"
    assert len(target.masks[-1].shares[0]) == len(source.columns["id"])


def test_nothing_of_the_prefix_is_a_target(text):
    part = only(given("prefix-tiny", text, "model.context=16"))
    n = part.columns["prefix"].count("prefix")
    assert part.columns["target"][:n] == [None] * n
    assert None not in part.columns["target"][n:]
    assert part.masks[0].title == f"causal after a prefix of {n}"
    assert part.masks[0].shares == [[float(key <= query or key < n) for key in range(16)] for query in range(16)]


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


def test_counts_of_pairs(text):
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


def test_a_row_of_two_texts(folder):
    rows = [f"a {who} ran,it slept {n},{'yes' if n % 2 else 'no'}" for who in WHO for n in range(6)]
    Path("nli.csv").write_text("\n".join(["premise,hypothesis,label", *rows]), encoding="utf-8")
    part = rows_of(given("bert-tiny", "nli.csv", *BERT, "objective.kind=classification"))[0]
    n = int(literal_eval(part.columns["piece"][-2]))
    tokens = pieces(part.columns["piece"])
    assert " ".join(tokens) == f"[CLS] a {tokens[2]} ran [SEP] it slept {n} [SEP]"
    assert part.columns["segment"] == [0] * 5 + [1] * 4
    assert dict(note.split(": ") for note in part.notes)["label"] == ("1 (yes)" if n % 2 else "0 (no)")


def test_padding_is_attended_by_none(folder):
    rows = "".join(f"{'word ' * n},{n % 2}\n" for n in range(1, 25))
    Path("rows.csv").write_text(f"text,label\n{rows}")
    parts = rows_of(given("bert-tiny", "rows.csv", *BERT, "objective.kind=classification", rows=2))
    part = next(part for part in parts if "padding" in part.columns)
    n = part.columns["padding"].index("padding")
    assert [row[n:] for row in part.masks[0].shares[:n]] == [[0.0] * (len(part.columns["id"]) - n)] * n


def test_tags_stand_at_the_first_pieces_of_words(tables):
    columns = only(given("tagger", "tags.conll")).columns
    tags = dict(zip(pieces(columns["piece"]), columns["tag"], strict=True))
    assert next(tags[who] for who in WHO if who in tags) == "0 (B-WHO)"
    assert tags["has"] == "2 (O)"  # I-WHO is 1


def test_the_answer_is_within_the_context(folder):
    context = "In May the fox sold a map to the twin ."
    question = {
        "id": "1",
        "question": "Who sold a map ?",
        "answers": [{"text": "the fox", "answer_start": context.index("the fox")}],
    }
    qas = [{**question, "id": str(i), "question": f"{question['question']} {i}"} for i in range(20)]
    paragraphs = [{"context": context, "qas": qas}]
    Path("q.json").write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}))
    columns = only(given("bert-tiny", "q.json", *BERT, "objective.kind=question-answering")).columns
    answer = [piece for piece, told in zip(pieces(columns["piece"]), columns["answer"], strict=True) if told]
    assert answer == ["the", "fox"]


def test_a_target_text_begins_with_the_start_and_ends_with_the_end(tables):
    source, target = tabulate_batch(given("transformer-tiny", "pairs.tsv", *BERT))
    text = " ".join(pieces(source.columns["piece"]))
    assert " ".join(pieces(target.columns["target"])[:-1]).replace(" ", "") == text[::-1].replace(" ", "")
    assert target.columns["piece"][1:] == target.columns["target"][:-1]


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


def test_swapped_texts_are_told(text):
    overrides = "objective.next_sentence=false", "objective.sentence_order=true", "objective.rate=0.01"
    told = set()
    for part in rows_of(given("bert-tiny", text, *BERT, *APART, *overrides, rows=16)):
        tokens = [b or a for a, b in zip(pieces(part.columns["piece"]), pieces(part.columns["target"]), strict=True)]
        first, second, _ = " ".join(t for t in tokens if t not in ("[CLS]", "[PAD]")).split("[SEP]")
        read_in_order = dict(note.split(": ") for note in part.notes)["the texts are in order"]
        texts = [first, second] if read_in_order == "yes" else [second, first]
        assert " ".join(one.strip() for one in texts) in STORIES
        told.add(read_in_order)
    assert told == {"yes", "no"}


def test_a_window_and_its_global_tokens(text):
    part = only(given("longformer-tiny", text, "model.context=20", "model.pattern.size=3"))
    n = len(part.columns["id"])
    near = [[float(abs(q - k) < 3 or 0 in (q, k)) for k in range(n)] for q in range(n)]
    assert part.masks[-1].shares == near


def test_counted_pairs_have_no_noise(text):
    columns = only(given("ppmi", text, "model.window=2", "model.context=20")).columns
    assert "noise words" not in columns
    words = [literal_eval(word) for word in columns["input"]]
    contexts = [[literal_eval(word) for word in listed.split()] for listed in columns["targets"]]
    whole = [contexts[i] == words[i - 2 : i] + words[i + 1 : i + 3] for i in range(2, len(words) - 2)]
    assert whole.count(False) <= 4, "those beside the end of a document"
    assert whole.count(True) > 4
