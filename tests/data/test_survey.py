"""What a survey counts, against plain counts of the same text."""

import re
from pathlib import Path

from lmtool.data.survey import divide_text
from lmtool.recipe.spec.text import Data
from tests.data.texts import prose
from tests.training.tiny import no_report


def test_a_survey_counts_what_a_reader_counts(tmp_path: Path) -> None:
    rows = [prose(200 + 37 * n, seed=n) for n in range(40)]
    (tmp_path / "a.txt").write_text("\n\n".join(row.replace("\n", " ") for row in rows), encoding="utf-8")
    divided = divide_text(Data(train=(str(tmp_path / "a.txt"),)), seed=1, report=no_report)
    text = divided.text
    data = divided.data
    assert (data.documents, data.split) == ("blank-line", "document")
    flat = [row.replace("\n", " ") for row in rows]
    shape = text.shape
    assert (shape.documents, shape.longest) == (40, max(map(len, flat)))
    assert shape.characters == sum(map(len, flat))
    assert shape.n_bytes == sum(len(row.encode()) for row in flat)
    assert shape.alphabet == len(set("".join(flat)))
    assert not shape.is_list
    assert not shape.is_stream


def test_the_share_of_new_words_is_that_of_the_last_tenth(tmp_path: Path) -> None:
    rows = [f"the cat number{n if n % 3 else 0} sat down" for n in range(1000)]
    (tmp_path / "a.txt").write_text("\n".join(rows))
    divided = divide_text(Data(train=(str(tmp_path / "a.txt"),), documents="line"), seed=1, report=no_report)
    text = divided.text
    early = set(re.findall(r"\w+", " ".join(rows[:900])))
    late = re.findall(r"\w+", " ".join(rows[900:]))
    assert text.shape.new_words == len(set(late) - early) / len(late)


def test_one_long_document_is_measured_whole(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("word after word " * 30_000)
    divided = divide_text(Data(train=(str(tmp_path / "a.txt"),)), seed=1, report=no_report)
    text = divided.text
    data = divided.data
    assert (data.documents, data.split, text.shape.longest) == ("whole", "slice", 16 * 30_000)
    assert text.shape.new_words == 0


def test_one_paragraph_is_a_text(tmp_path: Path) -> None:
    """However it is laid out, so that its resolved data name no contradiction."""
    (tmp_path / "a.txt").write_text("\n\nOnly one paragraph, on one line.\n\n")
    divided = divide_text(Data(train=(str(tmp_path / "a.txt"),)), seed=1, report=no_report)
    data = divided.data
    assert (data.documents, data.split) == ("whole", "slice")
