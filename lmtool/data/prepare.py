"""Converts the data of a recipe to token stores: divides, splits and tokenizes the text; each step is cached.

The cache is content-addressed: its keys are hashes of the text, the tokenizer and the options, so a changed file never
gets stale tokens, and two runs share what is equal.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.machine import count_cores
from lmtool.data.cached import TOKENIZERS, TOKENS, load_or_create, remove_cache_folder, store_lock_path, warn_recreated
from lmtool.data.corpus import MultiDocumentChunk, find_last_pretoken_boundary
from lmtool.data.files import display_path
from lmtool.data.split import CorpusPart, WholeCorpusPart, split_by_characters, split_by_documents
from lmtool.data.store import STORE_MANIFEST, EncodedChunk, StoreWriter, TokenStore, remove_progress_file
from lmtool.data.streaming import StreamedText, StreamHeadCorpus, should_stream
from lmtool.data.survey import (
    Progress,
    ScannedCorpus,
    ScannedTrainingText,
    cache_key,
    no_progress,
    scan_corpus,
    scan_training_text,
    utf8_length,
)
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import CharTokenizer, Data, TokenizerFile, TrainedTokenizerSpecBase
from lmtool.storage.durable import cache_folder, convert_write_errors, find_cache_or_temporary_path, hold_lock
from lmtool.tokenization.tokenizer import TOKENIZER_FILE, Tokenizer

_IS_SPACE = bytes(chr(byte).isspace() for byte in range(256))


@dataclass(frozen=True)
class CorpusSubset:
    """A part of a corpus."""

    text: ScannedCorpus
    part: CorpusPart

    def chunks(self, stage: str = "", report: Progress = no_progress) -> Iterator[MultiDocumentChunk]:
        """Yields the documents in order. Each chunk of the corpus is reported when the next one is requested."""
        return self.part.select(self._read_whole_corpus_with_progress(stage, report))

    def _read_whole_corpus_with_progress(self, stage: str, report: Progress) -> Iterator[MultiDocumentChunk]:
        done = 0
        for chunk in self.text.corpus.chunks():
            yield chunk
            done += chunk.size
            report(stage, done, self.text.counts.characters)

    @property
    def cache_key(self) -> list[Any]:
        """Returns the JSON values that identify this part in keys of the cache."""
        corpus, part = self.text.corpus, self.part
        return [self.text.content_hash, corpus.column, corpus.documents, corpus.stream, part.cache_name, asdict(part)]

    def store_key(self, tokenizer: Tokenizer) -> str:
        """Returns the cache key of the token store of this part."""
        return cache_key("tokens", self.cache_key, tokenizer.fingerprint)


class TrainValidSplit(NamedTuple):
    """The training and the validation part of a text."""

    train: CorpusSubset
    valid: CorpusSubset


@dataclass(frozen=True)
class TokenizedData:
    """Token stores for training and validation.

    texts: the split of the text, or of each text of a mixture.
    parts: the training store of each text.
    data: the data spec with `documents`, `split` and `stream` resolved.
    seconds: time spent tokenizing, 0 if all tokens were in the cache.
    """

    train: TokenStore
    valid: TokenStore
    texts: tuple[TrainValidSplit, ...]
    tokenizer: Tokenizer
    data: Data
    seconds: float
    parts: tuple[TokenStore, ...]

    @property
    def fingerprint(self) -> str:
        """Returns the content address of both stores."""
        return cache_key("prepared", self.train.fingerprint, self.valid.fingerprint)

    @property
    def streamed(self) -> tuple[tuple[StreamedText, CorpusPart], ...]:
        """Returns each streamed text, of which the stores hold the head only, and the part of it for training."""
        parts = [(train.text.corpus, train.part) for train, _ in self.texts]
        return tuple((corpus.streamed_text, part) for corpus, part in parts if isinstance(corpus, StreamHeadCorpus))


class PredictedBytesAndTokens(NamedTuple):
    """Bytes and tokens of a text that a causal model predicts."""

    n_bytes: int
    n_tokens: int


def count_predicted_bytes_and_tokens(store: TokenStore, tokenizer: Tokenizer) -> PredictedBytesAndTokens:
    """Counts all bytes and tokens of a store except the first token of each document.

    The first token may be a part of a character. A special token has no bytes. A normalized token may have more bytes
    than the text that it stands for.
    """
    n_bytes = int(np.sum(store.n_bytes))
    for number in range(store.n_documents):
        begin, _ = store.document_range(number)
        first = int(store.read(begin, begin + 1)[0])
        n_bytes -= min(tokenizer.count_bytes_at_text_start(first), int(store.n_bytes[number]))
    return PredictedBytesAndTokens(n_bytes, len(store) - store.n_documents)


def tokenize_data(
    data: Data,
    tokenizer: TrainedTokenizerSpecBase | TokenizerFile | Tokenizer,
    *,
    seed: int,
    report: Progress = no_progress,
    out: Path | None = None,
    scanned: ScannedTrainingText | None = None,
) -> TokenizedData:
    """Tokenizes the text that `data` names into token stores for training and validation.

    A tokenizer to train is trained on the training part. In document mode each document is stored as
    [BOS] text [EOS]; in slice mode the text has no special tokens. Interrupted work is resumed. With `out`,
    tokenizer.json and the stores train/ and valid/ are written to that folder instead of the cache. scanned: a text
    that is divided already, and is not read again if `data` names it.

    Raises DataError for unusable text, ResourceError for errors of the system, UsageError when `out` already holds
    something else.
    """
    texts, data = open_and_split_texts(data, seed=seed, report=report, scanned=scanned)
    trains, valids = _group_by_split(texts, data)
    if isinstance(tokenizer, TrainedTokenizerSpecBase):
        tokenizer = _load_or_train_tokenizer(tokenizer, trains, report)
    elif isinstance(tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(tokenizer.path)
    if out is not None:
        with convert_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
        path = out / TOKENIZER_FILE
        if not path.exists():
            tokenizer.save(path)
        elif Tokenizer.load(path).fingerprint != tokenizer.fingerprint:
            raise UsageError("the folder holds another tokenizer", where=str(path), fix="choose another folder with -o")
    started = perf_counter()
    train_stores = [_open_or_write_store(part, tokenizer, out and out / "train", report) for part in trains]
    valid_stores = [_open_or_write_store(part, tokenizer, out and out / "valid", report) for part in valids]
    stores = tuple(store for store, _ in train_stores)
    seconds = perf_counter() - started if any(is_new for _, is_new in train_stores + valid_stores) else 0.0
    train, valid = _concatenate_stores(stores), _concatenate_stores([store for store, _ in valid_stores])
    return TokenizedData(train, valid, tuple(texts), tokenizer, data, seconds, stores)


def open_and_split_texts(
    data: Data, *, seed: int, report: Progress, scanned: ScannedTrainingText | None = None
) -> tuple[list[TrainValidSplit], Data]:
    """Opens and splits the text that `data` names, or each text of a mixture; also returns `data` resolved.

    scanned: see `tokenize_data`, which raises the same errors.
    """
    texts, resolved = [], []
    alone_or_mixed = [data]
    if data.mixture:
        # all texts are split and streamed alike
        split = "slice" if data.split == "slice" else "document"
        alike = data.with_unvalidated_values({"mixture": {}, "split": split, "stream": should_stream(data)})
        alone_or_mixed = [alike.with_unvalidated_values({"train": (source,)}) for source in data.mixture]
    for alone in alone_or_mixed:
        opened = (
            scanned
            if scanned and scanned.matches(alone)
            else scan_training_text(alone, stream_seed=seed, report=report)
        )
        resolved.append(alone.with_unvalidated_values(opened.data.model_dump(include={"documents", "split", "stream"})))
        texts.append(_split_train_and_valid(opened.text, resolved[-1], seed, report))
    divisions = {one.documents for one in resolved}
    documents = divisions.pop() if len(divisions) == 1 else data.documents
    values = {"documents": documents, "split": resolved[0].split, "stream": resolved[0].stream}
    return texts, data.with_unvalidated_values(values)


def compute_tokenized_fingerprint(data: Data, tokenizer: Tokenizer, *, seed: int, report: Progress) -> str:
    """Returns the fingerprint of what `tokenize_data` would write, without tokenizing. Raises the same errors."""
    texts, data = open_and_split_texts(data, seed=seed, report=report)
    keys = ([part.store_key(tokenizer) for part in parts] for parts in _group_by_split(texts, data))
    return cache_key("prepared", *map(_joined_fingerprint, keys))


def _joined_fingerprint(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else cache_key("joined", list(keys))


def _group_by_split(texts: Sequence[TrainValidSplit], data: Data) -> tuple[list[CorpusSubset], list[CorpusSubset]]:
    """Returns the training parts and the validation parts; all texts share a validation text that `data` names."""
    return [text.train for text in texts], [text.valid for text in (texts[:1] if data.valid else texts)]


def _concatenate_stores(stores: Sequence[TokenStore]) -> TokenStore:
    keys = [store.fingerprint for store in stores]
    return stores[0] if len(stores) == 1 else TokenStore.concatenate(stores, _joined_fingerprint(keys))


def tokenize_files(
    sources: Sequence[str], data: Data, tokenizer: Tokenizer, report: Progress = no_progress
) -> TokenStore:
    """Tokenizes all text in `sources`, read as the resolved `data` say, into one store of the cache."""
    opened = scan_corpus(sources, data, report)
    return _open_or_write_store(CorpusSubset(opened, WholeCorpusPart()), tokenizer, None, report)[0]


def _split_train_and_valid(text: ScannedCorpus, data: Data, seed: int, report: Progress) -> TrainValidSplit:
    if data.valid:
        valid = scan_corpus(data.valid, data, report)
        return TrainValidSplit(CorpusSubset(text, WholeCorpusPart()), CorpusSubset(valid, WholeCorpusPart()))
    where = ", ".join(map(display_path, text.corpus.files))[:200]
    parts: tuple[CorpusPart, CorpusPart]
    if data.split == "slice":
        parts = first, _ = split_by_characters(text.counts.characters, data.valid_fraction)
        if not 0 < first.n_train < text.counts.characters:
            what = f"too short to hold out {data.valid_fraction:g} of {text.counts.characters} characters"
            raise DataError(what, where=where, fix="name more text, or validation text with data.valid")
    elif text.counts.documents < 2:
        fix = "set data.split=slice, or name validation text with data.valid"
        if data.stream:
            fix = "set data.documents=blank-line or line, or data.stream=false"
        raise DataError("there is one document, so none can be held out", where=where, fix=fix)
    else:
        parts = split_by_documents(text.counts.documents, data.valid_fraction, seed)
    return TrainValidSplit(*(CorpusSubset(text, part) for part in parts))


def _load_or_train_tokenizer(
    spec: TrainedTokenizerSpecBase, parts: Sequence[CorpusSubset], report: Progress
) -> Tokenizer:
    def train() -> bytes:
        chunks = (chunk for part in parts for chunk in part.chunks("training the tokenizer", report))
        sample: Iterable[str] = (piece for chunk in chunks for piece in chunk.texts)
        if not isinstance(spec, CharTokenizer):
            n_bytes = sum(part.text.counts.bytes for part in parts)
            sample = sample_texts_evenly(sample, n_bytes, spec.sample_mb * 1_000_000)
        return Tokenizer.train(spec, sample).to_json().encode()

    keys = [part.cache_key for part in parts]
    key = cache_key("tokenizer", keys[0] if len(keys) == 1 else keys, spec.model_dump())
    return load_or_create(TOKENIZERS, key, "the tokenizer of a text", train, Tokenizer.from_json)


def sample_texts_evenly(texts: Iterable[str], total_bytes: int, max_bytes: int) -> Iterator[str]:
    """Yields at most `max_bytes` of about `total_bytes` bytes of text, spread evenly over the texts.

    Takes the beginning of each long text, and every nth of the short texts.
    """
    share = max_bytes / total_bytes
    if share >= 1:
        yield from texts
        return
    seen = taken = 0
    for text in texts:
        n = utf8_length(text)
        seen += n
        room = int(share * seen) - taken
        if room < n:
            text = text[: find_last_pretoken_boundary(text[: room * len(text) // n])] if room > 0 and n else ""
            n = utf8_length(text)
        if text:
            taken += n
            yield text


def _open_or_write_store(
    part: CorpusSubset, tokenizer: Tokenizer, out: Path | None, report: Progress
) -> tuple[TokenStore, bool]:
    """Returns the token store of a part of a corpus, and whether it had to be written."""
    key = part.store_key(tokenizer)
    cached = cache_folder() / TOKENS / key
    path = out or find_cache_or_temporary_path(cached)
    if out is None and path != cached:
        with suppress(DataError):
            if (store := _open_store_if_same(cached, key, tokenizer, invalidate_if_damaged=False)) is not None:
                return store, False
    with hold_lock(store_lock_path(path)):
        if path.exists():
            if out is not None and not (out / STORE_MANIFEST).exists():
                raise UsageError("the folder holds something else", where=str(out), fix="choose another folder with -o")
            why = f"{STORE_MANIFEST} is that of other tokens"
            try:
                if (store := _open_store_if_same(path, key, tokenizer, invalidate_if_damaged=out is None)) is not None:
                    remove_progress_file(path)
                    return store, False
            except DataError as error:
                if out is not None:
                    raise
                why = error.what
            if out is not None:
                raise UsageError("the folder holds other tokens", where=str(path), fix="choose another folder with -o")
            warn_recreated("the tokens of a text", why)
            remove_cache_folder(path)
        with StoreWriter(path, fingerprint=key, vocab_size=tokenizer.vocab_size) as writer:
            chunks = islice(part.chunks("tokenizing", report), writer.chunks_done, None)
            for chunk in encode_chunks_in_parallel(chunks, tokenizer, add_special_tokens=not part.text.corpus.stream):
                writer.append(chunk)
            return writer.finish(), True


def _open_store_if_same(
    path: Path, key: str, tokenizer: Tokenizer, *, invalidate_if_damaged: bool
) -> TokenStore | None:
    """Opens a store and verifies it if it has the tokens of this key; else None. Raises DataError for damage."""
    store = TokenStore(path, invalidate_if_damaged=invalidate_if_damaged)
    if (store.fingerprint, store.vocab_size) != (key, tokenizer.vocab_size):
        return None
    store.verify_or_start_verifying()
    return store


def encode_chunks_in_parallel(
    chunks: Iterator[MultiDocumentChunk], tokenizer: Tokenizer, *, add_special_tokens: bool = True
) -> Iterator[EncodedChunk]:
    """Encodes chunks on all CPU cores, in order, with few in memory.

    add_special_tokens: BOS before and EOS behind each document.

    Threads, not processes: the encoders release the GIL, and threads start at once, share memory and cannot hang in a
    fork.
    """
    n_threads = min(count_cores(), 8)
    waiting: deque[Future[EncodedChunk]] = deque()
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="tokenize")
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_encode_chunk, chunk, tokenizer, add_special_tokens))
            if len(waiting) > n_threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _encode_chunk(chunk: MultiDocumentChunk, tokenizer: Tokenizer, add_special_tokens: bool) -> EncodedChunk:
    """Encodes the texts of a chunk.

    add_special_tokens: BOS before each text that starts a document, and EOS behind each that ends one, unless EOS and
    BOS are equal.
    """
    tokens, lengths = tokenizer.encode_many(chunk.texts)
    if add_special_tokens:
        ids = tokens
        starts, ends = np.ones(len(lengths), dtype=bool), np.ones(len(lengths), dtype=bool)
        starts[0], ends[-1] = chunk.starts, chunk.ends
        ends &= tokenizer.bos_id != tokenizer.eos_id
        lengths = lengths + starts + ends
        stops = np.cumsum(lengths)
        tokens = np.empty(stops[-1], dtype=np.uint32)
        is_text = np.ones(len(tokens), dtype=bool)
        for position, token in ((stops - lengths)[starts], tokenizer.bos_id), ((stops - 1)[ends], tokenizer.eos_id):
            tokens[position] = token
            is_text[position] = False
        tokens[is_text] = ids
    n_bytes = np.array([utf8_length(text) for text in chunk.texts], dtype=np.int64)
    return EncodedChunk(tokens, lengths, n_bytes, _count_words(chunk.texts), chunk.ends)


def _count_words(texts: Sequence[str]) -> NDArray[np.int64]:
    """Counts the whitespace-separated words of each text."""
    joined = "\n".join(["", *texts, ""])
    if not joined.isascii():
        return np.array([len(text.split()) for text in texts], dtype=np.int64)
    is_space = np.frombuffer(joined.encode().translate(_IS_SPACE), dtype=bool)
    begins = np.flatnonzero(is_space[:-1] & ~is_space[1:])
    firsts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return np.diff(np.searchsorted(begins, firsts))
