"""`lmtool pretrain TEXT` with no option, on texts that the defaults were not made for, beside a 5-gram model.

    for name in encyclopaedia speeches novel names; do lmtool data get $name -o FOLDER; done
    python benchmarks/defaults.py FOLDER [--seeds 1 2 3] [--only NAME ...]

Takes all of FOLDER/*.txt but NAME.test.txt. Figures are medians over seeds, on the part that lmtool holds out; the
5-gram model is the one that it counts itself.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml
from bench import describe_machine, options_of, print_head, print_row, run_lmtool


def pretrain(text: Path, seed: int) -> dict[str, Any]:
    """What a run leaves in its directory, and the seconds that it takes. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        places = {"LMTOOL_CACHE": f"{folder}/cache", "LMTOOL_RUNS": f"{folder}/runs"}
        began = time.perf_counter()
        run_lmtool("pretrain", str(text), "-s", f"seed={seed}", "-o", str(run), **places)
        seconds = time.perf_counter() - began
        found = {name: json.loads((run / f"{name}.json").read_text()) for name in ("metrics", "run")}
        return found | {"recipe": yaml.safe_load((run / "recipe.yaml").read_text()), "seconds": seconds}


def describe_choices(found: dict[str, Any]) -> str:
    """What the defaults made of a text."""
    model, tokenizer, data = (found["recipe"][part] for part in ("model", "tokenizer", "data"))
    sizes = ", ".join(f"{key} {model[key]}" for key in ("context", "dropout") if key in model)
    steps = f"best step {found['metrics']['step']} of {found['recipe']['training']['steps']}"
    pieces = f"{tokenizer['kind']} {model['vocab_size']}"
    return f"{data['documents']}, {pieces}; {found['run']['summary']}; {sizes}; {steps}"


def main() -> None:
    parser = options_of(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="these texts")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1], metavar="N")
    given = parser.parse_args()
    print(describe_machine(), file=sys.stderr)
    print_head("text", "MB", "chosen (first seed)", "seconds", "bits per byte", "5-gram", "ratio")
    for path in sorted(given.folder.glob("*.txt")):
        if path.name.endswith(".test.txt") or (given.only and path.stem not in given.only):
            continue
        try:
            runs = [pretrain(path, seed) for seed in given.seeds]
        except subprocess.CalledProcessError as error:
            print(error.stderr.strip(), file=sys.stderr, flush=True)
            print_row(path.stem, f"exit {error.returncode}", *[""] * 5)
            continue
        size, seconds = path.stat().st_size / 1e6, median(found["seconds"] for found in runs)
        ours = median(found["metrics"]["bits_per_byte"] for found in runs)
        counted = [found["metrics"]["ngram_bits_per_byte"] for found in runs]
        beside = ["", ""] if None in counted else [f"{median(counted):.3f}", f"{ours / median(counted):.3f}"]
        print_row(path.stem, f"{size:.1f}", describe_choices(runs[0]), f"{seconds:.0f}", f"{ours:.3f}", *beside)


if __name__ == "__main__":
    main()
