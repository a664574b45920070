"""Tables to label."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lmtool.apps.labelling.journal import LockedAnswerJournal
from lmtool.apps.labelling.labelling import ActiveLearningSession
from lmtool.apps.labelling.learning import compute_embeddings_or_tfidf
from lmtool.apps.labelling.table import TableToLabel
from lmtool.recipe.spec.text import Data

WORDS = {"animal": ("cat", "dog", "horse"), "fruit": ("apple", "pear", "plum")}
TEXTS = [
    (label, f"the {size} {word} {where}")
    for label, words in WORDS.items()
    for word in words
    for size in ("small", "large", "old", "new")
    for where in ("here", "there", "outside", "at home")
]
TRUTH = {text: label for label, text in TEXTS}


def write(path: Path, rows: list[str], header: str = "number,text") -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Texts without labels."""
    return write(tmp_path / "things.csv", [f"{i},{text}" for i, (_, text) in enumerate(TEXTS)])


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[..., ActiveLearningSession]]:
    """Begins, or goes on, to label a table."""
    journals: list[LockedAnswerJournal] = []

    def call(source: Path, multi: bool = False, **reading: Any) -> ActiveLearningSession:
        rows = TableToLabel.read(str(source), Data(**reading), multi, None, tmp_path / "out.csv")
        for earlier in journals:
            earlier.close()
        journal = LockedAnswerJournal(tmp_path / "out.answers.jsonl", {"table": source.name})
        journals.append(journal)
        features = compute_embeddings_or_tfidf([" ".join(texts) or "-" for _, texts in rows.rows], None)
        return ActiveLearningSession(rows, journal, features, [])

    yield call
    for journal in journals:
        journal.close()
