"""Six claims of the lectures, reproduced at small scale; docs/experiments.md has the results.

    python benchmarks/claims.py positions [--folder DIR] [--quick] [--real FOLDER] [--published RUN]

Each claim is a series of lmtool commands, which go to stderr, and Markdown tables, which go to stdout; `bench.py` says
how a series is resumed, and shared between two processes. FOLDER has what is not bundled: encyclopaedia, opinions,
topics, spam and genres as `lmtool data get` makes them, multi30k.train.tsv and multi30k.test.tsv of German and English
sentences, rte.train.csv and rte.dev.csv. What needs a missing file is left out.
"""

import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from bench import DATA, Series, figures, last_of, mean, parameters, read, run_named, sample, table, written

from lmtool.tasks.metrics import translation_metrics

sys.path.insert(0, str(DATA / "make"))

from reviews import REVIEWS, SIGN, Subject, book, meal, review, shop

HELD = 500
"""Rows of a training table by which choices are made; no model is trained or tested on them."""
TO_CHOOSE = (500, 100)
"""Rows and steps of the trials before a choice."""


@dataclass(frozen=True)
class Task:
    """A labelled table and its test table; texts to pretrain on; by number of rows the steps of fine-tuning."""

    name: str
    table: Path
    test: Path
    texts: tuple[Path, ...] = ()
    steps: tuple[tuple[int, int], ...] = ()

    def rest(self, series: Series) -> Path:
        """The rows to train on."""
        return self._part(series, "rest", slice(HELD, None))

    def held(self, series: Series) -> Path:
        """The rows to choose by."""
        return self._part(series, "held", slice(HELD))

    def _part(self, series: Series, name: str, which: slice) -> Path:
        head, rows = read(self.table)
        return written(series, f"{self.name}-{name}.csv", head, random.Random(0).sample(rows, len(rows))[which])


def majority(table: Path, test: Path) -> str:
    """Accuracy of the most frequent class."""
    [(label, _)] = Counter(row[-1] for row in read(table)[1]).most_common(1)
    tested = [row[-1] for row in read(test)[1]]
    return f"{tested.count(label) / len(tested):.3f}"


def task_of(folder: Path, name: str, **more: Any) -> Task:
    return Task(name, folder / f"{name}.csv", folder / f"{name}.test.csv", **more)


REVIEWS_TASK = task_of(
    DATA,
    "reviews",
    texts=(DATA / "stories.txt", DATA / "reviews.csv"),
    steps=((100, 75), (2500, 250)),
)
"""The texts of the reviews are pretrained on without their labels."""


def pretrained_tasks(series: Series) -> list[Task]:
    """The tables on which pretrained models are fine-tuned."""
    tasks = [REVIEWS_TASK]
    if series.real and series.has("encyclopaedia.txt", "opinions.csv", "opinions.test.csv"):
        texts = (series.real / "encyclopaedia.txt",)
        tasks.append(task_of(series.real, "opinions", texts=texts, steps=((8132, 400),)))
    return tasks


@dataclass(frozen=True)
class Pretraining:
    """Steps of 2,048 tokens, such that all predict as many, 0.6 million; 0.9 million parameters."""

    steps: int
    recipe: str
    settings: tuple[str, ...]


SMALL = ("model.n_layers=2", "model.d_model=128")
MODELS = {
    # predicts 740 tokens in a step: 40 % of what rows of two texts hold
    "encoder": Pretraining(830, "bert-tiny", (*SMALL, "model.n_heads=4", "objective.rate=0.4")),
    "decoder": Pretraining(300, "tiny", (*SMALL, "model.n_heads=4")),
    # predicts each token twice
    "elmo": Pretraining(150, "elmo-tiny", SMALL),
}


def pretrained(series: Series, task: Task, model: str, seed: int) -> Path:
    """The run of an encoder, a decoder or an ELMo on the texts of a task."""
    how = MODELS[model]
    once = (series.steps(how.steps), f"evaluation.every={how.steps}", f"checkpoint.every={how.steps}")
    sizes = ("tokenizer.vocab_size=2048", "model.context=64", "training.batch_size=32")
    settings = (*how.settings, *sizes, *once, "evaluation.prompts=[]", "data.documents=blank-line", f"seed={seed}")
    name = f"{model}-for-{task.name}-{seed}"
    return series.train("pretrain", name, *map(str, task.texts), "--recipe", how.recipe, settings=settings)


def of_steps(series: Series, n: int) -> tuple[str, ...]:
    """So many steps of 32 rows, the last of which is kept; no baseline of the command's own."""
    to_the_end = ("training.epochs=null", "training.min_steps=null", "evaluation.every=99999", "checkpoint.every=99999")
    return (series.steps(n), "training.batch_size=32", *to_the_end, "evaluation.baseline=false")


SCRATCH = " from scratch"
RATES = ("2.5e-4", "5e-4", "1e-3", "2e-3")
CHOICES = {
    "encoder": {"objective.pool": ("first", "mean"), "optimizer.lr": RATES},
    "decoder": {"objective.pool": ("last", "mean"), "optimizer.lr": RATES},
    "elmo": {"optimizer.lr": ("1e-3", "4e-3", "8e-3")},
}


@dataclass(frozen=True)
class Trial:
    """A model that is trained on n rows of a task: one of MODELS, pretrained or from scratch, or a recipe as it is.

    An ELMo stays as it is, and a bidirectional LSTM that reads it is trained.
    """

    task: Task
    n: int
    start: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.task.name}-{self.start.replace(' ', '-')}-{self.n}-{self.seed}"

    @property
    def model(self) -> str:
        return self.start.removesuffix(SCRATCH)

    def run(self, series: Series) -> Path:
        """The run, evaluated on the test table."""
        if self.model in MODELS:
            return self.tuned(series, self.name, self.task.test, self.chosen(series))
        few = of_steps(series, 4) if series.quick else ("evaluation.baseline=false",)
        context = ("model.context=128",) if self.start == "bilstm" else ()
        tables = (*self.rows(series), "--test", str(self.task.test), "--recipe", self.start)
        return series.train("finetune", self.name, *tables, settings=(*few, *context, f"seed={self.seed}"))

    def rows(self, series: Series) -> tuple[str, str, str]:
        return str(sample(series, self.task.rest(series), self.n, self.seed)), "--valid", str(self.task.held(series))

    def tuned(self, series: Series, name: str, test: Path, chosen: Mapping[str, str]) -> Path:
        """The last step, without selection, of the same number of steps for each model."""
        settings = [*of_steps(series, dict((*self.task.steps, TO_CHOOSE))[self.n]), f"seed={self.seed}"]
        settings += [f"{key}={value}" for key, value in chosen.items()]
        if self.start == "elmo":
            how = ("--recipe", "bilstm")
            settings += [f"model.features.run={pretrained(series, self.task, 'elmo', self.seed)}", "model.context=128"]
        elif self.start in MODELS:
            how = ("--from", str(pretrained(series, self.task, self.start, self.seed)))
        else:  # the recipe and tokenizer of the pretrained model, without its weights
            like = replace(self, start=self.model).run(series)
            how = ("--recipe", str(like / "recipe.yaml"))
            settings.append(f"tokenizer={{kind: file, path: {like / 'tokenizer.json'}}}")
        return series.train("finetune", name, *self.rows(series), "--test", str(test), *how, settings=settings)

    def chosen(self, series: Series) -> dict[str, str]:
        """The best settings on the rows to choose by, after TO_CHOOSE on others: one by one, of the first seed."""
        trial = replace(self, n=TO_CHOOSE[0], seed=1)
        best = {"optimizer.lr": "1e-3"}
        for key, values in CHOICES[self.model].items():
            reached = {}
            for value in values[: 1 if series.quick else None]:
                tried = {**best, key: value}
                name = "-".join((trial.name, "with", *tried.values()))
                reached[value] = figures(trial.tuned(series, name, self.task.held(series), tried))["accuracy"]
            best[key] = max(reached, key=lambda value: reached[value])
        return best


Sizes = Sequence[tuple[Task, int]]
Runs = Mapping[tuple[Task, int, str], Sequence[Path]]


def tried(series: Series, sizes: Sizes, starts: Sequence[str]) -> Runs:
    """The runs of all seeds for each task, number of rows and start."""
    cases = [Trial(*size, start, seed) for seed in series.seeds() for size in sizes for start in starts]
    runs = series.each(lambda trial: trial.run(series), cases)
    return {
        (*size, start): [runs[Trial(*size, start, seed)] for seed in series.seeds()]
        for size, start in product(sizes, starts)
    }


def accuracy(runs: Iterable[Path]) -> str:
    return mean([figures(run)["accuracy"] for run in runs])


def seconds(series: Series, runs: Iterable[Path]) -> str:
    return f"{mean([series.spent[run.name] for run in runs], 0)} s"


def accuracies(sizes: Sizes, runs: Runs, starts: Sequence[str], heads: Sequence[str]) -> str:
    rows = [
        [f"{task.name}, {n:,}", majority(task.table, task.test), *(accuracy(runs[task, n, start]) for start in starts)]
        for task, n in sizes
    ]
    return table(["rows", "majority", *heads], rows)


def choices(series: Series, tasks: Iterable[Task], starts: Sequence[str]) -> str:
    """What was chosen for each task and model, a line each."""
    lines = ["Chosen on the held-out rows:"]
    for task, start in product(tasks, starts):
        chosen = Trial(task, TO_CHOOSE[0], start, 1).chosen(series)
        lines.append(f"- {task.name}, {start}: {', '.join(f'{key} {value}' for key, value in chosen.items())}")
    return "\n".join(lines)


def pretraining(series: Series) -> str:
    """Pretraining and fine-tuning beats training from scratch on the same labelled rows."""
    tasks = pretrained_tasks(series)
    sizes = [(task, n) for task in tasks for n, _ in task.steps]
    tuned = ["encoder" + SCRATCH, "encoder", "decoder" + SCRATCH, "decoder"]
    starts = ["naive-bayes", *tuned]
    heads = ["naive Bayes", "encoder, scratch", "pretrained", "decoder, scratch", "pretrained"]
    reached = accuracies(sizes, tried(series, sizes, starts), starts, heads)
    return f"{reached}\n\n{choices(series, tasks, tuned)}"


def classifiers(series: Series) -> str:
    """Encoders beat decoders, which beat features of an ELMo."""
    tasks, starts = pretrained_tasks(series), ["naive-bayes", *MODELS]
    sizes = [(task, task.steps[-1][0]) for task in tasks]
    runs = tried(series, sizes, starts)
    costs = []
    for task, model in product(tasks, MODELS):
        before = [pretrained(series, task, model, seed) for seed in series.seeds()]
        after = runs[task, task.steps[-1][0], model]
        targets = last_of(before[0])["tokens"] * (2 if model == "elmo" else 1)
        times = seconds(series, before), seconds(series, after)
        costs.append([f"{task.name}, {model}", parameters(before[0]), parameters(after[0]), f"{targets:,}", *times])
    head = ["", "parameters", "fine-tuned", "predicted tokens", "pretraining", "fine-tuning on most rows"]
    reached = accuracies(sizes, runs, starts, ["naive Bayes", "encoder", "decoder", "LSTM on an ELMo"])
    return "\n\n".join((reached, table(head, costs), choices(series, tasks, list(MODELS))))


def averages(series: Series) -> str:
    """A mean of word vectors is strong for its cost."""
    tasks = [REVIEWS_TASK]
    if series.real:
        names = ("opinions", "topics", "spam", "genres")
        tasks += [task_of(series.real, name) for name in names if series.has(f"{name}.csv", f"{name}.test.csv")]
    sizes = [(task, len(read(task.table)[1]) - HELD) for task in tasks]
    starts = ["naive-bayes", "linear", "dan", "bilstm"]
    runs = tried(series, sizes, starts)
    rows = []
    for task, n in sizes:
        found = [runs[task, n, start] for start in starts]
        rows.append(
            [
                f"{task.name}, {n:,}",
                majority(task.table, task.test),
                *(f"{accuracy(of)}, {seconds(series, of)}" for of in found),
            ]
        )
    return table(["rows", "majority", "naive Bayes", "linear", "DAN", "BiLSTM"], rows)


Pairs = Sequence[tuple[str, str]]
ATTENTION = {"none": "seq2seq", "Luong": "seq2seq-luong", "Bahdanau": "seq2seq-bahdanau"}


def attention(series: Series) -> str:
    """Attention removes the bottleneck of an encoder-decoder: the gap grows with the length of the source."""
    found = [letters(series)]
    if series.real and series.has("multi30k.train.tsv", "multi30k.test.tsv"):
        found.append(sentences(series, *(pairs_of(series.real / f"multi30k.{part}.tsv") for part in ("train", "test"))))
    return "\n\n".join(found)


def letters(series: Series) -> str:
    """Words of random letters to the same letters in reverse: the share of exact answers by the number of letters."""
    rng = random.Random(0)
    words = dict.fromkeys("".join(rng.choices(ascii_lowercase, k=rng.randint(2, 12))) for _ in range(14_000))
    pairs = [(word, word[::-1]) for word in words][:13_200]
    lengths = [(2, 3), (4, 6), (7, 9), (10, 12)]
    tests = by_length(series, "letters", pairs[12_000:], lengths, len)
    small = ("tokenizer={kind: char}", "model.d_model=64", "model.tie_embeddings=false", series.steps(500))
    found = translated(series, "letters", pairs[:12_000], tests, (*small, "model.bidirectional_encoder=false"))
    rows = [["none: the source itself", *(f"{copied(pairs_of(test)):.3f}" for test in tests)]]
    rows += [[name, *(mean([one["exact"] for one in of]) for of in parts)] for name, parts in found.items()]
    return table(["attention", *(f"{low} to {high} letters" for low, high in lengths)], rows)


def copied(pairs: Pairs) -> float:
    return sum(source == target for source, target in pairs) / len(pairs)


def sentences(series: Series, train: Pairs, test: Pairs) -> str:
    """German sentences to English ones: loss in nats per token, and BLEU."""
    lengths = [(4, 8), (9, 10), (11, 13), (14, 30)]
    tests = by_length(series, "sentences", test, lengths, lambda source: len(source.split()))
    found = translated(series, "sentences", train, tests, (series.steps(1200),))
    counted = WordForWord(train)
    rows = [["word for word, by counts", "BLEU", *(f"{counted.bleu(pairs_of(part)):.1f}" for part in tests)]]
    for name, parts in found.items():
        for measure, title, digits in (("loss", "loss", 2), ("bleu", "BLEU", 1)):
            rows.append([name, title, *(mean([one[measure] for one in of], digits) for of in parts)])
    return table(["attention", "", *(f"{low} to {high} words" for low, high in lengths)], rows)


def translated(
    series: Series, name: str, train: Pairs, tests: Sequence[Path], settings: Sequence[str]
) -> dict[str, list[list[dict[str, Any]]]]:
    """For each kind of attention and each test table the results of all seeds, after the last step."""
    table = pairs_in(series, f"{name}.tsv", train)
    once = ("evaluation.every=99999", "checkpoint.every=99999")

    def results(case: tuple[int, str]) -> list[dict[str, Any]]:
        seed, recipe = case
        how = (str(table), "--test", str(tests[0]), "--recipe", recipe)
        run = series.train("finetune", f"{name}-{recipe}-{seed}", *how, settings=[*settings, *once, f"seed={seed}"])
        return [series.evaluate(f"{name}-{recipe}-{seed}-{test.stem}", run, test) for test in tests]

    found = series.each(results, product(series.seeds(), ATTENTION.values()))
    return {
        kind: [[found[seed, recipe][part] for seed in series.seeds()] for part in range(len(tests))]
        for kind, recipe in ATTENTION.items()
    }


def pairs_in(series: Series, name: str, pairs: Pairs) -> Path:
    return written(series, name, ("source", "target"), pairs)


def pairs_of(file: Path) -> Pairs:
    return [(source, target) for source, target in read(file)[1]]


def by_length(
    series: Series, name: str, pairs: Pairs, lengths: Iterable[tuple[int, int]], length: Callable[[str], int]
) -> list[Path]:
    """The pairs whose source is so long, a table for each range."""
    tables = []
    for low, high in lengths:
        wanted = [pair for pair in pairs if low <= length(pair[0]) <= high]
        tables.append(pairs_in(series, f"{name}-{low}-{high}.tsv", wanted[: 10 if series.quick else None]))
    return tables


class WordForWord:
    """Each word becomes the one that shares most pairs with it, by Dice's coefficient: counts alone, no model."""

    def __init__(self, pairs: Pairs) -> None:
        sources, targets, both = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
        for pair in pairs:
            left, right = (set(self.words(text)) for text in pair)
            sources.update(left)
            targets.update(right)
            both.update(product(left, right))
        best: dict[str, tuple[float, str]] = {}
        for (source, target), n in both.items():
            dice = 2 * n / (sources[source] + targets[target])
            best[source] = max(best.get(source, (0.0, "")), (dice, target))
        self.known = {source: target for source, (_, target) in best.items()}

    @staticmethod
    def words(text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text)

    def bleu(self, pairs: Pairs) -> float:
        said = [" ".join(self.known.get(word, word) for word in self.words(source)) for source, _ in pairs]
        return float(translation_metrics(said, [target for _, target in pairs])["bleu"])


def reviews_of(
    series: Series, name: str, subjects: Sequence[Subject], labels: Sequence[str], n: int, seed: int
) -> Path:
    """A table of n reviews of some subjects with some labels, by the program that writes reviews.csv."""
    source = replace(REVIEWS, name=name, program=partial(review, subjects=subjects), seed=seed).drawn()
    rows = list(islice((row for row in source if row.label in labels), n))
    return series.write(f"{name}-{n}-{seed}.csv", REVIEWS.csv(rows).decode())


@dataclass(frozen=True)
class Transfer:
    """A model that may learn a larger task before a small one; the steps of both. Each seed has rows of its own.

    begin: the run of each seed, and the settings of fine-tuning it.
    """

    name: str
    begin: Callable[[int], Path]
    settings: tuple[str, ...]
    larger: Path
    small: Callable[[int], Path]
    test: Path
    steps: tuple[int, int]

    def reached(self, series: Series, seed: int) -> list[float]:
        """Accuracy of naive Bayes, after the steps of the small task, after as many as of both, and after both."""
        first, then = self.steps
        small = self.small(seed)

        def tuned(name: str, data: Path, steps: int, begin: Path) -> Path:
            settings = (*of_steps(series, steps), *self.settings, f"seed={seed}")
            test = ("--test", str(self.test)) if data == small else ()
            tables = (str(data), *test, "--from", str(begin))
            return series.train("finetune", f"{self.name}-{name}-{seed}", *tables, settings=settings)

        few = of_steps(series, 4) if series.quick else ()
        how = (str(small), "--test", str(self.test), "--recipe", "naive-bayes")
        counted = series.train("finetune", f"{self.name}-counts-{seed}", *how, settings=(*few, f"seed={seed}"))
        begin = self.begin(seed)
        direct, longer = (tuned(f"direct-{steps}", small, steps, begin) for steps in (then, first + then))
        after = tuned("after", small, then, tuned("larger", self.larger, first, begin))
        return [figures(run)["accuracy"] for run in (counted, direct, longer, after)]


def transfers(series: Series) -> Iterable[Transfer]:
    """Reviews of shops and meals, then of few books; of a published model also entailment, of texts by a program, then
    of real ones (RTE)."""
    small = partial(reviews_of, series, "books", (book,), ("positive", "negative"))
    reviews = reviews_of(series, "shops-and-meals", (shop, meal), tuple(SIGN), 3000, 1), partial(small, 60)
    rows = *reviews, small(1000, 1000), (150, 50)
    for model in ("encoder", "decoder"):
        begin = partial(pretrained, series, REVIEWS_TASK, model)
        chosen = Trial(REVIEWS_TASK, TO_CHOOSE[0], model, 1).chosen(series).items()
        yield Transfer(f"books-{model}", begin, tuple(f"{key}={value}" for key, value in chosen), *rows)
    if (published := series.published) is None:
        return
    yield Transfer("books-published", lambda _: published, ("objective.contrastive=false",), *rows)
    if series.real and series.has("rte.train.csv", "rte.dev.csv"):
        rte = partial(sample, series, series.real / "rte.train.csv", 1200)
        rows = DATA / "entailment.csv", rte, series.real / "rte.dev.csv", (100, 75)
        yield Transfer("rte-published", lambda _: published, ("training.batch_size=16",), *rows)


def transfer(series: Series) -> str:
    """Intermediate fine-tuning on a larger task helps a small one, also against as many steps on the small one."""
    found = list(transfers(series))
    cases = product(series.seeds(), range(len(found)))
    reached = series.each(lambda case: found[case[1]].reached(series, case[0]), cases)
    rows = []
    for number, one in enumerate(found):
        first, then = one.steps
        columns = zip(*(reached[seed, number] for seed in series.seeds()), strict=True)
        cells = [majority(one.small(1), one.test), *(mean(column) for column in columns)]
        rows.append([one.name, f"{then}, {first + then}, {first} + {then}", *cells])
    heads = ("direct", "direct, as many steps", "larger task first")
    return table(["small task", "steps", "majority", "naive Bayes", *heads], rows)


def positions(series: Series) -> str:
    """ALiBi extrapolates to longer texts than it was trained on; learned positions do not."""
    kinds = {
        "alibi": "{kind: alibi}",
        "rotary": "{kind: rotary}",
        "sinusoidal": "{kind: sinusoidal}",
        "learned": "{kind: learned, size: 1024}",  # more positions than are trained, for longer texts
    }
    contexts = (64, 128, 256, 512, 1024)
    # of `tiny`, but learning rates and embeddings that favour no kind of positions
    rates = ("optimizer={kind: muon, lr: 0.01, adamw: {lr: 5e-3, beta2: 0.99, weight_decay: 0}}", "model.init={}")
    small = ("model.context=128", "training.batch_size=16", series.steps(600), *rates)
    recipes = {"5-gram": ("ngram", "tokenizer.vocab_size=2048")}
    recipes |= {kind: ("tiny", *small, f"model.position={position}") for kind, position in kinds.items()}

    def bits(case: tuple[int, str]) -> list[float]:
        seed, kind = case
        recipe, *settings = recipes[kind]
        settings += ["data.documents=whole", f"seed={seed}"]
        run = series.train(
            "pretrain", f"{kind}-{seed}", str(DATA / "stories.txt"), "--recipe", recipe, settings=settings
        )
        tests = ((f"{kind}-{seed}-{n}", run, DATA / "stories.valid.txt", "--context", str(n)) for n in contexts)
        return [series.evaluate(*test)["bits_per_byte"] for test in tests]

    found = series.each(bits, product(series.seeds(), recipes))
    rows = [
        [f"`{kind}`", *map(mean, zip(*(found[seed, kind] for seed in series.seeds()), strict=True))] for kind in recipes
    ]
    return table(["position", "64", "128, as trained", *map(str, contexts[2:])], rows)


CLAIMS: dict[str, Callable[[Series], str]] = {
    "pretraining": pretraining,
    "attention": attention,
    "classifiers": classifiers,
    "transfer": transfer,
    "positions": positions,
    "averages": averages,
}


if __name__ == "__main__":
    run_named(CLAIMS, str(__doc__))
