"""Rows of tables, from which a model is trained, validated and tested."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.device import Compute
from lmtool.inference.evaluation import BATCH_TOKENS, Validation, group_by_length
from lmtool.model import LanguageModel
from lmtool.model.heads import Classifier
from lmtool.objective import Objective
from lmtool.run.files import SavedSplit, StreamPosition
from lmtool.tasks.baseline import Baseline, VectorsOf, measure_baseline
from lmtool.tasks.heads import Examined, HeadTask
from lmtool.tasks.reading import LabelledTexts
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow, TableExamples
from lmtool.tasks.split import draw_folds
from lmtool.tasks.task import AnsweringModel, Task
from lmtool.tokenization.prompt_format import PromptFormat


@dataclass(frozen=True)
class TaskRows:
    """Rows of one task.

    labelled: the texts of the rows for training and of those measured, if any, where they have labels that a baseline
    may learn.
    texts: those of the rows for training, which are validated on too; None where others are held out for that.
    """

    task: Task
    weight: float
    train: list[EncodedRow]
    valid: list[EncodedRow]
    test: list[EncodedRow] | None
    labelled: tuple[LabelledTexts, LabelledTexts | None] | None
    texts: LabelledTexts | None = None

    @property
    def part(self) -> str:
        """The part that the task is measured on, as in `Results`."""
        return "test" if self.test else "validation"


@dataclass(eq=False)
class TableData:
    """Rows of tables for training, validation and testing.

    objective: that examples are for. split: the held-out rows, as saved in the run; None where validation tables were
    given. batch_size: rows of a step. seed: of the order, and of the folds. baselines: of tasks with labels, by name,
    once they are measured. The rest: `lmtool.training.data.TextData`.
    """

    prompt_format: PromptFormat
    objective: Objective
    tasks: Sequence[TaskRows]
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    split: SavedSplit | None
    batch_size: int
    seed: int
    baselines: dict[str, Baseline] = field(default_factory=dict)

    unit = "row"
    is_measured = True
    bytes_per_token = None

    @property
    def per_epoch(self) -> int:
        return sum(max(1, round(task.weight * len(task.train))) for task in self.tasks)

    @property
    def fingerprint(self) -> str:
        """A hash of all rows for training and evaluation, and of the part that each is in."""
        digest = hashlib.sha256()

        def add(content: bytes) -> None:
            # the length keeps what is beside each other apart
            digest.update(len(content).to_bytes(8, "little") + content)

        for task in self.tasks:
            for rows in (task.train, task.valid, task.test or []):
                add(b"%d rows" % len(rows))
                for row in rows:
                    for values in (row.tokens, row.segments, row.label, row.target, row.learned, row.word_starts):
                        add(b"" if values is None else values.tobytes())
                    add(row.answer.encode())
        return digest.hexdigest()

    @property
    def holds_out(self) -> bool:
        """Whether the rows that it is validated on are not trained on."""
        return all(task.texts is None for task in self.tasks)

    @property
    def needs_folds(self) -> bool:
        """Whether rows have to be left out for a score, or for the temperature or the thresholds of a head."""
        return any(task.texts is not None and (isinstance(task.task, HeadTask) or not task.test) for task in self.tasks)

    def folds(self, n_folds: int) -> list["TableData"]:
        """The data of each fold of cross-validation: its rows are for testing, and the others for training.

        Empty where the rows of a task cannot be divided, all having the same text.
        """
        drawn = [draw_folds(cast(LabelledTexts, task.texts), n_folds, self.seed) for task in self.tasks]
        if min(map(len, drawn)) < 2:
            return []
        return [self._without(held) for held in zip(*drawn, strict=False)]

    def _without(self, held: Sequence[frozenset[int]]) -> "TableData":
        """The data in which these rows of each task, by their numbers, are for testing, and not for training."""
        tasks = []
        for task, numbers in zip(self.tasks, held, strict=True):
            train = [row for row in task.train if row.number not in numbers]
            test = [row for row in task.train if row.number in numbers]
            tasks.append(replace(task, train=train, valid=train, test=test))
        return replace(self, tasks=tasks)

    def streaming(self, compute: Compute, marks: Sequence[StreamPosition] = ()) -> AbstractContextManager[None]:
        return nullcontext()

    def token_counts(self) -> NDArray[np.int64]:
        """How often each id is in the training rows."""
        counts_V = np.zeros(self.prompt_format.tokenizer.vocab_size, dtype=np.int64)
        for tokens in (tokens for task in self.tasks for row in task.train for tokens in (row.tokens, row.target)):
            if tokens is not None:
                counts_V += np.bincount(tokens, minlength=len(counts_V))
        return counts_V

    def set_statistics(self, lm: LanguageModel) -> None:
        """Initialize a head from word counts of the training rows, if it needs them."""
        if isinstance(lm, Classifier):
            rows = self.tasks[0].train
            groups = group_by_length([row.lengths for row in rows], BATCH_TOKENS)
            lm.fit_feature_statistics_(self.objective.collate([rows[i].example() for i in group]) for group in groups)

    def measure_baselines(self, vectors_of: VectorsOf | None) -> None:
        """Set the baselines. vectors_of: of the encoder that is fine-tuned, if any."""
        self.baselines = {
            task.task.name: measure_baseline(*task.labelled, task.part, vectors_of)
            for task in self.tasks
            if task.labelled is not None
        }

    @property
    def n_valid(self) -> int:
        """Validation rows of all tables."""
        return sum(len({row.number for row in task.valid}) for task in self.tasks)

    def check(self) -> None:
        """Every row is an example."""

    def examples(self, objective: Objective) -> TableExamples:
        """Training rows."""
        rows = [row for task in self.tasks for row in task.train]
        parts = [(len(task.train), task.weight) for task in self.tasks]
        reread = self.tasks[0].task.reread
        return TableExamples(rows, self.batch_size, self.seed, parts, reread)

    def validate(self, lm: LanguageModel, objective: Objective, compute: Compute) -> Validation:
        """Loss and metrics on the validation rows of all tasks."""
        rows = [row for task in self.tasks for row in task.valid]
        return self.tasks[0].task.validate(AnsweringModel(lm, objective, compute), rows)

    @property
    def validation_tokens(self) -> int:
        return sum(sum(row.lengths) for task in self.tasks for row in task.valid)

    def estimate_final_seconds(self, validation_seconds: float) -> float:
        n_valid = sum(len(task.valid) for task in self.tasks)
        n_measured = sum(len(task.test or task.valid) for task in self.tasks if task.test or task.texts is None)
        # the answers of a head are chosen and explained by about as much computation again; texts are written; and the
        # validation rows decide of either
        return validation_seconds * (1 + 2 * n_measured / max(1, n_valid))

    def measure(self, lm: LanguageModel, objective: Objective, step: int, compute: Compute) -> list[Results]:
        """Results on the test rows of each task, or else on its validation rows; none of rows that were trained on."""
        model = AnsweringModel(lm, objective, compute)
        for task in self.tasks:
            task.task.decide(model, task.valid, held_out=task.texts is None)
        measured = [
            task.task.measure(model, task.test or task.valid, task.part, step)
            for task in self.tasks
            if task.test or task.texts is None
        ]
        return self._beside_baselines(measured)

    def measure_folds(self, folds: Iterable[tuple["TableData", AnsweringModel]], part: str, step: int) -> list[Results]:
        """Results on the test rows of folds, each by a model of the others, which also decide as validation rows do.

        part: as in `Results`. Of several folds, which only heads have, the rows are taken together.
        """
        measured: list[Results] = []
        examined: list[Examined] = []
        for data, model in folds:
            for task in data.tasks:
                rows = cast(list[EncodedRow], task.test)
                if isinstance(task.task, HeadTask):
                    examined.append(task.task.examine(model, rows))
                else:
                    measured.append(task.task.measure(model, rows, part, step))
        if examined:
            head = cast(HeadTask, self.tasks[0].task)
            head.decide_by(examined)
            measured.append(head.results(examined, part, step))
        return self._beside_baselines(measured)

    def _beside_baselines(self, measured: Sequence[Results]) -> list[Results]:
        return [replace(results, baseline=self.baselines.get(results.task)) for results in measured]
