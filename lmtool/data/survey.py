"""One pass over a corpus, which checks all of it and counts; the counts are cached."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from lmtool import records
from lmtool.checksum import sha256_of_json
from lmtool.data.cached import SURVEYS, cached
from lmtool.data.corpus import Corpus, open_corpus
from lmtool.data.files import content_hash, display
from lmtool.data.streaming import StreamedText, TextHead, streams
from lmtool.errors import DataError
from lmtool.recipe.pretraining import TextShape
from lmtool.recipe.spec.text import Data
from lmtool.records import FileModel

Report = Callable[[str, int, int], None]
"""Called with the stage, and the amounts done and in total, here in characters; a total of 0 is unknown."""


def silent(stage: str, done: int, total: int) -> None:
    """No report."""


_VERSION = 1
"""Part of every cache key: incremented when the same text would give other chunks, parts or tokens."""

_SAMPLE = 8_000_000
"""Characters whose words and characters are collected."""

_WORD = re.compile(r"\w+")


class Survey(FileModel):
    """Counts of one pass over a corpus.

    longest: characters of the longest document.
    alphabet: distinct characters.
    new_words: the share of the words in the last tenth that are not in the text before it. Both of the first _SAMPLE
        characters.
    """

    documents: PositiveInt
    characters: PositiveInt
    bytes: NonNegativeInt
    longest: NonNegativeInt
    alphabet: NonNegativeInt
    new_words: Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class SurveyedText:
    """A corpus with its content hash and its survey."""

    corpus: Corpus
    content: str
    survey: Survey

    @property
    def shape(self) -> TextShape:
        """What the default recipe depends on."""
        return TextShape(
            is_list=self.corpus.documents == "line" and not self.corpus.stream,
            is_stream=self.corpus.stream,
            is_streamed=isinstance(self.corpus, TextHead),
            n_bytes=self.survey.bytes,
            **self.survey.model_dump(exclude={"bytes"}),
        )


@dataclass(frozen=True)
class DividedText:
    """A training text, divided into documents; of one that is streamed, the head.

    named: the spec that names it. data: the same with `documents`, `split` and `stream` resolved.
    """

    named: Data
    text: SurveyedText
    data: Data

    def is_of(self, data: Data) -> bool:
        """Whether it is the text that a spec names, divided as it says."""
        return self.named.with_values({"isolate_documents": data.isolate_documents}) == data

    @property
    def division(self) -> dict[str, object]:
        """What is resolved of the spec."""
        return self.data.model_dump(include={"documents", "split", "stream"})


def divide(data: Data, *, seed: int, report: Report) -> DividedText:
    """Divide the training text that is named into documents. seed: of the order of a text that is streamed.

    Raises DataError for unusable text, ResourceError for errors of the system.
    """
    text, resolved = _divide(data, seed, report)
    return DividedText(data, text, resolved)


def _divide(data: Data, seed: int, report: Report, content: str | None = None) -> tuple[SurveyedText, Data]:
    """content: the hash of the files, where it is known."""
    if not data.sources:
        raise DataError("no text is named", where="data.train", fix="name a file, folder, glob or hf:NAME")
    if streams(data):
        whole = StreamedText(data, seed)
        text = _survey(whole.head, report, whole.read_head())
        resolved = {"documents": whole.head.documents, "split": "document", "stream": True}
        return text, data.with_values(resolved)
    data = data.with_values({"stream": False})
    if data.split == "slice" and data.documents == "auto":
        data = data.with_values({"documents": "whole"})
    text = _survey(open_corpus(data.sources, data.column, data.documents), report, content)
    is_stream = data.split == "slice" or (data.split == "auto" and text.survey.documents == 1)
    if is_stream and data.documents == "auto" and text.corpus.documents != "whole":
        # one text, however it is laid out
        return _divide(data.with_values({"split": "slice"}), seed, report, text.content)
    text = _as_stream(text, report) if is_stream else text
    split = "slice" if is_stream else "document"
    return text, data.with_values({"documents": text.corpus.documents, "split": split})


def read_corpus(sources: Sequence[str], data: Data, report: Report) -> SurveyedText:
    """The text in `sources`, divided by resolved data."""
    text = _survey(open_corpus(sources, data.column, data.documents), report)
    return _as_stream(text, report) if data.split == "slice" else text


def cache_key(*parts: object) -> str:
    """SHA-256 of JSON values."""
    return sha256_of_json([_VERSION, *parts])


def size(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def _as_stream(text: SurveyedText, report: Report) -> SurveyedText:
    """The same corpus, with its documents concatenated."""
    corpus = replace(text.corpus, stream=True)
    return _survey(corpus, report, text.content) if corpus.adds_line_ends else replace(text, corpus=corpus)


def _survey(corpus: Corpus, report: Report, content: str | None = None) -> SurveyedText:
    """Read the corpus once. content: its hash, where that is known."""
    content = content or content_hash(corpus.files)
    key = cache_key("counts", content, corpus.column, corpus.documents, corpus.adds_line_ends)
    entry = SURVEYS, key, "the survey of a text"
    survey = cached(*entry, lambda: records.encode(_count(corpus, report).model_dump()), partial(records.read, Survey))
    return SurveyedText(corpus, content, survey)


def _count(corpus: Corpus, report: Report) -> Survey:
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
        n_bytes += sum(map(size, chunk.texts))
        if characters <= _SAMPLE:
            alphabet.update(*chunk.texts)
            for words in map(_WORD.findall, chunk.texts):
                new = set(words) - seen
                words_and_new.append((len(words), len(new)))
                seen |= new
        report("reading", characters, 0)
    if not documents:
        where = ", ".join(map(display, corpus.files))[:200]
        raise DataError("there is no text", where=where, fix="name files with text")
    share = _new_share(words_and_new)
    return Survey(
        documents=documents,
        characters=characters,
        bytes=n_bytes,
        longest=longest,
        alphabet=len(alphabet),
        new_words=share,
    )


def _new_share(words_and_new: Sequence[tuple[int, int]]) -> float:
    """The share of new words in the last tenth of the texts, or in the last one; 1 without words."""
    n_words, n_new = np.array(words_and_new).T
    after = np.cumsum(n_words) > 0.9 * n_words.sum()
    return float(n_new[after].sum() / n_words[after].sum()) if n_words.sum() else 1.0
