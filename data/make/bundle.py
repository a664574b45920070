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

import questions
import stories
import tags
import translation
from entailment import ENTAILMENT
from kinship import KINSHIP
from reviews import REVIEWS

HERE = Path(__file__).resolve().parent.parent
TRAIN, VALID = 4500, 195  # stories; those for validation are numbered after those for training
SHORTEST, LONGEST = 60, 250  # words of a story

Limit = dict[str, Any]


def story_files() -> Iterator[tuple[str, bytes, Limit]]:
    """The stories, separated by blank lines. No two are equal, and each is as long as it may be."""
    every = [stories.numbered(index) for index in range(TRAIN + VALID)]
    if len({one.text for one in every}) < len(every):
        raise SystemExit("A story is told twice.")
    for one in every:
        if not SHORTEST <= len(one.text.split()) <= LONGEST:
            raise SystemExit(f"{len(one.text.split())} words: {one.text}")
    for name, told in (("stories.txt", every[:TRAIN]), ("stories.valid.txt", every[TRAIN:])):
        size, bits = sum(len(one.text.encode()) for one in told), sum(one.bits for one in told)
        yield (
            name,
            ("\n\n".join(one.text for one in told) + "\n").encode(),
            {
                "documents": len(told),
                "bytes": size,
                "bits": round(bits, 3),
                "bits_per_document": round(bits / len(told), 4),
                "bits_per_byte": round(bits / size, 6),
            },
        )


def files() -> Iterator[tuple[str, bytes, Limit]]:
    """(name, bytes, limit) of every bundled file."""
    for part in (
        story_files,
        translation.files,
        REVIEWS.files,
        ENTAILMENT.files,
        KINSHIP.files,
        tags.files,
        questions.files,
    ):
        yield from part()


def build(folder: Path) -> None:
    """Write every file and limits.json into the folder."""
    limits = {}
    for name, data, limit in files():
        (folder / name).write_bytes(data)
        limits[hashlib.sha256(data).hexdigest()] = {"file": name, **limit}
    (folder / "limits.json").write_text(json.dumps(limits, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
