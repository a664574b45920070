"""Training by counting: one pass, prequential losses, and the same counts after any interruption."""

import math
from functools import partial

import numpy as np
import pytest

from lmtool.data.prepare import TokenizedData, tokenize_data
from lmtool.model import NGramModel
from lmtool.objective import TextCutSettings
from lmtool.recipe.load import load
from lmtool.runs.load import build_model, load_run
from lmtool.training.events import RunAlreadyFinished
from lmtool.training.windows import Windows
from tests.reference.ngram import KneserNey
from tests.support.errors import refuses
from tests.support.training import MemoryStore, Work, after, assert_resumes_bit_for_bit, documents, metrics, no_report

NGRAM = (
    "model={kind: ngram, order: 3, context: 256}",
    "training.steps=5",
    "training.batch_size=1",
    "evaluation.every=5",
    "evaluation.tokens=null",
    "checkpoint.every=1",
)


def counted(work: Work) -> TokenizedData:
    """The training text of a run, whose tokens are then cached."""
    work.pretrain(*NGRAM)
    recipe = load(work.run() / "recipe.yaml").recipe
    return tokenize_data(recipe.data, recipe.tokenizer, seed=recipe.seed, report=no_report)


def documents_of(prepared: TokenizedData, part: str) -> list[list[int]]:
    store = prepared.train if part == "train" else prepared.valid
    return [store.read(*store.document_range(i)).tolist() for i in range(store.n_documents)]


def mean_nats(plain: KneserNey, documents: list[list[int]]) -> float:
    return sum(nats(plain, one) for one in documents) / sum(len(one) - 1 for one in documents)


def nats(plain: KneserNey, document: list[int], first: int = 1) -> float:
    return -sum(math.log(plain.probability(document[:t], document[t])) for t in range(max(1, first), len(document)))


def test_all_of_the_text_is_counted_once(work: Work) -> None:
    prepared = counted(work)
    loaded = load_run(str(work.run()))
    assert isinstance(loaded.model, NGramModel)
    train, valid = documents_of(prepared, "train"), documents_of(prepared, "valid")
    assert int(loaded.model.n_read) == sum(map(len, train)) == len(prepared.train)
    assert int(loaded.model.counts_G.sum()) == sum(len(document) - 1 for document in train)
    plain = KneserNey(3, train, prepared.tokenizer.vocab_size)
    records = metrics(work.run())
    assert records[-1]["valid_loss"] == pytest.approx(mean_nats(plain, valid), rel=1e-6)
    assert records[-1]["tokens"] == sum(len(document) - 1 for document in train)
    assert list(build_model(loaded.recipe, loaded.tokenizer, loaded.compute).parameters()) == []


def test_the_loss_of_a_step_is_that_of_its_part_before_it_is_counted(work: Work) -> None:
    prepared = counted(work)
    train = documents_of(prepared, "train")
    n_tokens, V = sum(map(len, train)), prepared.tokenizer.vocab_size
    losses = [record["loss"] for record in metrics(work.run())]
    assert losses[0] == pytest.approx(math.log(V))
    begin, end = n_tokens // 5, n_tokens // 5 + (n_tokens - n_tokens // 5) // 4
    seen, total, count, start = [], 0.0, 0, 0
    for document in train:
        seen.append(document[: max(0, begin - start)])
        start += len(document)
    plain = KneserNey(3, [document for document in seen if document], V)
    start = 0
    for document in train:
        part = document[: max(0, end - start)]
        first = max(1, begin - start)
        if first < len(part):
            total, count = total + nats(plain, part, first), count + len(part) - first
        start += len(document)
    assert losses[1] == pytest.approx(total / count)


def test_stopped_and_resumed_it_has_the_same_counts_and_nothing_is_counted_twice(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(work.pretrain, *NGRAM), 2, steps=5)
    with refuses("usage"):
        work.resume("training.steps=+5")
    assert work.resume() == [RunAlreadyFinished(work.run(), 5, early=False, can_go_on=False)]


def test_from_a_run_the_other_text_is_added_whole(work: Work) -> None:
    """A shorter text, of which all is read."""
    first = counted(work)
    work.text.write_text(documents(12, seed=9), encoding="utf-8")
    work.pretrain(*NGRAM, name="both", source=work.run())
    recipe = load(work.run("both") / "recipe.yaml").recipe
    other = tokenize_data(recipe.data, recipe.tokenizer, seed=recipe.seed, report=no_report)
    model = load_run(str(work.run("both"))).model
    assert isinstance(model, NGramModel)
    added = documents_of(other, "train")
    plain = KneserNey(3, [*documents_of(first, "train"), *added], first.tokenizer.vocab_size)
    assert int(model.n_read) == sum(map(len, added)) < len(first.train)
    found = metrics(work.run("both"))[-1]["valid_loss"]
    assert found == pytest.approx(mean_nats(plain, documents_of(other, "valid")), rel=1e-6)


@pytest.mark.parametrize(("start", "stop", "n_before"), [(0, 9, 2), (3, 7, 2), (4, 9, 1), (1, 2, 4)])
def test_text_in_order_has_each_target_once(start: int, stop: int, n_before: int) -> None:
    rows = [[1, 5, 6, 7], [1, 8], [1, 9, 10]]
    examples = Windows(MemoryStore(rows), TextCutSettings("stream", 2, 2), 1)  # type: ignore[arg-type]
    batch = examples.read_span(start, stop, n_before)
    tokens, first = np.concatenate(rows), max(0, start - n_before)
    assert examples.n_tokens == 9
    assert batch.tokens_BT.tolist() == [tokens[first : stop - 1].tolist()]
    assert batch.targets_BT is not None
    wanted = [t for t in range(start, stop) if t not in (0, 4, 6)]
    assert [t for t in range(first + 1, stop) if batch.targets_BT[0, t - first - 1] >= 0] == wanted
    assert [batch.targets_BT[0, t - first - 1] for t in wanted] == [tokens[t] for t in wanted]


def test_plain_counts_give_a_text_with_an_unseen_n_gram_no_probability(work: Work) -> None:
    """Saved, and resumed with an infinite loss of the last step."""
    plain = tuple(key.replace("order: 3", "order: 3, smoothing: none") for key in NGRAM)
    work.pretrain(*plain, stop=after(2))
    work.resume()
    losses = [record["loss"] for record in metrics(work.run())]
    assert losses[0] == pytest.approx(math.log(load_run(str(work.run())).tokenizer.vocab_size), rel=1e-6)
    assert losses[1:] == [None] * 4
