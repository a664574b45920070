"""Bits per byte on stories.valid.txt after equal training time, beside a 5-gram and the limit.

    python benchmarks/families.py [--seconds 180]

Each contender is a recipe with overrides. A short run first tells how many steps fit into the time, so that its
schedule ends with it. The 5-gram (recipe `ngram`) counts the same tokens as the first contender; it needs seconds, and
gets no more.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from json import loads
from pathlib import Path

from lmtool.text import bundled

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


def bits_per_byte(run: str) -> float:
    measured: float = loads(lmtool("eval", run, VALID, "--json", "--quiet"))["bits_per_byte"]
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LMTOOL_RUNS"] = folder
        rows = []
        for name, overrides in CONTENDERS.items():
            steps = steps_in(overrides, seconds)
            began = time.perf_counter()
            run = train(overrides, steps)
            took = time.perf_counter() - began
            rows.append((name, bits_per_byte(run), f"{steps:,} steps, {took:.0f} s in all"))
        began = time.perf_counter()
        run = lmtool("pretrain", TRAIN, "--recipe", "ngram", "--quiet")
        took = time.perf_counter() - began
        rows.insert(0, ("5-gram, modified Kneser-Ney, same BPE (`ngram`)", bits_per_byte(run), f"{took:.0f} s in all"))
    limit = bundled.limit([bundled.folder() / Path(VALID).name])
    print("| model | bits per byte | training |\n|---|---|---|")
    for name, bits, how in rows:
        print(f"| {name} | {bits:.3f} | {how} |")
    print(f"| the limit | {limit:.3f} | |")


if __name__ == "__main__":
    main()
