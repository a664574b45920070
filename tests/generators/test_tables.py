"""reviews.csv, entailment.csv and kinship.csv: clean English, balanced, and their labels are those of a parser."""

import json
import re
from collections import Counter
from typing import NamedTuple

import pytest
from choice import derivations
from reviews import OPPOSED

from tests.generators.reading import DATA, complaints, generator, rows


class Table(NamedTuple):
    """sizes: of training and test. bag_of_words: between which accuracies that of naive Bayes is."""

    columns: tuple[str, ...]
    sizes: tuple[int, int]
    labels: set[str]
    bag_of_words: tuple[float, float]


PAIR = ("premise", "hypothesis")
TABLES = {
    "reviews": Table(("text",), (3000, 1000), {"negative", "neutral", "positive"}, (0.55, 0.85)),
    "entailment": Table(PAIR, (4000, 1000), {"entailment", "contradiction", "neutral"}, (0.3, 0.4)),
    "kinship": Table(PAIR, (400, 400), {"entailment", "not_entailment"}, (0.4, 0.547)),
}
names = pytest.mark.parametrize("name", TABLES)


@names
def test_the_files_are_plain_balanced_csv(name: str) -> None:
    assert b"\r" not in (DATA / f"{name}.csv").read_bytes() + (DATA / f"{name}.test.csv").read_bytes()
    parts, table = rows(name), TABLES[name]
    assert tuple(map(len, parts)) == table.sizes
    assert len({tuple(row[column] for column in table.columns) for part in parts for row in part}) == sum(table.sizes)
    for part in parts:
        counts = Counter(row["label"] for row in part)
        assert counts.keys() == table.labels
        assert min(counts.values()) > 0.84 * len(part) / len(counts)


@names
def test_the_text_is_written_cleanly(name: str) -> None:
    allowed = {"capital inside"} if name == "reviews" else set()  # such as of The Harp
    for row in (row for part in rows(name) for row in part):
        for column in TABLES[name].columns:
            assert row[column].isascii()
            assert {rule for rule, _ in complaints(row[column])} <= allowed, row


@names
def test_the_limits_are_near_one_and_words_without_their_order_do_not_suffice(name: str) -> None:
    everything = json.loads((DATA / "limits.json").read_text("utf-8")).values()
    (limit,) = (one for one in everything if one["file"] == f"{name}.test.csv")
    low, high = TABLES[name].bag_of_words
    assert all(low < value < high for key, value in limit.items() if key.startswith("bag_of_words"))
    assert 0.95 < limit["best_accuracy"] <= 1
    assert abs(limit["bayes_rule"] - limit["best_accuracy"]) < 0.04


def test_what_varies_in_a_review_is_set_against_its_opposite() -> None:
    pairs = {(a, b.split()[-1]) for good, bad in OPPOSED for a, b in ((good, bad), (bad, good))}
    found = [
        pair
        for row in rows("reviews")[0]
        for pair in re.findall(r"(?:is|are|was|were) ([\w ]+), (?:on|in) [^,.]*?(\w+)\.", row["text"])
    ]
    assert len(found) > 50
    assert set(found) <= pairs


@pytest.mark.slow
@names
def test_a_parser_recovers_the_choices_and_the_label_of_every_row(name: str) -> None:
    """The logged choices are among those by which a row can be written; who is told a premise knows the label."""
    table = generator(name)
    for row in table.test + (table.train if name == "reviews" else []):
        every = derivations(table.program, row.text)
        assert any(abs(one.bits - row.bits) < 1e-6 and one.value == row.value for one in every), row.text
        assert name == "reviews" or {one.value for one in every} == {row.value}, row.text
