"""From files to token stores: modes, cache, resuming, concurrent processes."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lmtool.data import prepare as prepare_module
from lmtool.data import store as store_module
from lmtool.data.prepare import (
    TokenizedData,
    count_predicted_bytes_and_tokens,
    sample_texts_evenly,
    tokenize_data,
    tokenize_files,
)
from lmtool.data.store import TokenStore
from lmtool.errors import ResourceError, UsageError
from lmtool.recipe.spec.text import (
    BpeTokenizer,
    CharTokenizer,
    Data,
    TokenizerFile,
    TrainedTokenizerSpecBase,
    WordPieceTokenizer,
)
from lmtool.tokenization.tokenizer import Tokenizer
from tests.runs.killing import in_child
from tests.support.damage import flip_bit
from tests.support.errors import refuses
from tests.support.texts import HOSTILE, prose

pytestmark = pytest.mark.usefixtures("cache")

BPE = BpeTokenizer(vocab_size=500)
CHAR = CharTokenizer(kind="char")
WORDPIECE = WordPieceTokenizer(kind="wordpiece", vocab_size=500)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(prose(25_000) + " ".join(HOSTILE.values()).replace("\0", ""), encoding="utf-8", newline="")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.jsonl"
    rows = [*prose(5_000).split("\n"), *HOSTILE.values()]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return path


def prepared(
    path: Path, spec: TrainedTokenizerSpecBase | TokenizerFile | Tokenizer = BPE, seed: int = 1, **options: Any
) -> TokenizedData:
    data = {name: options.pop(name) for name in [*options] if name in Data.model_fields}
    return tokenize_data(Data(train=(str(path),), **data), spec, seed=seed, **options)


def ids_of(store: TokenStore) -> list[list[int]]:
    """The tokens of each document."""
    return [store.read(*store.document_range(i)).tolist() for i in range(store.n_documents)]


def texts_of(store: TokenStore, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(ids) for ids in ids_of(store)]


def test_one_text_is_cut_by_characters(book: Path) -> None:
    text = book.read_bytes().decode()
    made = prepared(book)
    n = int(len(text) * 0.9)
    assert (made.data.split, made.data.documents) == ("slice", "whole")
    for store, part in (made.train, text[:n]), (made.valid, text[n:]):
        assert texts_of(store, made.tokenizer) == [part]
        assert ids_of(store) == [made.tokenizer.encode(part)]
        assert (int(store.n_bytes.sum()), int(store.n_words.sum())) == (len(part.encode()), len(part.split()))


@pytest.mark.parametrize("spec", [BPE, CHAR, WORDPIECE], ids=["bpe", "char", "wordpiece"])
def test_documents_are_framed_and_kept_apart(spec: TrainedTokenizerSpecBase, table: Path) -> None:
    made = prepared(table, spec)
    tokenizer, rows = made.tokenizer, [json.loads(line)["text"] for line in table.read_text("utf-8").split("\n")[:-1]]
    rows = [row for row in rows if row.strip()]
    assert made.data.split == "document"
    encoded = [[tokenizer.bos_id, *tokenizer.encode(row), tokenizer.eos_id] for row in rows]
    assert sorted(ids_of(made.train) + ids_of(made.valid)) == sorted(encoded)
    assert made.valid.n_documents == round(0.1 * len(rows))
    whole = prepared(table, tokenizer, valid=(str(table),)).train
    assert ids_of(whole) == encoded
    assert whole.n_bytes.tolist() == [len(row.encode()) for row in rows]
    assert whole.n_words.tolist() == [len(row.split()) for row in rows]


def whole_store(folder: Path, text: str, tokenizer: Tokenizer) -> TokenStore:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return tokenize_files([str(folder / "a.txt")], Data(split="slice", documents="whole"), tokenizer)


@pytest.mark.parametrize("text", ["猫", "é\u20ac and more", "\u200d\U0001f431 cat"])
def test_the_bytes_of_the_first_token_are_not_predicted(text: str, tmp_path: Path) -> None:
    """It may be a part of a character."""
    tokenizer = Tokenizer.train(BPE, [prose(5_000)])
    store = whole_store(tmp_path, text, tokenizer)
    spelled = [tokenizer.list_spellings()[token][0] for token in tokenizer.encode(text)]
    assert b"".join(spelled) == text.encode()
    assert count_predicted_bytes_and_tokens(store, tokenizer) == (len(b"".join(spelled[1:])), len(spelled) - 1)


@pytest.mark.parametrize("text", ["\ufb03 x", "\ufdfa\ufdfa"])
def test_normalization_leaves_no_negative_number_of_bytes(text: str, tmp_path: Path) -> None:
    """A normalized word may have more bytes than the text that it stands for."""
    tokenizer = Tokenizer.train(WORDPIECE, [prose(5_000) + text])
    store = whole_store(tmp_path, text, tokenizer)
    assert 0 <= count_predicted_bytes_and_tokens(store, tokenizer)[0] <= len(text.encode())


def test_long_documents_are_framed_once(tmp_path: Path) -> None:
    texts = [prose(40_000, seed) for seed in (1, 2)]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(BPE, texts)
    store = tokenize_files([str(tmp_path / "*.txt")], Data(split="document", documents="whole"), tokenizer)
    assert ids_of(store) == [[1, *tokenizer.encode(text), 2] for text in texts]
    assert store.n_words.tolist() == [len(text.split()) for text in texts]


@pytest.mark.parametrize(
    ("data", "split", "documents"),
    [
        (Data(train=("one.txt",)), "slice", "whole"),
        (Data(train=("paragraphs.txt",)), "document", "blank-line"),
        (Data(train=("paragraphs.txt",), split="slice"), "slice", "whole"),
        (Data(train=("one.txt", "paragraphs.txt")), "document", "whole"),
        (Data(train=("one.txt",), documents="line"), "document", "line"),
        (Data(train=("one.txt",), valid=("one.txt",), split="document"), "document", "whole"),
    ],
)
def test_how_texts_are_split_is_inferred(
    data: Data, split: str, documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one.txt").write_text("Two lines\nof one text.\n")
    (tmp_path / "paragraphs.txt").write_text("One.\n\nTwo.\n\nThree.\n")
    monkeypatch.chdir(tmp_path)
    made = tokenize_data(data, CHAR, seed=1)
    assert (made.data.split, made.data.documents) == (split, documents)
    assert tokenize_data(made.data, CHAR, seed=1).fingerprint == made.fingerprint
    assert (made.tokenizer.bos_id in made.train.read(0, len(made.train))) == (split == "document")


def test_rows_of_a_stream_are_separated_by_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    made = prepared(tmp_path / "a.jsonl", split="slice", valid_fraction=0.5)
    train, valid = ("".join(texts_of(store, made.tokenizer)) for store in (made.train, made.valid))
    assert (train, valid) == ("one\ntwo", "\nthree\n")


def test_tokenizers_are_trained_on_the_training_part_only(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a" * 90 + "b" * 10)
    made = prepared(tmp_path / "a.txt", CHAR)
    assert made.tokenizer.vocab_size == 8
    assert set(made.valid.read(0, 10)) == {made.tokenizer.unk_id}


def test_the_cache_answers_the_second_time(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepared(book)
    assert first.seconds > 0

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    for name in "_encode_chunk", "sample_texts_evenly", "_count_words":
        monkeypatch.setattr(prepare_module, name, never)
    moved = book.rename(book.with_name("renamed.txt"))
    os.utime(moved, (1, 1))
    second = prepared(moved)
    assert (second.fingerprint, second.seconds, second.train.path) == (first.fingerprint, 0, first.train.path)


def test_a_changed_file_never_meets_old_tokens(book: Path) -> None:
    first, times, text = prepared(book), book.stat(), book.read_bytes()
    book.write_bytes(text[:500] + b"!" + text[501:])
    os.utime(book, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = prepared(book)
    assert second.train.fingerprint != first.train.fingerprint
    assert texts_of(second.train, second.tokenizer) != texts_of(first.train, first.tokenizer)


def test_options_change_the_fingerprint(table: Path) -> None:
    options: list[dict[str, Any]] = [{}, {"seed": 2}, {"split": "slice"}, {"valid_fraction": 0.2}]
    assert len({prepared(table, CHAR, **more).fingerprint for more in options} | {prepared(table).fingerprint}) == 5


def test_given_tokenizers_are_used_as_they_are(book: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(BPE, [prose(3_000, seed=9)])
    tokenizer.save(tmp_path / "tokenizer.json")
    by_value, by_file = prepared(book, tokenizer), prepared(book, TokenizerFile(kind="file", path=str(tmp_path)))
    assert by_value.tokenizer.fingerprint == by_file.tokenizer.fingerprint == tokenizer.fingerprint
    assert by_value.fingerprint == by_file.fingerprint


def test_stores_are_written_to_a_folder_of_their_own(book: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    made = prepared(book, out=out)
    assert sorted(path.name for path in out.iterdir()) == ["tokenizer.json", "train", "valid"]
    assert (made.train.path, made.valid.path) == (out / "train", out / "valid")
    assert Tokenizer.load(out).fingerprint == made.tokenizer.fingerprint
    again = prepared(book, out=out)
    assert (again.fingerprint, again.seconds) == (made.fingerprint, 0)
    (tmp_path / "mine" / "train").mkdir(parents=True)
    for folder, spec, fraction in ((out, CHAR, 0.1), (out, made.tokenizer, 0.3), (tmp_path / "mine", BPE, 0.1)):
        with pytest.raises(UsageError):
            prepared(book, spec, valid_fraction=fraction, out=folder)
    assert TokenStore(out / "train").fingerprint == made.train.fingerprint
    damaged = out / "train" / "tokens-00000.bin"
    flip_bit(damaged)
    content = damaged.read_bytes()
    with refuses("damaged"):  # what a person named is not made anew
        prepared(book, out=out)
    assert damaged.read_bytes() == content


def test_an_interrupted_store_goes_on(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 2_500)
    monkeypatch.setattr("lmtool.data.corpus.CHUNK_CHARACTERS", 4_000)
    monkeypatch.setattr("lmtool.data.files.READ_BYTES", 4_000)
    tokenizer, data = Tokenizer.train(BPE, [prose(3_000)]), Data(split="slice", documents="whole")
    encode, encoded = prepare_module._encode_chunk, 0

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        nonlocal encoded
        encoded += 1
        if encoded == 12:
            raise KeyboardInterrupt
        return encode(*args, **kwargs)

    monkeypatch.setattr(prepare_module, "_encode_chunk", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tokenize_files([str(book)], data, tokenizer)
    before, encoded = encoded, 100
    store = tokenize_files([str(book)], data, tokenizer)
    text = book.read_bytes().decode()
    assert store.read(0, len(store)).tolist() == tokenizer.encode(text)
    assert 0 < encoded - 100 < len(text) / 4_000
    assert before + encoded - 100 >= len(text) / 4_000 - 2
    assert len(store._shards) > 2


@pytest.mark.system
def test_processes_at_once_share_one_cache_entry(book: Path, tmp_path: Path) -> None:
    def work(number: int) -> None:
        (tmp_path / f"{number}.print").write_text(prepared(book).fingerprint)

    pids = [in_child(partial(work, number)) for number in range(3)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0, 0, 0]
    made = prepared(book)
    assert {path.read_text() for path in tmp_path.glob("*.print")} == {made.fingerprint}
    assert made.seconds == 0


@pytest.mark.system
def test_heavy_libraries_are_not_imported() -> None:
    heavy = "{'datasets', 'pyarrow', 'torch', 'transformers'}"
    code = f"import sys, lmtool.data.prepare; sys.exit(bool({heavy} & set(sys.modules)))"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize(("budget", "size"), [(1_000, 50), (10_000, 50), (50_000, 5_000)])
def test_a_sample_is_spread_and_within_its_budget(budget: int, size: int) -> None:
    texts = [f"{i} " + "é word" * (size // 6) for i in range(250_000 // size)]
    n_bytes = sum(len(text.encode()) for text in texts)
    sample = list(sample_texts_evenly(texts, n_bytes, budget))
    assert 0.7 * budget < sum(len(text.encode()) for text in sample) <= budget
    if budget >= 10_000:
        assert {int(text.split()[0]) * 10 // len(texts) for text in sample} == set(range(10))
    assert list(sample_texts_evenly(texts, n_bytes, n_bytes)) == texts


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("text", Data()),
        ("a", Data(train=("a.txt",))),
        ("one\ntext", Data(train=("a.txt",), split="document")),
        ("", Data(train=("a.txt",))),
        ("some text", Data(train=("a.txt",), valid=("b.txt",))),
    ],
)
def test_too_little_text_is_refused(text: str, data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").touch()
    monkeypatch.chdir(tmp_path)
    with refuses("data"):
        tokenize_data(data, CHAR, seed=1)


def test_an_unwritable_cache_is_refused(book: Path, cache: Path) -> None:
    cache.write_text("x")
    with pytest.raises(ResourceError):
        prepared(book, CHAR)
