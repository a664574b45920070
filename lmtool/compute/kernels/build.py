"""Compiles the kernels in C, once for this processor, and caches what is compiled."""

import ctypes
import logging
import os
import platform
import shlex
import shutil
import subprocess
from contextlib import suppress
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lmtool import system
from lmtool.errors import LmtoolError
from lmtool.storage import durable
from lmtool.storage.checksum import xxh3

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
CACHE_FOLDER = "kernels"
COMPILERS = ("cc", "gcc", "clang")
COMPILER_FLAGS = (
    "-O3 -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -freciprocal-math -shared -fPIC"
)
PROCESSOR_FLAGS = (
    "-march=native -mprefer-vector-width=512 -fopenmp",
    "-march=native -fopenmp",
    "-mcpu=native -fopenmp",
)
"""Flags by which compilers use this processor's instructions, and threads; the first that a compiler takes count.
Without either torch is faster."""

DISABLING_VARIABLE = "LMTOOL_NATIVE"
"""A variable of the environment; 0 leaves everything to torch."""

SIGNATURES = {
    "step": (c_void_p, c_int32, c_void_p, c_int64, c_int32),
    "multiply": (*(c_void_p,) * 3, c_int64, c_int32),
    "dropout": (c_void_p, c_void_p, c_int64, c_void_p, c_uint32, c_float, c_int32, c_int32),
    "swiglu": (*(c_void_p,) * 3, c_int64, c_int64, c_int32, c_int32),
    "cross_entropy": (*(c_void_p,) * 6, c_int64, c_int64, c_int32, c_int32),
    "rms_norm": (*(c_void_p,) * 4, c_int64, c_int64, c_float, c_int32),
    "rms_norm_backward": (*(c_void_p,) * 6, c_int64, c_int64, c_int32),
    "rotary": (*(c_void_p,) * 5, c_float, c_int32, c_int32),
}
"""Types of the arguments of each kernel; addresses are those of structures or of numbers."""

_LOG = logging.getLogger(__name__)


def c_fields(c_type: type, names: str) -> tuple[tuple[str, type], ...]:
    """Fields of one type for a structure of C. names: separated by spaces."""
    return tuple((name, c_type) for name in names.split())


class Kernels(ctypes.CDLL):
    """The compiled kernels. checksum: of their code."""

    checksum: str = ""


@cache
def load_kernels() -> Kernels | None:
    """Loads the kernels, compiled on first use; None without a C compiler, or where its product does not load."""
    if os.environ.get(DISABLING_VARIABLE) == "0":
        return None
    try:
        content = _read_or_compile_library()
        kernels = _load_library(content)
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("training and the decoding of one text are slower without the C kernels: %s", error)
        return None
    for name, types in SIGNATURES.items():
        getattr(kernels, name).argtypes = types
    kernels.checksum = xxh3(content)
    return kernels


def kernel_check_results_path() -> Path:
    """Returns the file of the cache for what is known of the kernels, which are loaded, on this processor."""
    kernels = load_kernels()
    assert kernels is not None
    name = f"{xxh3(_processor_features().encode())}-{kernels.checksum}.json"
    return durable.cache_folder() / CACHE_FOLDER / name


def _load_library(content: bytes) -> Kernels:
    """Loads a library from memory, so that what was checked is what runs. Raises OSError."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError), open(os.memfd_create("kernels"), "wb") as file:
            file.write(content)
            file.flush()  # raises where not all can be written, as under a limit on the size of files
            return Kernels(f"/proc/self/fd/{file.fileno()}")
    # some systems do not remove a file that is loaded
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        path = Path(folder, "kernels.so")
        path.write_bytes(content)
        return Kernels(str(path))


def _read_or_compile_library() -> bytes:
    """Reads the library from the cache, or compiles it. Raises OSError or SubprocessError.

    A library in the cache is code: it is used only if nobody but this user and root can have written it, and if its
    checksum is the one in its name. Where the cache belongs to somebody else, each process compiles its own.
    """
    compiler = _find_compiler()
    key = xxh3(
        b"".join(path.read_bytes() for path in SOURCES)
        + f"{shlex.join(compiler)} {COMPILER_FLAGS} {PROCESSOR_FLAGS} {_processor_features()}".encode()
    )
    folder = durable.cache_folder() / CACHE_FOLDER
    if (content := _read_trusted_library(folder, key)) is not None:
        return content
    with suppress(OSError, LmtoolError):  # a cache that cannot be written
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if system.try_to_deny_others_writing(folder):
            with durable.hold_lock(folder / f"{key}.lock"):
                if (content := _read_trusted_library(folder, key)) is None:
                    content = _compile(compiler)
                    path = folder / f"{key}-{xxh3(content)}.so"
                    durable.replace_file(path, content)
                    system.try_to_deny_others_writing(path)
                return content
    return _compile(compiler)


def _read_trusted_library(folder: Path, key: str) -> bytes | None:
    """Reads a library from the cache that only this user or root can have written, and that is whole; else None."""
    for path in folder.glob(f"{key}-*.so"):
        with suppress(OSError), durable.open_regular_file(path) as file:
            content = file.read()
            if system.is_owned_or_writable_by_others(os.fstat(file.fileno())):
                _LOG.warning("%s could be another user's code and is not loaded", path)
            elif path.stem == f"{key}-{xxh3(content)}":
                return content
    return None


def _find_compiler() -> list[str]:
    """Returns the command of the C compiler: that of CC, which may have flags, or the first that is installed.

    Raises FileNotFoundError.
    """
    given = os.environ.get("CC", "")
    try:
        own = [given] if shutil.which(given) else shlex.split(given)
    except ValueError:  # an open quotation mark
        own = []
    for command in (own, *([name] for name in COMPILERS)):
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    raise FileNotFoundError("there is no C compiler")


def _compile(compiler: list[str]) -> bytes:
    """Compiles the library. Returns its bytes. Raises OSError or SubprocessError."""
    _LOG.info("compiling the C kernels for this processor, once")
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernels.so")
        for flags in PROCESSOR_FLAGS:
            files = [str(source) for source in SOURCES if source.suffix == ".c"]
            command = [*compiler, *COMPILER_FLAGS.split(), *flags.split(), *files, "-o", str(path), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.returncode:
                return path.read_bytes()
    raise subprocess.SubprocessError(done.stderr.strip().partition("\n")[0])


def _processor_features() -> str:
    """What tells processors apart, because machines may share a cache."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
