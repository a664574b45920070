"""Commands of lmtool in forks of this process: begun, awaited, judged."""

import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.campaigns.harness import die_with_parent
from tests.campaigns.watching import Act, Watch

SECONDS = 60.0
"""A command that takes longer hangs; the time does not count for which it waits for a core."""
LAST_SECONDS = 15.0
"""How long the other processes of a run may take to end when one has failed; torchrun gives them 30 seconds."""
MEMORY = 2 << 30
"""Resident bytes beyond which a command uses too much memory."""

Hook = Callable[[Watch], Act]


@dataclass(frozen=True)
class Outcome:
    """How a command ended. code: its exit code, or minus the signal that ended it. memory: peak resident bytes."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str
    hung: bool
    memory: int

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL and not self.hung

    def problems(self, codes: Sequence[int] = (0, 2, 3, 4, 5, 6)) -> list[str]:
        """What no command may do, whatever it is given."""
        name = " ".join(self.words)
        found = []
        if self.hung:
            found.append(f"{name}: did not end in {SECONDS:.0f} s")
        elif self.code not in codes:
            found.append(f"{name}: ended with {self.code}: {self.err[-400:]}")
        elif "Traceback" in self.err:
            found.append(f"{name}: {self.err[-400:]}")
        elif 3 <= self.code < 128 and not 1 <= len(self.error_lines) <= 3:  # a recipe has a line for each mistake
            found.append(f"{name}: an error in {len(self.error_lines)} lines: {self.err[-400:]}")
        elif any(not line.isprintable() for line in self.err.splitlines()):
            found.append(f"{name}: prints what is not printable: {self.err[-400:]!r}")
        if self.memory > MEMORY:
            found.append(f"{name}: used {self.memory >> 20} MiB of memory")
        return found

    @property
    def error_lines(self) -> list[str]:
        """Lines on stderr that are no warnings."""
        return [line for line in self.err.splitlines() if not line.startswith(("warning: ", "stopping after "))]

    @property
    def warned(self) -> bool:
        return any(line.startswith("warning: ") for line in self.err.splitlines())


@dataclass
class Begun:
    """A command under way."""

    pid: int
    words: tuple[str, ...]
    output: Path
    began: float = field(default_factory=time.monotonic)

    def _wait(self, seconds: float, flags: int = 0) -> Any:
        """The state of the command once it has ended, or what the flags say; None if that takes longer."""
        deadline = time.monotonic() + seconds
        while True:
            state = os.waitid(os.P_PID, self.pid, flags | os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if state is not None or time.monotonic() >= deadline:
                return state
            time.sleep(0.002)

    def stopped(self, seconds: float) -> bool:
        """Wait until the command has stopped itself: True; or until it has ended, or `seconds` are over: False."""
        state = self._wait(seconds, os.WSTOPPED)
        return state is not None and state.si_code == os.CLD_STOPPED

    def ended(self, seconds: float) -> bool:
        """Wait until the command has ended, at most so long."""
        return self._wait(seconds) is not None

    def delayed(self) -> float:
        """Seconds for which threads of the command waited for a core."""
        with suppress(OSError):
            threads = [path.read_text().split() for path in Path(f"/proc/{self.pid}/task").glob("*/schedstat")]
            return sum(int(delay) for _, delay, _ in threads) / 1e9
        return 0.0

    def hangs(self, together: "Sequence[Begun]" = ()) -> bool:
        """Whether the command, which waits for the others, has not ended in its time."""
        return time.monotonic() - self.began - sum(one.delayed() for one in (self, *together)) > SECONDS

    def failed(self) -> bool:
        """Whether a command that has ended did so with another code than 0."""
        state = self._wait(0)
        return state is not None and (state.si_code, state.si_status) != (os.CLD_EXITED, 0)

    def finish(self) -> Outcome:
        """The outcome, for which this waits; a command that hangs is killed."""
        while not (ended := self.ended(1.0)) and not self.hangs():
            pass
        hung = not ended
        if hung:
            os.kill(self.pid, signal.SIGKILL)
        _, status, used = os.wait4(self.pid, 0)
        out, err = (
            self.output.with_suffix(part).read_text(encoding="utf-8", errors="replace") for part in (".out", ".err")
        )
        # ru_maxrss begins with what the fork had of its parent
        memory = (used.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) << 10
        return Outcome(self.words, os.waitstatus_to_exitcode(status), out, err, hung, memory)


def begin(
    home: Path,
    words: Sequence[str],
    hook: Hook | None = None,
    *,
    reads: bool = False,
    modules: Path | None = None,
    environment: Mapping[str, str] | None = None,
    victim: int = 0,
) -> Begun:
    """Begin a command in a folder that also has its runs and its cache.

    hook: interferes with what it does to files of the folder. modules: gets the names of all modules that it imported.
    victim: the process that the hook signals, if another.
    """
    output = home.with_name(f"{home.name}-{time.monotonic_ns()}.out")
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return Begun(pid, tuple(words), output)
    code = 1
    try:
        die_with_parent()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for handle, file, flags in (
            (0, "/dev/null", os.O_RDONLY),
            (1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND),
            (2, output.with_suffix(".err"), os.O_WRONLY | os.O_CREAT | os.O_APPEND),
        ):
            os.dup2(os.open(file, flags, 0o644), handle)
        os.environ.update(environment or {}, LMTOOL_CACHE="cache", LMTOOL_RUNS="runs")
        os.chdir(home)
        code = _main(Watch(home, reads=reads, victim=victim), words, hook)
        if modules is not None:
            modules.write_text("\n".join(sys.modules))
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


def _main(watch: Watch, words: Sequence[str], hook: Hook | None) -> int:
    """The exit code of a command, in this process."""
    from lmtool.cli import main

    sys.argv = ["lmtool", *words]
    if hook is not None:
        watch.install(hook(watch))
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    raise AssertionError("main always exits")


def lmtool(
    home: Path, *words: str, hook: Hook | None = None, reads: bool = False, modules: Path | None = None
) -> Outcome:
    """The outcome of a command."""
    return begin(home, words, hook, reads=reads, modules=modules).finish()


def problems_of(outcomes: Sequence[Outcome], codes: Sequence[int] = (0,)) -> list[str]:
    return [problem for outcome in outcomes for problem in outcome.problems(codes)]


def free_port() -> int:
    """A port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_together(
    home: Path, words: Sequence[str], n: int, hook: Hook | None = None, *, hooked: int = 0, victim: int = 0
) -> list[Outcome]:
    """The outcomes of `n` processes of one command, rank 0 first: as with torchrun, all end when one fails.

    hooked: the rank that has the hook. victim: the rank that it signals; another one than itself only of rank 0.
    """
    port = free_port()
    begun: dict[int, Begun] = {}
    for rank in reversed(range(n)):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(n)}
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        pid = begun[victim].pid if rank == hooked == 0 and victim else 0
        own_hook = hook if rank == hooked else None
        begun[rank] = begin(home, words, own_hook, environment=own if n > 1 else {}, victim=pid)
    return finish_all([begun[rank] for rank in range(n)])


def finish_all(begun: Sequence[Begun]) -> list[Outcome]:
    """The outcomes of processes of one run: as with torchrun, all end when one fails."""
    waiting = list(begun)
    deadline = None
    while len(begun) > 1 and waiting:
        for one in list(waiting):
            if one.ended(0.01):
                waiting.remove(one)
        failed = [one for one in begun if one not in waiting and one.failed()]
        if failed and deadline is None:
            deadline = time.monotonic() + LAST_SECONDS
            for one in waiting:
                os.kill(one.pid, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            for one in waiting:
                os.kill(one.pid, signal.SIGKILL)
            break
        if waiting and waiting[0].hangs(waiting[1:]):
            for one in waiting:
                os.kill(one.pid, signal.SIGKILL)
            return [replace(one.finish(), hung=one in waiting) for one in begun]
    return [one.finish() for one in begun]
