"""From files to token stores: modes, cache, resuming, concurrent processes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmtool.data import prepare as prepare_module
from lmtool.data import store as store_module
from lmtool.data.prepare import count_predicted, sample_texts_evenly, tokenize_data, tokenize_files
from lmtool.data.store import TokenStore
from lmtool.durable import cache_folder
from lmtool.errors import DataError, ResourceError, UsageError
from lmtool.recipe.spec.text import BpeTokenizer, CharTokenizer, Data, TokenizerFile, WordPieceTokenizer
from lmtool.tokenization.tokenizer import Tokenizer
from tests import forks
from tests.data.texts import HOSTILE, prose

BPE = BpeTokenizer(vocab_size=500)
CHAR = CharTokenizer(kind="char")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(prose(30_000) + " ".join(HOSTILE.values()).replace("\0", ""), encoding="utf-8", newline="")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.jsonl"
    rows = [*prose(5_000).split("\n"), *HOSTILE.values()]
    path.write_text("".join(json.dumps({"text": row}) + "\n" for row in rows), encoding="utf-8")
    return path


def texts_of(store: TokenStore, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(store.read(*store.document_range(i)).tolist()) for i in range(store.n_documents)]


def rows_of(table: Path) -> list[str]:
    rows = [json.loads(line)["text"] for line in table.read_text(encoding="utf-8").splitlines()]
    return [row for row in rows if row.strip()]


def test_one_text_is_cut_by_characters(book: Path, cache: Path) -> None:
    text = book.read_bytes().decode()
    prepared = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    n = int(len(text) * 0.9)
    assert (prepared.data.split, prepared.data.documents) == ("slice", "whole")
    assert texts_of(prepared.train, prepared.tokenizer) == [text[:n]]
    assert texts_of(prepared.valid, prepared.tokenizer) == [text[n:]]
    for store, part in (prepared.train, text[:n]), (prepared.valid, text[n:]):
        assert store.read(0, len(store)).tolist() == prepared.tokenizer.encode(part)
        assert (int(store.n_bytes.sum()), int(store.n_words.sum())) == (len(part.encode()), len(part.split()))


def test_documents_are_framed_and_kept_apart(table: Path, cache: Path) -> None:
    prepared = tokenize_data(Data(train=(str(table),)), BPE, seed=1)
    assert prepared.data.split == "document"
    tokenizer, rows = prepared.tokenizer, rows_of(table)
    for store in prepared.train, prepared.valid:
        for i in range(store.n_documents):
            ids = store.read(*store.document_range(i)).tolist()
            text = tokenizer.decode(ids)
            assert ids == [tokenizer.bos_id, *tokenizer.encode(text), tokenizer.eos_id]
            assert (store.n_bytes[i], store.n_words[i]) == (len(text.encode()), len(text.split()))
    found = texts_of(prepared.train, tokenizer) + texts_of(prepared.valid, tokenizer)
    assert sorted(found) == sorted(rows)
    assert prepared.valid.n_documents == round(0.1 * len(rows))


@pytest.mark.parametrize("kind", ["wordpiece", "char"])
def test_other_tokenizers_give_their_own_ids(kind: str, table: Path, cache: Path) -> None:
    spec = CHAR if kind == "char" else WordPieceTokenizer(kind="wordpiece", vocab_size=500)
    prepared = tokenize_data(Data(train=(str(table),), valid=(str(table),)), spec, seed=1)
    expected = [[1, *prepared.tokenizer.encode(row), 2] for row in rows_of(table)]
    store = prepared.train
    assert [store.read(*store.document_range(i)).tolist() for i in range(store.n_documents)] == expected


@pytest.mark.parametrize("text", ["猫", "é", "é\u20ac and more", "plain words", "\u200d\U0001f431 cat"])
def test_the_bytes_of_a_first_token_that_is_not_scored(text: str, tmp_path: Path, cache: Path) -> None:
    """It may be a part of a character."""
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(BPE, [prose(5_000)])
    store = tokenize_files([str(tmp_path / "a.txt")], Data(split="slice", documents="whole"), tokenizer)
    spelled = [tokenizer.list_spellings()[token][0] for token in tokenizer.encode(text)]
    assert b"".join(spelled) == text.encode()
    assert count_predicted(store, tokenizer) == (len(b"".join(spelled[1:])), len(spelled) - 1)


@pytest.mark.parametrize("text", ["\ufb03 x", "\u3392", "\ufdfa\ufdfa"])
def test_normalization_leaves_no_negative_number_of_bytes(text: str, tmp_path: Path, cache: Path) -> None:
    """A normalized word may have more bytes than the text that it stands for."""
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(WordPieceTokenizer(kind="wordpiece", vocab_size=500), [prose(5_000) + text])
    store = tokenize_files([str(tmp_path / "a.txt")], Data(split="slice", documents="whole"), tokenizer)
    assert 0 <= count_predicted(store, tokenizer)[0] <= len(text.encode())


def test_a_long_document_is_framed_once(tmp_path: Path, cache: Path) -> None:
    texts = [prose(60_000, seed) for seed in (1, 2)]
    for i, text in enumerate(texts):
        (tmp_path / f"{i}.txt").write_text(text, encoding="utf-8")
    tokenizer = Tokenizer.train(BPE, texts)
    store = tokenize_files([str(tmp_path / "*.txt")], Data(split="document", documents="whole"), tokenizer)
    ids = [store.read(*store.document_range(i)).tolist() for i in range(store.n_documents)]
    assert ids == [[1, *tokenizer.encode(text), 2] for text in texts]
    assert store.n_words.tolist() == [len(text.split()) for text in texts]


@pytest.mark.parametrize(
    ("data", "split", "documents"),
    [
        (Data(train=("one.txt",)), "slice", "whole"),
        (Data(train=("paragraphs.txt",)), "document", "blank-line"),
        (Data(train=("paragraphs.txt",), split="slice"), "slice", "whole"),
        (Data(train=("paragraphs.txt",), split="slice", documents="line"), "slice", "line"),
        (Data(train=("one.txt", "paragraphs.txt")), "document", "whole"),
        (Data(train=("one.txt",), documents="line"), "document", "line"),
        (Data(train=("one.txt",), valid=("paragraphs.txt",)), "slice", "whole"),
        (Data(train=("paragraphs.txt",), valid=("one.txt",)), "document", "blank-line"),
        (Data(train=("one.txt",), valid=("one.txt",), split="document"), "document", "whole"),
    ],
)
def test_modes(data: Data, split: str, documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one.txt").write_text("Two lines\nof one text.\n", encoding="utf-8")
    (tmp_path / "paragraphs.txt").write_text("One.\n\nTwo.\n\nThree.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    prepared = tokenize_data(data, CHAR, seed=1)
    assert (prepared.data.split, prepared.data.documents) == (split, documents)
    settled = tokenize_data(prepared.data, CHAR, seed=1)
    assert settled.fingerprint == prepared.fingerprint
    framed = prepared.tokenizer.bos_id in prepared.train.read(0, len(prepared.train))
    assert framed == (split == "document")


def test_rows_of_a_stream_are_parted_by_line_ends(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n', encoding="utf-8")
    prepared = tokenize_data(Data(train=(str(path),), split="slice", valid_fraction=0.5), BPE, seed=1)
    train, valid = ("".join(texts_of(s, prepared.tokenizer)) for s in (prepared.train, prepared.valid))
    assert (train, valid) == ("one\ntwo", "\nthree\n")


def test_tokenizers_see_the_training_part_only(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a" * 90 + "b" * 10, encoding="utf-8")
    prepared = tokenize_data(Data(train=(str(path),)), CHAR, seed=1)
    assert prepared.tokenizer.vocab_size == 8
    assert set(prepared.valid.read(0, 10)) == {prepared.tokenizer.unk_id}


def test_the_cache_answers_the_second_time(book: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    assert first.seconds > 0

    def never(*_: object, **__: object) -> None:
        raise AssertionError

    for name in "_encode_chunk", "sample_texts_evenly", "_count_words":
        monkeypatch.setattr(prepare_module, name, never)
    moved = book.rename(book.with_name("renamed.txt"))
    os.utime(moved, (1, 1))
    second = tokenize_data(Data(train=(str(moved),)), BPE, seed=1)
    assert (second.fingerprint, second.seconds) == (first.fingerprint, 0)
    assert second.train.path == first.train.path


def test_a_changed_file_never_meets_old_tokens(book: Path, cache: Path) -> None:
    first = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    times = book.stat()
    text = book.read_bytes()
    book.write_bytes(text[:500] + b"!" + text[501:])
    os.utime(book, ns=(times.st_atime_ns, times.st_mtime_ns))
    second = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    assert second.train.fingerprint != first.train.fingerprint
    assert second.tokenizer.decode(second.train.read(0, 600).tolist()) != first.tokenizer.decode(
        first.train.read(0, 600).tolist()
    )


def test_options_change_the_fingerprint(table: Path, cache: Path) -> None:
    base = Data(train=(str(table),))
    variants = [
        tokenize_data(base, BPE, seed=1),
        tokenize_data(base, BPE, seed=2),
        tokenize_data(base, CHAR, seed=1),
        tokenize_data(base.model_copy(update={"split": "slice"}), BPE, seed=1),
        tokenize_data(base.model_copy(update={"valid_fraction": 0.2}), BPE, seed=1),
    ]
    assert len({p.fingerprint for p in variants}) == len(variants)


def test_given_tokenizers_are_used_as_they_are(book: Path, cache: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.train(BPE, [prose(3_000, seed=9)])
    tokenizer.save(tmp_path / "tokenizer.json")
    data = Data(train=(str(book),))
    by_value = tokenize_data(data, tokenizer, seed=1)
    by_file = tokenize_data(data, TokenizerFile(kind="file", path=str(tmp_path)), seed=1)
    assert by_value.tokenizer.fingerprint == by_file.tokenizer.fingerprint == tokenizer.fingerprint
    assert by_value.fingerprint == by_file.fingerprint


def test_eval_text_is_encoded_as_in_training(book: Path, table: Path, cache: Path) -> None:
    text = book.read_bytes().decode()
    prepared = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    store = tokenize_files([str(book)], prepared.data, prepared.tokenizer)
    assert store.read(0, len(store)).tolist() == prepared.tokenizer.encode(text)
    assert int(store.n_bytes.sum()) == len(text.encode())
    documents = tokenize_files([str(table)], Data(split="document"), prepared.tokenizer)
    assert documents.n_documents == len(rows_of(table))
    assert documents.read(0, 1).tolist() == [prepared.tokenizer.bos_id]


def test_written_to_a_folder(book: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    data = Data(train=(str(book),))
    prepared = tokenize_data(data, BPE, seed=1, out=out)
    assert sorted(p.name for p in out.iterdir()) == ["tokenizer.json", "train", "valid"]
    assert (prepared.train.path, prepared.valid.path) == (out / "train", out / "valid")
    assert Tokenizer.load(out).fingerprint == prepared.tokenizer.fingerprint
    again = tokenize_data(data, BPE, seed=1, out=out)
    assert (again.fingerprint, again.seconds) == (prepared.fingerprint, 0)
    with pytest.raises(UsageError, match="another tokenizer"):
        tokenize_data(data, CHAR, seed=1, out=out)
    with pytest.raises(UsageError, match="other tokens"):
        tokenize_data(data.model_copy(update={"valid_fraction": 0.3}), prepared.tokenizer, seed=1, out=out)
    assert TokenStore(out / "train").fingerprint == prepared.train.fingerprint
    (tmp_path / "mine" / "train").mkdir(parents=True)
    with pytest.raises(UsageError, match="something else"):
        tokenize_data(data, BPE, seed=1, out=tmp_path / "mine")


def test_an_interrupted_store_goes_on(book: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "SHARD_TOKENS", 5_000)
    monkeypatch.setattr("lmtool.data.corpus.CHUNK_CHARACTERS", 8_000)
    monkeypatch.setattr("lmtool.data.files.READ_BYTES", 8_000)
    tokenizer = Tokenizer.train(BPE, [prose(3_000)])
    encode = prepare_module._encode_chunk
    encoded = 0

    def interrupted(*args: object, **kwargs: object) -> object:
        nonlocal encoded
        encoded += 1
        if encoded == 12:
            raise KeyboardInterrupt
        return encode(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(prepare_module, "_encode_chunk", interrupted)
    data = Data(split="slice", documents="whole")
    with pytest.raises(KeyboardInterrupt):
        tokenize_files([str(book)], data, tokenizer)
    before, encoded = encoded, 100
    store = tokenize_files([str(book)], data, tokenizer)
    text = book.read_bytes().decode()
    assert store.read(0, len(store)).tolist() == tokenizer.encode(text)
    assert 0 < encoded - 100 < len(text) / 8_000
    assert before + encoded - 100 >= len(text) / 8_000 - 2
    assert len(store._shards) > 2


KILLED = """
import os, signal, sys
from pathlib import Path
from lmtool.recipe.spec.text import Data
from lmtool.data import corpus
from lmtool.data import files
from lmtool.data import store
from lmtool.data.prepare import tokenize_files
from lmtool.tokenization.tokenizer import Tokenizer

corpus.CHUNK_CHARACTERS = files.READ_BYTES = 8_000
store.SHARD_TOKENS = 5_000
left = int(sys.argv[3])

def counted(call):
    def wrapper(*args):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args)
    return wrapper

os.fsync, os.replace, os.rename = counted(os.fsync), counted(os.replace), counted(os.rename)
data = Data(split="slice", documents="whole")
found = tokenize_files([sys.argv[1]], data, Tokenizer.load(sys.argv[2]))
print(found.path)
"""


@pytest.mark.system
def test_killed_at_any_moment_it_goes_on(book: Path, cache: Path, tmp_path: Path) -> None:
    Tokenizer.train(BPE, [prose(3_000)]).save(tmp_path / "tokenizer.json")
    killed = 0
    for moment in (3, 1, 9, 12, 14, 17, 5, 2, 30, 1000):
        process = forks.run(["-c", KILLED, str(book), str(tmp_path), str(moment)])
        killed += process.returncode == -9
        if process.returncode == 0:
            break
    assert killed > 5
    store = TokenStore(Path(process.stdout.strip()))
    expected = Tokenizer.load(tmp_path).encode(book.read_bytes().decode())
    assert store.read(0, len(store)).tolist() == expected


def test_what_an_interrupted_end_has_left_goes_away(book: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def again() -> Path:
        return tokenize_data(Data(train=(str(book),)), BPE, seed=1).train.path

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "remove_progress_file", lambda _: None)
        store = again()
    assert (store / "progress.json").exists()
    assert again() == store
    assert not (store / "progress.json").exists()


PROGRAM = """
import sys
from pathlib import Path
from lmtool.recipe.spec.text import BpeTokenizer, Data
from lmtool.data.prepare import tokenize_data
prepared = tokenize_data(Data(train=(sys.argv[1],)), BpeTokenizer(vocab_size=500), seed=1)
print(prepared.fingerprint, len(prepared.train))
"""


@pytest.mark.system
def test_processes_at_once_share_one_cache_entry(book: Path, cache: Path) -> None:
    command = ["-c", PROGRAM, str(book)]
    started = [forks.begin(command, files=(None, subprocess.PIPE, None)) for _ in range(3)]
    said = {process.communicate()[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(said) == 1
    prepared = tokenize_data(Data(train=(str(book),)), BPE, seed=1)
    assert (f"{prepared.fingerprint} {len(prepared.train)}\n", prepared.seconds) == (said.pop(), 0)


@pytest.mark.system
def test_light_to_import() -> None:
    heavy = "{'datasets', 'pyarrow', 'torch', 'transformers'}"
    command = [sys.executable, "-c", f"import sys, lmtool.data.prepare; print({heavy} & set(sys.modules))"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


def test_progress_is_told(book: Path, cache: Path) -> None:
    told: list[tuple[str, int, int]] = []
    tokenize_data(Data(train=(str(book),)), BPE, seed=1, report=lambda *args: told.append(args))
    stages = list(dict.fromkeys(stage for stage, _, _ in told))
    assert stages == ["reading", "training the tokenizer", "tokenizing"]
    n_characters = len(book.read_bytes().decode())
    assert ("tokenizing", n_characters, n_characters) in told
    assert all(0 < done <= (total or n_characters) for _, done, total in told)


@pytest.mark.parametrize("budget", [1_000, 10_000, 50_000])
@pytest.mark.parametrize("lines", [False, True])
def test_the_sample_is_spread_and_within_its_budget(budget: int, lines: bool) -> None:
    size = 50 if lines else 5_000
    texts = [f"{i} " + "é word" * (size // 6) for i in range(250_000 // size)]
    n_bytes = sum(len(text.encode()) for text in texts)
    sample = list(sample_texts_evenly(texts, n_bytes, budget))
    assert 0.7 * budget < sum(len(text.encode()) for text in sample) <= budget
    if budget >= 10_000:
        assert {int(text.split()[0]) * 10 // len(texts) for text in sample} == set(range(10))
    assert list(sample_texts_evenly(texts, n_bytes, n_bytes)) == texts


REFUSED: dict[str, tuple[str, Data, str]] = {
    "nothing named": ("text", Data(), "no text is named"),
    "one character": ("a", Data(train=("a.txt",)), "too short"),
    "one document": ("one\ntext", Data(train=("a.txt",), split="document"), "one document"),
    "empty": ("", Data(train=("a.txt",)), "no text"),
    "empty validation": ("some text", Data(train=("a.txt",), valid=("b.txt",)), "no text"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_unusable_text_is_refused(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, data, message = REFUSED[case]
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.txt").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=message) as caught:
        tokenize_data(data, CHAR, seed=1)
    assert len(caught.value.lines()) <= 3


def test_an_unwritable_cache_is_refused(book: Path, cache: Path) -> None:
    cache.write_text("x", encoding="utf-8")
    with pytest.raises(ResourceError, match="cannot write"):
        tokenize_data(Data(train=(str(book),)), CHAR, seed=1)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LMTOOL_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("LMTOOL_CACHE")
    assert cache_folder() == Path("/b/lmtool")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "lmtool"
