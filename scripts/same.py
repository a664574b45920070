#!/usr/bin/env python3
"""Regression test of a refactoring: runs the same commands with two versions of lmtool and compares the results.

    scripts/same.py BASE [--only SCENARIO]

BASE: a commit, which the working tree is compared with. A scenario trains one model for a few steps, on a text or on a
table; then every command is run on it, also those that do not suit it. What they print, losses and weights are compared
bitwise, except for times and paths. Exits with 1 if anything differs, and shows it.
"""

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLOCKS_AND_PLACES = {
    *("seconds", "tokens_per_second", "megabytes_per_second", "started", "created", "ended", "pid", "environment"),
    *("command", "path", "run", "checkpoint", "bytes", "checkpoints", "fingerprints", "sha256", "base"),
}
"""JSON keys whose values differ between runs, or are names that a version may change."""
FEW = "-s training.device=cpu -s training.steps=20 -s evaluation.every=10 -s checkpoint.every=10 -q"
ON_TABLE = "-s training.device=cpu --epochs 1 -s evaluation.every=4 -s checkpoint.every=4 -q"
BEGIN = 'generate "One day" --run runs/made --seed 1 --max-new-tokens 16'
ON_RUN = (
    "runs show runs/made --json",
    f"{BEGIN} --greedy --json -q",
    f"{BEGIN} -n 2 --temperature 0.9 --top-k 40 --top-p 0.95 --json -q",
    f"{BEGIN} --num-beams 3 --num-return 2 --json -q",
    f"{BEGIN} --greedy --precision int8 --show-probs -q",
    'generate "One _ day" --run runs/made --mask _ --by gibbs --rounds 2 --seed 1 --json -q',
    "embed runs/made lines.txt --layer 0 --pool mean -q",
    "neighbors runs/made the -k 4 --json -q",
    "eval runs/made {test} --json -q",
    "eval runs/made {test} -q",
    "predict runs/made {test} -q",
    "resume runs/made -s training.steps=+4 -q",
)
RECIPES = [
    *("tiny", "shakespeare-char", "llama-tiny", "longformer-tiny", "bert-tiny", "roberta-tiny", "prefix-tiny"),
    *("t5-tiny", "elman", "gru", "lstm", "lstm-attention", "elmo-tiny", "ngram", "skipgram", "cbow", "glove", "ppmi"),
]
TABLES = {
    "class": ("tiny", "reviews.csv --class-weights balanced"),
    "pairs of texts": ("bert-tiny", "nli.csv"),
    "number": ("tiny", "number.csv --metric correlation"),
    "multi": ("gru", "multi.csv"),
    "adapters": ("llama-tiny", "reviews.csv --lora-rank 2"),
    "features": ("elmo-tiny", "reviews.csv -s 'tuning={freeze: none, layer_decay: 0.5, unfreeze_every: 2}'"),
    "prefix": ("prefix-tiny", "pairs.tsv"),
    "tasks": ("t5-tiny", "--task nli:nli.csv:2 --task review:reviews.csv"),
}
TABLES |= {recipe: ("", f"reviews.csv --recipe {recipe}") for recipe in ("dan", "linear", "naive-bayes")}
TABLES |= {recipe: ("", f"pairs.tsv --recipe {recipe}") for recipe in ("seq2seq", "seq2seq-luong", "transformer-tiny")}
"""The base that is fine-tuned, if any, and the table with options."""


def list_commands(scenario: str) -> list[str]:
    if scenario in RECIPES:
        train, test = [f"pretrain text.txt --recipe {scenario} -o runs/made {FEW}"], "valid.txt"
    else:
        recipe, arguments = TABLES[scenario]
        train = [f"pretrain text.txt --recipe {recipe} -o runs/base {FEW}"] if recipe else []
        train += [f"finetune {arguments} -o runs/made {ON_TABLE}{' --from runs/base' if recipe else ''}"]
        test = next(word for word in arguments.split() if "." in word).replace("nli:nli.csv:2", "nli.csv --task nli")
        test = test.replace(".csv", ".test.csv").replace(".tsv", ".test.tsv")
    return [*train, *(command.format(test=test) for command in ON_RUN)]


def write_inputs(folder: Path) -> None:
    """A small text and small tables of every kind, from the bundled ones of this checkout."""

    def write(name: str, bundled: str, n: int, separator: str = "\n") -> list[str]:
        lines = (ROOT / "data" / bundled).read_text(encoding="utf-8").split(separator)[:n]
        (folder / name).write_text(separator.join(lines) + "\n", encoding="utf-8")
        return lines

    write("text.txt", "stories.txt", 300, "\n\n")
    write("valid.txt", "stories.valid.txt", 12, "\n\n")
    (folder / "lines.txt").write_text("One day Anna ran.\nThe old mill, by the river, was closed.\n", encoding="utf-8")
    for part, n in (("", 240), (".test", 60)):
        texts = [row.rpartition(",")[0] for row in write(f"reviews{part}.csv", f"reviews{part}.csv", n)[1:]]
        numbers = [f"{text},{(31 * i) % 17 / 2}" for i, text in enumerate(texts)]
        labels = [f"{text},{';'.join('abc'[: 1 + i % 3])}" for i, text in enumerate(texts)]
        (folder / f"number{part}.csv").write_text("\n".join(["text,score", *numbers, ""]), encoding="utf-8")
        (folder / f"multi{part}.csv").write_text("\n".join(["text,tags", *labels, ""]), encoding="utf-8")
        write(f"nli{part}.csv", f"entailment{part}.csv", n)
        write(f"pairs{part}.tsv", f"translation{part}.tsv", n)


def print_results(scenario: str) -> None:
    """Run the commands of a scenario with the imported lmtool, in this folder, and print all that is compared."""
    from lmtool.cli import main

    for command in list_commands(scenario):
        sys.argv = ["lmtool", *shlex.split(command)]
        code: Any = 0
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        if code and command.startswith(("pretrain", "finetune")):
            sys.exit(f"{scenario}: {command} ended with {code}: {err.getvalue()}")
        print(f"{scenario}: {command}: exit code {code}", *comparable_lines(out.getvalue()), sep="\n")
        if code:
            print(err.getvalue())
    for run in sorted(Path("runs").iterdir()):
        for name in ("metrics.jsonl", "samples.jsonl", "metrics.json"):
            if (path := run / name).exists():
                print(f"{scenario}: {path}", *comparable_lines(path.read_text(encoding="utf-8")), sep="\n")
        for path in sorted((run / "checkpoints").glob("step-*"))[-1:]:
            for file in sorted(path.glob("*.safetensors")):
                print(f"{scenario}: {file}", *hash_tensors(file), sep="\n")


def comparable_lines(text: str) -> Iterator[str]:
    """The lines of a text without what differs between runs. One that is JSON as a whole is one line."""
    for line in [text] if text.startswith("{\n") else text.splitlines():
        try:
            kept = json.loads(line, object_hook=lambda x: {k: v for k, v in x.items() if k not in CLOCKS_AND_PLACES})
            yield from json.dumps(kept, indent=1, sort_keys=True).splitlines()
        except ValueError:
            yield line.replace(os.getcwd(), ".")


def hash_tensors(file: Path) -> list[str]:
    """The digests of the tensors of a file, whatever their names."""
    raw = file.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    spans = [tensor["data_offsets"] for tensor in json.loads(raw[8:begin]).values() if "data_offsets" in tensor]
    return sorted(hashlib.sha256(raw[begin + a : begin + b]).hexdigest() for a, b in spans)


def record(source: Path, names: list[str]) -> str:
    """The results of the lmtool in `source`, one scenario after the other."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def ask(name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(Path(folder))
            own = env | {"LMTOOL_CACHE": f"{folder}/cache", "LMTOOL_RUNS": f"{folder}/runs"}
            command = [sys.executable, str(Path(__file__).resolve()), "--scenario", name]
            return subprocess.run(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True, check=True).stdout

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return "".join(pool.map(ask, names))


def main() -> None:
    scenarios = [*RECIPES, *TABLES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD")
    parser.add_argument("--only", action="append", choices=scenarios, help="a scenario; may be repeated")
    parser.add_argument("--scenario", choices=scenarios, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scenario:
        print_results(options.scenario)
        return
    names = options.only or scenarios
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "-q", "--detach", folder, options.base], cwd=ROOT, check=True)
        try:
            before = record(Path(folder), names)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, results in (("before", before), ("after", record(ROOT, names))):
            Path(folder, name).write_text(results, encoding="utf-8")
        differs = subprocess.run(["git", "--no-pager", "diff", "--no-index", "before", "after"], cwd=folder).returncode
    print(f"{len(names)} scenarios: {'they differ' if differs else 'bitwise equal'}")
    sys.exit(differs)


if __name__ == "__main__":
    main()
