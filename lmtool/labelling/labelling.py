"""The state of a table that is labelled: answers, which row each window is asked about, and what is learned of them.

Shapes: N answered rows, J choices of an answer, K options of a choice; see `learning`.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import chain, islice, takewhile
from typing import Any

import numpy as np

from lmtool.labelling import learning
from lmtool.labelling.journal import Journal
from lmtool.labelling.learning import Ints, RowFeatures
from lmtool.labelling.table import Labels, TableToLabel
from lmtool.serving.errors import ApiError, BadRequest
from lmtool.serving.guard import log
from lmtool.tasks.labels import LONGEST_LABEL, SEPARATOR

FIRST = 10
"""Answers from which on a model chooses the rows. The first ones are different from each other."""

RANDOM_EVERY = 5
"""One of so many rows is asked in random order: by these the accuracy is estimated."""

LEAST = 20
"""Answers from which on the accuracy is estimated, and some of them may be called wrong."""

MOST_OPEN = 5_000
"""Rows without an answer, a random sample, of which the next ones are chosen."""

MOST_SHOWN = 50
"""Rows of a list."""


class Conflict(ApiError):
    """Another window has answered. The body has the row as it stands."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(409, "another window has answered this row; this is how it stands", code="answered")
        self.body["row"] = row


class Labelling:
    """Answers to a table; safe in several threads. A thread of its own learns, from `open` to `close`.

    A random order of all rows is fixed. The random part is the beginning of it that is answered, whoever has chosen a
    row of it, so that it is a sample of the table. Rows that were passed over are no part of it.

    estimate: accuracy, the ends of its interval, and the rows of the random part.
    wrong: answers that may be wrong, and the labels that may be right, the most probable ones first.
    """

    def __init__(self, table: TableToLabel, journal: Journal, features: RowFeatures, classes: Collection[str]) -> None:
        """features: of all rows. classes: their names, where more are known than the answers have."""
        self.table, self._journal, self._features = table, journal, features
        self.classes = dict.fromkeys([*classes, *sorted({name for labels in table.labels for name in labels or ()})])
        rows = zip(table.rows, table.labels, strict=True)
        self._past: list[list[Labels | None]] = [
            [labels] if "".join(texts).strip() else [labels, labels] for (_, texts), labels in rows
        ]
        """The labels that each row has had; the last ones count. A row that was passed over has had None twice."""
        for entry in journal.entries:
            self._take(entry)
        self._order: list[int] = np.random.default_rng(0).permutation(len(table.rows)).tolist()
        self._queue = learning.different(features, FIRST)
        self._held: dict[str, int] = {}
        self._n_asked = 0
        self.estimate: tuple[float, float, float, int] | None = None
        self.wrong: list[tuple[int, Labels]] = []
        self._lock, self._changed, self._ends = threading.RLock(), threading.Event(), False
        self._thread = threading.Thread(target=self._keep_learning, name="learning", daemon=True)

    def answers(self) -> dict[int, Labels]:
        """The labels of all rows that have some."""
        with self._lock:
            return {i: past[-1] for i, past in enumerate(self._past) if past[-1] is not None}

    def row(self, i: int) -> dict[str, Any]:
        """A row, its labels, and its version, which an answer to it names."""
        row, texts = self.table.rows[i]
        labels, version = self._past[i][-1], len(self._past[i]) - 1
        pairs = [*zip(self.table.texts, texts, strict=True)]
        return {"row": i, "number": row.number, "texts": pairs, "labels": labels, "version": version}

    def next(self, window: str) -> dict[str, Any]:
        """The row that a window is asked about, another one than all others while there are any; and the progress."""
        with self._lock:
            held = self._held.pop(window, None)
            if held is None or not self._is_open(held):
                self._n_asked += 1
                queue = self._queue if self._n_asked % RANDOM_EVERY else ()
                opened = filter(self._is_open, chain(queue, self._order))
                held = min(opened, key={*self._held.values()}.__contains__, default=None)
            if held is not None:
                self._held[window] = held
            return {"row": None if held is None else self.row(held), **self.progress()}

    def answer(self, window: str, i: int, version: int, labels: list[str] | None) -> dict[str, Any]:
        """Keep an answer on the disk, then ask on. labels: None passes the row over, or takes an answer back.

        Raises BadRequest for what is no answer, and Conflict for one to an earlier version of the row.
        """
        names = None if labels is None else tuple(dict.fromkeys(name.strip() for name in labels))
        is_wrong = any(not name or SEPARATOR in name or len(name) > LONGEST_LABEL for name in names or ())
        if is_wrong or not (names is None or self.table.multi or len(names) == 1):
            what = f"a row has one class, and any number with --multi; a name is not empty, and has no {SEPARATOR}"
            raise BadRequest(400, what, param="labels")
        with self._lock:
            if not 0 <= i < len(self._past):
                raise BadRequest(404, "there is no such row", param="row")
            if version != len(self._past[i]) - 1:
                raise Conflict(self.row(i))
            entry = {"row": i, "labels": names}
            self._journal.append(entry)
            self._take(entry)
            self._changed.set()
            return self.next(window)

    def find(self, text: str) -> list[dict[str, Any]]:
        """Rows that hold all these words, in any case."""
        words, rows = text.casefold().split(), enumerate(self.table.rows)
        hits = (i for i, (_, texts) in rows if all(word in " ".join(texts).casefold() for word in words))
        return [self.row(i) for i in islice(hits, MOST_SHOWN)]

    def record(self) -> dict[str, Any]:
        """How many rows have an answer, and how often a model of the answers is right, as values."""
        output, answers, rows = str(self.table.output), len(self.answers()), len(self._past)
        return {"output": output, "answers": answers, "rows": rows, "estimate": self.estimate}

    def progress(self) -> dict[str, Any]:
        """The record, the classes and their rows, and answers that may be wrong and were not given again."""
        with self._lock:
            counts = Counter(chain.from_iterable(self.answers().values()))
            doubted = [(i, names) for i, names in self.wrong if self._past[i].count(self._past[i][-1]) == 1]
            wrong = [{**self.row(i), "suggested": names} for i, names in doubted[:MOST_SHOWN]]
            classes = [[name, counts[name]] for name in self.classes]
        return {**self.record(), "multi": self.table.multi, "classes": classes, "wrong": wrong}

    def describe(self) -> str:
        """The record in one line."""
        line = f"{self.table.output}: {len(self.answers()):,} of {len(self._past):,} rows have an answer"
        if self.estimate is None:
            return line
        share, low, high = (f"{100 * value:.0f} %" for value in self.estimate[:3])
        return f"{line}; a model of them is right on about {share} ({low} to {high}, {self.estimate[3]:,} random rows)"

    def lines(self) -> list[str]:
        """The record as text."""
        return [self.describe()]

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Write the result as it is, which must be possible, and begin to learn. Raises ResourceError."""
        self.table.write(self.answers())
        self._changed.set()
        self._thread.start()

    def stop_accepting(self) -> None:
        """Learn no more."""
        self._ends = True
        self._changed.set()

    def close(self) -> None:
        """Write the result, once nothing is learned any more. Raises ResourceError."""
        self.stop_accepting()
        self._thread.join()
        self.table.write(self.answers())

    def _is_open(self, i: int) -> bool:
        return self._past[i] == [None]

    def _take(self, entry: dict[str, Any]) -> None:
        labels = entry["labels"]
        self._past[entry["row"]].append(None if labels is None else tuple(labels))
        self.classes |= dict.fromkeys(labels or ())

    def _keep_learning(self) -> None:
        while self._changed.wait() and not self._ends:
            self._changed.clear()
            try:
                self.learn()
            except Exception:
                log.exception("nothing was learned of the answers")

    def learn(self) -> None:
        """Choose the next rows by a model of the answers, then estimate its accuracy, and look for wrong answers."""
        answers = self.answers()
        if len(answers) >= FIRST and len({*answers.values()}) > 1:
            self.choose(answers)
            if len(answers) >= LEAST:
                self._judge(answers)

    def choose(self, answers: Mapping[int, Labels]) -> None:
        """Choose the next rows by a model of the answers, which have two different ones."""
        if left := [i for i in self._order if self._is_open(i)][:MOST_OPEN]:
            known_NF, (option_NJ, n_options) = self._features[[*answers]], self._options(answers)
            p_QJK = learning.probabilities(known_NF, option_NJ, self._features[left], n_options)
            self._queue = [left[k] for k in learning.least_sure(p_QJK)]

    def _judge(self, answers: Mapping[int, Labels]) -> None:
        from scipy.stats import binomtest

        rows, (option_NJ, n_options) = [*answers], self._options(answers)
        p_NJK = learning.out_of_fold(self._features[rows], option_NJ, n_options)
        right = dict(zip(rows, (p_NJK.argmax(2) == option_NJ).all(1).tolist(), strict=True))
        tried = takewhile(lambda i: not self._is_open(i), self._order)
        if part := [right[i] for i in tried if i in right]:
            share = binomtest(sum(part), len(part))
            interval = share.proportion_ci(method="wilson")
            self.estimate = share.statistic, interval.low, interval.high, len(part)
        better_NJ = learning.suggested(p_NJK, option_NJ)
        own_N = np.take_along_axis(p_NJK, option_NJ[..., None], 2).min((1, 2))
        doubted = [k for k in np.argsort(own_N, kind="stable") if (better_NJ[k] != option_NJ[k]).any()]
        self.wrong = [(rows[k], self._labels(better_NJ[k])) for k in doubted]

    def _options(self, answers: Mapping[int, Labels]) -> tuple[Ints, int]:
        """Answers (N, J) as the options that they choose, and how many there are."""
        classes = [*self.classes]
        has_NC = np.array([[name in labels for name in classes] for labels in answers.values()], np.int64)
        return (has_NC, 2) if self.table.multi else (has_NC.argmax(1)[:, None], len(classes))

    def _labels(self, option_J: Ints) -> Labels:
        classes = [*self.classes]
        return tuple(classes[c] for c in (np.flatnonzero(option_J) if self.table.multi else option_J))
