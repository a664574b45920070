"""Jobs that are killed, interrupted, starved of disk, or whose clock jumps; and that are then brought to their end."""

import errno
import math
import os
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from lmtool.runs.checkpoint import list_checkpoints
from lmtool.runs.listing import summarize_run
from lmtool.runs.lock import is_run_locked
from tests.campaigns.commands import Hook, Outcome, lmtool, problems_of
from tests.campaigns.harness import Told
from tests.campaigns.watching import FREEING, Fail, Homeless, Jump, Kill, Lack, Send
from tests.faults import places
from tests.faults.home import JOBS, NEW, VARIANTS, Job, job_named

SAVED = "/checkpoints/"
LOGS = ("metrics", "samples", "validated", "checkpoints")
"""What may differ where a warning says that it could not be written."""
WEIGHTS = {"pretrain": 3, "pretrain of two": 1, "finetune": 2, "tokenize": 1, "import": 1, "export": 1}
YEAR = 365.25 * 86400
CLOCKS = (-60 * YEAR, -YEAR, -3600.0, -1.0, 3600.0, YEAR, 100 * YEAR, 7000 * YEAR)


def chosen(rng: random.Random, among: Sequence[Job] = JOBS, *, saves: bool = False) -> Job:
    """A job; with `saves` one that saves checkpoints."""
    jobs = [job for job in among if not saves or job.trains or job.name == "import"]
    return rng.choices(jobs, [WEIGHTS.get(job.name, 1) for job in jobs])[0]


def kill(home: Path, rng: random.Random, number: int) -> Told:
    """kill -9 at any operation of a job, of two cases in one inside a save; once or twice; or a power cut."""
    in_save = number % 2 == 0
    job = chosen(rng, (*JOBS, *VARIANTS), saves=in_save)
    hooked = rng.choice(job.writers)
    events = job.events(home, hooked)
    at = rng.choice([n for n, (_, path) in enumerate(events, 1) if not in_save or SAVED in path])
    victim = hooked or rng.randrange(job.ranks)
    hook = Kill(at, torn=rng.random() < 0.3, power=rng.random() < 0.3 and victim == hooked)
    outcomes = job.run(home, hook, victim=victim, hooked=hooked)
    did = [job.name, *["by its own rank"] * bool(hooked), *["in a save"] * (SAVED in events[at - 1][1])]
    did += ["power cut"] * hook.power
    if not outcomes[victim].killed:
        return did, [f"event {at} did not come: {outcomes[victim]}"]
    did.append("killed")
    problems = after(home)
    if job.trains and rng.random() < 0.3 and (home / NEW / "checkpoints").exists():
        again = job.run(home, Kill(rng.randint(1, 80)), words=("resume", NEW, "-q"))
        did += ["killed again"] * again[0].killed
        problems += [] if again[0].killed else again[0].problems(codes=(0, 4))
        problems += after(home)
    return did, problems or job.finish(home)


def after(home: Path) -> list[str]:
    """What holds whenever a process has died: nothing is locked, and what there is can be listed."""
    problems = lmtool(home, "runs", "ls", "--json").problems(codes=(0,))
    if (home / NEW).exists() and is_run_locked(home / NEW):
        problems.append("the lock of a run outlived its process")
    return problems


def signals(home: Path, rng: random.Random, number: int) -> Told:
    """Ctrl-C or SIGTERM at any operation of a job, or twice; or while a command reads."""
    if number % 4 == 3:
        return _signal_to_reader(home, rng)
    job = chosen(rng)
    events = job.events(home)
    first = rng.randint(1, len(events))
    sent = [(first, rng.choice([signal.SIGINT, signal.SIGTERM]))]
    if rng.random() < 0.4:
        sent.append((rng.randint(first, len(events)), rng.choice([signal.SIGINT, signal.SIGTERM])))
    victim = rng.randrange(job.ranks)
    outcomes = job.run(home, Send(tuple(sent)), victim=victim)
    codes = (0, *(128 + number for _, number in sent))
    if job.ranks > 1:
        # the others may have been told to end, or have lost the one that ended
        codes += (130, 143, 5, -signal.SIGKILL)
    problems = problems_of(outcomes, codes)
    did = [job.name, "twice" if len(sent) > 1 else "once", f"code {outcomes[victim].code}"]
    return did, problems or after(home) or job.finish(home)


READERS = (
    ("generate", "the", "--run", "runs/base", "--greedy", "--max-new-tokens", "4"),
    ("eval", "runs/base", "text.txt"),
    ("predict", "runs/tuned", "table.csv"),
    ("check", "tokens"),
    ("runs", "ls"),
)


def _signal_to_reader(home: Path, rng: random.Random) -> Told:
    words = rng.choice(READERS)
    sent = rng.choice([signal.SIGINT, signal.SIGTERM])
    outcome = lmtool(home, *words, hook=Send(((rng.randint(1, 30), sent),)), reads=True)
    problems = outcome.problems(codes=(0, 128 + sent))
    if outcome.code != 0 and outcome.err:
        problems.append(f"{words[0]} says after a signal: {outcome.err}")
    return ["a reader", f"code {outcome.code}"], problems or lmtool(home, *words).problems(codes=(0,))


def full_disk(home: Path, rng: random.Random, number: int) -> Told:
    """A disk that is full at one write, from one write on, or of any small size; then it has room again."""
    if number % 8 == 7 and (room := places.small_disk(home, rng.randrange(1 << 19))) is not None:
        job = chosen(rng)
        outcomes = job.run(room)
        shutil.copytree(room, home, symlinks=True, dirs_exist_ok=True)
        did = "a small disk"
    else:
        # a step through the circle of all writes that meets each of them once; of a shared model those of checkpoints,
        # since the others are as those of one process
        writes = [
            (job, rank, at)
            for job in JOBS
            if job.ranks == 1 or job.shares
            for rank in job.writers
            for at in range(1, len(_writes(job, home, rank)) + 1)
        ]
        job, rank, at = writes[(number - number // 8) * _stride(len(writes)) % len(writes)]
        lasts = rng.random() < 0.5
        hook = Fail(at, rng.choice([errno.ENOSPC, errno.EDQUOT]), 1 << 30 if lasts else 1, _below(job))
        outcomes = job.run(home, hook, hooked=rank)
        did = "full from then on" if lasts else "full once"
    return [did, job.name, f"code {outcomes[0].code}"], refused(home, outcomes) or finish(home, job, outcomes)


def _writes(job: Job, home: Path, rank: int) -> list[str]:
    events = job.events(home, rank)
    return [name for name, path in events if name not in FREEING and f"{path}/".startswith(_below(job))]


def _below(job: Job) -> str:
    return f"{NEW}{SAVED}" if job.shares else ""


def _stride(n: int) -> int:
    """A number without a common divisor with n, near its golden section."""
    return next(step for step in range(round(n * 0.618), 2 * n) if math.gcd(step, n) == 1)


def refused(home: Path, outcomes: list[Outcome]) -> list[str]:
    """Problems of processes that could not write: they end with 5, or with 0."""
    codes = (0, 5) if len(outcomes) == 1 else (0, 5, 143, -signal.SIGKILL)
    problems = problems_of(outcomes, codes)
    if not list_checkpoints(home / NEW / "checkpoints"):
        problems += [outcome.err for outcome in outcomes if "the last checkpoint is intact" in outcome.err]
    return problems


def finish(home: Path, job: Job, outcomes: list[Outcome]) -> list[str]:
    """As `Job.finish`; but a run that warned that its logs could not be written may lack lines of them."""
    if job.trains and outcomes[0].warned:
        return job.again(home, job) or job.compare(home, but=LOGS)
    return job.finish(home)


def read_only(home: Path, rng: random.Random, number: int) -> Told:
    """A place that may not be written: the cache, the runs, or the whole home."""
    job = JOBS[number % len(JOBS)]
    below = rng.choice(["cache/", "runs/", ""])
    if number % 2 and places.make_read_only(home / below):
        outcomes = job.run(home)
        places.make_writable(home / below)
        did = "mounted"
    else:
        outcomes = job.run(home, Fail(1, rng.choice([errno.EROFS, errno.EACCES, errno.EPERM]), 1 << 30, below))
        did = "refused"
    problems = [outcome.err for outcome in outcomes if "free some" in outcome.err]  # space is of no use
    problems = problems or refused(home, outcomes) or finish(home, job, outcomes)
    return [did, job.name, f"code {outcomes[0].code}"], problems


def no_locks(home: Path, rng: random.Random, number: int) -> Told:
    """A file system without locks: what needs one is refused before anything is written, and runs can be read."""
    error = rng.choice([errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP])
    if number % 3 == 2:
        return _read_without(home, Lack("locks", error, "runs/"), rng)
    job = chosen(rng)
    outcomes = job.run(home, Lack("locks", error, rng.choice(["cache/", "runs/", ""])))
    problems = [one.err for one in outcomes if one.code == 5 and job.ranks == 1 and "locks" not in one.err]
    if outcomes[0].code and (home / NEW).exists():
        problems.append("a run was begun that cannot be locked")
    return [job.name, f"code {outcomes[0].code}"], problems or refused(home, outcomes) or finish(home, job, outcomes)


def no_maps(home: Path, rng: random.Random, number: int) -> Told:
    """A file system that maps no files into memory: all is as elsewhere."""
    return _without(home, rng, number, Lack("maps", errno.ENODEV))


def no_syncs(home: Path, rng: random.Random, number: int) -> Told:
    """A file system that syncs no folders: all is as elsewhere."""
    return _without(home, rng, number, Lack("syncs", rng.choice([errno.EINVAL, errno.ENOTSUP, errno.EBADF])))


def no_home(home: Path, rng: random.Random, number: int) -> Told:
    """A user without a home: the cache is in a temporary folder, which is refused where others could write to it."""
    temporary = home / "temporary"
    temporary.mkdir()
    cache = temporary / f"lmtool-{os.geteuid()}"
    shutil.copytree(home / "cache", cache)
    cache.chmod(0o700)
    hook = Homeless(temporary)
    if number % 4 != 3:
        did, problems, *_ = _without(home, rng, number, hook, alone=True)
        return did, problems or ["a folder is named ~"] * os.path.lexists(home / "~")
    mode = rng.choice([0o770, 0o707, 0o777])
    cache.chmod(mode)
    outcome = lmtool(home, *job_named("pretrain").words, hook=hook)
    problems = outcome.problems(codes=(5,)) or [outcome.err] * ("LMTOOL_CACHE" not in outcome.err)
    return [f"mode {mode:o}", f"code {outcome.code}"], problems


def _without(home: Path, rng: random.Random, number: int, hook: Hook, alone: bool = False) -> Told:
    """A job or a reader that has to do without something, and loses nothing by it. alone: only jobs of one process."""
    if number % 3 == 2:
        return _read_without(home, hook, rng)
    job = next(job for job in iter(lambda: chosen(rng), None) if job.ranks == 1 or not alone)
    outcomes = job.run(home, hook)
    problems = problems_of(outcomes)
    return [job.name, f"code {outcomes[0].code}"], problems or job.compare(home)


def _read_without(home: Path, hook: Hook, rng: random.Random) -> Told:
    words = rng.choice(READERS)
    outcome, plain = lmtool(home, *words, hook=hook), lmtool(home, *words)
    problems = problems_of((outcome, plain))
    if not problems and outcome.out != plain.out:
        problems.append(f"{words[0]} prints {outcome.out!r}, and elsewhere {plain.out!r}")
    return [f"a reader: {words[0]}", f"code {outcome.code}"], problems


def clock(home: Path, rng: random.Random, number: int) -> Told:
    """A clock that jumps, once or twice; and files that are dated in the past or in the future."""
    job = chosen(rng)
    events = job.events(home)
    jumps = tuple((rng.randint(1, len(events)), rng.choice(CLOCKS)) for _ in range(rng.randint(1, 2)))
    dated = time.time() + rng.choice([0.0, *CLOCKS[:-1]])
    for path in home.rglob("*"):
        os.utime(path, (dated, dated), follow_symlinks=False)
    outcomes = job.run(home, Jump(jumps))
    problems = problems_of(outcomes)
    if (home / NEW / "run.json").exists() and not summarize_run(home / NEW).name:
        problems.append("the run has no name")
    for words in (("runs", "ls"), ("runs", "show", "last"), ("runs", "rm", "--older-than", "9999w", "--yes")):
        problems += lmtool(home, *words).problems(codes=(0,))
    return [job.name], problems or job.compare(home)
