"""Progress display: a bar on a terminal, lines elsewhere; all on stderr."""

import shlex
import sys
import time
from typing import TYPE_CHECKING

from lmtool.cli.output import eprint
from lmtool.printable import format_count, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID

    from lmtool.evaluation.loop import ValidationResult
    from lmtool.recipe.spec.text import TokenizerFile, TrainedTokenizerSpecBase
    from lmtool.tokenization.tokenizer import Tokenizer
    from lmtool.training.events import DurationEstimate, Event, RunAlreadyFinished, TrainingEnded, TrainingStarted
    from lmtool.training.fit import CompletedStep

LINE_SECONDS = 10
"""Seconds between two lines where there is no bar."""

NUMBERS_WIDTH = 66
"""Terminal columns for the numbers beside the bar."""


class Display:
    """Shows the progress of a command: `show` the events of a run, `report` other work.

    shown: False in processes other than the main one.
    quiet: shows only warnings.
    """

    def __init__(self, shown: bool, quiet: bool) -> None:
        self._shown = shown
        self._quiet = quiet or not shown
        self._console: Console | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._began = self._last_line = time.monotonic()
        self._steps: int | None = 0
        self._recent: list[tuple[float, int]] = []
        self._stepping, self._n_done = 0.0, 0
        self._stage, self._stage_began, self._stage_done = "", 0.0, 0
        self._has_sampled = False
        self._part = "valid"

    def __enter__(self) -> "Display":
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            console = Console(stderr=True)
            self._console = None if console.is_dumb_terminal else console
        return self

    def __exit__(self, *_: object) -> None:
        self._close_bar()

    def report(self, stage: str, done: int, total: int) -> None:
        """Shows the progress of work other than training: its stage, and how much is done."""
        now = time.monotonic()
        if stage != self._stage or done < self._stage_done:
            self._stage, self._stage_began = stage, now
        self._stage_done = done
        if self._console is not None:
            if self._bar is None:
                from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn

                description = TextColumn("{task.description}")
                self._open_bar([description, BarColumn(), TaskProgressColumn(), TimeRemainingColumn()])
            self._update(description=stage, completed=done, total=total or None)
            return
        if now - self._last_line > LINE_SECONDS:
            left = (
                f", {_format_clock((now - self._stage_began) * (total - done) / done)} left" if 0 < done < total else ""
            )
            extent = f": {100 * done / total:.0f} %{left}" if total else f": {done:,} characters" if done else ""
            self._say(f"{stage}{extent}")
            self._last_line = now

    def show(self, event: "Event") -> None:
        from lmtool.training import events
        from lmtool.training.comparison import BitsPerByteResults

        match event:
            case events.RunStarted():
                self._close_bar()
                self._part = "valid" if event.recipe.data.holds_out else "training"
                tokenizer = f"tokenizer: {describe_tokenizer(event.tokenizer, event.recipe.tokenizer)}"
                self._say(f"run {event.path}", *event.data, tokenizer)
                self._say(*(f"changed: {change}" for change in event.changes))
            case events.RunAlreadyFinished():
                self._warn(*_describe_finished(event))
            case events.Info():
                self._say(event.text)
            case events.DurationEstimate():
                self._say(*_describe_timing(event))
            case events.TrainingStarted():
                self._begin_training(event)
            case events.StepCompleted():
                self._show_step(event.step, event.validation, event.is_best)
            case events.SampleGenerated():
                if not self._has_sampled:
                    self._say("samples, one to a line: the prompt, |, what the model writes; ↵ is a line break")
                self._has_sampled = True
                self._say(f"  {event.prompt}|{event.text}".replace("\n", "↵"))
            case events.Warn():
                self._warn(f"warning: {event.text}")
            case events.StepCountChanged():
                self._steps = event.steps
                self._update(total=event.steps)
                self._say(f"length: {format_count(event.steps, 'step')}, {event.why}")
            case events.TrainingEnded():
                self._close_bar()
                self._say(_describe_end(event, time.monotonic() - self._began, self._part))
            case BitsPerByteResults():
                self._say(*event.lines())
                self._warn(*(f"warning: {warning}" for warning in event.warnings_if_worse_than_ngrams()))

    def _say(self, *lines: str) -> None:
        if not self._quiet:
            self._print(*lines)

    def _warn(self, *lines: str) -> None:
        if self._shown:
            self._print(*lines)

    def _print(self, *lines: str) -> None:
        for line in lines:
            if self._bar is None:
                eprint(line)
            else:
                from rich.text import Text

                self._bar.console.print(Text(printable(line)))

    def _open_bar(self, columns: "list[ProgressColumn]", total: int | None = None, completed: int = 0) -> None:
        from rich.progress import Progress

        self._bar = Progress(*columns, console=self._console, transient=True)
        self._task = self._bar.add_task("", total=total, completed=completed, loss="", speed="", left="")
        self._bar.start()

    def _update(self, **fields: object) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, **fields)  # type: ignore[arg-type]  # rich accepts any field

    def _close_bar(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin_training(self, plan: "TrainingStarted") -> None:
        """Says what is trained, and opens the bar."""
        learnt = ""
        if plan.learning != plan.parameters:
            learnt = f", of which {plan.learning:,} are trained ({100 * plan.learning / plan.parameters:.3g} %)"
        self._say(f"model: {plan.parameters:,} parameters{learnt}; {plan.device}")
        if plan.held:
            held = format_quantity(plan.held, "B")
            self._say(f"memory: weights, gradients and moments {held}; lmtool plan tells more")
        batch = format_count(plan.batch_units, plan.unit)
        if plan.steps is None or plan.epochs is None:
            self._say(f"plan: steps of {batch}, {plan.minutes:g} minutes")
        elif plan.first_step >= plan.steps:
            self._say(f"plan: no more steps after {plan.first_step:,}, only measurements")
        else:
            extent = f"steps {plan.first_step + 1:,} to {plan.steps:,}, {batch} each"
            passes = f"{plan.epochs:{'.1f' if plan.epochs >= 1 else '.2g'}} passes"
            if plan.steps == 1:
                extent, passes = f"one step of {batch}", passes.replace("1.0 passes", "one pass")
            self._say(f"plan: {extent}, {passes} over the {'table' if plan.unit == 'row' else 'text'}")
        if plan.steps is not None and 10 <= plan.steps <= plan.warmup_steps:
            rises = f"the learning rate only rises in these {format_count(plan.steps, 'step')}"
            self._say(f"{rises}: -s schedule.warmup_steps={plan.steps // 10} warms up in a tenth of them")
        self._steps = plan.steps
        self._counted, self._peak_speed = plan.counted, plan.peak_speed
        self._began = time.monotonic()
        if self._console is not None:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

            # narrower than the line, which the terminal's ^C would break
            width = min(40, self._console.width - NUMBERS_WIDTH)
            bar = [BarColumn(bar_width=width)] if width > 5 else []
            numbers = [TextColumn(f"{{task.fields[{field}]}}") for field in ("loss", "speed", "left")]
            self._open_bar([TextColumn("step"), MofNCompleteColumn(), *bar, *numbers], plan.steps, plan.first_step)

    def _show_step(self, step: "CompletedStep", validation: "ValidationResult | None", is_best: bool) -> None:
        # The mean of the last steps, since they vary, without the first, which includes warm-up.
        last = step.seconds, step.n_computed
        self._recent = [*self._recent[-19:], last] if len(self._recent) > 1 else [last] * (len(self._recent) + 1)
        seconds, tokens = map(sum, zip(*self._recent, strict=True))
        speed = f"{tokens / seconds:,.0f} {self._counted}s/s"
        if self._peak_speed is not None:
            speed += f"  mfu {100 * tokens / seconds / self._peak_speed:.1f} %"
        # assumes that validations and checkpoints take as long as so far
        self._stepping, self._n_done = self._stepping + step.seconds, self._n_done + 1
        beside = max(0.0, time.monotonic() - self._began - self._stepping) / self._n_done
        left = ""
        if self._steps is not None:
            left = f"{_format_clock((self._steps - step.step) * (seconds / len(self._recent) + beside))} left"
        self._update(completed=step.step, loss=f"loss {step.loss:.3f}", speed=speed, left=left)
        valid = ""
        if validation is not None:
            valid = f"  {self._part} loss {validation.loss:.4f}"
            if self._part == "valid":
                valid += "".join(f"  {name} {value:.4f}" for name, value in validation.metrics.items())
            valid += " (best)" if is_best else ""
        now = time.monotonic()
        if valid or (self._bar is None and (step.step == 1 or now - self._last_line > LINE_SECONDS)):
            rate = "" if step.lr is None else f"  lr {step.lr:.2e}"
            # a model that is fitted at once has a single step, and no time is left
            place = f"step {step.step}  "
            if self._steps is not None:
                place = f"step {step.step}/{self._steps} ({100 * step.step / self._steps:.0f} %)  " * (self._steps > 1)
            left = f"  {left}" * (left != "" and self._steps != 1)
            self._say(f"{place}loss {step.loss:.4f}{valid}{rate}  {speed}{left}")
            self._last_line = now


def _describe_finished(event: "RunAlreadyFinished") -> list[str]:
    done = f"all {event.step} steps" if event.step > 1 else "its only step"
    how = f"stopped early, at step {event.step}" if event.early else f"has completed {done}"
    if not event.can_go_on:
        return [f"finished: {event.path} {how}, and more steps would change nothing"]
    more = "evaluation.patience=+5" if event.early else "training.steps=+500"
    command = shlex.join(["lmtool", "resume", str(event.path)])
    return [f"finished: {event.path} {how}", f"  {command} -s {more} trains longer"]


def describe_tokenizer(tokenizer: "Tokenizer", requested: "TrainedTokenizerSpecBase | TokenizerFile") -> str:
    """Describes a tokenizer, and notes if it is smaller than requested."""
    from lmtool.recipe.spec.text import BpeTokenizer, WordPieceTokenizer, WordTokenizer

    described = f"{tokenizer.kind}, {tokenizer.vocab_size:,} entries"
    match requested:
        case BpeTokenizer(vocab_size=n) | WordPieceTokenizer(vocab_size=n) | WordTokenizer(vocab_size=n):
            return described + (f" ({n:,} requested; the text yields no more)" if tokenizer.vocab_size < n else "")
    return described


def format_quantity(number: float, unit: str) -> str:
    """Formats a number with an SI prefix and three digits."""
    for prefix, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {prefix}{unit}" + " " * (not unit)
    return f"{number:.3g} {unit}"


def _describe_timing(timed: "DurationEstimate") -> list[str]:
    padding = ", padding included" if timed.unit == "token" else ""
    lines = [f"time: about {_format_clock(timed.seconds)} more here, at {timed.speed:,.0f} {timed.unit}s/s{padding}"]
    if timed.patience is not None:
        lines[0] += f"; less where patience ({format_count(timed.patience, 'validation')}) ends it"
    if timed.pass_minutes is not None:
        lines.append(f"less than one pass over the data is planned; --minutes {timed.pass_minutes:g} reads all of it")
    return lines


def _describe_end(event: "TrainingEnded", seconds: float, part: str) -> str:
    from lmtool.recipe.grammar import join_with_or

    best = ""
    if event.best_value is not None and part != "training":
        best = f"; best {part} {event.metric} {event.best_value:.4f} at step {event.best_step}"
        if event.step == 1:
            best = f"; {part} {event.metric} {event.best_value:.4f}"
    if event.remedies:
        best += f"; trained on the same text for too long: {join_with_or([*event.remedies])} would help"
    match event.reason:
        case "finished":
            place = f" at step {event.step}" if event.step > 1 else ""
            return f"finished{place} after {_format_clock(seconds)}{best}"
        case "early":
            return (
                f"stopped early at step {event.step} after {_format_clock(seconds)}: validation did not improve{best}"
            )
        case "below":
            return f"stopped at step {event.step} after {_format_clock(seconds)}: far below the baseline{best}"
    return f"interrupted and saved at step {event.step}{best}; lmtool resume continues"


def _format_clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
