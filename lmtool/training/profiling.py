"""Traces of training steps, by torch.profiler."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from torch.profiler import profile, schedule

from lmtool.training.events import Info, Warn

N_UNTRACED_STEPS, N_TRACED_STEPS = 3, 3
"""First steps of a session, which warm up, and the steps after them that are traced."""


class StepTracer:
    """A context in which some steps after the first ones are traced, if there is a file to write them to.

    path: a file in a folder of the run, in the format of chrome://tracing, compressed.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._failure, self._is_written = "", False
        self._profile: profile | None = None
        if path is not None:
            waits = schedule(wait=N_UNTRACED_STEPS - 1, warmup=1, active=N_TRACED_STEPS, repeat=1)
            self._profile = profile(schedule=waits, on_trace_ready=self._export_trace, record_shapes=True)

    def _export_trace(self, traced: Any) -> None:
        assert self.path is not None
        try:
            self.path.parent.mkdir(exist_ok=True)
            traced.export_chrome_trace(str(self.path))
            self._is_written = True
        except OSError as error:
            self._failure = f"the trace could not be written: {error.strerror} ({self.path})"

    def __enter__(self) -> Self:
        if self._profile is not None:
            self._profile.start()
        return self

    def __exit__(self, *_: object) -> None:
        profiled, self._profile = self._profile, None
        if profiled is not None:
            profiled.stop()

    def finish_step(self) -> Iterator[Info | Warn]:
        """Ends a step. Yields what became of the trace if this completes it."""
        if self._profile is not None:
            self._profile.step()
            if self._is_written or self._failure:
                yield from self.finish_trace()

    def finish_trace(self) -> Iterator[Info | Warn]:
        """Ends the trace, at the end of the session with fewer steps. Yields what became of it, once."""
        if self._profile is None:
            return
        self.__exit__()
        if self._is_written:
            yield Info(f"trace of steps: {self.path}; open it at https://ui.perfetto.dev or chrome://tracing")
        else:
            few = f"no step was traced: the session ended within its first {N_UNTRACED_STEPS} steps"
            yield Warn(self._failure or few)
