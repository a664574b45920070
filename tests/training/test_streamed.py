"""Training on texts that are streamed, and on mixtures of texts: their order, resuming, and what is held out."""

import errno
import gc
import json
import os
import shutil
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lmtool.compute.device import configure_compute
from lmtool.compute.processes import World
from lmtool.data import blocks, streaming
from lmtool.data.blocks import PREFETCHED_BLOCKS, STREAMS_FOLDER, BackgroundBlockTokenizer
from lmtool.data.corpus import MultiDocumentChunk
from lmtool.data.prepare import encode_chunks_in_parallel
from lmtool.errors import Code, DataError
from lmtool.interop.resolve import resolve_reference
from lmtool.model import LanguageModel
from lmtool.recipe.finetuning import resolve_continued_training
from lmtool.recipe.load import ResolvedRecipe, Setting, load, parse_settings
from lmtool.recipe.resolve import resolve
from lmtool.runs.files import StreamPosition
from lmtool.storage.durable import cache_folder, make_parent_and_scratch_folder
from lmtool.training import train
from lmtool.training.data import TextData, tokenize_training_text
from lmtool.training.plan import plan_pretraining
from lmtool.training.streamed import StreamedMixture, StreamedWindows
from tests.support.errors import refuses
from tests.support.training import Work, after, assert_resumes_bit_for_bit, documents, lasting, no_report, words

CPU = configure_compute("cpu", "float32")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units and blocks so small that a test passes several."""
    monkeypatch.setattr(streaming, "UNIT_BYTES", 300)
    monkeypatch.setattr(streaming, "BLOCK_CHARACTERS", 1500)


@pytest.fixture
def folder(work: Work) -> Path:
    """Numbered documents in files of three formats."""
    folder = work.folder / "corpus"
    folder.mkdir()
    for number in range(4):
        lines = [f"{number}-{line} {words(9, 40 * number + line)}" for line in range(30)]
        if number % 2:
            text = "".join(json.dumps({"text": line}) + "\n" for line in lines)
            (folder / f"{number}.jsonl").write_text(text, encoding="utf-8")
        else:
            (folder / f"{number}.txt").write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return folder


def settings(work: Work, *overrides: str) -> list[Setting]:
    return parse_settings([f"data.train={work.folder}/corpus", "data.stream=true", *overrides])


@pytest.fixture
def data(work: Work, folder: Path) -> TextData:
    """The data of a run that streams them."""
    return tokenize_training_text(load(work.recipe, settings(work)).recipe, None, World(), no_report)[1]


def pretrained(work: Work, *overrides: str, name: str = "run", **options: Any) -> list[Any]:
    plan = plan_pretraining(None, str(work.recipe), settings(work, *overrides), no_report)
    return list(train.train(plan, work.session(name, **options)))


def examples_of(data: TextData) -> StreamedWindows:
    examples = data.make_training_examples(data.objective)
    assert isinstance(examples, StreamedWindows)
    return examples


def test_stopping_and_resuming_changes_no_bit(work: Work, folder: Path) -> None:
    assert_resumes_bit_for_bit(work, partial(pretrained, work, "training.steps=40"), 27, steps=40)
    state = json.loads((work.run() / "checkpoints/step-000040/state.json").read_text())
    assert state["stream"][0]["block"] > 1


def test_a_compiled_model_is_compared_where_the_stream_is(
    work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which does not go back to its first block."""
    monkeypatch.setattr(LanguageModel, "compile", lambda self: None)
    pretrained(work, "training.steps=40", "training.compile=true", stop=after(27))
    work.resume()
    assert lasting(work.run(), 40)


def test_every_document_is_read_once_a_turn_and_none_that_is_held_out(data: TextData) -> None:
    tokenizer = data.prompt_format.tokenizer
    with data.open_streams_for_training(CPU):
        examples = examples_of(data)
        blocks = examples._blocks
        turns = [Counter[str]() for _ in range(3)]
        number = 0
        while True:
            store = blocks.wait_for_store(number)
            if (turn := blocks.block_position(number).turn) == 3:
                break
            texts = [tokenizer.decode(store.read(*store.document_range(i)).tolist()) for i in range(store.n_documents)]
            turns[turn].update(text.split()[0] for text in texts)
            number += 1
    held = data._prepared.valid
    documents = [held.read(*held.document_range(i)).tolist() for i in range(held.n_documents)]
    held_out = {tokenizer.decode(document).split()[0] for document in documents}
    every = {f"{number}-{line}" for number in range(4) for line in range(30)}
    assert held_out
    assert turns == 3 * [Counter(every - held_out)]


def slow_down(monkeypatch: pytest.MonkeyPatch, name: str, seconds: float) -> None:
    """Lets a method of block tokenizers take longer."""
    genuine = getattr(BackgroundBlockTokenizer, name)

    def slowly(self: BackgroundBlockTokenizer, *arguments: Any) -> Any:
        found = genuine(self, *arguments)
        time.sleep(seconds)
        return found

    monkeypatch.setattr(BackgroundBlockTokenizer, name, slowly)


def test_every_process_reads_the_same_whatever_the_pace(
    data: TextData, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One makes the blocks, slowly; another finds them in the folder, and takes the other half of each batch."""
    with data.open_streams_for_training(CPU):
        alone = texts_of(examples_of(data), np.arange(320))
    slow_down(monkeypatch, "_write_store_unless_empty", 0.01)
    with data.open_streams_for_training(CPU):
        first = examples_of(data)
        other = joining(data)
        both = []
        for step in range(40):
            both += texts_of(first, np.arange(8 * step, 8 * step + 4))
            both += texts_of(other, np.arange(8 * step + 4, 8 * step + 8))
    assert both == alone
    assert len(set(alone)) > 300


def test_threads_open_each_block_once(data: TextData, monkeypatch: pytest.MonkeyPatch) -> None:
    """One reads the next batch while others mark where the last one was, and name its documents."""
    starts, last = range(0, 320, 8), np.arange(280, 320)
    with data.open_streams_for_training(CPU):
        alone = examples_of(data)
        expected = [(texts_of(alone, np.arange(at, at + 8)), alone.stream_position_before(at + 8)) for at in starts]
        documents = alone.list_distinct_document_numbers(last)
    slow_down(monkeypatch, "wait_for_store", 0.002)
    with data.open_streams_for_training(CPU), ThreadPoolExecutor(3) as threads:
        examples = examples_of(data)
        for at, (texts, mark) in zip(starts, expected, strict=True):
            reading = threads.submit(texts_of, examples, np.arange(at, at + 8))
            marking = [threads.submit(examples.stream_position_before, at + 8) for _ in range(2)]
            assert [one.result() for one in marking] == [mark] * 2
            assert reading.result() == texts
        assert examples.list_distinct_document_numbers(last) == documents


def test_a_process_that_waits_is_told_when_the_one_that_tokenizes_ends(data: TextData) -> None:
    with data.open_streams_for_training(CPU):
        examples_of(data)
        other = joining(data)
    with refuses("resource"):
        other.read(np.arange(3000))


def test_blocks_ahead_and_behind_are_few(data: TextData) -> None:
    most = 0
    with data.open_streams_for_training(CPU):
        examples = examples_of(data)
        streams = cache_folder() / STREAMS_FOLDER
        (place,) = [path for path in streams.iterdir() if path.is_dir()]
        for step in range(200):
            examples.read(np.arange(8 * step, 8 * step + 8))
            most = max(most, len(list(place.glob("[0-9.]*[0-9l]"))))
        assert examples.stream_position_before(1600).block > 10
        # the block in use, one behind, and one that is being written
        assert most <= PREFETCHED_BLOCKS + 3
    assert not place.exists()


@pytest.mark.slow
def test_memory_does_not_grow(data: TextData) -> None:
    held = []
    with data.open_streams_for_training(CPU):
        examples = examples_of(data)
        tracemalloc.start()
        gc.freeze()  # the rest of the tests, which stay
        for step in range(150):
            examples.read(np.arange(8 * step, 8 * step + 8))
            if step % 30 == 29:
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    assert examples.stream_position_before(1200).block > 9
    # blocks differ in length, and one more of them may be open
    assert max(held[2:]) < 1.05 * max(held[:2]) + 20_000


def test_what_a_killed_run_has_left_is_removed(folder: Path) -> None:
    streams = cache_folder() / STREAMS_FOLDER
    with make_parent_and_scratch_folder(streams) as left:
        (left / "000001").mkdir()
        shutil.copytree(left, streams / ".tmp-killed")
    with make_parent_and_scratch_folder(streams) as held:
        assert [path.name for path in streams.iterdir()] == [held.name]
        with make_parent_and_scratch_folder(streams):
            pass
        assert held.exists()


def test_a_changed_text_is_refused(work: Work, folder: Path) -> None:
    pretrained(work, "training.steps=40", stop=after(27))
    file = folder / "1.jsonl"
    before = file.read_bytes()
    for path in folder.iterdir():
        # of the same size, so that only the blocks tell
        path.write_bytes(path.read_bytes().replace(b"naive", b"naiwe").replace(b" cat ", b" cot "))
    with refuses("data_changed"):
        work.resume()
    file.write_bytes(before + before.splitlines(keepends=True)[0])
    with refuses("data_changed"):
        work.resume()


def test_a_later_block_that_has_changed_is_refused(work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head is as it was, and so is the size of every file."""
    pretrained(work, "training.steps=40", stop=after(27))

    def encode(chunks: Any, tokenizer: Any) -> Any:
        return encode_chunks_in_parallel(iter([*chunks][1:] or [MultiDocumentChunk(["a cat"])]), tokenizer)

    monkeypatch.setattr(blocks, "encode_chunks_in_parallel", encode)
    with refuses("data_changed") as caught:
        work.resume()
    assert "block 2 of its text" in str(caught.value)


@pytest.mark.parametrize("change", ["missing", "longer", "damaged", "emptied"])
def test_a_file_that_changes_while_it_streams_ends_the_run(data: TextData, folder: Path, change: str) -> None:
    file = folder / "1.jsonl"
    with data.open_streams_for_training(CPU):
        examples = examples_of(data)
        match change:
            case "missing":
                file.unlink()
            case "longer":
                file.write_bytes(file.read_bytes() + b'{"text": "more"}\n')
            case "damaged":
                damage(file)
            case "emptied":
                file.write_bytes(b"")
        with pytest.raises(DataError) as caught:
            examples.read(np.arange(3000))
    assert caught.value.where.startswith(f"{file}:12" if change == "damaged" else str(file))


def damage(file: Path) -> None:
    """Bytes that are no text in line 12, without a change of size or time, also for who reads it right now."""
    found = file.stat()
    lines = file.read_bytes().split(b"\n")
    lines[11] = lines[11].replace(b"text", b"t\xff\xfft")
    damaged = file.with_suffix(".damaged")
    damaged.write_bytes(b"\n".join(lines))
    os.utime(damaged, ns=(found.st_atime_ns, found.st_mtime_ns))
    damaged.replace(file)


def test_a_full_disk_ends_the_run(data: TextData, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("lmtool.storage.durable.write_and_sync_new_file", full)
    with data.open_streams_for_training(CPU), refuses("no_space"):
        examples_of(data).read(np.arange(3000))


def test_text_is_streamed_by_default_if_it_is_large(work: Work, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless epochs of it are counted."""

    def is_streamed(*overrides: str) -> object:
        recipe = load(work.recipe, [f"data.train={folder}", *overrides]).recipe
        return tokenize_training_text(recipe, None, World(), no_report)[0].data.stream

    assert is_streamed() is False
    monkeypatch.setattr(streaming, "STREAM_FROM_BYTES", 1000)
    assert is_streamed() is True
    assert is_streamed("training.epochs=2") is False


def test_another_text_is_streamed_if_it_is_large(work: Work, folder: Path) -> None:
    pretrained(work, "training.steps=1")
    assert load(work.run() / "recipe.yaml").recipe.data.stream is True
    small = [Setting("data.train", [str(work.text)], "TEXT")]
    parent = resolve_reference(str(work.run())).parent
    assert resolve(None, small, parent=parent).recipe.data.stream == "auto"
    streamed = load(work.recipe, settings(work)).recipe
    assert resolve_continued_training(parent, streamed, small).recipe.data.stream is True


def test_one_file_that_is_one_document_is_refused(work: Work, folder: Path) -> None:
    recipe = load(work.recipe, [f"data.train={folder}/0.txt", "data.stream=true", "data.documents=whole"]).recipe
    with refuses("data") as caught:
        tokenize_training_text(recipe, None, World(), no_report)
    assert "data.documents" in caught.value.fix


def texts_of(examples: StreamedWindows, sample_S: NDArray[np.int64]) -> list[tuple[int, ...]]:
    return [tuple(example.tokens.tolist()) for example in examples.read(sample_S)]


def joining(data: TextData) -> StreamedWindows:
    """The examples as a process reads them that does not make the blocks."""
    first = examples_of(data)._blocks
    ((text, part),) = data._prepared.streamed
    stores = data._prepared.train, data.prompt_format.tokenizer
    found = BackgroundBlockTokenizer(text, part, *stores, first._path, is_writer=False)
    cut = data.objective.choose_text_cut(data._context)
    return StreamedWindows(found, cut, data._seed, batch_size=8, resume_position=None)


# Mixtures


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


def pretrain_mixture(work: Work, settings: list[Setting], name: str, source: str | None = None, **more: Any) -> Any:
    planned = plan_pretraining(source, str(work.recipe), settings, no_report)
    return list(train.train(planned, work.session(name, **more)))


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


def test_stopping_and_resuming_a_mixture_changes_no_bit(work: Work) -> None:
    assert_resumes_bit_for_bit(work, partial(pretrain_mixture, work, mixture(work)), 5)


def test_tokens_do_not_depend_on_the_weights(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(work)
    monkeypatch.setattr("lmtool.data.prepare.StoreWriter", None)
    prepared(work, web=1, code=2)


@pytest.mark.parametrize(("settings", "code"), [(("model.context=4000",), "data"), (None, "usage")])
def test_short_and_missing_texts_are_refused(work: Work, settings: tuple[str, ...] | None, code: Code) -> None:
    """Fewer tokens than a context, and no text at all."""
    with refuses(code):
        pretrain_mixture(work, [] if settings is None else mixture(work, *settings), "run")


def test_a_run_goes_on_with_a_mixture_and_then_with_one_text(work: Work) -> None:
    work.pretrain("training.steps=2", name="first")
    pretrain_mixture(work, mixture(work, "training.steps=2"), "mixed", str(work.run("first")))
    assert list(load(work.run("mixed") / "recipe.yaml").recipe.data.mixture.values()) == [3, 1]
    flags = [Setting("data.train", [str(work.text)], "TEXT")]
    alone = resolve(None, flags, parent=resolve_reference(str(work.run("mixed"))).parent)
    assert alone.recipe.data.mixture == {}


# Mixtures that are streamed


@contextmanager
def streamed(data: TextData, *marks: StreamPosition) -> Iterator[StreamedMixture]:
    with data.open_streams_for_training(CPU, marks):
        examples = data.make_training_examples(data.objective)
        assert isinstance(examples, StreamedMixture)
        yield examples


def tokens_of(examples: StreamedMixture, start: int, stop: int) -> list[list[int]]:
    """Of consecutive samples, read eight at a time."""
    read = (examples.read(np.arange(first, min(stop, first + 8))) for first in range(start, stop, 8))
    return [one.tokens.tolist() for batch in read for one in batch]


@pytest.mark.parametrize("sample", [1, 333])
def test_a_sample_follows_from_the_seed_and_its_number(work: Work, sample: int) -> None:
    """So reading from the marks of any sample goes on as if nothing had happened; a text may not have been read yet."""
    data = prepared(work, "data.stream=true", web=1, code=9)
    with streamed(data) as examples:
        tokens_of(examples, 0, sample)
        marks = examples.stream_positions_before(sample)
        expected = tokens_of(examples, sample, sample + 80)
        numbers = examples.list_distinct_document_numbers(np.arange(sample + 72, sample + 80))
    assert numbers == sorted(set(numbers))
    assert "10 % " in data.description_lines[0]
    with streamed(data, *marks) as examples:
        assert tokens_of(examples, sample, sample + 80) == expected


def test_stopping_and_resuming_a_streamed_mixture_changes_no_bit(work: Work) -> None:
    settings = mixture(work, "data.stream=true", "training.steps=40")
    assert_resumes_bit_for_bit(work, partial(pretrain_mixture, work, settings), 27, steps=40)


def joining_mixture(data: TextData, first: StreamedMixture, batch_size: int) -> StreamedMixture:
    """The examples as a process reads them that does not make the blocks."""
    streams = []
    for n, (own, (text, part)) in enumerate(zip(first._streams, data._prepared.streamed, strict=True)):
        stores = data._prepared.parts[n], data.prompt_format.tokenizer, own._blocks._path
        blocks = BackgroundBlockTokenizer(text, part, *stores, is_writer=False)
        streams.append(StreamedWindows(blocks, own._cut, own._seed, batch_size, None))
    return StreamedMixture(streams, list(data._spec.mixture.values()), data._seed)


@pytest.mark.slow
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
        alone = tokens_of(examples, 0, n_ranks * n_steps)
    with streamed(data) as first:
        for stream in first._streams:
            stream._kept_samples = n_ranks  # they are in step here, so that one batch behind is enough
        ranks = [first, *(joining_mixture(data, first, n_ranks) for _ in range(n_ranks - 1))]
        both, most = [], 0
        for step in range(n_steps):
            for rank, own in enumerate(ranks):
                both += tokens_of(own, n_ranks * step + rank, n_ranks * step + rank + 1)
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


def test_an_epoch_of_streams_is_estimated_from_their_heads(work: Work) -> None:
    whole = prepared(work).examples_per_epoch
    data = prepared(work, "data.stream=true")
    before = data.examples_per_epoch
    with streamed(data):
        while_flowing = data.examples_per_epoch
    assert before == pytest.approx(whole, rel=0.4)
    assert while_flowing == pytest.approx(before, rel=0.02)


def test_a_text_without_its_mark_is_refused(work: Work) -> None:
    data = prepared(work, "data.stream=true")
    with streamed(data) as examples:
        marks = examples.stream_positions_before(8)
    with refuses("checkpoint"), streamed(data, marks[0]):
        pass
