"""Six claims of the lectures, shown again in small; docs/claims.md has what came out.

    python benchmarks/claims.py positions [--folder DIR] [--quick]

Each claim is a series of lmtool commands, which go to stderr, and a Markdown table, which goes to stdout. What is in
the folder already is not run again, so a series that was interrupted goes on.
"""

import argparse
import csv
import json
import random
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmtool.cli import app
from lmtool.text import bundled

DATA = bundled.folder()


def lmtool(*arguments: str) -> str:
    """Run a command in this process, and return what it prints. Its errors are raised."""
    sys.argv = ["lmtool", *arguments]
    with redirect_stdout(StringIO()) as printed:
        code = app(standalone_mode=False)
    if code:
        raise SystemExit(code)
    return printed.getvalue()


class Bench:
    """Runs commands in a folder, each once.

    quick: few steps and one seed, to see that everything runs. seconds: processor time of all commands, now or earlier.
    """

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder, self.quick, self.seconds = folder, quick, 0.0

    def steps(self, n: int) -> str:
        return f"training.steps={4 if self.quick else n}"

    def seeds(self, n: int) -> range:
        return range(1, 2 if self.quick else n + 1)

    def run(self, name: str, *arguments: str, settings: Iterable[str] = ()) -> str:
        """What a command prints. Its results are kept under this name."""
        command = [*arguments, *(word for setting in settings for word in ("-s", setting))]
        kept = self.folder / f"{name}.json"
        if not kept.exists():
            print("lmtool", shlex.join(command), file=sys.stderr, flush=True)
            began = time.process_time()
            output = lmtool(*command)
            kept.write_text(json.dumps({"command": command, "printed": output, "seconds": time.process_time() - began}))
        found = json.loads(kept.read_text())
        if found["command"] != command:
            raise SystemExit(f"{kept} is of another command: {shlex.join(found['command'])}")
        self.seconds += found["seconds"]
        printed: str = found["printed"]
        return printed

    def train(self, verb: str, name: str, *arguments: str, settings: Iterable[str] = ()) -> Path:
        """The run directory of a command that trains."""
        run = self.folder / name
        if not run.with_suffix(".json").exists():
            shutil.rmtree(run, ignore_errors=True)
        self.run(name, verb, *arguments, "-o", str(run), "--quiet", settings=settings)
        return run

    def evaluate(self, name: str, run: Path, text: Path, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(name, "eval", str(run), str(text), *options, "--json", "--quiet"))
        return found


def figures(run: Path) -> dict[str, Any]:
    """What a fine-tuned run reached on its test table."""
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def mean(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def positions(bench: Bench) -> str:
    """ALiBi extrapolates to longer texts than it was trained on; learned positions do not."""
    kinds = {
        "alibi": "{kind: alibi}",
        "rotary": "{kind: rotary}",
        "sinusoidal": "{kind: sinusoidal}",
        "learned": "{kind: learned, size: 512}",  # more rows than are trained, so that longer texts can be read at all
    }
    contexts = (64, 128, 256, 512)
    rows = []
    for kind, position in kinds.items():
        settings = ["model.context=64", "training.batch_size=32", bench.steps(300), f"model.position={position}"]
        run = bench.train("pretrain", kind, str(DATA / "stories.txt"), settings=[*settings, "data.documents=whole"])
        found = [
            bench.evaluate(f"{kind}-{n}", run, DATA / "stories.valid.txt", "--context", str(n))["bits_per_byte"]
            for n in contexts
        ]
        rows.append([f"`{kind}`", *(f"{bits:.3f}" for bits in found)])
    return table(["position", "64, as trained", *map(str, contexts[1:])], rows)


def attention(bench: Bench) -> str:
    """Attention relieves the bottleneck of an encoder-decoder: the gap grows with the length of the source."""
    buckets = ((3, 7), (8, 12), (13, 18), (19, 30))
    small = ["model.d_model=192", "tokenizer.vocab_size=1024"]
    recipes = {"none": "seq2seq", "Luong": "seq2seq-luong", "Bahdanau": "seq2seq-bahdanau"}
    rows = []
    for name, recipe in recipes.items():
        run = bench.train(
            "finetune",
            recipe,
            str(DATA / "translation.tsv"),
            "--test",
            str(by_length(bench, 3, 30)),
            "--recipe",
            recipe,
            settings=[*small, bench.steps(1200)],
        )
        found = [figures(run)]
        for low, high in buckets:
            found.append(bench.evaluate(f"{recipe}-{low}-{high}", run, by_length(bench, low, high)))
        rows.append([name, *(f"{measured['loss']:.2f}, {measured['bleu']:.1f}" for measured in found)])
    return table(["attention", "all", *(f"{low}-{high} words" for low, high in buckets)], rows)


def by_length(bench: Bench, low: int, high: int) -> Path:
    """The rows of the translations for testing whose source has so many words."""
    part = bench.folder / f"words-{low}-{high}.tsv"
    with (DATA / "translation.test.tsv").open(encoding="utf-8", newline="") as file:
        head, *lines = file.read().splitlines(keepends=True)
    wanted = [line for line in lines if low <= len(line.split("\t")[0].split()) <= high]
    part.write_text("".join([head, *wanted[: 10 if bench.quick else None]]), encoding="utf-8", newline="")
    return part


SMALL = (
    "model.n_layers=4",
    "model.d_model=128",
    "model.n_heads=4",
    "model.context=128",
    "tokenizer.vocab_size=2048",
    "training.batch_size=16",
)
"""The size of what is fine-tuned: a minute or two of pretraining."""


def encoder(bench: Bench) -> Path:
    settings = [*SMALL, bench.steps(2000)]
    return bench.train("pretrain", "encoder", str(DATA / "stories.txt"), "--recipe", "roberta-tiny", settings=settings)


def decoder(bench: Bench) -> Path:
    settings = [*SMALL, bench.steps(1000)]
    return bench.train("pretrain", "decoder", str(DATA / "stories.txt"), "--recipe", "tiny", settings=settings)


def finetuned(bench: Bench, name: str, data: Path, test: str, seed: int, epochs: float, *how: str) -> Path:
    """A run that is trained on a labelled table, and measured on that for testing."""
    settings = [f"seed={seed}", "training.epochs=" + ("0.05" if bench.quick else f"{epochs}")]
    return bench.train("finetune", name, str(data), "--test", str(DATA / test), *how, settings=settings)


def from_scratch(bench: Bench, name: str, run: Path, data: Path, test: str, seed: int, epochs: float) -> Path:
    """The same as a fine-tuned run in all but the weights that it starts from: its recipe, and its tokenizer."""
    recipe = ("--recipe", str(run / "recipe.yaml"), "-s", f"tokenizer={{kind: file, path: {run / 'tokenizer.json'}}}")
    return finetuned(bench, name, data, test, seed, epochs, *recipe)


def sample(bench: Bench, n: int, seed: int) -> Path:
    """n reviews at random, the same for all models."""
    part = bench.folder / f"reviews-{n}-{seed}.csv"
    with (DATA / "reviews.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    with part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *random.Random(seed).sample(rows, n)])
    return part


def pretraining(bench: Bench) -> str:
    """Pretraining, then fine-tuning, beats training from scratch on the same labelled rows."""
    sizes = {50: (40, 3), 100: (30, 3), 300: (15, 3), 1000: (8, 2), 3000: (6, 1)}  # rows: epochs, seeds
    rows = []
    for n, (epochs, seeds) in sizes.items():
        cells = [f"{n:,}"]
        for name, pretrained in (("encoder", encoder(bench)), ("decoder", decoder(bench))):
            scratch, tuned = [], []
            for seed in bench.seeds(seeds):
                data = sample(bench, n, seed)
                run = finetuned(
                    bench, f"{name}-{n}-{seed}", data, "reviews.test.csv", seed, epochs, "--from", str(pretrained)
                )
                tuned.append(figures(run)["accuracy"])
                run = from_scratch(bench, f"{name}-{n}-{seed}-scratch", run, data, "reviews.test.csv", seed, epochs)
                scratch.append(figures(run)["accuracy"])
            cells += [mean(scratch), mean(tuned)]
        rows.append(cells)
    head = ["rows", "encoder, from scratch", "encoder, pretrained", "decoder, from scratch", "decoder, pretrained"]
    return table(head, rows)


def transfer(bench: Bench) -> str:
    """Fine-tuning on a larger task first helps a small one: entailment, then kinship."""
    rows = []
    for name, pretrained in (("encoder", encoder(bench)), ("decoder", decoder(bench))):
        middle = finetuned(
            bench,
            f"{name}-entailment",
            DATA / "entailment.csv",
            "entailment.test.csv",
            1,
            5,
            "--from",
            str(pretrained),
        )
        found: dict[Path, list[float]] = {pretrained: [], middle: []}
        for seed in bench.seeds(5):
            for source, reached in found.items():
                run = finetuned(
                    bench,
                    f"{source.name}-kinship-{seed}",
                    DATA / "kinship.csv",
                    "kinship.test.csv",
                    seed,
                    20,
                    "--from",
                    str(source),
                )
                reached.append(figures(run)["accuracy"])
        rows.append([name, mean(found[pretrained]), mean(found[middle]), f"{figures(middle)['accuracy']:.3f}"])
    return table(["", "kinship", "entailment, then kinship", "entailment itself"], rows)


CLAIMS: dict[str, Callable[[Bench], str]] = {
    "pretraining": pretraining,
    "attention": attention,
    "transfer": transfer,
    "positions": positions,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="claim", required=True)
    for name, claim in CLAIMS.items():
        command = commands.add_parser(name, help=claim.__doc__, description=claim.__doc__)
        command.add_argument("--folder", type=Path, help="where runs are kept; a folder that is deleted by default")
        command.add_argument("--quick", action="store_true", help="few steps and one seed, to see that everything runs")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, asked.quick)
        print(CLAIMS[asked.claim](bench))
    print(f"\n{bench.seconds:.0f} s of processor time")


if __name__ == "__main__":
    main()
