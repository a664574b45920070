"""Libraries of the cache: which ones are loaded."""

import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from lmtool import system
from lmtool.compute.kernels import build
from lmtool.compute.kernels.matrices import NativeMatrix
from lmtool.storage.checksum import xxh3

pytestmark = pytest.mark.skipif(build.load_kernels() is None, reason="needs a C compiler")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bytes]:
    """An empty cache, and what is compiled for it."""
    calls: list[bytes] = []

    def compile_(compiler: str) -> bytes:
        calls.append(f"library {len(calls)}".encode())
        return calls[-1]

    monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "_compile", compile_)
    return calls


def plant(cache: Path) -> Path:
    """A library with the name that the next process looks for, and its right checksum."""
    (mine,) = cache.rglob("*.so")
    key = mine.name.partition("-")[0]
    content = b"somebody's"
    planted = mine.with_name(f"{key}-{xxh3(content)}.so")
    planted.write_bytes(content)
    mine.unlink()
    return planted


@pytest.mark.parametrize("danger", [0o666, 0o664, 0o646, "another user"])
def test_a_library_that_others_could_have_written_is_not_loaded(
    compiled: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, danger: int | str
) -> None:
    build._read_or_compile_library()
    planted = plant(tmp_path)
    if isinstance(danger, int):
        planted.chmod(danger)
    elif os.geteuid() == 0:
        os.chown(planted, 12345, 12345)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert build._read_or_compile_library() == compiled[1]
    if isinstance(danger, int):
        assert build._read_or_compile_library() == compiled[1], "from the cache, beside what was planted"


def test_what_nobody_else_can_write_is_kept_and_read_again(compiled: list[bytes], tmp_path: Path) -> None:
    folder = tmp_path / build.CACHE_FOLDER
    folder.mkdir()
    folder.chmod(0o777)
    assert [build._read_or_compile_library() for _ in range(3)] == compiled * 3
    (library,) = tmp_path.rglob("*.so")
    assert not (folder.stat().st_mode | library.stat().st_mode) & 0o022


def test_a_damaged_library_or_that_of_another_processor_is_compiled_again(
    compiled: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = build._read_or_compile_library()
    (library,) = tmp_path.rglob("*.so")
    library.write_bytes(content[:-1])
    assert build._read_or_compile_library() == compiled[1]
    monkeypatch.setattr(build, "_processor_features", lambda: "another")
    assert build._read_or_compile_library() == compiled[2]


def test_in_a_folder_of_another_user_or_none_nothing_is_kept(
    compiled: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "try_to_deny_others_writing", lambda path: False)
    assert build._read_or_compile_library() == compiled[0]
    assert not list(tmp_path.rglob("*.so"))
    (tmp_path / build.CACHE_FOLDER).rmdir()
    (tmp_path / build.CACHE_FOLDER).write_text("no folder")
    assert build._read_or_compile_library() == compiled[1]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """Makes a script the compiler, with an empty cache; kernels that are loaded after it are forgotten."""

    def use(script: str) -> None:
        path = tmp_path / "cc"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setenv("CC", str(path))
        monkeypatch.setenv("LMTOOL_CACHE", str(tmp_path / "cache"))
        build.load_kernels.cache_clear()

    yield use
    build.load_kernels.cache_clear()


def test_a_library_is_loaded_from_memory_or_else_from_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    content = build._read_or_compile_library()
    assert build._load_library(content).step
    monkeypatch.delattr(os, "memfd_create", raising=False)
    assert build._load_library(content).step


@pytest.mark.parametrize(
    ("given", "command"),
    [("mine -m64 '-DA=b c'", ["mine", "-m64", "-DA=b c"]), ("my cc", ["my cc"]), ('mine "', ["cc"]), ("none", ["cc"])],
)
def test_cc_is_a_compiler_with_flags_or_else_another_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: str, command: list[str]
) -> None:
    for name in "mine", "my cc", "cc":
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", given)
    assert build._find_compiler() == [str(tmp_path / command[0]), *command[1:]]


def test_a_compiler_that_fails_is_told(compiler: Callable[[str], None], caplog: pytest.LogCaptureFixture) -> None:
    compiler("echo 'error: no such instruction' >&2\nexit 1")
    assert build.load_kernels() is None
    assert "no such instruction" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags are those of x86-64")
def test_a_compiler_without_half_floats(compiler: Callable[[str], None]) -> None:
    """Such as GCC 11: numbers of 16 bits are converted by whole numbers, to the same bits."""
    weight, x = torch.randn(32, 64) * torch.logspace(-7, 4, 64), torch.eye(64)
    weight[0, :3] = torch.tensor([torch.inf, -torch.inf, 1e-7])
    wanted = NativeMatrix(weight, "float16")(x, None)
    compiler('exec cc "$@" -mno-avx512f -U__FLT16_MAX__')
    assert build.load_kernels() is not None
    torch.testing.assert_close(NativeMatrix(weight, "float16")(x, None), wanted, rtol=0, atol=0, equal_nan=True)
