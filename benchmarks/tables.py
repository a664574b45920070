"""`lmtool finetune TABLE` beside scikit-learn: accuracy, log loss and calibration error, on whole tables and draws.

    for name in genres opinions spam topics; do lmtool data get $name -o FOLDER; done
    python benchmarks/tables.py FOLDER [--rows 200 --draws 5] [--options "--from RUN" ...] [--from RUN]
    python benchmarks/tables.py FOLDER --of-class 16 --options "--from RUN" --from RUN

Tables are NAME.csv and NAME.test.csv of the folder, whose last column is the label. Each, or each draw of some rows of
it, is given to `lmtool finetune` with no option but the seed, and with each of --options; `lmtool predict` writes what
is measured. The peers are logistic regressions (ridge regressions for numbers) on tf-idf of words and pairs, and of
these and of n-grams of up to 5 characters; with --from also on the vectors that `lmtool embed RUN` gives. Their penalty
is chosen by cross-validation. Figures of draws are means.
"""

import argparse
import csv
import json
import random
import shlex
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from bench import options_of, print_head, print_row, run_lmtool
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion
from sklearn.preprocessing import MultiLabelBinarizer

PENALTIES = (0.1, 1.0, 10.0, 100.0)

MANY, OF_MANY = 50_000, PENALTIES[1:3]
"""Rows times classes from which a peer has these penalties alone: the others take most of its time."""

MOST_SEARCHED = 3_000
"""Rows that a penalty of a peer is chosen on."""

MOST_CLASSES, MOST_TESTED = 4, 300
"""Of draws of some rows of each class: classes, and rows for testing."""

BINS = 15
"""Of the expected calibration error (Guo et al. 2017)."""

Floats = NDArray[np.float64]


class Rows(NamedTuple):
    """Of a table: texts, with their columns joined, and labels."""

    header: list[str]
    cells: list[list[str]]

    @property
    def texts(self) -> list[str]:
        return ["\n".join(row[:-1]) for row in self.cells]

    @property
    def labels(self) -> list[str]:
        return [row[-1] for row in self.cells]

    @classmethod
    def read(cls, path: Path) -> "Rows":
        with open(path, newline="") as file:
            header, *cells = csv.reader(file)
        return cls(header, cells)

    def write(self, path: Path) -> None:
        with open(path, "w", newline="") as file:
            csv.writer(file).writerows([self.header, *self.cells])

    def draw(self, n_rows: int, seed: int) -> "Rows":
        """Some rows, among which each class that the draw has is there twice at least."""
        drawn = random.Random(seed).sample(self.cells, n_rows)
        counts = Counter(row[-1] for row in drawn)
        return Rows(self.header, [row for row in drawn if counts[row[-1]] > 1 or kind_of(self.labels) != "class"])

    def draw_of_classes(self, n_rows: int, seed: int) -> "Rows":
        """So many rows of each of the first MOST_CLASSES classes that have as many."""
        cells = random.Random(seed).sample(self.cells, len(self.cells))
        counts = Counter(self.labels)
        classes = sorted(name for name, count in counts.items() if count >= n_rows)[:MOST_CLASSES]
        drawn = [row for name in classes for row in [row for row in cells if row[-1] == name][:n_rows]]
        return Rows(self.header, random.Random(seed).sample(drawn, len(drawn)))

    def of(self, classes: Collection[str]) -> "Rows":
        """Those of some classes, MOST_TESTED of them."""
        cells = [row for row in self.cells if row[-1] in classes]
        return Rows(self.header, random.Random(0).sample(cells, min(MOST_TESTED, len(cells))))


@dataclass(frozen=True)
class Scores:
    """Of predictions of test rows. value: accuracy, micro F1 or Pearson's correlation. ece: calibration error."""

    value: float
    log_loss: float = float("nan")
    ece: float = float("nan")
    seconds: float = 0.0

    @classmethod
    def of_classes(cls, p_RC: Floats, classes: Sequence[str], labels: Sequence[str], seconds: float) -> "Scores":
        index = {name: i for i, name in enumerate(classes)}
        true_R = np.array([index.get(label, -1) for label in labels])
        confidence_R, right_R = p_RC.max(1), p_RC.argmax(1) == true_R
        of_truth_R = np.where(true_R >= 0, p_RC[np.arange(len(true_R)), true_R], 0.0)
        bin_R = np.minimum((confidence_R * BINS).astype(int), BINS - 1)
        gaps = [abs((right_R - confidence_R)[bin_R == i].sum()) for i in range(BINS)]
        nats = -np.log(np.maximum(of_truth_R, 1e-7)).mean()
        return cls(float(right_R.mean()), float(nats), float(sum(gaps) / len(true_R)), seconds)

    def __str__(self) -> str:
        shown = f"{100 * self.value:.1f}"
        return shown if np.isnan(self.log_loss) else f"{shown}, {self.log_loss:.3f}, {100 * self.ece:.1f}"


def mean(scores: Sequence[Scores]) -> Scores:
    names = ("value", "log_loss", "ece", "seconds")
    return Scores(*(statistics.fmean(getattr(one, name) for one in scores) for name in names))


def kind_of(labels: Iterable[str]) -> str:
    """As lmtool decides: numbers, where all are and one is not whole or more than 20 are different; else classes."""
    labels = [*labels]
    if any(";" in label for label in labels):
        return "labels"
    try:
        numbers = {float(label) for label in labels}
    except ValueError:
        return "class"
    return "number" if len(numbers) > 20 or any(number % 1 for number in numbers) else "class"


def lmtool(train: Rows, test: Rows, kind: str, options: Sequence[str], seed: int) -> Scores:
    """Of what `lmtool predict` writes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train.write(folder / "train.csv")
        Rows(test.header[:-1], [row[:-1] for row in test.cells]).write(folder / "test.csv")

        began, runs = time.perf_counter(), f"{folder}/runs"
        command = ["finetune", "train.csv", *options, "-s", f"seed={seed}", "-o", "run"]
        run_lmtool(*command, folder=folder, LMTOOL_RUNS=runs)
        seconds = time.perf_counter() - began
        run_lmtool("predict", "run", "test.csv", "-o", "predicted.jsonl", folder=folder, LMTOOL_RUNS=runs)
        predicted = [json.loads(each) for each in (folder / "predicted.jsonl").read_text().splitlines()]
    if kind == "class":
        classes = [key.removeprefix("p_") for key in predicted[0] if key.startswith("p_")]
        p_RC = np.array([[row[f"p_{name}"] for name in classes] for row in predicted], dtype=float)
        return Scores.of_classes(p_RC, classes, test.labels, seconds)
    values = [row["predicted"] for row in predicted]
    if kind == "number":
        return Scores(correlation([float(value) for value in values], test.labels), seconds=seconds)
    of_each = [value if isinstance(value, list) else [one for one in str(value).split(";") if one] for value in values]
    return Scores(micro_f1(of_each, test.labels), seconds=seconds)


def correlation(predicted: Sequence[float] | Floats, labels: Sequence[str]) -> float:
    return float(np.nan_to_num(np.corrcoef(predicted, [float(label) for label in labels])[0, 1]))


def micro_f1(predicted: Sequence[Sequence[str]], labels: Sequence[str]) -> float:
    true = [label.split(";") for label in labels]
    binarizer = MultiLabelBinarizer().fit([*true, *predicted])
    return float(f1_score(binarizer.transform(true), binarizer.transform(predicted), average="micro"))


def scikit(features: Any, test_features: Any, train: Rows, test: Rows, kind: str) -> Scores:
    """A linear model with the penalty that cross-validation chooses, of classes once by accuracy and once by loss."""
    began, labels = time.perf_counter(), train.labels
    some = random.Random(0).sample(range(len(labels)), min(MOST_SEARCHED, len(labels)))
    few, few_labels = features[some], [labels[i] for i in some]
    least_rows = min(Counter(few_labels).values())
    folds: Any = KFold(5, shuffle=True, random_state=0)
    if kind == "number":
        search = GridSearchCV(Ridge(), {"alpha": PENALTIES}, cv=folds, refit=False)
        search.fit(few, [float(label) for label in few_labels])
        model = Ridge(**search.best_params_).fit(features, [float(label) for label in labels])
        return Scores(correlation(model.predict(test_features), test.labels), seconds=time.perf_counter() - began)
    if kind == "labels":
        binarizer = MultiLabelBinarizer().fit([label.split(";") for label in labels])
        one = OneVsRestClassifier(LogisticRegression(max_iter=1000))
        grid = {"estimator__C": PENALTIES}
        search = GridSearchCV(one, grid, cv=folds, scoring="f1_micro", refit=False)
        search.fit(few, binarizer.transform([label.split(";") for label in few_labels]))
        one.set_params(**search.best_params_).fit(features, binarizer.transform([label.split(";") for label in labels]))
        predicted = binarizer.inverse_transform(one.predict(test_features))
        return Scores(micro_f1(predicted, test.labels), seconds=time.perf_counter() - began)
    if least_rows > 1:
        folds = StratifiedKFold(min(5, least_rows), shuffle=True, random_state=0)
    by = ("accuracy", "neg_log_loss")
    penalties = PENALTIES if len(labels) * len(set(labels)) < MANY else OF_MANY
    search = GridSearchCV(LogisticRegression(max_iter=1000), {"C": penalties}, cv=folds, scoring=by, refit=False)
    search.fit(few, few_labels)
    chosen = {penalties[int(np.argmin(search.cv_results_[f"rank_test_{name}"]))] for name in by}
    fitted = [LogisticRegression(max_iter=1000, C=penalty).fit(features, labels) for penalty in chosen]
    seconds = time.perf_counter() - began
    of_each = [Scores.of_classes(one.predict_proba(test_features), [*one.classes_], test.labels, 0) for one in fitted]
    return replace(best_of(of_each), seconds=seconds)


def best_of(peers: Sequence[Scores]) -> Scores:
    """The highest value of some peers, and the lowest log loss and calibration error, maybe of others."""
    nats = min((one.log_loss for one in peers), default=float("nan"))
    return Scores(
        max(one.value for one in peers), nats, min(one.ece for one in peers), sum(one.seconds for one in peers)
    )


def of_words(train: Rows, test: Rows, kind: str) -> Scores:
    """The best of scikit-learn's models of words, and of words and characters."""
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 5), sublinear_tf=True)
    peers = []
    for features in (words, FeatureUnion([("words", words), ("characters", characters)])):
        fitted, measured = features.fit_transform(train.texts), features.transform(test.texts)
        peers.append(scikit(fitted, measured, train, test, kind))
    return best_of(peers)


def of_vectors(run: str, train: Rows, test: Rows, kind: str) -> Scores:
    """Logistic regression on the vectors of a run or published model."""
    import lmtool as package

    model = package.load(run)
    fitted, measured = (np.asarray(model.embed(part.texts, truncate=True)) for part in (train, test))
    return scikit(fitted, measured, train, test, kind)


def compare(given: argparse.Namespace) -> None:
    contenders = {"no option": []} | {options: shlex.split(options) for options in given.options}
    peers = ["scikit-learn, words"] + ["scikit-learn, vectors"] * bool(given.base)
    print_head("table", "rows", "labels", *peers, *contenders)
    for path in sorted(given.folder.glob("*.test.csv")):
        name = path.name.removesuffix(".test.csv")
        if given.only and name not in given.only:
            continue
        whole, test = Rows.read(path.with_name(f"{name}.csv")), Rows.read(path)
        kind = kind_of(whole.labels)
        seeds = range(1, given.draws + 1)
        draws = [whole.draw(given.rows, seed) for seed in seeds] if given.rows else [whole]
        if given.of_class:
            draws = [whole.draw_of_classes(given.of_class, seed) for seed in seeds]
            test = test.of(set(draws[0].labels))
        cells: list[list[Scores]] = [[] for _ in [*peers, *contenders]]
        for seed, train in enumerate(draws, 1):
            cells[0].append(of_words(train, test, kind))
            if given.base:
                cells[1].append(of_vectors(given.base, train, test, kind))
            for cell, options in zip(cells[len(peers) :], contenders.values(), strict=True):
                cell.append(lmtool(train, test, kind, options, seed))
            print(name, seed, *(str(cell[-1]) for cell in cells), sep="  ", file=sys.stderr, flush=True)
        labels = f"{len(set(whole.labels))} classes" if kind == "class" else kind
        shown = [f"{mean(cell)} ({mean(cell).seconds:.0f} s)" for cell in cells]
        print_row(name, f"{len(draws[0].cells):,}", labels, *shown)


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these tables")
    parser.add_argument("--rows", type=int, metavar="N", help="draws of N rows instead of whole tables")
    parser.add_argument("--of-class", type=int, metavar="N", help="draws of N rows of each of a few classes")
    parser.add_argument("--draws", type=int, default=5, metavar="K")
    parser.add_argument("--options", nargs="+", default=(), metavar="OPTIONS", help="more ways of fine-tuning")
    parser.add_argument("--from", dest="base", metavar="RUN", help="whose vectors are a peer")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    compare(given)


if __name__ == "__main__":
    main()
