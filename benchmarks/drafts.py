"""Speculative decoding: tokens per second of a run without a draft, with n-gram look-up, and with smaller runs.

    python benchmarks/drafts.py RUN [--draft RUN ...] [--tokens 4 8] [--precision float32 int8] [--new 96] [--rounds 3]

One text at a time, greedily. Of three prompts one is answered by quoting it, one by code with repetitions, and one by
free text; a draft gains on each what it foretells of it. Contenders alternate; figures are medians of rounds. Tokens
are compared with those written without a draft: they differ only where rounding decides between near ties.
"""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

from lmtool import SamplingParams, load
from lmtool.api import TrainedModel
from lmtool.generation.request import Completion

PROMPTS = {
    "quoting": "Correct the spelling of this text, and change nothing else: The old lighthouse stood at the end of "
    "the pier. Every evening the keeper climbed the stairs of the old lighthouse, lit the lamp, and looked at the sea. "
    "Every morning the keeper put out the lamp, and walked back along the pier. Corrected text: The old lighthouse",
    "code": "class Point:\n    def __init__(self, x, y, z):\n        self.x = x\n        self.y = y\n",
    "free": "Once upon a time, in a village by the sea,",
}


@dataclass(frozen=True)
class Contender:
    """A run with or without a draft."""

    name: str
    model: TrainedModel


def contenders(run: str, drafts: list[str], sizes: list[int], precision: str) -> list[Contender]:
    found = [Contender("no draft", load(run, precision=precision))]
    for draft in ["ngram", *drafts]:
        for n in sizes:
            found.append(Contender(f"{draft}, {n} tokens", load(run, precision=precision, draft=draft, draft_tokens=n)))
    return found


def same(tokens: tuple[int, ...], others: tuple[int, ...]) -> float:
    """The share of the tokens before the first difference."""
    pairs = zip(tokens, others, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(tokens)) / len(tokens)


def compare(running: list[Contender], prompt: str, n_new: int, rounds: int) -> None:
    settings = SamplingParams("greedy", max_new_tokens=n_new, min_new_tokens=n_new)
    seconds: dict[str, list[float]] = {one.name: [] for one in running}
    written: dict[str, Completion] = {}
    for turn in range(rounds + 1):  # the first one warms up
        for one in running:
            began = time.perf_counter()
            (written[one.name],) = one.model.completions(PROMPTS[prompt], settings)
            if turn:
                seconds[one.name].append(time.perf_counter() - began)
    plainly = running[0].name
    for name, taken in seconds.items():
        done = written[name]
        speed = n_new / statistics.median(taken)
        gain = statistics.median(
            taken_plainly / own for taken_plainly, own in zip(seconds[plainly], taken, strict=True)
        )
        drafted = ""
        if done.proposed:
            passes = n_new - done.accepted
            drafted = f"  {100 * done.accepted / done.proposed:3.0f} % accepted, {n_new / passes:4.2f} tokens a pass"
        equal = 100 * same(written[plainly].tokens, done.tokens)
        print(f"{prompt:8} {name:28}{speed:8.1f} tokens/s{gain:6.2f} x  {equal:5.1f} % equal{drafted}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--draft", nargs="*", default=[])
    parser.add_argument("--tokens", nargs="+", type=int, default=[4])
    parser.add_argument("--precision", nargs="+", default=["float32", "int8"])
    parser.add_argument("--new", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    for precision in given.precision:
        running = contenders(given.run, given.draft, given.tokens, precision)
        print(f"{precision}, {torch.get_num_threads()} threads, torch {torch.__version__}, {given.new} new tokens")
        for prompt in PROMPTS:
            compare(running, prompt, given.new, given.rounds)


if __name__ == "__main__":
    main()
