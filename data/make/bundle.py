"""Write the bundled files, the same bytes every time: python data/make/bundle.py [FOLDER]

limits.json holds, by the SHA-256 of each file's bytes, what the best possible model would reach. For documents:
    documents, bytes   how many there are, and the UTF-8 bytes of their text without what separates them
    bits               the sum of -log2 of the probability of each text under the program that wrote it. The end of a
                       text is part of it: a model is to be scored on every token of the text and on its end.
    bits_per_document, bits_per_byte
For the translation tables: the same of the sources, and the best accuracy and BLEU of the targets.
For the labelled tables: the best accuracy to be expected, and what a majority and a bag of words reach.
For tags and questions: their numbers, the best F1 or exact match, and what never answering reaches.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import stories
import translation
from entailment import ENTAILMENT
from entailment_kinship import KINSHIP
from questions import QUESTIONS
from reviews import REVIEWS
from tags import TAGS

HERE = Path(__file__).resolve().parent.parent
TRAIN, VALID = 4500, 195  # stories; those for validation are numbered after those for training
SHORTEST, LONGEST = 60, 250  # words of a story

Limit = dict[str, Any]


def documents(texts: list[str], bits: list[float]) -> tuple[bytes, Limit]:
    """The bytes of a file of documents separated by blank lines, and its limit."""
    size = sum(len(text.encode()) for text in texts)
    total = sum(bits)
    limit = {
        "documents": len(texts),
        "bytes": size,
        "bits": round(total, 3),
        "bits_per_document": round(total / len(texts), 4),
        "bits_per_byte": round(total / size, 6),
    }
    return ("\n\n".join(texts) + "\n").encode(), limit


def story_files() -> Iterator[tuple[str, bytes, Limit]]:
    told: set[str] = set()
    for name, first, count in (("stories.txt", 0, TRAIN), ("stories.valid.txt", TRAIN, VALID)):
        every = [stories.number(index) for index in range(first, first + count)]
        for one in every:
            if one.text in told:
                raise SystemExit(f"told twice: {one.text}")
            told.add(one.text)
            if not SHORTEST <= len(one.text.split()) <= LONGEST:
                raise SystemExit(f"{len(one.text.split())} words: {one.text}")
        yield name, *documents([one.text for one in every], [one.bits for one in every])


def translation_files() -> Iterator[tuple[str, bytes, Limit]]:
    for name, limit in translation.limits().items():
        yield name, translation.table(translation.rows()[name]).encode(), limit


def files() -> Iterator[tuple[str, bytes, Limit]]:
    """(name, bytes, limit) of every bundled file."""
    yield from story_files()
    yield from translation_files()
    for table in (REVIEWS, ENTAILMENT, KINSHIP, TAGS, QUESTIONS):
        yield from table.files()


def build(folder: Path) -> None:
    """Write every file and limits.json into the folder."""
    limits = {}
    for name, data, limit in files():
        (folder / name).write_bytes(data)
        limits[hashlib.sha256(data).hexdigest()] = {"file": name, **limit}
    (folder / "limits.json").write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
