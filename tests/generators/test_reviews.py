"""The labels of reviews.csv follow from the texts as far as limits.json says; test_tables.py reads its files."""

import importlib
import re

import pytest

from tests.generators.reading import rows


@pytest.fixture(scope="module")
def table():
    return importlib.import_module("reviews").REVIEWS


MILD = "One could do|(could|might) be|I have (been to|eaten|read) (better|worse)"


@pytest.mark.slow
def test_mild_texts_alone_are_open(table):
    for row in table.test[::10]:
        posterior = table.posterior(row.text)
        assert sum(posterior.values()) == pytest.approx(1)
        mild = re.search(f"{MILD}|, (but|although|even if) ", row.text)
        assert max(posterior.values()) == pytest.approx(1) or mild, row.text


@pytest.mark.slow
def test_the_limit_is_near_but_below_one(table):
    best = table.best(table.test[::4])
    assert 0.95 < best["best_accuracy"] < 0.99
    assert abs(best["bayes_rule"] - best["best_accuracy"]) < 0.04


def test_what_varies_is_set_against_its_opposite(table):
    words = importlib.import_module("reviews")
    n_read = 0
    for row in rows("reviews")[0]:
        for one, other in re.findall(r"(?:is|are|was|were) ([\w ]+), (?:on|in) [^,.]*?(\w+)\.", row["text"]):
            pairs = {(a, b.split()[-1]) for good, bad in words.OPPOSED for a, b in ((good, bad), (bad, good))}
            assert (one, other) in pairs, row
            n_read += 1
    assert n_read > 50


def test_order_and_negation_matter(table):
    baselines = table.baselines()
    assert baselines["majority"] < 0.4
    assert 0.55 < baselines["bag_of_words"] < 0.85
