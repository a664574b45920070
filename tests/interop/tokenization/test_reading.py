"""Tokenizers of published models: the ids of Transformers in every form, and refusals of damaged files."""

import base64
import json
import math
import os
import shutil
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer

from lmtool.errors import CheckpointError, ResourceError
from lmtool.interop.tokenization.reading import PublishedTokenizer, read_published_tokenizer
from tests.interop.tokenization.hub import FORMS, GPT2_END, MARIAN_CODES, decoder_entry, texts

N_TEXTS = 80
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    made = {}
    for i, (name, form) in enumerate(FORMS.items()):
        made[name] = root / str(i)
        form.write(made[name])
    return made


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder to damage."""
    return lambda name: Path(shutil.copytree(folders[name], tmp_path / "copy"))


def by_transformers(folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return transformers.AutoTokenizer.from_pretrained(folder)


def read(folder: Path, model_type: str) -> tuple[PublishedTokenizer, Tokenizer]:
    published = read_published_tokenizer(folder, model_type)
    return published, Tokenizer.from_str(published.json)


def check_ids(ours: Tokenizer, theirs: Any, batch: list[Any], split: bool) -> None:
    ours.encode_special_tokens = split
    found = [encoding.ids for encoding in ours.encode_batch(batch)]
    wanted = theirs(batch, split_special_tokens=split)["input_ids"]
    wrong = [(text, a, b) for text, a, b in zip(batch, found, wanted, strict=True) if a != b]
    assert not wrong, f"{len(wrong)} differ, such as {wrong[:3]!a}"


@pytest.mark.parametrize("name", FORMS)
def test_ids_and_roles_are_those_of_transformers(folders: dict[str, Path], name: str) -> None:
    form = FORMS[name]
    published, ours = read(folders[name], form.model_type)
    theirs = by_transformers(folders[name])
    battery = texts(N_TEXTS, 1, form.specials)
    assert len(battery) > N_TEXTS
    for split in (False, True):
        check_ids(ours, theirs, battery, split)
        check_ids(ours, theirs, list(pairwise(battery[:200])), split)
    roles = {role: getattr(theirs, role) for role in ROLES}
    wanted = {role: str(token) for role, token in roles.items() if token is not None}
    assert {role: token for role, token in published.config.items() if role in ROLES} == wanted
    assert {role: ours.token_to_id(token) for role, token in wanted.items()} == {
        role: getattr(theirs, f"{role}_id") for role in wanted
    }
    assert ours.truncation is None
    assert ours.padding is None


def test_marian_takes_the_language_before_the_text(folders: dict[str, Path]) -> None:
    _, ours = read(folders["marian"], "marian")
    theirs = by_transformers(folders["marian"])
    batch = [code + text for code in MARIAN_CODES for text in texts(100, 2, [])]
    for split in (False, True):
        check_ids(ours, theirs, batch, split)


def test_marian_reads_what_it_writes(folders: dict[str, Path]) -> None:
    _, ours = read(folders["marian"], "marian")
    theirs = by_transformers(folders["marian"])
    for text in ("Die Großmutter fand den Schlüssel nicht.", "Zwei <Hexen> 3 < 4 ..."):
        ids = theirs(text_target=text)["input_ids"]
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    everything = list(range(ours.get_vocab_size()))
    pieces = theirs.convert_ids_to_tokens(everything)
    special = {">", "<"}
    for token_id, piece in zip(everything, pieces, strict=True):
        if not special & set(piece):
            assert ours.decode([token_id]).strip() == piece.replace("▁", " ").strip()


@pytest.mark.parametrize(("name", "library"), [("bert vocab.txt", "transformers"), ("marian", "sentencepiece")])
def test_what_is_missing_to_convert_is_named(
    folders: dict[str, Path], name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (library, f"{library}.sentencepiece_model_pb2"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ResourceError, match=r"pip install 'lmtool\[convert\]'") as caught:
        read_published_tokenizer(folders[name], FORMS[name].model_type)
    assert caught.value.exit_code == 5
    assert len(caught.value.lines()) <= 3


def test_converting_asks_no_network(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for name in ("mistral tokenizer.model", "bert vocab.txt", "t5 spiece.model"):
        read_published_tokenizer(folders[name], FORMS[name].model_type)


# Settings


@pytest.mark.parametrize(
    ("form", "template"), [("llama 3 tokenizer.json", "{{ messages }}"), ("qwen2 vocab.json", "D"), ("marian", None)]
)
def test_the_chat_template_is_the_default_one(folders: dict[str, Path], form: str, template: str | None) -> None:
    assert read_published_tokenizer(folders[form], FORMS[form].model_type).config.get("chat_template") == template


def test_a_chat_template_of_its_own_file_wins(copy: Callable[[str], Path]) -> None:
    folder = copy("qwen2 vocab.json")
    (folder / "chat_template.json").write_text('{"chat_template": "from JSON"}')
    assert read_published_tokenizer(folder, "qwen2").config["chat_template"] == "from JSON"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert read_published_tokenizer(folder, "qwen2").config["chat_template"] == "from jinja"


def test_added_tokens_of_other_files_are_added(copy: Callable[[str], Path]) -> None:
    folder = copy("gpt2 vocab.json")
    size = len(json.loads((folder / "vocab.json").read_text()))
    names = {"<extra>": size, " spaced ": size + 1, "<pad>": size + 2}
    (folder / "added_tokens.json").write_text(json.dumps(names))
    (folder / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", "bos_token": GPT2_END}))
    published, ours = read(folder, "gpt2")
    assert {name: ours.token_to_id(name) for name in names} == names
    assert published.config["pad_token"] == "<pad>"
    theirs = by_transformers(folder)
    for split in (False, True):
        check_ids(ours, theirs, texts(200, 3, list(names)), split)


def test_a_null_takes_a_role_away(copy: Callable[[str], Path]) -> None:
    folder = copy("gpt2 tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "pad_token": GPT2_END}))
    roles = {"eos_token": GPT2_END, "unk_token": GPT2_END, "pad_token": GPT2_END}
    assert read_published_tokenizer(folder, "gpt2").config == roles


# Damage


def field(number: int, content: bytes) -> bytes:
    """A field of bytes of a protobuf, shorter than 2 MiB."""
    size = len(content)
    digits = bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    return bytes([number << 3 | 2]) + digits + content


def piece(text: bytes, score: float = 0.0) -> bytes:
    return field(1, field(1, text) + b"\x15" + struct.pack("<f", score))


UNIGRAM = b"".join(piece(text) for text in (b"<pad>", b"</s>", b"<unk>", b"a"))
LIST = json.dumps(["a", "b"]).encode()
HUGE = (b'{"model": {"type": "BPE", "vocab": {"a": %d, "b": 1}, "merges": []}}', (2**31, 2**40, 10**30, -1))


def with_charsmap(trie: bytes) -> bytes:
    return UNIGRAM + field(3, field(2, trie))


def described_by(**parts: Any) -> bytes:
    """A tokenizer.json with these parts."""
    return json.dumps({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}, **parts}).encode()


OUTSIDE = struct.pack("<II", 4, 0x7FFFFC00)  # its only unit points far outside
NO_REPLACEMENT = struct.pack("<I", 1024) + struct.pack("<256I", *([0x100] * 255), 0x500) + b"\0"
DAMAGED: dict[str, dict[str, bytes]] = {
    "gpt2 tokenizer.json/tokenizer.json": {
        **{"empty": b"", "a list": LIST, "deep": b"[" * 200_000, "not UTF-8": b'{"\xff": 1}', "no model": b"{}"},
        **{f"id {one}": HUGE[0] % one for one in HUGE[1]},
        "rules that panic": described_by(
            normalizer={"type": "Precompiled", "precompiled_charsmap": base64.b64encode(OUTSIDE).decode()}
        ),
        "rules that are no text": described_by(
            normalizer={"type": "Sequence", "normalizers": [{"type": "Precompiled", "precompiled_charsmap": [1]}]}
        ),
        "a step that panics": described_by(pre_tokenizer={"type": "FixedLength", "length": 0}),
    },
    "gpt2 vocab.json/vocab.json": {
        **{"a list": LIST, "empty": b"{}", "an id as text": b'{"a": "0"}', "an id as truth value": b'{"a": true}'},
        **{"a huge id": b'{"a": 2147483648}', "an id that wraps around": b'{"a": 4294967296}'},
        **{"a negative id": b'{"a": -1}', "an id twice": b'{"a": 0, "b": 0}', "half a character": b'{"\\ud800": 0}'},
    },
    "gpt2 vocab.json/merges.txt": {"three parts": b"a b c\n", "no token": b"a nothing\n", "not UTF-8": b"\xff\xfe"},
    "bert vocab.txt/vocab.txt": {"empty": b""},
    "t5 spiece.model/spiece.model": {
        **{"empty": b"", "cut off": UNIGRAM[:-1], "a huge length": b"\x0a\xff\xff\xff\xff\xff\xff\xff\x7f"},
        **{"an endless integer": b"\x08" + b"\xff" * 100_000, "a group": UNIGRAM + b"\x0b"},
        **{"NaN": UNIGRAM + piece(b"b", math.nan), "infinite": UNIGRAM + piece(b"b", -math.inf)},
        **{"not UTF-8": UNIGRAM + piece(b"\xff"), "a piece twice": UNIGRAM + piece(b"a")},
        **{"a long piece": UNIGRAM + piece(b"b" * 100_000), "a piece of a number": UNIGRAM + field(1, b"\x08\x01")},
        **{"two pieces": piece(b"a") + piece(b"b"), "BPE": UNIGRAM + field(2, b"\x18\x02")},
        "a role outside": UNIGRAM + field(2, b"\xc0\x02\x63"),
        **{"rules cut off": with_charsmap(b"\xff\xff\xff\xffabc"), "rules without a trie": with_charsmap(bytes(4))},
        "rules that point outside": with_charsmap(OUTSIDE),
        "rules without text": with_charsmap(NO_REPLACEMENT),
    },
    "t5 spiece.model/tokenizer_config.json": {"sentinels": b'{"extra_ids": 1000000000000}'},
    "llama tokenizer.model/tokenizer.model": {"tiktoken": b"IQ== 0\nIg== 1\n"},
    "marian/source.spm": {"cut off": UNIGRAM[:-1]},
    "marian/vocab.json": {
        **{"gaps": b'{"</s>": 0, "<unk>": 1, "<pad>": 3}', "no <unk>": b'{"</s>": 0, "<pad>": 1}'},
        "ids as truth values": b'{"</s>": false, "<unk>": true, "<pad>": 2}',
    },
    "marian/tokenizer_config.json": {"two vocabularies": b'{"separate_vocabs": true}'},
    "bert vocab.txt/tokenizer_config.json": {
        **{"a list": LIST, "a role of a number": b'{"cls_token": 3}', "no role": b'{"cls_token": null}'},
        "a role without a name": b'{"cls_token": {"lstrip": true}}',
        "a role of half a character": b'{"cls_token": "\\ud800"}',
        **{"an option of a number": b'{"do_lower_case": 3}', "tokens of a list": b'{"added_tokens_decoder": [1]}'},
        "a huge id": json.dumps({"added_tokens_decoder": {str(2**31): decoder_entry("x")}}).encode(),
        "a template of half a character": b'{"chat_template": "\\udfff"}',
    },
}
"""By the form and its file: what is wrong, and other content of the file."""


@pytest.mark.parametrize(("place", "what"), [(place, what) for place, damages in DAMAGED.items() for what in damages])
def test_damage_is_refused_in_three_lines(copy: Callable[[str], Path], place: str, what: str) -> None:
    form, _, name = place.partition("/")
    folder = copy(form)
    (folder / name).write_bytes(DAMAGED[place][what])
    with pytest.raises(CheckpointError) as caught:
        read_published_tokenizer(folder, FORMS[form].model_type)
    lines = caught.value.lines()
    assert len(lines) == 3
    assert str(folder) in lines[1]
    assert all(line.isprintable() and len(line) < 250 + len(str(folder)) for line in lines)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("gpt2 vocab.json", "merges.txt"),
        ("gpt2 vocab.json", "vocab.json"),
        ("bert vocab.txt", "vocab.txt"),
        ("t5 spiece.model", "spiece.model"),
        ("llama tokenizer.model", "tokenizer.model"),
        ("marian", "source.spm"),
        ("modernbert tokenizer.json", "tokenizer.json"),
    ],
)
def test_a_missing_file_is_named(copy: Callable[[str], Path], form: str, name: str) -> None:
    folder = copy(form)
    (folder / name).unlink()
    os.mkfifo(folder / name)  # nobody writes to it: reading it would wait for ever
    missing = "tokenizer.model" if name == "tokenizer.json" else name
    with pytest.raises(CheckpointError, match=f"neither tokenizer.json nor {missing}"):
        read_published_tokenizer(folder, FORMS[form].model_type)


def test_padding_of_a_file_is_not_tried(copy: Callable[[str], Path]) -> None:
    folder = copy("bert tokenizer.json")
    described = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    described["padding"]["strategy"] = {"Fixed": 10**15}
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    assert json.loads(read_published_tokenizer(folder, "bert").json)["padding"] is None


def test_names_of_files_are_not_followed(copy: Callable[[str], Path]) -> None:
    folder = copy("bert vocab.txt")
    values = {
        "vocab_file": "/etc/passwd",
        "tokenizer_file": "/etc/passwd",
        "auto_map": {"AutoTokenizer": ["a.B", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(values))
    assert "root" not in read_published_tokenizer(folder, "bert").json
