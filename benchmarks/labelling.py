"""How many labels `lmtool label` needs, beside random order: a simulated annotator answers with the labels of a table.

    python benchmarks/labelling.py TABLE TEST [--run RUN] [--draws 3] [--rows 4000]

Wanted is the accuracy, on the test table, of logistic regression on all labels minus two points. Both orders have the
same features and the same classifier, which is fitted anew after each tenth answer, beyond 100 after each tenth part of
them. Of the chosen rows one in five is random, and counts. A draw is another order of the rows.
"""

import argparse
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from lmtool.compute.device import CPU
from lmtool.inference.load import load_run
from lmtool.labelling import learning
from lmtool.labelling.journal import Journal
from lmtool.labelling.labelling import FIRST, Labelling
from lmtool.labelling.table import TableToLabel
from lmtool.recipe.spec.text import Data

LOST = 0.02
"""Accuracy that may be missing."""


def is_turn(n: int) -> bool:
    """Whether a model is fitted to n answers."""
    return n >= FIRST and n % max(10, n // 100 * 10) == 0


class Annotator:
    """Answers with the labels that a table has. Accuracy is that on the rows of another one."""

    def __init__(self, table: TableToLabel, test: TableToLabel, features: Any) -> None:
        """features: of the rows of both, one after the other."""
        n = len(table.rows)
        self._table, self._known, self._test = table, features[:n], features[n:]
        self.classes = sorted({str(one) for labels in (*table.labels, *test.labels) for one in labels or ()})
        self._options, self._truth = (
            np.array([self.classes.index(one) for labels in part.labels for one in labels or ()])
            for part in (table, test)
        )
        self.all = self.accuracy(list(range(n)))

    def accuracy(self, rows: list[int]) -> float:
        """That of a model of the labels of these rows."""
        option_NJ = self._options[rows, None]
        p_QJK = learning.probabilities(self._known[rows], option_NJ, self._test, len(self.classes))
        return float((p_QJK[:, 0].argmax(1) == self._truth).mean())

    def chosen(self, folder: Path) -> Iterator[int]:
        """Rows in the order in which they are asked."""
        blank = TableToLabel(**{**vars(self._table), "labels": [None] * len(self._table.rows)})
        labelling = Labelling(blank, Journal(folder / "answers.jsonl", {}), self._known, self.classes)
        while (row := labelling.next("simulated")["row"]) is not None:
            labelling.answer("simulated", row["row"], row["version"], list(self._table.labels[row["row"]] or ()))
            yield row["row"]
            answers = labelling.answers()
            if is_turn(len(answers)) and len({*answers.values()}) > 1:
                labelling.choose(answers)

    def needed(self, order: Iterable[int]) -> int:
        """How many of these rows, in this order, are enough."""
        rows: list[int] = []
        for row in order:
            rows.append(row)
            if is_turn(len(rows)) and self.accuracy(rows) >= self.all - LOST:
                break
        return len(rows)


def sample(source: str, n: int) -> TableToLabel:
    """Some rows of a table, of long texts the beginning."""
    table = TableToLabel.read(source, Data(), False, None, None)
    table = ordered(table, random.Random(0).sample(range(len(table.rows)), min(n, len(table.rows))))
    short = [(row, tuple(text[:1000] for text in texts)) for row, texts in table.rows]
    return TableToLabel(**{**vars(table), "rows": short})


def ordered(table: TableToLabel, order: list[int]) -> TableToLabel:
    """A table with these rows."""
    rows, labels = [table.rows[i] for i in order], [table.labels[i] for i in order]
    return TableToLabel(**{**vars(table), "rows": rows, "labels": labels})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("test")
    parser.add_argument("--run")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4000)
    options = parser.parse_args()
    loaded = None if options.run is None else load_run(options.run, CPU)
    table, test = (sample(source, options.rows) for source in (options.table, options.test))
    texts = [" ".join(texts) for part in (table, test) for _, texts in part.rows]
    features, n = learning.features_of(texts, loaded), len(table.rows)
    counts = []
    for seed in range(options.draws):
        order = random.Random(seed).sample(range(n), n)
        annotator = Annotator(ordered(table, order), test, features[[*order, *range(n, len(texts))]])
        with TemporaryDirectory() as folder:
            counts.append((annotator.needed(range(n)), annotator.needed(annotator.chosen(Path(folder)))))
        print(f"{seed}: all labels {annotator.all:.4f}; random {counts[-1][0]}, chosen {counts[-1][1]}", flush=True)
    by_chance, chosen = np.mean(counts, axis=0)
    print(f"mean of {len(counts)}: random {by_chance:.0f}, chosen {chosen:.0f}, ratio {chosen / by_chance:.2f}")


if __name__ == "__main__":
    main()
