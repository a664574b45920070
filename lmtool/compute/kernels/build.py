"""The compilation of the kernels in C, once for this processor, and the cache of what is compiled."""

import ctypes
import logging
import os
import platform
import shutil
import subprocess
from contextlib import suppress
from ctypes import c_float, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from lmtool import durable, system
from lmtool.checksum import xxh3
from lmtool.errors import LmtoolError

SOURCES = sorted(Path(__file__).parent.glob("*.[ch]"))
FOLDER = "kernels"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = "-O3 -fno-math-errno -fno-trapping-math -fassociative-math -fno-signed-zeros -freciprocal-math -shared -fPIC"
WAYS = ("-march=native -mprefer-vector-width=512 -fopenmp", "-march=native -fopenmp", "-mcpu=native -fopenmp")
"""How compilers name this processor's instructions, with threads; without either torch is faster."""

OFF = "LMTOOL_NATIVE"
"""Variable of the environment; 0 leaves everything to torch."""

SIGNATURES = {
    "step": (c_void_p, c_int32, c_void_p, c_int64, c_int32),
    "multiply": (*(c_void_p,) * 3, c_int64, c_int32),
    "drop": (c_void_p, c_void_p, c_int64, c_void_p, c_uint32, c_float, c_int32, c_int32),
    "gate": (*(c_void_p,) * 3, c_int64, c_int64, c_int32, c_int32),
    "cross_entropy": (*(c_void_p,) * 6, c_int64, c_int64, c_int32, c_int32),
    "normalise": (*(c_void_p,) * 4, c_int64, c_int64, c_float, c_int32),
    "normalise_slopes": (*(c_void_p,) * 6, c_int64, c_int64, c_int32),
    "rotate_heads": (*(c_void_p,) * 5, c_float, c_int32, c_int32),
}
"""Types of the arguments of each kernel; addresses are those of structures or of numbers."""

_LOG = logging.getLogger(__name__)


def fields(of: type, names: str) -> tuple[tuple[str, type], ...]:
    """Fields of one type of a structure of C."""
    return tuple((name, of) for name in names.split())


@cache
def library() -> ctypes.CDLL | None:
    """The kernels, compiled on first use; None without a C compiler, or where its product does not load."""
    if os.environ.get(OFF) == "0":
        return None
    try:
        kernels = _load(_compiled())
    except (OSError, subprocess.SubprocessError) as error:
        _LOG.warning("training and the decoding of one text are slower without the C kernels: %s", error)
        return None
    for name, types in SIGNATURES.items():
        getattr(kernels, name).argtypes = types
    return kernels


def _load(content: bytes) -> ctypes.CDLL:
    """Loads a library from memory, so that what was checked is what runs. Raises OSError."""
    if hasattr(os, "memfd_create"):
        with suppress(OSError), open(os.memfd_create("kernels"), "wb") as file:
            file.write(content)
            file.flush()  # raises where not all can be written, as under a limit on the size of files
            return ctypes.CDLL(f"/proc/self/fd/{file.fileno()}")
    with TemporaryDirectory(
        ignore_cleanup_errors=True
    ) as folder:  # where the file cannot be removed while it is loaded
        path = Path(folder, "kernels.so")
        path.write_bytes(content)
        return ctypes.CDLL(str(path))


def _compiled() -> bytes:
    """The library from the cache, or compiled. Raises OSError or SubprocessError.

    A library in the cache is code: it is used only if nobody but this user and root can have written it, and if its
    checksum is the one in its name. Where the cache belongs to somebody else, each process compiles its own.
    """
    compilers = map(shutil.which, filter(None, (os.environ.get("CC"), *COMPILERS)))
    if (compiler := next(filter(None, compilers), None)) is None:
        raise FileNotFoundError("there is no C compiler")
    key = xxh3(b"".join(path.read_bytes() for path in SOURCES) + f"{compiler} {FLAGS} {WAYS} {_processor()}".encode())
    folder = durable.cache_folder() / FOLDER
    if (content := _read_trusted(folder, key)) is not None:
        return content
    with suppress(OSError, LmtoolError):  # a cache that cannot be written
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if system.deny_others_writing(folder):
            with durable.hold_lock(folder / f"{key}.lock"):
                if (content := _read_trusted(folder, key)) is None:
                    content = _compile(compiler)
                    path = folder / f"{key}-{xxh3(content)}.so"
                    durable.replace_file(path, content)
                    system.deny_others_writing(path)
                return content
    return _compile(compiler)


def _read_trusted(folder: Path, key: str) -> bytes | None:
    """A library in the cache that only this user or root can have written, and that is whole."""
    for path in folder.glob(f"{key}-*.so"):
        with suppress(OSError), durable.open_regular_file(path) as file:
            content = file.read()
            if system.is_written_by_others(os.fstat(file.fileno())):
                _LOG.warning("%s could be another user's code and is not loaded", path)
            elif path.stem == f"{key}-{xxh3(content)}":
                return content
    return None


def _compile(compiler: str) -> bytes:
    """Raises OSError or SubprocessError."""
    _LOG.info("compiling the C kernels for this processor, once")
    with TemporaryDirectory() as folder:
        path = Path(folder, "kernels.so")
        for way in WAYS:
            files = [str(source) for source in SOURCES if source.suffix == ".c"]
            command = [compiler, *FLAGS.split(), *way.split(), *files, "-o", str(path), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if not done.returncode:
                return path.read_bytes()
    raise subprocess.SubprocessError(done.stderr.strip().partition("\n")[0])


def _processor() -> str:
    """What tells processors apart, as a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.machine())
