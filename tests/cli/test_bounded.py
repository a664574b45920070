"""Files of a run and of a model that never end, never begin, or are absurdly large: refused at once."""

import json
import os
import resource
import shutil
from pathlib import Path

import pytest

from lmtool.interop.export.exporting import export
from lmtool.runs.directory import METRICS, RECIPE, TOKENIZER_FILE, VALIDATED
from tests.runs.killing import in_child
from tests.support.cli import CommandLine

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="measures its memory through /proc")
HUGE = 2_000_000_000
MEMORY = 1_500_000_000
"""Bytes that a command may take beyond those of this process."""


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(HUGE)


ATTACKS = {"endless": endless, "pipe": os.mkfifo, "sparse": sparse}
COMMANDS = {
    "show": ("runs", "show", "RUN"),
    "json": ("runs", "show", "RUN", "--json"),
    "ls": ("runs", "ls"),
    "generate": ("generate", "The", "--run", "RUN", "--max-new-tokens", 1),
    "resume": ("resume", "RUN", "-q", "-s", "training.steps=+1"),
    "report": ("report", "RUN", "-o", "page.html"),
    "compare": ("runs", "compare", "RUN", "RUN"),
    "check": ("check", "RUN"),
    "last": ("generate", "The", "--run", "last", "--max-new-tokens", 1),
}
FILES = [
    ("run.json", "endless", ("show", "json", "generate", "resume", "report", "compare", "check")),
    (METRICS, "sparse", ("resume", "report", "compare")),
    (TOKENIZER_FILE, "pipe", ("generate", "resume", "last")),
    (VALIDATED, "endless", ("generate", "resume", "last")),
    (RECIPE, "pipe", ()),
    ("checkpoints/step-000006/MANIFEST.json", "endless", ()),
]
"""Files of a run, attacks on them, and the commands that need them and refuse to work without them."""


def outcome_of(lmtool: CommandLine, *arguments: object, memory: int = MEMORY) -> tuple[int, str, str]:
    """The outcome of a command in a process of little memory."""
    ends, begins = os.pipe()

    def work() -> None:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        found = lmtool(*arguments)
        os.write(begins, json.dumps([found.code, found.out[:2000], found.err[:2000]]).encode())

    pid = in_child(work)
    os.close(begins)
    with os.fdopen(ends, "rb") as pipe:
        told = pipe.read()
    os.waitpid(pid, 0)
    code, out, err = json.loads(told) if told else (-1, "", "died")
    return code, out, err


@pytest.mark.parametrize(("name", "attack", "needing"), FILES)
def test_a_file_of_a_run_that_never_ends_is_refused_at_once(
    lmtool: CommandLine, run: Path, name: str, attack: str, needing: tuple[str, ...]
) -> None:
    (run / name).unlink(missing_ok=True)
    ATTACKS[attack](run / name)
    for key in sorted({*needing, "show", "check", "resume"}, key=lambda key: key == "resume"):
        code, out, err = outcome_of(lmtool, *(run if word == "RUN" else word for word in COMMANDS[key]))
        assert code == 4 if key in needing else code in (0, 3, 4), (key, code, out, err)
        assert not code or 1 <= len(err.splitlines()) <= 3


@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_found_beside_a_run_that_cannot_be_read(
    lmtool: CommandLine, run: Path, home: Path, attack: str
) -> None:
    shutil.copytree(run, home / "runs" / "other")
    (run / "run.json").unlink()
    ATTACKS[attack](run / "run.json")
    ATTACKS[attack](home / "runs" / ".elsewhere")
    code, out, err = outcome_of(lmtool, *COMMANDS["ls"])
    assert (code, len(out.splitlines())) == (0, 2), err
    assert outcome_of(lmtool, *COMMANDS["last"])[0] == 0


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory, trained: Path) -> Path:
    folder = tmp_path_factory.mktemp("published") / "model"
    export(str(trained), folder)
    return folder


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        ("config.json", "endless"),
        ("tokenizer.json", "sparse"),
        ("model.safetensors", "sparse"),
        ("chat_template.jinja", "pipe"),
        ("unknown.json", "endless"),
    ],
)
def test_a_file_of_a_published_model_that_never_ends_is_refused_at_once(
    lmtool: CommandLine, home: Path, published: Path, name: str, attack: str
) -> None:
    """One that is not read does not matter."""
    shutil.copytree(published, home / "model")
    (home / "model" / name).unlink(missing_ok=True)
    ATTACKS[attack](home / "model" / name)
    mapped = HUGE if name == "model.safetensors" else 0  # addresses only
    code, out, err = outcome_of(lmtool, "import", "model", "-q", memory=MEMORY + mapped)
    assert code == (0 if name == "unknown.json" else 4), (out, err)
    assert not code or (name in err and len(err.splitlines()) <= 3)
