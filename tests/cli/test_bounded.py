"""Files of a run and of a model that never end, never begin, or are absurdly large: refused at once."""

import json
import os
import resource
import shutil
from itertools import cycle

import pytest

from lmtool.export.exporting import export
from lmtool.run.directory import (
    BASELINE,
    METRICS,
    RECIPE,
    RESULTS,
    SAMPLES,
    SPLIT,
    TOKENIZER_FILE,
    VALIDATED,
)
from tests.run.killing import in_child

HUGE = 40_000_000_000
MEMORY = 4_000_000_000
"""Bytes that a command may take beyond those of this process."""


def endless(path):
    path.symlink_to("/dev/zero")


def sparse(path):
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
FILES = {
    "run.json": {"show", "json", "generate", "resume", "report", "compare", "check"},
    RECIPE: set(),
    TOKENIZER_FILE: {"generate", "resume", "last"},
    "tokenizer_config.json": {"generate", "resume", "last"},
    METRICS: {"resume", "report", "compare"},
    SAMPLES: {"resume", "report", "compare"},
    VALIDATED: {"generate", "resume", "last"},
    SPLIT: set(),
    BASELINE: set(),
    RESULTS: {"report", "compare"},
    "checkpoints/step-000006/MANIFEST.json": set(),
    "checkpoints/step-000006/state.json": set(),
}
"""Files, and the commands that need them and refuse to work without them."""


def outcome_of(lmtool, *arguments, memory=MEMORY):
    """The outcome of a command in a process of little memory."""
    ends, begins = os.pipe()

    def work():
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
    return json.loads(told) if told else [-1, "", "died"]


@pytest.mark.sampled(3)
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="measures its memory through /proc")
@pytest.mark.parametrize(
    ("name", "attack"),
    dict.fromkeys([*zip(FILES, cycle(ATTACKS), strict=False), *((METRICS, attack) for attack in ATTACKS)]),
)
def test_a_file_of_a_run(lmtool, run, name, attack):
    (run / name).unlink(missing_ok=True)
    ATTACKS[attack](run / name)
    codes = {}
    for key in sorted(FILES[name] | {"show", "check", "resume"}, key=lambda key: key == "resume"):
        codes[key], out, err = outcome_of(lmtool, *(run if word == "RUN" else word for word in COMMANDS[key]))
        assert codes[key] in (0, 3, 4), (key, codes[key], out, err)
        assert not codes[key] or 1 <= len(err.splitlines()) <= 3
    assert {key for key in FILES[name] if codes[key] != 4} == set(), codes


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="measures its memory through /proc")
@pytest.mark.parametrize("attack", ATTACKS)
def test_others_are_found_beside_a_run_that_cannot_be_read(lmtool, run, home, attack):
    shutil.copytree(run, home / "runs" / "other")
    (run / "run.json").unlink()
    ATTACKS[attack](run / "run.json")
    ATTACKS[attack](home / "runs" / ".elsewhere")
    code, out, err = outcome_of(lmtool, *COMMANDS["ls"])
    assert (code, len(out.splitlines())) == (0, 2), err
    assert outcome_of(lmtool, *COMMANDS["last"])[0] == 0


MODEL = {
    "config.json": 4,
    "generation_config.json": 4,
    "model.safetensors": 4,
    "tokenizer.json": 4,
    "tokenizer_config.json": 4,
    "special_tokens_map.json": 4,
    "added_tokens.json": 4,
    "merges.txt": 4,
    "chat_template.jinja": 4,
    "modules.json": 4,
    "model.safetensors.index.json": 4,
    "unknown.json": 0,
}
"""Files of a published model, and the exit code of a command that reads it."""


@pytest.fixture(scope="module")
def published(tmp_path_factory, trained):
    folder = tmp_path_factory.mktemp("published") / "model"
    export(str(trained), folder)
    return folder


@pytest.mark.sampled(4)
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="measures its memory through /proc")
@pytest.mark.parametrize(
    ("name", "attack"),
    dict.fromkeys([*zip(MODEL, cycle(ATTACKS), strict=False), *(("tokenizer.json", attack) for attack in ATTACKS)]),
)
def test_a_file_of_a_published_model(lmtool, home, published, name, attack):
    shutil.copytree(published, home / "model")
    (home / "model" / name).unlink(missing_ok=True)
    ATTACKS[attack](home / "model" / name)
    mapped = HUGE if name == "model.safetensors" else 0  # addresses only
    code, out, err = outcome_of(lmtool, "import", "model", "-q", memory=MEMORY + mapped)
    assert code == MODEL[name], (out, err)
    assert not code or (name in err and len(err.splitlines()) <= 3)
