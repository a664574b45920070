"""The progress display: a bar on a terminal, lines elsewhere."""

import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lmtool.cli.progress import Display
from lmtool.evaluation.loop import ValidationResult
from lmtool.recipe.load import load
from lmtool.training.comparison import BitsPerByteResults
from lmtool.training.events import (
    DurationEstimate,
    RunAlreadyFinished,
    RunStarted,
    SampleGenerated,
    StepCompleted,
    TrainingEnded,
    TrainingStarted,
    Warn,
)
from lmtool.training.fit import CompletedStep

NASTY = "[red]a[/red] :smile: \x1b[31m\x07\nb"
SHOWN = "[red]a[/red] :smile: \\x1b[31m\\x07"


class Stream(io.StringIO):
    """A stderr that is a terminal or not."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        """The output without escape sequences."""
        return re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\r", "", self.getvalue())


PutStream = Callable[..., Stream]


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> PutStream:
    """Replace stderr: by a terminal of so many columns, or by a file when there are none."""

    def put(columns: int | None = None) -> Stream:
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        stream = Stream(columns is not None)
        monkeypatch.setattr(sys, "stderr", stream)
        return stream

    return put


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which only the test moves on."""
    time = [0.0]
    monkeypatch.setattr("lmtool.cli.progress.time.monotonic", lambda: time[0])
    return time


def started(data: tuple[str, ...] = ("text: 3 documents, 5,000 tokens",)) -> RunStarted:
    tokenizer: Any = SimpleNamespace(kind="bpe", vocab_size=300)
    return RunStarted(Path("runs/one"), "tiny", load("tiny").recipe, tokenizer, data, ())


def plan(first_step: int = 0, steps: int = 10, warmup_steps: int = 0) -> TrainingStarted:
    sizes = (12345, 12345, "token", "token", 4096, steps, None, first_step)
    return TrainingStarted(*sizes, epochs=1.25, device="cpu, float32", held=51_234, warmup_steps=warmup_steps)


def stepped(
    number: int, valid_loss: float | None = None, is_best: bool = False, seconds: float = 0.5, computed: int = 4096
) -> StepCompleted:
    step = CompletedStep(number, 2.5, 1e-3, 1.0, 4096, computed, seconds, micro_batch=8, stop=False)
    return StepCompleted(step, None if valid_loss is None else ValidationResult(valid_loss), is_best)


STORY = [
    started(),
    plan(),
    stepped(1),
    stepped(2, valid_loss=2.25, is_best=True),
    SampleGenerated(2, NASTY, NASTY),
    SampleGenerated(2, "one", "two"),
    Warn(NASTY),
    stepped(3),
    TrainingEnded("finished", 10, 2, 2.25, "loss"),
]


def tell(events: Sequence[Any], **options: bool) -> None:
    with Display(**({"shown": True, "quiet": False} | options)) as display:
        for event in events:
            display.show(event)


# Without a terminal


def test_steps_samples_and_warnings_are_lines_where_there_is_no_terminal(stderr: PutStream) -> None:
    """Outputs of commands have the others, such as those before the first step."""
    stream = stderr()
    tell(STORY)
    assert stream.getvalue().splitlines()[6:] == [
        "step 1/10 (10 %)  loss 2.5000  lr 1.00e-03  8,192 tokens/s  0:04 left",
        "step 2/10 (20 %)  loss 2.5000  valid loss 2.2500 (best)  lr 1.00e-03  8,192 tokens/s  0:04 left",
        "samples, one to a line: the prompt, |, what the model writes; ↵ is a line break",
        f"  {SHOWN}↵b|{SHOWN}↵b",
        "  one|two",
        f"warning: {SHOWN}\\nb",
        "finished at step 10 after 0:00; best valid loss 2.2500 at step 2",
    ]


@pytest.mark.parametrize(
    ("events", "line"),
    [
        (started(("columns: text", f"table: {NASTY}")), f"run runs/one\ncolumns: text\ntable: {SHOWN}\\nb\ntokenizer"),
        (plan(first_step=10), "plan: no more steps after 10"),
        (replace(plan(), held=512), "gradients and moments 512 B;"),
        (plan(warmup_steps=10), "only rises in these 10 steps: -s schedule.warmup_steps=1 "),
        ([replace(plan(), peak_speed=81_920.0), stepped(1)], "8,192 tokens/s  mfu 10.0 %"),
        (
            DurationEstimate(130, 5300.4, "token", 9, 5, None),
            "2:10 more here, at 5,300 tokens/s, padding included; less",
        ),
        (DurationEstimate(130, 5300.4, "pair", 9, None, 12.5), "5,300 pairs/s\nless than one pass over the data"),
        (
            RunAlreadyFinished(Path("a b"), 10, early=True),
            "lmtool resume 'a b' -s evaluation.patience=+5 trains longer",
        ),
        (TrainingEnded("early", 5, 2, 1.5, "loss"), "stopped early at step 5 after 0:00: "),
        (
            TrainingEnded("finished", 5, 2, 1.5, "loss", ("more text", "fewer passes")),
            "more text or fewer passes would",
        ),
        (TrainingEnded("interrupted", 5, None, None, "loss"), "interrupted and saved at step 5; lmtool resume"),
    ],
)
def test_lines_of_rare_events(stderr: PutStream, events: Any, line: str) -> None:
    stream = stderr()
    tell(events if isinstance(events, list) else [events])
    assert line in stream.getvalue()


def test_quiet_leaves_warnings_and_a_process_that_only_computes_nothing(stderr: PutStream) -> None:
    stream = stderr(80)
    loses = BitsPerByteResults(7, 100, 3.0, 2.5, 2.25, None)
    events = [*STORY, RunAlreadyFinished(Path("runs/one"), 10, early=False), loses]
    tell(events, shown=False)
    tell(events, quiet=True)
    starts = (f"warning: {SHOWN}\\nb", "finished: runs/one ", "  lmtool resume runs/one ", "warning: ")
    for line, start in zip(stream.getvalue().splitlines(), starts, strict=True):
        assert line.startswith(start)


# Times and speeds


def test_lines_come_every_few_seconds(stderr: PutStream, now: list[float]) -> None:
    stream = stderr()
    with Display(shown=True, quiet=False) as display:
        display.show(plan(steps=100))
        for step in range(1, 31):
            now[0] += 1
            display.show(stepped(step))
        for done in range(0, 100, 5):
            now[0] += 1
            display.report("tokenizing", done, 100)
        display.report("reading", 12345, 0)
    shown = [line.split("(")[0].strip() for line in stream.getvalue().splitlines()[3:]]
    assert shown == [
        "step 1/100",
        "step 12/100",
        "step 23/100",
        "tokenizing: 15 %, 0:17 left",
        "tokenizing: 70 %, 0:06 left",
    ]


def test_a_stage_has_the_time_of_its_own(stderr: PutStream, now: list[float]) -> None:
    """What came before does not count, and what is not begun or done has none left."""
    stream = stderr()
    with Display(shown=True, quiet=False) as display:
        for stage, *shares in (("reading", 1, 99), ("evaluating", 0, 25, 100, 0, 50)):
            for done in shares:
                now[0] += 20
                display.report(str(stage), int(done), 100)
    assert [line.removeprefix("evaluating: ") for line in stream.getvalue().splitlines()[2:]] == [
        "0 %",
        "25 %, 1:00 left",
        "100 %",
        "0 %",
        "50 %, 0:20 left",
    ]


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        # not the tokens of the last step in the mean time of all
        ([stepped(n, seconds=0.1 * n, computed=100 * n) for n in range(1, 9)] + [stepped(9, 2.0, seconds=4.096)], None),
        # without the first step, which is slow
        ([stepped(1, seconds=50), stepped(2, seconds=1.0), stepped(3, 2.0, seconds=1.0)], "4,096 tokens/s  1:37 left"),
    ],
)
def test_a_speed_is_that_of_all_recent_tokens(stderr: PutStream, steps: list[Any], end: str | None) -> None:
    stream = stderr()
    tell([plan(steps=100), *steps])
    assert (end or " 1,000 tokens/s") in stream.getvalue().splitlines()[-1]


def test_the_time_left_has_validations_in_it(stderr: PutStream, now: list[float]) -> None:
    """90 steps, and 18 validations of 3 seconds."""
    stream = stderr()
    with Display(shown=True, quiet=False) as display:
        display.show(plan(steps=100))
        for step in range(1, 11):
            now[0] += 4 if step % 5 == 0 else 1
            display.show(stepped(step, valid_loss=2.0 if step % 5 == 0 else None, seconds=1))
    assert stream.getvalue().splitlines()[-1].endswith(" 2:24 left")


# On a terminal


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_a_bar_on_a_terminal(stderr: PutStream, columns: int) -> None:
    stream = stderr(columns)
    tell(STORY)
    text = stream.text()
    assert ("━" in text) == (columns > 40)
    assert "loss 2.500 8,192 tokens/s 0:04 left" in text or columns == 40
    # Lines wrap at the width of the terminal.
    joined = "".join(text.split())
    assert "validloss2.2500(best)" in joined
    assert f"{SHOWN}↵b|{SHOWN}↵b".replace(" ", "") in joined
    # Shown literally: no markup, emoji, colours or bells come from the text.
    assert "\x07" not in stream.getvalue()
    assert "\x1b[31m\x07" not in stream.getvalue()
    assert ":smile:" in text
    # The cursor is restored.
    assert stream.getvalue().rindex("\x1b[?25h") > stream.getvalue().rindex("\x1b[?25l")


def test_no_bar_on_a_dumb_terminal_and_no_colour_when_none_is_wanted(
    stderr: PutStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stderr(80)
    monkeypatch.setenv("TERM", "dumb")
    tell(STORY)
    assert "\x1b" not in stream.getvalue()
    assert "step 1/10" in stream.getvalue()
    stream = stderr(100)
    monkeypatch.setenv("NO_COLOR", "1")
    tell(STORY)
    assert not re.search(r"\x1b\[[\d;]*3[0-7]m", stream.getvalue())


def test_work_before_training_has_a_bar_too(stderr: PutStream) -> None:
    stream = stderr(80)
    with Display(shown=True, quiet=False) as display:
        display.report("reading", 1000, 0)
        display.report("tokenizing", 500, 1000)
        display.show(started())
        display.show(plan())
    assert "tokenizing" in stream.text()
    assert "50%" in stream.text()
