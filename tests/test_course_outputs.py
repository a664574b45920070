"""What docs/course.md shows of its commands has the effect that each topic names: a figure, or an order of figures."""

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import mean

import pytest

from tests.support.docs import TOPICS

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

    def spread(self, column: str) -> dict[str, tuple[float, float]]:
        """A table of a sweep with several seeds: the mean and the deviation of each value of a key."""
        head = next(i for i, line in enumerate(self.lines) if line.startswith(f"{column}\t"))
        rows = itertools.takewhile(
            lambda cells: len(cells) > 1 and re.fullmatch(NUMBER, cells[1]),
            (line.split("\t") for line in self.lines[head + 1 :]),
        )
        return {value: (float(mean), float(deviation)) for value, mean, deviation, *_ in rows}

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


def nearest(printed: Printed) -> list[str]:
    """The words of lists of neighbours."""
    return re.findall(r"^ *0\.\d+ +(\S+)", printed.text, flags=re.MULTILINE)


def is_skipgram(o: Printed) -> bool:
    words = nearest(o)
    return set(words[:5] + words[10:]) <= {*TRADES.split()} and all(word[0].isupper() for word in words[5:10])


def counts_words(o: Printed) -> bool:
    three, two = accuracies(o)
    losses = {line.split("\t")[0]: float(line.split("\t")[1]) for line in o.lines if re.match(r"[\d.]+\t", line)}
    rights = {line.split("\t")[0]: float(line.split("\t")[2]) for line in o.lines if re.match(r"[\d.]+\t", line)}
    learnt = three > 2 / 3 and two > 0.54 + 0.03 and rights["1"] < rights["0.0001"]
    return learnt and losses["1"] + 0.05 < losses["100"] < losses["0.0001"] - 0.05


def averages(o: Printed) -> bool:
    linear, deep, reviews = accuracies(o)
    near = abs(reviews - accuracies(Printed(TOPICS["Linear classifiers"]))[0]) < 0.1
    return linear <= 0.75 and deep > 0.95 and near


def has_gates(o: Printed) -> bool:
    """A fifth of the Elman network's loss at most, also a deviation away; and twice as many right answers."""
    cells = o.spread("model.cell")
    elman, lstm = o.all("exact")
    least = cells["rnn"][0] - cells["rnn"][1]
    return all(sum(cells[name]) < least / 5 for name in ("gru", "lstm")) and lstm > 2 * elman


def forgets(o: Printed) -> bool:
    """Thirty steps back a hundredth of the gradient is left in the states, and over a tenth in the cells.

    It falls by less in each ten steps, and in all of them.
    """
    rows = [[float(cell) for cell in line.split()[-3:]] for line in o.lines if re.match(r" +(?:0|10|20|30)  '", line)]
    first, *_, last = rows
    elman, lstm = o.all("λ =")
    factors = [after[0] / before[0] for before, after in pairwise(rows)]
    bends = rises(factors) and max(factors) < 0.5
    return bends and last[0] < first[0] / 100 and last[2] > first[2] / 10 and elman < 0.9 < lstm


def heads_of(o: Printed) -> list[dict[str, float]]:
    """The rows of --compare-heads."""
    start = next(i for i, line in enumerate(o.lines) if line.startswith("layer "))
    names = o.lines[start].split()
    rows = [line.split() for line in o.lines[start + 1 :] if re.match(r"\d +\d ", line)]
    return [dict(zip(names, map(float, row), strict=True)) for row in rows]


def is_attention(o: Printed) -> bool:
    """Weights of a causal mask; and of each two heads the first looks near and at few tokens."""
    weights = o.matrix("A = ")
    sums = bool(weights) and all(abs(sum(row) - 1) < 1e-3 and not any(row[i + 1 :]) for i, row in enumerate(weights))
    heads = heads_of(o)
    pairs = [(near, far) for near, far in zip(heads[::2], heads[1::2], strict=True) if near["layer"] == far["layer"]]
    differ = all(
        2 * near["distance"] < far["distance"] and near["entropy"] + 0.5 < far["entropy"] for near, far in pairs
    )
    return sums and differ and len(pairs) == 4


def are_positions(o: Printed) -> bool:
    """Products depend on q - p alone, and steps on p."""
    products, steps = o.matrix("PE(p) . PE(q)"), o.matrix("PE(p + 1) - PE(p)")
    along = all(abs(products[p][q] - products[0][abs(p - q)]) < 2e-3 for p in range(4) for q in range(4))
    return along and max(abs(a - b) for a, b in zip(steps[0], steps[2], strict=True)) > 0.5


def is_a_memory(o: Printed) -> bool:
    rows = o.spread("model.attention")
    (none, spread), (average, apart), (hard, unsure), (soft, near) = (
        next(figures for name, figures in rows.items() if kind in name) for kind in ("null", "mean", "hard", "soft")
    )
    untold = abs(hard - average) < unsure > max(spread, apart, near)
    return soft + near + apart < average < none - spread - apart and untold and o.all("exact")[0] > 0.9


def are_scores(o: Printed) -> bool:
    parameters = o.all(r"soft +(?=\d)") == [0, 0, 320 * 320, 2 * 16 * 320, (2 * 320 + 1) * 16, (2 * 320 + 1) * 320]
    dot, *_, narrow, wide = o.all(r"soft +[\d,]+ +")
    means, deviations = zip(*o.spread("model.attention").values(), strict=True)
    return parameters and narrow < dot < wide / 6 and len(means) == 4 and max(means) - min(means) < max(deviations)


def has_networks(o: Printed) -> bool:
    """Networks help four layers by far more than which network it is, and about as much as eight more layers."""
    attention, networks = o.spread("model.n_layers"), o.spread("model.activation")
    (four, spread), (twelve, _) = attention["4"], attention["12"]
    means, spreads = zip(*networks.values(), strict=True)
    helped = four - max(means) > 3 * max(spread, *spreads) and four - max(means) > 3 * (max(means) - min(means))
    return helped and abs(twelve - max(means)) < 0.05


def is_built_up(o: Printed) -> bool:
    """Each part that is left out makes the loss worse, the residuals most of all."""
    rows = o.best("model.residual")
    whole = rows['true attention {"kind": "full"} 256 rotary true']
    no_residual = rows['false attention {"kind": "full"} 256 rotary true']
    without = (
        'true plain-attention {"kind": "full"} 256 rotary true',
        'true attention {"kind": "window", "size": 1} 256 rotary true',
        'true attention {"kind": "full"} 0 rotary true',
        'true attention {"kind": "full"} 256 none true',
    )
    unmasked = rows['true attention {"kind": "full"} 256 rotary false']
    worse = min(rows[name] for name in without) > whole + 0.05
    return worse and no_residual == max(rows.values()) and unmasked < 0.1087 and len(rows) == 7


def learns_by_depth(o: Printed) -> bool:
    """Residuals help more the deeper a network is, and norms where weights begin large."""
    depths, norms = o.best("model.n_layers"), o.best("model.init.std")
    (paper, spread), (slide, other) = o.spread("model.residual_from").values()
    return (
        rises([depths[name] for name in ("8 true", "2 true", "2 false", "8 false")])
        and abs(norms["0.02 none"] - norms["0.02 layer"]) < 0.05
        and norms["0.2 none"] > max(norms["0.2 layer"], norms["0.2 rms"]) + 0.5
        and max(spread, other) < slide - paper < 0.1
        and normalizes(o)
    )


def optimizes(o: Printed) -> bool:
    kinds, rates = o.best("optimizer"), o.best("optimizer.lr")
    best = min(rates, key=lambda rate: rates[rate])
    settings = (
        {"kind": "muon", "lr": 0.04},
        {"kind": "adamw", "lr": 0.01},
        {"kind": "sgd", "lr": 0.3, "momentum": 0.9},
        {"kind": "sgd", "lr": 0.3},
        {"kind": "sgd", "lr": 3},
    )
    steps, text = (rows_of(o, "training.batch_size", i) for i in (0, 1))
    return (
        rises([kinds[json.dumps(setting)] for setting in settings], by=0.1)
        and best in ("0.001", "0.01", "0.1")
        and min(rates["0.0001"], rates["1"]) > rates[best] + 0.5
        and falls([steps[n][0] for n in ("1", "4", "16")], by=0.1)
        and rises([text[n][0] for n in ("1", "4", "16")])
        and falls(o.all("loss varies by"))
    )


def rows_of(o: Printed, name: str, which: int) -> dict[str, list[float]]:
    """The rows of one of several tables that begin with a name, by their first cell."""
    starts = [i for i, line in enumerate(o.lines) if line.startswith(f"{name}\t")]
    rows = [line.split("\t") for line in o.lines[starts[which] + 1 : [*starts, len(o.lines)][which + 1]]]
    return {
        row[0]: [float(cell.replace(",", "")) for cell in row[1:]]
        for row in rows
        if len(row) == o.lines[starts[which]].count("\t") + 1
    }


def is_scheduled(o: Printed) -> bool:
    rates, kinds, warm = o.all('"lr":'), o.best("optimizer.lr"), o.best("schedule.warmup_steps")
    linear, root = rates[:6], rates[6:]
    warmed = rises(linear[:3]) and falls(linear[3:]) and rises(root[:3]) and falls(root[2:])
    fall = kinds["0.08 linear"] + 0.05 < kinds["0.08 constant"] and kinds["0.02 linear"] > kinds["0.02 constant"] - 0.02
    return warmed and fall and min(kinds, key=kinds.__getitem__) == "0.08 linear" and warm["40"] + 0.2 < warm["0"]


def repeats_itself(text: str) -> bool:
    """Whether five words in a row occur again."""
    words = text.split()
    fives = [tuple(words[i : i + 5]) for i in range(len(words) - 4)]
    return len(set(fives)) < len(fives)


def likelihoods(o: Printed) -> list[float]:
    return o.all("mean log-probability")


def is_greedy(o: Printed) -> bool:
    good, weak, sampled = (line for line in o.lines if line.startswith("One rainy morning"))
    _, of_weak, of_sampled = likelihoods(o)
    circles = repeats_itself(weak) and not repeats_itself(good) and not repeats_itself(sampled)
    return circles and of_weak > of_sampled + 0.5


def finds_a_likelier_text(o: Printed) -> bool:
    greedy, beams = (line for line in o.lines if line.startswith("It was"))
    by_greedy, by_beams = likelihoods(o)
    return greedy.split()[:4] != beams.split()[:4] and by_beams > by_greedy + 0.02


def drawn(o: Printed) -> dict[str, tuple[float, float]]:
    """Mean and deviation of fifty texts, by the name of their settings."""
    found = re.findall(rf"^(\S+): 50 texts, {NUMBER} ± {NUMBER} per token$", o.text, flags=re.MULTILINE)
    return {name: (float(mean), float(deviation)) for name, mean, deviation in found}


def cools(o: Printed) -> bool:
    texts = drawn(o)
    (half, narrow), (one, spread), (more, wide), (three, _) = (texts[f"T={t}"] for t in ("0.5", "1", "1.5", "3"))
    greedy = Printed(TOPICS["Greedy decoding"]).lines[0]
    near = one < half < one + spread and narrow < 0.75 * spread
    return (
        greedy.startswith(o.lines[0])
        and likelihoods(o)[0] > half
        and near
        and more + spread < one
        and three + wide < more
    )


def is_cut_off(o: Printed) -> bool:
    whole, cut = drawn(Printed(TOPICS["Temperature"])), drawn(o)
    likelier = all(found[0] > sum(whole[name.partition(",")[2]]) for name, found in cut.items())
    (top_k, spread), (nucleus, _) = cut["top-k=5,T=1.5"], cut["top-p=0.5,T=1.5"]
    alike = abs(top_k - nucleus) < spread and sum(cut["top-p=0.5,T=3"]) < cut["top-k=5,T=3"][0]
    return len(cut) == 4 and likelier and alike


def adapts(o: Printed) -> bool:
    whole, adapted = o.all("decoder,")
    merged, apart = accuracies(o)
    few = adapted - whole == 4 * 2 * 2 * 4 * 128 < whole / 100
    return few and min(merged, apart) > 0.6 and abs(merged - apart) < 0.01


def caches(o: Printed) -> bool:
    cached, recomputed = o.all("tokens:"), o.all("with a cache,")
    same = o.text.count("the same: True") == 3 == len(cached) == len(recomputed)
    linear = 1.3 < cached[2] / cached[1] < 3.5 and rises(
        [1.5, recomputed[1] / recomputed[0], recomputed[2] / recomputed[1]]
    )
    return same and linear and recomputed[2] / recomputed[1] > 3 and recomputed[2] > 5 * cached[2]


def mask_predicts(o: Printed) -> bool:
    once, often = (Counter(line.removeprefix("One rainy morning").split()) for line in o.lines[:2])
    return max(once.values()) > 3 > max(often.values())


def is_elmo(o: Printed) -> bool:
    embeddings, last, mix = accuracies(o)
    return o.all("bits per byte")[0] < o.all("baseline")[0] and last > embeddings + 0.03 and abs(mix - last) <= 0.015


def spans_are_no_gain(o: Printed) -> bool:
    unigram, spans = o.all("loss")
    alike = Printed(TOPICS["How much to mask"]).all("loss")[1]
    return spans < 0.55 * unigram and spans > 1.8 * alike


def tags_and_answers(o: Printed) -> bool:
    of_words = o.all("most frequent tag of each word")[0] / 100
    found, known = o.all("has answer exact")[0], o.all("no answer accuracy")[0]
    return o.all(r"test: 400 rows +f1")[0] > 0.98 and of_words < 2 / 3 and 0.2 < found < 0.35 and known > 0.75


def is_in_context(o: Printed) -> bool:
    """A word alone has the same neighbours everywhere, and in two texts those of weather and of illness."""
    words = re.findall(r"^ *[01]\.\d+ +(\S+)", o.text, flags=re.MULTILINE)
    weather, illness = {"foggy", "rainy", "snowy", "sunny", "windy"}, {"ankle", "cough", "fever", "leg", "measles"}
    return words[:5] == words[5:10] and bool(weather & {*words[10:15]} and illness & {*words[15:]})


def is_a_bottleneck(o: Printed) -> bool:
    three, six, *longer = o.all("exact")
    return three > 0.9 > 0.5 > six and max(longer) < 0.02 and set(o.all("bleu")) == {0}


def relieves_the_bottleneck(o: Printed) -> bool:
    exact = o.all("exact")
    alone = Printed(TOPICS["Encoder and decoder"]).all("exact")
    lines = [re.findall(r"\d+|·", line.split(maxsplit=2)[2]) for line in o.lines if re.match(r" *\d+ [a-z] ", line)]
    weights = [[int(cell.replace("·", "0")) for cell in line] for line in lines]
    back = [row.index(max(row)) for row in weights] == list(reversed(range(len(weights))))
    return min(exact[:3] + exact[4:7]) > 0.95 and min(exact[3], exact[7]) > 0.75 and alone[3] < 0.01 and back


def compares_translations(o: Printed) -> bool:
    """Of the same text, another word, another order, a shorter text, and one of articles."""
    rows = [[float(cell) for cell in line.split()[:5]] for line in o.lines if re.match(r" +\d+\.\d  ", line)]
    same, _, order, short, the = rows
    greedy, beams = o.all("table:.*?bleu")
    full = set(same) == {100} and all(min(row) < 100 for row in rows[1:])
    return full and order[2] == 100 > order[0] and short[0] == 0 and the[2] == 25 and abs(greedy - beams) < 3


def summarizes(o: Printed) -> bool:
    pretrained, scratch = o.all("exact")
    of_pretrained, of_scratch = o.all("rouge1")
    return pretrained > 0.9 and scratch < 0.3 and 50 < of_scratch < of_pretrained - 10


def is_asked(o: Printed) -> bool:
    rows = [line.split()[-3:] for line in o.lines if re.match("as scored|calibrated", line)]
    scored, calibrated = min(zip(*([float(cell) for cell in row] for row in rows), strict=True))
    return scored < 60 and calibrated > 85


def is_glue(o: Printed) -> bool:
    scores = dict(re.findall(rf"^(\w+) +{NUMBER}", o.text, flags=re.MULTILINE))
    *tasks, whole = map(float, scores.values())
    return [*scores][-1] == "mean" and abs(mean(tasks) - whole) < 0.1 and max(tasks) > 20


def is_a_picture(o: Printed) -> bool:
    rows = [re.findall(r"\d+", line[10:]) for line in o.lines if re.match(r" *\d+ \S", line)]
    return all(90 < sum(map(int, row)) <= 103 for row in rows[1:] if row)


def is_exposed(o: Printed) -> bool:
    """The gap grows with the length, and is less than half with scheduled sampling, which is worse in the end."""
    rows = [[float(cell) for cell in line.split("\t")[2:]] for line in o.lines if re.search(r"\t\d+ to \d+\t", line)]
    forced, scheduled = rows[:4], rows[4:]
    exact = o.all("exact"), Printed(TOPICS["Encoder and decoder"]).all("exact")
    fewer = all(ours < theirs or theirs < 0.02 for ours, theirs in zip(*exact, strict=True))
    worse = all(ours[0] < theirs[0] for ours, theirs in zip(scheduled, forced, strict=True))
    narrower = all(ours[2] < 0.5 * theirs[2] for ours, theirs in zip(scheduled, forced, strict=True))
    return len(rows) == 8 and rises([gap for *_, gap in forced[:3]], by=0.05) and narrower and worse and fewer


def is_a_prefix(o: Printed) -> bool:
    """The masks of one stack and of two for the same cut, and the losses of both."""
    one, encoder, decoder, across = (
        [len(line.strip()) // 2 for line in part.splitlines() if set(line.strip()) == {"#"}]
        for part in re.split(r"^attention.*$", o.text, flags=re.MULTILINE)[1:]
    )
    n = len(encoder)
    masks = one == [max(n, i + 1) for i in range(len(one))] and encoder == [n] * n and across == [n] * len(decoder)
    shapes = o.spread("model.shape")
    (own, spread), (other, other_spread) = shapes["prefix"], shapes["encoder-decoder"]
    return masks and own + 2 * max(spread, other_spread) < other < 4


def normalizes(o: Printed) -> bool:
    layer, batch = (
        o.all(f"{name}: .*?by", ",") + o.all(f"{name}: .*texts by") for name in ("LayerNorm", "BatchNorm1d")
    )
    return layer == [0, 0] and min(batch) > 0.01


def drops_out(o: Printed) -> bool:
    without = Printed(TOPICS["Label smoothing"]).best("objective.label_smoothing")["0"]
    some, more = (o.best("model.dropout")[share] for share in ("0.1", "0.3"))
    return rises([more, some, without], by=0.05)


def costs(o: Printed) -> bool:
    short, long, window = o.all(r"self-attention +2 heads of 64 +\S+")
    rows = [re.findall(r"[\d.]+", line) for line in o.lines if re.match(r" +\d+ .* s ", line)]
    gains = [float(lstm) / float(attention) for _, lstm, _, attention, _ in rows]
    return long > 5 * short > 5 * window and gains[0] > 3 and gains[-1] < gains[0] / 2


def beats_lstm(o: Printed) -> bool:
    """The GPT is near the best possible loss of the copies, and the LSTM near that without copying."""
    best, guessed = 20 * math.log(8) / 42, 40 * math.log(8) / 42
    gpt, lstm = o.row("best loss")
    equal = len(set(re.findall(r"(\S+) parameters", o.text))) == 1 and len(set(o.row("tokens"))) == 1
    return gpt < 1.05 * best and lstm > 0.95 * guessed and equal


def translates(o: Printed) -> bool:
    """Weights of the reverser lie on the letters that are written."""
    letters = {int(line.split()[0]): line for line in o.lines if re.match(r" *\d+ .*(?:·|\d)$", line)}
    rows = [[0 if cell == "·" else int(cell) for cell in letters[i].split()[-11:]] for i in range(11)]
    aligned = sum(row.index(max(row)) == 10 - i for i, row in enumerate(rows))
    wrong, right = o.all("reading .*?:", "%")
    return o.all("bleu")[0] > 30 and o.all("exact")[-1] > 0.9 and aligned >= 9 and wrong < 20 and right > 90


def has_two_phases(o: Printed) -> bool:
    own, beyond, after = o.all("loss")
    return beyond > own + 1 and after - own < (beyond - own) / 4


PLACES = "baker's barn beach bridge church field forest garden harbour house inn lake market mill river school village"


def fills_gaps(o: Printed) -> bool:
    """Words that fit: a trade and a place; and the shares of BERT in short rows."""
    sam = re.search(r"^A patient (\w+) called Sam went to the ([\w']+)\.$", o.text, flags=re.MULTILINE)
    counts = [o.all(f"{name} ")[0] for name in ("mask", "random", "kept")]
    shares = [abs(count / sum(counts) - share) < 0.03 for count, share in zip(counts, (0.8, 0.1, 0.1), strict=True)]
    people = {*TRADES.split(), "librarian", "nurse", "widow", "saddler"}
    return sam is not None and sam[1] in people and sam[2] in PLACES.split() and all(shares) and o.all("loss")[0] < 2


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


def is_no_better_than_its_vectors(o: Printed) -> bool:
    (ours, deviation), _ = re.findall(rf"3 runs: accuracy {NUMBER} ± {NUMBER}", o.text)
    return abs(float(ours) - o.all("vectors of the encoder")[0] / 100) < float(deviation)


def is_a_pair(o: Printed, by: float) -> bool:
    """A pretrained model above counted words, and one from nothing below them; a row with marks around two texts."""
    ours, scratch = o.all("test: .*?accuracy")
    counted = [figure / 100 for figure in o.all("words and pairs")]
    marks = re.findall(r"'\[(\w+)\]'", o.text)
    return (
        ours > max(counted) + 0.03 and ours - scratch > by and scratch < min(counted) and marks == ["BOS", "SEP", "CLS"]
    )


def adds_segments(o: Printed) -> bool:
    """The vectors of two segments differ; and pairs are told apart in the end."""
    first, *_, last = o.matrix("segment vectors")
    segments = [cells[3] for line in o.lines if len(cells := line.split()) > 3 and cells[0].isdigit()]
    told = first != last and segments == sorted(segments) and {*segments} == {"0", "1"}
    return told and o.all('accuracy":')[-1] > 0.85


def corrupts_spans(o: Printed) -> bool:
    """Two sentinels in the source, and the same in the target."""
    source, target = (re.findall(r"<extra_id_(\d)>", line) for line in o.lines[:2])
    return source == target == ["0", "1"] and falls([4, *o.all('loss":')]) and o.all('loss":')[-1] < 3.5


def has_a_task_before(o: Printed) -> bool:
    alone, after = o.all("test: .*?accuracy")
    return alone < min(o.all("words and pairs")) / 100 and after > alone + 0.2 and "warning: the head" in o.text


def has_related_texts(o: Printed) -> bool:
    roberta, albert = o.all("transformer encoder")
    alone, student = o.row("best loss")
    return roberta > 2 * albert and student < alone and rises(o.all('replaced-found":')[::3], by=0.3)


CHECKS: dict[str, Callable[[Printed], bool]] = {
    "Byte pair encoding": lambda o: " morning" in o.pieces() and " miller" not in o.pieces(),
    "WordPiece": lambda o: {"rainy", "mill", "##er"} <= set(o.pieces()),
    "Characters and words": lambda o: o.pieces()[:5] == list("sang.") and "[UNK]" in o.pieces(),
    "N-grams": lambda o: 2 * o.all("possible model:")[0] < o.all("bits per byte")[0] < o.all("baseline")[0] / 2,
    "Plain counts": lambda o: (
        o.all("perplexity")[0] == float("inf") and 10 * o.all("perplexity")[2] < o.all("perplexity")[1]
    ),
    "Perplexity": lambda o: (
        falls(o.all("bits per byte")) and o.all("loss")[1] == Printed(TOPICS["N-grams"]).all("loss")[0]
    ),
    "Linear classifiers": counts_words,
    "Skip-gram": is_skipgram,
    "Counting co-occurrences": lambda o: (
        nearest(o).count("himself") == 3 and set(nearest(o)) <= {*TRADES.split(), "himself"}
    ),
    "Averages of word vectors": averages,
    "Word vectors as a beginning": lambda o: accuracies(o)[0] > 0.9 and accuracies(o)[1] < 0.5,
    "The Elman network": lambda o: o.all("bits per byte")[0] < o.all("baseline")[0],
    "GRU and LSTM": has_gates,
    "Forgetting": forgets,
    "Gradient clipping": lambda o: (
        o.all('clipped-null.*"valid_loss":')[-1] > 2 * 7.6 and max(o.all('-1.0.*"valid_loss":')) < 7.6
    ),
    "A memory that grows": is_a_memory,
    "Attention scores": are_scores,
    "Encoder and decoder": is_a_bottleneck,
    "Attention to the source": relieves_the_bottleneck,
    "BLEU and chrF": compares_translations,
    "Summaries": summarizes,
    "Scheduled sampling": is_exposed,
    "Self-attention in several heads": is_attention,
    "Heads with widths of their own": lambda o: rises(o.all(r"self-attention .*?(?=\S+ +\S+ +\S+%)")),
    "Masks": lambda o: rises([len(line) for line in o.lines if set(line) == {"#"}]),
    "Positions": are_positions,
    "Feed-forward networks": has_networks,
    "Residuals and norms": learns_by_depth,
    "From a position-wise net to a Transformer": is_built_up,
    "GPT": lambda o: o.all("bits per byte")[0] < o.all("baseline")[0] and beats_lstm(o),
    "The encoder-decoder Transformer": translates,
    "Prefix language models": is_a_prefix,
    "Optimizers": optimizes,
    "Schedules": is_scheduled,
    "Label smoothing": lambda o: rises([*map(o.best("objective.label_smoothing").get, ("0.3", "0.1", "0"))], by=0.05),
    "Dropout": drops_out,
    "Masked language modelling": fills_gaps,
    "How much to mask": has_a_best_rate,
    "Next sentence prediction": adds_segments,
    "Span corruption": corrupts_spans,
    "Classification by [CLS]": lambda o: is_worth_pretraining(o, by=0.1) and is_no_better_than_its_vectors(o),
    "Classification by a decoder": lambda o: is_a_pair(o, by=0.2),
    "Several tasks as text": lambda o: (
        rises(o.all("rouge1")[::-1], by=10) and accuracies(o)[0] == 1 and accuracies(o)[1] < 0.95
    ),
    "A task before the task": has_a_task_before,
    "Features of a language model": lambda o: accuracies(o)[0] > 0.95 > 0.67 > accuracies(o)[1],
    "Mask-predict": mask_predicts,
    "Vectors in context": is_in_context,
    "Cost over length": costs,
    "Two phases of length": has_two_phases,
    "Masked spans": spans_are_no_gain,
    "Relatives of BERT": has_related_texts,
    "The tasks of GLUE": is_glue,
    "Tags and answers": tags_and_answers,
    "Frozen features": lambda o: 0.37 < accuracies(o)[1] < accuracies(o)[0],
    "Low-rank adapters": adapts,
    "Asking without training": is_asked,
    "Greedy decoding": is_greedy,
    "Beam search": finds_a_likelier_text,
    "Temperature": cools,
    "Top-k and nucleus": is_cut_off,
    "Caching": caches,
    "Batches": lambda o: o.lines[0] == o.lines[o.lines.index("---") + 1],
    "ELMo": is_elmo,
    "Pictures of attention": is_a_picture,
}


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_shows_what_it_says(topic: str) -> None:
    assert CHECKS[topic](Printed(TOPICS[topic]))


def test_the_costs_of_a_token_are_parts_of_the_printed_mean() -> None:
    topic, context, per_compared_token = TOPICS["Caching"], 1024, 4 * 768 * 12
    (of_row,) = Printed(topic).all(r"124,439,808", "  100")
    of_matrices = of_row - per_compared_token * (context + 1) / 2  # a token compares with half of the row on average
    of_last = of_matrices + per_compared_token * context
    found = re.search(
        r"The (\d+) million operations.*? (\d+) million are those of the matrices.*? = ([\d,]+) for each.*?: (\d+) "
        r"million as a mean.*? and (\d+)\s+million for the last token, which so costs (\d+) million",
        topic,
        re.DOTALL,
    )
    assert found is not None
    mean_of_row, matrices, compared, attention, last, cached = (
        int(figure.replace(",", "")) for figure in found.groups()
    )
    assert compared == per_compared_token
    assert [mean_of_row, matrices, last, cached] == [
        round(figure / 1e6) for figure in (of_row, of_matrices, per_compared_token * context, of_last)
    ]
    assert attention == round((of_row - of_matrices) / 1e6)
