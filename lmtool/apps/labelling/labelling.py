"""The state of labelling a table: answers, the row that each window shows, and a model of the answers.

Shapes: N answered rows, J choices of an answer, K options of a choice; see `learning`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Collection
from itertools import chain, islice, takewhile
from typing import Any

import numpy as np

from lmtool.apps.labelling import learning
from lmtool.apps.labelling.journal import LockedAnswerJournal
from lmtool.apps.labelling.learning import RowFeatures
from lmtool.apps.labelling.table import Labels, TableToLabel
from lmtool.serving.errors import ApiError, BadRequest
from lmtool.serving.guard import log
from lmtool.tasks.labels import MAX_LABEL_CHARACTERS, SEPARATOR

MIN_ANSWERS_TO_LEARN = 10
"""Answers from which on a model chooses the rows. Before, diverse rows are chosen."""

RANDOM_EVERY = 5
"""One of so many rows comes in random order; such rows estimate the accuracy."""

MIN_ANSWERS_TO_ESTIMATE = 20
"""Answers from which on the accuracy is estimated and doubtful answers are listed."""

MAX_CANDIDATES = 5_000
"""Maximum rows without an answer, a random sample, from which the next ones are chosen."""

MAX_ROWS_IN_LIST = 50
"""Maximum rows of a list."""


class RowVersionConflict(ApiError):
    """Another window has answered the row. The body has the current row."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(409, "another window has answered this row; this is how it stands", code="answered")
        self.body["row"] = row


class ActiveLearningSession:
    """Answers to a table; thread-safe. A thread learns from them, from `open` to `close`.

    All rows have a fixed random order. The answered rows at its beginning, without skipped ones, are a random sample of
    the table, however they were chosen.

    estimate: accuracy, the ends of its interval, and the size of the random sample.
    wrong: rows whose answer may be wrong, and the labels that may be right, the most probable ones first.
    """

    def __init__(
        self, table: TableToLabel, journal: LockedAnswerJournal, features: RowFeatures, classes: Collection[str]
    ) -> None:
        """features: features of all rows. classes: names of classes besides those of the labels."""
        self.table, self._journal, self._features = table, journal, features
        self.classes = dict.fromkeys([*classes, *sorted({name for labels in table.labels for name in labels or ()})])
        rows = zip(table.rows, table.labels, strict=True)
        self._past: list[list[Labels | None]] = [
            [labels] if "".join(texts).strip() else [labels, labels] for (_, texts), labels in rows
        ]
        """All labels that each row has had; the last ones count. A skipped row has had None twice."""
        for entry in journal.entries:
            self._apply_entry(entry)
        self._order: list[int] = np.random.default_rng(0).permutation(len(table.rows)).tolist()
        self._queue = learning.select_diverse_rows(features, MIN_ANSWERS_TO_LEARN)
        self._held: dict[str, int] = {}
        self._n_asked = 0
        self.estimate: tuple[float, float, float, int] | None = None
        self.wrong: list[tuple[int, Labels]] = []
        self._lock, self._changed, self._ends = threading.RLock(), threading.Event(), False
        self._thread = threading.Thread(target=self._learn_until_closed, name="learning", daemon=True)

    def answers(self) -> dict[int, Labels]:
        """Returns the labels of all labelled rows."""
        with self._lock:
            return {i: past[-1] for i, past in enumerate(self._past) if past[-1] is not None}

    def row_and_version_to_json(self, row_index: int) -> dict[str, Any]:
        """Returns a row, its labels, and its version, which an answer to it must name."""
        row, texts = self.table.rows[row_index]
        labels, version = self._past[row_index][-1], len(self._past[row_index]) - 1
        pairs = [*zip(self.table.texts, texts, strict=True)]
        return {"row": row_index, "number": row.number, "texts": pairs, "labels": labels, "version": version}

    def assign_next_row(self, window_id: str) -> dict[str, Any]:
        """Returns the row to show in a window, different from those of other windows if possible, and the progress."""
        with self._lock:
            held = self._held.pop(window_id, None)
            if held is None or not self._is_unanswered(held):
                self._n_asked += 1
                queue = self._queue if self._n_asked % RANDOM_EVERY else ()
                opened = filter(self._is_unanswered, chain(queue, self._order))
                held = min(opened, key={*self._held.values()}.__contains__, default=None)
            if held is not None:
                self._held[window_id] = held
            return {
                "row": None if held is None else self.row_and_version_to_json(held),
                **self.progress_with_doubted_answers(),
            }

    def save_answer_and_assign_next(
        self, window_id: str, row_index: int, version: int, labels: list[str] | None
    ) -> dict[str, Any]:
        """Writes an answer to disk and returns `assign_next_row`. labels: None skips the row, or withdraws an answer.

        Raises BadRequest for an invalid answer, and RowVersionConflict for one to an earlier version of the row.
        """
        names = None if labels is None else tuple(dict.fromkeys(name.strip() for name in labels))
        is_wrong = any(not name or SEPARATOR in name or len(name) > MAX_LABEL_CHARACTERS for name in names or ())
        if is_wrong or not (names is None or self.table.multi_label or len(names) == 1):
            what = f"a row has one class, and any number with --multi; a name is not empty, and has no {SEPARATOR}"
            raise BadRequest(400, what, param="labels")
        with self._lock:
            if not 0 <= row_index < len(self._past):
                raise BadRequest(404, "there is no such row", param="row")
            if version != len(self._past[row_index]) - 1:
                raise RowVersionConflict(self.row_and_version_to_json(row_index))
            entry = {"row": row_index, "labels": names}
            self._journal.append_and_sync(entry)
            self._apply_entry(entry)
            self._changed.set()
            return self.assign_next_row(window_id)

    def find_rows_with_all_words(self, text: str) -> list[dict[str, Any]]:
        """Returns rows that contain all words of a text, in any case."""
        words, rows = text.casefold().split(), enumerate(self.table.rows)
        hits = (i for i, (_, texts) in rows if all(word in " ".join(texts).casefold() for word in words))
        return [self.row_and_version_to_json(i) for i in islice(hits, MAX_ROWS_IN_LIST)]

    def to_record(self) -> dict[str, Any]:
        """Returns how many rows have an answer, and the estimated accuracy of a model of them, as JSON values."""
        output, answers, rows = str(self.table.output), len(self.answers()), len(self._past)
        return {"output": output, "answers": answers, "rows": rows, "estimate": self.estimate}

    def progress_with_doubted_answers(self) -> dict[str, Any]:
        """Returns the record, the rows of each class, and doubtful answers that were not given again."""
        with self._lock:
            counts = Counter(chain.from_iterable(self.answers().values()))
            doubted = [(i, names) for i, names in self.wrong if self._past[i].count(self._past[i][-1]) == 1]
            wrong = [{**self.row_and_version_to_json(i), "suggested": names} for i, names in doubted[:MAX_ROWS_IN_LIST]]
            classes = [[name, counts[name]] for name in self.classes]
        return {**self.to_record(), "multi": self.table.multi_label, "classes": classes, "wrong": wrong}

    def describe(self) -> str:
        """Returns the record in one line."""
        line = f"{self.table.output}: {len(self.answers()):,} of {len(self._past):,} rows have an answer"
        if self.estimate is None:
            return line
        share, low, high = (f"{100 * value:.0f} %" for value in self.estimate[:3])
        return f"{line}; a model of them is right on about {share} ({low} to {high}, {self.estimate[3]:,} random rows)"

    def lines(self) -> list[str]:
        """Returns the record as text."""
        return [self.describe()]

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Writes the table, to fail early if that is impossible, and starts learning. Raises ResourceError."""
        self.table.write_labelled_csv(self.answers())
        self._changed.set()
        self._thread.start()

    def stop_accepting(self) -> None:
        """Stops learning."""
        self._ends = True
        self._changed.set()

    def close(self) -> None:
        """Waits until learning has stopped, and writes the table. Raises ResourceError."""
        self.stop_accepting()
        self._thread.join()
        self.table.write_labelled_csv(self.answers())

    def _is_unanswered(self, i: int) -> bool:
        return self._past[i] == [None]

    def _apply_entry(self, entry: dict[str, Any]) -> None:
        labels = entry["labels"]
        self._past[entry["row"]].append(None if labels is None else tuple(labels))
        self.classes |= dict.fromkeys(labels or ())

    def _learn_until_closed(self) -> None:
        while self._changed.wait() and not self._ends:
            self._changed.clear()
            try:
                self.fit_and_update_queue_and_estimates()
            except Exception:
                log.exception("nothing was learned of the answers")

    def fit_and_update_queue_and_estimates(self) -> None:
        """Fits a model of the answers, chooses the next rows, estimates its accuracy, and looks for wrong answers."""
        answers = self.answers()
        if len(answers) < MIN_ANSWERS_TO_LEARN or len({*answers.values()}) == 1:
            return
        classes, known_NF = [*self.classes], self._features[[*answers]]
        has_NC = np.array([[name in labels for name in classes] for labels in answers.values()], np.int64)
        option_NJ, n_options = (has_NC, 2) if self.table.multi_label else (has_NC.argmax(1)[:, None], len(classes))
        if left := [i for i in self._order if self._is_unanswered(i)][:MAX_CANDIDATES]:
            p_QJK = learning.fit_and_predict_probabilities(known_NF, option_NJ, self._features[left], n_options)
            self._queue = [left[k] for k in learning.rank_rows_by_margin(p_QJK)]
        if len(answers) < MIN_ANSWERS_TO_ESTIMATE:
            return
        from scipy.stats import binomtest

        p_NJK = learning.predict_out_of_fold(known_NF, option_NJ, n_options)
        right = dict(zip(answers, (p_NJK.argmax(2) == option_NJ).all(1).tolist(), strict=True))
        tried = takewhile(lambda i: not self._is_unanswered(i), self._order)
        if part := [right[i] for i in tried if i in right]:
            share = binomtest(sum(part), len(part))
            interval = share.proportion_ci(method="wilson")
            self.estimate = share.statistic, interval.low, interval.high, len(part)
        better_NJ = learning.suggest_options_by_confident_learning(p_NJK, option_NJ)
        own_N = np.take_along_axis(p_NJK, option_NJ[..., None], 2).min((1, 2))
        rows, wrong = [*answers], []
        for k in np.argsort(own_N, kind="stable"):
            if (better_NJ[k] != option_NJ[k]).any():
                chosen = np.flatnonzero(better_NJ[k]) if self.table.multi_label else better_NJ[k]
                wrong.append((rows[k], tuple(classes[c] for c in chosen)))
        self.wrong = wrong
