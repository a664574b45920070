"""Files that are damaged: bits flipped, cut off, exchanged, deleted, or no files; and commands that read them."""

import hashlib
import os
import random
import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmtool.runs.checkpoint import list_checkpoints
from tests.campaigns.commands import Outcome, lmtool
from tests.campaigns.harness import Told
from tests.campaigns.homes import Remains, differing
from tests.faults.home import EXPORT, FINETUNE, NEW, PRETRAIN, STEPS, golden, of_folder, of_run
from tests.faults.jobs import LOGS


@dataclass(frozen=True)
class Reader:
    """A command that reads. remains: what it writes that must be equal to the last bit; its stdout if None.

    shows: it shows what people may read, of which nothing is checked.
    """

    words: tuple[str, ...]
    remains: Callable[[Path], Remains] | None = None
    shows: bool = False

    @property
    def name(self) -> str:
        return " ".join(self.words)

    def unbroken(self, home: Path) -> Any:
        def make(copy: Path) -> Any:
            outcome = lmtool(copy, *self.words)
            assert outcome.code == 0, outcome
            return {"results": self.results(copy, outcome), "stderr": outcome.err}

        return golden(home, hashlib.sha256(self.name.encode()).hexdigest()[:16], make)

    def results(self, home: Path, outcome: Outcome) -> Remains:
        try:
            return {"stdout": outcome.out} if self.remains is None else self.remains(home)
        except OSError as error:  # a log that is a folder
            return {"unreadable": str(error)}

    def judge(self, home: Path, *, checked: bool) -> tuple[Outcome, list[str]]:
        """Run it on what is damaged. checked: it must end with the right results, warn, or refuse."""
        expected = self.unbroken(home) if checked and not self.shows else None
        outcome = lmtool(home, *self.words)
        problems = outcome.problems()
        if expected is not None and outcome.code == 0 and not problems:
            found = self.results(home, outcome)
            # the logs have no checksums: a changed number is a number
            changed = [part for part in differing(found, expected["results"]) if part not in ("metrics", "samples")]
            if outcome.err != expected["stderr"]:
                # what it warns of may be lost; weights that were trained are what they would have been
                changed = [part for part in changed if part not in ("stdout", *LOGS, "recipe.yaml")]
                changed = [part for part in changed if part not in outcome.err]  # it may stay as it is
                used_older = "skipped the damaged checkpoint" in outcome.err and self.words[0] != "resume"
                if used_older or "unreadable" in found:
                    changed = []
            problems = [f"{self.name}: {part} differs, and nothing was said" for part in changed]
        return outcome, problems


def reads(*commands: str, shows: bool = False) -> tuple[Reader, ...]:
    return tuple(Reader(tuple(shlex.split(command)), shows=shows) for command in commands)


def of_a_run(name: str) -> tuple[Reader, ...]:
    of_run = (f"runs show {name}", f"runs compare {name} runs/imported", f"report {name} -o page.html")
    return reads(*of_run, "runs ls", "runs ls --json", shows=True)


def of_a_writer(name: str) -> tuple[Reader, ...]:
    return reads(
        *(f"generate the --run {name} {GREEDY}", f"eval {name} text.txt --json -q"),
        *(f"embed {name} --text 'the cat' --whole", f"attention {name} 'the cat' --layer 0 --head 0"),
        f"tokenize --tokenizer {name} --show 'the cat'",
    )


def reached(home: Path) -> Remains:
    """The last step of a run of two processes, which one goes on with: not bitwise as two, where it has more to do."""
    return {"step": list_checkpoints(home / "runs/shared" / "checkpoints")[-1][1].name}


GREEDY = "--greedy --max-new-tokens 4 -q"
TOKENIZE = "tokenize text.txt --kind bpe --vocab-size 300 -o"
RESUME = Reader(("resume", "runs/half", "-q"), of_run("runs/half"))
SHARED_RESUME = Reader(("resume", "runs/shared", "-q", "-s", f"training.steps={STEPS + 1}"), reached)
SHARED = (*of_a_writer("runs/shared"), SHARED_RESUME)
TUNED = reads("predict runs/tuned table.csv -q", "eval runs/tuned table.csv --json -q")
TARGETS: dict[str, tuple[Reader, ...]] = {
    "runs/base": (
        *(*of_a_run("runs/base"), *of_a_writer("runs/base"), *of_a_writer("runs/base")),
        *(Reader(EXPORT, of_folder("new-published")), Reader(FINETUNE, of_run(NEW))),
    ),
    "runs/half": (RESUME,) * 6 + of_a_run("runs/half"),
    "runs/tuned": (
        *(*of_a_run("runs/tuned"), *TUNED),
        Reader(("resume", "runs/tuned", "-q"), of_run("runs/tuned")),
    ),
    "runs/shared": (*SHARED, *SHARED, *of_a_run("runs/shared")),
    "runs/imported": (*of_a_writer("runs/imported"), *of_a_run("runs/imported")),
    "cache": (
        Reader(PRETRAIN, of_run(NEW)),
        *reads("eval runs/base text.txt --json -q"),
        RESUME,
        *reads(f"generate the --run published.gguf {GREEDY}"),
        Reader((*TOKENIZE.split(), "new-tokens", "-q"), of_folder("new-tokens")),
    ),
    "tokens": reads("tokenize --tokenizer tokens --show 'the cat'", f"{TOKENIZE} tokens -q"),
    "published": reads(f"import published -o {NEW} -q", f"generate the --run published {GREEDY}"),
    "published.gguf": reads(f"import published.gguf -o {NEW} -q", f"generate the --run published.gguf {GREEDY}"),
    "index": reads(
        *("search query index 'the cat' -k 3", "search index other.txt -o index -q"),
        "search index -o index --remove text.txt:1",
    ),
    "text.txt": (Reader(PRETRAIN), *reads("resume runs/half -q", "eval runs/base text.txt")),
    "table.csv": (Reader(FINETUNE), *reads("predict runs/tuned table.csv"), TUNED[-1]),
    "tiny.yaml": (Reader(PRETRAIN), *reads("recipes show tiny.yaml --resolved")),
}
WEIGHTS = {"runs/base": 6, "runs/half": 6, "runs/tuned": 4, "runs/shared": 4, "runs/imported": 3, "cache": 5}
WEIGHTS |= {"published": 3, "index": 3}
CHECKED = ("runs/base", "runs/half", "runs/tuned", "runs/shared", "runs/imported", "cache")
"""Where damage must be found, since checksums are kept. Of a published model, a text or a table there are none."""

UNCHECKED = ("report.html", "baseline.json")
"""Files that no result depends on."""


DAMAGE = ("flip", "flip", "flip", "truncate", "delete", "swap", "zeros", "grow", "empty", "folder", "link", "noise")
NO_FILES = ("pipe", "socket", "endless", "folder", "itself", "parent")
"""What is in the place of a file: a pipe without a writer, a socket, a device, a folder, links to itself and to the
folder that it is in."""


def case(home: Path, rng: random.Random, number: int) -> Told:
    """Damage a file or two, then run commands that read them."""
    return _case(home, rng, DAMAGE)


def special(home: Path, rng: random.Random, number: int) -> Told:
    """Put what is no file in the place of one or two, then run commands that read them."""
    return _case(home, rng, NO_FILES)


def _case(home: Path, rng: random.Random, ways: Sequence[str]) -> Told:
    target = rng.choices(list(TARGETS), [WEIGHTS.get(name, 1) for name in TARGETS])[0]
    files = files_of(home / target)
    did = [target]
    for _ in range(rng.choice([1, 1, 1, 2])):
        did.append(damage(rng.choice(files), files, rng, ways))
    readers = [reader for reader in TARGETS[target] if not reader.shows] if rng.random() < 0.7 else TARGETS[target]
    outcome, problems = rng.choice(readers).judge(home, checked=target in CHECKED)
    return [*did, f"code {outcome.code}"], [f"{' '.join(did)}: {problem}" for problem in problems]


def files_of(target: Path) -> list[Path]:
    if target.is_file():
        return [target]
    found = [path for path in sorted(target.rglob("*")) if path.is_file() and path.stat().st_size]
    return [path for path in found if path.suffix != ".lock" and path.name not in (".lock", *UNCHECKED)]


def damage(file: Path, others: Sequence[Path], rng: random.Random, ways: Sequence[str]) -> str:
    """Damage a file in one of these ways; returns how."""
    how = rng.choice(ways)
    if not file.is_file() or not file.stat().st_size:  # by damage before this
        return "nothing left"
    content = bytearray(file.read_bytes())
    match how:
        case "flip":
            for _ in range(rng.choice([1, 1, 1, 8])):
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case "truncate":
            del content[rng.randrange(len(content)) :]
        case "zeros":
            start = rng.randrange(len(content))
            stop = min(len(content), start + rng.choice([1, 16, 512, 4096]))
            content[start:stop] = bytes(stop - start)
        case "grow":
            content += rng.randbytes(rng.choice([1, 8, 4096]))
        case "noise":
            content = bytearray(rng.randbytes(len(content)))
        case "empty":
            content.clear()
    if how == "swap":
        other = rng.choice([path for path in others if path.is_file()])
        kept = other.read_bytes()
        other.write_bytes(content)
        content = bytearray(kept)
    file.unlink()
    match how:
        case "folder":
            file.mkdir()
        case "link":
            os.symlink(rng.choice(["nowhere", file.name, "/dev/null", "/etc/hostname"]), file)
        case "pipe":
            os.mkfifo(file)
        case "socket":
            folder = os.open(file.parent, os.O_RDONLY)
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(f"/proc/self/fd/{folder}/{file.name}")  # names of sockets are short
            os.close(folder)
        case "endless" | "itself" | "parent":
            os.symlink({"endless": "/dev/zero", "itself": file.name, "parent": "."}[how], file)
        case "delete":
            pass
        case _:
            file.write_bytes(content)
    return f"{how} {file.name}" if len(file.name) < 40 else f"{how} {file.suffix}"
