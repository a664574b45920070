"""Tables of labelled texts: drawn from a program, written as CSV (RFC 4180), and measured.

A program writes the texts of one row, separated by line ends and the last column first, and returns the label. A text
that was drawn before is passed over, whatever its label; so the probability of a label given its text stays what the
program says.

    best accuracy       the mean over the rows of max P(label | text), exact: P(text, label) is summed over all ways in
                        which the program could have written the text. Nobody can expect more without having seen the
                        rows.
    bayes rule          the share of the rows whose label is the most probable one given the text
    majority            the share of the most frequent label of the training rows
    bag of words        naive Bayes on the words of all columns or of one, order ignored, trained on the training rows
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from choice import Files, Program, Written, derivations, draw_files


@dataclass(frozen=True)
class Table:
    """Two files of rows, <name>.csv and <name>.test.csv. The value of a row is its label."""

    name: str
    columns: tuple[str, ...]
    labels: tuple[str, ...]
    program: Program  # returns the label
    train_size: int
    test_size: int

    @cached_property
    def rows(self) -> dict[str, list[Written]]:
        """The rows of each file."""
        sizes = {f"{self.name}.csv": self.train_size, f"{self.name}.test.csv": self.test_size}
        return dict(draw_files(self.program, f"{self.name} 7", sizes))

    @property
    def train(self) -> list[Written]:
        return self.rows[f"{self.name}.csv"]

    @property
    def test(self) -> list[Written]:
        return self.rows[f"{self.name}.test.csv"]

    def posterior(self, text: str) -> dict[str, float]:
        """P(label | text) of every label that the text can have."""
        every = derivations(self.program, text)
        least = min(one.bits for one in every)
        weights: Counter[str] = Counter()
        for one in every:
            weights[one.value] += 2.0 ** (least - one.bits)
        total = math.fsum(weights.values())
        return {label: weight / total for label, weight in weights.items()}

    def best(self, rows: Sequence[Written]) -> dict[str, float]:
        """The best accuracy to be expected on the rows, and that of the Bayes rule on their labels."""
        expected, right = [], 0
        for row in rows:
            posterior = self.posterior(row.text)
            guess = max(self.labels, key=lambda label: posterior.get(label, 0.0))
            expected.append(posterior[guess])
            right += guess == row.value
        return {"best_accuracy": round(math.fsum(expected) / len(rows), 4), "bayes_rule": round(right / len(rows), 4)}

    def baselines(self) -> dict[str, float]:
        """Accuracy on the test rows of the majority, and of bags of words: all columns, then each alone if several."""
        common = Counter(row.value for row in self.train).most_common(1)[0][0]
        found = {"majority": sum(row.value == common for row in self.test) / len(self.test)}
        found["bag_of_words"] = bag_of_words_accuracy(self.train, self.test, slice(None))
        if len(self.columns) > 1:
            for i, column in enumerate(self.columns):
                found[f"bag_of_words_{column}"] = bag_of_words_accuracy(self.train, self.test, slice(i, i + 1))
        return {name: round(accuracy, 4) for name, accuracy in found.items()}

    def files(self) -> Files:
        """Both files. What takes a trained model is in the limit of the test file alone."""
        for name, rows in self.rows.items():
            counts = Counter(row.value for row in rows)
            limit: dict[str, Any] = {"rows": len(rows), "labels": {label: counts[label] for label in self.labels}}
            yield name, self.csv(rows), limit | (self.best(rows) | self.baselines() if rows is self.test else {})

    def csv(self, rows: Sequence[Written]) -> bytes:
        """The rows with a header. Fields are quoted where they must; lines end with a line feed."""
        page = io.StringIO()
        writer = csv.writer(page, lineterminator="\n")
        writer.writerow([*self.columns, "label"])
        writer.writerows([*fields(row), row.value] for row in rows)
        return page.getvalue().encode()


def fields(row: Written) -> list[str]:
    """The texts of a row in the order of the columns."""
    return row.text.split("\n")[::-1]


def bag_of_words_accuracy(train: Sequence[Written], test: Sequence[Written], columns: slice) -> float:
    """The accuracy of multinomial naive Bayes on the word counts of some columns.

    One is added to each count (Maron, 1961; McCallum and Nigam, 1998).
    """

    def words_of(row: Written) -> list[str]:
        return re.findall(r"[a-z0-9'-]+", " ".join(fields(row)[columns]).lower())

    n_rows = Counter(row.value for row in train)
    counts: dict[str, Counter[str]] = {label: Counter() for label in sorted(n_rows)}
    for row in train:
        counts[row.value].update(words_of(row))
    vocabulary = set().union(*counts.values())
    n_words = {label: words.total() + len(vocabulary) for label, words in counts.items()}
    right = 0
    for row in test:
        known = [word for word in words_of(row) if word in vocabulary]
        scores = {
            label: math.log(n_rows[label]) + math.fsum(math.log((words[word] + 1) / n_words[label]) for word in known)
            for label, words in counts.items()
        }
        right += max(scores, key=scores.__getitem__) == row.value
    return right / len(test)
