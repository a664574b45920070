"""A small home: texts, a table, runs of several kinds, a cache, published models; and the jobs that campaigns break.

It is made once, by the commands themselves; every case works on a copy. Recipes and commands name files relative to the
home, so that a copy is as good as the original.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lmtool.runs.checkpoint import list_checkpoints, open_and_verify_checkpoint
from lmtool.runs.directory import Run
from tests.campaigns.commands import Hook, Outcome, lmtool, problems_of, run_together
from tests.campaigns.homes import Remains, differing, digests, made, make_home, settings
from tests.campaigns.watching import Kill, Record
from tests.support.training import documents, lasting

RECIPE = """\
model: {kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1,
        activation: gelu-tanh}
tokenizer: {kind: bpe, vocab_size: 300}
training: {steps: 6, batch_size: 4, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.003}
schedule: {kind: linear, warmup_steps: 3}
evaluation: {every: 3, tokens: 64, prompts: [the], sample_tokens: 3, baseline: false}
checkpoint: {every: 2, keep_optimizer: true}
"""
STEPS = 6
NEW = "runs/new"
TUNING = (
    *("training.epochs=null", f"training.steps={STEPS}", "training.batch_size=4", "evaluation.every=3"),
    *("checkpoint.every=2", "checkpoint.keep_optimizer=true", "training.device=cpu", "training.precision=float32"),
)


@dataclass(frozen=True)
class Job:
    """A command that writes, and how to compare what it wrote.

    again: after an interruption, brings it to its end; returns problems. remains: all results, which must be equal to
    the last bit. ranks: processes, as torchrun starts them. trains: it stops at a step and saves. shares: each process
    writes its part of a checkpoint.
    """

    name: str
    words: tuple[str, ...]
    again: Callable[[Path, "Job"], list[str]]
    remains: Callable[[Path], Remains]
    ranks: int = 1
    trains: bool = False
    shares: bool = False

    def run(self, home: Path, hook: Hook | None = None, *, words: Sequence[str] = (), **which: int) -> list[Outcome]:
        """The outcomes of all its processes, as of `run_together`."""
        return run_together(home, words or self.words, self.ranks, hook, **which)

    def finish(self, home: Path) -> list[str]:
        """Bring it to its end without any fault; returns problems."""
        return self.again(home, self) or self.compare(home)

    def compare(self, home: Path, but: Sequence[str] = ()) -> list[str]:
        """How its results differ from those that nothing interrupted."""
        expected = golden(home, self.name, self._unbroken)["remains"]
        return [f"{self.name}: {part} differs" for part in differing(self.remains(home), expected) if part not in but]

    def events(self, home: Path, rank: int = 0) -> list[tuple[str, str]]:
        """Name and path of each operation of an unbroken job on files, in their order."""
        name = self.name if rank == 0 else f"{self.name} {rank}"
        return [(name, path) for name, path in golden(home, name, partial(self._unbroken, rank=rank))["events"]]

    def _unbroken(self, copy: Path, rank: int = 0) -> dict[str, Any]:
        file = copy.with_name(f"{copy.name}.events")
        for outcome in self.run(copy, Record(file), hooked=rank):
            made(outcome)
        return {"remains": self.remains(copy), "events": [line.split("\t") for line in file.read_text().splitlines()]}

    @property
    def writers(self) -> range:
        """The ranks that write files."""
        return range(self.ranks if self.shares else 1)


def golden(home: Path, name: str, make: Callable[[Path], Any]) -> Any:
    """What `make` gives on an untouched copy of the home; made once, by whoever needs it first."""
    kept = home.parents[1] / "golden"
    file = kept / f"{name}.json"
    with (kept / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            copy = kept / name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(home.parents[1] / "home", copy)
            file.write_text(json.dumps(make(copy)))
            shutil.rmtree(copy)
    return json.loads(file.read_text())


def resumed(home: Path, job: Job) -> list[str]:
    """Resume a run, or begin it again where it was not yet one, or had no checkpoint."""
    run = home / NEW
    for step, path in list_checkpoints(run / "checkpoints"):
        if open_and_verify_checkpoint(path).step != step:
            return [f"{path.name} holds another step"]
    if list_checkpoints(run / "checkpoints") and (run / "run.json").exists():
        outcomes = job.run(home, words=("resume", NEW, "-q"))
    else:
        if problems := lmtool(home, "resume", NEW, "-q").problems(codes=(4,)):
            return problems
        shutil.rmtree(run, ignore_errors=True)
        outcomes = job.run(home)
    problems = problems_of(outcomes)
    # records that a full disk has lost are compared elsewhere
    warned = [outcome.err for outcome in outcomes if outcome.warned and "has no record of step" not in outcome.err]
    problems += [f"{job.name}: warns: {warning}" for warning in warned]
    if not problems and Run.open(run).state != "finished":
        problems.append(f"{job.name}: the run is {Run.open(run).state}")
    return problems


def repeated(home: Path, job: Job) -> list[str]:
    """The same command again; where its output is there already, it must be whole."""
    output = home / (job.words[job.words.index("-o") + 1] if "-o" in job.words else job.words[2])
    if output.exists() and job.name != "tokenize":
        return []
    return lmtool(home, *job.words).problems(codes=(0,))


def of_run(name: str) -> Callable[[Path], Remains]:
    """All results of a run that was trained."""

    def remains(home: Path) -> Remains:
        run = home / name
        kept: dict[str, Any] = lasting(run, STEPS)
        kept["checkpoints"] = [step for step, _ in list_checkpoints(run / "checkpoints")]
        for file in ("recipe.yaml", "tokenizer.json", "metrics.json", "split.json"):
            if (run / file).exists():
                kept[file] = (run / file).read_bytes()
        return digests(kept)

    return remains


def of_import(home: Path) -> Remains:
    """All results of an imported run."""
    checkpoint = home / NEW / "checkpoints" / "step-000000"
    open_and_verify_checkpoint(checkpoint)
    files = [checkpoint / "model.safetensors", checkpoint / "state.json"]
    files += [home / NEW / name for name in ("recipe.yaml", "tokenizer.json", "tokenizer_config.json")]
    return digests({file.name: file.read_bytes() for file in files if file.exists()})


def of_folder(name: str) -> Callable[[Path], Remains]:
    """All files of a folder, or the one file."""

    def remains(home: Path) -> Remains:
        path = home / name
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        return digests({str(file.relative_to(home)): file.read_bytes() for file in files if file.is_file()})

    return remains


PRETRAIN = ("pretrain", "text.txt", "--recipe", "tiny.yaml", "-o", NEW, "-q")
FINETUNE = ("finetune", "table.csv", "--from", "runs/base", "-o", NEW, "-q", *settings(TUNING))
TWO = ("model.dropout=0",)
SHARDED = (*TWO, "training.shard=full")
BACKGROUND = (*PRETRAIN, *settings([*SHARDED, "checkpoint.background=true"]))
TOKENIZE = ("tokenize", "other.txt", "--kind", "bpe", "--vocab-size", "310", "-o", "new-tokens", "-q")
EXPORT = ("export", "runs/base", "new-published", "-q")
JOBS = (
    Job("pretrain", PRETRAIN, resumed, of_run(NEW), trains=True),
    Job("pretrain of two", (*PRETRAIN, *settings(TWO)), resumed, of_run(NEW), ranks=2, trains=True),
    Job("sharded", (*PRETRAIN, *settings(SHARDED)), resumed, of_run(NEW), ranks=2, trains=True, shares=True),
    Job("sharded in the background", BACKGROUND, resumed, of_run(NEW), ranks=2, trains=True, shares=True),
    Job("finetune", FINETUNE, resumed, of_run(NEW), trains=True),
    Job("tokenize", TOKENIZE, repeated, of_folder("new-tokens")),
    Job("import", ("import", "published", "-o", NEW, "-q"), repeated, of_import),
    Job("export", EXPORT, repeated, of_folder("new-published")),
    Job("export of GGUF", ("export", "runs/base", "new.gguf", "--gguf", "f16", "-q"), repeated, of_folder("new.gguf")),
)


VARIANTS = tuple(
    Job(name, (*PRETRAIN, *settings(overrides)), resumed, of_run(NEW), trains=True)
    for name, overrides in {
        "patience": ("evaluation.every=2", "evaluation.patience=9"),
        "muon, micro-batches": ("optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.003}}", "training.micro_batch=3"),
        "lstm, carried states": (
            "model={kind: recurrent, d_model: 12, context: 8, dropout: 0.1}",
            "training.carry_state=true",
            "training.micro_batch=3",
        ),
        "streamed": ("data.stream=true", "training.batch_size=32"),
        "in the background": ("checkpoint.background=true", "evaluation.every=2"),
    }.items()
)
"""More ways of training, which are killed as well."""


def job_named(name: str) -> Job:
    return next(job for job in JOBS if job.name == name)


COMMANDS = (
    ("pretrain", "text.txt", "--recipe", "tiny.yaml", "-o", "runs/base", "-q"),
    ("finetune", "table.csv", "--from", "runs/base", "-o", "runs/tuned", "-q", *settings(TUNING)),
    ("export", "runs/base", "published", "-q"),
    ("export", "runs/base", "published.gguf", "--gguf", "f16", "-q"),
    ("import", "published", "-o", "runs/imported", "-q"),
    ("generate", "the", "--run", "published.gguf", "--max-new-tokens", "1", "-q"),
    ("tokenize", "text.txt", "--kind", "bpe", "--vocab-size", "300", "-o", "tokens", "-q"),
    ("search", "index", "text.txt", "--run", "runs/base", "-o", "index", "-q"),
)


def build(folder: Path) -> None:
    """The home, in a folder where what is derived of it goes too; made there unless it is."""
    rows = (f"the cat {'ran home' if i % 2 else 'sat on the mat'} {i},{'ab'[i % 2]}" for i in range(24))
    table = "\n".join(["text,label", *rows]) + "\n"
    texts = {"text.txt": documents(30), "other.txt": documents(40, seed=5), "tiny.yaml": RECIPE, "table.csv": table}

    def add(home: Path) -> None:
        (folder / "golden").mkdir()
        for outcome in run_together(home, [word.replace(NEW, "runs/shared") for word in job_named("sharded").words], 2):
            made(outcome)
        hook = Kill(5, below=f"runs/half/checkpoints/.tmp-step-{STEPS:06d}/")  # in the last save
        killed = lmtool(home, *PRETRAIN[:-2], "runs/half", "-q", hook=hook)
        assert killed.killed, killed

    make_home(folder, texts, COMMANDS, add)
