"""What a survey counts, against plain counts of the same text."""

import re
from pathlib import Path
from typing import Any

from lmtool.data.survey import scan_training_text
from lmtool.recipe.spec.text import Data
from tests.support.texts import prose
from tests.support.training import no_report


def survey(folder: Path, text: str, **data: Any) -> Any:
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return scan_training_text(Data(train=(str(folder / "a.txt"),), **data), stream_seed=1, report=no_report)


def test_a_survey_counts_what_a_reader_counts(tmp_path: Path) -> None:
    rows = [prose(200 + 37 * n, seed=n).replace("\n", " ") for n in range(40)]
    divided = survey(tmp_path, "\n\n".join(rows))
    shape = divided.text.text_statistics
    assert (divided.data.documents, divided.data.split) == ("blank-line", "document")
    assert (shape.documents, shape.longest) == (40, max(map(len, rows)))
    assert (shape.characters, shape.n_bytes) == (sum(map(len, rows)), sum(len(row.encode()) for row in rows))
    assert shape.alphabet == len(set("".join(rows)))
    assert not shape.is_list
    assert not shape.is_stream


def test_the_share_of_new_words_is_that_of_the_last_tenth(tmp_path: Path) -> None:
    rows = [f"the cat number{n if n % 3 else 0} sat down" for n in range(1000)]
    shape = survey(tmp_path, "\n".join(rows), documents="line").text.text_statistics
    early = set(re.findall(r"\w+", " ".join(rows[:900])))
    late = re.findall(r"\w+", " ".join(rows[900:]))
    assert shape.new_words == len(set(late) - early) / len(late)


def test_one_text_is_cut_wherever_it_is_long_or_a_paragraph(tmp_path: Path) -> None:
    long = survey(tmp_path, "word after word " * 30_000)
    assert (long.text.text_statistics.longest, long.text.text_statistics.new_words) == (16 * 30_000, 0)
    for divided in long, survey(tmp_path, "\n\nOnly one paragraph, on one line.\n\n"):
        assert (divided.data.documents, divided.data.split) == ("whole", "slice")
