"""What docs/course.md shows of its commands has the effect that each topic names: a figure, or an order of figures."""

import json
import math
import re
from collections import Counter
from itertools import pairwise
from statistics import mean

import pytest

from tests.support.docs import TOPICS

NUMBER = r"(-?(?:\d[\d,]*\.?\d*(?:e[+-]?\d+)?|inf))"
FIGURES = {"bits per byte", "loss", "accuracy", "deviation", "seeds", "steps", "seconds"}
"""Columns of tables of sweeps that are no keys."""
TRADES = """
baker beekeeper blacksmith bookbinder cobbler cook cooper farmer fisher gardener glazier grocer innkeeper jeweller mason
miller painter potter roofer sailor shepherd shoemaker tailor teacher weaver woodcutter
"""
PLACES = "baker's barn beach bridge church field forest garden harbour house inn lake market mill river school village"


def rises(numbers: list[float], by: float = 0.0) -> bool:
    return len(numbers) > 1 and all(b - a > by for a, b in pairwise(numbers))


def falls(numbers: list[float], by: float = 0.0) -> bool:
    return rises([-number for number in numbers], by)


def repeats_itself(text: str) -> bool:
    """Whether five words in a row occur again."""
    words = text.split()
    fives = [tuple(words[i : i + 5]) for i in range(len(words) - 4)]
    return len(set(fives)) < len(fives)


class Printed:
    """What the commands of a topic printed, as the page has it."""

    def __init__(self, topic: str) -> None:
        self.text: str = re.findall(r"^```text\n(.*?)^```$", TOPICS[topic], flags=re.MULTILINE | re.DOTALL)[0]
        self.lines = self.text.splitlines()

    def all(self, before: str, after: str = "") -> list[float]:
        """The numbers between two patterns, in their order."""
        return [float(text.replace(",", "")) for text in re.findall(f"{before} *{NUMBER}{after}", self.text)]

    def rows(self, pattern: str, which: slice = slice(None)) -> list[list[float]]:
        """The numbers of each line that matches a pattern, with 0 for a dot; of each those in `which`."""
        lines = [re.findall(f"{NUMBER}|·", line) for line in self.lines if re.match(pattern, line)]
        return [[float(cell.replace(",", "") or 0) for cell in line][which] for line in lines]

    def matrix(self, title: str) -> list[list[float]]:
        """The rows of numbers below a line that begins with the title."""
        _, _, below = self.text.partition(f"\n{title}")
        found = re.match(r".*\n((?: +-?\d+\.\d+)+\n)+", below)
        assert found is not None
        return [[float(cell) for cell in line.split()] for line in found[0].splitlines()[1:]]

    def table(self, column: str, which: int = 0) -> dict[str, list[float]]:
        """One of the tables of sweeps that begin with a column: by the values of the keys the figures beside them."""
        start = [i for i, line in enumerate(self.lines) if line.startswith(f"{column}\t")][which]
        head, *rows = (line.split("\t") for line in self.lines[start:])
        n_keys = sum(name not in FIGURES for name in head)
        found: dict[str, list[float]] = {}
        for row in rows:
            if len(row) != len(head) or not re.fullmatch(NUMBER, row[-1]):
                break
            found[" ".join(row[:n_keys])] = [float(cell.replace(",", "")) for cell in row[n_keys:]]
        return found

    def best(self, column: str, which: int = 0) -> dict[str, float]:
        """The first figures of a table."""
        return {values: figures[0] for values, figures in self.table(column, which).items()}

    @property
    def accuracies(self) -> list[float]:
        return self.all("accuracy")

    @property
    def counted(self) -> list[float]:
        """The accuracies of a baseline of counted words."""
        return [figure / 100 for figure in self.all("words and pairs")]

    def nearest(self) -> list[str]:
        """The words of lists of neighbours."""
        return re.findall(r"^ *[01]\.\d+ +(\S+)", self.text, flags=re.MULTILINE)

    def pieces(self) -> list[str]:
        """The pieces of a tokenizer."""
        return [line.partition("\t")[2] for line in self.lines]

    def drawn(self) -> dict[str, tuple[float, float]]:
        """Mean and deviation of fifty texts, by the name of their settings."""
        found = re.findall(rf"^(\S+): 50 texts, {NUMBER} ± {NUMBER} per token$", self.text, flags=re.MULTILINE)
        return {name: (float(mean), float(deviation)) for name, mean, deviation in found}

    def beats_its_baseline(self) -> bool:
        return self.all("bits per byte")[0] < self.all("baseline")[0]


class Topics(Printed):
    """For each topic what it says, under its name."""

    def byte_pair_encoding(self) -> None:
        """Three forms of a word begin with the same two pieces; and what 600 and 2,400 entries cost."""
        forms = self.pieces()[12:21]
        tokens, costs = self.all("tokens"), self.rows("transformer decoder", slice(2))
        (small, per_token), (large, per_longer_token) = costs
        assert {" morning", " miller"} & {*self.pieces()} == {" morning"}
        assert forms == [" o", "pen", "ed", " o", "pen", "s", " o", "pen", "ing"]
        assert large - small == 2 * 128 * (2400 - 600) > large * 0.3
        assert per_token < 0.85 * per_longer_token
        assert tokens[0] * per_token > 1.2 * tokens[1] * per_longer_token

    def wordpiece(self) -> None:
        assert {"rainy", "mill", "##er"} <= set(self.pieces())

    def characters_and_words(self) -> None:
        assert self.pieces()[:5] == list("sang.")
        assert "[UNK]" in self.pieces()

    def n_grams(self) -> None:
        assert 2 * self.all("possible model:")[0] < self.all("bits per byte")[0] < self.all("baseline")[0] / 2

    def plain_counts(self) -> None:
        plain, one, hundredth = self.all("perplexity")
        assert plain == math.inf
        assert 10 * hundredth < one

    def perplexity(self) -> None:
        assert falls(self.all("bits per byte"))
        assert self.all("loss")[1] == Printed("N-grams").all("loss")[0]

    def linear_classifiers(self) -> None:
        three, two = self.accuracies
        (one, right), (much, _), (little, more_right) = (self.table("optimizer.l2")[c] for c in ("1", "100", "0.0001"))
        assert three > 2 / 3
        assert two > 0.54 + 0.03
        assert right < more_right
        assert one + 0.05 < much < little - 0.05

    def skip_gram(self) -> None:
        """Neighbours are of one kind, and the loss begins where vectors of zeros have it."""
        words = self.nearest()
        assert self.all('"step": 1, "loss":') == [pytest.approx(6 * math.log(2), abs=0.01)]
        assert self.all(r"\nloss")[0] < 3
        assert set(words[:5] + words[10:]) <= {*TRADES.split()}
        assert all(word[0].isupper() for word in words[5:10])

    def counting_co_occurrences(self) -> None:
        assert self.nearest().count("himself") == 3
        assert set(self.nearest()) <= {*TRADES.split(), "himself"}

    def averages_of_word_vectors(self) -> None:
        linear, deep, reviews = self.accuracies
        (relu, spread), (tanh, other) = (self.table("model.activation")[name][:2] for name in ("relu", "tanh"))
        assert linear <= 0.75 < 0.95 < deep
        assert abs(relu - tanh) < spread + other
        assert abs(reviews - Printed("Linear classifiers").accuracies[0]) < 0.1

    def word_vectors_as_a_beginning(self) -> None:
        assert self.accuracies[0] > 0.9 > 0.5 > self.accuracies[1]

    def the_elman_network(self) -> None:
        """It beats bigrams; and after "One rainy" "morning" is the likeliest."""
        likeliest = {cells[0]: cells[1:] for line in self.lines if len(cells := re.split(" {2,}", line)) == 6}
        assert self.beats_its_baseline()
        assert [*likeliest] == ["''", "'One rainy'", "'One rainy morning, a'"]
        for found in likeliest.values():
            shares = [float(cell.rpartition(" ")[2]) for cell in found]
            assert falls(shares, by=-0.001)
            assert sum(shares) <= 1
        assert likeliest["'One rainy'"][0].startswith("' morning' ")

    def gru_and_lstm(self) -> None:
        """A fifth of the Elman network's loss at most, also a deviation away; and twice as many right answers."""
        cells = {name: figures[:2] for name, figures in self.table("model.cell").items()}
        elman, lstm = self.all("exact")
        assert max(sum(cells["gru"]), sum(cells["lstm"])) < (cells["rnn"][0] - cells["rnn"][1]) / 5
        assert lstm > 2 * elman

    def forgetting(self) -> None:
        """Thirty steps back a hundredth of the gradient is left in the states, and over a tenth in the cells.

        It falls in each ten steps. Two starts of the Elman network come together, those of the LSTM to a part.
        """
        parts = re.split(r"^(?:back|step) .*\n", self.text, flags=re.MULTILINE)[1:]
        found = [[re.findall(r"\d\.\d+e[+-]\d+", line) for line in part.splitlines()] for part in parts]
        gradients, elman, lstm = ([[*map(float, line)] for line in lines if line] for lines in found)
        forgetful, lasting = self.all("λ =")
        assert len(gradients) == len(elman) == len(lstm) == 4
        assert all(after[0] < before[0] / 2 for before, after in pairwise(gradients))
        assert gradients[3][0] < gradients[0][0] / 100
        assert gradients[3][2] > gradients[0][2] / 10
        assert forgetful < 0.9 < lasting
        assert elman[3][0] < elman[0][0] / 10
        assert lstm[1][0] < 0.7 * lstm[0][0]
        assert lstm[3][0] > max(lstm[0][0] / 10, lstm[1][0] / 2)
        assert min(row[2] for row in elman[1:] + lstm[1:]) > 1

    def gradient_clipping(self) -> None:
        assert self.all('clipped-null.*"valid_loss":')[-1] > 2 * 7.6
        assert max(self.all('-1.0.*"valid_loss":')) < 7.6

    def a_memory_that_grows(self) -> None:
        """Choices have no derivative and the softmax that of the formula; and which memory helps."""
        soft_slopes, one_hot, multi_hot, formula = self.rows(r"dc/de|a \(", slice(-4, None))
        rows = self.table("model.attention")
        (none, spread), (average, apart), (hard, unsure), (two, other), (soft, near) = (
            next(figures[:2] for name, figures in rows.items() if kind in name)
            for kind in ("null", "mean", "hard", "multi-hot", "soft")
        )
        assert one_hot == multi_hot == [0] * 4
        assert min(soft_slopes) > 0.05
        assert soft_slopes == pytest.approx(formula, abs=2e-4)
        assert soft + near + apart < average < none + spread + apart
        assert abs(hard - soft) < unsure + near
        assert abs(two - soft) < other + near
        assert self.all("exact")[0] > 0.9

    def attention_scores(self) -> None:
        dot, *_, narrow, wide = self.all(r"soft +[\d,]+ +")
        means, deviations, _ = zip(*self.table("model.attention").values(), strict=True)
        parameters = [0, 0, 320 * 320, 2 * 16 * 320, (2 * 320 + 1) * 16, (2 * 320 + 1) * 320]
        assert self.all(r"soft +(?=\d)") == parameters
        assert narrow < dot < wide / 6
        assert len(means) == 4
        assert max(means) - min(means) < max(deviations)

    def encoder_and_decoder(self) -> None:
        three, six, *longer = self.all("exact")[:4]
        of_wider = self.all("exact")[4:]
        assert three > 0.9 > 0.5 > six
        assert max(longer) < 0.02
        assert min(of_wider[:2]) > 0.8
        assert of_wider[3] < 0.5
        assert set(self.all("bleu")) == {0}

    def attention_to_the_source(self) -> None:
        exact = self.all("exact")
        without, attending = self.all("table:.*?bleu")[8:]
        weights = self.rows(r" *\d+ [a-z] ", slice(1, None))
        assert attending > without + 4
        assert min(exact[:3] + exact[4:7]) > 0.95
        assert min(exact[3], exact[7]) > 0.75
        assert Printed("Encoder and decoder").all("exact")[3] < 0.01
        assert [row.index(max(row)) for row in weights] == list(reversed(range(len(weights))))

    def bleu_and_chrf(self) -> None:
        """Of the same text, another word, another order, a shorter text, and one of articles."""
        same, _, order, short, the = rows = self.rows(r" +\d+\.\d  ", slice(5))
        greedy, beams = self.all("table:.*?bleu")
        assert set(same) == {100}
        assert all(min(row) < 100 for row in rows[1:])
        assert order[2] == 100 > order[0]
        assert (short[0], the[2]) == (0, 25)
        assert abs(greedy - beams) < 3

    def summaries(self) -> None:
        pretrained, scratch = self.all("exact")
        of_pretrained, of_scratch = self.all("rouge1")
        assert scratch < 0.3 < 0.9 < pretrained
        assert 50 < of_scratch < of_pretrained - 10

    def scheduled_sampling(self) -> None:
        """The gap grows with the length, and is less than half with scheduled sampling, which is worse in the end."""
        rows = self.rows(r".*\t\d+ to \d+\t", slice(-3, None))
        assert len(rows) == 8
        for (right, _, gap), (worse, _, narrower) in zip(rows[:4], rows[4:], strict=True):
            assert worse < right
            assert narrower < 0.5 * gap
        assert rises([gap for *_, gap in rows[:3]], by=0.05)
        assert rows[3][0] > rows[7][0] + 0.1
        for ours, forced in zip(self.all("exact"), Printed("Encoder and decoder").all("exact")[:4], strict=True):
            assert ours < forced or forced < 0.02

    def self_attention_in_several_heads(self) -> None:
        """Weights of a causal mask; and of each two heads the first looks near and at few tokens."""
        for i, row in enumerate(self.matrix("A = ")):
            assert abs(sum(row) - 1) < 1e-3
            assert not any(row[i + 1 :])
        heads = self.rows(r"\d +\d ")  # layer, head, largest, entropy, ..., distance
        pairs = [(near, far) for near, far in zip(heads[::2], heads[1::2], strict=True) if near[0] == far[0]]
        assert len(pairs) == 4
        assert all(2 * near[-1] < far[-1] and near[3] + 0.5 < far[3] for near, far in pairs)

    def heads_with_widths_of_their_own(self) -> None:
        assert rises(self.all(r"self-attention .*?(?=\S+ +\S+ +\S+%)"))

    def masks(self) -> None:
        assert rises([len(line) for line in self.lines if set(line) == {"#"}])

    def positions(self) -> None:
        """Products depend on q - p alone, and steps on p; without positions the order of words changes nothing."""
        none, sinusoids = self.all("differ by at most")
        assert none < 1e-4 < 0.1 < sinusoids
        products, steps = self.matrix("PE(p) . PE(q)"), self.matrix("PE(p + 1) - PE(p)")
        assert all(abs(products[p][q] - products[0][abs(p - q)]) < 2e-3 for p in range(4) for q in range(4))
        assert max(abs(a - b) for a, b in zip(steps[0], steps[2], strict=True)) > 0.5

    def feed_forward_networks(self) -> None:
        """Networks help four layers by far more than which network it is, and about as much as eight more layers."""
        (four, spread), (twelve, _) = (self.table("model.n_layers")[name][:2] for name in ("4", "12"))
        means, spreads, *_ = zip(*self.table("model.activation").values(), strict=True)
        helped = four - max(means)
        assert helped > 3 * max(spread, *spreads)
        assert helped > 3 * (max(means) - min(means))
        assert abs(twelve - max(means)) < 0.05

    def from_a_position_wise_net_to_a_transformer(self) -> None:
        """Each part that is left out makes the loss worse, the residuals most of all; heads have learnt to differ."""
        rows = self.best("model.residual")
        assert len(rows) == 9
        whole, one_head, *without, no_residual = (
            rows[name]
            for name in (
                'true attention {"kind": "full"} 256 rotary 2 true',
                'true attention {"kind": "full"} 256 rotary 1 true',
                'true plain-attention {"kind": "full"} 256 rotary 2 true',
                'true attention {"kind": "window", "size": 1} 256 rotary 2 true',
                'true attention {"kind": "full"} 0 rotary 2 true',
                'true attention {"kind": "full"} 256 none 2 true',
                'false attention {"kind": "full"} 256 rotary 2 true',
            )
        )
        heads = self.rows(r"\d +\d ")  # layer, head, largest, entropy, ..., distance
        causal, unmasked = heads[:8], heads[8:]
        assert min(without) > whole + 0.05
        assert abs(one_head - whole) < 0.05
        assert no_residual == max(rows.values())
        assert rows['true attention {"kind": "full"} 256 rotary 2 false'] < 0.1087
        assert max(head[3] for head in causal) > 1.5 * min(head[3] for head in causal)
        assert max(head[-1] for head in causal) > 2 * min(head[-1] for head in causal)
        assert max(head[6] for head in unmasked) > 0.8

    def residuals_and_norms(self) -> None:
        """Residuals help more the deeper a network is, and norms where weights begin large."""
        depths, norms = self.best("model.n_layers"), self.best("model.init.std")
        (paper, spread, *_), (slide, other, *_) = self.table("model.residual_from").values()
        assert rises([depths[name] for name in ("8 true", "2 true", "2 false", "8 false")])
        assert abs(norms["0.02 none"] - norms["0.02 layer"]) < 0.05
        assert norms["0.2 none"] > max(norms["0.2 layer"], norms["0.2 rms"]) + 0.5
        assert max(spread, other) < slide - paper < 0.1
        moved = [
            self.all(f"{norm}: {what}")
            for norm in ("LayerNorm", "BatchNorm1d")
            for what in ("the.*?by", ".*?texts by", ".*moves by")
        ]
        assert moved[:3] == [[0], [0], [0]]
        assert min(by for (by,) in moved[3:]) > 0.01
        with_norms, without = self.rows("norm (?:layer|none): ", slice(-8, None))
        assert without[-1] / without[-2] > 1.2 > with_norms[-1] / with_norms[-2]
        assert without[-1] > 5 * with_norms[-1]

    def gpt(self) -> None:
        """It is near the best possible loss of the copies, and an LSTM of its size near that without copying."""
        assert self.beats_its_baseline()
        ((gpt, lstm),) = self.rows("best loss")
        assert gpt < 1.05 * 20 * math.log(8) / 42
        assert lstm > 0.95 * 40 * math.log(8) / 42
        assert len(set(re.findall(r"(\S+) parameters", self.text))) == 1
        assert len(set(self.rows("tokens\t")[0])) == 1

    def the_encoder_decoder_transformer(self) -> None:
        """Weights of the reverser lie on the letters that are written."""
        rows = self.rows(r" *\d+ [a-z] .*[·\d]$", slice(-11, None))
        wrong, right = self.all("reading .*?:", "%")
        assert sum(row.index(max(row)) == 10 - i for i, row in enumerate(rows)) >= 9
        assert self.all("bleu")[0] > 30
        assert self.all("exact")[-1] > 0.9
        assert wrong < 20 < 90 < right

    def prefix_language_models(self) -> None:
        """The masks of one stack and of two for the same cut; and for each seed their losses and a decoder's."""
        one, encoder, decoder, across = (
            [len(line.strip()) // 2 for line in part.splitlines() if set(line.strip()) == {"#"}]
            for part in re.split(r"^attention.*$", self.text, flags=re.MULTILINE)[1:]
        )
        n = len(encoder)
        assert one == [max(n, i + 1) for i in range(len(one))]
        assert encoder == [n] * n
        assert across == [n] * len(decoder)
        alone, prefix, two = (self.all(f"shape={shape}:") for shape in ("decoder", "prefix", "encoder-decoder"))
        assert len(two) == 3
        for of_decoder, of_prefix, of_two in zip(alone, prefix, two, strict=True):
            assert of_two + 0.03 < min(of_decoder, of_prefix)
            assert abs(of_decoder - of_prefix) < 0.05

    def optimizers(self) -> None:
        kinds, rates = self.best("optimizer"), self.best("optimizer.lr")
        best = min(rates, key=rates.__getitem__)
        steps, text = (self.best("training.batch_size", i) for i in (0, 1))
        found = {tuple(json.loads(kind).values()): loss for kind, loss in kinds.items()}
        assert rises(
            [found[kind] for kind in (("muon", 0.04), ("adamw", 0.01), ("sgd", 0.3, 0.9), ("sgd", 0.3))], by=0.1
        )
        assert min(found["sgd", 1], found["sgd", 3] - 1) > found["sgd", 0.3] - 0.3
        assert best in ("0.001", "0.01", "0.1")
        assert min(rates["0.0001"], rates["1"]) > rates[best] + 0.5
        assert falls([steps[n] for n in ("1", "4", "16")], by=0.1)
        assert rises([text[n] for n in ("1", "4", "16")])
        assert falls(self.all("loss varies by"))
        (_, *plain, slow), (_, *smooth, fast) = self.rows("momentum [0.]+5?: y")
        assert max(plain[0] * plain[1], plain[1] * plain[2], plain[2] * plain[3]) < 0 < smooth[1] * smooth[0]
        assert fast < slow / 10

    def schedules(self) -> None:
        rates, kinds, warm = self.all('"lr":'), self.best("optimizer.lr"), self.best("schedule.warmup_steps")
        for schedule, last_of_warmup in ((rates[:6], 3), (rates[6:], 2)):
            assert rises(schedule[:3])
            assert falls(schedule[last_of_warmup:])
        assert kinds["0.08 linear"] + 0.05 < kinds["0.08 constant"]
        assert kinds["0.02 linear"] > kinds["0.02 constant"] - 0.02
        assert min(kinds, key=kinds.__getitem__) == "0.08 linear"
        assert warm["40"] + 0.2 < warm["0"]

    def label_smoothing(self) -> None:
        losses = self.best("objective.label_smoothing")
        assert rises([losses[share] for share in ("0.3", "0.1", "0")], by=0.05)

    def dropout(self) -> None:
        some, more = (self.best("model.dropout")[share] for share in ("0.1", "0.3"))
        assert rises([more, some, Printed("Label smoothing").best("objective.label_smoothing")["0"]], by=0.05)

    def masked_language_modelling(self) -> None:
        """Words that fit: a trade and a place; and the shares of BERT in short rows."""
        ((trade, place),) = re.findall(
            r"^A patient (\w+) called Sam went to the ([\w']+)\.$", self.text, flags=re.MULTILINE
        )
        counts = [self.all(f"{name} ")[0] for name in ("mask", "random", "kept")]
        assert trade in {*TRADES.split(), "librarian", "nurse", "widow", "saddler"}
        assert place in PLACES.split()
        assert [count / sum(counts) for count in counts] == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
        (both, before, wrong, itself), (_, _, unseen, unconfirmed) = self.rows(
            r"[\w-]+: right at a mask", slice(-4, None)
        )
        assert both > max(before, self.all("right at the next word")[0]) + 0.1
        assert wrong > unseen + 0.1
        assert itself > 0.85 > unconfirmed + 0.2
        assert self.all("loss  ")[0] < 2
        assert falls(self.all('valid_loss":'))

    def how_much_to_mask(self) -> None:
        few, some, most = self.all("loss")
        assert some + 0.3 < min(few, most)

    def next_sentence_prediction(self) -> None:
        """The vectors of two segments differ; half of the pairs are true ones, and they are told apart in the end."""
        true, other = self.all("next text in")[0], self.all("any other in")[0]
        assert true + other == 500
        assert abs(true - other) < 100
        first, *_, last = self.matrix("segment vectors")
        segments = [cells[3] for line in self.lines if len(cells := line.split()) > 3 and cells[0].isdigit()]
        assert first != last
        assert segments == sorted(segments)
        assert {*segments} == {"0", "1"}
        assert self.all('accuracy":')[-1] > 0.85

    def span_corruption(self) -> None:
        """Two sentinels in the source, and the same in the target."""
        source, target = (re.findall(r"<extra_id_(\d)>", line) for line in self.lines[:2])
        losses = self.all('loss":')
        assert source == target == ["0", "1"]
        assert falls([4, *losses])
        assert losses[-1] < 3.5

    def classification_by_cls(self) -> None:
        """Three seeds from a pretrained model, and three from nothing: apart by a margin, with counted words between.

        The first is no better than the vectors of the encoder.
        """
        ours, scratch, words = self.all("3 runs: accuracy")
        deviations = self.all(r"3 runs: accuracy \S+ ±")
        assert ours - deviations[0] > max(scratch, words) + max(deviations[1:])
        assert ours > max(scratch, words) + 0.1
        assert ours > max(self.counted) >= min(self.counted) > max(scratch, words)
        assert abs(ours - self.all("vectors of the encoder")[0] / 100) < 0.1

    def classification_by_a_decoder(self) -> None:
        """A pretrained model above counted words, and one from nothing below; a row with marks around two texts."""
        ours, scratch = self.all("test: .*?accuracy")
        assert ours > max(self.counted) + 0.03
        assert ours - scratch > 0.2
        assert scratch < min(self.counted)
        assert re.findall(r"'\[(\w+)\]'", self.text) == ["BOS", "SEP", "CLS"]

    def several_tasks_as_text(self) -> None:
        (ours, scratch), (spread, other) = self.all("rouge1"), self.all(r"rouge1 \S+ ±")
        assert ours - spread > scratch + other
        assert self.accuracies[0] > 0.97
        assert self.accuracies[0] - self.accuracies[1] > sum(self.all(r"accuracy \S+ ±"))
        said, tongue = (line.partition(": ")[2] for line in self.lines[-2:])
        assert said not in ("English", "Foreign")
        assert tongue in ("English", "Foreign")

    def a_task_before_the_task(self) -> None:
        alone, after = self.all("test: .*?accuracy")
        directly, later = self.all("3 runs: accuracy")
        assert alone < min(self.counted) + 0.02
        assert after > alone + 0.2
        assert later - directly > sum(self.all(r"3 runs: accuracy \S+ ±"))
        assert "warning: the head" in self.text

    def features_of_a_language_model(self) -> None:
        assert self.accuracies[0] > 0.95 > 0.67 > self.accuracies[1]

    def mask_predict(self) -> None:
        once, often = (Counter(line.removeprefix("One rainy morning").split()) for line in self.lines[:3:2])
        assert max(once.values()) > 3 > max(often.values())

    def vectors_in_context(self) -> None:
        """A word alone has the same neighbours everywhere, and in two texts those of weather and of illness."""
        words = self.nearest()
        assert words[:5] == words[5:10]
        assert {"foggy", "rainy", "snowy", "sunny", "windy"} & {*words[10:15]}
        assert {"ankle", "cough", "fever", "leg", "measles"} & {*words[15:]}

    def cost_over_length(self) -> None:
        short, long, window = self.all(r"self-attention +2 heads of 64 +\S+")
        gains = [lstm / attention for _, lstm, _, attention, _ in self.rows(r" +\d+ .* s ")]
        assert long > 5 * short > 5 * window
        assert gains[0] > 3
        assert gains[-1] < gains[0] / 2

    def two_phases_of_length(self) -> None:
        own, beyond, after = self.all("loss")
        assert beyond > own + 1
        assert after - own < (beyond - own) / 4

    def masked_spans(self) -> None:
        unigram, spans = self.all("loss")
        assert 1.8 * Printed("How much to mask").all("loss")[1] < spans < 0.55 * unigram

    def relatives_of_bert(self) -> None:
        roberta, albert = self.all("transformer encoder")
        ((alone, student),) = self.rows("best loss")
        assert roberta > 2 * albert
        assert student < alone
        assert rises(self.all('replaced-found":')[::3], by=0.3)

    def the_tasks_of_glue(self) -> None:
        *tasks, (whole,) = self.rows("(?:cola|match|stars|mean) ")
        scores = [score for (score,) in tasks]
        assert len(scores) == 3
        assert min(scores) > 20
        assert mean(scores) == pytest.approx(whole, abs=0.1)

    def tags_and_answers(self) -> None:
        assert self.all(r"test: 400 rows +f1")[0] > 0.98
        assert self.all("most frequent tag of each word")[0] / 100 < 2 / 3
        found, guessed = self.all("has answer exact")
        assert 0.2 < found < 0.35
        assert guessed < found / 3

    def frozen_features(self) -> None:
        assert 0.37 < self.accuracies[1] < self.accuracies[0]
        embeddings, *middle, last = self.all("rows +f1")
        assert embeddings + 0.03 < last < max(middle) - 0.02

    def low_rank_adapters(self) -> None:
        whole, adapted = self.all("decoder,")
        merged, apart = self.accuracies
        assert adapted - whole == 4 * 2 * 2 * 4 * 128 < whole / 100
        assert min(merged, apart) > 0.6
        assert abs(merged - apart) < 0.01

    def asking_without_training(self) -> None:
        (scored, *_), (calibrated, *_, by_bytes) = self.rows("as scored|calibrated", slice(-3, None))
        assert scored < 60 < 85 < calibrated
        assert by_bytes < calibrated

    def greedy_decoding(self) -> None:
        good, weak, sampled = (line for line in self.lines if line.startswith("One rainy morning"))
        _, of_weak, of_sampled = self.all("mean log-probability")
        assert [repeats_itself(text) for text in (good, weak, sampled)] == [False, True, False]
        assert of_weak > of_sampled + 0.5

    def beam_search(self) -> None:
        greedy, beams = (line for line in self.lines if line.startswith("It was"))
        by_greedy, by_beams = self.all("mean log-probability")
        assert greedy.split()[:4] != beams.split()[:4]
        assert by_beams > by_greedy + 0.02
        (_, short, likely, less), (_, long, unlikely, more) = self.rows("60 translations")
        assert short + 0.3 < long
        assert likely > unlikely
        assert less < more

    def temperature(self) -> None:
        texts = self.drawn()
        (half, narrow), (one, spread), (more, wide), (three, _) = (texts[f"T={t}"] for t in ("0.5", "1", "1.5", "3"))
        assert Printed("Greedy decoding").lines[0].startswith(self.lines[0])
        assert self.all("mean log-probability")[0] > half
        assert one < half < one + spread
        assert narrow < 0.75 * spread
        assert more + spread < one
        assert three + wide < more

    def top_k_and_nucleus(self) -> None:
        whole, cut = Printed("Temperature").drawn(), self.drawn()
        (top_k, spread), (nucleus, _) = cut["top-k=5,T=1.5"], cut["top-p=0.5,T=1.5"]
        assert len(cut) == 4
        assert all(found[0] > sum(whole[name.partition(",")[2]]) for name, found in cut.items())
        assert abs(top_k - nucleus) < spread
        assert sum(cut["top-p=0.5,T=3"]) < cut["top-k=5,T=3"][0]

    def caching(self) -> None:
        cached, recomputed = self.all("tokens:"), self.all("with a cache,")
        assert self.text.count("the same: True") == 3 == len(cached) == len(recomputed)
        assert 1.3 < cached[2] / cached[1] < 3.5
        assert rises([1.5, recomputed[1] / recomputed[0], recomputed[2] / recomputed[1]])
        assert recomputed[2] / recomputed[1] > 3
        assert recomputed[2] > 5 * cached[2]
        assert self.all("one pass:")[0] < cached[2] / 2

    def batches(self) -> None:
        assert self.lines[0] == self.lines[self.lines.index("---") + 1]
        assert self.all("differ by at most")[0] < 1e-3
        ((first, last),) = re.findall(rf"from the last: {NUMBER} and {NUMBER}$", self.text, flags=re.MULTILINE)
        assert first != last
        assert float(first) == pytest.approx(float(last), abs=0.01)

    def elmo(self) -> None:
        embeddings, last, mix = self.accuracies
        assert self.beats_its_baseline()
        assert last > embeddings + 0.03
        assert abs(mix - last) <= 0.015

    def pictures_of_attention(self) -> None:
        rows = self.rows(r" *\d+ \S")
        near = [at - max(range(len(row) - 1), key=row[1:].__getitem__) <= 4 for at, row in enumerate(rows)]
        assert all(90 < sum(row[1:]) <= 103 for row in rows)
        assert sum(near) > 0.7 * len(rows)


@pytest.mark.parametrize("topic", TOPICS)
def test_a_topic_shows_what_it_says(topic: str) -> None:
    getattr(Topics(topic), re.sub(r"\W+", "_", topic.lower()).strip("_"))()


def test_the_costs_of_a_token_are_parts_of_the_printed_mean() -> None:
    context, per_compared_token = 1024, 4 * 768 * 12
    (of_row,) = Printed("Caching").all(r"124,439,808", "  100")
    of_matrices = of_row - per_compared_token * (context + 1) / 2  # a token compares with half of the row on average
    of_last = per_compared_token * context
    found = re.search(
        r"The (\d+) million operations.*? (\d+) million are those of the matrices.*? = ([\d,]+) for each.*?: (\d+) "
        r"million as a mean.*? and (\d+)\s+million for the last token, which so costs (\d+) million",
        TOPICS["Caching"],
        re.DOTALL,
    )
    assert found is not None
    millions = [round(cost / 1e6) for cost in (of_row, of_matrices, of_row - of_matrices, of_last)]
    told = [int(figure.replace(",", "")) for figure in found.groups()]
    assert told == [*millions[:2], per_compared_token, *millions[2:], round((of_matrices + of_last) / 1e6)]
