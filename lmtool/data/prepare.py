"""From the recipe's data to token stores: survey the corpus, train the tokenizer, split, encode; all cached.

The cache is content-addressed: its keys are hashes of the text, the tokenizer and the options, so a changed file never
gets stale tokens, and what two runs share is computed once.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.machine import n_cores
from lmtool.data.cached import TOKENIZERS, TOKENS, cached, discard, lock_of_store, tell
from lmtool.data.corpus import Chunk, safe_cut
from lmtool.data.files import display
from lmtool.data.split import Everything, Part, choose_documents, cut_characters
from lmtool.data.store import MANIFEST, EncodedChunk, StoreWriter, TokenStore, discard_progress
from lmtool.data.streaming import StreamedText, TextHead, streams
from lmtool.data.survey import DividedText, Report, SurveyedText, cache_key, divide, read_corpus, silent, size
from lmtool.durable import cache_folder, locked, writing
from lmtool.errors import DataError, UsageError
from lmtool.recipe.spec.text import CharTokenizer, Data, TokenizerFile, TokenizerSpec
from lmtool.tokenization.tokenizer import TOKENIZER, Tokenizer

_IS_SPACE = bytes(chr(byte).isspace() for byte in range(256))


@dataclass(frozen=True)
class TextPart:
    """A part of a corpus."""

    text: SurveyedText
    part: Part

    def chunks(self, stage: str = "", report: Report = silent) -> Iterator[Chunk]:
        """Its documents in order; each chunk of the corpus is reported when the next one is requested."""
        return self.part.of(self._reporting(stage, report))

    def _reporting(self, stage: str, report: Report) -> Iterator[Chunk]:
        done = 0
        for chunk in self.text.corpus.chunks():
            yield chunk
            done += chunk.size
            report(stage, done, self.text.survey.characters)

    @property
    def key(self) -> list[Any]:
        """What it is in keys of the cache."""
        corpus, part = self.text.corpus, self.part
        return [self.text.content, corpus.column, corpus.documents, corpus.stream, type(part).__name__, asdict(part)]

    def tokens_key(self, tokenizer: Tokenizer) -> str:
        """The key of its tokens."""
        return cache_key("tokens", self.key, tokenizer.fingerprint)


@dataclass(frozen=True)
class Prepared:
    """Text prepared for training.

    train, valid: the token stores.
    texts: the parts for training and validation of the text, or of each text of a mixture, that they hold.
    parts: the training store of each of these.
    data: the data spec with `documents`, `split` and `stream` resolved.
    seconds: time spent tokenizing, 0 when all was in the cache.
    streamed: where the stores hold the heads only, the text of each, and the part that is trained on.
    """

    train: TokenStore
    valid: TokenStore
    texts: tuple[tuple[TextPart, TextPart], ...]
    tokenizer: Tokenizer
    data: Data
    seconds: float
    parts: tuple[TokenStore, ...]

    @property
    def fingerprint(self) -> str:
        """Content address of both stores."""
        return cache_key("prepared", self.train.fingerprint, self.valid.fingerprint)

    @property
    def streamed(self) -> tuple[tuple[StreamedText, Part], ...]:
        parts = [(train.text.corpus, train.part) for train, _ in self.texts]
        return tuple((corpus.whole, part) for corpus, part in parts if isinstance(corpus, TextHead))


def scored(store: TokenStore, tokenizer: Tokenizer) -> tuple[int, int]:
    """Bytes and tokens of a store that a causal model predicts: all but the first token of each document.

    The first token may be a part of a character. A special one has no bytes. A normalized one may have more bytes than
    the text that it stands for.
    """
    n_bytes = int(np.sum(store.n_bytes))
    for number in range(store.n_documents):
        begin, _ = store.document(number)
        first = int(store.read(begin, begin + 1)[0])
        n_bytes -= min(tokenizer.n_bytes_at_start(first), int(store.n_bytes[number]))
    return n_bytes, len(store) - store.n_documents


def prepare(
    data: Data,
    tokenizer: TokenizerSpec | TokenizerFile | Tokenizer,
    *,
    seed: int,
    report: Report = silent,
    out: Path | None = None,
    divided: DividedText | None = None,
) -> Prepared:
    """Tokenize the text that `data` names into token stores for training and validation.

    A tokenizer to train is trained on the training part. In document mode each document is stored as
    [BOS] text [EOS]; in slice mode the text has no special tokens. Interrupted work is resumed. With `out`,
    tokenizer.json and the stores train/ and valid/ are written to that folder instead of the cache. divided: a text
    that is divided already, and is not read again where `data` names it.

    Raises DataError for unusable text, ResourceError for errors of the system, UsageError when `out` already holds
    something else.
    """
    texts, data = open_parts(data, seed=seed, report=report, divided=divided)
    trains, valids = _by_use(texts, data)
    if isinstance(tokenizer, TokenizerSpec):
        tokenizer = _trained(tokenizer, trains, report)
    elif isinstance(tokenizer, TokenizerFile):
        tokenizer = Tokenizer.load(tokenizer.path)
    if out is not None:
        _keep_tokenizer(tokenizer, out)
    started = perf_counter()
    train_stores = [_store(part, tokenizer, out and out / "train", report) for part in trains]
    valid_stores = [_store(part, tokenizer, out and out / "valid", report) for part in valids]
    stores = tuple(store for store, _ in train_stores)
    seconds = perf_counter() - started if any(is_new for _, is_new in train_stores + valid_stores) else 0.0
    train, valid = _joined(stores), _joined([store for store, _ in valid_stores])
    return Prepared(train, valid, tuple(texts), tokenizer, data, seconds, stores)


def open_parts(
    data: Data, *, seed: int, report: Report, divided: DividedText | None = None
) -> tuple[list[tuple[TextPart, TextPart]], Data]:
    """The training and the validation part of the text that `data` names, or of each text of a mixture.

    Also `data` resolved. divided: as in `prepare`, which has the errors too.
    """
    texts, resolved = [], []
    for alone in _alone(data):
        opened = divided if divided is not None and divided.is_of(alone) else divide(alone, seed=seed, report=report)
        train, one = opened.text, alone.with_values(opened.division)
        valid, train_part, valid_part = _split(train, one, seed, report)
        texts.append((TextPart(train, train_part), TextPart(valid, valid_part)))
        resolved.append(one)
    return texts, _resolved(data, resolved)


def fingerprint_of(data: Data, tokenizer: Tokenizer, *, seed: int, report: Report) -> str:
    """The fingerprint that `prepare` would find, without tokenizing anything. Raises as it does."""
    texts, data = open_parts(data, seed=seed, report=report)
    keys = ([part.tokens_key(tokenizer) for part in parts] for parts in _by_use(texts, data))
    return cache_key("prepared", *map(_joined_key, keys))


def _joined_key(keys: Sequence[str]) -> str:
    return keys[0] if len(keys) == 1 else cache_key("joined", list(keys))


def _by_use(texts: Sequence[tuple[TextPart, TextPart]], data: Data) -> tuple[list[TextPart], list[TextPart]]:
    """The training parts, and the validation parts; validation text that is named is that of all."""
    return [train for train, _ in texts], [valid for _, valid in (texts[:1] if data.valid else texts)]


def _alone(data: Data) -> list[Data]:
    """The data spec of each text of a mixture, which are divided and streamed alike; of other data only itself."""
    if not data.mixture:
        return [data]
    split = "slice" if data.split == "slice" else "document"
    alike = data.with_values({"mixture": {}, "split": split, "stream": streams(data)})
    return [alike.with_values({"train": (source,)}) for source in data.mixture]


def _resolved(data: Data, of_texts: Sequence[Data]) -> Data:
    """The spec with what is resolved alike for all of its texts."""
    divisions = {one.documents for one in of_texts}
    documents = divisions.pop() if len(divisions) == 1 else data.documents
    return data.with_values({"documents": documents, "split": of_texts[0].split, "stream": of_texts[0].stream})


def _joined(stores: Sequence[TokenStore]) -> TokenStore:
    keys = [store.fingerprint for store in stores]
    return stores[0] if len(stores) == 1 else TokenStore.joined(stores, _joined_key(keys))


def encode_files(sources: Sequence[str], data: Data, tokenizer: Tokenizer, report: Report = silent) -> TokenStore:
    """The token store of all the text in `sources`, read by the resolved `data` of a run. Cached like `prepare`."""
    opened = read_corpus(sources, data, report)
    return _store(TextPart(opened, Everything()), tokenizer, None, report)[0]


def _split(train: SurveyedText, data: Data, seed: int, report: Report) -> tuple[SurveyedText, Part, Part]:
    """The corpus of the validation text, and the parts of both."""
    if data.valid:
        valid = read_corpus(data.valid, data, report)
        return valid, Everything(), Everything()
    where = ", ".join(map(display, train.corpus.files))[:200]
    if data.split == "slice":
        characters = cut_characters(train.survey.characters, data.valid_fraction)
        if not 0 < characters[0].n_train < train.survey.characters:
            what = f"too short to hold out {data.valid_fraction:g} of {train.survey.characters} characters"
            raise DataError(what, where=where, fix="name more text, or validation text with data.valid")
        return train, *characters
    if train.survey.documents < 2:
        fix = "set data.split=slice, or name validation text with data.valid"
        if data.stream:
            fix = "set data.documents=blank-line or line, or data.stream=false"
        raise DataError("there is one document, so none can be held out", where=where, fix=fix)
    return train, *choose_documents(train.survey.documents, data.valid_fraction, seed)


def _trained(spec: TokenizerSpec, parts: Sequence[TextPart], report: Report) -> Tokenizer:
    def train() -> bytes:
        chunks = (chunk for part in parts for chunk in part.chunks("training the tokenizer", report))
        sample: Iterable[str] = (piece for chunk in chunks for piece in chunk.texts)
        if not isinstance(spec, CharTokenizer):
            n_bytes = sum(part.text.survey.bytes for part in parts)
            sample = spread_sample(sample, n_bytes, spec.sample_mb * 1_000_000)
        return Tokenizer.train(spec, sample).to_json().encode()

    keys = [part.key for part in parts]
    key = cache_key("tokenizer", keys[0] if len(keys) == 1 else keys, spec.model_dump())
    return cached(TOKENIZERS, key, "the tokenizer of a text", train, Tokenizer.of_json)


def spread_sample(texts: Iterable[str], n_bytes: int, budget: int) -> Iterator[str]:
    """A sample of at most `budget` bytes of texts of about `n_bytes`, spread evenly over them.

    It takes the beginning of each long text, and every nth of the short ones.
    """
    share = budget / n_bytes
    if share >= 1:
        yield from texts
        return
    seen = taken = 0
    for text in texts:
        n = size(text)
        seen += n
        room = int(share * seen) - taken
        if room < n:
            text = text[: safe_cut(text[: room * len(text) // n])] if room > 0 and n else ""
            n = size(text)
        if text:
            taken += n
            yield text


def _keep_tokenizer(tokenizer: Tokenizer, out: Path) -> None:
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    path = out / TOKENIZER
    if not path.exists():
        tokenizer.save(path)
    elif Tokenizer.load(path).fingerprint != tokenizer.fingerprint:
        raise UsageError("the folder holds another tokenizer", where=str(path), fix="choose another folder with -o")


def _store(part: TextPart, tokenizer: Tokenizer, out: Path | None, report: Report) -> tuple[TokenStore, bool]:
    """The store of one part of a corpus, and whether it had to be created."""
    key = part.tokens_key(tokenizer)
    path = out or cache_folder() / TOKENS / key
    with locked(lock_of_store(path)):
        if path.exists():
            if out is not None and not (out / MANIFEST).exists():
                raise UsageError("the folder holds something else", where=str(out), fix="choose another folder with -o")
            why = f"{MANIFEST} is that of other tokens"
            try:
                store = TokenStore(path, disposable=out is None)
                if (store.fingerprint, store.vocab_size) == (key, tokenizer.vocab_size):
                    store.verify_early()
                    discard_progress(path)
                    return store, False
            except DataError as error:
                if out is not None:
                    raise
                why = error.what
            if out is not None:
                raise UsageError("the folder holds other tokens", where=str(path), fix="choose another folder with -o")
            tell("the tokens of a text", why)
            discard(path)
        with StoreWriter(path, fingerprint=key, vocab_size=tokenizer.vocab_size) as writer:
            chunks = islice(part.chunks("tokenizing", report), writer.chunks_done, None)
            for chunk in encode(chunks, tokenizer, part.text.corpus.stream):
                writer.append(chunk)
            return writer.finish(), True


def encode(chunks: Iterator[Chunk], tokenizer: Tokenizer, stream: bool = False) -> Iterator[EncodedChunk]:
    """Encode chunks on all CPU cores, in order, with few in memory. stream: no special tokens at the ends of documents.

    Threads, not processes: the encoders release the GIL, and threads start at once, share memory and cannot hang in a
    fork.
    """
    n_threads = min(n_cores(), 8)
    waiting: deque[Future[EncodedChunk]] = deque()
    pool = ThreadPoolExecutor(n_threads, thread_name_prefix="tokenize")
    try:
        for chunk in chunks:
            waiting.append(pool.submit(_encode, chunk, tokenizer, stream))
            if len(waiting) > n_threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _encode(chunk: Chunk, tokenizer: Tokenizer, stream: bool) -> EncodedChunk:
    tokens, lengths = tokenizer.encode_many(chunk.texts)
    if not stream:
        tokens, lengths = _with_ends(tokens, lengths, chunk, tokenizer)
    n_bytes = np.array([size(text) for text in chunk.texts], dtype=np.int64)
    return EncodedChunk(tokens, lengths, n_bytes, _n_words(chunk.texts), chunk.ends)


def _with_ends(
    ids: NDArray[np.uint32], lengths: NDArray[np.int64], chunk: Chunk, tokenizer: Tokenizer
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """[BOS] before each text that starts a document, [EOS] after each that ends one; only the first if they are one."""
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
    return tokens, lengths


def _n_words(texts: Sequence[str]) -> NDArray[np.int64]:
    """Whitespace-separated words of each text."""
    joined = "\n".join(["", *texts, ""])
    if not joined.isascii():
        return np.array([len(text.split()) for text in texts], dtype=np.int64)
    is_space = np.frombuffer(joined.encode().translate(_IS_SPACE), dtype=bool)
    begins = np.flatnonzero(is_space[:-1] & ~is_space[1:])
    firsts = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return np.diff(np.searchsorted(begins, firsts))
