"""What docs/course.md shows of its commands has the effect that each topic names: a figure, or an order of figures."""

import re
from collections.abc import Callable
from itertools import pairwise
from statistics import mean

import pytest

from tests.test_course import TOPICS

NUMBER = r"(-?(?:\d[\d,]*\.?\d*(?:e[+-]?\d+)?|inf))"


class Printed:
    """What the commands of a topic printed, as the page has it."""

    def __init__(self, topic: str) -> None:
        found = re.search(r"^```text\n(.*?)^```$", topic, flags=re.MULTILINE | re.DOTALL)
        assert found is not None
        self.text = found[1]
        self.lines = found[1].splitlines()

    def all(self, before: str, after: str = "") -> list[float]:
        """The numbers between two patterns, in their order."""
        return [float(text.replace(",", "")) for text in re.findall(f"{before} *{NUMBER}{after}", self.text)]

    def row(self, name: str) -> list[float]:
        """The numbers of a line of a table with tabs; where a cell has none, a number that is in no order."""
        (line,) = (line for line in self.lines if line.split("\t")[0] == name)
        cells = [cell.replace(",", "") for cell in line.split("\t")[1:]]
        return [float(cell) if re.fullmatch(NUMBER, cell) else float("nan") for cell in cells]

    def best(self, column: str) -> dict[str, float]:
        """A table of a sweep: the values of a key or of several, joined by spaces, and the figure of each."""
        head = next(i for i, line in enumerate(self.lines) if line.startswith(f"{column}\t"))
        width = self.lines[head].count("\t")
        rows: dict[str, float] = {}
        for line in self.lines[head + 1 :]:
            *values, figure = line.split("\t")
            if len(values) != width or not re.fullmatch(NUMBER, figure):
                break
            rows[" ".join(values)] = float(figure)
        return rows

    def matrix(self, title: str) -> list[list[float]]:
        """The rows of numbers below a line that begins with the title."""
        start = next(i for i, line in enumerate(self.lines) if line.startswith(title)) + 1
        rows = []
        for line in self.lines[start:]:
            if not re.fullmatch(r"(?: +-?\d+\.\d+)+", line):
                break
            rows.append([float(cell) for cell in line.split()])
        return rows

    def pieces(self) -> list[str]:
        """The pieces of a tokenizer."""
        return [line.partition("\t")[2] for line in self.lines]


def rises(numbers: list[float], by: float = 0.0) -> bool:
    return len(numbers) > 1 and all(b - a > by for a, b in pairwise(numbers))


def falls(numbers: list[float], by: float = 0.0) -> bool:
    return rises([-number for number in numbers], by)


def accuracies(printed: Printed) -> list[float]:
    return printed.all("accuracy")


TRADES = """
baker beekeeper blacksmith bookbinder cobbler cook cooper farmer fisher gardener glazier grocer innkeeper jeweller mason
miller painter potter roofer sailor shepherd shoemaker tailor teacher weaver woodcutter
"""
MONTHS = "January February March April May June July August September October November December"


def nearest(printed: Printed) -> list[str]:
    """The words of lists of neighbours."""
    return re.findall(r"^ *0\.\d+ +(\S+)", printed.text, flags=re.MULTILINE)


def is_skipgram(o: Printed) -> bool:
    words = nearest(o)
    return set(words[:5] + words[10:]) <= {*TRADES.split()} and all(word[0].isupper() for word in words[5:10])


def forgets(o: Printed) -> bool:
    elman, lstm = o.all("λ =")
    return elman < 0.9 < lstm


def is_attention(o: Printed) -> bool:
    weights = o.matrix("A = softmax")
    return all(abs(sum(row) - 1) < 1e-3 and not any(row[i + 1 :]) for i, row in enumerate(weights))


def are_positions(o: Printed) -> bool:
    products, cosines = o.matrix("PE(p) . PE(q)"), o.matrix("cos(k")
    sums = [sum(column) for column in zip(*cosines, strict=True)]
    return all(abs(products[p][q] - sums[abs(p - q)]) < 2e-3 for p in range(4) for q in range(4))


def is_a_memory(o: Printed) -> bool:
    lstm, mean_of_all, soft, hard = o.row("best loss")
    return max(soft, hard) < lstm and mean_of_all < min(soft, hard)


def is_built_up(o: Printed) -> bool:
    each, attention, network, residual, norm, positions, unmasked = o.row("best loss")
    return max(residual, norm) < each < attention < network and unmasked < positions < norm


def learns_by_depth(o: Printed) -> bool:
    norms, depths = o.best("model.norm.kind"), o.best("model.n_layers")
    order = [depths[name] for name in ("8 true", "2 true", "2 false", "8 false")]
    return max(norms.values()) - min(norms.values()) < 0.05 and rises(order) and normalizes(o)


def optimizes(o: Printed) -> bool:
    kinds, rates, batches = (o.best(name) for name in ("optimizer", "optimizer.lr", "training.batch_size"))
    best = min(rates, key=lambda rate: rates[rate])
    return (
        [re.findall("muon|adamw|sgd", kind)[0] for kind in kinds] == ["muon", "adamw", "sgd"]
        and best in ("0.001", "0.01", "0.1")
        and min(rates["0.0001"], rates["1"]) > rates[best] + 0.5
        and [*batches] == ["16", "4", "1"]
    )


def is_scheduled(o: Printed) -> bool:
    rates, kinds, warm = o.all('"lr":'), o.best("schedule.kind"), o.best("schedule.warmup_steps")
    near = max(kinds.values()) - min(kinds.values()) < 0.1
    return rises(rates[:3]) and falls(rates[3:]) and near and warm["40"] + 0.2 < warm["0"]


def mask_predicts(o: Printed) -> bool:
    once, often = (line.removeprefix("One rainy morning").split() for line in o.lines[:2])
    return len(set(once)) < len(set(often))


def is_in_context(o: Printed) -> bool:
    words = nearest(o)
    months = [word in MONTHS.split() for word in words]
    return all(months[:3]) and sum(months[4:]) < 2


def is_asked(o: Printed) -> bool:
    rows = [line.split()[-3:] for line in o.lines if re.match("as scored|calibrated", line)]
    scored, calibrated = min(zip(*([float(cell) for cell in row] for row in rows), strict=True))
    return scored < 60 and calibrated > 85


def is_glue(o: Printed) -> bool:
    scores = dict(re.findall(rf"^(\w+) +{NUMBER}", o.text, flags=re.MULTILINE))
    *tasks, whole = map(float, scores.values())
    return [*scores][-1] == "mean" and abs(mean(tasks) - whole) < 0.1 and max(tasks) > 20


def is_greedy_at_zero(o: Printed) -> bool:
    greedy = Printed(TOPICS["Greedy decoding"]).lines[0]
    return greedy.startswith(o.lines[2]) and len({line for line in o.lines[:3]}) == 3


def is_a_picture(o: Printed) -> bool:
    rows = [re.findall(r"\d+", line[10:]) for line in o.lines if re.match(r" *\d+ \S", line)]
    return all(90 < sum(map(int, row)) <= 103 for row in rows[1:] if row)


def is_exposed(o: Printed) -> bool:
    rows = [[float(cell) for cell in line.split("\t")[2:]] for line in o.lines if re.search(r"\t\d+ to \d+\t", line)]
    if len(rows) != 8:
        return False
    (*places, forced), scheduled = rows[:4], rows[7]
    exact = zip(o.all("exact"), Printed(TOPICS["Encoder and decoder"]).all("exact"), strict=True)
    narrower = scheduled[2] < 0.7 * forced[2]
    worse = scheduled[0] < forced[0] and scheduled[1] < forced[1] and all(ours < theirs for ours, theirs in exact)
    return rises([gap for *_, gap in places], by=0.1) and narrower and worse


def is_a_prefix(o: Printed) -> bool:
    seen = [line for line in o.lines if set(line.strip()) == {"#"}]
    prefix = sum(" prefix " in f"{line} " for line in o.lines if re.match(r"\d+ ", line))
    widths = [len(line.strip()) // 2 for line in seen]
    return widths == [max(prefix, i + 1) for i in range(len(seen))] and 0 < prefix < len(seen) and o.all("loss")[0] < 4


def normalizes(o: Printed) -> bool:
    layer, batch = (
        o.all(f"{name}: .*?by", ",") + o.all(f"{name}: .*texts by") for name in ("LayerNorm", "BatchNorm1d")
    )
    return layer == [0, 0] and min(batch) > 0.01


def costs(o: Printed) -> bool:
    short, long, window = o.all(r"self-attention +2 heads of 64 +\S+")
    return long > 5 * short > 5 * window


def has_two_phases(o: Printed) -> bool:
    own, beyond, after = o.all("loss")
    return beyond > own + 1 and after - own < (beyond - own) / 4


PLACES = "baker's barn beach bridge church field forest garden harbour house inn lake market mill river school village"


def fills_gaps(o: Printed) -> bool:
    """Words that fit: a trade and a place; a place and a time; and the shares of BERT in short rows."""
    sam = re.search(r"^A patient (\w+) called Sam went to the ([\w']+)\.$", o.text, flags=re.MULTILINE)
    storm = re.search(r"^Nobody in the (\w+) slept, because the storm \w+ till (\w+)\.$", o.text, flags=re.MULTILINE)
    counts = [o.all(f"{name} ")[0] for name in ("mask", "random", "kept")]
    shares = [abs(count / sum(counts) - share) < 0.03 for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True)]
    return (
        sam is not None
        and sam[1] in {*TRADES.split(), "librarian", "nurse", "widow", "saddler"}
        and sam[2] in PLACES.split()
        and storm is not None
        and storm[1] in PLACES.split()
        and storm[2] in ("dawn", "evening", "morning", "night")
        and all(shares)
        and o.all("loss")[0] < 2
    )


def has_a_best_rate(o: Printed) -> bool:
    few, some, most = o.all("loss")
    return some + 0.3 < min(few, most)


def is_worth_pretraining(o: Printed, by: float) -> bool:
    """Three seeds from a pretrained model, and three from nothing: apart by a margin, with counted words between."""
    (ours, deviation), (scratch, other) = (
        map(float, pair) for pair in re.findall(rf"3 runs: accuracy {NUMBER} ± {NUMBER}", o.text)
    )
    counted = [figure / 100 for figure in o.all("words and pairs")]
    return ours - deviation > scratch + other + by and ours > max(counted) and scratch < min(counted)


def has_related_texts(o: Printed) -> bool:
    roberta, albert = o.all("transformer encoder")
    alone, student = o.row("best loss")
    return roberta > 2 * albert and student < alone and rises(o.all('replaced-found":')[::3], by=0.3)


CHECKS: dict[str, Callable[[Printed], bool]] = {
    "Byte pair encoding": lambda o: " morning" in o.pieces() and " miller" not in o.pieces(),
    "WordPiece": lambda o: {"rainy", "mill", "##er"} <= set(o.pieces()),
    "Characters and words": lambda o: o.pieces()[:5] == list("sang.") and "[UNK]" in o.pieces(),
    "N-grams": lambda o: o.all("bits per byte")[0] < o.all("baseline")[0],
    "Plain counts": lambda o: falls(o.all("perplexity")),
    "Perplexity": lambda o: falls(o.all("bits per byte")),
    "Linear classifiers": lambda o: rises([0.6, *accuracies(o)]),
    "Skip-gram": is_skipgram,
    "Counting co-occurrences": lambda o: (
        nearest(o).count("himself") == 3 and set(nearest(o)) <= {*TRADES.split(), "himself"}
    ),
    "Averages of word vectors": lambda o: accuracies(o)[0] > 0.55,
    "Word vectors as a beginning": lambda o: falls(accuracies(o), by=0.3),
    "The Elman network": lambda o: o.all("bits per byte")[0] < o.all("baseline")[0],
    "GRU and LSTM": lambda o: o.row("best loss")[0] > max(o.row("best loss")[1:]),
    "Forgetting": forgets,
    "Gradient clipping": lambda o: min(o.all('clipped-null.*"valid_loss":')) > 7.7 > max(o.all('-1.0.*"valid_loss":')),
    "A memory that grows": is_a_memory,
    "Attention scores": lambda o: o.all("soft") == [0, 0, 320 * 320, 2 * 16 * 320, (2 * 320 + 1) * 16],
    "Encoder and decoder": lambda o: o.all("exact")[0] > 0.6 and o.all("exact")[-1] < 0.25,
    "Attention to the source": lambda o: min(o.all("exact")) > 0.8,
    "BLEU and chrF": lambda o: rises(o.all("bleu")) and rises(o.all("chrf")),
    "Summaries": lambda o: falls([o.all(f"{name} ")[0] for name in ("rouge1", "rouge l", "rouge2")]),
    "Scheduled sampling": is_exposed,
    "Self-attention in several heads": is_attention,
    "Heads with widths of their own": lambda o: rises(o.all(r"self-attention .*?(?=\S+ +\S+ +\S+%)")),
    "Masks": lambda o: rises([len(line) for line in o.lines if set(line) == {"#"}]),
    "Positions": are_positions,
    "Feed-forward networks": lambda o: (
        max(o.best("model.activation").values()) - min(o.best("model.activation").values()) < 0.1
    ),
    "Residuals and norms": learns_by_depth,
    "From a position-wise net to a Transformer": is_built_up,
    "GPT": lambda o: o.all("bits per byte")[0] < o.all("baseline")[0],
    "The encoder-decoder Transformer": lambda o: o.all("bleu")[0] > 30,
    "Prefix language models": is_a_prefix,
    "Optimizers": optimizes,
    "Schedules": is_scheduled,
    "Label smoothing": lambda o: [*o.best("objective.label_smoothing")] == ["0.3", "0.1", "0"],
    "Dropout": lambda o: [*o.best("model.dropout")] == ["0.3", "0.1", "0"],
    "Masked language modelling": fills_gaps,
    "How much to mask": has_a_best_rate,
    "Next sentence prediction": lambda o: o.all('accuracy":')[-1] > 0.85,
    "Span corruption": lambda o: falls([4, *o.all('loss":')]),
    "Classification by [CLS]": lambda o: is_worth_pretraining(o, by=0.1),
    "Classification by a decoder": lambda o: accuracies(o)[0] > 0.65,
    "Several tasks as text": lambda o: accuracies(o)[0] > 0.45 and accuracies(o)[1] > 0.9,
    "A task before the task": lambda o: rises(accuracies(o), by=0.08),
    "Features of a language model": lambda o: falls(accuracies(o), by=0.3),
    "Mask-predict": mask_predicts,
    "Vectors in context": is_in_context,
    "Cost over length": costs,
    "Two phases of length": has_two_phases,
    "Masked spans": lambda o: o.all("loss")[1] < 0.55 * o.all("loss")[0],
    "Relatives of BERT": has_related_texts,
    "The tasks of GLUE": is_glue,
    "Tags and answers": lambda o: o.all(r"test: 400 rows +f1")[0] > 0.9,
    "Frozen features": lambda o: min(accuracies(o)) > 0.37,
    "Low-rank adapters": lambda o: accuracies(o)[0] > 0.45 and abs(accuracies(o)[0] - accuracies(o)[1]) < 0.01,
    "Asking without training": is_asked,
    "Greedy decoding": lambda o: o.lines[0].startswith("One rainy morning"),
    "Beam search": lambda o: o.all("score")[0] > -1.5,
    "Temperature": is_greedy_at_zero,
    "Top-k and nucleus": lambda o: not set(o.lines) & set(Printed(TOPICS["Temperature"]).lines),
    "Caching": lambda o: o.all("transformer decoder +\\S+")[0] > 2e8,
    "Batches": lambda o: o.text.split("---")[0].partition("\n")[0] in o.text.split("---")[1],
    "ELMo": is_in_context,
    "Pictures of attention": is_a_picture,
}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_shows_what_it_says(topic: str) -> None:
    assert CHECKS[topic](Printed(TOPICS[topic]))
