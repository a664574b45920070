"""Training on a mixture of texts."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from lmtool.compute.device import configure_compute
from lmtool.compute.processes import World
from lmtool.data import streaming
from lmtool.data.blocks import PREFETCHED_BLOCKS, BackgroundBlockTokenizer
from lmtool.errors import Code
from lmtool.interop.resolve import resolve_reference
from lmtool.recipe.load import ResolvedRecipe, Setting, load, parse_settings
from lmtool.recipe.resolve import resolve
from lmtool.runs.files import StreamPosition
from lmtool.training.data import TextData, tokenize_training_text
from lmtool.training.plan import plan_pretraining
from lmtool.training.streamed import StreamedMixture, StreamedWindows
from lmtool.training.train import train
from tests.support.errors import refuses
from tests.support.training import Work, assert_resumes_bit_for_bit, documents, no_report

CPU = configure_compute("cpu", "float32")


def mixture(work: Work, *overrides: str, web: float = 3, code: float = 1) -> list[Setting]:
    """Settings for small letters and capitals, in files of their own."""
    (work.folder / "web.txt").write_text(documents(60), encoding="utf-8")
    (work.folder / "code").mkdir(exist_ok=True)
    for number in range(2):
        text = documents(30, number).upper()
        (work.folder / "code" / f"{number}.txt").write_text(text, encoding="utf-8")
    return parse_settings([f"data.mixture={{{work.folder}/web.txt: {web}, {work.folder}/code: {code}}}", *overrides])


def mixed(work: Work, *overrides: str, **shares: float) -> ResolvedRecipe:
    return load(work.recipe, mixture(work, *overrides, **shares))


def prepared(work: Work, *overrides: str, **shares: float) -> TextData:
    return tokenize_training_text(mixed(work, *overrides, **shares).recipe, None, World(), no_report)[1]


def pretrained(work: Work, settings: list[Setting], name: str, source: str | None = None, **options: Any) -> list[Any]:
    return list(train(plan_pretraining(source, str(work.recipe), settings, no_report), work.session(name, **options)))


def test_texts_have_their_shares(work: Work) -> None:
    data = prepared(work)
    tokenizer = data.prompt_format.tokenizer
    examples = data.make_training_examples(data.objective)
    read = [tokenizer.decode(one.tokens.tolist()) for one in examples.read(np.arange(1000))]
    assert [sum(case(text) == text for text in read) for case in (str.upper, str.lower)] == [250, 750]
    again = examples.read(np.array([999, 3]))
    assert [tokenizer.decode(one.tokens.tolist()) for one in again] == [read[999], read[3]]
    assert "75 % " in data.description_lines[0]
    found = examples.list_distinct_document_numbers(np.arange(1000))
    assert (found[0], found[-1]) == (0, 60 + 2 * 30 - 12 - 1)


def test_stopping_and_resuming_changes_no_bit(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(pretrained, work, mixture(work)), 5)


def test_tokens_do_not_depend_on_the_weights(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(work)
    monkeypatch.setattr("lmtool.data.prepare.StoreWriter", None)
    prepared(work, web=1, code=2)


@pytest.mark.parametrize(("settings", "code"), [(("model.context=4000",), "data"), (None, "usage")])
def test_short_and_missing_texts_are_refused(work: Work, settings: tuple[str, ...] | None, code: Code) -> None:
    """Fewer tokens than a context, and no text at all."""
    with refuses(code):
        pretrained(work, [] if settings is None else mixture(work, *settings), "run")


def test_a_run_goes_on_with_a_mixture_and_then_with_one_text(work: Work) -> None:
    work.pretrain("training.steps=2", name="first")
    pretrained(work, mixture(work, "training.steps=2"), "mixed", str(work.run("first")))
    assert list(load(work.run("mixed") / "recipe.yaml").recipe.data.mixture.values()) == [3, 1]
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    alone = resolve(None, flags, parent=resolve_reference(str(work.run("mixed"))).parent)
    assert alone.recipe.data.mixture == {}


# Streamed


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units and blocks so small that a test passes several of each text."""
    monkeypatch.setattr(streaming, "UNIT_BYTES", 300)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 1200)


@contextmanager
def streamed(data: TextData, *marks: StreamPosition) -> Iterator[StreamedMixture]:
    with data.open_streams_for_training(CPU, marks):
        examples = data.make_training_examples(data.objective)
        assert isinstance(examples, StreamedMixture)
        yield examples


def tokens(examples: StreamedMixture, start: int, stop: int) -> list[list[int]]:
    """Of consecutive samples, read eight at a time."""
    read = (examples.read(np.arange(first, min(stop, first + 8))) for first in range(start, stop, 8))
    return [one.tokens.tolist() for batch in read for one in batch]


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("sample", [1, 333])
def test_a_sample_follows_from_the_seed_and_its_number(work: Work, sample: int) -> None:
    """So reading from the marks of any sample goes on as if nothing had happened; a text may not have been read yet."""
    data = prepared(work, "data.stream=true", web=1, code=9)
    with streamed(data) as examples:
        tokens(examples, 0, sample)
        marks = examples.stream_positions_before(sample)
        expected = tokens(examples, sample, sample + 80)
        numbers = examples.list_distinct_document_numbers(np.arange(sample + 72, sample + 80))
    assert numbers == sorted(set(numbers))
    assert "10 % " in data.description_lines[0]
    with streamed(data, *marks) as examples:
        assert tokens(examples, sample, sample + 80) == expected


@pytest.mark.usefixtures("small_blocks")
def test_stopping_and_resuming_a_streamed_mixture_changes_no_bit(work: Work) -> None:
    settings = mixture(work, "data.stream=true", "training.steps=40")
    assert_resumes_bit_for_bit(work, partial(pretrained, work, settings), 27, steps=40)


def joining(data: TextData, first: StreamedMixture, batch_size: int) -> StreamedMixture:
    """The examples as a process reads them that does not make the blocks."""
    streams = []
    for n, (own, (text, part)) in enumerate(zip(first._streams, data._prepared.streamed, strict=True)):
        stores = data._prepared.parts[n], data.prompt_format.tokenizer, own._blocks._path
        blocks = BackgroundBlockTokenizer(text, part, *stores, is_writer=False)
        streams.append(StreamedWindows(blocks, own._cut, own._seed, batch_size, None))
    return StreamedMixture(streams, list(data._spec.mixture.values()), data._seed)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
def test_processes_read_the_same_and_keep_few_blocks(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of eight, each has a sample of the smaller text in a few steps only, between which blocks of it come and go."""
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 150)
    left = iter(range(2000))

    def sleep(seconds: float) -> None:
        assert next(left, None) is not None, "waits for a block that is not made again"
        threading.Event().wait(seconds)

    monkeypatch.setattr("lmtool.data.blocks.time.sleep", sleep)
    n_ranks, n_steps = 8, 60
    data = prepared(work, "data.stream=true")
    with streamed(data) as examples:
        alone = tokens(examples, 0, n_ranks * n_steps)
    with streamed(data) as first:
        for stream in first._streams:
            monkeypatch.setattr(stream, "_kept", n_ranks)  # they are in step here, so one batch behind is enough
        ranks = [first, *(joining(data, first, n_ranks) for _ in range(n_ranks - 1))]
        both, most = [], 0
        for step in range(n_steps):
            for rank, own in enumerate(ranks):
                both += tokens(own, n_ranks * step + rank, n_ranks * step + rank + 1)
            most = max(most, len(list(first._streams[0]._blocks._path.parent.glob("[01]-*"))))
        blocks = [mark.block for mark in first.stream_positions_before(n_ranks * n_steps)]
    assert both == alone
    assert min(blocks) > 5
    # of each text those ahead, in use, behind, and being written
    assert most <= 2 * (PREFETCHED_BLOCKS + 3)


def test_texts_are_streamed_where_they_are_large_together(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = mixed(work).recipe
    sizes = [(work.folder / "web.txt").stat().st_size, (work.folder / "code" / "0.txt").stat().st_size * 2]
    monkeypatch.setattr(streaming, "STREAM_FROM_BYTES", sum(sizes) - 200)
    assert max(sizes) < streaming.STREAM_FROM_BYTES
    assert tokenize_training_text(recipe, None, World(), no_report)[0].data.stream is True
    monkeypatch.setattr(streaming, "STREAM_FROM_BYTES", 2 * sum(sizes))
    assert tokenize_training_text(recipe, None, World(), no_report)[0].data.stream is False


@pytest.mark.usefixtures("small_blocks")
def test_an_epoch_of_streams_is_estimated_from_their_heads(work: Work) -> None:
    whole = prepared(work).examples_per_epoch
    data = prepared(work, "data.stream=true")
    before = data.examples_per_epoch
    with streamed(data):
        while_flowing = data.examples_per_epoch
    assert before == pytest.approx(whole, rel=0.4)
    assert while_flowing == pytest.approx(before, rel=0.02)


@pytest.mark.usefixtures("small_blocks")
def test_a_text_without_its_mark_is_refused(work: Work) -> None:
    data = prepared(work, "data.stream=true")
    with streamed(data) as examples:
        marks = examples.stream_positions_before(8)
    with refuses("checkpoint"), streamed(data, marks[0]):
        pass
