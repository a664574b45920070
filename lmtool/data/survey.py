"""Divides a text into documents and counts them in one pass, which checks the whole text; the counts are cached."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from lmtool.data.cached import SURVEYS, load_or_create
from lmtool.data.corpus import Corpus, open_corpus
from lmtool.data.files import display_path, hash_files
from lmtool.data.streaming import StreamedText, StreamHeadCorpus, should_stream
from lmtool.errors import DataError
from lmtool.recipe.pretraining import TextStatistics
from lmtool.recipe.spec.text import Data
from lmtool.storage import records
from lmtool.storage.checksum import sha256_of_json
from lmtool.storage.records import JsonModel

Progress = Callable[[str, int, int], None]
"""Called with the stage and the amounts done and in total, here characters; a total of 0 is unknown."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Ignores the progress."""


_VERSION = 1
"""Part of every cache key: incremented when the same text would give other chunks, parts or tokens."""

_VOCABULARY_CHARACTERS = 8_000_000
"""Characters of the text whose vocabulary and alphabet are collected."""

_WORD_CHARACTERS = re.compile(r"\w+")


class CorpusCounts(JsonModel):
    """Counts of one pass over a corpus.

    longest: characters of the longest document.
    alphabet: distinct characters of the first _VOCABULARY_CHARACTERS.
    new_words: fraction of the words in the last tenth of these that are not in the text before it.
    """

    documents: PositiveInt
    characters: PositiveInt
    bytes: NonNegativeInt
    longest: NonNegativeInt
    alphabet: NonNegativeInt
    new_words: Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class ScannedCorpus:
    """A corpus with its content hash and its counts."""

    corpus: Corpus
    content_hash: str
    counts: CorpusCounts

    @property
    def text_statistics(self) -> TextStatistics:
        """Returns the properties that the default recipe depends on."""
        return TextStatistics(
            is_list=self.corpus.documents == "line" and not self.corpus.stream,
            is_stream=self.corpus.stream,
            is_streamed=isinstance(self.corpus, StreamHeadCorpus),
            n_bytes=self.counts.bytes,
            **self.counts.model_dump(exclude={"bytes"}),
        )


@dataclass(frozen=True)
class ScannedTrainingText:
    """A training text that is divided into documents and counted, or the head of a streamed one.

    requested: the spec that names the text. data: the same spec with `documents`, `split` and `stream` resolved.
    """

    requested: Data
    text: ScannedCorpus
    data: Data

    def matches(self, data: Data) -> bool:
        """Returns whether a spec names this text and divides it in the same way."""
        return self.requested.with_unvalidated_values({"isolate_documents": data.isolate_documents}) == data


def scan_training_text(data: Data, *, stream_seed: int, report: Progress) -> ScannedTrainingText:
    """Finds the training text that `data` names, divides it into documents and counts them.

    stream_seed: for the order of a streamed text. Raises DataError for unusable text, and ResourceError for errors of
    the system.
    """
    text, resolved = _scan_and_resolve(data, stream_seed, report)
    return ScannedTrainingText(data, text, resolved)


def _scan_and_resolve(
    data: Data, stream_seed: int, report: Progress, known_content_hash: str | None = None
) -> tuple[ScannedCorpus, Data]:
    """known_content_hash: hash of the files, if known."""
    if not data.sources:
        raise DataError("no text is named", where="data.train", fix="name a file, folder, glob or hf:NAME")
    if should_stream(data):
        whole = StreamedText(data, stream_seed)
        text = _load_or_compute_counts(whole.head, report, whole.record_head_end_and_hash_text())
        resolved = {"documents": whole.head.documents, "split": "document", "stream": True}
        return text, data.with_unvalidated_values(resolved)
    data = data.with_unvalidated_values({"stream": False})
    if data.split == "slice" and data.documents == "auto":
        data = data.with_unvalidated_values({"documents": "whole"})
    text = _load_or_compute_counts(open_corpus(data.sources, data.column, data.documents), report, known_content_hash)
    is_stream = data.split == "slice" or (data.split == "auto" and text.counts.documents == 1)
    if is_stream and data.documents == "auto" and text.corpus.documents != "whole":
        # a single document is one text, however it is laid out
        return _scan_and_resolve(
            data.with_unvalidated_values({"split": "slice"}), stream_seed, report, text.content_hash
        )
    text = _concatenate_documents(text, report) if is_stream else text
    split = "slice" if is_stream else "document"
    return text, data.with_unvalidated_values({"documents": text.corpus.documents, "split": split})


def scan_corpus(sources: Sequence[str], data: Data, report: Progress) -> ScannedCorpus:
    """Opens the text in `sources`, divides it as the resolved `data` say, and counts its documents."""
    text = _load_or_compute_counts(open_corpus(sources, data.column, data.documents), report)
    return _concatenate_documents(text, report) if data.split == "slice" else text


def cache_key(*parts: object) -> str:
    """Returns the SHA-256 of JSON values."""
    return sha256_of_json([_VERSION, *parts])


def utf8_length(text: str) -> int:
    """Returns the size of a text in UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _concatenate_documents(text: ScannedCorpus, report: Progress) -> ScannedCorpus:
    """Returns the corpus as one stream of its documents."""
    corpus = replace(text.corpus, stream=True)
    if not corpus.adds_line_breaks:
        return replace(text, corpus=corpus)
    return _load_or_compute_counts(corpus, report, text.content_hash)


def _load_or_compute_counts(corpus: Corpus, report: Progress, content_hash: str | None = None) -> ScannedCorpus:
    """Reads the corpus once, or its counts from the cache. content_hash: hash of the files, if known."""
    content_hash = content_hash or hash_files(corpus.files)
    key = cache_key("counts", content_hash, corpus.column, corpus.documents, corpus.adds_line_breaks)
    survey = load_or_create(
        SURVEYS,
        key,
        "the survey of a text",
        lambda: records.encode_json(_compute_corpus_counts(corpus, report).model_dump()),
        partial(records.parse_model, CorpusCounts),
    )
    return ScannedCorpus(corpus, content_hash, survey)


def _compute_corpus_counts(corpus: Corpus, report: Progress) -> CorpusCounts:
    documents = characters = n_bytes = longest = begun = 0
    alphabet: set[str] = set()
    seen: set[str] = set()
    words_and_new = [(0, 0)]
    for chunk in corpus.chunks():
        documents += chunk.n_ends
        lengths = [len(text) for text in chunk.texts]
        lengths[0] += 0 if chunk.starts else begun
        longest, begun = max(longest, *lengths), 0 if chunk.ends else lengths[-1]
        characters += chunk.size
        n_bytes += sum(map(utf8_length, chunk.texts))
        if characters <= _VOCABULARY_CHARACTERS:
            alphabet.update(*chunk.texts)
            for words in map(_WORD_CHARACTERS.findall, chunk.texts):
                new = set(words) - seen
                words_and_new.append((len(words), len(new)))
                seen |= new
        report("reading", characters, 0)
    if not documents:
        where = ", ".join(map(display_path, corpus.files))[:200]
        raise DataError("there is no text", where=where, fix="name files with text")
    n_words, n_new = np.array(words_and_new).T
    in_last_tenth = np.cumsum(n_words) > 0.9 * n_words.sum()
    share = float(n_new[in_last_tenth].sum() / n_words[in_last_tenth].sum()) if n_words.sum() else 1.0
    return CorpusCounts(
        documents=documents,
        characters=characters,
        bytes=n_bytes,
        longest=longest,
        alphabet=len(alphabet),
        new_words=share,
    )
