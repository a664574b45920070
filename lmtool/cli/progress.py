"""Training as a person sees it: a bar on a terminal, lines elsewhere; all on stderr."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from lmtool.engine.fit import Step
    from lmtool.engine.session import Nothing, Started
    from lmtool.engine.train import Ended, Event, Plan

LINE_SECONDS = 10
"""Longest silence between two lines where there is no bar."""


class Display:
    """Shows the events of a run. `show` takes each as it comes.

    shown: False in processes that only compute. quiet: warnings only. run: its directory, as soon as there is one.
    """

    def __init__(self, shown: bool, quiet: bool) -> None:
        self.run: Path | None = None
        self._shown = shown
        self._quiet = quiet or not shown
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = time.monotonic()
        self._steps = 0
        self._rate = 0.0

    def __enter__(self) -> "Display":
        if not self._quiet and sys.stderr.isatty():
            self._bar = _bar()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def report(self, stage: str, done: int, total: int) -> None:
        """How preparing the text goes."""
        now = time.monotonic()
        if now - self._last_line > LINE_SECONDS:
            self._say(f"{stage}: {done:,} characters" + (f" of {total:,}" if total else ""))
            self._last_line = now

    def show(self, event: "Event | Started | Nothing") -> None:
        from lmtool.engine import session, train

        match event:
            case session.Started():
                self._say(_started(event))
                for change in event.changes:
                    self._say(f"changed: {change}")
            case session.Nothing():
                self._warn(f"finished: {event.path} has done all its {event.step} steps")
                self._warn(f"  lmtool resume {event.path} -s training.steps=+500 trains on")
            case train.Plan():
                self._say(_plan(event))
                self._begin(event)
            case train.Stepped():
                self._step(event.step, event.valid_loss, event.is_best)
            case train.Sampled():
                self._say(f"  {_one_line(event.prompt)}|{_one_line(event.text)}")
            case train.Warned():
                self._warn(f"warning: {event.text}")
            case train.Ended():
                self._say(_ended(event))

    def _say(self, text: str) -> None:
        if not self._quiet:
            self._print(text)

    def _warn(self, text: str) -> None:
        if self._shown:
            self._print(text)

    def _print(self, text: str) -> None:
        if self._bar is None:
            typer.echo(text, err=True)
        else:
            self._bar.console.print(text, markup=False, highlight=False)

    def _begin(self, plan: "Plan") -> None:
        self._steps = plan.steps
        if self._bar is not None:
            self._task = self._bar.add_task("", total=plan.steps, completed=plan.first_step, loss="", speed="")

    def _step(self, step: "Step", valid_loss: float | None, is_best: bool) -> None:
        speed = step.tokens / step.seconds
        # a running mean, since steps differ
        self._rate = step.seconds if not self._rate else 0.95 * self._rate + 0.05 * step.seconds
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task, completed=step.step, loss=f"loss {step.loss:.3f}", speed=f"{speed:,.0f} tokens/s"
            )
        valid = "" if valid_loss is None else f"  valid loss {valid_loss:.4f}" + (" (best)" if is_best else "")
        now = time.monotonic()
        if valid or (self._bar is None and now - self._last_line > LINE_SECONDS) or step.step == 1:
            left = (self._steps - step.step) * self._rate
            self._say(
                f"step {step.step}/{self._steps} ({100 * step.step / self._steps:.0f} %)  loss {step.loss:.4f}{valid}"
                f"  lr {step.lr:.2e}  {speed:,.0f} tokens/s  {_clock(left)} left"
            )
            self._last_line = now


def _bar() -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[loss]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )


def _started(event: "Started") -> str:
    data, prepared = event.recipe.data, event.prepared
    split = "the end of the text" if data.split == "slice" else "whole documents"
    if data.valid:
        split = ", ".join(data.valid)
    return (
        f"run {event.path}\n"
        f"text: {prepared.train.n_documents:,} documents ({data.documents}), {len(prepared.train):,} tokens; "
        f"validation: {split}, {len(prepared.valid):,} tokens\n"
        f"tokenizer: {prepared.tokenizer.kind}, {prepared.tokenizer.vocab_size:,} entries"
    )


def _plan(plan: "Plan") -> str:
    return (
        f"model: {plan.parameters:,} parameters; {plan.device}\n"
        f"plan: steps {plan.first_step + 1} to {plan.steps}, {plan.batch_tokens:,} tokens each, "
        f"{plan.epochs:.1f} times through the text"
    )


def _ended(event: "Ended") -> str:
    best = "" if event.best_loss is None else f"; best valid loss {event.best_loss:.4f} at step {event.best_step}"
    match event.reason:
        case "finished":
            return f"finished at step {event.step}{best}"
        case "early":
            return f"stopped early at step {event.step}, no better validation for long enough{best}"
    return f"interrupted and saved at step {event.step}{best}; lmtool resume goes on"


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"


def _one_line(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)
