"""Tables of labelled texts: drawn from a program, written as CSV (RFC 4180), and measured.

A program writes the texts of one row, separated by line ends, and returns the label. A text that was drawn before is
passed over, whatever its label; so the probability of a label given its text stays what the program says.

    best accuracy       the mean over the rows of max P(label | text), exact: P(text, label) is summed over all ways in
                        which the program could have written the text. Nobody can expect more without having seen the
                        rows.
    bayes rule          the share of the rows whose label is the most probable one given the text
    majority            the share of the most frequent label of the training rows
    bag of words        naive Bayes on the words, order ignored, trained on the training rows (see NaiveBayes)
"""

import csv
import io
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from choice import Teller, derivations, written


@dataclass(frozen=True)
class Row:
    """texts: the fields of the row but for the label, in the order of the file. text: as the program wrote them."""

    texts: tuple[str, ...]
    label: str
    text: str
    bits: float


@dataclass(frozen=True)
class Table:
    """Two files of rows, <name>.csv and <name>.test.csv. order: which column the program writes first, second, ..."""

    name: str
    columns: tuple[str, ...]
    order: tuple[str, ...]
    labels: tuple[str, ...]
    program: Callable[[Teller], str]
    train_size: int
    test_size: int
    seed: int

    def drawn(self) -> Iterator[Row]:
        """Rows without end, no two with the same texts."""
        seen: set[str] = set()
        index = 0
        while True:
            one = written(self.program, random.Random(f"{self.name} {self.seed} {index}"))
            index += 1
            if one.text not in seen:
                seen.add(one.text)
                fields = dict(zip(self.order, one.text.split("\n"), strict=True))
                yield Row(tuple(fields[column] for column in self.columns), one.value, one.text, one.bits)

    @cached_property
    def rows(self) -> list[Row]:
        source = self.drawn()
        return [next(source) for _ in range(self.train_size + self.test_size)]

    @property
    def train(self) -> list[Row]:
        return self.rows[: self.train_size]

    @property
    def test(self) -> list[Row]:
        return self.rows[self.train_size :]

    def posterior(self, text: str) -> dict[str, float]:
        """P(label | text) of every label that the text can have."""
        every = derivations(self.program, text)
        least = min(one.bits for one in every)
        weights: Counter[str] = Counter()
        for one in every:
            weights[one.value] += 2.0 ** (least - one.bits)
        total = math.fsum(weights.values())
        return {label: weight / total for label, weight in weights.items()}

    def best(self, rows: Sequence[Row]) -> dict[str, float]:
        """The best accuracy to be expected on the rows, and that of the Bayes rule on their labels."""
        expected, right = [], 0
        for row in rows:
            posterior = self.posterior(row.text)
            guess = max(self.labels, key=lambda label: posterior.get(label, 0.0))
            expected.append(posterior[guess])
            right += guess == row.label
        return {"best_accuracy": round(math.fsum(expected) / len(rows), 4), "bayes_rule": round(right / len(rows), 4)}

    def baselines(self) -> dict[str, float]:
        """Accuracy on the test rows of the majority, and of bags of words: all columns, then each alone if several."""
        common = Counter(row.label for row in self.train).most_common(1)[0][0]
        found = {"majority": sum(row.label == common for row in self.test) / len(self.test)}
        found["bag_of_words"] = self.bag_of_words(range(len(self.columns)))
        if len(self.columns) > 1:
            for index, column in enumerate(self.columns):
                found[f"bag_of_words_{column}"] = self.bag_of_words([index])
        return {name: round(accuracy, 4) for name, accuracy in found.items()}

    def bag_of_words(self, columns: Sequence[int]) -> float:
        def seen(row: Row) -> str:
            return " ".join(row.texts[column] for column in columns)

        model = NaiveBayes([(seen(row), row.label) for row in self.train])
        return sum(model.label(seen(row)) == row.label for row in self.test) / len(self.test)

    def files(self) -> Iterator[tuple[str, bytes, dict[str, Any]]]:
        """(name, bytes, limit) of both files. What takes a trained model is in the limit of the test file alone."""
        for name, rows in ((f"{self.name}.csv", self.train), (f"{self.name}.test.csv", self.test)):
            counts = Counter(row.label for row in rows)
            limit: dict[str, Any] = {"rows": len(rows), "labels": {label: counts[label] for label in self.labels}}
            if rows is not self.train and name.endswith(".test.csv"):
                limit |= self.best(rows) | self.baselines()
            yield name, self.csv(rows), limit

    def csv(self, rows: Sequence[Row]) -> bytes:
        """The rows with a header. Fields are quoted where they must be; lines end with a line feed."""
        page = io.StringIO()
        writer = csv.writer(page, lineterminator="\n")
        writer.writerow([*self.columns, "label"])
        writer.writerows([*row.texts, row.label] for row in rows)
        return page.getvalue().encode()


class NaiveBayes:
    """Multinomial naive Bayes on word counts, one added to each count (Maron, 1961; McCallum and Nigam, 1998)."""

    def __init__(self, examples: Sequence[tuple[str, str]]) -> None:
        self.n_of = Counter(label for _, label in examples)
        self.words: dict[str, Counter[str]] = {label: Counter() for label in self.n_of}
        for text, label in examples:
            self.words[label].update(words_of(text))
        self.vocabulary = set().union(*self.words.values())
        self.n_words = {label: counts.total() + len(self.vocabulary) for label, counts in self.words.items()}

    def label(self, text: str) -> str:
        known = [word for word in words_of(text) if word in self.vocabulary]

        def score(label: str) -> float:
            counts, n_words = self.words[label], self.n_words[label]
            return math.log(self.n_of[label]) + math.fsum(math.log((counts[word] + 1) / n_words) for word in known)

        return max(sorted(self.n_of), key=score)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9'-]+", text.lower())
