"""The lines of a list, as hashes in a file of the run."""

import random

import pytest

from lmtool.errors import CheckpointError
from lmtool.run.directory import LINES
from lmtool.run.lines import KnownLines


def test_exactly_the_lines_are_known(tmp_path):
    rng = random.Random(1)
    lines = {"".join(rng.choices("abcé ", k=rng.randint(1, 6))).strip() for _ in range(2000)}
    drawn = {"".join(rng.choices("abcé ", k=rng.randint(1, 6))).strip() for _ in range(2000)}
    known = KnownLines.of([*lines, *lines])
    (tmp_path / LINES).write_bytes(known.to_bytes())
    read = KnownLines.read(tmp_path / LINES)
    for some in (known, read):
        assert len(some) == len(lines)
        assert all(line in some for line in lines)
        assert all(f" {line}\n" in some for line in lines)
        assert not any(line in some for line in drawn - lines)


def test_none_is_known_without_lines(tmp_path):
    assert KnownLines.read(tmp_path / LINES) is None
    empty = KnownLines.of([])
    assert "" not in empty
    (tmp_path / LINES).write_bytes(empty.to_bytes())
    assert len(KnownLines.read(tmp_path / LINES)) == 0


def test_every_damage_is_found(tmp_path):
    whole = KnownLines.of(["ann", "bob", "eve"]).to_bytes()
    damaged = [whole[:at] for at in range(len(whole))] + [whole + b"\0", whole + whole]
    damaged += [whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :] for at in range(len(whole))]
    for content in damaged:
        (tmp_path / LINES).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"lines\.bin is damaged"):
            KnownLines.read(tmp_path / LINES)
    (tmp_path / LINES).unlink()
    (tmp_path / LINES).mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        KnownLines.read(tmp_path / LINES)
