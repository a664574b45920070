#!/usr/bin/env python3
"""Regression test of a refactoring: runs the same commands with two versions of lmtool and compares the results.

    scripts/same.py BASE [--only SCENARIO]

BASE: a commit, which the working tree is compared with. A scenario trains one model for a few steps, on a text or on a
table; then every command is run on it, also those that do not suit it. What they print, losses and weights are compared
bitwise, except for times and paths. Exits with 1 if anything differs.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
BEGIN = 'generate "One day" --run {run} --seed 1 --max-new-tokens 16'

ON_RUN = (
    "runs show {run} --json",
    f"{BEGIN} --greedy --json -q",
    f"{BEGIN} -n 2 --temperature 0.9 --top-k 40 --top-p 0.95 --json -q",
    f"{BEGIN} --num-beams 3 --num-return 2 --json -q",
    f"{BEGIN} --greedy --precision int8 --show-probs -q",
    'generate "One _ day" --run {run} --mask _ --by gibbs --rounds 2 --seed 1 --json -q',
    "embed {run} lines.txt --layer 0 --pool mean -q",
    "neighbors {run} the -k 4 --json -q",
    "eval {run} {test} --json -q",
    "eval {run} {test} -q",
    "predict {run} {test} -q",
    "resume {run} -s training.steps=+4 -q",
)
RECIPES = (
    *(
        "tiny",
        "shakespeare-char",
        "llama-tiny",
        "longformer-tiny",
        "bert-tiny",
        "roberta-tiny",
        "prefix-tiny",
        "t5-tiny",
    ),
    *("elman", "gru", "lstm", "lstm-attention", "elmo-tiny", "ngram", "skipgram", "cbow", "glove", "ppmi"),
)
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


def commands(name: str) -> list[str]:
    """Those of a scenario."""
    if name in RECIPES:
        train, test = [f"pretrain text.txt --recipe {name} -o runs/made {FEW}"], "valid.txt"
    else:
        recipe, arguments = TABLES[name]
        train = [f"pretrain text.txt --recipe {recipe} -o runs/base {FEW}"] if recipe else []
        train += [f"finetune {arguments} -o runs/made {ON_TABLE}{' --from runs/base' if recipe else ''}"]
        test = next(word for word in arguments.split() if "." in word).replace("nli:nli.csv:2", "nli.csv --task nli")
        test = test.replace(".csv", ".test.csv").replace(".tsv", ".test.tsv")
    return [*train, *(command.format(run="runs/made", test=test) for command in ON_RUN)]


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


def run_scenario(name: str) -> dict[str, Any]:
    """The results of the commands of a scenario, in this process and folder, with the imported lmtool."""
    from lmtool.cli import main

    found: dict[str, Any] = {}
    for command in commands(name):
        sys.argv = ["lmtool", *shlex.split(command)]
        out, err = io.StringIO(), io.StringIO()
        code: Any = 0
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                code = end.code or 0
        printed = out.getvalue()
        lines = [printed] if printed.startswith("{\n") else printed.splitlines()
        if code and command.startswith(("pretrain", "finetune")):
            sys.exit(f"{name}: {command} ended with {code}: {err.getvalue()}")
        found[command] = {"code": code, "out": [comparable(line) for line in lines]}
        found[command]["error"] = err.getvalue().splitlines() if code else []
    for run in sorted(Path("runs").iterdir()):
        found |= {f"{run}: {what}": value for what, value in made(run)}
    return found


def comparable(line: str) -> Any:
    """A line without what differs between runs."""
    try:
        return json.loads(line, object_hook=lambda one: {k: v for k, v in one.items() if k not in CLOCKS_AND_PLACES})
    except ValueError:
        return line.replace(os.getcwd(), ".")


def made(run: Path) -> Iterator[tuple[str, Any]]:
    """Losses, samples, results, and the weights of the last checkpoint of a run, whatever their names."""
    for name in ("metrics.jsonl", "samples.jsonl", "metrics.json"):
        if (path := run / name).exists():
            text = path.read_text(encoding="utf-8")
            yield name, comparable(text) if name == "metrics.json" else [comparable(line) for line in text.splitlines()]
    for path in sorted((run / "checkpoints").glob("step-*"))[-1:]:
        for file in sorted(path.glob("*.safetensors")):
            raw = file.read_bytes()
            begin = 8 + int.from_bytes(raw[:8], "little")
            spans = [tensor["data_offsets"] for tensor in json.loads(raw[8:begin]).values() if "data_offsets" in tensor]
            yield file.name, sorted(hashlib.sha256(raw[begin + a : begin + b]).hexdigest() for a, b in spans)


def record(source: Path, names: list[str]) -> dict[str, Any]:
    """The results of the lmtool in `source`, by scenario."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def ask(name: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(Path(folder))
            own = env | {"LMTOOL_CACHE": f"{folder}/cache", "LMTOOL_RUNS": f"{folder}/runs"}
            command = [sys.executable, str(Path(__file__).resolve()), "--scenario", name]
            done = subprocess.run(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True, check=True)
            return json.loads(done.stdout)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """The differences of two nested values."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from differences(before.get(key), after.get(key), f"{where} > {key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for i, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{i}]")
    elif before != after:
        yield f"{where.removeprefix(' > ')}\n    - {before!s:.300}\n    + {after!s:.300}"


def main() -> None:
    scenarios = [*RECIPES, *TABLES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?", default="HEAD")
    parser.add_argument("--only", action="append", choices=scenarios, help="a scenario; may be repeated")
    parser.add_argument("--scenario", choices=scenarios, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scenario:
        print(json.dumps(run_scenario(options.scenario)))
        return
    names = options.only or scenarios
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "worktree", "add", "-q", "--detach", folder, options.base], cwd=ROOT, check=True)
        try:
            before = record(Path(folder), names)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
    found = list(differences(before, record(ROOT, names)))
    print(*found, f"{len(names)} scenarios: {f'{len(found)} differences' if found else 'bitwise equal'}", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
