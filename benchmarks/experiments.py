"""What the literature reports of single choices, tried on the bundled data: masking, decoding, length, memory.

    python benchmarks/experiments.py forgetting [--folder DIR] [--quick]

Each is a series of lmtool commands, which go to stderr, and a Markdown table, which goes to stdout, as in `claims.py`.
"""

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from claims import DATA, MUON, SMALL, TUNED, WIDTH, Bench, figures, ran, table
from coherence import holds
from pydantic import TypeAdapter

from lmtool import load
from lmtool.batch import Batch
from lmtool.decoding.generate import generate
from lmtool.decoding.settings import Beam, Greedy, Sample, Settings
from lmtool.model import LanguageModel, build
from lmtool.recipe.spec import Model
from lmtool.run.directory import Run

STORIES, UNSEEN = DATA / "stories.txt", DATA / "stories.valid.txt"
ONE_CORE = "training.precision=float32"


def masking(bench: Bench) -> str:
    """Which share of the tokens to mask: too few are costly to learn from, too many leave no context."""
    rows = []
    for rate in (0.05, 0.15, 0.3, 0.4, 0.5, 0.7):
        objective = f"objective={{kind: masked, rate: {rate}}}"
        settings = (*SMALL, *WIDTH, *MUON, "model.shape=encoder", objective, bench.steps(600), ONE_CORE)
        texts = (str(STORIES), str(DATA / "reviews.csv"))
        run = bench.train("pretrain", f"masked-{rate}", *texts, "--recipe", "tiny", settings=settings)
        reached = []
        for seed in bench.seeds(3):
            tuning = (f"seed={seed}", *TUNED["encoder"], "training.epochs=" + ("0.05" if bench.quick else "4"))
            test = ("--test", str(DATA / "reviews.test.csv"))
            name = f"masked-{rate}-reviews-{seed}"
            tuned = bench.train("finetune", name, str(DATA / "reviews.csv"), *test, "--from", str(run), settings=tuning)
            reached.append(figures(tuned)["accuracy"])
        loss = min(record["valid_loss"] for record in metrics(run) if record["valid_loss"] is not None)
        spread = f"{statistics.fmean(reached):.3f} ({min(reached):.3f} to {max(reached):.3f})"
        rows.append([f"{rate:.0%}", f"{loss:.3f}", spread])
    return table(["masked", "loss of a masked token", "accuracy after fine-tuning on reviews"], rows)


def metrics(run: Path) -> Sequence[dict[str, float]]:
    """The records of a run's steps."""
    return Run.open(run).metrics.read()


LONGEST = 200
STRATEGIES: dict[str, Settings] = {
    "greedy": Greedy(max_new_tokens=LONGEST),
    "beam search, 4 beams": Beam(num_beams=4, max_new_tokens=LONGEST),
    "temperature 0.5": Sample(temperature=0.5, seed=1, max_new_tokens=LONGEST),
    "temperature 0.8": Sample(temperature=0.8, seed=1, max_new_tokens=LONGEST),
    "temperature 1.0": Sample(seed=1, max_new_tokens=LONGEST),
    "top-k 10": Sample(top_k=10, seed=1, max_new_tokens=LONGEST),
    "top-k 40": Sample(top_k=40, seed=1, max_new_tokens=LONGEST),
    "nucleus 0.9": Sample(top_p=0.9, seed=1, max_new_tokens=LONGEST),
}


def decoding(bench: Bench) -> str:
    """One model, several decoding strategies: how coherent, how varied and how repetitive its stories are."""
    settings = (bench.steps(1500), "tokenizer.vocab_size=2048", ONE_CORE)
    run = bench.train("pretrain", "writer", str(STORIES), "--recipe", "tiny", settings=settings)
    lm = load(str(run))
    n = 4 if bench.quick else 200
    prompts = [" ".join(story.split()[:3]) for story in UNSEEN.read_text(encoding="utf-8").split("\n\n")[:n]]
    rows = []
    for name, strategy in STRATEGIES.items():
        texts = lm.complete(
            prompts, strategy, max_new_tokens=200, **({"seed": 1} if isinstance(strategy, Sample) else {})
        )
        stories = [text.split("\n\n")[0] for text in texts]
        words = [story.split() for story in stories]
        rows.append(
            [
                name,
                f"{statistics.fmean(map(holds, stories)):.1%}",
                f"{distinct(words, 1):.3f}",
                f"{distinct(words, 2):.3f}",
                f"{statistics.fmean(map(repeated, words)):.1%}",
                f"{len(set(stories)) / len(stories):.1%}",
            ]
        )
    return table(["strategy", "coherent", "distinct-1", "distinct-2", "repeated 4-grams", "different stories"], rows)


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))


def distinct(texts: Sequence[Sequence[str]], n: int) -> float:
    """Distinct n-grams of all texts by their number (Li et al. 2016)."""
    found = [gram for words in texts for gram in ngrams(words, n)]
    return len(set(found)) / max(1, len(found))


def repeated(words: Sequence[str]) -> float:
    """The share of the 4-grams of a text that occurred in it before (Welleck et al. 2020)."""
    counts = Counter(ngrams(words, 4))
    return 1 - len(counts) / max(1, counts.total())


LENGTHS = (512, 1024, 2048, 4096, 8192)
WIDE = {"n_layers": 2, "d_model": 128, "vocab_size": 256}


def length(bench: Bench) -> str:
    """Cost over length: a recurrent model is linear and sequential, attention quadratic, a window linear."""
    decoder = {"kind": "transformer", "shape": "decoder", "n_heads": 2, "position": {"kind": "alibi"}}
    specs = {
        "LSTM": {"kind": "recurrent", "shape": "decoder", "cell": "lstm"},
        "attention": decoder,
        "window of 128": decoder | {"pattern": {"kind": "window", "size": 128}},
    }
    lengths = LENGTHS[:2] if bench.quick else LENGTHS
    torch.set_num_threads(1)
    adapter: TypeAdapter[Model] = TypeAdapter(Model)
    models = {
        name: build(adapter.validate_python({**WIDE, "context": max(lengths), **spec}), 256)
        for name, spec in specs.items()
    }
    rows = []
    for n in lengths:
        training = [f"{trained(model, n):.2f} s" for model in models.values()]
        reader = models["attention"]
        cached, again = with_cache(reader, n), without_cache(reader, n)
        rows.append([f"{n:,}", *training, f"{1000 * cached:.1f} ms", f"{1000 * again:.1f} ms"])
    head = ["tokens", *(f"{name}, a training step" for name in models), "next token, cached", "next token, anew"]
    return table(head, rows)


def trained(model: LanguageModel, n: int) -> float:
    """CPU seconds of a forward and backward pass over one row, the median of three."""
    tokens_BT = torch.randint(0, 256, (1, n))
    found = []
    for _ in range(3):
        began = time.process_time()
        model.logits(model(Batch(tokens_BT)).hidden_BTD).logsumexp(-1).sum().backward()
        found.append(time.process_time() - began)
    return statistics.median(found)


def with_cache(model: LanguageModel, n: int, new: int = 16) -> float:
    """CPU seconds of a token after n others, whose keys and values are kept."""
    model.eval()
    ends = []
    for _ in generate(model, [torch.randint(1, 256, (n - new,)).tolist()], Greedy(max_new_tokens=new)):
        ends.append(time.process_time())
    return (ends[-1] - ends[0]) / (len(ends) - 1)


@torch.no_grad()
def without_cache(model: LanguageModel, n: int) -> float:
    """CPU seconds of a token after n others, all of which are computed again."""
    tokens_BT = torch.randint(0, 256, (1, n))
    began = time.process_time()
    model.logits(model(Batch(tokens_BT)).hidden_BTD[:, -1])
    return time.process_time() - began


def phases(bench: Bench) -> str:
    """BERT's two phases: nine tenths of the steps on short rows, then the full length."""
    long, short = "model.context=128", "model.context=32"
    same = (*SMALL, "model.n_layers=4", "model.d_model=128", "model.n_heads=4", *MUON, "model.shape=encoder")
    same += ("objective.kind=masked", ONE_CORE)
    unseen = bench.folder / "unseen.txt"  # each of its tokens is masked in turn, which takes a while
    unseen.write_text("\n\n".join(UNSEEN.read_text(encoding="utf-8").split("\n\n")[: 1 if bench.quick else 20]))
    rows = []
    for name, first, steps in (("128", long, 1000), ("32, then 128", short, 900), ("32", short, 1000)):
        batch = "training.batch_size=" + ("16" if first is long else "64")
        made = (*(key for key in same if not key.startswith("training.batch_size")), first, batch, bench.steps(steps))
        run = bench.train(
            "pretrain", f"phase-{name[:3].strip(',')}-{steps}", str(STORIES), "--recipe", "tiny", settings=made
        )
        spent = bench.spent[run.name]
        if "then" in name:
            second = (long, "training.batch_size=16", bench.steps(100))
            run = bench.train("pretrain", "phase-second", str(STORIES), "--from", str(run), settings=second)
            spent += bench.spent[run.name]
        found = [bench.evaluate(f"{run.name}-{n}", run, unseen, "--context", str(n))["loss"] for n in (32, 128)]
        rows.append([name, *(f"{loss:.3f}" for loss in found), f"{spent:.0f} s"])
    return table(["rows of", "loss in rows of 32", "loss in rows of 128", "CPU time"], rows)


SYMBOLS = "abcdefghijklmnop"
DISTANCES = ((2, 4), (5, 8), (9, 16), (17, 32))


def forgetting(bench: Bench) -> str:
    """How far back a model remembers: it copies random letters; the loss by how far back each letter stands."""
    text = bench.folder / "copies.txt"
    rng = random.Random(1)
    longest = DISTANCES[-1][1]
    text.write_text("".join(f"{line}={line}\n" for line in (drawn(rng, longest) for _ in range(60_000))))
    tests = [drawn(rng, longest) for _ in range(40 if bench.quick else 400)]
    sizes = ("model.d_model=128", f"model.context={2 * longest + 2}", "model.dropout=0")
    recipes = {
        "Elman network": ("elman", *sizes),
        "GRU": ("gru", *sizes),
        "LSTM": ("lstm", *sizes),
        "LSTM with attention": ("lstm-attention", *sizes),
        "Transformer": ("tiny", *sizes, "model.n_layers=2", "model.n_heads=4"),
    }
    rows = []
    for name, (recipe, *settings) in recipes.items():
        made = (*settings, "tokenizer={kind: char}", "data.documents=line", bench.steps(1500), ONE_CORE)
        made += ("training.batch_size=32", "evaluation.baseline=false")
        run = bench.train("pretrain", recipe, str(text), "--recipe", recipe, settings=made)
        losses: dict[tuple[int, int], list[float]] = {bucket: [] for bucket in DISTANCES}
        for line, scored in zip(tests, load(str(run)).score([f"{line}={line}" for line in tests]), strict=True):
            bucket = next(pair for pair in DISTANCES if pair[0] <= len(line) + 1 <= pair[1])
            copied = scored.logprobs[-len(line) :]
            losses[bucket] += [-logprob for logprob in copied if logprob is not None]
        rows.append([name, *(f"{statistics.fmean(found):.3f}" for found in losses.values())])
    return table(["letters back", *(f"{low} to {high}" for low, high in DISTANCES)], rows)


def drawn(rng: random.Random, longest: int) -> str:
    return "".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, longest - 1)))


EXPERIMENTS: dict[str, Callable[[Bench], str]] = {
    "masking": masking,
    "decoding": decoding,
    "length": length,
    "phases": phases,
    "forgetting": forgetting,
}


if __name__ == "__main__":
    ran(EXPERIMENTS, str(__doc__))
