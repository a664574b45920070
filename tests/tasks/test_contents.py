"""What the cells of a column are, by their content; and which columns of texts are used, and told."""

import csv
import random
from pathlib import Path

import pytest

from lmtool.data.table import open_table
from lmtool.recipe.spec.text import Data
from lmtool.tasks.schema import Columns, are_certainly_no_texts, are_certainly_texts, choose_columns

RNG = random.Random(0)
WORDS = ["fine", "old", "story", "of", "the", "sea", "many", "quiet", "people", "who", "never", "went", "home"]
SAMPLES = {
    "title": [" ".join(RNG.choices(WORDS, k=RNG.randint(1, 4))).title() for _ in range(60)],
    "description": [" ".join(RNG.choices(WORDS, k=RNG.randint(5, 30))) + "." for _ in range(60)],
    "chinese": ["".join(RNG.choices("人不知而慍亦君子乎學時習之說", k=12)) for _ in range(60)],
    "word": [RNG.choice(WORDS) for _ in range(60)],
    "year": [str(1950 + i) for i in range(60)],
    "price": [f"${i}.99" for i in range(60)],
    "number": [f"{i / 7:.3f}" for i in range(60)],
    "row": [f"{i:,}" for i in range(5000, 5060)],
    "uuid": [f"{RNG.getrandbits(128):032x}" for _ in range(60)],
    "code": [f"REV-{i:05}" for i in range(60)],
    "email": [f"{RNG.choice(WORDS)}@example.org" for _ in range(60)],
    "url": [f"https://example.org/{RNG.choice(WORDS)}" for _ in range(60)],
    "iso": [f"2021-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(60)],
    "stamp": [f"2021-{1 + i % 12:02}-{1 + i % 28:02}T12:30:{i:02}Z" for i in range(60)],
    "american": [f"{1 + i % 12}/{1 + i % 28}/2021 4:{i:02} PM" for i in range(60)],
    "german": [f"{1 + i % 28}.{1 + i % 12}.2021" for i in range(60)],
    "words of dates": [f"March {1 + i % 28}, 2021" for i in range(60)],
    "short dates": [f"{1 + i % 28} Sep 2021" for i in range(60)],
    "one value": ["the same for all"] * 60,
    "nothing": [""] * 60,
}
PROSE = {"title", "description", "chinese"}
NO_CODE = {*PROSE, "word"}


@pytest.mark.parametrize("name", SAMPLES)
def test_what_cells_are(name: str) -> None:
    assert are_certainly_no_texts(SAMPLES[name]) == (name not in NO_CODE)
    assert are_certainly_texts(SAMPLES[name]) == (name in PROSE)
    some_empty = [*SAMPLES[name], "", None]
    assert are_certainly_no_texts(some_empty) == (name not in NO_CODE)


def test_a_category_of_several_words_is_no_prose() -> None:
    assert not are_certainly_texts(["science fiction", "crime and thriller"] * 500)
    assert are_certainly_texts(["a film of the sea", "another one entirely"])


def test_values_that_are_no_text_are_codes() -> None:
    assert are_certainly_no_texts([1, 2, 3])
    assert are_certainly_no_texts([["a"], ["b"]])
    assert are_certainly_no_texts([True, None])


def columns(path: Path, **cells: str) -> Columns:
    """The columns of a table with samples under other names."""
    with (path / "a.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(cells)
        writer.writerows(zip(*(SAMPLES.get(name, ["x", "y"] * 30) for name in cells.values()), strict=True))
    return choose_columns(open_table(str(path / "a.csv")))


@pytest.mark.parametrize(
    ("cells", "texts"),
    [
        ({"title": "title", "description": "description", "label": "y"}, ("title", "description")),
        ({"description": "description", "label": "y", "title": "title"}, ("description", "title")),
        (
            {"Title": "title", "Review Text": "description", "Body": "chinese", "label": "y"},
            ("Title", "Review Text", "Body"),
        ),
        ({"title": "code", "description": "description", "label": "y"}, ("description",)),
        ({"post": "iso", "text": "description", "label": "y"}, ("text",)),
        ({"email": "email", "message": "description", "label": "y"}, ("message",)),
        ({"document": "uuid", "title": "title", "body": "description", "label": "y"}, ("title", "body")),
        ({"title": "nothing", "text": "description", "label": "y"}, ("text",)),
        ({"text": "chinese", "title": "chinese", "label": "y"}, ("text", "title")),
        # one column of a usual name is the text, whatever it holds
        ({"text": "code", "label": "y"}, ("text",)),
        ({"title": "code", "text": "number", "label": "y"}, ("text",)),
        # two texts that belong together go before the others
        ({"title": "title", "premise": "title", "hypothesis": "title", "label": "y"}, ("premise", "hypothesis")),
    ],
)
def test_all_columns_of_texts_are_used_in_their_order(
    cells: dict[str, str], texts: tuple[str, ...], tmp_path: Path
) -> None:
    found = columns(tmp_path, **cells)
    assert found.texts == texts
    assert found.label == "label"
    for name in texts:
        assert repr(name) in found.describe()


def test_a_column_of_texts_that_is_not_used_is_told_with_options_that_add_it(tmp_path: Path) -> None:
    found = columns(
        tmp_path, **{"id": "code", "name of it": "title", "text": "description", "when": "iso", "label": "y"}
    )
    assert found.texts == ("text",)
    assert found.describe().endswith(
        "(inferred from their names); ignored: 'name of it'; to read it too: "
        "--text-column text --text-column 'name of it'"
    )
    table = open_table(str(tmp_path / "a.csv"))
    named = choose_columns(table, Data(text_columns=["name of it", "text"]))
    assert named.texts == ("name of it", "text")
    assert "ignored" not in named.describe()


def test_nothing_is_told_of_columns_without_texts(tmp_path: Path) -> None:
    found = columns(tmp_path, id="code", date="stamp", place="word", stars="number", text="description", label="y")
    assert "ignored" not in found.describe()
