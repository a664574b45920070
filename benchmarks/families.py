"""Bits per byte on stories.valid.txt after equal training time, beside a 5-gram and the limit.

    python benchmarks/families.py [--seconds 180]

Each contender is a recipe with overrides. A short run first tells how many steps fit into the time, so that its
schedule ends with it. The 5-gram counts the same tokens as the first contender; it needs seconds, and gets no more.
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from json import loads
from pathlib import Path

from lmtool.engine.build import load_run
from lmtool.recipe.spec import Data
from lmtool.text import bundled
from lmtool.text.prepare import default_cache, encode_files
from lmtool.text.store import TokenStore

TRAIN, VALID = "data/stories.txt", "data/stories.valid.txt"
CONTENDERS = {
    "decoder, BPE (`tiny`)": (),
    "decoder, BPE, sinusoidal positions": ("model.position.kind=sinusoidal", "model.scale_embedding=true"),
    "decoder, characters, context 512": ("tokenizer={kind: char}", "model.context=512", "training.batch_size=6"),
}
PROBE_STEPS = 60


def lmtool(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "lmtool", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def train(overrides: Sequence[str], steps: int) -> str:
    """The directory of a run of so many steps, validated at its end only."""
    fixed = (f"training.steps={steps}", f"evaluation.every={steps}", f"checkpoint.every={steps}")
    settings = [text for override in (*overrides, *fixed) for text in ("-s", override)]
    return lmtool("pretrain", TRAIN, "--quiet", *settings)


def steps_in(overrides: Sequence[str], seconds: float) -> int:
    """How many steps take that long, by the later half of a short run."""
    run = Path(train(overrides, PROBE_STEPS))
    records = [loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    half = records[len(records) // 2]
    return round(seconds * (records[-1]["step"] - half["step"]) / (records[-1]["seconds"] - half["seconds"]))


class KneserNey:
    """Interpolated Kneser-Ney, one discount for each order (Kneser and Ney 1995; Chen and Goodman 1999)."""

    def __init__(self, order: int, documents: Sequence[Sequence[int]], vocab_size: int) -> None:
        self.order, self.vocab_size = order, vocab_size
        self.counts: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        for document in documents:
            padded = self._padded(document)
            for end in range(order, len(padded) + 1):
                self.counts[order][padded[end - order : end]] += 1
        for n in range(order, 1, -1):
            # a shorter n-gram counts once for each token that it was seen behind
            for gram in self.counts[n]:
                self.counts[n - 1][gram[1:]] += 1
        self.totals: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        self.kinds: list[Counter[tuple[int, ...]]] = [Counter() for _ in range(order + 1)]
        self.discounts = [0.0]
        for n in range(1, order + 1):
            seen = Counter(self.counts[n].values())
            self.discounts.append(seen[1] / (seen[1] + 2 * seen[2]) if seen[1] else 0.5)
            for gram, count in self.counts[n].items():
                self.totals[n][gram[:-1]] += count
                self.kinds[n][gram[:-1]] += 1

    def _padded(self, document: Sequence[int]) -> tuple[int, ...]:
        """The mark of the beginning as often as the longest context needs it."""
        return (document[0],) * (self.order - 2) + tuple(document)

    def bits(self, document: Sequence[int]) -> float:
        """-log2 of the probability of all tokens but the first."""
        padded = self._padded(document)
        ends = range(self.order, len(padded) + 1)
        return -sum(math.log2(self.probability(padded[end - self.order : end])) for end in ends)

    def probability(self, gram: tuple[int, ...]) -> float:
        """Of the last token of an n-gram, given the others."""
        p = 1 / self.vocab_size
        for n in range(1, self.order + 1):
            part = gram[-n:]
            total = self.totals[n][part[:-1]]
            if total:
                discount = self.discounts[n]
                kept = max(0.0, self.counts[n][part] - discount)
                p = (kept + discount * self.kinds[n][part[:-1]] * p) / total
        return p


def documents_of(store: TokenStore) -> list[list[int]]:
    return [store.read(*store.document(number)).tolist() for number in range(store.n_documents)]


def n_gram(order: int, run: str) -> float:
    """Bits per byte of an n-gram over the tokens of a run."""
    loaded = load_run(run)
    data: Data = loaded.recipe.data
    stores = [encode_files([source], data, loaded.tokenizer, cache=default_cache()) for source in (TRAIN, VALID)]
    model = KneserNey(order, documents_of(stores[0]), loaded.tokenizer.vocab_size)
    return sum(map(model.bits, documents_of(stores[1]))) / stores[1].total_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMTOOL_RUNS"] = folder
        rows = []
        first = ""
        for name, overrides in CONTENDERS.items():
            steps = steps_in(overrides, seconds)
            began = time.perf_counter()
            run = train(overrides, steps)
            took = time.perf_counter() - began
            first = first or run
            measured = loads(lmtool("eval", run, VALID, "--json", "--quiet"))
            rows.append((name, measured["bits_per_byte"], f"{steps:,} steps, {took:.0f} s in all"))
        began = time.perf_counter()
        rows.insert(0, ("5-gram, Kneser-Ney, same BPE", n_gram(5, first), f"{time.perf_counter() - began:.0f} s"))
    limit = bundled.limit([bundled.folder() / Path(VALID).name])
    print("| model | bits per byte | training |\n|---|---|---|")
    for name, bits, how in rows:
        print(f"| {name} | {bits:.3f} | {how} |")
    print(f"| the limit | {limit:.3f} | |")


if __name__ == "__main__":
    main()
