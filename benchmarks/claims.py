"""Six claims of the lectures, reproduced at small scale; docs/claims.md has the results.

    python benchmarks/claims.py positions [--folder DIR] [--quick]

Each claim is a series of lmtool commands, which go to stderr, and a Markdown table, which goes to stdout. Results that
are already in the folder are reused, so an interrupted series is resumed.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from itertools import islice
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmtool.cli import app
from lmtool.data import bundled

DATA = bundled.folder()
sys.path.insert(0, str(DATA / "make"))

from reviews import REVIEWS, SIGN, Subject, book, meal, review, shop  # noqa: E402


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

    quick: few steps and one seed, to check that all runs. published: an imported model to try as well. spent: CPU
    seconds of each command.
    """

    def __init__(self, folder: Path, quick: bool, published: Path | None = None) -> None:
        self.folder, self.quick, self.published = folder, quick, published
        self.spent: dict[str, float] = {}

    def steps(self, n: int) -> str:
        return f"training.steps={4 if self.quick else n}"

    def seeds(self, n: int) -> range:
        return range(1, 2 if self.quick else n + 1)

    def run(self, name: str, *arguments: str, settings: Iterable[str] = (), made: Path | None = None) -> str:
        """The output of a command, cached under this name. made: the run it trains, resumed if it was interrupted."""
        command = [*arguments, *(word for setting in settings for word in ("-s", setting))]
        kept, cut = self.folder / f"{name}.json", self.folder / f"{name}.cut.json"
        if not kept.exists():
            asked, before = command, 0.0
            if made is not None:
                was = json.loads(cut.read_text()) if cut.exists() else {"command": None}
                if was["command"] == command and any(made.glob("checkpoints/*/MANIFEST.json")):
                    asked, before = ["resume", str(made), "--quiet"], was["seconds"]
                else:
                    shutil.rmtree(made, ignore_errors=True)
            print("lmtool", shlex.join(asked), file=sys.stderr, flush=True)
            began = time.process_time()
            try:
                output = lmtool(*asked)
            finally:
                done = {"command": command, "seconds": before + time.process_time() - began}
                cut.write_text(json.dumps(done))
            kept.write_text(json.dumps({**done, "printed": output}))
            cut.unlink()
        found = json.loads(kept.read_text())
        if found["command"] != command:
            raise SystemExit(f"{kept} is of another command: {shlex.join(found['command'])}")
        self.spent[name] = found["seconds"]
        printed: str = found["printed"]
        return printed

    def train(self, verb: str, name: str, *arguments: str, settings: Iterable[str] = ()) -> Path:
        """The run directory of a training command."""
        run = self.folder / name
        self.run(name, verb, *arguments, "-o", str(run), "--quiet", settings=settings, made=run)
        return run

    def evaluate(self, name: str, run: Path, text: Path, *options: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(name, "eval", str(run), str(text), *options, "--json", "--quiet"))
        return found


def figures(run: Path) -> dict[str, Any]:
    """The results of a fine-tuned run on its test table."""
    found: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return found


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def mean(values: Sequence[float], digits: int = 3) -> str:
    """Mean and standard deviation over seeds."""
    return f"{fmean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


SEEDS = 3


def positions(bench: Bench) -> str:
    """ALiBi extrapolates to longer texts than it was trained on; learned positions do not."""
    kinds = {
        "alibi": "{kind: alibi}",
        "rotary": "{kind: rotary}",
        "sinusoidal": "{kind: sinusoidal}",
        "learned": "{kind: learned, size: 1024}",  # more positions than are trained, for longer texts
    }
    contexts = (64, 128, 256, 512, 1024)
    small = ["model.context=128", "training.batch_size=16", bench.steps(600)]
    # of `tiny`, but learning rates and embeddings that favour no kind of positions
    rates = ["optimizer={kind: muon, lr: 0.01, adamw: {lr: 5e-3, beta2: 0.99, weight_decay: 0}}", "model.init={}"]
    text, valid = str(DATA / "stories.txt"), DATA / "stories.valid.txt"
    rows = []
    for kind, position in kinds.items():
        found: dict[int, list[float]] = {n: [] for n in contexts}
        for seed in bench.seeds(SEEDS):
            settings = [*small, *rates, f"model.position={position}", "data.documents=whole", f"seed={seed}"]
            run = bench.train("pretrain", f"{kind}-{seed}", text, "--recipe", "tiny", settings=settings)
            for n, bits in found.items():
                measured = bench.evaluate(f"{kind}-{seed}-{n}", run, valid, "--context", str(n))
                bits.append(measured["bits_per_byte"])
        rows.append([f"`{kind}`", *map(mean, found.values())])
    return table(["position", "64", "128, as trained", *map(str, contexts[2:])], rows)


def attention(bench: Bench) -> str:
    """Attention removes the bottleneck of an encoder-decoder: the gap grows with the length of the source."""
    buckets = ((3, 7), (8, 12), (13, 18), (19, 30))
    small = ["model.d_model=192", "tokenizer.vocab_size=1024"]
    recipes = {"none": "seq2seq", "Luong": "seq2seq-luong"}
    rows = []
    for name, recipe in recipes.items():
        found: list[list[dict[str, Any]]] = []
        for seed in bench.seeds(SEEDS):
            run = bench.train(
                "finetune",
                f"{recipe}-{seed}",
                str(DATA / "translation.tsv"),
                "--test",
                str(by_length(bench, 3, 30)),
                "--recipe",
                recipe,
                settings=[*small, bench.steps(1200), f"seed={seed}"],
            )
            parts = [bench.evaluate(f"{recipe}-{seed}-{a}-{b}", run, by_length(bench, a, b)) for a, b in buckets]
            found.append([figures(run), *parts])
        for measure in ("loss", "bleu"):
            cells = [mean([each[measure] for each in column], 2) for column in zip(*found, strict=True)]
            rows.append([name, measure, *cells])
    return table(["attention", "", "all", *(f"{low}-{high} words" for low, high in buckets)], rows)


def by_length(bench: Bench, low: int, high: int) -> Path:
    """The test translations whose source has so many words."""
    part = bench.folder / f"words-{low}-{high}.tsv"
    with (DATA / "translation.test.tsv").open(encoding="utf-8", newline="") as file:
        head, *lines = file.read().splitlines(keepends=True)
    wanted = [line for line in lines if low <= len(line.split("\t")[0].split()) <= high]
    part.write_text("".join([head, *wanted[: 10 if bench.quick else None]]), encoding="utf-8", newline="")
    return part


SMALL = ("tokenizer.vocab_size=2048", "training.batch_size=16", "evaluation.prompts=[]")
WIDTH = ("model.n_layers=4", "model.d_model=128", "model.n_heads=4", "model.context=128")
MUON = (
    "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.02, beta2: 0.99, weight_decay: 0}}",
    "model.init.embedding_std=1.0",
)
"""The pretrained models: 1.3 million parameters, and minutes of pretraining on a CPU core."""


def pretrained(bench: Bench, name: str) -> Path:
    """The run of an encoder, a decoder or an ELMo: the same texts and tokenizer, and similar sizes.

    The texts of the reviews are used without their labels. All have 2,048 tokens per step; an ELMo's step takes five
    times as long, so it has fewer.
    """
    recipe, *settings = {
        "encoder": ("tiny", *SMALL, *WIDTH, *MUON, "model.shape=encoder", "objective.kind=masked"),
        "decoder": ("tiny", *SMALL, *WIDTH, *MUON),
        "elmo": ("elmo-tiny", *SMALL, "model.d_model=168", "model.context=64", "training.batch_size=32"),
    }[name]
    steps = 600 if name == "elmo" else 1500
    settings += [bench.steps(steps), f"evaluation.every={steps}", f"checkpoint.every={steps}"]
    texts = (str(DATA / "stories.txt"), str(DATA / "reviews.csv"))
    return bench.train("pretrain", name, *texts, "--recipe", recipe, settings=settings)


TUNED = {"encoder": ("optimizer.lr=5e-4", "objective.pool=mean"), "decoder": ("optimizer.lr=5e-4",)}
SCRATCH = ("optimizer.lr=1e-3",)
DAN = ("model.d_model=680", "optimizer.lr=1e-3")
"""Learning rates of pretrained weights and of weights from scratch; a deep averaging network as large as the others.
An encoder's first position sees little of a text under ALiBi."""


def tuned(
    bench: Bench, name: str, data: Path, test: str, seed: int, epochs: float, settings: Iterable[str], *how: str
) -> Path:
    """A run on a labelled table: its last step, without model selection, evaluated on the test table."""
    last = ("evaluation.every=100000", "checkpoint.every=100000", "training.min_steps=null")
    settings = [f"seed={seed}", "training.epochs=" + ("0.05" if bench.quick else f"{epochs}"), *last, *settings]
    return bench.train("finetune", name, str(data), "--test", str(DATA / test), *how, settings=settings)


def from_scratch(bench: Bench, name: str, like: Path, data: Path, test: str, seed: int, epochs: float) -> Path:
    """The same as the run `like`, with the same tokenizer, except for the initial weights and their learning rate."""
    settings = (f"tokenizer={{kind: file, path: {like / 'tokenizer.json'}}}", *SCRATCH)
    return tuned(bench, name, data, test, seed, epochs, settings, "--recipe", str(like / "recipe.yaml"))


def sample(bench: Bench, n: int, seed: int) -> Path:
    """n reviews at random, the same for all models."""
    part = bench.folder / f"reviews-{n}-{seed}.csv"
    with (DATA / "reviews.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    with part.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([head, *random.Random(seed).sample(rows, n)])
    return part


EPOCHS = {50: 40, 150: 25, 500: 12, 1500: 6, 3000: 4}
"""By number of reviews; each seed has a sample of its own."""


def classifier(bench: Bench, name: str, part: str, data: Path, test: str, seed: int, epochs: float) -> Path:
    """A model on a labelled table: pretrained and fully fine-tuned, a bidirectional LSTM on a frozen ELMo, or a DAN."""
    what = (bench, f"{name}-{part}", data, test, seed)
    match name:
        case "elmo":
            read = (f"model.features.run={pretrained(bench, name)}",)
            return tuned(*what, 2 * epochs, read, "--recipe", "bilstm")
        case "dan":
            return tuned(*what, 2 * epochs, DAN, "--recipe", "dan")
        case _:
            return tuned(*what, epochs, TUNED[name], "--from", str(pretrained(bench, name)))


def on_reviews(bench: Bench, name: str, n: int, seed: int) -> Path:
    return classifier(bench, name, f"{n}-{seed}", sample(bench, n, seed), "reviews.test.csv", seed, EPOCHS[n])


def on_entailment(bench: Bench, name: str, seed: int) -> Path:
    part = f"entailment-{seed}"
    return classifier(bench, name, part, DATA / "entailment.csv", "entailment.test.csv", seed, 4)


def pretraining(bench: Bench) -> str:
    """Pretraining and fine-tuning beats training from scratch on the same labelled rows."""
    rows = []
    for n, epochs in EPOCHS.items():
        cells = [f"{n:,}"]
        for name in ("encoder", "decoder"):
            scratch, pre = [], []
            for seed in bench.seeds(SEEDS):
                run = on_reviews(bench, name, n, seed)
                pre.append(figures(run)["accuracy"])
                again, data = f"{name}-{n}-{seed}-scratch", sample(bench, n, seed)
                run = from_scratch(bench, again, run, data, "reviews.test.csv", seed, epochs)
                scratch.append(figures(run)["accuracy"])
            cells += [mean(scratch), mean(pre)]
        rows.append(cells)
    head = ["rows", "encoder, from scratch", "encoder, pretrained", "decoder, from scratch", "decoder, pretrained"]
    return table(head, rows)


def reviews_of(bench: Bench, name: str, subjects: Sequence[Subject], labels: Sequence[str], n: int, seed: int) -> Path:
    """A table of n reviews of some subjects with some labels, by the program that writes reviews.csv."""
    part = bench.folder / f"{name}-{n}-{seed}.csv"
    source = replace(REVIEWS, name=name, program=partial(review, subjects=subjects), seed=seed).drawn()
    rows = list(islice((row for row in source if row.label in labels), n))
    part.write_bytes(REVIEWS.csv(rows))
    return part


LARGER, FEW = 3000, 60


def transfer(bench: Bench) -> str:
    """Intermediate fine-tuning on a larger task helps a small one: reviews of shops and meals, then of few books."""
    larger = reviews_of(bench, "shops-and-meals", (shop, meal), tuple(SIGN), LARGER, 1)
    larger_test = reviews_of(bench, "shops-and-meals", (shop, meal), tuple(SIGN), 1000, 2)
    test = reviews_of(bench, "books", (book,), ("positive", "negative"), 1000, 1000)
    rows = []
    sources = [pretrained(bench, name) for name in ("encoder", "decoder")]
    for source in [*sources, *([bench.published] if bench.published else [])]:
        name, settings = source.name, TUNED.get(source.name, ())
        middle = tuned(bench, f"{name}-larger", larger, str(larger_test), 1, 4, settings, "--from", str(source))
        found: dict[Path, list[float]] = {source: [], middle: []}
        for seed in bench.seeds(5):
            few = reviews_of(bench, "books", (book,), ("positive", "negative"), FEW, seed)
            for begin, reached in found.items():
                how = (few, str(test), seed, 12, settings, "--from", str(begin))
                reached.append(figures(tuned(bench, f"{begin.name}-books-{seed}", *how))["accuracy"])
        direct, after = found.values()
        rows.append([name, mean(direct), mean(after), f"{figures(middle)['accuracy']:.3f}"])
    return table(["", "books", "shops and meals, then books", "shops and meals"], rows)


def classifiers(bench: Bench) -> str:
    """Encoders beat decoders, which beat features of an ELMo; a mean of word vectors is strong for its cost."""
    rows = []
    for name in ("encoder", "decoder", "elmo", "dan"):
        tables = [partial(on_reviews, n=500), partial(on_reviews, n=3000), on_entailment]
        runs = [[of(bench, name, seed=seed) for seed in bench.seeds(SEEDS)] for of in tables]
        accuracies = [mean([figures(run)["accuracy"] for run in each]) for each in runs]
        first = runs[1][0]
        size = json.loads((first / "run.json").read_text())["summary"].rpartition(", ")[2].removesuffix(" parameters")
        rows.append([name, size, *accuracies, f"{bench.spent[first.name]:.0f} s"])
    head = ["model", "trained parameters", "500 reviews", "3,000 reviews", "4,000 pairs", "CPU time of 3,000 reviews"]
    return table(head, rows)


CLAIMS: dict[str, Callable[[Bench], str]] = {
    "pretraining": pretraining,
    "attention": attention,
    "classifiers": classifiers,
    "transfer": transfer,
    "positions": positions,
}


def ran(series: Mapping[str, Callable[[Bench], str]], description: str) -> None:
    """Parse the command line, run what it names, and print its table."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="name", required=True)
    for name, run in series.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        command.add_argument("--folder", type=Path, help="where runs are saved; a temporary folder by default")
        command.add_argument("--quick", action="store_true", help="few steps and one seed, to check that all runs")
        if name == "transfer":
            command.add_argument("--published", type=Path, metavar="RUN", help="an imported model to try as well")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = (asked.folder or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        bench = Bench(folder, asked.quick, getattr(asked, "published", None))
        print(series[asked.name](bench))
    print(f"\n{sum(bench.spent.values()):.0f} s of CPU time")


if __name__ == "__main__":
    ran(CLAIMS, str(__doc__))
