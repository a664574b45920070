"""A corpus larger than any cache: seconds to the first step, tokenizing beside training, and memory along the way.

The corpus is one file of text under many names (hard links), so that 100 GB are simulated by some hundred MB: it comes
from the page cache, and the speed of a disk is not measured. Each part is a process of its own:

- train: a small model, with an empty cache; the first step, and the speed of tokenizing and training side by side
- read: one in EVERY batches of many blocks, as training reads them, without a model; memory and disk after each block
- tokenize: blocks alone, on one core and on two

    python benchmarks/streaming.py [--gigabytes 100] [--blocks 60]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizing import generate

FILE_MB = 200
"""Megabytes of the file."""

EVERY = 16
"""Of so many batches one is read without a model, so that blocks are over as soon as the next one is there."""

RECIPE = """\
model: {kind: transformer, n_layers: 1, d_model: 64, n_heads: 1, context: 128}
tokenizer: {kind: bpe, vocab_size: 4096}
training: {steps: 1000000, batch_size: 64, device: cpu, precision: float32}
optimizer: {kind: adamw, lr: 0.001}
evaluation: {every: 100000, tokens: 20000, prompts: []}
checkpoint: {every: 200}
"""


def simulate(folder: Path, gigabytes: float) -> None:
    """One file of JSON lines, documents of about a kilobyte, and hard links to it."""
    text = folder.parent / "text.txt"
    generate(text, FILE_MB, None)
    folder.mkdir()
    first = folder / "00000.jsonl"
    with text.open(encoding="utf-8") as lines, first.open("w", encoding="utf-8") as file:
        held: list[str] = []
        for line in lines:
            held.append(line)
            if len(held) == 12:
                file.write(json.dumps({"text": "".join(held)}) + "\n")
                held.clear()
    text.unlink()
    for number in range(1, round(gigabytes * 1e9 / first.stat().st_size)):
        os.link(first, folder / f"{number:05d}.jsonl")


def anonymous() -> float:
    """Megabytes of anonymous resident memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split("RssAnon:")[1].split()[0]) / 1e3


def train(folder: Path, seconds: float, began: float) -> None:
    """Train, and print when the first step was done, and tokens/s while blocks are tokenized and after that."""
    from lmtool.data.blocks import BlockStores
    from lmtool.recipe.load import settings_of
    from lmtool.training import start
    from lmtool.training.events import Stepped

    made: list[tuple[float, float, int]] = []
    write = BlockStores._write

    def timed(self: BlockStores, number: int, block: Any) -> Any:
        started = time.time()
        store = write(self, number, block)
        if store is not None:
            made.append((started, time.time(), int(store.n_bytes.sum())))
        return store

    BlockStores._write = timed  # type: ignore[method-assign]
    recipe = folder.parent / "recipe.yaml"
    recipe.write_text(RECIPE, encoding="utf-8")
    first, steps = 0.0, []
    session = start.Pretraining(str(recipe), settings_of([f"data.train={folder}", "data.stream=true"]))
    events = session.run(
        start.Invocation(
            command=["benchmark"],
            report=lambda stage, done, total: None,
            stop=lambda: bool(made) and len(made) >= 2 and time.time() > made[-1][1] + seconds,
            output=folder.parent / "run",
        ),
    )
    for event in events:
        if isinstance(event, Stepped):
            first = first or time.time()
            steps.append((time.time(), event.step.tokens))
    print(json.dumps({"first step after s": first - began}))
    beside = sum(size for *_, size in made[:2]) / 1e6 / sum(end - start for start, end, _ in made[:2])
    print(json.dumps({"tokenizing beside training MB/s": beside}))
    for name, begin, end in ("beside tokenizing", first, made[1][1]), ("alone", made[1][1], steps[-1][0]):
        tokens = sum(n for at, n in steps if begin < at <= end)
        print(json.dumps({f"training {name}, tokens/s": tokens / (end - begin)}))


def read(folder: Path, n_blocks: int) -> None:
    """Go through so many blocks, and print memory and disk after each."""
    from lmtool.compute.device import choose_compute
    from lmtool.compute.processes import World
    from lmtool.data.blocks import STREAMS
    from lmtool.durable import cache_folder
    from lmtool.objective import build_objective
    from lmtool.recipe.load import load
    from lmtool.training.data import read_text

    recipe = load(folder.parent / "recipe.yaml", [f"data.train={folder}", "data.stream=true"]).recipe
    data = read_text(recipe, None, World(), lambda stage, done, total: None)
    objective = build_objective(data.recipe, data.prompt_format.tokenizer, None)
    began, batch = time.time(), recipe.training.batch_size
    with data.streaming(choose_compute("cpu", "float32")):
        examples = data.examples(objective)
        block, step = -1, 0
        while block < n_blocks:
            objective.collate(examples.read(np.arange(step * batch, (step + 1) * batch)))
            step += EVERY
            now = examples.mark(step * batch).block
            if now > block:
                block = now
                size = sum(path.stat().st_size for path in (cache_folder() / STREAMS).rglob("*.bin"))
                figures = {
                    "block": block,
                    "seconds": time.time() - began,
                    "tokens": step * batch * recipe.model.context,
                }
                print(json.dumps(figures | {"anonymous": anonymous(), "disk": size / 1e6}), flush=True)


def tokenize(folder: Path, n_blocks: int) -> None:
    """Tokenize blocks and do nothing else, with as many threads as there are cores; print MB/s."""
    from lmtool.data import streaming
    from lmtool.data.corpus import coalesce
    from lmtool.data.prepare import encode
    from lmtool.recipe.spec.text import Data
    from lmtool.tokenization.tokenizer import Tokenizer

    text = streaming.StreamedText(Data(train=(str(folder),), stream=True), 1)
    tokenizer = Tokenizer.load(folder.parent / "run" / "tokenizer.json")
    text.read_head()
    place, size = text.head_end, 0
    began = time.perf_counter()
    for _ in range(n_blocks):
        block = streaming.Block(text, place)
        size += sum(int(chunk.n_bytes.sum()) for chunk in encode(coalesce(block.chunks()), tokenizer))
        place = block.end
    print(json.dumps({"MB/s": size / 1e6 / (time.perf_counter() - began)}))


def child(kind: str, folder: Path, n: float, cache: Path, cores: int = 2) -> list[dict[str, float]]:
    """The lines that a part of this program prints, in a process of its own on so many cores."""
    command = ["taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:cores])), sys.executable]
    command += [__file__, "--part", kind, str(folder), str(n), str(time.time())]
    environment = os.environ | {"LMTOOL_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = []
        for line in process.stdout:
            print(f"   {kind}, {cores} cores:", line, end="", flush=True)
            found.append(json.loads(line))
    if process.returncode:
        raise SystemExit(process.returncode)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=100)
    parser.add_argument("--blocks", type=int, default=60)
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part:
        kind, folder, n, began = given.part
        match kind:
            case "train":
                train(Path(folder), float(n), float(began))
            case "read":
                read(Path(folder), int(float(n)))
            case "tokenize":
                tokenize(Path(folder), int(float(n)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder, cache = Path(name) / "corpus", Path(name) / "cache"
        simulate(folder, given.gigabytes)
        files = list(folder.iterdir())
        print(f"{sum(path.stat().st_size for path in files) / 1e9:.1f} GB in {len(files)} files", flush=True)
        child("train", folder, 20, cache)
        lines = child("read", folder, given.blocks, cache)
        memory = [line["anonymous"] for line in lines[len(lines) // 10 :]]
        spread = 100 * (max(memory) / min(memory) - 1)
        print(f"anonymous memory {min(memory):.0f} to {max(memory):.0f} MB ({spread:.1f} %)")
        print(f"blocks on disk at most {max(line['disk'] for line in lines):.0f} MB")
        for cores in (1, 2):
            child("tokenize", folder, 4, cache, cores)


if __name__ == "__main__":
    main()
