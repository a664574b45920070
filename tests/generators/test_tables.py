"""reviews.csv, entailment.csv and kinship.csv are what their generators write, in clean English."""

from collections import Counter
from typing import Any, NamedTuple

import pytest
from choice import derivations

from tests.generators.reading import DATA, complaints, generator, rows


class Table(NamedTuple):
    """sizes: of training and test. step: of the rows that a parser reads by day."""

    columns: tuple[str, ...]
    sizes: tuple[int, int]
    labels: set[str]
    step: int


PAIR = ("premise", "hypothesis")
TABLES = {
    "reviews": Table(("text",), (3000, 1000), {"negative", "neutral", "positive"}, 20),
    "entailment": Table(PAIR, (4000, 1000), {"entailment", "contradiction", "neutral"}, 96),
    "kinship": Table(PAIR, (400, 400), {"entailment", "not_entailment"}, 40),
}
names = pytest.mark.parametrize("name", TABLES)


@pytest.mark.slow
@names
def test_the_generator_writes_the_committed_bytes(name: str) -> None:
    table = generator(name)
    assert table.csv(table.train) == (DATA / f"{name}.csv").read_bytes()
    assert table.csv(table.test) == (DATA / f"{name}.test.csv").read_bytes()


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


def recover(table: Any, some: list[Any]) -> None:
    """The logged choices are among those by which a row can be written; who is told a premise knows the label."""
    for row in some:
        every = derivations(table.program, row.text)
        assert any(abs(one.bits - row.bits) < 1e-6 and one.value == row.value for one in every), row.text
        assert table.program.__module__ == "reviews" or {one.value for one in every} == {row.value}, row.text


@pytest.mark.slow
@names
def test_a_parser_recovers_the_choices_and_the_label(name: str) -> None:
    table = generator(name)
    recover(table, table.test[:: TABLES[name].step])


@pytest.mark.slow
@names
def test_a_parser_recovers_those_of_every_row(name: str) -> None:
    table = generator(name)
    recover(table, table.test + (table.train if name == "reviews" else []))
