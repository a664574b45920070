"""Homes that campaigns break copies of: made once, by the commands themselves, and what is compared of them."""

import hashlib
import importlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.campaigns.commands import Outcome, lmtool
from tests.support.kernels import put_kernels

IMPORTS = ("sklearn.metrics", "gguf", "torch.export", "torch._dynamo", "torch.distributed.fsdp")
"""What commands import that takes seconds."""
Remains = Mapping[str, str]
"""SHA-256 of each part of a result by its name."""


def settings(overrides: Sequence[str]) -> list[str]:
    return [word for override in overrides for word in ("-s", override)]


def differing(found: Remains, expected: Remains) -> list[str]:
    """Names of the parts that are not the same."""
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def digests(parts: Mapping[str, Any]) -> Remains:
    return {
        name: hashlib.sha256(part if isinstance(part, bytes) else json.dumps(part).encode()).hexdigest()
        for name, part in parts.items()
    }


def make_home(
    folder: Path,
    files: Mapping[str, str | bytes],
    commands: Iterable[Sequence[str]],
    add: Callable[[Path], None] | None = None,
) -> None:
    """Make a home of files and of what commands make of them, unless it is there already.

    Whatever the commands import is imported here, so that the forks to come need not. add: makes more of it.
    """
    home, imported = folder / "home", folder / "imported"
    if imported.exists():
        import_all(imported.read_text().splitlines())
        return
    import_all(IMPORTS)
    home.mkdir(parents=True)
    put_kernels(home / "cache")
    for name, content in files.items():
        (home / name).write_bytes(content.encode() if isinstance(content, str) else content)
    for command in commands:
        made(lmtool(home, *command, modules=folder / "modules"))
        import_all((folder / "modules").read_text().splitlines())
    if add is not None:
        add(home)
    imported.write_text("\n".join(sys.modules))


def import_all(names: Sequence[str]) -> None:
    """Import modules that a command imported, so that the forks to come need not."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # some are no modules of their own
                importlib.import_module(name)


def made(outcome: Outcome) -> None:
    assert outcome.code == 0, f"{' '.join(outcome.words)} ended with {outcome.code}: {outcome.err}"
