"""Rows of tables on which a model is trained, validated and tested."""

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from lmtool.compute.device import ExecutionContext
from lmtool.evaluation.loop import BATCH_TOKENS, ValidationResult, group_by_length
from lmtool.model import LanguageModel
from lmtool.model.heads import Classifier
from lmtool.objective import Objective
from lmtool.runs.files import SavedSplit, StreamPosition
from lmtool.tasks.baseline import Baseline, EmbedTexts, score_or_cross_validate_baseline
from lmtool.tasks.heads import HeadTask, ScoredRows
from lmtool.tasks.reading import LabelledTable
from lmtool.tasks.results import Results
from lmtool.tasks.rows import EncodedRow, LengthBucketedExamples
from lmtool.tasks.split import draw_stratified_folds
from lmtool.tasks.task import ModelWithObjective, Task
from lmtool.tokenization.prompt_format import PromptFormat


@dataclass(frozen=True)
class TaskRowSplits:
    """Rows of one task.

    Args:
        weight: how often an epoch has each training row.
        labelled: texts and labels of the training rows and of the measured ones, if any, for a baseline; None if their
            labels do not suit one.
        texts: of the training rows, if the model is validated on them too; None if other rows are held out.
        description_lines, warnings: about the tables, for people.
    """

    task: Task
    weight: float
    train: list[EncodedRow]
    valid: list[EncodedRow]
    test: list[EncodedRow] | None
    labelled: tuple[LabelledTable, LabelledTable | None] | None
    texts: LabelledTable | None
    description_lines: list[str]
    warnings: list[str]

    @property
    def measured_part(self) -> str:
        """The part that the task is measured on, as in `Results`."""
        return "test" if self.test else "validation"


@dataclass(eq=False)
class TableData:
    """Rows of tables for training, validation and testing. Other members are those of `lmtool.training.data.TextData`.

    Args:
        objective: of the examples.
        split: the held-out rows, as saved in the run; None if validation tables were given.
        batch_size: rows of a step.
        seed: of the order, and of the folds.
        baselines: of tasks with labels, by name, once they are measured.
    """

    prompt_format: PromptFormat
    objective: Objective
    tasks: Sequence[TaskRowSplits]
    split: SavedSplit | None
    batch_size: int
    seed: int
    baselines: dict[str, Baseline] = field(default_factory=dict)

    unit = "row"
    is_measured = True
    validation_bytes_per_token = None

    @property
    def description_lines(self) -> tuple[str, ...]:
        return tuple(line for task in self.tasks for line in task.description_lines)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(warning for task in self.tasks for warning in task.warnings)

    @property
    def examples_per_epoch(self) -> int:
        return sum(max(1, round(task.weight * len(task.train))) for task in self.tasks)

    @property
    def fingerprint(self) -> str:
        """A hash of all rows for training and evaluation, and of the part that each is in."""
        digest = hashlib.sha256()

        def update(content: bytes) -> None:
            # The length separates consecutive contents.
            digest.update(len(content).to_bytes(8, "little") + content)

        for task in self.tasks:
            for rows in (task.train, task.valid, task.test or []):
                update(b"%d rows" % len(rows))
                for row in rows:
                    for values in (row.tokens, row.segments, row.label, row.target, row.learned, row.word_starts):
                        update(b"" if values is None else values.tobytes())
                    update(row.answer.encode())
        return digest.hexdigest()

    @property
    def holds_out(self) -> bool:
        """Whether the model is validated on rows that it is not trained on."""
        return all(task.texts is None for task in self.tasks)

    @property
    def needs_folds(self) -> bool:
        """Whether rows have to be left out for a score, or for the temperature or the thresholds of a head."""
        return any(task.texts is not None and (isinstance(task.task, HeadTask) or not task.test) for task in self.tasks)

    def make_train_test_folds(self, n_folds: int) -> list["TableData"]:
        """Returns the data of each fold of cross-validation: its rows are for testing, the others for training.

        Returns none if the rows of a task cannot be divided because all have the same text.
        """
        folds_of_tasks = [
            draw_stratified_folds(cast(LabelledTable, task.texts), n_folds, self.seed) for task in self.tasks
        ]
        if min(map(len, folds_of_tasks)) < 2:
            return []
        data_of_folds = []
        for numbers_by_task in zip(*folds_of_tasks, strict=False):
            tasks = []
            for task, numbers in zip(self.tasks, numbers_by_task, strict=True):
                train = [row for row in task.train if row.number not in numbers]
                test = [row for row in task.train if row.number in numbers]
                tasks.append(replace(task, train=train, valid=train, test=test))
            data_of_folds.append(replace(self, tasks=tasks))
        return data_of_folds

    def open_streams_for_training(
        self, compute: ExecutionContext, resume_positions: Sequence[StreamPosition] = ()
    ) -> AbstractContextManager[None]:
        return nullcontext()

    def count_training_tokens_per_id(self) -> NDArray[np.int64]:
        """Counts how often each token id is in the training rows (V)."""
        counts_V = np.zeros(self.prompt_format.tokenizer.vocab_size, dtype=np.int64)
        for tokens in (tokens for task in self.tasks for row in task.train for tokens in (row.tokens, row.target)):
            if tokens is not None:
                counts_V += np.bincount(tokens, minlength=len(counts_V))
        return counts_V

    def initialize_from_data_(self, lm: LanguageModel) -> None:
        """Initializes a head with the word counts of the training rows, if it needs them."""
        if isinstance(lm, Classifier):
            rows = self.tasks[0].train
            groups = group_by_length([row.lengths for row in rows], BATCH_TOKENS)
            lm.fit_idf_and_log_ratios_(
                self.objective.collate([rows[i].to_example() for i in group]) for group in groups
            )

    def measure_baselines(self, embed_texts: EmbedTexts | None) -> None:
        """Measures `baselines`. embed_texts: of the encoder that is fine-tuned, if any."""
        self.baselines = {
            task.task.name: score_or_cross_validate_baseline(*task.labelled, task.measured_part, embed_texts)
            for task in self.tasks
            if task.labelled is not None
        }

    @property
    def n_valid(self) -> int:
        """The number of validation rows of all tables."""
        return sum(len({row.number for row in task.valid}) for task in self.tasks)

    def check_has_examples(self) -> None:
        """Does nothing, because every row is an example."""

    def make_training_examples(self, objective: Objective) -> LengthBucketedExamples:
        """Returns the training rows in their order."""
        rows = [row for task in self.tasks for row in task.train]
        parts = [(len(task.train), task.weight) for task in self.tasks]
        return LengthBucketedExamples(rows, self.batch_size, self.seed, parts, self.tasks[0].task.resample_row)

    def validate(self, lm: LanguageModel, objective: Objective, compute: ExecutionContext) -> ValidationResult:
        """Computes loss and metrics on the validation rows of all tasks."""
        rows = [row for task in self.tasks for row in task.valid]
        return self.tasks[0].task.validate(ModelWithObjective(lm, objective, compute), rows)

    @property
    def validation_tokens(self) -> int:
        return sum(sum(row.lengths) for task in self.tasks for row in task.valid)

    def estimate_final_evaluation_seconds(self, validation_seconds: float) -> float:
        n_valid = sum(len(task.valid) for task in self.tasks)
        n_measured = sum(len(task.test or task.valid) for task in self.tasks if task.test or task.texts is None)
        # Choosing and explaining the predictions of a head takes about as much computation again, as does generating
        # texts; and validation rows calibrate either.
        return validation_seconds * (1 + 2 * n_measured / max(1, n_valid))

    def compute_results(
        self, lm: LanguageModel, objective: Objective, step: int, compute: ExecutionContext
    ) -> list[Results]:
        """Computes results on the test rows of each task, or else on its validation rows if these are held out."""
        model = ModelWithObjective(lm, objective, compute)
        for task in self.tasks:
            task.task.calibrate(model, task.valid, held_out=task.texts is None)
        results = [
            task.task.compute_results(model, task.test or task.valid, task.measured_part, step)
            for task in self.tasks
            if task.test or task.texts is None
        ]
        return self._add_baselines(results)

    def calibrate_and_compute_pooled_results(
        self, folds: Iterable[tuple["TableData", ModelWithObjective]], part: str, step: int
    ) -> list[Results]:
        """Computes results on the test rows of folds, each by a model of the other rows.

        The test rows of a head calibrate it too, and those of all folds are taken together; there is one fold of other
        tasks.

        part: as in `Results`.
        """
        results: list[Results] = []
        scored: list[ScoredRows] = []
        for data, model in folds:
            for task in data.tasks:
                rows = cast(list[EncodedRow], task.test)
                if isinstance(task.task, HeadTask):
                    scored.append(task.task.score_rows_and_explain_mistakes(model, rows))
                else:
                    results.append(task.task.compute_results(model, rows, part, step))
        if scored:
            head = cast(HeadTask, self.tasks[0].task)
            head.calibrate_on(scored)
            results.append(head.summarize(scored, part, step))
        return self._add_baselines(results)

    def _add_baselines(self, results: Sequence[Results]) -> list[Results]:
        return [replace(one, baseline=self.baselines.get(one.task)) for one in results]
