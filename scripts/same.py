#!/usr/bin/env python3
"""Regression test of a refactoring: runs the same commands with two versions of lmtool and compares the results.

    scripts/same.py BASE [HEAD]

BASE, HEAD: commits; HEAD is the working tree by default. Every family is trained for 20 steps with its shipped recipe
and resumed, fine-tuned on every kind of table, texts are generated greedily and sampled, and every command with --json
is run. Losses, weights, texts and JSON are compared bitwise, except for times and paths. The results of a commit are
cached in build/same/. Exits with 1 if anything differs.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "same"

CLOCKS_AND_PLACES = {
    *("seconds", "tokens_per_second", "megabytes_per_second", "started", "created", "ended", "pid", "environment"),
    *("command", "path", "run", "checkpoint", "bytes", "checkpoints", "fingerprints", "sha256", "base"),
}
"""JSON keys whose values differ between runs, or are names that a version may change."""

RENAMED = {"floor": "baseline"}
"""Words of the results that a version renames, as keys and as first words of lines."""

FEW = "-s training.steps=20 -s evaluation.every=10 -s checkpoint.every=10 -s evaluation.tokens=3000 -q"
ON_TABLE = "--epochs 1 -s evaluation.every=4 -s checkpoint.every=4 -q"
SAMPLED = "--max-new-tokens 24 --seed 1 -n 2 --temperature 0.9 --top-k 40 --top-p 0.95 --json -q"

LEFT_TO_RIGHT = [
    'generate "One day" "The" --run {run} --greedy --seed 1 --max-new-tokens 24 --json -q',
    f'generate "One day" --run {{run}} {SAMPLED}',
    'generate "One day" --run {run} --num-beams 3 --num-return 2 --max-new-tokens 16 --seed 1 --json -q',
    'generate "One day" --run {run} --greedy --max-new-tokens 16 --precision int8 --show-probs -q',
]
FILLED = [
    'generate "One _ day the _ was" --run {run} --mask _ --seed 1 --json -q',
    'generate "One _ day" --run {run} --mask _ --by gibbs --rounds 2 --seed 1 --json -q',
]
MEASURED = ["eval {run} valid.txt --json -q", "runs show {run} --json"]
EMBEDDED = ["embed {run} lines.txt -q", "embed {run} lines.txt --layer 0 --pool mean -q"]
RESUMED = ["resume {run} -s training.steps=+4 -q"]
NEIGHBOURS = ["neighbors {run} the -k 4 --json -q"]
ANSWERED = ["eval {run} {test} --json", "eval {run} {test}", "predict {run} {test} -q", "runs show {run} --json"]


def on_text(recipe: str, more: str, after: list[str]) -> list[str]:
    """Train with a recipe, then run commands on the run."""
    name = f"runs/{recipe}"
    pretrain = f"pretrain text.txt --recipe {recipe} -o {name} {FEW} {more}"
    return [pretrain, *(command.format(run=name) for command in [*MEASURED, *after, *RESUMED])]


def on_table(name: str, arguments: str, test: str, more: list[str] | None = None) -> list[str]:
    """Fine-tune on a table, then evaluate and predict."""
    run = f"runs/{name}"
    finetune = f"finetune {arguments} -o {run} {ON_TABLE}"
    return [finetune, *(command.format(run=run, test=test) for command in [*ANSWERED, *(more or [])])]


def base(recipe: str) -> str:
    """A run to fine-tune."""
    return f"pretrain text.txt --recipe {recipe} -o runs/base {FEW}"


PROMPTED = "-s evaluation.prompts=[The] -s evaluation.sample_tokens=8"
SLOW_BELOW = "-s tuning={layer_decay: 0.5, unfreeze_every: 2}"
CAN_WRITE = [*LEFT_TO_RIGHT, *EMBEDDED]
SCENARIOS: dict[str, list[str]] = {
    "tiny": on_text("tiny", PROMPTED, [*CAN_WRITE, *NEIGHBOURS]),
    "shakespeare-char": on_text("shakespeare-char", PROMPTED, CAN_WRITE),
    "llama-tiny": on_text("llama-tiny", PROMPTED, CAN_WRITE),
    "longformer-tiny": on_text("longformer-tiny", "", [*FILLED, *EMBEDDED]),
    "bert-tiny": on_text("bert-tiny", PROMPTED, [*FILLED, *EMBEDDED]),
    "roberta-tiny": on_text("roberta-tiny", "", [*FILLED, *EMBEDDED]),
    "prefix-tiny": on_text("prefix-tiny", PROMPTED, CAN_WRITE),
    "t5-tiny": on_text("t5-tiny", PROMPTED, CAN_WRITE),
    "elman": on_text("elman", PROMPTED, CAN_WRITE),
    "gru": on_text("gru", "", CAN_WRITE),
    "lstm": on_text("lstm", "-s training.carry_state=true -s optimizer.kind=sgd", CAN_WRITE),
    "lstm-attention": on_text("lstm-attention", PROMPTED, CAN_WRITE),
    "elmo-tiny": on_text("elmo-tiny", "", CAN_WRITE),
    "ngram": on_text("ngram", "", LEFT_TO_RIGHT[:2]),
    "skipgram": on_text("skipgram", "", NEIGHBOURS),
    "cbow": on_text("cbow", "", NEIGHBOURS),
    "glove": on_text("glove", "", NEIGHBOURS),
    "ppmi": on_text("ppmi", "", NEIGHBOURS),
    "from": [base("tiny"), f"pretrain valid.txt --from runs/base -o runs/on {FEW}", "eval runs/on valid.txt --json -q"],
    "class": [
        base("tiny"),
        *on_table("class", "reviews.csv --from runs/base --class-weights balanced", "reviews.test.csv", EMBEDDED[1:]),
        *on_table("again", "reviews.csv --from runs/class --patience 1", "reviews.test.csv"),
    ],
    "pairs of texts": [base("bert-tiny"), *on_table("nli", "nli.csv --from runs/base", "nli.test.csv")],
    "number": [
        base("tiny"),
        *on_table("number", "number.csv --from runs/base --metric correlation", "number.test.csv"),
    ],
    "multi": [base("gru"), *on_table("multi", "multi.csv --from runs/base", "multi.test.csv")],
    "adapters": [
        base("llama-tiny"),
        *on_table("lora", "reviews.csv --from runs/base --lora-rank 2", "reviews.test.csv"),
        "runs merge runs/lora -o runs/merged",
        "eval runs/merged reviews.test.csv --json",
    ],
    "features": [
        base("elmo-tiny"),
        *on_table("elmo", "reviews.csv --from runs/base", "reviews.test.csv"),
        *on_table(
            "slow", "reviews.csv --from runs/base -s tuning={layer_decay: 0.5, unfreeze_every: 2}", "reviews.test.csv"
        ),
    ],
    "words": [
        *on_table("dan", "reviews.csv --recipe dan", "reviews.test.csv"),
        *on_table("linear", "reviews.csv --recipe linear", "reviews.test.csv"),
        *on_table("naive-bayes", "reviews.csv --recipe naive-bayes", "reviews.test.csv"),
    ],
    "luong": on_table("luong", "pairs.tsv --recipe seq2seq-luong --test pairs.test.tsv", "pairs.test.tsv"),
    "bahdanau": on_table("bahdanau", "pairs.tsv --recipe seq2seq-bahdanau", "pairs.test.tsv"),
    "no attention": on_table("seq2seq", "pairs.tsv --recipe seq2seq", "pairs.test.tsv"),
    "transformer-tiny": on_table(
        "transformer", "pairs.tsv --recipe transformer-tiny -s evaluation.num_beams=2", "pairs.test.tsv", CAN_WRITE[:2]
    ),
    "prefix": [base("prefix-tiny"), *on_table("prefix", "pairs.tsv --from runs/base", "pairs.test.tsv")],
    "tasks": [
        base("t5-tiny"),
        *on_table(
            "tasks",
            "--task nli:nli.csv:2 --task review:reviews.csv --task-test nli:nli.test.csv --from runs/base",
            "nli.test.csv --task nli",
        ),
    ],
    "other commands": [
        "tokenize text.txt --json -q",
        'tokenize text.txt --kind wordpiece --vocab-size 600 --show "one day" --json -q',
        "recipes ls --json",
        "recipes show tiny --resolved",
    ],
}


def write_inputs(folder: Path) -> None:
    """A small text and small tables of every kind, from the bundled ones, the same for all versions."""
    data = ROOT / "data"
    stories = (data / "stories.txt").read_text(encoding="utf-8").split("\n\n")
    held = (data / "stories.valid.txt").read_text(encoding="utf-8").split("\n\n")
    (folder / "text.txt").write_text("\n\n".join(stories[:300]), encoding="utf-8")
    (folder / "valid.txt").write_text("\n\n".join(held[:12]), encoding="utf-8")
    (folder / "lines.txt").write_text("One day Anna ran.\nThe old mill, by the river, was closed.\n", encoding="utf-8")
    for name, n in (("reviews", 240), ("reviews.test", 60)):
        (folder / f"{name}.csv").write_text(_first(data / f"{name}.csv", n), encoding="utf-8")
        rows = _first(data / f"{name}.csv", n).splitlines()[1:]
        texts = [row.rpartition(",")[0] for row in rows]
        numbers = "".join(f"{text},{(31 * i) % 17 / 2}\n" for i, text in enumerate(texts))
        labels = "".join(f"{text},{';'.join('abc'[: 1 + i % 3])}\n" for i, text in enumerate(texts))
        (folder / f"{name.replace('reviews', 'number')}.csv").write_text("text,score\n" + numbers, encoding="utf-8")
        (folder / f"{name.replace('reviews', 'multi')}.csv").write_text("text,tags\n" + labels, encoding="utf-8")
    (folder / "nli.csv").write_text(_first(data / "entailment.csv", 160), encoding="utf-8")
    (folder / "nli.test.csv").write_text(_first(data / "entailment.test.csv", 40), encoding="utf-8")
    (folder / "pairs.tsv").write_text(_first(data / "translation.tsv", 400), encoding="utf-8")
    (folder / "pairs.test.tsv").write_text(_first(data / "translation.test.tsv", 30), encoding="utf-8")


def _first(path: Path, n: int) -> str:
    return "".join(path.read_text(encoding="utf-8").splitlines(keepends=True)[: n + 1])


def run_scenario(name: str) -> dict[str, Any]:
    """The results of the commands of a scenario, in this process and folder, with the imported lmtool."""
    from lmtool.cli import main

    found: dict[str, Any] = {}
    for command in SCENARIOS[name]:
        sys.argv = [
            "lmtool",
            *(quoted or word for quoted, word in re.findall(r'"([^"]*)"|((?:\{[^}]*\}|\S)+)', command)),
        ]
        if "pretrain" in command or "finetune" in command or "resume" in command:
            sys.argv += [] if "resume" in command else ["-s", "training.device=cpu"]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
                code = 0
            except SystemExit as end:
                code = end.code or 0
        said = err.getvalue().splitlines() if code else []
        found[command] = {"code": code, "out": [_comparable(line) for line in _lines(out.getvalue())], "said": said}
        for run in sorted(Path("runs").iterdir()) if Path("runs").is_dir() else ():
            if str(run) in command or "resume" in command:
                found[command] |= {f"{run}: {what}": value for what, value in _made(run)}
    return found


def _lines(out: str) -> list[str]:
    """Lines, or one JSON object over several lines."""
    return [out] if out.startswith("{\n") else out.splitlines()


def _comparable(line: str) -> Any:
    try:
        return _without_clocks(json.loads(line))
    except ValueError:
        return line.replace(os.getcwd(), ".")


def _without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_clocks(v) for k, v in value.items() if k not in CLOCKS_AND_PLACES}
    return [_without_clocks(item) for item in value] if isinstance(value, list) else value


def _made(run: Path) -> Iterator[tuple[str, Any]]:
    """Losses, samples, results, and the weights of the last checkpoint of a run, whatever their names."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        if (run / name).exists():
            yield name, [_comparable(line) for line in (run / name).read_text(encoding="utf-8").splitlines()]
    if (run / "metrics.json").exists():
        yield "metrics.json", _comparable((run / "metrics.json").read_text(encoding="utf-8"))
    for path in sorted((run / "checkpoints").glob("step-*"))[-1:]:
        yield "last checkpoint", path.name
        for file in sorted(path.glob("*.safetensors")):
            yield file.name, _tensors(file)


def _tensors(path: Path) -> str:
    """One digest of all tensors of a file."""
    raw = path.read_bytes()
    begin = 8 + int.from_bytes(raw[:8], "little")
    spans = [tensor["data_offsets"] for tensor in json.loads(raw[8:begin]).values()]
    digests = sorted(hashlib.sha256(raw[begin + start : begin + stop]).hexdigest() for start, stop in spans)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def record(source: Path, names: list[str], seen: dict[str, Any]) -> dict[str, Any]:
    """The results of the lmtool in `source` for these scenarios, added to the cached ones."""
    env = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

    def ask(name: str) -> tuple[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            write_inputs(Path(folder))
            own = env | {"LMTOOL_CACHE": f"{folder}/cache", "LMTOOL_RUNS": f"{folder}/runs"}
            command = [sys.executable, str(Path(__file__).resolve()), "--scenario", name]
            done = subprocess.run(command, cwd=folder, env=own, stdout=subprocess.PIPE, text=True)
            if done.returncode:
                sys.exit(f"{name}: the scenario did not run to its end")
            print(f"  {name}", file=sys.stderr, flush=True)
            return name, json.loads(done.stdout)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return seen | dict(pool.map(ask, [name for name in names if name not in seen]))


def of_commit(commit: str, names: list[str]) -> dict[str, Any]:
    """The same for a commit, in a checkout of its own; cached."""
    sha = subprocess.run(
        ["git", "rev-parse", "--verify", f"{commit}^{{commit}}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()
    key = hashlib.sha256(json.dumps(SCENARIOS, sort_keys=True).encode()).hexdigest()[:8]
    file = KEPT / f"{sha}-{key}.json"
    seen = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if any(name not in seen for name in names):
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["git", "worktree", "add", "-q", "--detach", folder, sha], cwd=ROOT, check=True)
            try:
                seen = record(Path(folder), names, seen)
            finally:
                subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)
        KEPT.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(seen), encoding="utf-8")
    return {name: seen[name] for name in names}


def renamed(value: Any) -> Any:
    """The same results in the words of the newer version."""
    if isinstance(value, dict):
        return {RENAMED.get(key, key): renamed(item) for key, item in value.items()}
    if isinstance(value, str):
        for old, new in RENAMED.items():
            value = value.replace(f"{old}: ", f"{new}: ")
        return value
    return [renamed(item) for item in value] if isinstance(value, list) else value


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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", nargs="?")
    parser.add_argument("head", nargs="?", help="a commit; the working tree by default")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="a scenario; may be repeated")
    parser.add_argument("--scenario", choices=SCENARIOS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.scenario:
        print(json.dumps(run_scenario(options.scenario)))
        return
    if not options.base:
        parser.error("name a commit to compare with")
    names = options.only or list(SCENARIOS)
    before = of_commit(options.base, names)
    after = record(ROOT, names, {}) if options.head is None else of_commit(options.head, names)
    found = list(differences(renamed(before), renamed(after)))
    failed = [f"{name}: {command}" for name in names for command, got in after[name].items() if got["code"]]
    print("\n".join(found))
    print(f"{len(names)} scenarios, {sum(map(len, after.values()))} commands, {len(failed)} of which failed")
    print("\n".join(f"  {command}" for command in failed))
    print("bitwise equal" if not found else f"{len(found)} differences")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
