"""Runs small enough for tests: a text, a recipe, and training sessions in this process."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from lmtool.recipe.load import Setting, parse_settings
from lmtool.runs.checkpoint import list_checkpoints, open_checkpoint_checking_sizes
from lmtool.tasks.results import Results
from lmtool.training import events, finetuning, plan, resuming, train
from lmtool.training.comparison import BitsPerByteResults
from lmtool.training.job import SessionOptions

RECIPE = """\
model: {kind: transformer, n_layers: 1, d_model: 16, n_heads: 2, context: 16, dropout: 0.1}
tokenizer: {kind: char}
training: {steps: 12, batch_size: 8, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.003}
schedule: {kind: linear, warmup_steps: 3}
evaluation: {every: 4, tokens: 200, prompts: []}
checkpoint: {every: 2, keep_optimizer: true}
"""
WITH_CLOCK = ("tokens_per_second", "seconds")
"""Keys of metrics.jsonl that differ between runs."""

Stop = Callable[[], bool]
E = TypeVar("E")


def words(n: int, seed: int = 0) -> str:
    """A text of `n` words that repeat, so that there is something to learn."""
    rng = random.Random(seed)
    stock = ["a", "cat", "dog", "sat", "on", "the", "mat", "naïve", "and", "ran", "away", "home"]
    return " ".join(rng.choice(stock) for _ in range(n))


def documents(n: int, seed: int = 0) -> str:
    """`n` documents of some words each: a line each, separated by blank lines."""
    rng = random.Random(seed)
    return "\n\n".join(words(rng.randint(5, 30), rng.randrange(1000)) for _ in range(n)) + "\n"


class MemoryStore:
    """Tokens in memory as a token store; each document starts with token 1."""

    def __init__(self, rows: Sequence[Sequence[int]]) -> None:
        self._tokens = np.array([token for row in rows for token in row], dtype=np.int64)
        self._ends = np.cumsum([len(row) for row in rows])
        self.n_documents = len(rows)

    def __len__(self) -> int:
        return len(self._tokens)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        return self._tokens[start:stop].copy()

    def document_range(self, i: int) -> tuple[int, int]:
        return int(self._ends[i - 1]) if i else 0, int(self._ends[i])

    def document_lengths(self) -> NDArray[np.int64]:
        return np.diff(self._ends, prepend=0)

    def find_documents(self, token: int) -> NDArray[np.int64]:
        return np.asarray(np.searchsorted(self._ends, token, side="right"), np.int64)


def no_report(stage: str, done: int, total: int) -> None:
    pass


def after(steps: int) -> Stop:
    """A signal in the given step of a session."""
    asked = iter(range(1, 1_000_000))
    return lambda: next(asked) >= steps


@dataclass
class Work:
    """A folder with text.txt and tiny.yaml, and the sessions in it."""

    folder: Path

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.text = self.folder / "text.txt"
        self.text.write_text(documents(60), encoding="utf-8")
        self.recipe = self.folder / "tiny.yaml"
        self.recipe.write_text(RECIPE, encoding="utf-8")

    def run(self, name: str = "run") -> Path:
        return self.folder / name

    def session(self, name: str = "run", stop: Stop = lambda: False) -> SessionOptions:
        return SessionOptions(["test"], no_report, stop, self.run(name))

    def pretrain(
        self,
        *overrides: str,
        name: str = "run",
        stop: Stop = lambda: False,
        valid: Path | None = None,
        source: Path | None = None,
        teacher: Path | None = None,
    ) -> list[Any]:
        flags = [Setting("data.train", [str(self.text)], "TEXT"), *taught_by(teacher)]
        if valid:
            flags.append(Setting("data.valid", [str(valid)], "--valid"))
        named = None if source is None else str(source)
        planned = plan.plan_pretraining(named, str(self.recipe), parse_settings(overrides, flags), no_report)
        return list(train.train(planned, self.session(name, stop)))

    def finetune(
        self,
        *overrides: str,
        source: Path,
        table: Path | None = None,
        name: str = "tuned",
        stop: Stop = lambda: False,
        teacher: Path | None = None,
    ) -> list[Any]:
        """12 steps on a table, by default of texts that are good or bad, from a run."""
        if table is None:
            rows = (f"the cat {words(i % 7)} {'ran home' if i % 2 else 'sat'},{'ab'[i % 2]}" for i in range(60))
            table = write_table(self.folder / "table.csv", rows)
        settings = ("training.epochs=null", "training.steps=12", "training.batch_size=8", "training.device=cpu")
        every = (
            "evaluation.every=4",
            "checkpoint.every=2",
            "schedule.warmup_steps=3",
            "checkpoint.keep_optimizer=true",
        )
        flags = [Setting("data.train", [str(table)], "TABLE"), *taught_by(teacher)]
        all_settings = parse_settings((*settings, *every, *overrides), flags)
        planned = finetuning.plan_finetuning(str(source), None, all_settings)
        return list(train.train(planned, self.session(name, stop)))

    def learn_table(
        self, recipe: str | Path, table: Path, *overrides: str, name: str = "run", stop: Stop = lambda: False
    ) -> list[Any]:
        """Train on a table from scratch."""
        settings = parse_settings(overrides, [Setting("data.train", [str(table)], "TABLE")])
        planned = finetuning.plan_finetuning(None, str(recipe), settings)
        return list(train.train(planned, self.session(name, stop)))

    def resume(self, *overrides: str, name: str = "run", stop: Stop = lambda: False) -> list[Any]:
        return list(resuming.resume(str(self.run(name)), parse_settings(overrides), self.session(name, stop)))


def taught_by(teacher: Path | None) -> list[Setting]:
    return [] if teacher is None else [Setting("distillation.teacher", str(teacher), "--teacher")]


def write_table(path: Path, rows: Iterable[str], header: str = "text,label") -> Path:
    """A file of lines that are rows of CSV."""
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def checkpoint_steps(run: Path) -> list[int]:
    return [step for step, _ in list_checkpoints(run / "checkpoints")]


def read_metrics_json(run: Path) -> dict[str, Any]:
    """What was measured at the end of a run."""
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return found


def assert_resumes_bit_for_bit(work: Work, learn: Callable[..., list[Any]], *stops: int, steps: int = 12) -> None:
    """Assert that `run`, interrupted after so many steps of each session, ends as `whole`, which nothing interrupts.

    learn: trains a run; is given its name and, if it is to be interrupted, `stop`.
    """
    learn(name="whole")
    assert ended(learn(name="run", stop=after(stops[0]))).reason == "interrupted"
    for n_steps in stops[1:]:
        assert ended(work.resume(stop=after(n_steps))).reason == "interrupted"
    assert not any("bitwise" in warning for warning in warnings_in(work.resume()))
    assert lasting(work.run(), steps) == lasting(work.run("whole"), steps)


def metrics(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def lasting(run: Path, step: int) -> dict[str, Any]:
    """All results of a run up to its checkpoint at `step`, without times."""
    checkpoint = run / "checkpoints" / f"step-{step:06d}"
    saved = open_checkpoint_checking_sizes(checkpoint)
    state = json.loads((checkpoint / "state.json").read_text())
    del state["seconds"]
    if state["pending"] is not None:
        state["pending"] = without_clock(state["pending"])
    samples = run / "samples.jsonl"
    return {
        "model": b"".join((checkpoint / name).read_bytes() for name in saved.model_files),
        "optimizer": b"".join((checkpoint / name).read_bytes() for name in saved.optimizer_files),
        "state": state,
        "metrics": [without_clock(record) for record in metrics(run)],
        "samples": samples.read_text() if samples.exists() else "",
        "validated": (run / "validated.json").read_text() if (run / "validated.json").exists() else "",
    }


def without_clock(record: dict[str, Any]) -> dict[str, Any]:
    """A record without times."""
    return {key: value for key, value in record.items() if key not in WITH_CLOCK}


def of_kind(told: Sequence[Any], kind: type[E]) -> list[E]:
    """The events of a kind."""
    return [event for event in told if isinstance(event, kind)]


def step_numbers(told: Sequence[Any]) -> list[int]:
    """The numbers of the steps that were taken."""
    return [event.step.step for event in of_kind(told, events.StepCompleted)]


def warnings_in(told: Sequence[Any]) -> list[str]:
    return [event.text for event in of_kind(told, events.Warn)]


def ended(told: Sequence[Any]) -> events.TrainingEnded:
    """How training ended; results of its best checkpoint may come after it, and how it is scored."""
    (last,) = of_kind(told, events.TrainingEnded)
    assert all(isinstance(event, Results | BitsPerByteResults | events.Info) for event in told[told.index(last) + 1 :])
    return last
