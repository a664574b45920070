"""Skip-gram with negative sampling: words per second and neighbours, compared with gensim (pip install gensim).

    python benchmarks/word2vec.py [--rounds 5] [--epochs 5] [--cores 1]
    python benchmarks/word2vec.py --families

The second compares lmtool's own families of word vectors by quality, each with its recipe as it is.

Both train on data/stories.txt with the same words, dimension 100, window 5, 5 negative samples, subsampling at 1e-3, in
turns, on that many cores: lmtool with one worker and one reader thread, gensim with one worker thread per core and one
reader. Words are those of the text before subsampling; preparing the text is not timed. Quality: of the 5 nearest words
of each word of a class, the share of the same class.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from json import loads
from pathlib import Path

from lmtool.analysis.neighbors import neighbors
from lmtool.errors import UsageError
from lmtool.inference.load import load_run
from lmtool.tokenization.tokenizer import find_words

TRAIN = "data/stories.txt"
CONTEXT, BATCH, K = 512, 4, 5
CLASSES = {
    "trades": [
        "baker",
        "farmer",
        "miller",
        "gardener",
        "teacher",
        "carpenter",
        "fisher",
        "blacksmith",
        "weaver",
        "potter",
        "tailor",
        "shoemaker",
    ],
    "names": ["Anna", "Clara", "Emma", "Rosa", "Martha", "Greta", "Tom", "Ben", "Jack", "Peter", "Henry", "Sam"],
    "months": ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October"],
    "numbers": ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"],
}

Nearest = Callable[[str], list[str]]


def quality(find: Nearest) -> float:
    """Mean over all words of the classes that have vectors."""
    shares = []
    for words in CLASSES.values():
        for word in words:
            try:
                found = find(word)
            except (KeyError, UsageError):
                continue
            shares.append(sum(near in words for near in found) / K)
    return statistics.mean(shares)


def lmtool(epochs: int, n_words: int) -> tuple[float, float]:
    """Words per second and quality of lmtool's recipe `skipgram`."""
    steps = round(epochs * n_words / (CONTEXT * BATCH))
    settings = (f"training.steps={steps}", f"evaluation.every={steps}", f"checkpoint.every={steps}")
    seconds, share = trained("skipgram", *settings)
    return steps * CONTEXT * BATCH / seconds, share


def trained(recipe: str, *settings: str) -> tuple[float, float]:
    """Seconds of training and quality of the vectors of a recipe."""
    flags = [word for setting in settings for word in ("-s", setting)]
    command = [sys.executable, "-m", "lmtool", "pretrain", TRAIN, "--recipe", recipe, "-q", *flags]
    run = Path(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    seconds = loads((run / "metrics.jsonl").read_text().splitlines()[-1])["seconds"]
    loaded = load_run(str(run))
    return seconds, quality(lambda word: [near.word for near in neighbors(loaded, word, K).nearest])


def compare_families(cores: int) -> None:
    """Print seconds and quality of each family."""
    print(f"{cores} cores\n")
    print("| recipe | seconds | of the 5 nearest, in the same class |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LMTOOL_RUNS": folder, "OMP_NUM_THREADS": str(cores)}
        for recipe in ("skipgram", "cbow", "glove", "ppmi"):
            seconds, share = trained(recipe)
            print(f"| `{recipe}` | {seconds:.0f} | {share:.3f} |", flush=True)


def gensim(epochs: int, documents: list[list[str]], cores: int) -> tuple[float, float]:
    """Words per second and quality of gensim's Word2Vec."""
    from gensim.models import Word2Vec

    model = Word2Vec(vector_size=100, window=5, negative=5, sample=1e-3, min_count=1, sg=1, workers=cores)
    model.build_vocab(documents)
    began = time.perf_counter()
    model.train(documents, total_examples=model.corpus_count, epochs=epochs)
    speed = epochs * sum(map(len, documents)) / (time.perf_counter() - began)
    return speed, quality(lambda word: [near for near, _ in model.wv.most_similar(word, topn=K)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--families", action="store_true", help="compare lmtool's families of word vectors instead")
    asked = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: asked.cores])
    if asked.families:
        compare_families(asked.cores)
        return
    texts = Path(TRAIN).read_text(encoding="utf-8").split("\n\n")
    documents = [[text[start:stop] for start, stop in find_words(text)] for text in texts]
    n_words = sum(map(len, documents))
    found: dict[str, list[tuple[float, float]]] = {"lmtool": [], "gensim": []}
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LMTOOL_RUNS": folder, "OMP_NUM_THREADS": str(asked.cores)}
        for _ in range(asked.rounds):
            found["lmtool"].append(lmtool(asked.epochs, n_words))
            found["gensim"].append(gensim(asked.epochs, documents, asked.cores))
    print(f"{n_words:,} words, {asked.epochs} epochs, medians of {asked.rounds} rounds, {asked.cores} cores\n")
    print("| | words/s | of the 5 nearest, in the same class |\n|---|---|---|")
    for name, rounds in found.items():
        speed, share = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {name} | {speed:,.0f} | {share:.3f} |")


if __name__ == "__main__":
    main()
