"""Text file to finished token store: lmtool against `datasets.map` with a fast tokenizer and grouping (run_clm's way).

Both get the same text file and the same trained byte-level BPE, and run alternately, each time in a new process and
with an empty cache. Reported are MB/s of wall time and of CPU time, which other load affects less, peak memory with
child processes, and whether the ids agree.

    python benchmarks/tokenizing.py [--megabytes 100] [--rounds 3] [--words FILE]
    python benchmarks/tokenizing.py --only lmtool --megabytes 1000 --rounds 1     # bounded memory
"""

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import psutil
from bench import describe_machine, options_of, print_head, print_row, run_in_turns

BLOCK = 1024
FRESH = 20
PROCESSES = 2


def generate(path: Path, megabytes: int, words_from: Path | None) -> None:
    """Write English-like lines: words by Zipf's law (Zipf 1935), with capitals, numbers and punctuation. Seeded.

    After FRESH megabytes the lines are repeated, each time in another order.
    """
    rng = np.random.default_rng(20)
    if words_from:
        counted = dict.fromkeys(words_from.read_text(encoding="utf-8").split())
        words = np.array(list(counted), dtype=object)
    else:
        onsets = [*"bcdfghlmnprstvw", "", "", "st", "tr", "pr", "ch", "sh", "th", "br", "gr"]
        vowels = [*"aaeeeiioou", "ea", "ou"]
        codas = ["", "", "", "n", "r", "s", "t", "l", "nd", "st", "ng", "m", "ck"]
        syllables = ["".join(s) for s in zip(*(rng.choice(x, 2000) for x in (onsets, vowels, codas)), strict=True)]
        # Frequent words are short (Zipf 1935).
        counts = np.minimum(rng.poisson(np.log10(np.arange(1, 60_001)) / 2), 4) + 1
        words = np.array(["".join(rng.choice(syllables, n)) for n in counts], dtype=object)
        words[:10] = ["the", "of", "and", "to", "a", "in", "that", "is", "don't", "I"]
    frequency = 1 / (np.arange(len(words)) + 2.7)
    frequency /= frequency.sum()
    ends = np.array([".", "?", "!", ":", ' "so."', " (1984)"], dtype=object)
    written, lines = 0, []
    with open(path, "w", encoding="utf-8") as file:
        while written < min(megabytes, FRESH) * 1_000_000:
            picked = rng.choice(words, 200_000, p=frequency)
            commas = rng.random(len(picked)) < 0.06
            picked[commas] += ","
            breaks = np.cumsum(rng.integers(4, 24, 20_000))
            parts = [" ".join(part) for part in np.split(picked, breaks[breaks < len(picked)])]
            closing = rng.choice(ends, len(parts), p=[0.8, 0.06, 0.04, 0.04, 0.04, 0.02])
            new = [f"{part.capitalize()}{end}\n" for part, end in zip(parts, closing, strict=True)]
            written += file.write("".join(new))
            lines += new
        while written < megabytes * 1_000_000:
            rng.shuffle(lines)
            written += sum(file.write(line) for line in lines)


def lmtool_way(text: Path, tokenizer: Path, out: Path, documents: str) -> None:
    """Text file -> token store, as `lmtool tokenize` does."""
    from lmtool.data.prepare import tokenize_files
    from lmtool.recipe.spec.text import Data
    from lmtool.tokenization.tokenizer import Tokenizer

    split = "slice" if documents == "whole" else "document"
    data = Data.model_validate({"documents": documents, "split": split})
    os.environ["LMTOOL_CACHE"] = str(out)
    tokenize_files([str(text)], data, Tokenizer.load(tokenizer))


def datasets_way(text: Path, tokenizer: Path, out: Path) -> None:
    """Text file -> tokenized lines -> blocks of equal length, as transformers' run_clm example does."""
    import datasets
    from transformers import PreTrainedTokenizerFast

    datasets.disable_progress_bars()
    fast = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), model_max_length=10**9)

    def group(batch):
        joined = {name: [i for row in rows for i in row] for name, rows in batch.items()}
        n = len(joined["input_ids"]) // BLOCK * BLOCK
        blocks = {name: [ids[i : i + BLOCK] for i in range(0, n, BLOCK)] for name, ids in joined.items()}
        blocks["labels"] = blocks["input_ids"].copy()
        return blocks

    lines = datasets.load_dataset(
        "text", data_files=str(text), split="train", keep_linebreaks=True, cache_dir=str(out), download_mode=None
    )
    tokens = lines.map(lambda b: fast(b["text"]), batched=True, num_proc=PROCESSES, remove_columns=["text"])
    tokens.map(group, batched=True, num_proc=PROCESSES)


def ids_agree(text: Path, tokenizer: Path, stores: Path) -> bool:
    """Whether the store has the ids of `tokenizers`, line by line as by datasets.map."""
    from tokenizers import Tokenizer as Reference

    from lmtool.data.store import TokenStore

    reference = Reference.from_file(str(tokenizer))
    store = TokenStore(next(p.parent for p in stores.glob("tokens/*/store.json")))
    at = 0
    with open(text, encoding="utf-8") as lines:
        while batch := [line for _, line in zip(range(20_000), lines, strict=False)]:
            ids = np.concatenate([e.ids for e in reference.encode_batch_fast(batch, add_special_tokens=False)])
            if not np.array_equal(ids, store.read(at, min(at + len(ids), len(store)))):
                return False
            at += len(ids)
    return at == len(store)


def measure(way: str, text: Path, tokenizer: Path, out: Path, documents: str) -> tuple[float, float, float]:
    """Wall and CPU seconds of a new process without imports, and the peak memory in MB, children included."""
    here = Path(__file__).resolve()
    environment = os.environ | {"PYTHONPATH": str(here.parents[1]), "OMP_NUM_THREADS": str(PROCESSES)}
    command = [sys.executable, str(here), "--worker", way, str(text), str(tokenizer), str(out), documents]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    watched, peak = psutil.Process(process.pid), 0
    while process.poll() is None:
        try:
            family = [watched, *watched.children(recursive=True)]
            peak = max(peak, sum(memory_of(p) for p in family))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{way} failed")
    seconds, cpu = json.loads(output.splitlines()[-1])
    return seconds, cpu, peak / 1e6


def memory_of(process: psutil.Process) -> int:
    """Memory of this process alone, so that memory shared with children counts once."""
    try:
        return int(process.memory_full_info().uss)
    except psutil.Error:
        return 0


def work(way: str, text: str, tokenizer: str, out: str, documents: str) -> None:
    """Run one contender in this process and print its seconds."""
    # Imports are excluded from the measured time.
    for module in ["lmtool.data.prepare"] if way == "lmtool" else ["datasets", "transformers.tokenization_utils_fast"]:
        importlib.import_module(module)
    started, cpu = time.perf_counter(), cpu_seconds()
    if way == "lmtool":
        lmtool_way(Path(text), Path(tokenizer), Path(out), documents)
    else:
        datasets_way(Path(text), Path(tokenizer), Path(out))
    print(json.dumps([time.perf_counter() - started, cpu_seconds() - cpu]))


def cpu_seconds() -> float:
    """CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--words", type=Path, help="take the words from this text file")
    parser.add_argument("--documents", choices=["whole", "line"], default="whole", help="documents of lmtool")
    parser.add_argument("--only", choices=["lmtool", "datasets"])
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return

    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from lmtool.recipe.spec.text import BpeTokenizer
    from lmtool.tokenization.tokenizer import Tokenizer

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        text, tokenizer = folder / "text.txt", folder / "tokenizer.json"
        generate(text, options.megabytes, options.words)
        size = text.stat().st_size / 1e6
        with open(text, encoding="utf-8") as lines:
            sample = [line for _, line in zip(range(100_000), lines, strict=False)]
        Tokenizer.train(BpeTokenizer(vocab_size=8192), sample).save(tokenizer)
        ways = [options.only] if options.only else ["lmtool", "datasets"]
        agree: list[bool] = []

        def figures_of(way: str) -> tuple[float, float, float]:
            with tempfile.TemporaryDirectory(dir=folder) as out:
                seconds, cpu, peak = measure(way, text, tokenizer, Path(out), options.documents)
                if way == "lmtool" and not agree and options.documents == "whole" and not options.only:
                    agree.append(ids_agree(text, tokenizer, Path(out)))
            return size / seconds, size / cpu, peak

        found = run_in_turns({way: partial(figures_of, way) for way in ways}, options.rounds)
    print(describe_machine())
    print_head("", "MB/s", "MB per CPU second", "peak memory, MB")
    for way, rounds in found.items():
        speed, cpu, peak = (statistics.median(column) for column in zip(*rounds, strict=True))
        print_row(way, f"{speed:.1f}", f"{cpu:.1f}", f"{peak:.0f}")
    for same in agree:
        print(f"same ids: {same}")


if __name__ == "__main__":
    main()
