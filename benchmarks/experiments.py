"""What the literature reports of single choices, tried on the bundled data: masking, decoding, length, memory.

    python benchmarks/experiments.py forgetting [--folder DIR] [--quick]

Each is a series of lmtool commands, which go to stderr, and a Markdown table, which goes to stdout, as `bench.py` says.
"""

import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench import DATA, Series, figures, mean, parameters, run_named, sample, table, written
from coherence import holds
from pydantic import TypeAdapter

from lmtool import load
from lmtool.analysis.neighbors import find_neighbors
from lmtool.api import TrainedModel
from lmtool.batch import Batch
from lmtool.errors import UsageError
from lmtool.generation.generate import generate
from lmtool.generation.params import SamplingParams
from lmtool.inference.load import LoadedModel, load_run
from lmtool.model import LanguageModel, build
from lmtool.objective import Example
from lmtool.objective.base import rng_from_tokens
from lmtool.recipe.spec.recipe import Model

STORIES, UNSEEN = DATA / "stories.txt", DATA / "stories.valid.txt"
SMALL = ("tokenizer.vocab_size=2048", "training.batch_size=16", "evaluation.prompts=[]")
WIDTH = ("model.n_layers=4", "model.d_model=128", "model.n_heads=4", "model.context=128")
MUON = (
    "optimizer={kind: muon, lr: 0.02, adamw: {lr: 0.02, beta2: 0.99, weight_decay: 0}}",
    "model.init.embedding_std=1.0",
)
TUNED = ("optimizer.lr=5e-4", "objective.pool=mean")
"""Of encoders: the first position sees little of a text under ALiBi."""

REVIEWS = DATA / "reviews.csv"
TEXTS = (str(STORIES), str(REVIEWS))


def masking(series: Series) -> str:
    """Which share of the tokens to mask: too few are costly to learn from, too many leave no context."""
    rows = []
    for rate in (0.15, 0.3, 0.4, 0.5):
        objective = f"objective={{kind: masked, rate: {rate}}}"
        settings = (*SMALL, *WIDTH, *MUON, "model.shape=encoder", objective, series.steps(600))
        run = series.train("pretrain", f"masked-{rate}", *TEXTS, "--recipe", "tiny", settings=settings)
        loss = series.evaluate(f"{run.name}-eval", run, few_unseen(series))["loss"]
        rows.append([f"{rate:.0%}", f"{loss:.3f}", encoder_on_reviews(series, run)])
    return table(["masked in training", "loss of one masked token", "accuracy on 500 reviews"], rows)


def few_unseen(series: Series) -> Path:
    """Some validation stories for masked models, each of whose tokens is masked in turn, which takes a while."""
    stories = UNSEEN.read_text(encoding="utf-8").split("\n\n")
    return series.write("unseen.txt", "\n\n".join(stories[: 1 if series.quick else 12]))


def on_500_reviews(series: Series, name: str, settings: Sequence[str], *how: str) -> str:
    """Accuracy after twelve epochs on 500 reviews, mean and standard deviation over seeds, each with its own rows."""
    reached = []
    for seed in series.seeds():
        made = (f"seed={seed}", "training.epochs=" + ("0.05" if series.quick else "12"), *settings)
        tables = (str(sample(series, REVIEWS, 500, seed)), "--test", str(DATA / "reviews.test.csv"))
        reached.append(figures(series.train("finetune", f"{name}-{seed}", *tables, *how, settings=made))["accuracy"])
    return mean(reached)


def encoder_on_reviews(series: Series, run: Path) -> str:
    return on_500_reviews(series, f"{run.name}-reviews", TUNED, "--from", str(run))


def relatives(series: Series) -> str:
    """Relatives of BERT, each by its recipe: fewer weights (ALBERT), or a loss on every token (ELECTRA)."""
    rows = []
    for recipe in ("roberta-tiny", "albert-tiny", "electra-tiny"):
        settings = [series.steps(4)] if series.quick else []
        if recipe == "albert-tiny":
            settings.append("objective.sentence_order=false")
        run = series.train("pretrain", recipe, *TEXTS, "--recipe", recipe, settings=settings)
        spent = f"{series.spent[recipe]:.0f} s"
        rows.append([f"`{recipe}`", parameters(run), spent, encoder_on_reviews(series, run)])
    return table(["recipe", "parameters", "CPU time of pretraining", "accuracy on 500 reviews"], rows)


def distillation(series: Series) -> str:
    """A model of half of the layers learns from the text alone, or also from the larger model."""
    teacher = series.train("pretrain", "tiny", str(STORIES), "--recipe", "tiny", settings=[series.steps(3000)])
    steps = (series.steps(1500), "evaluation.prompts=[]")
    runs = {"teacher: `tiny`": teacher}
    tokenizer = f"tokenizer={{kind: file, path: {teacher / 'tokenizer.json'}}}"
    student = (str(STORIES), "--recipe", "distil-tiny")
    runs["`distil-tiny`, alone"] = series.train("pretrain", "alone", *student, settings=(*steps, tokenizer))
    for weight in (0.5, 0.9):
        how = (*steps, f"distillation.weight={weight}")
        taught = series.train("pretrain", f"taught-{weight}", *student, "--teacher", str(teacher), settings=how)
        runs[f"with the teacher, weight {weight}"] = taught
    rows = []
    for name, run in runs.items():
        bits = series.evaluate(f"{run.name}-eval", run, UNSEEN)["bits_per_byte"]
        rows.append([name, parameters(run), f"{bits:.4f}", f"{series.spent[run.name]:.0f} s"])
    return table(["", "parameters", "bits per byte", "CPU time"], rows)


NEAREST = 5
CLASSES = (
    "baker farmer miller gardener teacher carpenter fisher blacksmith weaver potter tailor shoemaker",
    "Anna Clara Emma Rosa Martha Greta Tom Ben Jack Peter Henry Sam",
    "January February March April May June July August September October",
    "two three four five six seven eight nine ten",
)
"""Words of the stories that mean something alike."""


def neighbors_of_same_class(loaded: LoadedModel) -> float:
    """Returns the share of the nearest words of each word of a class that are of this class, where it has a vector."""
    shares = []
    for words in (line.split() for line in CLASSES):
        for word in words:
            with suppress(UsageError):
                nearest = find_neighbors(loaded, word, NEAREST).nearest
                shares.append(sum(near.word in words for near in nearest) / NEAREST)
    return statistics.mean(shares)


def vectors(series: Series) -> str:
    """Word vectors by their neighbours, and as the beginning of a bidirectional LSTM that classifies 500 reviews."""
    rows = []
    for recipe in ("none", "skipgram", "cbow", "glove", "ppmi"):
        begin: tuple[str, ...] = ()
        cells = ["", ""]
        if recipe != "none":
            steps = [series.steps(4)] if series.quick else []
            run = series.train("pretrain", recipe, str(STORIES), "--recipe", recipe, settings=steps)
            loaded = load_run(str(run))
            cells = [f"{neighbors_of_same_class(loaded):.3f}", f"{series.spent[recipe]:.0f} s"]
            begin = (f"model.embeddings={run}",)
        reached = on_500_reviews(series, f"bilstm-{recipe}", begin, "--recipe", "bilstm")
        rows.append([f"`{recipe}`" if recipe != "none" else "random", *cells, reached])
    return table(["vectors", "of the 5 nearest, in the same class", "CPU time", "`bilstm` on 500 reviews"], rows)


STRATEGIES = {
    "greedy": "--strategy greedy",
    "beam search, 4 beams": "--num-beams 4",
    "temperature 0.5": "--temperature 0.5",
    "temperature 0.8": "--temperature 0.8",
    "temperature 1": "--temperature 1",
    "temperature 1.3": "--temperature 1.3",
    "top-k 40": "--temperature 1 --top-k 40",
    "nucleus 0.9": "--temperature 1 --top-p 0.9",
}


def decoding(series: Series) -> str:
    """One model, several decoding strategies: how coherent, how varied and how repetitive its stories are."""
    run = series.train("pretrain", "tiny", str(STORIES), "--recipe", "tiny", settings=[series.steps(3000)])
    unseen = UNSEEN.read_text(encoding="utf-8").strip().split("\n\n")[: 4 if series.quick else 100]
    prompts = series.folder / "prompts.txt"
    begun = [" ".join(story.split()[:3]) for story in unseen]
    prompts.write_text("".join(f"{beginning}\n" for beginning in begun))
    common = ("--prompt-file", str(prompts), "--run", str(run), "--seed", "1", "--json", "--quiet")
    common += ("--max-new-tokens", "8" if series.quick else "400")
    rows = [["none: the validation stories", *measured(begun, unseen)]]
    for name, options in STRATEGIES.items():
        written = series.run(f"written by {name}", "generate", *common, *options.split())
        found = [json.loads(line) for line in written.splitlines()]
        rows.append([name, *measured(begun, [one["prompt"] + one["text"] for one in found])])
    return table(["strategy", "coherent", "distinct-1", "distinct-2", "repeated 4-grams", "words"], rows)


def measured(begun: Sequence[str], stories: Sequence[str]) -> list[str]:
    """The share of coherent stories; how varied they are, how much each repeats itself, and its mean length.

    Variety is of one story for each beginning: where strategies are deterministic, the others are equal to it.
    """
    words = [story.split() for story in stories]
    varied = list(dict(zip(reversed(begun), reversed(words), strict=True)).values())
    return [
        f"{statistics.fmean(map(holds, stories)):.0%}",
        f"{distinct(varied, 1):.3f}",
        f"{distinct(varied, 2):.3f}",
        f"{statistics.fmean(map(repeated, words)):.1%}",
        f"{statistics.fmean(map(len, words)):.0f}",
    ]


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


def length(series: Series) -> str:
    """Cost over length: a recurrent model is linear and sequential, attention quadratic, a window linear."""
    decoder = {"kind": "transformer", "shape": "decoder", "n_heads": 2, "position": {"kind": "alibi"}}
    specs = {
        "LSTM": {"kind": "recurrent", "shape": "decoder", "cell": "lstm"},
        "attention": decoder,
        "window of 128": decoder | {"pattern": {"kind": "window", "size": 128}},
    }
    lengths = LENGTHS[:2] if series.quick else LENGTHS
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
    """CPU seconds of a forward and backward pass over one row, the better of two."""
    tokens_BT = torch.randint(0, 256, (1, n))
    found = []
    for _ in range(2):
        began = time.process_time()
        model.logits(model(Batch(tokens_BT)).hidden_BTD).logsumexp(-1).sum().backward()
        found.append(time.process_time() - began)
    return min(found)


def with_cache(model: LanguageModel, n: int, new: int = 16) -> float:
    """CPU seconds of a token after n others, whose keys and values are kept."""
    model.eval()
    ends = []
    for _ in generate(
        model, [torch.randint(1, 256, (n - new,)).tolist()], SamplingParams("greedy", max_new_tokens=new)
    ):
        ends.append(time.process_time())
    return (ends[-1] - ends[0]) / (len(ends) - 1)


@torch.no_grad()
def without_cache(model: LanguageModel, n: int) -> float:
    """CPU seconds of a token after n others, all of which are computed again."""
    tokens_BT = torch.randint(0, 256, (1, n))
    began = time.process_time()
    model.logits(model(Batch(tokens_BT)).hidden_BTD[:, -1])
    return time.process_time() - began


def phases(series: Series) -> str:
    """BERT's two phases of length: nine tenths of the steps on short rows, then the full length at a low rate."""
    short, long = ("model.context=32", "training.batch_size=64"), ("model.context=128", "training.batch_size=16")
    same = ("tokenizer.vocab_size=2048", "evaluation.prompts=[]", "model.n_heads=4", *MUON)
    same += ("model.shape=encoder", "objective.kind=masked")
    runs, spent = {}, {}
    for name, first, steps in (("128", long, 800), ("32", short, 800), ("32, nine tenths of the steps", short, 720)):
        made = (*same, *first, series.steps(steps))
        run = series.train("pretrain", f"rows-{steps}-{name[:2]}", str(STORIES), "--recipe", "tiny", settings=made)
        runs[name], spent[name] = run, series.spent[run.name]
    rates = "{kind: muon, lr: 0.002, adamw: {lr: 0.002, beta2: 0.99, weight_decay: 0}}"
    second = (*long, series.steps(80), f"optimizer={rates}", "schedule.warmup_steps=0")
    last = series.train("pretrain", "second-phase", str(STORIES), "--from", str(run), settings=second)
    runs["the same, then 128"], spent["the same, then 128"] = last, spent[name] + series.spent[last.name]
    unseen, rows = few_unseen(series), []
    for name, run in runs.items():
        found = [series.evaluate(f"{run.name}-{n}", run, unseen, "--context", str(n))["loss"] for n in (32, 128)]
        rows.append([name, *(f"{loss:.3f}" for loss in found), f"{spent[name]:.0f} s"])
    return table(["rows of", "loss in rows of 32", "loss in rows of 128", "CPU time"], rows)


SYMBOLS = "abcdefgh"
DISTANCES = ((2, 3), (4, 5), (6, 8), (9, 12), (13, 16))


def forgetting(series: Series) -> str:
    """How far back a model remembers: it copies random letters; the loss by how far back each letter stands."""
    text = series.folder / "copies.txt"
    rng = random.Random(1)
    longest = DISTANCES[-1][1]
    text.write_text("".join(f"{line}={line}\n" for line in (drawn(rng, longest) for _ in range(60_000))))
    tests = [drawn(rng, longest) for _ in range(40 if series.quick else 400)]
    sizes = ("model.d_model=128", f"model.context={2 * longest + 2}", "model.dropout=0")
    fresh = "training.carry_state=false"  # a line is scored from an empty state
    recipes = {
        "Elman network": ("elman", *sizes, fresh),
        "GRU": ("gru", *sizes, fresh),
        "LSTM": ("lstm", *sizes, fresh),
        "LSTM with attention": ("lstm-attention", *sizes),
        "Transformer": ("tiny", *sizes, "model.n_layers=2", "model.n_heads=4"),
    }
    rows = []
    for name, (recipe, *settings) in recipes.items():
        made = (*settings, "tokenizer={kind: char}", "data.documents=line", series.steps(6000))
        made += ("training.batch_size=32", "evaluation.baseline=false")
        run = series.train("pretrain", f"copies-{recipe}", str(text), "--recipe", recipe, settings=made)
        losses: dict[tuple[int, int], list[float]] = {bucket: [] for bucket in DISTANCES}
        for line, scored in zip(tests, load(str(run)).score([f"{line}={line}" for line in tests]), strict=True):
            bucket = next(pair for pair in DISTANCES if pair[0] <= len(line) + 1 <= pair[1])
            copied = scored.logprobs[-len(line) :]
            losses[bucket] += [-logprob for logprob in copied if logprob is not None]
        rows.append([name, *(f"{statistics.fmean(found):.3f}" for found in losses.values())])
    return table(["letters back", *(f"{low} to {high}" for low, high in DISTANCES)], rows)


def drawn(rng: random.Random, longest: int) -> str:
    return "".join(rng.choice(SYMBOLS) for _ in range(rng.randint(1, longest - 1)))


INPUTS = {
    "true letters": "null",
    "half of them its own at the end": "{growth: linear, floor: 0.5}",
    "all of them its own at the end": "{growth: linear}",
}
"""Scheduled sampling of a training."""
PLACES = (range(5), range(5, 10), range(10, 20), range(1_000))
"""Of letters in a target, counted from 0."""


def exposure(series: Series) -> str:
    """Exposure bias: the accuracy of the next letter given the true letters before it, and given the model's own."""
    phrases = list(dict.fromkeys(spelt(STORIES.read_text(encoding="utf-8"))))
    unseen = phrases[12_000 : 12_040 if series.quick else 13_000]
    text = series.folder / "letters.tsv"
    text.write_text("source\ttarget\n" + "".join(f"{phrase}\t{phrase[::-1]}\n" for phrase in phrases[:12_000]))
    same = ("tokenizer.kind=char", "model.d_model=128", "model.bidirectional_encoder=false", "evaluation.every=1000")
    rows = []
    for number, (name, sampling) in enumerate(INPUTS.items()):
        settings = (*same, series.steps(1000), f"objective.scheduled_sampling={sampling}")
        run = series.train("finetune", f"spelt-{number}", str(text), "--recipe", "seq2seq", settings=settings)
        lm = load(str(run))
        answers = [str(prediction.label) for prediction in lm.predict(unseen)]
        pairs = list(zip(answers, (phrase[::-1] for phrase in unseen), strict=True))
        own = [[answer[i : i + 1] == letter for i, letter in enumerate(target)] for answer, target in pairs]
        true = given_true(lm, unseen)
        both = [(right_at(true, places), right_at(own, places)) for places in PLACES]
        exact = statistics.fmean(answer == target for answer, target in pairs)
        rows.append([name, *(f"{a:.3f}, {b:.3f}" for a, b in both), f"{both[-1][0] - both[-1][1]:.3f}", f"{exact:.3f}"])
    head = [f"letters {places[0] + 1} to {places[-1] + 1}" for places in PLACES[:-1]]
    return table(["inputs", *head, "all letters", "gap", "exact"], rows)


def spelt(text: str) -> Iterator[str]:
    """One to four words in turn, in lower case."""
    words = iter(re.findall("[a-z]+", text.lower()))
    for n in cycle((1, 2, 3, 4)):
        if not (taken := list(islice(words, n))):
            return
        yield " ".join(taken)


def given_true(lm: TrainedModel, phrases: Sequence[str]) -> list[list[bool]]:
    """Whether the most probable letter is the right one, when all letters before it are the true ones."""
    encode = lm.loaded.tokenizer.encode
    pairs = [[np.array(encode(text)) for text in (phrase, phrase[::-1])] for phrase in phrases]
    batch = lm.loaded.objective.collate([Example(source, rng_from_tokens(source), target) for source, target in pairs])
    with torch.inference_mode():
        guessed_BT = lm.loaded.model.logits(lm.loaded.model(batch).hidden_BTD).argmax(-1)
    rights = (guessed_BT == batch.targets_BT).tolist()
    return [right[: len(target)] for right, (_, target) in zip(rights, pairs, strict=True)]


def right_at(rights: Sequence[Sequence[bool]], places: Sequence[int]) -> float:
    return statistics.fmean(right[i] for right in rights for i in places if i < len(right))


SIZES = ((1, 64), (2, 4), (2, 8), (2, 16), (2, 64))
"""Layers and width."""
SHOTS = (0, 1, 2, 4, 8, 16)
LABELS = ("red", "green", "blue", "white")


def shots(series: Series) -> str:
    """Learning in context: accuracy by the number of examples in the prompt, of models of several sizes."""
    rng = random.Random(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    words = ["".join(pair) for pair in rng.sample(list(product(syllables, repeat=2)), 80)]
    groups = [words[i::4] for i in range(4)]
    lessons = series.write(
        "lessons.txt", "\n".join(lesson(rng, groups) for _ in range(100 if series.quick else 30_000))
    )
    # each word several times: every row draws examples of its own
    for name, part, n in (("shown", slice(10), 1), ("asked", slice(10, None), 20)):
        pairs = [(word, label) for group, label in zip(groups, LABELS[:2], strict=False) for word in group[part]]
        rows = [[str(i), *pair] for i in range(n) for pair in pairs]
        written(series, f"{name}.csv", ["number", "word", "label"], rows)
    tasks = ",".join(str(series.write(f"after-{n}.yaml", json.dumps(shown(n)))) for n in SHOTS)
    same = ("tokenizer={kind: word}", "data.documents=line", "model.context=64", "training.batch_size=32")
    rows = []
    for layers, width in SIZES:
        size = (f"model.n_layers={layers}", f"model.d_model={width}", "model.n_heads=2", series.steps(600))
        reached = []
        for seed in series.seeds():
            name, settings = f"lessons-{layers}-{width}-{seed}", (*same, *size, "evaluation.prompts=[]", f"seed={seed}")
            run = series.train("pretrain", name, str(lessons), "--recipe", "tiny", settings=settings)
            told = series.run(f"{name}-eval", "eval", str(run), "--tasks", tasks, "--json", "--quiet")
            reached.append([json.loads(told)["tasks"][f"after-{n}"]["metrics"]["acc"]["value"] for n in SHOTS])
        rows.append([f"{layers} x {width}", parameters(run), *map(mean, zip(*reached, strict=True))])
    return table(["layers x width", "parameters", "0 examples", *map(str, SHOTS[1:])], rows)


def lesson(rng: random.Random, groups: Sequence[Sequence[str]]) -> str:
    """Words of two groups, each followed by the label that its group has in this lesson."""
    taught = list(zip(rng.sample(groups, 2), rng.sample(LABELS, 2), strict=True))
    return " ".join(f"{rng.choice(group)} {label}" for group, label in rng.choices(taught, k=31))


def shown(n: int) -> dict[str, Any]:
    """A task of lm-eval: the label of a word after n examples."""
    return {
        "task": f"after-{n}",
        "dataset_path": "csv",
        "dataset_kwargs": {"data_files": {"train": "shown.csv", "test": "asked.csv"}},
        "test_split": "test",
        "fewshot_split": "train",
        "num_fewshot": n,
        "fewshot_delimiter": " ",
        "output_type": "multiple_choice",
        "doc_to_text": "word",
        "doc_to_choice": list(LABELS),
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}],
    }


EXPERIMENTS: dict[str, Callable[[Series], str]] = {
    "masking": masking,
    "relatives": relatives,
    "distillation": distillation,
    "vectors": vectors,
    "decoding": decoding,
    "length": length,
    "phases": phases,
    "forgetting": forgetting,
    "exposure": exposure,
    "shots": shots,
}


if __name__ == "__main__":
    run_named(EXPERIMENTS, str(__doc__))
